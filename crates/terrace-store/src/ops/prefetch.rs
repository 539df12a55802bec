//! Several blobs that are about to be looked up: the processor fetches for all of them at a time what no cache of it holds.
//!
//! Each look-up waits for memory three or four times, one after the other: a place in a table, the pointer there, the entry, the blob's bytes. Those of several keys
//! do not depend on each other; done one key at a time, they wait for each other nevertheless, since the commands between are longer than what a processor looks
//! ahead, and each lock ends what it does ahead. Here each step is done for all keys before the next. Source: Chen, Ailamaki, Gibbons, Mowry: Improving
//! hash join performance through prefetching, 2004.

use crate::index::{BucketState, Entry, hint};
use crate::record::{Blob, INLINE};
use crate::space::UNIT;
use crate::state::StoreState;
use std::array::from_fn;

/// Keys of one step: so many requests of memory can be under way at a time, about.
pub(crate) const STEP: usize = 16;
/// Bytes of a blob that are fetched; a processor follows a longer copy by itself.
const BYTES_MAX: u64 = 4096;

/// A blob that is about to be looked up.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// The hash of its key ([`crate::Bucket::hash`]).
    pub hash: u64,
    /// Its bytes are going to be read, too.
    pub reads: bool,
}

/// Has the processor fetch what look-ups of these blobs need. Nothing depends on it: a table that somebody changes just now is passed over, and the entry
/// of another key with a like hash may be the one that is fetched.
pub(crate) fn prefetch(state: &StoreState, bucket: &BucketState, wanted: &[Wanted]) {
    for wanted in wanted.chunks(STEP) {
        let blobs = describe(bucket, wanted);
        for blob in blobs.iter().flatten().filter(|blob| !blob.has(INLINE)) {
            state.heap.prefetch(blob.start() * UNIT, blob.size.min(BYTES_MAX) as usize);
        }
    }
}

/// The blobs whose bytes are wanted.
fn describe(bucket: &BucketState, wanted: &[Wanted]) -> [Option<Blob>; STEP] {
    // All locks first: each of them waits for the reads before it. Trying cannot wait for a thread that waits for this one.
    let tables: [_; STEP] = from_fn(|at| wanted.get(at).and_then(|wanted| bucket.try_read(wanted.hash)));
    let entries: [Option<&Entry>; STEP] = from_fn(|at| {
        let entry = hint(tables[at].as_ref()?, wanted[at].hash)?;
        terrace_engine::prefetch(std::ptr::from_ref(entry).cast(), size_of::<Entry>());
        Some(entry)
    });
    from_fn(|at| entries[at].filter(|_| wanted[at].reads).map(|entry| entry.blob))
}

#[cfg(test)]
mod tests {
    use crate::{Store, StoreOptions, SyncPolicy, Wanted};
    use std::sync::atomic::{AtomicBool, Ordering};

    const KEYS: u32 = 5000;

    fn key(i: u32) -> [u8; 4] {
        i.to_be_bytes()
    }

    #[test]
    fn prefetch_beside_changes_waits_for_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let options =
            StoreOptions { memory_bytes: 32 << 20, sync: SyncPolicy::Never, ..StoreOptions::default() };
        let store = Store::open(dir.path(), &options).unwrap();
        let bucket = store.bucket("b").unwrap();
        let wanted: Vec<Wanted> =
            (0..KEYS).map(|i| Wanted { hash: bucket.hash(&key(i)), reads: i % 2 == 0 }).collect();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    wanted.chunks(40).for_each(|wanted| bucket.prefetch(wanted));
                }
            });
            // From a small bucket to a large one; values in the record, in a slot, in pages of their own; removed, and all removed.
            for round in 0..6_usize {
                for i in 0..KEYS {
                    bucket.put(&key(i), &vec![i as u8; [3, 900, 9000][(i as usize + round) % 3]]).unwrap();
                }
                for i in (0..KEYS).step_by(3) {
                    assert!(bucket.remove(&key(i)).unwrap());
                }
                if round == 2 {
                    bucket.clear().unwrap();
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        for i in 0..KEYS {
            let value = (i % 3 != 0).then(|| vec![i as u8; [3, 900, 9000][(i as usize + 5) % 3]]);
            assert_eq!(bucket.get(&key(i)).unwrap(), value, "{i}");
        }
        // A thread that holds a table, as a change does, is not waited for.
        let tables = bucket.state().write_all();
        bucket.prefetch(&wanted);
        drop(tables);
    }
}
