//! Resource limits of the supervisor and its children: raised as far as permitted. The wrapped command of
//! `run` keeps its own.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::sys;

/// Raises limits for a process that holds other processes' data: as far as permitted, and without SIGXFSZ.
pub(crate) fn raise() {
    // A write past the limit then fails with EFBIG instead of killing the process.
    sys::ignore(libc::SIGXFSZ);
    // Each file that the kernel knows costs a descriptor.
    let _ = terrace_fs::limits::raise_descriptors_max();
    for resource in [Resource::Fsize, Resource::As, Resource::Data] {
        let none = Rlimit { current: None, maximum: None };
        if setrlimit(resource, none).is_err() {
            let maximum = getrlimit(resource).maximum;
            let _ = setrlimit(resource, Rlimit { current: maximum, maximum });
        }
    }
}
