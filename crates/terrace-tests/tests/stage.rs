//! Staging: what `terrace stage in` and `run --stage-in` brought is read without the source.

use std::process::Command;

use terrace_tests::process;
use terrace_tests::rig::{Rig, Side, product};
use terrace_tests::rng::{Rng, seed};

const BYTES: usize = 4 << 20;
const PAGES: u64 = BYTES as u64 / 4096;

/// A file in the source, and a script that compares it by reads of the preload path.
fn prepare(rig: &Rig) -> String {
    let mut rng = Rng::new(seed("stage"));
    let content: Vec<u8> = (0..BYTES / 8).flat_map(|_| rng.below(u64::MAX).to_le_bytes()).collect();
    std::fs::write(rig.src().join("file"), &content).unwrap();
    std::fs::write(rig.aside().join("expected"), &content).unwrap();
    let expected = rig.aside().join("expected");
    format!(
        "import os\nf = os.open('file', os.O_RDONLY)\ng = os.open('{}', os.O_RDONLY)\n\
         for i in range(0, {BYTES}, 65536): assert os.pread(f, 65536, i) == os.pread(g, 65536, i), i\nprint('the same')",
        expected.display()
    )
}

fn compares(rig: &Rig, script: &str) {
    let said = process::run(rig.command("python3").args(["-c", script]), 60).expect_success();
    assert_eq!(said.trim(), "the same");
}

/// Also where the kernel reads files itself for programs that are no clients, as `terrace stage` is none.
#[test]
fn staged_files_are_read_without_the_source() {
    for mode in ["off", "auto"] {
        let rig = Rig::with("stage-in", Side::Fast, &["--memory", "16MiB", "--passthrough", mode]);
        let script = prepare(&rig);
        let mut stage = Command::new(product("terrace"));
        let said = process::run(stage.args(["stage", "in", "--json"]).arg(rig.at()), 60).expect_success();
        let told: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!((&told["files"], &told["bytes"]), (&1.into(), &BYTES.into()), "{said}");
        let staged = rig.stat().cache;
        assert_eq!((staged.memory.pages, staged.preload.misses), (PAGES, 0), "passthrough {mode}");
        compares(&rig, &script);
        let read = rig.stat().cache.preload;
        assert_eq!(read.misses, 0, "passthrough {mode}: {read:?}");
        assert!(read.hits >= PAGES, "passthrough {mode}: {read:?}");
        rig.finish();
    }
}

/// A part of a file, a file that is missing, one that is not on a mount.
#[test]
fn staging_tells_what_it_did_and_what_it_cannot() {
    let rig = Rig::new("stage-parts", Side::Mount, "16MiB");
    prepare(&rig);
    let stage = |args: &[&str], path: &std::path::Path| {
        process::run(Command::new(product("terrace")).args(["stage", "in"]).args(args).arg(path), 60)
    };
    stage(&["--part", "1MiB-2MiB"], &rig.at().join("file")).expect_success();
    assert_eq!(rig.stat().cache.memory.pages, PAGES / 4);
    for (path, cure) in [(rig.at().join("none"), "none"), (rig.src().join("file"), "serves nothing here")] {
        let refused = stage(&[], &path);
        assert!(!refused.status.success() && refused.stderr.contains(cure), "{refused}");
    }
    rig.finish();
}

/// The default of `run`, under which the kernel reads files itself for programs without the library.
#[test]
fn run_stages_before_its_command() {
    let rig = Rig::with("stage-run", Side::Run, &["--memory", "16MiB", "--stage-in", "file"]);
    let script = prepare(&rig);
    compares(&rig, &script);
    let stats = rig.stats_of_runs();
    let read = &stats.first().expect("the run left its statistics").cache.preload;
    assert_eq!(read.misses, 0, "{read:?}");
    assert!(read.hits >= PAGES, "{read:?}");
    rig.finish();
}
