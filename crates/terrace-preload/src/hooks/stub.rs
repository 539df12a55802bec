//! Stubs that no compiled frame may stand in for: the arguments go on as they came, also those that nobody counted.

/// Sets errno; returns -1.
pub(super) unsafe extern "C" fn failed(ret: isize) -> isize {
    crate::sys::libc_ret(ret)
}

/// Defines a function that calls `before` with its own arguments, and then is gone: the address in `next` (0: there is none) goes on with them.
macro_rules! pass_on {
    ($(#[$doc:meta])* $name:ident, $before:path, $next:path) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() -> libc::c_int {
            std::arch::naked_asm!(
                "endbr64",
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                // The number of floating-point arguments, of a function with any number of arguments.
                "push rax",
                "call {before}",
                "pop rax",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "mov r11, qword ptr [rip + {next}]",
                "test r11, r11",
                "jz 2f",
                "jmp r11",
                "2:",
                "mov rdi, -38",
                "jmp {fail}",
                before = sym $before,
                next = sym $next,
                fail = sym $crate::hooks::stub::failed,
            )
        }
    };
}
pub(super) use pass_on;
