//! Copies out of frames: the larger part of the cost of a hit.
//!
//! | bytes | bound by | how |
//! |---|---|---|
//! | up to 255, or without AVX-512 up to 8191 | latency of uncached memory | the C library's memcpy |
//! | from 256 to 8191, with AVX-512 | latency of uncached memory | all lines prefetched, then wide loads and stores |
//! | 8192 and more | bandwidth | one `rep movsb` |
//!
//! The C library's memcpy uses `rep movsb` for a single page, too. The wide copy saves a tenth of a hit's
//! time. Few instructions between two copies let them overlap, so the look-up is short.

/// From this length on bandwidth limits a copy.
#[cfg(target_arch = "x86_64")]
const STREAM_MIN_BYTES: usize = 8192;

/// Copies `n` bytes out of frames.
///
/// # Safety
/// As `ptr::copy_nonoverlapping`, but the source may change during the copy: the caller discards a torn copy.
#[inline]
pub(crate) unsafe fn out_of_frames(from: *const u8, to: *mut u8, n: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise. `wide` runs only where the processor has the instructions.
    unsafe {
        if n >= STREAM_MIN_BYTES {
            return x86::string(from, to, n);
        }
        if n >= x86::WIDE_MIN && std::arch::is_x86_feature_detected!("avx512f") {
            return x86::wide(from, to, n);
        }
    }
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, n) };
}

/// Prefetches `n` bytes into the processor's cache, without waiting.
#[inline]
pub fn prefetch(from: *const u8, n: usize) {
    #[cfg(target_arch = "x86_64")]
    x86::prefetch(from, n);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, n);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{__m512i, _MM_HINT_T0, _mm_prefetch, _mm512_loadu_si512, _mm512_storeu_si512};

    const LINE: usize = size_of::<__m512i>();
    /// Shorter copies cost more this way.
    pub(super) const WIDE_MIN: usize = 4 * LINE;

    #[inline]
    pub(super) fn prefetch(from: *const u8, n: usize) {
        for at in (0..n).step_by(LINE) {
            // SAFETY: a prefetch may name any address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(at).cast()) };
        }
    }

    /// # Safety
    /// As [`super::out_of_frames`].
    #[inline]
    pub(super) unsafe fn string(from: *const u8, to: *mut u8, n: usize) {
        // SAFETY: the caller's promise; the asm block is opaque to the compiler, so a racing source is no UB for it.
        unsafe {
            std::arch::asm!("rep movsb", inout("rcx") n => _, inout("rdi") to => _, inout("rsi") from => _,
                options(nostack, preserves_flags));
        }
    }

    /// # Safety
    /// As [`super::out_of_frames`]; `n >= WIDE_MIN`.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn wide(from: *const u8, to: *mut u8, n: usize) {
        // SAFETY: `at + LINE <= n` for each move, and all of it lies in the caller's ranges. A prefetch may
        // name any address.
        unsafe {
            for at in (0..n).step_by(LINE) {
                _mm_prefetch::<_MM_HINT_T0>(from.add(at).cast());
            }
            let line =
                |at: usize| _mm512_storeu_si512(to.add(at).cast(), _mm512_loadu_si512(from.add(at).cast()));
            let mut at = 0;
            while at + 4 * LINE <= n {
                line(at);
                line(at + LINE);
                line(at + 2 * LINE);
                line(at + 3 * LINE);
                at += 4 * LINE;
            }
            while at + LINE <= n {
                line(at);
                at += LINE;
            }
            // The last line ends at the end of the range and overlaps the one before.
            line(n - LINE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::out_of_frames;

    #[test]
    fn every_length_and_alignment_is_copied_exactly() {
        let source: Vec<u8> = (0..20_000_u32).map(|i| ((i * 31) >> 3) as u8).collect();
        for n in (0..600).chain([1023, 4095, 4096, 4097, 8191, 8192, 8193, 16_384]) {
            for (skip, shift) in [(0, 0), (1, 3), (63, 1), (64, 64)] {
                let mut got = vec![0xa5_u8; n + shift + 64];
                // SAFETY: both ranges lie inside their vectors.
                unsafe { out_of_frames(source[skip..].as_ptr(), got[shift..].as_mut_ptr(), n) };
                assert_eq!(got[shift..shift + n], source[skip..skip + n], "{n} bytes");
                assert!(
                    got[..shift].iter().chain(&got[shift + n..]).all(|&b| b == 0xa5),
                    "{n} bytes: outside"
                );
            }
        }
    }
}
