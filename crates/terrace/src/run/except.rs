//! `--except DIR`: directories below the served one that terrace does not serve.
//!
//! terrace copies the source's mount before covering it, and attaches the copy over the same directory in its
//! mount. All this happens in the run's private mount namespace. After any crash, the copies end with the
//! last process of that namespace.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags};

use crate::error::{Failure, Result, reason};

/// The directories that are not served.
#[derive(Debug, Default)]
pub(super) struct Excepted(Vec<(PathBuf, OwnedFd)>);

/// Resolves the given directories: absolute, without symbolic links, without those that lie in others.
/// Relative names begin at the served directory.
pub(super) fn resolve(served: &Path, named: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut found = named.iter().map(|name| resolve_one(served, name)).collect::<Result<Vec<_>>>()?;
    found.sort();
    // After sorting, a directory comes before those inside it.
    found.dedup_by(|later, first| later.starts_with(first));
    Ok(found)
}

fn resolve_one(served: &Path, name: &Path) -> Result<PathBuf> {
    let told = format!("--except {}", name.display());
    let path = served.join(name).canonicalize().map_err(|err| match err.kind() {
        std::io::ErrorKind::NotFound => {
            let cure = format!("make it first, or name a directory of {}", served.display());
            Failure::new(&told, "it does not exist", cure)
        }
        _ => Failure::new(&told, reason(err), "name a directory that this user can reach"),
    })?;
    if path == served || !path.starts_with(served) {
        let why = format!("{} is not below {}", path.display(), served.display());
        return Err(Failure::new(&told, why, "name a directory below the one that --on names"));
    }
    if !path.is_dir() {
        return Err(Failure::new(&told, "it is a file, not a directory", "name the directory that it is in"));
    }
    Ok(path)
}

impl Excepted {
    /// Copies the mounts at these directories, in the private namespace and before terrace covers them.
    pub(super) fn copy(dirs: Vec<PathBuf>) -> Result<Excepted> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::AT_RECURSIVE
            | OpenTreeFlags::AT_SYMLINK_NOFOLLOW
            | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let copy = |dir: PathBuf| match rustix::mount::open_tree(CWD, &dir, flags) {
            Ok(mount) => Ok((dir, mount)),
            Err(err) => Err(failed(&dir, err)),
        };
        dirs.into_iter().map(copy).collect::<Result<Vec<_>>>().map(Excepted)
    }

    /// Attaches the copies over terrace's mount.
    pub(super) fn attach(&self) -> Result<()> {
        self.0.iter().try_for_each(|(dir, mount)| {
            let done =
                rustix::mount::move_mount(mount, "", CWD, dir, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH);
            done.map_err(|err| failed(dir, err))
        })
    }

    /// Detaches the copies by their descriptors: a path lookup would hang if the daemon does not answer.
    pub(super) fn detach(self) {
        for (dir, mount) in self.0 {
            let path = format!("/proc/self/fd/{}", mount.as_raw_fd());
            match rustix::mount::unmount(&path, UnmountFlags::DETACH) {
                // EINVAL: never attached, or already gone with terrace's mount.
                Ok(()) | Err(rustix::io::Errno::INVAL) => {}
                Err(err) => terrace_output::error_line!(
                    "terrace: --except {}: the directory stays mounted until the command's last process ends ({err})",
                    dir.display()
                ),
            }
        }
    }
}

fn failed(dir: &Path, err: rustix::io::Errno) -> Failure {
    let told = format!("--except {}", dir.display());
    Failure::new(told, reason(err), "leave it out, or see `dmesg` for the kernel's reason")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn names_begin_at_the_served_directory() {
        let dir = tempfile::tempdir().unwrap();
        let served = dir.path().canonicalize().unwrap();
        for name in ["logs/old", "out", "logs2"] {
            fs::create_dir_all(served.join(name)).unwrap();
        }
        let named = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(PathBuf::from).collect();
            resolve(&served, &names).unwrap()
        };
        assert_eq!(named(&[]), Vec::<PathBuf>::new());
        let absolute = served.join("out");
        assert_eq!(
            named(&["logs2", absolute.to_str().unwrap(), "logs/old", "./logs", "logs"]),
            [served.join("logs"), served.join("logs2"), absolute]
        );
    }

    #[test]
    fn invalid_exception_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let served = dir.path().canonicalize().unwrap().join("served");
        fs::create_dir_all(served.join("d")).unwrap();
        fs::write(served.join("file"), "").unwrap();
        std::os::unix::fs::symlink(dir.path(), served.join("out")).unwrap();
        for (name, why) in [
            ("missing", "--except missing: it does not exist"),
            ("file", "it is a file, not a directory"),
            (".", "is not below"),
            ("..", "is not below"),
            ("/", "is not below"),
            ("out", "is not below"),
        ] {
            let told = resolve(&served, &[name.into()]).unwrap_err().to_string();
            assert!(told.contains(why), "{name}: {told}");
        }
    }
}
