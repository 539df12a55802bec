//! Operations on a file's content: open, read, write, sync, and the source's extents.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom, Stat, StatFs};
use rustix::io::Errno;
use terrace_engine::AccessPath;

use crate::attr::Attr;
use crate::error::Result;
use crate::inode::handle::{Handle, OpenFile, What, count_release, note_paged, writes, writes_only};
use crate::inode::{Inode, Life, ROOT, SourceState};
use crate::kernel::RESENT;
use crate::{CachedFile, Caller, Namespace, Op, PageCache, coherence, made_up};

/// Longest copy in one copy_file_range; programs repeat the call. A longer copy would hold a thread too long.
const COPY_BYTES_MAX: u64 = 1 << 30;

/// Reply to an open.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    pub(crate) fh: u64,
    /// The kernel bypasses its page cache.
    pub(crate) direct: bool,
    /// The kernel's pages of the file are still valid.
    pub(crate) keep_cache: bool,
    /// A close of a descriptor needs no flush.
    pub(crate) no_flush: bool,
    /// Backing file with which the kernel itself does reads, writes and mappings; 0 without passthrough.
    pub(crate) backing: u32,
}

/// Result of a write.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    pub(crate) bytes: usize,
    /// The kernel's page cache may hold older content of the range ([`Namespace::invalidate_content`]).
    pub(crate) stale: bool,
}

/// The kernel's flags of a write.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteKind {
    pub(crate) caller: Caller,
    /// The writer's file flags: O_SYNC and O_DSYNC count.
    pub(crate) flags: u32,
    /// Written back from the kernel's page cache: handle and caller are guesses.
    pub(crate) from_cache: bool,
    pub(crate) kill_set_id: bool,
}

impl<C: PageCache> Namespace<C> {
    /// Opens a regular file.
    pub fn open(&self, op: &Op<'_>, nodeid: u64, flags: u32) -> Result<Opened> {
        let inode = self.inode(nodeid)?;
        if writes(flags) {
            self.expect_changeable(&op.caller, &inode)?;
            inode.opened.note();
        }
        self.open_inode(op, inode, flags, None)
    }

    /// Opens an inode. `made` is the descriptor of a file just created, open for reading and writing. O_TRUNC
    /// is ignored: the kernel truncates in a separate request, and a new file is empty.
    pub(crate) fn open_inode(
        &self,
        op: &Op<'_>,
        inode: Arc<Inode<C::Object>>,
        flags: u32,
        mut made: Option<OwnedFd>,
    ) -> Result<Opened> {
        if op.is_resent()
            && let Some((fh, handle)) = self.handles.reopened(op.unique())
        {
            return Ok(opened(&inode, fh, handle.file()?, false));
        }
        let client = self.cache.is_client(op.caller.tid);
        let opened = self.with_room(|| self.open_at_once(op, &inode, flags, client, &mut made))?;
        if writes(flags)
            && let Err(error) = self.expect_changes()
        {
            // Changes were given up after the first check, perhaps without this handle in the count.
            self.release(opened.fh);
            return Err(error);
        }
        Ok(opened)
    }

    /// One try, under the inode's `life`. It does not wait for room: requests for attributes and closes would
    /// wait for the lock.
    fn open_at_once(
        &self,
        op: &Op<'_>,
        inode: &Arc<Inode<C::Object>>,
        flags: u32,
        client: bool,
        made: &mut Option<OwnedFd>,
    ) -> Result<Opened> {
        // Checked before `made` is taken: while this waits, another thread may close an inode without
        // handles.
        self.handles.expect_room()?;
        let mut life = inode.life.lock();
        let object = self.object_of(inode, &mut life)?;
        match made.take() {
            Some(fd) => object.source().adopt_writer(fd),
            None => self.open_source(inode, &object, flags, life.writers)?,
        }
        inode.note_writer(object.source());
        inode.used.store(true, Ordering::Relaxed);
        let look = self.look_behind(inode, &object)?;
        self.cache.note_open(&object);
        if (look.changed || look.stat.st_nlink == 0) && !writes(flags) {
            // The file may have been moved or replaced. The next look finds the change again.
            self.expect_in_place(&op.caller, inode)?;
        }
        let backed = self.back(inode, &object, &life, &look.stat, flags)? != 0;
        let made_up = if writes(flags) { None } else { made_up::size(inode.fd(), &look.stat) };
        let bypasses = client || made_up.is_some() || self.is_burst(inode, &life, &look.stat, flags);
        let access = access_path(flags, bypasses, backed);
        let atime_due = AtomicBool::new(flags & libc::O_NOATIME as u32 == 0 && atime_is_old(&look.stat));
        let (cursor, since) = (self.cache.error_cursor(&object), coherence::now());
        let file = OpenFile { cursor, object, flags, access, made_up, since, atime_due };
        if backed {
            self.note_before(&file, &look, &mut life);
        }
        let mut answer = opened(inode, 0, &file, !look.changed);
        let inserted = self.handles.insert(inode, &mut life, What::File(file), op.unique());
        answer.fh = inserted.inspect_err(|_| self.release_backing(inode, &life))?;
        if look.changed {
            // A resent request finds the handle, and its answer makes the kernel drop the file's pages as
            // well.
            inode.trust(look.digest);
        }
        Ok(answer)
    }

    /// Whether a new file is opened for writing only, and no handle may read or map it. O_APPEND marks a log,
    /// which may be read meanwhile.
    fn is_burst(&self, inode: &Inode<C::Object>, life: &Life<C::Object>, stat: &Stat, flags: u32) -> bool {
        self.config.direct_writes
            && writes_only(flags)
            && flags & libc::O_APPEND as u32 == 0
            && stat.st_size == 0
            && life.handles == inode.emptied.bypassing()
    }

    /// Opens the source as the program wants it. At writeback it would be too late to report a read-only file
    /// system or an immutable file. A daemon that modes restrict must also open the file before they change.
    /// A file that its path descriptor does not pin must be open before its last name is removed.
    fn open_source(
        &self,
        inode: &Inode<C::Object>,
        object: &C::Object,
        flags: u32,
        writers: u32,
    ) -> Result<()> {
        let opened = match (writes(flags), writers) {
            (true, 0) => object.source().writer()?,
            (false, _) if self.bound_by_modes || !inode.pins_file() => object.source().reader()?,
            _ => return Ok(()),
        };
        if self.pressure.opened(opened.raw()) {
            self.pressure.request_data_close();
        }
        Ok(())
    }

    /// Whether the source changed behind the mount since the last open. If so, its cached content is dropped.
    /// The caller holds the inode's `life`.
    pub(crate) fn look_behind(&self, inode: &Inode<C::Object>, object: &C::Object) -> Result<SourceState> {
        if object.dirty_pages() > 0 {
            return Ok(SourceState { changed: false, stat: inode.stat()?, digest: 0 });
        }
        let look = inode.look(object)?;
        if look.changed {
            self.drop_changed(inode, object)?;
            self.invalidate_attributes(inode.nodeid);
        }
        Ok(look)
    }

    /// Drops the cached content of a file that was changed past this daemon.
    pub(crate) fn drop_changed(&self, inode: &Inode<C::Object>, object: &C::Object) -> Result<()> {
        self.cache.with_source(object, 0..u64::MAX, || Ok(())).inspect_err(|_| inode.distrust())?;
        inode.unprivileged.store(false, Ordering::Release);
        Ok(())
    }

    /// Reads into `buf`; short at the end of the file. `paged`: number of the request, if it fills the
    /// kernel's page cache.
    pub(crate) fn read(&self, fh: u64, offset: u64, buf: &mut [u8], paged: Option<u64>) -> Result<usize> {
        let handle = self.handles.get(fh)?;
        let file = handle.file()?;
        // The load saves all reads but the first a locked instruction on a shared cache line.
        if file.atime_due.load(Ordering::Relaxed) && file.atime_due.swap(false, Ordering::Relaxed) {
            move_atime(&handle.inode);
        }
        if let Some(unique) = paged {
            note_paged::<C>(&handle.inode, &file.object);
            if handle.inode.emptied.of_late(coherence::now()) {
                self.recent_reads.note(
                    handle.inode.nodeid,
                    offset..offset + buf.len() as u64,
                    unique & !RESENT,
                );
            }
        }
        if let Some(bytes) = self.with_room(|| self.read_made_up(&handle.inode, file, offset, &mut *buf))? {
            return Ok(bytes);
        }
        if self.is_written_outside(&handle.inode, &file.object) {
            return self.with_room(|| self.read_source(&file.object, offset, &mut *buf));
        }
        self.with_room(|| self.cache.read(&file.object, offset, &mut *buf, file.access))
    }

    /// Reads made-up content. `None`: the file's size has changed, so it is an ordinary file.
    fn read_made_up(
        &self,
        inode: &Inode<C::Object>,
        file: &OpenFile<C>,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<Option<usize>> {
        let Some(size) = file.made_up else { return Ok(None) };
        let bytes = self.read_source(&file.object, offset, buf)?;
        // The read comes before the look: a write gives the source its size first.
        Ok((inode.stat()?.st_size == size).then_some(bytes))
    }

    pub(crate) fn write(
        &self,
        nodeid: u64,
        fh: u64,
        offset: u64,
        data: &[u8],
        kind: WriteKind,
    ) -> Result<Written> {
        let came = coherence::now();
        let handle = match self.handles.get(fh) {
            Err(_) if kind.from_cache => return self.write_unopened(nodeid, offset, data),
            handle => handle?,
        };
        let (inode, file) = (&handle.inode, handle.file()?);
        inode.touch();
        if kind.from_cache || file.access == AccessPath::Fuse {
            note_paged::<C>(inode, &file.object);
        }
        if !kind.from_cache {
            self.strip_privileges(&kind.caller, inode, Some(!kind.kill_set_id))?;
        }
        let bytes = self.with_room(|| self.cache.write(&file.object, offset, data))?;
        // For writes through its page cache, the kernel sends the fsync of O_SYNC itself.
        if file.access == AccessPath::FuseDirect && kind.flags & libc::O_DSYNC as u32 != 0 {
            let data_only = kind.flags & libc::O_SYNC as u32 != libc::O_SYNC as u32;
            self.with_room(|| self.cache.fsync(&file.object, data_only, &file.cursor))?;
        }
        let range = offset..offset + bytes as u64;
        let past_it = (file.access == AccessPath::FuseDirect).then_some(file.since);
        // The kernel locks pages against readers while it writes them back from its page cache.
        let stale = !kind.from_cache
            && (self.recent_reads.is_blind(came)
                || inode.emptied.of_late(came)
                    && self.recent_reads.overtook(
                        inode.nodeid,
                        range,
                        kind.caller.unique & !RESENT,
                        came,
                        past_it,
                    ));
        Ok(Written { bytes, stale })
    }

    /// Drops this range from the kernel's page cache. Waits for reads and writeback of the range: threads
    /// that these may need must not call this.
    pub(crate) fn invalidate_content(&self, nodeid: u64, range: Range<u64>) {
        let (Some(kernel), Ok(inode)) = (self.kernel.get(), self.inode(nodeid)) else { return };
        if !range.is_empty() {
            inode.emptied.note();
            kernel.invalidate_content(nodeid, range);
        }
    }

    /// The kernel writes back a mapping after its handle is gone.
    fn write_unopened(&self, nodeid: u64, offset: u64, data: &[u8]) -> Result<Written> {
        let inode = self.inode(nodeid)?;
        inode.touch();
        let object = self.with_room(|| self.object_of(&inode, &mut inode.life.lock()))?;
        let bytes = self.with_room(|| self.cache.write(&object, offset, data))?;
        Ok(Written { bytes, stale: false })
    }

    /// A descriptor is closed. Writes back, so that programs beside the mount see the content. Then closes at
    /// the source, which may report an error only then.
    pub(crate) fn flush(&self, caller: &Caller, fh: u64) -> Result<()> {
        let handle = self.handles.get(fh)?;
        let file = handle.file()?;
        handle.inode.opened.forget();
        let wanted = file.object.dirty_pages() > 0 || file.object.has_unreported_close();
        if !(wanted && self.config.flush_on_close && file.writes()) || self.cache.is_own_thread(caller.tid) {
            return Ok(());
        }
        self.with_room(|| self.cache.flush(&file.object, 0..u64::MAX))?;
        Ok(file.object.take_close_error()?)
    }

    /// The last descriptor and mapping of a handle (file or directory) are gone.
    pub fn release(&self, fh: u64) {
        if let Some(handle) = self.handles.remove(fh) {
            self.count_out(&handle);
            if handle.inode.nlookup() == 0 {
                self.retire_if_unused(&handle.inode);
            }
        }
    }

    fn count_out(&self, handle: &Handle<C>) {
        let inode = &handle.inode;
        let mut life = inode.life.lock();
        count_release(handle, &mut life);
        if inode.backing() != 0 {
            if handle.file().is_ok_and(OpenFile::writes) {
                inode.written_outside.note();
            }
            self.reopen_preload_path_soon(inode, &mut life);
            self.release_backing(inode, &life);
        }
    }

    /// Makes a file's content stable, and its attributes unless `data_only`.
    pub(crate) fn fsync(&self, fh: u64, data_only: bool) -> Result<()> {
        let handle = self.handles.get(fh)?;
        let file = handle.file()?;
        self.with_room(|| self.cache.fsync(&file.object, data_only, &file.cursor))
    }

    /// Allocates, punches or zeroes a range, as `mode` states. The kernel lets no other operation through.
    pub(crate) fn fallocate(&self, caller: &Caller, fh: u64, mode: u32, offset: u64, len: u64) -> Result<()> {
        let handle = self.handles.get(fh)?;
        let (inode, file) = (&handle.inode, handle.file()?);
        inode.touch();
        self.strip_privileges(caller, inode, None)?;
        let mode = FallocateFlags::from_bits_retain(mode);
        let end = offset.checked_add(len).ok_or(Errno::FBIG)?;
        self.with_room(|| {
            self.cache.with_source(&file.object, offset..end, || {
                Ok(rustix::fs::fallocate(&*file.object.source().writer()?, mode, offset, len)?)
            })
        })
    }

    /// The next data or hole from `offset` on.
    pub(crate) fn lseek(&self, fh: u64, offset: u64, whence: u32) -> Result<u64> {
        let handle = self.handles.get(fh)?;
        let file = handle.file()?;
        let seek = match whence as i32 {
            libc::SEEK_DATA => SeekFrom::Data(offset),
            libc::SEEK_HOLE => SeekFrom::Hole(offset),
            _ => return Err(Errno::INVAL.into()),
        };
        self.with_room(|| self.cache.flush(&file.object, 0..u64::MAX))?;
        let reader = self.with_room(|| file.object.source().reader())?;
        Ok(rustix::fs::seek(&*reader, seek)?)
    }

    /// Copies within the source file system; short is allowed, and usual for long ranges.
    pub(crate) fn copy_file_range(
        &self,
        caller: &Caller,
        from: (u64, u64),
        to: (u64, u64),
        len: u64,
    ) -> Result<u64> {
        let (source, target) = (self.handles.get(from.0)?, self.handles.get(to.0)?);
        let len = len.min(COPY_BYTES_MAX);
        let end = |offset: u64| offset.checked_add(len).ok_or(Errno::OVERFLOW);
        let (from_file, from_end) = (source.file()?, end(from.1)?);
        self.with_room(|| self.cache.flush(&from_file.object, from.1..from_end))?;
        target.inode.touch();
        self.strip_privileges(caller, &target.inode, None)?;
        let (file, range) = (target.file()?, to.1..end(to.1)?);
        self.with_room(|| {
            let copy = || copy(&source, from.1, &target, to.1, len);
            self.cache.with_source(&file.object, range.clone(), copy)
        })
    }

    /// Statistics of the source file system.
    pub(crate) fn statfs(&self) -> Result<StatFs> {
        Ok(rustix::fs::fstatfs(self.inode(ROOT)?.fd())?)
    }
}

/// Access path of a handle. `bypasses`: a client, a burst or made-up content. With passthrough only a
/// client's open for reading comes to this daemon. A descriptor for writing could be mapped, and the mapping
/// changes the source unseen.
fn access_path(flags: u32, bypasses: bool, backed: bool) -> AccessPath {
    let is = |flag: i32| flags & flag as u32 != 0;
    let direct = match backed {
        true => bypasses && !is(libc::O_DIRECT) && !writes(flags),
        false => bypasses || is(libc::O_DIRECT),
    };
    if direct { AccessPath::FuseDirect } else { AccessPath::Fuse }
}

/// The answer to an open. Not `fresh`: the kernel drops its pages of the file.
fn opened<C: PageCache>(inode: &Inode<C::Object>, fh: u64, file: &OpenFile<C>, fresh: bool) -> Opened {
    if !fresh {
        inode.emptied.note();
    }
    let (direct, backing) = (file.access == AccessPath::FuseDirect, inode.backing());
    let (keep_cache, no_flush) = (fresh && !direct && backing == 0, !file.writes() || backing != 0);
    Opened { fh, direct, keep_cache, no_flush, backing }
}

/// Whether a read updates the access time by the kernel's usual rule (relatime).
fn atime_is_old(stat: &Stat) -> bool {
    let day_ago = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse).tv_sec - 24 * 3600;
    let Attr { atime, mtime, ctime, .. } = Attr::from_stat(0, stat);
    atime <= mtime || atime <= ctime || atime.sec <= day_ago
}

/// Makes the source file system update the access time as its mount options state. The cache reads with
/// O_NOATIME, and setting the time would change ctime. A mapping made and dropped is an access without I/O.
fn move_atime<O>(inode: &Inode<O>) {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let Ok(source) = open_again(inode) else { return };
    // SAFETY: a new mapping that is not accessed, unmapped at once.
    unsafe {
        if let Ok(page) = mmap(std::ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::PRIVATE, &source, 0) {
            let _ = munmap(page, 4096);
        }
    }
}

/// A separate descriptor of the source file, for reading.
fn open_again<O>(inode: &Inode<O>) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(inode.path().as_c_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

fn copy<C: PageCache>(
    from: &Handle<C>,
    mut from_offset: u64,
    to: &Handle<C>,
    mut to_offset: u64,
    len: u64,
) -> io::Result<u64> {
    let source = open_again(&from.inode).map_err(|errno| match errno {
        // The mode changed after the program's open. The kernel then copies by reading and writing.
        Errno::ACCESS => Errno::OPNOTSUPP,
        errno => errno,
    })?;
    let target = to.file()?.object.source().buffered()?;
    let len = usize::try_from(len).expect("limited above");
    Ok(rustix::fs::copy_file_range(source, Some(&mut from_offset), &*target, Some(&mut to_offset), len)?
        as u64)
}
