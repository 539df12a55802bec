//! Handles of a mount: its open files and directories.

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use terrace_sync::{Mutex, RwLock};

use super::durable::{Durable, FREE, Slot, USED};
use super::stream::OpenDir;
use crate::error::{Error, Result};
use crate::inode::{Inode, InodeTable, Life};
use crate::{CachedFile, PageCache, coherence, made_up};
use terrace_engine::AccessPath;
use terrace_engine::table::trim;

const SHARDS: usize = 16;

#[derive(Debug)]
pub(crate) struct OpenFile<C: PageCache> {
    pub(crate) object: C::Object,
    pub(crate) cursor: C::Cursor,
    pub(crate) flags: u32,
    pub(crate) access: AccessPath,
    /// Time of the open, as [`coherence::now`]. For a killed daemon's files: time of the recovery.
    pub(crate) since: u64,
    /// The source's size at the open, if that size may be made up (`made_up.rs`).
    pub(crate) made_up: Option<i64>,
    /// Whether the first read updates the access time.
    pub(crate) atime_due: AtomicBool,
}

impl<C: PageCache> OpenFile<C> {
    pub(crate) fn writes(&self) -> bool {
        writes(self.flags)
    }
    /// Whether the opener may map the file without announcing it. Clients of the preload path announce
    /// mappings, and a file open for writing only cannot be mapped. An open with O_DIRECT counts as
    /// unannounced, since programs outside the preload path do that as well.
    pub(crate) fn may_map_unseen(&self) -> bool {
        self.access == AccessPath::Fuse || self.flags & libc::O_DIRECT as u32 != 0
    }
}

/// Do these open flags allow writing?
pub(crate) fn writes(flags: u32) -> bool {
    flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32
}

/// Whether these open flags allow writing only. Such a file cannot be mapped.
pub(crate) fn writes_only(flags: u32) -> bool {
    flags & libc::O_ACCMODE as u32 == libc::O_WRONLY as u32
}

#[derive(Debug)]
pub(crate) enum What<C: PageCache> {
    File(OpenFile<C>),
    Dir(OpenDir),
}

#[derive(Debug)]
pub(crate) struct Handle<C: PageCache> {
    pub(crate) inode: Arc<Inode<C::Object>>,
    pub(crate) what: What<C>,
    /// Keeps the record until the last reference to this handle is dropped.
    slot: Slot,
    unique: u64,
}

impl<C: PageCache> Handle<C> {
    pub(crate) fn file(&self) -> Result<&OpenFile<C>> {
        match &self.what {
            What::File(file) => Ok(file),
            What::Dir(_) => Err(Error::WrongKind),
        }
    }

    pub(crate) fn dir(&self) -> Result<&OpenDir> {
        match &self.what {
            What::Dir(dir) => Ok(dir),
            What::File(_) => Err(Error::WrongKind),
        }
    }
}

/// All open handles. `insert` keeps the counts in the inode's `Life`; at a release the caller does.
#[derive(Debug)]
pub(crate) struct HandleTable<C: PageCache> {
    shards: [RwLock<HashMap<u64, Arc<Handle<C>>>>; SHARDS],
    /// Handles of an earlier daemon by the request that opened them, for resent opens.
    recovered: Mutex<HashMap<u64, u64>>,
    durable: Arc<Durable>,
    count: AtomicUsize,
}

impl<C: PageCache> HandleTable<C> {
    pub(crate) fn new(durable: Arc<Durable>) -> Self {
        Self {
            shards: std::array::from_fn(|_| RwLock::new(HashMap::new())),
            recovered: Mutex::new(HashMap::new()),
            durable,
            count: AtomicUsize::new(0),
        }
    }

    /// The handles of an earlier daemon. Their descriptors stay open on an error, too.
    pub(crate) fn recover(durable: Arc<Durable>, inodes: &InodeTable<C::Object>, cache: &C) -> Result<Self> {
        let table = ManuallyDrop::new(Self::new(durable));
        let records = table.durable.handles;
        let slots =
            table.durable.handle_slots.recover(|slot| records[slot].state.load(Ordering::Acquire) == USED);
        for slot in slots {
            table.adopt(slot, inodes, cache)?;
        }
        Ok(ManuallyDrop::into_inner(table))
    }

    fn adopt(&self, slot: Slot, inodes: &InodeTable<C::Object>, cache: &C) -> Result<()> {
        let record = &self.durable.handles[slot.index()];
        let inode = inodes.get(record.nodeid.load(Ordering::Relaxed))?;
        let raw = record.fd.load(Ordering::Relaxed);
        let what = if raw >= 0 {
            // SAFETY: a used record owns its descriptor, as in the inode table.
            What::Dir(OpenDir::new(unsafe { OwnedFd::from_raw_fd(raw) }))
        } else {
            let life = inode.life.lock();
            let object = life.object.clone().ok_or(Error::UnknownNode(inode.nodeid))?;
            let flags = record.flags.load(Ordering::Relaxed);
            let access = access_of(record.access.load(Ordering::Relaxed));
            let may_be = access == AccessPath::FuseDirect && !writes(flags);
            let stat = if may_be { inode.stat().ok() } else { None };
            What::File(OpenFile {
                cursor: cache.error_cursor(&object),
                object,
                flags,
                access,
                made_up: stat.and_then(|stat| made_up::size(inode.fd(), &stat)),
                since: coherence::now(),
                atime_due: AtomicBool::new(false),
            })
        };
        count_open(&inode, &mut inode.life.lock(), &what);
        let unique = record.unique.load(Ordering::Relaxed);
        let fh = file_handle(&slot, record.generation.load(Ordering::Relaxed));
        self.recovered.lock().insert(unique, fh);
        self.shard(fh).write().insert(fh, Arc::new(Handle { inode, what, slot, unique }));
        self.count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn shard(&self, fh: u64) -> &RwLock<HashMap<u64, Arc<Handle<C>>>> {
        &self.shards[fh as usize % SHARDS]
    }

    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Number of files open for writing.
    pub(crate) fn writers(&self) -> usize {
        let writes = |handle: &Arc<Handle<C>>| handle.file().is_ok_and(OpenFile::writes);
        self.shards.iter().map(|shard| shard.read().values().filter(|handle| writes(handle)).count()).sum()
    }

    /// Fails, as [`HandleTable::insert`] would, if the table is full now.
    pub(crate) fn expect_room(&self) -> Result<()> {
        if self.len() < self.max() { Ok(()) } else { Err(Error::TableFull("handle")) }
    }

    pub(crate) fn max(&self) -> usize {
        self.durable.handles.len()
    }

    /// Bytes on the heap, computed as for the inode table.
    pub(crate) fn bytes(&self) -> usize {
        self.len() * (size_of::<Handle<C>>() + 16 + 32)
    }

    pub(crate) fn get(&self, fh: u64) -> Result<Arc<Handle<C>>> {
        self.shard(fh).read().get(&fh).cloned().ok_or(Error::UnknownHandle(fh))
    }

    /// The handle that the resent request `unique` opened before the restart.
    pub(crate) fn reopened(&self, unique: u64) -> Option<(u64, Arc<Handle<C>>)> {
        let fh = self.recovered.lock().remove(&unique)?;
        Some((fh, self.get(fh).ok()?))
    }

    /// Enters a new handle and counts it at its inode. The caller holds the inode's `life`. It is durable
    /// when this returns. The next daemon finds the inode by its number, so an inode outside the table must
    /// not get handles.
    pub(crate) fn insert(
        &self,
        inode: &Arc<Inode<C::Object>>,
        life: &mut Life<C::Object>,
        what: What<C>,
        unique: u64,
    ) -> Result<u64> {
        if life.retired {
            return Err(Error::UnknownNode(inode.nodeid));
        }
        let slot = self.durable.handle_slots.take()?;
        count_open(inode, life, &what);
        let record = &self.durable.handles[slot.index()];
        assert_eq!(record.state.load(Ordering::Acquire), FREE, "{slot:?} is taken");
        let generation = self.durable.header.handle_generation.fetch_add(1, Ordering::AcqRel);
        let (fd, flags, access) = match &what {
            What::File(file) => (-1, file.flags, file.access),
            What::Dir(dir) => (dir.fd().as_raw_fd(), 0, AccessPath::Fuse),
        };
        record.fd.store(fd, Ordering::Relaxed);
        record.nodeid.store(inode.nodeid, Ordering::Relaxed);
        record.unique.store(unique, Ordering::Relaxed);
        record.generation.store(generation, Ordering::Relaxed);
        record.flags.store(flags, Ordering::Relaxed);
        record.access.store(access_code(access), Ordering::Relaxed);
        record.state.store(USED, Ordering::Release);
        let fh = file_handle(&slot, generation);
        let inode = inode.clone();
        self.shard(fh).write().insert(fh, Arc::new(Handle { inode, what, slot, unique }));
        self.count.fetch_add(1, Ordering::Relaxed);
        Ok(fh)
    }

    /// Takes a handle out. `None`: the first try of a resent request has released it.
    pub(crate) fn remove(&self, fh: u64) -> Option<Arc<Handle<C>>> {
        let handle = {
            let mut shard = self.shard(fh).write();
            let handle = shard.remove(&fh)?;
            trim(&mut shard);
            handle
        };
        self.durable.handles[handle.slot.index()].state.store(FREE, Ordering::Release);
        self.count.fetch_sub(1, Ordering::Relaxed);
        let mut recovered = self.recovered.lock();
        if !recovered.is_empty() {
            recovered.remove(&handle.unique);
        }
        Some(handle)
    }
}

/// The record's code of an access path.
fn access_code(access: AccessPath) -> u32 {
    u32::from(access == AccessPath::FuseDirect)
}

fn access_of(code: u32) -> AccessPath {
    if code == access_code(AccessPath::FuseDirect) { AccessPath::FuseDirect } else { AccessPath::Fuse }
}

/// Handles are numbered from 1: the kernel sends 0 where it has no handle.
fn file_handle(slot: &Slot, generation: u32) -> u64 {
    (u64::from(generation) << 32) | (slot.index() as u64 + 1)
}

/// Adds a handle to its inode's counts; the caller holds `life`. Behind a writer, the kernel's page cache may
/// have dirty pages of shared mappings that the daemon does not see. The file is then slow: readers of the
/// preload path go through the mount.
fn count_open<C: PageCache>(inode: &Inode<C::Object>, life: &mut Life<C::Object>, what: &What<C>) {
    life.handles += 1;
    let What::File(file) = what else { return };
    if file.access == AccessPath::FuseDirect {
        inode.emptied.begin_bypass();
    }
    if file.writes() {
        life.writers += 1;
        if file.may_map_unseen() {
            life.unseen_writers += 1;
            file.object.set_slow(true);
        }
        inode.announcing_writers.store(life.writers - life.unseen_writers, Ordering::Release);
    }
}

/// Subtracts a handle from its inode's counts. The file is slow while it has writers with unannounced
/// mappings. An announced mapping makes it slow until its last writer closes, since any writer may have the
/// mapping. (A mapping keeps its handle open.)
///
/// Files with passthrough stay slow until [`crate::Namespace::reopen_preload_path`].
pub(crate) fn count_release<C: PageCache>(handle: &Handle<C>, life: &mut Life<C::Object>) {
    let inode = &handle.inode;
    let backed = inode.backing() != 0;
    life.handles -= 1;
    let What::File(file) = &handle.what else { return };
    if file.access == AccessPath::FuseDirect {
        inode.emptied.end_bypass();
    }
    if file.writes() {
        life.writers -= 1;
        life.unseen_writers -= u32::from(file.may_map_unseen());
        inode.announcing_writers.store(life.writers - life.unseen_writers, Ordering::Release);
        if life.unseen_writers == 0 && !backed {
            file.object.set_slow(false);
        }
        if life.writers == 0 {
            if !backed {
                file.object.set_mapped(false);
            }
            inode.close_writer(life);
        }
    }
    if life.handles == 0 {
        file.object.source().close_reader();
    }
}

/// Pages of the file enter the kernel's page cache, or changed there. A mapping through a client's
/// descriptor, perhaps in another process, finds them there and changes them unseen. The mapping finds no
/// other pages, since the kernel empties its page cache when the mapping is made. So from the
/// first such page on, while a client has the file open for writing, its preload readers use the mount.
pub(crate) fn note_paged<C: PageCache>(inode: &Inode<C::Object>, object: &C::Object) {
    if inode.announcing_writers.load(Ordering::Acquire) > 0 {
        let life = inode.life.lock();
        if life.writers > life.unseen_writers {
            object.set_mapped(true);
        }
    }
}
