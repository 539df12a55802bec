//! Cost of single calls: opening a small file, writing, writing with fdatasync, writing while another thread
//! syncs, starting a program. Runs plain and under terrace, like all loops of this crate. Written data are
//! read back and checked.

use crate::buffer::Buffer;
use clap::Args;
use fastrand::Rng;
use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Options of the calls.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Working directory; nothing is left there.
    #[arg(long)]
    pub(crate) dir: PathBuf,
    /// Seconds for each kind of call.
    #[arg(long, default_value_t = 1.0)]
    pub(crate) seconds: f64,
    /// Seed of the offsets.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// Mean times of a call, and the longest of one kind.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Result {
    /// Opening and closing a file of 6 KiB that was read before.
    pub(crate) open_close_us: f64,
    /// Writing 8 KiB into a file of 32 MiB.
    pub(crate) pwrite_us: f64,
    /// The same write, followed by fdatasync.
    pub(crate) pwrite_fdatasync_us: f64,
    /// The plain write, while another thread calls fdatasync on the file without a pause.
    pub(crate) pwrite_beside_sync_us: f64,
    /// The longest of these writes.
    pub(crate) pwrite_beside_sync_max_us: f64,
    /// Starting a program and waiting for its exit.
    pub(crate) exec_us: f64,
    /// Blocks and files with checked content.
    pub(crate) checked: u64,
}

/// Number of small files, like the headers that a compiler reads.
const FILES: u64 = 300;
const FILE_BYTES: usize = 6 << 10;
/// Size of the written file.
const DATA_BYTES: u64 = 32 << 20;
/// Size of a block in it.
const BLOCK: usize = 8 << 10;
const BLOCKS: u64 = DATA_BYTES / BLOCK as u64;
/// Minimum number of programs started, for a meaningful mean.
const EXECS_MIN: u64 = 20;

/// Measures each kind of call in turn.
///
/// # Errors
/// A call that fails; content that differs from the written data.
pub fn run(o: &Options) -> io::Result<Result> {
    let dir = o.dir.join("terrace-bench-calls");
    fs::create_dir_all(&dir)?;
    let result = measure(o, &dir);
    fs::remove_dir_all(&dir)?;
    result
}

fn measure(o: &Options, dir: &Path) -> io::Result<Result> {
    let time = Duration::from_secs_f64(o.seconds);
    let (open_close_us, mut checked) = opens(dir, time)?;
    let mut data = Blocks::make(&dir.join("data"), o.seed)?;
    let pwrite_us = data.timed(time, |data| data.write())?;
    let pwrite_fdatasync_us = data.timed(time, |data| data.write().and_then(|()| data.file.sync_data()))?;
    let (pwrite_beside_sync_us, pwrite_beside_sync_max_us) = data.beside_syncs(time)?;
    checked += data.check()?;
    let exec_us = execs(time)?;
    Ok(Result {
        open_close_us,
        pwrite_us,
        pwrite_fdatasync_us,
        pwrite_beside_sync_us,
        pwrite_beside_sync_max_us,
        exec_us,
        checked,
    })
}

/// Repeats a call until the time is over. Returns its mean time in microseconds.
fn mean_us(time: Duration, min: u64, mut call: impl FnMut(u64) -> io::Result<()>) -> io::Result<f64> {
    let start = Instant::now();
    let mut calls = 0;
    while calls < min || start.elapsed() < time {
        call(calls)?;
        calls += 1;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / calls as f64)
}

fn opens(dir: &Path, time: Duration) -> io::Result<(f64, u64)> {
    let path = |n: u64| dir.join(format!("header{n}.h"));
    let content = |n: u64| -> Vec<u8> { n.to_le_bytes().repeat(FILE_BYTES / 8) };
    for n in 0..FILES {
        File::create(path(n))?.write_all(&content(n))?;
    }
    for n in 0..FILES {
        if fs::read(path(n))? != content(n) {
            return Err(io::Error::other(format!("WRONG DATA in {}", path(n).display())));
        }
    }
    let paths: Vec<PathBuf> = (0..FILES).map(path).collect();
    let us = mean_us(time, FILES, |n| File::open(&paths[(n % FILES) as usize]).map(drop))?;
    Ok((us, FILES))
}

fn execs(time: Duration) -> io::Result<f64> {
    mean_us(time, EXECS_MIN, |_| match Command::new("true").status()? {
        status if status.success() => Ok(()),
        status => Err(io::Error::other(format!("true: {status}"))),
    })
}

/// A file of blocks that hold their number of writes.
struct Blocks {
    file: File,
    rng: Rng,
    buf: Buffer,
    /// Writes of each block.
    written: Vec<u64>,
}

impl Blocks {
    fn make(path: &Path, seed: u64) -> io::Result<Blocks> {
        let file = File::options().read(true).write(true).create_new(true).open(path)?;
        let mut blocks = Blocks {
            file,
            rng: Rng::with_seed(seed),
            buf: Buffer::new(BLOCK),
            written: vec![0; BLOCKS as usize],
        };
        (0..BLOCKS).try_for_each(|block| blocks.write_block(block))?;
        blocks.file.sync_data()?;
        Ok(blocks)
    }

    /// Writes a random block once more.
    fn write(&mut self) -> io::Result<()> {
        let block = self.rng.u64(..BLOCKS);
        self.write_block(block)
    }

    fn write_block(&mut self, block: u64) -> io::Result<()> {
        let times = &mut self.written[block as usize];
        *times += 1;
        for (at, word) in [(0, block), (8, *times), (BLOCK - 8, *times)] {
            self.buf[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        self.file.write_all_at(&self.buf, block * BLOCK as u64)
    }

    fn timed(
        &mut self,
        time: Duration,
        mut call: impl FnMut(&mut Blocks) -> io::Result<()>,
    ) -> io::Result<f64> {
        mean_us(time, 1, |_| call(self))
    }

    /// Writes while another thread syncs. Returns the mean and the longest time, in microseconds.
    fn beside_syncs(&mut self, time: Duration) -> io::Result<(f64, f64)> {
        let (syncing, over) = (self.file.try_clone()?, AtomicBool::new(false));
        std::thread::scope(|scope| {
            let syncer = scope.spawn(|| -> io::Result<()> {
                while !over.load(Ordering::Relaxed) {
                    syncing.sync_data()?;
                }
                Ok(())
            });
            let mut longest = Duration::ZERO;
            let mean = mean_us(time, 1, |_| {
                let start = Instant::now();
                let written = self.write();
                longest = longest.max(start.elapsed());
                written
            });
            over.store(true, Ordering::Relaxed);
            syncer.join().expect("the syncing thread does not panic")?;
            Ok((mean?, longest.as_secs_f64() * 1e6))
        })
    }

    /// Checks that each block holds its last write.
    fn check(&mut self) -> io::Result<u64> {
        for (block, times) in (0u64..).zip(&self.written) {
            self.file.read_exact_at(&mut self.buf, block * BLOCK as u64)?;
            let word = |at: usize| u64::from_le_bytes(self.buf[at..at + 8].try_into().expect("eight bytes"));
            if (word(0), word(8), word(BLOCK - 8)) != (block, *times, *times) {
                let found = (word(0), word(8), word(BLOCK - 8));
                return Err(io::Error::other(format!(
                    "WRONG DATA: block {block}, written {times} times, has {found:?}"
                )));
            }
        }
        Ok(BLOCKS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_timed_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let result = run(&Options { dir: dir.path().into(), seconds: 0.01, seed: 3 }).unwrap();
        let times = [
            result.open_close_us,
            result.pwrite_us,
            result.pwrite_fdatasync_us,
            result.pwrite_beside_sync_us,
        ];
        assert!(times.iter().chain([&result.exec_us]).all(|us| *us > 0.0), "{result:?}");
        assert!(result.pwrite_beside_sync_max_us >= result.pwrite_beside_sync_us);
        assert_eq!(result.checked, FILES + BLOCKS);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn lost_write_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let mut blocks = Blocks::make(&path, 3).unwrap();
        assert_eq!(blocks.check().unwrap(), BLOCKS);
        let before = fs::read(&path).unwrap();
        blocks.write_block(7).unwrap();
        fs::write(&path, before).unwrap();
        assert!(blocks.check().unwrap_err().to_string().contains("WRONG DATA: block 7, written 2 times"));
    }
}
