//! /proc/PID/mountinfo: the table of mounts, as proc(5) describes it.

use std::ffi::OsString;
use std::fmt::Display;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A mount.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entry {
    /// Number of the mount.
    pub id: u64,
    /// Device as stat reports it, major and minor.
    pub dev: (u32, u32),
    /// The mounted directory within its file system.
    pub root: PathBuf,
    /// Where it is mounted.
    pub point: PathBuf,
    /// `ext4`, `fuse.terrace`, ...
    pub fstype: String,
    /// The source of the mount, with the table's escapes.
    pub escaped_source: OsString,
    /// Options of the file system.
    pub options: String,
}

impl Entry {
    /// The source of the mount.
    pub fn source(&self) -> PathBuf {
        unescaped(self.escaped_source.as_bytes())
    }

    /// Whether the server alone checks permissions: the kernel checks no modes, and owners may be meaningless
    /// here (sshfs).
    pub fn is_checked_by_server(&self) -> bool {
        let checks = |option| option == "default_permissions";
        self.fstype.split('.').next().is_some_and(|kind| matches!(kind, "fuse" | "fuseblk"))
            && !self.options.split(',').any(checks)
    }

    /// The user that mounted a FUSE file system.
    pub fn user_id(&self) -> Option<u32> {
        self.options.split(',').find_map(|option| option.strip_prefix("user_id=")?.parse().ok())
    }
}

/// All mounts that this process sees, oldest first: a later one covers an earlier one at the same point.
/// Empty if the table cannot be read.
pub fn table() -> Vec<Entry> {
    table_of("self").unwrap_or_default()
}

/// All mounts that a process sees.
///
/// # Errors
/// The table cannot be read.
pub fn table_of(process: impl Display) -> io::Result<Vec<Entry>> {
    let text = std::fs::read(format!("/proc/{process}/mountinfo"))?;
    Ok(text.split(|b| *b == b'\n').filter_map(parse).collect())
}

/// The topmost mount at exactly `path`.
pub fn at(path: &Path) -> Option<Entry> {
    table().into_iter().rfind(|entry| entry.point == path)
}

/// The mount that shows `path`, and the path below the root of its file system.
pub fn inside<'a>(table: &'a [Entry], path: &Path) -> Option<(&'a Entry, PathBuf)> {
    let over = table.iter().filter(|entry| path.starts_with(&entry.point));
    let entry = over.max_by_key(|entry| entry.point.components().count())?;
    let below = path.strip_prefix(&entry.point).ok()?;
    Some((entry, entry.root.join(below).components().collect()))
}

/// `36 35 98:0 /root /point options [tags] - type source options`
fn parse(line: &[u8]) -> Option<Entry> {
    let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
    let dash = fields.iter().position(|field| *field == b"-")?;
    let text = |at: usize| fields.get(at).map(|field| String::from_utf8_lossy(field));
    let dev = text(2)?;
    let (major, minor) = dev.split_once(':')?;
    Some(Entry {
        id: text(0)?.parse().ok()?,
        dev: (major.parse().ok()?, minor.parse().ok()?),
        root: unescaped(fields.get(3)?),
        point: unescaped(fields.get(4)?),
        fstype: text(dash + 1)?.into_owned(),
        escaped_source: OsString::from_vec(fields.get(dash + 2)?.to_vec()),
        options: text(dash + 3).unwrap_or_default().into_owned(),
    })
}

/// Space, tab, newline and backslash are written as `\ooo`.
fn unescaped(field: &[u8]) -> PathBuf {
    let (mut bytes, mut rest) = (Vec::with_capacity(field.len()), field);
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| *first == b'\\');
        let octal = octal.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(octal.unwrap_or(*first));
        rest = if octal.is_some() { &after[3..] } else { after };
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_the_kernel_writes_them() {
        let line =
            b"41 29 0:36 / /mnt/with\\040space rw,nosuid shared:7 - fuse.terrace /data\\134x rw,user_id=0";
        let entry = parse(line).unwrap();
        assert_eq!((entry.id, entry.dev), (41, (0, 36)));
        assert_eq!(entry.point, Path::new("/mnt/with space"));
        assert_eq!(entry.fstype, "fuse.terrace");
        assert_eq!(entry.source(), Path::new("/data\\x"));
        assert_eq!((entry.root.as_path(), entry.options.as_str()), (Path::new("/"), "rw,user_id=0"));
        assert_eq!(entry.user_id(), Some(0));
        assert_eq!(parse(b""), None);
        assert_eq!(unescaped(b"/a\\040b\\\\134"), Path::new("/a b\\\\"));
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(at(Path::new("/")).is_some());
    }
}
