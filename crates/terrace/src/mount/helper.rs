//! Helpers of mount(8) and umount(8) for one type of file system, selected by the name of the program.
//!
//! ```text
//! /sbin/mount.fuse.terrace SRC MNT [-sfnv] [-N namespace] [-o options] [-t type]
//! /sbin/umount.fuse.terrace MNT [-flnrv] [-N namespace] [-t type]
//! ```
//! Both are links to `terrace`. Without the second, umount(8) returns before the daemon has written its last
//! pages.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use crate::error::Failure;

/// Exit code of mount(8) and umount(8) for a failure.
const EXIT_MOUNT_FAILED: u8 = 32;

/// Exit code of a failure: mount(8) and umount(8) pass on that of their helper.
pub(crate) fn exit_code(failure: &Failure) -> ExitCode {
    let is_helper = from_helper_arguments(std::env::args_os()).is_some();
    if is_helper { ExitCode::from(EXIT_MOUNT_FAILED) } else { failure.exit_code() }
}

/// Translates helper arguments into those of `terrace mount` or `terrace umount`; none if not called as a
/// helper.
pub(crate) fn from_helper_arguments(mut args: impl Iterator<Item = OsString>) -> Option<Vec<OsString>> {
    let name = args.next()?;
    let (verb, passed) = match Path::new(&name).file_name().and_then(OsStr::to_str)? {
        "mount.fuse.terrace" | "mount.terrace" => ("mount", "sf"),
        "umount.fuse.terrace" | "umount.terrace" => ("umount", "lf"),
        _ => return None,
    };
    let mut words: Vec<OsString> = vec!["terrace".into(), verb.into()];
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("-o") => words.extend([arg, args.next().unwrap_or_default()]),
            Some("-N" | "-t") => drop(args.next()),
            Some("-h" | "--help" | "-V" | "--version") => words.push(arg),
            // Flags, alone or combined. `-n`, `-v` and `-r` (mtab, verbose, read-only instead of unmount)
            // need no action.
            Some(flags) if flags.starts_with('-') && flags[1..].chars().all(|c| "sflnrv".contains(c)) => {
                let meant = flags.chars().filter(|c| passed.contains(*c));
                words.extend(meant.map(|c| OsString::from(format!("-{c}"))));
            }
            _ => words.push(arg),
        }
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helper_arguments_become_ours() {
        let words = |text: &str| from_helper_arguments(text.split(' ').map(OsString::from));
        let told = words("/sbin/mount.fuse.terrace /src /mnt -sv -t fuse.terrace -o ro,memory=1G").unwrap();
        assert_eq!(told, ["terrace", "mount", "/src", "/mnt", "-s", "-o", "ro,memory=1G"]);
        let told = words("/sbin/umount.fuse.terrace /mnt -nl -t fuse.terrace").unwrap();
        assert_eq!(told, ["terrace", "umount", "/mnt", "-l"]);
        assert_eq!(words("/usr/bin/terrace mount a b"), None);
    }
}
