//! The systems of a matrix: their requirements of the machine, and the parts of one run.

use super::cleanup::{Cleanup, Setup as Made, tool};
use super::device::{self, Device};
use super::load::{Hybrid, Load, Setting};
use super::spec::{Spec, SystemKind, SystemSpec};
use super::trees::{Copy, Trees};
use crate::pages::{DATA_SEED, MIB};
use crate::steps::Step;
use crate::system::{self, Places, System};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Threads of the pass-through: terrace's default.
const PASS_THROUGH_THREADS: usize = 8;
const LRU_GEN: &str = "/sys/kernel/mm/lru_gen/enabled";
/// Minimum memory beside a RAM disk; with less, a program's text is read from the disk again and again.
const ZRAM_LEAVES_MIB: u64 = 32;

/// Parts of one run.
#[derive(Debug)]
pub struct Setup {
    /// The system that serves.
    pub(crate) system: System,
    /// Directories and programs.
    pub(crate) places: Places,
    /// Memory limit of the group, bytes.
    pub(crate) limit: Option<u64>,
    /// The load bypasses the page cache.
    pub(crate) direct: bool,
    /// Set if the cache is in the reading program.
    pub(crate) hybrid: Option<Hybrid>,
    /// terrace's memory in bytes; 0 for others.
    pub(crate) memory: u64,
}

/// The systems of a matrix on this machine.
#[derive(Debug)]
pub(crate) struct Systems<'a> {
    spec: &'a Spec,
    places: Places,
    /// Directory of the matrix's file.
    here: PathBuf,
    /// Directory for files of tiers, on their device.
    tiers: Option<PathBuf>,
    trees: Trees,
    /// terrace's `--memory` by system, load and jobs: the rest of the group's memory differs.
    memory: HashMap<(String, String, u32), u64>,
    zram: Option<Zram>,
}

/// Checks the systems' requirements before any set-up.
///
/// # Errors
/// A missing requirement, and the alternative.
pub(crate) fn check_machine(spec: &Spec) -> io::Result<()> {
    for system in &spec.system {
        match system.kind {
            SystemKind::KernelMglru if !Path::new(LRU_GEN).exists() => {
                return Err(io::Error::other(format!(
                    "system {}: this kernel has no MGLRU (no {LRU_GEN}); leave the system out, or simulate it with \
                     kind = \"terrace\" and args = [\"--policy\", \"mglru\"]",
                    system.name
                )));
            }
            SystemKind::Zram if !Path::new("/sys/block/zram0").exists() => {
                return Err(io::Error::other(format!(
                    "system {}: no /dev/zram0 here; load the module zram, or leave the system out",
                    system.name
                )));
            }
            _ if wants_nodes(system) && !has_nodes(NODES.as_ref()) => {
                return Err(io::Error::other(format!(
                    "system {}: one memory node here: there is nothing to place; measure on a machine of two or more, \
                     or leave the system out",
                    system.name
                )));
            }
            _ => {}
        }
    }
    Ok(())
}

/// File with the memory nodes of this machine.
const NODES: &str = "/sys/devices/system/node/online";

/// Whether a system is about threads and memory nodes.
fn wants_nodes(system: &SystemSpec) -> bool {
    let asks = |pair: &[String]| pair[0] == "--numa" && pair[1] != "off";
    system.args.windows(2).any(asks)
        || system.args.iter().any(|arg| arg == "--numa=auto" || arg == "--numa=show")
}

/// Whether a list of nodes names more than one.
fn has_nodes(online: &Path) -> bool {
    std::fs::read_to_string(online).is_ok_and(|list| list.contains(['-', ',']))
}

/// Checks the program of a rival, which is built separately.
///
/// # Errors
/// It does not exist.
pub(crate) fn check_foyer(spec: &Spec, foyer: &Path) -> io::Result<()> {
    match spec.system.iter().find(|system| system.kind == SystemKind::Foyer) {
        Some(system) if !foyer.exists() => Err(io::Error::other(format!(
            "system {}: no {}; `make bench-foyer` builds it, or leave the system out",
            system.name,
            foyer.display()
        ))),
        _ => Ok(()),
    }
}

impl<'a> Systems<'a> {
    /// The systems of `spec`, on `places`; `here` is the directory of the matrix's file, `tiers` a directory
    /// for files of tiers.
    pub(crate) fn new(spec: &'a Spec, places: Places, here: PathBuf, tiers: Option<PathBuf>) -> Systems<'a> {
        let trees = Trees::beside(&places.data);
        Systems { spec, places, here, tiers, trees, memory: HashMap::new(), zram: None }
    }

    /// Further inputs of a run's steps.
    pub(crate) fn setting<'b>(&'b self, setup: &'b Setup, seed: u64) -> Setting<'b> {
        let two_paths = matches!(setup.system, System::Terrace { preload: true, .. });
        let (direct, hybrid, memory_mib) = (setup.direct, setup.hybrid.as_ref(), setup.memory / MIB);
        Setting { direct, two_paths, hybrid, memory_mib, ..self.plain(&setup.places, seed) }
    }

    /// The same for a run without measurement.
    fn plain<'b>(&'b self, places: &'b Places, seed: u64) -> Setting<'b> {
        let here = &self.here;
        Setting { places, here, seed, direct: false, two_paths: false, memory_mib: 0, hybrid: None }
    }

    /// A copy of the data that a run of this load changes; removed when dropped.
    ///
    /// # Errors
    /// No room for the copy.
    pub(crate) fn copy(&self, load: &Load<'_>, data: &Path) -> Result<Option<Copy>, String> {
        self.trees.copy(load, data)
    }

    /// Prepares state that outlasts a run: measures terrace's memory, fills the RAM disk.
    ///
    /// # Errors
    /// Why the system cannot run.
    pub(crate) fn prepare(
        &mut self,
        system: &SystemSpec,
        load: &Load<'_>,
        cleanup: &mut Cleanup,
    ) -> Result<(), String> {
        if let Some(line) = load.spec.prepare.as_ref() {
            let setting = self.plain(&self.places, DATA_SEED);
            let step = load.shell("prepare", line, &setting, 0);
            self.trees.prepare(load, &self.places, &step, cleanup)?;
        }
        match system.kind {
            SystemKind::Terrace | SystemKind::TerraceMount => self.prepare_terrace(system, load),
            SystemKind::Zram if self.zram.is_none() => {
                let file = load.file().ok_or("zram wants a load with a data set")?;
                let mib = load.file_mib.unwrap_or(0) + load.written_mib();
                let zram = Zram::make(system, &self.places, &file, mib, cleanup)
                    .map_err(|e| format!("zram: {e}"))?;
                self.zram = Some(zram);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn prepare_terrace(&mut self, system: &SystemSpec, load: &Load<'_>) -> Result<(), String> {
        let key = memory_key(system, load);
        if self.memory.contains_key(&key) {
            return Ok(());
        }
        let limit_mib = self.spec.limit_mib_of(load.spec);
        let bytes = match (system.memory_mib.or(self.spec.fixed_mib_of(load.spec)), limit_mib) {
            _ if system.auto => return Ok(()),
            (Some(mib), _) => mib * MIB,
            (None, Some(limit)) if self.places.lenient => limit * MIB,
            (None, Some(limit)) => {
                let places = self.places_of(system);
                let limits = (limit * MIB, self.spec.spare_mib * MIB);
                let what = format!("{}, {} with {} jobs", system.name, load.spec.name, load.jobs);
                let steps = load.short_steps(&self.plain(&places, 1));
                let copy = self.trees.copy(load, &places.data)?;
                forget_tier(&places)?;
                let probe = if load.spec.tree.is_some() { limits.0 / 4 } else { limits.0 / 4 * 3 };
                let memory = largest_memory(&places, &what, limits, probe, &steps);
                drop(copy);
                memory?
            }
            (None, None) => return Err("terrace needs memory_mib if there is no limit".into()),
        };
        self.memory.insert(key, bytes);
        Ok(())
    }

    fn places_of(&self, system: &SystemSpec) -> Places {
        let mut places = Places { terrace_args: system.args.clone(), ..self.places.clone() };
        if let Some(program) = &system.program {
            let program = self.here.join(program);
            places.terrace = program.canonicalize().unwrap_or(program);
        }
        if let Some((mib, dir)) = system.tier_mib.zip(self.tiers.as_ref()) {
            let tier = dir.join(&system.name);
            if system.kind != SystemKind::Foyer {
                places.terrace_args.extend(["--tier".into(), format!("{}:{}", tier.display(), mib * MIB)]);
            }
            places.tier = Some(tier);
        }
        places
    }

    /// terrace's `--memory`, in bytes.
    pub(crate) fn memory_of(&self, system: &SystemSpec, load: &Load<'_>) -> Option<u64> {
        self.memory.get(&memory_key(system, load)).copied()
    }

    /// Sets the machine up for one run, with fresh caches. The set-ups are recorded in `cleanup`.
    ///
    /// # Errors
    /// Why the system cannot run.
    pub(crate) fn set_up(
        &self,
        system: &SystemSpec,
        load: &Load<'_>,
        cleanup: &mut Cleanup,
    ) -> Result<Setup, String> {
        let preload = system.kind == SystemKind::Terrace;
        let limit = self.spec.limit_mib_of(load.spec).map(|mib| mib * MIB);
        let places = self.places_of(system);
        forget_tier(&places)?;
        let mut setup =
            Setup { system: System::Kernel, places, limit, direct: false, hybrid: None, memory: 0 };
        match system.kind {
            SystemKind::Kernel if self.spec.system.iter().any(|s| s.kind == SystemKind::KernelMglru) => {
                set_mglru("n", cleanup).map_err(|e| format!("{LRU_GEN}: {e}"))?;
            }
            SystemKind::Kernel => {}
            SystemKind::PassThrough => setup.system = System::PassThrough { threads: PASS_THROUGH_THREADS },
            SystemKind::KernelMglru => set_mglru("y", cleanup).map_err(|e| format!("{LRU_GEN}: {e}"))?,
            SystemKind::Direct => setup.direct = true,
            SystemKind::Terrace | SystemKind::TerraceMount => {
                let memory = self.memory_of(system, load);
                if memory.is_none() && !system.auto {
                    return Err("its memory was not measured".into());
                }
                setup.system = System::Terrace { memory, preload };
                setup.memory = memory.unwrap_or(0);
                cleanup.note(Made::Fuse(setup.places.data.clone())).map_err(|e| e.to_string())?;
            }
            SystemKind::Zram => {
                let zram = self.zram.as_ref().ok_or("its disk was not made")?;
                zram.device.renew().map_err(|e| e.to_string())?;
                setup.limit = Some(zram.left(self.spec.limit_mib_of(load.spec).unwrap_or(0))?);
                setup.places.data.clone_from(&zram.device.data);
            }
            SystemKind::Foyer => setup.hybrid = Some(self.hybrid(system)?),
            SystemKind::Command => {
                setup.system = self.command(system);
                if let System::Command { teardown, .. } = &setup.system {
                    cleanup.note(Made::Teardown(teardown.clone())).map_err(|e| e.to_string())?;
                }
            }
        }
        Ok(setup)
    }

    /// foyer's cache in its program.
    fn hybrid(&self, system: &SystemSpec) -> Result<Hybrid, String> {
        let limit = self.spec.limit_mib.map(|mib| mib.saturating_sub(self.spec.spare_mib));
        let memory =
            system.memory_mib.or(limit).filter(|mib| *mib > 0).ok_or("no memory is left for foyer")?;
        let tier_bytes = system.tier_mib.unwrap_or(0) * MIB;
        Ok(Hybrid { program: self.places.foyer.clone(), memory: memory * MIB, tier_bytes })
    }

    /// The shell lines with their placeholders replaced.
    fn command(&self, system: &SystemSpec) -> System {
        let own = self.places.scratch.join(&system.name);
        let fill = |line: &String| {
            let limit = self.spec.limit_mib.map_or(String::new(), |mib| (mib * MIB).to_string());
            line.replace("{source}", &self.places.data.display().to_string())
                .replace("{scratch}", &own.display().to_string())
                .replace("{limit}", &limit)
        };
        let dir =
            system.dir.as_ref().map_or_else(|| self.places.data.clone(), |dir| PathBuf::from(fill(dir)));
        let lines = |lines: &[String]| lines.iter().map(fill).collect();
        System::Command { setup: lines(&system.setup), teardown: lines(&system.teardown), dir }
    }
}

/// The largest `--memory` that keeps programs, daemon and cache inside the limit. A run with a smaller
/// memory, `probe`, measures the group's other permanent memory. `limits`: the limit, and the room to leave
/// below it, in bytes.
fn largest_memory(
    places: &Places,
    what: &str,
    (limit, spare): (u64, u64),
    probe: u64,
    steps: &[Step],
) -> Result<u64, String> {
    let system = System::Terrace { memory: Some(probe), preload: true };
    let end = system::run(places, &system, Some(limit), steps)?.end;
    // A small or short load uses only a part of the probe.
    let used = end.stats.as_ref().map_or(probe, |stats| stats.cache.memory.used_bytes);
    // The cache gives way to a step that needs memory, so only figures of the same step belong together.
    let beside = end.beside_max.unwrap_or(end.pinned_max.saturating_sub(used.min(probe)));
    let memory = limit.checked_sub(beside + spare).map(|bytes| bytes / MIB * MIB);
    let (beside, spare, limit) = (beside / MIB, spare / MIB, limit / MIB);
    let memory = memory.filter(|&bytes| bytes > 0).ok_or_else(|| {
        format!(
            "the limit of {limit} MiB is too small: programs hold {beside} MiB, {spare} MiB must stay free; raise limit_mib"
        )
    })?;
    let mib = memory / MIB;
    terrace_output::error_line!(
        "{what}: {beside} MiB beside terrace's memory, so --memory {mib}MiB under the limit of {limit} MiB"
    );
    Ok(memory)
}

/// Removes the tier of the last run: foyer's is a directory.
fn forget_tier(places: &Places) -> Result<(), String> {
    let Some(tier) = &places.tier else { return Ok(()) };
    let removed = if tier.is_dir() { fs::remove_dir_all(tier) } else { fs::remove_file(tier) };
    match removed {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(format!("{}: {e}", tier.display())),
        _ => Ok(()),
    }
}

fn memory_key(system: &SystemSpec, load: &Load<'_>) -> (String, String, u32) {
    (system.name.clone(), load.spec.name.clone(), load.jobs)
}

fn set_mglru(value: &str, cleanup: &mut Cleanup) -> io::Result<()> {
    let file = PathBuf::from(LRU_GEN);
    let was = fs::read_to_string(&file)?.trim().to_string();
    cleanup.note(Made::Value { file, was })?;
    fs::write(LRU_GEN, value)
}

/// A file system on a compressed RAM disk, with the data set on it.
#[derive(Debug)]
struct Zram {
    device: Device,
    name: &'static str,
}

impl Zram {
    fn make(
        system: &SystemSpec,
        places: &Places,
        file: &str,
        mib: u64,
        cleanup: &mut Cleanup,
    ) -> io::Result<Zram> {
        let name = "zram0";
        let sys = |file: &str| format!("/sys/block/{name}/{file}");
        if fs::read_to_string(sys("disksize"))?.trim() != "0" {
            return Err(io::Error::other("/dev/zram0 is in use"));
        }
        cleanup.note(Made::Zram(name.into()))?;
        if let Some(algorithm) = &system.algorithm {
            fs::write(sys("comp_algorithm"), algorithm)
                .map_err(|e| io::Error::new(e.kind(), format!("{algorithm}: {e}")))?;
        }
        fs::write(sys("disksize"), format!("{}M", mib + mib / 32 + device::METADATA_MIB))?;
        let (block, at) = (format!("/dev/{name}"), places.scratch.join(name));
        fs::create_dir_all(&at)?;
        device::make_file_system(&block)?;
        cleanup.note(Made::Mount(at.clone()))?;
        device::mount(&block, &at)?;
        let data = at.join("data");
        fs::create_dir(&data)?;
        fs::copy(places.data.join(file), data.join(file))?;
        tool("sync", &["-f", device::text(&data)?])?;
        Ok(Zram { device: Device::mounted(data, block, at), name })
    }

    /// The limit less the compressed data, which occupy memory too.
    fn left(&self, limit_mib: u64) -> Result<u64, String> {
        let stat = fs::read_to_string(format!("/sys/block/{}/mm_stat", self.name)).unwrap_or_default();
        let used = stat.split_whitespace().nth(2).and_then(|n| n.parse::<u64>().ok());
        let used = used.ok_or("cannot read zram's memory use")?.div_ceil(MIB);
        match limit_mib.checked_sub(used) {
            Some(left) if left >= ZRAM_LEAVES_MIB => Ok(left * MIB),
            _ => Err(format!(
                "the data set takes {used} MiB compressed, which leaves too little of {limit_mib} MiB"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrix_about_nodes_is_refused_on_one() {
        let spec = Spec::parse(include_str!("../../../../../bench/numa.toml")).unwrap();
        let asks: Vec<bool> = spec.system.iter().map(wants_nodes).collect();
        assert_eq!(asks, [false, true]);
        let dir = tempfile::tempdir().unwrap();
        let online = |list: &str| {
            let path = dir.path().join("online");
            std::fs::write(&path, list).unwrap();
            has_nodes(&path)
        };
        assert_eq!([online("0\n"), online("0-1\n"), online("0,2\n")], [false, true, true]);
        assert!(!has_nodes("/nowhere".as_ref()), "a kernel without nodes");
        if !has_nodes(NODES.as_ref()) {
            let why = check_machine(&spec).unwrap_err().to_string();
            assert!(why.contains("terrace-numa: one memory node here"), "{why}");
        }
    }
}
