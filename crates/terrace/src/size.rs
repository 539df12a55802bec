//! Sizes, ranges and times in text form: `512MiB`, `1.5G`, `4096`; `0-4GiB`; `30s`, `500ms`, `5m`.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub u64);

/// A duration, with a resolution of milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span(pub Duration);

/// One page of the cache, bytes.
pub(crate) const PAGE: u64 = 4096;
pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

/// Suffix and its bytes; K, M, G, T alone mean the binary units, as in the kernel's `mem=`.
const UNITS: &[(&str, u64)] = &[
    ("tib", 1 << 40),
    ("gib", GIB),
    ("mib", MIB),
    ("kib", KIB),
    ("tb", 1_000_000_000_000),
    ("gb", 1_000_000_000),
    ("mb", 1_000_000),
    ("kb", 1_000),
    ("t", 1 << 40),
    ("g", GIB),
    ("m", MIB),
    ("k", KIB),
    ("b", 1),
];

const TIMES: &[(&str, u64)] = &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let lower = text.trim().to_ascii_lowercase();
        let (number, unit) = UNITS
            .iter()
            .find_map(|(suffix, bytes)| Some((lower.strip_suffix(suffix)?, *bytes)))
            .unwrap_or((&lower, 1));
        scaled(number, unit).map(Size).ok_or_else(|| {
            format!("`{text}` is not a size; write a number with KiB, MiB, GiB or TiB, for example 512MiB")
        })
    }
}

impl std::str::FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Span, String> {
        let lower = text.trim().to_ascii_lowercase();
        TIMES
            .iter()
            .find_map(|(suffix, ms)| scaled(lower.strip_suffix(suffix)?, *ms))
            .map(|ms| Span(Duration::from_millis(ms)))
            .ok_or_else(|| {
                format!("`{text}` is not a time; write a number with ms, s, m or h, for example 30s")
            })
    }
}

/// `number` times `unit`: exact for whole numbers, fractions rounded to a byte.
fn scaled(number: &str, unit: u64) -> Option<u64> {
    let number = number.trim();
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(unit);
    }
    let plain = number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let value = number.parse::<f64>().ok().filter(|_| plain)? * unit as f64;
    (value < u64::MAX as f64).then_some(value.round() as u64)
}

/// A range of a file, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// First byte.
    pub begin: u64,
    /// End, exclusive.
    pub end: u64,
}

impl Part {
    pub(crate) const ALL: Part = Part { begin: 0, end: u64::MAX };
}

impl std::str::FromStr for Part {
    type Err = String;

    /// `0-4GiB`, `1GiB-`.
    fn from_str(text: &str) -> std::result::Result<Part, String> {
        let fail = || format!("`{text}` is no part of a file; write FROM-TO, for example 0-4GiB");
        let (begin, end) = text.split_once('-').ok_or_else(fail)?;
        let size = |text: &str| text.parse::<Size>().map(|size| size.0).map_err(|_| fail());
        let (begin, end) = (size(begin)?, if end.is_empty() { u64::MAX } else { size(end)? });
        if begin < end { Ok(Part { begin, end }) } else { Err(fail()) }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, unit) in [("TiB", 1 << 40), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)] {
            if self.0 >= unit && self.0.is_multiple_of(unit) {
                return write!(f, "{}{name}", self.0 / unit);
            }
        }
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        match () {
            () if ms.is_multiple_of(1_000) => write!(f, "{}s", ms / 1_000),
            () => write!(f, "{ms}ms"),
        }
    }
}

/// Bytes as text: three digits and a unit.
pub(crate) fn human(bytes: u64) -> String {
    for (name, unit) in [("TiB", 1u64 << 40), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)] {
        if bytes >= unit {
            let value = bytes as f64 / unit as f64;
            let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
            return format!("{value:.digits$} {name}");
        }
    }
    format!("{bytes} B")
}

/// Both types are strings in the configuration; bytes may also be a bare integer.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Number(u64),
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        match Written::deserialize(deserializer).map_err(|_| de::Error::custom("a size is expected"))? {
            Written::Text(text) => text.parse().map_err(de::Error::custom),
            Written::Number(bytes) => Ok(Size(bytes)),
        }
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
        match Written::deserialize(deserializer).map_err(|_| de::Error::custom("a time is expected"))? {
            Written::Text(text) => text.parse().map_err(de::Error::custom),
            Written::Number(number) => {
                Err(de::Error::custom(format!("{number} has no unit; write {number}s")))
            }
        }
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Option<u64> {
        text.parse::<Size>().ok().map(|size| size.0)
    }

    #[test]
    fn sizes_as_people_write_them() {
        assert_eq!(bytes("512MiB"), Some(512 * MIB));
        assert_eq!(bytes("1GiB"), Some(GIB));
        assert_eq!(bytes("1.5G"), Some(3 * GIB / 2));
        assert_eq!(bytes("1 gib"), Some(GIB));
        assert_eq!(bytes("1gb"), Some(1_000_000_000));
        assert_eq!(bytes("4096"), Some(4096));
        assert_eq!(bytes("64k"), Some(64 * KIB));
    }

    #[test]
    fn invalid_size_is_refused() {
        for text in ["", "GiB", "-1", "1x", "1e3", "nan", "inf", "99999999999T", "1.2.3M", "0x10"] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }

    #[test]
    fn parts_of_files_are_read_and_odd_ones_refused() {
        assert_eq!("0-4GiB".parse(), Ok(Part { begin: 0, end: 4 << 30 }));
        assert_eq!("1MiB-".parse(), Ok(Part { begin: 1 << 20, end: u64::MAX }));
        for odd in ["", "4GiB", "2-1", "1-1", "a-b", "-1"] {
            assert!(odd.parse::<Part>().unwrap_err().contains("FROM-TO"), "{odd}");
        }
    }

    #[test]
    fn times_need_a_unit() {
        assert_eq!("30s".parse::<Span>().unwrap().0, Duration::from_secs(30));
        assert_eq!("1.5s".parse::<Span>().unwrap().0, Duration::from_millis(1500));
        assert_eq!("5m".parse::<Span>().unwrap().0, Duration::from_secs(300));
        assert!("30".parse::<Span>().is_err());
    }

    #[test]
    fn written_value_reads_back() {
        for value in [0, 1, 4096, 16 * MIB, 3 * GIB, GIB + 1] {
            assert_eq!(bytes(&Size(value).to_string()), Some(value));
        }
        for ms in [0, 1, 999, 1000, 30_000, 1_500] {
            let span = Span(Duration::from_millis(ms));
            assert_eq!(span.to_string().parse::<Span>().unwrap(), span);
        }
    }

    #[test]
    fn human_sizes_have_three_digits() {
        assert_eq!(human(0), "0 B");
        assert_eq!(human(1536), "1.50 KiB");
        assert_eq!(human(200 * MIB), "200 MiB");
    }
}
