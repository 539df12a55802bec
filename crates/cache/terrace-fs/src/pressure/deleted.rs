//! Files deleted behind the mount, with failing writeback.
//!
//! The kernel keeps known names, and with each an inode of the daemon. The inode keeps the source's file, its
//! space on the device and its dirty pages. That is harmless while writeback succeeds. If writeback fails,
//! for lack of space perhaps, the inode would stay for ever. So the daemon makes the kernel forget such a
//! file, unless it is in use. No program can read it then, so its dirty pages are discarded.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use crate::inode::{Inode, ROOT};
use crate::{Namespace, PageCache};

/// Suffix in /proc of the path of a file without a name.
const DELETED: &[u8] = b" (deleted)";

impl<C: PageCache> Namespace<C> {
    /// Prunes files with failing writeback that have neither a name nor handles. Files that the kernel still
    /// uses stay: a descriptor opened with O_PATH, for example, can be reopened.
    pub(crate) fn forget_deleted(&self) {
        let Some(kernel) = self.kernel.get() else { return };
        let failing = self.cache.failing_objects().into_iter().filter_map(|id| self.inode(id).ok());
        // An open may hold `life` and wait for a descriptor: the next round closes the file.
        let is_closed = |inode: &Inode<_>| inode.life.try_lock().is_some_and(|life| life.handles == 0);
        let deleted: Vec<_> = failing.filter(|inode| is_closed(inode) && self.is_deleted(inode)).collect();
        if deleted.is_empty() {
            return;
        }
        let nodeids: Vec<u64> = deleted.iter().map(|inode| inode.nodeid).collect();
        if !kernel.prune(&nodeids) {
            // Before Linux 6.18: by the file's last name. If another file has the name by now, the kernel
            // looks it up again.
            self.list_names(deleted.iter().filter_map(|inode| self.last_name_of(inode)).collect());
        }
    }

    /// The last name of a file that has none left, and its directory.
    fn last_name_of(&self, inode: &Inode<C::Object>) -> Option<(u64, OsString)> {
        let root = self.inode(ROOT).ok()?;
        let path = std::fs::read_link(inode.path().as_path()).ok()?.into_os_string().into_vec();
        self.name_at(&root, Path::new(OsStr::from_bytes(path.strip_suffix(DELETED)?)))
    }
}
