//! Mounts of terrace in the kernel's mount table: found by path or device.

use std::path::Path;

use terrace_system::mounts::{Entry, table};

/// File system type of terrace in the mount table.
pub(crate) const FSTYPE: &str = "fuse.terrace";

/// The device of terrace's topmost mount at `path`, even if another file system covers it.
pub(crate) fn device_at(path: &Path) -> Option<(u32, u32)> {
    let here = |entry: &Entry| entry.point == path && entry.fstype == FSTYPE;
    table().into_iter().rfind(here).map(|entry| entry.dev)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_is_told_from_what_lies_on_it() {
        let entry = |dev, fstype: &str| Entry {
            dev: (0, dev),
            point: "/m".into(),
            fstype: fstype.to_owned(),
            ..Entry::default()
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
    fn mounts_are_found_below_the_root() {
        assert!(!below(Path::new("/")).is_empty());
    }
}
