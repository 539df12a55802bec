//! One process of a measurement: operations at random offsets of one file, each timed, for a given time.

use super::histogram::{Counting, Histogram};
use super::pattern::{Pattern, UNIT};
use crate::pages::{self, PAGE, Rng};
use crate::worker::Buffer;
use clap::Args;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use terrace_probe::Op;

/// Operations run before the clock starts, as a share of the time: devices and clocks of processors wake up.
const RAMP_DIVISOR: u32 = 10;
/// Blocks checked to the last byte, outside of the timed part.
const CHECKED: u64 = 64;

/// What a process is to do.
#[derive(Clone, Debug, PartialEq, Args)]
pub struct Load {
    /// The file, laid out by [`super::target`].
    #[arg(long)]
    pub file: PathBuf,
    /// How it is reached.
    #[arg(long)]
    pub way: Way,
    /// get or put.
    #[arg(long, value_parser = op)]
    pub op: Op,
    /// Bytes of an operation.
    #[arg(long)]
    pub transfer: usize,
    /// Bytes of the data set: the beginning of the file.
    #[arg(long)]
    pub data: u64,
    /// Seed of the content: what is there, and for `put` also what is to be there.
    #[arg(long)]
    pub seed: u64,
    /// Which process this is.
    #[arg(long)]
    pub index: u64,
    /// Of how many.
    #[arg(long)]
    pub of: u64,
    /// Time measured.
    #[arg(long)]
    pub millis: u64,
}

/// How a file is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    /// O_DIRECT.
    Direct,
    /// Through the page cache: the file system knows no other way.
    Cached,
    /// It is memory, and copied.
    Mapped,
}

impl Way {
    /// The name on a worker's command line.
    pub fn name(self) -> &'static str {
        match self {
            Way::Direct => "direct",
            Way::Cached => "cached",
            Way::Mapped => "mapped",
        }
    }
}

/// The name of a direction.
pub fn op_name(op: Op) -> &'static str {
    match op {
        Op::Get => "get",
        Op::Put => "put",
    }
}

fn op(text: &str) -> Result<Op, String> {
    [Op::Get, Op::Put].into_iter().find(|op| op_name(*op) == text).ok_or_else(|| "get or put".to_owned())
}

/// What it did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Done {
    /// Times of the operations.
    pub times: Histogram,
    /// From the first to the end of the last; for `put`, until all is stable.
    pub wall_ns: u64,
}

/// Says `ready`, waits for a line, measures, prints [`Done`] as JSON.
pub fn run(load: &Load) -> io::Result<()> {
    let mut measure = Measure::open(load)?;
    println!("ready");
    if io::stdin().lock().read_line(&mut String::new())? == 0 {
        return Ok(()); // Whoever wanted to know is gone.
    }
    println!("{}", serde_json::to_string(&measure.run()?)?);
    Ok(())
}

struct Measure<'a> {
    load: &'a Load,
    store: Store,
    pattern: Pattern,
    buf: Buffer,
    rng: Rng,
}

impl Measure<'_> {
    fn open(load: &Load) -> io::Result<Measure<'_>> {
        if load.of == 0 || load.index >= load.of || load.data / (load.transfer.max(1) as u64) < load.of {
            return Err(io::Error::other("more processes than blocks"));
        }
        Ok(Measure {
            load,
            store: Store::open(load)?,
            pattern: Pattern::new(load.seed),
            buf: Buffer::new(UNIT),
            rng: Rng::new(load.seed ^ (load.index + 1) << 32),
        })
    }

    fn run(&mut self) -> io::Result<Done> {
        let time = Duration::from_millis(self.load.millis);
        self.repeat(time / RAMP_DIVISOR, &mut Counting::default())?;
        let mut times = Counting::default();
        let start = Instant::now();
        let last = self.repeat(time, &mut times)?;
        if self.load.op == Op::Put {
            self.store.sync()?;
        }
        let wall_ns = start.elapsed().as_nanos() as u64;
        self.verify(&last)?;
        Ok(Done { times: times.done(), wall_ns })
    }

    /// Operates until the time is over; the last blocks that were touched.
    fn repeat(&mut self, time: Duration, times: &mut Counting) -> io::Result<Vec<u64>> {
        let (start, mut last) = (Instant::now(), Vec::new());
        loop {
            let page = self.page();
            times.add(self.one(page)?);
            match last.len() as u64 == CHECKED {
                true => last[(page % CHECKED) as usize] = page,
                false => last.push(page),
            }
            if start.elapsed() >= time {
                return Ok(last);
            }
        }
    }

    /// The first page of a random block. A writer has blocks of its own, so that it knows what is in them.
    fn page(&mut self) -> u64 {
        let blocks = self.load.data / self.load.transfer as u64;
        let mine = match self.load.op {
            Op::Get => 0..blocks,
            Op::Put => blocks * self.load.index / self.load.of..blocks * (self.load.index + 1) / self.load.of,
        };
        (mine.start + self.rng.below(mine.end - mine.start)) * (self.load.transfer / PAGE) as u64
    }

    /// One operation; its time, ns.
    fn one(&mut self, page: u64) -> io::Result<u64> {
        let (bytes, offset) = (self.load.transfer, page * PAGE as u64);
        match self.load.op {
            Op::Get => {
                let start = Instant::now();
                self.store.get(&mut self.buf[..bytes], offset)?;
                let ns = start.elapsed().as_nanos() as u64;
                let mut read = (page..).zip(self.buf[..bytes].chunks(PAGE));
                if read.any(|(number, data)| !pages::looks_right(number, data)) {
                    return Err(wrong(page));
                }
                Ok(ns)
            }
            Op::Put => {
                let block = self.pattern.block(page, bytes);
                let start = Instant::now();
                self.store.put(block, offset)?;
                Ok(start.elapsed().as_nanos() as u64)
            }
        }
    }

    /// Reads blocks again and checks every byte.
    fn verify(&mut self, blocks: &[u64]) -> io::Result<()> {
        if self.load.op == Op::Put {
            self.store.forget();
        }
        for page in blocks {
            let data = &mut self.buf[..self.load.transfer];
            self.store.get(data, page * PAGE as u64)?;
            if !self.pattern.check(*page, data) {
                return Err(wrong(*page));
            }
        }
        Ok(())
    }
}

fn wrong(page: u64) -> io::Error {
    io::Error::other(format!(
        "WRONG DATA at byte {}: this storage does not keep what it is given",
        page * PAGE as u64
    ))
}

/// The file, as a disk or as memory.
enum Store {
    Disk(File),
    Memory(Map),
}

impl Store {
    fn open(load: &Load) -> io::Result<Store> {
        let file = open(&load.file, load.way == Way::Direct)?;
        if load.way == Way::Mapped {
            return Map::new(&file, load.data as usize).map(Store::Memory);
        }
        // SAFETY: takes a descriptor and numbers only.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
        Ok(Store::Disk(file))
    }

    #[inline]
    fn get(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        match self {
            Store::Disk(file) => file.read_exact_at(out, offset),
            Store::Memory(map) => {
                let at = map.range(offset, out.len());
                // SAFETY: the range lies in the mapping. Other processes write the same bytes at most where nobody reads.
                unsafe { std::ptr::copy_nonoverlapping(at, out.as_mut_ptr(), out.len()) };
                Ok(())
            }
        }
    }

    #[inline]
    fn put(&self, data: &[u8], offset: u64) -> io::Result<()> {
        match self {
            Store::Disk(file) => file.write_all_at(data, offset),
            Store::Memory(map) => {
                let at = map.range(offset, data.len());
                // SAFETY: the range lies in the mapping, and is this process's alone to write.
                unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), at, data.len()) };
                Ok(())
            }
        }
    }

    fn sync(&self) -> io::Result<()> {
        match self {
            Store::Disk(file) => file.sync_data(),
            Store::Memory(_) => Ok(()),
        }
    }

    /// The next reads ask the device.
    fn forget(&self) {
        if let Store::Disk(file) = self {
            forget(file);
        }
    }
}

/// Takes the clean pages of a file out of the page cache, as far as its file system does.
pub fn forget(file: &File) {
    // SAFETY: takes a descriptor and numbers only.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

/// Opens a file for reading and writing.
pub fn open(path: &Path, direct: bool) -> io::Result<File> {
    let flags = if direct { libc::O_DIRECT } else { 0 };
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)
}

/// A file as memory, all of it present.
struct Map {
    at: *mut u8,
    bytes: usize,
}

impl Map {
    fn new(file: &File, bytes: usize) -> io::Result<Map> {
        let (how, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, how, shared, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Map { at: at.cast(), bytes })
    }

    fn range(&self, offset: u64, bytes: usize) -> *mut u8 {
        assert!(offset as usize + bytes <= self.bytes);
        // SAFETY: inside of the mapping, as was just seen.
        unsafe { self.at.add(offset as usize) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and nobody has an address in it any more.
        unsafe { libc::munmap(self.at.cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(file: &Path, op: Op, way: Way) -> Load {
        let file = file.to_owned();
        Load { file, way, op, transfer: 16 << 10, data: 4 << 20, seed: 5, index: 1, of: 3, millis: 20 }
    }

    fn lay_out(file: &Path, seed: u64) {
        let mut pattern = Pattern::new(seed);
        let all: Vec<u8> = (0..4u64).flat_map(|unit| pattern.block(unit * 256, UNIT).to_vec()).collect();
        std::fs::write(file, all).unwrap();
    }

    fn run(load: &Load) -> io::Result<Done> {
        Measure::open(load)?.run()
    }

    #[test]
    fn what_is_read_is_checked() {
        let file = tempfile::NamedTempFile::new().unwrap();
        lay_out(file.path(), 5);
        for way in [Way::Cached, Way::Mapped] {
            let done = run(&load(file.path(), Op::Get, way)).unwrap();
            assert!(done.times.count > 0 && done.wall_ns >= 20_000_000, "{done:?}");
        }
        lay_out(file.path(), 6);
        let why = run(&load(file.path(), Op::Get, Way::Cached)).unwrap_err().to_string();
        assert!(why.contains("WRONG DATA"), "another seed: {why}");
        // Pages in each other's place, which the quick check finds.
        let mut all = std::fs::read(file.path()).unwrap();
        all.rotate_left(PAGE);
        std::fs::write(file.path(), &all).unwrap();
        assert!(run(&load(file.path(), Op::Get, Way::Mapped)).is_err());
        assert!(run(&Load { of: 1000, ..load(file.path(), Op::Put, Way::Cached) }).is_err(), "256 blocks");
    }

    #[test]
    fn a_writer_stays_in_its_part() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for way in [Way::Cached, Way::Mapped] {
            lay_out(file.path(), 5);
            let put = Load { seed: 9, millis: 60, ..load(file.path(), Op::Put, way) };
            run(&put).unwrap();
            let (old, new) = (Pattern::new(5), Pattern::new(9));
            let all = std::fs::read(file.path()).unwrap();
            let blocks: Vec<&[u8]> = all.chunks(put.transfer).collect();
            let written = (0..).zip(&blocks).filter(|(i, block)| new.check(i * 4, block)).count();
            assert!(written > 0);
            for (i, block) in (0u64..).zip(&blocks) {
                let mine = (85..170).contains(&i);
                assert!(old.check(i * 4, block) || (mine && new.check(i * 4, block)), "block {i}");
            }
        }
    }
}
