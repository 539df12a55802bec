//! `terrace-bench metadata` from the command line, in its smallest form.

use std::process::{Command, Output};

fn metadata(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_terrace-bench")).arg("metadata").args(args).output().unwrap()
}

#[test]
fn five_tables_are_measured_and_nothing_is_left() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let small = ["--counts", "500,3000", "--threads", "1,3", "--repeat", "2", "--memory-mib", "32", "--dir"];
    let mut args = small.to_vec();
    args.push(dir.path().to_str().unwrap());
    let shown = metadata(&args);
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    assert_eq!(text.matches("thousands a second").count(), 5, "{text}");
    args.extend(["--json", "--blob-bytes", "100", "--sync", "never"]);
    let json = metadata(&args);
    let results: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let cells = results["cells"].as_array().unwrap();
    assert_eq!((results["schema"].as_u64(), cells.len()), (Some(1), 5 * 4));
    for cell in cells {
        let rates = cell["ops_per_second"].as_array().unwrap();
        assert!(rates.len() == 2 && rates.iter().all(|rate| rate.as_f64().unwrap() > 0.0), "{cell}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the stores are gone");
}

#[test]
fn unmeasurable_load_is_refused_in_one_line() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let too_small = ["--memory-mib", "1", "--dir", dir.path().to_str().unwrap()];
    for args in [&["--repeat", "0"][..], &["--dir", "/nowhere/at/all"], &too_small] {
        let refused = metadata(args);
        let stderr = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{args:?}");
        assert!(stderr.lines().count() == 1 && stderr.starts_with("terrace-bench: "), "{args:?}: {stderr}");
    }
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        0,
        "a store that cannot be opened leaves nothing"
    );
}
