//! Checks of the repository itself: `cargo run -p xtask`, and as tests with all others.
//!
//! They cover rules that a compiler does not check: allowed dependencies between crates (ARCHITECTURE.md,
//! Crates), no import circles between files of a crate, layers of the engine, limits on the length of files,
//! words, and documents that name existing tests and functions only. `xfstests/run.sh` runs that suite on
//! mounts, and `vm` runs tests in virtual machines.
// Output may hit a full disk or a closed pipe: `terrace_output::print` and `error_line` handle both.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod circles;
mod counters;
mod layers;
mod screens;
mod text;
mod vm;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Each crate with its allowed dependencies in this workspace, without `terrace-`.
const MAY_IMPORT: &[(&str, &str)] = &[
    ("terrace-policy", "testkit"),
    ("terrace-shm", "testkit"),
    ("terrace-io", "shm sync system testkit"),
    ("terrace-tier", "io policy shm sync system testkit"),
    ("terrace-engine", "api io policy shm sim sync system testkit tier"),
    ("terrace-store", "api engine io sync testkit"),
    ("terrace-c", "store testkit"),
    ("terrace-python", "store sync"),
    ("terrace-fs", "engine io sync system testkit"),
    ("terrace-opens", "engine shm sync system testkit"),
    ("terrace-remote", "api engine io sync system testkit tier"),
    ("terrace-kv", "store sync testkit"),
    ("terrace-preload", "shm testkit"),
    ("terrace", "api engine fs io kv opens output policy remote store sync system testkit tests tier"),
    ("terrace-api", ""),
    ("terrace-output", ""),
    ("terrace-sync", ""),
    ("terrace-system", "policy"),
    ("terrace-sim", "api output policy testkit"),
    ("terrace-bench", "api output store system testkit"),
    ("terrace-testkit", ""),
    ("terrace-tests", "api system testkit"),
    ("xtask", "api output system testkit"),
];
/// Maximum lines of a source file, and of one with a reason in [`LONG_FILES`].
const FILE_LINES_MAX: usize = 600;
const LONG_FILE_LINES_MAX: usize = 1200;
/// Longer files, each with its reason.
const LONG_FILES: &[(&str, &str)] = &[
    (
        "crates/cache/terrace-policy/src/policies/mglru.rs",
        "the kernel's policy, comparable function by function",
    ),
    ("crates/cache/terrace-policy/src/policies/strata.rs", "one policy whose queues are understood together"),
    ("crates/cache/terrace-shm/src/index.rs", "one data structure with its checks and its recovery"),
    ("crates/cache/terrace-fs/tests/namespace.rs", "tests over one fixture"),
    ("crates/lab/terrace-tests/tests/programs.rs", "tests over one fixture"),
    ("crates/lab/terrace-tests/src/storm/names.rs", "operations with their expected results"),
    ("crates/lab/terrace-tests/tests/paths.rs", "tests over one fixture"),
];

/// Maximum length of a function's name.
const NAME_LENGTH_MAX: usize = 60;

/// Maximum lines of a document.
const DOCUMENT_LINES_MAX: &[(&str, usize)] = &[("README.md", 120), ("ARCHITECTURE.md", 200)];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_owned()
}

/// Dependencies that are not allowed.
fn imports() -> Vec<String> {
    let mut bad = Vec::new();
    for (name, allowed) in MAY_IMPORT {
        let known = crates().into_iter().find(|dir| dir.ends_with(name));
        let path = known.unwrap_or_else(|| root().join(name)).join("Cargo.toml");
        let Ok(text) = fs::read_to_string(&path) else {
            bad.push(format!("{}: missing", path.display()));
            continue;
        };
        // Tests of a crate may enable features of their own crate.
        for dependency in dependencies(&text).filter(|d| d.starts_with("terrace") && d != name) {
            if !dependency
                .strip_prefix("terrace-")
                .is_some_and(|its| allowed.split(' ').any(|one| one == its))
            {
                bad.push(format!("{name} depends on {dependency}; it may import {allowed} only"));
            }
        }
    }
    let known = |name: &str| MAY_IMPORT.iter().any(|(k, _)| *k == name);
    let all = crates();
    let names = all.iter().filter_map(|dir| dir.file_name()?.to_str()).map(str::to_owned);
    let unknown = names.filter(|n| !known(n));
    bad.extend(unknown.map(|name| format!("crates/{name}: missing in MAY_IMPORT of xtask")));
    bad
}

/// The names of all dependencies in a manifest: normal, build and development ones, for any target.
fn dependencies(manifest: &str) -> impl Iterator<Item = String> {
    fn collect(table: &toml::Table, out: &mut Vec<String>) {
        for (key, value) in table {
            let Some(inner) = value.as_table() else { continue };
            if key.ends_with("dependencies") {
                let real = |(name, how): (&String, &toml::Value)| {
                    how.get("package").and_then(|p| p.as_str()).unwrap_or(name).to_owned()
                };
                out.extend(inner.iter().map(real));
            } else if !matches!(key.as_str(), "package" | "features" | "lints") {
                collect(inner, out);
            }
        }
    }
    let mut out = Vec::new();
    collect(&manifest.parse().expect("cargo reads it, so it is TOML"), &mut out);
    out.into_iter()
}

/// The directories of all crates: `crates/terrace`, and one in each family, as `crates/cache/terrace-engine`.
fn crates() -> Vec<PathBuf> {
    let below = |dir: &Path| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path());
        entries.collect::<Vec<_>>()
    };
    let is_crate = |dir: &PathBuf| dir.join("Cargo.toml").exists();
    let first = below(&root().join("crates"));
    let second: Vec<PathBuf> = first.iter().filter(|dir| !is_crate(dir)).flat_map(|dir| below(dir)).collect();
    first.into_iter().chain(second).filter(is_crate).collect()
}

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.join("CACHEDIR.TAG").exists() {
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

/// Source files that are too long.
fn lengths(sources: &[(PathBuf, String)]) -> Vec<String> {
    let long = |(path, text): &(PathBuf, String)| {
        let (lines, name) = (text.lines().count(), path.strip_prefix(root()).unwrap_or(path));
        let has_reason = LONG_FILES.iter().any(|(file, _)| name == Path::new(file));
        let max = if has_reason { LONG_FILE_LINES_MAX } else { FILE_LINES_MAX };
        (lines > max).then(|| {
            format!(
                "{}: {lines} lines, over {max}; split it, or add a reason to LONG_FILES in xtask",
                name.display()
            )
        })
    };
    sources.iter().filter_map(long).collect()
}

/// Entries of [`LONG_FILES`] without a file that needs them.
fn outdated_lengths(sources: &[(PathBuf, String)]) -> Vec<String> {
    let is_long = |name: &str| {
        let source = sources.iter().find(|(path, _)| *path == root().join(name));
        source.is_some_and(|(_, text)| text.lines().count() > FILE_LINES_MAX)
    };
    let outdated = LONG_FILES.iter().filter(|(name, _)| !is_long(name));
    outdated.map(|(name, _)| format!("{name}: not long; remove it from LONG_FILES in xtask")).collect()
}

/// Names of functions, mostly of tests, that are too long for a list.
fn long_names(sources: &[(PathBuf, String)]) -> Vec<String> {
    let name = |rest: &str| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let of_file = |(path, code): &(PathBuf, String)| {
        let names = code.split("fn ").skip(1).map(name).filter(|name| name.len() > NAME_LENGTH_MAX);
        let line = |name: String| {
            format!(
                "{}: the name {name} has {} characters; the maximum is {NAME_LENGTH_MAX}",
                path.display(),
                name.len()
            )
        };
        names.map(line).collect::<Vec<_>>()
    };
    sources.iter().flat_map(of_file).collect()
}

/// Misspelt words in these files, found by codespell with `.codespellrc`.
fn misspelt(files: &[PathBuf]) -> Vec<String> {
    let found = Command::new("codespell").current_dir(root()).args(files).output();
    match found {
        Ok(found) => {
            let lines = [found.stdout, found.stderr].concat();
            String::from_utf8_lossy(&lines).lines().map(|line| format!("spelling: {line}")).collect()
        }
        Err(err) => vec![format!("codespell: {err}; `make deps` installs it")],
    }
}

/// Misspelt words in the files of the repository, except data and third-party code.
fn spelling() -> Vec<String> {
    let others = ["data", "bench/runs", "*.svg", "*.lock", "*.zst", "xtask/xfstests"];
    let mut git = Command::new("git");
    git.current_dir(root())
        .args(["ls-files", "-z", "--", "."])
        .args(others.map(|other| format!(":!{other}")));
    let listed = match git.output() {
        Ok(listed) if listed.status.success() => listed.stdout,
        _ => return vec!["git ls-files: failed; spelling is checked in a checkout only".to_owned()],
    };
    let names = String::from_utf8_lossy(&listed).into_owned();
    let files = names.split_terminator('\0').map(PathBuf::from).filter(|file| root().join(file).exists());
    misspelt(&files.collect::<Vec<_>>())
}

/// Documents that are too long.
fn document_lengths() -> Vec<String> {
    let long = |&(name, max): &(&str, usize)| {
        let lines = document(name).lines().count();
        (lines > max).then(|| format!("{name}: {lines} lines, over {max}; move details to docs/"))
    };
    DOCUMENT_LINES_MAX.iter().filter_map(long).collect()
}

/// Functions outside test programs that are longer than a screen.
fn long_functions() -> Vec<String> {
    let name = |path: &Path| path.strip_prefix(root()).unwrap_or(path).display().to_string();
    let of_tests = |path: &Path| path.components().any(|part| part.as_os_str() == "tests");
    let sources = all_sources().into_iter().filter(|(path, _)| !of_tests(path));
    let sources: Vec<(String, String)> = sources.map(|(path, text)| (name(&path), text)).collect();
    let too_long = sources.iter().flat_map(|(file, text)| screens::too_long(file, text));
    too_long.chain(screens::outdated(&sources)).collect()
}

/// Import circles between files of a crate.
fn import_circles() -> Vec<String> {
    let all = crates().into_iter().chain([root().join("xtask")]);
    circles::all(&root(), &all.collect::<Vec<_>>())
}

/// Documents with checked links and names of functions.
fn documents() -> Vec<(PathBuf, String)> {
    let mut paths = Vec::new();
    for dir in ["", "docs", "docs/design", "docs/tutorials", "bench"] {
        let entries = fs::read_dir(root().join(dir)).into_iter().flatten().flatten().map(|e| e.path());
        paths.extend(entries.filter(|p| p.extension().is_some_and(|e| e == "md")));
    }
    paths.into_iter().map(|p| (p.clone(), fs::read_to_string(p).unwrap_or_default())).collect()
}

fn document(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Promises of docs/SEMANTICS.md without a row in docs/semantics-tests.md, rows without a promise, rows
/// without a test, and tests that do not exist.
fn promises() -> Vec<String> {
    promises_of(&document("docs/SEMANTICS.md"), &document("docs/semantics-tests.md"), &all_sources())
}

/// `engine/model::x` is a test in the file `model` of the crate `terrace-engine`, below `tests` or `src`. A
/// name without a crate belongs to one of those listed at the head of docs/semantics-tests.md.
fn promises_of(semantics: &str, table: &str, sources: &[(PathBuf, String)]) -> Vec<String> {
    let is_name = |n: &str| {
        let number = n.trim_start_matches(|c: char| c.is_ascii_uppercase());
        number.len() + 1 == n.len() && !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
    };
    let text = semantics.split_once("\n## ").map_or("", |(_, text)| text);
    let bracketed = text.split('[').skip(1).filter_map(|rest| rest.split_once(']').map(|(name, _)| name));
    let promised: Vec<&str> = bracketed.filter(|n| is_name(n)).collect();
    let rows: Vec<(&str, &str)> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split_once(" | "))
        .filter(|(name, _)| is_name(name))
        .collect();
    let (mut bad, homes) = (Vec::new(), crates());
    let rowed: Vec<&str> = rows.iter().map(|row| row.0).collect();
    for (names, others, file) in
        [(&promised, &rowed, "semantics-tests.md"), (&rowed, &promised, "SEMANTICS.md")]
    {
        let missing = names.iter().filter(|name| !others.contains(name));
        bad.extend(missing.map(|name| format!("docs/{file}: {name} is missing")));
        let twice = others.iter().enumerate().filter(|&(i, name)| others[..i].contains(name));
        bad.extend(twice.map(|(_, name)| format!("docs/{file}: {name} occurs twice")));
    }
    for (name, rest) in rows {
        let mut tests = rest.split('`').skip(1).step_by(2).filter_map(|q| q.split_once("::")).peekable();
        if tests.peek().is_none() {
            bad.push(format!("docs/semantics-tests.md: {name} has no test"));
        }
        for (file, test) in tests {
            if !sources.iter().any(|(path, code)| holds(&homes, path, file) && defines(code, test)) {
                bad.push(format!("docs/semantics-tests.md: {name}: no test {file}::{test}"));
            }
        }
    }
    bad
}

/// Source files and functions named in documents, as `path/file.rs` and `path/file.rs::function`, that do not
/// exist.
fn functions() -> Vec<String> {
    let sources = all_sources();
    let mut bad = Vec::new();
    for (path, text) in documents() {
        for quoted in text.split('`').skip(1).step_by(2) {
            let (file, function) = match quoted.split_once(".rs::") {
                Some((file, function)) => (format!("{file}.rs"), Some(function)),
                None if quoted.ends_with(".rs") => (quoted.to_owned(), None),
                None => continue,
            };
            let is_there = |(path, code): &(PathBuf, String)| {
                path.ends_with(&file) && function.is_none_or(|name| defines_function(code, name))
            };
            if !sources.iter().any(is_there) {
                bad.push(format!("{}: no {quoted}", path.display()));
            }
        }
    }
    bad
}

fn defines_function(code: &str, name: &str) -> bool {
    let after = |rest: &str| rest.starts_with('(') || rest.starts_with('<');
    code.split("fn ").skip(1).any(|rest| rest.strip_prefix(name).is_some_and(after))
}

/// Relative links of documents to files that do not exist.
fn links(documents: &[(PathBuf, String)]) -> Vec<String> {
    let mut bad = Vec::new();
    for (path, text) in documents {
        let dir = path.parent().expect("a document lies in a directory");
        for target in text.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(t, _)| t)) {
            let file = target.split('#').next().unwrap_or_default();
            if !target.contains("://") && !file.is_empty() && !dir.join(file).exists() {
                bad.push(format!("{}: link to {target}, which does not exist", path.display()));
            }
        }
    }
    bad
}

/// Whether this source is the test file with this name in docs/semantics-tests.md, or a module of it.
fn holds(homes: &[PathBuf], source: &Path, called: &str) -> bool {
    let (crates, file): (&[&str], _) = match called.split_once('/') {
        Some((short, file)) => (&[short], file),
        None => (&["tests", "", "fs", "preload"], called),
    };
    crates.iter().any(|short| {
        let name = if short.is_empty() { "terrace".to_owned() } else { format!("terrace-{short}") };
        let Some(home) = homes.iter().find(|dir| dir.ends_with(&name)) else { return false };
        ["tests", "src"]
            .map(|of| home.join(of))
            .iter()
            .any(|dir| source == dir.join(format!("{file}.rs")) || source.starts_with(dir.join(file)))
    })
}

/// Whether the code has a test of this name (`sqlite_*`: a prefix).
fn defines(code: &str, test: &str) -> bool {
    let Some(begin) = test.strip_suffix('*') else { return code.contains(&format!("fn {test}(")) };
    code.contains(&format!("fn {begin}"))
}

/// Invalid lines in the list of known xfstests failures: without a test's name or a reason, or with a
/// repeated name.
fn known_failures(list: &str) -> Vec<String> {
    let mut names = std::collections::HashSet::new();
    let mut is_fine = |line: &str| {
        let (name, reason) = line.split_once(' ').unwrap_or((line, ""));
        let number = name.strip_prefix("generic/").unwrap_or_default();
        number.len() >= 3
            && number.bytes().all(|b| b.is_ascii_digit())
            && !reason.trim().is_empty()
            && names.insert(name.to_owned())
    };
    let bad = list.lines().filter(|line| !line.starts_with('#')).filter(|line| !is_fine(line));
    bad.map(|line| format!("xtask/xfstests/known.txt: `{line}` needs the name of a new test and a reason"))
        .collect()
}

/// The current text of docs/stat.md.
fn stat_page() -> String {
    let read = |name: &str| {
        fs::read_to_string(root().join("crates/cache/terrace-api/src").join(name)).expect("a source")
    };
    counters::page(&["stats.rs", "tiers.rs", "mrc.rs"].map(read))
}

/// The first key of `page` without a comment in the code, or else whether `text` is outdated. `text`:
/// docs/stat.md; `page`: generated from the code.
fn stat_is_stale(text: &str, page: &str) -> Vec<String> {
    let silent = page.lines().filter(|line| line.ends_with("` |  |"));
    if let Some(line) = silent.into_iter().next() {
        return vec![format!("terrace-api: no doc comment for {line}")];
    }
    let stale = text != page;
    stale
        .then(|| "docs/stat.md: outdated; run `cargo run -p xtask stat > docs/stat.md`".to_owned())
        .into_iter()
        .collect()
}

fn print(page: &str) {
    if let Err(err) = terrace_output::print(page) {
        terrace_output::error_line!("{err}");
        std::process::exit(1);
    }
}

fn in_virtual_machine(arguments: &[String]) {
    if let Err(err) = vm::run(&root(), arguments) {
        terrace_output::error_line!("vm: {err}");
        std::process::exit(1);
    }
}

/// A hook for `commit-msg`: the first line of the file must be a good subject.
fn message(file: Option<&String>) {
    let text = file.and_then(|file| fs::read_to_string(file).ok()).unwrap_or_default();
    let subject = text.lines().next().unwrap_or_default();
    if let Some(why) = text::bad_subject(subject) {
        terrace_output::error_line!("commit message: {why}: {subject}");
        std::process::exit(1);
    }
}

/// The source directory of the engine.
fn engine() -> PathBuf {
    root().join("crates/cache/terrace-engine/src")
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("stat") => return print(&stat_page()),
        Some("message") => return message(arguments.get(1)),
        Some("vm") => return in_virtual_machine(&arguments[1..]),
        _ => {}
    }
    let known = fs::read_to_string(root().join("xtask/xfstests/known.txt")).expect("known.txt");
    let bad = [
        imports(),
        import_circles(),
        lengths(&all_sources()),
        outdated_lengths(&all_sources()),
        long_names(&all_sources()),
        document_lengths(),
        long_functions(),
        promises(),
        functions(),
        links(&documents()),
        spelling(),
        known_failures(&known),
        stat_is_stale(&document("docs/stat.md"), &stat_page()),
        layers::arrows_up(&engine()),
        text::lock_orders(&all_sources(), &document("ARCHITECTURE.md")),
        text::too_many_avoided_words(&root(), &all_sources()),
        text::retired_names(&[all_sources(), documents()].concat()),
        text::commits(&root()),
    ]
    .concat();
    for line in &bad {
        terrace_output::error_line!("{line}");
    }
    std::process::exit(i32::from(!bad.is_empty()));
}

#[cfg(test)]
mod tests {
    #[test]
    fn folders_of_the_engine_import_downwards() {
        assert_eq!(super::layers::arrows_up(&super::engine()), Vec::<String>::new());
    }
    #[test]
    fn text_follows_the_rules() {
        let sources = super::all_sources();
        let orders = super::text::lock_orders(&sources, &super::document("ARCHITECTURE.md"));
        let words = super::text::too_many_avoided_words(&super::root(), &sources);
        let names = super::text::retired_names(&[sources, super::documents()].concat());
        assert_eq!([orders, words, names].concat(), Vec::<String>::new());
    }
    #[test]
    fn crates_import_what_they_may() {
        assert_eq!(super::imports(), Vec::<String>::new());
    }
    #[test]
    fn dependencies_of_every_kind_count() {
        let manifest = "[package]\nname = 'a'\n[dependencies]\nb = '1'\n[dev-dependencies]\nc = {path = 'x'}\n\
                        [build-dependencies]\nd = '1'\n[target.'cfg(unix)'.dependencies]\ne = {package = 'f'}\n";
        let mut found: Vec<String> = super::dependencies(manifest).collect();
        found.sort();
        assert_eq!(found, ["b", "c", "d", "f"]);
    }
    #[test]
    fn a_test_is_looked_for_in_its_file() {
        let homes = super::crates();
        let file = super::root().join("crates/lab/terrace-tests/tests/paths.rs");
        assert!(super::holds(&homes, &file, "paths") && super::holds(&homes, &file, "tests/paths"));
        assert!(!super::holds(&homes, &file, "crash") && !super::holds(&homes, &file, "engine/paths"));
        assert!(super::holds(&homes, &super::root().join("crates/terrace/tests/command/run.rs"), "command"));
        assert!(
            super::defines("fn sqlite_wal() {", "sqlite_*")
                && !super::defines("fn full_sources()", "full_source")
        );
    }
    #[test]
    fn files_stay_readable() {
        let sources = super::all_sources();
        assert_eq!(super::lengths(&sources), Vec::<String>::new());
        assert_eq!(super::outdated_lengths(&sources), Vec::<String>::new());
    }
    #[test]
    fn long_files_need_a_reason() {
        let file = |name: &str, lines| vec![(super::root().join(name), "x\n".repeat(lines))];
        let with_reason = super::LONG_FILES[0].0;
        assert!(super::lengths(&file("crates/a.rs", super::FILE_LINES_MAX)).is_empty());
        assert_eq!(super::lengths(&file("crates/a.rs", super::FILE_LINES_MAX + 1)).len(), 1);
        assert!(super::lengths(&file(with_reason, super::LONG_FILE_LINES_MAX)).is_empty());
        assert_eq!(super::lengths(&file(with_reason, super::LONG_FILE_LINES_MAX + 1)).len(), 1);
        let outdated = |lines| super::outdated_lengths(&file(with_reason, lines)).len();
        assert_eq!(outdated(super::FILE_LINES_MAX), super::LONG_FILES.len());
        assert_eq!(outdated(super::FILE_LINES_MAX + 1), super::LONG_FILES.len() - 1);
    }
    #[test]
    fn names_of_functions_are_short() {
        assert_eq!(super::long_names(&super::all_sources()), Vec::<String>::new());
        let named =
            |length| vec![(super::PathBuf::from("a.rs"), format!("fn {}() {{}}", "a".repeat(length)))];
        assert!(super::long_names(&named(super::NAME_LENGTH_MAX)).is_empty());
        assert_eq!(super::long_names(&named(super::NAME_LENGTH_MAX + 1)).len(), 1);
    }
    #[test]
    fn words_are_spelt_right() {
        assert_eq!(super::spelling(), Vec::<String>::new());
        // codespell skips files with a leading dot in their names.
        let file = tempfile::Builder::new().prefix("words").tempfile().unwrap();
        std::fs::write(file.path(), ["rec", "ieve\n"].concat()).unwrap();
        assert_eq!(super::misspelt(&[file.path().to_owned()]).len(), 1);
    }
    #[test]
    fn every_key_of_stat_is_documented() {
        let text = super::document("docs/stat.md");
        let page = super::stat_page();
        assert_eq!(super::stat_is_stale(&text, &page), Vec::<String>::new());
        let last = text.trim_end().rfind('\n').unwrap();
        assert_eq!(super::stat_is_stale(&text[..=last], &page).len(), 1);
    }
    #[test]
    fn key_of_stat_without_a_comment_is_refused() {
        let page =
            |comment: &str| super::counters::page(&[format!("struct StatReport {{ {comment} reads: u64 }}")]);
        let told = super::stat_is_stale(&page(""), &page(""));
        assert_eq!(told, ["terrace-api: no doc comment for | `reads` |  |"]);
        let page = page("/// Reads.\n");
        assert_eq!(super::stat_is_stale(&page, &page), Vec::<String>::new());
    }
    #[test]
    fn functions_fit_a_screen() {
        assert_eq!(super::long_functions(), Vec::<String>::new());
    }
    #[test]
    fn known_failures_have_reasons() {
        assert_eq!(super::known_failures(include_str!("../xfstests/known.txt")), Vec::<String>::new());
        let bad = "generic/001\ngeneric/002 why\ngeneric/002 again\next4/003 why\n";
        assert_eq!(super::known_failures(bad).len(), 3);
    }
    #[test]
    fn files_of_a_crate_import_each_other_in_no_circle() {
        assert_eq!(super::import_circles(), Vec::<String>::new());
    }
    #[test]
    fn every_promise_has_its_test() {
        assert_eq!(super::promises(), Vec::<String>::new());
    }
    #[test]
    fn promises_without_tests_are_reported() {
        let sources =
            [(super::root().join("crates/lab/terrace-tests/tests/paths.rs"), "fn one() {".to_owned())];
        let check = |semantics: &str, table: &str| super::promises_of(semantics, table, &sources).len();
        let semantics = "as [A9]\n## Answers\nIt is [A1]. See [this](that.md).\n";
        assert_eq!(check(semantics, "| A1 | it is | `paths::one` |\n"), 0);
        assert_eq!(check(semantics, "| A1 | it is | `paths::two` |\n"), 1);
        assert_eq!(check(semantics, "| A1 | it is | |\n"), 1);
        assert_eq!(check(semantics, "| A1 | it is | `paths::one` |\n| A2 | no | `paths::one` |\n"), 1);
        assert_eq!(check(semantics, ""), 1);
        assert_eq!(check("## Answers\n[A1] [A1]", "| A1 | it is | `paths::one` |\n"), 1);
    }
    #[test]
    fn documents_name_functions_and_files_that_exist() {
        assert_eq!([super::functions(), super::links(&super::documents())].concat(), Vec::<String>::new());
        assert!(super::defines_function("pub fn read(a: u8) {", "read"));
        assert!(!super::defines_function("pub fn read_all(a: u8) {", "read"));
        let with = |text: &str| vec![(super::root().join("docs/a.md"), text.to_owned())];
        assert!(super::links(&with("[a](../README.md#x), [b](https://a.example)")).is_empty());
        assert_eq!(super::links(&with("[a](no-such-file.md)")).len(), 1);
    }
}
