//! Data that fsync acknowledged when a tier had them: over the death of all, and what `terrace recover` does with those of files that were changed since.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use terrace_api::tiers::SERVING;

use crate::crashes::kill_all;
use crate::stage::{Stage, Told, crash, possible, terrace, text, told, wait_until};

const PAGE: usize = 4096;

/// Overwrites two pages of an open file, the second twice, with an fsync after each; then waits. The first is the source's, which knows the file then.
const WRITER: &str = "
import os, sys
f = os.open(sys.argv[1], os.O_RDWR)
for at, byte in (0, b'b'), (4096, b'c'), (4096, b'd'):
    os.pwrite(f, byte * 4096, at)
    os.fsync(f)
print('synced', flush=True)
sys.stdin.read()
";

struct Writer(Child);

impl Writer {
    /// In a process of its own: what this one has open is closed, and so written back, by each child that another test forks.
    fn start(stage: &Stage) -> Writer {
        let mut python = Command::new("python3");
        python.args(["-c", WRITER]).arg(stage.mnt.join("f")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = python.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "synced\n");
        Writer(child)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn content(stage: &Stage) -> String {
    let file = fs::read(stage.src.join("f")).unwrap();
    file.chunks(PAGE).map(|page| char::from(page[PAGE - 1])).collect()
}

fn mount(stage: &Stage) -> Told {
    let (tier, config) = (format!("{}:16MiB", text(&stage.file("t.tier"))), stage.file("owed.toml"));
    fs::write(&config, "[dirty]\ndurable = \"tier\"\n").unwrap();
    stage.mount(&["--tier", &tier, "--config", text(&config)])
}

/// The death of all while a page is on the tier alone.
fn die_owing(stage: &Stage) {
    fs::write(stage.src.join("f"), "a".repeat(4 * PAGE)).unwrap();
    mount(stage).fine();
    wait_until("the scan", || stage.stat().cache.tiers.iter().any(|tier| tier.state == SERVING));
    let writer = Writer::start(stage);
    assert_eq!((content(stage), stage.stat().cache.writeback.owed_bytes), ("baaa".to_owned(), 4096));
    kill_all(stage);
    drop(writer);
    wait_until("the kernel has noticed", || fs::read_dir(&stage.mnt).is_err());
}

fn recover(stage: &Stage, more: &[&str]) -> Told {
    let mut command = terrace(["recover"]);
    command.arg(stage.file("t.tier")).args(more);
    told(command)
}

#[test]
fn what_a_tier_has_acknowledged_outlives_the_death_of_all() {
    if !possible() {
        return;
    }
    let stage = Stage::new();
    die_owing(&stage);
    assert_eq!(content(&stage), "baaa");
    let drop = told(terrace(["tier", "drop", "--yes", text(&stage.file("t.tier"))]));
    drop.refused(&["data that programs have synced", "terrace recover"]);
    let told = mount(&stage);
    assert_eq!(told.code, Some(0), "{}", told.err);
    assert_eq!(content(&stage), "bdaa");
    assert_eq!(fs::read(stage.mnt.join("f")).unwrap()[PAGE], b'd');
    stage.ask("umount", &[]).fine();
    assert_eq!(recover(&stage, &[]).fine().out.matches("has everything").count(), 1);
    stage.nothing_is_left();
}

#[test]
fn recover_decides_over_files_that_were_changed_since() {
    if !possible() {
        return;
    }
    for (decision, becomes) in [("--write", "xdaa"), ("--discard", "xxaa")] {
        let stage = Stage::new();
        die_owing(&stage);
        let source = fs::File::options().write(true).open(stage.src.join("f")).unwrap();
        source.write_all_at("x".repeat(2 * PAGE).as_bytes(), 0).unwrap();
        assert_eq!(mount(&stage).code, Some(0));
        assert_eq!((content(&stage), stage.stat().cache.writeback.conflict_bytes), ("xxaa".to_owned(), 4096));
        assert!(stage.ask("stat", &[]).fine().out.contains("terrace recover"));
        recover(&stage, &[decision]).refused(&["in use"]);
        stage.ask("umount", &[]).fine();
        let shown = recover(&stage, &["--show"]);
        assert_eq!((shown.code, shown.out.trim()), (Some(1), "4KiB  f"), "{}", shown.err);
        let done = recover(&stage, &[decision]);
        assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
        assert_eq!(content(&stage), becomes, "{decision}: {}", done.out);
        assert!(recover(&stage, &[]).fine().out.contains("has everything"));
        stage.nothing_is_left();
    }
}

/// The next terraced takes over what is owed, and settles it: after that the death of all brings nothing back.
#[test]
fn killed_terraced_leaves_what_is_owed_to_the_next() {
    if !possible() {
        return;
    }
    let stage = Stage::new();
    fs::write(stage.src.join("f"), "a".repeat(4 * PAGE)).unwrap();
    mount(&stage).fine();
    wait_until("the scan", || stage.stat().cache.tiers.iter().any(|tier| tier.state == SERVING));
    let writer = Writer::start(&stage);
    crash(stage.processes().1, Signal::KILL);
    assert_eq!(fs::read(stage.mnt.join("f")).unwrap()[PAGE], b'd');
    stage.ask("sync", &[]).fine();
    assert_eq!(content(&stage), "bdaa");
    kill_all(&stage);
    drop(writer);
    wait_until("the kernel has noticed", || fs::read_dir(&stage.mnt).is_err());
    let source = fs::File::options().write(true).open(stage.src.join("f")).unwrap();
    source.write_all_at("x".repeat(2 * PAGE).as_bytes(), 0).unwrap();
    assert_eq!(mount(&stage).code, Some(0));
    assert_eq!((content(&stage), stage.stat().cache.writeback.conflict_bytes), ("xxaa".to_owned(), 0));
    stage.ask("umount", &[]).fine();
    stage.nothing_is_left();
}
