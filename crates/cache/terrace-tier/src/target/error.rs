//! Reasons why a tier's file or block device cannot be used. Each is one line: `FILE: why; cure`.

use std::fmt;
use std::path::{Path, PathBuf};

/// A target that cannot be used.
#[derive(Debug)]
pub struct TargetError {
    /// The file or device.
    pub path: PathBuf,
    /// The fault.
    pub fault: Fault,
}

/// An error of a target. Sizes are in bytes.
#[derive(Debug)]
pub enum Fault {
    /// No such file, and no size for a new one.
    NoSize,
    /// A directory.
    Directory,
    /// A pipe, socket or character device.
    Special,
    /// The path is inside the source.
    InsideSource(PathBuf),
    /// The path is on a mount of terrace.
    InsideMount,
    /// The file or its file system is not writable.
    ReadOnly(std::io::Error),
    /// Its file system has no direct I/O.
    NoDirectIo,
    /// The file system is in memory (tmpfs).
    Memory,
    /// Another instance uses the target; its process, if visible.
    InUse(Option<i32>),
    /// A block device that is mounted or claimed by another part of the kernel.
    Busy,
    /// Too small.
    TooSmall {
        /// The tier's size.
        bytes: u64,
        /// Smallest usable size.
        min: u64,
    },
    /// A block device that is smaller than the size asked for.
    DeviceTooSmall {
        /// The size of the device.
        bytes: u64,
        /// The size asked for.
        requested: u64,
    },
    /// The file system has not enough space.
    NoSpace {
        /// Missing bytes of the file.
        needed: u64,
        /// Free bytes of the file system.
        left: u64,
    },
    /// The index does not fit in memory.
    IndexTooLarge {
        /// Index of all targets, bytes.
        index: u64,
        /// Share of the other targets, bytes.
        others: u64,
        /// The memory limit.
        memory: u64,
        /// Smallest sufficient limit.
        memory_min: u64,
        /// Largest tier that fits; None: no tier fits.
        tier_max: Option<u64>,
    },
    /// The regions of all targets exceed the number that index entries can name.
    TooMany,
    /// The tier has another size than requested.
    OtherSize {
        /// The target's size.
        bytes: u64,
        /// The requested size.
        requested: u64,
    },
    /// A tier of another source.
    OtherSource {
        /// Path recorded in the tier.
        theirs: String,
        /// The present source.
        ours: PathBuf,
    },
    /// The tier of another version of terrace.
    OtherLayout(u32),
    /// No sound superblock.
    Damaged,
    /// The file is shorter than its tier.
    Short {
        /// The size of the file.
        bytes: u64,
        /// The size of the tier.
        tier: u64,
    },
    /// The target may hold synced data that the source lacks.
    HasUndestaged,
    /// Data of another program.
    Foreign,
    /// No tier, for commands on existing tiers.
    NoTier,
    /// A call failed.
    Io(std::io::Error),
    /// Reason and cure, separated by a semicolon, from a target that is no file.
    Other(String),
}

impl TargetError {
    /// `fault` of the target at `path`.
    pub fn new(path: &Path, fault: Fault) -> TargetError {
        TargetError { path: path.to_owned(), fault }
    }
}

impl std::error::Error for TargetError {}

const ERASE: &str = "name another file, or erase it with --format-tier";

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.fault)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::NoSize => {
                write!(
                    f,
                    "the tier does not exist, and its size is not given; give a size, as in --tier FILE:64GiB"
                )
            }
            Fault::Directory => write!(f, "the tier is a directory; name a file in it, which terrace makes"),
            Fault::Special => {
                write!(f, "the tier is no file and no block device; name a file or a block device")
            }
            Fault::InsideSource(source) => {
                let source = source.display();
                write!(f, "the tier lies in the served directory {source}; name a file outside of it")
            }
            Fault::InsideMount => {
                write!(f, "the tier lies on a mount of terrace; name a file outside of it")
            }
            Fault::ReadOnly(err) => {
                write!(
                    f,
                    "the tier cannot be written: {}; name a file or device that this user may write",
                    reason(err)
                )
            }
            Fault::NoDirectIo => {
                write!(
                    f,
                    "the tier's file system has no direct I/O (O_DIRECT); name a file on a local disk, or a block device"
                )
            }
            Fault::Memory => {
                write!(
                    f,
                    "the tier's file system is memory (tmpfs); raise --memory instead, or name a file on a disk"
                )
            }
            Fault::InUse(Some(pid)) => {
                write!(
                    f,
                    "the tier is in use by process {pid}; unmount that instance first, or name another file"
                )
            }
            Fault::InUse(None) => write!(
                f,
                "the tier is in use by a process that cannot be seen from here; unmount that instance first, or name another file"
            ),
            Fault::Busy => write!(
                f,
                "the device is mounted or otherwise in use; unmount it if it is not needed, or name another device"
            ),
            other => other.fmt_size(f),
        }
    }
}

impl Fault {
    fn fmt_size(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::TooSmall { bytes, min } => {
                let (bytes, min) = (Size(*bytes), Size(*min));
                write!(f, "{bytes} is too small for a tier; give at least {min}")
            }
            Fault::DeviceTooSmall { bytes, requested } => {
                let (bytes, requested) = (Size(*bytes), Size(*requested));
                write!(f, "the device has {bytes}, not {requested}; leave the size out to use all of it")
            }
            Fault::NoSpace { needed, left } => {
                let (missing, left) = (Size(needed.saturating_sub(*left)), Size(*left));
                let needed = Size(*needed);
                write!(
                    f,
                    "the tier needs {needed} more, and its file system has {left} left: {missing} are missing; make room, or give a smaller size"
                )
            }
            Fault::TooMany => {
                write!(f, "the tiers of an instance have at most 8 TiB together; name smaller ones")
            }
            Fault::IndexTooLarge { index, others, memory, memory_min, tier_max } => {
                let (index, memory, memory_min) = (Size(*index), Size(*memory), Size(*memory_min));
                let whose = if *others > 0 { "the index of all tiers" } else { "the tier's index" };
                write!(
                    f,
                    "{whose} takes {index}, more than a quarter of --memory ({memory}); give --memory {memory_min}"
                )?;
                match tier_max {
                    Some(max) => write!(f, ", or a tier of at most {}", Size(*max)),
                    None => Ok(()),
                }
            }
            Fault::OtherSize { bytes, requested } => {
                let (bytes, requested) = (Size(*bytes), Size(*requested));
                write!(
                    f,
                    "the tier has {bytes}, not {requested}; leave the size out, or erase the tier with --format-tier"
                )
            }
            other => other.fmt_content(f),
        }
    }

    fn fmt_content(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::OtherSource { theirs, ours } if Path::new(theirs) == ours => {
                write!(
                    f,
                    "the tier belongs to an earlier directory {theirs}, which has been replaced; {ERASE}"
                )
            }
            Fault::OtherSource { theirs, .. } => write!(f, "the tier belongs to {theirs}; {ERASE}"),
            Fault::OtherLayout(version) => write!(
                f,
                "the tier has layout version {version}, made by another version of terrace; use that version, or erase it with --format-tier"
            ),
            Fault::Damaged => write!(f, "both superblocks of the tier are damaged; {ERASE}"),
            Fault::Short { bytes, tier } => {
                let (bytes, tier) = (Size(*bytes), Size(*tier));
                write!(f, "the file has been truncated to {bytes}, and its tier has {tier}; {ERASE}")
            }
            Fault::HasUndestaged => write!(
                f,
                "the tier may hold synced data that its source lacks; mount the source with this tier, or see `terrace recover`"
            ),
            Fault::Foreign => write!(f, "the file or device holds data that are not terrace's; {ERASE}"),
            Fault::NoTier => write!(f, "there is no tier of terrace here; name a tier's file or device"),
            Fault::Io(err) => write!(f, "{}; name another file or device", reason(err)),
            Fault::Other(line) => f.write_str(line),
            _ => unreachable!("handled by the caller"),
        }
    }
}

/// The error text without Rust's `(os error N)`.
fn reason(err: &std::io::Error) -> String {
    let text = err.to_string();
    text.split(" (os error ").next().unwrap_or_default().to_owned()
}

/// A size in the largest unit that divides it; in MiB with one digit if that unit is KiB or bytes.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, shift) in [("TiB", 40), ("GiB", 30), ("MiB", 20)] {
            if self.0 >= 1 << shift && self.0.is_multiple_of(1 << shift) {
                return write!(f, "{}{name}", self.0 >> shift);
            }
        }
        match self.0 {
            bytes if bytes >= 1 << 20 => write!(f, "{:.1}MiB", bytes as f64 / f64::from(1 << 20)),
            bytes if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => write!(f, "{}KiB", bytes >> 10),
            bytes => write!(f, "{bytes} bytes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        let texts = [0, 4096, 100, 5 << 20, 3 << 30, (1 << 30) + 4096, 2 << 40].map(|n| Size(n).to_string());
        assert_eq!(texts, ["0 bytes", "4KiB", "100 bytes", "5MiB", "3GiB", "1024.0MiB", "2TiB"]);
    }

    #[test]
    fn every_fault_is_one_line_with_a_cure() {
        let err = || std::io::Error::from_raw_os_error(libc::EROFS);
        let (bytes, requested, min, index, memory) = (1 << 20, 2 << 20, 3 << 20, 4 << 20, 5 << 20);
        let faults = [
            Fault::NoSize,
            Fault::Directory,
            Fault::Special,
            Fault::InsideSource("/data".into()),
            Fault::InsideMount,
            Fault::ReadOnly(err()),
            Fault::NoDirectIo,
            Fault::Memory,
            Fault::InUse(Some(7)),
            Fault::InUse(None),
            Fault::Busy,
            Fault::TooSmall { bytes, min },
            Fault::DeviceTooSmall { bytes, requested },
            Fault::NoSpace { needed: requested, left: bytes },
            Fault::IndexTooLarge { index, others: 0, memory, memory_min: requested, tier_max: Some(min) },
            Fault::IndexTooLarge { index, others: 0, memory, memory_min: requested, tier_max: None },
            Fault::OtherSize { bytes, requested },
            Fault::OtherSource { theirs: "/a".to_owned(), ours: "/b".into() },
            Fault::OtherSource { theirs: "/a".to_owned(), ours: "/a".into() },
            Fault::OtherLayout(9),
            Fault::Damaged,
            Fault::Short { bytes, tier: requested },
            Fault::HasUndestaged,
            Fault::Foreign,
            Fault::NoTier,
            Fault::Io(err()),
        ];
        for fault in faults {
            let line = TargetError::new(Path::new("/ssd/t"), fault).to_string();
            assert!(line.starts_with("/ssd/t: ") && line.matches("; ").count() == 1, "{line}");
            assert!(!line.contains('\n') && !line.contains("os error"), "{line}");
        }
    }
}
