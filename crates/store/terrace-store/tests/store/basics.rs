//! Tests of each operation of a store, bucket and blob, with edge cases.

use crate::helpers::{content, dir, get, is_one_line, open, small};
use std::sync::atomic::Ordering;
use terrace_store::{Error, Expect, Segment, Store, StoreOptions};
use terrace_testkit::rng::{Rng, seed};

#[test]
fn blobs_come_back_after_a_restart() {
    let dir = dir();
    let store = open(dir.path());
    let bucket = store.bucket("b").unwrap();
    let sizes = [0, 1, 14, 15, 63, 64, 65, 1000, 2048, 2049, 4095, 4096, 4097, 70_000, 1 << 20];
    for size in sizes {
        bucket.put(format!("k{size}").as_bytes(), &content(size as u64, size)).unwrap();
    }
    let check = |store: &Store| {
        let bucket = store.bucket("b").unwrap();
        assert_eq!(bucket.len(), sizes.len() as u64);
        assert_eq!(bucket.bytes(), sizes.iter().sum::<usize>() as u64);
        for size in sizes {
            let key = format!("k{size}");
            assert_eq!(get(&bucket, &key).unwrap(), content(size as u64, size), "{key}");
            assert_eq!(bucket.size(key.as_bytes()), Some(size as u64));
        }
    };
    check(&store);
    drop(bucket);
    store.close().unwrap();
    check(&open(dir.path()));
}

#[test]
fn a_blob_of_a_few_bytes_stands_in_the_log_alone() {
    let dir = dir();
    let store = open(dir.path());
    let bucket = store.bucket("b").unwrap();
    let heap = store.usage().heap_bytes;
    for i in 0..1000u64 {
        bucket.put(&i.to_le_bytes(), &content(i, (i % 15) as usize)).unwrap();
    }
    assert_eq!(store.usage().heap_bytes, heap);
    // The blob grows out of the log into the heap, and shrinks back.
    let mut want = content(14, 14);
    let mut is = |bytes: usize| {
        want.resize(bytes, 0);
        assert_eq!(bucket.get(&14u64.to_le_bytes()).unwrap().as_ref(), Some(&want), "{bytes} bytes");
        let mut part = vec![0; bytes];
        assert_eq!(bucket.get_at(&14u64.to_le_bytes(), 3, &mut part).unwrap(), Some(bytes - 3));
        assert_eq!(part[..bytes - 3], want[3..]);
    };
    assert_eq!(bucket.append(&14u64.to_le_bytes(), &[0]).unwrap(), 15);
    is(15);
    for bytes in [9, 8000, 5, 12] {
        assert!(bucket.truncate(&14u64.to_le_bytes(), bytes).unwrap());
        is(bytes as usize);
    }
    assert!(bucket.rename(&14u64.to_le_bytes(), b"new").unwrap());
    store.sync().unwrap();
    drop(bucket);
    store.crash();
    let bucket = open(dir.path()).bucket("b").unwrap();
    for i in (0..1000u64).filter(|i| *i != 14) {
        assert_eq!(bucket.get(&i.to_le_bytes()).unwrap(), Some(content(i, (i % 15) as usize)), "blob {i}");
    }
    let mut want = content(14, 5);
    want.resize(12, 0);
    assert_eq!(get(&bucket, "new"), Some(want));
}

#[test]
fn a_removed_blob_is_gone_and_stays_so() {
    let dir = dir();
    let store = open(dir.path());
    let bucket = store.bucket("b").unwrap();
    bucket.put(b"a", b"1").unwrap();
    bucket.put(b"b", b"2").unwrap();
    assert!(bucket.remove(b"a").unwrap() && !bucket.remove(b"a").unwrap());
    assert!(!bucket.contains(b"a") && bucket.get_at(b"a", 0, &mut [0]).unwrap().is_none());
    drop(bucket);
    store.close().unwrap();
    let bucket = open(dir.path()).bucket("b").unwrap();
    assert_eq!((get(&bucket, "a"), get(&bucket, "b")), (None, Some(b"2".to_vec())));
}

#[test]
fn conditions_decide_what_is_put_and_removed() {
    let dir = dir();
    let bucket = open(dir.path()).bucket("b").unwrap();
    let put = |value: &[u8], meta, expect| bucket.put_if(b"k", &[b"<", value, b">"], meta, expect).unwrap();
    assert!(!put(b"0", 0, Expect::Present) && put(b"1", 7, Expect::Absent) && !put(b"2", 0, Expect::Absent));
    let first = bucket.stat(b"k").unwrap();
    assert_eq!((get(&bucket, "k").unwrap(), first.meta), (b"<1>".to_vec(), 7));
    assert!(bucket.set_meta(b"k", 8, Expect::Version(first.version)).unwrap());
    assert!(!put(b"3", 0, Expect::Version(first.version)), "a new word is a new version");
    let second = bucket.stat(b"k").unwrap();
    assert_eq!((second.meta, second.size), (8, 3));
    assert!(!bucket.remove_if(b"k", Expect::Version(first.version)).unwrap());
    assert!(bucket.remove_if(b"k", Expect::Version(second.version)).unwrap());
    assert!(!bucket.remove_if(b"k", Expect::Any).unwrap());
}

#[test]
fn parts_of_blobs_are_written_and_read() {
    let dir = dir();
    let bucket = open(dir.path()).bucket("b").unwrap();
    for size in [10, 3000, 5000, 100_000] {
        let key = format!("k{size}");
        let mut want = content(1, size);
        bucket.put(key.as_bytes(), &want).unwrap();
        for (offset, len) in [(0, 3), (size - 2, 2), (size - 1, 40), (size + 500, 5000), (4, 3)] {
            let data = content(offset as u64, len);
            want.resize(want.len().max(offset + len), 0);
            want[offset..offset + len].copy_from_slice(&data);
            assert_eq!(bucket.put_at(key.as_bytes(), offset as u64, &data).unwrap(), want.len() as u64);
            assert_eq!(get(&bucket, &key).unwrap(), want, "{key}: {len} bytes at {offset}");
        }
        for len in [1, 100, 5000, 1] {
            let data = content(len as u64, len);
            want.extend_from_slice(&data);
            assert_eq!(bucket.append(key.as_bytes(), &data).unwrap(), want.len() as u64);
        }
        for size in [want.len() + 9000, 4097, 17, 0, 20] {
            want.resize(size, 0);
            assert!(bucket.truncate(key.as_bytes(), size as u64).unwrap());
            assert_eq!(get(&bucket, &key).unwrap(), want, "{key} at {size}");
        }
        let mut part = [9; 8];
        assert_eq!(bucket.get_at(key.as_bytes(), 15, &mut part).unwrap(), Some(5));
        assert_eq!(bucket.get_at(key.as_bytes(), 20, &mut part).unwrap(), Some(0));
    }
    assert_eq!(bucket.append(b"new", b"x").unwrap(), 1);
    assert_eq!(bucket.put_at(b"new2", 2, b"x").unwrap(), 3);
    assert_eq!(get(&bucket, "new2").unwrap(), [0, 0, b'x']);
    assert!(!bucket.truncate(b"none", 1).unwrap());
    assert_eq!((bucket.append(b"empty", b"").unwrap(), bucket.size(b"empty")), (0, Some(0)));
}

#[test]
fn a_blob_with_room_grows_in_place() {
    let dir = dir();
    let store = open(dir.path());
    let bucket = store.bucket("b").unwrap();
    let retired = |key: &str, put: &dyn Fn(&[u8])| {
        put(key.as_bytes());
        store.sync().unwrap();
        let before = store.usage().heap_retired_bytes;
        (0..9).for_each(|i| assert!(bucket.append(key.as_bytes(), &content(i, 10_000)).unwrap() > 100_000));
        assert_eq!(get(&bucket, key).unwrap()[100_000..110_000], content(0, 10_000));
        store.usage().heap_retired_bytes - before
    };
    let whole = content(100, 100_000);
    assert!(retired("plain", &|key| bucket.put(key, &whole).unwrap()) >= 100_000, "it is copied");
    assert_eq!(
        retired("room", &|key| assert_eq!(bucket.put_with_room(key, &[&whole], 7, 200_000).unwrap(), None)),
        0
    );
}

#[test]
fn an_append_into_room_reads_nothing() {
    let dir = dir();
    let io = std::sync::Arc::new(crate::power_io::PowerIo::over(dir.path()));
    let segment = Segment::create(&small()).unwrap();
    let store = Store::open_with(dir.path(), &small(), &segment, io.clone()).unwrap();
    let bucket = store.bucket("b").unwrap();
    let mut want = content(1, 5000);
    bucket.put_with_room(b"k", &[&want], 0, 1 << 20).unwrap();
    let before = io.reads.load(Ordering::Relaxed);
    for i in 0..300 {
        let data = content(i, 1 + i as usize * 11);
        want.extend_from_slice(&data);
        bucket.append(b"k", &data).unwrap();
    }
    assert_eq!(io.reads.load(Ordering::Relaxed), before, "pages in which nothing stood were read");
    assert_eq!(get(&bucket, "k").unwrap(), want);
}

#[test]
fn overwriting_what_no_sync_has_covered_takes_no_room() {
    let dir = dir();
    let store = open(dir.path());
    let bucket = store.bucket("b").unwrap();
    let put_often = |count: u64| (0..count).for_each(|i| bucket.put(b"k", &content(i, 10_000)).unwrap());
    put_often(1000);
    assert_eq!(store.usage().heap_retired_bytes, 0);
    assert!(store.usage().heap_bytes < 4 << 20, "{:?}", store.usage());
    store.sync().unwrap();
    put_often(1000);
    assert_eq!(store.usage().heap_retired_bytes, 12 << 10, "the one that was synced");
    // A change of metadata is its own record, but makes the bytes no newer.
    bucket.set_score(b"k", 1.0).unwrap();
    put_often(2);
    assert_eq!(store.usage().heap_retired_bytes, 24 << 10);
    assert_eq!(get(&bucket, "k").unwrap(), content(1, 10_000));
}

#[test]
fn many_small_appends_copy_little() {
    let dir = dir();
    let store = open(dir.path());
    let bucket = store.bucket("b").unwrap();
    let mut want = Vec::new();
    for i in 0..20_000u64 {
        let data = i.to_le_bytes();
        want.extend_from_slice(&data);
        bucket.append(b"log", &data).unwrap();
    }
    assert_eq!(get(&bucket, "log").unwrap(), want);
    let written = store.stats().fuse.write_bytes;
    assert!(written < 8 * want.len() as u64 + (4 << 20), "{written} bytes written for {}", want.len());
}

#[test]
fn a_rename_may_expect_that_nothing_is_replaced() {
    let dir = dir();
    let store = open(dir.path());
    let (a, b) = (store.bucket("a").unwrap(), store.bucket("b").unwrap());
    a.put(b"1", b"one").unwrap();
    b.put(b"taken", b"two").unwrap();
    assert!(!a.rename_if(b"1", &b, b"taken", Expect::Absent).unwrap());
    assert!(!a.rename_if(b"1", &a, b"1", Expect::Absent).unwrap());
    assert_eq!((get(&a, "1").unwrap(), get(&b, "taken").unwrap()), (b"one".to_vec(), b"two".to_vec()));
    assert!(a.rename_if(b"1", &b, b"free", Expect::Absent).unwrap());
    assert_eq!((get(&a, "1"), get(&b, "free")), (None, Some(b"one".to_vec())));
    assert!(!a.rename_if(b"1", &b, b"other", Expect::Absent).unwrap(), "there is none");
}

#[test]
fn a_renamed_blob_replaces_the_one_of_its_new_name() {
    let dir = dir();
    let store = open(dir.path());
    let (a, b) = (store.bucket("a").unwrap(), store.bucket("b").unwrap());
    a.put_if(b"1", &[b"one"], 5, Expect::Any).unwrap();
    a.put(b"2", b"two").unwrap();
    assert!(a.rename(b"1", b"2").unwrap() && !a.rename(b"1", b"3").unwrap());
    assert!(a.rename(b"2", b"2").unwrap());
    assert_eq!((a.len(), a.stat(b"2").unwrap().meta), (1, 5));
    b.put(b"x", b"old").unwrap();
    assert!(a.rename_into(b"2", &b, b"x").unwrap());
    assert!(a.is_empty() && get(&b, "x").unwrap() == b"one");
    drop((a, b));
    store.close().unwrap();
    let store = open(dir.path());
    assert!(store.bucket("a").unwrap().is_empty());
    assert_eq!(get(&store.bucket("b").unwrap(), "x").unwrap(), b"one");
}

#[test]
fn buckets_are_renamed_cleared_and_removed() {
    let dir = dir();
    let store = open(dir.path());
    let bucket = store.bucket("a").unwrap();
    bucket.put(b"k", b"v").unwrap();
    store.bucket("c").unwrap().put(b"k", b"c").unwrap();
    assert!(matches!(store.rename_bucket("a", "c"), Err(Error::Exists { .. })));
    assert!(store.rename_bucket("a", "b").unwrap() && !store.rename_bucket("a", "b").unwrap());
    assert_eq!((bucket.name(), get(&bucket, "k")), ("b".into(), Some(b"v".to_vec())));
    assert_eq!(store.buckets(), ["b", "c"]);
    assert!(store.find_bucket("a").is_none());
    store.bucket("c").unwrap().clear().unwrap();
    assert!(store.remove_bucket("b").unwrap() && !store.remove_bucket("b").unwrap());
    let error = bucket.put(b"k", b"v").unwrap_err();
    assert!(matches!(error, Error::NoBucket { .. }) && is_one_line(&error), "{error}");
    assert_eq!((get(&bucket, "k"), bucket.len()), (None, 0));
    drop(bucket);
    store.close().unwrap();
    let store = open(dir.path());
    assert_eq!(store.buckets(), ["c"]);
    assert!(store.bucket("c").unwrap().is_empty());
    assert_eq!(store.usage().blobs, 0);
}

#[test]
fn scans_and_lists_name_each_key_once() {
    let dir = dir();
    let bucket = open(dir.path()).bucket("b").unwrap();
    for round in [100, 2500, 10_000] {
        for i in bucket.len()..round {
            bucket.put(format!("k{i}").as_bytes(), b"").unwrap();
        }
        for count in [1, 10, 700, 100_000] {
            let (mut from, mut keys, mut calls) = (0, Vec::new(), 0);
            loop {
                let (found, next) = bucket.scan(from, count);
                assert!(found.len() >= count || next == 0);
                keys.extend(found);
                calls += 1;
                from = next;
                if next == 0 {
                    break;
                }
            }
            assert!(calls <= round as usize / count + 1);
            keys.sort();
            assert_eq!(keys, bucket.list(b""), "{count} at once of {round}");
        }
    }
    assert_eq!(bucket.list(b"k999").len(), 11);
}

#[test]
fn any_key_is_each_as_likely() {
    let dir = dir();
    let bucket = open(dir.path()).bucket("b").unwrap();
    let mut rng = Rng::new(seed("any_key_is_each_as_likely"));
    assert_eq!(bucket.any_key(|below| rng.index(below)), None);
    // A small bucket, and a large one with tables of different numbers of keys.
    for keys in [100, 2500] {
        for i in bucket.len()..keys {
            bucket.put(&i.to_le_bytes(), b"").unwrap();
        }
        let mut drawn = vec![0; keys as usize];
        for _ in 0..100 * keys {
            let key = bucket.any_key(|below| rng.index(below)).unwrap();
            drawn[u64::from_le_bytes((*key).try_into().unwrap()) as usize] += 1;
        }
        // Each key is drawn 100 times on average, within five standard deviations (of 10).
        let (least, most) = (drawn.iter().min().unwrap(), drawn.iter().max().unwrap());
        assert!(*least > 50 && *most < 155, "{least} to {most}");
    }
}

#[test]
fn a_key_that_has_gone_is_in_no_scan() {
    let dir = dir();
    let bucket = open(dir.path()).bucket("b").unwrap();
    (0..5000u32).for_each(|i| bucket.put(&i.to_le_bytes(), b"").unwrap());
    let (mut seen, mut from) = (0, 0);
    for step in 0.. {
        let (keys, next) = bucket.scan(from, 10);
        assert!(keys.iter().all(|key| bucket.contains(key)));
        (seen, from) = (seen + keys.len(), next);
        if next == 0 {
            break;
        }
        (step..5000u32).step_by(400).for_each(|i| _ = bucket.remove(&i.to_le_bytes()).unwrap());
    }
    assert!(seen >= bucket.len() as usize, "{seen} of {}", bucket.len());
}

#[test]
fn a_key_is_found_by_scans_while_a_bucket_grows() {
    let dir = dir();
    let bucket = open(dir.path()).bucket("b").unwrap();
    for i in 0..2000 {
        bucket.put(format!("k{i}").as_bytes(), b"").unwrap();
    }
    let (mut from, mut keys, mut more) = (0, std::collections::HashSet::new(), 2000);
    loop {
        let (found, next) = bucket.scan(from, 7);
        keys.extend(found);
        bucket.put(format!("k{more}").as_bytes(), b"").unwrap();
        more += 1;
        from = next;
        if next == 0 {
            break;
        }
    }
    assert!(more > 2100, "the bucket became large meanwhile");
    assert!((0..2000).all(|i| keys.contains(format!("k{i}").as_bytes())));
}

#[test]
fn unusable_target_is_refused_in_one_line() {
    let dir = dir();
    let store = open(dir.path());
    let second = Store::open(dir.path(), &small()).unwrap_err();
    assert!(matches!(second, Error::InUse { .. }) && is_one_line(&second), "{second}");
    let bucket = store.bucket("b").unwrap();
    let long = bucket.put(&vec![0; 70_000], b"").unwrap_err();
    assert!(matches!(long, Error::TooLarge { .. }), "{long}");
    let destroyed = Store::destroy(dir.path(), "store").unwrap_err();
    assert!(matches!(destroyed, Error::InUse { .. }), "{destroyed}");
    let other = store.clone();
    store.close().unwrap();
    assert!(
        matches!(other.bucket("c"), Err(Error::Closed)) && matches!(bucket.get(b"k"), Err(Error::Closed))
    );
    drop((other, bucket));
    let missing = Store::open(dir.path().join("none"), &small()).unwrap_err();
    assert!(is_one_line(&missing) && missing.to_string().contains("none"), "{missing}");
    std::fs::write(dir.path().join(".store.names"), b"something else").unwrap();
    let damaged = Store::open(dir.path(), &small()).unwrap_err();
    assert!(matches!(damaged, Error::Damaged { .. }) && is_one_line(&damaged), "{damaged}");
    Store::destroy(dir.path(), "store").unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    let name = terrace_store::StoreOptions { name: "a/b".into(), ..small() };
    assert!(matches!(Store::open(dir.path(), &name), Err(Error::Invalid { .. })));
}

#[test]
fn a_scratch_bucket_is_empty_after_a_restart() {
    let dir = dir();
    let store = open(dir.path());
    let bucket = store.bucket("s").unwrap();
    bucket.put(b"k", b"v").unwrap();
    assert!(matches!(bucket.make_scratch(), Err(Error::Invalid { .. })));
    bucket.clear().unwrap();
    bucket.make_scratch().unwrap();
    let before = store.usage();
    for i in 0..100u64 {
        bucket.put(b"k", &content(i, 20_000)).unwrap();
        assert_eq!(get(&bucket, "k").unwrap(), content(i, 20_000));
    }
    let after = store.usage();
    assert_eq!((after.log_bytes, after.heap_bytes), (before.log_bytes, before.heap_bytes.max(1 << 20)));
    assert!(store.bucket("b").unwrap().rename_into(b"x", &bucket, b"y").is_err());
    store.checkpoint().unwrap();
    drop(bucket);
    store.close().unwrap();
    let bucket = open(dir.path()).bucket("s").unwrap();
    assert!(bucket.is_empty() && bucket.is_scratch());
}

#[test]
fn tags_of_blobs_renamed_beside_a_new_log_stay() {
    const BLOBS: usize = 800;
    let dir = dir();
    let store = open(dir.path());
    let bucket = store.bucket("b").unwrap();
    for i in 0..BLOBS {
        bucket.put(format!("old{i}").as_bytes(), b"x").unwrap();
        bucket.tag(format!("old{i}").as_bytes(), "hot").unwrap();
    }
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                store.checkpoint().unwrap();
            }
        });
        for i in 0..BLOBS {
            let (old, new) = (format!("old{i}"), format!("new{i}"));
            assert!(bucket.rename(old.as_bytes(), new.as_bytes()).unwrap());
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(store.tagged("hot").len(), BLOBS);
    drop(bucket);
    store.close().unwrap();
    assert_eq!(open(dir.path()).tagged("hot").len(), BLOBS);
}

#[test]
fn puts_beside_a_close_are_kept_or_refused() {
    for round in 0..30u64 {
        let dir = dir();
        let store = open(dir.path());
        let taken = std::thread::scope(|scope| {
            let writers = [0, 1, 2].map(|writer| {
                let bucket = store.bucket("b").unwrap();
                scope.spawn(move || {
                    let put = |i: &u64| bucket.put(format!("{writer}:{i}").as_bytes(), &content(*i, 500));
                    (0..).take_while(|i| put(i).is_ok()).count() as u64
                })
            });
            std::thread::sleep(std::time::Duration::from_millis(1 + round % 4));
            store.clone().close().unwrap();
            writers.map(|writer| writer.join().unwrap())
        });
        drop(store);
        let bucket = open(dir.path()).bucket("b").unwrap();
        for (writer, taken) in taken.into_iter().enumerate() {
            let lost = (0..taken).find(|i| get(&bucket, &format!("{writer}:{i}")) != Some(content(*i, 500)));
            assert_eq!(lost, None, "of {taken} puts that were taken, round {round}");
        }
    }
}

#[test]
fn tags_go_with_their_blobs() {
    let dir = dir();
    let segment = terrace_store::Segment::create(&small()).unwrap();
    let store = crate::helpers::open_over(dir.path(), &segment);
    let (a, b) = (store.bucket("a").unwrap(), store.bucket("b").unwrap());
    for key in [&b"1"[..], b"2", b"3", b""] {
        a.put(key, key).unwrap();
        assert!(a.tag(key, "hot").unwrap() && !a.tag(key, "hot").unwrap());
    }
    b.put(b"9", b"x").unwrap();
    assert!(b.tag(b"9", "hot").unwrap() && b.tag(b"9", "cold").unwrap() && !b.tag(b"none", "hot").unwrap());
    assert!(b.tag_whole("cold", true).unwrap() && !b.tag_whole("cold", true).unwrap());
    assert!(a.untag(b"2", "hot").unwrap() && !a.untag(b"2", "hot").unwrap());
    a.remove(b"3").unwrap();
    a.put(b"3", b"anew").unwrap();
    a.put(b"1", b"overwritten").unwrap();
    assert!(a.rename_into(b"1", &b, b"9").unwrap());
    let check = |store: &Store| {
        let tagged = |tag: &str| {
            let mut all: Vec<(String, Option<String>)> = store
                .tagged(tag)
                .into_iter()
                .map(|(name, key)| (name, key.map(|key| String::from_utf8_lossy(&key).into())))
                .collect();
            all.sort();
            all
        };
        assert_eq!(tagged("hot"), [("a".into(), Some(String::new())), ("b".into(), Some("9".into()))]);
        assert_eq!(tagged("cold"), [("b".into(), None)], "the blob that had the other tag was replaced");
        assert_eq!(store.bucket("b").unwrap().tags(b"9"), ["hot"]);
    };
    check(&store);
    drop((a, b));
    store.crash();
    let store = crate::helpers::open_over(dir.path(), &segment);
    check(&store);
    store.checkpoint().unwrap();
    check(&store);
    store.close().unwrap();
    let store = open(dir.path());
    check(&store);
    store.bucket("a").unwrap().clear().unwrap();
    store.remove_bucket("b").unwrap();
    assert!(store.tagged("hot").is_empty() && store.tagged("cold").is_empty());
}

#[test]
fn a_heap_that_fits_is_read_when_the_store_is_opened() {
    let dir = dir();
    let store = open(dir.path());
    let bucket = store.bucket("b").unwrap();
    (0..1000u64).for_each(|i| bucket.put(&i.to_le_bytes(), &content(i, 3000)).unwrap());
    drop(bucket);
    store.close().unwrap();
    // Pages in memory before and after all blobs are read.
    let read = |warm| {
        let store = Store::open(dir.path(), &StoreOptions { warm, ..small() }).unwrap();
        let pages = || store.stats().memory.pages;
        store.wait_warm();
        let before = pages();
        let bucket = store.bucket("b").unwrap();
        for i in 0..1000u64 {
            assert_eq!(bucket.get(&i.to_le_bytes()).unwrap().unwrap(), content(i, 3000));
        }
        (before, pages())
    };
    let (before, after) = read(true);
    assert_eq!(before, after, "all of it was there");
    assert!(before >= 1000, "{before} pages");
    let (before, after) = read(false);
    assert!(before < 100 && after >= 1000, "{before} pages, then {after}");
}
