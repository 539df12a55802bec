//! Random numbers reproducible from one printed seed, file content derived from a pattern number, and a hash
//! of content.

pub use terrace_testkit::rng::{Rng, mix, seed};

/// Fills `buf` with bytes that depend on `pattern` and on the position in the pattern. The first byte of each
/// word is never zero, so written data never look like a hole. Of 8 consecutive words, 1 to 8 (by the
/// pattern) are noise, the others repeat: compressibility varies between patterns.
pub fn fill(buf: &mut [u8], pattern: u64) {
    let (from, noisy) = (pattern.wrapping_mul(0x1000_0001), 1 + pattern % 8);
    let own = mix(pattern) | 1;
    for (i, word) in (0_u64..).zip(buf.chunks_mut(8)) {
        let value = if i % 8 < noisy { mix(from.wrapping_add(i)) | 1 } else { own };
        word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
    }
}

/// FNV-1a over 64-bit words, the tail bytewise: a content hash for comparing logs only.
pub(crate) fn hash(buf: &[u8]) -> u64 {
    let mut h = 0xcbf2_9ce4_8422_2325u64 ^ buf.len() as u64;
    let mut words = buf.chunks_exact(8);
    for word in &mut words {
        h = (h ^ u64::from_le_bytes(word.try_into().expect("8 bytes"))).wrapping_mul(0x0000_0100_0000_01b3);
        h ^= h >> 29;
    }
    for byte in words.remainder() {
        h = (h ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    mix(h)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_sees_every_byte() {
        let mut data = vec![0; 1003];
        fill(&mut data, 5);
        let clean = hash(&data);
        for at in 0..data.len() {
            data[at] ^= 1;
            assert_ne!(hash(&data), clean, "byte {at}");
            data[at] ^= 1;
        }
    }
}
