//! The inodes that the kernel knows, each held by one O_PATH descriptor.
//!
//! The descriptor pins the source inode, so that its number cannot be given to another file while the kernel may
//! still use it, and keeps an unlinked file reachable. An inode lives while the kernel holds references (`nlookup`,
//! in the durable record) or a handle is open; whichever ends last retires it, or lets it rest while something of it
//! is cached.
//!
//! | state | in the table | record | who holds the slot | what ends it |
//! |---|---|---|---|---|
//! | free | - | FREE | the list of free slots | `insert`, under the shard's lock: fields first, USED last |
//! | known | yes | USED, `nlookup` > 0 | the `Inode` | `release` of the last reference |
//! | open | yes | USED | the `Inode` | release of the last handle, under `life` |
//! | forgotten, resting | yes | USED, `nlookup` = 0 | the `Inode` | a lookup that counts (known again), or `retire`, under `life` and the shard's lock |
//! | retired | no (`Life::retired`) | FREE | the `Inode` | the drop of its last reference: descriptor closed, slot free |
//!
//! So an `Arc<Inode>` that outlives its place in the table writes to a record that nobody reads and nobody else is given, a slot is freed where its
//! owner is dropped and nowhere else, and no record names a closed descriptor. A retired inode is neither opened nor given an
//! object (`Life::retired` is looked at under `life`, where those are made). A daemon that dies between `retire` and the drop leaves an open
//! descriptor that no record names: the next one closes it with the dead one's other orphan descriptors.
//!
//! Lock order: foreign map, shard / an inode's `life`, then a shard. A shard is never held over a system call that may
//! do I/O; `life` is, but then only operations that open or retire the *same* inode wait.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use rustix::fs::{AtFlags, Stat};
use terrace_sync::Mutex;

use super::durable::{Durable, FREE, InodeRecord, Slot, USED};
use super::path::ProcPath;
use crate::CachedFile;
use crate::attr::{Attr, Kind};
use crate::coherence::{Emptied, Moment};
use crate::error::{Error, Result};
use terrace_engine::source::SourceFile;
use terrace_engine::table::trim;

/// The node id of the root, and the inode number it reports.
pub const ROOT: u64 = 1;

/// Bytes on the heap of a shared descriptor.
const DESCRIPTOR_BYTES: usize = 32;

/// First node id for files on other devices than the source root's.
const FOREIGN_MIN: u64 = 1 << 62;

const SHARDS: usize = 64;

/// `InodeRecord::seen` of an inode that this mount has changed since the last look, or that nobody has looked at.
const UNSEEN: u64 = 0;
/// The same while somebody looks, and if nothing came of it: never what the next look finds.
const LOOKING: u64 = 1;

/// Size and times of the source's file, digested (multiply and rotate): another number than the two above.
pub(crate) fn digest(stat: &Stat) -> u64 {
    let Attr { size, mtime, ctime, .. } = Attr::from_stat(0, stat);
    let words = [mtime, ctime].map(|t| [t.sec.cast_unsigned(), u64::from(t.nsec)]);
    let mix = |sum: u64, word: &u64| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    words.as_flattened().iter().fold(mix(1, &size), mix).max(LOOKING + 1)
}

/// Result of a look at the source.
pub(crate) struct Look {
    /// Another than at the last look, and not by this mount.
    pub(crate) changed: bool,
    pub(crate) stat: Stat,
    /// Size and times, digested.
    pub(crate) digest: u64,
}

/// State that opens and closes change.
#[derive(Debug)]
pub(crate) struct Life<O> {
    /// The inode's object in the page cache, from its first use on.
    pub(crate) object: Option<O>,
    /// Open handles.
    pub(crate) handles: u32,
    /// Of these, opened for writing.
    pub(crate) writers: u32,
    /// Of these, handles whose holder may map the file without our hearing of it.
    pub(crate) unseen_writers: u32,
    /// What is known of writes that this daemon does not see.
    pub(crate) outside: Outside,
    /// No longer in the table, where another inode may have the number by now.
    pub(crate) retired: bool,
}

/// Since a program opened the file that writes it past this daemon.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outside {
    /// Digest of the source before, if any later change gives another one.
    pub(crate) before: Option<u64>,
    /// One of them may have mapped it, and a mapping outlives its handle.
    pub(crate) may_map: bool,
}

/// One inode.
#[derive(Debug)]
pub(crate) struct Inode<O> {
    pub(crate) nodeid: u64,
    pub(crate) kind: Kind,
    /// The object of the page cache has it, too.
    fd: Arc<OwnedFd>,
    record: &'static InodeRecord,
    /// The record is this inode's until here.
    _slot: Slot,
    pub(crate) life: Mutex<Life<O>>,
    /// Writers that are not among `Life::unseen_writers`. Changed under `life`.
    pub(crate) announcing_writers: AtomicU32,
    /// Whether the kernel may have dropped what it had of the file.
    pub(crate) emptied: Emptied,
    /// When a descriptor was closed through which the kernel itself wrote the file.
    pub(crate) written_outside: Moment,
    /// Known to have neither set-id bits nor file capabilities: a write has none to take away.
    pub(crate) unprivileged: AtomicBool,
    /// Looked up or opened since the shrinker came by.
    pub(crate) used: AtomicBool,
}

impl std::fmt::Debug for InodeRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "InodeRecord({})", self.nodeid.load(Ordering::Relaxed))
    }
}

impl<O: CachedFile> Inode<O> {
    /// Closes what writes the source, if nobody has the file open for writing any more.
    pub(crate) fn close_writer(&self, life: &Life<O>) {
        if let Some(object) = life.object.as_ref().filter(|_| life.writers == 0) {
            self.close_writer_of(object);
        }
    }

    /// Closes the source's data descriptors, whoever has the file open: they are opened again where they are needed. How many?
    pub(crate) fn close_data(&self, life: &Life<O>) -> usize {
        let Some(object) = &life.object else { return 0 };
        let before = object.source().data_held();
        object.source().close_reader();
        self.close_writer_of(object);
        before.saturating_sub(object.source().data_held())
    }

    fn close_writer_of(&self, object: &O) {
        let closing = object.close_writer();
        // No record names a closed descriptor; and one that has to stay open is named at every moment, for the next daemon may need it.
        self.note_writer(object.source());
        drop(closing);
    }
}

impl<O> Inode<O> {
    fn new(slot: Slot, record: &'static InodeRecord, fd: OwnedFd) -> Self {
        Self {
            nodeid: record.nodeid.load(Ordering::Relaxed),
            kind: Kind::from_mode(record.mode.load(Ordering::Relaxed)),
            fd: Arc::new(fd),
            record,
            _slot: slot,
            life: Mutex::new(Life {
                object: None,
                handles: 0,
                writers: 0,
                unseen_writers: 0,
                outside: Outside::default(),
                retired: false,
            }),
            announcing_writers: AtomicU32::new(0),
            emptied: Emptied::default(),
            written_outside: Moment::default(),
            unprivileged: AtomicBool::new(false),
            used: AtomicBool::new(true),
        }
    }

    /// The O_PATH descriptor.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The O_PATH descriptor's number.
    #[cfg(test)]
    pub(crate) fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// The same, for whoever may outlive the inode.
    pub(crate) fn shared_fd(&self) -> Arc<OwnedFd> {
        self.fd.clone()
    }

    /// A path that names this very inode, whatever happened to its names.
    pub(crate) fn path(&self) -> ProcPath {
        ProcPath::new(self.fd())
    }

    /// The source's attributes.
    pub(crate) fn stat(&self) -> Result<Stat> {
        Ok(rustix::fs::statat(&self.fd, "", AtFlags::EMPTY_PATH)?)
    }

    /// Is `fd` open on this very inode?
    pub(crate) fn is_open_as(&self, fd: BorrowedFd<'_>) -> Result<bool> {
        let (ours, theirs) = (self.stat()?, rustix::fs::fstat(fd)?);
        Ok((ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino))
    }

    /// The O_PATH descriptor, if this is a directory.
    pub(crate) fn directory(&self) -> Result<BorrowedFd<'_>> {
        match self.kind {
            Kind::Directory => Ok(self.fd()),
            _ => Err(Error::Source(rustix::io::Errno::NOTDIR)),
        }
    }

    /// References the kernel holds.
    pub(crate) fn nlookup(&self) -> u64 {
        self.record.nlookup.load(Ordering::Acquire)
    }

    /// Neither the kernel nor a handle refers to it. The caller holds `life`.
    pub(crate) fn is_forgotten(&self, life: &Life<O>) -> bool {
        !life.retired && life.handles == 0 && self.nlookup() == 0 && self.nodeid != ROOT
    }

    /// Notes in the durable table whether the page cache has an object of this inode.
    pub(crate) fn note_object(&self, exists: bool) {
        self.record.has_object.store(u32::from(exists), Ordering::Release);
    }

    /// Did an earlier daemon have an object of this inode?
    pub(crate) fn had_object(&self) -> bool {
        self.record.has_object.load(Ordering::Acquire) != 0
    }

    /// Notes in the durable table which descriptor writes the source.
    pub(crate) fn note_writer(&self, source: &SourceFile) {
        let writer = source.open_writer().map_or(-1, |writer| writer.raw());
        self.record.writer.store(writer, Ordering::Release);
    }

    /// The number of the descriptor that writes the source, -1 if none is noted.
    pub(crate) fn noted_writer(&self) -> RawFd {
        self.record.writer.load(Ordering::Acquire)
    }

    /// Before the descriptor that writes the source may be closed: no record ever names a closed one.
    pub(crate) fn forget_writer(&self) {
        self.record.writer.store(-1, Ordering::Release);
    }

    /// The number of the file that the kernel reads and writes itself, 0 if it asks this daemon.
    pub(crate) fn backing(&self) -> u32 {
        self.record.backing.load(Ordering::Acquire)
    }

    /// Notes that number in the durable table. The caller holds `life`.
    pub(crate) fn note_backing(&self, backing: u32) {
        self.record.backing.store(backing, Ordering::Release);
    }

    /// Says that this mount is about to change the inode.
    pub(crate) fn touch(&self) {
        self.record.seen.store(UNSEEN, Ordering::Release);
    }

    /// Looks at the source, and notes in the durable table what it says, unless it has changed. The caller holds `life`.
    pub(crate) fn look(&self, object: &O) -> Result<Look>
    where
        O: CachedFile,
    {
        // Taken before the look: a change through the mount clears it before it acts, and then it stays so.
        let before = self.record.seen.swap(LOOKING, Ordering::AcqRel);
        let stat = self.stat();
        let digest = stat.as_ref().map_or(before, digest);
        let changed = match before {
            UNSEEN => stat.as_ref().is_ok_and(|stat| object.is_changed_behind(stat)),
            before => before != digest,
        };
        if !changed {
            self.trust(digest);
        }
        Ok(Look { changed, stat: stat?, digest })
    }

    /// Nothing that is cached is older than the look that found this digest. After a change this is to be said when all of it is gone: until then
    /// whoever looks, another daemon perhaps, finds the change again.
    pub(crate) fn trust(&self, digest: u64) {
        let _ = self.record.seen.compare_exchange(LOOKING, digest, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Is this digest the one of the last look?
    pub(crate) fn is_trusted(&self, digest: u64) -> bool {
        self.record.seen.load(Ordering::Acquire) == digest
    }

    /// Notes the digest of a directory whose older listings are gone.
    pub(crate) fn note_seen(&self, digest: u64) {
        self.record.seen.store(digest, Ordering::Release);
    }

    /// The cache could not be brought to what was seen: the next look finds a change again.
    pub(crate) fn doubt(&self) {
        self.record.seen.store(LOOKING, Ordering::Release);
    }

    /// Has nobody looked since this mount changed it last?
    pub(crate) fn is_unseen(&self) -> bool {
        self.record.seen.load(Ordering::Acquire) == UNSEEN
    }
}

/// All inodes that the kernel knows, and those that rest.
#[derive(Debug)]
pub(crate) struct InodeTable<O> {
    shards: Box<[Mutex<Shard<O>>]>,
    /// Node ids of files on other devices, by (device, inode).
    foreign: Mutex<HashMap<(u64, u64), u64>>,
    durable: Arc<Durable>,
    root_dev: u64,
    root_ino: u64,
    count: AtomicUsize,
}

type Shard<O> = HashMap<u64, Arc<Inode<O>>>;

impl<O> InodeTable<O> {
    /// A table with nothing but the root in it.
    pub(crate) fn create(durable: Arc<Durable>, root: OwnedFd) -> Result<Self> {
        let stat = rustix::fs::statat(&root, "", AtFlags::EMPTY_PATH)?;
        let table = Self::empty(durable, &stat);
        let slot = table.durable.inode_slots.take()?;
        assert_eq!(slot.index(), 0, "the root is the first inode of a fresh table");
        table.publish(slot, ROOT, &stat, root);
        Ok(table)
    }

    /// The table of an earlier daemon; its descriptors are still open in the shared descriptor table.
    pub(crate) fn recover(durable: Arc<Durable>) -> Result<Self> {
        let records = durable.inodes;
        let slots = durable.inode_slots.recover(|slot| records[slot].state.load(Ordering::Acquire) == USED);
        let root = slots.first().filter(|slot| slot.index() == 0).ok_or(Error::UnknownNode(ROOT))?;
        let root_fd = records[root.index()].fd.load(Ordering::Relaxed);
        // SAFETY: the record of the root is never freed, so its descriptor is open.
        let stat = rustix::fs::statat(unsafe { BorrowedFd::borrow_raw(root_fd) }, "", AtFlags::EMPTY_PATH)?;
        let table = Self::empty(durable, &stat);
        for slot in slots {
            let record = &records[slot.index()];
            // SAFETY: a used record owns its descriptor: it was published after the descriptor was opened, and
            // is unpublished before it is closed.
            let fd = unsafe { OwnedFd::from_raw_fd(record.fd.load(Ordering::Relaxed)) };
            table.adopt(Inode::new(slot, record, fd));
        }
        Ok(table)
    }

    fn empty(durable: Arc<Durable>, root: &Stat) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::new(HashMap::new())).collect(),
            foreign: Mutex::new(HashMap::new()),
            durable,
            root_dev: root.st_dev,
            root_ino: root.st_ino,
            count: AtomicUsize::new(0),
        }
    }

    fn adopt(&self, inode: Inode<O>) -> Arc<Inode<O>> {
        let inode = Arc::new(inode);
        if inode.nodeid >= FOREIGN_MIN {
            let record = inode.record;
            let key = (record.dev.load(Ordering::Relaxed), record.ino.load(Ordering::Relaxed));
            self.foreign.lock().insert(key, inode.nodeid);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.shard(inode.nodeid).lock().insert(inode.nodeid, inode.clone());
        inode
    }

    fn shard(&self, nodeid: u64) -> &Mutex<Shard<O>> {
        let mixed = nodeid.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(mixed >> 58) as usize % SHARDS]
    }

    /// Inodes in the table.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Bytes on the heap: an inode, its reference counts, and its place in a hash table that is a little over half full.
    pub(crate) fn bytes(&self) -> usize {
        self.len() * (size_of::<Inode<O>>() + 16 + 32 + DESCRIPTOR_BYTES)
    }

    /// Room in the table.
    pub(crate) fn max(&self) -> usize {
        self.durable.inodes.len()
    }

    /// Parts that the table is divided in.
    pub(crate) fn shards(&self) -> usize {
        SHARDS
    }

    /// Calls `visit` for the inodes of one part. They must not be locked by waiting.
    pub(crate) fn visit(&self, part: usize, visit: impl FnMut(&Arc<Inode<O>>)) {
        self.shards[part % SHARDS].lock().values().for_each(visit);
    }

    /// All inodes at this moment.
    pub(crate) fn all(&self) -> Vec<Arc<Inode<O>>> {
        self.shards.iter().flat_map(|shard| shard.lock().values().cloned().collect::<Vec<_>>()).collect()
    }

    /// The inode `nodeid`.
    pub(crate) fn get(&self, nodeid: u64) -> Result<Arc<Inode<O>>> {
        self.shard(nodeid).lock().get(&nodeid).cloned().ok_or(Error::UnknownNode(nodeid))
    }

    /// The number under which the mount reports source inode `ino` of a directory listing.
    pub(crate) fn reported(&self, ino: u64) -> u64 {
        if ino == self.root_ino { ROOT } else { ino }
    }

    /// The node id of a source inode, if it needs no table to be known.
    fn native(&self, stat: &Stat) -> Option<u64> {
        match (stat.st_dev == self.root_dev, stat.st_ino) {
            (true, ino) if ino == self.root_ino => Some(ROOT),
            // Node id 1 is taken; other numbers this high do not exist on real file systems.
            (true, ino) if ino != ROOT && ino < FOREIGN_MIN => Some(ino),
            _ => None,
        }
    }

    /// The known inode with the identity that `stat` says, its lookup count raised where `count` asks for it.
    pub(crate) fn find(&self, stat: &Stat, count: impl FnOnce(u64) -> bool) -> Option<Arc<Inode<O>>> {
        let nodeid = match self.native(stat) {
            Some(nodeid) => nodeid,
            None => *self.foreign.lock().get(&(stat.st_dev, stat.st_ino))?,
        };
        let shard = self.shard(nodeid).lock();
        let inode = shard.get(&nodeid)?;
        if count(nodeid) {
            inode.record.nlookup.fetch_add(1, Ordering::AcqRel);
            inode.used.store(true, Ordering::Relaxed);
        }
        Some(inode.clone())
    }

    /// Takes the source inode behind `fd` into the table (or finds it there) and raises its lookup count.
    pub(crate) fn insert(
        &self,
        stat: &Stat,
        fd: OwnedFd,
        count: impl Fn(u64) -> bool,
    ) -> Result<Arc<Inode<O>>> {
        if let Some(nodeid) = self.native(stat) {
            return self.insert_as(nodeid, stat, fd, count);
        }
        let mut foreign = self.foreign.lock();
        let key = (stat.st_dev, stat.st_ino);
        let nodeid = *foreign
            .entry(key)
            .or_insert_with(|| FOREIGN_MIN + self.durable.header.foreign_next.fetch_add(1, Ordering::AcqRel));
        self.insert_as(nodeid, stat, fd, count).inspect_err(|_| {
            foreign.remove(&key);
        })
    }

    fn insert_as(
        &self,
        nodeid: u64,
        stat: &Stat,
        fd: OwnedFd,
        count: impl Fn(u64) -> bool,
    ) -> Result<Arc<Inode<O>>> {
        let mut shard = self.shard(nodeid).lock();
        if let Some(inode) = shard.get(&nodeid) {
            if count(nodeid) {
                inode.record.nlookup.fetch_add(1, Ordering::AcqRel);
            }
            return Ok(inode.clone());
        }
        let slot = self.durable.inode_slots.take()?;
        // Counted in any case: the answer gives the kernel its only reference.
        let inode = Arc::new(self.fill(slot, nodeid, stat, fd, 1));
        shard.insert(nodeid, inode.clone());
        self.count.fetch_add(1, Ordering::Relaxed);
        Ok(inode)
    }

    fn publish(&self, slot: Slot, nodeid: u64, stat: &Stat, fd: OwnedFd) {
        self.adopt(self.fill(slot, nodeid, stat, fd, 1));
    }

    fn fill(&self, slot: Slot, nodeid: u64, stat: &Stat, fd: OwnedFd, nlookup: u64) -> Inode<O> {
        let record = &self.durable.inodes[slot.index()];
        assert_eq!(record.state.load(Ordering::Acquire), FREE, "{slot:?} is taken");
        record.fd.store(fd.as_raw_fd(), Ordering::Relaxed);
        record.nodeid.store(nodeid, Ordering::Relaxed);
        record.dev.store(stat.st_dev, Ordering::Relaxed);
        record.ino.store(stat.st_ino, Ordering::Relaxed);
        record.nlookup.store(nlookup, Ordering::Relaxed);
        record.mode.store(stat.st_mode, Ordering::Relaxed);
        record.has_object.store(0, Ordering::Relaxed);
        record.writer.store(-1, Ordering::Relaxed);
        record.backing.store(0, Ordering::Relaxed);
        record.seen.store(UNSEEN, Ordering::Relaxed);
        record.state.store(USED, Ordering::Release);
        Inode::new(slot, record, fd)
    }

    /// Takes `n` references away; the inode, if none is left.
    pub(crate) fn release(&self, nodeid: u64, n: u64) -> Option<Arc<Inode<O>>> {
        let shard = self.shard(nodeid).lock();
        let inode = shard.get(&nodeid)?;
        let held = inode.nlookup();
        inode.record.nlookup.store(held.saturating_sub(n), Ordering::Release);
        (held <= n).then(|| inode.clone())
    }

    /// Takes a forgotten inode out, unless a lookup came in between. The slot stays its own until the last reference to it is dropped.
    pub(crate) fn retire(&self, inode: &Inode<O>, life: &mut Life<O>) {
        let key = (inode.record.dev.load(Ordering::Relaxed), inode.record.ino.load(Ordering::Relaxed));
        let foreign = (inode.nodeid >= FOREIGN_MIN).then(|| self.foreign.lock());
        let mut shard = self.shard(inode.nodeid).lock();
        if !inode.is_forgotten(life) {
            return;
        }
        life.retired = true;
        let out = shard.remove(&inode.nodeid);
        assert!(
            out.is_some_and(|out| std::ptr::eq(&*out, inode)),
            "an inode is in the table until it is retired"
        );
        trim(&mut shard);
        if let Some(mut foreign) = foreign {
            foreign.remove(&key);
            trim(&mut foreign);
        }
        inode.record.state.store(FREE, Ordering::Release);
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}
