//! Decodes zstd's pages in a foreign program, in reserved memory, without a lock and without allocation.
//!
//! A decoder needs some 100 KiB. A few are in the library's zero pages, which have no memory until their use.
//! Without a free decoder a reader uses the mount path. A decoder interrupted by a signal handler stays
//! taken. One held across fork() is leaked: the child cannot know whether its owner still runs.

use crate::codec::Page;
use crate::layout::PAGE_SIZE;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};
use zstd_safe::zstd_sys::{
    ZSTD_DCtx, ZSTD_DCtx_setParameter, ZSTD_dParameter, ZSTD_decompressDCtx, ZSTD_format_e,
    ZSTD_initStaticDCtx, ZSTD_isError,
};

/// Bytes of a decoder's memory; zstd 1.5 takes 95,968.
const BYTES: usize = 96 << 10;
const DECODERS: usize = 8;

/// Not initialised yet: that executes `cpuid`, which takes microseconds in a virtual machine.
const NEW: u32 = 0;
const FREE: u32 = 1;
const TAKEN: u32 = 2;

#[repr(C, align(64))]
struct Memory(UnsafeCell<[u8; BYTES]>);

struct Decoder {
    state: AtomicU32,
    memory: Memory,
}

// SAFETY: only the thread that has taken the decoder uses its memory.
unsafe impl Sync for Decoder {}

static ALL: [Decoder; DECODERS] =
    [const { Decoder { state: AtomicU32::new(NEW), memory: Memory(UnsafeCell::new([0; BYTES])) } }; DECODERS];

impl Decoder {
    /// Takes the decoder from `state`. False: it is taken, or in the other state.
    fn take(&self, state: u32) -> bool {
        self.state.compare_exchange(state, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

/// Decodes a magicless zstd frame of one page. False: no sound frame, or no free decoder. `near`: first
/// decoder to try.
pub fn unzstd(bytes: &[u8], out: &mut Page, near: usize) -> bool {
    let all = || (0..DECODERS).map(|i| &ALL[(near + i) % DECODERS]);
    let taken = |state| all().find(|d| d.take(state)).map(|d| (d, state == FREE));
    let Some((decoder, made)) = taken(FREE).or_else(|| taken(NEW)) else { return false };
    let memory = decoder.memory.0.get().cast();
    // SAFETY: this thread has taken the decoder, and `made` states whether it is initialised.
    let decoded = unsafe { (made || make(memory)) && decode(memory, bytes, out) };
    // After bad bytes the decoder is initialised again.
    decoder.state.store(if decoded { FREE } else { NEW }, Ordering::Release);
    decoded
}

/// # Safety
/// `memory` is aligned, has [`BYTES`] bytes and is the caller's.
unsafe fn make(memory: *mut u8) -> bool {
    let format = ZSTD_dParameter::ZSTD_d_experimentalParam1;
    let magicless = ZSTD_format_e::ZSTD_f_zstd1_magicless as i32;
    // SAFETY: the caller's promise; zstd keeps to the memory.
    unsafe {
        let context: *mut ZSTD_DCtx = ZSTD_initStaticDCtx(memory.cast(), BYTES);
        // zstd places the context at the start of the memory.
        std::ptr::eq(context.cast(), memory)
            && ZSTD_isError(ZSTD_DCtx_setParameter(context, format, magicless)) == 0
    }
}

/// # Safety
/// `memory` is an initialised decoder and the caller's.
unsafe fn decode(memory: *mut u8, bytes: &[u8], out: &mut Page) -> bool {
    let (to, from) = (out.as_mut_ptr().cast(), bytes.as_ptr().cast());
    // SAFETY: the caller's promise; zstd keeps to the memory and to both slices.
    unsafe { ZSTD_decompressDCtx(memory.cast(), to, PAGE_SIZE, from, bytes.len()) == PAGE_SIZE }
}

#[cfg(all(test, feature = "compress"))]
mod tests {
    use super::*;
    use crate::codec::Encoding;
    use crate::compress::{CompressionMode, Compressor};
    use zstd_safe::zstd_sys::ZSTD_estimateDCtxSize;

    /// Letters that LZ4 cannot compress.
    fn page(seed: u32) -> Page {
        std::array::from_fn(|at| b'a' + ((at as u32).wrapping_mul(2 * seed + 40_503) >> 9) as u8 % 13)
    }

    fn by_many_threads(thread: u32) {
        let mut compressor = Compressor::new(CompressionMode::Dense, 75).unwrap();
        for i in 0..200 {
            let page = page(1000 * thread + i);
            let coded = compressor.compress(&page).unwrap();
            assert_eq!(coded.codec, Encoding::Zstd);
            let mut out = [0; PAGE_SIZE];
            assert!(unzstd(coded.bytes, &mut out, thread as usize) && out == page);
            let mut bad = coded.bytes.to_vec();
            let at = i as usize % bad.len();
            bad[at] ^= 0x55;
            unzstd(&bad, &mut out, thread as usize);
            assert!(!unzstd(&bad[..1], &mut out, thread as usize));
        }
    }

    /// A single test, since the decoders are shared by the process.
    #[test]
    fn pages_come_back_while_a_decoder_is_free() {
        // SAFETY: returns a number and accesses no memory of this process.
        let needed = unsafe { ZSTD_estimateDCtxSize() };
        assert!(needed <= BYTES, "{needed}");
        std::thread::scope(|s| (0..4).for_each(|t| drop(s.spawn(move || by_many_threads(t)))));
        let mut compressor = Compressor::new(CompressionMode::Dense, 75).unwrap();
        let (page, mut out) = (page(7), [0; PAGE_SIZE]);
        let bytes = compressor.compress(&page).unwrap().bytes;
        ALL.iter().for_each(|d| d.state.store(TAKEN, Ordering::Relaxed));
        assert!(!unzstd(bytes, &mut out, 3), "none is free");
        ALL[1].state.store(FREE, Ordering::Relaxed);
        assert!(unzstd(bytes, &mut out, 3) && out == page);
    }
}
