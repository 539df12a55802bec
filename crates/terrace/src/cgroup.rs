//! The memory control groups of this process: their limits, their use, and kills for lack of memory.
//!
//! Version 1 has a separate tree for the memory controller, version 2 has one tree for all controllers.
//! /proc/self/cgroup and the mount table show both. Groups without a limit are left out. A file that cannot
//! be read at the moment (for example, out of descriptors) is an error, and does not mean "no limit".

mod alarm;
mod machine;

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use terrace_policy::memory::Level;

use crate::mounts;
use crate::size::{MIB, Size, human};

pub(crate) use alarm::Alarm;
pub(crate) use machine::Machine;

/// Memory that terrace needs beside `--memory`: code, stacks, request buffers, and the kernel's memory for
/// it. Measured in its own group with 128 MiB: 12 MiB soon after the start, 22 to 24 under five jobs of fio
/// with requests of 4 KiB to 1 MiB.
pub(crate) const OWN_NEED: u64 = 24 << 20;

/// Version 1 shows "no limit" as the largest number of pages.
const NO_LIMIT: u64 = 1 << 62;

/// Version of the cgroup interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// One group, by its directory.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Group {
    version: Version,
    dir: PathBuf,
}

/// A limit, and the file that holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Limit {
    /// Bytes.
    pub bytes: u64,
    pub file: PathBuf,
}

/// The group of this process and its ancestors, in this order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Groups(Vec<Group>);

impl Groups {
    /// The groups of this process; empty where there are none.
    ///
    /// # Errors
    /// The cgroup file or the mount table cannot be read.
    pub(crate) fn own() -> io::Result<Groups> {
        let text = read(Path::new("/proc/self/cgroup"))?.unwrap_or_default();
        Ok(Groups::found(&text, &mounts::own_table()?))
    }

    /// Parses /proc/PID/cgroup and the mount table. Where both versions are mounted, version 1 has the memory
    /// controller if /proc/PID/cgroup lists it there.
    fn found(text: &str, table: &[mounts::Entry]) -> Groups {
        let own = |named: &dyn Fn(&str) -> bool| {
            text.lines().find_map(|line| {
                let (_, rest) = line.split_once(':')?;
                let (controllers, path) = rest.split_once(':')?;
                named(controllers).then(|| PathBuf::from(path))
            })
        };
        let v1 = own(&|controllers| controllers.split(',').any(|name| name == "memory"));
        let (version, path) = match (v1, own(&str::is_empty)) {
            (Some(path), _) => (Version::V1, path),
            (None, Some(path)) => (Version::V2, path),
            (None, None) => return Groups::default(),
        };
        let of_memory = |entry: &&mounts::Entry| match version {
            Version::V1 => entry.fstype == "cgroup" && entry.options.split(',').any(|name| name == "memory"),
            Version::V2 => entry.fstype == "cgroup2",
        };
        let Some(tree) = table.iter().find(of_memory) else { return Groups::default() };
        // In a container, the mounted tree begins at its own group, and the path may begin above that.
        let below = path.strip_prefix(&tree.root).or(path.strip_prefix("/")).unwrap_or(Path::new(""));
        let own = tree.point.join(below);
        let own = if own.is_dir() { own } else { tree.point.clone() };
        let all = own.ancestors().take_while(|dir| dir.starts_with(&tree.point));
        Groups(all.map(|dir| Group { version, dir: dir.to_owned() }).collect())
    }

    /// A version 2 group with the files of `dir`.
    #[cfg(test)]
    pub(crate) fn of(dir: &Path) -> Groups {
        Groups(vec![Group { version: Version::V2, dir: dir.to_owned() }])
    }

    /// The lowest of all limits.
    ///
    /// # Errors
    /// A limit cannot be read.
    pub(crate) fn limit(&self) -> io::Result<Option<Limit>> {
        lowest(self.0.iter().map(Group::limit), |limit| limit.bytes)
    }

    /// Limit and use of each group that has a limit, with the file of the limit.
    ///
    /// # Errors
    /// A limit or the use of a group cannot be read.
    pub(crate) fn levels(&self) -> io::Result<Vec<(Limit, Level)>> {
        self.0.iter().filter_map(|group| group.level().transpose()).collect()
    }

    /// Processes of our own group that the kernel has killed for lack of memory.
    ///
    /// # Errors
    /// The count cannot be read.
    pub(crate) fn kills(&self) -> io::Result<Option<u64>> {
        self.0.first().map_or(Ok(None), Group::kills)
    }
}

/// The value with the lowest key, or the first error.
fn lowest<T>(
    mut found: impl Iterator<Item = io::Result<Option<T>>>,
    key: impl Fn(&T) -> u64,
) -> io::Result<Option<T>> {
    found.try_fold(None, |least: Option<T>, next| {
        Ok([least, next?].into_iter().flatten().min_by_key(|value| key(value)))
    })
}

impl Group {
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
        lowest(files.iter().map(read), |limit| limit.bytes)
    }

    /// None: the group has no limit, or its use is not known.
    fn level(&self) -> io::Result<Option<(Limit, Level)>> {
        let Some(limit) = self.limit()? else { return Ok(None) };
        let Some(stat) = read(&self.dir.join("memory.stat"))? else { return Ok(None) };
        let of = |names: &[&str]| names.iter().filter_map(|name| field(&stat, name)).sum::<u64>();
        let (used, cached, refaults) = match self.version {
            Version::V1 => (
                "memory.usage_in_bytes",
                of(&["total_inactive_file", "total_active_file"]),
                of(&["total_workingset_refault_file", "total_workingset_refault_anon"]),
            ),
            Version::V2 => (
                "memory.current",
                of(&["inactive_file", "active_file", "slab_reclaimable"]),
                of(&["workingset_refault", "workingset_refault_file", "workingset_refault_anon"]),
            ),
        };
        let Some(used) = number(&self.dir.join(used))? else { return Ok(None) };
        let (stalled_ns, met) = (self.stalled_ns()?, self.met()?);
        let level = Level { limit: limit.bytes, used, cached, refaults, stalled_ns, met };
        Ok(Some((limit, level)))
    }

    /// Version 1 has no stall count for a group.
    fn stalled_ns(&self) -> io::Result<Option<u64>> {
        match self.version {
            Version::V1 => Ok(None),
            Version::V2 => Ok(read(&self.dir.join("memory.pressure"))?.and_then(|text| stalled_ns(&text))),
        }
    }

    /// Times that use reached the limit.
    fn met(&self) -> io::Result<u64> {
        Ok(match self.version {
            Version::V1 => number(&self.dir.join("memory.failcnt"))?.unwrap_or(0),
            Version::V2 => read(&self.dir.join("memory.events"))?
                .map_or(0, |text| ["high", "max"].iter().filter_map(|name| field(&text, name)).sum()),
        })
    }

    fn kills(&self) -> io::Result<Option<u64>> {
        let name = match self.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        };
        Ok(read(&self.dir.join(name))?.and_then(|text| field(&text, "oom_kill")))
    }
}

/// Reads a kernel file. None: this kernel or group does not have it, or a container hides it.
fn read(file: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(err) if matches!(err.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => Ok(None),
        Err(err) => Err(err),
    }
}

/// A file's number. None for other text, such as `max`.
fn number(file: &Path) -> io::Result<Option<u64>> {
    Ok(read(file)?.and_then(|text| text.trim().parse().ok()))
}

/// Time that some task stalled for memory, from a pressure stall information file.
fn stalled_ns(text: &str) -> Option<u64> {
    let some = text.lines().find(|line| line.starts_with("some "))?;
    let us: u64 = some.split_whitespace().find_map(|word| word.strip_prefix("total="))?.parse().ok()?;
    Some(us.saturating_mul(1000))
}

/// The number behind `name` in lines of `name number`.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Processes that the kernel has killed for lack of memory, in all groups of this machine.
///
/// # Errors
/// The count cannot be read.
pub(crate) fn kills_of_the_machine() -> io::Result<Option<u64>> {
    Ok(read(Path::new("/proc/vmstat"))?.and_then(|text| field(&text, "oom_kill")))
}

/// A warning if the control group or the machine cannot hold `memory` and [`OWN_NEED`]. None for `auto`.
pub(crate) fn too_small_for(memory: Option<Size>) -> Option<String> {
    let memory = memory?;
    let of_groups = Groups::own().and_then(|groups| groups.limit()).ok().flatten();
    of_groups.and_then(|limit| told_if_too_small(&limit, memory)).or_else(|| {
        let machine = Machine::default().limit().ok()??;
        told_if_more_than_all(machine.bytes, memory)
    })
}

/// Prints the warning of [`too_small_for`] on standard error.
pub(crate) fn tell_if_too_small(memory: Option<Size>) {
    if let Some(line) = too_small_for(memory) {
        terrace_output::error_line!("terrace: {line}");
    }
}

fn told_if_too_small(limit: &Limit, memory: Size) -> Option<String> {
    (limit.bytes < memory.0.saturating_add(OWN_NEED)).then(|| {
        format!(
            "{}: {} cannot hold --memory {memory} and the {} that terrace needs besides: the cache stays smaller; raise this limit, or \
             lower --memory to {}",
            limit.file.display(),
            human(limit.bytes),
            human(OWN_NEED),
            Size(limit.bytes.saturating_sub(OWN_NEED) / MIB * MIB),
        )
    })
}

fn told_if_more_than_all(bytes: u64, memory: Size) -> Option<String> {
    (bytes < memory.0.saturating_add(OWN_NEED)).then(|| {
        let (has, fits) = (human(bytes), Size(bytes.saturating_sub(OWN_NEED) / MIB * MIB));
        format!(
            "this machine has {has} of memory, and --memory is {memory}: the cache stays smaller; leave it out, or lower it below {fits}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(dir).unwrap();
        files.iter().for_each(|(name, text)| fs::write(dir.join(name), text).unwrap());
    }

    fn entry(point: &Path, fstype: &str, root: &str, options: &str) -> mounts::Entry {
        mounts::Entry {
            dev: (0, 1),
            root: root.into(),
            point: point.to_owned(),
            fstype: fstype.to_owned(),
            source: "none".into(),
            options: options.to_owned(),
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
        // In a container, the mounted tree begins at its own group, but the path does not.
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

    #[test]
    fn limit_without_room_for_terrace_is_told_with_its_cure() {
        let limit = Limit { bytes: 136 * MIB, file: "/g/memory.max".into() };
        let line = told_if_too_small(&limit, Size(128 * MIB)).unwrap();
        assert!(line.contains("/g/memory.max: 136 MiB cannot hold --memory 128MiB"), "{line}");
        assert!(line.contains("lower --memory to 112MiB"), "{line}");
        assert_eq!(told_if_too_small(&limit, Size(112 * MIB)), None);
        let line = told_if_more_than_all(136 * MIB, Size(128 * MIB)).unwrap();
        assert!(line.contains("this machine has 136 MiB") && line.contains("below 112MiB"), "{line}");
        assert_eq!(told_if_more_than_all(136 * MIB, Size(112 * MIB)), None);
        assert_eq!(too_small_for(None), None, "auto keeps to what there is");
    }
}
