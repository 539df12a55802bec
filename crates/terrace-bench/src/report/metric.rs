//! Names and units of a run's numbers.

use crate::compare::Better;

/// A number of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// In the raw results.
    pub key: String,
    /// For people: "throughput".
    pub name: String,
    /// "MiB/s"; empty for shares, and for numbers that only the user knows.
    pub unit: &'static str,
    /// Which way is better.
    pub better: Better,
}

/// Metrics of a matrix, in the order of a report: key, name, unit.
const KNOWN: [(&str, &str, &str); 32] = [
    ("throughput_mib_s", "throughput", "MiB/s"),
    ("iops", "operations a second", "1/s"),
    ("tps", "transactions a second", "1/s"),
    ("build_s", "build", "s"),
    ("mean_us", "mean latency", "\u{b5}s"),
    ("p50_us", "p50 latency", "\u{b5}s"),
    ("p95_us", "p95 latency", "\u{b5}s"),
    ("p99_us", "p99 latency", "\u{b5}s"),
    ("p999_us", "p99.9 latency", "\u{b5}s"),
    ("latency_ms_mean", "mean latency", "ms"),
    ("latency_ms_p95", "p95 latency", "ms"),
    ("cpu_us_per_op", "CPU an operation", "\u{b5}s"),
    ("miss_ratio", "miss ratio", ""),
    ("hit_share", "hit share", ""),
    ("ops", "operations", ""),
    ("transactions", "transactions", ""),
    ("bytes", "bytes read", ""),
    ("checked", "pages checked", ""),
    ("preload_hit_mib", "hits by the preload library", "MiB"),
    ("preload_miss_mib", "misses by the preload library", "MiB"),
    ("beside_mib_s", "read by fio beside it", "MiB/s"),
    ("wall_s", "wall time", "s"),
    ("cpu_s", "CPU time", "s"),
    ("device_read_mib", "read from the device", "MiB"),
    ("fio_cpu_us_per_op", "CPU an operation as fio counts it", "\u{b5}s"),
    ("kernel_threads_us_per_op", "CPU of kernel threads an operation", "\u{b5}s"),
    ("foreign_cpu_percent", "CPU that others used", "%"),
    ("terrace_memory_mib", "terrace's --memory", "MiB"),
    ("memory_max_mib", "most memory of the group", "MiB"),
    ("pinned_max_mib", "most memory pinned", "MiB"),
    ("limit_hits", "hits of the memory limit", ""),
    ("major_faults", "major faults", ""),
];

impl Metric {
    /// The metric of a key.
    pub fn of(key: &str) -> Metric {
        let known = KNOWN.iter().find(|known| known.0 == key);
        let (_, name, unit) = known.copied().unwrap_or((key, key, ""));
        Metric { key: key.into(), name: name.into(), unit, better: Better::of(key) }
    }

    /// One of those that have a name and a unit here.
    pub fn known(&self) -> bool {
        self.rank().0 < KNOWN.len()
    }

    /// Place in a report: the known ones in their order, then the others.
    pub fn rank(&self) -> (usize, &str) {
        (KNOWN.iter().position(|known| known.0 == self.key).unwrap_or(KNOWN.len()), &self.key)
    }

    /// "throughput, MiB/s".
    pub fn titled(&self) -> String {
        if self.unit.is_empty() { self.name.clone() } else { format!("{}, {}", self.name, self.unit) }
    }
}

/// Percentiles among the metrics, for runs that tell no others.
pub const PERCENTILES: [(f64, &str); 4] =
    [(50.0, "p50_us"), (95.0, "p95_us"), (99.0, "p99_us"), (99.9, "p999_us")];
