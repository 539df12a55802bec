//! The daemon's side.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Answer, No, Request};

/// Longest line that is read.
const LINE_MAX: u64 = 64 * 1024;
/// Most connections at one time; more are closed at once.
const CONNECTIONS_MAX: usize = 32;

/// The server's state: who is being answered.
#[derive(Debug, Default)]
pub struct Server {
    open: AtomicUsize,
    answering: AtomicUsize,
}

impl Server {
    /// Answers until accepting fails, each connection on a thread of its own.
    pub fn serve<A: Answer + Send + 'static>(self: Arc<Self>, listener: &UnixListener, answer: Arc<A>) {
        loop {
            match listener.accept() {
                Ok((stream, _))
                    if is_trusted(&stream) && self.open.load(Ordering::Relaxed) < CONNECTIONS_MAX =>
                {
                    self.open.fetch_add(1, Ordering::Relaxed);
                    let (server, answer) = (self.clone(), answer.clone());
                    std::thread::spawn(move || {
                        server.converse(&stream, &*answer);
                        server.open.fetch_sub(1, Ordering::Relaxed);
                    });
                }
                Ok(_) => {}
                Err(err) if is_passing(&err) => std::thread::sleep(Duration::from_millis(10)),
                Err(err) => {
                    tracing::error!("control socket: {err}");
                    return;
                }
            }
        }
    }

    /// Waits until every request that was read is answered: the request to stop ends the process that answers it.
    pub fn finish(&self, within: Duration) {
        let start = Instant::now();
        while self.answering.load(Ordering::Acquire) > 0 && start.elapsed() < within {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Line for line, until the client closes or sends what is no line.
    fn converse(&self, mut stream: &UnixStream, answer: &dyn Answer) {
        let mut reader = BufReader::new(stream);
        loop {
            let mut line = String::new();
            match (&mut reader).take(LINE_MAX).read_line(&mut line) {
                Ok(length) if length > 0 && line.ends_with('\n') => {}
                _ => return,
            }
            self.answering.fetch_add(1, Ordering::Release);
            let mut text = reply(&line, answer).to_string();
            text.push('\n');
            let sent = stream.write_all(text.as_bytes());
            self.answering.fetch_sub(1, Ordering::Release);
            if sent.is_err() {
                return;
            }
        }
    }
}

/// The directory keeps others out already; this holds even if somebody opens it.
fn is_trusted(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(stream).is_ok_and(|peer| peer.uid == own || peer.uid.is_root())
}

/// All but those of a listener that is none: descriptors and memory run out for a while, clients leave.
fn is_passing(err: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let lasting = [Errno::BADF, Errno::INVAL, Errno::NOTSOCK, Errno::OPNOTSUPP];
    Errno::from_io_error(err).is_none_or(|errno| !lasting.contains(&errno))
}

fn reply(line: &str, answer: &dyn Answer) -> Value {
    let parsed =
        serde_json::from_str::<Request>(line).map_err(|err| No { code: "usage", why: err.to_string() });
    match parsed.and_then(|request| answer.answer(request)) {
        Ok(Value::Object(mut fields)) => {
            fields.insert("ok".to_owned(), Value::Bool(true));
            Value::Object(fields)
        }
        Ok(_) => json!({"ok": true}),
        Err(no) => json!({"ok": false, "code": no.code, "error": no.why}),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Client;
    use super::*;

    struct Fake;

    impl Answer for Fake {
        fn answer(&self, request: Request) -> Result<Value, No> {
            match request {
                Request::Resize { bytes } => Ok(json!({"got": bytes})),
                Request::Stop { lazy: false, .. } => Err(No { code: "busy", why: "in use".to_owned() }),
                _ => Ok(Value::Null),
            }
        }
    }

    fn served() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::spawn(move || Arc::new(Server::default()).serve(&listener, Arc::new(Fake)));
        (dir, path)
    }

    #[test]
    fn one_connection_carries_many_requests() {
        let (_dir, path) = served();
        let mut client = Client::connect(&path).unwrap();
        assert_eq!(client.ask(&Request::Resize { bytes: 7 }).unwrap()["got"], 7);
        assert_eq!(client.ask(&Request::Flush).unwrap()["ok"], true);
        assert_eq!(client.ask(&Request::Stop { lazy: false, lose: false }).unwrap_err().code, "busy");
        assert!(client.ask(&Request::Stop { lazy: true, lose: false }).is_ok());
    }

    #[test]
    fn only_a_listener_that_is_none_ends_the_service() {
        let passing =
            |errno: rustix::io::Errno| is_passing(&std::io::Error::from_raw_os_error(errno.raw_os_error()));
        use rustix::io::Errno;
        for errno in [Errno::NFILE, Errno::MFILE, Errno::NOMEM, Errno::NOBUFS, Errno::CONNABORTED] {
            assert!(passing(errno), "{errno}");
        }
        assert!(!passing(Errno::BADF) && !passing(Errno::NOTSOCK));
    }

    #[test]
    fn what_is_no_request_is_told_so() {
        for line in
            ["", "x", "{}", r#"{"cmd":"fly"}"#, r#"{"cmd":"resize"}"#, r#"{"cmd":"resize","bytes":-1}"#]
        {
            assert_eq!(reply(line, &Fake)["code"], "usage", "{line}");
        }
    }

    #[test]
    fn a_line_without_end_is_not_read_for_ever() {
        let (_dir, path) = served();
        let mut stream = UnixStream::connect(&path).unwrap();
        let _ = stream.write_all(&vec![b'x'; 2 * LINE_MAX as usize]);
        let mut rest = Vec::new();
        // Closed, with or without a reset.
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty());
    }
}
