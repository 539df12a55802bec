//! The command that is watched: a process group of its own, whose output waits until the screen is free again.

use super::END_WITHIN;
use crate::probe::nameless;
use crate::steps::exit_code;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A running command.
#[derive(Debug)]
pub struct Child {
    child: std::process::Child,
    out: File,
    err: File,
    code: Option<i32>,
}

impl Child {
    /// Starts it, reading nothing.
    ///
    /// # Errors
    /// It cannot be started; there is no room for its output.
    pub fn start(argv: &[String]) -> io::Result<Child> {
        let scratch = || nameless(&std::env::temp_dir());
        let (out, err) = (scratch()?, scratch()?);
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]).process_group(0).stdin(Stdio::null());
        command.stdout(out.try_clone()?).stderr(err.try_clone()?);
        let child = command
            .spawn()
            .map_err(|e| io::Error::new(e.kind(), format!("{}: {e} (name a program in PATH)", argv[0])))?;
        Ok(Child { child, out, err, code: None })
    }

    /// Its exit code, 128 and the signal if it was killed; none while it runs.
    pub fn ended(&mut self) -> io::Result<Option<i32>> {
        if self.code.is_none() {
            self.code = self.child.try_wait()?.map(exit_code);
        }
        Ok(self.code)
    }

    /// Tells it and all that it started; nothing, if it ended.
    pub fn tell(&self, signal: i32) {
        if self.code.is_none() {
            // SAFETY: plain integers; a child that was not waited for: the number is still its group's.
            unsafe { libc::kill(-(self.child.id() as i32), signal) };
        }
    }

    /// Prints what it printed.
    pub fn print(&mut self) -> io::Result<()> {
        // A reader that went away (`| head`) is no error.
        let forgive = |e: io::Error| if e.kind() == io::ErrorKind::BrokenPipe { Ok(0) } else { Err(e) };
        let (out, err) = (&mut self.out, &mut self.err);
        out.rewind()?;
        err.rewind()?;
        io::copy(out, &mut io::stdout().lock()).or_else(forgive)?;
        io::stdout().lock().flush().or_else(|e| forgive(e).map(drop))?;
        io::copy(err, &mut io::stderr().lock()).or_else(forgive).map(drop)
    }
}

impl Drop for Child {
    /// After an error of ours it is told to end, as by `q`: what it has begun may need an orderly end.
    fn drop(&mut self) {
        self.tell(libc::SIGTERM);
        let told = Instant::now();
        while matches!(self.ended(), Ok(None)) {
            if told.elapsed() > END_WITHIN {
                self.tell(libc::SIGKILL);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Child {
        Child::start(&["sh".into(), "-c".into(), script.into()]).unwrap()
    }

    fn code(child: &mut Child) -> i32 {
        loop {
            match child.ended().unwrap() {
                Some(code) => return code,
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    #[test]
    fn output_is_kept_and_the_status_is_its_own() {
        let mut child = shell("echo out; echo err >&2; exit 7");
        assert_eq!(code(&mut child), 7);
        let read = |file: &mut File| {
            file.rewind().unwrap();
            io::read_to_string(file).unwrap()
        };
        assert_eq!((read(&mut child.out), read(&mut child.err)), ("out\n".into(), "err\n".into()));
        assert!(Child::start(&["/nonexistent".into()]).unwrap_err().to_string().contains("name a program"));
    }

    #[test]
    fn signals_reach_all_that_it_started() {
        let mut child = shell("sleep 60 & sleep 60; echo not reached");
        child.tell(libc::SIGTERM);
        assert_eq!(code(&mut child), 128 + libc::SIGTERM);
        child.tell(libc::SIGTERM); // Nobody: the number may be another's by now.
    }
}
