//! A set of numbers that finds its lowest member in a few steps. Each bitmap has another one above it, which
//! marks the non-empty words. The top is a single word. The set takes 1 1/63 bits per number.

/// A set of numbers below a length given once.
#[derive(Debug)]
pub(crate) struct BitSet {
    /// The numbers first; each further level has a bit for each word of the level below.
    levels: Vec<Vec<u64>>,
}

impl BitSet {
    /// The allocator zeroes the set: parts without members take no memory.
    pub(crate) fn new(len: usize) -> BitSet {
        let words = |bits: usize| bits.div_ceil(64).max(1);
        let mut levels = vec![vec![0; words(len)]];
        while let Some(below) = levels.last().filter(|words| words.len() > 1) {
            levels.push(vec![0; words(below.len())]);
        }
        BitSet { levels }
    }
    pub(crate) fn insert(&mut self, mut i: usize) {
        for words in &mut self.levels {
            let word = &mut words[i / 64];
            let was = std::mem::replace(word, *word | 1 << (i % 64));
            if was != 0 {
                return;
            }
            i /= 64;
        }
    }
    pub(crate) fn remove(&mut self, mut i: usize) {
        for words in &mut self.levels {
            let word = &mut words[i / 64];
            *word &= !(1 << (i % 64));
            if *word != 0 {
                return;
            }
            i /= 64;
        }
    }
    pub(crate) fn clear(&mut self) {
        self.levels.iter_mut().for_each(|words| words.fill(0));
    }
    pub(crate) fn first(&self) -> Option<usize> {
        let (top, below) = self.levels.split_last()?;
        let down = |i: usize, words: &[u64]| i * 64 + words[i].trailing_zeros() as usize;
        (top[0] != 0).then(|| below.iter().rev().fold(down(0, top), |i, words| down(i, words)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use terrace_testkit::rng::Rng;

    /// Random insertions and removals, compared with a standard set.
    #[test]
    fn the_lowest_member_is_found_at_any_size() {
        let mut rng = Rng::new(1);
        for len in [1, 3, 64, 65, 5000, 300_000] {
            let (mut set, mut model) = (BitSet::new(len), BTreeSet::new());
            for round in 0..5000 {
                let i = rng.index(len);
                // Long phases of growth, then of removal of the lowest members.
                if rng.below(100) < (round / 1000 % 2) * 40 + 30 {
                    set.insert(i);
                    model.insert(i);
                } else {
                    let i = model.first().copied().filter(|_| rng.chance(50)).unwrap_or(i);
                    set.remove(i);
                    model.remove(&i);
                }
                assert_eq!(set.first(), model.first().copied(), "round {round}, length {len}");
            }
            set.clear();
            assert_eq!(set.first(), None);
        }
    }
}
