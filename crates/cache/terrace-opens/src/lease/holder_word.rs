//! The futex word that shows clients whether the lease holder, the supervisor, is alive.
//!
//! A lease ends with the last descriptor of its file. The supervisor shares its descriptor table with every
//! daemon, so a daemon's crash ends no lease. If the supervisor dies, too, clients must leave memory before
//! the first lease ends. So the word is a robust futex (set_robust_list(2)). The kernel marks it before it
//! closes the dead owner's descriptors (kernel/exit.c: `exit_mm` before `exit_files`).

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use terrace_shm::layout::{LEASES_LOST, LEASES_SUSPENDED};

/// struct robust_list (include/uapi/linux/futex.h).
#[repr(C)]
struct Node {
    next: *const Node,
}

/// struct robust_list_head.
#[repr(C)]
struct Head {
    list: Node,
    /// From a node to its futex word, bytes.
    futex_offset: libc::c_long,
    pending: *const Node,
}

/// Makes the calling thread the lease holder for its life. It must use no robust mutexes of libc.
///
/// # Errors
/// The kernel has no robust futexes.
pub fn register_holder(word: &'static AtomicU32) -> io::Result<()> {
    let node: &'static mut Node = Box::leak(Box::new(Node { next: ptr::null() }));
    let offset = (ptr::from_ref(word) as libc::c_long) - (ptr::from_ref(node) as libc::c_long);
    let head: &'static mut Head =
        Box::leak(Box::new(Head { list: Node { next: node }, futex_offset: offset, pending: ptr::null() }));
    node.next = &raw const head.list;
    word.store(rustix::thread::gettid().as_raw_nonzero().get() as u32, Ordering::SeqCst);
    // SAFETY: the list lives for ever, and its one word lies at the offset given.
    let ret = unsafe { libc::syscall(libc::SYS_set_robust_list, &raw const *head, size_of::<Head>()) };
    if ret == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sends all clients to the source: the daemon that gives leases back does not run.
pub fn suspend(word: &AtomicU32) {
    word.fetch_or(LEASES_SUSPENDED, Ordering::SeqCst);
}

/// Are clients sent to the source by [`suspend`]?
pub(crate) fn is_suspended(word: &AtomicU32) -> bool {
    word.load(Ordering::SeqCst) & LEASES_SUSPENDED != 0
}

/// Lets clients read from memory again: the daemon runs and has checked each lease.
pub(crate) fn resume(word: &AtomicU32) {
    word.fetch_and(!LEASES_SUSPENDED, Ordering::SeqCst);
}

/// Sends all clients to the source for good: the instance ends in order.
pub fn end(word: &AtomicU32) {
    word.fetch_or(LEASES_LOST, Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    use rustix::process::{Pid, WaitOptions, waitpid};
    use terrace_shm::layout::NO_LEASES;

    /// The check that clients make.
    fn has_holder(word: &AtomicU32) -> bool {
        word.load(Ordering::SeqCst) & NO_LEASES == 0
    }

    fn shared_word() -> &'static AtomicU32 {
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping of a page, zeroed, never unmapped.
        unsafe {
            let at = mmap_anonymous(ptr::null_mut(), 4096, flags, MapFlags::SHARED).unwrap();
            &*at.cast::<AtomicU32>()
        }
    }

    /// The kernel marks the death of a killed supervisor, and of no other process.
    #[test]
    fn killed_supervisor_is_noted() {
        let word = shared_word();
        // SAFETY: the child makes system calls and allocates two small boxes; no other thread of this process
        // holds the allocator for long.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let registered = register_holder(word).is_ok();
            // SAFETY: ends here.
            unsafe {
                if registered {
                    libc::pause();
                }
                libc::_exit(1)
            }
        }
        while word.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        assert!(has_holder(word));
        suspend(word);
        assert!(!has_holder(word) && is_suspended(word));
        resume(word);
        assert!(has_holder(word));
        std::thread::sleep(std::time::Duration::from_millis(10));
        // SAFETY: our child.
        unsafe { libc::kill(child, libc::SIGKILL) };
        waitpid(Pid::from_raw(child), WaitOptions::empty()).unwrap();
        assert!(!has_holder(word));
    }
}
