//! Frees memory before a daemon's start, when its predecessor was killed for lack of memory.
//!
//! A dead daemon's frames stay allocated, free ones included: only a daemon knows the free frames. The next
//! daemon needs memory to find them, and the kernel would kill it for that. So this code uses the index
//! alone, and allocates one bit for each frame.

use crate::segment::SegmentHandles;
use crate::segment::flag::UNSYNCED;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use terrace_shm::index::{Index, Place};
use terrace_shm::layout::CHUNK_FRAMES;
use terrace_shm::protocol::withdraw;
use terrace_shm::{Entry, PAGE_SIZE, State};

/// The set of frames that stay.
struct KeptFrames {
    words: Vec<u64>,
    /// One above the highest frame.
    end: u32,
}

impl KeptFrames {
    fn new(frames: u32) -> KeptFrames {
        KeptFrames { words: vec![0; frames.div_ceil(64) as usize], end: 0 }
    }
    fn keep(&mut self, frame: u32) {
        self.words[frame as usize / 64] |= 1 << (frame % 64);
        self.end = self.end.max(frame + 1);
    }
    fn has(&self, frame: u32) -> bool {
        self.words[frame as usize / 64] >> (frame % 64) & 1 == 1
    }
    /// The ranges of `all` without a kept frame. An iterator, because the list could be long.
    fn gaps(&self, all: Range<u32>) -> impl Iterator<Item = Range<u32>> {
        let mut next = all.start;
        std::iter::from_fn(move || {
            let start = (next..all.end).find(|&frame| !self.has(frame))?;
            let end = (start..all.end).find(|&frame| self.has(frame)).unwrap_or(all.end);
            next = end;
            Some(start..end)
        })
    }
}

impl SegmentHandles {
    /// Allocated memory of this instance's files, bytes.
    pub fn resident_bytes(&self) -> u64 {
        let blocks =
            |fd: &std::os::fd::OwnedFd| rustix::fs::fstat(fd).map_or(0, |stat| stat.st_blocks as u64);
        [&self.segment_fd, &self.touch_fd, &self.durable_fd].into_iter().map(blocks).sum::<u64>() * 512
    }

    /// Reduces frames to about `keep_bytes`: drops clean pages in the frames beyond, and frees the memory of
    /// unused frames. Dirty pages stay in their frames. Returns the bytes freed.
    ///
    /// Called before the engine starts, after the dead daemon's writes have ended: no other process changes
    /// the index. Clients notice the change like any eviction.
    pub fn yield_memory(&self, keep_bytes: u64) -> u64 {
        let before = self.resident_bytes();
        let frames_max = self.segment.geometry().frames_max;
        let populated = self.segment.header().populated.load(Ordering::Acquire).min(frames_max);
        let index = Index::new(self.segment.clone());
        let mut kept = self.frames_to_keep(&index, populated);
        let top = u32::try_from(keep_bytes / PAGE_SIZE as u64).unwrap_or(u32::MAX).min(populated);
        // Frames beyond `top` that must stay reduce the number below it.
        let beyond = (top..populated).filter(|&frame| kept.has(frame)).count() as u32;
        self.withdraw_clean(&index, top.saturating_sub(beyond), &mut kept);
        let end = kept.end.next_multiple_of(CHUNK_FRAMES as u32).min(frames_max);
        self.segment.header().populated.store(end, Ordering::Release);
        for gap in kept.gaps(0..end).chain(std::iter::once(end..frames_max)) {
            if let Err(e) = self.punch(gap.clone()) {
                tracing::warn!("the kernel does not free the memory of frames {gap:?}: {e}");
            }
        }
        before.saturating_sub(self.resident_bytes())
    }

    /// Calls `act` for each page with a frame below `frames`.
    fn for_framed(&self, index: &Index, frames: u32, mut act: impl FnMut(Place, Entry, u32)) {
        for slot in 0..self.segment.slots_used() {
            if self.segment.object(slot).id.load(Ordering::Relaxed) == 0 {
                continue;
            }
            index.for_range(slot, 0, u64::MAX, |_, place| {
                let entry = index.get(place);
                if let Some(frame) = entry.frame().filter(|&frame| frame < frames) {
                    act(place, entry, frame);
                }
            });
        }
    }

    fn frames_to_keep(&self, index: &Index, frames: u32) -> KeptFrames {
        let mut kept = KeptFrames::new(frames);
        self.for_framed(index, frames, |_, _, frame| {
            if self.frame_flags(frame).load(Ordering::Acquire) & UNSYNCED != 0 {
                kept.keep(frame);
            }
        });
        kept
    }

    /// Makes clean pages in frames from `top` on absent. The recovery decides about Busy pages.
    fn withdraw_clean(&self, index: &Index, top: u32, kept: &mut KeptFrames) {
        self.for_framed(index, kept.words.len() as u32 * 64, |place, entry, frame| {
            if frame < top || entry.state() != State::Present {
                kept.keep(frame);
            } else if !kept.has(frame) {
                withdraw(index.entry(place), Entry::absent(0, index.tick()));
            }
        });
    }

    /// Frees the memory of frames without owner.
    pub(crate) fn punch(&self, frames: Range<u32>) -> io::Result<()> {
        if frames.is_empty() {
            return Ok(());
        }
        let (at, bytes) = (self.segment.frame_offset(frames.start), frames.len() as u64 * PAGE_SIZE as u64);
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(self.segment_fd.as_fd(), flags, at, bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use crate::{AccessPath, Engine, EngineConfig, SegmentHandles, SystemClock};
    use std::os::fd::AsRawFd;
    use std::sync::Arc;
    use terrace_io::testing::NullIo;

    const MIB: u64 = 1 << 20;

    fn start(config: &EngineConfig, handles: &Arc<SegmentHandles>) -> Arc<Engine> {
        Engine::start(config.clone(), handles.clone(), Arc::new(SystemClock), Arc::new(NullIo)).unwrap()
    }

    /// A daemon dies with a full pool and 4 MiB of dirty pages. Most memory is freed before the next start.
    #[test]
    fn yield_before_recovery_keeps_dirty_pages_and_frees_the_rest() {
        let config = EngineConfig {
            memory_bytes: 64 * MIB,
            memory_max_bytes: Some(64 * MIB),
            huge_pages: false,
            ..EngineConfig::default()
        };
        let handles = Arc::new(SegmentHandles::create(&config).unwrap());
        let engine = start(&config, &handles);
        let (clean, dirty) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let a = engine.object(7, clean.as_raw_fd(), 48 * MIB).unwrap();
        let mut buf = vec![0; MIB as usize];
        (0..48).for_each(|mib| assert!(engine.read(&a, mib * MIB, &mut buf, AccessPath::Preload).is_ok()));
        dirty.set_len(4 * MIB).unwrap();
        let b = engine.object(8, dirty.as_raw_fd(), 4 * MIB).unwrap();
        (0..4).for_each(|mib| assert!(engine.write(&b, mib * MIB, &vec![5; MIB as usize]).is_ok()));
        assert!(handles.resident_bytes() > 48 * MIB);
        drop((a, b, engine));

        let given = handles.yield_memory(16 * MIB);
        assert!(given > 24 * MIB, "{given}");
        let resident = handles.resident_bytes();
        assert!(resident < 24 * MIB, "{resident}");

        let engine = start(&config, &handles);
        engine.set_ceiling(24 * MIB);
        engine.reattach_object(7, clean.as_raw_fd()).unwrap();
        let b = engine.reattach_object(8, dirty.as_raw_fd()).unwrap();
        let found = engine.recover_pages();
        assert_eq!(found.dirty, 1024);
        assert!(found.pages < 5 * 1024, "{found:?}");
        for mib in 0..4 {
            engine.read(&b, mib * MIB, &mut buf, AccessPath::Preload).unwrap();
            assert!(buf.iter().all(|&byte| byte == 5), "MiB {mib}");
        }
        assert_eq!(engine.check(), Vec::<String>::new());
        let stats = engine.stats().memory;
        assert_eq!((stats.limit_bytes, stats.ceiling_bytes), (64 * MIB, Some(24 * MIB)));
    }

    #[test]
    fn ceiling_that_falls_gives_back_what_unwritten_pages_leave() {
        let config = EngineConfig {
            memory_bytes: 48 * MIB,
            memory_max_bytes: Some(48 * MIB),
            huge_pages: false,
            ..EngineConfig::default()
        };
        let handles = Arc::new(SegmentHandles::create(&config).unwrap());
        let engine = start(&config, &handles);
        let file = tempfile::tempfile().unwrap();
        file.set_len(40 * MIB).unwrap();
        let o = engine.object(7, file.as_raw_fd(), 40 * MIB).unwrap();
        let mut buf = vec![0; MIB as usize];
        (0..40).for_each(|mib| assert!(engine.read(&o, mib * MIB, &mut buf, AccessPath::Preload).is_ok()));
        // Some pages in each chunk.
        (0..40).for_each(|mib| assert!(engine.write(&o, mib * MIB, &[5; 4096]).is_ok()));
        engine.set_ceiling(16 * MIB);
        let (stats, resident) = (engine.stats(), handles.resident_bytes());
        assert!(stats.memory.frames_bytes > 36 * MIB, "unwritten pages stay where they are: {stats:?}");
        assert!(resident < 18 * MIB, "{resident}");
        assert_eq!(stats.writeback.dirty, 40);
        assert_eq!(engine.check(), Vec::<String>::new());
        for mib in 0..40 {
            engine.read(&o, mib * MIB, &mut buf[..4096], AccessPath::Preload).unwrap();
            assert!(buf[..4096].iter().all(|&byte| byte == 5), "MiB {mib}");
        }
        engine.flush_all(false).unwrap();
        engine.set_ceiling(15 * MIB);
        let stats = engine.stats().memory;
        assert!(stats.used_bytes <= 15 * MIB, "{stats:?}");
        assert_eq!(engine.check(), Vec::<String>::new());
    }

    #[test]
    fn ceiling_shrinks_the_pool_and_its_end_lets_it_grow() {
        let config = EngineConfig {
            memory_bytes: 48 * MIB,
            memory_max_bytes: Some(48 * MIB),
            ..EngineConfig::default()
        };
        let handles = Arc::new(SegmentHandles::create(&config).unwrap());
        let engine = start(&config, &handles);
        let file = tempfile::tempfile().unwrap();
        let o = engine.object(7, file.as_raw_fd(), 40 * MIB).unwrap();
        let mut buf = vec![0; MIB as usize];
        let mut fill = || {
            (0..40).for_each(|mib| assert!(engine.read(&o, mib * MIB, &mut buf, AccessPath::Preload).is_ok()))
        };
        fill();
        let full = engine.stats().memory.used_bytes;
        engine.set_ceiling(20 * MIB);
        let bounded = engine.stats().memory;
        assert!(bounded.used_bytes <= 20 * MIB, "{bounded:?}");
        assert_eq!(bounded.limit_bytes, 48 * MIB);
        engine.set_ceiling(u64::MAX);
        fill();
        let again = engine.stats().memory;
        assert!(again.used_bytes + 2 * MIB > full && again.ceiling_bytes.is_none(), "{again:?}");
        assert_eq!(engine.check(), Vec::<String>::new());
    }
}
