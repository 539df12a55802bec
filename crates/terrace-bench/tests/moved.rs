//! Commands that are elsewhere now answer with their new spelling.

use std::process::Command;

#[test]
fn moved_command_names_its_successor() {
    for (old, new) in [
        ("sim", "terrace-sim sim"),
        ("policies", "terrace-sim gates"),
        ("watch", "terrace top"),
        ("lab", "terrace-sim"),
    ] {
        let mut bench = Command::new(env!("CARGO_BIN_EXE_terrace-bench"));
        let output = bench.args([old, "--trace", "a.u64"]).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), stderr.lines().count()), (Some(2), 1), "{stderr}");
        assert!(stderr.contains(&format!("`{new}`")), "{stderr}");
    }
}
