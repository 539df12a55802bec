//! Aliases of a target: loop devices over its file, and devices below or beside them. A lock on one alias is
//! invisible on the others.
//!
//! ```text
//!   file ◄── loop0 ◄── partition, dm ...       the kernel's exclusive claims (O_EXCL) join a device with its partitions and volumes,
//!     ▲───── loop1                             but not with the backing file or device of a loop device
//! ```
//! Each instance first takes its own lock and then checks the aliases. So at least one of two concurrent
//! starts sees the other.

use super::error::Fault;
use super::lock;
use rustix::fs::{Mode, OFlags, Stat, major, minor, open};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    File(u64, u64),
    Device(u64),
}

impl Place {
    fn of(stat: &Stat) -> Place {
        match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
            rustix::fs::FileType::BlockDevice => Place::Device(stat.st_rdev),
            _ => Place::File(stat.st_dev, stat.st_ino),
        }
    }
}

/// Refuses an open and locked target that is in use under another name.
///
/// # Errors
/// It is in use.
pub(super) fn refuse_other_names(target: impl AsFd) -> Result<(), Fault> {
    let own = Place::of(&rustix::fs::fstat(&target).map_err(|err| Fault::Io(err.into()))?);
    let (loop_devices, mut seen, mut next) = (loop_devices(), vec![own], vec![own]);
    while let Some(place) = next.pop() {
        for (path, other) in aliases(place, &loop_devices) {
            if !seen.contains(&other) {
                if let Some(path) = path {
                    refuse_used(&path)?;
                }
                seen.push(other);
                next.push(other);
            }
        }
    }
    Ok(())
}

/// Loop devices, each with its backing file.
fn loop_devices() -> Vec<(PathBuf, Place, PathBuf, Place)> {
    let all = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let look = |dir: fs::DirEntry| {
        let shown = shown(&dir.path())?;
        let device = Path::new("/dev").join(dir.file_name());
        let place = |path: &Path| rustix::fs::stat(path).ok().map(|stat| Place::of(&stat));
        Some((device.clone(), place(&device)?, shown.clone(), place(&shown)?))
    };
    all.filter_map(look).collect()
}

/// Backing file of a loop device, by its directory in sysfs.
fn shown(sys: &Path) -> Option<PathBuf> {
    let path = fs::read(sys.join("loop/backing_file")).ok()?;
    Some(PathBuf::from(OsStr::from_bytes(path.strip_suffix(b"\n").unwrap_or(&path))))
}

/// Aliases of a place. The kernel's claims cover those without a path.
fn aliases(place: Place, loop_devices: &[(PathBuf, Place, PathBuf, Place)]) -> Vec<(Option<PathBuf>, Place)> {
    let mut all = Vec::new();
    for (device, of_device, shown, of_shown) in loop_devices {
        if *of_shown == place {
            all.push((Some(device.clone()), *of_device));
        }
        if *of_device == place {
            all.push((Some(shown.clone()), *of_shown));
        }
    }
    let Place::Device(number) = place else { return all };
    let sys = PathBuf::from(format!("/sys/dev/block/{}:{}", major(number), minor(number)));
    let below = fs::read_dir(sys.join("slaves")).into_iter().flatten().flatten().map(|dir| dir.path());
    let whole = sys.join("partition").exists().then(|| sys.canonicalize().ok()?.parent().map(Path::to_owned));
    let number_of = |dir: PathBuf| {
        let text = fs::read_to_string(dir.join("dev")).ok()?;
        let (major, minor) = text.trim().split_once(':')?;
        Some((None, Place::Device(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))))
    };
    all.extend(below.chain(whole.flatten()).filter_map(number_of));
    all
}

/// Refuses a locked file, or a claimed device.
fn refuse_used(path: &Path) -> Result<(), Fault> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    // Another instance cannot open this path either.
    let Ok(file) = open(path, flags, Mode::empty()) else { return Ok(()) };
    match lock::wait_until_free(&file) {
        // A file system without locks holds none.
        Ok(()) | Err(Fault::Io(_)) => {}
        Err(fault) => return Err(fault),
    }
    let is_device = rustix::fs::fstat(&file).is_ok_and(|stat| matches!(Place::of(&stat), Place::Device(_)));
    let is_claimed = || open(path, flags | OFlags::EXCL, Mode::empty()).err() == Some(Errno::BUSY);
    if !is_device || !is_claimed() {
        return Ok(());
    }
    lock::wait_until_device_is_free(&file)?;
    if is_claimed() { Err(Fault::Busy) } else { Ok(()) }
}
