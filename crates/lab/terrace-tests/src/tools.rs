//! Programs used by tests: outside suites from the package registry, and C sources of this crate.

use crate::process;
use crate::test_dir::workspace;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A suite of the crates registry at a fixed version, installed once under `target/tools`.
#[track_caller]
pub fn cargo_tool(name: &str, version: &str) -> PathBuf {
    let root = workspace().join("target/tools");
    let path = root.join("bin").join(name);
    if !path.exists() {
        let mut install = Command::new("cargo");
        install
            .args(["install", "--locked", "--root"])
            .arg(&root)
            .arg("--target-dir")
            .arg(root.join("build"));
        install.arg(format!("{name}@{version}"));
        process::run(&mut install, 900).expect_success();
    }
    path
}

/// Path of a required program; panics with the cure if it is not installed.
#[track_caller]
pub fn need(program: &str, package: &str) -> PathBuf {
    // The server's own directory first: other directories may have links to some of its programs only.
    let first = "/usr/lib/postgresql/15/bin:/usr/lib/postgresql/16/bin:/usr/lib/postgresql/17/bin";
    let path = std::env::var("PATH").unwrap_or_default();
    let found = format!("{first}:{path}:/usr/sbin:/sbin")
        .split(':')
        .map(|d| Path::new(d).join(program))
        .find(|p| p.exists());
    found.unwrap_or_else(|| panic!("{program} is missing: `make deps`, or install the package {package}"))
}

/// Path of a shared library, from the usual places.
#[track_caller]
pub fn need_library(name: &str, package: &str) -> PathBuf {
    let found = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"].map(|d| Path::new(d).join(name));
    let found = found.into_iter().find(|p| p.exists());
    found.unwrap_or_else(|| panic!("{name} is missing: `make deps`, or install the package {package}"))
}

/// Compiles `tests/c/NAME.c` into `out` with these further arguments.
#[track_caller]
pub fn compile(name: &str, out: &Path, more: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(format!("{name}.c"));
    let mut cc = Command::new(need("cc", "gcc"));
    cc.args(["-std=gnu11", "-O2", "-g", "-pthread", "-o"]);
    cc.arg(out).arg(source).args(more).arg("-ldl");
    process::run(&mut cc, 120).expect_success();
}
