//! Cost of a hit in a device tier: reads under `terrace run` of pages on the tier's device, beside bare
//! O_DIRECT reads of the tier's file. One thread alternates between both, so that both see the device in the
//! same state.
//!
//! The file is larger than terrace's memory and smaller than memory and tier together. It is read in order
//! until the tier holds the rest, so most of its first pages have left memory. Each of these is then read
//! once, in random order: a page promoted by a hit is not read again. The policy keeps an unknown part of the
//! file in memory. `terrace stat` counts the hits of memory and of the device; the device's times are those
//! left without the fastest (memory) and the slowest (source) ones. With a share of device hits below
//! [`HITS_MIN`], or of source reads above [`MISSES_MAX`], there is no result.

use crate::buffer::Buffer;
use crate::content::Content;
use crate::meters::{Counted, Meters};
use crate::pages::{self, MIB, PAGE};
use crate::reader::{Common, Latency, Reader, order};
use clap::Args;
use fastrand::Rng;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Options of the loop.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// The file to read through terrace.
    #[arg(long)]
    file: PathBuf,
    /// The file or block device of the tier.
    #[arg(long)]
    tier: PathBuf,
    /// terrace's memory: a last part of the file of twice this size is not measured.
    #[arg(long)]
    memory_mib: u64,
    /// Reads of each kind.
    #[arg(long)]
    ops: u64,
    /// Maximum number of sequential passes until the device holds enough of the pages.
    #[arg(long, default_value_t = 20)]
    fills_max: u32,
    /// Seed of the order.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Content of the file's pages.
    #[arg(long, default_value = "incompressible")]
    content: Content,
}

/// Minimum share of device hits among the reads.
const HITS_MIN: f64 = 0.6;
/// Maximum share of reads answered by the source: these are slower than most hits of the device, but not than
/// all.
const MISSES_MAX: f64 = 0.05;

/// Runs the loop.
///
/// # Errors
/// Wrong data; a tier that holds too little of the file.
pub fn run(o: &Options) -> io::Result<BTreeMap<String, f64>> {
    let file = Reader::open(&o.file, false)?;
    let common = Common::of(o.seed, o.content);
    let meters = Meters::of_step();
    let pages_of = |memory: u64| (memory * o.memory_mib * MIB).min(file.size) / PAGE as u64;
    let kept = pages_of(2);
    // All pages that do not fit into memory, less the part that the final check tolerates.
    let wanted = (file.pages() - pages_of(1)) as f64 - MISSES_MAX / 2.0 * file.pages() as f64;
    let fills = fill(o, &file, &common, &meters, wanted)?;
    file.expect_random();
    let order = order(0..file.pages() - kept, o.ops, o.seed)?;
    let device = Bare::open(&o.tier)?;
    let before = meters.read();
    let (hits, bare) = alternate(&file, &device, &order, o.seed)?;
    let counted = meters.since(&before);
    file.check_pages(&common, order.iter().rev().take(1024).map(|&page| u64::from(page)))?;
    let of_device = Answered::of(&counted, o.ops)?;
    let share = of_device.device as f64 / o.ops as f64;
    let (hit, bare) = (Latency::of(of_device.times(hits)), Latency::of(bare));
    let mut numbers = counted;
    let mut put = |name: &str, n: f64| {
        numbers.insert(name.into(), n);
    };
    put("p50_us", hit.p50_us);
    put("p99_us", hit.p99_us);
    put("mean_us", hit.mean_us);
    put("bare_p50_us", bare.p50_us);
    put("bare_p99_us", bare.p99_us);
    put("bare_mean_us", bare.mean_us);
    put("p50_over_bare", hit.p50_us / bare.p50_us);
    put("p50_more_us", hit.p50_us - bare.p50_us);
    put("device_hit_share", share);
    put("fills", f64::from(fills));
    put("bytes", (u64::from(fills) * file.size + (o.ops + 1024) * PAGE as u64) as f64);
    Ok(numbers)
}

/// Reads the file in order until `wanted` pages are device hits. Returns the number of passes.
fn fill(o: &Options, file: &Reader, common: &Common, meters: &Meters, wanted: f64) -> io::Result<u32> {
    for fills in 1..=o.fills_max {
        let before = meters.read();
        file.fill(common, &mut Buffer::new(1 << 20))?;
        // The daemon writes to the tier after the reads.
        std::thread::sleep(Duration::from_secs(1));
        if meters.since(&before).get("device_hits").is_some_and(|hits| *hits >= wanted) {
            return Ok(fills);
        }
    }
    Ok(o.fills_max)
}

/// Number of reads answered by memory and by the device.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Answered {
    memory: usize,
    device: usize,
}

impl Answered {
    /// From the counters. An error if too few were hits of the device.
    fn of(counted: &Counted, ops: u64) -> io::Result<Answered> {
        let tier = |kind: &str| counted.get(&format!("{kind}_hits")).copied();
        let device =
            tier("device").ok_or_else(|| io::Error::other("terrace stat shows no tier of kind device"))?;
        let memory = tier("dram").unwrap_or(0.0) + tier("compressed").unwrap_or(0.0);
        let share = |n: f64| n / ops as f64;
        if share(device) < HITS_MIN || share(memory + device) < 1.0 - MISSES_MAX {
            return Err(io::Error::other(format!(
                "of the reads {:.1} % were hits of the device and {:.1} % of memory: the file is not in the tier",
                share(device) * 100.0,
                share(memory) * 100.0
            )));
        }
        Ok(Answered { memory: memory as usize, device: device as usize })
    }

    /// The times of the device's hits among those of all reads: memory is faster, the source is slower.
    fn times(self, mut all: Vec<u32>) -> Vec<u32> {
        all.sort_unstable();
        all.into_iter().skip(self.memory).take(self.device).collect()
    }
}

/// Times of both kinds of reads, in nanoseconds; the order within a pair alternates.
fn alternate(file: &Reader, device: &Bare, order: &[u32], seed: u64) -> io::Result<(Vec<u32>, Vec<u32>)> {
    let mut rng = Rng::with_seed(seed ^ 0x7469_6572);
    let (mut buf, mut beside) = (Buffer::new(PAGE), Buffer::new(PAGE));
    let (mut hits, mut bare) = (Vec::with_capacity(order.len()), Vec::with_capacity(order.len()));
    for (i, &page) in order.iter().enumerate() {
        let at = device.any_page(&mut rng);
        for device_first in [i % 2 == 0, i % 2 != 0] {
            let start = Instant::now();
            if device_first {
                device.read(&mut beside[..PAGE], at)?;
                bare.push(start.elapsed().as_nanos() as u32);
            } else {
                file.read(&mut buf[..PAGE], u64::from(page) * PAGE as u64)?;
                hits.push(start.elapsed().as_nanos() as u32);
            }
        }
        if !pages::looks_right(u64::from(page), &buf) {
            return Err(io::Error::other(format!("WRONG DATA in page {page}")));
        }
    }
    Ok((hits, bare))
}

/// A file read without any cache or library, by direct system calls that the preload library does not
/// interpose.
struct Bare {
    file: File,
    /// Offsets of written data: the kernel answers holes and unwritten extents without the device.
    written: Vec<(u64, u64)>,
    bytes: u64,
}

impl Bare {
    fn open(path: &Path) -> io::Result<Bare> {
        let name = std::ffi::CString::new(path.as_os_str().as_bytes())?;
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_DIRECT;
        // SAFETY: `name` is a C string that outlives the call.
        let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, name.as_ptr(), flags, 0) };
        if fd < 0 {
            return Err(terrace_output::named(path)(io::Error::last_os_error()));
        }
        // SAFETY: openat returned this descriptor, which is owned by nothing else.
        let file = unsafe { File::from_raw_fd(fd as i32) };
        let written = written(&file);
        let bytes = written.iter().map(|(from, to)| to - from).sum();
        match bytes {
            0 => Err(io::Error::other(format!("{}: it has no written data", path.display()))),
            _ => Ok(Bare { file, written, bytes }),
        }
    }

    /// Offset of a random written page.
    fn any_page(&self, rng: &mut Rng) -> u64 {
        let mut at = rng.u64(..self.bytes) / PAGE as u64 * PAGE as u64;
        for (from, to) in &self.written {
            if at < to - from {
                return from + at;
            }
            at -= to - from;
        }
        self.written[0].0
    }

    fn read(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        let fd = self.file.as_raw_fd();
        // SAFETY: the buffer is valid for its length during the call.
        let n = unsafe { libc::syscall(libc::SYS_pread64, fd, buf.as_mut_ptr(), buf.len(), at) };
        match n {
            n if n == buf.len() as i64 => Ok(()),
            n if n < 0 => Err(io::Error::last_os_error()),
            n => Err(io::Error::other(format!("short read of {n} bytes at {at}"))),
        }
    }
}

/// Ranges with data, in whole pages.
fn written(file: &File) -> Vec<(u64, u64)> {
    let seek = |from: i64, whence| {
        // SAFETY: takes a descriptor and numbers only.
        unsafe { libc::lseek(file.as_raw_fd(), from, whence) }
    };
    let (mut all, mut at) = (Vec::new(), 0);
    let page = PAGE as i64;
    loop {
        let from = seek(at, libc::SEEK_DATA);
        let to = if from < 0 { -1 } else { seek(from, libc::SEEK_HOLE) };
        if to < 0 {
            return all;
        }
        let (first, last) = ((from + page - 1) / page * page, to / page * page);
        if first < last {
            all.push((first as u64, last as u64));
        }
        at = to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn only_written_pages_are_read() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("tier");
        let file = File::create(&path).unwrap();
        file.set_len(1 << 20).unwrap();
        assert!(Bare::open(&path).is_err());
        file.write_all_at(&[7; 8 * PAGE], 64 * PAGE as u64).unwrap();
        file.sync_all().unwrap();
        let Ok(bare) = Bare::open(&path) else { return };
        let mut rng = Rng::with_seed(3);
        let mut buf = Buffer::new(PAGE);
        for _ in 0..100 {
            let at = bare.any_page(&mut rng);
            assert!((64 * PAGE as u64..72 * PAGE as u64).contains(&at), "{at}");
            bare.read(&mut buf[..PAGE], at).unwrap();
            assert_eq!(buf[17], 7);
        }
    }

    #[test]
    fn too_few_device_hits_are_no_result() {
        let of = |hits: &[(&str, f64)]| {
            Answered::of(&hits.iter().map(|(name, n)| ((*name).into(), *n)).collect(), 100)
        };
        assert!(of(&[("dram_hits", 100.0)]).is_err());
        let told = of(&[("dram_hits", 45.0), ("device_hits", 50.0)]).unwrap_err().to_string();
        assert!(told.contains("50.0 % were hits of the device and 45.0 % of memory"), "{told}");
        assert!(of(&[("dram_hits", 4.0), ("device_hits", 90.0)]).is_err(), "the source answered 6");
        let good = of(&[("dram_hits", 20.0), ("compressed_hits", 5.0), ("device_hits", 73.0)]).unwrap();
        assert_eq!(good, Answered { memory: 25, device: 73 });
    }

    #[test]
    fn times_of_memory_and_source_are_left_out() {
        let answered = Answered { memory: 2, device: 3 };
        assert_eq!(answered.times(vec![30, 1, 900, 31, 2, 29]), [29, 30, 31]);
    }
}
