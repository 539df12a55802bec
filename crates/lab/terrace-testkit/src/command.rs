//! Runs a command of this project in tests.

use std::path::Path;
use std::process::{Command, Output};

/// A built command.
#[derive(Clone, Copy, Debug)]
pub struct Tool {
    /// The file: `env!("CARGO_BIN_EXE_...")`.
    pub exe: &'static str,
    /// The name at the start of its messages.
    pub name: &'static str,
}

impl Tool {
    /// The command with `args`, separated by spaces, in `dir`. It does not inherit ignored signals from the
    /// parent of the tests (a shell ignores some for background jobs).
    pub fn command(self, dir: &Path, args: &str) -> Command {
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP,INT,QUIT,TERM", self.exe]);
        command.current_dir(dir).env_remove("TERRACE_TRACES").args(args.split(' '));
        command
    }

    /// Its output; it must succeed with an empty stderr.
    ///
    /// # Panics
    /// If it fails, or writes to standard error.
    #[track_caller]
    pub fn done(self, dir: &Path, args: &str) -> String {
        let Output { status, stdout, stderr } = self.command(dir, args).output().expect("it can be started");
        let stderr = String::from_utf8_lossy(&stderr);
        assert!(status.success() && stderr.is_empty(), "{args}: {status}\n{stderr}");
        String::from_utf8(stdout).expect("text")
    }

    /// Asserts exit code 2, one line that contains `what`, and no partial file.
    ///
    /// # Panics
    /// If it ends differently.
    #[track_caller]
    pub fn refused(self, dir: &Path, args: &str, what: &str) {
        let Output { status, stdout, stderr } = self.command(dir, args).output().expect("it can be started");
        let stderr = String::from_utf8_lossy(&stderr);
        assert_eq!(status.code(), Some(2), "{args}: {stderr}");
        assert!(
            stdout.is_empty() && stderr.contains(what) && !stderr.contains("panicked"),
            "{args}: {stderr}"
        );
        let named = stderr.strip_prefix(self.name).is_some_and(|rest| rest.starts_with(": "));
        assert!(stderr.lines().count() == 1 && named, "{args}: {stderr}");
        let mut files = dir.read_dir().expect("a directory").map(|entry| entry.expect("an entry").path());
        assert!(files.all(|file| file.extension().is_none_or(|ending| ending != "new")), "{args}");
    }
}

/// Runs a command with standard output on a full device, where it must fail with one line; into a closed
/// pipe, where it must end normally; and with a full standard error, where it must end normally, too.
///
/// # Panics
/// If it ends differently.
#[track_caller]
pub fn check_outputs(make: impl Fn() -> Command) {
    let full = || std::fs::File::options().write(true).open("/dev/full").expect("a full device");
    let run = |command: &mut Command| {
        let Output { status, stderr, .. } = command.output().expect("it can be started");
        (status.code(), String::from_utf8_lossy(&stderr).into_owned())
    };
    let name = format!("{:?}", make());
    let (code, stderr) = run(&mut make());
    assert!(code.is_some(), "{name}: {stderr}");
    let (full_code, full_stderr) = run(make().stdout(full()));
    let is_one_line =
        full_stderr.lines().count() == 1 && full_stderr.contains("standard output: No space left");
    assert!(full_code == Some(2) && is_one_line, "{name}: {full_code:?} {full_stderr}");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    assert_eq!(run(make().stdout(writer)), (code, stderr), "{name} without a reader");
    assert_eq!(run(make().stderr(full())).0, code, "{name} with a full standard error");
}
