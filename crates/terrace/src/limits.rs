//! Limits of the caller's that its command and its programs are to keep, and terrace itself is not.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::sys;

/// Of a process that keeps data of others: no signal ends it at a limit on file sizes, and limits go as far up as it may raise them.
pub fn raise() {
    // A write past the limit is an error (EFBIG) instead of the end.
    sys::ignore(libc::SIGXFSZ);
    // Each file the kernel knows costs a descriptor.
    let _ = terrace_fs::limits::raise_descriptors_max();
    for resource in [Resource::Fsize, Resource::As, Resource::Data] {
        let none = Rlimit { current: None, maximum: None };
        if setrlimit(resource, none).is_err() {
            let maximum = getrlimit(resource).maximum;
            let _ = setrlimit(resource, Rlimit { current: maximum, maximum });
        }
    }
}
