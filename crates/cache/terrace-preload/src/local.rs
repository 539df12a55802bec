//! State that the preload path keeps for each thread.
//!
//! The memory is initial-exec TLS, which every library loaded at start gets: its address is computed from the
//! thread pointer. A cdylib's `thread_local!` calls `__tls_get_addr`, which may allocate after a later
//! dlopen. A hook in an allocator or in a signal handler must not allocate.

use std::cell::Cell;
use std::ffi::c_int;

/// Consecutive reads of a thread, to distinguish scans and strides from random reads.
#[derive(Debug)]
#[repr(C)]
struct Stream {
    fd: Cell<c_int>,
    streak: Cell<u32>,
    start: Cell<u64>,
    end: Cell<u64>,
    /// Distance between the starts of the last two reads; 0: not known.
    step: Cell<u64>,
}

impl Stream {
    #[inline]
    fn goes_on(&self, fd: c_int, offset: u64) -> bool {
        self.fd.get() == fd && self.end.get() == offset
    }
    fn steps_to(&self, fd: c_int, offset: u64) -> bool {
        let step = self.step.get();
        self.fd.get() == fd && step != 0 && self.start.get().wrapping_add(step) == offset
    }
}

const STREAMS: usize = 4;
/// Reads further apart are unrelated, bytes.
const STEP_MAX: u64 = 4 << 20;
/// Maximum streak. A new stream halves the streaks of others, so that ended streams are replaced.
pub(crate) const STREAK_MAX: u32 = 15;
/// Bytes of [`Local`]; the assembly needs a number.
const LOCAL_BYTES: usize = 48 + STREAMS * size_of::<Stream>();

/// A thread's block. All zero at its start.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Local {
    /// The thread runs in a vfork child: its memory is the parent's, so no table may change. Written by assembly.
    vforked: Cell<u32>,
    /// Counter stripe + 1.
    stripe: Cell<u32>,
    /// Page-fill slot where the next search starts.
    pub(crate) next_slot: Cell<u32>,
    /// The thread holds the connection's lock: a signal handler that finds this must not wait for it.
    pub(crate) holding: Cell<u32>,
    /// Memory that was last found writable, see [`crate::buffer`].
    pub(crate) good_from: Cell<usize>,
    pub(crate) good_to: Cell<usize>,
    /// The stream of the last read.
    stream: Cell<u32>,
    /// 1: the thread may be cancelled at any instruction (PTHREAD_CANCEL_ASYNCHRONOUS).
    pub(crate) cancelled_at_once: Cell<u32>,
    /// Depth of the library's own system calls ([`crate::quiet`]).
    pub(crate) inside: Cell<u32>,
    _pad: u32,
    streams: [Stream; STREAMS],
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
pub(crate) fn local() -> &'static Local {
    let p: *const Local;
    // SAFETY: the initial-exec sequence for the symbol above; fs:0 holds the thread pointer. The zeroed block
    // is a valid Local and lives as long as the thread. The reference stays in the thread (Local is not
    // Sync).
    unsafe {
        std::arch::asm!("mov {p}, qword ptr [rip + terrace_local@GOTTPOFF]", "add {p}, qword ptr fs:[0]",
            p = out(reg) p, options(pure, readonly, nostack));
        &*p
    }
}

impl Local {
    #[inline]
    pub(crate) fn vforked(&self) -> bool {
        self.vforked.get() != 0
    }
    /// True if the thread may be cancelled at any instruction.
    #[inline]
    pub(crate) fn is_cancelled_at_once(&self) -> bool {
        self.cancelled_at_once.get() != 0
    }
    #[inline]
    pub(crate) fn stripe(&self) -> usize {
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
    /// Records a read. Returns the number of reads before it that were adjacent, or at the same distance.
    #[inline]
    pub(crate) fn streak(&self, fd: c_int, offset: u64, n: usize) -> u32 {
        let last = &self.streams[self.stream.get() as usize % STREAMS];
        let s = if last.goes_on(fd, offset) { last } else { self.other_stream(fd, offset) };
        let streak = s.streak.get();
        s.step.set(offset.wrapping_sub(s.start.get()));
        s.start.set(offset);
        s.end.set(offset + n as u64);
        s.streak.set((streak + 1).min(STREAK_MAX));
        streak
    }
    /// The stream of a read that does not continue the last one: one that expects it, or a new one. A new
    /// stream starts at the nearest stream of the same descriptor, which may be a stride away.
    #[inline(never)]
    fn other_stream(&self, fd: c_int, offset: u64) -> &Stream {
        let place = |at: usize| &self.streams[at % STREAMS];
        // Readers of equal parts of a file are at constant distances too: adjacent reads decide.
        let found = (0..STREAMS).find(|&at| place(at).goes_on(fd, offset));
        if let Some(at) = found.or_else(|| (0..STREAMS).find(|&at| place(at).steps_to(fd, offset))) {
            self.stream.set(at as u32);
            return place(at);
        }
        let distance = |s: &&Stream| s.start.get().abs_diff(offset);
        let near = self.streams.iter().filter(|s| s.fd.get() == fd && distance(s) <= STEP_MAX);
        let nearest = near.min_by_key(distance);
        let start = nearest.map_or(offset, |s| s.start.get());
        let mut at = self.stream.get() as usize + 1;
        for _ in 0..STREAMS {
            let s = place(at);
            if s.streak.get() <= 1 {
                break;
            }
            s.streak.set(s.streak.get() / 2);
            at += 1;
        }
        let s = place(at);
        self.stream.set((at % STREAMS) as u32);
        s.fd.set(fd);
        s.streak.set(0);
        s.start.set(start);
        s
    }
}
