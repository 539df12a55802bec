//! `terrace-bench metadata` from the command line, in its smallest form.

use terrace_testkit::command::Tool;

const BENCH: Tool = Tool { exe: env!("CARGO_BIN_EXE_terrace-bench"), name: "terrace-bench" };

#[test]
fn five_tables_are_measured_and_nothing_is_left() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let small = "metadata --counts 500,3000 --threads 1,3 --repeat 2 --memory-mib 32 --dir .";
    let text = BENCH.done(dir.path(), small);
    assert_eq!(text.matches("thousands a second").count(), 5, "{text}");
    let json = BENCH.done(dir.path(), &format!("{small} --json --blob-bytes 100 --sync never"));
    let results: serde_json::Value = serde_json::from_str(&json).unwrap();
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
    for (args, why) in
        [("--repeat 0", "1 or more"), ("--dir /nowhere/at/all", "/nowhere"), ("--memory-mib 1", "")]
    {
        BENCH.refused(dir.path(), &format!("metadata {args}"), why);
    }
    let left = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 0, "a store that cannot be opened leaves nothing");
}
