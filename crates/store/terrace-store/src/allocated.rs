//! Memory that the allocator (glibc's malloc) takes for an allocation of a given size, bytes.

/// Bytes the allocator uses for `bytes`: a word before it, multiples of 16, at least 32 (glibc,
/// malloc/malloc.c, "chunk").
pub(crate) fn allocated(bytes: usize) -> u64 {
    if bytes == 0 { 0 } else { (bytes as u64 + 8).next_multiple_of(16).max(32) }
}
