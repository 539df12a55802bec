//! Allocator of index nodes. A node is fresh, ready for reuse, or waits for the epoch. The allocator keeps a
//! word for each node.
//!
//! A free node's word is its link in a chain, so free nodes need no other memory. The table of words has
//! address space for all nodes, and memory for used ones. It never moves.

use crate::protocol::begin_reuse;
use crate::sync::AtomicU64;

/// Set in the word of a used node. The other bits are the caller's.
pub(crate) const USED: u64 = 1 << 63;
/// In the word of any node: survives free and take.
pub(crate) const STICKY: u64 = 1 << 62;

/// Free nodes, linked through their words: number + 1 of the first, 0 = none.
#[derive(Debug, Default)]
struct Chain {
    first: u64,
    len: usize,
}

impl Chain {
    fn push(&mut self, words: &mut [u64], i: u32) {
        let word = &mut words[i as usize];
        *word = *word & STICKY | self.first;
        self.first = u64::from(i) + 1;
        self.len += 1;
    }
    fn pop(&mut self, words: &[u64]) -> Option<u32> {
        let i = self.first.checked_sub(1)? as u32;
        self.first = words[i as usize] & !STICKY;
        self.len -= 1;
        Some(i)
    }
}

/// Nodes of one kind.
#[derive(Debug)]
pub(crate) struct Nodes {
    max: usize,
    words: Vec<u64>,
    ready: Chain,
    waiting: Chain,
}

impl Nodes {
    pub(crate) fn new(max: u32) -> Nodes {
        let words = Vec::with_capacity(max as usize);
        Nodes { max: max as usize, words, ready: Chain::default(), waiting: Chain::default() }
    }
    /// After a restart: these nodes (ascending) are used, with these words. Others below the last are free.
    pub(crate) fn recover(&mut self, used: impl Iterator<Item = (u32, u64)>) {
        self.words.clear();
        (self.ready, self.waiting) = (Chain::default(), Chain::default());
        for (i, word) in used {
            for free in self.words.len() as u32..i {
                self.words.push(0);
                self.waiting.push(&mut self.words, free);
            }
            self.words.push(word | USED);
        }
    }
    /// Takes a node that no reader can reach. `word` becomes its word (with USED, and its old STICKY).
    pub(crate) fn take(&mut self, epoch: &AtomicU64, word: u64) -> Option<u32> {
        debug_assert_eq!(word & (USED | STICKY), 0);
        if self.ready.len == 0 && self.waiting.len > 0 {
            begin_reuse(epoch);
            std::mem::swap(&mut self.ready, &mut self.waiting);
        }
        let i = match self.ready.pop(&self.words) {
            Some(i) => i,
            None if self.words.len() < self.max => {
                self.words.push(0);
                self.words.len() as u32 - 1
            }
            None => return None,
        };
        let old = self.words[i as usize] & STICKY;
        self.words[i as usize] = word | USED | old;
        Some(i)
    }
    pub(crate) fn put(&mut self, i: u32) {
        assert!(self.word(i) & USED != 0, "index node {i} freed twice");
        self.waiting.push(&mut self.words, i);
    }
    pub(crate) fn word(&self, i: u32) -> u64 {
        self.words[i as usize]
    }
    pub(crate) fn word_mut(&mut self, i: u32) -> &mut u64 {
        &mut self.words[i as usize]
    }
    /// Nodes that can still be taken.
    pub(crate) fn left(&self) -> usize {
        self.max - self.in_use()
    }
    pub(crate) fn in_use(&self) -> usize {
        self.words.len() - self.ready.len - self.waiting.len
    }
    /// Nodes that were ever used and so have memory.
    pub(crate) fn touched(&self) -> usize {
        self.words.len()
    }
    pub(crate) fn words_bytes(&self) -> usize {
        self.words.len() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Ordering;

    #[test]
    fn a_node_comes_back_after_the_epoch_has_moved() {
        let (epoch, mut nodes) = (AtomicU64::new(0), Nodes::new(3));
        let all: Vec<u32> = std::iter::from_fn(|| nodes.take(&epoch, 5)).collect();
        assert_eq!((all, nodes.left(), epoch.load(Ordering::Relaxed)), (vec![0, 1, 2], 0, 0));
        *nodes.word_mut(1) |= STICKY;
        nodes.put(2);
        nodes.put(1);
        assert_eq!((nodes.in_use(), nodes.left()), (1, 2));
        assert_eq!(nodes.take(&epoch, 7), Some(1));
        assert_eq!((nodes.word(1), epoch.load(Ordering::Relaxed)), (7 | USED | STICKY, 1));
        nodes.put(0);
        assert_eq!((nodes.take(&epoch, 8), epoch.load(Ordering::Relaxed)), (Some(2), 1));
        assert_eq!(nodes.word(2), 8 | USED);
        assert_eq!((nodes.take(&epoch, 9), epoch.load(Ordering::Relaxed)), (Some(0), 2));
        assert_eq!((nodes.take(&epoch, 9), nodes.touched()), (None, 3));
    }

    #[test]
    fn gaps_are_free_after_a_restart() {
        let (epoch, mut nodes) = (AtomicU64::new(0), Nodes::new(6));
        nodes.recover([(1, 10), (4, 40)].into_iter());
        assert_eq!((nodes.in_use(), nodes.word(1), nodes.word(4)), (2, 10 | USED, 40 | USED));
        let mut rest: Vec<u32> = std::iter::from_fn(|| nodes.take(&epoch, 0)).collect();
        rest.sort_unstable();
        assert_eq!(rest, [0, 2, 3, 5]);
    }
}
