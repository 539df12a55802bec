//! Prefetch for batched look-ups: loads what several look-ups need into the CPU caches at the same time.
//!
//! Each look-up waits for memory three or four times in sequence: slot, pointer, entry, the blob's bytes.
//! Look-ups of several keys are independent, but wait in sequence if done one by one. The commands between
//! exceed the processor's out-of-order window, and each lock ends speculation. Here each step is done for all
//! keys before the next. Source: Chen, Ailamaki, Gibbons, Mowry: Improving hash join performance through
//! prefetching, 2004.

use crate::index::{BucketState, Entry, hint};
use crate::record::{Blob, INLINE};
use crate::space::UNIT;
use crate::state::StoreState;
use std::array::from_fn;

/// Keys of one step: about the number of concurrent memory requests of a processor.
pub(crate) const STEP: usize = 16;
/// Bytes of a blob to prefetch. The hardware prefetcher follows a longer copy by itself.
const BYTES_MAX: u64 = 4096;

/// A blob that is about to be looked up.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// The hash of its key ([`crate::Bucket::hash`]).
    pub hash: u64,
    /// The bytes of the blob will be read, too.
    pub reads: bool,
}

/// Prefetches what look-ups of these blobs need. A hint: it skips a table that is being changed, and may
/// fetch another entry with a similar hash.
pub(crate) fn prefetch(state: &StoreState, bucket: &BucketState, wanted: &[Wanted]) {
    for wanted in wanted.chunks(STEP) {
        let blobs = describe(bucket, wanted);
        for blob in blobs.iter().flatten().filter(|blob| !blob.has(INLINE)) {
            state.heap.prefetch(blob.start() * UNIT, blob.size.min(BYTES_MAX) as usize);
        }
    }
}

/// The blobs to read.
fn describe(bucket: &BucketState, wanted: &[Wanted]) -> [Option<Blob>; STEP] {
    // All locks first: each lock waits for the loads before it. `try_read` cannot deadlock with a
    // thread that waits for this one.
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
            // From a small bucket to a large one. Values are inline, in slots, and in own pages; single
            // removals, and a clear.
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
        // A prefetch does not wait for a thread that holds a table, as a change does.
        let tables = bucket.state().write_all();
        bucket.prefetch(&wanted);
        drop(tables);
    }
}
