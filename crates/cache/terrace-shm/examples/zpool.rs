//! Measures codecs and pool on the content of real files:
//! `cargo run --release -p terrace-shm --features compress --example zpool -- /usr/bin /usr/share/doc /var/log`.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use terrace_shm::codec::{Coded, Encoding};
use terrace_shm::compress::{CompressionMode, Compressor, Refusal, Unzstd};
use terrace_shm::index::Place;
use terrace_shm::map::memfd;
use terrace_shm::zobject::{HEAD_BYTES, Handle};
use terrace_shm::zpool::ZPool;
use terrace_shm::{Geometry, PAGE_SIZE, Segment, TouchTable};

/// Measured pages: 256 MiB.
const PAGES_MAX: usize = 64 << 10;
const PERCENT_MAX: u32 = 75;

type Page = [u8; PAGE_SIZE];

/// Whole pages of the files below `path`, a few of each file, so that no file outweighs the others.
fn gather(path: &Path, out: &mut Vec<Page>, max: usize) {
    const OF_A_FILE: usize = 64;
    let Ok(meta) = fs::symlink_metadata(path) else { return };
    if out.len() >= max {
    } else if meta.is_dir() {
        let mut names: Vec<_> = fs::read_dir(path).into_iter().flatten().flatten().collect();
        names.sort_by_key(fs::DirEntry::file_name);
        names.iter().for_each(|name| gather(&name.path(), out, max));
    } else if meta.is_file()
        && let Ok(content) = fs::read(path)
    {
        let pages = content.as_chunks::<PAGE_SIZE>().0;
        let step = pages.len().div_ceil(OF_A_FILE).max(1);
        out.extend(pages.iter().step_by(step).take(max - out.len()));
    }
}

struct Owned {
    codec: Encoding,
    bytes: Vec<u8>,
}

impl Owned {
    fn coded(&self) -> Coded<'_> {
        Coded { codec: self.codec, bytes: &self.bytes }
    }
}

fn ns(time: Duration, n: usize) -> f64 {
    time.as_nanos() as f64 / n.max(1) as f64
}

/// Compresses and decodes all pages, and measures the time.
fn codecs(mode: CompressionMode, pages: &[Page]) -> io::Result<Vec<Owned>> {
    let mut compressor = Compressor::new(mode, PERCENT_MAX)?;
    let mut unzstd = Unzstd::new()?;
    let (mut kept, mut originals, mut poor, mut random) = (Vec::new(), Vec::new(), 0, 0);
    let (mut busy, mut counts) = (Duration::ZERO, [0_usize; 4]);
    for page in pages {
        let start = Instant::now();
        let coded = compressor.compress(page);
        busy += start.elapsed();
        match coded {
            Ok(c) => {
                counts[c.codec as usize] += 1;
                kept.push(Owned { codec: c.codec, bytes: c.bytes.to_vec() });
                originals.push(page);
            }
            Err(Refusal::Poor) => poor += 1,
            Err(Refusal::Random) => random += 1,
        }
    }
    let mut out = [0; PAGE_SIZE];
    let start = Instant::now();
    let decoded = kept.iter().filter(|o| o.coded().decode(&mut out, &mut unzstd)).count();
    let decode = start.elapsed();
    let right = kept.iter().zip(&originals).all(|(o, page)| {
        o.coded().decode(&mut out, &mut unzstd);
        out == **page
    });
    assert!(right && decoded == kept.len(), "a page was not decoded correctly");
    let stored: usize = kept.iter().map(|o| o.bytes.len()).sum();
    let refused = (pages.len() - kept.len()) * PAGE_SIZE;
    println!(
        "{mode:?}: {} same, {} lz4, {} zstd, refused {poor} poor {random} random ({:.1} %); ratio {:.2} of kept pages, {:.2} of all; \
         compress {:.0} ns, decode {:.0} ns a page; {} bytes of tables",
        counts[1],
        counts[2],
        counts[3],
        100.0 * (poor + random) as f64 / pages.len() as f64,
        (kept.len() * PAGE_SIZE) as f64 / stored as f64,
        (pages.len() * PAGE_SIZE) as f64 / (stored + refused) as f64,
        ns(busy, pages.len()),
        ns(decode, kept.len()),
        compressor.bytes() + unzstd.bytes(),
    );
    Ok(kept)
}

fn pool(limit: u64) -> io::Result<(ZPool, Arc<TouchTable>)> {
    let zspages_max = (limit >> 16) as u32 + 1;
    let geometry = Geometry { objects_max: 64, inners_max: 8, leaves_max: 8, frames_max: 8, zspages_max };
    let segment = memfd("zpool-bench", geometry.segment_bytes())?;
    let touches = memfd("zpool-bench-touch", geometry.touch_bytes())?;
    let touches = Arc::new(TouchTable::create(&touches, &geometry)?);
    let mut pool = ZPool::new(Arc::new(Segment::create(&segment, geometry)?), touches.clone())?;
    pool.set_limit(limit);
    Ok((pool, touches))
}

fn density(pool: &ZPool, what: &str) {
    let heads = pool.stored_pages() * HEAD_BYTES as u64;
    println!(
        "  {what}: {} pages in {:.1} MiB, {:.1} % of ideal, net ratio {:.2}; metadata {:.2} bytes a page",
        pool.stored_pages(),
        pool.bytes() as f64 / f64::from(1 << 20),
        100.0 * (pool.live_bytes() - heads) as f64 / pool.bytes() as f64,
        (pool.stored_pages() * PAGE_SIZE as u64) as f64 / pool.bytes() as f64,
        pool.metadata_bytes() as f64 / pool.stored_pages() as f64,
    );
}

/// Fills a pool that has room for all, and empties it at random.
fn fill(kept: &[Owned]) -> io::Result<()> {
    let (mut pool, _) = pool((kept.len() * PAGE_SIZE) as u64)?;
    let mut unzstd = Unzstd::new()?;
    let warm: Vec<Handle> =
        (0..).zip(kept).map(|(i, o)| pool.store(o.coded(), Place(i)).expect("room")).collect();
    warm.iter().for_each(|&h| pool.remove(h));
    let start = Instant::now();
    let mut handles: Vec<Handle> =
        (0..).zip(kept).map(|(i, o)| pool.store(o.coded(), Place(i)).expect("room")).collect();
    let store = start.elapsed();
    pool.trim(0)?;
    density(&pool, "filled");
    for i in (1..handles.len()).rev() {
        handles.swap(i, i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % i);
    }
    let (mut out, start) = ([0; PAGE_SIZE], Instant::now());
    handles.iter().for_each(|&h| pool.load(h, &mut unzstd, &mut out).expect("intact"));
    let load = start.elapsed();
    let start = Instant::now();
    handles.iter().for_each(|&h| pool.remove(h));
    let remove = start.elapsed();
    let n = handles.len();
    println!(
        "  store {:.0} ns, load and decode {:.0} ns, remove {:.0} ns",
        ns(store, n),
        ns(load, n),
        ns(remove, n)
    );
    Ok(())
}

/// A pool with memory for a third of the pages, in rounds. At the limit the coldest are evicted until a tenth
/// is free, and the pool is compacted.
fn churn(kept: &[Owned]) -> io::Result<()> {
    let offered: u64 = kept.iter().map(|o| (o.bytes.len() + HEAD_BYTES) as u64).sum();
    let limit = offered / 3;
    let (mut pool, touches) = pool(limit)?;
    let (mut victims, mut stored, mut low) = (Vec::new(), 0_u64, 1.0_f64);
    let (mut evict, mut compact, start) = (Duration::ZERO, Duration::ZERO, Instant::now());
    for round in 0..4 {
        for (i, o) in (0..).zip(kept) {
            let handle = loop {
                if let Some(handle) = pool.store(o.coded(), Place(i)) {
                    break handle;
                }
                if round > 1 {
                    low = low.min(pool.live_bytes() as f64 / pool.bytes() as f64);
                }
                let begun = Instant::now();
                // At least once: in a small pool the free slots may be of other classes.
                loop {
                    victims.clear();
                    pool.coldest(32, &mut victims);
                    victims.iter().for_each(|&(h, _)| pool.evict(h));
                    if pool.slot_bytes() <= limit / 10 * 9 {
                        break;
                    }
                }
                let evicted = Instant::now();
                pool.compact(usize::MAX, |_, _, _| ());
                evict += evicted - begun;
                compact += evicted.elapsed();
            };
            stored += 1;
            // Every third page is touched once, so that ages and slots come apart.
            if i % 3 == 0 {
                touches.ztouch(handle);
            }
        }
    }
    let all = start.elapsed();
    density(&pool, "after churn at a third");
    let c = pool.counts();
    println!(
        "  live bytes at the limit {:.1} % at the least; {:.0} ns a page in all: {:.0} evicting, {:.0} compacting \
         ({} bytes moved a page stored, {:.0} ns a move)",
        100.0 * low,
        ns(all, stored as usize),
        ns(evict, stored as usize),
        ns(compact, stored as usize),
        c.moved_bytes / stored,
        ns(compact, c.moved_pages as usize),
    );
    pool.check().map_err(io::Error::other)
}

fn main() -> io::Result<()> {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    let mut pages = Vec::new();
    for path in &paths {
        let max = pages.len() + PAGES_MAX / paths.len();
        gather(Path::new(path), &mut pages, max);
    }
    println!("{} pages of {}", pages.len(), paths.join(" "));
    for mode in [CompressionMode::Lz4, CompressionMode::Mixed, CompressionMode::Dense] {
        let kept = codecs(mode, &pages)?;
        fill(&kept)?;
        churn(&kept)?;
    }
    Ok(())
}
