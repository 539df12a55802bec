//! `terrace-bench probe`: what each storage target can do, as in the device study of Hermes' wiki: bandwidth and latency of get and put by
//! transfer size, number of processes and size of the data set.
//!
//! ```text
//!   directory ─► target: a nameless file, laid out ─┐
//!   memory    ─► target: a memfd ───────────────────┴─► cells: size x processes ─► fio ─► table · TOML · JSON
//! ```
//! The reads of a target come before its writes. At last blocks are written and read back with checksums: the numbers of storage that does not
//! keep what it is given are none.

mod run;
mod table;
mod target;

use crate::{machine, signals};
use clap::Args;
use run::Load;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use target::{Target, Way};
use terrace_api::device_profile::{Cell, Device, DeviceProfile, Machine, Op, SCHEMA};
use terrace_output::{Progress, print, write_whole};

const MIB: u64 = 1 << 20;
/// Time to start and end a measurement beside the measured time, until it is known.
const OVERHEAD: Duration = Duration::from_millis(800);

/// The measurements, and the place of their results.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Directories, one on each storage to be measured.
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// The memory, too.
    #[arg(long)]
    pub ram: bool,
    /// A tenth of the time: 4 KiB, 64 KiB and 1 MiB, one process and one a core, the smallest data set, 0.2 s each.
    #[arg(long)]
    pub quick: bool,
    /// Writes the results for terrace: `[tier] probe = "FILE.toml"` in its configuration.
    #[arg(long, value_name = "FILE.toml")]
    pub out: Option<PathBuf>,
    /// Results as JSON on stdout, instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Sizes of the data set, MiB; at most a quarter of the free space is used.
    #[arg(long, value_delimiter = ',', default_value = "64,1024", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub data_mib: Vec<u64>,
    /// Milliseconds of each measurement; 1000, or 200 if it is to be quick.
    #[arg(long, value_parser = clap::value_parser!(u64).range(10..=600_000))]
    pub millis: Option<u64>,
}

/// Measures, tells, writes.
///
/// # Errors
/// A target that cannot be measured, wrong data, a signal.
pub fn run(options: &Options) -> io::Result<i32> {
    signals::catch();
    if options.paths.is_empty() && !options.ram {
        return Err(io::Error::other("nothing to measure (name a directory, or give --ram)"));
    }
    if let Some(out) = &options.out {
        target::writable(out)?;
    }
    let mut targets = options.paths.iter().map(|p| Target::directory(p)).collect::<io::Result<Vec<_>>>()?;
    if options.ram {
        targets.push(Target::ram()?);
    }
    let plan = Plan::new(options);
    let mut session = Session { plan, done: 0, all: 0, began: Instant::now(), progress: Progress::default() };
    session.all = targets.len() * session.plan.cells_at_most();
    let mut probe =
        DeviceProfile { schema: SCHEMA.into(), machine: machine_of(), device: Default::default() };
    for target in &targets {
        let device = session.measure(target)?;
        probe.device.insert(target.name.clone(), device);
    }
    session.progress.clear();
    if let Some(out) = &options.out {
        write_whole(out, &format!("{}{}", head(out), probe.text()))?;
    }
    let text = if options.json { serde_json::to_string(&probe)? + "\n" } else { table::of(&probe) };
    print(&text)?;
    Ok(0)
}

fn machine_of() -> Machine {
    let m = machine::describe(std::path::Path::new("/"));
    Machine { cpu: m.cpu, cpus: m.cpus, memory_mib: m.memory_bytes / MIB, kernel: m.kernel }
}

fn head(out: &std::path::Path) -> String {
    format!(
        "# What storage can do, measured by `terrace-bench probe`. terrace reads it if its configuration says\n\
         # [tier]\n# probe = \"{}\"\n\n",
        out.display()
    )
}

/// Which measurements.
struct Plan {
    transfers: Vec<usize>,
    processes: Vec<usize>,
    data_mib: Vec<u64>,
    millis: u64,
    layout_at_most: Duration,
}

impl Plan {
    fn new(options: &Options) -> Plan {
        let cores = machine::cpus();
        let (transfers_kib, processes, seconds): (&[usize], _, _) = match options.quick {
            true => (&[4, 64, 1024], vec![1, cores], 5),
            false => (&[4, 16, 64, 256, 1024], doubling(cores * 4), 60),
        };
        let mut data_mib = options.data_mib.clone();
        data_mib.sort_unstable();
        data_mib.truncate(if options.quick { 1 } else { data_mib.len() });
        let mut plan = Plan {
            transfers: transfers_kib.iter().map(|kib| kib << 10).collect(),
            processes,
            data_mib,
            millis: options.millis.unwrap_or(if options.quick { 200 } else { 1000 }),
            layout_at_most: Duration::from_secs(seconds),
        };
        plan.processes.dedup();
        plan
    }

    fn cells_at_most(&self) -> usize {
        2 * self.transfers.len() * self.processes.len() * self.data_mib.len()
    }

    /// The measurements on data sets of these sizes; a process has a block of its own at least.
    fn cells(&self, sets: &[u64]) -> Vec<(Op, u64, usize, usize)> {
        let mut cells = Vec::new();
        for op in [Op::Get, Op::Put] {
            for &data in sets {
                for &transfer in &self.transfers {
                    let fits = |processes: &&usize| **processes as u64 <= data / transfer as u64;
                    cells.extend(self.processes.iter().filter(fits).map(|&n| (op, data, transfer, n)));
                }
            }
        }
        cells
    }
}

/// 1, 2, 4 and so on; the last is `most`.
fn doubling(most: usize) -> Vec<usize> {
    let mut all: Vec<usize> =
        std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|n| *n < most).collect();
    all.push(most);
    all
}

/// Measurements under way.
struct Session {
    plan: Plan,
    done: usize,
    all: usize,
    began: Instant,
    progress: Progress,
}

impl Session {
    fn measure(&mut self, target: &Target) -> io::Result<Device> {
        let wanted = target::data_sets(&self.plan.data_mib, target.room, &target.name)?;
        let sets = self.lay_out(target, &wanted)?;
        let others = Others::start();
        let mut cells = Vec::new();
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", target.name));
        for (op, data, transfer, processes) in self.plan.cells(&sets) {
            let load = Load { op, data, transfer, processes, millis: self.plan.millis };
            if target.way == Way::Cached {
                target.settle()?;
            }
            let way = if op == Op::Get { "get" } else { "put" };
            self.tell(
                &target.name,
                &format!("{way} {} KiB x {processes}, {} MiB", transfer >> 10, data / MIB),
            );
            cells.push(run::measure(target, &load).map_err(named)?);
            self.done += 1;
        }
        if target.way != Way::Mapped {
            run::check(target, sets[0]).map_err(named)?;
        }
        // Fewer than was thought, where the data set is small.
        self.all -= self.plan.cells_at_most() - cells.len();
        Ok(device(target, cells, others.percent()))
    }

    /// Lays the file out, as far as time allows; the data sets that it has then.
    fn lay_out(&mut self, target: &Target, wanted: &[u64]) -> io::Result<Vec<u64>> {
        let (largest, at_most) = (*wanted.last().expect("there is a smallest"), self.plan.layout_at_most);
        self.progress.now(|| format!("{}: {} MiB are laid out", target.name, largest / MIB));
        let made = run::lay_out(target, largest, at_most)?;
        if signals::interrupted() {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted"));
        }
        let names = wanted.iter().map(|bytes| bytes / MIB).collect::<Vec<_>>();
        target::data_sets(&names, made, &target.name)
    }

    fn tell(&mut self, target: &str, what: &str) {
        let (done, all, millis) = (self.done, self.all, self.plan.millis);
        let each = match done {
            0 => Duration::from_millis(millis + millis / 10) + OVERHEAD,
            _ => self.began.elapsed() / done as u32,
        };
        let left = (each * (all - done) as u32).as_secs();
        self.progress
            .now(|| format!("{target}: {what}: {} of {all}, {}:{:02} left", done + 1, left / 60, left % 60));
    }
}

/// The entry: latencies of one process at the smallest transfer, the best bandwidths, both on the largest data set.
fn device(target: &Target, cells: Vec<Cell>, others_cpu_percent: f64) -> Device {
    let largest = cells.iter().map(|c| c.data_mib).max();
    let of = |op: Op| cells.iter().filter(move |c| c.op == op && Some(c.data_mib) == largest);
    let latency = |op| of(op).find(|c| c.processes == 1).map_or(f64::NAN, |c| c.latency_us.max(0.01));
    let most = |op| of(op).map(|c| c.mib_s).fold(f64::NAN, f64::max);
    Device {
        kind: target.kind,
        measured: humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string(),
        file_system: target.file_system.clone(),
        block_device: target.device.clone(),
        direct: target.way != Way::Cached,
        others_cpu_percent: (others_cpu_percent * 10.0).round() / 10.0,
        get_latency_us: latency(Op::Get),
        get_mib_s: most(Op::Get),
        put_latency_us: latency(Op::Put),
        put_mib_s: most(Op::Put),
        cells,
    }
}

/// CPU time that was neither ours nor that of our processes.
struct Others {
    since: Instant,
    busy: u64,
    ours: u64,
}

impl Others {
    fn start() -> Others {
        Others { since: Instant::now(), busy: busy(), ours: ours() }
    }

    /// Of all that the machine had since, per cent.
    fn percent(&self) -> f64 {
        let others = (busy() - self.busy).saturating_sub(ours() - self.ours) as f64;
        let had = self.since.elapsed().as_nanos() as f64 * machine::cpus() as f64;
        if had > 0.0 { others / had * 100.0 } else { 0.0 }
    }
}

fn busy() -> u64 {
    let busy = machine::busy();
    busy.busy_ns + busy.steal_ns
}

/// CPU time of this process and of its children that have ended.
fn ours() -> u64 {
    [libc::RUSAGE_SELF, libc::RUSAGE_CHILDREN]
        .map(|who| {
            // SAFETY: all zeros are a valid value of this plain structure, and the call fills it.
            let usage = unsafe {
                let mut usage: libc::rusage = std::mem::zeroed();
                libc::getrusage(who, &mut usage);
                usage
            };
            let ns = |t: libc::timeval| t.tv_sec as u64 * 1_000_000_000 + t.tv_usec as u64 * 1000;
            ns(usage.ru_utime) + ns(usage.ru_stime)
        })
        .iter()
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_double_up_to_the_last() {
        assert_eq!(doubling(8), [1, 2, 4, 8]);
        assert_eq!(doubling(12), [1, 2, 4, 8, 12]);
        assert_eq!(doubling(1), [1]);
    }

    #[test]
    fn reads_come_first_and_everybody_has_a_block() {
        let plan = Plan {
            transfers: vec![4 << 10, 1 << 20],
            processes: vec![1, 8],
            data_mib: vec![4, 64],
            millis: 1,
            layout_at_most: Duration::ZERO,
        };
        let cells = plan.cells(&[4 * MIB, 64 * MIB]);
        assert_eq!(cells.len(), plan.cells_at_most() - 2, "4 blocks are none for 8");
        assert!(cells.is_sorted_by_key(|c| c.0));
        assert!(cells.iter().all(|c| c.3 as u64 <= c.1 / c.2 as u64));
    }
}
