//! The engine decides like the simulator. With the same accesses and policy, misses, evictions and refaults
//! are equal at every step, and the queues at the end.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use terrace_engine::{AccessPath, Engine, EngineConfig, ObjectRef, SegmentHandles, SystemClock};
use terrace_io::testing::NullIo;
use terrace_policy::{Evict, build};
use terrace_sim::sim::{Mode, run_ids};
use terrace_testkit::rng::Rng;

const PAGE: u64 = 4096;
/// Pages of the file: about three times the memory.
const FILE_PAGES: u64 = 10_000;
const REQUESTS: usize = 60_000;
/// Requests between two comparisons.
const STEP: usize = 997;
/// Victims per request of a miss without a free frame.
const BATCH: usize = 32;

/// Accesses: changing favourites, pages read in several pieces, and some sequential stretches.
fn accesses() -> Vec<u32> {
    let mut rng = Rng::new(1);
    let mut below = |n| rng.below(n);
    let mut pages = Vec::new();
    while pages.len() < REQUESTS {
        let shift = pages.len() as u64 / 20_000 * 1500;
        match below(50) {
            0 => {
                let from = below(FILE_PAGES);
                pages.extend((from..from + below(300)).map(|page| page % FILE_PAGES));
            }
            kind => {
                let page = (below(1 << (kind % 14)) * 7 + shift) % FILE_PAGES;
                pages.extend((0..=below(3)).map(|_| page));
            }
        }
    }
    pages.truncate(REQUESTS);
    pages.into_iter().map(|page| page as u32).collect()
}

/// An engine without background threads, with a source of zeros, and one file.
fn engine(policy: &str, readahead_max_bytes: usize) -> (Arc<Engine>, ObjectRef, File) {
    let config = EngineConfig {
        memory_bytes: 16 << 20,
        memory_max_bytes: Some(64 << 20),
        policy: policy.into(),
        readahead_max_bytes,
        ..EngineConfig::default()
    };
    let handles = Arc::new(SegmentHandles::create(&config).unwrap());
    let engine = Engine::start(config, handles, Arc::new(SystemClock), Arc::new(NullIo)).unwrap();
    let file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.set_len(FILE_PAGES * PAGE).unwrap();
    let object = engine.object(1, file.as_raw_fd(), FILE_PAGES * PAGE).unwrap();
    (engine, object, file)
}

/// The policy as an engine of `frames_max` frames builds it for a pool of `capacity`.
fn policy(name: &str, frames_max: usize, capacity: usize) -> Box<dyn Evict> {
    let mut policy = build(name, frames_max, frames_max).unwrap();
    policy.set_capacity(capacity);
    policy
}

fn decides_as_the_simulator(name: &str) {
    let (engine, object, _file) = engine(name, 0);
    let frames_max = engine.handles().segment.geometry().frames_max as usize;
    let capacity = (engine.stats().memory.frames_max_bytes / PAGE) as usize;
    let accesses = accesses();
    let mut buf = vec![0; PAGE as usize];
    for (i, &page) in accesses.iter().enumerate() {
        let read = engine.read(&object, u64::from(page) * PAGE, &mut buf, AccessPath::FuseDirect).unwrap();
        assert_eq!(read, PAGE as usize);
        let done = i + 1;
        if done % STEP != 0 && done != REQUESTS {
            continue;
        }
        let mut simulated = policy(name, frames_max, capacity);
        let outcome = run_ids(
            simulated.as_mut(),
            &accesses[..done],
            FILE_PAGES as usize,
            capacity,
            Mode::OnDemand { batch: BATCH },
        );
        let stats = engine.stats();
        let found = (stats.fuse.misses, stats.reclaim.pgsteal, stats.reclaim.workingset_refault);
        assert_eq!(found, (outcome.misses, outcome.evictions, simulated.refaults().recent), "after {done}");
        let queues: Vec<_> = stats.generations.iter().map(|row| (row.label.clone(), row.pages)).collect();
        let expected = simulated.generations(0);
        assert_eq!(queues, expected.iter().map(|row| (row.label.clone(), row.pages)).collect::<Vec<_>>());
    }
    let evictions = engine.stats().reclaim.pgsteal as usize;
    assert!(evictions > 2 * capacity, "{evictions} evictions of {capacity} pages prove nothing");
}

#[test]
fn strata_in_the_engine_is_strata_in_the_simulator() {
    decides_as_the_simulator("strata");
}

#[test]
fn s3fifo_in_the_engine_is_s3fifo_in_the_simulator() {
    decides_as_the_simulator("s3fifo");
}

#[test]
fn readers_side_by_side_are_both_read_ahead() {
    let (engine, object, _file) = engine("strata", 512 << 10);
    let mut buf = vec![0; PAGE as usize];
    for page in 0..1024 {
        for reader in [0, 5000] {
            engine.read(&object, (reader + page) * PAGE, &mut buf, AccessPath::FuseDirect).unwrap();
        }
    }
    // Windows of 16 pages, doubled up to 128: about ten for each reader.
    let misses = engine.stats().fuse.misses;
    assert!((2..=26).contains(&misses), "{misses} misses of two readers of 1024 pages each");
}
