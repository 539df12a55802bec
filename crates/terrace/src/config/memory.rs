//! The memory limit: a size, or `auto`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use terrace_system::cgroup::{Groups, Machine};

use crate::size::{GIB, Size};

/// Text form of the automatic limit.
const AUTO: &str = "auto";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryLimit {
    /// Memory that the machine and the control group can spare, as far as it saves time.
    Auto,
    /// A size set by the user.
    Fixed(Size),
}

impl MemoryLimit {
    /// The largest possible value. For `auto`, all memory of the machine, or of a control group with less.
    pub(crate) fn most(self) -> Size {
        let MemoryLimit::Auto = self else { return self.fixed().unwrap_or(Size(GIB)) };
        let of_groups = Groups::own().and_then(|groups| groups.limit());
        let limits =
            [of_groups, Machine::default().limit()].into_iter().filter_map(|found| found.ok().flatten());
        Size(limits.map(|limit| limit.bytes).min().unwrap_or(GIB))
    }

    /// Address space to reserve, so that the cache can grow when limits of control groups are raised.
    pub(crate) fn room(self) -> Size {
        let machine =
            Machine::default().limit().ok().flatten().map_or(self.most(), |limit| Size(limit.bytes));
        self.fixed().unwrap_or(machine)
    }

    pub(crate) fn fixed(self) -> Option<Size> {
        match self {
            MemoryLimit::Auto => None,
            MemoryLimit::Fixed(size) => Some(size),
        }
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryLimit::Auto => f.write_str(AUTO),
            MemoryLimit::Fixed(size) => size.fmt(f),
        }
    }
}

impl FromStr for MemoryLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<MemoryLimit, String> {
        if text.trim().eq_ignore_ascii_case(AUTO) {
            return Ok(MemoryLimit::Auto);
        }
        text.parse().map(MemoryLimit::Fixed).map_err(|why| format!("{why}, or auto"))
    }
}

impl<'de> Deserialize<'de> for MemoryLimit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MemoryLimit, D::Error> {
        let value = toml::Value::deserialize(deserializer)?;
        match value.as_str() {
            Some(text) => text.parse().map_err(serde::de::Error::custom),
            None => Size::deserialize(value).map(MemoryLimit::Fixed).map_err(serde::de::Error::custom),
        }
    }
}

impl Serialize for MemoryLimit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size::MIB;

    #[test]
    fn limit_is_a_size_or_auto() {
        let read = |text: &str| text.parse::<MemoryLimit>();
        assert_eq!(read("auto"), Ok(MemoryLimit::Auto));
        assert_eq!(read(" AUTO "), Ok(MemoryLimit::Auto));
        assert_eq!(read("64MiB"), Ok(MemoryLimit::Fixed(Size(64 * MIB))));
        assert!(read("much").unwrap_err().contains("`much` is not a size"));
        for limit in [MemoryLimit::Auto, MemoryLimit::Fixed(Size(64 * MIB))] {
            assert_eq!(read(&limit.to_string()), Ok(limit));
        }
    }

    #[test]
    fn auto_is_no_more_than_the_machine_has() {
        let most = MemoryLimit::Auto.most();
        assert!(most.0 > 0 && most <= Size(Machine::default().limit().unwrap().unwrap().bytes));
        assert_eq!(MemoryLimit::Fixed(Size(1 << 60)).most(), Size(1 << 60));
    }
}
