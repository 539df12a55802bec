//! Messages of the keeper to the command that started it, line by line over a socket; and of `run` to its
//! keeper.
//!
//! Keeper to command: `ready`, `failed LINE` (nothing is mounted), `gone LINE` (the instance ended against
//! its will), `done` (it ended in order). Command to keeper: `pid N`, the wrapped command. The end of the
//! socket also has a meaning: the other side died.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use crate::error::{Failure, Result};

/// One line from the keeper.
#[derive(Debug, PartialEq, Eq)]
pub enum News {
    /// The mount is served.
    Ready,
    /// It never was, and this is why.
    Failed(String),
    /// It is no longer, and this is why.
    Gone(String),
    /// It ended in order, and everything is written.
    Done,
    /// terraced to its keeper only: the id of its working thread.
    Thread(i32),
    /// terraced to its keeper only: processes that the kernel has killed for lack of memory, of its control
    /// group and of the machine.
    Kills(u64, u64),
    /// The keeper to its aborter: a process id of terraced, and the id of that thread.
    ThreadOf(i32, i32),
}

/// One end of the socket.
#[derive(Debug)]
pub struct Line {
    stream: UnixStream,
    unread: Vec<u8>,
}

/// Both ends.
pub fn pair() -> io::Result<(Line, Line)> {
    let (one, other) = UnixStream::pair()?;
    Ok((Line { stream: one, unread: Vec::new() }, Line { stream: other, unread: Vec::new() }))
}

/// Result of one look at the socket.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// A whole line.
    Line(String),
    /// Nothing yet.
    Nothing,
    /// The other side is gone.
    End,
}

impl Line {
    /// Another way to speak on the same line.
    pub fn try_clone(&self) -> io::Result<Line> {
        Ok(Line { stream: self.stream.try_clone()?, unread: Vec::new() })
    }

    /// Sends one line; ignores that the reader has gone.
    pub fn say(&mut self, line: &str) {
        let _ = self.stream.write_all(format!("{}\n", line.replace('\n', " ")).as_bytes());
    }

    /// Sends the id of the calling process, as `pid N`. Async-signal-safe: it allocates nothing, and a reader
    /// that has gone causes no SIGPIPE.
    pub fn say_pid(&self) {
        let mut line = [0; 16];
        let mut rest = &mut line[..];
        let _ = writeln!(rest, "pid {}", std::process::id());
        let unused = rest.len();
        let said = &line[..line.len() - unused];
        let _ = rustix::net::send(&self.stream, said, rustix::net::SendFlags::NOSIGNAL);
    }

    /// The next line, waiting for it; none at the end.
    pub fn wait(&mut self) -> Option<String> {
        loop {
            match self.hear() {
                Heard::Line(line) => return Some(line),
                Heard::End => return None,
                Heard::Nothing => {}
            }
        }
    }

    /// One read, which does not wait when the descriptor is readable.
    pub fn hear(&mut self) -> Heard {
        if let Some(line) = self.buffered() {
            return Heard::Line(line);
        }
        let mut chunk = [0u8; 4096];
        match self.stream.read(&mut chunk) {
            Ok(0) => Heard::End,
            Ok(length) => {
                self.unread.extend_from_slice(&chunk[..length]);
                self.buffered().map_or(Heard::Nothing, Heard::Line)
            }
            Err(err) if err.kind() == io::ErrorKind::Interrupted => Heard::Nothing,
            Err(_) => Heard::End,
        }
    }

    /// True if a whole line after the last one was received already: poll of the descriptor does not show it.
    pub fn has_line(&self) -> bool {
        self.unread.contains(&b'\n')
    }

    fn buffered(&mut self) -> Option<String> {
        let end = self.unread.iter().position(|b| *b == b'\n')?;
        let rest = self.unread.split_off(end + 1);
        let mut line = std::mem::replace(&mut self.unread, rest);
        line.pop();
        Some(String::from_utf8_lossy(&line).into_owned())
    }

    /// The command's view: waits until the mount is served or never will be.
    pub fn wait_ready(&mut self) -> Result<()> {
        match self.wait().as_deref().map(parse) {
            Some(Some(News::Ready)) => Ok(()),
            Some(Some(News::Failed(line) | News::Gone(line))) => Err(Failure::from_line(&line)),
            _ => Err(Failure::new("keeper", "it ended without a word", "try again with --foreground")),
        }
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Parses a line of the keeper.
pub fn parse(line: &str) -> Option<News> {
    match line.split_once(' ').unwrap_or((line, "")) {
        ("ready", _) => Some(News::Ready),
        ("failed", why) => Some(News::Failed(why.to_owned())),
        ("gone", why) => Some(News::Gone(why.to_owned())),
        ("done", _) => Some(News::Done),
        ("thread", ids) => match ids.split_once(' ') {
            Some((process, id)) => Some(News::ThreadOf(process.parse().ok()?, id.parse().ok()?)),
            None => ids.parse().ok().map(News::Thread),
        },
        ("kills", counts) => {
            let (group, machine) = counts.split_once(' ')?;
            Some(News::Kills(group.parse().ok()?, machine.parse().ok()?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_arrive_whole_and_in_order() {
        let (mut keeper, mut command) = pair().unwrap();
        keeper.say("ready");
        keeper.say("gone terrace: it\ndied; look");
        command.wait_ready().unwrap();
        assert_eq!(parse(&command.wait().unwrap()), Some(News::Gone("terrace: it died; look".to_owned())));
        drop(keeper);
        assert_eq!(command.hear(), Heard::End);
    }

    #[test]
    fn a_process_says_its_id() {
        let (command, mut keeper) = pair().unwrap();
        command.say_pid();
        assert_eq!(keeper.wait(), Some(format!("pid {}", std::process::id())));
        drop(keeper);
        command.say_pid();
    }

    #[test]
    fn a_keeper_that_dies_is_an_error() {
        let (keeper, mut command) = pair().unwrap();
        drop(keeper);
        assert!(command.wait_ready().is_err());
    }
}
