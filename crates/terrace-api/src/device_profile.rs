//! Read latency and write bandwidth of storage devices, as the file that `[tier] probe` in terrace.toml names.
//!
//! ```toml
//! [device."/data"]
//! get_latency_us = 81.3
//! put_mib_s = 1500.0
//! ```
//! One entry a directory, by hand or by `bench/devices.py`. Every key is known and every number has bounds: errors name the line.

use serde::Deserialize;
use std::collections::BTreeMap;

/// Latencies that can be, microseconds: from a copy inside a cache to a device that is as good as dead.
const LATENCY_US: std::ops::RangeInclusive<f64> = 0.001..=60e6;
/// Bandwidths that can be, MiB a second.
const MIB_S: std::ops::RangeInclusive<f64> = 1e-6..=1e9;

/// A whole file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceProfile {
    /// By the directory that was measured.
    pub device: BTreeMap<String, Device>,
}

/// The device below a directory.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Mean time to read 4 KiB at random, microseconds: what a miss costs.
    pub get_latency_us: f64,
    /// Write bandwidth, MiB a second.
    pub put_mib_s: f64,
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
    /// The first key whose value cannot be, and why.
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

/// The line of a key of a device's entry; 1 if it is not found.
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
