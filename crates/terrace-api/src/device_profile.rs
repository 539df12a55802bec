//! Bandwidth and latency of storage, as a file: `terrace-bench probe` measures and writes it, `[tier] probe` in terrace.toml names it to terrace.
//!
//! ```toml
//! schema = "terrace.probe.v1"
//!
//! [device."/var/tmp"]
//! kind = "nvme"
//! get_latency_us = 81.3
//! # and so on: [`Device`]
//! cells = [
//!   { data_mib = 64, op = "get", transfer_kib = 4, processes = 1, ... },
//! ]
//! ```
//! One entry a target; [`RAM`] is the memory's name. Every key is known and every number has bounds, so that a slip of an editor's hand
//! is told with its line.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The format's name and version.
pub const SCHEMA: &str = "terrace.probe.v1";
/// The entry of the memory.
pub const RAM: &str = "ram";

/// Latencies that can be, microseconds: from a copy inside a cache to a device that is as good as dead.
const LATENCY_US: std::ops::RangeInclusive<f64> = 0.001..=60e6;
/// Bandwidths that can be, MiB a second.
const MIB_S: std::ops::RangeInclusive<f64> = 1e-6..=1e9;

/// A whole file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceProfile {
    /// [`SCHEMA`].
    pub schema: String,
    /// The machine that was measured, for readers.
    pub machine: Machine,
    /// By the directory that was measured, or [`RAM`].
    pub device: BTreeMap<String, Device>,
}

/// The storage that was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Processor model.
    pub cpu: String,
    /// Logical processors.
    pub cpus: usize,
    /// Main memory, MiB.
    pub memory_mib: u64,
    /// Kernel release.
    pub kernel: String,
}

/// Sorts of storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Memory, also as a file system (tmpfs).
    Ram,
    /// Persistent memory.
    Pmem,
    /// Flash on PCIe.
    Nvme,
    /// Another disk without moving parts.
    Ssd,
    /// A disk with moving parts.
    Hdd,
    /// A virtual machine's disk: what is behind it cannot be seen.
    Virtual,
    /// A file system of another machine, or of a program (FUSE).
    Remote,
    /// None of these.
    Other,
}

/// One target. Latencies are means of one process at 4 KiB, bandwidths the best of any transfer size and number of processes; both on the
/// largest data set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Its kind.
    pub kind: Kind,
    /// When, in UTC: `2026-11-21T22:40:00Z`.
    pub measured: String,
    /// Type of the file system.
    pub file_system: String,
    /// Block device under it; empty if there is none.
    pub block_device: String,
    /// Past the page cache (O_DIRECT). If not, its file system knows no other way than through it.
    pub direct: bool,
    /// CPU time that others took meanwhile, per cent of the machine: much of it, and these numbers say little.
    pub others_cpu_percent: f64,
    /// Mean time to read 4 KiB at random, microseconds: what a miss costs.
    pub get_latency_us: f64,
    /// Most that was read, MiB a second.
    pub get_mib_s: f64,
    /// Mean time to write 4 KiB at random, microseconds.
    pub put_latency_us: f64,
    /// Most that was written, made stable at the end, MiB a second.
    pub put_mib_s: f64,
    /// All measurements.
    #[serde(default)]
    pub cells: Vec<Cell>,
}

/// Directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Reads at random offsets.
    Get,
    /// Writes at random offsets.
    Put,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    /// Data set, MiB.
    pub data_mib: u64,
    /// Direction.
    pub op: Op,
    /// Bytes of one operation, KiB.
    pub transfer_kib: u64,
    /// Processes at it.
    pub processes: usize,
    /// Operations of all of them.
    pub ops: u64,
    /// Mean time of one, microseconds.
    pub latency_us: f64,
    /// Median.
    pub latency_us_p50: f64,
    /// 99th percentile.
    pub latency_us_p99: f64,
    /// All processes together, MiB a second.
    pub mib_s: f64,
}

/// An error in a file's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidProfile {
    /// Line, from 1.
    pub line: usize,
    /// One sentence.
    pub why: String,
}

impl DeviceProfile {
    /// Reads a file's text.
    ///
    /// # Errors
    /// No TOML, an unknown key, a missing one, a number that cannot be; with the line.
    pub fn parse(text: &str) -> Result<DeviceProfile, InvalidProfile> {
        let probe: DeviceProfile = toml::from_str(text).map_err(|err| {
            let offset = err.span().map_or(0, |span| span.start);
            InvalidProfile { line: line_at(text, offset), why: err.message().to_owned() }
        })?;
        if probe.schema != SCHEMA {
            let why = format!("schema `{}`, where this program reads `{SCHEMA}`", probe.schema);
            return Err(InvalidProfile { line: line_of(text, "", "schema"), why });
        }
        for (name, device) in &probe.device {
            device.check().map_err(|(key, why)| InvalidProfile { line: line_of(text, name, key), why })?;
        }
        Ok(probe)
    }

    /// The text of a file; [`DeviceProfile::parse`] reads it back.
    pub fn text(&self) -> String {
        let mut out = format!("schema = {}\n\n[machine]\n", text_of(&self.schema));
        table(&mut out, &self.machine);
        for (name, device) in &self.device {
            let _ = writeln!(out, "\n[device.{}]", quoted(name));
            table(&mut out, &Device { cells: Vec::new(), ..device.clone() });
            out.push_str("cells = [\n");
            for cell in &device.cells {
                let _ = writeln!(out, "  {},", text_of(cell));
            }
            out.push_str("]\n");
        }
        out
    }
}

impl Device {
    /// The first key whose value cannot be, and why.
    fn check(&self) -> Result<(), (&'static str, String)> {
        let numbers = [
            ("get_latency_us", self.get_latency_us, &LATENCY_US),
            ("put_latency_us", self.put_latency_us, &LATENCY_US),
            ("get_mib_s", self.get_mib_s, &MIB_S),
            ("put_mib_s", self.put_mib_s, &MIB_S),
        ];
        match numbers.into_iter().find(|(_, value, bounds)| !bounds.contains(value)) {
            Some((key, value, bounds)) => {
                let (low, high) = bounds.clone().into_inner();
                Err((key, format!("{key} = {value} is out of bounds ({low} to {high})")))
            }
            None => Ok(()),
        }
    }
}

/// A value as TOML, on one line.
fn text_of(value: &impl Serialize) -> String {
    toml::Value::try_from(value)
        .map(|value| value.to_string())
        .expect("these types have no null and no odd key")
}

/// A table's keys, one a line; empty lists are left out.
fn table(out: &mut String, value: &impl Serialize) {
    let table = toml::Table::try_from(value).expect("these types are tables");
    let filled = table.iter().filter(|(_, value)| value.as_array().is_none_or(|list| !list.is_empty()));
    filled.for_each(|(key, value)| {
        let _ = writeln!(out, "{key} = {value}");
    });
}

/// A key in a basic string, whatever characters it has.
fn quoted(key: &str) -> String {
    let mut out = String::from('"');
    for c in key.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The line of a key of a device's entry (of the root, if the name is empty); 1 if it is not found.
fn line_of(text: &str, device: &str, key: &str) -> usize {
    let in_device = |root: &toml::de::DeTable<'_>| {
        let devices = root.get("device")?.get_ref().as_table()?;
        Some(devices.get(device)?.get_ref().as_table()?.get_key_value(key)?.0.span().start)
    };
    let offset = toml::de::DeTable::parse(text).ok().and_then(|root| match device {
        "" => root.get_ref().get_key_value(key).map(|(key, _)| key.span().start),
        _ => in_device(root.get_ref()),
    });
    line_at(text, offset.unwrap_or(0))
}

/// The line, from 1, of byte `offset`.
fn line_at(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|b| **b == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe() -> DeviceProfile {
        let cell = |op, processes| Cell {
            data_mib: 64,
            op,
            transfer_kib: 4,
            processes,
            ops: 1000,
            latency_us: 81.5,
            latency_us_p50: 80.0,
            latency_us_p99: 200.25,
            mib_s: 48.0,
        };
        let device = Device {
            kind: Kind::Nvme,
            measured: "2026-11-21T22:40:00Z".into(),
            file_system: "ext4".into(),
            block_device: "/dev/nvme0n1".into(),
            direct: true,
            others_cpu_percent: 0.5,
            get_latency_us: 81.5,
            get_mib_s: 3000.0,
            put_latency_us: 20.0,
            put_mib_s: 1500.0,
            cells: vec![cell(Op::Get, 1), cell(Op::Put, 8)],
        };
        let names = ["/var/tmp", "ram", "/a \"b\"\\c\nd\u{7f}/ä"];
        DeviceProfile {
            schema: SCHEMA.into(),
            machine: Machine { cpu: "EPYC".into(), cpus: 2, memory_mib: 24_000, kernel: "6.1".into() },
            device: names.into_iter().map(|name| (name.to_owned(), device.clone())).collect(),
        }
    }

    #[test]
    fn written_data_are_read() {
        let text = probe().text();
        assert_eq!(DeviceProfile::parse(&text), Ok(probe()), "{text}");
        let cells = text.lines().filter(|line| line.starts_with("  {")).count();
        assert_eq!(cells, 6, "one line a cell:\n{text}");
    }

    #[test]
    fn impossible_value_is_reported_with_its_line() {
        let text = probe().text();
        let wrong = |from: &str, to: &str| {
            assert!(text.contains(from), "{from} in\n{text}");
            let changed = text.replacen(from, to, 1);
            let wrong = DeviceProfile::parse(&changed).unwrap_err();
            (changed.lines().nth(wrong.line - 1).unwrap().to_owned(), wrong.why)
        };
        let (line, why) = wrong("get_latency_us = 81.5", "get_latency_us = 0.0");
        assert_eq!(line, "get_latency_us = 0.0");
        assert!(why.contains("out of bounds (0.001 to 60000000)"), "{why}");
        assert_eq!(wrong("get_latency_us = 81.5", "get_latency_us = nan").0, "get_latency_us = nan");
        assert_eq!(wrong("put_mib_s = 1500.0", "put_mib_s = -1.0").0, "put_mib_s = -1.0");
        let (line, why) = wrong("put_mib_s", "put_mb_s");
        assert!(line.starts_with("put_mb_s") && why.contains("unknown field `put_mb_s`"), "{line}: {why}");
        assert!(wrong("kind = \"nvme\"", "kind = \"tape\"").1.contains("unknown variant `tape`"));
        assert!(wrong("terrace.probe.v1", "terrace.probe.v9").1.contains("v9"));
        assert!(wrong("direct = true\n", "").1.contains("missing field `direct`"));
        assert!(wrong("ops = 1000", "oops = 1000").0.contains("oops"));
        assert_eq!(DeviceProfile::parse("").unwrap_err().line, 1);
    }
}
