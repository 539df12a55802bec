//! Metrics over HTTP: a server's answers, checked by two parsers. One is this crate's, the other Prometheus'
//! own where it is installed.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::exposition::{self, Families};

/// Time limit of an answer, longer than any restart of the daemon.
const WITHIN: Duration = Duration::from_secs(30);

/// Header and body of an answer.
///
/// # Panics
/// If there is none.
#[track_caller]
pub fn get(address: &str, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(WITHIN)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer has a head");
    (head.to_owned(), body.to_owned())
}

/// The metrics at an address.
///
/// # Panics
/// If there are none, or a parser finds a fault.
#[track_caller]
pub fn scrape(address: &str) -> Families {
    let (head, body) = get(address, "/metrics");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    check(&body)
}

/// Parses a page of metrics.
///
/// # Panics
/// If a parser finds a fault.
#[track_caller]
pub fn check(page: &str) -> Families {
    promtool_agrees(page);
    exposition::parse(page).unwrap_or_else(|why| panic!("{why}\n{page}"))
}

/// Checks the page with promtool.
#[track_caller]
fn promtool_agrees(page: &str) {
    let mut check = Command::new("promtool");
    check.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut check) = check.spawn() else { return };
    check.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = check.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success() && said.is_empty(), "{}", String::from_utf8_lossy(&said));
}
