//! Commands of this project, run in tests: their settings, output and refusals.

use std::borrow::BorrowMut;
use std::path::Path;
use std::process::{Command, Output};

/// Removes the settings of this process's user: variables of terrace, and the configuration.
pub fn without_settings(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TERRACE_")) {
        command.env_remove(name);
    }
    command.env("XDG_CONFIG_HOME", "/nonexistent").current_dir("/");
    command
}

/// Output and status of a command.
#[derive(Debug)]
pub struct Outcome {
    /// Exit code; None: killed by a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error without the lines about mount namespaces of other tests.
    pub err: String,
    /// The whole standard error.
    pub whole_err: String,
}

/// Runs a command until it has ended and all copies of its outputs are closed.
///
/// # Panics
/// If it cannot be started.
#[track_caller]
pub fn told(mut command: impl BorrowMut<Command>) -> Outcome {
    command.borrow_mut().output().expect("it starts").into()
}

impl From<Output> for Outcome {
    fn from(output: Output) -> Outcome {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        // Parallel tests may make mount namespaces: `umount` then names their processes.
        let sees =
            |line: &&str| line.contains(": unmounted here") || line.contains(": waiting for the unmount");
        let whole_err = text(output.stderr);
        let err = whole_err.split_inclusive('\n').filter(|line| !sees(line)).collect();
        Outcome { code: output.status.code(), out: text(output.stdout), err, whole_err }
    }
}

impl Outcome {
    /// Asserts exit code 0 and no error output.
    ///
    /// # Panics
    /// If it ended differently.
    #[track_caller]
    pub fn fine(self) -> Outcome {
        assert_eq!((self.code, self.err.as_str()), (Some(0), ""), "{}", self.out);
        self
    }

    /// Asserts exit code 2 and one line with all of `parts`.
    ///
    /// # Panics
    /// If it ended differently.
    #[track_caller]
    pub fn refused(self, parts: &[&str]) {
        self.refused_with(2, parts);
    }

    /// [`Outcome::refused`] with this exit code.
    ///
    /// # Panics
    /// If it ended differently.
    #[track_caller]
    pub fn refused_with(self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.err);
        assert_eq!(self.err.lines().count(), 1, "{}", self.err);
        assert!(self.err.starts_with("terrace: "), "{}", self.err);
        // what: why; cure
        assert!(self.err.contains("; "), "{}", self.err);
        for part in parts {
            assert!(self.err.contains(part), "`{part}` is not in: {}", self.err);
        }
    }
}

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
