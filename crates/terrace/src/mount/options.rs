//! Options as mount(8) and fstab write them: `-o memory=2GiB,policy=lru,noatime`.

use std::ffi::OsString;

use rustix::mount::MountFlags;

use crate::cli::Tuning;
use crate::error::{Failure, Result};

/// What the options say.
#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    /// For the kernel.
    pub flags: MountFlags,
    /// Change an existing mount.
    pub remount: bool,
    memory: Option<String>,
    policy: Option<String>,
    config: Option<String>,
}

impl Options {
    /// Adds what the options set to what the flags have not.
    pub fn tune(&self, tuning: &mut Tuning) {
        tuning.memory = tuning.memory.take().or_else(|| self.memory.clone());
        tuning.policy = tuning.policy.take().or_else(|| self.policy.clone());
        tuning.config = tuning.config.take().or_else(|| self.config.clone().map(Into::into));
    }
}

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

/// Options for mount(8), fstab and systemd, or what terrace does anyway.
const IGNORED: &[&str] = &[
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "allow_other",
    "default_permissions",
    "nostrictatime",
    "nolazytime",
    "mand",
    "nomand",
    "loud",
    "silent",
];

/// Reads an option list; an unknown one is an error, as a slip would otherwise go unnoticed.
pub fn parse(text: &str) -> Result<Options> {
    let mut options =
        Options { flags: MountFlags::empty(), remount: false, memory: None, policy: None, config: None };
    for option in text.split(',').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some(("memory", value)) => options.memory = Some(value.to_owned()),
            Some(("policy", value)) => options.policy = Some(value.to_owned()),
            Some(("config", value)) => options.config = Some(value.to_owned()),
            Some((key, _)) if key.starts_with("x-") || key == "comment" => {}
            None if option == "remount" => options.remount = true,
            None if IGNORED.contains(&option) || option.starts_with("x-") => {}
            _ => {
                let known = FLAGS.iter().find(|(name, _, _)| *name == option);
                let (_, flag, on) = known.ok_or_else(|| unknown(option))?;
                options.flags.set(*flag, *on);
            }
        }
    }
    Ok(options)
}

/// The options that set `flags`, without those that the kernel sets anyway.
pub fn names_of(flags: MountFlags) -> Vec<&'static str> {
    let asked = flags.difference(MountFlags::RELATIME);
    FLAGS.iter().filter(|(_, flag, on)| *on && asked.contains(*flag)).map(|(name, _, _)| *name).collect()
}

fn unknown(option: &str) -> Failure {
    let why = format!("there is no mount option `{option}`");
    Failure::new("-o", why, "use memory=, policy=, config= or the usual ones of mount(8)")
}

/// The arguments of `mount.fuse.terrace SRC MNT [-sfnv] [-N namespace] [-t type] [-o options]` as those of
/// `terrace mount`; none if this is not how we were called.
pub fn from_helper_arguments(mut args: impl Iterator<Item = OsString>) -> Option<Vec<OsString>> {
    let name = args.next()?;
    let name = std::path::Path::new(&name).file_name()?.to_str()?;
    if name != "mount.fuse.terrace" && name != "mount.terrace" {
        return None;
    }
    let mut words: Vec<OsString> = vec!["terrace".into(), "mount".into()];
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("-o") => words.extend([arg, args.next().unwrap_or_default()]),
            Some("-N" | "-t") => drop(args.next()),
            Some("-h" | "--help" | "-V" | "--version") => words.push(arg),
            // -s sloppy, -f fake, -n no mtab, -v verbose, alone or together: nothing to do for us.
            Some(flags) if flags.starts_with('-') && flags[1..].chars().all(|c| "sfnv".contains(c)) => {}
            _ => words.push(arg),
        }
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_on_a_flag_counts() {
        assert_eq!(parse("ro,noatime,rw,defaults,x-systemd.automount").unwrap().flags, MountFlags::NOATIME);
        assert_eq!(parse("ro,nosuid").unwrap().flags, MountFlags::RDONLY | MountFlags::NOSUID);
        assert!(parse("remount,ro").unwrap().remount);
    }

    #[test]
    fn flags_are_named_again_for_the_helper() {
        let flags = parse("noexec,ro,relatime,noatime,suid").unwrap().flags;
        assert_eq!(names_of(flags), ["ro", "noexec", "noatime"]);
    }

    #[test]
    fn our_own_options_go_under_the_flags() {
        let options = parse("memory=64MiB,policy=lru,config=/etc/t.toml").unwrap();
        let mut tuning = Tuning { policy: Some("clock".to_owned()), ..Tuning::default() };
        options.tune(&mut tuning);
        assert_eq!(tuning.memory.as_deref(), Some("64MiB"));
        assert_eq!(tuning.policy.as_deref(), Some("clock"));
        assert_eq!(tuning.config.as_deref(), Some("/etc/t.toml".as_ref()));
    }

    #[test]
    fn a_slip_is_told() {
        let failure = parse("ro,memroy=1G").unwrap_err().to_string();
        assert!(failure.contains("no mount option `memroy=1G`"), "{failure}");
    }

    #[test]
    fn mount_calls_us_its_own_way() {
        let words = |text: &str| from_helper_arguments(text.split(' ').map(OsString::from));
        let told = words("/sbin/mount.fuse.terrace /src /mnt -sv -t fuse.terrace -o ro,memory=1G").unwrap();
        assert_eq!(told, ["terrace", "mount", "/src", "/mnt", "-o", "ro,memory=1G"]);
        assert_eq!(words("/usr/bin/terrace mount a b"), None);
    }
}
