//! `terrace run --except DIR`: the command sees this directory of the source itself, without the cache.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::test_mount::{TestMount, alive, kill, text, told, wait_until};

/// `TestMount::run` with excepted directories.
fn run(test: &TestMount, except: &[&str], script: &str) -> Command {
    let except = except.iter().flat_map(|dir| ["--except", dir]);
    let mut command = test.run_with(&except.chain(["--no-preload"]).collect::<Vec<_>>(), script);
    command.current_dir(&test.src);
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
    let Some(test) = TestMount::new() else { return };
    for dir in ["logs/old", "out", "in"] {
        fs::create_dir_all(test.src.join(dir)).unwrap();
    }
    let script = "stat -f -c %T . in logs logs/old out; echo run > logs/old/a; echo run > in/b; \
                  mv in/b out/b && cat out/b && cat logs/old/a";
    let out = test.src.join("out");
    let said = told(run(&test, &["logs", text(&out)], script)).fine().out;
    assert_eq!(types(&said)[..5], [true, true, false, false, false], "{said}");
    assert!(said.ends_with("run\nrun\n"), "{said}");
    for file in ["logs/old/a", "out/b"] {
        assert_eq!(fs::read_to_string(test.src.join(file)).unwrap(), "run\n");
    }
    test.nothing_is_left();
}

/// No sync is needed: both paths share one page cache.
#[test]
fn others_see_what_is_written_there_at_once() {
    let Some(test) = TestMount::new() else { return };
    fs::create_dir(test.src.join("logs")).unwrap();
    let script = "echo from the command > logs/a; while ! [ -e logs/b ]; do sleep 0.02; done; cat logs/b";
    let child = run(&test, &["logs"], script).stdout(Stdio::piped()).spawn().unwrap();
    let log = test.src.join("logs/a");
    wait_for(&log, "from the command\n");
    fs::write(test.src.join("logs/b.new"), "from outside").unwrap();
    fs::rename(test.src.join("logs/b.new"), test.src.join("logs/b")).unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"from outside");
    test.nothing_is_left();
}

#[test]
fn invalid_exception_is_refused_before_the_mount() {
    let Some(test) = TestMount::new() else { return };
    fs::write(test.src.join("file"), "").unwrap();
    let beside = text(&test.mnt);
    for (name, why) in [
        ("missing", "--except missing: it does not exist"),
        ("file", "--except file: it is a file, not a directory"),
        (beside, "is not below"),
        (".", "is not below"),
    ] {
        told(run(&test, &[name], "echo started")).refused(&[why]);
    }
    test.nothing_is_left();
}

#[test]
fn excepted_directory_outlives_crashes_and_goes_at_the_end() {
    let Some(test) = TestMount::new() else { return };
    fs::create_dir(test.src.join("out")).unwrap();
    let go = test.src.join("out/go");
    let script = "echo 1 > out/ready; while ! [ -e out/go ]; do sleep 0.02; done; stat -f -c %T . out; \
                  echo 2 > out/ready; echo 3 > served";
    let child = run(&test, &["out"], script).stdout(Stdio::piped()).spawn().unwrap();
    let ready = test.src.join("out/ready");
    wait_for(&ready, "1\n");
    let terraced = test.info().terraced;
    kill(terraced, libc::SIGKILL);
    wait_until("another terraced serves", || ![0, terraced].contains(&test.info().terraced));
    fs::write(&go, "").unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success());
    assert_eq!(types(&String::from_utf8(out.stdout).unwrap()), [true, false]);
    assert_eq!(fs::read(&ready).unwrap(), b"2\n");
    assert_eq!(fs::read(test.src.join("served")).unwrap(), b"3\n");
    test.nothing_is_left();
}

/// When supervisor and daemon are killed, the mount is dead, but the excepted directory works, and the end
/// does not hang.
#[test]
fn excepted_directory_outlives_the_mount() {
    let Some(test) = TestMount::new() else { return };
    fs::create_dir(test.src.join("out")).unwrap();
    let script = "cd out; echo 1 > ready; while ! [ -e go ]; do sleep 0.02; done; echo 2 > ready";
    let child = run(&test, &["out"], script).stderr(Stdio::piped()).spawn().unwrap();
    let ready = test.src.join("out/ready");
    wait_for(&ready, "1\n");
    let info = test.info();
    kill(info.pid, libc::SIGKILL);
    kill(info.terraced, libc::SIGKILL);
    fs::write(test.src.join("out/go"), "").unwrap();
    let out = child.wait_with_output().unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(!out.status.success() && said.contains("died before the command ended"), "{said}");
    assert_eq!(fs::read(&ready).unwrap(), b"2\n");
    test.nothing_is_left();
}

/// A process left in the excepted directory does not keep the mount busy.
#[test]
fn process_left_in_excepted_directory_does_not_hold_the_mount() {
    let Some(test) = TestMount::new() else { return };
    fs::create_dir(test.src.join("out")).unwrap();
    let script = "cd out; (while ! [ -e end ]; do sleep 0.02; done) > /dev/null 2>&1 & echo $!";
    let left = told(run(&test, &["out"], script)).fine().out.trim().parse().unwrap();
    test.nothing_is_left();
    assert!(alive(left), "it was to be left");
    fs::write(test.src.join("out/end"), "").unwrap();
    // The process's namespace has copies of other mounts.
    wait_until("it has ended", || !alive(left));
}
