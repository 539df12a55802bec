//! Staging: data brought in by `terrace stage in` and `run --stage-in` are read without the source.

use std::process::Command;

use terrace_api::stats::Stats;
use terrace_tests::process::{self, Background};
use terrace_tests::rig::{Side, TestDir, TestMount, product};
use terrace_tests::rng::{Rng, seed};

const BYTES: usize = 4 << 20;
const PAGES: u64 = BYTES as u64 / 4096;

/// A file in the source, and a script that compares it by reads of the preload path.
fn prepare(rig: &TestMount) -> String {
    let mut rng = Rng::new(seed("stage"));
    let content: Vec<u8> = (0..BYTES / 8).flat_map(|_| rng.below(u64::MAX).to_le_bytes()).collect();
    std::fs::write(rig.src().join("file"), &content).unwrap();
    std::fs::write(rig.aside().join("expected"), &content).unwrap();
    let expected = rig.aside().join("expected");
    format!(
        "import os\nf = os.open('file', os.O_RDONLY)\ng = os.open('{}', os.O_RDONLY)\n\
         for i in range(0, {BYTES}, 65536): assert os.pread(f, 65536, i) == os.pread(g, 65536, i), i\nprint('the same')",
        expected.display()
    )
}

fn compares(rig: &TestMount, script: &str) {
    let said = process::run(rig.command("python3").args(["-c", script]), 60).expect_success();
    assert_eq!(said.trim(), "the same");
}

/// Also where the kernel serves files to programs that are not clients, such as `terrace stage`.
#[test]
fn staged_files_are_read_without_the_source() {
    for mode in ["off", "auto"] {
        let rig = TestMount::with("stage-in", Side::Preload, &["--memory", "16MiB", "--passthrough", mode]);
        let script = prepare(&rig);
        let mut stage = Command::new(product("terrace"));
        let said = process::run(stage.args(["stage", "in", "--json"]).arg(rig.at()), 60).expect_success();
        let told: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!((&told["files"], &told["bytes"]), (&1.into(), &BYTES.into()), "{said}");
        let staged = rig.stat().cache;
        assert_eq!((staged.memory.pages, staged.preload.misses), (PAGES, 0), "passthrough {mode}");
        compares(&rig, &script);
        let read = rig.stat().cache.preload;
        assert_eq!(read.misses, 0, "passthrough {mode}: {read:?}");
        assert!(read.hits >= PAGES, "passthrough {mode}: {read:?}");
        rig.finish();
    }
}

/// A part of a file, a missing file, and one outside of any mount.
#[test]
fn staging_tells_what_it_did_and_what_it_cannot() {
    let rig = TestMount::new("stage-parts", Side::Mount, "16MiB");
    prepare(&rig);
    let stage = |args: &[&str], path: &std::path::Path| {
        process::run(Command::new(product("terrace")).args(["stage", "in"]).args(args).arg(path), 60)
    };
    stage(&["--part", "1MiB-2MiB"], &rig.at().join("file")).expect_success();
    assert_eq!(rig.stat().cache.memory.pages, PAGES / 4);
    for (path, cure) in [(rig.at().join("none"), "none"), (rig.src().join("file"), "serves nothing here")] {
        let refused = stage(&[], &path);
        assert!(!refused.status.success() && refused.stderr.contains(cure), "{refused}");
    }
    rig.finish();
}

/// The default of `run`, where the kernel serves files to programs without the library.
#[test]
fn run_stages_before_its_command() {
    let rig = TestMount::with("stage-run", Side::Run, &["--memory", "16MiB", "--stage-in", "file"]);
    let script = prepare(&rig);
    compares(&rig, &script);
    let stats = rig.stats_of_runs();
    let read = &stats.first().expect("the run left its statistics").cache.preload;
    assert_eq!(read.misses, 0, "{read:?}");
    assert!(read.hits >= PAGES, "{read:?}");
    rig.finish();
}

/// A killed stage leaves cached pages only; a repeated one reads the missing pages.
#[test]
fn a_stage_that_was_killed_goes_on_where_it_was() {
    let rig = TestMount::new("stage-killed", Side::Mount, "128MiB");
    let pages = 48 << 8;
    let content = Rng::new(seed("stage-killed")).bytes(pages << 12);
    std::fs::write(rig.src().join("file"), &content).unwrap();
    let stage = || {
        let mut command = Command::new(product("terrace"));
        command.args(["stage", "in", "--workers", "1", "--json"]).arg(rig.at());
        command
    };
    let there = || rig.stat().cache.memory.pages as usize;
    let in_the_middle = (0..20).any(|_| {
        rig.drop_cache();
        let mut killed = Background::new(&mut stage());
        process::wait_closely(20, || there() > 500);
        killed.kill();
        // The daemon completes the request under way.
        let mut last = 0;
        process::wait_until(20, || std::mem::replace(&mut last, there()) == there());
        there() < pages
    });
    assert!(in_the_middle, "it was never killed in the middle");
    let (left, before) = (there(), rig.stat().cache.reclaim.inserted as usize);
    let said = process::run(&mut stage(), 60).expect_success();
    let told: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(told["bytes"], content.len(), "{said}");
    let cache = rig.stat().cache;
    assert_eq!(
        (there(), cache.reclaim.inserted as usize - before),
        (pages, pages - left),
        "no page is read twice"
    );
    assert_eq!(std::fs::read(rig.at().join("file")).unwrap(), content);
    rig.finish();
}

#[test]
fn pinned_files_outlive_others_that_are_read_more() {
    let rig = TestMount::new("stage-pin", Side::Preload, "32MiB");
    let script = prepare(&rig);
    let other = Rng::new(seed("stage-pin")).bytes(64 << 20);
    std::fs::write(rig.src().join("other"), &other).unwrap();
    let stage = |args: &[&str]| {
        let mut command = Command::new(product("terrace"));
        let said =
            process::run(command.args(["stage", "in", "--json", "--mount"]).arg(rig.at()).args(args), 60);
        serde_json::from_str::<serde_json::Value>(&said.expect_success()).unwrap()
    };
    let told = stage(&["file", "--pin", "1h"]);
    assert_eq!(told["pinned_bytes"], BYTES, "{told}");
    for _ in 0..3 {
        let told = stage(&["other"]);
        assert_eq!((&told["bytes"], &told["pinned_bytes"]), (&other.len().into(), &0.into()), "{told}");
    }
    let before = rig.stat().cache.preload.misses;
    compares(&rig, &script);
    let after = rig.stat().cache;
    assert_eq!(after.preload.misses, before, "{:?}", after.preload);
    // Twice the size that fits: half of the memory is pinned, and the rest serves.
    let told = stage(&["other", "--pin", "1h"]);
    let pinned = told["pinned_bytes"].as_u64().unwrap() + BYTES as u64;
    assert!(pinned > 8 << 20 && pinned <= 16 << 20, "{told}");
    rig.finish();
}

/// Three times the memory goes to a tier, and memory keeps the pages in use.
#[test]
fn what_is_staged_to_a_tier_leaves_memory_to_others() {
    let dir = TestDir::new("stage-to-tier");
    let tier = format!("{}:64MiB", dir.path().join("tier").display());
    let rig = TestMount::with("stage-to", Side::Preload, &["--memory", "16MiB", "--tier", &tier]);
    let script = prepare(&rig);
    let other = Rng::new(seed("stage-to")).bytes(40 << 20);
    std::fs::write(rig.src().join("other"), &other).unwrap();
    let stage = |args: &[&str]| {
        let mut command = Command::new(product("terrace"));
        process::run(command.args(["stage", "in", "--json", "--mount"]).arg(rig.at()).args(args), 60)
    };
    let refused = stage(&["other", "--to", "elsewhere"]);
    assert!(!refused.status.success() && refused.stderr.contains("name one of"), "{refused}");
    (0..3).for_each(|_| compares(&rig, &script));
    let said = stage(&["other", "--to", "0"]).expect_success();
    let told: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(told["bytes"], other.len(), "{told}");
    // Eviction may drop a page between its read and its move.
    let below = told["below_bytes"].as_u64().unwrap();
    assert!(below >= other.len() as u64 * 99 / 100 && below <= other.len() as u64, "{told}");
    let before = rig.stat().cache;
    compares(&rig, &script);
    assert_eq!(std::fs::read(rig.at().join("other")).unwrap(), other);
    let after = rig.stat().cache;
    assert_eq!(after.preload.misses, before.preload.misses, "what was in use stayed: {:?}", after.preload);
    let device = |stats: &Stats| stats.tiers.iter().find(|row| row.level == Some(0)).expect("the tier").hits;
    let from_tier = device(&after) - device(&before);
    assert!(from_tier * 4096 >= other.len() as u64 * 9 / 10, "{from_tier} pages from the tier: {after:?}");
    rig.finish();
}

#[test]
fn what_is_staged_out_is_in_the_source_and_leaves_memory() {
    let rig = TestMount::new("stage-out", Side::Mount, "32MiB");
    let content = Rng::new(seed("stage-out")).bytes(5 << 20);
    std::fs::create_dir(rig.at().join("dir")).unwrap();
    for name in ["dir/a", "dir/b"] {
        // Only the stage writes back.
        let mut file = std::fs::File::create(rig.at().join(name)).unwrap();
        std::io::Write::write_all(&mut file, &content).unwrap();
        let out = |args: &[&str]| {
            let mut command = Command::new(product("terrace"));
            let said = process::run(
                command.args(["stage", "out", "--json"]).args(args).arg(rig.at().join(name)),
                60,
            );
            serde_json::from_str::<serde_json::Value>(&said.expect_success()).unwrap()
        };
        let told = out(&[]);
        assert_eq!((&told["bytes"], &told["dropped_bytes"]), (&content.len().into(), &0.into()), "{told}");
        assert!(std::fs::read(rig.src().join(name)).unwrap() == content, "{name}: the source has it");
        let before = rig.stat().cache.memory.pages;
        let told = out(&["--drop"]);
        assert_eq!(told["dropped_bytes"], content.len(), "{told}");
        assert_eq!(before - rig.stat().cache.memory.pages, content.len() as u64 / 4096);
        assert!(std::fs::read(rig.at().join(name)).unwrap() == content);
    }
    rig.finish();
}

#[test]
fn run_stages_out_what_its_command_has_left() {
    let dir = TestDir::new("stage-out-run");
    let src = dir.sub("src");
    let run = |out: &str| {
        let mut command = Command::new(product("terrace"));
        command.args(["run", "--mount", "--memory", "16MiB", "--stage-out", out, "--on"]).arg(&src);
        process::run(
            command.args(["--", "sh", "-c", "mkdir -p new; seq 100000 > new/file"]).current_dir(&src),
            60,
        )
    };
    run("new").expect_success();
    let lines = std::fs::read_to_string(src.join("new/file")).unwrap();
    assert!(lines.lines().count() == 100_000 && lines.ends_with("100000\n"));
    let missing = run("other");
    assert!(!missing.status.success() && missing.stderr.contains("other"), "{missing}");
    let outside = run("../other");
    assert!(outside.stderr.contains("does not lie in the served directory"), "{outside}");
}
