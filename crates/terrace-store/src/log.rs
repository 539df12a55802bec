//! The record log: records are appended to the tail in the segment, and from there written to the file in large pieces.
//!
//! Two locks: that of the end, for who appends; that of the file, for who writes the tail out. The first is taken before the second.
//! A write or sync of the log that fails is remembered: what the file holds is not known then, and every later change is refused.

use crate::error::{Error, Result};
use crate::journal::{Held, Journal};
use crate::record::{self, HEADER, Header, Record};
use crate::segment::Segment;
use crate::tail::{RING, Tail};
use crate::write::write_all;
use rustix::fs::FallocateFlags;
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use terrace_engine::Wakeup;
use terrace_engine::io::Io;
use terrace_sync::{Mutex, MutexGuard};

/// Room on the disk that is asked for at once, bytes.
const RESERVE: u64 = 4 << 20;
/// Room that is left to removals when the disk is full, bytes.
const MARGIN: u64 = 256 << 10;
/// Of this the part that is left to clears of buckets and to records of the store itself.
const OWN: u64 = 32 << 10;
/// Room with which a log on a full disk can go on, bytes.
pub(crate) const ROOM: u64 = MARGIN + RESERVE;
/// The tail is written out in the background in pieces of this size.
const PIECE: u64 = RING / 4;

/// The change of used room by a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// It is refused when the disk is nearly full.
    Takes,
    /// It is refused when the disk is full.
    Gives,
    /// As `Gives`, but what is left of the room is for it, too: a bucket is cleared by a short record, and is the last way to make room.
    Clears,
    /// As `Clears`, of a record of the store itself, which closing it needs.
    Own,
}

/// The log of an open store.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    io: Arc<dyn Io>,
    tail: Tail,
    end: Mutex<End>,
    file: Mutex<Arc<File>>,
    pub journal: Journal,
    /// Number of the last record in the tail.
    appended: AtomicU64,
    /// Offset up to which the file has blocks.
    reserved: AtomicU64,
    /// errno of the write or sync that failed; 0: none.
    failed: AtomicI32,
    wake: Arc<Wakeup>,
}

/// Where the next record goes.
#[derive(Debug)]
pub(crate) struct End {
    generation: u64,
    next: u64,
    /// A sync, or a log written anew, may cover the records up to this one: see [`Logged::sealed`].
    sealed: u64,
    /// Changes are refused; see [`Log::close`].
    is_closed: bool,
}

thread_local! {
    /// A record is encoded here, before its thread has the lock of the end.
    static DRAFT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl End {
    /// Seals all records; the number of the last.
    fn seal(&mut self) -> u64 {
        self.sealed = self.next - 1;
        self.sealed
    }
}

/// A record that was appended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Logged {
    pub number: u64,
    /// Number of the last sealed record. What a later one named and this one replaces is free at once: either both of them survive a power cut by a
    /// mark that covers both, or the earlier is believed only if its bytes are found.
    pub sealed: u64,
}

/// A place in the log, and the number of the record that begins there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub at: u64,
    pub number: u64,
}

/// A file that holds records, from its header on.
#[derive(Debug)]
pub(crate) struct Written {
    pub file: File,
    pub header: Header,
    /// Where the next record goes.
    pub end: Position,
}

impl Log {
    /// The log whose file is `written`, the tail being empty.
    ///
    /// # Errors
    /// The file system's, if it is not that there is no room: then changes fail and not the start.
    pub(crate) fn new(
        path: PathBuf,
        written: Written,
        segment: &Segment,
        (io, journal): (Arc<dyn Io>, Journal),
        wake: Arc<Wakeup>,
    ) -> Result<Log> {
        let tail = Tail::new(segment);
        let Written { file, header, end } = written;
        tail.switch(header.generation, end.at);
        let log = Log {
            path,
            io,
            tail,
            end: Mutex::new(End {
                generation: header.generation,
                next: end.number,
                sealed: end.number - 1,
                is_closed: false,
            }),
            file: Mutex::new(Arc::new(file)),
            journal,
            appended: AtomicU64::new(end.number - 1),
            reserved: AtomicU64::new(end.at),
            failed: AtomicI32::new(0),
            wake,
        };
        // On a full disk blobs can be read, and removed as far as the room goes that an earlier opening has left.
        match log.reserve(end.at + RESERVE).or_else(|_| log.reserve(end.at + MARGIN)) {
            Err(e) if e.is_full() => tracing::warn!("{e}"),
            reserved => reserved?,
        }
        log.tail.begin(header.store);
        Ok(log)
    }

    /// Takes no change any more, but for records of the store itself: what was appended before is covered by the next sync.
    pub(crate) fn close(&self) {
        self.end.lock().is_closed = true;
    }

    /// Whether a record of so many bytes that takes room would be refused. The room that is left to removals takes it then, whatever others append.
    ///
    /// # Errors
    /// The disk is full; an earlier write of the log failed; the store is closed.
    pub(crate) fn ask(&self, bytes: u64) -> Result<()> {
        self.ask_locked(&self.end.lock(), bytes, Room::Takes).map(drop)
    }

    /// Whether a record of so many bytes may be appended now; where.
    fn ask_locked(&self, end: &End, bytes: u64, room: Room) -> Result<u64> {
        self.check()?;
        if end.is_closed && room != Room::Own {
            return Err(Error::Closed);
        }
        let left = match room {
            Room::Takes => MARGIN,
            Room::Gives => OWN,
            Room::Clears | Room::Own => 0,
        };
        let at = self.tail.committed();
        let needed = at + bytes + left;
        if needed > self.reserved.load(Ordering::Relaxed) {
            self.reserve_from(at, needed)?;
        }
        Ok(at)
    }

    /// The store is closed: nothing is left in the segment.
    pub(crate) fn finish(&self) {
        self.tail.end();
    }

    /// Number of the last record. All are sealed: a mark may cover them.
    pub(crate) fn last(&self) -> u64 {
        self.end.lock().seal()
    }

    /// Number of the last record, as it is.
    pub(crate) fn appended(&self) -> u64 {
        self.appended.load(Ordering::Acquire)
    }

    /// Bytes of the log, with its tail.
    pub(crate) fn bytes(&self) -> u64 {
        self.tail.committed()
    }

    /// Appends a record.
    ///
    /// # Errors
    /// The disk is full; an earlier write of the log failed; the store is closed.
    pub(crate) fn append(&self, record: &Record<'_>, room: Room) -> Result<Logged> {
        DRAFT.with_borrow_mut(|draft| {
            draft.clear();
            record::draft(record, draft);
            self.append_locked(&mut self.end.lock(), draft, room)
        })
    }

    fn append_locked(&self, end: &mut End, draft: &mut [u8], room: Room) -> Result<Logged> {
        let number = end.next;
        let record = record::number_draft(draft, end.generation, number);
        let bytes = record.len() as u64;
        let at = self.ask_locked(end, bytes, room)?;
        if at + bytes - self.tail.flushed() > RING {
            self.flush()?;
        }
        self.tail.append(record);
        self.appended.store(number, Ordering::Release);
        end.next = number + 1;
        if at / PIECE != (at + bytes) / PIECE {
            self.wake.signal();
        }
        Ok(Logged { number, sealed: end.sealed })
    }

    /// Reserves well ahead if it can, or as much as is needed.
    fn reserve_from(&self, at: u64, needed: u64) -> Result<()> {
        self.reserve(at + ROOM).or_else(|e| if e.is_full() { self.reserve(needed) } else { Err(e) })
    }

    /// Has the file system keep blocks for the log up to `to`.
    fn reserve(&self, to: u64) -> Result<()> {
        let from = self.reserved.load(Ordering::Relaxed);
        if to <= from {
            return Ok(());
        }
        let file = self.file.lock().clone();
        match rustix::fs::fallocate(&*file, FallocateFlags::KEEP_SIZE, from, to - from) {
            Ok(()) => {}
            // This file system has no such call: a write will tell.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {}
            Err(e) => return Err(Error::io(&self.path, "reserve room", e.into())),
        }
        self.reserved.fetch_max(to, Ordering::Relaxed);
        Ok(())
    }

    fn check(&self) -> Result<()> {
        match self.failed.load(Ordering::Relaxed) {
            0 => Ok(()),
            errno => Err(Error::Io {
                path: self.path.clone(),
                action: "an earlier write failed; close the store and open it anew",
                source: io::Error::from_raw_os_error(errno),
            }),
        }
    }

    /// Remembers that the log failed: no change is taken any more.
    pub(crate) fn fail(&self, action: &'static str, source: io::Error) -> Error {
        let errno = source.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error());
        self.failed.store(errno, Ordering::Relaxed);
        tracing::error!("{}: {action}: {source}; no change is taken any more", self.path.display());
        Error::Io { path: self.path.clone(), action, source }
    }

    /// Writes the tail to the file, and before it what its records name to the journal; into the kernel's page cache, not to the device. The number of the last
    /// record that is there, and whether its bytes are.
    ///
    /// # Errors
    /// The write failed, now or earlier.
    pub(crate) fn flush(&self) -> Result<(u64, Held)> {
        let file = self.file.lock();
        self.flush_locked(&file)
    }

    fn flush_locked(&self, file: &File) -> Result<(u64, Held)> {
        self.check()?;
        let log_end = || {
            let number = self.appended.load(Ordering::Acquire);
            (number, self.tail.committed())
        };
        let ((number, to), held) = self.journal.write_batch(log_end);
        for (at, bytes) in self.tail.unflushed(self.tail.flushed(), to) {
            write_all(&*self.io, file, at, bytes).map_err(|e| self.fail("write", e))?;
        }
        self.tail.set_flushed(to);
        Ok((number, held))
    }

    /// Makes all records durable that were appended before the call.
    ///
    /// # Errors
    /// The write or the sync failed, now or earlier.
    pub(crate) fn sync(&self) -> Result<()> {
        let file = {
            let file = self.file.lock();
            self.flush_locked(&file)?;
            file.clone()
        };
        self.io.sync(file.as_raw_fd(), true).map_err(|e| self.fail("sync", e))
    }

    /// Whether so little room is reserved that removals may soon be refused.
    pub(crate) fn is_short(&self) -> bool {
        self.tail.committed() + MARGIN > self.reserved.load(Ordering::Relaxed)
    }

    /// Whether enough is left to write for the background to do so.
    pub(crate) fn has_piece(&self) -> bool {
        self.tail.committed() - self.tail.flushed() >= PIECE
    }

    /// Where the log ends now, and its file with all records up to there, which are sealed.
    pub(crate) fn position(&self) -> Result<(Position, Arc<File>, u64)> {
        let mut end = self.end.lock();
        end.seal();
        self.flush()?;
        let position = Position { at: self.tail.committed(), number: end.next };
        Ok((position, self.file.lock().clone(), end.generation))
    }

    /// Keeps others from appending, for as long as the result lives.
    pub(crate) fn freeze(&self) -> Frozen<'_> {
        Frozen { log: self, end: self.end.lock() }
    }
}

/// The log while nobody else appends.
#[derive(Debug)]
pub(crate) struct Frozen<'a> {
    log: &'a Log,
    end: MutexGuard<'a, End>,
}

impl Frozen<'_> {
    /// Where the log ends, all of it being in its file.
    pub(crate) fn position(&self) -> Result<Position> {
        self.log.flush()?;
        Ok(Position { at: self.log.tail.committed(), number: self.end.next })
    }

    /// From now on the log is this file, which holds all that the old one did and is durable under its name.
    pub(crate) fn switch(mut self, written: Written) {
        let Written { file, header, end } = written;
        let mut current = self.log.file.lock();
        *current = Arc::new(file);
        self.log.tail.switch(header.generation, end.at);
        self.log.reserved.store(end.at, Ordering::Relaxed);
        self.end.generation = header.generation;
        self.end.next = end.number;
        self.log.appended.store(end.number - 1, Ordering::Release);
        self.end.seal();
    }
}

/// Writes records into a new file.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    io: &'a dyn Io,
    path: &'a Path,
    written: Written,
    buffer: Vec<u8>,
}

/// Bytes that a writer gathers.
const GATHERED: usize = 1 << 20;

impl<'a> Writer<'a> {
    /// A writer into `file`, which is empty.
    pub(crate) fn new(io: &'a dyn Io, path: &'a Path, file: File, header: Header) -> Writer<'a> {
        let end = Position { at: HEADER as u64, number: header.first };
        let mut buffer = Vec::with_capacity(GATHERED + record::BODY_MAX);
        buffer.extend_from_slice(&header.encode());
        Writer { io, path, written: Written { file, header, end }, buffer }
    }

    /// Adds a record.
    ///
    /// # Errors
    /// No room; a failed write.
    pub(crate) fn add(&mut self, record: &Record<'_>) -> Result<()> {
        let before = self.buffer.len();
        let Written { header, end, .. } = &mut self.written;
        record::encode(record, header.generation, end.number, &mut self.buffer);
        end.number += 1;
        end.at += (self.buffer.len() - before) as u64;
        if self.buffer.len() >= GATHERED { self.write() } else { Ok(()) }
    }

    /// The number that the next record has.
    pub(crate) fn next_number(&self) -> u64 {
        self.written.end.number
    }

    fn write(&mut self) -> Result<()> {
        let at = self.written.end.at - self.buffer.len() as u64;
        let done = write_all(self.io, &self.written.file, at, &self.buffer);
        done.map_err(|e| Error::io(self.path, "write", e))?;
        self.buffer.clear();
        Ok(())
    }

    /// Makes all of it durable.
    ///
    /// # Errors
    /// As [`Writer::add`]; a failed sync.
    pub(crate) fn sync(&mut self) -> Result<()> {
        self.write()?;
        let synced = self.io.sync(self.written.file.as_raw_fd(), false);
        synced.map_err(|e| Error::io(self.path, "sync", e))
    }

    /// The file.
    pub(crate) fn end(self) -> Written {
        debug_assert!(self.buffer.is_empty(), "synced before");
        self.written
    }
}
