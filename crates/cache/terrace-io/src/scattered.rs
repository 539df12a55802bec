//! Batches of small writes through the kernel's page cache, which passes them to the device together and
//! keeps none of them.
//!
//! A direct write of a page is one request to the device and one wait. Measured: 1,900 random pages of a file
//! of 100 MiB, ext4 on a virtual disk. A direct write took 28 us of processor time, and 80 to 125 us in all.
//! Through the page cache it takes 10 us and 30 us. As after direct writes, the call returns with all data on
//! the device and none in the page cache.

use super::page_cache::through_page_cache;
use super::{WriteOp, total};
use rustix::fs::{Advice, OFlags, fadvise};
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Largest small write, bytes.
const SMALL_WRITE_BYTES: usize = 16 << 10;
/// Minimum number of small writes: this way opens the file once more.
const SMALL_WRITES_MIN: usize = 16;

#[derive(Debug)]
pub(super) struct Scattered {
    direct: RawFd,
    cached: OwnedFd,
}

impl Scattered {
    /// None: the batch has few small direct writes.
    pub(super) fn of(ops: &[WriteOp]) -> Option<Scattered> {
        let direct = ops.first()?.fd;
        let small = ops.iter().filter(|op| is_small(op, direct)).count();
        let cached =
            (small >= SMALL_WRITES_MIN).then(|| through_page_cache(direct, OFlags::WRONLY)).flatten()?;
        Some(Scattered { direct, cached })
    }

    /// The buffered descriptor for this write, if it is a small one.
    pub(super) fn descriptor(&self, op: &WriteOp) -> Option<RawFd> {
        is_small(op, self.direct).then(|| self.cached.as_raw_fd())
    }

    /// After the writes: starts the writeback, waits for it, and drops the pages from the page cache. If that
    /// fails, all these writes have failed.
    pub(super) fn settle(&self, ops: &mut [WriteOp]) {
        let ours = |op: &&mut WriteOp| is_small(op, self.direct) && op.result.is_ok();
        let range = |op: &WriteOp| (op.offset, op.offset + total(&op.bufs) as u64);
        let ranges = ops.iter_mut().filter(ours).map(|op| range(op));
        let Some((begin, end)) = ranges.reduce(|(b, e), (begin, end)| (b.min(begin), e.max(end))) else {
            return;
        };
        let settled = self.write_out(begin, end - begin);
        for op in ops.iter_mut().filter(ours) {
            match &settled {
                // A hint: pages that stay are clean.
                Ok(()) => drop(fadvise(
                    &self.cached,
                    op.offset,
                    NonZeroU64::new(total(&op.bufs) as u64),
                    Advice::DontNeed,
                )),
                Err(e) => {
                    op.result = Err(io::Error::from_raw_os_error(e.raw_os_error().unwrap_or(libc::EIO)))
                }
            }
        }
    }

    fn write_out(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
            | libc::SYNC_FILE_RANGE_WRITE
            | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        // SAFETY: plain numbers, and a descriptor that is open.
        match unsafe { libc::sync_file_range(self.cached.as_raw_fd(), offset as i64, bytes as i64, flags) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn is_small(op: &WriteOp, direct: RawFd) -> bool {
    op.fd == direct && !op.drop_behind && total(&op.bufs) <= SMALL_WRITE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_cache::tests::cached_pages;
    use crate::{AlignedBuf, BlockingIo, Io, IoVec};
    use rustix::fs::{Mode, open};
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use terrace_shm::PAGE_SIZE;

    /// Each second page of these, and a large write at the end.
    const PAGES: usize = 128;
    const LARGE: usize = 2 * SMALL_WRITE_BYTES;

    fn operations(fd: RawFd, content: &mut [u8]) -> Vec<WriteOp> {
        let (small, large) = content.split_at_mut(PAGES * PAGE_SIZE);
        let pages = small.chunks_mut(PAGE_SIZE).enumerate().step_by(2);
        let places = pages.map(|(at, page)| (at * PAGE_SIZE, page)).chain([(PAGES * PAGE_SIZE, large)]);
        let op = |(offset, bytes): (usize, &mut [u8])| WriteOp {
            fd,
            offset: offset as u64,
            bufs: vec![IoVec { ptr: bytes.as_mut_ptr(), len: bytes.len() }],
            drop_behind: false,
            result: Err(io::Error::other("not done")),
        };
        places.map(op).collect()
    }

    #[test]
    fn many_small_writes_leave_nothing_in_the_page_cache() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("heap");
        std::fs::write(&path, vec![9; PAGES * PAGE_SIZE + LARGE]).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        let direct = open(&path, OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()).unwrap();
        AlignedBuf::default().with(PAGES * PAGE_SIZE + LARGE, |content| {
            for (at, byte) in content.iter_mut().enumerate() {
                *byte = (at / 100) as u8;
            }
            let mut ops = operations(direct.as_raw_fd(), content);
            assert!(Scattered::of(&ops).is_some_and(|way| way.descriptor(&ops[0]).is_some()));
            assert!(Scattered::of(&ops).is_some_and(|way| way.descriptor(ops.last().unwrap()).is_none()));
            assert!(Scattered::of(&ops[..SMALL_WRITES_MIN - 1]).is_none(), "few are not worth a descriptor");
            // SAFETY: `content` outlives the call.
            unsafe { BlockingIo::default().write_batch(&mut ops) };
            assert!(ops.iter().all(|op| op.result.is_ok()), "{ops:?}");
            assert_eq!(cached_pages(&file, PAGES * PAGE_SIZE), 0);
            let mut back = vec![0; content.len()];
            file.read_exact_at(&mut back, 0).unwrap();
            for (at, page) in back.chunks(PAGE_SIZE).enumerate() {
                let is_written = at % 2 == 0 || at >= PAGES;
                let wanted =
                    if is_written { &content[at * PAGE_SIZE..][..PAGE_SIZE] } else { &[9; PAGE_SIZE][..] };
                assert!(page == wanted, "page {at}");
            }
        });
    }

    /// A file that refuses sync_file_range simulates a failing device.
    #[test]
    fn writes_that_the_device_does_not_take_have_failed() {
        let mut content = vec![1; PAGES * PAGE_SIZE + LARGE];
        let mut ops = operations(7, &mut content);
        ops.iter_mut().for_each(|op| op.result = Ok(()));
        ops[3].result = Err(io::Error::from_raw_os_error(libc::ENOSPC));
        let way = Scattered { direct: 7, cached: std::io::pipe().unwrap().1.into() };
        way.settle(&mut ops);
        let errors: Vec<_> =
            ops.iter().map(|op| op.result.as_ref().err().and_then(io::Error::raw_os_error)).collect();
        let (large, small) = errors.split_last().unwrap();
        assert_eq!(*large, None, "it went the other way");
        assert_eq!(small[3], Some(libc::ENOSPC));
        assert!(
            small.iter().enumerate().all(|(at, error)| at == 3 || *error == Some(libc::ESPIPE)),
            "{small:?}"
        );
    }
}
