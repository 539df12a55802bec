//! Read latency and write bandwidth of storage devices: the file of `[tier] probe` in terrace.toml.
//!
//! ```toml
//! [device."/data"]
//! get_latency_us = 81.3
//! put_mib_s = 1500.0
//! ```
//! One entry for each directory, written by hand or by `bench/devices.py`. Unknown keys and numbers out of
//! bounds are errors, with the line.

use serde::Deserialize;
use std::collections::BTreeMap;

/// Plausible latencies, microseconds: from a copy inside a cache to an almost dead device.
const LATENCY_US: std::ops::RangeInclusive<f64> = 0.001..=60e6;
/// Plausible bandwidths, MiB a second.
const MIB_S: std::ops::RangeInclusive<f64> = 1e-6..=1e9;

/// The whole file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceProfile {
    /// Entries by the measured directory.
    pub device: BTreeMap<String, Device>,
}

/// The device below a directory.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Mean time of a random 4 KiB read, microseconds: the cost of a miss.
    pub get_latency_us: f64,
    /// Write bandwidth, MiB a second.
    pub put_mib_s: f64,
}

/// An error in a file's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidProfile {
    /// Line, from 1.
    pub line: usize,
    /// Reason, one sentence.
    pub why: String,
}

impl DeviceProfile {
    /// Parses a file's text.
    ///
    /// # Errors
    /// Not TOML, an unknown or missing key, a number out of bounds; with the line.
    pub fn parse(text: &str) -> Result<DeviceProfile, InvalidProfile> {
        let profile: DeviceProfile = toml::from_str(text).map_err(|err| {
            let offset = err.span().map_or(0, |span| span.start);
            InvalidProfile { line: line_at(text, offset), why: err.message().to_owned() }
        })?;
        for (name, device) in &profile.device {
            device.check().map_err(|(key, why)| InvalidProfile { line: line_of(text, name, key), why })?;
        }
        Ok(profile)
    }
}

impl Device {
    /// The first key with a value out of bounds, and the reason.
    fn check(&self) -> Result<(), (&'static str, String)> {
        let numbers =
            [("get_latency_us", self.get_latency_us, &LATENCY_US), ("put_mib_s", self.put_mib_s, &MIB_S)];
        match numbers.into_iter().find(|(_, value, bounds)| !bounds.contains(value)) {
            Some((key, value, bounds)) => {
                let (low, high) = bounds.clone().into_inner();
                Err((key, format!("{key} = {value} is out of bounds ({low} to {high})")))
            }
            None => Ok(()),
        }
    }
}

/// The line of a key in a device's entry; 1 if it is not found.
fn line_of(text: &str, device: &str, key: &str) -> usize {
    let offset = toml::de::DeTable::parse(text).ok().and_then(|root| {
        let devices = root.get_ref().get("device")?.get_ref().as_table()?;
        Some(devices.get(device)?.get_ref().as_table()?.get_key_value(key)?.0.span().start)
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

    const TEXT: &str = "[device.\"/var/tmp\"]\nget_latency_us = 81.5\nput_mib_s = 1500\n\n\
         [device.\"/a \\\"b\\\"/\u{e4}\"]\nget_latency_us = 700.0\nput_mib_s = 2.5\n";

    #[test]
    fn devices_are_read_by_directory() {
        let devices = DeviceProfile::parse(TEXT).unwrap().device;
        assert_eq!(devices["/var/tmp"], Device { get_latency_us: 81.5, put_mib_s: 1500.0 });
        assert_eq!(devices["/a \"b\"/\u{e4}"], Device { get_latency_us: 700.0, put_mib_s: 2.5 });
    }

    #[test]
    fn impossible_value_is_reported_with_its_line() {
        let wrong = |from: &str, to: &str| {
            assert!(TEXT.contains(from), "{from}");
            let changed = TEXT.replacen(from, to, 1);
            let wrong = DeviceProfile::parse(&changed).unwrap_err();
            (changed.lines().nth(wrong.line - 1).unwrap().to_owned(), wrong.why)
        };
        let (line, why) = wrong("get_latency_us = 81.5", "get_latency_us = 0.0");
        assert_eq!(line, "get_latency_us = 0.0");
        assert!(why.contains("out of bounds (0.001 to 60000000)"), "{why}");
        assert_eq!(wrong("get_latency_us = 700.0", "get_latency_us = nan").0, "get_latency_us = nan");
        assert_eq!(wrong("put_mib_s = 1500", "put_mib_s = -1.0").0, "put_mib_s = -1.0");
        let (line, why) = wrong("put_mib_s", "put_mb_s");
        assert!(line.starts_with("put_mb_s") && why.contains("unknown field `put_mb_s`"), "{line}: {why}");
        assert!(wrong("put_mib_s = 1500\n", "").1.contains("missing field `put_mib_s`"));
        assert_eq!(DeviceProfile::parse("").unwrap_err().line, 1);
    }
}
