//! Prefetch of a large collection's elements into the CPU caches. [`crate::blobs::Blobs::prefetch`] does the
//! same for keys.

use super::hash::Hash;
use super::space::Keyspace;
use super::zset::Zset;
use crate::blobs::Db;

impl Keyspace {
    /// Prefetches what look-ups of these elements will need, if the collection is decoded and no command
    /// holds it. A hint; it never blocks.
    pub(crate) fn prefetch_elements(&self, db: Db, key: &[u8], names: &[&[u8]]) {
        let Some(stripe) = self.stripes[self.stripe_of(db, key)].try_lock() else { return };
        let Some(content) = stripe.content(db, key) else { return };
        if let Some(hash) = content.downcast_ref::<Hash>() {
            hash.prefetch(names);
        } else if let Some(zset) = content.downcast_ref::<Zset>() {
            zset.prefetch(names);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::space::system_clock;
    use super::*;
    use crate::testing::MemoryBlobs;

    #[test]
    fn prefetch_of_elements_waits_for_no_lock() {
        let keyspace = Keyspace::new(Arc::new(MemoryBlobs::default()), 1 << 20, system_clock());
        let names: Vec<Vec<u8>> = (0..200_u32).map(|i| format!("field{i}").into_bytes()).collect();
        let names: Vec<&[u8]> = names.iter().map(|name| &**name).collect();
        let mut locked = keyspace.lock_keys(0, [&b"h"[..]]);
        let mut hash = locked.open_or_new::<Hash>(0, b"h").unwrap();
        let new = names.iter().filter(|name| hash.content.set(name, &[7; 100], &mut hash.log)).count();
        assert_eq!(new, names.len());
        locked.close(0, b"h", hash).unwrap();
        // A command holds the collection.
        keyspace.prefetch_elements(0, b"h", &names);
        drop(locked);
        keyspace.prefetch_elements(0, b"h", &names);
        keyspace.prefetch_elements(0, b"absent", &names);
        let mut locked = keyspace.lock_keys(0, [&b"h"[..]]);
        let hash = locked.open::<Hash>(0, b"h").unwrap().unwrap();
        assert!(names.iter().all(|name| hash.content.get(name) == Some(&[7; 100][..])));
    }
}
