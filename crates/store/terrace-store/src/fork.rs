//! Distinguishes the process that opened a store from its forks, by one load. A fork has the store's memory,
//! but none of its threads.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Size of the page that a fork finds zeroed.
const PAGE: usize = 4096;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Process {
    page: &'static AtomicU64,
    number: u64,
}

/// The page, once mapped, and the last number assigned.
static PAGE_OF_NUMBERS: Mutex<(Option<&'static AtomicU64>, u64)> = Mutex::new((None, 0));

impl Process {
    /// # Errors
    /// No memory.
    pub(crate) fn this() -> io::Result<Process> {
        let mut known = PAGE_OF_NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        let page = match known.0 {
            Some(page) => page,
            None => *known.0.insert(new_page()?),
        };
        if page.load(Ordering::Relaxed) == 0 {
            known.1 += 1;
            page.store(known.1, Ordering::Relaxed);
        }
        Ok(Process { page, number: page.load(Ordering::Relaxed) })
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.page.load(Ordering::Relaxed) != self.number
    }
}

fn new_page() -> io::Result<&'static AtomicU64> {
    // SAFETY: a new mapping, never unmapped.
    let page = unsafe {
        mmap_anonymous(std::ptr::null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    }?;
    // SAFETY: only this module uses the mapping. A fork finds zeros there.
    unsafe { madvise(page, PAGE, Advice::LinuxWipeOnFork) }?;
    // SAFETY: mapped forever, page-aligned, zeroed.
    Ok(unsafe { &*page.cast::<AtomicU64>() })
}
