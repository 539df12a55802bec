//! Hooks of liburing's functions: they detect rings and see submissions. liburing makes its system calls
//! itself.

use super::guard::guard;
use crate::liburing::Uring;
use crate::local::local;
use crate::{closing, connection, directory, next, ring_writes, uring, writers};
use libc::{c_int, c_uint, c_void};

/// True if writes of this process are announced. A vfork child has its parent's rings.
fn announces() -> bool {
    directory::announces_writes() && !local().vforked()
}

/// Tracks a new ring. A ring of unknown kind closes, opens and replaces descriptors unseen, so it closes the
/// preload path.
unsafe fn made(ring: *const c_void, ret: c_int) {
    guard(|| {
        if connection::mount_dev().is_none() || local().vforked() {
            return;
        }
        // SAFETY: liburing's functions without arguments, and its new ring.
        unsafe {
            let version = (next::io_uring_major_version(), next::io_uring_minor_version());
            if !uring::made(ring.cast(), ret, version) {
                closing::turn_off();
            } else if ret >= 0 && announces() {
                ring_writes::made(&*ring.cast());
            }
        }
    });
}

/// Hooks of the functions that make a ring.
macro_rules! make_hook {
    ($name:ident($entries:ident: c_uint, $ring:ident: *mut c_void $(, $arg:ident: $t:ty)*)) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($entries: c_uint, $ring: *mut c_void $(, $arg: $t)*) -> c_int {
            // SAFETY: the program's own arguments.
            unsafe {
                let ret = next::$name($entries, $ring $(, $arg)*);
                made($ring, ret);
                ret
            }
        }
    };
}
make_hook!(io_uring_queue_init(n: c_uint, ring: *mut c_void, f: c_uint));
make_hook!(io_uring_queue_init_params(n: c_uint, ring: *mut c_void, p: *mut c_void));
make_hook!(io_uring_queue_init_mem(n: c_uint, ring: *mut c_void, p: *mut c_void, at: *mut c_void, len: usize));

/// Hooks of the functions that submit.
macro_rules! submit_hook {
    ($name:ident($ring:ident: *mut c_void $(, $arg:ident: $t:ty)*)) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($ring: *mut c_void $(, $arg: $t)*) -> c_int {
            guard(|| {
                if !local().vforked() {
                    // SAFETY: the program's own ring.
                    unsafe { uring::look($ring.cast()) };
                }
            });
            // SAFETY: the program's own arguments.
            unsafe { next::$name($ring $(, $arg)*) }
        }
    };
}
submit_hook!(io_uring_submit(ring: *mut c_void));
submit_hook!(io_uring_submit_and_wait(ring: *mut c_void, n: c_uint));
submit_hook!(io_uring_submit_and_wait_timeout(ring: *mut c_void, c: *mut c_void, n: c_uint, t: *mut c_void, m: *mut c_void));
submit_hook!(io_uring_submit_and_wait_min_timeout(ring: *mut c_void, c: *mut c_void, n: c_uint, t: *mut c_void, min: c_uint, m: *mut c_void));
submit_hook!(io_uring_submit_and_wait_reg(ring: *mut c_void, c: *mut c_void, n: c_uint, at: c_int));
submit_hook!(io_uring_submit_and_get_events(ring: *mut c_void));

/// Hooks of functions that wait for completions. Those with a time limit submit entries on an old kernel.
macro_rules! wait_hook {
    ($name:ident($ring:ident: *mut c_void $(, $arg:ident: $t:ty)*) submits $submits:expr) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($ring: *mut c_void $(, $arg: $t)*) -> c_int {
            // SAFETY: the program's own ring.
            unsafe { before_wait($ring, $submits) };
            // SAFETY: the program's own arguments.
            let ret = unsafe { next::$name($ring $(, $arg)*) };
            // SAFETY: the program's own ring.
            unsafe { collect($ring) };
            ret
        }
    };
}
wait_hook!(__io_uring_get_cqe(ring: *mut c_void, c: *mut c_void, n: c_uint, wait: c_uint, m: *mut c_void) submits false);
wait_hook!(io_uring_peek_batch_cqe(ring: *mut c_void, c: *mut c_void, n: c_uint) submits false);
wait_hook!(io_uring_get_events(ring: *mut c_void) submits false);
wait_hook!(io_uring_wait_cqes(ring: *mut c_void, c: *mut c_void, n: c_uint, t: *mut c_void, m: *mut c_void) submits true);
wait_hook!(io_uring_wait_cqes_min_timeout(ring: *mut c_void, c: *mut c_void, n: c_uint, t: *mut c_void, min: c_uint, m: *mut c_void)
    submits true);
wait_hook!(io_uring_wait_cqe_timeout(ring: *mut c_void, c: *mut c_void, t: *mut c_void) submits true);

/// Looks at entries that a wait may submit.
unsafe fn before_wait(ring: *mut c_void, submits: bool) {
    // SAFETY: a ring of liburing, as the program's call shows.
    unsafe {
        if submits && !(*ring.cast::<Uring>()).waits_alone() {
            guard(|| (!local().vforked()).then(|| uring::look(ring.cast())));
        } else {
            collect(ring);
        }
    }
}

/// Hooks of functions that register files: the library does not see which file such an entry writes.
macro_rules! register_hook {
    ($name:ident($($arg:ident: $t:ty),*) -> $r:ty, if $when:expr) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($arg: $t),*) -> $r {
            guard(|| ($when && announces()).then(writers::hold_all));
            // SAFETY: the program's own arguments.
            unsafe { next::$name($($arg),*) }
        }
    };
}
register_hook!(io_uring_register_files(ring: *mut c_void, f: *const c_int, n: c_uint) -> c_int, if true);
register_hook!(io_uring_register_files_tags(ring: *mut c_void, f: *const c_int, t: *const c_void, n: c_uint) -> c_int, if true);
register_hook!(io_uring_register_files_update(ring: *mut c_void, at: c_uint, f: *const c_int, n: c_uint) -> c_int, if true);
register_hook!(io_uring_register_files_update_tag(ring: *mut c_void, at: c_uint, f: *const c_int, t: *const c_void, n: c_uint) -> c_int, if true);
register_hook!(io_uring_register(fd: c_uint, op: c_uint, a: *const c_void, n: c_uint) -> c_int, if REGISTERS_FILES.contains(&op));

/// IORING_REGISTER_FILES, _FILES_UPDATE, _FILES2, _FILES_UPDATE2.
pub(super) const REGISTERS_FILES: [c_uint; 4] = [2, 6, 13, 14];

/// Ends announced writes that have completed.
unsafe fn collect(ring: *mut c_void) {
    if announces() {
        // SAFETY: a ring of liburing, as the program's call shows.
        guard(|| ring_writes::collect(unsafe { &*ring.cast() }));
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn io_uring_queue_exit(ring: *mut c_void) {
    if announces() {
        // SAFETY: a ring of liburing, as the program's call shows.
        guard(|| ring_writes::ended(unsafe { &*ring.cast() }));
    }
    // SAFETY: the program's own arguments.
    unsafe { next::io_uring_queue_exit(ring) }
}

/// Hooks of the bare system calls: the program manages a ring itself, and the library does not see its entries.
macro_rules! bare_hook {
    ($name:ident($($arg:ident: $t:ty),*) if $when:expr) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($arg: $t),*) -> c_int {
            guard(|| ($when && !local().vforked()).then(closing::turn_off));
            // SAFETY: the program's own arguments.
            unsafe { next::$name($($arg),*) }
        }
    };
}
bare_hook!(io_uring_setup(n: c_uint, p: *mut c_void) if true);
bare_hook!(io_uring_enter(fd: c_uint, n: c_uint, min: c_uint, f: c_uint, s: *mut c_void) if n > 0);
bare_hook!(io_uring_enter2(fd: c_uint, n: c_uint, min: c_uint, f: c_uint, s: *mut c_void, len: usize) if n > 0);
