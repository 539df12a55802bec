//! Programs that are executed get descriptors of the mount: what they ask of an inherited one, no hook of ours knows.

use super::guard::guard;
use crate::direct::{self, Which};
use crate::next::{self, Strings};
use libc::{FILE, c_char, c_int, c_void};

macro_rules! hook {
    ($name:ident($($arg:ident: $t:ty),*) -> $r:ty, $which:expr) => {
        /// See the manual page of that name.
        ///
        /// # Safety
        /// As the function of that name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($arg: $t),*) -> $r {
            if direct::has_any() {
                guard(|| direct::leave_all($which));
            }
            // SAFETY: the program's own arguments.
            unsafe { next::$name($($arg),*) }
        }
    };
}

hook!(execve(path: *const c_char, args: Strings, env: Strings) -> c_int, Which::Inherited);
hook!(execv(path: *const c_char, args: Strings) -> c_int, Which::Inherited);
hook!(execvp(path: *const c_char, args: Strings) -> c_int, Which::Inherited);
hook!(execvpe(path: *const c_char, args: Strings, env: Strings) -> c_int, Which::Inherited);
hook!(system(command: *const c_char) -> c_int, Which::Inherited);
hook!(popen(command: *const c_char, mode: *const c_char) -> *mut FILE, Which::Inherited);
// The program itself may be a direct descriptor; and a child of posix_spawn can duplicate any.
hook!(fexecve(fd: c_int, args: Strings, env: Strings) -> c_int, Which::All);
hook!(execveat(dir: c_int, path: *const c_char, args: Strings, env: Strings, flags: c_int) -> c_int, Which::All);
hook!(posix_spawn(pid: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, args: Strings, env: Strings)
    -> c_int, Which::All);
hook!(posix_spawnp(pid: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, args: Strings, env: Strings)
    -> c_int, Which::All);

/// The stubs below call this.
unsafe extern "C" fn terrace_before_exec() {
    stubs::find();
    if direct::has_any() {
        guard(|| direct::leave_all(Which::Inherited));
    }
}

mod stubs {
    //! Functions with any number of arguments.

    use super::super::stub::pass_on;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static NEXT_EXECL: AtomicUsize = AtomicUsize::new(0);
    static NEXT_EXECLP: AtomicUsize = AtomicUsize::new(0);
    static NEXT_EXECLE: AtomicUsize = AtomicUsize::new(0);

    pub fn find() {
        for (name, to) in [(c"execl", &NEXT_EXECL), (c"execlp", &NEXT_EXECLP), (c"execle", &NEXT_EXECLE)] {
            if to.load(Ordering::Relaxed) == 0 {
                to.store(crate::symbols::next(name).unwrap_or(0), Ordering::Relaxed);
            }
        }
    }

    macro_rules! stub {
        ($name:ident, $next:ident) => {
            pass_on! {
                /// See exec(3).
                ///
                /// # Safety
                /// As the function of that name.
                $name, super::terrace_before_exec, $next
            }
        };
    }
    stub!(execl, NEXT_EXECL);
    stub!(execlp, NEXT_EXECLP);
    stub!(execle, NEXT_EXECLE);
}
