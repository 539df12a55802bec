//! Batches of reads and writes by io_uring: the device gets a batch at once. Single operations use plain
//! system calls, which are cheaper at depth one. So do batches without a free ring.

#[cfg(any(test, feature = "testing"))]
use super::testing::ShortCalls;
use super::{BlockingIo, Io, IoVec, Limit, ReadOp, WriteOp, advance, timed, total};
use io_uring::{IoUring, opcode, squeue, types};
use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::time::Duration;
use terrace_sync::Mutex;
use terrace_system::count;

/// Maximum number of operations in flight on one ring.
const DEPTH: u32 = 32;
/// Rings, and so concurrent batches.
const RINGS: usize = 6;
/// Rings at the end of the list, for reads alone: writeback must not delay the programs' reads.
const READ_RINGS: usize = 2;
/// Temporary errors of a ring.
const TRIED_AGAIN: [i32; 5] = [libc::EINTR, libc::EAGAIN, libc::EIO, libc::EINVAL, libc::EOPNOTSUPP];
/// Pause while the kernel is short of a resource.
const PAUSE: Duration = Duration::from_millis(1);

/// Whether this descriptor is a ring.
pub fn is_ring(fd: RawFd) -> bool {
    std::fs::read_link(format!("/proc/self/fd/{fd}"))
        .is_ok_and(|link| link.as_os_str() == "anon_inode:[io_uring]")
}

/// Whether a ring has accepted operations that are not done. Used for rings of a dead process: operations
/// continue while a descriptor of the ring is open.
///
/// # Errors
/// The ring's state cannot be read, for example for lack of a free descriptor.
pub fn is_busy(ring: RawFd) -> io::Result<bool> {
    Ok(shows_busy(&std::fs::read_to_string(format!("/proc/self/fdinfo/{ring}"))?))
}

fn shows_busy(fdinfo: &str) -> bool {
    match (count(fdinfo, "CachedSqHead"), count(fdinfo, "CqTail")) {
        // Each operation ends with one entry in the other queue.
        (Some(taken), Some(done)) => taken != done,
        // Kernels before 5.16 do not report the counts. Later ones omit them while an operation is under way.
        _ => !fdinfo.contains("SqThread:"),
    }
}

/// The implementation with io_uring.
pub struct UringIo {
    /// None: broken and given up.
    rings: Vec<Mutex<Option<IoUring>>>,
    plain: BlockingIo,
}

impl std::fmt::Debug for UringIo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UringIo")
    }
}

impl UringIo {
    /// Sets up the rings.
    ///
    /// # Errors
    /// If the kernel has no io_uring or forbids it; use [`BlockingIo`] then.
    pub fn new() -> io::Result<UringIo> {
        UringIo::over(BlockingIo::default())
    }

    /// The same, over a simulated kernel with short reads and writes.
    ///
    /// # Errors
    /// As [`UringIo::new`].
    #[cfg(any(test, feature = "testing"))]
    pub fn with_short_calls(short: ShortCalls) -> io::Result<UringIo> {
        UringIo::over(BlockingIo::with_short_calls(short))
    }

    fn over(plain: BlockingIo) -> io::Result<UringIo> {
        let rings: io::Result<_> = (0..RINGS).map(|_| Ok(Mutex::new(Some(IoUring::new(DEPTH)?)))).collect();
        Ok(UringIo { rings: rings?, plain })
    }

    fn for_writes(&self) -> &[Mutex<Option<IoUring>>] {
        &self.rings[..RINGS - READ_RINGS]
    }

    /// Does a batch on a free ring of `rings`, if there is one, the last first. An operation that was not
    /// done has no result.
    ///
    /// # Safety
    /// The memory of the operations lives until the call returns.
    unsafe fn on_one_of(rings: &[Mutex<Option<IoUring>>], batch: &[squeue::Entry]) -> Vec<Option<i32>> {
        let mut done = vec![None; batch.len()];
        let free = rings.iter().rev().filter(|_| batch.len() > 1).find_map(|ring| {
            let ring = ring.try_lock()?;
            ring.is_some().then_some(ring)
        });
        if let Some(mut slot) = free {
            let ring = slot.as_mut().expect("looked at above");
            // SAFETY: the caller's promise.
            if !unsafe { run(ring, batch, &mut done) } {
                *slot = None;
            }
        }
        done
    }

    /// Completes a write with plain calls if it was short, interrupted or never begun.
    ///
    /// # Safety
    /// As [`Io::write`].
    unsafe fn finish_write(&self, op: &WriteOp, res: Option<i32>) -> io::Result<()> {
        let done = bytes_done(res)?;
        if done == total(&op.bufs) {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.plain.write(op.fd, op.offset + done as u64, &advance(&op.bufs, done)) }
    }

    /// Completes a read with plain calls, which also find the end of the file after a short read.
    ///
    /// # Safety
    /// As [`Io::read`].
    unsafe fn finish_read(&self, op: &ReadOp, res: Option<i32>) -> io::Result<usize> {
        match (bytes_done(res)?, res) {
            (0, Some(0)) => Ok(0),
            (done, _) if done == total(&op.bufs) => Ok(done),
            // SAFETY: the caller's promise.
            (done, _) => unsafe { self.plain.read_on(op.fd, op.offset, &op.bufs, done) },
        }
    }
}

/// Bytes that an operation has done, from where plain calls continue.
fn bytes_done(res: Option<i32>) -> io::Result<usize> {
    match res {
        None => Ok(0),
        Some(n) if n >= 0 => Ok(n as usize),
        // A plain call finds out whether the other errors persist (`blocking`).
        Some(e) if TRIED_AGAIN.contains(&-e) => Ok(0),
        Some(e) => Err(io::Error::from_raw_os_error(-e)),
    }
}

/// Does a batch on one ring. False: the ring is broken, and operations that were not done have no result.
///
/// # Safety
/// The memory of the operations lives until the call returns.
unsafe fn run(ring: &mut IoUring, batch: &[squeue::Entry], done: &mut [Option<i32>]) -> bool {
    for (i, sqe) in batch.iter().enumerate() {
        let sqe = sqe.clone().user_data(i as u64);
        // SAFETY: buffers and lists live until the batch has completed; the queue has room for it.
        unsafe { ring.submission().push(&sqe).expect("submission queue is as deep as a batch") };
    }
    let (mut left, mut works) = (batch.len(), true);
    while left > 0 {
        let waited = if works { ring.submit_and_wait(1) } else { Ok(0) };
        let before = left;
        for c in ring.completion() {
            done[c.user_data() as usize] = Some(c.result());
            left -= 1;
        }
        match waited.map_err(|e| e.raw_os_error()) {
            // Broken. Operations that the ring has not accepted never begin. Accepted ones end, and the
            // memory must last until then.
            Err(errno) if !matches!(errno, Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {
                tracing::error!(
                    "a ring of io_uring fails (errno {errno:?}); terrace continues without this ring"
                );
                works = false;
                left -= ring.submission().len();
            }
            _ if before == left => std::thread::sleep(PAUSE),
            _ => {}
        }
    }
    works
}

impl Io for UringIo {
    unsafe fn read(&self, fd: RawFd, offset: u64, bufs: &[IoVec]) -> io::Result<usize> {
        // SAFETY: the caller's promise.
        unsafe { self.plain.read(fd, offset, bufs) }
    }
    unsafe fn write(&self, fd: RawFd, offset: u64, bufs: &[IoVec]) -> io::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.plain.write(fd, offset, bufs) }
    }
    unsafe fn read_batch(&self, ops: &mut [ReadOp]) {
        for batch in ops.chunks_mut(DEPTH as usize) {
            let parts: Vec<Cow<'_, [IoVec]>> = batch.iter().map(|op| self.plain.part(&op.bufs)).collect();
            let sqe = |(op, part): (&ReadOp, &Cow<'_, [IoVec]>)| {
                opcode::Readv::new(types::Fd(op.fd), part.as_ptr().cast(), part.len() as u32)
                    .offset(op.offset)
                    .build()
            };
            let sqes: Vec<squeue::Entry> = batch.iter().zip(&parts).map(sqe).collect();
            // SAFETY: the caller's promise; the lists live until the batch is done.
            let done = unsafe { UringIo::on_one_of(&self.rings, &sqes) };
            drop(parts);
            for (op, res) in batch.iter_mut().zip(done) {
                // SAFETY: the caller's promise.
                op.result = unsafe { self.finish_read(op, res) };
            }
        }
    }
    unsafe fn read_batch_within(&self, ops: &mut [ReadOp], limits: &[&Limit]) {
        // SAFETY: the caller's promise.
        let Some(done) = (unsafe { timed::read(ops, limits) }) else {
            // SAFETY: likewise.
            return unsafe { self.read_batch(ops) };
        };
        for (op, done) in ops.iter_mut().zip(done) {
            let res = match done {
                Ok(n) => n as i32,
                Err(err) => match err.raw_os_error() {
                    Some(errno) => -errno,
                    None => {
                        op.result = Err(err);
                        continue;
                    }
                },
            };
            // SAFETY: the caller's promise.
            op.result = unsafe { self.finish_read(op, Some(res)) };
        }
    }
    unsafe fn write_within(&self, fd: RawFd, offset: u64, buf: IoVec, limit: &Limit) -> io::Result<()> {
        // SAFETY: the caller's promise.
        let done = match unsafe { timed::write(fd, offset, buf, limit) } {
            Some(Err(err)) if err.raw_os_error().is_none() => return Err(err),
            Some(done) => bytes_done(Some(
                done.map_or_else(|err| -err.raw_os_error().unwrap_or(libc::EIO), |n| n as i32),
            ))?,
            None => 0,
        };
        match advance(&[buf], done).as_slice() {
            [] => Ok(()),
            // SAFETY: the caller's promise.
            rest => unsafe { self.plain.write(fd, offset + done as u64, rest) },
        }
    }
    fn sync_within(&self, fd: RawFd, limit: &Limit) -> io::Result<()> {
        match timed::sync(fd, limit) {
            Some(Err(err)) if err.raw_os_error() == Some(libc::EAGAIN) => self.plain.sync(fd, true),
            Some(done) => done,
            None => self.plain.sync(fd, true),
        }
    }
    unsafe fn write_batch(&self, ops: &mut [WriteOp]) {
        if ops.iter().any(|op| op.drop_behind) {
            // Buffered writes copy, one after another, under the file's lock: a ring would pass them to
            // worker threads.
            // SAFETY: the caller's promise.
            return unsafe { self.plain.write_batch(ops) };
        }
        for batch in ops.chunks_mut(DEPTH as usize) {
            let parts: Vec<Cow<'_, [IoVec]>> = batch.iter().map(|op| self.plain.part(&op.bufs)).collect();
            let sqe = |(op, part): (&WriteOp, &Cow<'_, [IoVec]>)| {
                opcode::Writev::new(types::Fd(op.fd), part.as_ptr().cast(), part.len() as u32)
                    .offset(op.offset)
                    .build()
            };
            let sqes: Vec<squeue::Entry> = batch.iter().zip(&parts).map(sqe).collect();
            // SAFETY: the caller's promise; the lists live until the batch is done.
            let done = unsafe { UringIo::on_one_of(self.for_writes(), &sqes) };
            drop(parts);
            for (op, res) in batch.iter_mut().zip(done) {
                // SAFETY: the caller's promise.
                op.result = unsafe { self.finish_write(op, res) };
            }
        }
    }
    fn sync(&self, fd: RawFd, data_only: bool) -> io::Result<()> {
        self.plain.sync(fd, data_only)
    }
    fn sync_fs(&self, fd: RawFd) -> io::Result<()> {
        self.plain.sync_fs(fd)
    }
    fn truncate(&self, fd: RawFd, size: u64) -> io::Result<()> {
        self.plain.truncate(fd, size)
    }

    fn allocate(&self, fd: RawFd, range: Range<u64>) -> io::Result<()> {
        self.plain.allocate(fd, range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    fn write(io: &UringIo) {
        let file = tempfile::tempfile().unwrap();
        let mut pages: Vec<Vec<u8>> = (0..100u8).map(|i| vec![i; 5000]).collect();
        let mut ops: Vec<WriteOp> = pages
            .iter_mut()
            .zip(0u64..)
            .map(|(page, i)| WriteOp {
                fd: file.as_raw_fd(),
                offset: i * 5000,
                bufs: vec![IoVec { ptr: page.as_mut_ptr(), len: page.len() }],
                drop_behind: false,
                result: Err(io::Error::other("not done")),
            })
            .collect();
        // SAFETY: `pages` outlives the call.
        unsafe { io.write_batch(&mut ops) };
        assert!(ops.iter().all(|op| op.result.is_ok()), "{ops:?}");
        let mut back = vec![0; 500_000];
        file.read_exact_at(&mut back, 0).unwrap();
        assert!(back == pages.concat());
    }

    /// Reads 100 pieces of 5000 bytes in one batch. The last one extends beyond the end of the file.
    fn read(io: &UringIo) {
        let content: Vec<u8> = (0..98u32 * 5000 + 123).map(|i| (i / 7) as u8).collect();
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&content, 0).unwrap();
        let mut pieces = vec![vec![0u8; 5000]; 100];
        let mut ops: Vec<ReadOp> = pieces
            .iter_mut()
            .zip(0u64..)
            .map(|(piece, i)| {
                let (first, rest) = piece.split_at_mut(1000);
                let bufs = [first, rest].map(|part| IoVec { ptr: part.as_mut_ptr(), len: part.len() });
                let result = Err(io::Error::other("not done"));
                ReadOp { fd: file.as_raw_fd(), offset: i * 5000, bufs: bufs.to_vec(), result }
            })
            .collect();
        // SAFETY: `pieces` outlives the call.
        unsafe { io.read_batch(&mut ops) };
        let bytes: Vec<usize> = ops.iter().map(|op| *op.result.as_ref().unwrap()).collect();
        assert_eq!(bytes, [vec![5000; 98], vec![123, 0]].concat());
        assert!(pieces.concat()[..content.len()] == content);
    }

    #[test]
    fn batch_of_reads_ends_where_the_file_ends() {
        read(&UringIo::new().unwrap());
        read(&UringIo::with_short_calls(ShortCalls::new(1, 500)).unwrap());
        let busy = UringIo::new().unwrap();
        let _rings: Vec<_> = busy.rings.iter().map(|ring| ring.lock()).collect();
        read(&busy);
    }

    #[test]
    fn end_of_a_file_is_not_read_again_from_the_start() {
        let calls = ShortCalls::new(1, 0);
        read(&UringIo::with_short_calls(calls.clone()).unwrap());
        // One call for each operation, and one more that finds the end of the file.
        assert_eq!(calls.calls(), 100 + 1);
    }

    #[test]
    fn reads_have_rings_that_writeback_does_not_take() {
        let io = UringIo::new().unwrap();
        let _writeback: Vec<_> = io.for_writes().iter().map(|ring| ring.lock()).collect();
        assert!(io.rings.iter().filter(|ring| ring.try_lock().is_some()).count() == READ_RINGS);
        let mut pages = [[1u8; 4096]; 2];
        let zero = std::fs::File::open("/dev/zero").unwrap();
        let vecs = pages.each_mut().map(|page| IoVec { ptr: page.as_mut_ptr(), len: page.len() });
        let sqe = |vec: &IoVec| {
            opcode::Readv::new(types::Fd(zero.as_raw_fd()), std::ptr::from_ref(vec).cast(), 1).build()
        };
        // SAFETY: pages and list outlive the call.
        let done = unsafe { UringIo::on_one_of(&io.rings, &vecs.each_ref().map(sqe)) };
        assert_eq!(done, [Some(4096), Some(4096)], "on a ring, though writeback has all of its own");
        // SAFETY: as above.
        let none = unsafe { UringIo::on_one_of(io.for_writes(), &vecs.each_ref().map(sqe)) };
        assert_eq!(none, [None, None], "these are busy");
    }

    #[test]
    fn batch_of_reads_reports_each_error_at_its_read() {
        let io = UringIo::new().unwrap();
        let (file, unreadable) = (tempfile::tempfile().unwrap(), std::io::pipe().unwrap().1);
        file.write_all_at(&[7; 4096], 0).unwrap();
        let mut pages = vec![vec![0u8; 4096]; 3];
        let fds = [file.as_raw_fd(), unreadable.as_raw_fd(), file.as_raw_fd()];
        let op = |(page, fd): (&mut Vec<u8>, RawFd)| {
            let bufs = vec![IoVec { ptr: page.as_mut_ptr(), len: page.len() }];
            ReadOp { fd, offset: 0, bufs, result: Err(io::Error::other("not done")) }
        };
        let mut ops: Vec<ReadOp> = pages.iter_mut().zip(fds).map(op).collect();
        // SAFETY: `pages` outlives the call.
        unsafe { io.read_batch(&mut ops) };
        let read: Vec<Option<usize>> = ops.into_iter().map(|op| op.result.ok()).collect();
        assert_eq!(read, [Some(4096), None, Some(4096)]);
        assert!(pages[0] == [7; 4096] && pages[2] == [7; 4096]);
    }

    #[test]
    fn a_batch_does_not_wait_for_the_batches_of_others() {
        let io = UringIo::new().unwrap();
        let _busy: Vec<_> = io.rings.iter().map(|ring| ring.lock()).collect();
        write(&io);
    }

    #[test]
    fn a_ring_is_busy_until_what_it_has_taken_is_done() {
        let mut ring = IoUring::new(DEPTH).unwrap();
        let (source, mut sink) = std::io::pipe().unwrap();
        assert!(is_ring(ring.as_raw_fd()) && !is_ring(source.as_raw_fd()));
        let mut byte = [0u8; 1];
        for _ in 0..2 {
            assert!(!is_busy(ring.as_raw_fd()).unwrap());
            let sqe = opcode::Read::new(types::Fd(source.as_raw_fd()), byte.as_mut_ptr(), 1).build();
            // SAFETY: the byte outlives the ring's use of it.
            unsafe { ring.submission().push(&sqe).unwrap() };
            ring.submit().unwrap();
            assert!(is_busy(ring.as_raw_fd()).unwrap(), "the pipe is empty");
            std::io::Write::write_all(&mut sink, b"x").unwrap();
            ring.submit_and_wait(1).unwrap();
            assert!(!is_busy(ring.as_raw_fd()).unwrap(), "whether it was noticed or not");
            assert_eq!(ring.completion().count(), 1);
        }
        assert!(shows_busy("pos:\t0\nflags:\t02000002\n"), "it could not be looked at");
        assert!(!shows_busy("flags:\t02000002\nSqThread:\t-1\n"), "an old kernel");
    }

    #[test]
    fn short_writes_are_resumed() {
        write(&UringIo::with_short_calls(ShortCalls::new(1, 500)).unwrap());
    }

    #[test]
    fn a_ring_that_is_broken_is_given_up_and_the_batch_is_written() {
        let io = UringIo::new().unwrap();
        for ring in &io.rings {
            // Puts another kind of file at the ring's descriptor: entering it fails permanently.
            let ring = ring.lock();
            let null = std::fs::File::open("/dev/null").unwrap();
            // SAFETY: both descriptors are open; the ring's is the ring's alone.
            assert!(unsafe { libc::dup2(null.as_raw_fd(), ring.as_ref().unwrap().as_raw_fd()) } >= 0);
        }
        write(&io);
        assert!(io.for_writes().iter().any(|ring| ring.lock().is_none()));
    }
}
