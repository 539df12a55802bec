//! In the virtual machine: sets a cache up over devices in memory, reads, and tells what the kernel counted at the devices.

use super::plan::{self, Counts, PAGE, Plan, System};
use crate::vm::command::{output, wrong};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Bytes of a sector.
const SECTOR: u64 = 512;
/// A block of dm-cache: the smallest that it takes.
const BLOCK_SECTORS: u64 = 64;
/// Memory for dm-cache's metadata.
const METADATA_MIB: u64 = 16;
/// bcache keeps its superblock in front of the data.
const BCACHE_FRONT_MIB: u64 = 1;

/// Does what the plan says.
pub fn run() -> io::Result<()> {
    let plan: Plan = serde_json::from_str(&fs::read_to_string(Path::new("/").join(plan::PLAN))?)?;
    let source_mib = (plan.span_pages * PAGE).div_ceil(1 << 20) + BCACHE_FRONT_MIB;
    // The module makes nullb0 itself when it is loaded.
    let source = NullBlock::new(1, source_mib)?;
    let cache = NullBlock::new(2, (plan.device_pages * PAGE) >> 20)?;
    let metadata = NullBlock::new(3, METADATA_MIB)?;
    let cached = match plan.system {
        System::Bcache => set_up_bcache(&source, &cache, plan.bucket_kib())?,
        System::DmCache => set_up_dm_cache(&source, &cache, &metadata)?,
    };
    std::thread::sleep(Duration::from_secs(1));
    let before = (source.counters()?, cache.counters()?, metadata.counters()?);
    replay(&cached)?;
    // Migrations that are under way.
    std::thread::sleep(Duration::from_secs(3));
    let after = (source.counters()?, cache.counters()?, metadata.counters()?);
    let written = |after: Counters, before: Counters| (after.written - before.written) * SECTOR;
    let counts = Counts {
        source_reads: after.0.reads - before.0.reads,
        source_read_bytes: (after.0.read - before.0.read) * SECTOR,
        cache_written_bytes: written(after.1, before.1) + written(after.2, before.2),
    };
    println!("{} {}", plan::RESULT, serde_json::to_string(&counts)?);
    tell_own_counters(plan.system)
}

/// A block device in memory; what was never written takes none.
struct NullBlock {
    number: u32,
}

/// Of a block device since the start, in requests and sectors.
#[derive(Clone, Copy)]
struct Counters {
    reads: u64,
    read: u64,
    written: u64,
}

impl NullBlock {
    /// The devices are numbered in the order in which they are made.
    fn new(number: u32, mib: u64) -> io::Result<NullBlock> {
        let dir = format!("/sys/kernel/config/nullb/nullb{number}");
        fs::create_dir(&dir)?;
        let values = [("size", mib), ("memory_backed", 1), ("blocksize", PAGE), ("power", 1)];
        for (name, value) in values {
            write(format!("{dir}/{name}"), value.to_string())?;
        }
        Ok(NullBlock { number })
    }

    fn path(&self) -> String {
        format!("/dev/nullb{}", self.number)
    }

    fn counters(&self) -> io::Result<Counters> {
        let text = fs::read_to_string(format!("/sys/block/nullb{}/stat", self.number))?;
        let fields: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        match fields[..] {
            [reads, _, read, _, _, _, written, ..] => Ok(Counters { reads, read, written }),
            _ => Err(wrong(format!("nullb{}: no counters in `{text}`", self.number))),
        }
    }
}

/// Everything that is read may be cached: no bypass of sequential reads or of a device that is busy.
fn set_up_bcache(source: &NullBlock, cache: &NullBlock, bucket_kib: u64) -> io::Result<String> {
    let bucket = format!("{bucket_kib}k");
    let (front, back) = (cache.path(), source.path());
    let mut make = Command::new("make-bcache");
    output(make.args(["--block", "4k", "--bucket", &bucket, "-C", &front, "-B", &back]))?;
    for path in [&front, &back] {
        write("/sys/fs/bcache/register", path)?;
    }
    wait_for("/dev/bcache0")?;
    write("/sys/block/bcache0/bcache/sequential_cutoff", "0")?;
    for set in
        fs::read_dir("/sys/fs/bcache")?.flatten().filter(|entry| entry.path().join("congested").exists())
    {
        for name in ["congested_read_threshold_us", "congested_write_threshold_us"] {
            write(set.path().join(name), "0")?;
        }
    }
    let mode = fs::read_to_string("/sys/block/bcache0/bcache/state")?;
    if mode.trim() != "clean" {
        return Err(wrong(format!("bcache0 is in the state {}, not attached to its cache", mode.trim())));
    }
    Ok("/dev/bcache0".to_owned())
}

fn set_up_dm_cache(source: &NullBlock, cache: &NullBlock, metadata: &NullBlock) -> io::Result<String> {
    let text = fs::read_to_string(format!("/sys/block/nullb{}/size", source.number))?;
    let (metadata, cache, source) = (metadata.path(), cache.path(), source.path());
    let sectors = text.trim();
    let table = format!("0 {sectors} cache {metadata} {cache} {source} {BLOCK_SECTORS} 1 writethrough smq 0");
    output(Command::new("dmsetup").args([
        "create",
        "--noudevrules",
        "--noudevsync",
        "cached",
        "--table",
        &table,
    ]))?;
    wait_for("/dev/dm-0")?;
    Ok("/dev/dm-0".to_owned())
}

/// What the cache itself counts.
fn tell_own_counters(system: System) -> io::Result<()> {
    let text = match system {
        System::DmCache => output(Command::new("dmsetup").args(["status", "cached"]))?,
        System::Bcache => {
            let mut text = String::new();
            for entry in fs::read_dir("/sys/block/bcache0/bcache/stats_total")?.flatten() {
                let value = fs::read_to_string(entry.path())?;
                text += &format!("{} {}  ", entry.file_name().to_string_lossy(), value.trim());
            }
            text
        }
    };
    println!("{} itself: {}", system.name(), text.trim());
    Ok(())
}

/// Into a file of the kernel.
fn write(path: impl AsRef<Path>, text: impl AsRef<str>) -> io::Result<()> {
    let path = path.as_ref();
    fs::write(path, text.as_ref()).map_err(|err| wrong(format!("{}: {err}", path.display())))
}

fn wait_for(path: &str) -> io::Result<()> {
    for _ in 0..100 {
        if Path::new(path).exists() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Err(wrong(format!("{path} does not appear")))
}

/// Reads the pages one after the other, past the page cache.
fn replay(path: &str) -> io::Result<()> {
    const EVERY: usize = 100_000;
    let reads = fs::read(Path::new("/").join(plan::READS))?;
    let device: File = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?;
    let mut buf = AlignedPage([0; PAGE as usize]);
    for (n, page) in reads.chunks_exact(4).enumerate() {
        let page = u32::from_le_bytes(page.try_into().expect("four bytes"));
        device.read_exact_at(&mut buf.0, u64::from(page) * PAGE)?;
        if n % EVERY == EVERY - 1 {
            println!("{} reads", n + 1);
        }
    }
    Ok(())
}

#[repr(align(4096))]
struct AlignedPage([u8; PAGE as usize]);
