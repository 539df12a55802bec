//! System call filters (seccomp) in force for `terrace run`, for example in a container or service. A child
//! process tries the preload library's system calls, for the filter may kill the caller.

use std::ffi::OsString;

use rustix::process::{WaitOptions, waitpid};

use crate::sys::{self, Side};

/// Variable that reports to the library, under a filter, that its calls were tried. None without a filter, or
/// if a call was fatal.
pub(super) fn environment() -> Option<(&'static str, OsString)> {
    let filters = filters().filter(|count| count != "0")?;
    are_allowed().then(|| ("TERRACE_FILTERS", filters.into()))
}

/// The number of filters in force.
fn filters() -> Option<String> {
    terrace_system::field(&terrace_system::proc::text("self", "status").ok()?, "Seccomp_filters")
        .map(str::to_owned)
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
