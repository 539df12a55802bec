//! Tests of the index's memory: it counts against the store's limit, and cannot grow beyond it.

use crate::helpers::{dir, is_one_line, small};
use terrace_store::{Bucket, Error, Store, StoreOptions};

fn with_memory(mib: u64) -> StoreOptions {
    StoreOptions { memory_bytes: mib << 20, ..small() }
}

#[track_caller]
fn within_limit(store: &Store) {
    let memory = store.stats().memory;
    assert!(memory.used_bytes <= memory.limit_bytes, "{memory:?}");
}

fn key(i: u64) -> Vec<u8> {
    format!("a key of some length {i:08}").into_bytes()
}

/// Creates blobs until memory is full. Returns how many.
fn fill(store: &Store, bucket: &Bucket) -> u64 {
    for i in 0.. {
        match bucket.put(&key(i), &i.to_le_bytes()) {
            Ok(()) if i % 10_000 == 0 => within_limit(store),
            Ok(()) => {}
            Err(e) => {
                assert!(matches!(e, Error::NoMemory { .. }) && is_one_line(&e), "{e}");
                return i;
            }
        }
    }
    unreachable!("memory has a limit")
}

#[test]
fn blobs_are_refused_when_their_names_fill_memory() {
    let dir = dir();
    let store = Store::open(dir.path(), &with_memory(24)).unwrap();
    let bucket = store.bucket("b").unwrap();
    let blobs = fill(&store, &bucket);
    let (memory, usage) = (store.stats().memory, store.usage());
    assert!(usage.index_bytes > memory.limit_bytes / 3 && blobs > 50_000, "{blobs} blobs, {usage:?}");
    within_limit(&store);
    // Existing blobs can be overwritten and read. Removals make room for new ones.
    bucket.put(&key(3), &[3; 9000]).unwrap();
    for i in (100..blobs).step_by(101) {
        assert_eq!(bucket.get(&key(i)).unwrap().unwrap(), i.to_le_bytes());
    }
    within_limit(&store);
    drop(bucket);
    store.close().unwrap();
    let refused = Store::open(dir.path(), &with_memory(16)).unwrap_err();
    assert!(matches!(refused, Error::NoMemory { .. }) && is_one_line(&refused), "{refused}");
    let store = Store::open(dir.path(), &with_memory(24)).unwrap();
    let bucket = store.bucket("b").unwrap();
    assert_eq!((bucket.len(), bucket.get(&key(3)).unwrap().unwrap()), (blobs, vec![3; 9000]));
    within_limit(&store);
    for i in 0..blobs * 9 / 10 {
        assert!(bucket.remove(&key(i)).unwrap());
    }
    store.sync().unwrap();
    assert!(store.usage().index_bytes < usage.index_bytes / 2, "{:?}", store.usage());
    for i in 0..blobs / 4 {
        bucket.put(&key(i), &[1]).unwrap();
    }
    within_limit(&store);
}

#[test]
fn memory_of_the_index_comes_back() {
    let dir = dir();
    let store = Store::open(dir.path(), &with_memory(24)).unwrap();
    let mut after = Vec::new();
    for _ in 0..4 {
        let names: Vec<_> = (0..40).map(|i| format!("bucket {i}")).collect();
        for name in &names {
            let bucket = store.bucket(name).unwrap();
            bucket.tag_whole("t", true).unwrap();
            for i in 0..200 {
                bucket.put(&key(i), &[1]).unwrap();
                bucket.tag(&key(i), "tag").unwrap();
                bucket.rename(&key(i), &key(i + 1000)).unwrap();
            }
        }
        assert!(store.rename_bucket("bucket 3", "another").unwrap());
        store.bucket("bucket 7").unwrap().clear().unwrap();
        for name in names.iter().map(String::as_str).chain(["another"]) {
            store.remove_bucket(name).unwrap();
        }
        store.sync().unwrap();
        after.push(store.usage().index_bytes);
    }
    // Tables of names and of the allocator do not grow after the first round.
    assert!(after[3] < after[0] + (8 << 10), "{after:?}");
}
