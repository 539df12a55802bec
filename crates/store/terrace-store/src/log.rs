//! The record log: records are appended to the tail in the segment. The tail goes to the file in large
//! pieces.
//!
//! Two locks: the end's, to append; the file's, to write the tail out. The end's is taken first. After a
//! failed write or sync the content of the file is unknown, so the log refuses all later changes.

use crate::error::{Error, Result};
use crate::journal::{Coverage, Journal};
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
use terrace_io::Io;
use terrace_sync::{Mutex, MutexGuard, Wakeup};

/// Room reserved on the disk at once, bytes.
const RESERVE: u64 = 4 << 20;
/// Room kept for removals when the disk is full, bytes.
const MARGIN: u64 = 256 << 10;
/// Part of it kept for clears of buckets and for the store's own records.
const OWN: u64 = 32 << 10;
/// Room that lets a log on a full disk go on, bytes.
pub(crate) const ROOM: u64 = MARGIN + RESERVE;
/// The sync thread writes the tail out once it has this size.
const PIECE: u64 = RING / 4;

/// The effect of a record on the room in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// Refused when the disk is nearly full.
    Takes,
    /// Refused when the disk is full.
    Gives,
    /// Like `Gives`, and may use the last of the margin. Clearing a bucket takes one short record, and is the
    /// last way to make room.
    Clears,
    /// Like `Clears`, for the store's own records, which closing needs.
    Own,
}

#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    io: Arc<dyn Io>,
    tail: Tail,
    end: Mutex<End>,
    file: Mutex<Arc<File>>,
    pub journal: Journal,
    /// Number of the last record.
    appended: AtomicU64,
    /// Offset up to which the file has blocks reserved.
    reserved: AtomicU64,
    /// errno of a failed write or sync. 0: none.
    failed: AtomicI32,
    wake: Arc<Wakeup>,
}

/// The next record's place.
#[derive(Debug)]
pub(crate) struct End {
    generation: u64,
    next: u64,
    /// Last record that a sync or a compaction may cover: see [`Logged::sealed`].
    sealed: u64,
    /// Changes are refused, see [`Log::close`].
    is_closed: bool,
}

thread_local! {
    /// Buffer to encode a record before its thread takes the lock of the end.
    static DRAFT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl End {
    /// Seals all records. Returns the number of the last.
    fn seal(&mut self) -> u64 {
        self.sealed = self.next - 1;
        self.sealed
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Logged {
    pub number: u64,
    /// Number of the last sealed record. If a later record named an extent and this record replaces it, the
    /// extent is free at once. After a power cut one mark may cover both records. Otherwise the start trusts
    /// the earlier record only if it finds its bytes.
    pub sealed: u64,
}

/// A position in the log: its offset, and the number of the record there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub at: u64,
    pub number: u64,
}

/// A complete file of records.
#[derive(Debug)]
pub(crate) struct Written {
    pub file: File,
    pub header: Header,
    /// Where the next record goes.
    pub end: Position,
}

impl Log {
    /// Opens the log over the file `written`. The tail is empty.
    ///
    /// # Errors
    /// Errors of the file system, except a full disk: then changes fail, and the start succeeds.
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
        // On a full disk, blobs can be read. Blobs can be removed as far as room reserved earlier allows.
        match log.reserve(end.at + RESERVE).or_else(|_| log.reserve(end.at + MARGIN)) {
            Err(e) if e.is_full() => tracing::warn!("{e}"),
            reserved => reserved?,
        }
        log.tail.begin(header.store);
        Ok(log)
    }

    /// Refuses changes from now on, except the store's own records. The next sync covers all earlier records.
    pub(crate) fn close(&self) {
        self.end.lock().is_closed = true;
    }

    /// Checks whether a `Takes` record of `bytes` would be accepted. The margin for removals then holds it,
    /// whatever other threads append.
    ///
    /// # Errors
    /// The disk is full; an earlier write of the log failed; the store is closed.
    pub(crate) fn ask(&self, bytes: u64) -> Result<()> {
        self.ask_locked(&self.end.lock(), bytes, Room::Takes).map(drop)
    }

    /// Checks whether a record of `bytes` may be appended. Returns its offset.
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

    /// Marks the tail in the segment as empty: the store is closed.
    pub(crate) fn finish(&self) {
        self.tail.end();
    }

    /// Seals all records, so that a mark may cover them. Returns the number of the last.
    pub(crate) fn last(&self) -> u64 {
        self.end.lock().seal()
    }

    /// Number of the last record, without sealing.
    pub(crate) fn appended(&self) -> u64 {
        self.appended.load(Ordering::Acquire)
    }

    /// Size of the log with its tail, bytes.
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

    /// Reserves well ahead, or just the needed room if the disk has no more.
    fn reserve_from(&self, at: u64, needed: u64) -> Result<()> {
        self.reserve(at + ROOM).or_else(|e| if e.is_full() { self.reserve(needed) } else { Err(e) })
    }

    /// Reserves blocks of the file up to the offset `to`.
    fn reserve(&self, to: u64) -> Result<()> {
        let from = self.reserved.load(Ordering::Relaxed);
        if to <= from {
            return Ok(());
        }
        let file = self.file.lock().clone();
        match rustix::fs::fallocate(&*file, FallocateFlags::KEEP_SIZE, from, to - from) {
            Ok(()) => {}
            // The file system has no fallocate: a write reports a full disk.
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
                action: "an earlier write failed; close the store and open it again",
                source: io::Error::from_raw_os_error(errno),
            }),
        }
    }

    /// Marks the log as failed: it refuses all changes from now on.
    pub(crate) fn fail(&self, action: &'static str, source: io::Error) -> Error {
        let errno = source.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error());
        self.failed.store(errno, Ordering::Relaxed);
        tracing::error!(
            "{}: {action}: {source}; the store refuses all changes until it is opened again",
            self.path.display()
        );
        Error::Io { path: self.path.clone(), action, source }
    }

    /// Writes the journal, then the tail to the file: into the kernel's page cache, not to the device.
    /// Returns the number of the last record written, and how much of the heap bytes the kernel holds.
    ///
    /// # Errors
    /// The write failed, now or earlier.
    pub(crate) fn flush(&self) -> Result<(u64, Coverage)> {
        let file = self.file.lock();
        self.flush_locked(&file)
    }

    fn flush_locked(&self, file: &File) -> Result<(u64, Coverage)> {
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

    /// Makes all records appended before the call durable.
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

    /// Whether the tail is large enough for the sync thread to write it out.
    pub(crate) fn has_piece(&self) -> bool {
        self.tail.committed() - self.tail.flushed() >= PIECE
    }

    /// The end of the log, and its file with all records up to there. Seals them.
    pub(crate) fn position(&self) -> Result<(Position, Arc<File>, u64)> {
        let mut end = self.end.lock();
        end.seal();
        self.flush()?;
        let position = Position { at: self.tail.committed(), number: end.next };
        Ok((position, self.file.lock().clone(), end.generation))
    }

    /// Blocks appends while the result lives.
    pub(crate) fn freeze(&self) -> Frozen<'_> {
        Frozen { log: self, end: self.end.lock() }
    }
}

/// The log while appends are blocked.
#[derive(Debug)]
pub(crate) struct Frozen<'a> {
    log: &'a Log,
    end: MutexGuard<'a, End>,
}

impl Frozen<'_> {
    /// The end of the log, after the tail was written to the file.
    pub(crate) fn position(&self) -> Result<Position> {
        self.log.flush()?;
        Ok(Position { at: self.log.tail.committed(), number: self.end.next })
    }

    /// Switches the log to a new file, which is durable under its name and has all earlier records.
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

/// Buffer size of a writer, bytes.
const GATHERED: usize = 1 << 20;

impl<'a> Writer<'a> {
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

    /// Makes all records durable.
    ///
    /// # Errors
    /// As [`Writer::add`]; a failed sync.
    pub(crate) fn sync(&mut self) -> Result<()> {
        self.write()?;
        let synced = self.io.sync(self.written.file.as_raw_fd(), false);
        synced.map_err(|e| Error::io(self.path, "sync", e))
    }

    pub(crate) fn end(self) -> Written {
        debug_assert!(self.buffer.is_empty(), "synced before");
        self.written
    }
}
