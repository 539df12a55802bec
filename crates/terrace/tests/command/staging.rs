//! `terrace stage` and `run --stage-in`.

use std::fs;
use std::path::Path;

use terrace_testkit::rng::Rng;

use crate::stage::{Outcome, TestMount, possible, terrace, text, told};

const MIB: usize = 1 << 20;

fn stage(words: &[&str]) -> Outcome {
    told(terrace([&["stage"], words].concat()))
}

fn json(told: Outcome) -> serde_json::Value {
    serde_json::from_str(&told.fine().out).unwrap()
}

/// Incompressible content, so that only DRAM counts.
fn write_random(path: &Path, len: usize) -> Vec<u8> {
    let content = Rng::new(len as u64).bytes(len);
    fs::write(path, &content).unwrap();
    content
}

#[test]
fn staged_files_are_read_without_the_source() {
    if !possible() {
        return;
    }
    let env = TestMount::new();
    fs::create_dir_all(env.src.join("set/deep")).unwrap();
    let content = write_random(&env.src.join("set/deep/a"), 3 * MIB);
    write_random(&env.src.join("set/b"), MIB);
    write_random(&env.src.join("other"), MIB);
    env.mount(&[]).fine();
    let set = text(&env.mnt.join("set")).to_owned();
    let staged = json(stage(&["in", "--json", "--workers", "2", &set]));
    assert_eq!(
        (staged["files"].as_u64(), staged["bytes"].as_u64()),
        (Some(2), Some(4 * MIB as u64)),
        "{staged}"
    );
    let before = env.stat().cache;
    assert!(before.memory.pages >= 1024, "{:?}", before.memory);
    let again = json(stage(&["in", "--json", &set]));
    assert_eq!(again["bytes"].as_u64(), Some(4 * MIB as u64));
    let after = env.stat().cache;
    assert_eq!(after.fuse.misses, before.fuse.misses);
    assert_eq!(fs::read(env.mnt.join("set/deep/a")).unwrap(), content);
    let part = json(stage(&["in", "--json", "--part", "64KiB-128KiB", text(&env.mnt.join("other"))]));
    assert_eq!(part["bytes"].as_u64(), Some(64 << 10));
    env.ask("umount", &[]).fine();
    env.nothing_is_left();
}

#[test]
fn staging_out_writes_to_the_source() {
    if !possible() {
        return;
    }
    let env = TestMount::new();
    env.mount(&[]).fine();
    let file = env.mnt.join("result");
    let content = write_random(&file, MIB);
    let said = stage(&["out", text(&env.mnt)]).fine().out;
    assert!(said.starts_with("1 file, 1.00 MiB in "), "{said}");
    assert_eq!(env.stat().cache.writeback.dirty, 0);
    assert_eq!(fs::read(env.src.join("result")).unwrap(), content);
    env.ask("umount", &[]).fine();
    env.nothing_is_left();
}

#[test]
fn staging_refuses_what_terrace_does_not_serve() {
    if !possible() {
        return;
    }
    let env = TestMount::new();
    stage(&["in", text(&env.src)])
        .refused(&["terrace serves nothing here", "`terrace stat` lists the mounts"]);
    stage(&["in", "/nonexistent"]).refused(&["/nonexistent: "]);
    stage(&["in", "--part", "9-3", "/tmp"]).refused(&["FROM-TO"]);
    stage(&["in", "--workers", "0", "/tmp"]).refused(&["write a number from 1 to 64"]);
}

#[test]
fn run_stages_in_before_its_command() {
    if !possible() {
        return;
    }
    let env = TestMount::new();
    write_random(&env.src.join("input"), 2 * MIB);
    let stats = env.file("stats.json");
    let run = |path: &str| {
        let mut command = terrace([
            "run",
            "--no-preload",
            "--memory",
            "32MiB",
            "--stage-in",
            path,
            "--stats",
            text(&stats),
        ]);
        command.arg("--on").arg(&env.src).args(["--", "true"]);
        told(command)
    };
    run("input").fine();
    let report: terrace_api::stats::StatReport =
        serde_json::from_str(&fs::read_to_string(&stats).unwrap()).unwrap();
    assert!(report.cache.memory.pages >= 512, "{:?}", report.cache.memory);
    run("nonexistent").refused(&["nonexistent: ", "name a file or directory below"]);
    run("..").refused(&["--stage-in: it does not lie in the served directory"]);
    env.nothing_is_left();
}
