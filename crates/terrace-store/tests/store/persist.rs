//! Buckets whose blobs are files, too.

use crate::stage::{content, dir, get, is_one_line, open, open_over, small};
use std::collections::BTreeMap;
use std::path::Path;
use terrace_store::{Bucket, Error, Segment, Store, StoreOptions, SyncPolicy};

/// The files of a directory, without hidden ones.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap()).filter(|entry| entry.path().is_file());
    let named = entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.path()));
    named
        .filter(|(name, _)| !name.starts_with('.'))
        .map(|(name, path)| (name, std::fs::read(path).unwrap()))
        .collect()
}

/// The blobs of a bucket, by the names of their files if those are the keys.
fn blobs(bucket: &Bucket) -> BTreeMap<String, Vec<u8>> {
    let keys = bucket.list(b"").into_iter().map(|key| String::from_utf8(key.into()).unwrap());
    keys.map(|key| (key.clone(), get(bucket, &key).unwrap())).collect()
}

#[test]
fn blobs_of_a_persistent_bucket_are_files() {
    let (dir, out) = (dir(), dir());
    let store = open(dir.path());
    let bucket = store.bucket("b").unwrap();
    bucket.put(b"before", &content(1, 100_000)).unwrap();
    bucket.persist(out.path().join("sub")).unwrap();
    let out = out.path().join("sub");
    bucket.put(b"after", b"").unwrap();
    store.sync().unwrap();
    assert_eq!(files(&out), blobs(&bucket));
    bucket.put(b"before", &content(2, 5000)).unwrap();
    bucket.append(b"after", &content(3, 300_000)).unwrap();
    bucket.put_at(b"after", 70_000, b"in place").unwrap();
    bucket.put(b"gone", b"x").unwrap();
    bucket.put(b"renamed", b"y").unwrap();
    store.sync().unwrap();
    assert_eq!(files(&out), blobs(&bucket));
    bucket.remove(b"gone").unwrap();
    bucket.rename(b"renamed", b"new").unwrap();
    bucket.truncate(b"after", 80_000).unwrap();
    let plain = store.bucket("plain").unwrap();
    assert!(bucket.rename_into(b"before", &plain, b"moved").unwrap());
    store.sync().unwrap();
    assert_eq!(files(&out), blobs(&bucket));
    assert_eq!(blobs(&bucket).keys().collect::<Vec<_>>(), ["after", "new"]);
    bucket.clear().unwrap();
    bucket.put(b"../a b/%", b"odd").unwrap();
    store.sync().unwrap();
    assert_eq!(files(&out).into_iter().collect::<Vec<_>>(), [("%2E.%2Fa b%2F%25".into(), b"odd".to_vec())]);
    assert!(matches!(bucket.put(&[b'k'; 300], b""), Err(Error::TooLarge { .. })));
    drop((bucket, plain));
    store.remove_bucket("b").unwrap();
    store.sync().unwrap();
    assert_eq!(files(&out).len(), 1, "files stay when their bucket goes");
}

#[test]
fn files_follow_by_themselves_and_at_the_end() {
    let (dir, out) = (dir(), dir());
    let at = |sync| StoreOptions { sync, ..small() };
    let store = Store::open(dir.path(), &at(SyncPolicy::Always)).unwrap();
    let bucket = store.bucket("b").unwrap();
    bucket.persist(out.path()).unwrap();
    bucket.put(b"k", b"1").unwrap();
    assert_eq!(files(out.path())["k"], b"1", "before the call returns");
    bucket.remove(b"k").unwrap();
    assert!(files(out.path()).is_empty());
    drop(bucket);
    store.close().unwrap();
    let every = SyncPolicy::Every(std::time::Duration::from_millis(20));
    let store = Store::open(dir.path(), &at(every)).unwrap();
    let bucket = store.bucket("b").unwrap();
    assert_eq!(bucket.persist_dir(), Some(out.path()));
    bucket.put(b"k", b"2").unwrap();
    terrace_testkit::wait::wait_until("the file is written", || files(out.path()).contains_key("k"));
    drop(bucket);
    store.close().unwrap();
    let store = open(dir.path());
    store.bucket("b").unwrap().put(b"k", b"3").unwrap();
    store.close().unwrap();
    assert_eq!(files(out.path())["k"], b"3");
}

#[test]
fn files_are_compared_after_a_crash() {
    let (dir, out) = (dir(), dir());
    let segment = Segment::create(&small()).unwrap();
    let store = open_over(dir.path(), &segment);
    let bucket = store.bucket("b").unwrap();
    bucket.persist(out.path()).unwrap();
    for i in 0..50u64 {
        bucket.put(format!("k{i}").as_bytes(), &content(i, 3000)).unwrap();
    }
    store.sync().unwrap();
    // None of this is in the files when the store ends.
    bucket.remove(b"k1").unwrap();
    bucket.put(b"k2", &content(100, 3000)).unwrap();
    bucket.put(b"k99", b"new").unwrap();
    drop(bucket);
    store.crash();
    assert!(files(out.path()).contains_key("k1"));
    let untouched = std::fs::metadata(out.path().join("k3")).unwrap().modified().unwrap();
    let store = open_over(dir.path(), &segment);
    store.sync().unwrap();
    let bucket = store.bucket("b").unwrap();
    assert_eq!(files(out.path()), blobs(&bucket));
    assert_eq!(std::fs::metadata(out.path().join("k3")).unwrap().modified().unwrap(), untouched);
    store.checkpoint().unwrap();
    drop(bucket);
    store.close().unwrap();
    // Nothing has changed since: nothing is compared, or this would be mended.
    std::fs::write(out.path().join("k3"), b"by others").unwrap();
    let store = open_over(dir.path(), &segment);
    store.sync().unwrap();
    assert_eq!(files(out.path())["k3"], b"by others");
    store.checkpoint().unwrap();
    store.bucket("b").unwrap().put(b"k4", b"4").unwrap();
    store.crash();
    let store = open_over(dir.path(), &segment);
    store.sync().unwrap();
    assert_eq!(files(out.path()), blobs(&store.bucket("b").unwrap()));
}

#[test]
fn a_directory_that_cannot_be_used_is_one_clear_line() {
    let (dir, out) = (dir(), dir());
    let store = open(dir.path());
    let (bucket, other) = (store.bucket("b").unwrap(), store.bucket("other").unwrap());
    std::fs::write(out.path().join("mine"), b"precious").unwrap();
    let used = out.path().join("used");
    store.bucket("first").unwrap().persist(&used).unwrap();
    other.make_scratch().unwrap();
    let refused = [
        bucket.persist(out.path()),
        bucket.persist(out.path().join("mine")),
        bucket.persist(&used),
        other.persist(out.path().join("x")),
        store.bucket("first").unwrap().persist(out.path().join("elsewhere")),
        store.bucket("first").unwrap().make_scratch(),
    ];
    for error in refused.map(Result::unwrap_err) {
        assert!(is_one_line(&error), "{error}");
    }
    store.bucket("first").unwrap().persist(&used).unwrap();
    assert_eq!(files(out.path())["mine"], b"precious");
    assert!(bucket.persist_dir().is_none());
    // A directory that is taken away is told at each sync, and written when it is there again; the store itself is durable.
    store.bucket("first").unwrap().put(b"k", b"v").unwrap();
    std::fs::remove_dir(&used).unwrap();
    let error = store.sync().unwrap_err();
    assert!(is_one_line(&error) && error.to_string().contains("used"), "{error}");
    std::fs::create_dir(&used).unwrap();
    store.sync().unwrap();
    assert_eq!(files(&used)["k"], b"v");
}

#[test]
fn files_are_those_of_some_moment_while_blobs_change() {
    let (dir, out) = (dir(), dir());
    let store = open(dir.path());
    let bucket = store.bucket("b").unwrap();
    bucket.persist(out.path()).unwrap();
    let whole = |bytes: &[u8]| {
        bytes.iter().all(|byte| *byte == bytes[0]) && bytes.len() == 1000 * usize::from(bytes[0])
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2u8)
            .map(|writer| {
                let bucket = bucket.clone();
                scope.spawn(move || {
                    for i in 0..400u64 {
                        let byte = (i % 250 + 1) as u8;
                        let key = format!("k{}", (i + u64::from(writer)) % 5);
                        bucket.put(key.as_bytes(), &vec![byte; 1000 * usize::from(byte)]).unwrap();
                        if i % 7 == 0 {
                            bucket.remove(key.as_bytes()).unwrap();
                        }
                    }
                })
            })
            .collect();
        while !writers.iter().all(|writer| writer.is_finished()) {
            store.sync().unwrap();
            assert!(files(out.path()).values().all(|bytes| whole(bytes)));
        }
    });
    store.sync().unwrap();
    assert_eq!(files(out.path()), blobs(&bucket));
}
