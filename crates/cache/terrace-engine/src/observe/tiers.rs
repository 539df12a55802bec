//! Rows of `terrace stat` for the tiers: DRAM, compressed DRAM, each target on a device.
//!
//! A read counts for the tier that has the page. A demotion counts once, for the tier that receives the page.

use terrace_api::stats::{CompressedTier, Stats};
use terrace_api::tiers::{DeviceCounts, SERVING, TierKind, TierRow};
use terrace_shm::PAGE_SIZE;
use terrace_tier::DeviceConfig;

const PAGE: u64 = PAGE_SIZE as u64;
const MS_PER_DAY: f64 = 86_400_000.0;
/// Minimum age of the counters for a rate of writes, ms: the first minute fills the tier.
const RATE_AFTER_MS: u64 = 60_000;

/// A target of a device tier: configuration and counters.
pub(crate) type Device<'a> = (&'a DeviceConfig, &'a DeviceCounts);

/// Sums over removed targets: not DRAM's hits.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Removed {
    /// Page reads served.
    pub(crate) hits: u64,
    pub(crate) demoted: u64,
}

/// All tiers, from DRAM down. `stats` has the hits of all tiers together. `devices`: the fastest first.
/// `uptime_ms`: age of the counters.
pub(crate) fn rows(stats: &Stats, devices: &[Device<'_>], removed: Removed, uptime_ms: u64) -> Vec<TierRow> {
    let reads = page_reads(stats);
    let compressed = stats.compressed.as_ref().map(|tier| compressed_row(tier, reads));
    let devices = devices.iter().map(|device| device_row(*device, reads, uptime_ms));
    let below: Vec<TierRow> = compressed.into_iter().chain(devices).collect();
    [dram_row(stats, &below, removed)].into_iter().chain(below).collect()
}

/// Page reads: hits and misses.
fn page_reads(stats: &Stats) -> u64 {
    let (preload, fuse) = (&stats.preload, &stats.fuse);
    preload.hits + preload.misses + fuse.hits + fuse.misses
}

/// The DRAM row: hits that neither `below` nor removed targets served. Evicted pages that reached neither
/// have left the cache.
fn dram_row(stats: &Stats, below: &[TierRow], removed: Removed) -> TierRow {
    let memory = &stats.memory;
    let hits_below = below.iter().map(|row| row.hits).sum::<u64>().saturating_add(removed.hits);
    let hits = (stats.preload.hits + stats.fuse.hits).saturating_sub(hits_below);
    // A page demoted from one device to the next came from DRAM once.
    let moved: u64 = below.iter().map(|row| row.moved_down).sum();
    let demoted = below.iter().map(|row| row.demoted).sum::<u64>().saturating_sub(moved) + removed.demoted;
    TierRow {
        name: TierKind::Dram.name().to_owned(),
        kind: TierKind::Dram,
        pages: memory.pages,
        bytes: memory.pages * PAGE,
        capacity_bytes: memory.frames_max_bytes,
        hits,
        share: share(hits, page_reads(stats)).unwrap_or(0.0),
        dropped: stats.reclaim.pgsteal.saturating_sub(demoted),
        dram_bytes_per_page: share(memory.pages * PAGE + memory.metadata_bytes, memory.pages),
        state: SERVING.to_owned(),
        ..TierRow::default()
    }
}

fn compressed_row(tier: &CompressedTier, reads: u64) -> TierRow {
    TierRow {
        name: TierKind::Compressed.name().to_owned(),
        kind: TierKind::Compressed,
        pages: tier.pages,
        bytes: tier.pool_bytes,
        capacity_bytes: tier.pool_limit_bytes,
        hits: tier.hits,
        share: share(tier.hits, reads).unwrap_or(0.0),
        demoted: tier.stored_pages,
        promoted: tier.pgpromote_success,
        dropped: tier.evicted,
        dram_bytes_per_page: share(tier.pool_bytes + tier.metadata_bytes, tier.pages),
        state: if tier.bypassed { "off: it does not pay".to_owned() } else { SERVING.to_owned() },
        ..TierRow::default()
    }
}

/// The row of a target. `reads`: page reads of the whole cache; `uptime_ms`: age of the counters.
pub(crate) fn device_row((config, counts): Device<'_>, reads: u64, uptime_ms: u64) -> TierRow {
    TierRow {
        name: config.name.clone(),
        kind: TierKind::Device,
        level: Some(config.level.into()),
        pages: counts.pages,
        bytes: counts.bytes,
        capacity_bytes: counts.capacity_bytes,
        hits: counts.hits,
        share: share(counts.hits, reads).unwrap_or(0.0),
        read_us: share(counts.read_ns, counts.reads).map(|ns| ns / 1000.0),
        demoted: counts.demoted,
        promoted: counts.promoted,
        reinserted: counts.reinserted,
        moved_down: counts.moved_down,
        dropped: counts.dropped,
        bytes_written: counts.bytes_written,
        write_amplification: share(counts.bytes_written, counts.content_bytes_written),
        days_of_life: days_of_life(config.rated_writes, counts.bytes_written, uptime_ms),
        dram_bytes_per_page: share(counts.dram_bytes, counts.pages),
        state: counts.state.clone(),
    }
}

/// Days until the rated writes are used up, at the rate of the last `uptime_ms`.
fn days_of_life(rated: Option<u64>, written: u64, uptime_ms: u64) -> Option<f64> {
    let rated = rated.filter(|_| written > 0 && uptime_ms >= RATE_AFTER_MS)?;
    Some(rated as f64 / (written as f64 / uptime_ms as f64 * MS_PER_DAY))
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_api::stats::{Memory, MountPath, PreloadPath, Reclaim};
    use terrace_api::tiers::SCANNING;
    use terrace_tier::Access;

    fn config() -> DeviceConfig {
        DeviceConfig {
            number: 0,
            name: "ssd".to_owned(),
            access: Access::Unopened,
            bytes: 1 << 30,
            region_bytes: 16 << 20,
            regions: 63,
            first_region: 0,
            level: 0,
            tier_id: [7; 16],
            write_budget: None,
            rated_writes: Some(600_000_000_000_000),
            read_ns: None,
            write_ns: None,
            always_faster: false,
        }
    }

    fn counts() -> DeviceCounts {
        DeviceCounts {
            pages: 1000,
            bytes: 32 << 20,
            capacity_bytes: 63 * (16 << 20),
            hits: 50,
            read_ns: 4_500_000,
            reads: 50,
            demoted: 1100,
            promoted: 20,
            reinserted: 10,
            moved_down: 5,
            dropped: 90,
            content_bytes_written: 1000,
            bytes_written: 1300,
            dram_bytes: 11_800,
            state: SCANNING.to_owned(),
        }
    }

    fn stats() -> Stats {
        let tier = CompressedTier {
            pool_bytes: 1 << 20,
            metadata_bytes: 1 << 10,
            pages: 512,
            hits: 30,
            stored_pages: 700,
            pgpromote_success: 8,
            evicted: 100,
            ..CompressedTier::default()
        };
        Stats {
            memory: Memory { pages: 100, metadata_bytes: 1600, ..Memory::default() },
            preload: PreloadPath { hits: 150, misses: 10, ..PreloadPath::default() },
            fuse: MountPath { hits: 30, misses: 10, ..MountPath::default() },
            reclaim: Reclaim { pgsteal: 2000, ..Reclaim::default() },
            compressed: Some(tier),
            ..Stats::default()
        }
    }

    #[test]
    fn tiers_share_out_the_reads() {
        let (config, counts) = (config(), counts());
        let rows = rows(&stats(), &[(&config, &counts)], Removed::default(), 86_400_000);
        let hits: Vec<u64> = rows.iter().map(|row| row.hits).collect();
        assert_eq!(hits, [100, 30, 50]);
        let shares: Vec<f64> = rows.iter().map(|row| row.share).collect();
        assert_eq!(shares, [0.5, 0.15, 0.25]);
        assert_eq!(rows[0].dropped, 2000 - 700 - (1100 - 5));
        assert_eq!((rows[1].demoted, rows[1].promoted, rows[1].dropped), (700, 8, 100));
        assert_eq!(rows[0].dram_bytes_per_page, Some(4112.0));
        assert_eq!(rows[1].dram_bytes_per_page, Some(2050.0));
    }

    #[test]
    fn work_of_a_removed_target_is_not_that_of_dram() {
        let removed = Removed { hits: 50, demoted: 1100 - 5 };
        let rows = rows(&stats(), &[], removed, 86_400_000);
        let dram = |row: &TierRow| (row.hits, row.dropped);
        assert_eq!((rows.len(), dram(&rows[0])), (2, (100, 2000 - 700 - (1100 - 5))));
    }

    #[test]
    fn device_row_derives_latency_and_wear() {
        let row = device_row((&config(), &counts()), 200, 86_400_000);
        assert_eq!((row.name.as_str(), row.kind, row.state.as_str()), ("ssd", TierKind::Device, SCANNING));
        assert_eq!((row.read_us, row.write_amplification), (Some(90.0), Some(1.3)));
        assert_eq!(row.dram_bytes_per_page, Some(11.8));
        let days = row.days_of_life.unwrap();
        assert!((days * 1300.0 / 6e14 - 1.0).abs() < 1e-9, "{days}");
        assert_eq!(device_row((&config(), &counts()), 200, 59_999).days_of_life, None);
    }

    #[test]
    fn nothing_counted_gives_no_ratios() {
        let row = device_row((&config(), &DeviceCounts::default()), 0, 86_400_000);
        let ratios = [row.read_us, row.write_amplification, row.days_of_life, row.dram_bytes_per_page];
        assert_eq!((ratios, row.share), ([None; 4], 0.0));
        assert_eq!(rows(&Stats::default(), &[], Removed::default(), 0).len(), 1);
    }
}
