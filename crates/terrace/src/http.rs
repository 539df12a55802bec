//! A small HTTP server for metrics and the live page: GET and HEAD. Each connection has one answer and one
//! thread.
//!
//! It listens on loopback addresses, unless the user permits others. It bounds connections, and the length
//! and duration of requests, so that no client can block the daemon.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::error::{Failure, Result, reason};

/// Most connections at one time; more are closed at once.
const CONNECTIONS_MAX: usize = 16;
/// Longest head of a request.
const HEAD_MAX: usize = 8 * 1024;
/// Time limit for a request, and for the client to read its answer.
const WITHIN: Duration = Duration::from_secs(5);

/// The type of metrics in the text format of Prometheus.
pub(crate) const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Page {
    /// Status code and words: `200 OK`.
    pub status: &'static str,
    pub kind: &'static str,
    pub body: String,
}

impl Page {
    /// A page with status 200.
    pub(crate) fn ok(kind: &'static str, body: String) -> Page {
        Page { status: "200 OK", kind, body }
    }

    /// An error page with one line of text.
    pub(crate) fn error(status: &'static str, why: impl std::fmt::Display) -> Page {
        Page { status, kind: "text/plain; charset=utf-8", body: format!("{why}\n") }
    }
}

/// Parses an address: `9464` and `:9464` are ports of the loopback address.
///
/// # Errors
/// Reason and cure: not an address, or one that other machines can reach without `public`.
pub(crate) fn parse(text: &str, public: bool) -> std::result::Result<SocketAddr, (String, String)> {
    let text = text.trim();
    let port = text.strip_prefix("localhost:").or(text.strip_prefix(':')).unwrap_or(text);
    let address = match port.parse::<u16>() {
        Ok(port) => Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        Err(_) => text.parse().ok(),
    };
    let address = address.ok_or_else(|| {
        let cure = "write a port, or IP:PORT, for example 127.0.0.1:9464 or [::1]:9464";
        (format!("`{text}` is no address"), cure.to_owned())
    })?;
    if !address.ip().is_loopback() && !public {
        let why = format!("{address} can be reached from other machines, which then see what is served here");
        return Err((why, format!("write 127.0.0.1:{}, or say that it may be public", address.port())));
    }
    Ok(address)
}

/// Opens the listening socket.
pub(crate) fn bind(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).map_err(|err| {
        Failure::new(address, reason(err), "choose another port or an address of this machine")
    })
}

/// Answers until accepting fails for good. `answer` gets the path of the request.
pub(crate) fn serve(listener: &TcpListener, answer: impl Fn(&str) -> Page + Send + Sync + 'static) {
    let (answer, open) = (Arc::new(answer), Arc::new(AtomicUsize::new(0)));
    loop {
        match listener.accept() {
            Ok((stream, _)) if open.load(Ordering::Relaxed) < CONNECTIONS_MAX => {
                open.fetch_add(1, Ordering::Relaxed);
                let (answer, counted) = (answer.clone(), open.clone());
                let started = std::thread::Builder::new().name("http".to_owned()).spawn(move || {
                    let _ = converse(stream, &*answer);
                    counted.fetch_sub(1, Ordering::Relaxed);
                });
                if started.is_err() {
                    open.fetch_sub(1, Ordering::Relaxed);
                }
            }
            Ok(_) => {}
            Err(err) if matches!(err.raw_os_error(), Some(libc::EBADF | libc::EINVAL)) => return,
            // Temporary: out of descriptors or memory, or the client has left.
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

fn converse(mut stream: TcpStream, answer: &dyn Fn(&str) -> Page) -> io::Result<()> {
    stream.set_read_timeout(Some(WITHIN))?;
    stream.set_write_timeout(Some(WITHIN))?;
    let (at, head) = (stream.local_addr()?.ip(), read_head(&mut stream)?);
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    let page = match (method, path.starts_with('/')) {
        ("GET" | "HEAD", true) if !may_ask(at, &head) => {
            let cure = "write its IP address, localhost or its own host name";
            Page::error(
                "403 Forbidden",
                format_args!("the request's Host is no name of this machine; {cure}"),
            )
        }
        ("GET" | "HEAD", true) => answer(path),
        ("GET" | "HEAD", false) => Page::error("400 Bad Request", "the request's target is no path"),
        _ => Page::error("405 Method Not Allowed", "only GET and HEAD are answered"),
    };
    let mut out = format!(
        "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n{SAFE}Connection: close\r\n\r\n",
        page.status,
        page.kind,
        page.body.len()
    );
    if method != "HEAD" {
        out.push_str(&page.body);
    }
    stream.write_all(out.as_bytes())
}

/// May a request to this address get its page? A public address has names that the machine does not know: of
/// its domain, or of a proxy.
fn may_ask(at: IpAddr, head: &str) -> bool {
    !at.to_canonical().is_loopback() || names_this_machine(head)
}

/// Is each Host header a name of this machine? Otherwise a web page could point its own name at this address,
/// and read the answer (DNS rebinding). An IP address as Host is safe: the browser has connected to it.
fn names_this_machine(head: &str) -> bool {
    let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let hosts = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    let mut hosts = hosts.filter(|(name, _)| name.trim().eq_ignore_ascii_case("host"));
    hosts.all(|(_, host)| {
        let host = host.trim();
        let name = host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok());
        let name = name.map_or(host, |(name, _)| name);
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        let is_own = ["localhost", &own].iter().any(|own| name.eq_ignore_ascii_case(own));
        is_own || address.parse::<IpAddr>().is_ok() || host.parse::<IpAddr>().is_ok()
    })
}

/// Headers: a page loads nothing from elsewhere, and no other page may frame it.
const SAFE: &str = "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                    frame-ancestors 'none'\r\nX-Content-Type-Options: nosniff\r\n";

/// Reads up to the empty line.
fn read_head(stream: &mut TcpStream) -> io::Result<String> {
    let (began, mut head, mut part) = (Instant::now(), Vec::new(), [0; 1024]);
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        let length = stream.read(&mut part)?;
        if length == 0 || head.len() + length > HEAD_MAX || began.elapsed() > WITHIN {
            return Err(io::ErrorKind::InvalidData.into());
        }
        head.extend_from_slice(&part[..length]);
    }
    String::from_utf8(head).map_err(|_| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_the_machines_own_unless_public_is_said() {
        let own = |text: &str| parse(text, false).map(|address| address.to_string()).ok();
        assert_eq!(own("9464").as_deref(), Some("127.0.0.1:9464"));
        assert_eq!(own(":0").as_deref(), Some("127.0.0.1:0"));
        assert_eq!(own("localhost:80").as_deref(), Some("127.0.0.1:80"));
        assert_eq!(own("[::1]:9464").as_deref(), Some("[::1]:9464"));
        for wrong in ["", "x", "65536", "127.0.0.1", "0.0.0.0:9464", "[::]:9464", "192.0.2.1:1"] {
            assert_eq!(own(wrong), None, "{wrong}");
        }
        assert!(parse("0.0.0.0:9464", true).is_ok());
        let (why, cure) = parse("192.0.2.1:1", false).unwrap_err();
        assert!(why.contains("other machines") && cure.contains("127.0.0.1:1"), "{why}; {cure}");
    }

    fn asked(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut told = String::new();
        let _ = stream.read_to_string(&mut told);
        told
    }

    #[test]
    fn requests_get_one_answer_each() {
        let listener = bind(parse("0", false).unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || serve(&listener, |path| Page::ok("text/plain", format!("path {path}"))));
        let told = asked(address, "GET /a?b=c HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(told.starts_with("HTTP/1.1 200 OK\r\n") && told.ends_with("\r\n\r\npath /a"), "{told}");
        assert!(told.contains("\r\nContent-Length: 7\r\n"), "{told}");
        let told = asked(address, "HEAD /a HTTP/1.0\r\n\r\n");
        assert!(told.contains("Content-Length: 7") && told.ends_with("\r\n\r\n"), "{told}");
        assert!(asked(address, "POST / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
        assert!(asked(address, "GET x HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 400 "));
        assert_eq!(asked(address, &format!("GET /{}", "x".repeat(2 * HEAD_MAX))), "", "closed");
    }

    #[test]
    fn names_of_others_are_refused() {
        let head = |host: &str| format!("GET / HTTP/1.1\r\nAccept: *\r\n{host}\r\n");
        let own = rustix::system::uname().nodename().to_str().unwrap().to_uppercase();
        let own_names =
            ["Host: 127.0.0.1:9464", "host:[::1]:9464", "Host: ::1", "HOST : LocalHost", "Host: 192.0.2.1"];
        for host in own_names.map(str::to_owned).into_iter().chain([format!("Host: {own}:1"), String::new()])
        {
            assert!(names_this_machine(&head(&host)), "{host}");
        }
        for host in [
            "Host: evil.example",
            "Host: evil.example:9464",
            "Host:",
            "Host: localhost.evil.example",
            "Host: a\r\nHost: localhost",
        ] {
            assert!(!names_this_machine(&head(host)), "{host}");
        }
        let listener = bind(parse("0", false).unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || serve(&listener, |_| panic!("no page for them")));
        let told = asked(address, "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n");
        assert!(told.starts_with("HTTP/1.1 403 ") && told.contains("localhost"), "{told}");
    }

    #[test]
    fn public_addresses_have_any_name() {
        let (own, other) =
            ("GET / HTTP/1.1\r\nHost: localhost\r\n", "GET / HTTP/1.1\r\nHost: box.example\r\n");
        for (at, is_public) in [
            ("127.0.0.1", false),
            ("127.1.2.3", false),
            ("::1", false),
            ("::ffff:127.0.0.1", false),
            ("192.0.2.1", true),
        ] {
            let at = at.parse().unwrap();
            assert!(may_ask(at, own) && may_ask(at, other) == is_public, "{at}");
        }
        // The check uses the address of the connection, not that of the listener.
        let listener = bind(parse("0.0.0.0:0", true).unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || serve(&listener, |path| Page::ok("text/plain", path.to_owned())));
        let told = |ip: IpAddr| asked((ip, port).into(), &format!("{other}\r\n"));
        assert!(told(Ipv4Addr::LOCALHOST.into()).starts_with("HTTP/1.1 403 "));
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        // Nothing is sent. A machine without a network has no route to this address.
        if socket.connect("192.0.2.1:9").is_ok() {
            let told = told(socket.local_addr().unwrap().ip());
            assert!(told.starts_with("HTTP/1.1 200 "), "{told}");
        }
    }

    #[test]
    fn address_in_use_is_told_with_its_cure() {
        let listener = bind(parse("0", false).unwrap()).unwrap();
        let told = bind(listener.local_addr().unwrap()).unwrap_err().to_string();
        assert!(told.contains("in use") && told.contains("another port"), "{told}");
    }
}
