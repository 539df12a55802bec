//! Plain preadv and pwritev on the calling thread: the fastest way for a single operation.

use super::page_cache::{borrow, is_refusal, leave_direct, through_page_cache};
use super::scattered::Scattered;
#[cfg(any(test, feature = "testing"))]
use super::testing::ShortCalls;
use super::{Io, IoVec, WriteOp, advance, total};
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::Errno;
use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use terrace_shm::PAGE_SIZE;

/// The implementation with plain system calls.
#[derive(Debug, Default)]
pub struct BlockingIo {
    /// Kernel or file system lack RWF_DONTCACHE.
    keeps_all: AtomicBool,
    #[cfg(any(test, feature = "testing"))]
    short: ShortCalls,
}

/// IOV_MAX of Linux.
const VECS_MAX: usize = 1024;
/// Number of calls that may end inside the same page before the read fails.
const STALLS_MAX: u32 = 8;

fn check(n: isize) -> Result<usize, Errno> {
    if n >= 0 {
        Ok(n as usize)
    } else {
        Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
    }
}

impl BlockingIo {
    /// The same, over a simulated kernel with short reads and writes.
    #[cfg(any(test, feature = "testing"))]
    pub fn with_short_calls(short: ShortCalls) -> BlockingIo {
        BlockingIo { short, ..BlockingIo::default() }
    }

    /// The part of `bufs` for the next call: all of it, except for a test's short call.
    pub(super) fn part<'a>(&self, bufs: &'a [IoVec]) -> Cow<'a, [IoVec]> {
        #[cfg(any(test, feature = "testing"))]
        return self.short.cut(bufs);
        #[cfg(not(any(test, feature = "testing")))]
        Cow::Borrowed(bufs)
    }

    /// Continues a read after `done` bytes. Returns the total.
    ///
    /// # Safety
    /// As [`Io::read`].
    pub(super) unsafe fn read_on(
        &self,
        fd: RawFd,
        offset: u64,
        bufs: &[IoVec],
        mut done: usize,
    ) -> io::Result<usize> {
        let want = total(bufs);
        let (mut stalls, mut buffered, mut refused) = (0, None::<OwnedFd>, false);
        while done < want {
            let left = advance(bufs, done);
            let part = self.part(&left);
            let at = offset + done as u64;
            let fd = buffered.as_ref().map_or(fd, AsRawFd::as_raw_fd);
            // SAFETY: IoVec has the layout of iovec; the caller vouches for the memory.
            let n = check(unsafe {
                libc::preadv64(fd, part.as_ptr().cast(), part.len().min(VECS_MAX) as i32, at as i64)
            });
            match n {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(Errno::IO) if buffered.is_none() => {
                    buffered = Some(through_page_cache(fd, OFlags::RDONLY).ok_or(Errno::IO)?);
                }
                // A direct read cannot continue inside a block. The last one ended there, usually at the end
                // of the file.
                Err(Errno::INVAL) if !done.is_multiple_of(PAGE_SIZE) => {
                    if rustix::fs::fstat(borrow(fd))?.st_size as u64 <= at {
                        break;
                    }
                    stalls += 1;
                    if stalls > STALLS_MAX {
                        return Err(Errno::IO.into());
                    }
                    done = done / PAGE_SIZE * PAGE_SIZE;
                }
                Err(e) if is_refusal(e) && !refused && leave_direct(fd) => refused = true,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(done)
    }

    /// As [`Io::write`], with the flags of pwritev2(2).
    ///
    /// # Safety
    /// As [`Io::write`].
    unsafe fn write_with(&self, fd: RawFd, offset: u64, bufs: &[IoVec], flags: i32) -> io::Result<()> {
        let want = total(bufs);
        let (mut done, mut buffered, mut refused) = (0, None::<OwnedFd>, false);
        while done < want {
            let left = advance(bufs, done);
            let part = self.part(&left);
            let fd = buffered.as_ref().map_or(fd, AsRawFd::as_raw_fd);
            let flags = if self.keeps_all.load(Ordering::Relaxed) { 0 } else { flags };
            let vecs = part.len().min(VECS_MAX) as i32;
            // SAFETY: IoVec has the layout of iovec; the caller vouches for the memory.
            let n = check(unsafe {
                libc::pwritev2(fd, part.as_ptr().cast(), vecs, (offset + done as u64) as i64, flags)
            });
            match n {
                Ok(0) => return Err(Errno::NOSPC.into()),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP) if flags != 0 => self.keeps_all.store(true, Ordering::Relaxed),
                Err(Errno::IO) if buffered.is_none() => {
                    buffered = Some(through_page_cache(fd, OFlags::WRONLY).ok_or(Errno::IO)?);
                }
                Err(e) if is_refusal(e) && !refused && leave_direct(fd) => refused = true,
                Err(e) => return Err(e.into()),
            }
        }
        // The device must report its failure now, as in a direct call.
        Ok(match buffered {
            Some(buffered) => rustix::fs::fdatasync(buffered),
            None if refused => rustix::fs::fdatasync(borrow(fd)),
            None => Ok(()),
        }?)
    }
}

impl Io for BlockingIo {
    unsafe fn read(&self, fd: RawFd, offset: u64, bufs: &[IoVec]) -> io::Result<usize> {
        // SAFETY: the caller's promise.
        unsafe { self.read_on(fd, offset, bufs, 0) }
    }

    unsafe fn write(&self, fd: RawFd, offset: u64, bufs: &[IoVec]) -> io::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.write_with(fd, offset, bufs, 0) }
    }

    unsafe fn write_batch(&self, ops: &mut [WriteOp]) {
        let scattered = Scattered::of(ops);
        for op in ops.iter_mut() {
            let fd = scattered.as_ref().and_then(|way| way.descriptor(op)).unwrap_or(op.fd);
            let flags = if op.drop_behind { libc::RWF_DONTCACHE } else { 0 };
            // SAFETY: the caller's promise.
            op.result = unsafe { self.write_with(fd, op.offset, &op.bufs, flags) };
        }
        if let Some(way) = scattered {
            way.settle(ops);
        }
    }

    fn sync(&self, fd: RawFd, data_only: bool) -> io::Result<()> {
        Ok(if data_only { rustix::fs::fdatasync(borrow(fd)) } else { rustix::fs::fsync(borrow(fd)) }?)
    }

    fn sync_fs(&self, fd: RawFd) -> io::Result<()> {
        Ok(rustix::fs::syncfs(borrow(fd))?)
    }

    fn truncate(&self, fd: RawFd, size: u64) -> io::Result<()> {
        Ok(rustix::fs::ftruncate(borrow(fd), size)?)
    }

    fn allocate(&self, fd: RawFd, range: Range<u64>) -> io::Result<()> {
        let len = range.end.saturating_sub(range.start);
        Ok(fallocate(borrow(fd), FallocateFlags::KEEP_SIZE, range.start, len)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AlignedBuf;
    use crate::page_cache::tests::cached_pages;
    use rustix::fs::{FallocateFlags, Mode, fallocate, ftruncate, open};
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    use std::os::fd::{AsFd, BorrowedFd};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    const BYTES: usize = 256 * PAGE_SIZE;

    /// Touches each page of a mapping of a sparse file, and punches holes again, until `over`.
    fn touch_holes(file: BorrowedFd<'_>, over: &AtomicBool) {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping.
        let map =
            unsafe { mmap(std::ptr::null_mut(), BYTES, protection, MapFlags::SHARED, file, 0) }.unwrap();
        while !over.load(Ordering::Relaxed) {
            for at in (0..BYTES).step_by(PAGE_SIZE) {
                // SAFETY: inside the mapping.
                unsafe { map.cast::<u8>().add(at).write_volatile(1) };
                std::thread::sleep(Duration::from_micros(20));
            }
            fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, BYTES as u64).unwrap();
        }
        // SAFETY: mapped above, and not used elsewhere.
        unsafe { munmap(map, BYTES) }.unwrap();
    }

    #[test]
    fn mapping_of_a_sparse_file_fails_no_direct_call() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let file = open(dir.path().join("sparse"), flags, Mode::RWXU).unwrap();
        ftruncate(&file, BYTES as u64).unwrap();
        let direct = open(dir.path().join("sparse"), flags | OFlags::DIRECT, Mode::RWXU).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| touch_holes(file.as_fd(), &over));
            let (io, mut buf) = (BlockingIo::default(), AlignedBuf::default());
            let results: Vec<io::Result<()>> = buf.with(BYTES, |buf| {
                let vec = [IoVec { ptr: buf.as_mut_ptr(), len: buf.len() }];
                // SAFETY: the buffer outlives the calls.
                let read = || unsafe { io.read(direct.as_raw_fd(), 0, &vec) }.map(|n| assert_eq!(n, BYTES));
                // SAFETY: likewise.
                let write = || unsafe { io.write(direct.as_raw_fd(), 0, &vec) };
                (0..1000).map(|n| if n % 8 == 0 { write() } else { read() }).collect()
            });
            over.store(true, Ordering::Relaxed);
            let failed: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
            assert!(failed.is_empty(), "{} of {}: {:?}", failed.len(), results.len(), failed.first());
        });
    }

    /// The buffer is not aligned for a direct call: the file system answers EINVAL.
    #[test]
    fn refused_direct_calls_go_through_the_page_cache() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::DIRECT;
        let io = BlockingIo::default();
        for name in ["read first", "written first"] {
            let path = dir.path().join(name);
            std::fs::write(&path, vec![3; BYTES]).unwrap();
            let direct = open(&path, flags, Mode::RWXU).unwrap();
            let mut memory = vec![5u8; BYTES + 1];
            let at = usize::from(memory.as_ptr().addr().is_multiple_of(2));
            let vec = [IoVec { ptr: memory[at..].as_mut_ptr(), len: BYTES }];
            if name == "read first" {
                // SAFETY: the memory outlives the call.
                assert_eq!(unsafe { io.read(direct.as_raw_fd(), 0, &vec) }.unwrap(), BYTES);
                assert!(memory[at..][..BYTES].iter().all(|byte| *byte == 3));
            } else {
                // SAFETY: likewise.
                unsafe { io.write(direct.as_raw_fd(), 0, &vec) }.unwrap();
                assert!(std::fs::read(&path).unwrap().iter().all(|byte| *byte == 5));
            }
            assert!(!rustix::fs::fcntl_getfl(&direct).unwrap().contains(OFlags::DIRECT), "{name}");
        }
    }

    #[test]
    fn page_cache_keeps_nothing_that_is_written_behind() {
        for drop_behind in [false, true] {
            let (io, file) = (BlockingIo::default(), tempfile::tempfile_in("/var/tmp").unwrap());
            let mut content = vec![7u8; BYTES];
            let bufs = vec![IoVec { ptr: content.as_mut_ptr(), len: BYTES }];
            let mut ops = [WriteOp {
                fd: file.as_raw_fd(),
                offset: 0,
                bufs,
                drop_behind,
                result: Err(Errno::IO.into()),
            }];
            // SAFETY: `content` outlives the call.
            unsafe { io.write_batch(&mut ops) };
            ops[0].result.as_ref().unwrap();
            io.sync(file.as_raw_fd(), true).unwrap();
            let stays_cached = !drop_behind || io.keeps_all.load(Ordering::Relaxed);
            let as_wanted = || cached_pages(&file, BYTES) == if stays_cached { BYTES / PAGE_SIZE } else { 0 };
            terrace_testkit::wait::wait_until("the pages of the page cache are as wanted", as_wanted);
            let mut back = vec![0; BYTES];
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut back, 0).unwrap();
            assert!(back == content);
        }
    }
}
