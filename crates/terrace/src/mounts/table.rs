//! /proc/PID/mountinfo: the table of mounts, as proc(5) describes it.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// File system type of terrace in the mount table.
pub(crate) const FSTYPE: &str = "fuse.terrace";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Device as stat reports it, major and minor.
    pub dev: (u32, u32),
    /// The mounted directory within its file system.
    pub root: PathBuf,
    pub point: PathBuf,
    /// `ext4`, `fuse.terrace`, ...
    pub fstype: String,
    /// The source of the mount.
    pub source: PathBuf,
    /// Options of the file system.
    pub options: String,
}

impl Entry {
    /// Does the server alone check permissions? Then the kernel checks no modes, and the owners shown may be
    /// meaningless here (sshfs).
    pub(crate) fn is_checked_by_server(&self) -> bool {
        let checks = |option| option == "default_permissions";
        self.fstype.split('.').next().is_some_and(|kind| matches!(kind, "fuse" | "fuseblk"))
            && !self.options.split(',').any(checks)
    }

    /// The user that mounted a FUSE file system.
    pub(crate) fn user_id(&self) -> Option<u32> {
        self.options.split(',').find_map(|option| option.strip_prefix("user_id=")?.parse().ok())
    }
}

/// All mounts that this process sees, oldest first; a later one at the same point covers an earlier one.
pub(crate) fn table() -> Vec<Entry> {
    table_of(Path::new("/proc/self"))
}

/// [`table`], with errors.
///
/// # Errors
/// The table cannot be read.
pub(crate) fn own_table() -> io::Result<Vec<Entry>> {
    read(Path::new("/proc/self"))
}

/// All mounts that the process of this /proc directory sees; empty if it may not be read.
pub(crate) fn table_of(process: &Path) -> Vec<Entry> {
    read(process).unwrap_or_default()
}

fn read(process: &Path) -> io::Result<Vec<Entry>> {
    let text = std::fs::read(process.join("mountinfo"))?;
    Ok(text.split(|b| *b == b'\n').filter_map(parse).collect())
}

/// The topmost mount at exactly `path`.
pub(crate) fn at(path: &Path) -> Option<Entry> {
    table().into_iter().rev().find(|entry| entry.point == path)
}

/// The mount that shows `path`, and the path below the root of its file system.
pub(crate) fn inside<'a>(table: &'a [Entry], path: &Path) -> Option<(&'a Entry, PathBuf)> {
    let over = table.iter().filter(|entry| path.starts_with(&entry.point));
    let entry = over.max_by_key(|entry| entry.point.components().count())?;
    let below = path.strip_prefix(&entry.point).ok()?;
    Some((entry, entry.root.join(below).components().collect()))
}

/// The device of terrace's topmost mount at `path`, even if another file system covers it.
pub(crate) fn device_at(path: &Path) -> Option<(u32, u32)> {
    let here = |entry: &Entry| entry.point == path && entry.fstype == FSTYPE;
    table().into_iter().rev().find(here).map(|entry| entry.dev)
}

/// Position of a mount among those at its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Layer {
    /// On top: the path names it.
    Top,
    /// Covered by a file system of this type.
    Below(String),
    Gone,
}

/// Position of the mount of device `dev` at `path`; without a device, the topmost mount of terrace counts.
pub(crate) fn layer(path: &Path, dev: Option<(u32, u32)>) -> Layer {
    layer_in(table(), path, dev)
}

fn layer_in(table: Vec<Entry>, path: &Path, dev: Option<(u32, u32)>) -> Layer {
    let ours = |entry: &Entry| dev.map_or(entry.fstype == FSTYPE, |dev| entry.dev == dev);
    let mut here = table.into_iter().rev().filter(|entry| entry.point == path);
    match here.next() {
        Some(top) if ours(&top) => Layer::Top,
        Some(top) if here.any(|entry| ours(&entry)) => Layer::Below(top.fstype),
        _ => Layer::Gone,
    }
}

/// The mount of the file system of device `dev`.
pub(crate) fn of_device(dev: u64) -> Option<Entry> {
    let dev = (rustix::fs::major(dev), rustix::fs::minor(dev));
    table().into_iter().find(|entry| entry.dev == dev)
}

/// Mounts strictly below `path`.
pub(crate) fn below(path: &Path) -> Vec<Entry> {
    table().into_iter().filter(|entry| entry.point != path && entry.point.starts_with(path)).collect()
}

/// `36 35 98:0 /root /point options [tags] - type source options`
fn parse(line: &[u8]) -> Option<Entry> {
    let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
    let dash = fields.iter().position(|field| *field == b"-")?;
    let (major, minor) = std::str::from_utf8(fields.get(2)?).ok()?.split_once(':')?;
    Some(Entry {
        dev: (major.parse().ok()?, minor.parse().ok()?),
        root: unescaped(fields.get(3)?),
        point: unescaped(fields.get(4)?),
        fstype: String::from_utf8_lossy(fields.get(dash + 1)?).into_owned(),
        source: unescaped(fields.get(dash + 2)?),
        options: fields
            .get(dash + 3)
            .map_or_else(String::new, |text| String::from_utf8_lossy(text).into_owned()),
    })
}

/// Space, tab, newline and backslash are written as `\ooo`.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|d| std::str::from_utf8(d).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| *first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    debug_assert!(OsString::from_vec(bytes.clone()).as_bytes().len() <= field.len());
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_the_kernel_writes_them() {
        let line =
            b"41 29 0:36 / /mnt/with\\040space rw,nosuid shared:7 - fuse.terrace /data\\134x rw,user_id=0";
        let entry = parse(line).unwrap();
        assert_eq!(entry.dev, (0, 36));
        assert_eq!(entry.point, Path::new("/mnt/with space"));
        assert_eq!(entry.fstype, "fuse.terrace");
        assert_eq!(entry.source, Path::new("/data\\x"));
        assert_eq!((entry.root.as_path(), entry.options.as_str()), (Path::new("/"), "rw,user_id=0"));
        assert_eq!(entry.user_id(), Some(0));
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn ours_is_told_from_what_lies_on_it() {
        let entry = |dev, fstype: &str| Entry {
            dev: (0, dev),
            root: "/".into(),
            point: "/m".into(),
            fstype: fstype.to_owned(),
            source: "/s".into(),
            options: String::new(),
        };
        let layer = |table: &[Entry], dev| layer_in(table.to_vec(), Path::new("/m"), dev);
        let (terrace, tmpfs, other) = (entry(1, FSTYPE), entry(2, "tmpfs"), entry(3, FSTYPE));
        assert_eq!(layer(&[tmpfs.clone(), terrace.clone()], Some((0, 1))), Layer::Top);
        assert_eq!(layer(&[terrace.clone(), tmpfs.clone()], Some((0, 1))), Layer::Below("tmpfs".to_owned()));
        assert_eq!(layer(std::slice::from_ref(&other), Some((0, 1))), Layer::Gone);
        assert_eq!(layer(&[other], None), Layer::Top);
        assert_eq!(layer(&[], None), Layer::Gone);
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(at(Path::new("/")).is_some());
        assert!(!below(Path::new("/")).is_empty());
    }
}
