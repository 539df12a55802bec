//! Tests of the memory of one request beyond its reply: a counting allocator under a server in this process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use terrace_kv::cluster::Cluster;
use terrace_kv::cluster::slot::slot_of;
use terrace_kv::keyspace::system_clock;
use terrace_kv::testing::MemoryBlobs;
use terrace_kv::{Config, Listener, Running, Server};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// Bytes of grown allocations, which may have been copied.
static COPIED: AtomicUsize = AtomicUsize::new(0);

fn grown(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

// SAFETY: all calls are forwarded to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.dealloc(p, layout) }
    }
    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        grown(size.saturating_sub(layout.size()));
        COPIED.fetch_add(layout.size(), Ordering::Relaxed);
        LIVE.fetch_sub(layout.size().saturating_sub(size), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.realloc(p, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Sends requests and a PING. Returns the replies before PING's.
fn ask(stream: &mut TcpStream, requests: &[u8]) -> String {
    const PONG: &str = "+PONG\r\n";
    stream.write_all(requests).unwrap();
    stream.write_all(b"PING\r\n").unwrap();
    let (mut replies, mut buffer) = (String::new(), [0; 4096]);
    while !replies.ends_with(PONG) {
        let bytes = stream.read(&mut buffer).unwrap();
        assert_ne!(bytes, 0, "the server has closed the connection after {replies:?}");
        replies += std::str::from_utf8(&buffer[..bytes]).unwrap();
    }
    replies.truncate(replies.len() - PONG.len());
    replies
}

fn serve(config: Config) -> (Running, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::new(Arc::new(MemoryBlobs::default()), config, 256 << 20, system_clock());
    let running = terrace_kv::start(Arc::new(server), vec![Listener::Tcp(listener)]).unwrap();
    (running, TcpStream::connect(address).unwrap())
}

/// These tests count the allocations of the whole process, so they run one by one.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn long_requests_are_not_copied_with_each_piece() {
    const REQUEST_BYTES: usize = 32 << 20;
    let _alone = ALONE.lock();
    let (_running, mut stream) = serve(Config::for_memory(1 << 30));
    let mut request = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${REQUEST_BYTES}\r\n").into_bytes();
    request.resize(request.len() + REQUEST_BYTES, b'v');
    request.extend_from_slice(b"\r\n");
    let before = COPIED.load(Ordering::Relaxed);
    assert_eq!(ask(&mut stream, &request), "+OK\r\n");
    let copied = COPIED.load(Ordering::Relaxed) - before;
    assert!(copied < 4 * REQUEST_BYTES, "{copied} bytes of buffers that grew");
}

#[test]
fn requests_take_little_memory_beside_their_reply() {
    /// A page of keys, and a reply with room to grow.
    const PEAK_MAX: usize = 10 << 20;
    const KEYS: usize = 4000;
    const STRING: usize = 20_000_000;
    let map = "[[node]]\nhost = \"h1\"\nport = 1\nslots = [\"0-16383\"]";
    let cluster = Some(Cluster::parse(map, "h1", 1).unwrap());
    let config = Config { cluster, buffers_bytes_max: 6 << 20, ..Config::for_memory(1 << 30) };
    let _alone = ALONE.lock();
    let (_running, mut stream) = serve(config);
    let (padding, value) = ("k".repeat(4096), "v".repeat(60_000));
    for i in 0..300 {
        ask(&mut stream, format!("HSET h f{i} {value}\r\nZADD z {i} m{i}\r\n").as_bytes());
    }
    for i in 0..KEYS {
        ask(&mut stream, format!("SET {{t}}{padding}{i} x\r\n").as_bytes());
    }
    let (slot, too_long) = (slot_of(b"t"), "-ERR the reply is longer");
    for (request, reply, kept) in [
        ("HRANDFIELD h -16777215".to_owned(), too_long, 0),
        ("ZRANDMEMBER z -16777215".to_owned(), too_long, 0),
        ("KEYS {t}*".to_owned(), too_long, 0),
        ("SCAN 0 COUNT 4000".to_owned(), too_long, 0),
        (format!("CLUSTER COUNTKEYSINSLOT {slot}"), ":4000\r\n", 0),
        (format!("CLUSTER GETKEYSINSLOT {slot} 4000"), too_long, 0),
        ("HSCAN h 0 NOVALUES".to_owned(), "*2\r\n$", 0),
        (format!("SETRANGE long {STRING} x"), ":20000001\r\n", STRING),
        (format!("SETBIT bits {} 1", 8 * STRING), ":0\r\n", STRING),
    ] {
        let before = LIVE.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        let got = ask(&mut stream, format!("{request}\r\n").as_bytes());
        assert!(got.starts_with(reply), "{request}: {got}");
        let taken = PEAK.load(Ordering::Relaxed) - before;
        assert!(taken < kept + PEAK_MAX, "{request} took {taken} bytes");
    }
    assert_eq!(ask(&mut stream, b"GETRANGE long 19999998 -1\r\n"), "$3\r\n\0\0x\r\n");
}
