//! Checks of the repository itself: `cargo run -p xtask`, and as tests with all others.
//!
//! What a compiler does not check: which crate may import which (ARCHITECTURE.md, Crates), that files stay readable, and
//! that documents name tests and functions that exist.

use std::fs;
use std::path::{Path, PathBuf};

/// Crate, and the crates of this workspace that it may depend on.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("terrace-policy", &[]),
    ("terrace-shm", &[]),
    ("terrace-engine", &["terrace-policy", "terrace-shm"]),
    ("terrace-preload", &["terrace-shm"]),
    ("terrace", &["terrace-engine", "terrace-policy"]),
    ("terrace-bench", &["terrace-policy"]),
    ("terrace-tests", &["terrace-shm"]),
];
/// Lines of a source file at the most.
const FILE_LINES_MAX: usize = 1200;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_owned()
}

/// Crates that import what they may not.
fn imports() -> Vec<String> {
    let mut bad = Vec::new();
    for (name, allowed) in MAY_IMPORT {
        let path = root().join("crates").join(name).join("Cargo.toml");
        let Ok(text) = fs::read_to_string(&path) else {
            bad.push(format!("{}: missing", path.display()));
            continue;
        };
        let manifest: toml::Table = text.parse().expect("cargo reads it, so it is TOML");
        let dependencies =
            manifest.get("dependencies").and_then(|d| d.as_table()).cloned().unwrap_or_default();
        for dependency in dependencies.keys().filter(|d| d.starts_with("terrace")) {
            if !allowed.contains(&dependency.as_str()) {
                bad.push(format!("{name} depends on {dependency}; it may import {allowed:?} only"));
            }
        }
    }
    bad
}

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

fn all_sources() -> Vec<(PathBuf, String)> {
    let mut paths = Vec::new();
    sources(&root().join("crates"), &mut paths);
    paths.into_iter().map(|p| (p.clone(), fs::read_to_string(p).unwrap_or_default())).collect()
}

/// Source files that have grown too long to read.
fn lengths() -> Vec<String> {
    let long = |(path, text): (PathBuf, String)| {
        let lines = text.lines().count();
        (lines > FILE_LINES_MAX).then(|| format!("{}: {lines} lines, over {FILE_LINES_MAX}", path.display()))
    };
    all_sources().into_iter().filter_map(long).collect()
}

/// Tests that docs/SEMANTICS.md names and that do not exist.
fn promises() -> Vec<String> {
    let text = fs::read_to_string(root().join("docs/SEMANTICS.md")).expect("docs/SEMANTICS.md");
    let code: String = all_sources().into_iter().map(|(_, text)| text).collect();
    let quoted = text.lines().filter(|l| l.starts_with('|')).flat_map(|l| l.split('`').skip(1).step_by(2));
    quoted
        .filter_map(|q| q.split_once("::").map(|(_, test)| (q, test)))
        .filter(|(_, test)| !code.contains(&format!("fn {}", test.trim_end_matches('*'))))
        .map(|(quoted, _)| format!("docs/SEMANTICS.md: no test {quoted}"))
        .collect()
}

fn main() {
    let bad = [imports(), lengths(), promises()].concat();
    for line in &bad {
        eprintln!("{line}");
    }
    std::process::exit(i32::from(!bad.is_empty()));
}

#[cfg(test)]
mod tests {
    #[test]
    fn crates_import_what_they_may() {
        assert_eq!(super::imports(), Vec::<String>::new());
    }
    #[test]
    fn files_stay_readable() {
        assert_eq!(super::lengths(), Vec::<String>::new());
    }
    #[test]
    fn every_promise_has_its_test() {
        assert_eq!(super::promises(), Vec::<String>::new());
    }
}
