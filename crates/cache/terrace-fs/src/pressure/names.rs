//! Queue of names to remove from the kernel's dentry cache, and the thread that notifies the kernel of them.
//!
//! A separate thread is needed: a notification waits for the kernel's lock of the name's directory. A request
//! that waits for a free descriptor may hold that lock.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::inode::Inode;
use crate::namespace::Namespace;
use crate::page_cache::PageCache;

const NAMES_MAX: usize = 2048;

impl<C: PageCache> Namespace<C> {
    /// Lists names that the kernel is to forget, for [`Namespace::forget_names_loop`].
    pub(super) fn list_names(&self, names: Vec<(u64, OsString)>) {
        let mut listed = self.pressure.names.lock();
        let room = NAMES_MAX.saturating_sub(listed.len());
        listed.extend(names.into_iter().take(room));
        self.pressure.names_added.notify_one();
    }

    /// A lookup failed. The kernel's negative dentry pins the directory, so pruning cannot free it. The
    /// kernel drops it when notified of the name. So once the tables are half full, each such name is listed
    /// for the thread that notifies.
    pub fn note_negative_lookup(&self, parent: u64, name: &OsStr) {
        if !self.pressure.is_half_full(self.inodes.len()) {
            return;
        }
        let mut names = self.pressure.names.lock();
        if names.len() < NAMES_MAX {
            names.push((parent, name.to_owned()));
        }
        if names.len() >= NAMES_MAX / 16 {
            self.pressure.names_added.notify_one();
        }
    }

    /// Notifies the kernel of names to forget, on a thread of its own. Returns after `end_shrinking`.
    pub(crate) fn forget_names_loop(&self) {
        let pressure = &self.pressure;
        while !pressure.ended.load(Ordering::Acquire) {
            let names = std::mem::take(&mut *pressure.names.lock());
            if let Some(kernel) = self.kernel.get() {
                let alive = |_: &&(u64, OsString)| !pressure.ended.load(Ordering::Acquire);
                names
                    .iter()
                    .take_while(alive)
                    .for_each(|(parent, name)| kernel.invalidate_name(*parent, name));
            }
            let mut names = pressure.names.lock();
            if names.len() < NAMES_MAX / 16 && !pressure.ended.load(Ordering::Acquire) {
                pressure.names_added.wait_for(&mut names, Duration::from_secs(1));
            }
        }
    }

    /// A name of an inode and its directory, if /proc knows them and they are below the root.
    pub(crate) fn name_of(&self, root: &Inode<C::Object>, nodeid: u64) -> Option<(u64, OsString)> {
        let inode = self.inode(nodeid).ok()?;
        self.name_at(root, &std::fs::read_link(inode.path().as_path()).ok()?)
    }

    /// The last name of a path of the source and its directory, if the path is below the root.
    pub(super) fn name_at(&self, root: &Inode<C::Object>, path: &Path) -> Option<(u64, OsString)> {
        let below = path.strip_prefix(std::fs::read_link(root.path().as_path()).ok()?).ok()?;
        let (parent, name) = (below.parent()?, below.file_name()?);
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let parent = self.known_at(root, parent.as_os_str())?;
        Some((parent.nodeid, name.to_owned()))
    }
}
