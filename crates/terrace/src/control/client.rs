//! The command's side.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::Value;

use super::Request;

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
        let mut answer = String::new();
        if self.stream.read_line(&mut answer)? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the daemon ended without an answer"));
        }
        Ok(serde_json::from_str(&answer)?)
    }
}
