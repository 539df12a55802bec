//! File attributes as reported to the kernel.

use rustix::fs::{FileType, Stat};

/// A point in time: seconds since 1970 (negative before) and nanoseconds upward from there.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Time {
    /// Seconds, rounded towards the past.
    pub(crate) sec: i64,
    /// Nanoseconds, 0 to 999,999,999.
    pub(crate) nsec: u32,
}

impl Time {
    /// The time as nanoseconds since 1970.
    pub(crate) fn nanoseconds(self) -> i128 {
        i128::from(self.sec) * 1_000_000_000 + i128::from(self.nsec)
    }
}

/// The kind of an inode.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// A regular file: the only kind with pages.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl Kind {
    /// The kind in the type bits of `mode`; an unknown pattern counts as a regular file, as in the kernel.
    pub(crate) fn from_mode(mode: u32) -> Self {
        Self::from_file_type(FileType::from_raw_mode(mode)).unwrap_or(Self::File)
    }

    /// The kind of a directory entry, if the file system reports it.
    pub(crate) fn from_file_type(file_type: FileType) -> Option<Self> {
        Some(match file_type {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
            FileType::Fifo => Self::Fifo,
            FileType::Socket => Self::Socket,
            FileType::CharacterDevice => Self::CharDevice,
            FileType::BlockDevice => Self::BlockDevice,
            FileType::Unknown => return None,
        })
    }
}

/// The attributes of an inode.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Attr {
    /// Inode number in the mount, which is the node id and the object id.
    pub(crate) ino: u64,
    /// Size in bytes.
    pub(crate) size: u64,
    /// Allocated 512-byte blocks of the source.
    pub(crate) blocks: u64,
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    /// Type and permission bits.
    pub(crate) mode: u32,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: u32,
    pub(crate) blksize: u32,
}

impl Attr {
    pub(crate) fn from_stat(ino: u64, stat: &Stat) -> Self {
        Self {
            ino,
            size: stat.st_size as u64,
            blocks: stat.st_blocks as u64,
            atime: Time { sec: stat.st_atime, nsec: stat.st_atime_nsec as u32 },
            mtime: Time { sec: stat.st_mtime, nsec: stat.st_mtime_nsec as u32 },
            ctime: Time { sec: stat.st_ctime, nsec: stat.st_ctime_nsec as u32 },
            mode: stat.st_mode,
            nlink: stat.st_nlink as u32,
            uid: stat.st_uid,
            gid: stat.st_gid,
            rdev: encode_device(stat.st_rdev),
            blksize: stat.st_blksize as u32,
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        Kind::from_mode(self.mode)
    }
}

/// A device number in the 32-bit form that FUSE carries.
fn encode_device(device: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// A device number from its 32-bit form.
pub(crate) fn decode_device(device: u32) -> u64 {
    rustix::fs::makedev((device & 0xfff00) >> 8, (device & 0xff) | ((device >> 12) & 0xfff00))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_the_32_bit_form() {
        for (major, minor) in [(0, 0), (1, 3), (254, 255), (4095, 0xf_ffff), (8, 256)] {
            let device = rustix::fs::makedev(major, minor);
            assert_eq!(decode_device(encode_device(device)), device, "{major}:{minor}");
        }
    }

    #[test]
    fn kinds_follow_the_mode() {
        assert_eq!(Kind::from_mode(0o100_644), Kind::File);
        assert_eq!(Kind::from_mode(0o040_755), Kind::Directory);
        assert_eq!(Kind::from_mode(0o120_777), Kind::Symlink);
        assert_eq!(Kind::from_mode(0o010_644), Kind::Fifo);
    }
}
