//! Files prepared before a program opens them: looked up by name and compared with the source, as by an open.
//!
//! Such a file counts as known to the kernel, until [`Namespace::forget`] releases it. After a crash it is
//! not released: it uses a place in the tables until the mount ends.

use std::ffi::OsStr;
use std::path::Path;

use rustix::fs::Stat;
use rustix::io::Errno;

use crate::error::Result;
use crate::inode::ROOT;
use crate::{Caller, Namespace, PageCache};

/// Request number: odd, since the kernel's are even.
const UNIQUE: u64 = 1;

/// A file opened ahead.
#[derive(Debug)]
pub struct OpenedAhead<O> {
    /// Its node id.
    pub nodeid: u64,
    /// Its object in the page cache.
    pub object: O,
    /// The source's status.
    pub stat: Stat,
}

impl<C: PageCache> Namespace<C> {
    /// Opens the regular file at a path relative to the root. Links are not followed. One thread at a time.
    ///
    /// # Errors
    /// The file does not exist, is not a regular file, or changed past this daemon. In the last case the next
    /// opener must see the change.
    pub fn open_ahead(&self, path: &Path) -> Result<OpenedAhead<C::Object>> {
        let mut nodeid = ROOT;
        for name in path {
            let entered = self.enter_name(nodeid, name);
            if nodeid != ROOT {
                self.forget(nodeid, 1);
            }
            nodeid = entered?;
        }
        let opened = self.open_inode_ahead(nodeid);
        if opened.is_err() && nodeid != ROOT {
            self.forget(nodeid, 1);
        }
        opened
    }

    fn enter_name(&self, parent: u64, name: &OsStr) -> Result<u64> {
        let mut op = self.begin(Caller { unique: UNIQUE, ..Caller::default() });
        Ok(self.lookup(&mut op, parent, name)?.attr.ino)
    }

    fn open_inode_ahead(&self, nodeid: u64) -> Result<OpenedAhead<C::Object>> {
        self.with_room(|| -> Result<_> {
            let inode = self.inode(nodeid)?;
            let mut life = inode.life.lock();
            let object = self.object_of(&inode, &mut life)?;
            let look = self.look_behind(&inode, &object)?;
            if look.changed {
                return Err(Errno::STALE.into());
            }
            Ok(OpenedAhead { nodeid, object, stat: look.stat })
        })
    }
}
