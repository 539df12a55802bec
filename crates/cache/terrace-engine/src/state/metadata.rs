//! Metadata: memory for resident pages beside their frames, by structure.
//!
//! The limit is 32 bytes for each resident page. It holds for a fully cached file from 100 KiB on, and for a
//! large file with a random half in the cache.

use crate::file::dirty_pages::DirtyTotals;
use crate::state::frames::Frames;
use crate::state::page_table::PageTable;
use terrace_policy::Evict;
use terrace_shm::index::IndexBytes;

/// Bytes of a dirty or unstable page in the dirty accounting: an element of an ordered set.
const DIRT_BYTES: usize = 24;

/// Bytes of memory ever touched. Tables have an element for each frame, but only used parts count.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Metadata {
    /// Entries of pages, and the shadows of evicted ones.
    pub(crate) index: IndexBytes,
    pub(crate) policy: usize,
    /// The page of each frame.
    pub(crate) owners: usize,
    /// Bitmap of free frames.
    pub(crate) free: usize,
    /// Touch counts and flags.
    pub(crate) marks: usize,
    pub(crate) dirt: usize,
    pub(crate) pins: usize,
}

impl Metadata {
    pub(crate) fn of(
        table: &PageTable,
        policy: &dyn Evict,
        frames: &Frames,
        dirty: DirtyTotals,
        pins: usize,
    ) -> Metadata {
        let populated = frames.populated() as usize;
        Metadata {
            index: table.index.resident_bytes(),
            policy: (populated * policy.bytes()).div_ceil(table.frames_max()),
            owners: populated * size_of::<u32>(),
            free: frames.heap_bytes(),
            marks: populated * 2,
            dirt: dirty.all() as usize * DIRT_BYTES,
            pins,
        }
    }

    pub(crate) fn total(&self) -> u64 {
        let tables = self.policy + self.owners + self.free + self.marks + self.dirt + self.pins;
        (self.index.total() + tables) as u64
    }
}

#[cfg(test)]
mod tests {
    use crate::config::CompressedConfig;
    use crate::path::resize;
    use crate::{AccessPath, Engine, EngineConfig, SegmentHandles, SystemClock};
    use std::os::fd::AsRawFd;
    use std::sync::Arc;
    use terrace_io::testing::NullIo;
    use terrace_testkit::rng::Rng;

    const PAGE: u64 = terrace_shm::PAGE_SIZE as u64;

    /// Bytes per resident page after reads of files of `file_pages` pages. Whole files if they fit in the
    /// pool, random pages if they have `spread` times its size.
    fn after_reads(spread: f64, file_pages: u64) -> f64 {
        let config = EngineConfig {
            memory_bytes: 40 << 20,
            memory_max_bytes: Some(40 << 20),
            // The metadata of compressed pages is counted separately (`metadata_bytes`).
            compressed: CompressedConfig { codec: None, ..CompressedConfig::default() },
            ..EngineConfig::default()
        };
        let handles = Arc::new(SegmentHandles::create(&config).unwrap());
        let engine = Engine::start(config, handles, Arc::new(SystemClock), Arc::new(NullIo)).unwrap();
        let file = tempfile::tempfile().unwrap();
        let pages = (f64::from(engine.cx.pool_frames()) * spread) as u64;
        let file_pages = file_pages.min(pages);
        let objects: Vec<_> = (1..=pages / file_pages)
            .map(|id| engine.object(id, file.as_raw_fd(), file_pages * PAGE).unwrap())
            .collect();
        let pages = objects.len() as u64 * file_pages;
        let (mut rng, mut buf) = (Rng::new(1), [0; PAGE as usize]);
        for i in 0..pages * 3 {
            let page = if spread < 1.0 { i % pages } else { rng.below(pages) };
            let o = &objects[(page / file_pages) as usize];
            engine.read(o, page % file_pages * PAGE, &mut buf, AccessPath::Preload).unwrap();
            if i % 1024 == 0 {
                resize::adjust_pool(&engine.cx);
            }
        }
        assert_eq!(engine.check(), Vec::<String>::new());
        let per_page = engine.stats().memory.metadata_bytes_per_page;
        let state = engine.cx.state.lock();
        let (m, resident) = (state.metadata(), f64::from(state.frames.in_use()));
        assert!(
            resident > f64::from(engine.cx.pool_frames()) * 0.95 * spread.min(1.0),
            "{resident} pages resident"
        );
        let each = |bytes: usize| bytes as f64 / resident;
        println!(
            "{spread} pools in files of {file_pages} pages: leaves {:.2}, inner nodes {:.2}, their words {:.2}, queue {:.2}; policy {:.2}, \
             owners {:.2}, free frames {:.2}, marks {:.2}; all {:.2} bytes a resident page",
            each(m.index.leaves),
            each(m.index.inners),
            each(m.index.node_words),
            each(m.index.queue),
            each(m.policy),
            each(m.owners),
            each(m.free),
            each(m.marks),
            per_page,
        );
        assert_eq!(per_page, m.total() as f64 / resident);
        per_page
    }

    #[test]
    fn a_resident_page_costs_at_most_32_bytes() {
        const ONE_FILE: u64 = u64::MAX;
        for (spread, file_pages, bytes_max) in [
            (0.98, ONE_FILE, 23.0),
            (0.98, 25, 32.0),
            (2.0, ONE_FILE, 32.0),
            (2.0, 512, 32.0),
            (16.0, ONE_FILE, 165.0),
            // A leaf is allocated whole. The objects take memory from the pool, so fewer pages fit than at
            // the start.
            (0.95, 1, 180.0),
        ] {
            let per_page = after_reads(spread, file_pages);
            assert!(
                per_page <= bytes_max,
                "{per_page} bytes a page: {spread} pools in files of {file_pages} pages"
            );
        }
    }
}
