//! The kernel's flags of a mount, by the names that mount(8) has for them.

use rustix::mount::MountFlags;

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
pub fn flag_of(name: &str) -> Option<(MountFlags, bool)> {
    FLAGS.iter().find(|(option, _, _)| *option == name).map(|(_, flag, on)| (*flag, *on))
}

/// The options that set `flags`, without those that the kernel sets anyway.
pub fn names_of(flags: MountFlags) -> Vec<&'static str> {
    let asked = flags.difference(MountFlags::RELATIME);
    FLAGS.iter().filter(|(_, flag, on)| *on && asked.contains(*flag)).map(|(name, _, _)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
