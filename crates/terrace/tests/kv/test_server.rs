//! Fixture of the key-value tests: a directory, and servers of its keys. At its end, no process may be left.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use terrace_api::stats::StatReport;
use terrace_testkit::command::{told, without_settings};
use terrace_testkit::wait::{holds_within, wait_until};

use super::client::Client;

/// The command, with the environment of a user without any settings.
pub(crate) fn terrace(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
    command.args(args);
    without_settings(command)
}

/// Asserts exit code 2, and one line with `part`.
#[track_caller]
pub(crate) fn refused(args: &[&str], part: &str) {
    told(terrace(args)).refused(&[part]);
}

pub(crate) struct TestServer {
    dir: tempfile::TempDir,
}

impl TestServer {
    pub(crate) fn new() -> TestServer {
        TestServer { dir: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Starts a server on a socket; returns once it serves.
    pub(crate) fn serve(&self, more: &[&str]) -> Served {
        let unix = self.path("s");
        let (dir, socket) = (self.text("keys"), self.text("s"));
        let mut served =
            Served::start(&[&["--dir", &dir, "--unix", &socket], more].concat(), self.path("keys"));
        let ready = || Client::unix(&unix).is_ok_and(|mut client| client.ask(&["PING"]).is_ok());
        served.wait("the server serves", ready);
        served
    }

    pub(crate) fn client(&self) -> Client {
        let mut client = None;
        wait_until("the server answers", || {
            client = Client::unix(&self.path("s")).ok();
            client.as_mut().is_some_and(|client| client.ask(&["PING"]).is_ok())
        });
        client.unwrap()
    }
}

/// A supervisor with its server.
pub(crate) struct Served {
    supervisor: Child,
    dir: PathBuf,
}

impl Served {
    pub(crate) fn start(args: &[&str], dir: PathBuf) -> Served {
        let mut command = terrace(&[&["serve", "kv", "--memory", "32MiB"], args].concat());
        let supervisor = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Served { supervisor, dir }
    }

    pub(crate) fn wait(&mut self, what: &str, mut condition: impl FnMut() -> bool) {
        wait_until(what, || {
            assert_eq!(self.supervisor.try_wait().unwrap(), None, "the supervisor has ended");
            condition()
        });
    }

    pub(crate) fn stat(&self) -> StatReport {
        stat(&self.dir)
    }

    fn server(&self) -> Pid {
        Pid::from_raw(self.stat().instance.terraced).unwrap()
    }

    /// Kills the server; returns once clients reach the next one.
    pub(crate) fn kill_server(&self) {
        let mut server = self.server();
        // A new server may answer before info.json names it.
        wait_until("the server on record lives", || {
            server = self.server();
            kill_process(server, Signal::KILL).is_ok()
        });
        wait_until("the server is gone", || rustix::process::test_kill_process(server).is_err());
    }

    /// Requests an orderly end, and kills the server before it starts on that.
    pub(crate) fn kill_server_as_it_stops(mut self) {
        let server = self.server();
        kill_process(server, Signal::STOP).unwrap();
        kill_process(Pid::from_child(&self.supervisor), Signal::TERM).unwrap();
        wait_until("the supervisor has taken the signal", || has_pending(server, Signal::TERM));
        kill_process(server, Signal::KILL).unwrap();
        assert!(self.supervisor.wait().unwrap().success());
    }

    pub(crate) fn kill_all(mut self) {
        let server = self.server();
        self.supervisor.kill().unwrap();
        let _ = kill_process(server, Signal::KILL);
        self.supervisor.wait().unwrap();
        wait_until("the server is gone", || rustix::process::test_kill_process(server).is_err());
    }

    /// Stops the server in order.
    pub(crate) fn stop(mut self) {
        kill_process(Pid::from_child(&self.supervisor), Signal::TERM).unwrap();
        assert!(self.supervisor.wait().unwrap().success());
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if self.supervisor.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = kill_process(Pid::from_child(&self.supervisor), Signal::TERM);
            if !holds_within(std::time::Duration::from_secs(60), || {
                self.supervisor.try_wait().is_ok_and(|ended| ended.is_some())
            }) {
                let server = std::panic::catch_unwind(|| stat(&self.dir).instance.terraced).ok();
                let _ = self.supervisor.kill();
                let _ = server.and_then(Pid::from_raw).map(|server| kill_process(server, Signal::KILL));
                let _ = self.supervisor.wait();
            }
        }
    }
}

/// Is a signal pending for a process?
fn has_pending(pid: Pid, signal: Signal) -> bool {
    let status = terrace_system::proc::text(pid.as_raw_pid(), "status").unwrap();
    let pending = terrace_system::field(&status, "ShdPnd").expect("a mask of signals");
    let pending = u64::from_str_radix(pending, 16).unwrap();
    pending & 1 << (signal.as_raw() - 1) != 0
}

fn stat(dir: &Path) -> StatReport {
    let mut found = None;
    wait_until("terrace stat", || {
        let output = terrace(&["stat", "--json", &dir.display().to_string()]).output().unwrap();
        found = serde_json::from_slice(&output.stdout).ok();
        found.is_some()
    });
    found.unwrap()
}
