//! Runs terrace-bench from the command line.

use std::path::Path;
use std::process::Command;
use terrace_testkit::command::Tool;

const BENCH: Tool = Tool { exe: env!("CARGO_BIN_EXE_terrace-bench"), name: "terrace-bench" };

pub(crate) fn bench(dir: &Path, args: &str) -> Command {
    BENCH.command(dir, args)
}

/// [`Tool::done`]
#[track_caller]
pub(crate) fn done(dir: &Path, args: &str) -> String {
    BENCH.done(dir, args)
}

/// [`Tool::refused`]
#[track_caller]
pub(crate) fn refused(dir: &Path, args: &str, what: &str) {
    BENCH.refused(dir, args, what);
}
