//! A client of Redis' protocol: requests over a socket, and their parsed replies.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    Status(String),
    Error(String),
    Int(i64),
    Bulk(Option<Vec<u8>>),
    Array(Vec<Reply>),
}

impl Reply {
    pub(crate) fn text(&self) -> String {
        match self {
            Reply::Status(line) | Reply::Error(line) => line.clone(),
            Reply::Int(number) => number.to_string(),
            Reply::Bulk(None) => "(nil)".to_owned(),
            Reply::Bulk(Some(text)) => String::from_utf8_lossy(text).into_owned(),
            Reply::Array(all) => all.iter().map(Reply::text).collect::<Vec<_>>().join(" "),
        }
    }
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

pub(crate) struct Client(BufReader<Box<dyn Stream>>);

/// Time limit for a reply, long enough for a busy machine.
const WITHIN: Duration = Duration::from_secs(60);

impl Client {
    pub(crate) fn unix(path: &Path) -> std::io::Result<Client> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(WITHIN))?;
        Ok(Client(BufReader::new(Box::new(stream))))
    }

    pub(crate) fn tcp(port: u16) -> std::io::Result<Client> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(WITHIN))?;
        Ok(Client(BufReader::new(Box::new(stream))))
    }

    /// Sends a request and waits; an error means the end of the connection.
    pub(crate) fn ask<T: AsRef<[u8]>>(&mut self, words: &[T]) -> std::io::Result<Reply> {
        self.send(&[words])?;
        self.reply()
    }

    /// Sends several requests at once; each gets a reply.
    pub(crate) fn send<T: AsRef<[u8]>>(&mut self, requests: &[impl AsRef<[T]>]) -> std::io::Result<()> {
        let mut text = Vec::new();
        for words in requests.iter().map(AsRef::as_ref) {
            text.extend(format!("*{}\r\n", words.len()).bytes());
            for word in words {
                text.extend(format!("${}\r\n", word.as_ref().len()).bytes());
                text.extend(word.as_ref());
                text.extend(b"\r\n");
            }
        }
        self.0.get_mut().write_all(&text)
    }

    /// Sends a line of words; returns the reply's text.
    pub(crate) fn say(&mut self, line: &str) -> String {
        self.ask(&line.split(' ').collect::<Vec<_>>()).unwrap_or_else(|err| panic!("{line}: {err}")).text()
    }

    pub(crate) fn reply(&mut self) -> std::io::Result<Reply> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let (kind, rest) = line.trim_end().split_at(1);
        let number = || rest.parse::<i64>().map_err(std::io::Error::other);
        Ok(match kind {
            "+" => Reply::Status(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Int(number()?),
            "$" => match usize::try_from(number()?) {
                Err(_) => Reply::Bulk(None),
                Ok(length) => {
                    let mut text = vec![0; length + 2];
                    self.0.read_exact(&mut text)?;
                    text.truncate(length);
                    Reply::Bulk(Some(text))
                }
            },
            "*" => Reply::Array((0..number()?).map(|_| self.reply()).collect::<std::io::Result<_>>()?),
            other => return Err(std::io::Error::other(format!("a reply of kind {other}"))),
        })
    }
}
