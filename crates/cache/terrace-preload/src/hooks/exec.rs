//! Hooks of exec and posix_spawn: they remove the library from LD_PRELOAD for programs that cannot load it,
//! or must not.
//!
//! | program | LD_PRELOAD has the library |
//! |---|---|
//! | of glibc on x86-64 | yes |
//! | of 32 bits, another machine, musl, or a sanitizer | no: it would report an error, or not start |
//! | in a root where the library is not | no: likewise |
//! | under a filter of system calls that this process has set | no: a call of the library might kill it |
//!
//! All of it may run in the child of a vfork: it allocates on its stack.

use super::guard::guard;
use crate::{directory, next, quiet, sys, writers};
use libc::{c_char, c_int, c_long, mode_t, pid_t};
use std::ffi::{CStr, c_void};
use std::os::fd::BorrowedFd;
use terrace_shm::program;

type Strings = *const *const c_char;

/// Words of the stack for an environment without the library.
const ROOM: usize = 640;
const NAME: &[u8] = b"LD_PRELOAD=";

unsafe extern "C" {
    static environ: Strings;
}

/// Descriptors that a new program gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Passed {
    /// Those without FD_CLOEXEC.
    Inherited,
    /// Any, by actions of posix_spawn.
    Any,
}

/// Calls `call` with the environment for a program: the given one, or one without the library. Files that a
/// program without the library may write are given up.
///
/// # Safety
/// `env` is null or the program's environment.
unsafe fn with<T>(
    env: Strings,
    passed: Passed,
    loads: impl FnOnce() -> bool,
    call: impl FnOnce(Strings) -> T,
) -> T {
    // SAFETY: the caller's promise.
    let found = guard(|| unsafe {
        let found = find(env);
        let keeps = found.is_some_and(|at| !quiet::is_silent() && is_there(env, at) && loads());
        if directory::announces_writes() && !(keeps && announces(env)) {
            writers::give_up_passed(passed == Passed::Any);
        }
        found.filter(|_| !keeps)
    });
    match found {
        // SAFETY: as above.
        Some(at) => unsafe { without(env, at, call) },
        None => call(env),
    }
}

/// Index of LD_PRELOAD in an environment, if it has the library.
unsafe fn find(env: Strings) -> Option<usize> {
    // SAFETY: the caller's promise.
    unsafe { strings(env) }
        .position(|text| text.strip_prefix(NAME).is_some_and(|list| words(list).any(program::is_library)))
}

/// The strings of an environment.
unsafe fn strings(env: Strings) -> impl Iterator<Item = &'static [u8]> {
    let count = if env.is_null() { 0 } else { usize::MAX };
    // SAFETY: the environment ends with a null pointer, and has C strings.
    (0..count).map_while(move |i| unsafe { Some(CStr::from_ptr(env.add(i).read().as_ref()?).to_bytes()) })
}

/// Whether the library announces writes with this environment.
unsafe fn announces(env: Strings) -> bool {
    const SET: [&[u8]; 3] = [b"TERRACE_SOCKET=", b"TERRACE_DEV=", b"TERRACE_LEASED="];
    const WRITES: [&[u8]; 2] = [b"TERRACE_WRITES=exclusive", b"TERRACE_WRITES=guarded"];
    // SAFETY: the caller's promise.
    let has = |start: &&[u8]| unsafe { strings(env) }.any(|text| text.starts_with(start));
    SET.iter().all(has) && WRITES.iter().any(has)
}

fn words(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|byte| b" :".contains(byte)).filter(|word| !word.is_empty())
}

/// Calls `call` with a copy of the environment in which LD_PRELOAD, its string `at`, lacks the library.
#[inline(never)]
unsafe fn without<T>(env: Strings, at: usize, call: impl FnOnce(Strings) -> T) -> T {
    // SAFETY: the environment ends with a null pointer; string `at` is LD_PRELOAD.
    unsafe {
        let count = (0..).take_while(|&i| !env.add(i).read().is_null()).count();
        let text = CStr::from_ptr(env.add(at).read()).to_bytes();
        let needed = (count + 1) * size_of::<usize>() + text.len() + 1;
        let mut room = [0_usize; ROOM];
        let large = needed > size_of_val(&room);
        let to = if large { sys::map_anonymous(needed) } else { room.as_mut_ptr().cast() };
        if to.is_null() {
            return call(env);
        }
        let copy = to.cast::<*const c_char>();
        std::ptr::copy_nonoverlapping(env, copy, count + 1);
        let list = copy.add(count + 1).cast::<u8>();
        let len = rest_of(text, std::slice::from_raw_parts_mut(list, text.len() + 1));
        match len {
            // The last string replaces it: the order of an environment has no meaning.
            None => {
                copy.add(at).write(copy.add(count - 1).read());
                copy.add(count - 1).write(std::ptr::null());
            }
            Some(_) => copy.add(at).write(list.cast()),
        }
        let ret = call(copy);
        if large {
            sys::raw(libc::SYS_munmap, [to as usize, needed, 0, 0, 0, 0]);
        }
        ret
    }
}

/// Writes LD_PRELOAD without the library as a C string to `to`. Returns its length, or None if no library is
/// left.
fn rest_of(text: &[u8], to: &mut [u8]) -> Option<usize> {
    let mut len = NAME.len();
    to[..len].copy_from_slice(NAME);
    for word in words(&text[len..]).filter(|word| !program::is_library(word)) {
        if len > NAME.len() {
            to[len] = b':';
            len += 1;
        }
        to[len..len + word.len()].copy_from_slice(word);
        len += word.len();
    }
    to[len] = 0;
    (len > NAME.len()).then_some(len)
}

/// Whether the library exists under this root: mostly not after a chroot. The loader finds a name without a
/// slash.
unsafe fn is_there(env: Strings, at: usize) -> bool {
    // SAFETY: string `at` of the environment is LD_PRELOAD.
    let text = unsafe { CStr::from_ptr(env.add(at).read()) }.to_bytes();
    let mut path = [0; 1024];
    let word = words(&text[NAME.len()..]).find(|word| program::is_library(word));
    let Some(word) = word.filter(|word| word.contains(&b'/') && word.len() < path.len()) else { return true };
    path[..word.len()].copy_from_slice(word);
    let args = [libc::AT_FDCWD as usize, path.as_ptr() as usize, libc::F_OK as usize, 0, 0, 0];
    // SAFETY: a path that ends.
    unsafe { sys::raw(libc::SYS_faccessat, args) == 0 }
}

/// Whether the program of a path loads the library.
///
/// # Safety
/// The program's own arguments.
unsafe fn loads(dir: c_int, path: *const c_char) -> bool {
    // SAFETY: a C string; the descriptor is used for the time of a few calls, and not closed.
    unsafe { path.is_null() || program::loads_libraries(borrowed(dir), CStr::from_ptr(path)) }
}

/// The same for a name that is searched in PATH.
///
/// # Safety
/// As [`loads`].
unsafe fn found_loads(name: *const c_char) -> bool {
    if name.is_null() {
        return true;
    }
    // SAFETY: as above. Between fork and exec the environment is this process's.
    let (name, path) = unsafe { (CStr::from_ptr(name), libc::getenv(c"PATH".as_ptr())) };
    // SAFETY: a C string of the environment.
    let path = (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) }.to_bytes());
    let here = borrowed(libc::AT_FDCWD);
    program::search(name, path, |at| Some(program::loads_libraries(here, at))).unwrap_or(true)
}

fn borrowed(fd: c_int) -> BorrowedFd<'static> {
    // SAFETY: AT_FDCWD, or the program's descriptor, for the time of a few calls. -1 is no descriptor.
    unsafe { BorrowedFd::borrow_raw(if fd == -1 { libc::AT_FDCWD } else { fd }) }
}

/// The raw system calls, for programs that use syscall.
///
/// # Safety
/// The program's own arguments, of execve or of execveat.
pub(super) unsafe fn by_call(n: c_long, a: [usize; 6]) -> c_long {
    let (path_at, env_at) = if n == libc::SYS_execve { (0, 2) } else { (1, 3) };
    let dir = if path_at == 0 { libc::AT_FDCWD } else { a[0] as c_int };
    // SAFETY: the caller's promise.
    unsafe {
        with(
            a[env_at] as Strings,
            Passed::Inherited,
            || loads(dir, a[path_at] as _),
            |env| {
                let mut args = a;
                args[env_at] = env as usize;
                sys::libc_ret(sys::raw(n, args)) as c_long
            },
        )
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn execve(path: *const c_char, argv: Strings, env: Strings) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe {
        with(env, Passed::Inherited, || loads(libc::AT_FDCWD, path), |env| next::execve(path, argv, env))
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn execv(path: *const c_char, argv: Strings) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe { execve(path, argv, environ) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn execvpe(name: *const c_char, argv: Strings, env: Strings) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe { with(env, Passed::Inherited, || found_loads(name), |env| next::execvpe(name, argv, env)) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn execvp(name: *const c_char, argv: Strings) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe { execvpe(name, argv, environ) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn fexecve(fd: c_int, argv: Strings, env: Strings) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe { with(env, Passed::Inherited, || loads(fd, c"".as_ptr()), |env| next::fexecve(fd, argv, env)) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn execveat(
    dir: c_int,
    path: *const c_char,
    argv: Strings,
    env: Strings,
    flags: c_int,
) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe {
        with(env, Passed::Inherited, || loads(dir, path), |env| next::execveat(dir, path, argv, env, flags))
    }
}

/// Defines posix_spawn under its names.
macro_rules! spawn_hook {
    ($name:ident, $loads:expr) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            pid: *mut pid_t,
            path: *const c_char,
            actions: *const c_void,
            attributes: *const c_void,
            argv: Strings,
            env: Strings,
        ) -> c_int {
            // SAFETY: the program's own arguments.
            unsafe {
                let call = |env| next::$name(pid, path, actions, attributes, argv, env);
                let passed = if actions.is_null() { Passed::Inherited } else { Passed::Any };
                with(env, passed, || $loads(path), call)
            }
        }
    };
}
spawn_hook!(posix_spawn, |path| loads(libc::AT_FDCWD, path));
spawn_hook!(posix_spawnp, found_loads);

/// The open happens inside libc, in the new process before its start.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn posix_spawn_file_actions_addopen(
    actions: *mut c_void,
    fd: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> c_int {
    if directory::announces_writes() && flags & (libc::O_ACCMODE | libc::O_TRUNC) != 0 {
        // SAFETY: the program's own arguments.
        guard(|| unsafe { writers::hold_path(path) });
    }
    // SAFETY: the program's own arguments.
    unsafe { next::posix_spawn_file_actions_addopen(actions, fd, path, flags, mode) }
}

mod lists {
    //! execl and its forms take a list of arguments: registers and stack together form the array of execv.

    use super::{Strings, execve, execvp};
    use libc::{c_char, c_int};
    use std::arch::naked_asm;

    /// Defines a function: its arguments from the second on become an array, with which `$with` is called.
    macro_rules! list {
        ($(#[$doc:meta])* $name:ident => $with:ident) => {
            $(#[$doc])*
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $name() -> c_int {
                naked_asm!(
                    "endbr64",
                    // Arguments on the stack follow the return address.
                    "pop rax",
                    "push r9",
                    "push r8",
                    "push rcx",
                    "push rdx",
                    "push rsi",
                    "mov rsi, rsp",
                    "push rax",
                    "call {with}",
                    "pop rcx",
                    "add rsp, 40",
                    "push rcx",
                    "ret",
                    with = sym $with,
                )
            }
        };
    }
    list!(
        /// See execl(3).
        execl => with_own_environment
    );
    list!(
        /// See execlp(3).
        execlp => searched
    );
    list!(
        /// See execle(3).
        execle => with_given_environment
    );

    unsafe extern "C" fn with_own_environment(path: *const c_char, argv: Strings) -> c_int {
        // SAFETY: the program's own arguments.
        unsafe { execve(path, argv, super::environ) }
    }

    unsafe extern "C" fn searched(name: *const c_char, argv: Strings) -> c_int {
        // SAFETY: the program's own arguments.
        unsafe { execvp(name, argv) }
    }

    /// The environment follows the null pointer.
    unsafe extern "C" fn with_given_environment(path: *const c_char, argv: Strings) -> c_int {
        // SAFETY: the program's own arguments.
        unsafe {
            let end = (0..).find(|&i| argv.add(i).read().is_null()).unwrap_or(0);
            execve(path, argv, argv.add(end + 1).read().cast())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::rest_of;

    #[test]
    fn other_libraries_stay() {
        let rest = |text: &str| {
            let mut to = vec![0; text.len() + 1];
            rest_of(text.as_bytes(), &mut to).map(|len| String::from_utf8(to[..len].to_vec()).unwrap())
        };
        assert_eq!(rest("LD_PRELOAD=/a/libterrace_preload.so"), None);
        assert_eq!(rest("LD_PRELOAD=/a/libterrace_preload.so:/b.so c.so").unwrap(), "LD_PRELOAD=/b.so:c.so");
    }
}
