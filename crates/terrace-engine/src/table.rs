//! Hash tables: fast ones, and memory that is given back after a burst of objects.
//!
//! A hash table keeps the room of its largest size: that of the largest number of objects ever, not of the present one. The tables
//! count against the user's memory by their present content.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hash};

/// A table that pages are looked up in at a miss or an eviction: the standard hasher would take longer than all else of it.
pub type Map<K, V> = HashMap<K, V, foldhash::fast::RandomState>;
/// Likewise a set.
pub type Set<K> = HashSet<K, foldhash::fast::RandomState>;

/// Tables of less room are left alone.
const ROOM_MIN: usize = 256;

/// Shrinks a table that is nearly empty, to twice its content. Rare.
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
