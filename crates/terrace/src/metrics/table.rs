//! All metrics of `terrace stat --prometheus`: name, help text, and source in the statistics. docs/metrics.md
//! lists the same.

use terrace_api::stats::{CompressedTier, KeyValue, StatReport};
use terrace_api::tiers::{SERVING, TierRow};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Only grows, until terraced restarts.
    Counter,
    Gauge,
}

impl Kind {
    /// Name in the text format.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        }
    }
}

/// One value, with the labels that distinguish it within its metric.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sample {
    /// Label names and values, without `mount`.
    pub labels: Vec<(&'static str, String)>,
    /// In base units.
    pub value: f64,
}

#[derive(Debug)]
pub(crate) struct Metric {
    pub name: &'static str,
    pub help: &'static str,
    pub kind: Kind,
    read: fn(&StatReport) -> Vec<Sample>,
}

impl Metric {
    /// The samples; none if the machine or the configuration does not have this part.
    pub(crate) fn samples(&self, report: &StatReport) -> Vec<Sample> {
        (self.read)(report)
    }
}

const fn counter(name: &'static str, help: &'static str, read: fn(&StatReport) -> Vec<Sample>) -> Metric {
    Metric { name, help, kind: Kind::Counter, read }
}

const fn gauge(name: &'static str, help: &'static str, read: fn(&StatReport) -> Vec<Sample>) -> Metric {
    Metric { name, help, kind: Kind::Gauge, read }
}

/// A value without labels.
fn one(value: f64) -> Vec<Sample> {
    vec![Sample { labels: Vec::new(), value }]
}

/// A count without labels.
fn n(value: u64) -> Vec<Sample> {
    one(value as f64)
}

fn yes(is: bool) -> Vec<Sample> {
    n(is.into())
}

/// Counts distinguished by one label.
fn by(label: &'static str, counts: &[(&str, u64)]) -> Vec<Sample> {
    let sample = |(value, count): &(&str, u64)| Sample {
        labels: vec![(label, (*value).to_owned())],
        value: *count as f64,
    };
    counts.iter().map(sample).collect()
}

/// A count for each access path.
fn paths(preload: u64, mount: u64) -> Vec<Sample> {
    by("path", &[("preload", preload), ("mount", mount)])
}

/// A value of the compressed tier, if it is on.
fn compressed(report: &StatReport, read: fn(&CompressedTier) -> f64) -> Vec<Sample> {
    report.cache.compressed.as_ref().map_or(Vec::new(), |tier| one(read(tier)))
}

/// Values of a server of keys; none for a mount.
fn keys(report: &StatReport, read: fn(&KeyValue) -> Vec<Sample>) -> Vec<Sample> {
    report.kv.as_ref().map_or(Vec::new(), read)
}

/// A value for each tier that has it.
fn tiers(report: &StatReport, read: fn(&TierRow) -> Option<f64>) -> Vec<Sample> {
    let sample = |tier: &TierRow| {
        let labels = vec![("tier", tier.name.clone()), ("kind", tier.kind.name().to_owned())];
        Some(Sample { labels, value: read(tier)? })
    };
    report.cache.tiers.iter().filter_map(sample).collect()
}

/// An estimate for each size of memory, if requested.
fn estimates(report: &StatReport) -> Vec<Sample> {
    let points = report.mrc.iter().flat_map(|mrc| &mrc.estimates);
    let sample = |(factor, policy, value): (f64, &str, f64)| Sample {
        labels: vec![("memory_factor", factor.to_string()), ("policy", policy.to_owned())],
        value,
    };
    let policy = report.cache.policy.as_str();
    points
        .flat_map(|p| [(p.factor, policy, p.hit_ratio), (p.factor, "yardstick-lru", p.lru_hit_ratio)])
        .map(sample)
        .collect()
}

fn info(report: &StatReport) -> Vec<Sample> {
    let instance = &report.instance;
    let labels = vec![
        ("source", instance.src.display().to_string()),
        ("kind", instance.kind.name().to_owned()),
        ("policy", report.cache.policy.clone()),
        ("version", instance.version.clone()),
    ];
    vec![Sample { labels, value: 1.0 }]
}

/// All metrics, in the order of the output.
pub(crate) const METRICS: &[Metric] = &[
    gauge("terrace_info", "The mount: its source, policy and version; always 1.", info),
    gauge(
        "terrace_supervisor_up",
        "Whether the supervisor lives: without it, a crash of the daemon ends the mount.",
        |s| yes(s.instance.supervisor_lives),
    ),
    counter(
        "terrace_daemon_restarts_total",
        "Restarts of the daemon after a crash; its other counters begin at 0 then.",
        |s| n(s.instance.restarts.into()),
    ),
    // Memory.
    gauge("terrace_memory_limit_bytes", "Limit on all memory of the mount.", |s| {
        n(s.cache.memory.limit_bytes)
    }),
    gauge(
        "terrace_memory_ceiling_bytes",
        "Memory that the machine can give now; absent if no less than the limit.",
        |s| s.cache.memory.ceiling_bytes.map_or(Vec::new(), n),
    ),
    gauge("terrace_memory_used_bytes", "Memory in use: frames, metadata, tables and compressed tier.", |s| {
        n(s.cache.memory.used_bytes)
    }),
    gauge("terrace_frames_bytes", "Memory of page frames, free ones included.", |s| {
        n(s.cache.memory.frames_bytes)
    }),
    gauge("terrace_frames_limit_bytes", "Limit on the memory of page frames.", |s| {
        n(s.cache.memory.frames_max_bytes)
    }),
    gauge("terrace_huge_pages_bytes", "Part of the page frames that is in huge pages.", |s| {
        n(s.cache.memory.huge_bytes)
    }),
    gauge("terrace_metadata_bytes", "Index, and tables of policy and state about pages.", |s| {
        n(s.cache.memory.metadata_bytes)
    }),
    gauge("terrace_index_bytes", "Part of the metadata that the index takes.", |s| {
        n(s.cache.memory.index_bytes)
    }),
    gauge(
        "terrace_tables_bytes",
        "Tables of files, inodes, handles, clients, a recording and the sample.",
        |s| n(s.cache.memory.tables_bytes),
    ),
    gauge("terrace_resident_pages", "Pages in frames.", |s| n(s.cache.memory.pages)),
    gauge("terrace_free_frames", "Frames that have memory and hold no page.", |s| {
        n(s.cache.memory.free_frames)
    }),
    gauge("terrace_objects", "Files of which the cache keeps something.", |s| n(s.cache.objects as u64)),
    // Reads and writes.
    counter("terrace_page_hits_total", "Page reads served from the cache.", |s| {
        paths(s.cache.preload.hits, s.cache.fuse.hits)
    }),
    counter("terrace_page_misses_total", "Page reads that came from the source.", |s| {
        paths(s.cache.preload.misses, s.cache.fuse.misses)
    }),
    counter("terrace_mount_requests_total", "Requests through the mount.", |s| {
        by("operation", &[("read", s.cache.fuse.reads), ("write", s.cache.fuse.writes)])
    }),
    counter("terrace_mount_bytes_total", "Bytes read and written through the mount.", |s| {
        by("operation", &[("read", s.cache.fuse.read_bytes), ("write", s.cache.fuse.write_bytes)])
    }),
    counter(
        "terrace_mount_not_admitted_pages_total",
        "Misses of the mount path that were not kept: pages read for the first time.",
        |s| n(s.cache.fuse.not_admitted),
    ),
    gauge("terrace_preload_clients", "Processes that use the preload path now.", |s| {
        n(s.cache.preload.clients as u64)
    }),
    counter("terrace_preload_bytes_total", "Bytes read on the preload path.", |s| {
        by("result", &[("hit", s.cache.preload.hit_bytes), ("miss", s.cache.preload.miss_bytes)])
    }),
    counter(
        "terrace_preload_fallbacks_total",
        "Reads of the preload path that were left to the mount path.",
        |s| n(s.cache.preload.fallbacks),
    ),
    counter(
        "terrace_preload_retries_total",
        "Optimistic copies that were repeated because the page changed meanwhile.",
        |s| n(s.cache.preload.retries),
    ),
    counter(
        "terrace_preload_offered_pages_total",
        "Pages that clients offered to the cache after a miss.",
        |s| n(s.cache.preload.fills),
    ),
    counter(
        "terrace_preload_fills_total",
        "What became of offered pages; dropped: there was no room to offer them.",
        |s| {
            let p = &s.cache.preload;
            let counts = [
                ("taken", p.fills_taken),
                ("read", p.fills_read),
                ("refused", p.fills_refused),
                ("dropped", p.fills_dropped),
            ];
            by("result", &counts)
        },
    ),
    counter(
        "terrace_prefetched_pages_total",
        "Pages fetched before a program asked for them, because of a hint, a stride or a schedule.",
        |s| n(s.cache.prefetch.fetched),
    ),
    counter(
        "terrace_prefetch_dropped_pages_total",
        "Clean pages given up because a program said that it needs them no longer.",
        |s| n(s.cache.prefetch.dropped),
    ),
    counter(
        "terrace_schedule_pages_total",
        "Pages that a schedule had fetched (`run --prefetch`), by what came of them.",
        |s| {
            let schedule = s.cache.prefetch.schedule.clone().unwrap_or_default();
            by("result", &[("used", schedule.used), ("left_behind", schedule.unused)])
        },
    ),
    counter(
        "terrace_prefetch_refused_total",
        "Requests to fetch or drop pages that found the queue full.",
        |s| n(s.cache.prefetch.refused),
    ),
    // Eviction.
    counter("terrace_scanned_pages_total", "Pages scanned for eviction.", |s| n(s.cache.reclaim.pgscan)),
    counter("terrace_evicted_pages_total", "Pages evicted from frames.", |s| n(s.cache.reclaim.pgsteal)),
    counter(
        "terrace_refaulted_pages_total",
        "Faults on pages that were evicted or not admitted before.",
        |s| n(s.cache.reclaim.workingset_refault),
    ),
    counter("terrace_inserted_pages_total", "Pages put into the cache.", |s| n(s.cache.reclaim.inserted)),
    // Tiers.
    gauge("terrace_tier_pages", "Pages in the tier.", |s| tiers(s, |t| Some(t.pages as f64))),
    gauge("terrace_tier_bytes", "Storage that pages take in the tier.", |s| {
        tiers(s, |t| Some(t.bytes as f64))
    }),
    gauge("terrace_tier_capacity_bytes", "Storage that pages may take in the tier now.", |s| {
        tiers(s, |t| Some(t.capacity_bytes as f64))
    }),
    gauge("terrace_tier_serving", "Whether the tier takes and serves pages.", |s| {
        tiers(s, |t| Some(f64::from(u8::from(t.state == SERVING))))
    }),
    gauge("terrace_tier_read_seconds", "Mean time of a read of the tier.", |s| {
        tiers(s, |t| t.read_us.map(|us| us / 1e6))
    }),
    gauge(
        "terrace_tier_memory_per_page_bytes",
        "Memory for each page in the tier, metadata included.",
        |s| tiers(s, |t| t.dram_bytes_per_page),
    ),
    gauge(
        "terrace_tier_write_amplification_ratio",
        "Bytes written to the device for each byte of pages that came down.",
        |s| tiers(s, |t| t.write_amplification),
    ),
    gauge(
        "terrace_tier_life_seconds",
        "Time until the device's rated writes are used up, at the present rate.",
        |s| tiers(s, |t| t.days_of_life.map(|days| days * 86_400.0)),
    ),
    counter("terrace_tier_hits_total", "Page reads that the tier served.", |s| {
        tiers(s, |t| Some(t.hits as f64))
    }),
    counter("terrace_tier_demoted_pages_total", "Pages that came down to the tier.", |s| {
        tiers(s, |t| Some(t.demoted as f64))
    }),
    counter("terrace_tier_promoted_pages_total", "Pages that went from the tier up to memory.", |s| {
        tiers(s, |t| Some(t.promoted as f64))
    }),
    counter(
        "terrace_tier_reinserted_pages_total",
        "Pages written again when their region of the device was reclaimed.",
        |s| tiers(s, |t| Some(t.reinserted as f64)),
    ),
    counter(
        "terrace_tier_moved_down_pages_total",
        "Pages that went to the next tier when their region of the device was reclaimed.",
        |s| tiers(s, |t| Some(t.moved_down as f64)),
    ),
    counter("terrace_tier_dropped_pages_total", "Pages that left the cache from the tier.", |s| {
        tiers(s, |t| Some(t.dropped as f64))
    }),
    counter("terrace_tier_written_bytes_total", "Bytes written to the device of the tier.", |s| {
        tiers(s, |t| Some(t.bytes_written as f64))
    }),
    // The compressed tier.
    gauge("terrace_compressed_pool_bytes", "Memory of the compressed tier's pool.", |s| {
        compressed(s, |t| t.pool_bytes as f64)
    }),
    gauge("terrace_compressed_pool_limit_bytes", "Memory that the pool may have now.", |s| {
        compressed(s, |t| t.pool_limit_bytes as f64)
    }),
    gauge("terrace_compressed_live_bytes", "Compressed pages with their heads.", |s| {
        compressed(s, |t| t.live_bytes as f64)
    }),
    gauge("terrace_compressed_metadata_bytes", "Metadata and codecs of the compressed tier.", |s| {
        compressed(s, |t| t.metadata_bytes as f64)
    }),
    gauge(
        "terrace_compressed_density_ratio",
        "Bytes of pages as they are read, for each byte of the pool.",
        |s| compressed(s, |t| t.density),
    ),
    gauge("terrace_compressed_bypassed", "Whether the compressed tier is bypassed for want of hits.", |s| {
        compressed(s, |t| f64::from(u8::from(t.bypassed)))
    }),
    gauge(
        "terrace_compressed_store_seconds",
        "Mean processor time to compress a page and put it away.",
        |s| compressed(s, |t| t.compress_ns as f64 / 1e9),
    ),
    gauge("terrace_miss_cost_seconds", "What a read of the source is taken to cost.", |s| {
        compressed(s, |t| t.miss_ns as f64 / 1e9)
    }),
    counter(
        "terrace_compressed_rejected_pages_total",
        "Pages that were not stored compressed, by reason.",
        |s| {
            s.cache.compressed.as_ref().map_or(Vec::new(), |t| {
                let counts = [
                    ("poor", t.reject_compress_poor),
                    ("file", t.reject_by_file),
                    ("space", t.reject_alloc_fail),
                    ("raced", t.store_raced),
                ];
                by("reason", &counts)
            })
        },
    ),
    counter("terrace_compressed_loaded_pages_total", "Pages that the daemon decompressed.", |s| {
        compressed(s, |t| t.loaded_pages as f64)
    }),
    counter("terrace_compressed_moved_bytes_total", "Bytes moved by compaction of the pool.", |s| {
        compressed(s, |t| t.moved_bytes as f64)
    }),
    // Writeback.
    gauge("terrace_dirty_bytes", "Written data that the source does not have yet.", |s| {
        n(s.cache.writeback.dirty_bytes)
    }),
    gauge("terrace_owed_bytes", "Of these, bytes that are durable on a tier.", |s| {
        n(s.cache.writeback.owed_bytes)
    }),
    gauge("terrace_dirty_limit_bytes", "Dirty data above which writers wait.", |s| {
        n(s.cache.writeback.dirty_limit * 4096)
    }),
    gauge("terrace_writeback_pages", "Pages being written now.", |s| n(s.cache.writeback.writeback)),
    gauge(
        "terrace_unstable_pages",
        "Pages written to the kernel's page cache that may not be on the device yet.",
        |s| n(s.cache.writeback.unstable),
    ),
    counter("terrace_written_back_pages_total", "Pages written back.", |s| n(s.cache.writeback.written_back)),
    counter("terrace_writeback_errors_total", "Writes to the source that failed.", |s| {
        n(s.cache.writeback.errors)
    }),
    counter("terrace_throttled_writers_total", "Number of times that a writer had to wait.", |s| {
        n(s.cache.writeback.throttled)
    }),
    gauge("terrace_writeback_failing_errno", "errno of a writeback that keeps failing; 0: none does.", |s| {
        one(s.cache.writeback.failing_errno.into())
    }),
    // A server of keys.
    gauge("terrace_keys", "Keys of all databases of a server.", |s| keys(s, |kv| n(kv.keys))),
    gauge("terrace_key_clients", "Clients that are connected to the server of keys.", |s| {
        keys(s, |kv| n(kv.clients as u64))
    }),
    counter("terrace_key_commands_total", "Commands of clients, refused ones included.", |s| {
        keys(s, |kv| n(kv.commands))
    }),
    counter("terrace_key_command_errors_total", "Commands that were refused.", |s| {
        keys(s, |kv| n(kv.errors))
    }),
    counter("terrace_key_reads_total", "Reads of keys, and whether the key was there.", |s| {
        keys(s, |kv| by("result", &[("hit", kv.hits), ("miss", kv.misses)]))
    }),
    counter("terrace_keys_expired_total", "Keys that expired.", |s| keys(s, |kv| n(kv.expired))),
    counter("terrace_key_network_bytes_total", "Bytes from and to clients of the server of keys.", |s| {
        keys(s, |kv| by("direction", &[("in", kv.input_bytes), ("out", kv.output_bytes)]))
    }),
    gauge(
        "terrace_key_buffers_bytes",
        "Memory of requests and replies under way; a part of the tables.",
        |s| keys(s, |kv| n(kv.buffers_bytes)),
    ),
    gauge(
        "terrace_key_decoded_bytes",
        "Memory of collections that are kept decoded; a part of the tables.",
        |s| keys(s, |kv| n(kv.decoded_bytes)),
    ),
    gauge("terrace_key_sync_failing", "1: the last sync has failed.", |s| {
        keys(s, |kv| n(kv.sync_failure.is_some().into()))
    }),
    // Other sizes of memory.
    gauge(
        "terrace_estimated_hit_ratio",
        "Estimated hit ratio at other sizes of memory; with --mrc only.",
        estimates,
    ),
];
