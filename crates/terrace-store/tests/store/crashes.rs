//! A store that ends without being closed: its segment stays, or goes with it.

use crate::stage::{content, dir, get, open, open_over, small};
use terrace_store::{Segment, Store, StoreOptions, SyncPolicy};

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

/// Each round overwrites all, so that room is used again and again between the syncs.
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
