//! The dead records of a collection in pieces: their places, noted when a later record supersedes them.
//!
//! Cleaning a piece must know its dead records. The alternative is a look-up of each element. The look-ups
//! took a tenth of HSET's time with a hash of 100,000 fields: all accesses miss the CPU caches.

use hashbrown::{DefaultHashBuilder, HashMap};

use super::segment_list::OFFSET_BITS;

/// Memory of a piece's list without its places, bytes: entry in the table, allocation.
const LIST_BYTES: usize = 64;

#[derive(Debug, Default)]
pub struct DeadRecords {
    pieces: HashMap<u64, Vec<u32>, DefaultHashBuilder>,
    len: usize,
}

fn offset_of(place: u64) -> u32 {
    (place & ((1 << OFFSET_BITS) - 1)) as u32
}

impl DeadRecords {
    /// Notes a dead record. Places in a log of one blob are skipped: it is rewritten as a whole.
    pub(crate) fn note(&mut self, place: u64) {
        let piece = place >> OFFSET_BITS;
        if piece > 0 {
            self.pieces.entry(piece).or_default().push(offset_of(place));
            self.len += 1;
        }
    }

    /// Offsets in the piece that begins at `begin`, sorted.
    pub(crate) fn sorted(&mut self, begin: u64) -> &[u32] {
        let Some(list) = self.pieces.get_mut(&(begin >> OFFSET_BITS)) else { return &[] };
        list.sort_unstable();
        list
    }

    /// Drops the list of a removed piece.
    pub(crate) fn forget(&mut self, begin: u64) {
        self.len -= self.pieces.remove(&(begin >> OFFSET_BITS)).map_or(0, |list| list.len());
    }

    /// Drops all lists: every record is live.
    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
        self.len = 0;
    }

    /// Moves the places of records that were expected at `expected`, the end of their piece, and are at `at`.
    pub(crate) fn moved(&mut self, expected: u64, at: u64) {
        let Some(list) = self.pieces.get_mut(&(expected >> OFFSET_BITS)) else { return };
        let moved = list.extract_if(.., |offset| *offset >= offset_of(expected));
        let moved: Vec<u64> = moved.map(|offset| at + u64::from(offset - offset_of(expected))).collect();
        self.len -= moved.len();
        moved.into_iter().for_each(|place| self.note(place));
    }

    /// Memory, about, bytes. A list's capacity is up to twice its length.
    pub(crate) fn bytes(&self) -> usize {
        2 * size_of::<u32>() * self.len + self.pieces.len() * LIST_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::super::segment_list::place;
    use super::*;

    #[test]
    fn places_are_kept_by_piece_and_move_with_their_records() {
        let mut dead_records = DeadRecords::default();
        for offset in [70, 10, 50] {
            dead_records.note(place(3, offset));
        }
        dead_records.note(place(0, 10));
        dead_records.note(place(4, 9));
        assert_eq!(dead_records.sorted(place(3, 0)), [10, 50, 70]);
        assert!(dead_records.sorted(place(0, 0)).is_empty());
        dead_records.moved(place(3, 50), place(5, 0));
        assert_eq!(dead_records.sorted(place(3, 0)), [10]);
        assert_eq!(dead_records.sorted(place(5, 0)), [0, 20]);
        let bytes = dead_records.bytes();
        dead_records.forget(place(5, 0));
        assert!(dead_records.bytes() < bytes);
        dead_records.clear();
        assert_eq!((dead_records.bytes(), dead_records.sorted(place(4, 0))), (0, &[][..]));
    }
}
