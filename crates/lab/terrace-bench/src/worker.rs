//! The loads of `terrace-bench worker`: loops of reads or of other calls, a file's preparation, and its
//! check. Each load is a separate program, plain or under `terrace run`. The timed part of a read loop has
//! nothing but `pread`; the preload library interposes the same symbol as in a C program.

use crate::buffer::Buffer;
use crate::cgroup::Group;
use crate::pages::{self, MIB, PAGE};
use crate::pattern::{Pages, Pattern};
use crate::reader::{Common, Latency, Reader, order, refuse};
use crate::{calls, cold, reads, tier_hit};
use clap::{Args, Subcommand};
use fastrand::Rng;
use serde::Serialize;
use std::io;
use std::path::PathBuf;
use std::time::Instant;

/// The loops.
#[derive(Clone, Debug, Subcommand)]
pub enum Load {
    /// Reads a file from beginning to end, in large pieces, to make it resident.
    Fill(Fill),
    /// Random aligned reads of a file that fits, after filling the cache sequentially.
    Hits(Hits),
    /// Reads each page at most once: every read misses. One thread, each read timed.
    Misses(Misses),
    /// Threads that mix hits on one file with misses on another.
    Mixed(Mixed),
    /// Reads of a cold file in a given order, by one thread.
    Cold(cold::Cold),
    /// Threads that read by a pattern for a given time.
    Reads(reads::Options),
    /// The cost of single calls: opening, writing, syncing, starting a program.
    Calls(calls::Options),
    /// Page numbers of a pattern on standard output, 4 bytes each, for readers in other languages.
    Keys(Keys),
    /// Hits in a tier on a device, beside bare reads of that device.
    TierHit(tier_hit::Options),
    /// Reads a sample of a file and checks every byte.
    Verify(Verify),
    /// Writes the file for the other loops; a valid existing file is kept.
    Data(Data),
}

/// Options of the data file.
#[derive(Clone, Debug, Args)]
pub struct Data {
    #[arg(long)]
    file: PathBuf,
    #[arg(long)]
    mib: u64,
    #[command(flatten)]
    common: Common,
}

/// Options of the filling.
#[derive(Clone, Debug, Args)]
pub struct Fill {
    #[arg(long)]
    file: PathBuf,
    #[command(flatten)]
    common: Common,
}

/// Options of the hit loop.
#[derive(Clone, Debug, Args)]
pub struct Hits {
    #[arg(long)]
    file: PathBuf,
    #[arg(long, default_value_t = PAGE)]
    bs: usize,
    #[arg(long)]
    ops: u64,
    #[command(flatten)]
    common: Common,
}

/// Options of the miss loop.
#[derive(Clone, Debug, Args)]
pub struct Misses {
    #[arg(long)]
    file: PathBuf,
    #[arg(long)]
    ops: u64,
    /// 1: open with O_DIRECT.
    #[arg(long, default_value_t = 0)]
    direct: u8,
    #[command(flatten)]
    common: Common,
}

/// Options of the mixed loop.
#[derive(Clone, Debug, Args)]
pub struct Mixed {
    /// The file: its beginning is read repeatedly, each further page at most once.
    #[arg(long)]
    file: PathBuf,
    /// Size of that beginning.
    #[arg(long)]
    hot_mib: u64,
    #[arg(long)]
    threads: u64,
    /// Reads of each thread.
    #[arg(long)]
    ops: u64,
    /// 1: files that are read once are opened with O_DIRECT.
    #[arg(long, default_value_t = 0)]
    direct: u8,
    #[command(flatten)]
    common: Common,
}

/// Options of the check.
#[derive(Clone, Debug, Args)]
pub struct Verify {
    #[arg(long)]
    file: PathBuf,
    #[arg(long)]
    pages: u64,
    #[command(flatten)]
    common: Common,
}

/// Options of the page numbers.
#[derive(Clone, Debug, Args)]
pub struct Keys {
    /// The file of the pages.
    #[arg(long)]
    file: PathBuf,
    /// random, zipf:THETA, normal:DEV.
    #[arg(long)]
    pattern: Pattern,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long, default_value_t = 1 << 20)]
    count: u64,
}

/// Output of a loop, as JSON: field names are metric names.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Result {
    /// Reads in the timed part.
    pub(crate) ops: u64,
    /// Reads a second in the timed part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reads_per_s: Option<f64>,
    /// Time of a read, as one thread sees it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) wall_ns_per_read: Option<f64>,
    /// CPU time of the reading threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) thread_cpu_ns_per_read: Option<f64>,
    /// CPU time of the whole group: program and terrace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_ns_per_read: Option<f64>,
    /// Mean, median and 99th percentile, if each read was timed.
    #[serde(flatten)]
    pub(crate) latency: Option<Latency>,
    /// Pages checked in full, outside the timed part.
    pub(crate) checked: u64,
    /// Bytes read by the whole program, inside and outside of the timed part.
    pub(crate) bytes: u64,
}

/// Runs a loop; an error (such as wrong data) ends the process.
pub fn run(load: &Load) -> io::Result<()> {
    let result = match load {
        Load::Fill(o) => fill(o)?,
        Load::Hits(o) => hits(o)?,
        Load::Misses(o) => misses(o)?,
        Load::Mixed(o) => mixed(o)?,
        Load::Cold(o) => return print(&cold::run(o)?),
        Load::Reads(o) => return print(&reads::run(o)?),
        Load::Calls(o) => return print(&calls::run(o)?),
        Load::Keys(o) => return keys(o, &mut io::stdout().lock()),
        Load::TierHit(o) => return print(&tier_hit::run(o)?),
        Load::Verify(o) => verify(o)?,
        Load::Data(o) => data(o)?,
    };
    print(&result)
}

/// Prints one line of JSON for the matrix.
fn print(result: &impl Serialize) -> io::Result<()> {
    terrace_output::print_line!("{}", serde_json::to_string(result)?)
}

fn fill(o: &Fill) -> io::Result<Result> {
    let file = Reader::open(&o.file, false)?;
    file.fill(&o.common, &mut Buffer::new(1 << 20))?;
    Ok(Result { bytes: file.size, ..Result::default() })
}

/// Number of times that a hit loop reads its whole file before the clock starts.
const FILLS: u64 = 2;

fn hits(o: &Hits) -> io::Result<Result> {
    let file = Reader::open(&o.file, false)?;
    let blocks = file.size / o.bs as u64;
    let mut buf = Buffer::new(o.bs.max(1 << 20));
    // The file is resident already (`fill`), but this process has not mapped its pages, which costs page
    // faults. Two passes, for a cache that judges by use; then a pause for its background work.
    for _ in 0..FILLS {
        file.fill(&o.common, &mut buf)?;
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
    let mut rng = Rng::with_seed(o.common.seed);
    let meter = Meter::start();
    let mut wrong = 0u64;
    for _ in 0..o.ops {
        let block = rng.u64(..blocks);
        let offset = block * o.bs as u64;
        file.read(&mut buf[..o.bs], offset)?;
        wrong += u64::from(!pages::looks_right(offset / PAGE as u64, &buf));
    }
    let mut result = meter.stop(o.ops);
    refuse(wrong)?;
    result.checked = file.check_sample(&o.common, 4096)?;
    result.bytes = FILLS * file.size + o.ops * o.bs as u64 + result.checked * PAGE as u64;
    Ok(result)
}

fn misses(o: &Misses) -> io::Result<Result> {
    let file = Reader::open(&o.file, o.direct != 0)?;
    file.expect_random();
    let order = order(0..file.pages(), o.ops, o.common.seed)?;
    let mut buf = Buffer::new(PAGE);
    let mut times = Vec::with_capacity(order.len());
    let mut wrong = 0u64;
    let meter = Meter::start();
    for &page in &order {
        let start = Instant::now();
        file.read(&mut buf[..PAGE], u64::from(page) * PAGE as u64)?;
        times.push(start.elapsed().as_nanos() as u32);
        wrong += u64::from(!pages::looks_right(u64::from(page), &buf));
    }
    let mut result = meter.stop(o.ops);
    refuse(wrong)?;
    result.latency = Some(Latency::of(times));
    result.checked = file.check_pages(&o.common, order.iter().rev().take(2048).map(|&p| u64::from(p)))?;
    result.bytes = (o.ops + result.checked) * PAGE as u64;
    Ok(result)
}

fn mixed(o: &Mixed) -> io::Result<Result> {
    let (mut hot, cold) = (Reader::open(&o.file, false)?, Reader::open(&o.file, o.direct != 0)?);
    hot.size = hot.size.min(o.hot_mib * MIB);
    cold.expect_random();
    let mut buf = Buffer::new(1 << 20);
    for _ in 0..FILLS + 1 {
        hot.fill(&o.common, &mut buf)?;
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let order = order(hot.pages()..cold.pages(), o.threads * o.ops, o.common.seed)?;
    let meter = Meter::start();
    let wrong = std::thread::scope(|scope| {
        let thread = |(t, mine): (usize, _)| {
            let (hot, cold, seed) = (&hot, &cold, o.common.seed + 1 + t as u64);
            scope.spawn(move || mixed_thread(hot, cold, mine, seed))
        };
        let threads: Vec<_> = order.chunks(o.ops as usize).enumerate().map(thread).collect();
        let joined = threads.into_iter().map(|t| t.join().expect("the reading thread does not panic"));
        joined.sum::<io::Result<u64>>()
    })?;
    let mut result = meter.stop(o.threads * o.ops);
    refuse(wrong)?;
    result.checked = hot.check_sample(&o.common, 1024)?;
    result.checked += cold.check_pages(&o.common, order.iter().rev().take(1024).map(|&p| u64::from(p)))?;
    result.bytes = (FILLS + 1) * hot.size + (result.ops + result.checked) * PAGE as u64;
    Ok(result)
}

fn mixed_thread(hot: &Reader, cold: &Reader, pages_cold: &[u32], seed: u64) -> io::Result<u64> {
    let mut rng = Rng::with_seed(seed);
    let mut buf = Buffer::new(PAGE);
    let pages_hot = hot.pages();
    let mut wrong = 0u64;
    for &page in pages_cold {
        // One draw for both: the top bit selects the file, the rest the page.
        let draw = rng.u64(..);
        let (file, page) = if draw >> 63 == 0 { (hot, draw % pages_hot) } else { (cold, u64::from(page)) };
        file.read(&mut buf[..PAGE], page * PAGE as u64)?;
        wrong += u64::from(!pages::looks_right(page, &buf));
    }
    Ok(wrong)
}

fn keys(o: &Keys, out: &mut impl io::Write) -> io::Result<()> {
    let pages = Pages::new(o.pattern, std::fs::metadata(&o.file)?.len() / PAGE as u64);
    let mut rng = Rng::with_seed(o.seed);
    let all: Vec<u8> = (0..o.count).flat_map(|_| (pages.draw(&mut rng) as u32).to_le_bytes()).collect();
    out.write_all(&all)?;
    // An explicit flush reports write errors; the flush at program exit hides them.
    out.flush()
}

fn data(o: &Data) -> io::Result<Result> {
    o.common.content.make_file(&o.file, o.mib * MIB, pages::DATA_SEED)?;
    Ok(Result { bytes: o.mib * MIB, ..Result::default() })
}

fn verify(o: &Verify) -> io::Result<Result> {
    let file = Reader::open(&o.file, false)?;
    Ok(Result { checked: file.check_sample(&o.common, o.pages)?, ..Result::default() })
}

/// Clocks at the start of the timed part.
struct Meter {
    group: Option<Group>,
    group_cpu: Option<u64>,
    cpu: u64,
    wall: Instant,
}

impl Meter {
    fn start() -> Meter {
        let group = Group::of_step();
        let group_cpu = group.as_ref().and_then(Group::cpu_ns);
        Meter { group, group_cpu, cpu: cpu_ns(libc::CLOCK_PROCESS_CPUTIME_ID), wall: Instant::now() }
    }

    fn stop(self, ops: u64) -> Result {
        let (wall, cpu) = (self.wall.elapsed(), cpu_ns(libc::CLOCK_PROCESS_CPUTIME_ID));
        let group_cpu = self.group.as_ref().and_then(Group::cpu_ns);
        let group_cpu = group_cpu.zip(self.group_cpu).map(|(after, before)| after.saturating_sub(before));
        let per_read = |ns: u64| ns as f64 / ops as f64;
        Result {
            ops,
            reads_per_s: Some(ops as f64 / wall.as_secs_f64()),
            wall_ns_per_read: Some(per_read(wall.as_nanos() as u64)),
            thread_cpu_ns_per_read: Some(per_read(cpu - self.cpu)),
            cpu_ns_per_read: group_cpu.map(per_read),
            ..Result::default()
        }
    }
}

/// CPU time by `clock`: of the process, or of the calling thread.
pub(crate) fn cpu_ns(clock: libc::clockid_t) -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid timespec for the call to fill in.
    let rc = unsafe { libc::clock_gettime(clock, &mut t) };
    assert_eq!(rc, 0, "these clocks exist on every Linux");
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::Content;

    fn common() -> Common {
        Common { seed: 1, data_seed: 5, content: Content::Incompressible }
    }

    #[test]
    fn loops_read_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        Content::Incompressible.make_file(&file, 4 << 20, 5).unwrap();
        let r = hits(&Hits { file: file.clone(), bs: PAGE, ops: 1000, common: common() }).unwrap();
        assert_eq!((r.ops, r.checked), (1000, 4096));
        let r = misses(&Misses { file: file.clone(), ops: 512, direct: 0, common: common() }).unwrap();
        let latency = r.latency.unwrap();
        assert!(latency.p50_us <= latency.p99_us && latency.mean_us > 0.0);
        let o = Mixed { file, hot_mib: 1, threads: 4, ops: 100, direct: 0, common: common() };
        assert_eq!(mixed(&o).unwrap().ops, 400);
        assert!(mixed(&Mixed { ops: 200, ..o }).unwrap_err().to_string().contains("only 768 pages"));
    }

    #[test]
    fn keys_are_pages_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        Content::Incompressible.make_file(&file, 1 << 20, 5).unwrap();
        let drawn = |seed| {
            let mut out = Vec::new();
            let pattern = "zipf:0.8".parse().unwrap();
            keys(&Keys { file: file.clone(), pattern, seed, count: 1000 }, &mut out).unwrap();
            out.chunks(4).map(|n| u32::from_le_bytes(n.try_into().unwrap())).collect::<Vec<_>>()
        };
        let all = drawn(1);
        assert!(all.len() == 1000 && all.iter().all(|page| *page < 256));
        assert_eq!(all, drawn(1));
        assert_ne!(all, drawn(2));
    }

    #[test]
    fn wrong_data_and_impossible_orders_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        Content::Incompressible.make_file(&file, 1 << 20, 6).unwrap();
        let o = Hits { file: file.clone(), bs: PAGE, ops: 10, common: common() };
        assert!(hits(&o).is_err(), "another seed's content");
        let six = Common { data_seed: 6, ..common() };
        let fill = || Reader::open(&file, false).unwrap().fill(&six, &mut Buffer::new(1 << 20));
        fill().unwrap();
        let o = Misses { file: file.clone(), ops: 257, direct: 0, common: common() };
        assert!(misses(&o).unwrap_err().to_string().contains("only 256 pages"));
        let mut data = std::fs::read(&file).unwrap();
        data.swap(0, PAGE);
        std::fs::write(&file, &data).unwrap();
        assert!(fill().is_err());
        data.swap(0, PAGE);
        data.swap(PAGE, 2 * PAGE);
        std::fs::write(&file, &data).unwrap();
        let why = fill().unwrap_err().to_string();
        assert!(why.contains("WRONG DATA in 2 reads"), "not only the first page of a piece: {why}");
        let o = Misses { file: file.clone(), ops: 256, direct: 0, common: six.clone() };
        assert!(misses(&o).unwrap_err().to_string().contains("WRONG DATA in 2 reads"));
    }
}
