//! A simulated device in memory with a volatile write cache, for tests: power cuts, bit flips, failures.

use super::medium::{Medium, total};
use std::io;
use std::ops::Range;
use terrace_io::IoVec;
use terrace_shm::PAGE_SIZE;
use terrace_sync::Mutex;
use terrace_testkit::rng::Rng;

/// Atomic write unit of some devices: a page can be torn at its boundaries.
const SECTOR: usize = 512;

/// A call that a test's hook may refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimCall {
    /// A read of `len` bytes at `at`.
    Read {
        /// First byte.
        at: u64,
        /// Bytes.
        len: usize,
    },
    /// A write of `len` bytes at `at`.
    Write {
        /// First byte.
        at: u64,
        /// Bytes.
        len: usize,
    },
    /// A flush.
    Flush,
}

type Hook = Box<dyn Fn(SimCall) -> io::Result<()> + Send + Sync>;

/// The simulated device.
pub struct SimMedium {
    image: Mutex<Image>,
    hook: Mutex<Option<Hook>>,
}

#[derive(Default)]
struct Image {
    /// Content that reads see.
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Pages written since the last flush, in order.
    volatile: Vec<(usize, Box<[u8]>)>,
}

impl std::fmt::Debug for SimMedium {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SimMedium")
    }
}

impl SimMedium {
    /// A device of `bytes` zeros.
    pub fn new(bytes: u64) -> SimMedium {
        SimMedium::with_content(vec![0; bytes as usize])
    }

    pub(crate) fn with_content(bytes: Vec<u8>) -> SimMedium {
        let image = Image { now: bytes.clone(), durable: bytes, volatile: Vec::new() };
        SimMedium { image: Mutex::new(image), hook: Mutex::new(None) }
    }

    /// Calls `hook` before each operation: its error fails the operation. Half of a failed write is done.
    pub fn set_hook(&self, hook: impl Fn(SimCall) -> io::Result<()> + Send + Sync + 'static) {
        *self.hook.lock() = Some(Box::new(hook));
    }

    /// Removes the hook.
    pub fn clear_hook(&self) {
        *self.hook.lock() = None;
    }

    /// Cuts the power. Flushed pages stay; any subset of later pages survives, some of them torn.
    pub fn power_cut(&self, rng: &mut Rng) {
        let Image { now, durable, volatile } = &mut *self.image.lock();
        let percent_kept = *rng.pick(&[0, 30, 50, 90, 100]);
        for (page, content) in &*volatile {
            if rng.chance(percent_kept) {
                let torn = rng.chance(5);
                let from = if torn { rng.index(PAGE_SIZE / SECTOR) * SECTOR } else { 0 };
                let to =
                    if torn { from + SECTOR * rng.index((PAGE_SIZE - from) / SECTOR + 1) } else { PAGE_SIZE };
                durable[page * PAGE_SIZE..][from..to].copy_from_slice(&content[from..to]);
            }
        }
        for (page, _) in volatile.drain(..) {
            let bytes = page * PAGE_SIZE..(page + 1) * PAGE_SIZE;
            now[bytes.clone()].copy_from_slice(&durable[bytes]);
        }
    }

    /// Flips one bit of these bytes, on the device and for reads.
    #[cfg(test)]
    pub(crate) fn flip_bit(&self, bytes: Range<u64>, rng: &mut Rng) {
        let image = &mut *self.image.lock();
        let (at, bit) = (bytes.start + rng.below(bytes.end - bytes.start), 1 << rng.below(8));
        image.now[at as usize] ^= bit;
        image.durable[at as usize] ^= bit;
    }

    #[cfg(test)]
    pub(crate) fn content(&self) -> Vec<u8> {
        self.image.lock().now.clone()
    }

    fn call_hook(&self, call: SimCall) -> io::Result<()> {
        self.hook.lock().as_ref().map_or(Ok(()), |hook| hook(call))
    }
}

impl Image {
    fn range(&self, at: u64, len: usize) -> io::Result<Range<usize>> {
        assert!(at.is_multiple_of(PAGE_SIZE as u64) && len.is_multiple_of(PAGE_SIZE), "{len} bytes at {at}");
        let end = at.checked_add(len as u64).filter(|end| *end <= self.now.len() as u64);
        end.map_or(Err(io::ErrorKind::UnexpectedEof.into()), |end| Ok(at as usize..end as usize))
    }
}

impl Medium for SimMedium {
    unsafe fn read_vectored(&self, at: u64, bufs: &[IoVec]) -> io::Result<()> {
        let len = total(bufs);
        self.call_hook(SimCall::Read { at, len })?;
        let image = self.image.lock();
        let mut left = &image.now[image.range(at, len)?];
        for buf in bufs {
            assert_eq!(buf.ptr as usize % PAGE_SIZE, 0, "direct I/O takes pages");
            let (part, rest) = left.split_at(buf.len);
            // SAFETY: the caller vouches for the memory, which is not the image's.
            unsafe { buf.ptr.copy_from_nonoverlapping(part.as_ptr(), part.len()) };
            left = rest;
        }
        Ok(())
    }

    fn write(&self, at: u64, buf: &[u8]) -> io::Result<()> {
        assert_eq!(buf.as_ptr() as usize % PAGE_SIZE, 0, "direct I/O takes pages");
        let hooked = self.call_hook(SimCall::Write { at, len: buf.len() });
        let half = buf.len() / 2 / PAGE_SIZE * PAGE_SIZE;
        let buf = if hooked.is_ok() { buf } else { &buf[..half] };
        let image = &mut *self.image.lock();
        let range = image.range(at, buf.len())?;
        let first = range.start / PAGE_SIZE;
        image.now[range].copy_from_slice(buf);
        image.volatile.extend((first..).zip(buf.chunks(PAGE_SIZE).map(Box::from)));
        hooked
    }

    fn flush(&self) -> io::Result<()> {
        self.call_hook(SimCall::Flush)?;
        let Image { durable, volatile, .. } = &mut *self.image.lock();
        for (page, content) in volatile.drain(..) {
            durable[page * PAGE_SIZE..][..PAGE_SIZE].copy_from_slice(&content);
        }
        Ok(())
    }

    fn takes_undestaged(&self) -> bool {
        true
    }

    fn bytes(&self) -> u64 {
        self.image.lock().now.len() as u64
    }
}
