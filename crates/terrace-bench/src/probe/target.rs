//! A place to be measured: what it is, how much room it has, and a file in it that no crash leaves behind.

use crate::machine;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use terrace_api::device_profile::{Kind, RAM};

const MIB: u64 = 1 << 20;
/// Of the free space, one in so many bytes is used at the most.
const SHARE_OF_FREE: u64 = 4;

/// How a file is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// O_DIRECT.
    Direct,
    /// Through the page cache: the file system knows no other way.
    Cached,
    /// It is memory, and copied.
    Mapped,
}

/// A place with its file.
#[derive(Debug)]
pub struct Target {
    /// Its entry's name: the directory, or [`RAM`].
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// Type of the file system.
    pub file_system: String,
    /// Block device; empty if there is none.
    pub device: String,
    /// How its file is reached.
    pub way: Way,
    /// Bytes that may be used.
    pub room: u64,
    /// Nameless from the start: it goes with the last who has it open.
    file: File,
}

impl Target {
    /// A directory.
    ///
    /// # Errors
    /// It is none, cannot be written to, or has no text for a name.
    pub fn directory(path: &Path) -> io::Result<Target> {
        let named = |e: io::Error| with_name(path, &e);
        let dir = path.canonicalize().map_err(named)?;
        if !dir.is_dir() {
            let why = "not a directory (name the directory on the storage to be measured)";
            return Err(io::Error::other(format!("{}: {why}", path.display())));
        }
        let name = dir
            .to_str()
            .ok_or_else(|| io::Error::other(format!("{}: its name is no text (rename it)", dir.display())))?;
        let (device, file_system) = machine::mount_of(&dir).unwrap_or_default();
        let device = if device.starts_with("/dev/") { device } else { String::new() };
        let file = nameless(&dir).map_err(named)?;
        Ok(Target {
            name: name.to_owned(),
            kind: kind(&file_system, &device, file.metadata()?.dev()),
            way: if opens_direct(&path_of(&file)) { Way::Direct } else { Way::Cached },
            room: free_bytes(&file)? / SHARE_OF_FREE,
            file_system,
            device,
            file,
        })
    }

    /// The memory.
    pub fn ram() -> io::Result<Target> {
        // SAFETY: a new descriptor, owned from here on by the File.
        let file = unsafe {
            let fd = libc::memfd_create(c"probe".as_ptr(), libc::MFD_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            File::from_raw_fd(fd)
        };
        Ok(Target {
            name: RAM.to_owned(),
            kind: Kind::Ram,
            file_system: String::new(),
            device: String::new(),
            way: Way::Mapped,
            room: machine::memory_available() / SHARE_OF_FREE,
            file,
        })
    }

    /// Where processes of ours open the file.
    pub fn path(&self) -> PathBuf {
        path_of(&self.file)
    }

    /// Gives the file a size.
    pub fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    /// Written data are on the device, and not in the page cache.
    pub fn settle(&self) -> io::Result<()> {
        if self.way != Way::Mapped {
            self.file.sync_all()?;
            forget(&self.file);
        }
        Ok(())
    }
}

/// Takes the clean pages of a file out of the page cache, as far as its file system does.
fn forget(file: &File) {
    // SAFETY: takes a descriptor and numbers only.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

fn opens_direct(path: &Path) -> bool {
    std::fs::OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path).is_ok()
}

/// An error with the name of what it is about, and the cure.
pub fn with_name(path: &Path, e: &io::Error) -> io::Error {
    let cure = match e.kind() {
        io::ErrorKind::NotFound => "name a directory that exists",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => "name a directory of yours",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "make room, or measure less with --data-mib"
        }
        _ => "look at `dmesg`, or name another directory",
    };
    io::Error::new(e.kind(), format!("{}: {e} ({cure})", path.display()))
}

fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()))
}

/// A file without a name; where the file system makes none such, one that loses its name at once.
fn nameless(dir: &Path) -> io::Result<File> {
    let open = |path: &Path, flags: i32| {
        std::fs::OpenOptions::new().read(true).write(true).custom_flags(flags).mode(0o600).open(path)
    };
    match open(dir, libc::O_TMPFILE) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)) => {
            let path = dir.join(format!(".terrace-bench-probe-{}", std::process::id()));
            let file = open(&path, libc::O_CREAT | libc::O_EXCL)?;
            std::fs::remove_file(&path)?;
            Ok(file)
        }
        done => done,
    }
}

/// Bytes that this user may still write.
fn free_bytes(file: &File) -> io::Result<u64> {
    // SAFETY: all zeros are a valid value of this plain structure, and the call fills it.
    let (rc, stat) = unsafe {
        let mut stat: libc::statvfs = std::mem::zeroed();
        (libc::fstatvfs(file.as_raw_fd(), &mut stat), stat)
    };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(stat.f_bavail * stat.f_frsize)
}

fn kind(file_system: &str, device: &str, dev: u64) -> Kind {
    let name = device.trim_start_matches("/dev/");
    let begins = |names: &[&str]| names.iter().any(|n| name.starts_with(n));
    match file_system {
        "tmpfs" | "ramfs" | "devtmpfs" => Kind::Ram,
        "nfs" | "nfs4" | "cifs" | "smb3" | "ceph" | "9p" | "virtiofs" | "lustre" | "beegfs" => Kind::Remote,
        fs if fs.starts_with("fuse") && fs != "fuseblk" => Kind::Remote,
        _ if begins(&["pmem", "ram", "zram"]) => Kind::Pmem,
        _ if begins(&["nvme"]) => Kind::Nvme,
        _ if begins(&["vd", "xvd"]) => Kind::Virtual,
        _ => match rotational(dev) {
            Some(true) => Kind::Hdd,
            Some(false) => Kind::Ssd,
            None => Kind::Other,
        },
    }
}

/// The kernel's description of the disk; of a partition, that of its disk.
fn rotational(dev: u64) -> Option<bool> {
    let (major, minor) = (libc::major(dev), libc::minor(dev));
    let of =
        |up: &str| std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{up}queue/rotational"));
    of("").or_else(|_| of("../")).ok().map(|text| text.trim() == "1")
}

/// The data sets of a target: what was wanted, as far as there is room; whole units.
///
/// # Errors
/// No room for the smallest useful one.
pub fn data_sets(wanted_mib: &[u64], room: u64, name: &str) -> io::Result<Vec<u64>> {
    let mut sets: Vec<u64> = wanted_mib.iter().map(|mib| (mib * MIB).min(room / MIB * MIB)).collect();
    sets.sort_unstable();
    sets.dedup();
    sets.retain(|bytes| *bytes > 0);
    if sets.is_empty() {
        let free = room * SHARE_OF_FREE / 1024;
        let why = format!(
            "{name}: {free} KiB free, and no more than a quarter is used (make room for 4 MiB at least)"
        );
        return Err(io::Error::new(io::ErrorKind::StorageFull, why));
    }
    Ok(sets)
}

/// Whether a file can be made where results are to go, before minutes are spent on them.
pub fn writable(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = CString::new(parent.as_os_str().as_bytes())?;
    // SAFETY: `name` is a C string that outlives the call.
    match unsafe { libc::access(name.as_ptr(), libc::W_OK) } {
        0 if !path.is_dir() => Ok(()),
        _ => {
            let e =
                if path.is_dir() { "is a directory".into() } else { io::Error::last_os_error().to_string() };
            Err(io::Error::other(format!("{}: {e} (name a file in a directory of yours)", path.display())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::run;
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_target_leaves_nothing_even_while_it_lives() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let target = Target::directory(dir.path()).unwrap();
        let bytes = run::lay_out(&target, 2 * MIB, Duration::from_secs(60)).unwrap();
        assert_eq!((bytes, std::fs::metadata(target.path()).unwrap().len()), (2 * MIB, 2 * MIB));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "it has no name");
        run::check(&target, bytes).unwrap();
    }

    #[test]
    fn room_bounds_the_data() {
        assert_eq!(data_sets(&[64, 1024], 1 << 40, "x").unwrap(), [64 * MIB, 1024 * MIB]);
        assert_eq!(data_sets(&[64, 1024], 100 * MIB + 7, "x").unwrap(), [64 * MIB, 100 * MIB]);
        assert_eq!(data_sets(&[64, 1024], 32 * MIB, "x").unwrap(), [32 * MIB]);
        assert!(data_sets(&[64], MIB - 1, "/x").unwrap_err().to_string().contains("/x: 4095 KiB free"));
    }

    #[test]
    fn kinds_of_storage() {
        assert_eq!(kind("ext4", "/dev/nvme0n1p1", 0), Kind::Nvme);
        assert_eq!(kind("xfs", "/dev/vda", 0), Kind::Virtual);
        assert_eq!(kind("tmpfs", "", 0), Kind::Ram);
        assert_eq!(kind("fuse.sshfs", "", 0), Kind::Remote);
        assert_eq!(kind("ext4", "/dev/pmem0", 0), Kind::Pmem);
        assert_eq!(kind("overlay", "", 0), Kind::Other, "no such block device");
    }

    #[test]
    fn unmeasurable_load_is_reported_with_a_cure() {
        let why = |path: &str| Target::directory(Path::new(path)).unwrap_err().to_string();
        assert!(why("/nonexistent/x").contains("name a directory that exists"));
        assert!(why("/etc/passwd").contains("not a directory"));
        assert!(why("/proc").starts_with("/proc: "));
        assert!(writable(Path::new("/nonexistent/x.toml")).is_err() && writable(Path::new("/tmp")).is_err());
    }
}
