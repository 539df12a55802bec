//! C programs with typical uses of descriptors (`tests/c/behaviour.c`): each case on a plain directory,
//! through the mount and through the preload path, compiled with and without fortified calls.

use std::path::{Path, PathBuf};
use std::process::Command;
use terrace_tests::process::{self, Outcome};
use terrace_tests::tools::{compile, need_library};
use terrace_tests::{Side, TestDir, TestMount, product};

struct Program {
    _dir: TestDir,
    path: PathBuf,
}

fn program(fortified: bool) -> Program {
    let dir = TestDir::new("behaviour-build");
    let path = dir.path().join("behaviour");
    compile("behaviour", &path, if fortified { &["-D_FORTIFY_SOURCE=2", "-lutil"] } else { &["-lutil"] });
    Program { _dir: dir, path }
}

fn run_case(mount: &TestMount, program: &Path, case: &str, before: impl Fn(&mut Command)) -> Outcome {
    let mut command = mount.command(program);
    command.arg(mount.at()).arg(case).env("BEHAVIOUR_EARLY", mount.at().join("a"));
    before(&mut command);
    process::run(&mut command, 60)
}

/// Runs all cases and panics with a list of those that failed.
#[track_caller]
fn all_cases(side: Side, fortified: bool, wants_hits: bool, before: impl Fn(&mut Command, &TestMount)) {
    let program = program(fortified);
    let mount = TestMount::new("behaviour", side, "16MiB");
    let before = |command: &mut Command| before(command, &mount);
    let prepared = process::run(Command::new(&program.path).arg(mount.at()).arg("prepare"), 60);
    prepared.expect_success();
    let list = process::run(Command::new(&program.path).args([".", "list"]), 60).expect_success();
    let mut failed = Vec::new();
    for case in list.lines() {
        let outcome = run_case(&mount, &program.path, case, before);
        if !outcome.status.success() {
            failed.push(format!("{case}: {outcome}"));
        }
    }
    assert!(failed.is_empty(), "{} of {} cases:\n{}", failed.len(), list.lines().count(), failed.join("\n"));
    if side == Side::Preload && wants_hits {
        let hits = mount.stat().cache.preload.hits;
        assert!(hits > 1000, "the cases went another way: {hits} hits at the preload path");
    }
    mount.finish();
}

#[test]
fn on_a_plain_directory() {
    all_cases(Side::Plain, false, true, |_, _| ());
    all_cases(Side::Plain, true, true, |_, _| ());
}

#[test]
fn through_the_mount() {
    all_cases(Side::Mount, false, true, |_, _| ());
}

#[test]
fn through_preload() {
    all_cases(Side::Preload, false, true, |_, _| ());
}

/// Programs that become clients at their first in-place change, or never: the kernel serves files opened
/// before.
#[test]
fn through_preload_registered_late() {
    all_cases(Side::Preload, false, false, |command, _| {
        command.env_remove("TERRACE_LARGE_FILE");
    });
}

#[test]
fn through_preload_fortified() {
    all_cases(Side::Preload, true, true, |_, _| ());
}

#[test]
fn with_jemalloc_beside() {
    let jemalloc = need_library("libjemalloc.so.2", "libjemalloc2");
    let terrace = product("libterrace_preload.so");
    let order = [
        format!("{}:{}", jemalloc.display(), terrace.display()),
        format!("{}:{}", terrace.display(), jemalloc.display()),
    ];
    for preload in order {
        all_cases(Side::Preload, false, true, |command, _| {
            command.env("LD_PRELOAD", &preload);
        });
    }
}

#[test]
fn with_another_interposer_beside() {
    let dir = TestDir::new("behaviour-shim");
    let shim = dir.path().join("libshim.so");
    compile("shim", &shim, &["-shared", "-fPIC"]);
    let terrace = product("libterrace_preload.so");
    let order = [
        format!("{}:{}", shim.display(), terrace.display()),
        format!("{}:{}", terrace.display(), shim.display()),
    ];
    for preload in order {
        all_cases(Side::Preload, false, true, |command, _| {
            command.env("LD_PRELOAD", &preload);
        });
    }
}

/// With a socket that is missing or dead, programs use the mount.
#[test]
fn with_a_dead_connection() {
    for socket in ["/nonexistent/preload.sock", "/dev/null", ""] {
        all_cases(Side::Preload, false, false, |command, _| {
            command.env("TERRACE_SOCKET", socket).env("BEHAVIOUR_DEAD_CONNECTION", "1");
        });
    }
}

/// In a program without terrace files the library is invisible in descriptors, threads and signals.
#[test]
fn nothing_observable_elsewhere() {
    let mount = TestMount::new("unobservable", Side::Preload, "16MiB");
    let script = "ls -l /proc/self/fd | sed 's/.* \\([0-9]* ->\\)/\\1/; s/:.*//' | grep -v /proc/ | sort; \
                  grep -E 'Threads|SigBlk|SigIgn|SigCgt|NoNewPrivs' /proc/self/status; ulimit -a";
    let run = |fast: bool| {
        let mut command = Command::new("/bin/bash");
        if fast {
            mount.through_preload(&mut command);
        }
        process::run(command.arg("-c").arg(script).current_dir("/"), 30).expect_success()
    };
    let strip = |text: String| {
        text.lines().filter(|l| !l.contains("memfd:test-output")).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(strip(run(false)), strip(run(true)));
    mount.finish();
}
