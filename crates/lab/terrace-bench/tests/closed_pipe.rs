//! terrace-bench with a failing output: a closed pipe, as in `terrace-bench ... | head`, and a full device.

use std::process::Command;

use terrace_testkit::command::check_outputs;

#[test]
fn outputs_that_fail_are_no_panic() {
    let matrix = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../bench/everyday-memory.toml");
    for args in [&["matrix", matrix, "--dry-run"][..], &["--help"], &["--version"], &["matrix", "--help"]] {
        check_outputs(|| {
            let mut bench = Command::new(env!("CARGO_BIN_EXE_terrace-bench"));
            bench.args(args);
            bench
        });
    }
}
