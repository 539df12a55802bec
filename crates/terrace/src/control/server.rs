//! Server of the control socket, in terraced and in a server of keys.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use terrace_api::capture::Summary;
use terrace_api::control::{CommandError, Done, ErrorCode, FRAME_MAX, Reply, Request, write_answer};

/// Longest line that is read.
const LINE_MAX: u64 = 64 * 1024;
/// A recording ends when its reader takes no data for this time.
const READ_WITHIN: Duration = Duration::from_secs(10);
/// Most connections at one time; more are closed at once.
const CONNECTIONS_MAX: usize = 32;

/// Carries out requests: terraced, a server of keys, or a stand-in in tests.
pub(crate) trait Answer: Sync {
    /// Carries out a request.
    fn answer(&self, request: Request) -> Result<Reply, CommandError>;
    fn record(&self) -> Result<Box<dyn Record>, CommandError>;
}

pub(crate) trait Record {
    /// Writes the capture until `ended`, and returns the summary.
    fn run(self: Box<Self>, out: &mut dyn Write, ended: &mut dyn FnMut() -> bool) -> io::Result<Summary>;
}

/// The server's state: the connections in service.
#[derive(Debug, Default)]
pub(crate) struct Server {
    open: AtomicUsize,
    answering: AtomicUsize,
    finishing: AtomicBool,
}

impl Server {
    /// Answers until accepting fails, each connection on a thread of its own.
    pub(crate) fn serve<A: Answer + Send + 'static>(
        self: Arc<Self>,
        listener: &UnixListener,
        answer: Arc<A>,
    ) {
        loop {
            match listener.accept() {
                Ok((stream, _))
                    if is_trusted(&stream) && self.open.load(Ordering::Relaxed) < CONNECTIONS_MAX =>
                {
                    self.open.fetch_add(1, Ordering::Relaxed);
                    let (server, answer) = (self.clone(), answer.clone());
                    // If no thread can be started, the connection is closed.
                    let started = std::thread::Builder::new().spawn(move || {
                        server.converse(&stream, &*answer);
                        server.open.fetch_sub(1, Ordering::Relaxed);
                    });
                    if started.is_err() {
                        self.open.fetch_sub(1, Ordering::Relaxed);
                    }
                }
                Ok(_) => {}
                Err(err) if is_passing(&err) => std::thread::sleep(Duration::from_millis(10)),
                Err(err) => {
                    tracing::error!("the control socket fails ({err}): no command reaches this instance");
                    return;
                }
            }
        }
    }

    /// Waits until all requests read are answered and recordings have ended: the process that answers a stop
    /// request exits next.
    pub(crate) fn finish(&self, within: Duration) {
        self.finishing.store(true, Ordering::Release);
        let start = Instant::now();
        while self.answering.load(Ordering::Acquire) > 0 && start.elapsed() < within {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Answers line by line, until the client closes the connection or sends an invalid line.
    fn converse(&self, stream: &UnixStream, answer: &dyn Answer) {
        let mut reader = BufReader::new(stream);
        loop {
            let mut line = String::new();
            match (&mut reader).take(LINE_MAX).read_line(&mut line) {
                Ok(length) if length > 0 && line.ends_with('\n') => {}
                _ => return,
            }
            let asked = parse(&line);
            self.answering.fetch_add(1, Ordering::Release);
            if matches!(asked, Ok(Request::Trace(_))) {
                let _ = self.record(stream, answer);
                self.answering.fetch_sub(1, Ordering::Release);
                return;
            }
            let sent = say(stream, &asked.and_then(|request| answer.answer(request)));
            self.answering.fetch_sub(1, Ordering::Release);
            if sent.is_err() {
                return;
            }
        }
    }

    /// Sends a recording on its connection, which is closed after it. The client or the server ends the
    /// recording.
    fn record(&self, stream: &UnixStream, answer: &dyn Answer) -> std::io::Result<()> {
        let recording = match answer.record() {
            Ok(recording) => recording,
            Err(no) => return say(stream, &Err::<Reply, _>(no)),
        };
        // A client that does not read loses the recording. Otherwise, waiting for it would lose all accesses
        // meanwhile.
        stream.set_write_timeout(Some(READ_WITHIN))?;
        say(stream, &Ok(Done {}))?;
        let mut ended = || self.finishing.load(Ordering::Acquire) || has_ended(stream);
        let summary = recording.run(&mut Framed(stream), &mut ended)?;
        Framed(stream).frame(&[])?;
        say(stream, &Ok(summary))
    }
}

fn say(mut stream: &UnixStream, answer: &Result<impl Serialize, CommandError>) -> std::io::Result<()> {
    stream.write_all(&write_answer(answer)?)
}

/// Writes bytes as frames.
struct Framed<'a>(&'a UnixStream);

impl Framed<'_> {
    fn frame(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let length = u32::try_from(bytes.len()).map_err(|_| std::io::ErrorKind::InvalidInput)?;
        self.0.write_all(&length.to_le_bytes())?;
        self.0.write_all(bytes)
    }
}

impl Write for Framed<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let part = &bytes[..bytes.len().min(FRAME_MAX)];
        if !part.is_empty() {
            self.frame(part)?;
        }
        Ok(part.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Has the peer shut down its side, or closed the connection?
fn has_ended(stream: &UnixStream) -> bool {
    use rustix::net::{RecvFlags, recv};
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    !matches!(recv(stream, &mut [0u8; 1], flags), Err(rustix::io::Errno::AGAIN))
}

/// A second check: the directory's mode keeps other users out already, but may have been changed.
fn is_trusted(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(stream).is_ok_and(|peer| peer.uid == own || peer.uid.is_root())
}

/// Is the error temporary? All are, except those of a broken listener: out of descriptors or memory, a client
/// that left.
fn is_passing(err: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let lasting = [Errno::BADF, Errno::INVAL, Errno::NOTSOCK, Errno::OPNOTSUPP];
    Errno::from_io_error(err).is_none_or(|errno| !lasting.contains(&errno))
}

fn parse(line: &str) -> Result<Request, CommandError> {
    serde_json::from_str(line).map_err(|err| CommandError::new(ErrorCode::Usage, err))
}

#[cfg(test)]
mod tests {
    use super::super::{Client, Frame};
    use super::*;
    use terrace_api::control::{DropCaches, DropCachesReply, Stop, StopReply, Sync};

    struct Fake;

    impl Answer for Fake {
        fn answer(&self, request: Request) -> Result<Reply, CommandError> {
            match request {
                Request::DropCaches(_) => Ok(Reply::DropCaches(DropCachesReply { pages: 7 })),
                Request::Stop(Stop { lazy: false, .. }) => Err(CommandError::new(ErrorCode::Busy, "in use")),
                Request::Stop(_) => Ok(Reply::Stop(StopReply::default())),
                _ => Ok(Reply::Sync(Done {})),
            }
        }
        fn record(&self) -> Result<Box<dyn Record>, CommandError> {
            Ok(Box::new(Chatter))
        }
    }

    struct Chatter;

    impl Record for Chatter {
        fn run(
            self: Box<Self>,
            out: &mut dyn Write,
            ended: &mut dyn FnMut() -> bool,
        ) -> std::io::Result<Summary> {
            let mut said = 0;
            while !ended() {
                out.write_all(b"chatter")?;
                said += 1;
            }
            Ok(Summary { accesses: said, ..Summary::default() })
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
        assert_eq!(client.ask(DropCaches {}), Ok(DropCachesReply { pages: 7 }));
        assert_eq!(client.ask(Sync {}), Ok(Done {}));
        let busy = client.ask(Stop { lazy: false, lose: false }).unwrap_err();
        assert_eq!((busy.code, busy.message.as_str()), (ErrorCode::Busy, "in use"));
        assert_eq!(client.ask(Stop { lazy: true, lose: false }), Ok(StopReply::default()));
    }

    #[test]
    fn a_recording_comes_in_frames_until_its_reader_has_enough() {
        let (_dir, path) = served();
        let mut frames = Client::connect(&path).unwrap().record().unwrap();
        let mut heard = 0;
        let summary = loop {
            match frames.next().unwrap() {
                Frame::Capture(bytes) => assert_eq!(bytes, b"chatter"),
                Frame::End(summary) => break summary,
            }
            heard += 1;
            if heard == 10 {
                frames.enough().unwrap();
            }
        };
        assert_eq!(summary.accesses, heard);
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
    fn invalid_request_gets_an_error() {
        for line in ["", "x", "{}", r#"{"cmd":"fly"}"#, r#"{"cmd":"resize"}"#, r#"{"cmd":"evict","seq":-1}"#]
        {
            assert_eq!(parse(line).unwrap_err().code, ErrorCode::Usage, "{line}");
        }
    }

    #[test]
    fn a_line_without_end_is_not_read_for_ever() {
        let (_dir, path) = served();
        let mut stream = UnixStream::connect(&path).unwrap();
        let _ = stream.write_all(&vec![b'x'; 2 * LINE_MAX as usize]);
        let mut rest = Vec::new();
        // The connection is closed, with or without a reset.
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty());
    }
}
