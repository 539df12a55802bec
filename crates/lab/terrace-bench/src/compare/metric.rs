//! Metrics by name: their better direction, and the default metrics of a comparison.

use serde::{Deserialize, Serialize};

/// The better direction of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// Higher is better, as for throughput.
    Higher,
    /// Lower is better, as for latency.
    Lower,
    /// Unknown: a metric of the user.
    Unknown,
}

/// Parts of names. The first list has precedence: "hits_per_s", "iops_p99".
const HIGHER: [&str; 10] =
    ["tps", "throughput", "iops", "per_s", "mib_s", "bandwidth", "bw", "hit", "hits", "ops"];
const LOWER: [&str; 21] = [
    "latency", "lat", "clat", "slat", "us", "ns", "ms", "p50", "p95", "p99", "p999", "cpu", "miss", "misses",
    "seconds", "s", "fault", "faults", "per_op", "per_read", "refaults",
];

impl Better {
    /// By the words of the metric's name: "throughput_mib_s", "latency_us_p99", "miss_ratio".
    pub(crate) fn of(metric: &str) -> Better {
        let name = format!("_{}_", metric.to_lowercase().replace(['-', ' ', '.', '/'], "_"));
        let has = |words: &[&str]| words.iter().any(|word| name.contains(&format!("_{word}_")));
        match () {
            () if has(&HIGHER) => Better::Higher,
            () if has(&LOWER) => Better::Lower,
            () => Better::Unknown,
        }
    }

    /// Text for the head of a table.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Better::Higher => "higher is better",
            Better::Lower => "lower is better",
            Better::Unknown => "the better direction is unknown",
        }
    }
}

/// The default metrics of a comparison: throughput, latency of the 99th percentile, CPU per operation,
/// misses; of each the first that the runs have.
const SHOWN: [&[&str]; 4] = [
    &["throughput_mib_s", "mib_per_s", "iops", "reads_per_s", "tps", "build_s"],
    &["p99_us", "latency_us_p99", "p99_latency_us", "latency_ms_p95"],
    &["cpu_us_per_op", "cpu_us_per_read", "cpu_ns_per_read"],
    &["miss_ratio", "device_reads_per_op"],
];

/// The default choice: the default metrics present, otherwise all.
pub fn usual(there: &[String]) -> Vec<String> {
    let first = |names: &&[&str]| {
        names.iter().find(|name| there.iter().any(|t| t == **name)).map(|n| (*n).to_string())
    };
    let chosen: Vec<String> = SHOWN.iter().filter_map(first).collect();
    if chosen.is_empty() { there.to_vec() } else { chosen }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_way() {
        for name in "throughput_mib_s iops mib_per_s reads_per_s hit_share bw_KiB/s Throughput".split(' ') {
            assert_eq!(Better::of(name), Better::Higher, "{name}");
        }
        for name in "p99_us p999_us latency_us_p99 cpu_us_per_op miss_ratio cpu_ns_per_read wall_s".split(' ')
        {
            assert_eq!(Better::of(name), Better::Lower, "{name}");
        }
        for name in ["number", "memory_max_mib", "bogus", "value", ""] {
            assert_eq!(Better::of(name), Better::Unknown, "{name}");
        }
    }

    #[test]
    fn the_usual_ones() {
        let there = |names: &[&str]| names.iter().map(|n| (*n).to_string()).collect::<Vec<_>>();
        let all = there(&["cpu_us_per_op", "iops", "p50_us", "p99_us", "throughput_mib_s"]);
        assert_eq!(usual(&all), there(&["throughput_mib_s", "p99_us", "cpu_us_per_op"]));
        assert_eq!(usual(&there(&["seconds", "number"])), there(&["seconds", "number"]));
    }
}
