//! A filter of system calls (seccomp) that is in force for `terrace run`, as in a container or a service: the library's calls are tried under it, in a
//! process that may end of them.

use std::ffi::OsString;

use rustix::process::{WaitOptions, waitpid};

use crate::sys::{self, Side};

/// Tells the library, under a filter, that its calls were tried; nothing without one, or if the calls are not for it.
pub fn environment() -> Option<(&'static str, OsString)> {
    let filters = filters().filter(|count| count != "0")?;
    are_allowed().then(|| ("TERRACE_FILTERS", filters.into()))
}

/// The number of filters in force.
fn filters() -> Option<String> {
    let status = std::fs::read("/proc/self/status").ok()?;
    let line = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Seccomp_filters:"))?;
    Some(String::from_utf8_lossy(line).trim().to_owned())
}

fn are_allowed() -> bool {
    match sys::fork() {
        Ok(Side::Child) => {
            sys::try_library_calls();
            sys::exit_now(0)
        }
        Ok(Side::Parent(pid)) => {
            let ended = waitpid(Some(pid), WaitOptions::empty());
            matches!(ended, Ok(Some((_, status))) if status.exit_status() == Some(0))
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_counted() {
        assert!(filters().is_none_or(|count| count.parse::<u32>().is_ok()));
    }
}
