//! Tests of the C library: its example program compiles and runs, and `terrace.h` equals cbindgen's output.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory of the shared library. No test links it, so cargo builds it only on request.
fn library() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--locked", "--target-dir"]).arg(target);
    // In a build of this crate alone all crates have other features, and would be built again.
    match cfg!(debug_assertions) {
        true => cargo.args(["--workspace", "--exclude", "terrace-remote", "--lib", "--tests"]),
        false => cargo.args(["-p", "terrace-c"]),
    };
    let built = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap();
    assert!(built.success(), "{cargo:?}: {built}");
    target.join("debug")
}

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn output(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && errors.is_empty(), "{command:?}: {}: {errors}", out.status);
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn example_compiles_and_runs() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (library, program) = (library(), dir.path().join("store"));
    output(
        Command::new("cc")
            .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"])
            .args([here(""), here("examples/store.c"), "-L".into(), library.clone()])
            .args(["-lterrace", "-o"])
            .arg(&program),
    );
    for _ in 0..2 {
        let said = output(Command::new(&program).arg(dir.path()).env("LD_LIBRARY_PATH", &library));
        assert_eq!(
            said,
            "earth is blue and green\n2 blobs:\n  earth\n  mars, planet\na second time: in use\n"
        );
    }
}

#[test]
fn header_is_what_cbindgen_makes() {
    let cbindgen = here("../../../target/tools/bin/cbindgen");
    if !cbindgen.exists() {
        return terrace_testkit::skipped!("no cbindgen; `make header` installs it");
    }
    let made =
        output(Command::new(cbindgen).args(["--quiet", "--config"]).args([here("cbindgen.toml"), here("")]));
    let stands = std::fs::read_to_string(here("terrace.h")).unwrap();
    assert!(made == stands, "terrace.h is not up to date: `make header`");
}
