//! Execution of a matrix's runs in their planned order; each run is recorded when it ends. The systems of an
//! interleaved cell stay up side by side, and are measured in turn.

use super::cleanup::{Cleanup, Setup};
use super::device::Device;
use super::load::{self, Load};
use super::numbers::{self, Numbers};
use super::options::Matrix;
use super::plan::{Planned, estimate, minutes};
use super::spec::{Spec, SystemKind};
use super::systems::{self, Systems};
use crate::format::short;
use crate::machine::{self, FOREIGN_CPU_MAX, Machine};
use crate::meters;
use crate::pages::DATA_SEED;
use crate::raw;
use crate::steps::{self, Outcome};
use crate::system::{self, Places, RunningSystem, System};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use terrace_output::named;
use terrace_output::signals::interrupted;

/// State that outlasts a run.
pub(super) struct Harness<'a> {
    options: &'a Matrix,
    spec: &'a Spec,
    device: Device,
    systems: Systems<'a>,
    /// The running systems of an interleaved cell, by name.
    sides: HashMap<String, Side>,
    cell: String,
    writer: raw::Writer,
    pub(crate) out: PathBuf,
    /// Ids of earlier valid runs.
    pub(crate) done: BTreeSet<String>,
    refused: u64,
    marked: u64,
}

impl<'a> Harness<'a> {
    /// Makes the device with its data, and opens the results.
    ///
    /// # Errors
    /// A missing feature of the machine; existing results.
    pub(super) fn set_up(
        options: &'a Matrix,
        spec: &'a Spec,
        text: &str,
        runs: &[Planned<'_>],
        cleanup: &mut Cleanup,
    ) -> io::Result<Harness<'a>> {
        let out = options.out.clone().unwrap_or_else(|| PathBuf::from(format!("matrix-{}", spec.name)));
        fs::create_dir_all(&out).map_err(named(&out))?;
        let (mut writer, results) = raw::Writer::append(&out.join("raw.jsonl")).map_err(io::Error::other)?;
        results.notices.iter().for_each(|notice| terrace_output::error_line!("terrace-bench: {notice}"));
        let done = done(&results, options.resume, text, &out)?;

        cleanup.note(Setup::Group(system::group_name()))?;
        let (work, scratch) = work_dirs(&options.dir, cleanup)?;
        let device = make_device(options, spec, runs, &work, cleanup)?;
        terrace_output::print_line!("device: {}", device.told)?;
        let tiers = make_tiers(spec, runs, &work, cleanup)?;
        let header = raw::Header {
            machine: machine::describe(&device.data),
            matrix: raw::Matrix { name: spec.name.clone(), text: text.into(), paired: spec.is_paired() },
        };
        if !results.headers.last().is_some_and(|last| same_machine(&last.machine, &header.machine)) {
            writer.header(&header).map_err(io::Error::other)?;
        }
        let bench = std::env::current_exe()?;
        let terrace = options.terrace.clone().unwrap_or_else(|| bench.with_file_name("terrace"));
        let places = Places {
            data: device.data.clone(),
            scratch,
            terrace: terrace.canonicalize().unwrap_or(terrace),
            bench,
            foyer: options.foyer()?,
            devices: stats_of(&device, tiers.as_ref()),
            favour: options.favour,
            lenient: options.lenient,
            throttle: device.throttle,
            ..Places::default()
        };
        let here = options.file.canonicalize()?.parent().map_or_else(PathBuf::new, Path::to_path_buf);
        Ok(Harness {
            options,
            spec,
            device,
            systems: Systems::new(spec, places, here, tiers.map(|device| device.data)),
            sides: HashMap::new(),
            cell: String::new(),
            writer,
            out,
            done,
            refused: 0,
            marked: 0,
        })
    }

    /// Executes these runs; returns the exit code.
    ///
    /// # Errors
    /// Results that cannot be written.
    pub(super) fn all(&mut self, runs: &[Planned<'_>], cleanup: &mut Cleanup) -> io::Result<u8> {
        let (start, mut planned) = (Instant::now(), Duration::ZERO);
        for (i, run) in runs.iter().enumerate() {
            if interrupted() {
                break;
            }
            machine::wait_until_quiet(self.options.wait_quiet);
            let (id, order) = (&run.id, i + 1);
            let Some(line) = self.one(run, cleanup)? else { break };
            planned += estimate(&runs[i..=i]);
            let left =
                estimate(&runs[i + 1..]).mul_f64(start.elapsed().as_secs_f64() / planned.as_secs_f64());
            terrace_output::error_line!("[{order}/{}] {id}: {line}  ({} left)", runs.len(), minutes(left));
        }
        self.end_sides().map_err(io::Error::other)?;
        terrace_output::print_line!("{} runs refused, {} marked", self.refused, self.marked)?;
        Ok(u8::from(self.refused > 0 || interrupted()))
    }

    /// Executes one run and records it. Returns its line for the terminal, or nothing if a signal ended it.
    fn one(&mut self, planned: &Planned<'_>, cleanup: &mut Cleanup) -> io::Result<Option<String>> {
        let mut run = raw::Run {
            id: planned.id.clone(),
            system: planned.system.name.clone(),
            load: planned.load.spec.name.clone(),
            pattern: planned.load.pattern.into(),
            jobs: planned.load.jobs,
            repetition: planned.repetition,
            order: planned.order,
            seed: planned.seed,
            started: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64()),
            ..raw::Run::default()
        };
        let measured = self.measure(planned, &mut run, cleanup);
        if interrupted() {
            return Ok(None);
        }
        run.refused = measured.err();
        self.writer.run(&run).map_err(io::Error::other)?;
        self.refused += u64::from(run.refused.is_some());
        self.marked += u64::from(!run.marks.is_empty());
        Ok(Some(brief(&run)))
    }

    fn measure(
        &mut self,
        planned: &Planned<'_>,
        run: &mut raw::Run,
        cleanup: &mut Cleanup,
    ) -> Result<(), String> {
        self.systems.prepare(planned.system, &planned.load, cleanup)?;
        if self.spec.interleave.is_some() {
            self.turn(planned, run, cleanup)
        } else {
            self.single(planned, run, cleanup)
        }
    }

    /// A run of a system started for it alone.
    fn single(
        &mut self,
        planned: &Planned<'_>,
        run: &mut raw::Run,
        cleanup: &mut Cleanup,
    ) -> Result<(), String> {
        let (system, load) = (planned.system, &planned.load);
        let mark = cleanup.mark();
        self.device.renew().map_err(|e| e.to_string())?;
        let setup = self.systems.set_up(system, load, cleanup)?;
        let copy = self.systems.copy(load, &setup.places.data)?;
        if load.ramp_s == 0 && !setup.places.lenient {
            steps::warm_memory();
        }
        let steps = load.steps(&self.systems.setting(&setup, planned.seed));
        let made = system::run(&setup.places, &setup.system, setup.limit, &steps);
        let again = match &made {
            Ok(_) if load.spec.restart => Some(self.restarted(load, &setup, planned)),
            _ => None,
        };
        if matches!(setup.system, System::Command { .. }) {
            // The run's end has shut the system down already.
            cleanup.forget(mark);
        }
        let undone = cleanup.undo(mark).map_err(|e| e.to_string());
        let made = made.map_err(|why| numbers::told(&why))?;
        undone?;
        let again = again.transpose()?;
        self.check(load, &setup, planned)?;
        drop(copy);
        let outcome = made.step(load::MEASURE)?;
        let log = setup.places.scratch.join("run").join(format!("{}_bw.log", load::MEASURE));
        let mut found = Numbers::of(load, outcome, &fs::read_to_string(log).unwrap_or_default())?;
        found.add_memory(&made.end);
        if let Some(after) = again {
            found.add_restarted(&after);
        }
        let stats = made.end.stats.as_ref();
        run.stats = stats.and_then(|stats| serde_json::to_value(stats).ok());
        self.put(planned, run, outcome, outcome.foreign_cpu(), found);
        if matches!(system.kind, SystemKind::Terrace) {
            numbers::other_path(load, outcome, &run.metrics).map_or(Ok(()), Err)?;
        }
        // Without the right to control groups there is no limit to be hit.
        let expect = load.expect(system.kind, setup.limit.filter(|_| !setup.places.lenient));
        numbers::refusal(expect, system.kind, setup.limit, &run.metrics, stats.map(|stats| &stats.cache))
            .map_or(Ok(()), Err)
    }

    /// The numbers of a system after its restart.
    fn restarted(
        &self,
        load: &Load<'_>,
        setup: &systems::Setup,
        planned: &Planned<'_>,
    ) -> Result<Numbers, String> {
        let steps = load.restarted_steps(&self.systems.setting(setup, planned.seed));
        let made = system::run(&setup.places, &setup.system, setup.limit, &steps);
        let made = made.map_err(|why| format!("after the restart: {}", numbers::told(&why)))?;
        Numbers::of(load, made.step(load::MEASURE)?, "")
    }

    /// The load's own check on the plain directory, after the system was shut down.
    fn check(&self, load: &Load<'_>, setup: &systems::Setup, planned: &Planned<'_>) -> Result<(), String> {
        let Some(line) = &load.spec.check else { return Ok(()) };
        let step = load.shell("check", line, &self.systems.setting(setup, planned.seed), 0);
        let made = system::run(&setup.places, &System::Kernel, None, &[step]);
        made.map(drop).map_err(|why| format!("the data are wrong on the plain directory: {why}"))
    }

    fn put(
        &self,
        planned: &Planned<'_>,
        run: &mut raw::Run,
        outcome: &Outcome,
        foreign: f64,
        found: Numbers,
    ) {
        run.seconds = outcome.wall_ns as f64 / 1e9;
        (run.metrics, run.series, run.latency_percentiles_us) =
            (found.metrics, found.series, found.percentiles_us);
        let memory = self.systems.memory_of(planned.system, &planned.load);
        run.metrics.extend(memory.map(|b| ("terrace_memory_mib".into(), (b >> 20) as f64)));
        if foreign > FOREIGN_CPU_MAX {
            run.marks.push(format!("disturbed: others used {:.0} % of the CPUs", foreign * 100.0));
        }
    }

    /// A run of a system in an interleaved cell.
    fn turn(
        &mut self,
        planned: &Planned<'_>,
        run: &mut raw::Run,
        cleanup: &mut Cleanup,
    ) -> Result<(), String> {
        if self.cell != planned.cell() {
            self.end_sides()?;
            self.cell = planned.cell();
        }
        let name = planned.system.name.clone();
        let most = self.spec.interleave.unwrap_or(1);
        let mut side = match self.sides.remove(&name).filter(|side| side.turns < most) {
            Some(side) => side,
            None => self.side(planned, cleanup)?,
        };
        let step = planned.load.measure_step(&self.systems.setting(&side.setup, planned.seed), side.turns);
        let outcome = side.running.step(&step)?;
        side.turns += 1;
        let log = side.running.out().join(format!("{}_bw.log", load::MEASURE));
        let found = Numbers::of(&planned.load, &outcome, &fs::read_to_string(log).unwrap_or_default())?;
        // Other programs cannot be distinguished from the other sides: only the hypervisor's share counts.
        self.put(planned, run, &outcome, outcome.stolen_cpu(), found);
        if side.turns == most {
            side.end(&planned.load.spec.name)?
        } else {
            drop(self.sides.insert(name, side))
        }
        if matches!(planned.system.kind, SystemKind::Terrace) {
            numbers::other_path(&planned.load, &outcome, &run.metrics).map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// Starts a side and warms it.
    fn side(&mut self, planned: &Planned<'_>, cleanup: &mut Cleanup) -> Result<Side, String> {
        let (system, load) = (planned.system, &planned.load);
        if self.sides.is_empty() {
            self.device.renew().map_err(|e| e.to_string())?;
        }
        let mut setup = self.systems.set_up(system, load, cleanup)?;
        self.link(load, &setup.places.data, cleanup)?;
        setup.places.data.add_extension(&system.name);
        setup.places.suffix = format!("-{}", system.name);
        cleanup.note(Setup::Group(system::group_name() + &setup.places.suffix)).map_err(|e| e.to_string())?;
        let setting = self.systems.setting(&setup, planned.seed);
        let (warm, verify) = (load.warm_steps(&setting), load.verify_steps(&setting));
        let mut running = RunningSystem::bring_up(&setup.places, &setup.system, setup.limit)?;
        warm.iter().try_for_each(|step| running.step(step).map(drop))?;
        Ok(Side { setup, running, verify, turns: 0 })
    }

    /// Makes the sides' directories, each with a hard link to the one data file, which is never written. All
    /// links are made before the first side is warmed: a new link changes the file's ctime, which would
    /// invalidate cached pages.
    fn link(&self, load: &Load<'_>, data: &Path, cleanup: &mut Cleanup) -> Result<(), String> {
        let file = load.file().ok_or("interleave needs a data set")?;
        for system in &self.spec.system {
            let dir = data.with_added_extension(&system.name);
            let told = |e: io::Error| format!("{}: {e}", dir.display());
            for made in [Setup::Path(dir.clone()), Setup::Fuse(dir.clone())] {
                cleanup.note(made).map_err(told)?;
            }
            fs::create_dir_all(&dir).map_err(told)?;
            match fs::hard_link(data.join(&file), dir.join(&file)) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(told(e)),
                _ => {}
            }
        }
        Ok(())
    }

    fn end_sides(&mut self) -> Result<(), String> {
        let sides: Vec<(String, Side)> = self.sides.drain().collect();
        sides.into_iter().try_for_each(|(name, side)| side.end(&name))
    }
}

/// A running system of an interleaved cell.
struct Side {
    setup: systems::Setup,
    running: RunningSystem,
    verify: Vec<steps::Step>,
    turns: u32,
}

impl Side {
    /// Checks the data read through it, and shuts it down. Wrong data end the matrix, for the runs before had
    /// them, too.
    fn end(mut self, name: &str) -> Result<(), String> {
        let checked = self.verify.iter().try_for_each(|step| self.running.step(step).map(drop));
        checked.map_err(|why| format!("{name}: {}", numbers::told(&why)))?;
        self.running.take_down().map(drop)
    }
}

/// Ids of the existing valid runs.
fn done(results: &raw::Results, resume: bool, text: &str, out: &Path) -> io::Result<BTreeSet<String>> {
    if !results.runs.is_empty() && !resume {
        let out = out.display();
        return Err(io::Error::other(format!(
            "{out} has runs; --resume continues with them, --out selects another directory"
        )));
    }
    if results.headers.iter().any(|header| header.matrix.text != text) {
        let out = out.display();
        return Err(io::Error::other(format!(
            "{out} has runs of a different version of this matrix; select another directory with --out"
        )));
    }
    Ok(results.runs.iter().filter(|run| run.refused.is_none()).map(|run| run.id.clone()).collect())
}

fn same_machine(a: &Machine, b: &Machine) -> bool {
    Machine { time: 0, ..a.clone() } == Machine { time: 0, ..b.clone() }
}

/// A directory of this process for set-ups, and one in it for output of runs.
fn work_dirs(dir: &Path, cleanup: &mut Cleanup) -> io::Result<(PathBuf, PathBuf)> {
    let made = !dir.exists();
    fs::create_dir_all(dir).map_err(named(dir))?;
    let dir = dir.canonicalize().map_err(named(dir))?;
    if made {
        cleanup.note(Setup::Directory(dir.clone()))?;
    }
    let work = dir.join(format!("terrace-bench-{}", std::process::id()));
    cleanup.note(Setup::Path(work.clone()))?;
    let scratch = work.join("scratch");
    fs::create_dir_all(&scratch).map_err(named(&dir))?;
    Ok((work, scratch))
}

/// The device, with all data sets on it.
fn make_device(
    options: &Matrix,
    spec: &Spec,
    runs: &[Planned<'_>],
    work: &Path,
    cleanup: &mut Cleanup,
) -> io::Result<Device> {
    let sets: BTreeMap<String, u64> =
        runs.iter().filter_map(|run| Some((run.load.file()?, run.load.file_mib?))).collect();
    let written = runs.iter().map(|run| run.load.written_mib()).max().unwrap_or(0);
    let dir = work.parent().unwrap_or(work);
    let mib = sets.values().sum::<u64>() + written + spec.device.mib;
    let device = Device::make(&spec.device, dir, work, mib, options.keep, cleanup)?;
    for (file, mib) in &sets {
        let path = device.data.join(file);
        spec.content.make_file(&path, mib << 20, DATA_SEED).map_err(named(&path))?;
    }
    Ok(device)
}

/// The device for tiers, if a system has one, with room for all of them: systems may run side by side.
fn make_tiers(
    spec: &Spec,
    runs: &[Planned<'_>],
    work: &Path,
    cleanup: &mut Cleanup,
) -> io::Result<Option<Device>> {
    let runs = |name: &str| runs.iter().any(|run| run.system.name == name);
    let mib: u64 = spec.system.iter().filter(|s| runs(&s.name)).filter_map(|s| s.tier_mib).sum();
    if spec.system.iter().all(|s| s.tier_mib.is_none()) {
        return Ok(None);
    }
    let device = Device::for_tiers(work, mib, cleanup)?;
    terrace_output::print_line!("tiers: {}", device.told)?;
    Ok(Some(device))
}

/// Statistics of the devices that only systems under test use, for a matrix with tiers.
fn stats_of(device: &Device, tiers: Option<&Device>) -> BTreeMap<String, PathBuf> {
    let Some(tiers) = tiers else { return BTreeMap::new() };
    let all = [(meters::SOURCE, device.stat.clone()), (meters::TIER, tiers.stat.clone())];
    all.into_iter().filter_map(|(name, file)| Some((name.to_string(), file?))).collect()
}

/// A run in one line.
fn brief(run: &raw::Run) -> String {
    if let Some(why) = &run.refused {
        return format!("REFUSED: {why}");
    }
    let told = [
        ("throughput_mib_s", "MiB/s"),
        ("reads_per_s", "reads/s"),
        ("hit_ratio_kept", "of the hits kept"),
        ("p50_over_bare", "of a bare read"),
        ("tps", "tps"),
        ("build_s", "s"),
        ("p99_us", "us p99"),
        ("miss_ratio", "missed"),
        ("cpu_us_per_op", "us CPU"),
    ];
    let mut parts: Vec<String> = told
        .iter()
        .filter_map(|(name, unit)| Some(format!("{} {unit}", short(*run.metrics.get(*name)?))))
        .collect();
    if parts.is_empty() {
        let first = run.metrics.iter().find(|(name, _)| *name != "cpu_s" && *name != "wall_s");
        parts.extend(first.map(|(name, value)| format!("{name} {}", short(*value))));
    }
    parts.extend(run.marks.iter().cloned());
    parts.join(", ")
}
