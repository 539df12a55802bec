//! foyer's hybrid cache under the load `reads` of terrace-bench: the same pages of the same file in the same
//! order, with the same memory and a tier of the same size.
//!
//! The key is a page number, the value its 4 KiB. A miss reads the source with O_DIRECT. The disk cache is in
//! a directory on the tier's device, read and written with O_DIRECT, as foyer recommends on a file system.
//!
//! **Memory.** `--memory` limits the whole process. foyer's own capacity counts values only. So other memory
//! is subtracted first (the index of the disk cache, flush buffers, the program), and each value also weighs
//! its records. `rss_max_mib` in the results shows the actual maximum.
//!
//! Three settings favour foyer. All threads share one heap (separate heaps wasted a quarter of 96 MiB). A hit
//! is a reference, while a read through the kernel or terrace is a copy. Flush buffers are smaller than by
//! default, which leaves more memory for values.

use clap::{Args, Parser, Subcommand, ValueEnum};
use foyer::{
    BlockEngineConfig, DeviceBuilder, FsDeviceBuilder, HybridCache, HybridCacheBuilder, IoEngineConfig,
    PsyncIoEngineConfig, Source, UringIoEngineConfig,
};
use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use terrace_bench::buffer::Buffer;
use terrace_bench::pages::{MIB, PAGE};
use terrace_bench::pattern::Pages;
use terrace_bench::reads::{CHECKED, Clock, Options, Phase, Tally};

type Fault = Box<dyn Error + Send + Sync>;
type Cache = HybridCache<u64, Vec<u8>>;

/// foyer's hybrid cache under loads of terrace-bench.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Tasks that read pages by a pattern for a given time; prints its numbers as JSON.
    Reads(Reads),
}

#[derive(Clone, Debug, Args)]
struct Reads {
    #[command(flatten)]
    load: Options,
    /// Maximum memory of this process, bytes
    #[arg(long)]
    memory: u64,
    /// Directory of the disk cache.
    #[arg(long)]
    tier: PathBuf,
    /// Size of the disk cache, bytes
    #[arg(long)]
    tier_bytes: u64,
    /// I/O engine of the disk cache. The thread of `uring` never sleeps: with two processors it occupied one
    /// of them, and p99 was five times as high
    #[arg(long, default_value = "psync")]
    engine: Engine,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Engine {
    Uring,
    Psync,
}

/// Memory of the program, its runtime and the allocator's waste, beside all caches (measured).
const PROGRAM: u64 = 22 * MIB;
/// Flush buffers; the queue in front of them holds as much again.
const BUFFERS: u64 = 4 * MIB;
/// An entry on disk is its page and a header, in whole pages.
const ON_DISK: u64 = 2 * PAGE as u64;
/// Memory of the disk cache's index, for each entry.
const INDEX: u64 = 64;
/// Memory of a value's records.
const RECORDS: usize = 224;

fn main() -> Result<(), Fault> {
    // SAFETY: takes numbers only; no thread was started yet.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    let Command::Reads(reads) = Cli::parse().command;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let numbers = runtime.block_on(run(reads))?;
    println!("{}", serde_json::to_string(&numbers)?);
    // Exits without writing memory to the disk cache, which is never opened again.
    std::process::exit(0)
}

async fn run(reads: Reads) -> Result<BTreeMap<String, f64>, Fault> {
    let reads = Arc::new(reads);
    let cache = open(&reads).await?;
    let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(&reads.load.file)?;
    let pages = reads.load.pages(file.metadata()?.len());
    let file = Arc::new(file);
    let clock = Clock::start(&reads.load);
    let watching = std::thread::spawn(move || clock.watch());
    let tasks: Vec<_> = (0..reads.load.threads)
        .map(|task| {
            let (reads, pages, reader) = (reads.clone(), pages.clone(), reader(&cache, &file));
            tokio::spawn(async move { read(&reads, &reader, &pages, clock, task).await })
        })
        .collect();
    let (mut tally, mut sources) = (Tally::default(), Sources::default());
    for task in tasks {
        let (of, from) = task.await??;
        tally = tally.join(&of);
        sources = sources.join(from);
    }
    let watched = watching.join().map_err(|_| "the watching thread panicked")?;
    let mut numbers = tally.numbers(&watched)?;
    check(&reads, &reader(&cache, &file), &pages).await?;
    numbers.insert("dram_hits".into(), sources.memory as f64);
    numbers.insert("device_hits".into(), sources.disk as f64);
    numbers.insert("misses".into(), sources.outer as f64);
    numbers.insert("foyer_written_mib".into(), cache.statistics().disk_write_bytes() as f64 / MIB as f64);
    numbers.insert("rss_max_mib".into(), rss_max_mib());
    Ok(numbers)
}

/// Opens an empty cache in `reads.memory` bytes.
async fn open(reads: &Reads) -> Result<Cache, Fault> {
    let beside = PROGRAM + 2 * BUFFERS + reads.tier_bytes / ON_DISK * INDEX;
    let memory = reads.memory.checked_sub(beside).filter(|bytes| *bytes >= MIB).ok_or_else(|| {
        format!("{} MiB are too little: {} MiB are needed beside values", reads.memory / MIB, beside / MIB)
    })?;
    std::fs::create_dir_all(&reads.tier)?;
    let device = FsDeviceBuilder::new(&reads.tier)
        .with_capacity(reads.tier_bytes as usize)
        .with_direct(true)
        .build()?;
    let engine: Box<dyn IoEngineConfig> = match reads.engine {
        Engine::Uring => UringIoEngineConfig::new().boxed(),
        Engine::Psync => PsyncIoEngineConfig::new().boxed(),
    };
    let cache = HybridCacheBuilder::new()
        .with_flush_on_close(false)
        .memory(memory as usize)
        .with_weighter(|_key: &u64, value: &Vec<u8>| value.len() + RECORDS)
        .storage()
        .with_io_engine_config(engine)
        .with_engine_config(BlockEngineConfig::new(device).with_buffer_pool_size(BUFFERS as usize));
    Ok(cache.build().await?)
}

/// Reads pages through the cache.
#[derive(Clone)]
struct Reader {
    cache: Cache,
    file: Arc<File>,
}

fn reader(cache: &Cache, file: &Arc<File>) -> Reader {
    Reader { cache: cache.clone(), file: file.clone() }
}

impl Reader {
    async fn read(&self, page: u64) -> Result<foyer::HybridCacheEntry<u64, Vec<u8>>, Fault> {
        let file = self.file.clone();
        let fetch = move || async move {
            let task = tokio::task::spawn_blocking(move || from_source(&file, page));
            task.await.map_err(io::Error::other)?
        };
        Ok(self.cache.get_or_fetch(&page, fetch).await?)
    }
}

fn from_source(file: &File, page: u64) -> io::Result<Vec<u8>> {
    let mut buf = Buffer::new(PAGE);
    file.read_exact_at(&mut buf, page * PAGE as u64)?;
    Ok(buf.to_vec())
}

/// Number of counted reads answered by each source.
#[derive(Clone, Copy, Debug, Default)]
struct Sources {
    memory: u64,
    disk: u64,
    outer: u64,
}

impl Sources {
    fn add(&mut self, source: Source) {
        match source {
            Source::Memory => self.memory += 1,
            Source::Disk => self.disk += 1,
            Source::Outer => self.outer += 1,
        }
    }

    fn join(self, other: Sources) -> Sources {
        let (memory, disk) = (self.memory + other.memory, self.disk + other.disk);
        Sources { memory, disk, outer: self.outer + other.outer }
    }
}

async fn read(
    reads: &Reads,
    reader: &Reader,
    pages: &Pages,
    clock: Clock,
    task: u64,
) -> Result<(Tally, Sources), Fault> {
    /// Reads after which a task yields: hits never wait by themselves.
    const TURN: u64 = 64;
    let (mut tally, mut sources) = (Tally::default(), Sources::default());
    let mut begun = Instant::now();
    for phase in [Phase::Warm, Phase::Measured] {
        let mut rng = reads.load.draws(task, phase);
        let mut n = 0;
        while clock.phase(begun) == phase {
            let page = pages.draw(&mut rng);
            let entry = reader.read(page).await?;
            let ended = Instant::now();
            tally.add(phase, page, entry.value(), ended - begun);
            if phase == Phase::Measured {
                sources.add(entry.source());
            }
            n += 1;
            begun = ended;
            if n % TURN == 0 {
                tokio::task::yield_now().await;
            }
        }
    }
    Ok((tally, sources))
}

/// Reads a sample through the cache and checks every byte.
async fn check(reads: &Reads, reader: &Reader, pages: &Pages) -> Result<(), Fault> {
    let mut rng = reads.load.draws(reads.load.threads, Phase::Measured);
    for _ in 0..CHECKED {
        let page = pages.draw(&mut rng);
        reads.load.check(page, reader.read(page).await?.value())?;
    }
    Ok(())
}

fn rss_max_mib() -> f64 {
    // SAFETY: a plain structure of numbers, for the call to fill in.
    let mut usage = unsafe { std::mem::zeroed::<libc::rusage>() };
    // SAFETY: `usage` is valid for the call.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    usage.ru_maxrss as f64 / 1024.0
}
