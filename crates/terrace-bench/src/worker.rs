//! The C-like loops: nothing but `pread` between two readings of the clock. Run as a program of its own, plain or under `terrace run`; the
//! library's preload path interposes the same symbol that a C program calls.

use crate::buffer::Buffer;
use crate::cgroup::Group;
use crate::content::Content;
use crate::pages::{self, DATA_SEED, MIB, PAGE};
use crate::steps::GROUP;
use clap::{Args, Subcommand};
use fastrand::Rng;
use serde::Serialize;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Which loop.
#[derive(Clone, Debug, Subcommand)]
pub enum Load {
    /// Reads a file from its beginning to its end, in large pieces: that makes it resident.
    Fill(Fill),
    /// Random aligned reads of a file that fits, after filling the cache sequentially.
    Hits(Hits),
    /// Reads each page at most once: every read misses. One thread, each read timed.
    Misses(Misses),
    /// Threads that mix hits on one file with misses on another.
    Mixed(Mixed),
    /// Reads a sample of a file and checks every byte.
    Verify(Verify),
}

/// Common to all loops.
#[derive(Clone, Debug, Args)]
pub struct Common {
    /// Seed of the offsets.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seed of the file's content.
    #[arg(long, default_value_t = DATA_SEED)]
    data_seed: u64,
    /// What the file's pages hold.
    #[arg(long, default_value = "incompressible")]
    content: Content,
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
    /// Open with O_DIRECT: 1.
    #[arg(long, default_value_t = 0)]
    direct: u8,
    #[command(flatten)]
    common: Common,
}

/// Options of the mixed loop.
#[derive(Clone, Debug, Args)]
pub struct Mixed {
    /// Its beginning is read over and over, each page behind that at most once.
    #[arg(long)]
    file: PathBuf,
    /// How much that beginning is.
    #[arg(long)]
    hot_mib: u64,
    #[arg(long)]
    threads: u64,
    /// Reads by each thread.
    #[arg(long)]
    ops: u64,
    /// What is read once is read with O_DIRECT: 1.
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

/// What a loop prints, as JSON: the names are those of metrics.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Result {
    /// Reads in the timed part.
    pub ops: u64,
    /// The same, a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reads_per_s: Option<f64>,
    /// Time of one, as one thread sees it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_ns_per_read: Option<f64>,
    /// CPU time of the reading threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_cpu_ns_per_read: Option<f64>,
    /// CPU time of the whole group: program and terrace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_ns_per_read: Option<f64>,
    /// Mean, median and 99th percentile, where each read was timed.
    #[serde(flatten)]
    pub latency: Option<Latency>,
    /// Pages checked in full, outside the timed part.
    pub checked: u64,
    /// Bytes read by the whole program, inside and outside of the timed part.
    pub bytes: u64,
}

/// Times of single reads.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// Their mean.
    pub mean_us: f64,
    /// Their median.
    pub p50_us: f64,
    /// Their 99th percentile.
    pub p99_us: f64,
}

/// Runs a loop; an error (wrong data among them) ends the process with it.
pub fn run(load: &Load) -> io::Result<()> {
    let result = match load {
        Load::Fill(o) => fill(o)?,
        Load::Hits(o) => hits(o)?,
        Load::Misses(o) => misses(o)?,
        Load::Mixed(o) => mixed(o)?,
        Load::Verify(o) => verify(o)?,
    };
    println!("{}", serde_json::to_string(&result)?);
    Ok(())
}

fn fill(o: &Fill) -> io::Result<Result> {
    let file = Reader::open(&o.file, false)?;
    file.fill(&o.common, &mut Buffer::new(1 << 20))?;
    Ok(Result { bytes: file.size, ..Result::default() })
}

/// Times that a hit loop reads its whole file before the clock starts.
const FILLS: u64 = 2;

fn hits(o: &Hits) -> io::Result<Result> {
    let file = Reader::open(&o.file, false)?;
    let blocks = file.size / o.bs as u64;
    let mut buf = Buffer::new(o.bs.max(1 << 20));
    // The file is resident already (`fill`), but this process has not touched the memory of it, which costs it page faults. Twice, for
    // a cache that judges by use; then a pause for whatever it does behind.
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

impl Latency {
    fn of(mut ns: Vec<u32>) -> Latency {
        ns.sort_unstable();
        let at = |q: f64| f64::from(ns[((ns.len() - 1) as f64 * q) as usize]) / 1000.0;
        let mean = ns.iter().map(|&ns| f64::from(ns)).sum::<f64>() / ns.len() as f64;
        Latency { mean_us: mean / 1000.0, p50_us: at(0.5), p99_us: at(0.99) }
    }
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
        // One draw for both: the top bit decides, the rest chooses.
        let draw = rng.u64(..);
        let (file, page) = if draw >> 63 == 0 { (hot, draw % pages_hot) } else { (cold, u64::from(page)) };
        file.read(&mut buf[..PAGE], page * PAGE as u64)?;
        wrong += u64::from(!pages::looks_right(page, &buf));
    }
    Ok(wrong)
}

fn verify(o: &Verify) -> io::Result<Result> {
    let file = Reader::open(&o.file, false)?;
    Ok(Result { checked: file.check_sample(&o.common, o.pages)?, ..Result::default() })
}

/// `ops` different ones of these pages in random order.
fn order(pages: std::ops::Range<u64>, ops: u64, seed: u64) -> io::Result<Vec<u32>> {
    let of = pages.end.saturating_sub(pages.start);
    if ops > of {
        return Err(io::Error::other(format!("{ops} reads, but there are only {of} pages")));
    }
    let mut order: Vec<u32> = pages.map(|page| page as u32).collect();
    Rng::with_seed(seed).shuffle(&mut order);
    order.truncate(ops as usize);
    Ok(order)
}

fn refuse(wrong: u64) -> io::Result<()> {
    if wrong == 0 { Ok(()) } else { Err(io::Error::other(format!("WRONG DATA in {wrong} reads"))) }
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
        let group: Option<Group> =
            std::env::var(GROUP).ok().and_then(|json| serde_json::from_str(&json).ok());
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

/// CPU time that `clock` has counted: of the process, or of the calling thread.
pub(crate) fn cpu_ns(clock: libc::clockid_t) -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid timespec for the call to fill in.
    let rc = unsafe { libc::clock_gettime(clock, &mut t) };
    assert_eq!(rc, 0, "these clocks exist on every Linux");
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// An open file, read by bare `pread`.
struct Reader {
    fd: OwnedFd,
    size: u64,
}

impl Reader {
    fn open(path: &Path, direct: bool) -> io::Result<Reader> {
        let name = CString::new(path.as_os_str().as_bytes())?;
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | if direct { libc::O_DIRECT } else { 0 };
        // SAFETY: `name` is a C string that outlives the call.
        let fd = unsafe { libc::open(name.as_ptr(), flags) };
        if fd < 0 {
            let e = io::Error::last_os_error();
            return Err(io::Error::new(e.kind(), format!("{}: {e}", path.display())));
        }
        // SAFETY: open returned this descriptor and nobody else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let size = std::fs::metadata(path)?.len();
        Ok(Reader { fd, size })
    }

    fn pages(&self) -> u64 {
        self.size / PAGE as u64
    }

    /// Says that reads will be random, as fio does. Not for files that are filled sequentially: the kernel then fills with single pages.
    fn expect_random(&self) {
        // SAFETY: takes a descriptor and numbers only.
        unsafe { libc::posix_fadvise(self.fd.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
    }

    #[inline]
    fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        // SAFETY: the buffer is valid for its length during the call.
        let n =
            unsafe { libc::pread(self.fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len(), offset as i64) };
        if n == buf.len() as isize { Ok(()) } else { Err(read_failed(n, offset)) }
    }

    /// Reads the whole file in order, in large pieces, checking each page's number, and one page of each piece in full.
    fn fill(&self, common: &Common, buf: &mut Buffer) -> io::Result<()> {
        let mut offset = 0;
        while offset < self.size {
            let n = buf.len().min((self.size - offset) as usize);
            self.read(&mut buf[..n], offset)?;
            let first = offset / PAGE as u64;
            common.content.check(common.data_seed, first, &buf[..PAGE]).map_err(io::Error::other)?;
            let wrong =
                (first..).zip(buf[..n].chunks(PAGE)).filter(|(page, data)| !pages::looks_right(*page, data));
            refuse(wrong.count() as u64)?;
            offset += n as u64;
        }
        Ok(())
    }

    fn check_pages(&self, common: &Common, pages: impl Iterator<Item = u64>) -> io::Result<u64> {
        let mut buf = Buffer::new(PAGE);
        let mut checked = 0;
        for page in pages {
            self.read(&mut buf[..PAGE], page * PAGE as u64)?;
            common
                .content
                .check(common.data_seed, page, &buf[..PAGE])
                .map_err(|e| io::Error::other(format!("WRONG DATA: {e}")))?;
            checked += 1;
        }
        Ok(checked)
    }

    fn check_sample(&self, common: &Common, pages: u64) -> io::Result<u64> {
        let mut rng = Rng::with_seed(common.seed ^ 0x5a5a);
        let all = self.pages();
        self.check_pages(common, (0..pages).map(|_| rng.u64(..all)))
    }
}

#[cold]
fn read_failed(n: isize, offset: u64) -> io::Error {
    if n < 0 {
        io::Error::last_os_error()
    } else {
        io::Error::other(format!("short read of {n} bytes at {offset}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common() -> Common {
        Common { seed: 1, data_seed: 5, content: Content::Incompressible }
    }

    #[test]
    fn loops_read_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        pages::make_file(&file, 4 << 20, 5).unwrap();
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
    fn wrong_data_and_impossible_orders_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        pages::make_file(&file, 1 << 20, 6).unwrap();
        let o = Hits { file: file.clone(), bs: PAGE, ops: 10, common: common() };
        assert!(hits(&o).is_err(), "another seed's content");
        let mut fill = Buffer::new(1 << 20);
        Reader::open(&file, false).unwrap().fill(&Common { data_seed: 6, ..common() }, &mut fill).unwrap();
        let o = Misses { file: file.clone(), ops: 257, direct: 0, common: common() };
        assert!(misses(&o).unwrap_err().to_string().contains("only 256 pages"));
        let mut data = std::fs::read(&file).unwrap();
        data.swap(0, PAGE);
        std::fs::write(&file, &data).unwrap();
        assert!(
            Reader::open(&file, false)
                .unwrap()
                .fill(&Common { data_seed: 6, ..common() }, &mut fill)
                .is_err()
        );
        data.swap(0, PAGE);
        data.swap(PAGE, 2 * PAGE);
        std::fs::write(&file, &data).unwrap();
        let why = Reader::open(&file, false)
            .unwrap()
            .fill(&Common { data_seed: 6, ..common() }, &mut fill)
            .unwrap_err();
        assert!(
            why.to_string().contains("WRONG DATA in 2 reads"),
            "not only the first page of a piece: {why}"
        );
        let o = Misses { file, ops: 256, direct: 0, common: Common { data_seed: 6, ..common() } };
        assert!(misses(&o).unwrap_err().to_string().contains("WRONG DATA in 2 reads"));
    }
}
