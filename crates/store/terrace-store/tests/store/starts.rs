//! Starts of a store after kills and power cuts at chosen I/O calls. Some starts are killed, too.

use crate::helpers::{content, dir, get, open, small};
use crate::power_io::PowerIo;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use terrace_io::BlockingIo;
use terrace_io::testing::{Call, HookIo};
use terrace_store::{Bucket, Segment, Store};
use terrace_testkit::wait::{holds_within, wait_until};

fn open_with_power(dir: &Path) -> (Arc<PowerIo>, Store) {
    let io = Arc::new(PowerIo::over(dir));
    let segment = Segment::create(&small()).unwrap();
    (io.clone(), Store::open_with(dir, &small(), &segment, io).unwrap())
}

#[test]
fn a_large_blob_overwritten_at_a_kill_takes_no_others_with_it() {
    let (old, patch) = (content(1, 100_000), content(3, 40_000));
    let mut new = old.clone();
    new[20_000..60_000].copy_from_slice(&patch);
    for calls in 1.. {
        let dir = dir();
        let (io, store) = open_with_power(dir.path());
        let bucket = store.bucket("b").unwrap();
        bucket.put(b"large", &old).unwrap();
        bucket.put(b"later", &content(2, 5000)).unwrap();
        io.cut_after(calls);
        let has_returned = bucket.put_at(b"large", 20_000, &patch).is_ok();
        drop(bucket);
        store.crash();
        let bucket = open(dir.path()).bucket("b").unwrap();
        assert!(get(&bucket, "later") == Some(content(2, 5000)), "killed at call {calls}");
        let found = get(&bucket, "large").unwrap();
        assert!(found == new || (found == old && !has_returned), "killed at call {calls}");
        if has_returned {
            assert!(calls > 2, "the kill came at {calls} places");
            break;
        }
    }
}

/// Inode of the log. A compaction changes it.
fn log_inode(dir: &Path) -> u64 {
    std::fs::metadata(dir.join(".store.names")).unwrap().ino()
}

/// Leaves a log that is mostly garbage.
fn leave_garbage(dir: &Path) {
    let is_dead = Arc::new(AtomicBool::new(false));
    let fails = is_dead.clone();
    let io = HookIo::new(BlockingIo::default(), move |_| match fails.load(Ordering::Relaxed) {
        true => Err(rustix::io::Errno::IO.into()),
        false => Ok(()),
    });
    let segment = Segment::create(&small()).unwrap();
    let store = Store::open_with(dir, &small(), &segment, Arc::new(io)).unwrap();
    let (bucket, ballast) = (store.bucket("b").unwrap(), store.bucket("ballast").unwrap());
    let key = |n: u8| vec![n; 60_000];
    (0..20).for_each(|n| ballast.put(&key(n), b"").unwrap());
    // Live records raise the garbage that a compaction needs.
    while store.usage().log_bytes < 34 << 20 {
        bucket.put(&key(0), b"").unwrap();
    }
    store.remove_bucket("ballast").unwrap();
    is_dead.store(true, Ordering::Relaxed);
    drop((bucket, ballast));
    store.crash();
}

#[test]
fn a_log_written_anew_during_a_start_does_not_cost_the_journal() {
    let dir = dir();
    leave_garbage(dir.path());
    let (path, before) = (dir.path().to_owned(), log_inode(dir.path()));
    let io = HookIo::new(BlockingIo::default(), move |call| {
        if let Call::Sync(fd) = call
            && std::fs::read_link(format!("/proc/self/fd/{fd}"))?.ends_with(".store.journal0")
        {
            // The journal begins: meanwhile the thread compacts the log, or waits for the journal.
            let is_begun = || path.join(".store.names.new").exists() || log_inode(&path) != before;
            if holds_within(Duration::from_secs(5), is_begun) {
                holds_within(Duration::from_millis(300), || log_inode(&path) != before);
            }
        }
        Ok(())
    });
    let segment = Segment::create(&small()).unwrap();
    let store = Store::open_with(dir.path(), &small(), &segment, Arc::new(io)).unwrap();
    wait_until("the log is written anew", || log_inode(dir.path()) != before && store.usage().syncs > 0);
    let bucket = store.bucket("b").unwrap();
    bucket.put(b"k", &content(1, 5000)).unwrap();
    drop(bucket);
    store.crash();
    assert!(get(&open(dir.path()).bucket("b").unwrap(), "k") == Some(content(1, 5000)));
}

fn copy_files(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn cut_file(path: &Path, size: impl FnOnce(u64) -> u64) {
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_len(size(file.metadata().unwrap().len())).unwrap();
}

/// Leaves a killed store: a sync, its mark, and a blob put during the sync. `before` runs before the sync,
/// `after` behind it.
fn with_late_blob(dir: &Path, before: impl FnOnce(&Bucket), after: impl FnOnce(&Store, &Bucket)) {
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
    let store = Store::open_with(dir, &small(), &segment, Arc::new(io)).unwrap();
    let bucket = store.bucket("b").unwrap();
    store.sync().unwrap();
    before(&bucket);
    *during_sync.lock().unwrap() = Some(bucket.clone());
    store.sync().unwrap();
    after(&store, &bucket);
    drop(bucket);
    store.crash();
}

/// Kills a start over a copy of the directory at each of its calls. Then calls `check` with the bucket of the
/// next start.
fn kill_each_start(dir: &Path, check: impl Fn(&Bucket, u64)) {
    for calls in 1.. {
        let again = crate::helpers::dir();
        copy_files(dir, again.path());
        let io = Arc::new(PowerIo::over(again.path()));
        io.cut_after(calls);
        let first = Store::open_with(again.path(), &small(), &Segment::create(&small()).unwrap(), io.clone());
        let is_open = first.is_ok();
        match first {
            Ok(store) => store.crash(),
            Err(e) => assert!(io.is_dead(), "{e}"),
        }
        let bucket = open(again.path()).bucket("b").unwrap();
        check(&bucket, calls);
        assert!(get(&bucket, "late").is_none(), "killed at call {calls}");
        if is_open {
            assert!(calls > 4, "the kill came at {calls} places");
            break;
        }
    }
}

#[test]
fn a_second_start_redoes_no_turn_that_a_mark_covered() {
    let dir = dir();
    // The third blob reuses the room of the first.
    let before = |bucket: &Bucket| {
        for (key, seed) in [("x", 1), ("x", 2), ("y", 3)] {
            bucket.put(key.as_bytes(), &content(seed, 5000)).unwrap();
        }
    };
    with_late_blob(dir.path(), before, |_, _| {});
    // A power cut loses the bytes of the late blob, and those of the third blob in the turn before.
    cut_file(&dir.path().join(".store.journal0"), |_| 44);
    cut_file(&dir.path().join(".store.journal1"), |size| size - 1);
    kill_each_start(dir.path(), |bucket, calls| {
        assert!(get(bucket, "x") == Some(content(2, 5000)), "killed at call {calls}");
        assert!(get(bucket, "y") == Some(content(3, 5000)), "killed at call {calls}");
    });
}

#[test]
fn a_second_start_keeps_bytes_that_changed_in_place() {
    let dir = dir();
    let before = |bucket: &Bucket| {
        bucket.put(b"large", &content(1, 100_000)).unwrap();
        bucket.put(b"y", &content(3, 5000)).unwrap();
    };
    let after = |store: &Store, bucket: &Bucket| {
        bucket.put_at(b"large", 0, &content(2, 5000)).unwrap();
        store.engine().flush_all(false).unwrap();
    };
    with_late_blob(dir.path(), before, after);
    // A power cut loses the bytes of the late blob.
    let heap = dir.path().join(".store.heap");
    let mut bytes = std::fs::read(&heap).unwrap();
    let late = content(9, 5000);
    let at = bytes.windows(late.len()).position(|window| window == late).unwrap();
    bytes[at..at + late.len()].fill(0);
    std::fs::write(&heap, bytes).unwrap();
    cut_file(&dir.path().join(".store.journal0"), |_| 44);
    kill_each_start(dir.path(), |bucket, calls| {
        let large = get(bucket, "large").map(|bytes| bytes[5000..].to_vec());
        assert!(large == Some(content(1, 100_000)[5000..].to_vec()), "killed at call {calls}");
        assert!(get(bucket, "y") == Some(content(3, 5000)), "killed at call {calls}");
    });
}

#[test]
fn room_at_the_end_of_a_heap_outlives_a_power_cut() {
    let dir = dir();
    let store = open(dir.path());
    let bucket = store.bucket("b").unwrap();
    bucket.put_with_room(b"k", &[&content(1, 5000)], 0, 900_000).unwrap();
    drop(bucket);
    store.crash();
    // The heap has the bytes of the blob, but not its full size.
    cut_file(&dir.path().join(".store.heap"), |_| 8192);
    for _ in 0..2 {
        let store = open(dir.path());
        let bucket = store.bucket("b").unwrap();
        let mut found = get(&bucket, "k").unwrap();
        assert!(found[..5000] == content(1, 5000));
        bucket.append(b"k", &content(2, 3000)).unwrap();
        found.extend(content(2, 3000));
        assert!(get(&bucket, "k") == Some(found));
        drop(bucket);
        store.crash();
    }
}
