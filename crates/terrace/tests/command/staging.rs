//! `terrace stage` and `run --stage-in`: staged files are read without the source, and `stage out` writes to
//! the source.

use std::fs;
use std::path::Path;

use terrace_api::stats::StatReport;
use terrace_testkit::rng::Rng;

use crate::test_mount::{Outcome, TestMount, json, terrace, text, told};

const MIB: usize = 1 << 20;

fn stage(words: &[&str]) -> Outcome {
    told(terrace([&["stage"], words].concat()))
}

fn stage_json(words: &[&str]) -> serde_json::Value {
    json(stage(&[words, &["--json"]].concat()))
}

/// Incompressible content, so that only DRAM counts.
fn write_random(path: &Path, len: usize) -> Vec<u8> {
    let content = Rng::new(len as u64).bytes(len);
    fs::write(path, &content).unwrap();
    content
}

#[test]
fn staged_files_are_read_without_the_source() {
    let Some(test) = TestMount::new() else { return };
    fs::create_dir_all(test.src.join("set/deep")).unwrap();
    let content = write_random(&test.src.join("set/deep/a"), 3 * MIB);
    write_random(&test.src.join("set/b"), MIB);
    write_random(&test.src.join("other"), MIB);
    test.mount(&[]).fine();
    let set = text(&test.mnt.join("set")).to_owned();
    let staged = stage_json(&["in", "--workers", "2", &set]);
    assert_eq!(
        (staged["files"].as_u64(), staged["bytes"].as_u64()),
        (Some(2), Some(4 * MIB as u64)),
        "{staged}"
    );
    let before = test.stat().cache;
    assert!(before.memory.pages >= 1024, "{:?}", before.memory);
    let again = stage_json(&["in", &set]);
    assert_eq!(again["bytes"].as_u64(), Some(4 * MIB as u64));
    let after = test.stat().cache;
    assert_eq!(after.fuse.misses, before.fuse.misses);
    assert_eq!(fs::read(test.mnt.join("set/deep/a")).unwrap(), content);
    let part = stage_json(&["in", "--part", "64KiB-128KiB", text(&test.mnt.join("other"))]);
    assert_eq!(part["bytes"].as_u64(), Some(64 << 10));
    test.finish();
}

#[test]
fn staging_out_writes_to_the_source() {
    let Some(test) = TestMount::mounted() else { return };
    let file = test.mnt.join("result");
    let content = write_random(&file, MIB);
    let said = stage(&["out", text(&test.mnt)]).fine().out;
    assert!(said.starts_with("1 file, 1.00 MiB in "), "{said}");
    assert_eq!(test.stat().cache.writeback.dirty, 0);
    assert_eq!(fs::read(test.src.join("result")).unwrap(), content);
    test.finish();
}

#[test]
fn staging_refuses_what_terrace_does_not_serve() {
    let Some(test) = TestMount::new() else { return };
    stage(&["in", text(&test.src)]).refused(&["terrace serves nothing here", "`terrace stat` lists them"]);
    stage(&["in", "/nonexistent"]).refused(&["/nonexistent: "]);
    stage(&["in", "--part", "9-3", "/tmp"]).refused(&["FROM-TO"]);
    stage(&["in", "--workers", "0", "/tmp"]).refused(&["write a number from 1 to 64"]);
}

#[test]
fn run_stages_in_before_its_command() {
    let Some(test) = TestMount::new() else { return };
    write_random(&test.src.join("input"), 2 * MIB);
    let stats = test.file("stats.json");
    let run = |path: &str| {
        told(test.run_with(&["--no-preload", "--stage-in", path, "--stats", text(&stats)], "true"))
    };
    run("input").fine();
    let report: StatReport = serde_json::from_slice(&fs::read(&stats).unwrap()).unwrap();
    assert!(report.cache.memory.pages >= 512, "{:?}", report.cache.memory);
    run("nonexistent").refused(&["nonexistent: ", "name a file or directory below"]);
    run("..").refused(&["--stage-in: it does not lie in the served directory"]);
    test.nothing_is_left();
}
