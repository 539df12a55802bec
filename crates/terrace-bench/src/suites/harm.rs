//! First do no harm: what the compressed tier costs where it cannot gain, against terrace without it.
//!
//! A few per cent are less than what a virtual machine's neighbours take and give back within a minute, so runs that each begin with a mount and
//! a warm-up are too far apart to show them. Here both systems stand side by side for a whole cell, each with its own mount and memory, and are
//! measured in turn, two seconds each: `--runs` is the number of such turns. What the tier makes of a load may differ from mount to mount: after
//! [`TURNS`] of them each side begins anew.

use super::{DATA_SEED, MIB, worker_step};
use crate::cgroup::OwnedGroup;
use crate::content::Content;
use crate::fio::{self, Job, random_options};
use crate::machine;
use crate::system::{self, Places, System};
use crate::trial::{Bound, Cell, Measured, Sample, Trial};
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

const MEMORY: u64 = 256 * MIB;
/// What programs and daemon may hold beside it, the kernel's page cache included.
const BESIDE: u64 = 128 * MIB;
const SLICE_S: u64 = 2;
/// Slices before a side is measured: the tier fills, or gives itself up.
const WARM: u64 = 5;
/// Turns of a side before it begins anew.
const TURNS: u64 = 10;
/// Seconds after which a program under test hangs.
const HANGS_S: u64 = 60;
const CONFIG: &str = include_str!("../../../../bench/configs/no-tier.toml");
/// Baseline, candidate; their directories too.
const NAMES: [&str; 2] = ["no-tier", "terrace"];
/// Behind each answer of a shell, with the exit code.
const END: &str = "terrace-bench: end";

/// What is read, and beside what.
#[derive(Clone, Copy, Debug)]
struct Load {
    name: &'static str,
    content: Content,
    bytes: u64,
    rw: &'static str,
    bs: &'static str,
    distribution: &'static str,
    jobs: u32,
    /// A program on each processor that never stops.
    computing: bool,
    /// A slice has one of so many parts of the file, the next one in the next: sequential readers begin anew with each slice, and would read
    /// the same pages again.
    parts: u64,
}

const LOADS: [Load; 7] = {
    let random = Load {
        name: "incompressible, 2 jobs",
        content: Content::Incompressible,
        bytes: 2 * MEMORY,
        rw: "randread",
        bs: "4k",
        distribution: "random",
        jobs: 2,
        computing: false,
        parts: 1,
    };
    let zipf = Load { content: Content::Real, distribution: "zipf:0.8:0.5", ..random };
    [
        random,
        Load { name: "incompressible, 8 jobs", jobs: 8, ..random },
        Load { name: "scan, 2 jobs", bytes: 12 * MEMORY, rw: "read", bs: "64k", parts: 3, ..zipf },
        // What comes again could be kept, but costs little to read.
        Load { name: "loop, 2 jobs", bytes: 4 * MEMORY, rw: "read", bs: "64k", ..zipf },
        Load { name: "fits, 2 jobs", bytes: MEMORY / 2, ..zipf },
        Load { name: "computing, 2 jobs", computing: true, ..zipf },
        Load { name: "computing, 8 jobs", computing: true, jobs: 8, ..zipf },
    ]
};

/// All cells.
pub fn run(trial: &mut Trial) -> io::Result<()> {
    if trial.places.terrace_args.iter().any(|arg| arg.starts_with("--config")) {
        return Err(io::Error::other("harm compares two configurations of its own: no --config for it"));
    }
    for load in LOADS {
        if trial.wanted("harm", load.name) && !system::interrupted() {
            compare(trial, load)?;
        }
    }
    Ok(())
}

fn compare(trial: &mut Trial, load: Load) -> io::Result<()> {
    let places = trial.places.clone();
    prepare(&places, load)?;
    let mut judged = vec![("iops", Bound::AtLeast(0.97)), ("latency_us_p99", Bound::None)];
    if !load.computing {
        judged.push(("cpu_us_per_op", Bound::None));
    }
    let systems = NAMES.map(|name| System::Standing { name });
    let cell = Cell { suite: "harm", name: load.name.into(), systems, judged };
    let mut sides = [None, None];
    for (side, name) in sides.iter_mut().zip(NAMES) {
        match renew(side, &places, name, load) {
            Err(_) if system::interrupted() => return Ok(()),
            result => result.map_err(io::Error::other)?,
        };
    }
    trial.cell(cell, |places, system, seed| {
        let i = usize::from(system.name() == NAMES[1]);
        match &mut sides[i] {
            Some(side) if side.slices < WARM + TURNS => side.slice(load, seed),
            side => renew(side, places, NAMES[i], load)?.slice(load, seed),
        }
    })?;
    if system::interrupted() {
        return Ok(());
    }
    sides.iter_mut().flatten().try_for_each(|side| side.verify(load)).map_err(io::Error::other)
}

/// The side from a new mount on, warmed up; what was read through the one before is checked.
fn renew<'a>(
    side: &'a mut Option<Side>,
    places: &Places,
    name: &'static str,
    load: Load,
) -> Result<&'a mut Side, String> {
    if let Some(mut old) = side.take() {
        old.verify(load)?;
    }
    let side = side.insert(Side::start(places, name).map_err(|e| format!("{name}: {e}"))?);
    for i in 0..WARM {
        if system::interrupted() {
            return Err("interrupted".into());
        }
        side.slice(load, i + 1)?;
    }
    Ok(side)
}

/// The file in both directories, which is one file: nobody writes it, and neither side reads it through the kernel's cache.
fn prepare(places: &Places, load: Load) -> io::Result<()> {
    let named = |path: &Path, e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
    let [first, second] = NAMES.map(|name| places.scratch.join(name));
    for dir in [&first, &second] {
        // A killed run leaves its own.
        let _ = fs::remove_dir_all(dir);
        fs::create_dir_all(dir).map_err(|e| named(dir, e))?;
    }
    let (file, link) = (first.join(FILE), second.join(FILE));
    load.content.make_file(&file, load.bytes, DATA_SEED).map_err(|e| named(&file, e))?;
    fs::hard_link(&file, &link).map_err(|e| named(&link, e))
}

const FILE: &str = "harm";

/// A shell below one of the systems, which does what it is told, one line after the other. It ends when dropped, and the system with it.
#[derive(Debug)]
struct Side {
    places: Places,
    dir: PathBuf,
    group: OwnedGroup,
    slices: u64,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Side {
    fn start(places: &Places, name: &'static str) -> io::Result<Side> {
        let dir = places.scratch.join(name);
        let mut command = Command::new(&places.terrace);
        command.args(["run", "--memory", &MEMORY.to_string(), "--on"]).arg(&dir);
        if name == NAMES[0] {
            let config = places.scratch.join("no-tier.toml");
            fs::write(&config, CONFIG)?;
            command.arg("--config").arg(config);
        }
        command.args(&places.terrace_args).args(["--", "sh"]).env_remove("TERRACE_CONFIG");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let group = OwnedGroup::create(&format!("{}-{name}", system::group_name()), Some(MEMORY + BESIDE))
            .map_err(|e| io::Error::new(e.kind(), format!("control group: {e}; run as root")))?;
        if places.favour {
            group.favour();
        }
        let mut child = system::spawn_in(Some(&group), command).map_err(io::Error::other)?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?);
        let mut side = Side { places: places.clone(), dir, group, slices: 0, child, input, output };
        side.tell("true").map_err(io::Error::other)?;
        Ok(side)
    }

    /// What a line printed.
    fn tell(&mut self, line: &str) -> Result<String, String> {
        let gone = |e: io::Error| format!("the shell below {} is gone: {e}", self.dir.display());
        let input = self.input.as_mut().ok_or("it has ended")?;
        input.write_all(asked(line).as_bytes()).map_err(gone)?;
        let mut text = String::new();
        loop {
            let mut answer = String::new();
            if self.output.read_line(&mut answer).map_err(gone)? == 0 {
                return Err(gone(io::ErrorKind::UnexpectedEof.into()));
            }
            match answer.strip_prefix(END) {
                Some(code) if code.trim() == "0" => return Ok(text),
                Some(code) => return Err(format!("exit code {} of: {line}\n{text}", code.trim())),
                None => text += &answer,
            }
        }
    }

    fn slice(&mut self, load: Load, seed: u64) -> Result<Measured, String> {
        let Load { rw, bs, .. } = load;
        let size = load.bytes / load.parts;
        let offset = self.slices % load.parts * size;
        let more = match rw {
            "read" => vec![format!("--numjobs={}", load.jobs), format!("--offset={offset}")],
            _ => random_options(load.distribution, load.jobs, seed),
        };
        self.slices += 1;
        let job = Job { engine: "psync", rw, bs, file: FILE, size, seconds: SLICE_S, more };
        let dir = self.dir.display().to_string();
        let fio: Vec<String> = job.argv().iter().map(|word| quoted(&word.replace("{dir}", &dir))).collect();
        let mut line = format!("timeout -k 5 {HANGS_S} {}", fio.join(" "));
        if load.computing {
            // Without us they end by themselves.
            let busy = format!("timeout {HANGS_S} sh -c 'while :; do :; done' & p=\"$p $!\"; ");
            line = format!("p=; {}{line}; s=$?; kill $p; wait; (exit $s)", busy.repeat(machine::cpus()));
        }
        let (before, start) = ((machine::busy(), self.group.cpu_ns()), Instant::now());
        let text = self.tell(&line)?;
        let wall = start.elapsed().as_nanos() as f64 * machine::cpus() as f64;
        let taken = machine::busy().steal_ns.saturating_sub(before.0.steal_ns);
        if let Some(killed) = self.group.memory().map(|m| m.oom_kills).filter(|&n| n > 0) {
            return Err(format!("{killed} processes killed for want of memory"));
        }
        let report = fio::parse(&text, "read")?;
        let mut sample = Sample::from([("iops", report.iops), ("latency_us_p99", report.latency_us_p99)]);
        if let (Some(before), Some(after), false) = (before.1, self.group.cpu_ns(), load.computing) {
            sample.insert("cpu_us_per_op", (after - before) as f64 / 1000.0 / report.ios);
        }
        // What other programs used cannot be told from what the other side did.
        Ok(Measured { sample, foreign_cpu: taken as f64 / wall, stats: None })
    }

    fn verify(&mut self, load: Load) -> Result<(), String> {
        let file = self.dir.join(FILE).display().to_string();
        let options = [("file", file), ("pages", "4096".into()), ("content", load.content.name().into())];
        let words = worker_step(&self.places, None, "verify", 1, &options).argv;
        let line = words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
        self.tell(&line).map(drop).map_err(|why| format!("wrong data below {}: {why}", self.dir.display()))
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        drop(self.input.take());
        self.group.end_all(&self.places.terrace);
        let _ = self.child.wait();
    }
}

/// A line for a shell, which says at its end how it ended.
fn asked(line: &str) -> String {
    format!("{line}\ns=$?; echo; echo {} $s\n", quoted(END))
}

/// One word of a shell's line.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_tells_how_a_line_ended() {
        let told = |line: &str| {
            let output = Command::new("sh").arg("-c").arg(asked(line)).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        assert_eq!(told("printf 'it'\\''s'"), format!("it's\n{END} 0\n"));
        assert_eq!(told("false"), format!("\n{END} 1\n"));
        assert_eq!(told(&format!("echo {}; (exit 7)", quoted("a b'c"))), format!("a b'c\n\n{END} 7\n"));
    }
}
