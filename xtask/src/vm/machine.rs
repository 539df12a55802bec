//! QEMU as a child process: its console is read line by line, and it is killed after a time limit.

use super::command::wrong;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Prefix of the init script's line with the program's exit status.
const STATUS: &str = "vm: status ";

#[derive(Debug)]
pub(super) struct Machine {
    pub kernel: PathBuf,
    /// The initial file system.
    pub initial: PathBuf,
    /// QEMU options for memory, processors and nodes.
    pub hardware: Vec<String>,
    /// Further parameters of the kernel.
    pub parameters: String,
    /// Time limit; exceeding it is an error.
    pub limit: Duration,
}

impl Machine {
    /// Runs the machine to its end; returns the console's lines. A failing program inside is an error, and so
    /// is the time limit.
    pub(super) fn run(&self) -> io::Result<Vec<String>> {
        let mut child = self
            .command()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(|err| wrong(format!("qemu-system-x86_64: {err}; `make packages-vm` installs it")))?;
        let console = BufReader::new(child.stdout.take().expect("it is piped"));
        let (send, lines) = channel();
        let reader = std::thread::spawn(move || {
            for line in console.split(b'\n').map_while(Result::ok) {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                if send.send(text).is_err() {
                    return;
                }
            }
        });
        let (end, mut said) = (Instant::now() + self.limit, Vec::new());
        let in_time = loop {
            match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    terrace_output::print_line!("  {line}")?;
                    said.push(line);
                }
                Err(RecvTimeoutError::Disconnected) => break true,
                Err(RecvTimeoutError::Timeout) => break false,
            }
        };
        if !in_time {
            child.kill()?;
        }
        child.wait()?;
        drop(lines);
        let _ = reader.join();
        if !in_time {
            return Err(wrong(format!("the virtual machine did not end within {} s", self.limit.as_secs())));
        }
        match said.iter().find_map(|line| line.strip_prefix(STATUS)) {
            Some("0") => Ok(said),
            Some(status) => Err(wrong(format!("the program in the virtual machine failed: status {status}"))),
            None => Err(wrong("the virtual machine ended before its program did")),
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new("qemu-system-x86_64");
        command.args(["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max"]);
        command.args(["-display", "none", "-nodefaults", "-serial", "stdio", "-no-reboot"]);
        command.arg("-kernel").arg(&self.kernel).arg("-initrd").arg(&self.initial).args(&self.hardware);
        command.arg("-append").arg(format!(
            "console=ttyS0 quiet panic=-1 mitigations=off numa_balancing=disable {}",
            self.parameters
        ));
        command
    }
}

/// The text behind `name ` of the lines that begin with it.
pub(super) fn told<'a>(lines: &'a [String], name: &str) -> Vec<&'a str> {
    lines.iter().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).collect()
}

/// Directory of kernels and images.
pub(super) fn directory(root: &Path) -> PathBuf {
    root.join("target/vm")
}

#[cfg(test)]
mod tests {
    #[test]
    fn lines_of_a_name_are_found() {
        let lines = ["result {1}", "results", "other result 2", "result 3"].map(String::from);
        assert_eq!(super::told(&lines, "result"), ["{1}", "3"]);
    }
}
