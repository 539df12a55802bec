//! The place where an inode was found: a name in a directory. Also the requests refused because their inode
//! has left its place.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use terrace_sync::Mutex;

/// A name in a directory.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Place {
    /// Node id of the directory.
    pub(crate) parent: u64,
    pub(crate) name: Box<OsStr>,
}

/// Lifetime of a refusal: the kernel repeats its lookup and its request at once.
const REPEATED_WITHIN: Duration = Duration::from_secs(1);
/// Refusals kept at one time. More are those of threads that never repeated their request.
const REFUSED_MAX: usize = 1024;

/// Requests that were refused because their inode had left its place. The kernel looks the name up again and
/// repeats the request. If the inode is the same, and no lookup has found it since, the program uses a
/// descriptor without name. Then the request is served.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    /// By thread and inode.
    at: Mutex<HashMap<(u32, u64), Instant>>,
    count: AtomicUsize,
}

impl Refused {
    /// Whether to refuse this request of a thread. The thread's next request on this inode is not refused.
    pub(crate) fn refuses(&self, thread: u32, nodeid: u64) -> bool {
        let now = Instant::now();
        let mut at = self.at.lock();
        if at.len() >= REFUSED_MAX {
            at.retain(|_, then| now.duration_since(*then) < REPEATED_WITHIN);
        }
        if at.len() >= REFUSED_MAX {
            return false;
        }
        let before = at.insert((thread, nodeid), now);
        self.count.store(at.len(), Ordering::Release);
        before.is_none_or(|then| now.duration_since(then) >= REPEATED_WITHIN)
    }

    /// Whether a request of this thread was refused within `REPEATED_WITHIN`.
    pub(crate) fn is_refused(&self, thread: u32) -> bool {
        self.count.load(Ordering::Acquire) > 0
            && self.at.lock().iter().any(|((of, _), then)| *of == thread && then.elapsed() < REPEATED_WITHIN)
    }

    /// A lookup has found the inode: requests by its old name are refused again.
    pub(crate) fn forget(&self, nodeid: u64) {
        if self.count.load(Ordering::Acquire) > 0 {
            let mut at = self.at.lock();
            let is_fresh = |then: &Instant| then.elapsed() < REPEATED_WITHIN;
            at.retain(|(_, refused), then| *refused != nodeid && is_fresh(then));
            self.count.store(at.len(), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_is_refused_once_until_the_inode_is_found_again() {
        let refused = Refused::default();
        assert!(refused.refuses(1, 7));
        assert!(!refused.refuses(1, 7) && !refused.refuses(1, 7), "it has a descriptor");
        assert!(refused.refuses(2, 7) && refused.refuses(1, 8), "others, and other inodes");
        refused.forget(7);
        assert!(refused.refuses(1, 7) && !refused.refuses(1, 8));
    }

    #[test]
    fn refusals_are_bounded() {
        let refused = Refused::default();
        let refusals = (0..2 * REFUSED_MAX as u32).filter(|&thread| refused.refuses(thread, 7));
        assert_eq!(refusals.count(), REFUSED_MAX);
        assert!(refused.at.lock().len() <= REFUSED_MAX);
    }
}
