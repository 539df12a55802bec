//! A matrix: systems x loads x patterns x jobs x repetitions, each run on fresh caches and kept as a line of raw results.
//!
//! Reading order: [`spec`] (what is asked for), [`plan`] (in what order), [`device`] and [`rival`] (what is set up), [`load`] (what is run and when it counts), [`undo`] (how
//! it all goes away again). What it says is for `compare` and `report` to find out.

pub mod device;
pub mod load;
pub mod plan;
pub mod rival;
pub mod spec;
mod summary;
pub mod undo;

use crate::machine::{self, Machine};
use crate::raw;
use crate::suites::DATA_SEED;
use crate::system::{self, Places};
use crate::trial::{FOREIGN_CPU_MAX, number};
use clap::Args;
use device::Device;
use plan::Planned;
use rival::Rivals;
use spec::{LoadKind, Spec};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use undo::{Ledger, Setup};

/// Options of a matrix.
#[derive(Clone, Debug, Args)]
pub struct Matrix {
    /// What to run; bench/*.toml are ready, bench/README.md lists the keys.
    file: PathBuf,
    /// Where results go [default: matrix-NAME].
    #[arg(long)]
    out: Option<PathBuf>,
    /// Directory for the data and all that is set up, on the disk to be measured.
    #[arg(long, default_value = "/var/tmp/terrace-bench")]
    dir: PathBuf,
    /// Go on with the results that are there; refused runs are made again.
    #[arg(long)]
    resume: bool,
    /// Say what would be run, and run nothing.
    #[arg(long)]
    dry_run: bool,
    /// Only runs whose id ("system/load/pattern/jobs/repetition") contains this.
    #[arg(long)]
    only: Option<String>,
    /// Seed of order and loads, instead of the file's.
    #[arg(long)]
    seed: Option<u64>,
    /// The terrace binary; by default the one beside this program.
    #[arg(long)]
    terrace: Option<PathBuf>,
    /// Seconds to wait, before each run, until others leave the processors idle.
    #[arg(long, default_value_t = 0)]
    wait_quiet: u64,
    /// Give the measured processes nearly all of the processors: for a machine that cannot be made quiet.
    #[arg(long)]
    favour: bool,
    /// Keep the data files for the next run.
    #[arg(long)]
    keep: bool,
    /// Where it is written down what is set up.
    #[arg(long, hide = true, default_value = "/run/terrace-bench")]
    state: PathBuf,
}

/// Runs a matrix; the exit code is 1 where a run was refused, or the matrix interrupted.
///
/// # Errors
/// What is wrong with the file, or with the machine for it.
pub fn run(options: &Matrix) -> io::Result<i32> {
    system::catch_signals();
    let named = |e: &dyn std::fmt::Display| io::Error::other(format!("{}: {e}", options.file.display()));
    let text = fs::read_to_string(&options.file).map_err(|e| named(&e))?;
    let spec = Spec::parse(&text).map_err(|e| named(&e))?;
    let seed = options.seed.or(spec.seed).unwrap_or_else(|| plan::number_of(&text) >> 32);
    let mut runs = plan::plan(&spec, seed, machine::cpus());
    runs.retain(|run| options.only.as_ref().is_none_or(|only| run.id.contains(only.as_str())));
    if runs.is_empty() {
        return Err(named(&format!("no run's id contains {:?}", options.only.clone().unwrap_or_default())));
    }
    if options.dry_run {
        return dry_run(&spec, &runs, seed).map(|()| 0);
    }
    rival::check_machine(&spec)?;
    if spec.load.iter().any(|load| load.kind == LoadKind::Fio) {
        undo::tool("fio", &["--version"])?;
    }
    // What a killed harness left is undone before anything of it is looked at.
    let mut ledger = Ledger::open(&options.state)?;
    let mut harness = Harness::set_up(options, &spec, &text, &runs, &mut ledger)?;
    runs.retain(|run| !harness.done.contains(&run.id));
    println!(
        "{}: {} runs, {} are there already, seed {seed}",
        spec.name,
        runs.len() + harness.done.len(),
        harness.done.len()
    );
    let code = harness.all(&runs, &mut ledger)?;
    let out = harness.out.clone();
    // Nothing of it is needed for what follows.
    drop((harness, ledger));
    let results = raw::read(&out.join("raw.jsonl")).map_err(io::Error::other)?;
    summary::write(options, &spec, &out, &results)?;
    Ok(code)
}

fn dry_run(spec: &Spec, runs: &[Planned<'_>], seed: u64) -> io::Result<()> {
    println!("{}: {} runs, about {}, seed {seed}", spec.name, runs.len(), minutes(estimate(runs)));
    for run in runs {
        println!("{:5} {}", run.order, run.id);
    }
    rival::check_machine(spec)
}

/// What a run takes beside its warm-up and its measurement, until that is known.
const BESIDE: Duration = Duration::from_millis(3000);

fn estimate(runs: &[Planned<'_>]) -> Duration {
    runs.iter().map(|run| Duration::from_secs(run.load.ramp_s + run.load.measure_s) + BESIDE).sum()
}

fn minutes(time: Duration) -> String {
    let s = time.as_secs();
    if s < 90 { format!("{s} s") } else { format!("{} min", s.div_ceil(60)) }
}

/// All that outlasts a run.
struct Harness<'a> {
    options: &'a Matrix,
    device: Device,
    rivals: Rivals<'a>,
    writer: raw::Writer,
    out: PathBuf,
    /// Ids of good runs.
    done: BTreeSet<String>,
    refused: u64,
    marked: u64,
}

impl<'a> Harness<'a> {
    fn set_up(
        options: &'a Matrix,
        spec: &'a Spec,
        text: &str,
        runs: &[Planned<'_>],
        ledger: &mut Ledger,
    ) -> io::Result<Harness<'a>> {
        let out = options.out.clone().unwrap_or_else(|| PathBuf::from(format!("matrix-{}", spec.name)));
        fs::create_dir_all(&out).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", out.display())))?;
        let (mut writer, results) = raw::Writer::append(&out.join("raw.jsonl")).map_err(io::Error::other)?;
        results.notices.iter().for_each(|notice| eprintln!("terrace-bench: {notice}"));
        let done = done(&results, options.resume, text, &out)?;

        ledger.note(Setup::Group(system::group_name()))?;
        let (work, scratch) = work_dirs(&options.dir, ledger)?;
        let device = make_device(options, spec, runs, &work, ledger)?;
        println!("device: {}", device.told);
        let header = raw::Header {
            machine: machine::describe(&device.data),
            matrix: raw::Matrix { name: spec.name.clone(), text: text.into() },
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
            favour: options.favour,
            throttle: device.throttle,
            ..Places::default()
        };
        Ok(Harness {
            options,
            device,
            rivals: Rivals::new(spec, places),
            writer,
            out,
            done,
            refused: 0,
            marked: 0,
        })
    }

    fn all(&mut self, runs: &[Planned<'_>], ledger: &mut Ledger) -> io::Result<i32> {
        let (start, mut planned) = (Instant::now(), Duration::ZERO);
        for (i, run) in runs.iter().enumerate() {
            if system::interrupted() {
                break;
            }
            machine::wait_until_quiet(self.options.wait_quiet);
            let (id, order) = (&run.id, i + 1);
            let Some(line) = self.one(run, ledger)? else { break };
            planned += estimate(&runs[i..=i]);
            let left =
                estimate(&runs[i + 1..]).mul_f64(start.elapsed().as_secs_f64() / planned.as_secs_f64());
            eprintln!("[{order}/{}] {id}: {line}  ({} left)", runs.len(), minutes(left));
        }
        println!("{} runs refused, {} marked", self.refused, self.marked);
        Ok(i32::from(self.refused > 0 || system::interrupted()))
    }

    /// Makes one run and writes it down; gives what is told of it, or nothing where a signal ended it.
    fn one(&mut self, planned: &Planned<'_>, ledger: &mut Ledger) -> io::Result<Option<String>> {
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
        let measured = self.measure(planned, &mut run, ledger);
        if system::interrupted() {
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
        ledger: &mut Ledger,
    ) -> Result<(), String> {
        let (system, load) = (planned.system, &planned.load);
        self.rivals.prepare(system, load, ledger)?;
        let mark = ledger.mark();
        let ready = self.rivals.ready(system, load, &self.device, ledger)?;
        if load.ramp_s == 0 {
            crate::steps::warm_memory();
        }
        let made = system::run(&ready.places, &ready.system, ready.limit, |group| {
            load.steps(&ready.places, group, planned.seed, ready.direct)
        });
        if matches!(ready.system, system::System::Command { .. }) {
            // Taken down already, with the run.
            ledger.forget(mark);
        }
        let undone = ledger.undo(mark).map_err(|e| e.to_string());
        let made = made.map_err(|why| load::told(&why))?;
        undone?;
        let log =
            fs::read_to_string(ready.places.scratch.join("run").join(format!("{}_bw.log", load::MEASURE)));
        let numbers = load.numbers(&made, &log.unwrap_or_default())?;
        let outcome = made.step(load::MEASURE)?;
        run.seconds = outcome.wall_ns as f64 / 1e9;
        (run.metrics, run.series, run.latency_percentiles_us) =
            (numbers.metrics, numbers.series, numbers.percentiles_us);
        run.metrics.extend(
            self.rivals.memory_of(system, load).map(|b| ("terrace_memory_mib".into(), (b >> 20) as f64)),
        );
        run.stats.clone_from(&made.stats);
        let foreign = outcome.foreign_cpu();
        if foreign > FOREIGN_CPU_MAX {
            run.marks.push(format!("disturbed: others used {:.0} % of the CPUs", foreign * 100.0));
        }
        let expect = load.expect(system.kind, ready.limit);
        load::refusal(expect, system.kind, ready.limit, &run.metrics, run.stats.as_ref()).map_or(Ok(()), Err)
    }
}

/// Ids of the good runs that are there.
fn done(results: &raw::Results, resume: bool, text: &str, out: &Path) -> io::Result<BTreeSet<String>> {
    if !results.runs.is_empty() && !resume {
        let out = out.display();
        return Err(io::Error::other(format!(
            "{out} holds runs; --resume goes on with them, --out names another place"
        )));
    }
    if results.headers.iter().any(|header| header.matrix.text != text) {
        let out = out.display();
        return Err(io::Error::other(format!(
            "{out} holds runs of another text of this matrix; name another place with --out"
        )));
    }
    Ok(results.runs.iter().filter(|run| run.refused.is_none()).map(|run| run.id.clone()).collect())
}

fn same_machine(a: &Machine, b: &Machine) -> bool {
    Machine { time: 0, ..a.clone() } == Machine { time: 0, ..b.clone() }
}

/// A directory of this process for what is set up, and one in it for what runs write.
fn work_dirs(dir: &Path, ledger: &mut Ledger) -> io::Result<(PathBuf, PathBuf)> {
    let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", dir.display()));
    let made = !dir.exists();
    fs::create_dir_all(dir).map_err(named)?;
    let dir = dir.canonicalize().map_err(named)?;
    if made {
        ledger.note(Setup::Directory(dir.clone()))?;
    }
    let work = dir.join(format!("terrace-bench-{}", std::process::id()));
    ledger.note(Setup::Path(work.clone()))?;
    let scratch = work.join("scratch");
    fs::create_dir_all(&scratch).map_err(named)?;
    Ok((work, scratch))
}

/// The device, with all data sets on it.
fn make_device(
    options: &Matrix,
    spec: &Spec,
    runs: &[Planned<'_>],
    work: &Path,
    ledger: &mut Ledger,
) -> io::Result<Device> {
    let sets: BTreeMap<String, u64> =
        runs.iter().filter_map(|run| Some((run.load.file()?, run.load.file_mib?))).collect();
    let written = runs.iter().map(|run| run.load.written_mib()).max().unwrap_or(0);
    let dir = work.parent().unwrap_or(work);
    let device =
        Device::make(&spec.device, dir, work, sets.values().sum::<u64>() + written, options.keep, ledger)?;
    for (file, mib) in &sets {
        let path = device.data.join(file);
        spec.content
            .make_file(&path, mib << 20, DATA_SEED)
            .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
    }
    Ok(device)
}

/// One run on one line.
fn brief(run: &raw::Run) -> String {
    if let Some(why) = &run.refused {
        return format!("REFUSED: {why}");
    }
    let told = [
        ("throughput_mib_s", "MiB/s"),
        ("p99_us", "us p99"),
        ("miss_ratio", "missed"),
        ("cpu_us_per_op", "us CPU"),
    ];
    let mut parts: Vec<String> = told
        .iter()
        .filter_map(|(name, unit)| Some(format!("{} {unit}", number(*run.metrics.get(*name)?))))
        .collect();
    if parts.is_empty() {
        let first = run.metrics.iter().find(|(name, _)| *name != "cpu_s" && *name != "wall_s");
        parts.extend(first.map(|(name, value)| format!("{name} {}", number(*value))));
    }
    parts.extend(run.marks.iter().cloned());
    parts.join(", ")
}
