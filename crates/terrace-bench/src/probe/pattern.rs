//! Content that tells its place, and that is made and checked at the speed of a copy.
//!
//! [`crate::pages`] computes each word of a page, which takes longer than a fast device needs to write it. Here a file repeats one MiB of
//! such pages, and only the first word of each page, its number, is its own: nothing that storage could compress or find twice within
//! what it looks at, and a block to be written is a piece of that MiB, stamped in place.

use crate::pages::{self, PAGE};
use crate::worker::Buffer;

/// The repeated piece, and the largest block.
pub const UNIT: usize = 1 << 20;

/// Content of one seed.
pub struct Pattern {
    unit: Buffer,
}

impl Pattern {
    /// Content that another seed's is not.
    pub fn new(seed: u64) -> Pattern {
        let mut unit = Buffer::new(UNIT);
        (0..).zip(unit.chunks_mut(PAGE)).for_each(|(page, out)| pages::fill(seed, page, out));
        Pattern { unit }
    }

    /// Where in the unit the block of `bytes` from `page` on is. Blocks lie at multiples of their size, which divides the unit.
    fn piece(page: u64, bytes: usize) -> std::ops::Range<usize> {
        let from = page as usize * PAGE % UNIT;
        assert!(bytes.is_multiple_of(PAGE) && UNIT.is_multiple_of(bytes) && from.is_multiple_of(bytes));
        from..from + bytes
    }

    /// The block of `bytes` from `page` on.
    pub fn block(&mut self, page: u64, bytes: usize) -> &[u8] {
        let block = &mut self.unit[Pattern::piece(page, bytes)];
        for (number, out) in (page..).zip(block.chunks_mut(PAGE)) {
            out[..8].copy_from_slice(&number.to_le_bytes());
        }
        block
    }

    /// Whether every byte is that of the block from `page` on.
    pub fn check(&self, page: u64, data: &[u8]) -> bool {
        let block = &self.unit[Pattern::piece(page, data.len())];
        let mut pages = (page..).zip(data.chunks(PAGE).zip(block.chunks(PAGE)));
        pages.all(|(number, (is, should))| is[..8] == number.to_le_bytes() && is[8..] == should[8..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_knows_its_place_and_seed() {
        let mut pattern = Pattern::new(7);
        let mut block = pattern.block(1024 + 20, 4 * PAGE).to_vec();
        assert!(pattern.check(1044, &block) && !pattern.check(20, &block) && !pattern.check(1048, &block));
        assert!(pattern.check(1046, &block[2 * PAGE..3 * PAGE]), "sizes share their pages");
        assert!(!Pattern::new(8).check(1044, &block), "written with another seed");
        block[4 * PAGE - 1] ^= 1;
        assert!(!pattern.check(1044, &block));
    }
}
