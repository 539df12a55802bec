//! kill -9 under load: a process that uses a store is killed repeatedly. All acknowledged puts survive.
//!
//! The program forks, so it has one thread and no test harness. Four cases of kills: the parent holds the
//! segment; no process holds it, with a sync for each put; the same with a sync each second; the bucket
//! persists, and its files equal its blobs after an open and a sync. Last, a fork may not use its parent's
//! store.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use terrace_store::{Bucket, Error, Segment, Store, StoreOptions, SyncPolicy};
use terrace_testkit::rng::{Rng, seed};

const KEYS: u64 = 150;

fn options(sync: SyncPolicy) -> StoreOptions {
    let mut options = StoreOptions { memory_bytes: 16 << 20, sync, ..StoreOptions::default() };
    options.engine.memory_max_bytes = Some(64 << 20);
    options.engine.huge_pages = false;
    options
}

/// A store to kill, and how to open it.
struct Place<'a> {
    dir: &'a Path,
    options: StoreOptions,
    segment: Option<&'a Segment>,
    /// The directory of the bucket's files.
    files: Option<PathBuf>,
}

fn open(place: &Place<'_>) -> Store {
    let Place { dir, options, segment, .. } = place;
    let opened = match segment {
        Some(segment) => Store::open_over(dir, options, segment),
        None => Store::open(dir, options),
    };
    opened.unwrap_or_else(|e| panic!("{e}"))
}

/// Keys are valid file names.
fn key_of(number: u64) -> String {
    (number % KEYS).to_string()
}

/// Value of the put with this number, which it contains.
fn value(number: u64) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.extend(Rng::new(number).bytes((number * 7919 % 12_000) as usize));
    value
}

/// Runs `f` in a child. Returns its process id, and a pipe with its output.
fn child(f: impl FnOnce(&mut std::fs::File)) -> (rustix::process::Pid, OwnedFd) {
    let (reads, writes) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    // SAFETY: this process has one thread, or those of a store too, which the child does not use.
    match unsafe { libc::fork() } {
        0 => {
            drop(reads);
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| f(&mut writes.into())));
            // SAFETY: ends the child without the parent's exit handlers.
            unsafe { libc::_exit(i32::from(done.is_err())) }
        }
        pid => (rustix::process::Pid::from_raw(pid).expect("fork"), reads),
    }
}

/// Puts numbered values until it is killed, and writes each number to the pipe when the put has returned.
fn work(place: &Place<'_>, first: u64) -> (rustix::process::Pid, OwnedFd) {
    child(|says| {
        let store = open(place);
        let bucket = store.bucket("b").unwrap();
        if let Some(files) = &place.files {
            bucket.persist(files).unwrap();
        }
        for number in first.. {
            bucket.put(key_of(number).as_bytes(), &value(number)).unwrap();
            if number % 1000 == 999 && place.segment.is_some() {
                store.checkpoint().unwrap();
            }
            says.write_all(&number.to_le_bytes()).unwrap();
        }
    })
}

/// Checks all keys: each has its last value up to `acknowledged`, or the one put that was not acknowledged.
fn check(place: &Place<'_>, acknowledged: u64) {
    let (pid, _) = child(|_| {
        let store = open(place);
        let bucket = store.bucket("b").unwrap();
        for key in 0..KEYS.min(acknowledged + 1) {
            let found = bucket.get(key_of(key).as_bytes()).unwrap();
            let found = found.unwrap_or_else(|| panic!("key {key} is gone; {acknowledged} was acknowledged"));
            let number = u64::from_le_bytes(found[..8].try_into().unwrap());
            let least = acknowledged - (acknowledged + KEYS - key) % KEYS;
            assert!(number >= least && number % KEYS == key, "key {key}: {number}, not {least}");
            assert_eq!(found, value(number), "key {key}");
        }
        if let Some(files) = &place.files {
            store.sync().unwrap();
            check_files(&bucket, files);
        }
        if acknowledged.is_multiple_of(2) { store.close().unwrap() } else { store.crash() }
    });
    let (_, status) =
        rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap().unwrap();
    assert_eq!(status.exit_status(), Some(0), "the check failed");
}

/// Checks that each blob has a file, and each file a blob.
fn check_files(bucket: &Bucket, files: &Path) {
    let names =
        std::fs::read_dir(files).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
    assert_eq!(names.len() as u64, bucket.len());
    for name in names {
        assert_eq!(
            Some(std::fs::read(files.join(&name)).unwrap()),
            bucket.get(name.as_bytes()).unwrap(),
            "{name}"
        );
    }
}

fn rounds(name: &str, place: &Place<'_>, rounds: u64, rng: &mut Rng) {
    let mut acknowledged = None;
    for round in 0..rounds {
        let first = acknowledged.map_or(0, |n| n + 1);
        let (pid, reads) = work(place, first);
        let mut said = Vec::new();
        // The first output shows that the child runs. The pipe holds 8,192 numbers, so it is read while the
        // child lives.
        let until = std::time::Instant::now() + Duration::from_millis(20 + rng.below(120));
        let mut reads = std::fs::File::from(reads);
        while std::time::Instant::now() < until || said.is_empty() {
            let mut ready = [rustix::event::PollFd::new(&reads, rustix::event::PollFlags::IN)];
            let wait = rustix::time::Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
            if rustix::event::poll(&mut ready, Some(&wait)).unwrap_or(0) > 0 {
                let mut bytes = [0; 4096];
                let n = reads.read(&mut bytes).unwrap();
                assert!(n > 0, "{name}, round {round}: the child ended by itself");
                said.extend_from_slice(&bytes[..n]);
            }
        }
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap();
        reads.read_to_end(&mut said).unwrap();
        let last = said.chunks_exact(8).last().map(|number| u64::from_le_bytes(number.try_into().unwrap()));
        acknowledged = last.or(acknowledged);
        for _start in 0..2 {
            check(place, acknowledged.expect("it said something"));
        }
    }
    println!("{name}: {rounds} rounds, {} puts acknowledged, none lost", acknowledged.unwrap_or(0));
}

/// A fork may not use its parent's store, and the parent is unaffected.
fn forks(dir: &Path) {
    let place = Place {
        dir,
        options: options(SyncPolicy::Every(Duration::from_secs(1))),
        segment: None,
        files: None,
    };
    let store = open(&place);
    let bucket = store.bucket("b").unwrap();
    for number in 0..200 {
        bucket.put(key_of(number).as_bytes(), &value(number)).unwrap();
    }
    let mut children = Vec::new();
    for number in 200..220 {
        let (its_store, its_bucket) = (store.clone(), bucket.clone());
        let (pid, reads) = child(|says| {
            assert!(matches!(its_bucket.put(b"1", b"other"), Err(Error::Forked)));
            assert!(matches!(its_bucket.get(b"1"), Err(Error::Forked)));
            assert!(matches!(its_store.sync(), Err(Error::Forked)) && its_store.buckets().is_empty());
            assert!(matches!(its_store.clone().close(), Err(Error::Forked)));
            drop((its_store, its_bucket));
            says.write_all(b"x").unwrap();
            std::thread::sleep(Duration::from_secs(600));
        });
        std::fs::File::from(reads).read_exact(&mut [0]).expect("the child was refused");
        children.push(pid);
        bucket.put(key_of(number).as_bytes(), &value(number)).unwrap();
    }
    // The bucket and the children still have the descriptor of the lock.
    store.close().unwrap();
    assert!(matches!(bucket.put(b"1", b"other"), Err(Error::Closed)));
    check(&place, 219);
    for pid in children {
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap();
    }
    println!("20 forks were refused");
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    if std::env::args().any(|arg| arg == "--list")
        || !(wanted.is_empty() || wanted.iter().any(|w| "kill".contains(w.as_str())))
    {
        return;
    }
    let set = std::env::var("TERRACE_CRASH_ROUNDS").ok().and_then(|n| n.parse().ok());
    let n = set.unwrap_or(if std::env::var_os("TERRACE_SOAK").is_some() { 500 } else { 12 });
    let mut rng = Rng::new(seed("store-kill"));
    let segments = [(); 2].map(|()| Segment::create(&options(SyncPolicy::Never)).unwrap());
    let dirs = [(); 6].map(|()| tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
    let [held, synced, unsynced, persisting, files, forked] = dirs.each_ref().map(|dir| dir.path());
    let place = |dir, sync, segment| Place { dir, options: options(sync), segment, files: None };
    let alone = place(synced, SyncPolicy::Always, None);
    let second = SyncPolicy::Every(Duration::from_secs(1));
    rounds("the parent holds the segment", &place(held, SyncPolicy::Never, Some(&segments[0])), n, &mut rng);
    rounds("no process holds it, each put is synced", &alone, n, &mut rng);
    rounds("no process holds it, a sync a second", &place(unsynced, second, None), n, &mut rng);
    let often = SyncPolicy::Every(Duration::from_millis(5));
    let persisting = place(persisting, often, Some(&segments[1]));
    let persisting = Place { files: Some(files.join("b")), ..persisting };
    rounds("blobs are files, too", &persisting, n, &mut rng);
    forks(forked);
}
