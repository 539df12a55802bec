//! A server of memcached's text protocol that stores nothing, with a thread for each client: it shows the
//! part of a server's rate that is not storage. Every `set` is answered once its data have arrived, and a
//! `get` finds nothing. A request costs the client's time, two system calls and two wake-ups.

use clap::Args;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};

/// Options of the server.
#[derive(Debug, Args)]
pub struct Options {
    /// TCP port of 127.0.0.1.
    #[arg(long)]
    port: u16,
}

/// Maximum size of a request, bytes.
const REQUEST_MAX: usize = 1 << 20;

impl Options {
    /// Serves until killed.
    ///
    /// # Errors
    /// The port cannot be bound.
    pub fn run(&self) -> io::Result<()> {
        let listener = TcpListener::bind(("127.0.0.1", self.port))?;
        loop {
            let (client, _) = listener.accept()?;
            std::thread::spawn(|| serve(client));
        }
    }
}

/// Answers one client until it disconnects.
fn serve(mut client: TcpStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    let (mut input, mut filled) = (vec![0; REQUEST_MAX], 0);
    loop {
        match client.read(&mut input[filled..])? {
            0 => return Ok(()),
            bytes => filled += bytes,
        }
        while let Some((length, reply)) = answer(&input[..filled]) {
            client.write_all(reply)?;
            input.copy_within(length..filled, 0);
            filled -= length;
        }
    }
}

/// Length of the first request and its answer, once the request is complete.
fn answer(input: &[u8]) -> Option<(usize, &'static [u8])> {
    let line = input.iter().position(|byte| *byte == b'\n')?;
    let text = std::str::from_utf8(&input[..line]).unwrap_or_default();
    let mut words = text.split_ascii_whitespace();
    match words.next() {
        Some("set") => {
            let data: usize = words.nth(3).and_then(|length| length.parse().ok()).unwrap_or(0);
            let length = line + 1 + data + 2;
            (input.len() >= length).then_some((length, b"STORED\r\n".as_slice()))
        }
        Some("get" | "gets") => Some((line + 1, b"END\r\n")),
        _ => Some((line + 1, b"ERROR\r\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_answered_when_they_have_come_whole() {
        let (set, get) = (b"set k 0 0 5\r\nabcde\r\n", b"get k\r\n");
        assert!((0..set.len()).all(|length| answer(&set[..length]).is_none()));
        assert_eq!(answer(&[&set[..], get].concat()), Some((set.len(), &b"STORED\r\n"[..])));
        assert_eq!(answer(get), Some((get.len(), &b"END\r\n"[..])));
        assert_eq!(answer(b"version\r\n"), Some((9, &b"ERROR\r\n"[..])));
    }

    #[test]
    fn a_client_has_an_answer_to_each_request() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (served, _) = listener.accept().unwrap();
        let server = std::thread::spawn(|| serve(served));
        for part in ["set k 0 0 3\r\nab", "c\r\nget k\r\n"] {
            client.write_all(part.as_bytes()).unwrap();
        }
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut replies = String::new();
        client.read_to_string(&mut replies).unwrap();
        assert_eq!(replies, "STORED\r\nEND\r\n");
        server.join().unwrap().unwrap();
    }
}
