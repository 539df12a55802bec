//! The command's side.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::Value;

use super::{FRAME_MAX, Request};

/// A connection to an instance.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
}

/// A negative answer, or none.
#[derive(Debug)]
pub struct Refusal {
    /// `busy`, `failed`, `usage`; `silent` when there was no answer.
    pub code: String,
    /// The line for people.
    pub why: String,
}

impl Client {
    /// Connects. A daemon that is being restarted answers when it is back.
    pub fn connect(socket: &Path) -> io::Result<Client> {
        Ok(Client { stream: BufReader::new(UnixStream::connect(socket)?) })
    }

    /// Asks and waits for the answer.
    pub fn ask(&mut self, request: &Request) -> Result<Value, Refusal> {
        let answer = self
            .exchange(request)
            .map_err(|err| Refusal { code: "silent".to_owned(), why: err.to_string() })?;
        if answer["ok"] == true {
            return Ok(answer);
        }
        let word = |key: &str| answer[key].as_str().unwrap_or("failed").to_owned();
        Err(Refusal { code: word("code"), why: word("error") })
    }

    fn exchange(&mut self, request: &Request) -> io::Result<Value> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line)?;
        read_answer(&mut self.stream)
    }

    /// Asks for what comes in frames.
    pub fn stream(mut self, request: &Request) -> Result<Frames, Refusal> {
        self.ask(request)?;
        Ok(Frames { stream: self.stream })
    }
}

fn read_answer(stream: &mut BufReader<UnixStream>) -> io::Result<Value> {
    let mut answer = String::new();
    if stream.read_line(&mut answer)? == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the daemon ended without an answer"));
    }
    Ok(serde_json::from_str(&answer)?)
}

/// What the daemon sends piece by piece.
#[derive(Debug)]
pub struct Frames {
    stream: BufReader<UnixStream>,
}

impl Frames {
    /// Says that no more is wanted; what there is still comes, and the closing line.
    pub fn enough(&self) -> io::Result<()> {
        self.stream.get_ref().shutdown(Shutdown::Write)
    }

    /// True if the next frame has begun to arrive.
    pub fn is_buffered(&self) -> bool {
        !self.stream.buffer().is_empty()
    }

    /// The next frame, or the closing line.
    pub fn next(&mut self) -> io::Result<std::result::Result<Vec<u8>, Value>> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length == 0 {
            return read_answer(&mut self.stream).map(Err);
        }
        if length > FRAME_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame of no size"));
        }
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes)?;
        Ok(Ok(bytes))
    }
}

impl AsFd for Frames {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.get_ref().as_fd()
    }
}
