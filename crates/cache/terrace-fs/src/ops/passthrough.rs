//! Passthrough: the kernel itself reads and writes files in the source (Linux 6.9, fs/fuse/passthrough.c,
//! iomode.c).
//!
//! The content is in the source's page cache: programs read, write and map it there, as without a mount. Only
//! clients of the preload path use this daemon, by descriptors open for reading. The daemon has nothing newer
//! than the source. Either all open handles of an inode use passthrough, or none; the first open decides. An
//! open that reads a small file leaves it to the mount's page cache: registering costs more.
//!
//! The daemon does not see writes in passthrough. While a file has such writers, readers of the preload path
//! use the mount path, which reads the source ([`Namespace::is_written_outside`]). After the last close,
//! frames stay only if the source is unchanged. A writable mapping outlives its handle, and its stores are
//! not visible to the daemon. The mapping holds the file's name in the mount, so the kernel does not forget
//! the inode (fs/backing-file.c). A read lease detects such a mapping
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
use crate::inode::node::KernelWrites;
use crate::inode::{Inode, Life, SourceState};
use crate::{CachedFile, Namespace, PageCache, coherence};

/// Largest file that an open for reading leaves to the mount's page cache: one request fills it.
const SMALL_BYTES_MAX: i64 = 128 << 10;
/// Time in which the source's page cache may hold unwritten pages; this daemon would have to wait for their
/// writeback.
const UNWRITTEN_FOR_NS: u64 = Duration::from_secs(60).as_nanos() as u64;

/// Shortest and longest time between two checks for writable mappings with closed handles.
const RECHECK_MIN: Duration = Duration::from_millis(5);
const RECHECK_MAX: Duration = Duration::from_secs(1);

impl<C: PageCache> Namespace<C> {
    /// The backing file for a handle that is about to be made; 0: without passthrough. The caller holds
    /// `life`.
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
        // A slow file may still have a mapping of an earlier handle that changes it.
        let small = stat.st_size <= SMALL_BYTES_MAX && !writes(flags) && !object.is_slow();
        if small && !inode.written_outside.within(UNWRITTEN_FOR_NS, coherence::now()) {
            return Ok(0);
        }
        // Before a write through the mount, clearing privileges is this daemon's task. In passthrough the
        // kernel does not announce writes.
        if is_privileged(inode, stat) {
            return Ok(0);
        }
        takes_direct(object, flags)?;
        if object.dirty_pages() > 0 {
            self.cache.flush(object, 0..u64::MAX)?;
        }
        match self.register(inode, object) {
            Ok(backing) => inode.note_backing(backing),
            // The source may contain a mount of another stacked file system.
            Err(err) => tracing::debug!("inode {}: no passthrough: {err}", inode.nodeid),
        }
        Ok(inode.backing())
    }

    fn register(&self, inode: &Inode<C::Object>, object: &C::Object) -> std::io::Result<u32> {
        let kernel = self.kernel.get().ok_or(Errno::NOTCONN)?;
        match kernel.open_backing(inode.fd()) {
            // Before Linux 6.16 an O_PATH descriptor cannot be registered.
            Err(err) if err.raw_os_error() == Some(libc::EBADF) => {
                kernel.open_backing(object.source().cached_reader()?.as_fd())
            }
            answer => answer,
        }
    }

    /// Releases the backing file after the last close, or if no handle could be made. The caller holds
    /// `life`.
    pub(crate) fn release_backing(&self, inode: &Inode<C::Object>, life: &Life<C::Object>) {
        let backing = inode.backing();
        if backing == 0 || life.handles > 0 {
            return;
        }
        // Cleared first, so that no record names a released id: the kernel would refuse every open with it.
        inode.note_backing(0);
        if let Some(kernel) = self.kernel.get() {
            kernel.close_backing(backing);
        }
    }

    /// Records the source's state before the first unseen writer. The caller holds `life`, and has looked at
    /// the source.
    pub(crate) fn note_before(&self, file: &OpenFile<C>, look: &SourceState, life: &mut Life<C::Object>) {
        if !file.writes() || !file.may_map_unseen() {
            return;
        }
        if life.unseen_writers == 0 && !file.object.is_slow() {
            let before = differs_from_now_on(&look.stat).then_some(look.digest);
            life.kernel_writes = KernelWrites { before, may_map: false };
        }
        life.kernel_writes.may_map |= may_map(file.flags);
    }

    /// Whether the file may change without this daemon's knowledge. For an open file without passthrough,
    /// slow has another meaning.
    pub(crate) fn changes_outside(
        &self,
        inode: &Inode<C::Object>,
        object: &C::Object,
        life: &Life<C::Object>,
    ) -> bool {
        self.passes_through() && object.is_slow() && (life.handles == 0 || inode.backing() != 0)
    }

    /// Whether the file of an open handle may change without this daemon's knowledge.
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

    /// After the last unseen writer's close, opens the file to the preload path again. Returns false if a
    /// mapping may still write it. The caller holds `life`.
    pub(crate) fn reopen_preload_path(&self, inode: &Inode<C::Object>, life: &mut Life<C::Object>) -> bool {
        let Some(object) = life.object.clone().filter(|object| object.is_slow()) else { return true };
        if life.unseen_writers > 0 || !self.is_free_of_mappings(inode, &object, life) {
            return false;
        }
        if let Err(err) = self.drop_unless(inode, &object, life.kernel_writes) {
            tracing::debug!("inode {}: {err}", inode.nodeid);
            return false;
        }
        if life.kernel_writes.may_map {
            // Stores to a mapping changed the times. After writes the kernel dropped its attributes itself.
            self.invalidate_attributes(inode.nodeid);
        }
        object.set_slow(false);
        object.set_mapped(false);
        life.kernel_writes = KernelWrites::default();
        true
    }

    fn is_free_of_mappings(
        &self,
        inode: &Inode<C::Object>,
        object: &C::Object,
        life: &mut Life<C::Object>,
    ) -> bool {
        life.kernel_writes.may_map |= object.is_mapped();
        if !life.kernel_writes.may_map {
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

    /// Drops the frames of a file without writers, unless it is unchanged.
    fn drop_unless(&self, inode: &Inode<C::Object>, object: &C::Object, writes: KernelWrites) -> Result<()> {
        let look = inode.look(object)?;
        if look.changed || writes.before != Some(look.digest) {
            self.drop_changed(inode, object)?;
            inode.trust(look.digest);
        }
        Ok(())
    }

    /// Opens a file to the preload path, now or as soon as possible. The caller holds `life`.
    pub(crate) fn reopen_preload_path_soon(&self, inode: &Arc<Inode<C::Object>>, life: &mut Life<C::Object>) {
        if !self.reopen_preload_path(inode, life) && life.unseen_writers == 0 {
            self.possibly_mapped.push(inode.nodeid);
        }
    }

    /// Checks these files again, until [`Namespace::end_rechecks`].
    pub(crate) fn recheck_loop(&self) {
        let mut pause = RECHECK_MIN;
        while let Some(nodeids) = self.possibly_mapped.wait(pause) {
            let before = nodeids.len();
            let left: Vec<u64> = nodeids.into_iter().filter(|&nodeid| !self.try_reopen(nodeid)).collect();
            pause = if left.len() < before { RECHECK_MIN } else { (pause * 2).min(RECHECK_MAX) };
            left.into_iter().for_each(|nodeid| self.possibly_mapped.push(nodeid));
        }
    }

    /// True: the file is open to the preload path, or the close of its writer will open it.
    fn try_reopen(&self, nodeid: u64) -> bool {
        let Ok(inode) = self.inode(nodeid) else { return true };
        let mut life = inode.life.lock();
        life.unseen_writers > 0 || self.reopen_preload_path(&inode, &mut life)
    }

    pub(crate) fn end_rechecks(&self) {
        self.possibly_mapped.end();
    }
}

/// Checks O_DIRECT here: the kernel opens the source with the program's flags and would turn a refusal into
/// EIO.
fn takes_direct(object: &impl CachedFile, flags: u32) -> Result<()> {
    match flags & libc::O_DIRECT as u32 != 0 && !object.source().reader()?.direct() {
        true => Err(Errno::INVAL.into()),
        false => Ok(()),
    }
}

/// Whether these open flags permit a shared writable mapping.
fn may_map(flags: u32) -> bool {
    writes(flags) && !writes_only(flags)
}
