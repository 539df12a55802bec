//! Helpers of the tests over sockets: a small server's settings, expected replies, malformed requests.

use std::io::{Read, Write};
use std::net::TcpStream;

use terrace_kv::{Config, Running};
use terrace_testkit::rng::Rng;
use terrace_testkit::wait::wait_until;

pub(crate) fn config() -> Config {
    Config { threads: 2, spare_threads: 2, ..Config::for_memory(1 << 30) }
}

pub(crate) fn expect(stream: &mut impl Read, wanted: &[u8]) {
    let mut got = vec![0; wanted.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(wanted));
}

/// Reads until the other side closes.
pub(crate) fn rest(stream: &mut impl Read) -> String {
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Clients send randomly mangled `requests`, with bytes of `alphabet`. The server still replies to `ping`
/// with `pong`, and keeps nothing of the clients.
pub(crate) fn malformed_requests(
    running: &Running,
    client: impl Fn() -> TcpStream,
    rng: &mut Rng,
    (requests, alphabet): (&[u8], &[u8]),
    (ping, pong): (&[u8], &[u8]),
) {
    let mut steady = client();
    for round in 0..300 {
        let mut bad = client();
        let mut text = requests.repeat(3);
        for _ in 0..1 + rng.index(5) {
            let at = rng.index(text.len());
            match rng.below(3) {
                0 => text[at] = rng.next_u64() as u8,
                1 => drop(text.remove(at)),
                _ => text.insert(at, *rng.pick(alphabet)),
            }
        }
        let pieces = 1 + rng.index(20);
        for piece in text.chunks(text.len().div_ceil(pieces)) {
            if bad.write_all(piece).is_err() {
                break;
            }
        }
        if rng.chance(50) {
            let _ = bad.shutdown(std::net::Shutdown::Write);
            rest(&mut bad);
        }
        if round % 20 == 0 {
            steady.write_all(ping).unwrap();
            expect(&mut steady, pong);
        }
    }
    drop(steady);
    wait_until("all have gone", || running.server().clients.is_empty());
    assert_eq!(running.server().clients.buffers_bytes(), 0);
}
