//! Without a mount: a second descriptor of a file that is missed often, for direct reads, which cost a third less processor time than reads
//! through the page cache.
//!
//! To close any descriptor of a file ends the process's POSIX locks on it (fcntl(2)). So it is closed when the program closes one of its own, which
//! does that anyway; until then the program's own holds the room of a deleted file. To move it to the upper end of the table is a close as well:
//! that is done while no such lock is held or asked for ([`locking`]).

use crate::sys::{self, Identity};
use crate::{helper, table};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Misses before it is opened, which costs as much as a miss.
const MISSES_MIN: u32 = 8;
/// Of the word: somebody opens it, or it cannot be opened.
const TAKEN: u64 = 0xffff_ffff;

/// Threads that are inside a call for a POSIX lock, and those that open such a descriptor.
static LOCKING: AtomicU32 = AtomicU32::new(0);
static OPENING: AtomicU32 = AtomicU32::new(0);

/// The program is about to ask for a POSIX lock. Waits until nobody opens a descriptor; not for ever, should the opener be below us on this stack.
pub fn locking() {
    const TRIES_MAX: u32 = 20;
    LOCKING.fetch_add(1, Ordering::SeqCst);
    for _ in 0..TRIES_MAX {
        if OPENING.load(Ordering::SeqCst) == 0 {
            return;
        }
        sys::nap(1);
    }
}

/// It has its answer. A thread that is cancelled inside the call is never done: then nothing is opened any more.
pub fn locked() {
    LOCKING.fetch_sub(1, Ordering::SeqCst);
}

/// The place of such a descriptor. All zero: none.
#[derive(Debug)]
pub struct Direct {
    /// ```text
    ///  63..32                  31..0
    /// | times it was closed | descriptor + 1, 0 or TAKEN |
    /// ```
    word: AtomicU64,
    misses: AtomicU32,
}

/// A descriptor as it was found.
#[derive(Debug, Clone, Copy)]
pub struct Found {
    pub fd: c_int,
    word: u64,
}

impl Direct {
    /// An empty place.
    pub const fn new() -> Direct {
        Direct { word: AtomicU64::new(0), misses: AtomicU32::new(0) }
    }

    /// The descriptor for a miss of `fd`, opened when there were enough of them.
    pub fn get(&self, fd: c_int, what: Identity) -> Option<Found> {
        let word = self.word.load(Ordering::Acquire);
        match word & TAKEN {
            0 if self.misses.fetch_add(1, Ordering::Relaxed) >= MISSES_MIN => self.open(word, fd, what),
            0 | TAKEN => None,
            fd1 => Some(Found { fd: fd1 as c_int - 1, word }),
        }
    }

    /// After a read: it was the descriptor of this file for all the while. One that the program closed by a raw system call is no longer ours.
    pub fn is_still(&self, found: Found, what: Identity) -> bool {
        if self.word.load(Ordering::Acquire) != found.word {
            return false;
        }
        let is_ours = table::is_helper(found.fd) && sys::is_still(found.fd, what);
        if !is_ours {
            self.clear(found.word);
        }
        is_ours
    }

    /// Forgets the descriptor of this word, unless another thread has.
    fn clear(&self, word: u64) -> bool {
        let closed = (word | TAKEN) + 1;
        self.word.compare_exchange(word, closed, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn open(&self, word: u64, fd: c_int, what: Identity) -> Option<Found> {
        self.word.compare_exchange(word, word | TAKEN, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        OPENING.fetch_add(1, Ordering::SeqCst);
        let is_quiet = LOCKING.load(Ordering::SeqCst) == 0 && !sys::is_locked(fd);
        let flags = libc::O_RDONLY | libc::O_DIRECT | libc::O_CLOEXEC;
        let found = is_quiet.then(|| sys::reopen(fd, flags)).flatten().and_then(helper::raise);
        OPENING.fetch_sub(1, Ordering::SeqCst);
        // What cannot be opened, or is another file by now, is not tried again: the word stays. A lock is given up some time.
        let word = match found {
            Some(found) if sys::is_still(found, what) => word | (found as u64 + 1),
            None if !is_quiet => word,
            _ => return None,
        };
        self.misses.store(0, Ordering::Relaxed);
        self.word.store(word, Ordering::Release);
        found.map(|fd| Found { fd, word })
    }

    /// The program is about to close a descriptor of this file.
    pub fn close(&self) {
        let word = self.word.load(Ordering::Acquire);
        let fd1 = word & TAKEN;
        self.misses.store(0, Ordering::Relaxed);
        if fd1 == 0 || fd1 == TAKEN {
            return;
        }
        let fd = fd1 as c_int - 1;
        if self.clear(word) && table::is_helper(fd) {
            helper::lower(fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::sync::atomic::AtomicBool;

    #[repr(align(4096))]
    struct Page([u8; 4096]);

    fn first_page(fd: c_int) -> [u8; 4096] {
        let mut page = Page([0; 4096]);
        let iov = libc::iovec { iov_base: page.0.as_mut_ptr().cast(), iov_len: 4096 };
        // SAFETY: the page is there for all of the call.
        unsafe { sys::preadv(fd, &[iov], 0) };
        page.0
    }

    /// Two places, of two files, whose descriptors take each other's numbers when they are closed.
    #[test]
    fn read_by_a_number_that_is_another_files_does_not_count() {
        let files = ["Cargo.toml", "src/direct.rs"]
            .map(|path| std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path))
            .map(|path| File::open(path).unwrap());
        let places = [Direct::new(), Direct::new()];
        let [a, b] = files.each_ref().map(|file| {
            let what = sys::identity(file.as_raw_fd()).unwrap().0;
            (file.as_raw_fd(), what, first_page(file.as_raw_fd()))
        });
        let (stop, good) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for (place, (fd, what, content)) in [(&places[0], &a), (&places[1], &b)].repeat(2) {
                let (stop, good) = (&stop, &good);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let Some(found) = place.get(*fd, *what) else { continue };
                        let page = first_page(found.fd);
                        if place.is_still(found, *what) {
                            assert_eq!(&page, content);
                            good.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            for _ in 0..300 {
                places.iter().for_each(Direct::close);
                sys::nap(1);
            }
            stop.store(true, Ordering::Relaxed);
        });
        places.iter().for_each(Direct::close);
        assert!(good.load(Ordering::Relaxed) > 100, "{good:?} reads counted");
    }

    #[test]
    fn nothing_is_opened_while_a_lock_is_asked_for() {
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        let (fd, place) = (file.as_raw_fd(), Direct::new());
        let what = sys::identity(fd).unwrap().0;
        let any = || (0..4 * MISSES_MIN).any(|_| place.get(fd, what).is_some());
        locking();
        assert!(!any());
        locked();
        assert!(any());
        place.close();
    }
}
