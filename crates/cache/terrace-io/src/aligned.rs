//! A page-aligned buffer for direct I/O.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use terrace_shm::PAGE_SIZE;
use terrace_shm::layout::HUGE;
use terrace_sync::Mutex;

/// Minimum length of a buffer in a huge page. A device's time depends on the number of adjacent pieces of
/// memory. A virtual disk read 1 MiB in one piece at 2.1 to 2.8 GiB/s, in 256 scattered pages at 0.9 to 1.2.
const HUGE_PAGES_MIN_BYTES: usize = 256 << 10;
/// Two threads share a huge page. Longer requests get separate memory.
const HALF: usize = HUGE / 2;

/// Unused halves of huge pages. The list keeps the largest number that was once in use.
static HALVES: Mutex<Vec<Half>> = Mutex::new(Vec::new());

/// Half of a huge page: initialised, page-aligned, `HALF` bytes, owned by the holder alone.
#[derive(Debug)]
struct Half(NonNull<u8>);

// SAFETY: owned memory, like a Vec's.
unsafe impl Send for Half {}

impl Half {
    fn take() -> Half {
        let mut halves = HALVES.lock();
        halves.pop().unwrap_or_else(|| {
            let p = zeroed(HUGE, HUGE);
            // SAFETY: the second half lies in the same allocation.
            halves.push(Half(unsafe { p.add(HALF) }));
            Half(p)
        })
    }
}

/// A page-aligned buffer that grows on demand.
#[derive(Debug, Default)]
pub struct AlignedBuf(Memory);

#[derive(Debug, Default)]
enum Memory {
    #[default]
    None,
    Half(Half),
    /// A separate allocation, and its bytes.
    Own(NonNull<u8>, usize),
}

// SAFETY: owned memory, like a Vec's.
unsafe impl Send for AlignedBuf {}

impl AlignedBuf {
    /// Runs `act` on the first `len` bytes, which hold old content. Half a huge page then returns to the
    /// stock. So the stock grows with the concurrent long requests, not with the threads.
    pub fn with<T>(&mut self, len: usize, act: impl FnOnce(&mut [u8]) -> T) -> T {
        self.with_or_leak(len, |buf| (act(buf), false))
    }
    /// As [`AlignedBuf::with`]. If `act` returns true, the kernel may still use the memory, and it is leaked.
    pub fn with_or_leak<T>(&mut self, len: usize, act: impl FnOnce(&mut [u8]) -> (T, bool)) -> T {
        let (done, is_used) = act(self.slice(len));
        if is_used {
            self.0 = Memory::None;
        }
        self.shrink();
        done
    }
    /// Returns half a huge page to the stock.
    pub(super) fn shrink(&mut self) {
        if matches!(self.0, Memory::Half(_)) {
            *self = AlignedBuf::default();
        }
    }
    /// The first `len` bytes.
    pub(super) fn slice(&mut self, len: usize) -> &mut [u8] {
        let have = match self.0 {
            Memory::None => 0,
            Memory::Half(_) => HALF,
            Memory::Own(_, bytes) => bytes,
        };
        if have < len.max(1) {
            *self = AlignedBuf::default();
            self.0 = if (HUGE_PAGES_MIN_BYTES..=HALF).contains(&len) {
                Memory::Half(Half::take())
            } else {
                let bytes = len.max(1).next_multiple_of(PAGE_SIZE);
                Memory::Own(zeroed(bytes, PAGE_SIZE), bytes)
            };
        }
        let (Memory::Half(Half(p)) | Memory::Own(p, _)) = self.0 else { unreachable!("just made") };
        // SAFETY: initialised memory of at least `len` bytes, ours alone, borrowed as `self` is.
        unsafe { std::slice::from_raw_parts_mut(p.as_ptr(), len) }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        match std::mem::take(&mut self.0) {
            Memory::None => {}
            Memory::Half(half) => HALVES.lock().push(half),
            // SAFETY: allocated in `slice` with the same layout.
            Memory::Own(p, bytes) => unsafe { dealloc(p.as_ptr(), layout(bytes, PAGE_SIZE)) },
        }
    }
}

fn layout(bytes: usize, align: usize) -> Layout {
    Layout::from_size_align(bytes, align).expect("buffers are small")
}

/// New zeroed memory, in huge pages if aligned for them and available.
fn zeroed(bytes: usize, align: usize) -> NonNull<u8> {
    let layout = layout(bytes, align);
    // SAFETY: the layout has a non-zero size.
    let p = NonNull::new(unsafe { alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
    if align == HUGE {
        // SAFETY: advice on memory that only we use.
        unsafe { libc::madvise(p.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
    }
    // SAFETY: just allocated, `bytes` long.
    unsafe { p.write_bytes(0, bytes) };
    p
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_buffers_share_a_byte() {
        let mut bufs: Vec<AlignedBuf> = (0..8).map(|_| AlignedBuf::default()).collect();
        let sizes =
            [0, 1, PAGE_SIZE, HUGE_PAGES_MIN_BYTES - 1, HUGE_PAGES_MIN_BYTES, HALF, HALF + 1, 3 * HUGE];
        for grown in 0..2 {
            for (i, buf) in bufs.iter_mut().enumerate() {
                let slice = buf.slice(sizes[(i + grown) % 8]);
                assert_eq!((slice.len(), slice.as_ptr() as usize % PAGE_SIZE), (sizes[(i + grown) % 8], 0));
                slice.fill(i as u8);
            }
            for (i, buf) in bufs.iter_mut().enumerate() {
                assert!(buf.slice(sizes[(i + grown) % 8]).iter().all(|byte| *byte == i as u8));
            }
        }
    }

    #[test]
    fn threads_do_not_keep_long_buffers() {
        thread_local!(static BUF: std::cell::RefCell<AlignedBuf> = std::cell::RefCell::default());
        let hold = &std::sync::Barrier::new(33);
        let seen: std::collections::HashSet<usize> = std::thread::scope(|scope| {
            let one_after_the_other = (0..32).map(|_| {
                let (say, said) = std::sync::mpsc::channel();
                scope.spawn(move || {
                    let at = BUF.with_borrow_mut(|buf| buf.with(HALF, |slice| slice.as_ptr() as usize));
                    say.send(at).unwrap();
                    hold.wait(); // All 32 threads stay alive.
                });
                said.recv().unwrap()
            });
            let seen = one_after_the_other.collect();
            hold.wait();
            seen
        });
        // Other tests of this process may hold buffers meanwhile.
        assert!(seen.len() < 24, "{} buffers for 32 threads", seen.len());
    }
}
