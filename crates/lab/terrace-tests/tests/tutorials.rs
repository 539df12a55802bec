//! Follows the tutorials in docs/tutorials like a new user. The commands of their blocks `sh tried` run in
//! order, in one shell and an empty directory, with sizes for a test. The lines of their blocks `told` must
//! be printed, in order; `...` matches anything.

use std::path::Path;
use std::process::Command;
use terrace_tests::tools::need;
use terrace_tests::{TestDir, is_root, leftovers, process, product, workspace};

/// Preamble of the commands: the first failure ends them, and no server is left.
const BEGIN: &str = "set -euo pipefail; exec 2>&1; export LC_ALL=C\n\
                     trap 'status=$?; trap \"\" TERM; kill $(jobs -p) 2> /dev/null || true; wait; exit $status' EXIT\n";

/// The lines of all blocks of a kind, in order.
fn blocks(page: &str, kind: &str) -> Vec<String> {
    let (mut found, mut inside, mut wanted) = (Vec::new(), false, false);
    for line in page.lines() {
        if let Some(info) = line.strip_prefix("```") {
            inside = !inside;
            wanted = inside && info.trim() == kind;
        } else if wanted {
            found.push(line.to_owned());
        }
    }
    found
}

/// Whether the text contains the line's pieces between `...`, in order.
fn matches(line: &str, text: &str) -> bool {
    let mut rest = text;
    line.split("...").map(str::trim).all(|piece| match rest.split_once(piece) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
}

/// Runs a tutorial as `user`, with sizes for a test instead of its own.
#[track_caller]
fn follow(name: &str, user: &str, sizes: &[(&str, &str)]) {
    if !is_root() {
        return;
    }
    // At a short path: socket paths have a limit.
    let dir = TestDir::new(&format!("/tmp/terrace-tutorial-{name}"));
    if !process::may_unshare(user, &dir.path().join("fuse")) {
        return;
    }
    let chown = Command::new("chown").arg(user).arg(dir.path()).status();
    assert!(chown.is_ok_and(|status| status.success()), "the user {user} exists");
    let page = std::fs::read_to_string(workspace().join(format!("docs/tutorials/{name}.md"))).unwrap();
    let mut script = blocks(&page, "sh tried").join("\n");
    for (from, to) in sizes {
        assert!(script.contains(from), "{name}.md says no `{from}`");
        script = script.replace(from, to);
    }
    let told = blocks(&page, "told");
    assert!(
        script.lines().count() > 3 && !told.is_empty(),
        "{name}.md has blocks to be tried, and what they tell"
    );
    let said = run(dir.path(), user, &script);
    let mut lines = said.lines();
    for line in told {
        assert!(
            lines.any(|text| matches(&line, text)),
            "{name}.md: `{line}` was not printed, or not in its order:\n{said}"
        );
    }
    assert_eq!(leftovers::find(dir.path()), Vec::<String>::new());
}

/// The output of the commands.
#[track_caller]
fn run(dir: &Path, user: &str, script: &str) -> String {
    let terrace = product("terrace");
    // Postgres' own programs are in their own directory; a version manager's python3 has no numpy.
    let postgres = std::fs::canonicalize(need("initdb", "postgresql")).expect("it exists");
    let path = [terrace.parent().unwrap(), postgres.parent().unwrap()].map(|dir| dir.display().to_string());
    let mut bash = process::as_user(user, &dir.join("fuse"));
    bash.args(["/bin/bash", "-c", &format!("cd {}\n{BEGIN}{script}", dir.display())]);
    bash.env("PATH", format!("{}:/usr/bin:/bin:/usr/sbin:/sbin", path.join(":")));
    bash.env("HOME", dir).env("XDG_RUNTIME_DIR", dir).env_remove("PGDATA");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TERRACE_")) {
        bash.env_remove(name);
    }
    process::run(&mut bash, 300).expect_success()
}

#[test]
fn tutorial_of_a_burst_buffer_works() {
    follow("burst-buffer", "root", &[("input 180", "input 8"), ("512MiB", "64MiB"), (":1GiB", ":256MiB")]);
}

#[test]
fn blocks_and_their_gaps_are_understood() {
    let page = "a\n```sh tried\none\n```\n```sh\ntwo\n```\n```told\nthree\n```\n```sh tried\nfour\n```\n";
    assert_eq!(blocks(page, "sh tried"), ["one", "four"]);
    assert_eq!(blocks(page, "told"), ["three"]);
    assert!(matches("tps = ...", "tps = 12") && matches("a ... c", "a b c") && matches("...", ""));
    assert!(!matches("a ... c", "c a") && !matches("b", "a"));
}
