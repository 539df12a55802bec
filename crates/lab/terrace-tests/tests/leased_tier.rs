//! A tier on a device, staging and schedules under `terrace run` without a mount: by leases alone, guarded,
//! and with `--exclusive`. Programs compare each page with the version that they expect.

use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;

use terrace_api::tiers::TierRow;
use terrace_tests::rng::{Rng, seed};
use terrace_tests::{Side, TestDir, TestMount, amount, process};

use crate::device::devices;
use crate::leased::{kill_all, script};

const PAGE: u64 = 4096;
/// File, pages, and its first page on the board: as in `leased/tier.py`.
const FILES: [(&str, u64, u64); 2] = [("a", 12288, 0), ("b", 1024, 12288)];

/// The guard of served files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Leases,
    Guarded,
    Exclusive,
}

/// A directory served without a mount, and a tier that outlives its runs.
struct Fixture {
    mount: TestMount,
    rng: Rng,
    writes: f64,
    _tier: TestDir,
}

impl Fixture {
    fn new(test: &str, mode: Mode) -> Fixture {
        let dir = TestDir::new(&format!("{test}-tier"));
        let tier = format!("{}:128MiB", dir.path().join("tier").display());
        let (side, more) = match mode {
            Mode::Leases => (Side::Leased, &[][..]),
            Mode::Guarded => (Side::Guarded, &[][..]),
            Mode::Exclusive => (Side::Leased, &["--exclusive"][..]),
        };
        let mount = TestMount::with(test, side, &[&["--memory", "16MiB", "--tier", &tier], more].concat());
        for (name, pages, at) in FILES {
            let content: Vec<u8> = (0..pages).flat_map(|page| content(at + page, 0)).collect();
            std::fs::write(mount.src().join(name), content).unwrap();
        }
        std::fs::write(mount.aside().join("board"), vec![0; 4 * 13312]).unwrap();
        // A change is part of an identity once it is 20 ms old.
        std::thread::sleep(Duration::from_millis(50));
        let writes = if mode == Mode::Leases { 0.0 } else { 0.3 };
        Fixture { mount, rng: Rng::new(seed(test)), writes, _tier: dir }
    }

    fn program(&mut self, seconds: u64, writes: f64) -> Command {
        let mut command = script(&self.mount, include_str!("leased/tier.py"));
        command.args([self.rng.below(100_000).to_string(), seconds.to_string(), writes.to_string()]);
        command
    }

    /// Runs the program, and returns the tier's counters of that run.
    #[track_caller]
    fn run(&mut self, seconds: u64, writes: f64) -> TierRow {
        let before = self.rows();
        let mut command = self.program(seconds, writes);
        assert_eq!(process::run(&mut command, seconds + 60).expect_success(), "tier ok\n");
        let new = self.rows().into_iter().find(|row| !before.contains(row));
        new.expect("the run wrote its statistics")
    }

    fn rows(&self) -> Vec<TierRow> {
        self.mount.stats_of_runs().iter().flat_map(devices).cloned().collect()
    }

    /// Writes pages beside terrace, as another program would between two runs.
    fn change(&mut self, pages: u64) {
        let (name, of, start) = FILES[0];
        let file = std::fs::File::options().write(true).open(self.mount.src().join(name)).unwrap();
        let board =
            std::fs::File::options().read(true).write(true).open(self.mount.aside().join("board")).unwrap();
        for _ in 0..pages {
            let page = self.rng.below(of);
            let at = 4 * (start + page);
            let mut word = [0; 4];
            board.read_exact_at(&mut word, at).unwrap();
            let version = (u32::from_le_bytes(word) >> 1) + 1;
            file.write_all_at(&content(start + page, version.into()), page * PAGE).unwrap();
            board.write_all_at(&(version << 1).to_le_bytes(), at).unwrap();
        }
    }
}

fn content(at: u64, version: u64) -> Vec<u8> {
    [at.to_le_bytes(), version.to_le_bytes()].concat().repeat(256)
}

/// Pages that left memory are read from the tier, in the same run and in the next one. A file changed in between
/// is cold, and no old page is read.
#[test]
fn a_tier_without_a_mount_begins_warm_and_never_old() {
    for mode in [Mode::Leases, Mode::Guarded, Mode::Exclusive] {
        let mut w = Fixture::new("leased-tier", mode);
        let first = w.run(amount("TERRACE_SECONDS", 6, 30), w.writes);
        assert!(first.demoted > 2000 && first.hits > 500, "{mode:?}: {first:?}");
        let warm = w.run(2, 0.0);
        assert!(warm.hits > 4000, "{mode:?}: the second run begins warm: {warm:?}");
        w.change(200);
        let changed = w.run(2, 0.0);
        assert!(changed.pages > 500, "{mode:?}: {changed:?}");
        w.run(2, w.writes);
        w.mount.finish();
    }
}

/// Everything is killed while programs write: the next run reads no page older than a write that returned.
#[test]
fn a_tier_without_a_mount_is_not_old_after_all_is_killed() {
    for round in 0..amount("TERRACE_ROUNDS", 2, 30) {
        let mode = if round % 2 == 0 { Mode::Exclusive } else { Mode::Guarded };
        let mut w = Fixture::new("leased-tier-killed", mode);
        w.run(2, w.writes);
        let mut command = w.program(4, w.writes);
        let killer = kill_all(&w.mount, Duration::from_millis(1500 + w.rng.below(2000)));
        // The program goes on with the kernel alone.
        assert_eq!(process::run(&mut command, 60).stdout, "tier ok\n");
        assert_eq!(killer.join().unwrap(), [true, true]);
        w.run(2, w.writes);
        w.run(2, 0.0);
        w.mount.finish();
    }
}

/// `--stage-in` reads files before the command, and `stage in --pin`, `--to` and `stage out --drop` work on a run.
#[test]
fn staging_needs_no_mount() {
    let w = Fixture::new("leased-stage", Mode::Guarded);
    let line = "set -e; T=$TERRACE; ln -s /etc out; $T stage in --json b | grep -q '\"bytes\":4194304'; \
        $T stage in --pin 60s --json b | grep -q '\"pinned_bytes\":4194304'; \
        $T stage in --to 0 --json a | grep -q '\"below_bytes\":[1-9]'; \
        $T stage out --drop --json b | grep -q '\"dropped_bytes\":4194304'; \
        for f in out/passwd /etc/passwd none; do if $T stage in $f 2>/dev/null; then echo $f; exit 1; fi; done; echo staged";
    let mut command = w.mount.command("bash");
    command.args(["-c", line]).env("TERRACE", terrace_tests::product("terrace"));
    assert_eq!(process::run(&mut command, 60).expect_success(), "staged\n");
    w.mount.finish();
}

/// `run --stage-in` fills memory before the command, without a mount.
#[test]
fn staged_files_are_in_memory_when_the_command_starts() {
    let mount = TestMount::with("leased-stage-in", Side::Guarded, &["--memory", "16MiB", "--stage-in", "b"]);
    let content: Vec<u8> = (0..1024).flat_map(|page| content(page, 0)).collect();
    std::fs::write(mount.src().join("b"), &content).unwrap();
    let text = "import os, random\nfd = os.open('b', os.O_RDONLY)\n\
        print(sum(len(os.pread(fd, 8192, 8192 * random.randrange(512))) for _ in range(2000)))\n";
    assert_eq!(process::run(&mut script(&mount, text), 60).expect_success(), "16384000\n");
    let stat = mount.stats_of_runs().remove(0).cache;
    assert!(stat.leases.is_some() && stat.preload.misses == 0 && stat.preload.hits > 0, "{:?}", stat.preload);
    mount.finish();
}
