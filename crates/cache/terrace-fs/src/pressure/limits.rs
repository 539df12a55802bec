//! The limit on open descriptors of this process, and their number: each known inode needs one.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit on open descriptors as far as permitted, and returns it. The maximum is the kernel's for
/// root (`fs.nr_open`), otherwise the hard limit.
pub fn raise_descriptors_max() -> io::Result<u64> {
    let now = getrlimit(Resource::Nofile);
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|text| text.trim().parse().ok());
    if let Some(most) = most
        && now.current.is_some_and(|current| current < most)
        && setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: Some(most) }).is_ok()
    {
        return Ok(most);
    }
    setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum })?;
    Ok(descriptors_max())
}

/// The number of a new descriptor, about the number of open ones: the kernel assigns the lowest free number.
pub(crate) fn descriptors_used(any: BorrowedFd<'_>) -> u64 {
    match rustix::io::fcntl_dupfd_cloexec(any, 0) {
        Ok(fd) => fd.as_raw_fd() as u64,
        Err(_) => u64::MAX,
    }
}

/// The limit on open descriptors.
pub fn descriptors_max() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_only_rises() {
        let before = descriptors_max();
        let after = raise_descriptors_max().unwrap();
        assert!(after >= before && after == descriptors_max());
    }
}
