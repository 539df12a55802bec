//! Hooks of calls that make processes: some of these share memory or file positions with this one.
//!
//! | made by | memory | descriptor table | action |
//! |---|---|---|---|
//! | fork, clone without CLONE_VM | copied | copied | positions count as shared; the child is no client |
//! | vfork | shared | copied | the thread's hooks do nothing until the child has ended |
//! | posix_spawn | shared | copied | nothing: the child runs inside libc until it execs |
//! | clone, CLONE_VM without CLONE_FILES; unshare(CLONE_FILES) | shared | differs | the preload path closes |
//! | clone, CLONE_VM and CLONE_FILES (threads) | shared | shared | nothing |

use super::guard::guard;
use crate::local::local;
use crate::{closing, connection, lasting, next, ring_writes, table, writers};
use libc::{c_int, c_long};

/// Hooks every fork inside libc, also those of daemon() and forkpty(). Called once, from .init_array.
pub(crate) fn watch_forks() {
    // SAFETY: two functions of this library, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(before_fork), None, Some(in_child)) };
}

unsafe extern "C" fn before_fork() {
    guard(table::share_all);
}

fn forked() {
    connection::forked();
    lasting::forked();
    ring_writes::forked();
}

unsafe extern "C" fn in_child() {
    guard(forked);
}

/// A fork without handlers.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn _Fork() -> c_int {
    guard(table::share_all);
    // SAFETY: no arguments.
    let pid = unsafe { next::_Fork() };
    if pid == 0 {
        guard(forked);
    }
    pid
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn unshare(flags: c_int) -> c_int {
    guard(|| before_unshare(flags));
    // SAFETY: the program's own argument.
    unsafe { next::unshare(flags) }
}

/// Called before clone makes a process or thread with these flags.
fn cloning(flags: usize) {
    let (vm, files) = (flags & libc::CLONE_VM as usize != 0, flags & libc::CLONE_FILES as usize != 0);
    if vm != files {
        closing::turn_off();
    } else if !vm {
        table::share_all();
    }
}

/// Called by the stubs below with clone's flags.
unsafe extern "C" fn terrace_before_clone(flags: usize) {
    stubs::find_clone();
    guard(|| cloning(flags));
}

/// Handles the calls that the syscall stub below intercepts: those that change the table of descriptors, and
/// some more. Returns as syscall does. It makes the raw system call. An interposer of mmap or close may have
/// called syscall, and libc's function would call it again.
unsafe extern "C-unwind" fn terrace_syscall(
    n: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    use super::{close, locked, open, write, write_back};
    let (fd, args) = (a as c_int, [a, b, c, d, e, f]);
    // SAFETY: the program's own arguments, for the call that it made.
    let real = |args| crate::sys::libc_ret(unsafe { crate::sys::raw(n, args) });
    let call = || real(args) as c_int;
    c_long::from(match n {
        libc::SYS_close => close::close_by(fd, call),
        libc::SYS_dup => close::dup_by(fd, call),
        libc::SYS_dup2 | libc::SYS_dup3 => close::dup_to_by(fd, b as c_int, call),
        libc::SYS_fcntl => close::fcntl_by(fd, b as c_int, c, call),
        libc::SYS_close_range => close::close_range_by(a as u32, b as u32, c as c_int, |first, last| {
            real([first as usize, last as usize, c, d, e, f]) as c_int
        }),
        libc::SYS_syncfs => write_back::syncfs_by(fd, call),
        libc::SYS_mlockall => {
            locked::lock_all_by(a as c_int, |flags| real([flags as usize, b, c, d, e, f]) as c_int)
        }
        // SAFETY: the program's own arguments.
        _ if write::NUMBERS.contains(&n) => return unsafe { write::by_call(n, args) },
        // SAFETY: the program's own arguments.
        _ if open::NUMBERS.contains(&n) => return unsafe { open::by_call(n, args) },
        // SAFETY: the program's own arguments.
        libc::SYS_execve | libc::SYS_execveat => return unsafe { super::exec::by_call(n, args) },
        libc::SYS_mmap if d as c_int & libc::MAP_ANONYMOUS == 0 => {
            return write_back::map_by(d as c_int, e as c_int, f as libc::off_t, || real(args) as _)
                as c_long;
        }
        _ => {
            before_rare(n, args);
            let ret = real(args);
            if n == libc::SYS_fork && ret == 0 {
                guard(forked);
            }
            return ret as c_long;
        }
    })
}

fn before_rare(n: c_long, args: [usize; 6]) {
    guard(|| match n {
        libc::SYS_sync => super::write_back::before_sync(),
        libc::SYS_prctl => before_prctl(args[0] as c_int),
        libc::SYS_unshare => before_unshare(args[0] as c_int),
        libc::SYS_fork => table::share_all(),
        // A ring can close descriptors unseen.
        libc::SYS_io_uring_setup => closing::turn_off(),
        libc::SYS_io_uring_register if super::uring::REGISTERS_FILES.contains(&(args[1] as u32)) => {
            writers::hold_all();
        }
        // Modes strict and filter. Without a filter it is a query.
        libc::SYS_seccomp if args[0] == 0 || args[0] == 1 && args[2] != 0 => closing::fall_silent(),
        _ => {}
    });
}

fn before_prctl(op: c_int) {
    if op == libc::PR_SET_SECCOMP {
        closing::fall_silent();
    }
}

fn before_unshare(flags: c_int) {
    // A vfork child already has a table of its own.
    if flags & libc::CLONE_FILES != 0 && !local().vforked() {
        closing::turn_off();
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn prctl(op: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    guard(|| before_prctl(op));
    // SAFETY: the program's own arguments.
    unsafe { next::prctl(op, a, b, c, d) }
}

mod stubs {
    //! Functions that a compiled frame would break: their callee returns twice, on another stack, or both.

    use crate::hooks::{open, write};
    use libc::{c_int, c_long};
    use std::arch::naked_asm;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Saves the six arguments of a call. The stack is then aligned for a call.
    macro_rules! save_arguments {
        () => {
            "push rdi
            push rsi
            push rdx
            push rcx
            push r8
            push r9
            sub rsp, 8"
        };
    }

    macro_rules! restore_arguments {
        () => {
            "add rsp, 8
            pop r9
            pop r8
            pop rcx
            pop rdx
            pop rsi
            pop rdi"
        };
    }

    /// clone of libc, or of the next interposer.
    static NEXT_CLONE: AtomicUsize = AtomicUsize::new(0);

    pub(super) fn find_clone() {
        if NEXT_CLONE.load(Ordering::Relaxed) == 0 {
            NEXT_CLONE.store(crate::symbols::next(c"clone").unwrap_or(0), Ordering::Relaxed);
        }
    }

    // vfork: the child returns first, on the parent's stack, and may overwrite the return address there: a
    // register keeps it. The thread's `vforked` (offset 0 of its Local) is set in the child. The parent
    // continues after the child and restores it.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    pub(super) unsafe extern "C" fn vfork() -> c_int {
        naked_asm!(
            "endbr64",
            "pop rdi",
            "mov rsi, qword ptr [rip + terrace_local@GOTTPOFF]",
            "mov r8d, dword ptr fs:[rsi]",
            "mov eax, 58",
            "syscall",
            "push rdi",
            "test eax, eax",
            "jz 2f",
            "mov dword ptr fs:[rsi], r8d",
            "js 3f",
            "ret",
            "2:",
            "mov dword ptr fs:[rsi], 1",
            "ret",
            "3:",
            "movsxd rdi, eax",
            "jmp {fail}",
            fail = sym failed,
        )
    }

    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    pub(super) unsafe extern "C" fn __vfork() -> c_int {
        naked_asm!("endbr64", "jmp {vfork}", vfork = sym vfork)
    }

    // clone(fn, stack, flags, arg, ptid, tls, ctid): passes the flags to the hook, then jumps to the real
    // clone.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    pub(super) unsafe extern "C" fn clone() -> c_int {
        naked_asm!(
            "endbr64",
            save_arguments!(),
            "movsxd rdi, edx",
            "call {before}",
            restore_arguments!(),
            "mov rax, qword ptr [rip + {next}]",
            "test rax, rax",
            "jz 2f",
            "jmp rax",
            "2:",
            "mov rdi, -38",
            "jmp {fail}",
            before = sym super::terrace_before_clone,
            next = sym NEXT_CLONE,
            fail = sym failed,
        )
    }

    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    pub(super) unsafe extern "C" fn __clone() -> c_int {
        naked_asm!("endbr64", "jmp {clone}", clone = sym clone)
    }

    /// Numbers below this may be watched.
    const NUMBERS: usize = 512;

    /// The calls that [`super::terrace_syscall`] handles, one bit each.
    static WATCHED: [u64; NUMBERS / 64] = {
        let mut bits = [0; NUMBERS / 64];
        add(&mut bits, &OTHERS);
        add(&mut bits, &write::NUMBERS);
        add(&mut bits, &open::NUMBERS);
        bits
    };

    const fn add(bits: &mut [u64; NUMBERS / 64], calls: &[c_long]) {
        let mut i = 0;
        while i < calls.len() {
            bits[calls[i] as usize / 64] |= 1 << (calls[i] % 64);
            i += 1;
        }
    }

    const OTHERS: [c_long; 18] = [
        libc::SYS_close,
        libc::SYS_mmap,
        libc::SYS_dup,
        libc::SYS_dup2,
        libc::SYS_fork,
        libc::SYS_execve,
        libc::SYS_fcntl,
        libc::SYS_mlockall,
        libc::SYS_prctl,
        libc::SYS_sync,
        libc::SYS_unshare,
        libc::SYS_dup3,
        libc::SYS_syncfs,
        libc::SYS_seccomp,
        libc::SYS_execveat,
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_register,
        libc::SYS_close_range,
    ];

    // syscall(n, ...): a few numbers go to terrace_syscall, fork-like ones are announced, all others are made
    // directly.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    pub(super) unsafe extern "C" fn syscall() -> c_long {
        naked_asm!(
            "endbr64",
            "cmp rdi, 56",
            "je 4f",
            "cmp rdi, 58",
            "je 4f",
            "cmp rdi, 435",
            "je 4f",
            "cmp rdi, {numbers}",
            "jae 2f",
            "lea rax, [rip + {watched_numbers}]",
            "bt qword ptr [rax], rdi",
            "jc 3f",
            "2:",
            "mov rax, rdi",
            "mov rdi, rsi",
            "mov rsi, rdx",
            "mov rdx, rcx",
            "mov r10, r8",
            "mov r8, r9",
            "mov r9, qword ptr [rsp + 8]",
            "syscall",
            "cmp rax, -4095",
            "jae 5f",
            "ret",
            "5:",
            "mov rdi, rax",
            "jmp {fail}",
            "3:",
            // The seventh argument is on the stack, where the callee expects it.
            "jmp {watched}",
            "4:",
            // vfork and clones: passes their flags (a vfork's: shared memory, own descriptors) to the hook,
            // then makes the call.
            save_arguments!(),
            "mov rax, rdi",
            "mov rdi, rsi",
            "cmp rax, 56",
            "je 6f",
            "mov edi, 0x4100",
            "6:",
            "call {before}",
            restore_arguments!(),
            "jmp 2b",
            fail = sym failed,
            watched = sym super::terrace_syscall,
            numbers = const NUMBERS,
            watched_numbers = sym WATCHED,
            before = sym super::terrace_before_clone,
        )
    }

    /// Sets errno; returns -1.
    unsafe extern "C" fn failed(ret: isize) -> isize {
        crate::sys::libc_ret(ret)
    }
}
