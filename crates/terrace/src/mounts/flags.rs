//! The kernel's mount flags, by their names in mount(8).

use std::os::fd::AsFd;

use rustix::fs::StatVfsMountFlags as Has;
use rustix::mount::MountFlags;

/// Linux 5.10, include/uapi/linux/mount.h.
const NOSYMFOLLOW: MountFlags = MountFlags::from_bits_retain(256);

/// Options that set (true) or clear (false) a flag.
const FLAGS: &[(&str, MountFlags, bool)] = &[
    ("ro", MountFlags::RDONLY, true),
    ("rw", MountFlags::RDONLY, false),
    ("nosuid", MountFlags::NOSUID, true),
    ("suid", MountFlags::NOSUID, false),
    ("nodev", MountFlags::NODEV, true),
    ("dev", MountFlags::NODEV, false),
    ("noexec", MountFlags::NOEXEC, true),
    ("exec", MountFlags::NOEXEC, false),
    ("nosymfollow", NOSYMFOLLOW, true),
    ("symfollow", NOSYMFOLLOW, false),
    ("sync", MountFlags::SYNCHRONOUS, true),
    ("async", MountFlags::SYNCHRONOUS, false),
    ("dirsync", MountFlags::DIRSYNC, true),
    ("noatime", MountFlags::NOATIME, true),
    ("atime", MountFlags::NOATIME, false),
    ("nodiratime", MountFlags::NODIRATIME, true),
    ("diratime", MountFlags::NODIRATIME, false),
    ("relatime", MountFlags::RELATIME, true),
    ("norelatime", MountFlags::RELATIME, false),
    ("strictatime", MountFlags::STRICTATIME, true),
    ("lazytime", MountFlags::LAZYTIME, true),
];

/// The flag that the option `name` sets (true) or clears (false).
pub(crate) fn flag_of(name: &str) -> Option<(MountFlags, bool)> {
    FLAGS.iter().find(|(option, _, _)| *option == name).map(|(_, flag, on)| (*flag, *on))
}

/// Restrictions that a mount of terrace takes over from the mount of its source.
const KEPT: [(Has, MountFlags); 4] = [
    (Has::RDONLY, MountFlags::RDONLY),
    (Has::NOSUID, MountFlags::NOSUID),
    (Has::NODEV, MountFlags::NODEV),
    (Has::NOEXEC, MountFlags::NOEXEC),
];

/// The restrictions of the mount that holds a directory.
pub(crate) fn of_mount(dir: impl AsFd) -> MountFlags {
    let has = rustix::fs::fstatvfs(dir).map_or(Has::empty(), |fs| fs.f_flag);
    KEPT.into_iter().filter(|(flag, _)| has.contains(*flag)).map(|(_, flag)| flag).collect()
}

/// Option names for `flags`, without those that the kernel sets anyway.
pub(crate) fn names_of(flags: MountFlags) -> Vec<&'static str> {
    let asked = flags.difference(MountFlags::RELATIME);
    FLAGS.iter().filter(|(_, flag, on)| *on && asked.contains(*flag)).map(|(name, _, _)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_a_mount_are_read() {
        let proc = std::fs::File::open("/proc/self").unwrap();
        let flags = rustix::fs::fstatvfs(&proc).unwrap().f_flag;
        assert_eq!(of_mount(&proc).contains(MountFlags::NOSUID), flags.contains(Has::NOSUID));
        assert_eq!(of_mount(&proc).contains(MountFlags::RDONLY), flags.contains(Has::RDONLY));
    }

    #[test]
    fn flags_are_named_again_for_the_helper() {
        let asked = ["noexec", "ro", "relatime", "noatime", "suid"];
        let mut flags = MountFlags::empty();
        for (flag, on) in asked.iter().filter_map(|name| flag_of(name)) {
            flags.set(flag, on);
        }
        assert_eq!(names_of(flags), ["ro", "noexec", "noatime"]);
    }
}
