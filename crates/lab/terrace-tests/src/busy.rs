//! A helper program, the presser, keeps the compressed tier of each tested instance busy.
//! `TERRACE_BUSY_TIER=1` enables it, with a `TERRACE_CONFIG` such as this crate's `data/compressed.toml`.
//!
//! Most tested programs touch less than an instance's minimum memory, so none of their pages would be
//! compressed. Here every mount has the minimum memory, and a program beside the test (`presser`) reads a
//! file larger than DRAM and tier together. So pages, including the test's, are demoted, promoted and dropped
//! all the time. The instance's counters confirm it.
//!
//! `TERRACE_DEVICE_TIER=1` does the same with a device tier: a file in the test's directory, smaller than the
//! read file, so that regions are filled and reclaimed all the time. The tier survives the mounts of a test:
//! each but the first starts with the content of the last.

use crate::exec::write_big;
use crate::process::{Background, helper};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use terrace_api::stats::StatReport;
use terrace_api::tiers::{SCANNING, SERVING, TierKind, TierRow};
use terrace_testkit::wait::asking_every;

/// Minimum memory of an instance, used by every test mount.
pub(crate) const MEMORY: &str = "16MiB";
/// Time limit for an instance to become busy.
const SECONDS: u64 = 120;

/// Size of the device tier: two regions are filled, two are kept free.
const TIER_SIZE: &str = "64MiB";

fn is_set(name: &str) -> bool {
    std::env::var(name).is_ok_and(|v| v != "0")
}

/// Whether tests run with one of the two tiers.
pub fn wanted() -> bool {
    compressed() || device()
}

fn compressed() -> bool {
    let wanted = is_set("TERRACE_BUSY_TIER");
    assert!(
        !wanted || std::env::var_os("TERRACE_CONFIG").is_some(),
        "TERRACE_BUSY_TIER needs a TERRACE_CONFIG"
    );
    wanted
}

fn device() -> bool {
    is_set("TERRACE_DEVICE_TIER")
}

/// Further options of an instance beside those `given`: a device tier in the test's directory `dir`, if
/// enabled and not given.
pub(crate) fn options(dir: &Path, given: &[&str]) -> Vec<String> {
    if !device() || given.contains(&"--tier") {
        return Vec::new();
    }
    vec!["--tier".into(), format!("{}:{TIER_SIZE}", tier(dir).display())]
}

fn tier(dir: &Path) -> PathBuf {
    dir.join("tier")
}

/// Creates the device tier named by [`options`] as an empty file, for a user without write permission in
/// `dir`; None if there is none.
pub(crate) fn prepare_tier(dir: &Path) -> Option<PathBuf> {
    device().then(|| {
        std::fs::File::create(tier(dir)).expect("the tier's file can be made");
        tier(dir)
    })
}

/// The presser's file, sorted last in its directory.
fn file(dir: &Path) -> PathBuf {
    dir.join("~press")
}

/// Creates the presser's file in a directory.
pub fn prepare(dir: &Path) {
    write_big(&file(dir)).expect("the file to press with can be written");
}

/// Puts the presser before a command under `terrace run`; it ends with the command.
pub(crate) fn beside(command: &mut Command, dir: &Path) {
    command.arg(helper("presser")).arg(file(dir)).arg("--");
}

/// The presser of the file in a directory.
pub(crate) fn presser(dir: &Path) -> Command {
    let mut command = Command::new(helper("presser"));
    command.arg(file(dir)).stdin(Stdio::null());
    command
}

/// Counters of an instance's tiers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    compressed: Events,
    device: Events,
    duplicates: u64,
}

/// Reads served, pages demoted, pages dropped.
#[derive(Clone, Copy, Debug, Default)]
struct Events {
    hits: u64,
    stored: u64,
    evicted: u64,
}

impl Events {
    fn and(self, other: Events) -> Events {
        Events {
            hits: self.hits + other.hits,
            stored: self.stored + other.stored,
            evicted: self.evicted + other.evicted,
        }
    }
}

impl Work {
    /// From the statistics of an instance.
    #[track_caller]
    pub(crate) fn of(stat: &StatReport) -> Work {
        let tier = stat.cache.compressed.as_ref().unwrap_or_else(|| panic!("no tier: {stat:?}"));
        let compressed = Events { hits: tier.hits, stored: tier.stored_pages, evicted: tier.evicted };
        let on_device = |row: &&TierRow| row.kind == TierKind::Device;
        let device = stat.cache.tiers.iter().find(on_device).map_or_else(Events::default, |row| {
            assert!([SERVING, SCANNING].contains(&&*row.state), "{row:?}");
            Events { hits: row.hits, stored: row.demoted, evicted: row.dropped }
        });
        Work { compressed, device, duplicates: tier.duplicate_entry }
    }

    /// Sum of both.
    pub(crate) fn and(self, other: Work) -> Work {
        Work {
            compressed: self.compressed.and(other.compressed),
            device: self.device.and(other.device),
            duplicates: self.duplicates + other.duplicates,
        }
    }

    fn is_more_than(self, before: Work) -> bool {
        let more = |now: Events, before: Events| now.hits > before.hits && now.stored > before.stored;
        let (up, below) = (self.compressed, before.compressed);
        (!compressed() || more(up, below) && up.evicted > below.evicted)
            && (!device() || more(self.device, before.device))
    }

    /// Asserts events of each kind, and consistent counters.
    #[track_caller]
    pub(crate) fn assert_busy(self) {
        println!("the tiers: {self:?}");
        assert!(self.is_more_than(Work::default()), "a tier was not busy: {self:?}");
        assert_eq!(self.duplicates, 0, "{self:?}");
    }
}

/// The presser on a mount.
#[derive(Debug)]
pub(crate) struct Pressure {
    process: Background,
    terraced: i32,
    before: Work,
}

impl Pressure {
    /// Starts a [`presser`] on the mount served by this terraced, and waits until the tier is busy.
    #[track_caller]
    pub(crate) fn start(presser: &mut Command, terraced: i32, stat: impl Fn() -> StatReport) -> Pressure {
        let process = Background::new(presser);
        let mut before = Work::default();
        let busy = asking_every(Duration::from_millis(50), Duration::from_secs(SECONDS), || {
            before = Work::of(&stat());
            before.is_more_than(Work::default())
        });
        assert!(busy, "the tier does not get busy: {before:?}, {:?}", stat());
        Pressure { process, terraced, before }
    }

    /// Ends it. It must have found no wrong page, and the tier must be busy at the end: the successor of a
    /// killed terraced must become busy again.
    #[track_caller]
    pub(crate) fn stop(mut self, terraced: i32, stat: impl Fn() -> StatReport) {
        let before = if terraced == self.terraced { self.before } else { Work::default() };
        let mut now = before;
        asking_every(Duration::from_millis(50), Duration::from_secs(SECONDS), || {
            now = Work::of(&stat());
            now.is_more_than(before)
        });
        assert!(now.is_more_than(before), "the tier rests: {now:?} after {before:?}, {:?}", stat());
        now.assert_busy();
        let ended = self.process.wait(Duration::ZERO);
        assert!(ended.is_none(), "the presser ended: {ended:?}");
        self.process.kill();
    }
}
