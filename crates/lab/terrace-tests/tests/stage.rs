//! Staging by `terrace stage` and `run --stage-in`, `--stage-out`. Staged-in data are read without the
//! source, from memory or a tier; staged-out data are in the source and leave memory.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use terrace_api::stats::Stats;
use terrace_testkit::wait::{asking_every, holds_within};
use terrace_tests::process::{self, Background};
use terrace_tests::rng::{Rng, seed};
use terrace_tests::{Side, TestDir, TestMount, terrace};

const BYTES: usize = 4 << 20;
const PAGES: u64 = BYTES as u64 / 4096;

/// A file in the source, and a script that compares it by reads of the preload path.
fn prepare(mount: &TestMount) -> String {
    let mut rng = Rng::new(seed("stage"));
    let content: Vec<u8> = (0..BYTES / 8).flat_map(|_| rng.below(u64::MAX).to_le_bytes()).collect();
    std::fs::write(mount.src().join("file"), &content).unwrap();
    std::fs::write(mount.aside().join("expected"), &content).unwrap();
    let expected = mount.aside().join("expected");
    format!(
        "import os\nf = os.open('file', os.O_RDONLY)\ng = os.open('{}', os.O_RDONLY)\n\
         for i in range(0, {BYTES}, 65536): assert os.pread(f, 65536, i) == os.pread(g, 65536, i), i\nprint('the same')",
        expected.display()
    )
}

fn compares(mount: &TestMount, script: &str) {
    let said = process::run(mount.command("python3").args(["-c", script]), 60).expect_success();
    assert_eq!(said.trim(), "the same");
}

/// `terrace stage WORDS... PATH`
fn stage(words: &[&str], path: &Path) -> Command {
    let mut command = terrace(&["stage"]);
    command.args(words).arg(path);
    command
}

/// The report of [`stage`], which must succeed.
#[track_caller]
fn staged(words: &[&str], path: &Path) -> serde_json::Value {
    process::run(stage(words, path).arg("--json"), 60).json()
}

/// Also where the kernel serves files to programs that are not clients, such as `terrace stage`.
#[test]
fn staged_files_are_read_without_the_source() {
    for mode in ["off", "auto"] {
        let mount = TestMount::with("stage-in", Side::Preload, &["--memory", "16MiB", "--passthrough", mode]);
        let script = prepare(&mount);
        let told = staged(&["in"], mount.at());
        assert_eq!((&told["files"], &told["bytes"]), (&1.into(), &BYTES.into()), "{told}");
        let cache = mount.stat().cache;
        assert_eq!((cache.memory.pages, cache.preload.misses), (PAGES, 0), "passthrough {mode}");
        compares(&mount, &script);
        let read = mount.stat().cache.preload;
        assert_eq!(read.misses, 0, "passthrough {mode}: {read:?}");
        assert!(read.hits >= PAGES, "passthrough {mode}: {read:?}");
        mount.finish();
    }
}

/// A part of a file, a missing file, and one outside of any mount.
#[test]
fn staging_tells_what_it_did_and_what_it_cannot() {
    let mount = TestMount::new("stage-parts", Side::Mount, "16MiB");
    prepare(&mount);
    staged(&["in", "--part", "1MiB-2MiB"], &mount.at().join("file"));
    assert_eq!(mount.stat().cache.memory.pages, PAGES / 4);
    for (path, cure) in [(mount.at().join("none"), "none"), (mount.src().join("file"), "serves nothing here")]
    {
        let refused = process::run(stage(&["in"], &path), 60);
        assert!(!refused.status.success() && refused.stderr.contains(cure), "{refused}");
    }
    mount.finish();
}

/// The default of `run`, where the kernel serves files to programs without the library.
#[test]
fn run_stages_before_its_command() {
    let mount = TestMount::with("stage-run", Side::Run, &["--memory", "16MiB", "--stage-in", "file"]);
    let script = prepare(&mount);
    compares(&mount, &script);
    let stats = mount.stats_of_runs();
    let read = &stats.first().expect("the run left its statistics").cache.preload;
    assert_eq!(read.misses, 0, "{read:?}");
    assert!(read.hits >= PAGES, "{read:?}");
    mount.finish();
}

/// A killed stage leaves cached pages only; a repeated one reads the missing pages.
#[test]
fn a_stage_that_was_killed_goes_on_where_it_was() {
    let mount = TestMount::new("stage-killed", Side::Mount, "128MiB");
    let pages = 48 << 8;
    let content = Rng::new(seed("stage-killed")).bytes(pages << 12);
    std::fs::write(mount.src().join("file"), &content).unwrap();
    let words = ["in", "--workers", "1"];
    let there = || mount.stat().cache.memory.pages as usize;
    let in_the_middle = (0..20).any(|_| {
        mount.drop_cache();
        let mut killed = Background::new(&mut stage(&words, mount.at()));
        asking_every(Duration::from_micros(200), Duration::from_secs(20), || there() > 500);
        killed.kill();
        // The daemon completes the request under way.
        let mut last = 0;
        holds_within(Duration::from_secs(20), || std::mem::replace(&mut last, there()) == there());
        there() < pages
    });
    assert!(in_the_middle, "it was never killed in the middle");
    let (left, before) = (there(), mount.stat().cache.reclaim.inserted as usize);
    let told = staged(&words, mount.at());
    assert_eq!(told["bytes"], content.len(), "{told}");
    let cache = mount.stat().cache;
    assert_eq!(
        (there(), cache.reclaim.inserted as usize - before),
        (pages, pages - left),
        "no page is read twice"
    );
    assert_eq!(std::fs::read(mount.at().join("file")).unwrap(), content);
    mount.finish();
}

#[test]
fn pinned_files_outlive_others_that_are_read_more() {
    let mount = TestMount::new("stage-pin", Side::Preload, "32MiB");
    let script = prepare(&mount);
    let other = Rng::new(seed("stage-pin")).bytes(64 << 20);
    std::fs::write(mount.src().join("other"), &other).unwrap();
    let told = staged(&["in", "file", "--pin", "1h", "--mount"], mount.at());
    assert_eq!(told["pinned_bytes"], BYTES, "{told}");
    for _ in 0..3 {
        let told = staged(&["in", "other", "--mount"], mount.at());
        assert_eq!((&told["bytes"], &told["pinned_bytes"]), (&other.len().into(), &0.into()), "{told}");
    }
    let before = mount.stat().cache.preload.misses;
    compares(&mount, &script);
    let after = mount.stat().cache;
    assert_eq!(after.preload.misses, before, "{:?}", after.preload);
    // Twice the size that fits: half of the memory is pinned, and the rest serves.
    let told = staged(&["in", "other", "--pin", "1h", "--mount"], mount.at());
    let pinned = told["pinned_bytes"].as_u64().unwrap() + BYTES as u64;
    assert!(pinned > 8 << 20 && pinned <= 16 << 20, "{told}");
    mount.finish();
}

/// Three times the memory goes to a tier, and memory keeps the pages in use.
#[test]
fn what_is_staged_to_a_tier_leaves_memory_to_others() {
    let dir = TestDir::new("stage-to-tier");
    let tier = format!("{}:64MiB", dir.path().join("tier").display());
    let mount = TestMount::with("stage-to", Side::Preload, &["--memory", "16MiB", "--tier", &tier]);
    let script = prepare(&mount);
    let other = Rng::new(seed("stage-to")).bytes(40 << 20);
    std::fs::write(mount.src().join("other"), &other).unwrap();
    let refused = process::run(stage(&["in", "other", "--to", "elsewhere", "--mount"], mount.at()), 60);
    assert!(!refused.status.success() && refused.stderr.contains("name one of"), "{refused}");
    (0..3).for_each(|_| compares(&mount, &script));
    let told = staged(&["in", "other", "--to", "0", "--mount"], mount.at());
    assert_eq!(told["bytes"], other.len(), "{told}");
    // Eviction may drop a page between its read and its move.
    let below = told["below_bytes"].as_u64().unwrap();
    assert!(below >= other.len() as u64 * 99 / 100 && below <= other.len() as u64, "{told}");
    let before = mount.stat().cache;
    compares(&mount, &script);
    assert_eq!(std::fs::read(mount.at().join("other")).unwrap(), other);
    let after = mount.stat().cache;
    assert_eq!(after.preload.misses, before.preload.misses, "what was in use stayed: {:?}", after.preload);
    let device = |stats: &Stats| stats.tiers.iter().find(|row| row.level == Some(0)).expect("the tier").hits;
    let from_tier = device(&after) - device(&before);
    assert!(from_tier * 4096 >= other.len() as u64 * 9 / 10, "{from_tier} pages from the tier: {after:?}");
    mount.finish();
}

#[test]
fn what_is_staged_out_is_in_the_source_and_leaves_memory() {
    let mount = TestMount::new("stage-out", Side::Mount, "32MiB");
    let content = Rng::new(seed("stage-out")).bytes(5 << 20);
    std::fs::create_dir(mount.at().join("dir")).unwrap();
    for name in ["dir/a", "dir/b"] {
        // Only the stage writes back.
        let mut file = std::fs::File::create(mount.at().join(name)).unwrap();
        std::io::Write::write_all(&mut file, &content).unwrap();
        let told = staged(&["out"], &mount.at().join(name));
        assert_eq!((&told["bytes"], &told["dropped_bytes"]), (&content.len().into(), &0.into()), "{told}");
        assert!(std::fs::read(mount.src().join(name)).unwrap() == content, "{name}: the source has it");
        let before = mount.stat().cache.memory.pages;
        let told = staged(&["out", "--drop"], &mount.at().join(name));
        assert_eq!(told["dropped_bytes"], content.len(), "{told}");
        assert_eq!(before - mount.stat().cache.memory.pages, content.len() as u64 / 4096);
        assert!(std::fs::read(mount.at().join(name)).unwrap() == content);
    }
    mount.finish();
}

#[test]
fn run_stages_out_what_its_command_has_left() {
    let dir = TestDir::new("stage-out-run");
    let src = dir.sub("src");
    let run = |out: &str| {
        let mut command = terrace(&["run", "--mount", "--memory", "16MiB", "--stage-out", out, "--on"]);
        command.arg(&src).args(["--", "sh", "-c", "mkdir -p new; seq 100000 > new/file"]);
        process::run(command.current_dir(&src), 60)
    };
    run("new").expect_success();
    let lines = std::fs::read_to_string(src.join("new/file")).unwrap();
    assert!(lines.lines().count() == 100_000 && lines.ends_with("100000\n"));
    let missing = run("other");
    assert!(!missing.status.success() && missing.stderr.contains("other"), "{missing}");
    let outside = run("../other");
    assert!(outside.stderr.contains("does not lie in the served directory"), "{outside}");
}
