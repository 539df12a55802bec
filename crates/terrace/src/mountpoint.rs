//! Source and mount point of an instance, checked before the set-up: each error has its own message.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::claim::Claim;
use crate::data_loss;
use crate::error::{Failure, Result, reason};
use crate::instance::{self, Instance};
use crate::mounts::{self, Entry, FSTYPE};

/// A longer wait prints a message.
const SILENT_FOR: Duration = Duration::from_secs(1);

/// Time to wait for a daemon after its mount is gone.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// File system that systemd mounts for `x-systemd.automount`; our mount covers it.
const AUTOMOUNT: &str = "autofs";

/// A source and its mount point.
#[derive(Debug)]
pub(crate) struct Place {
    /// The source, absolute and without symbolic links.
    pub src: PathBuf,
    /// The mount point, absolute and without symbolic links; for `run`, the source.
    pub mnt: PathBuf,
    /// The source, opened before a mount covers it.
    pub src_fd: OwnedFd,
    /// The source's type and permission bits.
    pub mode: u32,
    /// The claim that keeps other instances off the source.
    pub claim: Option<Arc<Claim>>,
}

impl Place {
    /// Checks for `terrace mount`. Clears a dead mount of terrace at `mnt`, and reports lost data.
    pub(crate) fn for_mount(src: &Path, mnt: &Path) -> Result<Place> {
        let (src, src_fd, mode) = source(src)?;
        let mnt = mount_point(mnt)?;
        apart(&mounts::table(), &src, &mnt)?;
        holds_no_mount(&mounts::table(), &src)?;
        wait_for_stop(&mnt);
        data_loss::clear(&mnt, &mut std::io::stderr())?;
        unmounted(&mnt)?;
        mounts::open_fuse().map(drop).or_else(without_fuse)?;
        Ok(Place { src, mnt, src_fd, mode, claim: None })
    }

    /// Checks for `terrace run`, which serves the directory at its own path. Reports unreported losses of
    /// earlier runs there.
    pub(crate) fn for_run(dir: &Path) -> Result<Place> {
        let (src, src_fd, mode) = source(dir)?;
        data_loss::tell_of_runs(&src, &mut std::io::stderr());
        Ok(Place { mnt: src.clone(), src, src_fd, mode, claim: None })
    }

    /// Claims the source for a mount, or for leases.
    pub(crate) fn claim(&mut self, is_mount: bool) -> Result<()> {
        self.claim = Some(Arc::new(Claim::take(&self.src, self.src_fd.as_fd(), is_mount)?));
        Ok(())
    }

    /// Checks for `terrace run` with a mount over the directory.
    pub(crate) fn may_be_covered(&self) -> Result<()> {
        if self.src == Path::new("/") {
            return Err(Failure::new(
                "/",
                "the root cannot be covered by a mount",
                "name a directory below it",
            ));
        }
        holds_no_mount(&mounts::table(), &self.src)?;
        mounts::open_fuse().map(drop).or_else(without_fuse_at_all)
    }
}

impl Place {
    /// Does the source alone check permissions? An ordinary user's mount serves only this user, and the
    /// daemon reads the source as this user. If the source's server checks permissions, its file owners may
    /// be those of another machine (sshfs).
    pub(crate) fn is_checked_by_source(&self) -> bool {
        let dev = rustix::fs::fstat(&self.src_fd).map_or(0, |stat| stat.st_dev);
        let by_server = || mounts::of_device(dev).is_some_and(|entry| entry.is_checked_by_server());
        !rustix::process::geteuid().is_root() && by_server()
    }
}

/// The path as in the mount table, even if the mount there is dead and cannot be accessed.
pub(crate) fn absolute(path: &Path) -> std::io::Result<PathBuf> {
    // Without a trailing slash, which would send a request to the mount.
    let path: &Path = &path.components().collect::<PathBuf>();
    match path.canonicalize() {
        Err(err) if err.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => absolute_unasked(path),
        done => done,
    }
}

/// The same for a path that is itself the mount point and no link: no request reaches the mount.
pub(crate) fn absolute_unasked(path: &Path) -> std::io::Result<PathBuf> {
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
            Failure::new(name, "the source does not exist", "name a directory that exists")
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
        return Err(Failure::new(name, why, format!("name its source {} instead", entry.source().display())));
    }
    if let Some(fstype) = made_up_type(&path) {
        let why = format!("{fstype} holds no stored files: the kernel makes them up");
        return Err(Failure::new(name, why, "name a directory on a disk or a network"));
    }
    Ok((path, fd, stat.st_mode))
}

/// File systems with files that the kernel generates at each read, and devices. There is nothing to cache, and
/// terrace itself needs them.
const MADE_UP: &str = "proc sysfs devtmpfs devpts cgroup cgroup2 debugfs tracefs securityfs configfs bpf pstore \
                       efivarfs mqueue binfmt_misc selinuxfs fusectl rpc_pipefs resctrl";

/// The type of the file system of `dir`, if it is in [`MADE_UP`].
pub(crate) fn made_up_type(dir: &Path) -> Option<String> {
    let entry = mounts::of_device(rustix::fs::stat(dir).ok()?.st_dev)?;
    MADE_UP.split(' ').any(|name| name == entry.fstype).then_some(entry.fstype)
}

fn is_not_connected(err: &std::io::Error) -> bool {
    err.raw_os_error() == Some(Errno::NOTCONN.raw_os_error())
}

fn terrace_mount_of_device(dev: u64) -> Option<Entry> {
    let dev = (rustix::fs::major(dev), rustix::fs::minor(dev));
    mounts::table().into_iter().find(|entry| entry.dev == dev && entry.fstype == FSTYPE)
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
        return Ok(path); // The caller clears it. Checked first: the mount itself may never answer.
    }
    // lstat, because statx(2) triggers the automount that may have called this process.
    match rustix::fs::lstat(&path).map(|stat| FileType::from_raw_mode(stat.st_mode)) {
        Ok(FileType::Directory) => Ok(path),
        Ok(_) => Err(Failure::new(name, "the mount point is not a directory", "name a directory")),
        Err(err) => Err(Failure::new(name, reason(err), format!("clear it with `umount -l {name}`"))),
    }
}

/// Neither may lie in the other, also by a bind mount: terrace would then read its own mount.
fn apart(table: &[Entry], src: &Path, mnt: &Path) -> Result<()> {
    let is_bound_inside = || {
        let (source, point) = (mounts::inside(table, src)?, mounts::inside(table, mnt)?);
        Some(source.0.dev == point.0.dev && source.1 != point.1 && point.1.starts_with(&source.1))
    };
    let why = match () {
        () if src == mnt => "it is the source and the mount point at once",
        () if mnt.starts_with(src) => "the mount point is inside the source",
        () if src.starts_with(mnt) => "the source is inside the mount point",
        () if is_bound_inside() == Some(true) => "the mount point is inside the source, by a bind mount",
        () => return Ok(()),
    };
    let cure = "mount at a directory outside, or serve the source at its own path with `terrace run --on`";
    Err(Failure::new(mnt.display(), why, cure))
}

/// Two mounts that lie in each other's sources would wait for each other.
fn holds_no_mount(table: &[Entry], src: &Path) -> Result<()> {
    let is_inside =
        |entry: &&Entry| entry.fstype == FSTYPE && entry.point != src && entry.point.starts_with(src);
    let Some(inner) = table.iter().find(is_inside) else { return Ok(()) };
    let point = inner.point.display();
    let why = format!("terrace is mounted inside the source, at {point}");
    let cure = format!("name a directory beside it, or end that mount with `terrace umount {point}`");
    Err(Failure::new(src.display(), why, cure))
}

/// Waits for an unmount of `mnt` that is under way, as mount(2) does: it may write much data. After the
/// unmount, the daemon has a moment to exit. It may stay for programs that have files open, or that have a
/// copy of the mount.
fn wait_for_stop(mnt: &Path) {
    let start = Instant::now();
    let mut told = false;
    let stops = |instance: &Instance| instance.is_stopping() && !instance.has_ended();
    let mut gone = None;
    while instance::recorded_at(mnt).iter().any(|(instance, _)| stops(instance)) {
        if mounts::at(mnt).is_none_or(|entry| entry.fstype != FSTYPE)
            && gone.get_or_insert_with(Instant::now).elapsed() > ENDS_WITHIN
        {
            return;
        }
        if !told && start.elapsed() > SILENT_FOR {
            terrace_output::error_line!(
                "terrace: {}: waiting for the unmount that is under way here",
                mnt.display()
            );
            told = true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn unmounted(mnt: &Path) -> Result<()> {
    let name = &mnt.display();
    let Some(entry) = mounts::at(mnt).filter(|entry| entry.fstype != AUTOMOUNT) else { return Ok(()) };
    if entry.fstype == FSTYPE {
        let why = format!("terrace already serves {} here", entry.source().display());
        return Err(Failure::new(name, why, format!("end that mount with `terrace umount {name}`")));
    }
    let why = format!("the mount point is busy: {} is mounted here", entry.fstype);
    Err(Failure::new(name, why, "name an empty directory, or one below it"))
}

/// Without permission for the device, the setuid helper may still mount; without the device, no mount is
/// possible.
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

    #[test]
    fn file_systems_of_the_kernel_are_refused() {
        for src in ["/proc", "/proc/self", "/sys/kernel"] {
            let refused = Place::for_run(Path::new(src)).unwrap_err().to_string();
            assert!(refused.contains("the kernel makes them up"), "{refused}");
        }
    }

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
        assert!(refusal(src.path(), src.path()).contains("the source and the mount point at once"));
    }

    #[test]
    fn circles_are_seen_in_the_table_of_mounts() {
        let entry = |dev, root: &str, point: &str, fstype: &str| Entry {
            dev: (8, dev),
            root: root.into(),
            point: point.into(),
            fstype: fstype.to_owned(),
            ..Entry::default()
        };
        let table =
            [entry(1, "/", "/", "ext4"), entry(1, "/s", "/bound", "ext4"), entry(9, "/", "/t/m", FSTYPE)];
        let (source, bound) = (Path::new("/s"), Path::new("/bound"));
        for (src, mnt) in [(bound, "/s/m"), (source, "/bound/m"), (source, "/s/m")] {
            assert!(apart(&table, src, mnt.as_ref()).is_err(), "{src:?} {mnt}");
        }
        for (src, mnt) in [(bound, "/s"), (source, "/t"), (source, "/bound"), (Path::new("/bound/x"), "/s/y")]
        {
            assert!(apart(&table, src, mnt.as_ref()).is_ok(), "{src:?} {mnt}");
        }
        for (src, is_good) in [("/t", false), ("/", false), ("/t/m", true), ("/s", true), ("/t/mm", true)] {
            assert_eq!(holds_no_mount(&table, src.as_ref()).is_ok(), is_good, "{src}");
        }
    }
}
