//! The journal: heap bytes written since the last sync, in the kernel's page cache. It survives a kill of all
//! processes, but not a power cut.
//!
//! The engine's cache is memory that dies with the last process that maps it. The log reaches its file before
//! a change is acknowledged. The heap bytes that its records name reach the journal first. A start after a
//! kill writes the journal's bytes into the heap again, then reads the log.
//!
//! - **Two files take turns.** Each sync begins with a new turn. The bytes of the turn before are in the heap
//!   already, and the sync makes them durable. The next sync overwrites the file of that turn.
//! - **A turn names a record**, the last one that its sync marks. If the log has later marks, a start ignores
//!   the turn. Its bytes are durable, and their room may be reused. So remains of a journal are harmless
//!   after a power cut, and a journal needs no sync.
//! - **A sync instead.** If the journal has no room (full disk, large blob), a sync precedes the
//!   acknowledgement.
//!
//! ```text
//! file    magic 8 · store 8 · session 8 · turn 8 · last record before it 8 · crc 4 · entries
//! entry   offset in the heap 8 · bytes 4 · crc of the bytes 4 · crc of session, turn and these 4 · the bytes
//! ```

use crate::error::{Error, Result};
use crate::space::PAGE;
use crate::write::{write_all, write_parts};
use rustix::fs::OFlags;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use terrace_io::Io;
use terrace_sync::Mutex;

const MAGIC: [u8; 8] = *b"TERRJRN1";
/// Size of a file's header, bytes.
const HEAD: usize = 44;
/// Size of an entry's header, bytes.
const ENTRY: usize = 20;
/// Blobs from this size are written directly from the caller's memory, bytes.
const DIRECT: usize = 32 << 10;
/// Maximum of unwritten bytes, which otherwise wait for the end of a batch.
const GATHERED: usize = 256 << 10;
/// A turn takes at most an eighth of the store's memory, within these bounds (bytes).
const TURN_MIN: u64 = 32 << 20;
const TURN_MAX: u64 = 256 << 20;

/// The journal files of the store `name`.
pub(crate) fn paths(dir: &Path, name: &str) -> [PathBuf; 2] {
    [0, 1].map(|n| dir.join(format!(".{name}.journal{n}")))
}

#[derive(Debug)]
pub(crate) struct Journal {
    io: Arc<dyn Io>,
    store: u64,
    /// None: the disk had no room for them.
    files: Option<[File; 2]>,
    path: PathBuf,
    turn_max: u64,
    is_on: AtomicBool,
    pending: Mutex<Pending>,
    /// Locked by the thread that writes a batch.
    batch: Mutex<Vec<u8>>,
}

/// Unwritten bytes, and their place.
#[derive(Debug, Default)]
struct Pending {
    head: Head,
    at: u64,
    bytes: Vec<u8>,
    /// The turn of each file lacks bytes: a write failed, or the blob was too large.
    lacks: [bool; 2],
    /// The last record of a sync that has begun and is not complete: the other file is still needed.
    begun: Option<u64>,
}

/// The header of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Head {
    store: u64,
    session: u64,
    turn: u64,
    since: u64,
}

impl Head {
    fn encode(&self) -> [u8; HEAD] {
        let mut out = [0; HEAD];
        out[..8].copy_from_slice(&MAGIC);
        for (i, word) in [self.store, self.session, self.turn, self.since].iter().enumerate() {
            out[8 + i * 8..16 + i * 8].copy_from_slice(&word.to_le_bytes());
        }
        let crc = crc32fast::hash(&out[..HEAD - 4]);
        out[HEAD - 4..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    fn read(file: &File) -> Option<Head> {
        let mut bytes = [0; HEAD];
        file.read_exact_at(&mut bytes, 0).ok()?;
        let word = |i: usize| u64::from_le_bytes(bytes[8 + i * 8..16 + i * 8].try_into().expect("8 bytes"));
        let head = Head { store: word(0), session: word(1), turn: word(2), since: word(3) };
        (head.encode() == bytes).then_some(head)
    }

    fn entry(&self, offset: u64, len: u32, crc: u32) -> [u8; ENTRY] {
        let mut out = [0; ENTRY];
        out[..8].copy_from_slice(&offset.to_le_bytes());
        out[8..12].copy_from_slice(&len.to_le_bytes());
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.session.to_le_bytes());
        hasher.update(&self.turn.to_le_bytes());
        hasher.update(&out[..16]);
        out[16..].copy_from_slice(&hasher.finalize().to_le_bytes());
        out
    }

    /// Index of the turn's file.
    fn file(&self) -> usize {
        (self.turn & 1) as usize
    }
}

/// How much of the changes the kernel holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coverage {
    All,
    /// All, and a sync is due to begin another turn.
    Long,
    /// Not all: only a sync makes the changes safe.
    Lacks,
}

impl Journal {
    /// # Errors
    /// Files that cannot be opened.
    pub(crate) fn open(
        dir: &Path,
        name: &str,
        (store, memory_bytes): (u64, u64),
        io: Arc<dyn Io>,
    ) -> Result<Journal> {
        let [first, second] = paths(dir, name);
        let open = |path: &Path| {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            options.custom_flags(OFlags::NOFOLLOW.bits() as i32);
            options.open(path).map_err(|e| Error::io(path, "open", e))
        };
        let files = match open(&first).and_then(|a| Ok([a, open(&second)?])) {
            Err(e) if e.is_full() => {
                tracing::warn!(
                    "{e}; without a journal each change is synced until the store is opened again; free space there"
                );
                None
            }
            files => Some(files?),
        };
        Ok(Journal {
            io,
            store,
            files,
            path: first,
            turn_max: (memory_bytes / 8).clamp(TURN_MIN, TURN_MAX),
            is_on: AtomicBool::new(false),
            pending: Mutex::default(),
            batch: Mutex::default(),
        })
    }

    /// Writes the entries of a killed process into the heap. The log's marks cover the records up to
    /// `marked`.
    ///
    /// # Errors
    /// Failing I/O.
    pub(crate) fn redo(&self, heap: &OwnedFd, marked: u64) -> Result<()> {
        self.empty_covered(marked)?;
        let error = |e| Error::io(&self.path, "read", e);
        let heap = File::from(heap.try_clone().map_err(error)?);
        let mut turns: Vec<(Head, &File)> = self
            .files
            .iter()
            .flatten()
            .filter_map(|file| Some((Head::read(file)?, file)))
            // A mark that directly follows the marked record covers itself, too.
            .filter(|(head, _)| head.store == self.store && head.since + 1 >= marked)
            .collect();
        turns.sort_by_key(|(head, _)| head.turn);
        for (head, file) in turns {
            self.redo_turn(&head, file, &heap).map_err(error)?;
        }
        let size = heap.metadata().map_err(error)?.len();
        if !size.is_multiple_of(PAGE) {
            self.io.truncate(heap.as_raw_fd(), size.next_multiple_of(PAGE)).map_err(error)?;
        }
        Ok(())
    }

    /// Empties turns that a mark covers. If the start cuts this mark off the log, a later start would
    /// otherwise replay these turns over newer bytes.
    fn empty_covered(&self, marked: u64) -> Result<()> {
        let error = |action| move |e| Error::io(&self.path, action, e);
        for file in self.files.iter().flatten() {
            let head = Head::read(file).filter(|head| head.store == self.store);
            if head.is_some_and(|head| head.since + 1 < marked) {
                self.io.truncate(file.as_raw_fd(), 0).map_err(error("empty"))?;
                self.io.sync(file.as_raw_fd(), false).map_err(error("sync"))?;
            }
        }
        Ok(())
    }

    fn redo_turn(&self, head: &Head, mut file: &File, heap: &File) -> io::Result<()> {
        let left = file.metadata()?.len().saturating_sub(HEAD as u64);
        file.seek(io::SeekFrom::Start(HEAD as u64))?;
        let mut entries = io::BufReader::with_capacity(GATHERED, file.take(left));
        let (mut entry, mut bytes) = ([0; ENTRY], Vec::new());
        while entries.read_exact(&mut entry).is_ok() {
            let offset = u64::from_le_bytes(entry[..8].try_into().expect("8 bytes"));
            let word = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().expect("4 bytes"));
            let (len, crc) = (word(8), word(12));
            if head.entry(offset, len, crc) != entry {
                break;
            }
            bytes.resize(len as usize, 0);
            if entries.read_exact(&mut bytes).is_err() || crc32fast::hash(&bytes) != crc {
                break;
            }
            match write_all(&*self.io, heap, offset, &bytes) {
                // This room was given back to a full disk: it holds no blob.
                Err(e) if e.raw_os_error().is_some_and(crate::error::is_full_errno) => {}
                written => written?,
            }
        }
        Ok(())
    }

    /// Begins the first turn: all records up to `since` are durable. `is_on`: changes are acknowledged before
    /// they are synced.
    ///
    /// # Errors
    /// Failing I/O.
    pub(crate) fn begin(&self, since: u64, is_on: bool) -> Result<()> {
        let error = |action| move |e| Error::io(&self.path, action, e);
        for file in self.files.iter().flatten() {
            // Entries of another session must not come back after a power cut.
            if file.metadata().map_err(error("stat"))?.len() > 0 {
                self.io.truncate(file.as_raw_fd(), 0).map_err(error("empty"))?;
                self.io.sync(file.as_raw_fd(), false).map_err(error("sync"))?;
            }
        }
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .map_err(|e| Error::io(&self.path, "get random numbers for", e.into()))?;
        let mut pending = self.pending.lock();
        pending.head = Head { store: self.store, session: u64::from_le_bytes(random), turn: 0, since };
        let head = pending.head.encode();
        pending.bytes.extend_from_slice(&head);
        drop(pending);
        self.is_on.store(is_on && self.files.is_some(), Ordering::Release);
        Ok(())
    }

    /// Whether the journal is in use.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    /// Adds bytes that were written into the heap. Comes before the record that names them.
    pub(crate) fn keep(&self, offset: u64, parts: &[&[u8]], crc: u32) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if !self.is_on() || len == 0 {
            return;
        }
        let mut pending = self.pending.lock();
        let file = pending.head.file();
        if len as u64 > self.turn_max / 4 {
            pending.lacks[file] = true;
            return;
        }
        let entry = pending.head.entry(offset, len as u32, crc);
        pending.bytes.extend_from_slice(&entry);
        if len >= DIRECT {
            self.write(&mut pending, parts);
            return;
        }
        parts.iter().for_each(|part| pending.bytes.extend_from_slice(part));
        if pending.bytes.len() > GATHERED {
            self.write(&mut pending, &[]);
        }
    }

    /// Writes the pending bytes, and `parts` behind them.
    fn write(&self, pending: &mut Pending, parts: &[&[u8]]) {
        let at = pending.at;
        let bytes = std::mem::take(&mut pending.bytes);
        let all: Vec<&[u8]> = std::iter::once(&bytes[..]).chain(parts.iter().copied()).collect();
        pending.at += all.iter().map(|part| part.len() as u64).sum::<u64>();
        let file = pending.head.file();
        pending.lacks[file] |= !self.write_at(file, at, &all);
        pending.bytes = bytes;
        pending.bytes.clear();
    }

    fn write_at(&self, file: usize, at: u64, parts: &[&[u8]]) -> bool {
        let Some(files) = &self.files else { return false };
        let written = write_parts(&*self.io, &files[file], at, parts);
        if let Err(e) = &written {
            tracing::warn!(
                "{}: the journal cannot be written ({e}); each change is synced before its acknowledgement, which takes longer",
                self.path.display()
            );
        }
        written.is_ok()
    }

    /// Writes all bytes added before the log's end, which `log_end` returns. The result: that end, and how
    /// much the kernel holds.
    pub(crate) fn write_batch<T>(&self, log_end: impl FnOnce() -> T) -> (T, Coverage) {
        if !self.is_on() {
            return (log_end(), Coverage::Lacks);
        }
        let mut batch = self.batch.lock();
        let (file, at, end) = {
            let mut pending = self.pending.lock();
            std::mem::swap(&mut *batch, &mut pending.bytes);
            let at = pending.at;
            pending.at += batch.len() as u64;
            // Under the lock, so that both match. The journal has the bytes that records up to this end name.
            // The log has the records that freed the room of these bytes.
            (pending.head.file(), at, log_end())
        };
        let is_written = batch.is_empty() || self.write_at(file, at, &[&batch[..]]);
        batch.clear();
        let mut pending = self.pending.lock();
        pending.lacks[file] |= !is_written;
        let other = pending.begun.is_some() && pending.lacks[1 - pending.head.file()];
        let held = match pending.lacks[pending.head.file()] || other {
            true => Coverage::Lacks,
            false if pending.at > self.turn_max / 2 => Coverage::Long,
            false => Coverage::All,
        };
        (end, held)
    }

    /// Whether the turn exceeds its maximum: changes then wait for a sync.
    pub(crate) fn is_full(&self) -> bool {
        self.is_on() && self.pending.lock().at > self.turn_max
    }

    /// Whether the turn has bytes.
    pub(crate) fn is_begun(&self) -> bool {
        self.is_on() && self.pending.lock().at > HEAD as u64
    }

    /// Whether the turn is long enough for a sync.
    pub(crate) fn is_long(&self) -> bool {
        self.is_on() && self.pending.lock().at > self.turn_max / 2
    }

    /// The last record of a sync that has begun and is not complete.
    pub(crate) fn begun(&self) -> Option<u64> {
        self.pending.lock().begun
    }

    /// Begins a turn. A sync of the heap follows, then a mark of the record `last`. `since`: number of that
    /// record in the log that gets the mark.
    pub(crate) fn begin_sync(&self, last: u64, since: u64) {
        if !self.is_on() {
            return;
        }
        // A batch that is being written already has its place.
        let mut pending = self.pending.lock();
        debug_assert!(pending.begun.is_none(), "the other file is free");
        self.write(&mut pending, &[]);
        let Head { store, session, turn, .. } = pending.head;
        pending.head = Head { store, session, turn: turn + 1, since };
        let head = pending.head.encode();
        pending.bytes.extend_from_slice(&head);
        let file = pending.head.file();
        (pending.at, pending.lacks[file], pending.begun) = (0, false, Some(last));
    }

    /// Ends a sync: the turn before is no longer needed.
    pub(crate) fn end_sync(&self) {
        let mut pending = self.pending.lock();
        let other = 1 - pending.head.file();
        (pending.begun, pending.lacks[other]) = (None, false);
    }

    /// Truncates the files to the room that turns need, for a full disk. Returns whether that freed any.
    pub(crate) fn give_back(&self) -> bool {
        let Some(files) = &self.files else { return false };
        let _batch = self.batch.lock();
        let pending = self.pending.lock();
        let now = pending.head.file();
        let other = (1 - now, if pending.begun.is_some() { u64::MAX } else { 0 });
        let mut is_given = false;
        for (file, needed) in [(now, pending.at), other] {
            if files[file].metadata().is_ok_and(|metadata| metadata.len() > needed) {
                is_given |= self.io.truncate(files[file].as_raw_fd(), needed).is_ok();
            }
        }
        is_given
    }

    /// Renumbers the turn after a log compaction was given up: the number is the last record's in the old
    /// log.
    pub(crate) fn rename_turn(&self) {
        let _batch = self.batch.lock();
        let mut pending = self.pending.lock();
        let Some(last) = pending.begun else { return };
        self.write(&mut pending, &[]);
        pending.head.since = last;
        let (head, file) = (pending.head.encode(), pending.head.file());
        let is_durable = self.write_at(file, 0, &[&head])
            && self.files.as_ref().is_some_and(|files| self.io.sync(files[file].as_raw_fd(), false).is_ok());
        pending.lacks[file] |= !is_durable;
    }

    /// Ends the journal: the store is closed, and everything durable.
    pub(crate) fn end(&self) {
        self.is_on.store(false, Ordering::Release);
        for file in self.files.iter().flatten() {
            let _ = self.io.truncate(file.as_raw_fd(), 0);
        }
    }
}
