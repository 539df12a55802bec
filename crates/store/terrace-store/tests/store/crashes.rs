//! Tests of stores that end without a close, while the segment is kept or lost.

use crate::helpers::{content, dir, get, open, open_over, small};
use crate::power_io::PowerIo;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use terrace_io::BlockingIo;
use terrace_io::testing::{Call, HookIo};
use terrace_store::{Bucket, Segment, Store, StoreOptions, SyncPolicy};
use terrace_testkit::rng::{Rng, seed};

#[test]
fn a_crash_loses_nothing_while_the_segment_stays() {
    let dir = dir();
    let segment = Segment::create(&small()).unwrap();
    for round in 0..5u64 {
        let store = open_over(dir.path(), &segment);
        let bucket = store.bucket("b").unwrap();
        assert_eq!(bucket.len(), round * 300);
        for i in 0..round * 300 {
            let want = content(i, (i * 37 % 9000) as usize);
            assert_eq!(get(&bucket, &format!("k{i}")).unwrap(), want, "blob {i} in round {round}");
        }
        for i in round * 300..(round + 1) * 300 {
            bucket.put(format!("k{i}").as_bytes(), &content(i, (i * 37 % 9000) as usize)).unwrap();
        }
        if round == 2 {
            store.checkpoint().unwrap();
        }
        drop(bucket);
        store.crash();
    }
}

#[test]
fn synced_data_are_kept_without_the_segment() {
    let dir = dir();
    let store = open(dir.path());
    let bucket = store.bucket("b").unwrap();
    for i in 0..200u64 {
        bucket.put(format!("k{i}").as_bytes(), &content(i, 3000)).unwrap();
    }
    store.sync().unwrap();
    for i in 0..200u64 {
        bucket.put(format!("k{i}").as_bytes(), &content(i + 1000, 3000)).unwrap();
    }
    drop(bucket);
    store.crash();
    let bucket = open(dir.path()).bucket("b").unwrap();
    for i in 0..200u64 {
        let found = get(&bucket, &format!("k{i}")).unwrap();
        assert!(found == content(i, 3000) || found == content(i + 1000, 3000), "blob {i}");
    }
}

/// Each round overwrites all blobs, so room is reused often between the syncs.
#[test]
fn old_records_whose_room_was_used_again_are_believed() {
    let dir = dir();
    for round in 0..4u64 {
        let store = open(dir.path());
        let bucket = store.bucket("b").unwrap();
        for i in 0..60u64 {
            if round > 0 {
                assert_eq!(get(&bucket, &format!("k{i}")).unwrap(), content(i + round * 100, 5000));
            }
        }
        for turn in 1..4 {
            for i in 0..60u64 {
                let seed = if turn == 3 { i + (round + 1) * 100 } else { i * turn };
                bucket.put(format!("k{i}").as_bytes(), &content(seed, 5000)).unwrap();
            }
            store.sync().unwrap();
        }
        drop(bucket);
        assert!(store.usage().heap_bytes < 3 << 20, "{:?}", store.usage());
        store.crash();
    }
}

#[test]
fn always_means_durable_when_the_call_returns() {
    let dir = dir();
    let options = StoreOptions { sync: SyncPolicy::Always, ..small() };
    let store = Store::open(dir.path(), &options).unwrap();
    let bucket = store.bucket("b").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let bucket = &bucket;
            scope.spawn(move || {
                for i in 0..30 {
                    bucket.put(format!("{thread}.{i}").as_bytes(), format!("{i}").as_bytes()).unwrap();
                }
            });
        }
    });
    let syncs = store.usage().syncs;
    assert!(syncs <= 121, "threads share syncs: {syncs}");
    drop(bucket);
    store.crash();
    let bucket = open(dir.path()).bucket("b").unwrap();
    for (thread, i) in (0..4).flat_map(|thread| (0..30).map(move |i| (thread, i))) {
        assert_eq!(get(&bucket, &format!("{thread}.{i}")).unwrap(), format!("{i}").as_bytes());
    }
}

#[test]
fn the_log_is_written_anew_while_others_change_it() {
    let dir = dir();
    let segment = Segment::create(&small()).unwrap();
    let store = open_over(dir.path(), &segment);
    let bucket = store.bucket("b").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let bucket = &bucket;
            scope.spawn(move || {
                for i in 0..6000u64 {
                    let key = format!("{thread}.{}", i % 500);
                    if i % 7 == 0 {
                        bucket.remove(key.as_bytes()).unwrap();
                    } else {
                        bucket.put(key.as_bytes(), &i.to_le_bytes()).unwrap();
                    }
                }
            });
        }
        for _ in 0..5 {
            store.checkpoint().unwrap();
        }
    });
    let want: Vec<_> =
        bucket.list(b"").into_iter().map(|key| (key.clone(), bucket.get(&key).unwrap())).collect();
    let check = |store: &Store| {
        let bucket = store.bucket("b").unwrap();
        assert_eq!(bucket.len(), want.len() as u64);
        want.iter().for_each(|(key, value)| assert_eq!(bucket.get(key).unwrap(), *value));
    };
    drop(bucket);
    store.crash();
    let store = open_over(dir.path(), &segment);
    check(&store);
    store.checkpoint().unwrap();
    assert!(store.usage().log_bytes < 100_000, "{:?}", store.usage());
    store.crash();
    check(&open(dir.path()));
}

#[test]
fn syncs_at_once_leave_no_change_behind() {
    let seconds = if std::env::var_os("TERRACE_SOAK").is_some() { 60 } else { 4 };
    let until = std::time::Instant::now() + std::time::Duration::from_secs(seconds);
    let options = StoreOptions { sync: SyncPolicy::Always, ..small() };
    let dir = dir();
    let mut round = 0;
    while round < 10 || std::time::Instant::now() < until {
        round += 1;
        let store = Store::open(dir.path(), &options).unwrap();
        let bucket = store.bucket("b").unwrap();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let is_over = &is_over;
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    store.checkpoint().unwrap();
                }
            });
            let writers = (0..6u64).map(|thread| {
                let bucket = &bucket;
                scope.spawn(move || {
                    for i in 0..20 {
                        bucket
                            .put(&thread.to_le_bytes(), &content(round * 1000 + i * 10 + thread, 5000))
                            .unwrap();
                    }
                })
            });
            writers.collect::<Vec<_>>().into_iter().for_each(|writer| writer.join().unwrap());
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        drop(bucket);
        store.crash();
        let bucket = open(dir.path()).bucket("b").unwrap();
        for thread in 0..6u64 {
            let found = bucket.get(&thread.to_le_bytes()).unwrap().unwrap();
            assert!(found == content(round * 1000 + 190 + thread, 5000), "round {round}, thread {thread}");
        }
    }
    println!("{round} rounds");
}

const THREADS: u64 = 6;

/// Value of the blob with this number, which it contains.
fn numbered(number: u64) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.extend(content(number, (number * 7919 % 9000) as usize));
    value
}

/// Opens a store in a process that is killed after so many writes and syncs. None: killed during the start.
fn open_until_the_kill(dir: &Path, options: &StoreOptions, calls: u64) -> Option<Store> {
    let io = Arc::new(PowerIo::over(dir));
    io.cut_after(calls);
    match Store::open_with(dir, options, &Segment::create(options).unwrap(), io.clone()) {
        Ok(store) => Some(store),
        Err(e) => {
            assert!(io.is_dead(), "{e}");
            None
        }
    }
}

/// Threads put numbered blobs under shared keys and under their own keys, until the process is killed.
/// Returns for each own key the last number with a returned put, and the last number tried.
fn overwrite_until_the_kill(store: Store, first: u64) -> Vec<(u64, u64)> {
    let Ok(bucket) = store.bucket("b") else { return Vec::new() };
    std::thread::scope(|scope| {
        let writers = (0..THREADS).map(|thread| {
            let bucket = &bucket;
            scope.spawn(move || {
                let (mut done, mut number) = (first, first);
                loop {
                    number += 1;
                    if bucket.put(&thread.to_le_bytes(), &numbered(number)).is_err() {
                        return (done, number);
                    }
                    done = number;
                    let shared = format!("shared{}", number % 7);
                    if bucket.put(shared.as_bytes(), &numbered(number)).is_err() {
                        return (done, number);
                    }
                }
            })
        });
        let writers: Vec<_> = writers.collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    })
}

/// The numbers of all blobs, by key.
fn numbers(store: &Store, round: u64) -> BTreeMap<Vec<u8>, u64> {
    let bucket = store.bucket("b").unwrap();
    let numbers = bucket.list(b"").into_iter().map(|key| {
        let value = bucket.get(&key).unwrap().unwrap();
        let number = u64::from_le_bytes(value[..8].try_into().unwrap());
        assert!(value == numbered(number), "round {round}: {key:?} has the bytes of another blob");
        (key.to_vec(), number)
    });
    numbers.collect()
}

fn starts_agree(sync: SyncPolicy, name: &str) {
    let rounds = if std::env::var_os("TERRACE_SOAK").is_some() { 1000 } else { 60 };
    let mut rng = Rng::new(seed(name));
    let options = StoreOptions { sync, ..small() };
    let mut dir = dir();
    for round in 0..rounds {
        if rng.chance(20) {
            dir = crate::helpers::dir();
        }
        let first = round * 1_000_000;
        let store = open_until_the_kill(dir.path(), &options, 1 + rng.below(300));
        let written = store.map(|store| {
            let written = overwrite_until_the_kill(store.clone(), first);
            store.crash();
            written
        });
        // The next process may be killed during its start.
        while rng.chance(30) {
            if let Some(store) = open_until_the_kill(dir.path(), &options, 1 + rng.below(10)) {
                store.crash();
            }
        }
        let store = Store::open(dir.path(), &options).unwrap();
        let found = numbers(&store, round);
        for (thread, (done, tried)) in written.into_iter().flatten().enumerate() {
            let number = found.get(&(thread as u64).to_le_bytes()[..]).copied().unwrap_or(first);
            let is_kept = number <= tried && (done == first || number >= done);
            assert!(is_kept, "round {round}: {number}, not {done} to {tried}");
        }
        if rng.chance(50) {
            store.close().unwrap()
        } else {
            store.crash()
        }
        for _ in 0..2 {
            let store = Store::open(dir.path(), &options).unwrap();
            assert_eq!(numbers(&store, round), found, "round {round}: a later start");
            store.crash();
        }
    }
}

#[test]
fn a_mark_behind_a_record_that_is_cut_off_is_not_missed() {
    let dir = dir();
    let during_sync: Arc<Mutex<Option<Bucket>>> = Arc::default();
    let late = during_sync.clone();
    let io = HookIo::new(BlockingIo::default(), move |call| {
        let is_sync = matches!(call, Call::Sync(_));
        let bucket = if is_sync { late.lock().unwrap().take() } else { None };
        if let Some(bucket) = bucket {
            bucket.put(b"late", &content(9, 5000)).unwrap();
        }
        Ok(())
    });
    let segment = Segment::create(&small()).unwrap();
    let store = Store::open_with(dir.path(), &small(), &segment, Arc::new(io)).unwrap();
    let bucket = store.bucket("b").unwrap();
    store.sync().unwrap();
    // The third blob reuses the room of the first.
    for (key, seed) in [("x", 1), ("x", 2), ("y", 3)] {
        bucket.put(key.as_bytes(), &content(seed, 5000)).unwrap();
    }
    *during_sync.lock().unwrap() = Some(bucket.clone());
    store.sync().unwrap();
    drop(bucket);
    store.crash();
    // A power cut loses the bytes of the late blob.
    for n in 0..2 {
        let _ = std::fs::remove_file(dir.path().join(format!(".store.journal{n}")));
    }
    for start in 0..3 {
        let store = open(dir.path());
        let bucket = store.bucket("b").unwrap();
        assert!(get(&bucket, "x") == Some(content(2, 5000)), "start {start}");
        assert!(get(&bucket, "y") == Some(content(3, 5000)), "start {start}");
        assert!(get(&bucket, "late").is_none(), "start {start}");
        drop(bucket);
        if start == 0 { store.close().unwrap() } else { store.crash() }
    }
}

#[test]
fn later_starts_find_what_the_first_one_after_a_crash_has_found() {
    starts_agree(SyncPolicy::Always, "store-starts-always");
}

#[test]
fn what_has_returned_is_there_after_all_processes_have_ended() {
    starts_agree(SyncPolicy::Every(Duration::from_millis(30)), "store-starts-every");
    starts_agree(SyncPolicy::Never, "store-starts-never");
}
