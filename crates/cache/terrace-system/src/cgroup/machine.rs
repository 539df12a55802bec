//! The machine's memory, as a control group around all others.

use std::io;
use std::path::PathBuf;

use terrace_policy::memory::Level;

use super::{Limit, stalled_ns};
use crate::{bytes, read, sum};

/// Location of the kernel's files about memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    proc: PathBuf,
}

impl Default for Machine {
    fn default() -> Machine {
        Machine { proc: "/proc".into() }
    }
}

impl Machine {
    /// Reads these files instead, for tests.
    pub fn of(proc: &std::path::Path) -> Machine {
        Machine { proc: proc.to_owned() }
    }

    /// The machine's memory. None where /proc/meminfo is hidden.
    pub fn limit(&self) -> io::Result<Option<Limit>> {
        Ok(self.level()?.map(|(limit, _)| limit))
    }

    /// The machine's memory and its use. None where /proc/meminfo is hidden.
    pub fn level(&self) -> io::Result<Option<(Limit, Level)>> {
        let file = self.proc.join("meminfo");
        let Some(text) = read(&file)? else { return Ok(None) };
        let of = |name: &str| bytes(&text, name);
        let Some((total, free)) = of("MemTotal").zip(of("MemFree")) else { return Ok(None) };
        let cached = ["Active(file)", "Inactive(file)", "SReclaimable"].into_iter().filter_map(of).sum();
        let counts = read(&self.proc.join("vmstat"))?.unwrap_or_default();
        let refaults = sum(&counts, &["workingset_refault_file", "workingset_refault_anon"]);
        let stalled_ns = read(&self.proc.join("pressure/memory"))?.and_then(|text| stalled_ns(&text));
        let used = total.saturating_sub(free);
        // The kernel keeps some memory free, so use never reaches the limit.
        let level = Level { limit: total, used, cached, refaults, stalled_ns, met: 0 };
        Ok(Some((Limit { bytes: total, file }, level)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn machine_is_a_level_like_a_group() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine::of(dir.path());
        assert_eq!((machine.level().unwrap(), machine.limit().unwrap()), (None, None));
        fs::create_dir(dir.path().join("pressure")).unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        let files = "Active(file): 20 kB\nInactive(file): 30 kB\nSReclaimable: 1 kB\n";
        write("meminfo", &format!("MemTotal:  1000 kB\nMemFree:  300 kB\n{files}"));
        write("vmstat", "workingset_refault_anon 1\nworkingset_refault_file 2\n");
        write("pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\nfull avg10=0.00 total=3\n");
        let (limit, level) = machine.level().unwrap().unwrap();
        assert_eq!(limit, Limit { bytes: 1000 << 10, file: dir.path().join("meminfo") });
        let (used, cached) = (700 << 10, 51 << 10);
        let expected = Level { limit: 1000 << 10, used, cached, refaults: 3, stalled_ns: Some(7000), met: 0 };
        assert_eq!(level, expected);
    }

    #[test]
    fn this_machine_tells_its_memory() {
        let (limit, level) = Machine::default().level().unwrap().unwrap();
        assert!(limit.bytes > 0 && level.used <= level.limit && level.cached < level.used, "{level:?}");
    }
}
