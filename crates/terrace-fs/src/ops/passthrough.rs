//! Files that the kernel itself reads and writes in the source: FUSE passthrough (Linux 6.9, fs/fuse/passthrough.c, iomode.c).
//!
//! The truth of such a file is the source's page cache: programs read, write and map it there, as if there were no mount. Only the descriptors that
//! clients of the preload path open for reading come to this daemon, which then has nothing that the source lacks. While
//! an inode is open, either all of its handles are so, or none; the first open decides. One that reads a small file leaves it to the page cache
//! of the mount, for registering it costs more than the reads.
//!
//! What this daemon does not see are writes. While there are any, the preload path's readers come to the
//! mount path, which reads the source ([`Namespace::is_written_outside`]). When the last is closed, frames stay only if
//! the source is the same as before. A writable mapping outlives its handle, and its stores show nowhere (it holds the file's name
//! in the mount, so that the kernel does not forget the inode: fs/backing-file.c). A read lease tells whether there is one
//! ([`terrace_engine::source::SourceFile::has_writers`]).

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::Stat;
use rustix::io::Errno;

use super::change::is_privileged;
use terrace_engine::source::differs_from_now_on;

use crate::error::Result;
use crate::inode::handle::{OpenFile, writes, writes_only};
use crate::inode::node::Outside;
use crate::inode::{Inode, Life, Look};
use crate::{CachedFile, Namespace, PageCache, coherence};

/// Largest file that an open for reading leaves to the page cache of the mount: one request fills it.
const SMALL_BYTES_MAX: i64 = 128 << 10;
/// For so long the source's page cache may hold what programs wrote and its device has not; this daemon would have to wait for the writeback.
const UNWRITTEN_FOR_NS: u64 = Duration::from_secs(60).as_nanos() as u64;

/// Between two looks for writable mappings whose handle is closed, at first and at most.
const RECHECK_MIN: Duration = Duration::from_millis(5);
const RECHECK_MAX: Duration = Duration::from_secs(1);

impl<C: PageCache> Namespace<C> {
    /// The number under which the kernel reads and writes the file itself, for a handle that is about to be made; 0: it asks this daemon. The
    /// caller holds `life`.
    pub(crate) fn back(
        &self,
        inode: &Inode<C::Object>,
        object: &C::Object,
        life: &Life<C::Object>,
        stat: &Stat,
        flags: u32,
    ) -> Result<u32> {
        if inode.backing() != 0 {
            takes_direct(object, flags)?;
            return Ok(inode.backing());
        }
        if life.handles > 0 || !self.passes_through() {
            return Ok(0);
        }
        // A mapping that is left of an earlier handle may change a file that is slow.
        let small = stat.st_size <= SMALL_BYTES_MAX && !writes(flags) && !object.is_slow();
        if small && !inode.written_outside.within(UNWRITTEN_FOR_NS, coherence::now()) {
            return Ok(0);
        }
        // Before a write the kernel leaves it to us to take privileges away, and does not tell us of one in passthrough.
        if is_privileged(inode, stat) {
            return Ok(0);
        }
        takes_direct(object, flags)?;
        if object.dirty_pages() > 0 {
            self.cache.flush(object, 0..u64::MAX)?;
        }
        match self.register(inode, object) {
            Ok(backing) => inode.note_backing(backing),
            // Another file system that is stacked itself may be mounted in the source.
            Err(err) => tracing::debug!("inode {}: no passthrough: {err}", inode.nodeid),
        }
        Ok(inode.backing())
    }

    fn register(&self, inode: &Inode<C::Object>, object: &C::Object) -> std::io::Result<u32> {
        let kernel = self.kernel.get().ok_or(Errno::NOTCONN)?;
        match kernel.open_backing(inode.fd()) {
            // Before Linux 6.16 an O_PATH descriptor is none.
            Err(err) if err.raw_os_error() == Some(libc::EBADF) => {
                kernel.open_backing(object.source().cached_reader()?.as_fd())
            }
            answer => answer,
        }
    }

    /// Gives the number back when the last handle is closed, or none could be made. The caller holds `life`.
    pub(crate) fn unback(&self, inode: &Inode<C::Object>, life: &Life<C::Object>) {
        let backing = inode.backing();
        if backing == 0 || life.handles > 0 {
            return;
        }
        // First, so that no record names one that is given back: the kernel would refuse every open with it.
        inode.note_backing(0);
        if let Some(kernel) = self.kernel.get() {
            kernel.close_backing(backing);
        }
    }

    /// Notes what the source was before the first writer that this daemon does not see. The caller holds `life`, and has
    /// looked at the source.
    pub(crate) fn note_before(&self, file: &OpenFile<C>, look: &Look, life: &mut Life<C::Object>) {
        if !file.writes() || !file.may_map_unseen() {
            return;
        }
        if life.unseen_writers == 0 && !file.object.is_slow() {
            let before = differs_from_now_on(&look.stat).then_some(look.digest);
            life.outside = Outside { before, may_map: false };
        }
        life.outside.may_map |= may_map(file.flags);
    }

    /// May the file change without this daemon's knowing? Of an open one that the kernel does not read and write itself, slow means less.
    pub(crate) fn changes_outside(
        &self,
        inode: &Inode<C::Object>,
        object: &C::Object,
        life: &Life<C::Object>,
    ) -> bool {
        self.passes_through() && object.is_slow() && (life.handles == 0 || inode.backing() != 0)
    }

    /// May the file of an open handle change without this daemon's knowing?
    pub(crate) fn is_written_outside(&self, inode: &Inode<C::Object>, object: &C::Object) -> bool {
        inode.backing() != 0 && object.is_slow()
    }

    /// Reads from the source's page cache.
    pub(crate) fn read_source(
        &self,
        object: &C::Object,
        offset: u64,
        buf: &mut [u8],
    ) -> std::io::Result<usize> {
        let source = object.source().cached_reader()?;
        let mut done = 0;
        while done < buf.len() {
            match rustix::io::pread(&source, &mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(err) if done == 0 => return Err(err.into()),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// The last writer that this daemon does not see is gone: lets the preload path serve the file again. False: somebody may still
    /// write it. The caller holds `life`.
    pub(crate) fn settle(&self, inode: &Inode<C::Object>, life: &mut Life<C::Object>) -> bool {
        let Some(object) = life.object.clone().filter(|object| object.is_slow()) else { return true };
        if life.unseen_writers > 0 || !self.is_free_of_mappings(inode, &object, life) {
            return false;
        }
        if let Err(err) = self.drop_unless(inode, &object, life.outside) {
            tracing::debug!("inode {}: {err}", inode.nodeid);
            return false;
        }
        if life.outside.may_map {
            // Times that stores to a mapping moved; those of writes the kernel forgot itself.
            self.invalidate_attributes(inode.nodeid);
        }
        object.set_slow(false);
        object.set_mapped(false);
        life.outside = Outside::default();
        true
    }

    fn is_free_of_mappings(
        &self,
        inode: &Inode<C::Object>,
        object: &C::Object,
        life: &mut Life<C::Object>,
    ) -> bool {
        life.outside.may_map |= object.is_mapped();
        if !life.outside.may_map {
            return true;
        }
        if life.writers > 0 {
            return false;
        }
        inode.close_writer(life);
        match object.source().has_writers() {
            Ok(has_writers) => !has_writers,
            Err(err) => {
                tracing::debug!("inode {}: no lease: {err}", inode.nodeid);
                false
            }
        }
    }

    /// Drops the frames of a file that nobody else writes any more, unless it is as it was before.
    fn drop_unless(&self, inode: &Inode<C::Object>, object: &C::Object, outside: Outside) -> Result<()> {
        let look = inode.look(object)?;
        if look.changed || outside.before != Some(look.digest) {
            self.drop_changed(inode, object)?;
            inode.trust(look.digest);
        }
        Ok(())
    }

    /// Settles a file, now or as soon as that is possible. The caller holds `life`.
    pub(crate) fn settle_soon(&self, inode: &Arc<Inode<C::Object>>, life: &mut Life<C::Object>) {
        if !self.settle(inode, life) && life.unseen_writers == 0 {
            self.unsettled.push(inode.nodeid);
        }
    }

    /// Looks again at the files that could not be settled, until [`Namespace::end_settling`].
    pub(crate) fn settle_loop(&self) {
        let mut pause = RECHECK_MIN;
        while let Some(nodeids) = self.unsettled.wait(pause) {
            let before = nodeids.len();
            let left: Vec<u64> = nodeids.into_iter().filter(|&nodeid| !self.try_settle(nodeid)).collect();
            pause = if left.len() < before { RECHECK_MIN } else { (pause * 2).min(RECHECK_MAX) };
            left.into_iter().for_each(|nodeid| self.unsettled.push(nodeid));
        }
    }

    /// True: it is settled, or a writer is there that will see to it.
    fn try_settle(&self, nodeid: u64) -> bool {
        let Ok(inode) = self.inode(nodeid) else { return true };
        let mut life = inode.life.lock();
        life.unseen_writers > 0 || self.settle(&inode, &mut life)
    }

    /// Ends [`Namespace::settle_loop`].
    pub(crate) fn end_settling(&self) {
        self.unsettled.end();
    }
}

/// The kernel opens the source with the program's flags, and calls a refusal EIO.
fn takes_direct(object: &impl CachedFile, flags: u32) -> Result<()> {
    match flags & libc::O_DIRECT as u32 != 0 && !object.source().reader()?.direct() {
        true => Err(Errno::INVAL.into()),
        false => Ok(()),
    }
}

/// Does a shared writable mapping need no more than these open flags?
fn may_map(flags: u32) -> bool {
    writes(flags) && !writes_only(flags)
}
