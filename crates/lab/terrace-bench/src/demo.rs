//! `terrace-bench demo`: the user's command on the user's directory: plain, under terrace, plain, under
//! terrace. The second round shows the noise.
//!
//! This is a demonstration: two runs of a side, no interval. `make demo` runs a matrix (bench/demo.toml).

use crate::format::{RED, UNDONE, plain_table, short};
use crate::matrix::cleanup::{Cleanup, Setup};
use crate::pages::MIB;
use crate::steps::Step;
use crate::system::{self, Places, System};
use clap::Args;
use comfy_table::CellAlignment;
use std::ffi::OsString;
use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use terrace_output::named;

/// Options of `demo`.
#[derive(Clone, Debug, Args)]
pub struct Demo {
    /// The directory that the command reads.
    #[arg(long, value_name = "DIR")]
    pub(crate) on: PathBuf,
    /// Memory limit of either side, for programs and cache, MiB [default: no limit].
    #[arg(long, value_name = "MIB")]
    pub(crate) limit_mib: Option<u64>,
    /// Memory of terrace, MiB [default: the limit less 72, or the default of `terrace run`].
    #[arg(long, value_name = "MIB")]
    pub(crate) memory_mib: Option<u64>,
    /// Directory for scratch files.
    #[arg(long, default_value = "/var/tmp")]
    pub(crate) dir: PathBuf,
    /// The terrace binary; default: beside this program.
    #[arg(long)]
    pub(crate) terrace: Option<PathBuf>,
    /// Continue without control groups and the right to drop caches, as an ordinary user: then the plain side
    /// has all of the machine's memory.
    #[arg(long)]
    pub(crate) lenient: bool,
    /// Directory for the journal of set-ups.
    #[arg(long, hide = true, default_value = "/run/terrace-bench")]
    pub(crate) state: PathBuf,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// A directory for this run, removed at the end.
fn work_dir(options: &Demo, cleanup: &mut Cleanup) -> io::Result<PathBuf> {
    let named = named(&options.dir);
    let work =
        options.dir.canonicalize().map_err(named)?.join(format!("terrace-demo-{}", std::process::id()));
    cleanup.note(Setup::Path(work.clone()))?;
    fs::create_dir_all(work.join("scratch")).map_err(named)?;
    Ok(work)
}

/// Directories and programs of both sides.
fn places(options: &Demo, data: &Path, scratch: PathBuf) -> io::Result<Places> {
    let bench = std::env::current_exe()?;
    let terrace = options.terrace.clone().unwrap_or_else(|| bench.with_file_name("terrace"));
    let named = |e: io::Error| {
        io::Error::new(e.kind(), format!("{}: {e} (build it with `make build`)", terrace.display()))
    };
    let terrace = terrace.canonicalize().map_err(named)?;
    Ok(Places {
        data: data.to_owned(),
        scratch,
        terrace,
        bench,
        lenient: options.lenient,
        ..Places::default()
    })
}

const ROUNDS: usize = 2;

/// Time and memory of one run of the command.
#[derive(Clone, Debug, Default, PartialEq)]
struct Took {
    seconds: f64,
    device_mib: Option<f64>,
    cpu_s: Option<f64>,
    hits: Option<u64>,
    misses: Option<u64>,
    memory_mib: Option<f64>,
}

/// Runs both sides and prints the result.
///
/// # Errors
/// A missing feature of the machine; a command that fails.
pub fn run(options: &Demo) -> io::Result<()> {
    terrace_output::signals::catch();
    let mut cleanup = Cleanup::open(&options.state)?;
    cleanup.note(Setup::Group(system::group_name()))?;
    let dir = options.on.canonicalize().map_err(named(&options.on))?;
    let work = work_dir(options, &mut cleanup)?;
    if work.starts_with(&dir) {
        let why = format!("{} lies in {}: name another place with --dir", work.display(), dir.display());
        return Err(io::Error::other(why));
    }
    let places = places(options, &dir, work.join("scratch"))?;
    let step = step_of(options)?;
    let limit = options.limit_mib.map(|mib| mib * MIB);
    let memory = options.memory_mib.or(options.limit_mib.map(|mib| mib.saturating_sub(72).max(16)));
    let systems = [System::Kernel, System::Terrace { memory: memory.map(|mib| mib * MIB), preload: true }];
    let mut took = [Vec::new(), Vec::new()];
    for round in 0..ROUNDS {
        for (side, system) in systems.iter().enumerate() {
            terrace_output::error_line!("[{}/{}] {}", 2 * round + side + 1, 2 * ROUNDS, NAMES[side]);
            let run = system::run(&places, system, limit, std::slice::from_ref(&step));
            let run = run.map_err(|why| io::Error::other(format!("{}: {why}", NAMES[side])))?;
            took[side].push(took_by(&run));
        }
    }
    terrace_output::print(&(table(&took) + &verdict(&took, io::stdout().is_terminal())))
}

const NAMES: [&str; 2] = ["plain", "terrace"];

/// The step runs in the user's current directory, which may be inside the served one.
fn step_of(options: &Demo) -> io::Result<Step> {
    let text = |text: &std::ffi::OsStr| {
        text.to_str()
            .map(str::to_owned)
            .ok_or_else(|| io::Error::other(format!("{}: not UTF-8", text.display())))
    };
    let mut argv = ["sh", "-c", "cd \"$0\" && exec \"$@\""].map(str::to_owned).to_vec();
    argv.push(text(std::env::current_dir()?.as_os_str())?);
    for word in &options.command {
        argv.push(text(word)?);
    }
    Ok(Step::new("command", argv))
}

fn took_by(run: &system::Run) -> Took {
    let Some(outcome) = run.outcomes.first() else { return Took::default() };
    let cache = run.end.stats.as_ref().map(|stats| &stats.cache);
    let mib = |bytes: u64| bytes as f64 / MIB as f64;
    Took {
        seconds: outcome.wall_ns as f64 / 1e9,
        device_mib: outcome.read_bytes.map(mib),
        cpu_s: outcome.cpu_ns.map(|ns| ns as f64 / 1e9),
        hits: cache.map(|cache| cache.preload.hits + cache.fuse.hits),
        misses: cache.map(|cache| cache.preload.misses + cache.fuse.misses),
        memory_mib: run.end.memory.map(|memory| mib(memory.usage_max)),
    }
}

/// A row for each run, in order.
fn table(took: &[Vec<Took>; 2]) -> String {
    let mut table = plain_table();
    table.set_header([
        "",
        "seconds",
        "read from device, MiB",
        "processor, s",
        "hits",
        "hit ratio",
        "memory, MiB",
    ]);
    let number = |value: Option<f64>| value.map_or("-".to_owned(), short);
    for round in 0..ROUNDS {
        for (name, runs) in NAMES.iter().zip(took) {
            let Some(run) = runs.get(round) else { continue };
            let ratio = run.hits.zip(run.misses).filter(|(hits, misses)| hits + misses > 0);
            let ratio = ratio.map(|(hits, misses)| 100.0 * hits as f64 / (hits + misses) as f64);
            table.add_row([
                (*name).to_owned(),
                format!("{:.2}", run.seconds),
                number(run.device_mib),
                number(run.cpu_s),
                run.hits.map_or("-".to_owned(), |hits| hits.to_string()),
                ratio.map_or("-".to_owned(), |percent| format!("{percent:.1} %")),
                number(run.memory_mib),
            ]);
        }
    }
    table.column_iter_mut().skip(1).for_each(|column| {
        column.set_cell_alignment(CellAlignment::Right);
    });
    format!("{table}\n")
}

/// A share in per cent.
fn share(ratio: f64) -> String {
    format!("{:.0} %", 100.0 * ratio)
}

/// One sentence about both sides; a loss is red.
fn verdict(took: &[Vec<Took>; 2], colours: bool) -> String {
    let mean = |runs: &[Took]| runs.iter().map(|run| run.seconds).sum::<f64>() / runs.len().max(1) as f64;
    let spread = |runs: &[Took]| {
        let all = || runs.iter().map(|run| run.seconds);
        all().fold(f64::MIN, f64::max) - all().fold(f64::MAX, f64::min)
    };
    let (plain, ours) = (mean(&took[0]), mean(&took[1]));
    let chance = spread(&took[0]).max(spread(&took[1]));
    let (red, undone) = if colours { (RED, UNDONE) } else { ("", "") };
    match () {
        () if (plain - ours).abs() <= chance => {
            format!(
                "\nNo difference beyond the noise of two runs of each side: {plain:.2} s plain, {ours:.2} s under terrace.\n"
            )
        }
        () if ours < plain => format!("\nterrace takes {} of the time.\n", share(ours / plain)),
        () => format!("\n{red}terrace loses: it takes {} of the time.{undone}\n", share(ours / plain)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn took(seconds: &[f64]) -> Vec<Took> {
        seconds
            .iter()
            .map(|s| Took { seconds: *s, hits: Some(3), misses: Some(1), ..Took::default() })
            .collect()
    }

    #[test]
    fn verdict_tells_gain_loss_and_chance() {
        let told = |plain: &[f64], ours: &[f64]| verdict(&[took(plain), took(ours)], true);
        assert!(told(&[2.0, 2.1], &[1.0, 1.1]).contains("takes 51 %"));
        assert!(told(&[1.0, 1.1], &[2.0, 2.1]).contains(RED));
        assert!(told(&[1.0, 2.0], &[1.1, 2.2]).contains("No difference"));
    }

    #[test]
    fn table_has_a_row_for_each_run() {
        let text = table(&[took(&[1.0, 2.0]), took(&[3.0, 4.0])]);
        let first: Vec<&str> =
            text.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(first, ["plain", "terrace", "plain", "terrace"], "{text}");
        assert!(text.contains("75.0 %"), "{text}");
    }
}
