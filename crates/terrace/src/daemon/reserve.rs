//! Descriptors that a terraced which serves leaves free, for the next one to recover with.
//!
//! The table of descriptors is the supervisor's too, and outlives terraced: full at its death, it would be full for the next one, which could not
//! even list it. The limit belongs to the process, not to the table. So terraced lowers its own as soon as it serves; supervisor and
//! next terraced have the one that the supervisor set.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A recovery opens the listing of the table, six rings, a connection, the source's root, and a few files of /proc and of control groups. A daemon that dies
/// half-way leaves them open for the next.
const DESCRIPTORS: u64 = 64;

/// Descriptors that are left free.
pub fn size() -> u64 {
    of(getrlimit(Resource::Nofile).current)
}

fn of(limit: Option<u64>) -> u64 {
    limit.map_or(0, |limit| DESCRIPTORS.min(limit / 4))
}

/// From now on this process leaves them free. To be called once.
///
/// # Errors
/// Those of setrlimit(2).
pub fn keep() -> io::Result<()> {
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
