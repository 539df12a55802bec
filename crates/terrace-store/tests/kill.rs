//! kill -9 under load: a process that uses a store is killed again and again; what it had acknowledged is there.
//!
//! The program forks, so it has a single thread and no test harness. First the parent holds the segment; then nobody does, and each put is synced.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;
use terrace_store::{Segment, Store, StoreOptions, SyncPolicy};
use terrace_testkit::rng::{Rng, seed};

const KEYS: u64 = 150;

fn options(sync: SyncPolicy) -> StoreOptions {
    let mut options = StoreOptions { memory_bytes: 16 << 20, sync, ..StoreOptions::default() };
    options.engine.memory_max_bytes = Some(64 << 20);
    options.engine.huge_pages = false;
    options
}

fn open(dir: &Path, options: &StoreOptions, segment: Option<&Segment>) -> Store {
    let opened = match segment {
        Some(segment) => Store::open_over(dir, options, segment),
        None => Store::open(dir, options),
    };
    opened.unwrap_or_else(|e| panic!("{e}"))
}

/// Bytes of the put with this number: it says which it is.
fn value(number: u64) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.extend(Rng::new(number).bytes((number * 7919 % 12_000) as usize));
    value
}

/// Runs `f` in a child; its process id, and what it writes.
fn child(f: impl FnOnce(&mut std::fs::File)) -> (rustix::process::Pid, OwnedFd) {
    let (reads, writes) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        0 => {
            drop(reads);
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| f(&mut writes.into())));
            // SAFETY: ends the child without what the parent is to do at its end.
            unsafe { libc::_exit(i32::from(done.is_err())) }
        }
        pid => (rustix::process::Pid::from_raw(pid).expect("fork"), reads),
    }
}

/// Puts numbered values until it is killed, and says each number when the put has returned.
fn work(
    dir: &Path,
    options: &StoreOptions,
    segment: Option<&Segment>,
    first: u64,
) -> (rustix::process::Pid, OwnedFd) {
    child(|says| {
        let store = open(dir, options, segment);
        let bucket = store.bucket("b").unwrap();
        for number in first.. {
            bucket.put(&(number % KEYS).to_le_bytes(), &value(number)).unwrap();
            if number % 1000 == 999 && segment.is_some() {
                store.checkpoint().unwrap();
            }
            says.write_all(&number.to_le_bytes()).unwrap();
        }
    })
}

/// Looks at all keys: each has the last number up to `acknowledged`, or the one put that nobody answered for.
fn check(dir: &Path, options: &StoreOptions, segment: Option<&Segment>, acknowledged: u64) {
    let (pid, _) = child(|_| {
        let store = open(dir, options, segment);
        let bucket = store.bucket("b").unwrap();
        for key in 0..KEYS.min(acknowledged + 1) {
            let found = bucket.get(&key.to_le_bytes()).unwrap();
            let found = found.unwrap_or_else(|| panic!("key {key} is gone; {acknowledged} was acknowledged"));
            let number = u64::from_le_bytes(found[..8].try_into().unwrap());
            let least = acknowledged - (acknowledged + KEYS - key) % KEYS;
            assert!(number >= least && number % KEYS == key, "key {key}: {number}, not {least}");
            assert_eq!(found, value(number), "key {key}");
        }
        store.close().unwrap();
    });
    let (_, status) =
        rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap().unwrap();
    assert_eq!(status.exit_status(), Some(0), "the check failed");
}

fn rounds(name: &str, sync: SyncPolicy, segment: Option<&Segment>, rounds: u64, rng: &mut Rng) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let options = options(sync);
    let mut acknowledged = None;
    for round in 0..rounds {
        let first = acknowledged.map_or(0, |n| n + 1);
        let (pid, reads) = work(dir.path(), &options, segment, first);
        let mut said = Vec::new();
        // It has begun when it has said something; a pipe holds 8,192 numbers, so it is read while the child lives.
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
        check(dir.path(), &options, segment, acknowledged.expect("it said something"));
    }
    println!("{name}: {rounds} rounds, {} puts acknowledged, none lost", acknowledged.unwrap_or(0));
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
    let segment = Segment::create(&options(SyncPolicy::Never)).unwrap();
    rounds("the parent holds the segment", SyncPolicy::Never, Some(&segment), n, &mut rng);
    rounds("nobody holds it, each put is synced", SyncPolicy::Always, None, n, &mut rng);
}
