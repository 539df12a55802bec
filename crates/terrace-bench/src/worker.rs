//! The C-like loops: nothing but `pread` between two readings of the clock. Run as a program of its own, plain or under `terrace run`; the
//! library's fast door interposes the same symbol that a C program calls.

use crate::cgroup::Group;
use crate::content::Content;
use crate::pages::{self, PAGE, Rng};
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
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
    /// One process of `terrace-bench probe`.
    Probe(crate::probe::load::Load),
    /// Reads a sample of a file and checks every byte.
    Verify(Verify),
    /// Reads a whole file of any content and prints a digest.
    Digest {
        /// The file.
        file: PathBuf,
    },
}

/// Common to all loops.
#[derive(Clone, Debug, Args)]
pub struct Common {
    /// Seed of the offsets.
    #[arg(long)]
    seed: u64,
    /// Seed of the file's content.
    #[arg(long)]
    data_seed: u64,
    /// What the file's pages hold.
    #[arg(long, default_value = "incompressible")]
    content: Content,
    /// The group whose CPU time is read, as JSON.
    #[arg(long)]
    group: Option<String>,
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
    /// Open with O_DIRECT.
    #[arg(long)]
    direct: bool,
    #[command(flatten)]
    common: Common,
}

/// Options of the mixed loop.
#[derive(Clone, Debug, Args)]
pub struct Mixed {
    /// Read over and over.
    #[arg(long)]
    hot: PathBuf,
    /// Each page read at most once.
    #[arg(long)]
    cold: PathBuf,
    #[arg(long)]
    threads: u64,
    /// Reads by each thread.
    #[arg(long)]
    ops: u64,
    /// Open the cold file with O_DIRECT.
    #[arg(long)]
    direct: bool,
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

/// What a loop prints, as JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Result {
    /// Reads in the timed part.
    pub ops: u64,
    /// Its duration.
    pub wall_ns: u64,
    /// CPU time of the reading threads.
    pub cpu_ns: u64,
    /// CPU time of the whole group: program and terrace.
    pub group_cpu_ns: Option<u64>,
    /// Mean latency, where each read was timed.
    pub latency_ns_mean: f64,
    /// Its median.
    pub latency_ns_p50: f64,
    /// Its 99th percentile.
    pub latency_ns_p99: f64,
    /// Pages checked in full, outside the timed part.
    pub checked: u64,
    /// Bytes read by the whole program, inside and outside of the timed part.
    pub bytes: u64,
}

/// Runs a loop; an error (wrong data among them) ends the process with it.
pub fn run(load: &Load) -> io::Result<()> {
    let result = match load {
        Load::Fill(o) => fill(o)?,
        Load::Hits(o) => hits(o)?,
        Load::Misses(o) => misses(o)?,
        Load::Mixed(o) => mixed(o)?,
        Load::Verify(o) => verify(o)?,
        Load::Probe(load) => return crate::probe::load::run(load),
        Load::Digest { file } => {
            println!("{:016x}", digest(file)?);
            return Ok(());
        }
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
    let mut rng = Rng::new(o.common.seed);
    let meter = Meter::start(&o.common);
    let mut wrong = 0u64;
    for _ in 0..o.ops {
        let block = rng.below(blocks);
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
    let file = Reader::open(&o.file, o.direct)?;
    file.expect_random();
    let order = order(&file, o.ops, o.common.seed)?;
    let mut buf = Buffer::new(PAGE);
    let mut latencies = Vec::with_capacity(order.len());
    let mut wrong = 0u64;
    let meter = Meter::start(&o.common);
    for &page in &order {
        let start = Instant::now();
        file.read(&mut buf[..PAGE], u64::from(page) * PAGE as u64)?;
        latencies.push(start.elapsed().as_nanos() as u32);
        wrong += u64::from(!pages::looks_right(u64::from(page), &buf));
    }
    let mut result = meter.stop(o.ops);
    refuse(wrong)?;
    latencies.sort_unstable();
    let at = |q: f64| f64::from(latencies[((latencies.len() - 1) as f64 * q) as usize]);
    result.latency_ns_mean = latencies.iter().map(|&l| f64::from(l)).sum::<f64>() / latencies.len() as f64;
    (result.latency_ns_p50, result.latency_ns_p99) = (at(0.5), at(0.99));
    result.checked = file.check_pages(&o.common, order.iter().rev().take(2048).map(|&p| u64::from(p)))?;
    result.bytes = (o.ops + result.checked) * PAGE as u64;
    Ok(result)
}

fn mixed(o: &Mixed) -> io::Result<Result> {
    let (hot, cold) = (Reader::open(&o.hot, false)?, Reader::open(&o.cold, o.direct)?);
    cold.expect_random();
    let mut buf = Buffer::new(1 << 20);
    for _ in 0..FILLS + 1 {
        hot.fill(&o.common, &mut buf)?;
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let order = order(&cold, o.threads * o.ops, o.common.seed)?;
    let meter = Meter::start(&o.common);
    let wrong = std::thread::scope(|scope| {
        let threads: Vec<_> = order
            .chunks(o.ops as usize)
            .enumerate()
            .map(|(t, mine)| {
                let (hot, cold) = (&hot, &cold);
                scope.spawn(move || mixed_thread(hot, cold, mine, o.common.seed + 1 + t as u64))
            })
            .collect();
        threads
            .into_iter()
            .map(|t| t.join().expect("the reading thread does not panic"))
            .sum::<io::Result<u64>>()
    })?;
    let mut result = meter.stop(o.threads * o.ops);
    refuse(wrong)?;
    result.checked = hot.check_sample(&o.common, 1024)?;
    result.checked += cold.check_pages(&o.common, order.iter().rev().take(1024).map(|&p| u64::from(p)))?;
    result.bytes = (FILLS + 1) * hot.size + (result.ops + result.checked) * PAGE as u64;
    Ok(result)
}

fn mixed_thread(hot: &Reader, cold: &Reader, pages_cold: &[u32], seed: u64) -> io::Result<u64> {
    let mut rng = Rng::new(seed);
    let mut buf = Buffer::new(PAGE);
    let pages_hot = hot.size / PAGE as u64;
    let mut wrong = 0u64;
    for &page in pages_cold {
        // One draw for both: the top bit decides, the rest chooses.
        let draw = rng.word();
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

/// FNV-1a over words, by `pread`, pages in an order that no readahead foresees.
fn digest(file: &Path) -> io::Result<u64> {
    let file = Reader::open(file, false)?;
    let order = order(&file, file.size / PAGE as u64, 1)?;
    let mut buf = Buffer::new(PAGE);
    order.iter().try_fold(0xcbf2_9ce4_8422_2325u64, |mut digest, &page| {
        file.read(&mut buf[..PAGE], u64::from(page) * PAGE as u64)?;
        for word in buf.chunks_exact(8) {
            digest = (digest ^ u64::from_le_bytes(word.try_into().unwrap())).wrapping_mul(0x0100_0000_01b3);
        }
        Ok(digest)
    })
}

/// `ops` different pages of the file in random order.
fn order(file: &Reader, ops: u64, seed: u64) -> io::Result<Vec<u32>> {
    let pages = file.size / PAGE as u64;
    if ops > pages {
        return Err(io::Error::other(format!("{ops} reads, but the file has only {pages} pages")));
    }
    let mut order: Vec<u32> = (0..pages as u32).collect();
    Rng::new(seed).shuffle(&mut order);
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
    fn start(common: &Common) -> Meter {
        let group: Option<Group> = common.group.as_ref().and_then(|json| serde_json::from_str(json).ok());
        let group_cpu = group.as_ref().and_then(Group::cpu_ns);
        Meter { group, group_cpu, cpu: cpu_ns(libc::CLOCK_PROCESS_CPUTIME_ID), wall: Instant::now() }
    }

    fn stop(self, ops: u64) -> Result {
        let (wall, cpu) = (self.wall.elapsed(), cpu_ns(libc::CLOCK_PROCESS_CPUTIME_ID));
        let group_cpu = self.group.as_ref().and_then(Group::cpu_ns);
        Result {
            ops,
            wall_ns: wall.as_nanos() as u64,
            cpu_ns: cpu - self.cpu,
            group_cpu_ns: group_cpu.zip(self.group_cpu).map(|(b, a)| b.saturating_sub(a)),
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
        let mut rng = Rng::new(common.seed ^ 0x5a5a);
        let all = self.size / PAGE as u64;
        self.check_pages(common, (0..pages).map(|_| rng.below(all)))
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

/// A page-aligned buffer, as O_DIRECT wants it.
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    from: usize,
    len: usize,
}

impl Buffer {
    pub(crate) fn new(len: usize) -> Buffer {
        let bytes = vec![0u8; len + PAGE];
        let from = bytes.as_ptr().align_offset(PAGE);
        Buffer { bytes, from, len }
    }
}

impl std::ops::Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[self.from..self.from + self.len]
    }
}

impl std::ops::DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.from..self.from + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common() -> Common {
        Common { seed: 1, data_seed: 5, content: Content::Incompressible, group: None }
    }

    #[test]
    fn loops_read_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let (hot, cold) = (dir.path().join("hot"), dir.path().join("cold"));
        pages::make_file(&hot, 1 << 20, 5).unwrap();
        pages::make_file(&cold, 4 << 20, 5).unwrap();
        let r = hits(&Hits { file: hot.clone(), bs: PAGE, ops: 1000, common: common() }).unwrap();
        assert_eq!((r.ops, r.checked), (1000, 4096));
        let r = misses(&Misses { file: cold.clone(), ops: 512, direct: false, common: common() }).unwrap();
        assert!(r.latency_ns_p50 <= r.latency_ns_p99 && r.latency_ns_mean > 0.0);
        let o = Mixed { hot, cold, threads: 4, ops: 100, direct: false, common: common() };
        assert_eq!(mixed(&o).unwrap().ops, 400);
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
        let o = Misses { file: file.clone(), ops: 257, direct: false, common: common() };
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
        let o = Misses { file, ops: 256, direct: false, common: Common { data_seed: 6, ..common() } };
        assert!(misses(&o).unwrap_err().to_string().contains("WRONG DATA in 2 reads"));
    }
}
