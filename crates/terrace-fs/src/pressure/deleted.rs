//! Files deleted behind the mount that cannot be written back.
//!
//! The kernel keeps the names it knows, and with each an inode of ours, which keeps the source's file, its room on the device and its dirty pages.
//! As long as writeback succeeds that does no harm. Where it fails, for want of room perhaps, nothing would ever end it: so the kernel is asked to
//! forget such a file. It does unless somebody uses it, and then nobody can read it any more: what is dirty goes unwritten.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use crate::inode::{Inode, ROOT};
use crate::{Namespace, PageCache};

/// Suffix in /proc of the path of a file that has no name left.
const DELETED: &[u8] = b" (deleted)";

impl<C: PageCache> Namespace<C> {
    /// Has the kernel forget files without a name, of which nothing is open and writeback fails. Whatever the kernel still uses stays: a descriptor
    /// that was opened with O_PATH, for example, can be opened anew.
    pub fn forget_deleted(&self) {
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
            // Before Linux 6.18: by the name that it had. Another file that has it by now is looked up again.
            self.list_names(deleted.iter().filter_map(|inode| self.last_name_of(inode)).collect());
        }
    }

    /// The last name of a file that has none, and its directory.
    fn last_name_of(&self, inode: &Inode<C::Object>) -> Option<(u64, OsString)> {
        let root = self.inode(ROOT).ok()?;
        let path = std::fs::read_link(inode.path().as_path()).ok()?.into_os_string().into_vec();
        self.name_at(&root, Path::new(OsStr::from_bytes(path.strip_suffix(DELETED)?)))
    }
}
