//! Script operations that continue in another process: fork, exec.

use super::{Args, Break, Executor, c, is_direct};
use libc::{c_char, c_int};
use std::ffi::CString;

impl Executor {
    /// Runs the operation in a forked child, on inherited descriptors; offsets are shared, tables are copies.
    pub(super) fn fork(&mut self, line: &str) -> String {
        let mut ends = [0; 2];
        // SAFETY: this process is single-threaded, so the child may run ordinary code; it ends by _exit.
        unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0, "pipe");
            let child = libc::fork();
            if child == 0 {
                libc::close(ends[0]);
                let result = self.op(line);
                libc::write(ends[1], result.as_ptr().cast(), result.len());
                libc::_exit(0);
            }
            libc::close(ends[1]);
            let result = collect(ends[0]);
            libc::close(ends[0]);
            format!("{result} {}", reap(child))
        }
    }

    /// One read in a new program (fork + exec, or posix_spawn), which inherits the descriptor only.
    pub(super) fn exec(&mut self, spawn: bool, a: Args) -> String {
        let fd = self.fd(a[0]).to_string();
        if is_direct(self.fd(a[0])) {
            return "unaligned".into();
        }
        let program = std::env::current_exe().expect("the path of this program");
        let program = c(program.to_str().expect("a UTF-8 path"));
        let words: Vec<CString> = ["opdriver", "--inherited", &fd, a[1], a[2]].iter().map(|w| c(w)).collect();
        let mut argv: Vec<*mut c_char> = words.iter().map(|w| w.as_ptr().cast_mut()).collect();
        argv.push(std::ptr::null_mut());
        let mut ends = [0; 2];
        // SAFETY: argv is NULL-terminated and its strings outlive the calls; after fork only async-signal-safe calls.
        unsafe {
            unsafe extern "C" {
                static environ: *const *mut c_char;
            }
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0, "pipe");
            let mut child = 0;
            if spawn {
                let mut actions: libc::posix_spawn_file_actions_t = std::mem::zeroed();
                libc::posix_spawn_file_actions_init(&raw mut actions);
                libc::posix_spawn_file_actions_adddup2(&raw mut actions, ends[1], 1);
                let done = libc::posix_spawn(
                    &raw mut child,
                    program.as_ptr(),
                    &raw const actions,
                    std::ptr::null(),
                    argv.as_ptr(),
                    environ,
                );
                assert_eq!(done, 0, "posix_spawn");
                libc::posix_spawn_file_actions_destroy(&raw mut actions);
            } else {
                child = libc::fork();
                if child == 0 {
                    libc::dup2(ends[1], 1);
                    libc::execv(program.as_ptr(), argv.as_ptr().cast());
                    libc::_exit(127);
                }
            }
            libc::close(ends[1]);
            let result = collect(ends[0]);
            libc::close(ends[0]);
            format!("{} {}", result.trim(), reap(child))
        }
    }
}

/// The child's part of `exec`: one pread of an inherited descriptor, recorded like any other read.
pub fn inherited(fd: c_int, len: usize, at: i64) -> String {
    let mut executor = Executor::new(".", Break::None);
    let buf = executor.buf.get(len).as_mut_ptr();
    // SAFETY: buf has len bytes.
    let got = unsafe {
        if at < 0 { libc::read(fd, buf.cast(), len) } else { libc::pread(fd, buf.cast(), len, at) }
    };
    executor.got(got as i64)
}

fn collect(fd: c_int) -> String {
    let mut all = Vec::new();
    let mut part = [0u8; 4096];
    loop {
        // SAFETY: part has the length given.
        match unsafe { libc::read(fd, part.as_mut_ptr().cast(), part.len()) } {
            n if n > 0 => all.extend_from_slice(&part[..n as usize]),
            _ => return String::from_utf8_lossy(&all).into_owned(),
        }
    }
}

fn reap(child: libc::pid_t) -> String {
    let mut status = 0;
    // SAFETY: status is valid for the call.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    if libc::WIFSIGNALED(status) {
        format!("signal {}", libc::WTERMSIG(status))
    } else {
        format!("exit {}", libc::WEXITSTATUS(status))
    }
}
