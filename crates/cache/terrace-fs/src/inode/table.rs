//! The inodes that the kernel knows, each held by one O_PATH descriptor.
//!
//! The descriptor pins the source inode: no other file gets its number, and an unlinked file stays reachable.
//! An inode lives while the kernel holds references (`nlookup`, in the durable record) or a handle is open.
//! The end of the last one retires the inode, or lets it rest while some content is cached.
//!
//! | state | in the table | record | holder of the slot | ended by |
//! |---|---|---|---|---|
//! | free | - | FREE | the list of free slots | `insert`, under the shard's lock: fields first, USED last |
//! | known | yes | USED, `nlookup` > 0 | the `Inode` | `release` of the last reference |
//! | open | yes | USED | the `Inode` | release of the last handle, under `life` |
//! | forgotten, resting | yes | USED, `nlookup` = 0 | the `Inode` | a lookup that counts (known again), or `retire`, under `life` and the shard's lock |
//! | retired | no (`Life::retired`) | FREE | the `Inode` | the drop of its last reference: descriptor closed, slot free |
//!
//! An `Arc<Inode>` that outlives its place in the table still writes to its record, which is neither read nor
//! reused until then. A slot is freed only where its owner is dropped, and no record names a closed
//! descriptor. A retired inode is neither opened nor given an object (`Life::retired` is checked under
//! `life`, where those are made). A daemon that dies between `retire` and the drop leaves an open descriptor
//! that no record names. The next daemon closes it with the other orphan descriptors.
//!
//! Lock order: foreign map, shard / an inode's `life`, then a shard. A shard is never held over a system call
//! that may do I/O. `life` is: then operations that open or retire the *same* inode wait.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{AtFlags, Stat};
use terrace_sync::Mutex;

use super::ROOT;
use super::durable::{Durable, FREE, Slot, USED};
use super::identity::{Devices, Identity, Mark};
use super::node::{Inode, Life, UNSEEN};
use crate::error::{Error, Result};
use terrace_engine::table::trim;

/// Bytes on the heap of a shared descriptor.
const DESCRIPTOR_BYTES: usize = 32;

/// Bytes on the heap of a typical name.
const NAME_BYTES: usize = 32;

/// First node id for files on other devices than the source root's.
const FOREIGN_MIN: u64 = 1 << 62;

const SHARDS: usize = 64;

/// All inodes that the kernel knows, and those that rest.
#[derive(Debug)]
pub(crate) struct InodeTable<O> {
    shards: Box<[Mutex<Shard<O>>]>,
    /// Node ids of files on other devices than the root's, and of files that share numbers.
    foreign: Mutex<HashMap<Key, u64>>,
    pub(crate) devices: Devices,
    durable: Arc<Durable>,
    root_dev: u64,
    root_ino: u64,
    count: AtomicUsize,
}

type Shard<O> = HashMap<u64, Arc<Inode<O>>>;

/// Device, and the file's mark there.
type Key = (u64, Mark);

impl<O> InodeTable<O> {
    pub(crate) fn create(durable: Arc<Durable>, root: OwnedFd) -> Result<Self> {
        let stat = rustix::fs::statat(&root, "", AtFlags::EMPTY_PATH)?;
        let table = Self::empty(durable, root.as_fd(), &stat);
        let slot = table.durable.inode_slots.take()?;
        assert_eq!(slot.index(), 0, "the root is the first inode of a fresh table");
        let identity = table.devices.of_fd(root.as_fd(), &stat, 0)?;
        table.adopt(table.fill(slot, ROOT, identity, stat.st_mode, root));
        Ok(table)
    }

    /// The table of an earlier daemon. Its descriptors are still open in the shared descriptor table.
    pub(crate) fn recover(durable: Arc<Durable>) -> Result<Self> {
        let records = durable.inodes;
        let slots = durable.inode_slots.recover(|slot| records[slot].state.load(Ordering::Acquire) == USED);
        let root = slots.first().filter(|slot| slot.index() == 0).ok_or(Error::UnknownNode(ROOT))?;
        let root_fd = records[root.index()].fd.load(Ordering::Relaxed);
        // SAFETY: the record of the root is never freed, so its descriptor is open.
        let root = unsafe { BorrowedFd::borrow_raw(root_fd) };
        let stat = rustix::fs::statat(root, "", AtFlags::EMPTY_PATH)?;
        let table = Self::empty(durable, root, &stat);
        for slot in slots {
            let record = &records[slot.index()];
            // SAFETY: a used record owns its descriptor: it is published after the open and unpublished
            // before the close.
            let fd = unsafe { OwnedFd::from_raw_fd(record.fd.load(Ordering::Relaxed)) };
            let (dev, ino) = (record.dev.load(Ordering::Relaxed), record.ino.load(Ordering::Relaxed));
            let mark = table.devices.mark_again(fd.as_fd(), dev, ino, record.place.load(Ordering::Acquire));
            table.adopt(Inode::new(slot, record, fd, mark));
        }
        Ok(table)
    }

    fn empty(durable: Arc<Durable>, root_fd: BorrowedFd<'_>, root: &Stat) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::new(HashMap::new())).collect(),
            foreign: Mutex::new(HashMap::new()),
            devices: Devices::new(root_fd, root.st_dev),
            durable,
            root_dev: root.st_dev,
            root_ino: root.st_ino,
            count: AtomicUsize::new(0),
        }
    }

    fn adopt(&self, inode: Inode<O>) -> Arc<Inode<O>> {
        let inode = Arc::new(inode);
        let identity = inode.identity();
        if self.native(&identity) != Some(inode.nodeid) {
            self.foreign.lock().insert(identity.key(), inode.nodeid);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.shard(inode.nodeid).lock().insert(inode.nodeid, inode.clone());
        inode
    }

    fn shard(&self, nodeid: u64) -> &Mutex<Shard<O>> {
        let mixed = nodeid.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(mixed >> 58) as usize % SHARDS]
    }

    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Bytes on the heap: inode, reference counts, name, and the share of a hash table a little over half
    /// full.
    pub(crate) fn bytes(&self) -> usize {
        self.len() * (size_of::<Inode<O>>() + 16 + 32 + NAME_BYTES + DESCRIPTOR_BYTES)
    }

    pub(crate) fn max(&self) -> usize {
        self.durable.inodes.len()
    }

    pub(crate) fn shards(&self) -> usize {
        SHARDS
    }

    /// Calls `visit` for the inodes of one part. `visit` must not wait for an inode's lock.
    pub(crate) fn visit(&self, part: usize, visit: impl FnMut(&Arc<Inode<O>>)) {
        self.shards[part % SHARDS].lock().values().for_each(visit);
    }

    pub(crate) fn all(&self) -> Vec<Arc<Inode<O>>> {
        self.shards.iter().flat_map(|shard| shard.lock().values().cloned().collect::<Vec<_>>()).collect()
    }

    pub(crate) fn get(&self, nodeid: u64) -> Result<Arc<Inode<O>>> {
        self.shard(nodeid).lock().get(&nodeid).cloned().ok_or(Error::UnknownNode(nodeid))
    }

    /// The number under which the mount reports source inode `ino` of a directory listing.
    pub(crate) fn reported(&self, ino: u64) -> u64 {
        if ino == self.root_ino { ROOT } else { ino }
    }

    /// The number of a source inode as a node id, if it can be one.
    fn number(&self, identity: &Identity) -> Option<u64> {
        match (identity.dev == self.root_dev, identity.ino) {
            (true, ino) if ino == self.root_ino => Some(ROOT),
            // Node id 1 is taken; other numbers this high do not exist on real file systems.
            (true, ino) if ino != ROOT && ino < FOREIGN_MIN => Some(ino),
            _ => None,
        }
    }

    /// The node id of a source inode, if it needs no table to be known.
    fn native(&self, identity: &Identity) -> Option<u64> {
        if identity.is_numbered() { self.number(identity) } else { None }
    }

    /// The known inode with this identity. `count` decides whether its lookup count rises.
    pub(crate) fn find(&self, identity: &Identity, count: impl FnOnce(u64) -> bool) -> Option<Arc<Inode<O>>> {
        let nodeid = match self.native(identity) {
            Some(nodeid) => nodeid,
            None => *self.foreign.lock().get(&identity.key())?,
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
        identity: &Identity,
        mode: u32,
        fd: OwnedFd,
        count: impl Fn(u64) -> bool,
    ) -> Result<Arc<Inode<O>>> {
        if let Some(nodeid) = self.native(identity) {
            return self.insert_as(nodeid, identity, mode, fd, count);
        }
        let mut foreign = self.foreign.lock();
        let key = identity.key();
        let nodeid = match foreign.get(&key) {
            Some(nodeid) => *nodeid,
            None => self.number_of_its_own(identity),
        };
        let inode = self.insert_as(nodeid, identity, mode, fd, count)?;
        foreign.insert(key, nodeid);
        Ok(inode)
    }

    /// A node id for a file without an identifying number: its number, if no other file has that.
    fn number_of_its_own(&self, identity: &Identity) -> u64 {
        let number = if identity.is_numbered() { None } else { self.number(identity) };
        let free = |nodeid: &u64| !self.shard(*nodeid).lock().contains_key(nodeid);
        number
            .filter(free)
            .unwrap_or_else(|| FOREIGN_MIN + self.durable.header.foreign_next.fetch_add(1, Ordering::AcqRel))
    }

    /// This identity now belongs to another file: the next lookup makes a new inode for it.
    pub(crate) fn part(&self, identity: &Identity, inode: &Inode<O>) {
        let mut foreign = self.foreign.lock();
        if foreign.get(&identity.key()) == Some(&inode.nodeid) {
            foreign.remove(&identity.key());
        }
    }

    /// An inode has lost this name. If its place is its identity, lookups of the name no longer find it.
    pub(crate) fn leave(&self, inode: &Inode<O>) {
        let identity = inode.identity();
        if matches!(identity.mark, Mark::Place(_)) {
            self.part(&identity, inode);
        }
    }

    /// A rename gave an inode this name and removed the name of its last lookup.
    pub(crate) fn move_to(&self, inode: &Inode<O>, parent: u64, name: &OsStr) {
        let was_known = matches!(inode.identity().mark, Mark::Place(_));
        self.leave(inode);
        inode.found_at(parent, name);
        if was_known {
            self.foreign.lock().insert(inode.identity().key(), inode.nodeid);
        }
    }

    fn insert_as(
        &self,
        nodeid: u64,
        identity: &Identity,
        mode: u32,
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
        let inode = Arc::new(self.fill(slot, nodeid, identity.clone(), mode, fd));
        shard.insert(nodeid, inode.clone());
        self.count.fetch_add(1, Ordering::Relaxed);
        Ok(inode)
    }

    fn fill(&self, slot: Slot, nodeid: u64, identity: Identity, mode: u32, fd: OwnedFd) -> Inode<O> {
        let record = &self.durable.inodes[slot.index()];
        assert_eq!(record.state.load(Ordering::Acquire), FREE, "{slot:?} is taken");
        let place = if let Mark::Place(place) = identity.mark { place } else { 0 };
        record.fd.store(fd.as_raw_fd(), Ordering::Relaxed);
        record.nodeid.store(nodeid, Ordering::Relaxed);
        record.dev.store(identity.dev, Ordering::Relaxed);
        record.ino.store(identity.ino, Ordering::Relaxed);
        record.nlookup.store(1, Ordering::Relaxed);
        record.mode.store(mode, Ordering::Relaxed);
        record.has_object.store(0, Ordering::Relaxed);
        record.writer.store(-1, Ordering::Relaxed);
        record.backing.store(0, Ordering::Relaxed);
        record.seen.store(UNSEEN, Ordering::Relaxed);
        record.place.store(place, Ordering::Relaxed);
        record.parent.store(0, Ordering::Relaxed);
        record.state.store(USED, Ordering::Release);
        Inode::new(slot, record, fd, identity.mark)
    }

    /// Drops `n` references. Returns the inode if none is left.
    pub(crate) fn release(&self, nodeid: u64, n: u64) -> Option<Arc<Inode<O>>> {
        let shard = self.shard(nodeid).lock();
        let inode = shard.get(&nodeid)?;
        let held = inode.nlookup();
        inode.record.nlookup.store(held.saturating_sub(n), Ordering::Release);
        (held <= n).then(|| inode.clone())
    }

    /// Removes a forgotten inode from the table, unless a lookup found it meanwhile. The slot is reserved
    /// until the last reference to the inode is dropped.
    pub(crate) fn retire(&self, inode: &Inode<O>, life: &mut Life<O>) {
        let identity = inode.identity();
        let foreign = (self.native(&identity) != Some(inode.nodeid)).then(|| self.foreign.lock());
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
            if foreign.get(&identity.key()) == Some(&inode.nodeid) {
                foreign.remove(&identity.key());
            }
            trim(&mut foreign);
        }
        inode.record.state.store(FREE, Ordering::Release);
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}
