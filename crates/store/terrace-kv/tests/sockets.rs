//! Tests with Redis clients over sockets and a store in memory: pipelines, misbehaving clients, limits,
//! syncs.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
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
    address: std::net::SocketAddr,
    unix: std::path::PathBuf,
    _dir: tempfile::TempDir,
}

fn stage(config: Config) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let unix = dir.path().join("kv.sock");
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = tcp.local_addr().unwrap();
    let blobs = Arc::new(MemoryBlobs::default());
    let server = Arc::new(Server::new(blobs.clone(), config, 16 << 20, system_clock()));
    let listeners = vec![Listener::Tcp(tcp), Listener::Unix(UnixListener::bind(&unix).unwrap())];
    Fixture { running: terrace_kv::start(server, listeners).unwrap(), blobs, address, unix, _dir: dir }
}

impl Fixture {
    fn tcp(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }
    fn unix(&self) -> UnixStream {
        UnixStream::connect(&self.unix).unwrap()
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let stage = stage(config());
    let (mut tcp, mut unix) = (stage.tcp(), stage.unix());
    let requests: String = (0..5000).map(|i| format!("SET k{i} v{i}\r\nGET k{i}\r\n")).collect();
    let replies: String =
        (0..5000).map(|i| format!("+OK\r\n${}\r\nv{i}\r\n", format!("v{i}").len())).collect();
    let mut writer = tcp.try_clone().unwrap();
    let sends = std::thread::spawn(move || writer.write_all(requests.as_bytes()).unwrap());
    expect(&mut tcp, replies.as_bytes());
    sends.join().unwrap();
    unix.write_all(b"DBSIZE\r\nQUIT\r\n").unwrap();
    assert_eq!(rest(&mut unix), ":5000\r\n+OK\r\n");
}

fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut text = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        text.extend(format!("${}\r\n", word.len()).bytes());
        text.extend_from_slice(word);
        text.extend_from_slice(b"\r\n");
    }
    text
}

fn random_request(rng: &mut Rng) -> Vec<u8> {
    let (key, field) =
        (format!("k{}", rng.index(9)).into_bytes(), format!("f{}", rng.index(400)).into_bytes());
    let bytes = rng.index(100);
    let value = rng.bytes(bytes);
    match rng.below(10) {
        0..2 => request(&[b"SET", &key, &value]),
        2..4 => request(&[b"GET", &key]),
        4..7 => request(&[b"HSET", b"h", &field, &value]),
        7 => request(&[b"HGET", b"h", &field]),
        8 => request(&[b"SELECT", rng.index(2).to_string().as_bytes()]),
        _ => b"INCR n\r\n".to_vec(),
    }
}

#[test]
fn pipelines_in_pieces_are_answered_as_one_by_one() {
    let mut rng = Rng::new(seed("pipelines_in_pieces_are_answered_as_one_by_one"));
    let (single, piped) = (stage(config()), stage(config()));
    let (mut one, mut many) = (single.unix(), piped.unix());
    for _ in 0..60 {
        let requests: Vec<Vec<u8>> = (0..1 + rng.index(60)).map(|_| random_request(&mut rng)).collect();
        let mut replies = Vec::new();
        for request in &requests {
            // The reply of ECHO follows all earlier replies.
            one.write_all(&[request, &b"ECHO end\r\n"[..]].concat()).unwrap();
            let mut reply = Vec::new();
            while !reply.ends_with(b"$3\r\nend\r\n") {
                let mut byte = [0];
                one.read_exact(&mut byte).unwrap();
                reply.push(byte[0]);
            }
            reply.truncate(reply.len() - b"$3\r\nend\r\n".len());
            replies.extend(reply);
        }
        let text = requests.concat();
        let mut at = 0;
        while at < text.len() {
            let piece = (1 + rng.index(2000)).min(text.len() - at);
            many.write_all(&text[at..at + piece]).unwrap();
            at += piece;
        }
        expect(&mut many, &replies);
    }
}

#[test]
fn requests_behind_the_password_have_its_limits() {
    let stage = stage(Config { password: Some("secret".to_owned()), ..config() });
    let mut stream = stage.tcp();
    let value = vec![b'v'; 20_000];
    let text =
        [request(&[b"AUTH", b"secret"]), request(&[b"SET", b"k", &value]), request(&[b"STRLEN", b"k"])];
    stream.write_all(&text.concat()).unwrap();
    expect(&mut stream, b"+OK\r\n+OK\r\n:20000\r\n");
    let mut stranger = stage.tcp();
    stranger.write_all(&[request(&[b"PING"]), request(&[b"SET", b"k", &value])].concat()).unwrap();
    let answers = rest(&mut stranger);
    assert!(answers.starts_with("-NOAUTH") && answers.contains("unauthenticated bulk length"), "{answers}");
}

#[test]
fn requests_of_many_arguments_leave_no_memory() {
    let stage = stage(config());
    let mut stream = stage.tcp();
    let keys: Vec<Vec<u8>> = (0..100_000_u32).map(|i| i.to_string().into_bytes()).collect();
    let words: Vec<&[u8]> = std::iter::once(&b"DEL"[..]).chain(keys.iter().map(|key| &**key)).collect();
    stream.write_all(&request(&words)).unwrap();
    expect(&mut stream, b":0\r\n");
    wait_until("buffers are small again", || stage.running.server().clients.buffers_bytes() < 256 << 10);
}

#[test]
fn large_values_come_and_go_whole() {
    let stage = stage(config());
    let mut stream = stage.tcp();
    let value = Rng::new(7).bytes(20 << 20);
    let mut writer = stream.try_clone().unwrap();
    let sent = value.clone();
    let sends = std::thread::spawn(move || {
        writer.write_all(format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n", sent.len()).as_bytes()).unwrap();
        writer.write_all(&sent).unwrap();
        writer.write_all(b"\r\nGET k\r\n").unwrap();
    });
    expect(&mut stream, format!("+OK\r\n${}\r\n", value.len()).as_bytes());
    let mut got = vec![0; value.len()];
    stream.read_exact(&mut got).unwrap();
    assert!(got == value);
    sends.join().unwrap();
    expect(&mut stream, b"\r\n");
    // The buffers shrink.
    stream.write_all(b"PING\r\n").unwrap();
    expect(&mut stream, b"+PONG\r\n");
    wait_until("small buffers", || stage.running.server().clients.buffers_bytes() < 1 << 20);
}

/// Small buffers: 1 MiB of replies and 1 MiB of requests per client.
fn small_buffers() -> Config {
    Config { buffers_bytes_max: 8 << 20, value_bytes_max: 2 << 20, ..config() }
}

/// Sends the request repeatedly, until the socket stays full or the server closes it. Returns the bytes sent.
fn flood(stream: &mut TcpStream, request: &[u8]) -> usize {
    stream.set_nonblocking(true).unwrap();
    let (mut sent, mut refused) = (0, 0);
    let block = request.repeat(1 + (64 << 10) / request.len());
    while refused < 10 {
        match stream.write(&block[sent % block.len()..]) {
            Ok(bytes) => (sent, refused) = (sent + bytes, 0),
            Err(err) if err.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(20));
                refused += 1;
            }
            Err(_) => break,
        }
    }
    stream.set_nonblocking(false).unwrap();
    sent
}

#[test]
fn client_that_does_not_read_is_not_read_from() {
    let stage = stage(small_buffers());
    let mut stream = stage.tcp();
    // A request about as long as its reply.
    let request = format!("ECHO {}\r\n", "v".repeat(50_000)).into_bytes();
    let sent = flood(&mut stream, &request);
    let buffers = stage.running.server().clients.buffers_bytes();
    assert!(buffers < 6 << 20, "{buffers} bytes");
    // Other clients are served meanwhile, and this one gets all its replies.
    let mut other = stage.tcp();
    other.write_all(b"PING\r\n").unwrap();
    expect(&mut other, b"+PONG\r\n");
    stream.set_nonblocking(false).unwrap();
    let (mut replies, mut buffer) = (0, vec![0; 1 << 16]);
    while replies < sent / request.len() * 50_010 {
        let bytes = stream.read(&mut buffer).unwrap();
        assert!(bytes > 0, "closed after {replies} bytes");
        replies += bytes;
    }
}

/// The replies are a hundred times the server's limit, and arrive as the client reads.
#[test]
fn pipelines_may_be_sent_whole_before_a_reply_is_read() {
    const REQUESTS: usize = 50_000;
    let stage = stage(small_buffers());
    let value = "v".repeat(2048);
    let (mut tcp, mut unix) = (stage.tcp(), stage.unix());
    tcp.write_all(format!("SET k {value}\r\n").as_bytes()).unwrap();
    expect(&mut tcp, b"+OK\r\n");
    let reply = format!("$2048\r\n{value}\r\n");
    unix.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let requests = "GET k\r\n".repeat(REQUESTS);
    tcp.write_all(requests.as_bytes()).unwrap();
    unix.write_all(requests.as_bytes()).unwrap();
    for _ in 0..REQUESTS {
        expect(&mut tcp, reply.as_bytes());
        expect(&mut unix, reply.as_bytes());
    }
    wait_until("small buffers", || stage.running.server().clients.buffers_bytes() < 1 << 20);
    assert_eq!(stage.running.server().counters.closed.load(Ordering::Relaxed), 0);
}

/// Clients that send requests and read no replies are closed when other clients need their buffers' memory.
#[test]
fn clients_that_do_not_read_end_no_others() {
    let stage = stage(small_buffers());
    let mut good = stage.tcp();
    let value = "v".repeat(1 << 20);
    let (set, reply) =
        (request(&[b"SET", b"k", value.as_bytes()]), format!("${}\r\n{value}\r\n", value.len()));
    let mut is_served = || {
        good.write_all(&set).unwrap();
        expect(&mut good, b"+OK\r\n");
        good.write_all(b"GET k\r\n").unwrap();
        expect(&mut good, reply.as_bytes());
    };
    is_served();
    let mut stuck: Vec<TcpStream> = (0..12).map(|_| stage.tcp()).collect();
    for stream in &mut stuck {
        flood(stream, b"GET k\r\n");
        is_served();
    }
    (0..10).for_each(|_| is_served());
    let closed = stage.running.server().counters.closed.load(Ordering::Relaxed);
    assert!((1..=12).contains(&closed), "{closed} were closed");
    wait_until("they have gone", || stage.running.server().clients.buffers_bytes() <= 8 << 20);
}

#[test]
fn client_that_sends_and_never_reads_is_closed_in_the_end() {
    let stage = stage(Config { stuck_max: Duration::from_millis(300), ..small_buffers() });
    let (mut idle, mut slow, mut stuck) = (stage.tcp(), stage.tcp(), stage.tcp());
    let request = format!("ECHO {}\r\n", "v".repeat(50_000)).into_bytes();
    // This client has replies to read, and sends nothing.
    slow.write_all(&request.repeat(20)).unwrap();
    flood(&mut stuck, &request);
    wait_until("it is closed", || stage.running.server().counters.closed.load(Ordering::Relaxed) == 1);
    wait_until("it has gone", || stage.running.server().clients.len() == 2);
    idle.write_all(b"PING\r\n").unwrap();
    expect(&mut idle, b"+PONG\r\n");
    let reply = format!("$50000\r\n{}\r\n", "v".repeat(50_000)).repeat(20);
    expect(&mut slow, reply.as_bytes());
}

/// Clients of other protocols wait for a reply in their own.
#[test]
fn other_protocols_are_closed_at_their_first_byte() {
    let stage = stage(config());
    for first in [0x80, 0x16] {
        let mut stream = stage.tcp();
        stream.write_all(b"PING\r\n").unwrap();
        stream.write_all(&[first]).unwrap();
        assert_eq!(rest(&mut stream), "+PONG\r\n");
    }
    let mut stream = stage.tcp();
    stream.write_all(&request(&[b"SET", b"k", b"\x80\x16"])).unwrap();
    expect(&mut stream, b"+OK\r\n");
}

#[test]
fn malformed_input_ends_its_connection_only() {
    let stage = stage(Config { password: None, ..config() });
    let rng = &mut Rng::new(seed("malformed_input_ends_its_connection_only"));
    let requests = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nvalue\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
    let kinds: (&[u8], &[u8]) = (requests, b"*$\r\n-019\"'\\x \0\xff");
    malformed_requests(&stage.running, || stage.tcp(), rng, kinds, (b"PING\r\n", b"+PONG\r\n"));
}

#[test]
fn protocol_errors_are_reported_before_the_end() {
    let stage = stage(config());
    let mut stream = stage.tcp();
    stream.write_all(b"PING\r\n*1\r\n$-5\r\nPING\r\n").unwrap();
    assert_eq!(rest(&mut stream), "+PONG\r\n-ERR Protocol error: invalid bulk length\r\n");
}

#[test]
fn clients_have_a_largest_number() {
    let stage = stage(Config { clients_max: 3, ..config() });
    let mut streams: Vec<TcpStream> = (0..3).map(|_| stage.tcp()).collect();
    for stream in &mut streams {
        stream.write_all(b"PING\r\n").unwrap();
        expect(stream, b"+PONG\r\n");
    }
    assert_eq!(rest(&mut stage.tcp()), "-ERR max number of clients reached\r\n");
    streams.pop();
    wait_until("one has gone", || stage.running.server().clients.len() == 2);
    let mut next = stage.tcp();
    next.write_all(b"PING\r\n").unwrap();
    expect(&mut next, b"+PONG\r\n");
}

#[test]
fn buffers_have_a_largest_sum() {
    let stage = stage(Config { buffers_bytes_max: 4 << 20, value_bytes_max: 2 << 20, ..config() });
    // Values without their last byte.
    let mut hoarders: Vec<TcpStream> = (0..8).map(|_| stage.tcp()).collect();
    let begin = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n", 1 << 20);
    for stream in &mut hoarders {
        let _ = stream.write_all(begin.as_bytes()).and_then(|()| stream.write_all(&vec![b'x'; 1 << 20]));
    }
    wait_until("some are closed", || stage.running.server().counters.closed.load(Ordering::Relaxed) > 0);
    let mut other = stage.tcp();
    other.write_all(b"PING\r\n").unwrap();
    expect(&mut other, b"+PONG\r\n");
    // A client above the limit is closed shortly after it was counted.
    wait_until("the sum is within its limit", || stage.running.server().clients.buffers_bytes() <= 4 << 20);
}

#[test]
fn clients_are_killed_by_others() {
    let stage = stage(config());
    let (mut victim, mut killer) = (stage.tcp(), stage.tcp());
    victim.write_all(b"CLIENT ID\r\n").unwrap();
    let mut id = [0; 4];
    victim.read_exact(&mut id).unwrap();
    let id = String::from_utf8_lossy(&id).trim_matches([':', '\r', '\n']).to_owned();
    killer.write_all(format!("CLIENT KILL ID {id}\r\n").as_bytes()).unwrap();
    expect(&mut killer, b":1\r\n");
    assert_eq!(rest(&mut victim), "");
}

#[test]
fn replies_wait_for_the_sync_of_their_round() {
    let stage = stage(Config { durability: Durability::Always, ..config() });
    let mut stream = stage.tcp();
    let requests: String = (0..1000).map(|i| format!("SET k{i} v\r\n")).collect();
    stream.write_all(requests.as_bytes()).unwrap();
    expect(&mut stream, &b"+OK\r\n".repeat(1000));
    let syncs = stage.blobs.syncs.load(Ordering::Relaxed);
    assert!((1..500).contains(&syncs), "{syncs} syncs for 1000 writes of one client");
    stream.write_all(b"GET k1\r\n").unwrap();
    expect(&mut stream, b"$1\r\nv\r\n");
    assert_eq!(stage.blobs.syncs.load(Ordering::Relaxed), syncs, "reads need none");
}

#[test]
fn writes_that_cannot_be_synced_are_not_acknowledged() {
    let stage = stage(Config { durability: Durability::Always, ..config() });
    let (mut writer, mut reader) = (stage.tcp(), stage.tcp());
    stage.blobs.sync_fails.store(true, Ordering::Relaxed);
    writer.write_all(b"SET k v\r\n").unwrap();
    assert_eq!(rest(&mut writer), "");
    reader.write_all(b"PING\r\n").unwrap();
    expect(&mut reader, b"+PONG\r\n");
}

#[test]
fn writes_that_may_be_lost_are_refused() {
    let stage = stage(Config { durability: Durability::EverySecond, ..config() });
    let mut stream = stage.tcp();
    stage.blobs.sync_fails.store(true, Ordering::Relaxed);
    stream.write_all(b"SET k v\r\nDEL other\r\n").unwrap();
    let refused = b"-MISCONF the change may be lost: the disk is broken\r\n";
    // The requests arrive in one turn or in two.
    expect(&mut stream, &refused.repeat(2));
    stream.write_all(b"GET k\r\n").unwrap();
    expect(&mut stream, b"$1\r\nv\r\n");
    stage.blobs.sync_fails.store(false, Ordering::Relaxed);
    stream.write_all(b"SET k w\r\nGET k\r\n").unwrap();
    expect(&mut stream, b"+OK\r\n$1\r\nw\r\n");
}

#[test]
fn concurrent_increments_are_all_counted() {
    let stage = stage(config());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut stream = stage.unix();
                for _ in 0..500 {
                    stream.write_all(b"INCR n\r\nHINCRBY h f 1\r\n").unwrap();
                    let mut reply = Vec::new();
                    while reply.iter().filter(|byte| **byte == b'\n').count() < 2 {
                        let mut buffer = [0; 64];
                        let bytes = stream.read(&mut buffer).unwrap();
                        reply.extend_from_slice(&buffer[..bytes]);
                    }
                }
            });
        }
    });
    let mut stream = stage.tcp();
    stream.write_all(b"GET n\r\nHGET h f\r\n").unwrap();
    expect(&mut stream, b"$4\r\n2000\r\n$4\r\n2000\r\n");
}
