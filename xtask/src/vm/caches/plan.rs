//! What the virtual machine is asked to do, and what it tells.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use terrace_testkit::rng::Rng;
use terrace_testkit::traces::Zipf;

/// Files in the image.
pub const PLAN: &str = "plan";
pub const READS: &str = "reads";
/// The line of the result begins so.
pub const RESULT: &str = "result";
/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// bcache refuses a device of fewer buckets than half of these.
const BUCKETS_MIN: u64 = 1024;
/// A bucket of bcache: the smallest that makes sense, and the default.
const BUCKET_KIB: std::ops::RangeInclusive<u64> = 16..=512;
/// Pages of the smallest device.
pub const DEVICE_PAGES_MIN: u64 = BUCKETS_MIN * *BUCKET_KIB.start() / 4;

/// A cache of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum System {
    /// bcache.
    Bcache,
    /// dm-cache with its policy smq.
    DmCache,
}

impl System {
    /// All of them.
    pub const ALL: [System; 2] = [System::Bcache, System::DmCache];

    /// Its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            System::Bcache => "bcache",
            System::DmCache => "dm-cache, smq",
        }
    }
    /// Modules of the kernel that it needs, with those of the devices.
    pub fn modules(self) -> &'static [&'static str] {
        match self {
            System::Bcache => &["null_blk", "bcache"],
            System::DmCache => &["null_blk", "dm-cache", "dm-cache-smq"],
        }
    }
    /// Programs that set it up.
    pub fn programs(self) -> &'static [&'static str] {
        match self {
            System::Bcache => &["make-bcache"],
            System::DmCache => &["dmsetup"],
        }
    }
}

/// A replay. The pages to be read are beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The cache.
    pub system: System,
    /// Pages of the source.
    pub span_pages: u64,
    /// Pages of the cache's device.
    pub device_pages: u64,
}

impl Plan {
    /// The size of a bucket: the largest that leaves a small cache as many buckets as a large one needs at least.
    pub fn bucket_kib(&self) -> u64 {
        let (least, most) = BUCKET_KIB.into_inner();
        let fits = (self.device_pages * PAGE / 1024 / BUCKETS_MIN).max(least);
        (1 << fits.ilog2()).min(most)
    }
}

/// Counters of the devices over a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Requests that the source's device answered.
    pub source_reads: u64,
    /// Bytes of them.
    pub source_read_bytes: u64,
    /// Bytes written to the cache's device, and to that of its metadata.
    pub cache_written_bytes: u64,
}

/// Pages of the source for the keys of a trace, and how many different ones there are. Keys of more than `span` pages are numbered in
/// the order in which they are first met.
pub fn pages(keys: &[u64], span: u64) -> (Vec<u32>, usize) {
    let mut numbers = HashMap::new();
    for &key in keys {
        let next = numbers.len() as u32;
        numbers.entry(key).or_insert(next);
    }
    let are_places = keys.iter().all(|&key| key < span.min(1 << 32));
    let page = |key: &u64| if are_places { *key as u32 } else { numbers[key] };
    (keys.iter().map(page).collect(), numbers.len())
}

/// Two small traces in `dir`: pages by Zipf, and the same interrupted by scans.
pub fn make_traces(dir: &Path) -> io::Result<Vec<PathBuf>> {
    /// Pages, requests, requests between two scans, pages of a scan.
    const SHAPE: (u64, usize, usize, u64) = (60_000, 200_000, 8000, 2000);
    let (pages, requests, between, scan) = SHAPE;
    let zipf = Zipf::new(pages);
    let mut paths = Vec::new();
    for (name, scans) in [("zipf", false), ("zipf-and-scans", true)] {
        let (mut rng, mut fresh) = (Rng::new(7), pages);
        let mut keys = Vec::new();
        while keys.len() < requests {
            keys.push(zipf.draw(&mut rng));
            if scans && keys.len() % between == 0 {
                keys.extend(fresh..fresh + scan);
                fresh += scan;
            }
        }
        let path = dir.join(format!("{name}.u64"));
        std::fs::write(&path, keys.iter().flat_map(|key| key.to_le_bytes()).collect::<Vec<_>>())?;
        paths.push(path);
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_grow_with_the_device() {
        let bucket =
            |mib: u64| Plan { system: System::Bcache, span_pages: 1, device_pages: mib * 256 }.bucket_kib();
        assert_eq!([16, 27, 146, 600, 100_000].map(bucket), [16, 16, 128, 512, 512]);
    }

    #[test]
    fn places_are_kept_and_hashes_are_numbered() {
        assert_eq!(pages(&[7, 3, 7], 100), (vec![7, 3, 7], 2));
        assert_eq!(pages(&[700, 3, 700], 100), (vec![0, 1, 0], 2));
    }
}
