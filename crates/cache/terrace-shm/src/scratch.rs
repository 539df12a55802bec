//! Buffers too large for a foreign program's stack: places in the library's zero pages, taken without a lock.
//!
//! Programs give some threads 16 KiB of stack, and signal handlers 8 KiB. A reader that finds no free place
//! uses the mount path. A thread that jumps out of a signal handler leaves its place taken.

use crate::codec::Page;
use crate::layout::PAGE_SIZE;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Concurrent readers of one process (a power of two).
const PLACES: usize = 64;

#[repr(C, align(4096))]
struct Memory(UnsafeCell<[Page; 2]>);

// SAFETY: only the thread that has taken the place uses its memory.
unsafe impl Sync for Memory {}

/// The thread that has taken a place; 0: free. A cache line each.
#[repr(align(64))]
struct Owner(AtomicUsize);

static MEMORY: [Memory; PLACES] = [const { Memory(UnsafeCell::new([[0; PAGE_SIZE]; 2])) }; PLACES];
static OWNERS: [Owner; PLACES] = [const { Owner(AtomicUsize::new(0)) }; PLACES];

/// Two pages, taken until drop.
#[derive(Debug)]
pub struct Scratch(usize);

impl Scratch {
    /// A free place. None: all are taken.
    #[inline]
    pub fn take() -> Option<Scratch> {
        let me = thread();
        // Fibonacci hashing: threads begin at different places.
        let start = ((me as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize;
        let free = |i: &usize| {
            let owner = &OWNERS[*i].0;
            owner.load(Ordering::Relaxed) == 0
                && owner.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        (0..PLACES).map(|i| (start + i) % PLACES).find(free).map(Scratch)
    }

    /// Both pages, aligned to their size. Their content is undefined.
    #[inline]
    pub fn pages(&mut self) -> (&mut MaybeUninit<Page>, &mut Page) {
        let pages = MEMORY[self.0].0.get().cast::<Page>();
        // SAFETY: the place is this thread's until drop, and its bytes are always initialised. Each of the
        // two pages is handed out once.
        unsafe { (&mut *pages.cast(), &mut *pages.add(1)) }
    }
}

impl Drop for Scratch {
    #[inline]
    fn drop(&mut self) {
        OWNERS[self.0].0.store(0, Ordering::Release);
    }
}

/// In the child of a fork: frees the places of other threads, which do not exist there.
pub fn forked() {
    let me = thread();
    OWNERS.iter().filter(|o| o.0.load(Ordering::Relaxed) != me).for_each(|o| o.0.store(0, Ordering::Release));
}

/// A number unique among the process's running threads: the thread pointer, which a fork keeps.
#[cfg(target_arch = "x86_64")]
#[inline]
fn thread() -> usize {
    let me;
    // SAFETY: the word at fs:0 is the thread pointer (System V ABI, "ELF Handling For Thread-Local Storage").
    unsafe { std::arch::asm!("mov {}, qword ptr fs:[0]", out(reg) me, options(pure, readonly, nostack)) };
    me
}

/// Likewise: an address in the thread's own memory.
#[cfg(not(target_arch = "x86_64"))]
fn thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// A single test, since the places are shared by the process.
    #[test]
    fn threads_have_places_of_their_own() {
        let all = Barrier::new(4);
        std::thread::scope(|scope| {
            for thread in 1..=4_u8 {
                let all = &all;
                scope.spawn(move || {
                    for round in 0..1000 {
                        let mut taken: Vec<_> = (0..4).map(|_| Scratch::take().unwrap()).collect();
                        for place in &mut taken {
                            let (first, second) = place.pages();
                            first.write([thread; PAGE_SIZE]);
                            *second = [thread; PAGE_SIZE];
                        }
                        if round == 0 {
                            all.wait();
                        }
                        for place in &mut taken {
                            let (first, second) = place.pages();
                            // SAFETY: written above.
                            let first = unsafe { first.assume_init_ref() };
                            assert!(first.iter().chain(second.iter()).all(|&b| b == thread));
                        }
                    }
                });
            }
        });
        let taken: Vec<_> = std::iter::from_fn(Scratch::take).collect();
        assert_eq!(taken.len(), PLACES, "all came back, and no more are given");
        forked();
        assert!(Scratch::take().is_none(), "the forking thread's places stay its own");
        std::thread::spawn(forked).join().unwrap();
        assert!(Scratch::take().is_some(), "those of a thread that is gone are free");
        taken.into_iter().for_each(std::mem::forget);
    }
}
