//! The memory control groups of this process: their limits, their use, and kills for lack of memory.
//!
//! Version 1 has a separate tree for the memory controller, version 2 one tree for all. /proc/self/cgroup and
//! the mount table show both. Groups without a limit are left out.
//!
//! All errors are those of [`read`]: an unreadable file does not mean "no limit".

mod machine;

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use terrace_policy::memory::Level;

use crate::mounts::{self, Entry};
use crate::{count, field, number, read, sum};

pub use machine::Machine;

/// Version 1 shows "no limit" as the largest number of pages.
const NO_LIMIT: u64 = 1 << 62;

/// Version of the cgroup interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Version {
    /// One tree for each controller.
    V1,
    /// One tree for all controllers.
    V2,
}

/// The memory controller of one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Decides on the names of files.
    pub version: Version,
    /// Directory of the files.
    pub dir: PathBuf,
}

/// A limit, and the file that holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// Bytes.
    pub bytes: u64,
    /// Where it is set.
    pub file: PathBuf,
}

/// The group of this process and its ancestors, in this order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Groups(pub Vec<Group>);

impl Groups {
    /// The groups of this process; empty where there are none.
    pub fn own() -> io::Result<Groups> {
        let text = read(Path::new("/proc/self/cgroup"))?.unwrap_or_default();
        Ok(Groups::found(&text, &mounts::table_of("self")?))
    }

    /// Parses /proc/PID/cgroup and the mount table. Where both versions are mounted, version 1 has the memory
    /// controller if /proc/PID/cgroup lists it there.
    fn found(text: &str, table: &[Entry]) -> Groups {
        // `4:memory:/a/b` in version 1, `0::/a/b` in version 2.
        let own = |controller: &str| {
            text.lines().find_map(|line| {
                let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
                controllers.split(',').any(|name| name == controller).then(|| Path::new(path))
            })
        };
        let (version, path) = match (own("memory"), own("")) {
            (Some(path), _) => (Version::V1, path),
            (None, Some(path)) => (Version::V2, path),
            (None, None) => return Groups::default(),
        };
        let of_memory = |entry: &&Entry| match version {
            Version::V1 => entry.fstype == "cgroup" && entry.options.split(',').any(|name| name == "memory"),
            Version::V2 => entry.fstype == "cgroup2",
        };
        let Some(tree) = table.iter().find(of_memory) else { return Groups::default() };
        // A container's mounted tree begins at its own group; the path may begin above.
        let below = path.strip_prefix(&tree.root).or(path.strip_prefix("/")).unwrap_or(Path::new(""));
        let own = Some(tree.point.join(below)).filter(|dir| dir.is_dir());
        let own = own.unwrap_or_else(|| tree.point.clone());
        let all = own.ancestors().take_while(|dir| dir.starts_with(&tree.point));
        Groups(all.map(|dir| Group { version, dir: dir.to_owned() }).collect())
    }

    /// A version 2 group with the files of `dir`, for tests.
    pub fn of(dir: &Path) -> Groups {
        Groups(vec![Group { version: Version::V2, dir: dir.to_owned() }])
    }

    /// The lowest of all limits.
    pub fn limit(&self) -> io::Result<Option<Limit>> {
        lowest(self.0.iter().map(Group::limit))
    }

    /// Limit and use of each group that has a limit, with the file of the limit.
    pub fn levels(&self) -> io::Result<Vec<(Limit, Level)>> {
        self.0.iter().filter_map(|group| group.level().transpose()).collect()
    }

    /// Processes of our own group that the kernel has killed for lack of memory.
    pub fn kills(&self) -> io::Result<Option<u64>> {
        self.0.first().map_or(Ok(None), Group::kills)
    }
}

fn lowest(found: impl Iterator<Item = io::Result<Option<Limit>>>) -> io::Result<Option<Limit>> {
    let found = found.collect::<io::Result<Vec<_>>>()?;
    Ok(found.into_iter().flatten().min_by_key(|limit| limit.bytes))
}

impl Group {
    /// The one of two names that this version has.
    pub fn named<'a>(&self, v1: &'a str, v2: &'a str) -> &'a str {
        match self.version {
            Version::V1 => v1,
            Version::V2 => v2,
        }
    }

    /// A file of the group, by its names in both versions.
    pub fn file(&self, v1: &str, v2: &str) -> PathBuf {
        self.dir.join(self.named(v1, v2))
    }

    fn limit(&self) -> io::Result<Option<Limit>> {
        let files: &[&str] = match self.version {
            Version::V1 => &["memory.limit_in_bytes"],
            // Above `high` the kernel delays every process.
            Version::V2 => &["memory.max", "memory.high"],
        };
        let read = |name: &&str| {
            let file = self.dir.join(name);
            let bytes = number(&file)?.filter(|bytes| *bytes < NO_LIMIT);
            Ok(bytes.map(|bytes| Limit { bytes, file }))
        };
        lowest(files.iter().map(read))
    }

    /// Bytes charged now. None: the group does not show them.
    pub fn used(&self) -> io::Result<Option<u64>> {
        number(&self.file("memory.usage_in_bytes", "memory.current"))
    }

    /// Counts of pages and faults, in lines of `name number`.
    pub fn stat(&self) -> io::Result<Option<String>> {
        read(&self.dir.join("memory.stat"))
    }

    /// None: the group has no limit, or its use is not known.
    fn level(&self) -> io::Result<Option<(Limit, Level)>> {
        let Some(limit) = self.limit()? else { return Ok(None) };
        let (Some(stat), Some(used)) = (self.stat()?, self.used()?) else { return Ok(None) };
        // Version 1 counts a group without and with those below it.
        let below = self.named("total_", "");
        let of = |names: [&str; 3]| sum(&stat, &names.map(|name| format!("{below}{name}")));
        let cached = of(["inactive_file", "active_file", "slab_reclaimable"]);
        let refaults = of(["workingset_refault", "workingset_refault_file", "workingset_refault_anon"]);
        let stalled_ns = match self.version {
            // Version 1 has no such count for a group.
            Version::V1 => None,
            Version::V2 => read(&self.dir.join("memory.pressure"))?.and_then(|text| stalled_ns(&text)),
        };
        let level = Level { limit: limit.bytes, used, cached, refaults, stalled_ns, met: self.met()? };
        Ok(Some((limit, level)))
    }

    /// Times that use reached the limit.
    pub fn met(&self) -> io::Result<u64> {
        Ok(match self.version {
            Version::V1 => number(&self.dir.join("memory.failcnt"))?.unwrap_or(0),
            Version::V2 => {
                read(&self.dir.join("memory.events"))?.map_or(0, |text| sum(&text, &["high", "max"]))
            }
        })
    }

    /// Processes of the group that the kernel has killed for lack of memory.
    pub fn kills(&self) -> io::Result<Option<u64>> {
        let text = read(&self.file("memory.oom_control", "memory.events"))?;
        Ok(text.and_then(|text| count(&text, "oom_kill")))
    }
}

/// Time that some task stalled for memory, from a pressure stall information file.
fn stalled_ns(text: &str) -> Option<u64> {
    let mut words = field(text, "some")?.split(' ');
    let us: u64 = words.find_map(|word| word.strip_prefix("total="))?.parse().ok()?;
    Some(us.saturating_mul(1000))
}

/// Processes that the kernel has killed for lack of memory, in all groups of this machine.
pub fn kills_of_the_machine() -> io::Result<Option<u64>> {
    Ok(read(Path::new("/proc/vmstat"))?.and_then(|text| count(&text, "oom_kill")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const MIB: u64 = 1 << 20;

    fn write(dir: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(dir).unwrap();
        files.iter().for_each(|(name, text)| fs::write(dir.join(name), text).unwrap());
    }

    fn entry(point: &Path, fstype: &str, root: &str, options: &str) -> Entry {
        Entry {
            root: root.into(),
            point: point.to_owned(),
            fstype: fstype.to_owned(),
            options: options.to_owned(),
            ..Entry::default()
        }
    }

    #[test]
    fn limit_of_an_ancestor_is_found_in_version_1() {
        let dir = tempfile::tempdir().unwrap();
        let (top, own) = (dir.path().join("a"), dir.path().join("a/b"));
        write(&top, &[("memory.limit_in_bytes", "1048576\n")]);
        let events = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        write(&own, &[("memory.limit_in_bytes", "9223372036854771712\n"), ("memory.oom_control", events)]);
        let table = [
            entry(Path::new("/none"), "cgroup", "/", "rw,cpu"),
            entry(dir.path(), "cgroup", "/", "rw,memory"),
        ];
        let groups = Groups::found("9:cpu:/x\n4:memory:/a/b\n0::/\n", &table);
        assert_eq!(
            groups.limit().unwrap(),
            Some(Limit { bytes: MIB, file: top.join("memory.limit_in_bytes") })
        );
        assert_eq!(groups.kills().unwrap(), Some(3));
        assert_eq!(groups.levels().unwrap(), [], "what is used is not known");
        let stat = "cache 9\ninactive_file 1\ntotal_inactive_file 3\ntotal_active_file 4\ntotal_workingset_refault_file 5\n";
        write(&top, &[("memory.usage_in_bytes", "20\n"), ("memory.stat", stat), ("memory.failcnt", "6\n")]);
        let level = Level { limit: MIB, used: 20, cached: 7, refaults: 5, stalled_ns: None, met: 6 };
        assert_eq!(groups.levels().unwrap()[0].1, level);
    }

    #[test]
    fn limit_of_version_2_is_the_lower_of_max_and_high() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("b");
        let stat = "anon 1\nfile 9\ninactive_file 1048576\nactive_file 0\nslab_reclaimable 0\nworkingset_refault_file 4\n";
        write(&own, &[("memory.max", "max\n"), ("memory.high", "134217728\n"), ("memory.stat", stat)]);
        write(
            &own,
            &[("memory.current", "105906176\n"), ("memory.events", "high 3\nmax 5\noom 2\noom_kill 1\n")],
        );
        // A container's mounted tree begins at its own group, but the path does not.
        let groups = Groups::found("0::/a/b\n", &[entry(dir.path(), "cgroup2", "/a", "rw")]);
        assert_eq!(groups.limit().unwrap().map(|limit| limit.bytes), Some(128 * MIB));
        write(&own, &[("memory.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=12\n")]);
        assert_eq!(groups.kills().unwrap(), Some(1));
        let (limit, used, cached) = (128 * MIB, 101 * MIB, MIB);
        let level = Level { limit, used, cached, refaults: 4, stalled_ns: Some(12_000), met: 8 };
        assert_eq!(groups.levels().unwrap()[0].1, level);
    }

    #[test]
    fn unreadable_value_is_not_taken_for_none() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &[("memory.max", "134217728\n"), ("memory.current", "1\n"), ("memory.stat", "")]);
        let groups = Groups::found("0::/\n", &[entry(dir.path(), "cgroup2", "/", "rw")]);
        assert_eq!(groups.levels().unwrap().len(), 1);
        // A directory in place of the file: reading fails with an error other than "not found".
        for file in ["memory.events", "memory.current", "memory.max"] {
            let _ = fs::remove_file(dir.path().join(file));
            fs::create_dir(dir.path().join(file)).unwrap();
        }
        assert!(groups.limit().is_err() && groups.levels().is_err() && groups.kills().is_err());
    }

    #[test]
    fn no_group_is_no_limit() {
        assert_eq!(Groups::found("", &[]), Groups::default());
        assert_eq!(Groups::found("4:memory:/a\n", &[]).limit().unwrap(), None);
        assert_eq!(Groups::default().kills().unwrap(), None);
    }
}
