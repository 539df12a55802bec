//! A compressed page in the pool: its handle, the size class of its slot, the word at its head.
//!
//! ```text
//!  31        10 9    0          63     46 45  44 43  32 31    0
//! |  zspage    | slot |        |  check  | codec | bytes | place |  then the bytes
//! ```
//! `place` is the position of the page's entry in the index. The daemon finds the entry by it, and a reader
//! verifies its object by it.

use crate::codec::Encoding;
pub use crate::entry::Handle;
use crate::layout::{ZSPAGE_SIZE, ZSPAGES_MAX};

/// Approximate distance of size classes, bytes.
const UNIT: usize = 64;
/// Bytes of the word at an object's head.
pub const HEAD_BYTES: usize = 8;
/// Maximum bytes of an object, with its head: three quarters of a page.
pub const OBJECT_MAX: usize = 3072;
/// Maximum number of compressed bytes.
pub const STORED_MAX: usize = OBJECT_MAX - HEAD_BYTES;
/// The largest size class. Slots of class `n` take about `n` times 64 bytes; 0 = unused.
pub(crate) const CLASS_MAX: u8 = (OBJECT_MAX / UNIT) as u8;

const SLOT_BITS: u32 = 10;
const UNITS: usize = ZSPAGE_SIZE / UNIT;

const _: () = assert!(UNITS <= 1 << SLOT_BITS);
const _: () = assert!((ZSPAGES_MAX as u64) < 1 << (31 - SLOT_BITS));

impl Handle {
    pub(crate) fn new(zspage: u32, slot: u32) -> Handle {
        debug_assert!(zspage < ZSPAGES_MAX && slot < 1 << SLOT_BITS);
        Handle(zspage << SLOT_BITS | slot)
    }
    /// Number of the zspage.
    pub fn zspage(self) -> u32 {
        self.0 >> SLOT_BITS
    }
    /// Number of the slot in it.
    pub fn slot(self) -> u32 {
        self.0 & ((1 << SLOT_BITS) - 1)
    }
}

/// The class for `stored` compressed bytes. None: too many.
pub(crate) fn class_for(stored: usize) -> Option<u8> {
    CLASSES.get((stored + HEAD_BYTES).div_ceil(STEP)).copied()
}
/// Slots of a zspage of this class; 0 for an invalid class.
#[inline]
pub(crate) fn slots_of(class: u8) -> u32 {
    if (1..=CLASS_MAX).contains(&class) { (UNITS / class as usize) as u32 } else { 0 }
}
/// Bytes of a slot: an equal share of the zspage. 0 for an invalid class.
#[inline]
pub fn slot_bytes(class: u8) -> usize {
    SIZES.get(class as usize).map_or(0, |&bytes| bytes as usize)
}

/// Slots begin at multiples of this.
const STEP: usize = 8;

const SIZES: [u16; CLASS_MAX as usize + 1] = {
    let mut sizes = [0; CLASS_MAX as usize + 1];
    let mut class = 1;
    while class <= CLASS_MAX as usize {
        sizes[class] = (ZSPAGE_SIZE / (UNITS / class) / STEP * STEP) as u16;
        class += 1;
    }
    sizes
};

/// The smallest sufficient class for each number of steps. It uses one of several classes with as many slots.
const CLASSES: [u8; OBJECT_MAX / STEP + 1] = {
    let mut classes = [0; OBJECT_MAX / STEP + 1];
    let (mut steps, mut class) = (0, 1);
    while steps < classes.len() {
        while (SIZES[class] as usize) < steps * STEP {
            class += 1;
        }
        classes[steps] = class as u8;
        steps += 1;
    }
    classes
};

/// The word at an object's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head(pub u64);

const LEN_SHIFT: u32 = 32;
const LEN_BITS: u32 = 12;
const CODEC_SHIFT: u32 = 44;
const CHECK_SHIFT: u32 = 46;

const _: () = assert!(STORED_MAX < 1 << LEN_BITS);

impl Head {
    /// The head of an object with these bytes, at most [`STORED_MAX`].
    pub fn new(codec: Encoding, place: u32, bytes: &[u8]) -> Head {
        assert!(bytes.len() <= STORED_MAX);
        let recorded = u64::from(place) | (bytes.len() as u64) << LEN_SHIFT | (codec as u64) << CODEC_SHIFT;
        Head(recorded | check(recorded, bytes) << CHECK_SHIFT)
    }
    /// The page's place in the index.
    pub fn place(self) -> u32 {
        self.0 as u32
    }
    /// Compressed bytes. A word that is not a head gives any number below 4096.
    #[allow(clippy::len_without_is_empty)]
    pub(crate) fn len(self) -> usize {
        (self.0 >> LEN_SHIFT) as usize & ((1 << LEN_BITS) - 1)
    }
    /// The codec. None: the word is not a head.
    pub(crate) fn codec(self) -> Option<Encoding> {
        match self.0 >> CODEC_SHIFT & 3 {
            1 => Some(Encoding::Same),
            2 => Some(Encoding::Lz4),
            3 => Some(Encoding::Zstd),
            _ => None,
        }
    }
    /// True if this is the head of these bytes.
    pub fn fits(self, bytes: &[u8]) -> bool {
        bytes.len() == self.len() && check(self.0 & ((1 << CHECK_SHIFT) - 1), bytes) == self.0 >> CHECK_SHIFT
    }
}

/// 18 bits over head and bytes, in four lanes so that multiplications overlap. It detects accidents, not
/// forgeries: only the daemon itself could forge bytes of the pool.
fn check(recorded: u64, bytes: &[u8]) -> u64 {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut lanes = [recorded, recorded ^ K, !recorded, recorded.rotate_left(32)];
    let mut mix = |chunk: &[u8; 32]| {
        for (lane, word) in lanes.iter_mut().zip(chunk.as_chunks::<8>().0) {
            *lane = (*lane ^ u64::from_le_bytes(*word)).wrapping_mul(K).rotate_left(29);
        }
    };
    let (chunks, rest) = bytes.as_chunks::<32>();
    chunks.iter().for_each(&mut mix);
    let mut last = [0; 32];
    last[..rest.len()].copy_from_slice(rest);
    mix(&last);
    let [a, b, c, d] = lanes;
    let all = (a ^ b.rotate_left(17) ^ c.rotate_left(31) ^ d.rotate_left(47)).wrapping_mul(K);
    (all ^ all >> 32).wrapping_mul(K) >> CHECK_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_fits_the_slot_of_its_class() {
        let mut used = std::collections::BTreeSet::new();
        for stored in 0..=STORED_MAX {
            let class = class_for(stored).unwrap();
            assert!(slot_bytes(class) >= stored + HEAD_BYTES);
            assert!(slots_of(class) as usize * slot_bytes(class) <= ZSPAGE_SIZE);
            assert!(slot_bytes(class) < stored + HEAD_BYTES + 150, "{stored} bytes in class {class}");
            let most = ZSPAGE_SIZE / (stored + HEAD_BYTES).next_multiple_of(UNIT);
            assert!(slots_of(class) as usize >= most, "{stored} bytes: a slot lost");
            used.insert(class);
        }
        let slots: Vec<u32> = used.iter().map(|&class| slots_of(class)).collect();
        assert!(slots.windows(2).all(|w| w[0] > w[1]), "two classes where one will do");
        assert_eq!((class_for(STORED_MAX + 1), slots_of(0), slots_of(CLASS_MAX + 1)), (None, 0, 0));
        assert_eq!((slot_bytes(0), slot_bytes(CLASS_MAX + 1)), (0, 0));
    }

    #[test]
    fn a_handle_keeps_what_it_was_made_of() {
        for (zspage, slot) in [(0, 0), (7, 1023), (ZSPAGES_MAX - 1, 0), (ZSPAGES_MAX - 1, 1023)] {
            let handle = Handle::new(zspage, slot);
            assert_eq!((handle.zspage(), handle.slot()), (zspage, slot));
            assert!(handle.0 < u32::MAX - 1);
        }
    }

    #[test]
    fn a_head_knows_its_bytes() {
        let bytes: Vec<u8> = (0..STORED_MAX as u32).map(|i| ((i * 7) >> 2) as u8).collect();
        let mut missed = 0;
        for n in [0, 1, 7, 8, 31, 32, 33, 100, STORED_MAX] {
            let mut bytes = bytes[..n].to_vec();
            let head = Head::new(Encoding::Lz4, 77, &bytes);
            assert_eq!((head.place(), head.len(), head.codec()), (77, n, Some(Encoding::Lz4)));
            assert!(head.fits(&bytes));
            assert!(n == 0 || !head.fits(&bytes[1..]));
            for bit in 0..8 * n {
                bytes[bit / 8] ^= 1 << (bit % 8);
                missed += u32::from(head.fits(&bytes));
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            for bit in 0..64 {
                missed += u32::from(Head(head.0 ^ 1 << bit).fits(&bytes));
            }
        }
        // 26,000 single bits at 1 in 260,000.
        assert!(missed <= 3, "{missed} flipped bits went unnoticed");
        assert_eq!(Head(0).codec(), None);
    }
}
