//! Access to the bytes of one device of a tier. Positions and lengths are multiples of 4096. Buffers are
//! page-aligned, as direct I/O requires ([`terrace_io::AlignedBuf`]).

use std::fmt::Debug;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use terrace_io::{AlignedBuf, Io, IoVec, Limit, ReadOp};

/// Time limit of a read; after it the source answers.
pub(crate) const READ_MAX: Duration = Duration::from_secs(1);
/// Time limit of a write or flush; after it the call has failed.
const WRITE_MAX: Duration = Duration::from_secs(10);

/// One read of a batch.
#[derive(Debug)]
pub struct ReadPiece {
    /// Byte offset.
    pub at: u64,
    /// Destination buffers.
    pub bufs: Vec<IoVec>,
    /// Result: success if all of it was read.
    pub result: io::Result<()>,
}

impl ReadPiece {
    /// A read with no result yet.
    pub fn new(at: u64, bufs: Vec<IoVec>) -> ReadPiece {
        ReadPiece { at, bufs, result: Err(io::ErrorKind::WouldBlock.into()) }
    }
}

/// A device.
pub trait Medium: Send + Sync + Debug {
    /// Reads all of `bufs`, in order, from byte `at` on.
    ///
    /// # Errors
    /// The device's; `UnexpectedEof` behind its end.
    ///
    /// # Safety
    /// Each of `bufs` must be valid for writes until the call returns.
    unsafe fn read_vectored(&self, at: u64, bufs: &[IoVec]) -> io::Result<()>;

    /// Does several reads, concurrently where the medium can.
    ///
    /// # Safety
    /// As [`Medium::read_vectored`], for each piece.
    unsafe fn read_batch(&self, pieces: &mut [ReadPiece]) {
        for piece in pieces {
            // SAFETY: the caller's promise.
            piece.result = unsafe { self.read_vectored(piece.at, &piece.bufs) };
        }
    }

    /// Fills `buf` from byte `at` on.
    ///
    /// # Errors
    /// As [`Medium::read_vectored`].
    fn read(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        // SAFETY: the buffer is borrowed for the whole call.
        unsafe { self.read_vectored(at, &[IoVec { ptr: buf.as_mut_ptr(), len: buf.len() }]) }
    }

    /// Writes all of `buf` to byte `at` and on.
    ///
    /// # Errors
    /// The device's; any part of the data may have been written.
    fn write(&self, at: u64, buf: &[u8]) -> io::Result<()>;

    /// Makes all earlier writes durable: they survive a power cut.
    ///
    /// # Errors
    /// The device's. The state of all writes since the last flush is then unknown.
    fn flush(&self) -> io::Result<()>;

    /// Opens the region at byte `at`: invalidates older fillings, and makes all earlier writes durable before
    /// any later one. `page`: a buffer of one page.
    ///
    /// # Errors
    /// As [`Medium::write`] and [`Medium::flush`].
    fn open_region(&self, at: u64, page: &mut [u8]) -> io::Result<()> {
        page.fill(0);
        self.write(at, page)?;
        self.flush()
    }

    /// Its size in bytes.
    fn bytes(&self) -> u64;

    /// Whether the medium takes writes at the moment. Called under the state lock.
    fn is_ready(&self) -> bool {
        true
    }

    /// Waits until the medium is ready, at most until the given time.
    fn wait_ready(&self, _until: Instant) {}

    /// Whether durable data on the medium may stand for the source: only on a device of this machine.
    fn takes_undestaged(&self) -> bool {
        self.file().is_some()
    }

    /// Reason of a temporary failure, if any: reads fail at once, and writes are refused.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Largest memory use, bytes.
    fn memory_bytes(&self) -> u64 {
        0
    }

    /// Ends the use of the medium. Nothing is written afterwards.
    fn close(&self) {}

    /// Descriptor and time limit of a file or block device, for batched reads of several targets. None:
    /// another medium.
    fn file(&self) -> Option<(RawFd, &Limit)> {
        None
    }
}

/// Bytes per step of a check or an erase: less than a huge page, which the supervisor would keep.
const STEP: usize = 128 << 10;

/// Whether `[from, to)` contains only zeros.
///
/// # Errors
/// As [`Medium::read`].
pub(crate) fn is_zero(medium: &dyn Medium, from: u64, to: u64) -> io::Result<bool> {
    for at in (from..to).step_by(STEP) {
        let len = STEP.min((to - at) as usize);
        let zero = AlignedBuf::default()
            .with(len, |buf| medium.read(at, buf).map(|()| buf.iter().all(|byte| *byte == 0)))?;
        if !zero {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Writes zeros to `[from, to)`.
///
/// # Errors
/// As [`Medium::write`].
pub(crate) fn erase(medium: &dyn Medium, from: u64, to: u64) -> io::Result<()> {
    AlignedBuf::default().with(STEP, |zeros| {
        zeros.fill(0);
        (from..to).step_by(STEP).try_for_each(|at| medium.write(at, &zeros[..STEP.min((to - at) as usize)]))
    })
}

/// A file or a block device.
#[derive(Debug)]
pub struct FileMedium {
    fd: RawFd,
    io: Arc<dyn Io>,
    bytes: u64,
    reads: Limit,
    writes: Limit,
}

impl FileMedium {
    /// A medium over `fd`, which is open with O_DIRECT and outlives it. `bytes`: its size.
    pub fn new(fd: RawFd, io: Arc<dyn Io>, bytes: u64) -> FileMedium {
        let reads = Limit::new(READ_MAX);
        FileMedium { fd, io, bytes, writes: reads.for_time(WRITE_MAX), reads }
    }

    fn check(&self, at: u64, len: usize) -> io::Result<()> {
        if at.checked_add(len as u64).is_some_and(|end| end <= self.bytes) {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("{len} bytes at {at} of {}", self.bytes)))
    }
}

/// Turns a short read into an error.
fn whole(read: io::Result<usize>, want: usize) -> io::Result<()> {
    if read? == want { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

pub(super) fn total(bufs: &[IoVec]) -> usize {
    bufs.iter().map(|buf| buf.len).sum()
}

impl Medium for FileMedium {
    unsafe fn read_vectored(&self, at: u64, bufs: &[IoVec]) -> io::Result<()> {
        let want = total(bufs);
        self.check(at, want)?;
        let mut op = ReadOp { fd: self.fd, offset: at, bufs: bufs.to_vec(), result: Ok(0) };
        // SAFETY: the caller's promise.
        unsafe { self.io.read_batch_within(std::slice::from_mut(&mut op), &[&self.reads]) };
        whole(op.result, want)
    }

    unsafe fn read_batch(&self, pieces: &mut [ReadPiece]) {
        let op = |piece: &mut ReadPiece| {
            let bufs = std::mem::take(&mut piece.bufs);
            ReadOp { fd: self.fd, offset: piece.at, bufs, result: Err(io::ErrorKind::WouldBlock.into()) }
        };
        let mut ops: Vec<ReadOp> = pieces.iter_mut().map(op).collect();
        // SAFETY: the caller's promise.
        unsafe { self.io.read_batch_within(&mut ops, &vec![&self.reads; pieces.len()]) };
        for (piece, op) in pieces.iter_mut().zip(ops) {
            let want = total(&op.bufs);
            piece.result = whole(op.result, want);
            piece.bufs = op.bufs;
        }
    }

    fn write(&self, at: u64, buf: &[u8]) -> io::Result<()> {
        self.check(at, buf.len())?;
        let vec = IoVec { ptr: buf.as_ptr().cast_mut(), len: buf.len() };
        // SAFETY: a write only reads the buffer, which is borrowed for the whole call.
        unsafe { self.io.write_within(self.fd, at, vec, &self.writes) }
    }

    fn flush(&self) -> io::Result<()> {
        self.io.sync_within(self.fd, &self.writes)
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn file(&self) -> Option<(RawFd, &Limit)> {
        Some((self.fd, &self.reads))
    }

    fn is_ready(&self) -> bool {
        !self.reads.is_passed()
    }

    fn trouble(&self) -> Option<String> {
        self.reads.is_passed().then(|| self.reads.error().to_string())
    }
}

#[cfg(test)]
mod tests;
