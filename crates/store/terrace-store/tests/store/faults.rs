//! Faults that other stores had, and faults of disks.
//!
//! Ten faults were found in Hermes 1.0.5, a tiered buffer for jobs. These tests show that terrace does not
//! have them:
//!
//! | fault | tests |
//! |---|---|
//! | full tiers: acknowledged puts were empty | `each_put_is_right_or_refused_when_the_store_is_full`; `paths::a_full_source` |
//! | room of overwritten blobs was never free | `room_is_free_at_overwrite`, `a_full_store_can_be_overwritten_for_ever` |
//! | fsync did nothing | `tests/kill.rs`, `a_power_cut_leaves_a_prefix_with_all_that_was_synced`; `crash::everything_killed` |
//! | nothing moved between tiers, or readers hung while it did | `readers_go_on_while_blobs_leave_memory`, `blobs_that_exceed_memory_are_compressed_and_read_right` |
//! | calls that were not intercepted | `paths::` and the tests of terrace-preload |
//! | nothing survived a restart | `a_restart_over_the_segment_is_warm`; `device::second_mount_reads_from_the_device` |
//! | keys of the configuration did nothing | `unknown_keys_name_their_line`, and the tests of docs/terrace.toml beside it |
//! | a write of 4 KiB took 1.3 to 2.2 ms | `a_small_put_takes_microseconds` |
//! | benchmarks counted bytes that were dropped | `a_wrong_page_fails_the_load`, and the sums that `terrace-bench metadata` checks |
//! | no results for metadata and prefetching | `five_tables_are_measured_and_nothing_is_left`; bench/README.md |

use crate::helpers::{content, dir, get, is_one_line, open_over, small};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use terrace_io::BlockingIo;
use terrace_io::testing::{Call, Faults, HookIo, SimIo};
use terrace_store::{Error, Segment, Store, StoreOptions, SyncPolicy};
use terrace_testkit::wait::wait_until;

fn with_capacity(bytes: u64) -> StoreOptions {
    StoreOptions { capacity_bytes: Some(bytes), ..small() }
}

#[test]
fn each_put_is_right_or_refused_when_the_store_is_full() {
    let dir = dir();
    let options = with_capacity(8 << 20);
    let store = Store::open(dir.path(), &options).unwrap();
    let bucket = store.bucket("b").unwrap();
    let mut taken = Vec::new();
    for i in 0..1000u64 {
        let len = 10_000 + (i * 37 % 9000) as usize;
        match bucket.put(format!("k{i}").as_bytes(), &content(i, len)) {
            Ok(()) => taken.push((i, len)),
            Err(e) => assert!(e.is_full() && is_one_line(&e), "{e}"),
        }
    }
    assert!((500..1000).contains(&taken.len()), "{} were taken", taken.len());
    let check = |store: &Store| {
        let bucket = store.bucket("b").unwrap();
        for (i, len) in &taken {
            assert_eq!(get(&bucket, &format!("k{i}")).unwrap(), content(*i, *len), "blob {i}");
        }
        assert_eq!(bucket.len(), taken.len() as u64);
    };
    check(&store);
    assert!(store.usage().heap_bytes <= 8 << 20);
    drop(bucket);
    store.close().unwrap();
    let store = Store::open(dir.path(), &options).unwrap();
    check(&store);
    let bucket = store.bucket("b").unwrap();
    assert!(bucket.put(b"more", &content(1, 20_000)).unwrap_err().is_full());
    for (i, _) in &taken[..10] {
        assert!(bucket.remove(format!("k{i}").as_bytes()).unwrap());
    }
    bucket.put(b"more", &content(1, 20_000)).unwrap();
}

#[test]
fn room_is_free_at_overwrite() {
    let (blobs, len) =
        if std::env::var_os("TERRACE_SOAK").is_some() { (100, 1 << 20) } else { (50, 128 << 10) };
    let dir = dir();
    let all = blobs * len as u64;
    let store = Store::open(dir.path(), &with_capacity(all * 768 / 100)).unwrap();
    let bucket = store.bucket("b").unwrap();
    for round in 0..9 {
        for i in 0..blobs {
            bucket.put(format!("k{i}").as_bytes(), &content(round * 1000 + i, len)).unwrap();
        }
        store.sync().unwrap();
    }
    for i in 0..blobs {
        assert_eq!(get(&bucket, &format!("k{i}")).unwrap(), content(8000 + i, len), "blob {i}");
    }
    assert!(store.usage().heap_bytes < 3 * all, "{:?}", store.usage());
}

#[test]
fn a_full_store_can_be_overwritten_for_ever() {
    let dir = dir();
    let store = Store::open(dir.path(), &with_capacity(4 << 20)).unwrap();
    let bucket = store.bucket("b").unwrap();
    // Two thirds of the capacity: old and new blob coexist for a while, and the test makes no sync.
    for i in 0..2000u64 {
        bucket.put(format!("k{}", i % 66).as_bytes(), &content(i, 40_000)).unwrap();
    }
    for i in 2000 - 66..2000u64 {
        assert_eq!(get(&bucket, &format!("k{}", i % 66)).unwrap(), content(i, 40_000));
    }
}

#[test]
fn blobs_that_exceed_memory_are_compressed_and_read_right() {
    let dir = dir();
    let mut options = small();
    options.engine.compressed.min_percent = 20;
    options.engine.compressed.admit = terrace_engine::Admit::All;
    let store = Store::open(dir.path(), &options).unwrap();
    let bucket = store.bucket("b").unwrap();
    let value = |i: u64| (i.to_le_bytes().repeat(8)).repeat(64);
    for i in 0..8000u64 {
        bucket.put(format!("k{i}").as_bytes(), &value(i)).unwrap();
    }
    for i in (0..8000u64).rev() {
        assert_eq!(get(&bucket, &format!("k{i}")).unwrap(), value(i));
    }
    let stats = store.stats();
    assert!(stats.reclaim.pgsteal > 0, "{:?}", stats.reclaim);
    assert!(stats.memory.used_bytes <= stats.memory.limit_bytes, "{:?}", stats.memory);
    assert_eq!(store.engine().check(), Vec::<String>::new());
}

#[test]
fn a_restart_over_the_segment_is_warm() {
    let dir = dir();
    let segment = Segment::create(&small()).unwrap();
    let store = open_over(dir.path(), &segment);
    let bucket = store.bucket("b").unwrap();
    for i in 0..300u64 {
        bucket.put(format!("k{i}").as_bytes(), &content(i, 8000)).unwrap();
    }
    drop(bucket);
    store.close().unwrap();
    let store = open_over(dir.path(), &segment);
    let bucket = store.bucket("b").unwrap();
    for i in 0..300u64 {
        assert_eq!(get(&bucket, &format!("k{i}")).unwrap(), content(i, 8000));
    }
    assert_eq!(store.stats().fuse.misses, 0, "{:?}", store.stats().fuse);
}

#[test]
fn options_that_cannot_be_are_refused() {
    let dir = dir();
    let mut policy = small();
    policy.engine.policy = "none".into();
    let little = StoreOptions { memory_bytes: 1 << 20, ..small() };
    for options in [policy, little] {
        let error = Store::open(dir.path(), &options).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }) && is_one_line(&error), "{error}");
    }
}

#[test]
fn a_failing_device_refuses_and_loses_nothing_acknowledged() {
    let dir = dir();
    let seed = terrace_testkit::rng::seed("store-faults");
    let io = Arc::new(SimIo::new(BlockingIo::default(), seed, Faults::default()));
    let segment = Segment::create(&small()).unwrap();
    let store = Store::open_with(dir.path(), &small(), &segment, io.clone()).unwrap();
    let bucket = store.bucket("b").unwrap();
    bucket.put(b"k", &content(1, 50_000)).unwrap();
    store.sync().unwrap();
    io.set(Faults { sync_eio: 1000, ..Faults::default() });
    bucket.put(b"k", &content(2, 50_000)).unwrap();
    let error = store.sync().unwrap_err();
    assert!(matches!(error, Error::Io { .. }) && is_one_line(&error), "{error}");
    assert_eq!(get(&bucket, "k").unwrap(), content(2, 50_000));
    io.set(Faults::default());
    // The heap was not synced, so the log has no mark. Without the fault the sync succeeds.
    store.sync().unwrap();
    io.set(Faults { write_eio: 1000, ..Faults::default() });
    let error = bucket.put(b"other", &content(3, 50_000)).unwrap_err();
    assert!(matches!(error, Error::Io { .. }) && is_one_line(&error), "{error}");
    io.set(Faults::default());
    drop(bucket);
    store.crash();
    let bucket = crate::helpers::open(dir.path()).bucket("b").unwrap();
    assert_eq!(get(&bucket, "k").unwrap(), content(2, 50_000));
}

/// If a thread syncs, no call reports a failed sync. The next change does.
#[test]
fn no_change_is_taken_while_syncs_fail() {
    let (dir, fails) = (dir(), Arc::new(AtomicBool::new(false)));
    let every = |ms| StoreOptions { sync: SyncPolicy::Every(Duration::from_millis(ms)), ..small() };
    let breaks = fails.clone();
    let io = HookIo::new(BlockingIo::default(), move |call| match call {
        Call::Sync(_) if breaks.load(Ordering::Relaxed) => Err(std::io::Error::from_raw_os_error(libc::EIO)),
        _ => Ok(()),
    });
    let options = every(20);
    let store =
        Store::open_with(dir.path(), &options, &Segment::create(&options).unwrap(), Arc::new(io)).unwrap();
    let (bucket, scratch) = (store.bucket("b").unwrap(), store.bucket("s").unwrap());
    scratch.make_scratch().unwrap();
    bucket.put(b"old", &content(1, 10_000)).unwrap();
    store.sync().unwrap();
    // Nothing is left to sync, so the heap's sync is the first to fail.
    fails.store(true, Ordering::Relaxed);
    bucket.put(b"k", &content(2, 10_000)).unwrap();
    wait_until("a put is refused", || match bucket.put(b"k", &content(3, 10_000)) {
        Err(Error::NotDurable { .. }) => true,
        put => {
            put.unwrap();
            std::thread::sleep(Duration::from_millis(5));
            false
        }
    });
    for refused in [
        bucket.append(b"k", b"x").map(drop),
        bucket.remove(b"old").map(drop),
        bucket.rename(b"old", b"new").map(drop),
        bucket.clear().map(drop),
        store.bucket("another").map(drop),
        store.remove_bucket("b").map(drop),
    ] {
        assert!(matches!(&refused, Err(e @ Error::NotDurable { .. }) if is_one_line(e)), "{refused:?}");
    }
    assert_eq!(get(&bucket, "old").unwrap(), content(1, 10_000));
    scratch.put(b"k", b"x").unwrap();
    assert!(store.sync_failure().is_some());
    fails.store(false, Ordering::Relaxed);
    wait_until("a put is taken again", || bucket.put(b"k", &content(4, 10_000)).is_ok());
    store.sync().unwrap();
    assert_eq!(store.sync_failure(), None);
    drop((bucket, scratch));
    store.close().unwrap();
    let bucket = Store::open(dir.path(), &small()).unwrap().bucket("b").unwrap();
    assert_eq!(get(&bucket, "k").unwrap(), content(4, 10_000));
}

/// Runs `f` over a small file system, mounted for this thread and the threads that it starts.
fn with_tmpfs(bytes: u64, f: impl FnOnce(&Path) + Send + 'static) {
    let run = move || {
        use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
        let dir = dir();
        // SAFETY: affects this thread only, and unshares no descriptors.
        let unshared = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) };
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        let options = std::ffi::CString::new(format!("size={bytes}")).unwrap();
        let mounted = unshared.and_then(|()| mount_change("/", private)).and_then(|()| {
            mount("tmpfs", dir.path(), "tmpfs", MountFlags::empty(), Some(options.as_c_str()))
        });
        match mounted {
            Ok(()) => f(dir.path()),
            Err(e) => println!("not run: no file system can be mounted here: {e}"),
        }
        let _ = rustix::mount::unmount(dir.path(), rustix::mount::UnmountFlags::DETACH);
    };
    std::thread::spawn(run).join().unwrap();
}

#[test]
fn a_full_disk_is_one_clear_line_and_loses_nothing() {
    with_tmpfs(16 << 20, |dir| {
        let store = Store::open(dir, &small()).unwrap();
        let bucket = store.bucket("b").unwrap();
        let mut taken = 0;
        let error = loop {
            match bucket.put(format!("k{taken}").as_bytes(), &content(taken, 30_000)) {
                Ok(()) => taken += 1,
                Err(e) => break e,
            }
        };
        assert!(error.is_full() && is_one_line(&error), "{error}");
        assert!(taken > 200, "{taken} were taken");
        let again = |bucket: &terrace_store::Bucket, from| {
            for i in from..taken {
                assert_eq!(get(bucket, &format!("k{i}")).unwrap(), content(i, 30_000), "blob {i}");
            }
        };
        again(&bucket, 0);
        store.sync().unwrap();
        for i in 0..20u64 {
            assert!(bucket.remove(format!("k{i}").as_bytes()).unwrap());
        }
        for i in 0..10u64 {
            bucket.put(format!("n{i}").as_bytes(), &content(i, 30_000)).unwrap();
        }
        drop(bucket);
        store.close().unwrap();
        let store = Store::open(dir, &small()).unwrap();
        again(&store.bucket("b").unwrap(), 20);
    });
}

#[test]
fn what_a_full_disk_refuses_has_changed_nothing() {
    with_tmpfs(16 << 20, |dir| {
        let store = Store::open(dir, &small()).unwrap();
        let bucket = store.bucket("b").unwrap();
        let big = content(7, 100_000);
        bucket.put(b"big", &big).unwrap();
        while bucket.put(&bucket.len().to_le_bytes(), &content(1, 30_000)).is_ok() {}
        // The log, too, has room for removals only.
        for len in [1000, 100, 1] {
            while bucket.put(&vec![b'k'; len], b"small").is_ok() {}
        }
        let version = bucket.stat(b"big").unwrap().version;
        let error = bucket.put_at(b"big", 50_000, b"changed").unwrap_err();
        assert!(error.is_full() && is_one_line(&error), "{error}");
        assert_eq!(get(&bucket, "big").unwrap(), big);
        assert_eq!(bucket.stat(b"big").unwrap().version, version);
        // A removal may depend on a note.
        bucket.put_note(b"note", b"14 bytes of it").unwrap();
        assert!(bucket.put_note(b"note", b"15 bytes of it.").is_err());
        assert_eq!(get(&bucket, "note").unwrap(), b"14 bytes of it");
        assert!(bucket.remove(b"note").unwrap());
    });
}

#[test]
fn a_full_disk_takes_removals_and_has_room_again() {
    for sync in [SyncPolicy::Never, SyncPolicy::Always] {
        with_tmpfs(24 << 20, move |dir| {
            let options = StoreOptions { sync, memory_bytes: 32 << 20, ..small() };
            let store = Store::open(dir, &options).unwrap();
            let bucket = store.bucket("b").unwrap();
            let fill = |prefix: &str, len| {
                let put = |i: &u64| bucket.put(format!("{prefix}{i}").as_bytes(), &content(*i, len));
                (0..).take_while(|i| put(i).is_ok()).count() as u64
            };
            let (large, tiny) = (fill("k", 4000), fill("tiny", 1));
            assert!(large > 3000 && tiny > 5000, "{large} large ones, {tiny} tiny ones");
            for i in 0..large {
                assert!(bucket.remove(format!("k{i}").as_bytes()).unwrap(), "{i} of {large}");
            }
            let again = fill("k", 4000);
            assert!(again > large / 2, "{again} after {large}");
            drop(bucket);
            store.close().unwrap();
            let store = Store::open(dir, &options).unwrap();
            let bucket = store.bucket("b").unwrap();
            assert_eq!(bucket.len(), again + tiny);
            for i in 0..again {
                assert_eq!(get(&bucket, &format!("k{i}")).unwrap(), content(i, 4000), "{i}");
            }
            bucket.clear().unwrap();
            bucket.put(b"k", &content(1, 100_000)).unwrap();
            assert_eq!(get(&bucket, "k").unwrap(), content(1, 100_000));
        });
    }
}

#[test]
fn a_blob_grows_where_there_is_room_for_it_alone() {
    let dir = dir();
    let store = Store::open(dir.path(), &with_capacity(4 << 20)).unwrap();
    let bucket = store.bucket("b").unwrap();
    let mut blob = content(1, 1 << 20);
    bucket.put(b"k", &blob).unwrap();
    bucket.put(b"other", &content(2, (1 << 20) + (1 << 19))).unwrap();
    // The usual half as much room again for appends would not fit.
    assert_eq!(bucket.append(b"k", b"x").unwrap(), (1 << 20) + 1);
    blob.push(b'x');
    assert_eq!(get(&bucket, "k").unwrap(), blob);
}

#[test]
fn a_log_that_may_not_be_durable_takes_no_change() {
    let dir = dir();
    let (path, fails) = (dir.path().to_owned(), Arc::new(AtomicBool::new(false)));
    let is_failing = fails.clone();
    let io = HookIo::new(BlockingIo::default(), move |call| match call {
        Call::Sync(fd) if is_failing.load(Ordering::Relaxed) => {
            let synced = std::fs::read_link(format!("/proc/self/fd/{fd}"))?;
            if synced == path { Err(rustix::io::Errno::IO.into()) } else { Ok(()) }
        }
        _ => Ok(()),
    });
    let segment = Segment::create(&small()).unwrap();
    let store = Store::open_with(dir.path(), &small(), &segment, Arc::new(io)).unwrap();
    let bucket = store.bucket("b").unwrap();
    bucket.put(b"k", b"value").unwrap();
    fails.store(true, Ordering::Relaxed);
    store.checkpoint().unwrap_err();
    fails.store(false, Ordering::Relaxed);
    // A power cut may bring the old log back, without records appended now.
    let error = bucket.put(b"k", b"other").unwrap_err();
    assert!(is_one_line(&error) && store.sync().is_err(), "{error}");
    drop(bucket);
    store.crash();
    let bucket = crate::helpers::open(dir.path()).bucket("b").unwrap();
    bucket.put(b"k", b"other").unwrap();
}

#[test]
fn files_of_a_store_are_for_its_user_alone() {
    use std::os::unix::fs::PermissionsExt;
    let dir = dir();
    let store = crate::helpers::open(dir.path());
    let check = || {
        for file in std::fs::read_dir(dir.path()).unwrap() {
            let file = file.unwrap();
            let mode = file.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0, "{:?}", file.path());
        }
    };
    check();
    store.bucket("b").unwrap().put(b"k", b"value").unwrap();
    store.checkpoint().unwrap();
    check();
}

#[test]
fn a_read_only_directory_is_one_clear_line() {
    with_tmpfs(16 << 20, |dir| {
        Store::open(dir, &small()).unwrap().close().unwrap();
        rustix::mount::mount_remount(dir, rustix::mount::MountFlags::RDONLY, "").unwrap();
        let error = Store::open(dir, &small()).unwrap_err();
        assert!(is_one_line(&error) && error.to_string().contains("writable"), "{error}");
        println!("{error}");
    });
}

/// The given percentile of the durations.
fn percentile(mut took: Vec<Duration>, part: usize) -> Duration {
    took.sort_unstable();
    took[took.len() * part / 100]
}

#[test]
fn readers_go_on_while_blobs_leave_memory() {
    const SLOW: Duration = Duration::from_millis(40);
    let dir = dir();
    let io = Arc::new(SimIo::new(BlockingIo::default(), 1, Faults::default()));
    // A put does not wait for the log and the journal. Their writes are slow here, too.
    let options = StoreOptions { batches: true, ..small() };
    let segment = Segment::create(&options).unwrap();
    let store = Store::open_with(dir.path(), &options, &segment, io.clone()).unwrap();
    let (bucket, hot) = (store.bucket("b").unwrap(), store.bucket("hot").unwrap());
    hot.put(b"k", &content(1, 20_000)).unwrap();
    store.sync().unwrap();
    io.set(Faults { slow: 1000, delay: SLOW, ..Faults::default() });
    let ends = AtomicBool::new(false);
    let took = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut took = Vec::new();
            while !ends.load(Ordering::Relaxed) {
                let begin = Instant::now();
                assert_eq!(get(&hot, "k").unwrap(), content(1, 20_000));
                took.push(begin.elapsed());
            }
            took
        });
        // Three times the memory, on a slow device.
        for i in 0..1600u64 {
            bucket.put(format!("k{i}").as_bytes(), &content(i, 30_000)).unwrap();
        }
        ends.store(true, Ordering::Relaxed);
        reader.join().unwrap()
    });
    io.set(Faults::default());
    let stats = store.stats();
    assert!(stats.reclaim.pgsteal > 1000, "blobs leave memory: {:?}", stats.reclaim);
    assert!(took.len() > 500, "{} reads", took.len());
    let most = percentile(took, 98);
    assert!(most < SLOW / 2, "98 of 100 reads took up to {most:?}, a write of the device {SLOW:?}");
    for i in 0..1600u64 {
        assert_eq!(get(&bucket, &format!("k{i}")).unwrap(), content(i, 30_000), "blob {i}");
    }
}

#[test]
fn a_small_put_takes_microseconds() {
    let dir = dir();
    let store = Store::open(dir.path(), &small()).unwrap();
    let bucket = store.bucket("b").unwrap();
    let value = content(1, 4096);
    let took = (0..2000u64).map(|i| {
        let begin = Instant::now();
        bucket.put(format!("k{}", i % 500).as_bytes(), &value).unwrap();
        begin.elapsed()
    });
    let median = percentile(took.collect(), 50);
    println!("a put of 4 KiB: {median:?}, built without optimization");
    assert!(median < Duration::from_micros(500), "{median:?}");
}
