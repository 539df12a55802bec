//! The formats of compressed pages, and their bounds-checked decoding without allocation.
//!
//! | codec | bytes | decoded by |
//! |---|---|---|
//! | same | the word that fills the page | all |
//! | LZ4 block | lz4_flex with its safe features: each read and write is bounds-checked | all |
//! | zstd, magicless, no content size | libzstd | all; in foreign programs, in memory set aside ([`crate::unzstd`]) |

use crate::layout::PAGE_SIZE;

/// A page's content.
pub type Page = [u8; PAGE_SIZE];

/// How a compressed page is coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Encoding {
    /// One word of 8 bytes fills the page.
    Same = 1,
    /// An LZ4 block.
    Lz4 = 2,
    /// A zstd frame without magic number and content size.
    Zstd = 3,
}

/// A compressed page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coded<'a> {
    /// The codec of the bytes.
    pub codec: Encoding,
    /// The compressed bytes; at most [`crate::zobject::STORED_MAX`] for the pool.
    pub bytes: &'a [u8],
}

/// The abilities of a reader of compressed pages beyond LZ4, and its callbacks.
pub trait Unpack {
    /// Decodes a zstd frame. False: the frame is not a whole page, or this reader has no zstd.
    fn zstd(&mut self, _bytes: &[u8], _out: &mut Page) -> bool {
        false
    }
    /// Reports a read of `page` from its compressed copy. `before`: touches of the copy, up to
    /// [`crate::touch::ZTOUCH_MAX`], halved at intervals ([`crate::zpool::ZPool::age`]). After
    /// [`crate::layout::Header::promote_at`] touches the page is worth a frame.
    fn served(&mut self, _page: u64, _before: u8) {}
}

/// A reader without codecs beyond LZ4, and without callbacks.
#[derive(Debug, Clone, Copy)]
pub struct Plain;
impl Unpack for Plain {}

impl Coded<'_> {
    /// Decodes the page. False: the bytes are not a whole page, or need zstd and `unpack` has none. `out` is
    /// undefined then.
    pub fn decode(self, out: &mut Page, unpack: &mut dyn Unpack) -> bool {
        match self.codec {
            Encoding::Same => match self.bytes.try_into() {
                Ok(word) => {
                    fill(out, u64::from_le_bytes(word));
                    true
                }
                Err(_) => false,
            },
            Encoding::Lz4 => {
                lz4_flex::block::decompress_into(self.bytes, out).is_ok_and(|bytes| bytes == PAGE_SIZE)
            }
            Encoding::Zstd => unpack.zstd(self.bytes, out),
        }
    }
}

fn fill(out: &mut Page, word: u64) {
    for place in out.as_chunks_mut::<8>().0 {
        *place = word.to_le_bytes();
    }
}

/// The word that fills the whole page, if there is one.
pub fn same_word(page: &Page) -> Option<u64> {
    let words = page.as_chunks::<8>().0;
    let (first, last) = (words[0], words[words.len() - 1]);
    // Most other pages differ here; the rest is compared in memory order.
    let same = first == last && first == words[words.len() / 2] && words.iter().all(|w| *w == first);
    same.then(|| u64::from_le_bytes(first))
}
