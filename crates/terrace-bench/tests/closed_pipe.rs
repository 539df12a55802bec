//! A reader that goes away, as in `terrace-bench ... | head`.

use std::process::Command;

#[test]
fn reader_that_goes_away_is_no_panic() {
    let matrix = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/everyday-memory.toml");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut bench = Command::new(env!("CARGO_BIN_EXE_terrace-bench"));
    let output = bench.args(["matrix", matrix, "--dry-run"]).stdout(writer).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), stderr.as_str()), (Some(0), ""));
}
