//! Mount options as mount(8) and fstab write them: `-o memory=2GiB,policy=lru,noatime`.

use rustix::mount::MountFlags;

use crate::cli::Tuning;
use crate::error::{Failure, Result};
use crate::mounts;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Options {
    /// Flags for the kernel.
    pub flags: MountFlags,
    /// Flags of the source that this mount clears: `suid`, `dev`, `exec`, `rw`.
    cleared: MountFlags,
    /// Change an existing mount.
    pub remount: bool,
    pub memory: Option<String>,
    policy: Option<String>,
    tier: Vec<String>,
    metrics: Option<String>,
    config: Option<String>,
    numa: Option<String>,
    passthrough: Option<String>,
    /// A missing source is no failure.
    pub nofail: bool,
}

impl Options {
    /// The flags of a mount over a source that is mounted with `source`.
    pub(super) fn flags_over(&self, source: MountFlags) -> MountFlags {
        self.flags | source.difference(self.cleared)
    }

    /// Applies the options where no flag overrides them.
    pub(super) fn tune(&self, tuning: &mut Tuning) {
        tuning.memory = tuning.memory.take().or_else(|| self.memory.clone());
        tuning.policy = tuning.policy.take().or_else(|| self.policy.clone());
        if tuning.tier.is_empty() {
            tuning.tier = self.tier.iter().map(Into::into).collect();
        }
        tuning.metrics = tuning.metrics.take().or_else(|| self.metrics.clone());
        tuning.numa = tuning.numa.take().or_else(|| self.numa.clone());
        tuning.passthrough = tuning.passthrough.take().or_else(|| self.passthrough.clone());
        tuning.config = tuning.config.take().or_else(|| self.config.clone().map(Into::into));
    }
}

/// Options for mount(8), fstab and systemd, and options that terrace implies.
const IGNORED: &[&str] = &[
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
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

/// Keys of comments, and keys that the mount table shows for our mounts, which mount(8) repeats at a remount.
const REPEATED: &[&str] = &[
    "comment", "uhelper", "fd", "rootmode", "user_id", "group_id", "max_read", "blksize", "fsname", "subtype",
];

/// Parses an option list. An unknown option is an error, to catch typing errors, except with `sloppy` of
/// mount(8).
pub(super) fn parse(text: &str, sloppy: bool) -> Result<Options> {
    let mut options = Options {
        flags: MountFlags::empty(),
        cleared: MountFlags::empty(),
        remount: false,
        memory: None,
        policy: None,
        tier: Vec::new(),
        metrics: None,
        config: None,
        numa: None,
        passthrough: None,
        nofail: false,
    };
    for option in text.split(',').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some(("memory", value)) => options.memory = Some(value.to_owned()),
            Some(("policy", value)) => options.policy = Some(value.to_owned()),
            Some(("tier", value)) => options.tier.push(value.to_owned()),
            Some(("metrics", value)) => options.metrics = Some(value.to_owned()),
            Some(("numa", value)) => options.numa = Some(value.to_owned()),
            Some(("passthrough", value)) => options.passthrough = Some(value.to_owned()),
            Some(("config", value)) => options.config = Some(value.to_owned()),
            Some((key, _)) if key.starts_with("x-") || REPEATED.contains(&key) => {}
            None if option == "remount" => options.remount = true,
            None if option == "nofail" => options.nofail = true,
            None if IGNORED.contains(&option) || option.starts_with("x-") => {}
            _ => match mounts::flag_of(option) {
                Some((flag, on)) => {
                    options.flags.set(flag, on);
                    options.cleared.set(flag, !on);
                }
                None if sloppy => {}
                None => return Err(unknown(option)),
            },
        }
    }
    Ok(options)
}

fn unknown(option: &str) -> Failure {
    let why = format!("there is no mount option `{option}`");
    Failure::new(
        "-o",
        why,
        "use memory=, policy=, tier=, metrics=, numa=, passthrough=, config= or the usual ones of mount(8)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_on_a_flag_counts() {
        assert_eq!(
            parse("ro,noatime,rw,defaults,x-systemd.automount", false).unwrap().flags,
            MountFlags::NOATIME
        );
        assert_eq!(parse("ro,nosuid", false).unwrap().flags, MountFlags::RDONLY | MountFlags::NOSUID);
        assert!(parse("remount,ro", false).unwrap().remount);
        let repeated = "rw,relatime,user_id=0,group_id=0,default_permissions,allow_other,remount,ro";
        assert_eq!(parse(repeated, false).unwrap().flags, MountFlags::RDONLY | MountFlags::RELATIME);
    }

    #[test]
    fn source_flags_hold_unless_they_are_cleared() {
        let source = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        let flags = |text| parse(text, false).unwrap().flags_over(source);
        assert_eq!(flags("noatime"), source | MountFlags::NOATIME);
        assert_eq!(flags("suid,dev"), MountFlags::NOEXEC);
        assert_eq!(flags("suid,nosuid"), source);
    }

    #[test]
    fn our_own_options_go_under_the_flags() {
        let options =
            parse("memory=64MiB,policy=lru,tier=/ssd/t:1G,metrics=9464,tier=/u,config=/etc/t.toml,numa=off,passthrough=auto,nofail", false)
                .unwrap();
        assert!(options.nofail);
        let mut tuning = Tuning { policy: Some("clock".to_owned()), ..Tuning::default() };
        options.tune(&mut tuning);
        assert_eq!(tuning.memory.as_deref(), Some("64MiB"));
        assert_eq!(tuning.policy.as_deref(), Some("clock"));
        assert_eq!(tuning.tier, ["/ssd/t:1G", "/u"]);
        assert_eq!((tuning.numa.as_deref(), tuning.passthrough.as_deref()), (Some("off"), Some("auto")));
        assert_eq!(tuning.metrics.as_deref(), Some("9464"));
        assert_eq!(tuning.config.as_deref(), Some("/etc/t.toml".as_ref()));
    }

    #[test]
    fn a_slip_is_told() {
        let failure = parse("ro,memroy=1G", false).unwrap_err().to_string();
        assert!(failure.contains("no mount option `memroy=1G`"), "{failure}");
        assert_eq!(parse("ro,memroy=1G", true).unwrap().flags, MountFlags::RDONLY);
    }
}
