//! Source and mount point of an instance, checked before anything is made: each way they can be wrong has its own line.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::data_loss;
use crate::error::{Failure, Result, reason};
use crate::instance::{self, Instance};
use crate::mounts;

/// A wait that is longer than this is told.
const SILENT_FOR: Duration = Duration::from_secs(1);

/// How long the next mount waits for a daemon whose mount is gone.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// A source and where it is to be served.
#[derive(Debug)]
pub struct Place {
    /// The source, absolute and without symbolic links.
    pub src: PathBuf,
    /// The mount point, likewise; the same directory for `run`.
    pub mnt: PathBuf,
    /// The source, held so that a mount over it does not hide it.
    pub src_fd: OwnedFd,
    /// The source's type and permission bits.
    pub mode: u32,
}

impl Place {
    /// For `terrace mount`. Clears away a mount of terrace at `mnt` whose daemon died, and reports lost data.
    pub fn for_mount(src: &Path, mnt: &Path) -> Result<Place> {
        let (src, src_fd, mode) = source(src)?;
        let mnt = mount_point(mnt)?;
        apart(&src, &mnt)?;
        wait_for_stop(&mnt);
        data_loss::clear(&mnt, &mut std::io::stderr())?;
        unmounted(&mnt)?;
        mounts::open_fuse().map(drop).or_else(without_fuse)?;
        Ok(Place { src, mnt, src_fd, mode })
    }

    /// For `terrace run`: served at its own path. Reports losses of earlier runs there that were not
    /// reported.
    pub fn for_run(dir: &Path) -> Result<Place> {
        let (src, src_fd, mode) = source(dir)?;
        data_loss::tell_of_runs(&src, &mut std::io::stderr());
        Ok(Place { mnt: src.clone(), src, src_fd, mode })
    }

    /// For `terrace run` with a mount over the directory.
    pub fn may_be_covered(&self) -> Result<()> {
        if self.src == Path::new("/") {
            return Err(Failure::new(
                "/",
                "the root cannot be covered by a mount",
                "name a directory below it",
            ));
        }
        mounts::open_fuse().map(drop).or_else(without_fuse_at_all)
    }
}

/// The path as the kernel's table of mounts has it, also when the mount there is dead and cannot be looked at.
pub fn absolute(path: &Path) -> std::io::Result<PathBuf> {
    // Without a slash at its end, at which the mount would be asked whether it is a directory.
    let path: &Path = &path.components().collect::<PathBuf>();
    match path.canonicalize() {
        Err(err) if err.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => absolute_unasked(path),
        done => done,
    }
}

/// The same for a path whose last part is the mount point itself and no link; the mount there gets no
/// request.
pub fn absolute_unasked(path: &Path) -> std::io::Result<PathBuf> {
    let whole = std::path::absolute(path.components().collect::<PathBuf>())?;
    match (whole.parent(), whole.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => Ok(whole),
    }
}

fn source(src: &Path) -> Result<(PathBuf, OwnedFd, u32)> {
    let name = &src.display();
    let path = src.canonicalize().map_err(|err| match err.kind() {
        std::io::ErrorKind::NotFound => {
            Failure::new(name, "the source does not exist", "name a directory that does")
        }
        _ if is_not_connected(&err) => {
            let cure = format!("clear it with `terrace umount {name}`");
            Failure::new(name, "the source is a mount whose server died", cure)
        }
        _ => Failure::new(name, reason(err), "name a directory this user can reach"),
    })?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(&path, flags, Mode::empty()).map_err(|err| match err {
        Errno::NOTDIR => {
            Failure::new(name, "the source is not a directory", "name the directory that holds the files")
        }
        _ => Failure::new(name, reason(err), "name a directory this user can reach"),
    })?;
    let stat =
        rustix::fs::fstat(&fd).map_err(|err| Failure::new(name, reason(err), "try another directory"))?;
    if let Some(entry) = terrace_mount_of_device(stat.st_dev) {
        let why = format!("the source is itself on the terrace mount {}", entry.point.display());
        return Err(Failure::new(name, why, format!("name its source {} instead", entry.source.display())));
    }
    Ok((path, fd, stat.st_mode))
}

fn is_not_connected(err: &std::io::Error) -> bool {
    err.raw_os_error() == Some(Errno::NOTCONN.raw_os_error())
}

fn terrace_mount_of_device(dev: u64) -> Option<mounts::Entry> {
    let dev = (rustix::fs::major(dev), rustix::fs::minor(dev));
    mounts::table().into_iter().find(|entry| entry.dev == dev && entry.fstype == mounts::FSTYPE)
}

fn mount_point(mnt: &Path) -> Result<PathBuf> {
    let name = &mnt.display();
    let path = absolute(mnt).map_err(|err| match err.kind() {
        std::io::ErrorKind::NotFound => {
            Failure::new(name, "the mount point does not exist", format!("make it with `mkdir -p {name}`"))
        }
        _ => Failure::new(name, reason(err), "name a directory this user can reach"),
    })?;
    if instance::is_dead_at(&path) {
        return Ok(path); // Cleared by the caller. Asked first: the mount itself may never answer.
    }
    match path.metadata() {
        Ok(meta) if meta.is_dir() => Ok(path),
        Ok(_) => Err(Failure::new(name, "the mount point is not a directory", "name a directory")),
        Err(err) => Err(Failure::new(name, reason(err), format!("clear it with `umount -l {name}`"))),
    }
}

/// terrace would have to answer its own questions if one lay in the other.
fn apart(src: &Path, mnt: &Path) -> Result<()> {
    let why = match () {
        () if src == mnt => "is source and mount point at once",
        () if mnt.starts_with(src) => "the mount point is inside the source",
        () if src.starts_with(mnt) => "the source is inside the mount point",
        () => return Ok(()),
    };
    let cure = "mount at a directory outside, or serve the source at its own path with `terrace run --on`";
    Err(Failure::new(mnt.display(), why, cure))
}

/// Waits for an unmount of `mnt` that is under way, as mount(2) does for any file system: it may have much to write. When the mount is gone its
/// daemon is given a moment to end; it may live on for programs that have files open, or that have a copy of the mount.
fn wait_for_stop(mnt: &Path) {
    let start = Instant::now();
    let mut told = false;
    let stops = |instance: &Instance| instance.is_stopping() && !instance.has_ended();
    let mut gone = None;
    while instance::recorded_at(mnt).iter().any(|(instance, _)| stops(instance)) {
        if mounts::at(mnt).is_none_or(|entry| entry.fstype != mounts::FSTYPE)
            && gone.get_or_insert_with(Instant::now).elapsed() > ENDS_WITHIN
        {
            return;
        }
        if !told && start.elapsed() > SILENT_FOR {
            eprintln!("terrace: {}: waiting for the unmount that is under way here", mnt.display());
            told = true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn unmounted(mnt: &Path) -> Result<()> {
    let name = &mnt.display();
    let Some(entry) = mounts::at(mnt) else { return Ok(()) };
    if entry.fstype == mounts::FSTYPE {
        let why = format!("terrace already serves {} here", entry.source.display());
        return Err(Failure::new(name, why, format!("end that with `terrace umount {name}`")));
    }
    let why = format!("the mount point is busy: {} is mounted here", entry.fstype);
    Err(Failure::new(name, why, "name an empty directory, or one below it"))
}

/// Without access to the device the setuid helper may still mount; without the device no mount is possible.
fn without_fuse(err: std::io::Error) -> Result<()> {
    match err.kind() {
        std::io::ErrorKind::PermissionDenied if fusermount_exists() => Ok(()),
        _ => without_fuse_at_all(err),
    }
}

fn without_fuse_at_all(err: std::io::Error) -> Result<()> {
    let cure = match err.kind() {
        std::io::ErrorKind::PermissionDenied => "let this user read and write it, or run as root",
        _ => "load the module with `modprobe fuse`, or give the container --device /dev/fuse",
    };
    Err(Failure::new("/dev/fuse", reason(err), cure))
}

fn fusermount_exists() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join("fusermount3").exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(src: &Path, mnt: &Path) -> String {
        Place::for_mount(src, mnt).unwrap_err().to_string()
    }

    #[test]
    fn sources_that_cannot_be() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let missing = dir.path().join("missing");
        assert!(refusal(&missing, dir.path()).contains("the source does not exist"));
        assert!(refusal(&file, dir.path()).contains("the source is not a directory"));
        assert!(Place::for_run(&missing).unwrap_err().to_string().contains("does not exist"));
        let root = Place::for_run(Path::new("/")).unwrap();
        assert!(root.may_be_covered().unwrap_err().to_string().contains("the root"));
    }

    #[test]
    fn mount_points_that_cannot_be() {
        let (src, mnt) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let file = mnt.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(refusal(src.path(), &mnt.path().join("no")).contains("mkdir -p"));
        assert!(refusal(src.path(), &file).contains("not a directory"));
        assert!(refusal(src.path(), Path::new("/proc")).contains("busy: proc is mounted here"));
        let inner = src.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        assert!(refusal(src.path(), &inner).contains("the mount point is inside the source"));
        assert!(refusal(&inner, src.path()).contains("the source is inside the mount point"));
        assert!(refusal(src.path(), src.path()).contains("source and mount point at once"));
    }
}
