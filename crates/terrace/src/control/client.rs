//! Client of the control socket, for commands about a running instance.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use terrace_api::capture::Summary;
use terrace_api::control::{Command, CommandError, Done, ErrorCode, FRAME_MAX, Request, Trace, read_answer};

/// A connection to an instance.
#[derive(Debug)]
pub(crate) struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects. During a restart of the daemon, the connection waits for the next one.
    pub(crate) fn connect(socket: &Path) -> io::Result<Client> {
        Ok(Client { stream: BufReader::new(UnixStream::connect(socket)?) })
    }

    /// Sends a command and waits for the answer.
    pub(crate) fn ask<C: Command>(&mut self, command: C) -> Result<C::Reply, CommandError> {
        let line = self.exchange(&command.into()).map_err(|err| CommandError::new(ErrorCode::Silent, err))?;
        read_answer(&line).unwrap_or_else(|err| Err(CommandError::new(ErrorCode::Usage, misread(&err))))
    }

    /// Sends a command and waits at most `time` for the answer. The connection ends with it.
    ///
    /// # Errors
    /// No answer in time, or a refusal.
    pub(crate) fn ask_within<C: Command>(mut self, command: C, time: Duration) -> io::Result<C::Reply> {
        self.stream.get_ref().set_read_timeout(Some(time))?;
        self.ask(command).map_err(io::Error::other)
    }

    fn exchange(&mut self, request: &Request) -> io::Result<String> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line)?;
        read_line(&mut self.stream)
    }

    pub(crate) fn record(mut self) -> Result<Frames, CommandError> {
        let Done {} = self.ask(Trace {})?;
        Ok(Frames { stream: self.stream })
    }
}

fn misread(err: &serde_json::Error) -> String {
    format!("this version of terrace does not know the daemon's answer: {err}")
}

/// Reads a complete line. A truncated one is an error: the daemon died while it answered.
fn read_line(stream: &mut BufReader<UnixStream>) -> io::Result<String> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    if !line.ends_with('\n') {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the daemon ended without an answer"));
    }
    Ok(line)
}

/// A piece of a recording.
#[derive(Debug)]
pub(crate) enum Frame {
    /// Bytes of the capture.
    Capture(Vec<u8>),
    /// The summary, after the last frame.
    End(Summary),
}

/// A recording, piece by piece.
#[derive(Debug)]
pub(crate) struct Frames {
    stream: BufReader<UnixStream>,
}

impl Frames {
    /// Ends the recording: the frames so far and the closing line still arrive.
    pub(crate) fn enough(&self) -> io::Result<()> {
        self.stream.get_ref().shutdown(Shutdown::Write)
    }

    /// Has the next frame begun to arrive?
    pub(crate) fn is_buffered(&self) -> bool {
        !self.stream.buffer().is_empty()
    }

    /// Waits for the next frame.
    pub(crate) fn next(&mut self) -> io::Result<Frame> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length == 0 {
            let line = read_line(&mut self.stream)?;
            let summary = read_answer(&line).map_err(|err| io::Error::other(misread(&err)))?;
            return summary.map(Frame::End).map_err(io::Error::other);
        }
        if length > FRAME_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the recording has a frame of an invalid size",
            ));
        }
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes)?;
        Ok(Frame::Capture(bytes))
    }
}

impl AsFd for Frames {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.get_ref().as_fd()
    }
}
