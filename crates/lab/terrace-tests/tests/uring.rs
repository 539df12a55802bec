//! Programs that use liburing: the library answers hits, the kernel everything else, and programs see no
//! difference.

use std::path::Path;
use terrace_tests::process;
use terrace_tests::rng::seed;
use terrace_tests::tools::{compile, need_library};
use terrace_tests::{Side, TestDir, TestMount};

/// Reads of each of the two rings.
const READS: u64 = 20_000;

fn program(dir: &TestDir) -> std::path::PathBuf {
    need_library("liburing.so", "liburing-dev");
    let out = dir.path().join("uring");
    compile("uring", &out, &["-luring"]);
    out
}

/// Runs the program; returns the reads served by the preload path.
#[track_caller]
fn run(side: Side, program: &Path) -> u64 {
    let mount = TestMount::new("uring", side, "16MiB");
    let mut command = mount.command(program);
    command.arg(mount.at()).arg(READS.to_string()).arg(seed("uring").to_string());
    process::run(&mut command, 120).expect_success();
    let hits = if side == Side::Preload { mount.stat().cache.preload.hits } else { 0 };
    mount.finish();
    hits
}

#[test]
fn a_ring_sees_what_it_sees_elsewhere() {
    let dir = TestDir::new("uring-program");
    let program = program(&dir);
    run(Side::Plain, &program);
    run(Side::Mount, &program);
    run(Side::Run, &program);
    let hits = run(Side::Preload, &program);
    assert!(hits > READS, "{hits} hits of twice {READS} reads: they went another way");
}
