//! Self-describing content: a page read from the wrong place, of the wrong version or only in part is
//! detected.
//!
//! ```text
//!   512 bytes:  page number | version | sector of the page | words derived from these ... | checksum
//! ```
//! A sector is the unit of a device's write: in a torn page, each sector still shows its own version.

use crate::rng::mix;

/// Bytes of a page.
pub const PAGE: usize = 4096;
const SECTOR: usize = 512;
const WORDS: usize = SECTOR / 8;

/// Compressibility of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Incompressible.
    Noise,
    /// Compressible to a small part.
    Repeats,
}

/// The fault of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bad {
    /// Each sector is valid, but with these different versions.
    Torn(Vec<u64>),
    /// A sector has content that was never written there.
    Garbage(String),
}

/// Fills `buf` with version `version` (not 0) of page `page`.
///
/// # Panics
/// If `buf` is not a page long.
pub fn stamp(buf: &mut [u8], page: u64, version: u64, content: Content) {
    assert_eq!(buf.len(), PAGE, "one page");
    let period = if content == Content::Noise { WORDS as u64 } else { 8 };
    for (sector, bytes) in (0..).zip(buf.chunks_mut(SECTOR)) {
        let from = mix(page ^ version.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ sector << 60);
        let head = [page, version, sector];
        for (i, word) in (0..).zip(bytes[..SECTOR - 8].chunks_mut(8)) {
            let value = head.get(i as usize).copied().unwrap_or_else(|| mix(from.wrapping_add(i % period)));
            word.copy_from_slice(&value.to_le_bytes());
        }
        let check = sum(bytes);
        bytes[SECTOR - 8..].copy_from_slice(&check.to_le_bytes());
    }
}

/// A new incompressible page.
#[cfg(test)]
pub(crate) fn noise(page: u64, version: u64) -> Vec<u8> {
    let mut buf = vec![0; PAGE];
    stamp(&mut buf, page, version, Content::Noise);
    buf
}

/// The version of a page read as page `page`; 0: never written.
///
/// # Errors
/// The fault.
pub fn version(buf: &[u8], page: u64) -> Result<u64, Bad> {
    let mut versions = Vec::with_capacity(PAGE / SECTOR);
    for (sector, bytes) in (0..).zip(buf.chunks(SECTOR)) {
        let word = |i: usize| u64::from_le_bytes(bytes[i * 8..][..8].try_into().expect("8 bytes"));
        if bytes.iter().all(|byte| *byte == 0) {
            versions.push(0);
        } else if bytes.len() == SECTOR && (word(0), word(2), word(WORDS - 1)) == (page, sector, sum(bytes)) {
            versions.push(word(1));
        } else {
            let text = format!("page {page}, sector {sector}: found page {}, sector {}", word(0), word(2));
            return Err(Bad::Garbage(text));
        }
    }
    match versions.first() {
        Some(first) if versions.iter().all(|version| version == first) => Ok(*first),
        _ => Err(Bad::Torn(versions)),
    }
}

/// Checksum of all words of a sector except the last.
fn sum(sector: &[u8]) -> u64 {
    let words = sector[..SECTOR - 8].chunks_exact(8);
    words.fold(SECTOR as u64, |sum, word| mix(sum ^ u64::from_le_bytes(word.try_into().expect("8 bytes"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_tells_its_version() {
        for content in [Content::Noise, Content::Repeats] {
            let mut page = vec![0; PAGE];
            assert_eq!(version(&page, 3), Ok(0));
            stamp(&mut page, 3, 9, content);
            assert_eq!(version(&page, 3), Ok(9));
            assert!(matches!(version(&page, 4), Err(Bad::Garbage(_))));
        }
    }

    #[test]
    fn torn_and_broken_pages_are_noticed() {
        let (old, new) = (noise(3, 9), noise(3, 10));
        let mut page = old.clone();
        page[1024..].copy_from_slice(&new[1024..]);
        assert_eq!(version(&page, 3), Err(Bad::Torn(vec![9, 9, 10, 10, 10, 10, 10, 10])));
        for at in 0..PAGE {
            let mut page = old.clone();
            page[at] ^= 4;
            assert!(version(&page, 3).is_err(), "byte {at}");
        }
    }
}
