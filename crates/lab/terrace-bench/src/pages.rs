//! Files with bytes that depend on their position, and the check of data read from them.
//!
//! Page `p` of a file with seed `s` starts with the words `p` and `s`; the other 510 words follow from both.
//! A hot loop compares the first word only ([`looks_right`]); a full check ([`check`]) is made outside the
//! timed part.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes in a page.
pub const PAGE: usize = 4096;
/// Bytes in a MiB.
pub const MIB: u64 = 1 << 20;
/// Seed of all data files.
pub(crate) const DATA_SEED: u64 = 20_240_611;
const WORDS: usize = PAGE / 8;

/// splitmix64's finaliser: neighbouring numbers become unrelated.
#[inline]
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn word(seed: u64, page: u64, i: usize) -> u64 {
    match i {
        0 => page,
        1 => seed,
        _ => mix(seed
            ^ page.wrapping_mul(0xd6e8_feb8_6659_fd93)
            ^ (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
    }
}

/// Writes the content of page `page` into `out`.
pub fn fill(seed: u64, page: u64, out: &mut [u8]) {
    assert_eq!(out.len(), PAGE);
    for (i, chunk) in out.chunks_exact_mut(8).enumerate() {
        chunk.copy_from_slice(&word(seed, page, i).to_le_bytes());
    }
}

/// The cheap check of a hot loop: the page's own number.
#[inline]
pub(crate) fn looks_right(page: u64, data: &[u8]) -> bool {
    data[..8] == page.to_le_bytes()
}

/// Checks `data`, read from page `first` on, in full. The error names the fault.
pub fn check(seed: u64, first: u64, data: &[u8]) -> Result<(), String> {
    for (n, chunk) in data.chunks(PAGE).enumerate() {
        let page = first + n as u64;
        if chunk.len() != PAGE {
            return Err(format!("page {page}: {} bytes instead of {PAGE}", chunk.len()));
        }
        let wrong = (0..WORDS).find(|&i| chunk[i * 8..i * 8 + 8] != word(seed, page, i).to_le_bytes());
        if let Some(i) = wrong {
            let found = u64::from_le_bytes(chunk[i * 8..i * 8 + 8].try_into().unwrap());
            return Err(format!(
                "page {page} byte {}: {found:#x} instead of {:#x}",
                i * 8,
                word(seed, page, i)
            ));
        }
    }
    Ok(())
}

/// Whether the file exists with the right length, ends and sample.
pub(crate) fn is_made(
    path: &Path,
    bytes: u64,
    seed: u64,
    check: impl Fn(u64, &[u8]) -> Result<(), String>,
) -> io::Result<bool> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e),
    };
    if file.metadata()?.len() != bytes {
        return Ok(false);
    }
    let pages = bytes / PAGE as u64;
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut buf = [0u8; PAGE];
    for page in [0, pages - 1].into_iter().chain((0..256).map(|_| rng.u64(..pages))) {
        file.read_exact_at(&mut buf, page * PAGE as u64)?;
        if check(page, &buf).is_err() {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_knows_its_place() {
        let mut page = [0u8; PAGE];
        fill(7, 12, &mut page);
        assert!(looks_right(12, &page) && !looks_right(13, &page));
        check(7, 12, &page).unwrap();
        assert!(check(8, 12, &page).is_err(), "another file's page");
        assert!(check(7, 13, &page).is_err(), "another page of the file");
        page[4095] ^= 1;
        assert!(check(7, 12, &page).unwrap_err().contains("page 12 byte 4088"));
        assert!(check(7, 12, &page[..4000]).is_err(), "a short read");
    }
}
