//! Meters of devices and cache tiers: block devices by the kernel's counters, tiers by `terrace stat`.
//!
//! A process's account (`/proc/PID/io`) adds reads of the source and of a tier's device. So a system with a
//! tier is measured at the devices, the same way for every system: a hit is a read that the source did not
//! answer, and writes are those of the device's counter.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Environment variable with a step's meters, as JSON: a loop reads them around its timed part.
pub(crate) const METERS: &str = "TERRACE_BENCH_METERS";
/// The device under the data, in [`Meters::devices`].
pub const SOURCE: &str = "source";
/// The device under tiers.
pub(crate) const TIER: &str = "tier";

/// Counters by name, the unit last: `source_reads`, `source_read_mib`, `tier_write_mib`, `device_hits`.
pub(crate) type Counted = BTreeMap<String, f64>;

/// The meters of this machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Meters {
    /// Statistics (`/sys/dev/block/MAJOR:MINOR/stat`) of the devices that only the system under test uses, by
    /// name.
    pub(crate) devices: BTreeMap<String, PathBuf>,
    /// The terrace program, if terrace serves `dir`.
    pub(crate) terrace: Option<PathBuf>,
    /// Directory under test.
    pub(crate) dir: PathBuf,
}

impl Meters {
    /// The meters of this process's step.
    pub(crate) fn of_step() -> Meters {
        std::env::var(METERS).ok().and_then(|json| serde_json::from_str(&json).ok()).unwrap_or_default()
    }

    /// Current values of all meters.
    pub(crate) fn read(&self) -> Counted {
        let mut counted = Counted::new();
        for (name, file) in &self.devices {
            add_device(&fs::read_to_string(file).unwrap_or_default(), name, &mut counted);
        }
        if let Some(json) = self.stat() {
            add_tiers(&json, &mut counted);
        }
        counted
    }

    /// Output of `terrace stat`, if terrace serves.
    pub(crate) fn stat(&self) -> Option<Vec<u8>> {
        let mut stat = Command::new(self.terrace.as_ref()?);
        let stat = stat.arg("stat").arg(&self.dir).arg("--json").env_remove("LD_PRELOAD");
        Some(stat.output().ok()?.stdout)
    }

    /// Differences since `before`.
    pub(crate) fn since(&self, before: &Counted) -> Counted {
        difference(&self.read(), before)
    }
}

/// Each counter of `after` less that of `before`.
pub(crate) fn difference(after: &Counted, before: &Counted) -> Counted {
    let of = |(name, n): (&String, &f64)| (name.clone(), (n - before.get(name).unwrap_or(&0.0)).max(0.0));
    after.iter().map(of).collect()
}

/// Adds the fields of a block device's `stat`: reads, merged ones, sectors, ms; the same of writes.
fn add_device(stat: &str, name: &str, counted: &mut Counted) {
    const SECTORS_PER_MIB: f64 = 2048.0;
    let words: Vec<f64> = stat.split_whitespace().flat_map(str::parse).collect();
    if words.len() < 7 {
        return;
    }
    let mut put = |what: &str, n: f64| {
        counted.insert(format!("{name}_{what}"), n);
    };
    put("reads", words[0]);
    put("read_mib", words[2] / SECTORS_PER_MIB);
    put("writes", words[4]);
    put("write_mib", words[6] / SECTORS_PER_MIB);
}

/// Adds the rows `tiers` of `terrace stat --json`, summed by kind.
fn add_tiers(json: &[u8], counted: &mut Counted) {
    let report: Value = serde_json::from_slice(json).unwrap_or_default();
    for row in report["tiers"].as_array().into_iter().flatten() {
        let Some(kind) = row["kind"].as_str() else { continue };
        let mut add = |name: &str, value: &Value, unit: f64| {
            if let Some(n) = value.as_f64() {
                *counted.entry(format!("{kind}_{name}")).or_default() += n / unit;
            }
        };
        add("hits", &row["hits"], 1.0);
        add("written_mib", &row["bytes_written"], (1u64 << 20) as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_a_device_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let stat = dir.path().join("stat");
        fs::write(&stat, "     100        0     4096      12       7        0      8192   5  0  9  17\n")
            .unwrap();
        let meters = Meters { devices: [(SOURCE.into(), stat.clone())].into(), ..Meters::default() };
        let before = meters.read();
        assert_eq!(
            (before["source_reads"], before["source_read_mib"], before["source_write_mib"]),
            (100.0, 2.0, 4.0)
        );
        fs::write(&stat, "110 0 6144 12 7 0 8192 5 0 9 17").unwrap();
        let since = meters.since(&before);
        assert_eq!(
            (since["source_reads"], since["source_read_mib"], since["source_writes"]),
            (10.0, 1.0, 0.0)
        );
        fs::write(&stat, "").unwrap();
        assert!(meters.read().is_empty());
    }

    #[test]
    fn tiers_of_one_kind_are_added_up() {
        let json = r#"{"policy": "strata", "tiers": [{"name": "dram", "kind": "dram", "hits": 7, "pages": 9, "bytes": 0},
            {"name": "a", "kind": "device", "hits": 2, "bytes_written": 1048576}, {"name": "b", "kind": "device", "hits": 3, "bytes_written": 524288}]}"#;
        let mut counted = Counted::new();
        add_tiers(json.as_bytes(), &mut counted);
        let wanted = [("dram_hits", 7.0), ("device_hits", 5.0), ("device_written_mib", 1.5)];
        assert_eq!(counted, wanted.map(|(name, n)| (name.to_string(), n)).into());
        add_tiers(b"terrace: no instance", &mut counted);
        add_tiers(b"{}", &mut counted);
        assert_eq!(counted.len(), 3, "a terrace without tiers has no rows");
    }
}
