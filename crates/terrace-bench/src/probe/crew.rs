//! Processes that measure together: all are ready before the first begins.

use super::histogram::Histogram;
use super::load::{Done, Load, op_name};
use crate::system;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// What all of them did together.
#[derive(Debug, Default)]
pub struct Sum {
    /// Times of the operations.
    pub times: Histogram,
    /// The longest of them took so long.
    pub wall_ns: u64,
}

/// Runs `load` in `processes`, each a `terrace-bench worker probe`.
///
/// # Errors
/// One failed, in its own words (wrong data among them); a signal came.
pub fn run(load: &Load, processes: usize) -> io::Result<Sum> {
    let mut crew = Vec::with_capacity(processes);
    for index in 0..processes as u64 {
        crew.push(Member::start(&Load { index, of: processes as u64, ..load.clone() })?);
    }
    for member in &mut crew {
        member.hear()?;
    }
    for member in &mut crew {
        member.go()?;
    }
    let mut sum = Sum::default();
    for member in &mut crew {
        let done: Done = serde_json::from_str(&member.hear()?)?;
        sum.times.merge(&done.times);
        sum.wall_ns = sum.wall_ns.max(done.wall_ns);
    }
    Ok(sum)
}

/// One process; killed when dropped, if it did not end before.
struct Member {
    child: Child,
    line: BufReader<ChildStdout>,
    stdin: Option<ChildStdin>,
}

impl Member {
    fn start(load: &Load) -> io::Result<Member> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["worker", "probe", "--way", load.way.name(), "--op", op_name(load.op), "--file"]);
        command.arg(&load.file);
        let numbers = [
            ("--transfer", load.transfer as u64),
            ("--data", load.data),
            ("--seed", load.seed),
            ("--index", load.index),
            ("--of", load.of),
            ("--millis", load.millis),
        ];
        for (name, value) in numbers {
            command.arg(name).arg(value.to_string());
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().expect("it is piped"));
        Ok(Member { child, line: BufReader::new(stdout), stdin })
    }

    fn go(&mut self) -> io::Result<()> {
        self.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(b"go\n"))
    }

    /// Its next line; without one, why it ended.
    fn hear(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if !system::interrupted() && self.line.read_line(&mut line)? > 0 {
            return Ok(line);
        }
        if system::interrupted() {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted"));
        }
        let mut told = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            io::Read::read_to_string(stderr, &mut told)?;
        }
        let status = self.child.wait()?;
        let told = told.trim().trim_start_matches("terrace-bench: ");
        let silent = format!("a measuring process ended with {status}");
        Err(io::Error::other(if told.is_empty() { silent } else { told.to_owned() }))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
