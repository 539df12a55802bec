//! State of a whole engine: recovery, resizing, versions.

use super::page_table::{PageVersion, key_of};
use crate::path::resize;
use crate::preload_server::requests;
use crate::segment::flag::REUSED;
use crate::{AccessPath, Engine, EngineConfig, SegmentHandles, SystemClock};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use terrace_io::testing::{Faults, NullIo, SimIo};
use terrace_io::{BlockingIo, Io};
use terrace_shm::layout::CHUNK_FRAMES;
use terrace_shm::protocol::NO_LEAF;

fn engine(bytes: u64) -> (Arc<Engine>, Arc<SegmentHandles>, EngineConfig) {
    engine_on(bytes, Arc::new(NullIo))
}

fn engine_on(bytes: u64, io: Arc<dyn Io>) -> (Arc<Engine>, Arc<SegmentHandles>, EngineConfig) {
    let config =
        EngineConfig { memory_bytes: bytes, memory_max_bytes: Some(64 << 20), ..EngineConfig::default() };
    let handles = Arc::new(SegmentHandles::create(&config).unwrap());
    let engine = Engine::start(config.clone(), handles.clone(), Arc::new(SystemClock), io).unwrap();
    (engine, handles, config)
}

#[test]
fn policy_that_counts_by_key_gets_keys_of_all_pages() {
    let (engine, handles, config) = engine(16 << 20);
    assert!(!engine.cx.state.lock().lru.wants_keys, "the default does without");
    drop(engine);
    let config = EngineConfig { policy: "w-tinylfu".into(), ..config };
    let engine = Engine::start(config, handles, Arc::new(SystemClock), Arc::new(NullIo)).unwrap();
    let file = tempfile::tempfile().unwrap();
    let o = engine.object(7, file.as_raw_fd(), 0).unwrap();
    engine.write(&o, 0, &[1; 3 * 4096]).unwrap();
    let policy = format!("{:?}", engine.cx.state.lock().lru.policy);
    for page in 0..3 {
        assert!(policy.contains(&key_of(7, page).to_string()), "page {page}");
    }
    assert!(!policy.contains(&key_of(7, 3).to_string()));
    assert_ne!(key_of(7, 1), key_of(8, 0));
}

#[test]
fn page_of_forgotten_object_is_not_published_for_successor() {
    let (engine, ..) = engine(16 << 20);
    let file = tempfile::tempfile().unwrap();
    let old = engine.object(7, file.as_raw_fd(), 4096).unwrap();
    let before = engine.cx.state.lock().pages.snapshot(&old, 0).unwrap().before;
    assert!(engine.cx.state.lock().is_current(&old, 0, before));
    engine.forget_object(7).unwrap();
    assert!(!engine.cx.state.lock().is_current(&old, 0, before));
    let new = engine.object(7, file.as_raw_fd(), 4096).unwrap();
    assert_eq!(new.slot_index(), old.slot_index());
    assert!(!engine.cx.state.lock().is_current(&old, 0, before));
}

/// A client loads the clock during the preparation of a large write. It finds the last page without a leaf,
/// and reads the old source. It offers the page long after the write has come and gone.
#[test]
fn lookup_during_a_prepared_write_counts_as_before_it() {
    let (engine, ..) = engine(16 << 20);
    let file = tempfile::tempfile().unwrap();
    let o = engine.object(7, file.as_raw_fd(), 0).unwrap();
    let start = engine.cx.handles.segment.header().clock.load(Ordering::Relaxed);
    engine.write(&o, 0, &[1; 64 * 4096]).unwrap();
    engine.flush_all(false).unwrap();
    engine.drop_clean();
    let state = engine.cx.state.lock();
    // Ticks of the preparation: one per page and a few more; then the same again for publishing.
    for clock in start..start + 64 {
        let before = PageVersion { identity: NO_LEAF, clock };
        assert!(!state.is_current(&o, 63, before), "clock {} of {start}", clock);
    }
    let now = state.pages.snapshot(&o, 63).unwrap().before;
    let unwritten = PageVersion { identity: now.identity ^ 1 << 40, clock: u64::MAX };
    assert!(!state.is_current(&o, 63, unwritten), "another entry, whatever the clock says");
}

#[test]
fn a_restart_keeps_limit_and_pool() {
    let (engine, handles, config) = engine(48 << 20);
    let file = tempfile::tempfile().unwrap();
    let o = engine.object(7, file.as_raw_fd(), 40 << 20).unwrap();
    let mut buf = vec![0; 1 << 20];
    for mib in 0..40 {
        engine.read(&o, mib << 20, &mut buf, AccessPath::Preload).unwrap();
    }
    engine.drop_clean();
    let populated = engine.cx.state.lock().frames.populated();
    assert!(populated > 16 * CHUNK_FRAMES as u32);
    engine.resize(32 << 20).unwrap();
    let populated = engine.cx.state.lock().frames.populated();
    // The dead daemon had started to back one more chunk.
    let begun = handles.segment.frame(populated + CHUNK_FRAMES as u32);
    // SAFETY: a frame of the segment, not in use.
    unsafe { begun.write(1) };
    engine.halt();
    drop(engine);
    let (clock, io) = (Arc::new(SystemClock), Arc::new(NullIo));
    let engine = Engine::start(config, handles.clone(), clock, io).unwrap();
    engine.recover_pages();
    let m = engine.stats().memory;
    assert_eq!(m.limit_bytes, 32 << 20);
    assert_eq!(m.frames_bytes, u64::from(populated) * 4096, "empty chunks have memory all the same");
    // SAFETY: as above.
    assert_eq!(unsafe { begun.read() }, 0, "memory that belongs to no chunk went back");
    assert_eq!(engine.cx.state.lock().unbacked_chunks.len() * CHUNK_FRAMES, populated as usize);
}

#[test]
fn a_pool_that_shrinks_keeps_what_is_used() {
    let (engine, ..) = engine_on(48 << 20, Arc::new(BlockingIo::default()));
    let mut file = tempfile::tempfile().unwrap();
    (0..40u8).for_each(|mib| file.write_all(&vec![mib; 1 << 20]).unwrap());
    let o = engine.object(7, file.as_raw_fd(), 40 << 20).unwrap();
    let mut buf = vec![0; 1 << 20];
    let mut read = |mib: u64| {
        engine.read(&o, mib << 20, &mut buf, AccessPath::Preload).unwrap();
        assert!(buf.iter().all(|&b| u64::from(b) == mib));
    };
    (0..40).for_each(&mut read);
    // The last pages read are in the top chunks.
    (0..4).for_each(|_| (36..40).for_each(&mut read));
    let frame_of = |page: u64| {
        let state = engine.cx.state.lock();
        state.pages.index.get(state.pages.index.find(o.slot_index(), page).unwrap()).frame().unwrap()
    };
    let pages = 36 * 256..40 * 256;
    let before: Vec<u32> = pages.clone().map(frame_of).collect();
    engine.resize(24 << 20).unwrap();
    let mut used_again = 0;
    for (page, before) in pages.zip(before) {
        let frame = frame_of(page);
        let reused = engine.cx.handles.frame_flags(frame).load(Ordering::Relaxed) & REUSED != 0;
        assert!(engine.cx.state.lock().sampler.watch.is_watched(frame), "page {page} is sampled");
        used_again += usize::from(reused && frame != before);
    }
    assert!(used_again > 100, "pages that were used again have moved as such: {used_again}");
    let misses = engine.stats().fuse.misses;
    (36..40).for_each(&mut read);
    assert_eq!(engine.stats().fuse.misses, misses);
    assert_eq!(engine.check(), Vec::<String>::new());
}

#[test]
fn a_resize_that_fails_leaves_the_limit_as_it_was() {
    let faults = Faults { write_eio: 1000, ..Faults::default() };
    let device = Arc::new(SimIo::new(NullIo, 1, faults));
    let (engine, ..) = engine_on(64 << 20, device.clone());
    let file = tempfile::tempfile().unwrap();
    let o = engine.object(7, file.as_raw_fd(), 0).unwrap();
    let mut pages = 0u64;
    // Claimed frames in a chunk that a pool of 16 MiB does not have.
    while engine.cx.state.lock().frames.populated() <= 8 * CHUNK_FRAMES as u32 {
        engine.cx.state.lock().claim().unwrap();
    }
    while pages < 600 {
        engine.write(&o, pages * 4096, &[3; 4096]).unwrap();
        pages += 1;
    }
    let error = engine.resize(16 << 20).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5));
    let limit = engine.stats().memory.limit_bytes;
    assert_eq!(limit, 64 << 20);
    assert_eq!(engine.cx.handles.segment.header().limit_bytes.load(Ordering::Relaxed), 64 << 20);
}

#[test]
fn registered_memory_counts_and_rings_have_their_share() {
    let (engine, ..) = engine(32 << 20);
    let before = engine.cx.pool_frames();
    engine.count_also(|| 8 << 20);
    resize::adjust_pool(&engine.cx);
    assert!(engine.cx.pool_frames() + (6 << 20 >> 12) <= before);
    assert!(requests::admits_ring(&engine.cx, &engine.clients));
    engine.cx.memory.store(2 << 20, Ordering::Relaxed);
    assert!(!requests::admits_ring(&engine.cx, &engine.clients), "a ring is more than an eighth of 2 MiB");
}

/// A chunk that leaves the pool and returns at once keeps its new pages.
#[test]
fn no_page_is_lost_while_the_pool_shrinks_and_grows() {
    let (engine, ..) = engine(64 << 20);
    engine.serve().unwrap();
    let file = tempfile::tempfile().unwrap();
    let o = engine.object(7, file.as_raw_fd(), 0).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        for shift in 0..2 {
            let (engine, stop) = (&engine, &stop);
            s.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    engine.resize((16 + 40 * shift) << 20).unwrap();
                }
            });
        }
        let mut back = vec![0; 64 << 10];
        for round in 1..20u8 {
            for at in (0..8 << 20).step_by(back.len()) {
                engine.write(&o, at, &vec![round; back.len()]).unwrap();
                engine.read(&o, at, &mut back, AccessPath::Preload).unwrap();
                // `NullIo` stores nothing, so only dirty pages can be compared.
                let dirty = o.dirty.lock().dirty.clone();
                for (i, page) in back.chunks(4096).enumerate() {
                    let known = dirty.contains(&(at / 4096 + i as u64));
                    assert!(!known || page.iter().all(|&b| b == round), "zeros at {at} in round {round}");
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(engine.check(), Vec::<String>::new());
    engine.halt();
}
