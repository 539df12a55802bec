//! What resident pages cost beside their frames, structure by structure.
//!
//! The promise is 32 bytes a resident page of a large file that is cached whole or half, at random.

use crate::core::Core;
use terrace_shm::index::IndexBytes;

/// Bytes of a dirty or unstable page in the books of what the source lacks: its place in an ordered set.
const DIRT_BYTES: usize = 24;

/// Bytes, of memory that was ever touched: tables are as long as the segment has frames, but only the part in use counts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Metadata {
    /// Where pages stand, and the shadows of those that went.
    pub index: IndexBytes,
    /// The policy's lists.
    pub policy: usize,
    /// The page of each frame.
    pub owners: usize,
    /// Which frames are free.
    pub free: usize,
    /// Touch counts and flags.
    pub marks: usize,
    /// What the source does not have.
    pub dirt: usize,
}

impl Metadata {
    /// All of it.
    pub fn total(&self) -> u64 {
        let books = self.policy + self.owners + self.free + self.marks + self.dirt;
        (self.index.total() + books) as u64
    }
}

impl Core {
    /// What the pages of now need.
    pub(crate) fn metadata(&self) -> Metadata {
        let populated = self.frames.populated() as usize;
        Metadata {
            index: self.index.resident_bytes(),
            policy: (populated * self.policy.bytes()).div_ceil(self.owner.len()),
            owners: populated * size_of_val(&self.owner[0]),
            free: self.frames.heap_bytes(),
            marks: populated * 2,
            dirt: self.dirt.totals.all() as usize * DIRT_BYTES,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::io::NullIo;
    use crate::{Door, Engine, EngineConfig, SegmentHandles, SystemClock};
    use std::os::fd::AsRawFd;
    use std::sync::Arc;

    const PAGE: u64 = terrace_shm::PAGE_SIZE as u64;

    /// Bytes a resident page after a file was read whole that fits the pool, or at random (xorshift64, seeded) if it is
    /// `spread` times the pool.
    fn after_reads(spread: f64) -> f64 {
        let config = EngineConfig {
            memory_bytes: 40 << 20,
            memory_max_bytes: Some(40 << 20),
            ..EngineConfig::default()
        };
        let handles = Arc::new(SegmentHandles::create(&config).unwrap());
        let engine = Engine::start(config, handles, Arc::new(SystemClock), Arc::new(NullIo)).unwrap();
        let file = tempfile::tempfile().unwrap();
        let pages = (f64::from(engine.pool_frames()) * spread) as u64;
        let o = engine.object(7, file.as_raw_fd(), pages * PAGE).unwrap();
        let (mut x, mut buf) = (0x9e37_79b9_7f4a_7c15u64, [0; PAGE as usize]);
        for i in 0..pages * 3 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let page = if spread < 1.0 { i % pages } else { x % pages };
            engine.read(&o, page * PAGE, &mut buf, Door::Library).unwrap();
            if i % 1024 == 0 {
                engine.adjust_pool();
            }
        }
        assert_eq!(engine.check(), Vec::<String>::new());
        let told = engine.stats().memory.metadata_bytes_per_page;
        let core = engine.core.lock();
        let (m, resident) = (core.metadata(), f64::from(core.frames.in_use()));
        assert!(
            resident > f64::from(engine.pool_frames()) * 0.95 * spread.min(1.0),
            "{resident} pages resident"
        );
        let each = |bytes: usize| bytes as f64 / resident;
        println!(
            "a file of {spread} pools: leaves {:.2}, inner nodes {:.2}, their books {:.2}, queue {:.2}; policy {:.2}, \
             owners {:.2}, free frames {:.2}, marks {:.2}; all {:.2} bytes a resident page",
            each(m.index.leaves),
            each(m.index.inners),
            each(m.index.books),
            each(m.index.queue),
            each(m.policy),
            each(m.owners),
            each(m.free),
            each(m.marks),
            told,
        );
        assert_eq!(told, m.total() as f64 / resident);
        told
    }

    #[test]
    fn a_resident_page_costs_at_most_32_bytes() {
        for (spread, bytes_max) in [(0.98, 24.0), (2.0, 32.0), (16.0, 165.0)] {
            let told = after_reads(spread);
            assert!(told <= bytes_max, "{told} bytes a resident page of a file of {spread} pools");
        }
    }
}
