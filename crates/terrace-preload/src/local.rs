//! State of the preload path for each thread.
//!
//! Initial-exec TLS, which every library loaded at start gets: an address computed from the thread pointer. The model
//! that `thread_local!` gives a cdylib calls `__tls_get_addr`, which may allocate after a later dlopen; a hook that runs
//! under an allocator or in a signal handler must not.

use std::cell::Cell;
use std::ffi::c_int;

/// Recent reads of a thread, one a descriptor, to tell a scan from random reads.
#[derive(Debug)]
#[repr(C)]
struct Stream {
    fd: Cell<c_int>,
    streak: Cell<u32>,
    end: Cell<u64>,
}

const STREAMS: usize = 4;
/// Longest path of a directory that is remembered.
pub const HINT_BYTES: usize = 504;

/// Where a directory was when it was last asked: below the root of the mount, without a slash at either end. May be out of date.
#[derive(Debug)]
#[repr(C)]
pub struct Hint {
    /// The descriptor + 1; 0: nothing is known.
    pub dir1: Cell<c_int>,
    pub len: Cell<u32>,
    pub path: [Cell<u8>; HINT_BYTES],
}

const HINTS: usize = 2;
/// Bytes of [`Local`]; the assembler needs a number.
const LOCAL_BYTES: usize = 32 + STREAMS * 16 + HINTS * size_of::<Hint>();

/// A thread's block. All zero at its start.
#[derive(Debug)]
#[repr(C)]
pub struct Local {
    /// The thread runs in a vfork child: its memory is the parent's, so no table may change. Written by assembly.
    vforked: Cell<u32>,
    /// Counter stripe + 1.
    stripe: Cell<u32>,
    /// PageFill slot where the next search starts.
    pub next_slot: Cell<u32>,
    /// The thread holds the connection's lock: a signal handler that finds this must not wait for it.
    pub holding: Cell<u32>,
    /// Memory that was last found writable, see [`crate::buffer`].
    pub good_from: Cell<usize>,
    /// Its end.
    pub good_to: Cell<usize>,
    streams: [Stream; STREAMS],
    /// The working directory, and the directory of the last openat.
    pub hints: [Hint; HINTS],
}

const _: () = assert!(size_of::<Local>() == LOCAL_BYTES && std::mem::offset_of!(Local, vforked) == 0);

std::arch::global_asm!(
    ".section .tbss.terrace_local,\"awT\",@nobits",
    ".p2align 4",
    ".globl terrace_local",
    ".hidden terrace_local",
    ".type terrace_local,@object",
    "terrace_local: .zero {bytes}",
    ".size terrace_local, {bytes}",
    ".text",
    bytes = const LOCAL_BYTES,
);

/// The calling thread's block.
#[inline]
pub fn local() -> &'static Local {
    let p: *const Local;
    // SAFETY: the initial-exec sequence for the symbol above; fs:0 holds the thread pointer. The block is zeroed, which is
    // a valid Local, and lives as long as the thread; the reference does not leave it (Local is not Sync).
    unsafe {
        std::arch::asm!("mov {p}, qword ptr [rip + terrace_local@GOTTPOFF]", "add {p}, qword ptr fs:[0]",
            p = out(reg) p, options(pure, readonly, nostack));
        &*p
    }
}

impl Local {
    /// True in a vfork child.
    #[inline]
    pub fn vforked(&self) -> bool {
        self.vforked.get() != 0
    }
    /// Counter stripe of the thread.
    #[inline]
    pub fn stripe(&self) -> usize {
        if self.stripe.get() == 0 {
            self.first_stripe();
        }
        self.stripe.get() as usize
    }
    #[cold]
    fn first_stripe(&self) {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        self.stripe.set(1 + NEXT.fetch_add(1, Ordering::Relaxed) % 1024);
    }
    /// Notes a read and says how many reads before it were adjacent.
    #[inline]
    pub fn streak(&self, fd: c_int, offset: u64, n: usize) -> u32 {
        let s = &self.streams[fd as usize % STREAMS];
        let streak =
            if s.fd.get() == fd && s.end.get() == offset { s.streak.get().saturating_add(1) } else { 0 };
        s.fd.set(fd);
        s.streak.set(streak);
        s.end.set(offset + n as u64);
        streak
    }
}
