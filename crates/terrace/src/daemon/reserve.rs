//! Descriptors that a serving terraced keeps free for the recovery of the next one.
//!
//! The descriptor table belongs to the supervisor too, and outlives terraced. If it were full at a crash, the
//! next terraced could not even list it. But the limit belongs to a process, not to the table. So terraced
//! lowers its own limit once it serves. The supervisor and the next terraced have the supervisor's limit.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A recovery opens the table's listing, six rings, a connection, the source's root, and files of /proc and
/// control groups. A daemon that dies during recovery leaves them open for the next one.
const DESCRIPTORS: u64 = 64;

/// Number of descriptors kept free.
pub(super) fn size() -> u64 {
    of(getrlimit(Resource::Nofile).current)
}

fn of(limit: Option<u64>) -> u64 {
    limit.map_or(0, |limit| DESCRIPTORS.min(limit / 4))
}

/// Lowers the limit of this process by that number. To be called once.
///
/// # Errors
/// Those of setrlimit(2).
pub(super) fn keep() -> io::Result<()> {
    let now = getrlimit(Resource::Nofile);
    let lower = now.current.map(|limit| limit - of(now.current));
    Ok(setrlimit(Resource::Nofile, Rlimit { current: lower, maximum: now.maximum })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_table_gives_up_a_quarter_at_most() {
        assert_eq!((of(Some(1 << 20)), of(Some(100)), of(None)), (DESCRIPTORS, 25, 0));
    }
}
