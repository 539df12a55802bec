//! Tests of buckets with the trait `persist`: their files follow the blobs, also after crashes and failures.

use crate::helpers::{content, dir, get, is_one_line, open, open_over, small};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use terrace_store::{Bucket, Error, Segment, Store, StoreOptions, SyncPolicy};
use terrace_testkit::wait::wait_until;

/// The files of a directory, except hidden ones.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap()).filter(|entry| entry.path().is_file());
    let named = entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.path()));
    named
        .filter(|(name, _)| !name.starts_with('.'))
        .map(|(name, path)| (name, std::fs::read(path).unwrap()))
        .collect()
}

/// The blobs of a bucket, by file name. For keys that need no encoding.
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
    wait_until("the file is written", || files(out.path()).contains_key("k"));
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
    // The files have none of these changes when the store ends.
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
    // No change since: files are not compared, otherwise this one would be corrected.
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
    // Each sync reports a directory that was removed, and writes it once it exists again. The store itself is
    // durable.
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

/// A named pipe in place of a blob's file. The thread that compares it waits in `open` until the test lets it
/// through.
struct Pipe(PathBuf);

impl Pipe {
    /// `link`: a second name, outside of the directory.
    fn new(file: &Path, link: PathBuf) -> Pipe {
        rustix::fs::mkfifoat(rustix::fs::CWD, file, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
        std::fs::hard_link(file, &link).unwrap();
        Pipe(link)
    }

    /// Lets the waiting thread through. Returns false if no thread waits.
    fn is_let_through(&self) -> bool {
        let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK;
        rustix::fs::open(&self.0, flags, rustix::fs::Mode::empty()).is_ok()
    }
}

impl Drop for Pipe {
    /// Lets all threads through, even when the test fails.
    fn drop(&mut self) {
        let both = rustix::fs::open(&self.0, rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty());
        std::mem::forget(both);
    }
}

/// Creates a store, and a directory with the files of its bucket `b`. The next open compares the blobs `keys`
/// with their files.
fn persistent_after_a_crash(segment: &Segment, keys: &[&str]) -> (tempfile::TempDir, tempfile::TempDir) {
    let (dir, out) = (dir(), dir());
    let store = open_over(dir.path(), segment);
    let bucket = store.bucket("b").unwrap();
    bucket.persist(out.path().join("b")).unwrap();
    keys.iter().for_each(|key| bucket.put(key.as_bytes(), key.as_bytes()).unwrap());
    store.crash();
    (dir, out)
}

#[test]
fn files_that_take_long_delay_no_sync() {
    let segment = Segment::create(&small()).unwrap();
    let (dir, out) = persistent_after_a_crash(&segment, &["k"]);
    let every = StoreOptions { sync: SyncPolicy::Every(std::time::Duration::from_millis(20)), ..small() };
    let pipe = Pipe::new(&out.path().join("b/k"), out.path().join("link"));
    let store = Store::open_over(dir.path(), &every, &segment).unwrap();
    let (bucket, _waits) = (store.bucket("plain").unwrap(), pipe);
    for i in 0..5 {
        let before = store.usage().syncs;
        bucket.put(b"k", &[i]).unwrap();
        wait_until("the put is synced", || store.usage().syncs > before);
    }
    assert!(!out.path().join("b/k").is_file(), "the files are not done yet");
}

#[test]
fn files_under_way_are_not_called_written() {
    let segment = Segment::create(&small()).unwrap();
    let (dir, out) = persistent_after_a_crash(&segment, &["k", "l"]);
    let files_of = out.path().join("b");
    let pipes = ["k", "l"].map(|key| Pipe::new(&files_of.join(key), out.path().join(key)));
    let store = open_over(dir.path(), &segment);
    std::thread::scope(|scope| {
        let syncs = scope.spawn(|| store.sync());
        // The first of the two files is compared, and the sync waits for the second.
        let mut first = 0;
        wait_until("a file is compared", || {
            pipes.iter().position(Pipe::is_let_through).inspect(|i| first = *i).is_some()
        });
        wait_until("it is written", || files_of.join(["k", "l"][first]).is_file());
        store.checkpoint().unwrap();
        // The second file fails, whether it is opened before or after the rename.
        std::fs::rename(&files_of, out.path().join("away")).unwrap();
        wait_until("the other file is compared", || pipes[1 - first].is_let_through() || syncs.is_finished());
        assert!(syncs.join().unwrap().is_err());
    });
    std::fs::rename(out.path().join("away"), &files_of).unwrap();
    store.crash();
    drop(pipes);
    let store = open_over(dir.path(), &segment);
    store.sync().unwrap();
    assert_eq!(files(&files_of), blobs(&store.bucket("b").unwrap()));
}

#[test]
fn a_broken_directory_does_not_hold_up_the_others() {
    let (dir, out) = (dir(), dir());
    let every = StoreOptions { sync: SyncPolicy::Every(std::time::Duration::from_millis(20)), ..small() };
    let store = Store::open(dir.path(), &every).unwrap();
    let names = ["first", "broken", "last"];
    let buckets = names.map(|name| store.bucket(name).unwrap());
    for (name, bucket) in names.iter().zip(&buckets) {
        bucket.persist(out.path().join(name)).unwrap();
    }
    std::fs::remove_dir(out.path().join("broken")).unwrap();
    for i in 0..2 {
        buckets.iter().for_each(|bucket| bucket.put(b"k", &[i]).unwrap());
        for name in ["first", "last"] {
            wait_until("the file is written", || files(&out.path().join(name)).get("k") == Some(&vec![i]));
        }
        assert!(store.sync().unwrap_err().to_string().contains("broken"));
    }
    std::fs::create_dir(out.path().join("broken")).unwrap();
    wait_until("it is tried again", || files(&out.path().join("broken")).contains_key("k"));
}

#[test]
fn removed_blobs_cost_one_sync_for_all_their_files() {
    let (dir, out) = (dir(), dir());
    let store = open(dir.path());
    let bucket = store.bucket("b").unwrap();
    bucket.persist(out.path()).unwrap();
    (0..200u64).for_each(|i| bucket.put(&i.to_le_bytes(), b"v").unwrap());
    store.sync().unwrap();
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Another bucket changes all the time, so each sync has work.
        scope.spawn(|| {
            let busy = store.bucket("busy").unwrap();
            while !ends.load(Ordering::Relaxed) {
                busy.put(b"k", b"v").unwrap();
            }
        });
        (0..200u64).for_each(|i| assert!(bucket.remove(&i.to_le_bytes()).unwrap()));
        let before = store.usage().syncs;
        let synced = store.sync();
        ends.store(true, Ordering::Relaxed);
        synced.unwrap();
        let syncs = store.usage().syncs - before;
        assert!(syncs <= 4, "{syncs} syncs for 200 files");
    });
    assert!(files(out.path()).is_empty());
}

#[test]
fn a_bucket_with_files_is_removed_where_puts_are_synced() {
    let (dir, files) = (dir(), dir());
    let options = StoreOptions { sync: SyncPolicy::Always, ..small() };
    let store = Store::open(dir.path(), &options).unwrap();
    let bucket = store.bucket("b").unwrap();
    bucket.persist(files.path()).unwrap();
    bucket.put(b"k", b"value").unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let remover = store.clone();
    std::thread::spawn(move || tell.send(remover.remove_bucket("b")));
    let removed = told.recv_timeout(std::time::Duration::from_secs(60));
    assert!(removed.expect("it does not wait for itself").unwrap());
    assert_eq!(std::fs::read(files.path().join("k")).unwrap(), b"value");
    assert!(store.find_bucket("b").is_none());
}
