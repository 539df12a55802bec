//! The unwinder of libgcc_s, loaded at the first unwind instead of at each program's start.
//!
//! The standard library links it; loading it costs each exec as much as the rest of the library
//! (docs/design/preload.md). The stubs below replace its functions inside this library: the first call of one
//! loads libgcc_s and finds the function. The static archive would not do: glibc cancels a thread with the
//! unwinder of libgcc_s. The personality function of this library's frames would read its contexts, and two
//! versions may disagree on them.

use std::arch::global_asm;
use std::ffi::{c_char, c_void};

/// A stub for each name: jumps to the function. The first call finds the address. Hidden: an exported one
/// would be used by every library.
macro_rules! stubs {
    ($($name:literal)*) => {
        $(global_asm!(
            concat!(".hidden ", $name),
            concat!(".globl ", $name),
            concat!(".type ", $name, ",@function"),
            ".text",
            ".p2align 4",
            concat!($name, ":"),
            "endbr64",
            "2:",
            "mov r11, qword ptr [rip + 3f]",
            "test r11, r11",
            "jz 4f",
            "jmp r11",
            "4:",
            // The arguments are in registers. `find` needs only a name and its return value.
            "push rdi",
            "push rsi",
            "push rdx",
            "push rcx",
            "push r8",
            "lea rdi, [rip + 5f]",
            "call {find}",
            "mov qword ptr [rip + 3f], rax",
            "pop r8",
            "pop rcx",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "jmp 2b",
            concat!(".size ", $name, ", . - ", $name),
            ".section .rodata.terrace_unwind,\"a\",@progbits",
            "5:",
            concat!(".asciz \"", $name, "\""),
            ".bss",
            ".p2align 3",
            "3: .zero 8",
            ".text",
            find = sym find,
        );)*
    };
}

stubs! {
    "_Unwind_Backtrace" "_Unwind_DeleteException" "_Unwind_GetCFA" "_Unwind_GetDataRelBase" "_Unwind_GetIP"
    "_Unwind_GetIPInfo" "_Unwind_GetLanguageSpecificData" "_Unwind_GetRegionStart" "_Unwind_GetTextRelBase"
    "_Unwind_RaiseException" "_Unwind_Resume" "_Unwind_SetGR" "_Unwind_SetIP"
}

/// The address of an unwinder's function. Without libgcc_s a panic cannot reach its guard, so the process is
/// aborted.
unsafe extern "C" fn find(name: *const c_char) -> *mut c_void {
    // SAFETY: C strings. The library is never closed.
    unsafe {
        let libgcc = libc::dlopen(c"libgcc_s.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        let found = if libgcc.is_null() { libgcc } else { libc::dlsym(libgcc, name) };
        if found.is_null() {
            libc::abort();
        }
        found
    }
}
