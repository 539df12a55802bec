//! memcached clients of a server: items that survive restarts and kills, and a port refused beside a
//! password.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use terrace_testkit::wait::wait_until;

use super::test_server::{TestServer, refused};

/// A client that sends text and reads lines.
struct Client(BufReader<TcpStream>);

impl Client {
    /// Connects once the server answers.
    fn new(port: u16) -> Client {
        let mut client = None;
        wait_until("the server answers a client of memcached", || {
            let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let mut new = Client(BufReader::new(stream));
            let answers = new.try_say("version\r\n").is_ok_and(|line| line.starts_with("VERSION "));
            client = Some(new);
            answers
        });
        client.unwrap()
    }

    fn try_say(&mut self, text: &str) -> std::io::Result<String> {
        self.0.get_mut().write_all(text.as_bytes())?;
        self.line()
    }

    fn line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        match self.0.read_line(&mut line)? {
            0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    /// The first line of the reply.
    fn say(&mut self, text: &str) -> String {
        self.try_say(text).unwrap_or_else(|err| panic!("{text}: {err}"))
    }

    /// Flags, value and unique number of a key.
    fn gets(&mut self, key: &str) -> Option<(u32, String, u64)> {
        let head = self.say(&format!("gets {key}\r\n"));
        if head == "END" {
            return None;
        }
        let words: Vec<&str> = head.split(' ').collect();
        let mut value = vec![0; words[3].parse::<usize>().unwrap() + 2];
        self.0.read_exact(&mut value).unwrap();
        assert_eq!(self.line().unwrap(), "END");
        let value = String::from_utf8(value).unwrap().trim_end().to_owned();
        Some((words[2].parse().unwrap(), value, words[4].parse().unwrap()))
    }
}

/// A port that is free now.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn items_with_flags_and_times_survive_deaths() {
    let (test, port) = (TestServer::new(), free_port());
    let options = ["--sync", "always", "--memcached", &port.to_string()];
    let served = test.serve(&options);
    let mut client = Client::new(port);
    for flags in [0, 5, 65_535, 65_536, u32::MAX] {
        let length = format!("v{flags}").len();
        let set = format!("set k{flags} {flags} 100 {length}\r\nv{flags}\r\n");
        assert_eq!(client.say(&set), "STORED");
    }
    assert_eq!(client.say("set soon 9 1 1\r\nx\r\n"), "STORED");
    let (.., unique) = client.gets("k5").unwrap();
    let check = || {
        let (mut client, mut resp) = (Client::new(port), test.client());
        for flags in [0, 5, 65_535, 65_536, u32::MAX] {
            let (found, value, _) = client.gets(&format!("k{flags}")).unwrap();
            assert_eq!((found, value), (flags, format!("v{flags}")));
            let ttl: u64 = resp.say(&format!("TTL k{flags}")).parse().unwrap();
            assert!((1..=104).contains(&ttl), "{ttl} s");
        }
        // A unique number of an earlier server matches nothing.
        assert_eq!(client.say(&format!("cas k5 5 100 1 {unique}\r\nx\r\n")), "EXISTS");
    };
    served.kill_server();
    check();
    served.kill_all();
    let served = test.serve(&options);
    check();
    wait_until("an item expires", || Client::new(port).gets("soon").is_none());
    served.stop();
    let served = test.serve(&options);
    check();
    served.stop();
}

/// Number of kills in a quick run and in a soak.
fn rounds() -> u64 {
    if std::env::var_os("TERRACE_SOAK").is_some() { 60 } else { 4 }
}

#[test]
fn acknowledged_items_survive_kills_under_load() {
    let (test, port) = (TestServer::new(), free_port());
    let options = ["--sync", "always", "--memcached", &port.to_string()];
    let mut served = test.serve(&options);
    let mut acknowledged = 0_u64;
    for round in 0..rounds() {
        let from = acknowledged;
        let writer = std::thread::spawn(move || {
            let mut client = Client::new(port);
            let mut last = from;
            for n in from + 1.. {
                let text = n.to_string();
                match client.try_say(&format!("set n {} 0 {}\r\n{text}\r\n", n % 100_000, text.len())) {
                    Ok(line) => assert_eq!(line, "STORED"),
                    Err(_) => break,
                }
                last = n;
            }
            last
        });
        let began =
            || Client::new(port).gets("n").is_some_and(|(_, n, _)| n.parse::<u64>().unwrap() > from + 20);
        wait_until("some are written", began);
        let still = if round % 2 == 1 {
            served.kill_all();
            None
        } else {
            served.kill_server();
            Some(served)
        };
        acknowledged = writer.join().unwrap();
        served = still.unwrap_or_else(|| test.serve(&options));
        let (flags, n, _) = Client::new(port).gets("n").unwrap();
        let n: u64 = n.parse().unwrap();
        // The write after it was sent, but not acknowledged.
        assert!((acknowledged..=acknowledged + 1).contains(&n), "{n}, not {acknowledged}, is there");
        assert_eq!(u64::from(flags), n % 100_000);
        acknowledged = n;
    }
    served.stop();
}

#[test]
fn memcached_port_is_refused_beside_a_password() {
    let test = TestServer::new();
    let (dir, unix) = (test.text("keys"), test.text("s"));
    let kv = |more: &[&str], part: &str| {
        refused(&[&["serve", "kv", "--dir", &dir, "--unix", &unix, "--memcached"], more].concat(), part);
    };
    kv(&["1", "--bind", "0.0.0.0"], "no password");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    kv(&[&listener.local_addr().unwrap().port().to_string()], "--memcached");
    std::fs::write(test.path("password"), "secret\n").unwrap();
    kv(&["1", "--password-file", &test.text("password")], "--memcached");
    kv(&["1", "--cluster", &test.text("map")], "--memcached");
}
