//! One inode of the source: its descriptor, its durable record, and the state changed by opens and closes.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use rustix::fs::{AtFlags, Stat};
use rustix::io::Errno;
use terrace_sync::Mutex;

use super::ROOT;
use super::durable::{InodeRecord, Slot};
use super::identity::{Identity, Mark, handle_of, hash_of};
use super::path::ProcPath;
use super::place::Place;
use crate::CachedFile;
use crate::attr::{Attr, Kind};
use crate::coherence::{Emptied, LastEvent};
use crate::error::{Error, Result};
use terrace_engine::source::SourceFile;

/// `InodeRecord::seen` before the first look at the source, and after this mount's last change.
pub(super) const UNSEEN: u64 = 0;
/// The same during a look and after a failed one: no digest equals it.
const LOOKING: u64 = 1;

/// `Inode::marked` of a directory before the first lookup of a name in it.
pub(crate) const UNMARKED: u64 = 0;
/// The same of a directory that cannot be marked.
pub(crate) const UNMARKABLE: u64 = 1;

/// Digest of the source's size and times (multiply and rotate). Never one of the two values above.
pub(crate) fn digest(stat: &Stat) -> u64 {
    let Attr { size, mtime, ctime, .. } = Attr::from_stat(0, stat);
    let words = [mtime, ctime].map(|t| [t.sec.cast_unsigned(), u64::from(t.nsec)]);
    let mix = |sum: u64, word: &u64| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    words.as_flattened().iter().fold(mix(1, &size), mix).max(LOOKING + 1)
}

/// Result of a look at the source.
pub(crate) struct SourceState {
    /// The source differs from the last look, and this mount did not change it.
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
    pub(crate) handles: u32,
    /// Of these, opened for writing.
    pub(crate) writers: u32,
    /// Of these, handles that may have mappings of the file which the daemon does not see.
    pub(crate) unseen_writers: u32,
    /// Facts about writes that bypass this daemon (passthrough).
    pub(crate) kernel_writes: KernelWrites,
    /// The inode has left the table. Another inode may have its number by now.
    pub(crate) retired: bool,
}

/// Writes by the kernel itself (passthrough), since a program opened the file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KernelWrites {
    /// Digest of the source before, if any later change gives another one.
    pub(crate) before: Option<u64>,
    /// Whether one of them may have mapped the file: a mapping outlives its handle.
    pub(crate) may_map: bool,
}

#[derive(Debug)]
pub(crate) struct Inode<O> {
    pub(crate) nodeid: u64,
    pub(crate) kind: Kind,
    /// Shared with the inode's object in the page cache.
    fd: Arc<OwnedFd>,
    pub(super) record: &'static InodeRecord,
    /// Reserves the record until this inode is dropped.
    _slot: Slot,
    /// The kernel's file handle, where the inode number alone does not identify the file.
    handle: Option<Box<[u8]>>,
    by_place: bool,
    /// The last name by which it was found.
    place: Mutex<Option<Place>>,
    /// Of a directory: the hash of its mark, or one of [`UNMARKED`] and [`UNMARKABLE`].
    pub(crate) marked: AtomicU64,
    /// Whether the watches report others' changes of its name and attributes.
    pub(crate) watched: AtomicBool,
    /// Time of the last open for writing, until a descriptor of it is closed.
    pub(crate) opened: LastEvent,
    pub(crate) life: Mutex<Life<O>>,
    /// Writers outside `Life::unseen_writers`. Changed under `life`.
    pub(crate) announcing_writers: AtomicU32,
    /// Whether the kernel may have dropped its pages of the file.
    pub(crate) emptied: Emptied,
    /// Time of the last close of a descriptor through which the kernel itself wrote the file.
    pub(crate) written_outside: LastEvent,
    /// The file has neither set-id bits nor file capabilities, so a write need not clear them.
    pub(crate) unprivileged: AtomicBool,
    /// Looked up or opened since the shrinker's last visit.
    pub(crate) used: AtomicBool,
}

impl std::fmt::Debug for InodeRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "InodeRecord({})", self.nodeid.load(Ordering::Relaxed))
    }
}

impl<O: CachedFile> Inode<O> {
    /// Closes the descriptor that writes the source, unless the file is still open for writing.
    pub(crate) fn close_writer(&self, life: &Life<O>) {
        if let Some(object) = life.object.as_ref().filter(|_| life.writers == 0) {
            self.close_writer_of(object);
        }
    }

    /// Closes the source's data descriptors, also of an open file: the next use opens them again. Returns their number.
    pub(crate) fn close_data(&self, life: &Life<O>) -> usize {
        let Some(object) = &life.object else { return 0 };
        if life.handles > 0 && !self.pins_file() {
            return 0; // They alone hold the file when its last name goes.
        }
        let before = object.source().data_descriptors_open();
        object.source().close_reader();
        self.close_writer_of(object);
        before.saturating_sub(object.source().data_descriptors_open())
    }

    fn close_writer_of(&self, object: &O) {
        let closing = object.close_writer();
        // No record names a closed descriptor. A descriptor that stays open is always named, since the next
        // daemon may need it.
        self.note_writer(object.source());
        drop(closing);
    }
}

impl<O> Inode<O> {
    pub(super) fn new(slot: Slot, record: &'static InodeRecord, fd: OwnedFd, mark: Mark) -> Self {
        let by_place = matches!(mark, Mark::Place(_));
        Self {
            nodeid: record.nodeid.load(Ordering::Relaxed),
            kind: Kind::from_mode(record.mode.load(Ordering::Relaxed)),
            fd: Arc::new(fd),
            record,
            _slot: slot,
            handle: if let Mark::Handle(handle) = mark { Some(handle) } else { None },
            by_place,
            place: Mutex::new(None),
            marked: AtomicU64::new(UNMARKED),
            watched: AtomicBool::new(false),
            opened: LastEvent::default(),
            life: Mutex::new(Life {
                object: None,
                handles: 0,
                writers: 0,
                unseen_writers: 0,
                kernel_writes: KernelWrites::default(),
                retired: false,
            }),
            announcing_writers: AtomicU32::new(0),
            emptied: Emptied::default(),
            written_outside: LastEvent::default(),
            unprivileged: AtomicBool::new(false),
            used: AtomicBool::new(true),
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The O_PATH descriptor's number.
    #[cfg(test)]
    pub(crate) fn raw_fd(&self) -> RawFd {
        std::os::fd::AsRawFd::as_raw_fd(&self.fd)
    }

    /// The same descriptor, shared: it may outlive the inode.
    pub(crate) fn shared_fd(&self) -> Arc<OwnedFd> {
        self.fd.clone()
    }

    /// A path that names this very inode, whatever happened to its names.
    pub(crate) fn path(&self) -> ProcPath {
        ProcPath::new(self.fd())
    }

    pub(crate) fn stat(&self) -> Result<Stat> {
        Ok(rustix::fs::statat(&self.fd, "", AtFlags::EMPTY_PATH)?)
    }

    pub(crate) fn is_open_as(&self, fd: BorrowedFd<'_>) -> Result<bool> {
        if self.by_place {
            return Ok(true); // Nothing tells.
        }
        if let Some(handle) = &self.handle {
            return Ok(handle_of(fd, OsStr::new(""))?.as_ref() == Some(handle));
        }
        let (ours, theirs) = (self.stat()?, rustix::fs::fstat(fd)?);
        Ok((ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino))
    }

    pub(crate) fn identity(&self) -> Identity {
        let (dev, ino) = (self.record.dev.load(Ordering::Relaxed), self.record.ino.load(Ordering::Relaxed));
        let mark = match &self.handle {
            Some(handle) => Mark::Handle(handle.clone()),
            None if self.by_place => Mark::Place(self.record.place.load(Ordering::Relaxed)),
            None => Mark::Number(ino),
        };
        Identity { dev, ino, mark }
    }

    /// Whether the O_PATH descriptor pins the file: its number, and the file itself after its last name is
    /// removed.
    pub(crate) fn pins_file(&self) -> bool {
        self.handle.is_none() && !self.by_place
    }

    /// Whether the descriptor no longer reaches a file: it pins none, and the last name is removed.
    pub(crate) fn is_lost(&self) -> bool {
        let gone = |error: Error| error.is(Errno::NOENT) || error.is(Errno::STALE);
        !self.pins_file() && self.stat().is_err_and(gone)
    }

    /// Whether this inode is the file `name` of `dir`, with its status `stat`.
    pub(crate) fn is_at(&self, dir: BorrowedFd<'_>, name: &OsStr, stat: &Stat) -> bool {
        match &self.handle {
            // A server that does not answer gives no evidence.
            Some(handle) => handle_of(dir, name).map_or(true, |found| found.as_ref() == Some(handle)),
            None => {
                let (dev, ino) = (&self.record.dev, &self.record.ino);
                (stat.st_dev, stat.st_ino) == (dev.load(Ordering::Relaxed), ino.load(Ordering::Relaxed))
            }
        }
    }

    /// Records the place where a lookup found the inode.
    pub(crate) fn found_at(&self, parent: u64, name: &OsStr) {
        if self.nodeid == ROOT || matches!(name.as_encoded_bytes(), b"." | b"..") {
            return;
        }
        let mut place = self.place.lock();
        if !place.as_ref().is_some_and(|place| place.parent == parent && *place.name == *name) {
            self.record.parent.store(parent, Ordering::Release);
            self.record.place.store(hash_of(parent, name), Ordering::Release);
            *place = Some(Place { parent, name: name.into() });
        }
    }

    /// The last place where this daemon found it.
    pub(crate) fn place(&self) -> Option<Place> {
        self.place.lock().clone()
    }

    /// Whether the last place where this or an earlier daemon found it has this hash.
    pub(crate) fn was_found_at(&self, hash: u64) -> bool {
        self.record.place.load(Ordering::Acquire) == hash
    }

    /// Node id of the directory of that place.
    pub(crate) fn recorded_parent(&self) -> u64 {
        self.record.parent.load(Ordering::Acquire)
    }

    /// The O_PATH descriptor, if this is a directory.
    pub(crate) fn directory(&self) -> Result<BorrowedFd<'_>> {
        match self.kind {
            Kind::Directory => Ok(self.fd()),
            _ => Err(Error::Source(rustix::io::Errno::NOTDIR)),
        }
    }

    pub(crate) fn nlookup(&self) -> u64 {
        self.record.nlookup.load(Ordering::Acquire)
    }

    /// Whether neither the kernel nor a handle refers to it. The caller holds `life`.
    pub(crate) fn is_forgotten(&self, life: &Life<O>) -> bool {
        !life.retired && life.handles == 0 && self.nlookup() == 0 && self.nodeid != ROOT
    }

    /// Records in the durable table whether the page cache has an object of this inode.
    pub(crate) fn note_object(&self, exists: bool) {
        self.record.has_object.store(u32::from(exists), Ordering::Release);
    }

    /// Whether an earlier daemon had an object of this inode.
    pub(crate) fn had_object(&self) -> bool {
        self.record.has_object.load(Ordering::Acquire) != 0
    }

    /// Records in the durable table the descriptor that writes the source.
    pub(crate) fn note_writer(&self, source: &SourceFile) {
        let writer = source.open_writer().map_or(-1, |writer| writer.raw());
        self.record.writer.store(writer, Ordering::Release);
    }

    /// The recorded descriptor that writes the source, -1 for none.
    pub(crate) fn noted_writer(&self) -> RawFd {
        self.record.writer.load(Ordering::Acquire)
    }

    /// Called before the descriptor that writes the source may be closed: no record ever names a closed one.
    pub(crate) fn forget_writer(&self) {
        self.record.writer.store(-1, Ordering::Release);
    }

    /// Id of the backing file that the kernel reads and writes itself, 0 without passthrough.
    pub(crate) fn backing(&self) -> u32 {
        self.record.backing.load(Ordering::Acquire)
    }

    /// Records that id in the durable table. The caller holds `life`.
    pub(crate) fn note_backing(&self, backing: u32) {
        self.record.backing.store(backing, Ordering::Release);
    }

    /// Records that this mount is about to change the inode.
    pub(crate) fn touch(&self) {
        self.record.seen.store(UNSEEN, Ordering::Release);
    }

    /// Looks at the source and records its digest in the durable table if it is unchanged. The caller holds
    /// `life`.
    pub(crate) fn look(&self, object: &O) -> Result<SourceState>
    where
        O: CachedFile,
    {
        // Swapped before the look: a change through the mount resets the field before it acts, and `trust`
        // then leaves it.
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
        Ok(SourceState { changed, stat: stat?, digest })
    }

    /// Records that no cached content is older than the look with this digest. After a change, the older
    /// content is dropped first. Until then each look, also of another daemon, finds the change again.
    pub(crate) fn trust(&self, digest: u64) {
        let _ = self.record.seen.compare_exchange(LOOKING, digest, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Whether this digest is that of the last look.
    pub(crate) fn is_trusted(&self, digest: u64) -> bool {
        self.record.seen.load(Ordering::Acquire) == digest
    }

    /// Records the digest of a directory after the drop of its older listings.
    pub(crate) fn note_seen(&self, digest: u64) {
        self.record.seen.store(digest, Ordering::Release);
    }

    /// The cache could not follow the source: the next look finds a change again.
    pub(crate) fn distrust(&self) {
        self.record.seen.store(LOOKING, Ordering::Release);
    }

    /// True before the first look at the source after this mount's last change.
    pub(crate) fn is_unseen(&self) -> bool {
        self.record.seen.load(Ordering::Acquire) == UNSEEN
    }
}
