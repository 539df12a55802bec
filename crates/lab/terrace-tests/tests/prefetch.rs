//! Prefetch through the preload path, as `terrace stat` shows it: programs' advice (`posix_fadvise`,
//! `readahead`), readahead of streams and strides, and recorded schedules.

use std::process::Command;
use std::time::Duration;
use terrace_api::stats::{StatReport, Stats};
use terrace_testkit::wait::wait_until;
use terrace_tests::process::{self, Background};
use terrace_tests::rng::{Rng, seed};
use terrace_tests::{Side, TestDir, TestMount, product, terrace};

const PAGES: u64 = 2048;

/// A mount with a file of random bytes, and its statistics.
struct Fixture {
    mount: TestMount,
    content: Vec<u8>,
}

impl Fixture {
    fn new(test: &str) -> Fixture {
        let mount = TestMount::new(test, Side::Preload, "64MiB");
        let content = Rng::new(seed(test)).bytes((PAGES * 4096) as usize);
        std::fs::write(mount.src().join("data"), &content).unwrap();
        Fixture { mount, content }
    }
    fn python(&self, script: &str) -> Command {
        let mut command = self.mount.command("python3");
        let prelude = "import os\nfd = os.open('data', os.O_RDONLY)\nread = lambda page: os.pread(fd, 4096, page * 4096)\n";
        command.arg("-c").arg(format!("{prelude}{script}"));
        command
    }
    fn run(&self, script: &str) -> String {
        process::run(&mut self.python(script), 60).expect_success()
    }
    /// Reads pages through the library and compares them.
    fn reads(&self, first: u64, pages: u64) {
        let script = format!(
            "import hashlib\nprint(hashlib.sha256(b''.join(read({first} + i) for i in range({pages}))).hexdigest())"
        );
        let found = self.run(&script);
        let sum = process::run(Command::new("sha256sum").arg(self.part(first, pages)), 60).expect_success();
        assert_eq!(found.trim(), sum.split_whitespace().next().unwrap());
    }
    fn part(&self, first: u64, pages: u64) -> std::path::PathBuf {
        let path = self.mount.dir().join("part");
        std::fs::write(&path, &self.content[(first * 4096) as usize..((first + pages) * 4096) as usize])
            .unwrap();
        path
    }
    fn stats(&self) -> Stats {
        self.mount.stat().cache
    }
    /// Pages read from the source while a program waited for them.
    fn misses(&self) -> u64 {
        let stats = self.stats();
        stats.preload.misses + stats.fuse.misses
    }
}

#[test]
fn announced_pages_are_fetched_in_the_background() {
    for (n, call) in
        ["os.posix_fadvise(fd, 300 * 4096 + 5, 200 * 4096 - 5, os.POSIX_FADV_WILLNEED)", READAHEAD]
            .iter()
            .enumerate()
    {
        let w = Fixture::new(&format!("prefetch-announced-{n}"));
        w.run(&format!("read(1000)\n{call}"));
        wait_until("the span is there", || w.stats().prefetch.fetched >= 200);
        let before = w.misses();
        w.reads(300, 200);
        assert_eq!(w.misses(), before, "{call}");
        assert_eq!(w.stats().prefetch.fetched, 200, "{call}: the span and no more");
        w.mount.finish();
    }
}

const READAHEAD: &str = "import ctypes\nassert ctypes.CDLL(None).readahead(fd, ctypes.c_int64(300 * 4096), ctypes.c_size_t(200 * 4096)) == 0";

/// Misses of 400 reads in order each: announced as sequential, as random, and not announced.
fn misses_by_announced_order() -> [u64; 3] {
    let w = Fixture::new("prefetch-order");
    let reads = |order: &str, first: u64| {
        let before = w.misses();
        w.run(&format!(
            "os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_{order})\nfor i in range(400): read({first} + i)"
        ));
        w.misses() - before
    };
    let misses = [reads("SEQUENTIAL", 0), reads("RANDOM", 700), reads("NORMAL", 1200)];
    w.mount.finish();
    misses
}

#[test]
fn announced_order_decides_what_is_read_ahead() {
    // Each page announced as random is a miss, except for those that found the ring full and took the mount
    // path, which has no advice.
    let is_right = |&[sequential, random, normal]: &[u64; 3]| {
        sequential <= 8 && random > 200 && (2..40).contains(&normal)
    };
    // On a busy machine the workers that read ahead come late, and the reader misses more often.
    let mut tries = Vec::new();
    while tries.len() < 3 && !tries.last().is_some_and(is_right) {
        tries.push(misses_by_announced_order());
    }
    assert!(tries.last().is_some_and(is_right), "misses of sequential, random, unannounced reads: {tries:?}");
}

#[test]
fn readers_in_turn_and_steps_are_read_ahead() {
    let w = Fixture::new("prefetch-streams");
    let misses = |script: &str| {
        let before = w.misses();
        w.run(script);
        w.misses() - before
    };
    // Equal parts: the distance between readers is constant.
    let readers = misses("for i in range(400):\n    read((i % 4) * 256 + i // 4)");
    assert!(readers <= 60, "{readers} misses of four readers of 100 pages each");
    let steps = misses("import time\nfor i in range(60):\n    read(1100 + i * 15)\n    time.sleep(0.01)");
    assert!(steps <= 40, "{steps} misses of 60 steps");
    w.reads(0, PAGES);
    w.mount.finish();
}

#[test]
fn pages_that_are_needed_no_longer_leave() {
    let w = Fixture::new("prefetch-dropped");
    w.reads(0, PAGES);
    w.reads(0, PAGES);
    wait_until("the file is in memory", || w.stats().memory.pages >= PAGES);
    w.run("read(0)\nos.posix_fadvise(fd, 4096 * 100 + 1, 4096 * 1000, os.POSIX_FADV_DONTNEED)");
    wait_until("whole pages leave", || w.stats().prefetch.dropped >= 999);
    let before = w.misses();
    w.reads(0, 100);
    assert_eq!(w.misses(), before, "the others stay");
    w.reads(0, PAGES);
    let stats = w.stats();
    assert!(w.misses() > before && stats.prefetch.dropped == 999, "{:?}", stats.prefetch);
    w.mount.finish();
}

#[test]
fn hints_wait_for_nobody() {
    let w = Fixture::new("prefetch-stopped");
    let aside = w.mount.dir().join("stopped-daemon");
    std::fs::create_dir(&aside).unwrap();
    let file = |name: &str| aside.join(name);
    let script = format!(
        "import time\nread(5)\nopen('{0}/ready', 'w')\nwhile not os.path.exists('{0}/go'): time.sleep(0.01)\n\
         for i in range(50000):\n    os.posix_fadvise(fd, i * 4096, 1 << 20, [os.POSIX_FADV_WILLNEED, os.POSIX_FADV_DONTNEED, os.POSIX_FADV_SEQUENTIAL][i % 3])\n\
         open('{0}/done', 'w')\n",
        aside.display()
    );
    let mut child = w.python(&script).spawn().unwrap();
    wait_until("the program is a client", || file("ready").exists());
    let terraced = w.mount.terraced();
    assert!(process::kill(terraced, libc::SIGSTOP));
    std::fs::write(file("go"), "").unwrap();
    wait_until("hints to a stopped daemon", || file("done").exists());
    assert!(process::kill(terraced, libc::SIGCONT));
    assert!(child.wait().unwrap().success());
    w.reads(0, PAGES);
    w.mount.finish();
}

/// Two files, read in a previously recorded random order; and the output of `terrace run`.
struct Recorded {
    dir: TestDir,
    src: std::path::PathBuf,
    mounts: bool,
}

impl Recorded {
    const FILE_PAGES: u64 = 512;

    fn new(test: &str) -> Recorded {
        let dir = TestDir::new(test);
        let (src, same) = (dir.sub("src"), dir.sub("same"));
        let mut rng = Rng::new(seed(test));
        for name in ["a", "b c"] {
            let content = rng.bytes((Recorded::FILE_PAGES * 4096) as usize);
            for dir in [&src, &same] {
                std::fs::write(dir.join(name), &content).unwrap();
            }
        }
        let mut order: Vec<(&str, u64)> =
            (0..Recorded::FILE_PAGES).flat_map(|page| [("a", page), ("b c", page)]).collect();
        rng.shuffle(&mut order);
        let lines: String = order.iter().map(|(name, page)| format!("{page} {name}\n")).collect();
        std::fs::write(dir.path().join("order"), lines).unwrap();
        Recorded { dir, src, mounts: true }
    }
    fn file(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }
    /// `terrace run` of a program that reads the pages in order, and compares them.
    fn reader(&self, options: &[&str]) -> Command {
        let script = "import os, sys, time\naside = sys.argv[1]\nopen(aside + '/begun', 'w')\n\
             while sys.argv[2] == 'wait' and not os.path.exists(aside + '/go'): time.sleep(0.005)\n\
             fd = {n: [os.open(p + n, os.O_RDONLY) for p in ('./', aside + '/same/')] for n in os.listdir('.')}\n\
             for line in open(aside + '/order'):\n    page, name = line.rstrip('\\n').split(' ', 1)\n    if name in fd:\n        \
             here, there = [os.pread(f, 4096, int(page) * 4096) for f in fd[name]]\n        assert here == there, line\n        time.sleep(0.0005)\n\
             print('the same')";
        let wait = if options.is_empty() { "wait" } else { "go" };
        let mut command = terrace(&["run", "--memory", "32MiB", "--on"]);
        command.arg(&self.src).args(options).env("TERRACE_LARGE_FILE", "0");
        command.args(self.mounts.then_some("--mount"));
        command.args(["--", "python3", "-c", script]).arg(self.dir.path()).arg(wait).current_dir(&self.src);
        command
    }
    fn record(&self) {
        let (trace, schedule) = (self.file("trace"), self.file("schedule"));
        let mut program = Background::new(&mut self.reader(&[]));
        wait_until("the program", || self.file("begun").exists());
        let mut recorder = terrace(&["trace", "--seconds", "60", "-o"]);
        let mut recorder = Background::new(recorder.arg(&trace).arg(&self.src));
        wait_until("a recording", || std::fs::metadata(&trace).is_ok_and(|meta| meta.len() > 0));
        std::fs::write(self.file("go"), "").unwrap();
        for child in [&mut program, &mut recorder] {
            assert!(child.wait(Duration::from_secs(60)).is_some_and(|status| status.success()));
        }
        let mut bench = Command::new(product("terrace-bench"));
        bench.arg("schedule").arg(&trace).arg("-o").arg(&schedule);
        let said = process::run(bench, 60).expect_success();
        assert!(said.starts_with("2 files, "), "{said}");
    }
    /// Runs with the schedule; returns its statistics and the output.
    fn follow(&self) -> (terrace_api::stats::Schedule, String) {
        let (schedule, stats) = (self.file("schedule"), self.file("stats"));
        let options = ["--prefetch", schedule.to_str().unwrap(), "--stats", stats.to_str().unwrap()];
        let outcome = process::run(self.reader(&options), 60);
        assert!(outcome.status.success() && outcome.stdout.trim() == "the same", "{outcome}");
        let report: StatReport = serde_json::from_str(&std::fs::read_to_string(&stats).unwrap()).unwrap();
        (report.cache.prefetch.schedule.expect("a schedule was followed"), outcome.stderr)
    }
}

#[test]
fn a_recorded_order_is_fetched_ahead_of_the_program() {
    for mounts in [true, false] {
        follow_changes(mounts);
    }
}

fn follow_changes(mounts: bool) {
    let mut w = Recorded::new("prefetch-schedule");
    w.mounts = mounts;
    w.record();
    let (schedule, said) = w.follow();
    assert!(schedule.used > Recorded::FILE_PAGES && schedule.unused < 100, "{schedule:?}");
    assert_eq!((schedule.files_left_out, said.as_str()), (0, ""));
    // One of the files was replaced: it is read, and none of it prefetched.
    std::fs::write(w.src.join("a"), [7; 3 << 12]).unwrap();
    std::fs::write(w.file("same/a"), [7; 3 << 12]).unwrap();
    let (changed, said) = w.follow();
    assert_eq!(changed.files_left_out, 1, "{changed:?}");
    assert!(changed.used > Recorded::FILE_PAGES / 3, "{changed:?}");
    assert!(said.contains("--prefetch: 1 file is gone or has changed"), "{said}");
    std::fs::remove_file(w.src.join("b c")).unwrap();
    let (gone, said) = w.follow();
    assert_eq!((gone.files_left_out, gone.fetched), (2, 0), "{gone:?}");
    assert!(said.contains("--prefetch: 2 files are gone or have changed"), "{said}");
}

#[test]
fn a_schedule_that_cannot_be_read_is_told_before() {
    let w = Recorded::new("prefetch-no-schedule");
    for (content, why) in [(None, "No such file"), (Some("x\n"), "not a schedule")] {
        if let Some(content) = content {
            std::fs::write(w.file("schedule"), content).unwrap();
        }
        let schedule = w.file("schedule");
        let outcome = process::run(&mut w.reader(&["--prefetch", schedule.to_str().unwrap()]), 60);
        assert_eq!(outcome.status.code(), Some(2), "{outcome}");
        assert!(outcome.stderr.contains("--prefetch") && outcome.stderr.contains(why), "{outcome}");
        assert_eq!(outcome.stdout, "", "the program was not run");
    }
}
