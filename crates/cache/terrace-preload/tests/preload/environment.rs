//! The library with other libraries and filters, with locked memory, and in programs that cannot load it.

use super::{behind, bytes, fast, finish, library, plain, publish, worker};
use crate::daemon::Running;
use std::path::{Path, PathBuf};
use std::process::Command;
use terrace_shm::PAGE_SIZE;

/// Compiles a program or library of the tests with the C compiler.
fn compiled(dir: &Path, name: &str, source: &str, args: &[&str]) -> PathBuf {
    let out = dir.join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/preload").join(source);
    let made =
        Command::new("cc").args(["-O1", "-pthread"]).arg(source).arg("-o").arg(&out).args(args).status();
    assert!(made.unwrap().success());
    out
}

#[test]
fn locked_memory_is_the_programs_alone() {
    let d = Running::start(1024);
    let (_, path) = publish(&d, "m", &bytes(64 * PAGE_SIZE, 21), |_| true);
    // MCL_CURRENT 1, MCL_FUTURE 2, MCL_ONFAULT 4; b: before a file is read, a: after, s: by syscall.
    for how in ["a1", "s1", "b2", "b3", "a3", "s3", "a5", "a7"] {
        let said = fast(&d, &["mlocks", &path, how]);
        let words: Vec<&str> = said.lines().last().unwrap().split(' ').collect();
        assert_eq!(words[0], "0", "{how}: KiB of the cache are locked");
        assert_eq!(
            words[1],
            if how == "b2" { words[1] } else { "1" },
            "{how}: the program's memory is locked"
        );
        let future = matches!(how, "b2" | "b3" | "a3" | "s3");
        assert_eq!(words[2], if future { "1" } else { "0" }, "{how}: memory mapped later");
    }
    assert!(d.total(|c| &c.hits) > 0);
}

#[test]
fn interposers_that_make_system_calls_end() {
    let (d, dir) = (Running::start(1024), tempfile::tempdir().unwrap());
    let content = bytes(64 * PAGE_SIZE + 100, 22);
    let (_, path) = publish(&d, "i", &content, |_| true);
    let other = compiled(dir.path(), "interpose.so", "interpose.c", &["-shared", "-fPIC"]);
    let right = plain(&["sum", &path, "4096", "0"]);
    let (ours, theirs) = (library().to_str().unwrap(), other.to_str().unwrap());
    for order in [format!("{ours}:{theirs}"), format!("{theirs}:{ours}")] {
        let mut command = Command::new(worker());
        behind(&d, &mut command).env("LD_PRELOAD", &order).args(["sum", &path, "4096", "0"]);
        assert_eq!(finish(&mut command), right, "{order}");
        let mut command = Command::new(worker());
        behind(&d, &mut command).env("LD_PRELOAD", &order).args(["map_and_dup", &path]);
        finish(&mut command);
    }
    assert!(d.total(|c| &c.hits) > 0);
}

/// Programs started in all ways report their arguments, the presence of the library, and LD_PRELOAD.
#[test]
fn programs_are_started_with_the_library_if_they_can_load_it() {
    let (d, dir) = (Running::start(64), tempfile::tempdir().unwrap());
    let at = dir.path();
    let execs = compiled(at, "execs", "execs.c", &[]);
    let shows = compiled(at, "shows", "shows.c", &[]);
    // The library name of a sanitizer's runtime.
    let runtime =
        compiled(at, "libasan.so.99", "interpose.c", &["-shared", "-fPIC", "-Wl,-soname,libasan.so.99"]);
    let rpath = format!("-Wl,-rpath,{}", at.display());
    let needs = ["-Wl,--no-as-needed", runtime.to_str().unwrap(), &rpath];
    let sanitized = compiled(at, "sanitized", "shows.c", &needs);
    let other = compiled(at, "other.so", "interpose.c", &["-shared", "-fPIC"]);
    let run = |how: &str, program: &Path, list: &str| {
        let mut command = Command::new(&execs);
        behind(&d, &mut command).env("LD_PRELOAD", list).env("PATH", at);
        finish(command.args([how, program.to_str().unwrap(), program.file_name().unwrap().to_str().unwrap()]))
    };
    let (ours, both) = (library().to_str().unwrap(), format!("{}:{}", library().display(), other.display()));
    let line = |end: &str| format!("p 1 2 3 4 5 6 7 {end}\n").repeat(15);
    assert_eq!(run("all", &shows, ours), line("1 library"));
    assert_eq!(run("all", &sanitized, ours), line("0 none"));
    assert_eq!(run("all", &sanitized, &both), line(&format!("0 {}", other.display())));
    // Children under the program's own filter run without the library.
    assert_eq!(run("filtered", &shows, ours), line("0 none"));
}

#[test]
fn filter_for_all_threads_waits_for_calls_of_the_library() {
    let (d, dir) = (Running::start(64), tempfile::tempdir().unwrap());
    let execs = compiled(dir.path(), "execs", "execs.c", &[]);
    let (_, path) = publish(&d, "t", &bytes(512 * PAGE_SIZE, 23), |_| false);
    let mut command = Command::new(&execs);
    finish(behind(&d, &mut command).args(["threads", &path, "512"]));
    assert!(d.total(|c| &c.misses) > 0);
}
