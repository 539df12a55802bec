//! Hooks of dprintf and its checked form, which write inside libc. The forms with a list of arguments are in
//! [`super::write`]; the other functions that print use streams.

use super::guard::guard;
use crate::lasting::Until;
use crate::{directory, symbols, writers};
use libc::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The real functions.
static NEXT: AtomicUsize = AtomicUsize::new(0);
static NEXT_CHK: AtomicUsize = AtomicUsize::new(0);

/// Called by the stubs below. They cannot end an announcement, so it lasts until the descriptor is closed.
fn before(fd: c_int, name: &std::ffi::CStr, to: &AtomicUsize) {
    if to.load(Ordering::Relaxed) == 0 {
        let found = symbols::next(name).or_else(|| symbols::by_loader(name));
        to.store(found.unwrap_or(0), Ordering::Relaxed);
    }
    if directory::announces_writes() {
        guard(|| writers::hold_marked(fd, Until::Close));
    }
}

unsafe extern "C" fn before_dprintf(fd: c_int) {
    before(fd, c"dprintf", &NEXT);
}

unsafe extern "C" fn before_dprintf_chk(fd: c_int) {
    before(fd, c"__dprintf_chk", &NEXT_CHK);
}

mod stubs {
    //! Functions with any number of arguments. The real function needs all of them in place, so it is the target
    //! of a jump.

    use libc::c_int;
    use std::arch::naked_asm;

    macro_rules! stub {
        ($name:ident, $before:ident, $next:ident) => {
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $name() -> c_int {
                naked_asm!(
                    "endbr64",
                    // al has the number of arguments in vector registers.
                    "push rax",
                    "push rdi",
                    "push rsi",
                    "push rdx",
                    "push rcx",
                    "push r8",
                    "push r9",
                    "sub rsp, 128",
                    "movups xmmword ptr [rsp], xmm0",
                    "movups xmmword ptr [rsp + 16], xmm1",
                    "movups xmmword ptr [rsp + 32], xmm2",
                    "movups xmmword ptr [rsp + 48], xmm3",
                    "movups xmmword ptr [rsp + 64], xmm4",
                    "movups xmmword ptr [rsp + 80], xmm5",
                    "movups xmmword ptr [rsp + 96], xmm6",
                    "movups xmmword ptr [rsp + 112], xmm7",
                    "call {before}",
                    "movups xmm0, xmmword ptr [rsp]",
                    "movups xmm1, xmmword ptr [rsp + 16]",
                    "movups xmm2, xmmword ptr [rsp + 32]",
                    "movups xmm3, xmmword ptr [rsp + 48]",
                    "movups xmm4, xmmword ptr [rsp + 64]",
                    "movups xmm5, xmmword ptr [rsp + 80]",
                    "movups xmm6, xmmword ptr [rsp + 96]",
                    "movups xmm7, xmmword ptr [rsp + 112]",
                    "add rsp, 128",
                    "pop r9",
                    "pop r8",
                    "pop rcx",
                    "pop rdx",
                    "pop rsi",
                    "pop rdi",
                    "pop rax",
                    "mov r11, qword ptr [rip + {next}]",
                    "test r11, r11",
                    "jz 2f",
                    "jmp r11",
                    "2:",
                    "mov eax, -1",
                    "ret",
                    before = sym super::$before,
                    next = sym super::$next,
                )
            }
        };
    }
    stub!(dprintf, before_dprintf, NEXT);
    stub!(__dprintf_chk, before_dprintf_chk, NEXT_CHK);
}
