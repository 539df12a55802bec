//! The daemon's side of the codecs: chooses a page's codec, and whether the page is worth keeping.
//!
//! | step | cost | takes |
//! |---|---|---|
//! | one word fills the page? | 20 ns | zeros, patterns |
//! | LZ4 | 6 us, 1.2 us where nothing repeats | most pages |
//! | a sample of 256 bytes looks random? | 0.1-0.3 us | refuses encrypted or compressed content |
//! | zstd level 1 | 12 us | what LZ4 cannot bring under the limit |
//!
//! In dense mode zstd comes first, for twice the time and a third more pages in the same memory.

use crate::codec::{Coded, Encoding, Page, Unpack, same_word};
use crate::layout::PAGE_SIZE;
use crate::zobject::{HEAD_BYTES, STORED_MAX};
use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};
use std::io;
use zstd_safe::{CCtx, CParameter, DCtx, DParameter, FrameFormat};

/// Which codecs pages get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CompressionMode {
    /// LZ4 or nothing.
    Lz4,
    /// LZ4, and zstd level 1 for pages that LZ4 cannot bring under the limit.
    #[default]
    Mixed,
    /// zstd level 1.
    Dense,
}

/// Why a page is not worth keeping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Its compressed bytes are over the limit.
    Poor,
    /// It looks random: zstd was not tried.
    Random,
}

/// Compresses pages. Each thread needs its own, since it holds the tables of its codecs.
pub struct Compressor {
    mode: CompressionMode,
    stored_max: usize,
    out: Box<[u8]>,
    table: CompressTable,
    zstd: CCtx<'static>,
}

impl std::fmt::Debug for Compressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compressor").field("mode", &self.mode).field("stored_max", &self.stored_max).finish()
    }
}

const ZSTD_LEVEL: i32 = 1;
/// The small table of lz4_flex: 4096 positions.
const LZ4_TABLE_BYTES: usize = 8 << 10;

impl Compressor {
    /// A compressor for results of at most `percent_max` percent of a page, head included; at most 75.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(mode: CompressionMode, percent_max: u32) -> io::Result<Compressor> {
        let mut zstd = CCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?;
        for parameter in [
            CParameter::CompressionLevel(ZSTD_LEVEL),
            CParameter::Format(FrameFormat::Magicless),
            CParameter::ContentSizeFlag(false),
            CParameter::ChecksumFlag(false),
            CParameter::DictIdFlag(false),
        ] {
            zstd.set_parameter(parameter).map_err(zstd_error)?;
        }
        let left = PAGE_SIZE * percent_max as usize / 100;
        Ok(Compressor {
            mode,
            stored_max: left.saturating_sub(HEAD_BYTES).min(STORED_MAX),
            out: vec![0; get_maximum_output_size(PAGE_SIZE)].into(),
            table: CompressTable::small(),
            zstd,
        })
    }
    /// Memory of the compressor, bytes: after the first pages, when zstd has allocated its tables.
    pub fn bytes(&self) -> usize {
        self.out.len() + LZ4_TABLE_BYTES + self.zstd.sizeof()
    }

    /// Compresses a page. The bytes are valid until the next call.
    ///
    /// # Errors
    /// The page is not worth keeping.
    pub fn compress(&mut self, page: &Page) -> Result<Coded<'_>, Refusal> {
        self.compress_as(self.mode, page)
    }
    /// As [`Compressor::compress`], without LZ4, which has failed for similar pages.
    ///
    /// # Errors
    /// The page is not worth keeping.
    pub fn compress_beyond_lz4(&mut self, page: &Page) -> Result<Coded<'_>, Refusal> {
        let mode = if self.mode == CompressionMode::Mixed { CompressionMode::Dense } else { self.mode };
        self.compress_as(mode, page)
    }

    fn compress_as(&mut self, mode: CompressionMode, page: &Page) -> Result<Coded<'_>, Refusal> {
        if let Some(word) = same_word(page) {
            let len = self.put(word);
            return self.coded(Encoding::Same, len);
        }
        if mode != CompressionMode::Dense {
            let len = self.lz4(page);
            if len <= self.stored_max || mode == CompressionMode::Lz4 {
                return self.coded(Encoding::Lz4, len);
            }
        }
        if looks_random(page) {
            return Err(Refusal::Random);
        }
        let len = self.zstd(page);
        self.coded(Encoding::Zstd, len)
    }

    fn coded(&self, codec: Encoding, len: usize) -> Result<Coded<'_>, Refusal> {
        if len > self.stored_max {
            return Err(Refusal::Poor);
        }
        Ok(Coded { codec, bytes: &self.out[..len] })
    }
    fn put(&mut self, word: u64) -> usize {
        self.out[..size_of::<u64>()].copy_from_slice(&word.to_le_bytes());
        size_of::<u64>()
    }
    fn lz4(&mut self, page: &Page) -> usize {
        let done = compress_into_with_table(page, &mut self.out, &mut self.table);
        done.expect("room for the largest block")
    }
    /// Needs a buffer with a margin: zstd stops some bytes early. Returns a page's length on failure.
    fn zstd(&mut self, page: &Page) -> usize {
        self.zstd.compress2(&mut self.out[..], page).unwrap_or(PAGE_SIZE)
    }
}

/// Sampled pieces of a page, and bytes of each.
const PIECES: usize = 16;
const PIECE: usize = 16;
/// Below this sum of squared byte counts, a sample of 256 bytes counts as random. Uniform bytes have 511 on
/// average, text several thousand.
const EVEN: u32 = 640;

/// True if the bytes of a sample are distributed as evenly as random ones.
pub(crate) fn looks_random(page: &Page) -> bool {
    let mut counts = [0_u8; 256];
    // With saturation, 256 equal bytes count as 255: still far from random.
    for piece in page.chunks_exact(PAGE_SIZE / PIECES) {
        piece[..PIECE].iter().for_each(|&b| counts[b as usize] = counts[b as usize].saturating_add(1));
    }
    counts.iter().map(|&n| u32::from(n) * u32::from(n)).sum::<u32>() < EVEN
}

/// Decodes zstd's pages. Each thread needs its own.
pub struct Unzstd(DCtx<'static>);

impl std::fmt::Debug for Unzstd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Unzstd")
    }
}

impl Unzstd {
    /// A new one.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new() -> io::Result<Unzstd> {
        let mut context = DCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?;
        context.set_parameter(DParameter::Format(FrameFormat::Magicless)).map_err(zstd_error)?;
        Ok(Unzstd(context))
    }
    /// Memory of the decoder, bytes.
    pub fn bytes(&self) -> usize {
        self.0.sizeof()
    }
}

impl Unpack for Unzstd {
    fn zstd(&mut self, bytes: &[u8], out: &mut Page) -> bool {
        self.0.decompress(&mut out[..], bytes) == Ok(PAGE_SIZE)
    }
}

fn zstd_error(code: usize) -> io::Error {
    io::Error::other(zstd_safe::get_error_name(code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Plain;
    use proptest::prelude::*;
    use terrace_testkit::rng::Rng;

    /// The first `noisy` bytes of each `of` are noise, the others a text.
    fn page(noisy: usize, of: usize) -> Page {
        let mut rng = Rng::new(1);
        std::array::from_fn(|i| {
            let noise = rng.next_u64() as u8;
            if i % of < noisy { noise } else { b"a cache, a page, a frame; "[i % 26] }
        })
    }
    /// Random bytes of few kinds: nothing repeats for LZ4, but entropy coding shortens them.
    fn letters(kinds: u8) -> Page {
        page(1, 1).map(|b| b'a'.wrapping_add(b % kinds))
    }
    fn compressor(mode: CompressionMode) -> Compressor {
        Compressor::new(mode, 75).unwrap()
    }
    fn codec(mode: CompressionMode, page: &Page) -> Result<Encoding, Refusal> {
        compressor(mode).compress(page).map(|c| c.codec)
    }

    #[test]
    fn every_page_gets_the_codec_that_is_due() {
        use Encoding::{Lz4, Same, Zstd};
        let (words, text, noise) = ([7; PAGE_SIZE], page(10, 64), page(1, 1));
        for (page, wanted) in [
            (words, [Ok(Same), Ok(Same), Ok(Same)]),
            (text, [Ok(Lz4), Ok(Lz4), Ok(Zstd)]),
            (letters(16), [Err(Refusal::Poor), Ok(Zstd), Ok(Zstd)]),
            (letters(90), [Err(Refusal::Poor); 3]),
            (noise, [Err(Refusal::Poor), Err(Refusal::Random), Err(Refusal::Random)]),
        ] {
            let found = [CompressionMode::Lz4, CompressionMode::Mixed, CompressionMode::Dense]
                .map(|mode| codec(mode, &page));
            assert_eq!(found, wanted);
            let beyond = [CompressionMode::Lz4, CompressionMode::Mixed, CompressionMode::Dense]
                .map(|mode| compressor(mode).compress_beyond_lz4(&page).map(|c| c.codec));
            assert_eq!(beyond, [wanted[0], wanted[2], wanted[2]]);
        }
    }

    #[test]
    fn the_limit_is_the_callers() {
        let page = letters(16);
        let len = compressor(CompressionMode::Dense).compress(&page).unwrap().bytes.len();
        let percent = ((len + HEAD_BYTES) * 100).div_ceil(PAGE_SIZE) as u32;
        assert!(Compressor::new(CompressionMode::Dense, percent).unwrap().compress(&page).is_ok());
        assert_eq!(
            Compressor::new(CompressionMode::Dense, percent - 1).unwrap().compress(&page),
            Err(Refusal::Poor)
        );
        assert_eq!(
            Compressor::new(CompressionMode::Mixed, 0).unwrap().compress(&[0; PAGE_SIZE]),
            Err(Refusal::Poor)
        );
        let most = Compressor::new(CompressionMode::Lz4, 100).unwrap().stored_max;
        assert_eq!(most, STORED_MAX);
    }

    #[test]
    fn chance_looks_random_and_nothing_else_does() {
        let (mut rng, mut noise) = (Rng::new(9), [0; PAGE_SIZE]);
        for _ in 0..2000 {
            rng.fill(&mut noise);
            assert!(looks_random(&noise));
        }
        assert!(
            !looks_random(&letters(90)) && !looks_random(&[0; PAGE_SIZE]) && !looks_random(&page(10, 64))
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
        #[test]
        fn kept_value_is_read_back(noisy in 0_usize..400, of in 1_usize..400, kinds in 1_u8..=255) {
            let mut unzstd = Unzstd::new().unwrap();
            for page in [page(noisy, of), letters(kinds)] {
                for mode in [CompressionMode::Lz4, CompressionMode::Mixed, CompressionMode::Dense] {
                    let mut compressor = compressor(mode);
                    // Three pages with one compressor: no state of a page may leak to the next.
                    for page in [&page, &[3; PAGE_SIZE], &page] {
                        let Ok(coded) = compressor.compress(page) else { continue };
                        prop_assert!(coded.bytes.len() <= STORED_MAX);
                        let mut out = [0; PAGE_SIZE];
                        prop_assert!(coded.decode(&mut out, &mut unzstd));
                        prop_assert!(out == *page);
                        prop_assert_eq!(coded.decode(&mut out, &mut Plain), coded.codec != Encoding::Zstd);
                    }
                }
            }
        }
        #[test]
        fn zstd_takes_no_harm_from_any_bytes(
            bytes in prop::collection::vec(any::<u8>(), 0..STORED_MAX),
            at in any::<prop::sample::Index>(),
            flip in 1_u8..,
        ) {
            let mut unzstd = Unzstd::new().unwrap();
            let mut compressor = compressor(CompressionMode::Dense);
            let page = letters(16);
            let mut bad = compressor.compress(&page).unwrap().bytes.to_vec();
            let mut room = vec![0xa5; PAGE_SIZE + 512];
            let n = bad.len();
            bad[at.index(n)] ^= flip;
            for bytes in [&bytes[..], &bad, &bad[..n / 2]] {
                let out: &mut Page = (&mut room[256..256 + PAGE_SIZE]).try_into().unwrap();
                unzstd.zstd(bytes, out);
                prop_assert!(room[..256].iter().chain(&room[256 + PAGE_SIZE..]).all(|&b| b == 0xa5));
            }
            // The decoder still works.
            let coded = compressor.compress(&page).unwrap();
            let mut out = [0; PAGE_SIZE];
            prop_assert!(coded.decode(&mut out, &mut unzstd) && out == page);
        }
    }
}
