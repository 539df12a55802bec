//! `terrace run --except DIR`.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::stage::{TestMount, kill, possible, runs, terrace, text, told, wait_until};

/// `stage.run` with excepted directories.
fn run(stage: &TestMount, except: &[&str], script: &str) -> Command {
    let mut command = terrace(["run", "--memory", "32MiB", "--no-preload", "--on"]);
    command.arg(&stage.src);
    command.args(except.iter().flat_map(|dir| ["--except", dir]));
    command.args(["--", "sh", "-c", script]).current_dir(&stage.src);
    command
}

/// File system types in the output; the mount is `fuseblk`.
fn types(out: &str) -> Vec<bool> {
    out.lines().map(|line| line == "fuseblk").collect()
}

/// Waits until the command has written this text.
#[track_caller]
fn wait_for(file: &Path, text: &str) {
    wait_until(text, || fs::read(file).is_ok_and(|found| found == text.as_bytes()));
}

#[test]
fn excepted_directories_are_those_of_the_source() {
    if !possible() {
        return;
    }
    let stage = TestMount::new();
    for dir in ["logs/old", "out", "in"] {
        fs::create_dir_all(stage.src.join(dir)).unwrap();
    }
    let script = "stat -f -c %T . in logs logs/old out; echo run > logs/old/a; echo run > in/b; \
                  mv in/b out/b && cat out/b && cat logs/old/a";
    let out = stage.src.join("out");
    let said = told(run(&stage, &["logs", text(&out)], script)).fine().out;
    assert_eq!(types(&said)[..5], [true, true, false, false, false], "{said}");
    assert!(said.ends_with("run\nrun\n"), "{said}");
    for file in ["logs/old/a", "out/b"] {
        assert_eq!(fs::read_to_string(stage.src.join(file)).unwrap(), "run\n");
    }
    stage.nothing_is_left();
}

/// No sync is needed: both paths share one page cache.
#[test]
fn others_see_what_is_written_there_at_once() {
    if !possible() {
        return;
    }
    let stage = TestMount::new();
    fs::create_dir(stage.src.join("logs")).unwrap();
    let script = "echo from the command > logs/a; while ! [ -e logs/b ]; do sleep 0.02; done; cat logs/b";
    let child = run(&stage, &["logs"], script).stdout(Stdio::piped()).spawn().unwrap();
    let log = stage.src.join("logs/a");
    wait_for(&log, "from the command\n");
    fs::write(stage.src.join("logs/b.new"), "from outside").unwrap();
    fs::rename(stage.src.join("logs/b.new"), stage.src.join("logs/b")).unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"from outside");
    stage.nothing_is_left();
}

#[test]
fn invalid_exception_is_refused_before_the_mount() {
    if !possible() {
        return;
    }
    let stage = TestMount::new();
    fs::write(stage.src.join("file"), "").unwrap();
    let beside = text(&stage.mnt);
    for (name, why) in [
        ("missing", "--except missing: it does not exist"),
        ("file", "--except file: it is a file, not a directory"),
        (beside, "is not below"),
        (".", "is not below"),
    ] {
        told(run(&stage, &[name], "echo started")).refused(&[why]);
    }
    stage.nothing_is_left();
}

#[test]
fn excepted_directory_outlives_crashes_and_goes_at_the_end() {
    if !possible() {
        return;
    }
    let stage = TestMount::new();
    fs::create_dir(stage.src.join("out")).unwrap();
    let go = stage.src.join("out/go");
    let script = "echo 1 > out/ready; while ! [ -e out/go ]; do sleep 0.02; done; stat -f -c %T . out; \
                  echo 2 > out/ready; echo 3 > served";
    let child = run(&stage, &["out"], script).stdout(Stdio::piped()).spawn().unwrap();
    let ready = stage.src.join("out/ready");
    wait_for(&ready, "1\n");
    let terraced = stage.info().terraced;
    kill(terraced, Signal::KILL);
    wait_until("another terraced serves", || ![0, terraced].contains(&stage.info().terraced));
    fs::write(&go, "").unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success());
    assert_eq!(types(&String::from_utf8(out.stdout).unwrap()), [true, false]);
    assert_eq!(fs::read(&ready).unwrap(), b"2\n");
    assert_eq!(fs::read(stage.src.join("served")).unwrap(), b"3\n");
    stage.nothing_is_left();
}

/// When supervisor and daemon are killed, the mount is dead, but the excepted directory works, and the end
/// does not hang.
#[test]
fn excepted_directory_outlives_the_mount() {
    if !possible() {
        return;
    }
    let stage = TestMount::new();
    fs::create_dir(stage.src.join("out")).unwrap();
    let script = "cd out; echo 1 > ready; while ! [ -e go ]; do sleep 0.02; done; echo 2 > ready";
    let child = run(&stage, &["out"], script).stderr(Stdio::piped()).spawn().unwrap();
    let ready = stage.src.join("out/ready");
    wait_for(&ready, "1\n");
    let info = stage.info();
    kill(info.pid, Signal::KILL);
    kill(info.terraced, Signal::KILL);
    fs::write(stage.src.join("out/go"), "").unwrap();
    let out = child.wait_with_output().unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(!out.status.success() && said.contains("died before the command ended"), "{said}");
    assert_eq!(fs::read(&ready).unwrap(), b"2\n");
    stage.nothing_is_left();
}

/// A process left in the excepted directory does not keep the mount busy.
#[test]
fn process_left_in_excepted_directory_does_not_hold_the_mount() {
    if !possible() {
        return;
    }
    let stage = TestMount::new();
    fs::create_dir(stage.src.join("out")).unwrap();
    let script = "cd out; (while ! [ -e end ]; do sleep 0.02; done) > /dev/null 2>&1 & echo $!";
    let left = told(run(&stage, &["out"], script)).fine().out.trim().parse().unwrap();
    stage.nothing_is_left();
    assert!(runs(left), "it was to be left");
    fs::write(stage.src.join("out/end"), "").unwrap();
    // The process's namespace has copies of other mounts.
    wait_until("it has ended", || !runs(left));
}
