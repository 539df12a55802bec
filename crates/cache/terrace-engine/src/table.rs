//! Fast hash tables, and the release of their memory after a burst of objects.
//!
//! A hash table keeps the capacity for its maximum content, but counts against the user's memory by its
//! present content.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hash};

/// A table for pages at a miss or an eviction: the standard hasher takes longer than all other steps.
pub(crate) type Map<K, V> = HashMap<K, V, foldhash::fast::RandomState>;
pub(crate) type Set<K> = HashSet<K, foldhash::fast::RandomState>;

/// Smallest capacity of tables that are shrunk.
const ROOM_MIN: usize = 256;

/// Shrinks a nearly empty table to twice its content. Rarely does anything.
pub fn trim<K: Eq + Hash, V, S: BuildHasher>(table: &mut HashMap<K, V, S>) {
    if table.capacity() > ROOM_MIN && table.len() < table.capacity() / 8 {
        table.shrink_to(table.len() * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_gives_back_the_room_of_a_burst() {
        let mut table: HashMap<u64, u64> = (0..100_000).map(|i| (i, i)).collect();
        let most = table.capacity();
        for i in 100..100_000 {
            table.remove(&i);
            trim(&mut table);
        }
        assert!(
            table.len() == 100 && table.capacity() <= ROOM_MIN.max(800),
            "{} of {most}",
            table.capacity()
        );
        assert!((0..100).all(|i| table[&i] == i));
    }
}
