//! terrace-bench as a user runs it.

use std::path::Path;
use std::process::{Command, Output};

/// Whoever starts the tests may ignore signals (a shell does, for what runs in the background): the command is not to inherit that.
pub fn bench(dir: &Path, args: &str) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP,INT,QUIT,TERM", env!("CARGO_BIN_EXE_terrace-bench")]);
    command.current_dir(dir).env_remove("TERRACE_TRACES").args(args.split(' '));
    command
}

/// What it printed; nothing went wrong, and nothing was told beside it.
#[track_caller]
pub fn done(dir: &Path, args: &str) -> String {
    let Output { status, stdout, stderr } = bench(dir, args).output().unwrap();
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(status.success() && stderr.is_empty(), "{args}: {status}\n{stderr}");
    String::from_utf8(stdout).unwrap()
}

/// Exit code 2, and one line that says `what`; no file that was begun.
#[track_caller]
pub fn refused(dir: &Path, args: &str, what: &str) {
    let Output { status, stdout, stderr } = bench(dir, args).output().unwrap();
    let stderr = String::from_utf8_lossy(&stderr);
    assert_eq!(status.code(), Some(2), "{args}: {stderr}");
    assert!(stdout.is_empty() && stderr.contains(what) && !stderr.contains("panicked"), "{args}: {stderr}");
    assert!(stderr.lines().count() == 1 && stderr.starts_with("terrace-bench: "), "{args}: {stderr}");
    let mut files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    assert!(files.all(|file| file.extension().is_none_or(|ending| ending != "new")), "{args}");
}
