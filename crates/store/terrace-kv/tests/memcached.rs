//! Tests with memcached clients over sockets and a store in memory: pipelines, mixed protocols, misbehaving
//! clients, limits, syncs.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{config, expect, malformed_requests, rest};
use terrace_kv::keyspace::system_clock;
use terrace_kv::testing::MemoryBlobs;
use terrace_kv::{Config, Durability, Listener, Running, Server};
use terrace_testkit::rng::{Rng, seed};
use terrace_testkit::wait::wait_until;

struct Fixture {
    running: Running,
    blobs: Arc<MemoryBlobs>,
    memcached: SocketAddr,
    resp: SocketAddr,
}

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn start(config: Config) -> std::io::Result<Fixture> {
    let ((tcp, resp), (other, memcached)) = (listen(), listen());
    let blobs = Arc::new(MemoryBlobs::default());
    let server = Arc::new(Server::new(blobs.clone(), config, 16 << 20, system_clock()));
    let listeners = vec![Listener::Tcp(tcp), Listener::Memcached(other)];
    Ok(Fixture { running: terrace_kv::start(server, listeners)?, blobs, memcached, resp })
}

fn stage(config: Config) -> Fixture {
    start(config).unwrap()
}

impl Fixture {
    fn client(&self) -> TcpStream {
        let stream = TcpStream::connect(self.memcached).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }
}

fn ask(stream: &mut TcpStream, text: &str, reply: &str) {
    stream.write_all(text.as_bytes()).unwrap();
    expect(stream, reply.as_bytes());
}

#[test]
fn memcached_pipelines_are_answered_in_order() {
    let stage = stage(config());
    let mut stream = stage.client();
    let requests: String =
        (0..5000).map(|i| format!("set k{i} {i} 0 4\r\nv{:03}\r\nget k{i} x\r\n", i % 1000)).collect();
    let replies: String =
        (0..5000).map(|i| format!("STORED\r\nVALUE k{i} {i} 4\r\nv{:03}\r\nEND\r\n", i % 1000)).collect();
    let mut writer = stream.try_clone().unwrap();
    let sends = std::thread::spawn(move || {
        // In pieces that end anywhere.
        requests.as_bytes().chunks(1009).for_each(|piece| writer.write_all(piece).unwrap());
    });
    expect(&mut stream, replies.as_bytes());
    sends.join().unwrap();
    let mut resp = TcpStream::connect(stage.resp).unwrap();
    ask(&mut resp, "DBSIZE\r\nGET k7\r\n", ":5000\r\n$4\r\nv007\r\n");
    stream.write_all(b"quit\r\nget k1\r\n").unwrap();
    assert_eq!(rest(&mut stream), "");
}

#[test]
fn large_items_come_and_go_whole() {
    let stage = stage(Config { value_bytes_max: 8 << 20, ..config() });
    let mut stream = stage.client();
    let value = Rng::new(7).bytes(8 << 20);
    let mut writer = stream.try_clone().unwrap();
    let sent = value.clone();
    let sends = std::thread::spawn(move || {
        writer.write_all(format!("set k 0 0 {}\r\n", sent.len()).as_bytes()).unwrap();
        writer.write_all(&sent).unwrap();
        writer.write_all(b"\r\nget k\r\n").unwrap();
        // Data above the limit are read to their end, and dropped.
        writer.write_all(format!("set k 0 0 {}\r\n", 100 << 20).as_bytes()).unwrap();
        (0..100).for_each(|_| writer.write_all(&sent[..1 << 20]).unwrap());
        writer.write_all(b"\r\nversion\r\n").unwrap();
    });
    expect(&mut stream, format!("STORED\r\nVALUE k 0 {}\r\n", value.len()).as_bytes());
    let mut got = vec![0; value.len()];
    stream.read_exact(&mut got).unwrap();
    assert!(got == value);
    expect(&mut stream, b"\r\nEND\r\nSERVER_ERROR object too large for cache\r\nVERSION 1.5.22\r\n");
    sends.join().unwrap();
    wait_until("small buffers", || stage.running.server().clients.buffers_bytes() < 1 << 20);
}

#[test]
fn malformed_items_end_at_most_their_connection() {
    let stage = stage(config());
    let rng = &mut Rng::new(seed("malformed_items_end_at_most_their_connection"));
    let requests = b"set k 1 0 5\r\nvalue\r\ngets k l\r\ncas k 1 0 1 5\r\nx\r\nincr k 1 noreply\r\n";
    let kinds: (&[u8], &[u8]) = (requests, b" \r\n-019kx\0\xff");
    malformed_requests(
        &stage.running,
        || stage.client(),
        rng,
        kinds,
        (b"version\r\n", b"VERSION 1.5.22\r\n"),
    );
}

#[test]
fn memcached_clients_have_the_limits_of_others() {
    let stage = stage(Config { clients_max: 2, ..config() });
    let (mut first, mut resp) = (stage.client(), TcpStream::connect(stage.resp).unwrap());
    ask(&mut first, "get k\r\n", "END\r\n");
    ask(&mut resp, "PING\r\n", "+PONG\r\n");
    assert_eq!(rest(&mut stage.client()), "SERVER_ERROR too many open connections\r\n");
    first.write_all(&[b'x'; 4096]).unwrap();
    assert_eq!(rest(&mut first), "CLIENT_ERROR line too long\r\n");
    wait_until("it has gone", || stage.running.server().clients.len() == 1);
    let mut next = stage.client();
    ask(&mut next, "get k\r\n", "END\r\n");
    ask(&mut resp, "CLIENT KILL SKIPME yes\r\n", ":1\r\n");
    assert_eq!(rest(&mut next), "");
}

#[test]
fn items_are_durable_before_the_reply() {
    let stage = stage(Config { durability: Durability::Always, ..config() });
    let mut stream = stage.client();
    ask(&mut stream, "set k 0 0 1\r\nx\r\n", "STORED\r\n");
    assert_eq!(stage.blobs.syncs.load(Ordering::Relaxed), 1);
    ask(&mut stream, "get k\r\nset k 0 0 1 noreply\r\ny\r\n", "VALUE k 0 1\r\nx\r\nEND\r\n");
    wait_until("what is not answered is synced, too", || stage.blobs.syncs.load(Ordering::Relaxed) > 1);
    stage.blobs.sync_fails.store(true, Ordering::Relaxed);
    stream.write_all(b"set k 0 0 1\r\nz\r\n").unwrap();
    assert_eq!(rest(&mut stream), "");
}

#[test]
fn one_of_many_cas_at_a_time_stores() {
    let stage = stage(config());
    ask(&mut stage.client(), "set n 0 0 1\r\n0\r\n", "STORED\r\n");
    let line = |stream: &mut TcpStream| {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            line.push(byte[0]);
        }
        String::from_utf8(line).unwrap().trim_end().to_owned()
    };
    // Each client reads the number and stores the next one, unless another client was faster.
    let count = || {
        let (mut stream, mut stored) = (stage.client(), 0);
        while stored < 300 {
            stream.write_all(b"gets n\r\n").unwrap();
            let unique = line(&mut stream).split(' ').nth(4).unwrap().to_owned();
            let next = line(&mut stream).parse::<u64>().unwrap() + 1;
            assert_eq!(line(&mut stream), "END");
            let request = format!("cas n 0 0 {} {unique}\r\n{next}\r\n", next.to_string().len());
            stream.write_all(request.as_bytes()).unwrap();
            match &*line(&mut stream) {
                "STORED" => stored += 1,
                other => assert_eq!(other, "EXISTS"),
            }
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(count))));
    ask(&mut stage.client(), "get n\r\n", "VALUE n 0 4\r\n1200\r\nEND\r\n");
}

#[test]
fn clients_of_the_binary_protocol_are_closed_at_once() {
    let stage = stage(config());
    for request in [&b"\x80"[..], b"\x80\x0a\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"] {
        let mut stream = stage.client();
        stream.write_all(request).unwrap();
        assert_eq!(rest(&mut stream), "");
    }
    let mut stream = stage.client();
    ask(&mut stream, "set k 0 0 1\r\n", "");
    stream.write_all(b"\x80\r\nget k\r\n").unwrap();
    expect(&mut stream, b"STORED\r\nVALUE k 0 1\r\n\x80\r\nEND\r\n");
}

#[test]
fn password_and_map_keep_memcached_out() {
    let with_password = Config { password: Some("secret".to_owned()), ..config() };
    assert!(start(with_password).is_err());
}
