//! Tests of the parser of memcached's requests: whole requests, requests in pieces, malformed ones.

use super::*;
use terrace_testkit::rng::{Rng, seed};

const VALUE_MAX: i64 = 1000;
const LIMITS: Limits =
    Limits { arguments_max: 1024, argument_bytes_max: VALUE_MAX, request_bytes_max: 1 << 20 };

type Words = Vec<Vec<u8>>;

/// Parses bytes that arrive in pieces ending at `ends`. Returns the requests, and the final error.
fn requests(bytes: &[u8], ends: impl IntoIterator<Item = usize>) -> (Vec<Words>, Option<String>) {
    let (mut parser, mut begin, mut all) = (Parser::new(LIMITS), 0, Vec::new());
    for end in ends.into_iter().chain([bytes.len()]) {
        loop {
            let rest = &bytes[begin..end];
            match parser.advance(rest) {
                Ok(Progress::Needs(more)) => {
                    assert!(more > 0 && (rest.len() < 4096 || more < 2 * VALUE_MAX as usize));
                    break;
                }
                Ok(Progress::Complete(length)) => {
                    assert!(length > 0 && length <= rest.len());
                    let mut request = Request::default();
                    parser.take(&mut request);
                    let words: Words = request.args(rest).from(0).map(<[u8]>::to_vec).collect();
                    if !words.is_empty() {
                        all.push(words);
                    }
                    begin += length;
                }
                Err(Malformed(why)) => return (all, Some(why)),
            }
        }
    }
    (all, None)
}

fn words(text: &str) -> Vec<String> {
    let (all, error) = requests(text.as_bytes(), []);
    assert_eq!(error, None);
    let text = |words: Words| String::from_utf8_lossy(&words.join(&b'|')).into_owned();
    all.into_iter().map(text).collect()
}

#[test]
fn lines_and_data_are_requests() {
    assert_eq!(words("get a\r\nget  b c \nquit\r\n"), ["get|a", "get|b|c", "quit"]);
    assert_eq!(words("set k 1 2 3\r\na\r\n\r\nget k\r\n"), ["set|k|1|2|3||a\r\n", "get|k"]);
    assert_eq!(words("set k 1 2 0 noreply\r\n\r\nget k\r\n"), ["set|k|1|2|0|noreply|", "get|k"]);
    assert_eq!(words("cas k 1 2 1 99\r\nx\r\n"), ["cas|k|1|2|1|99||x"]);
    assert_eq!(words("\r\n \r\nget a\r\n"), ["get|a"]);
    assert_eq!(words("set k 0 0 3\r\nab"), [""; 0]);
    assert_eq!(words("get a"), [""; 0]);
}

#[test]
fn data_that_cannot_be_stored_are_dropped() {
    let large = "x".repeat(2000);
    // Data too large, without words, or without length: the data are not parsed as commands.
    assert_eq!(words(&format!("set k 0 0 2000\r\n{large}\r\nget k\r\n")), ["set|k|0|0|2000|", "get|k"]);
    assert_eq!(words("cas k 0 0 5 \r\nget x\r\nget k\r\n"), ["cas|k|0|0", "get|k"]);
    assert_eq!(words("set k 0 0 5 noreply more\r\nget x\r\nget k\r\n"), ["set|k|0|0", "get|k"]);
    for length in ["-1", "x", "2147483647", "99999999999999999999999999999999999"] {
        let line = format!("set k 0 0 {length}");
        assert_eq!(words(&format!("{line}\r\nget k\r\n")), [line.replace(' ', "|") + "|", "get|k".into()]);
    }
    // A command of later versions.
    for line in ["ms k 5 T0", "ms k T0 S5", "ms k 5"] {
        let text = format!("{line}\r\nget x\r\nget k\r\n");
        assert_eq!(words(&text), [line.replace(' ', "|"), "get|k".to_owned()]);
    }
    // A wrong terminator.
    assert_eq!(words("set k 0 0 1\r\nabc\r\nget k\r\n"), ["set|k|0|0|1|", "get|k"]);
}

#[test]
fn dropped_data_need_no_memory() {
    let mut parser = Parser::new(LIMITS);
    let mut request = Request::default();
    let line = b"set k 0 0 1000000000\r\n";
    assert_eq!(parser.advance(line).unwrap(), Progress::Complete(line.len()));
    parser.take(&mut request);
    let piece = vec![b'\n'; 1 << 20];
    let mut left = 1_000_000_002_usize;
    while left > 0 {
        let now = left.min(piece.len());
        assert_eq!(parser.advance(&piece).unwrap(), Progress::Complete(now));
        parser.take(&mut request);
        assert!(request.args(&piece).is_empty() && parser.bytes() < 4096);
        left -= now;
    }
    assert_eq!(parser.advance(b"quit\r\n").unwrap(), Progress::Complete(6));
}

#[test]
fn lines_have_a_longest_length() {
    let long =
        |begin: &str, bytes: usize| requests(format!("{begin}{}", " x".repeat(bytes / 2)).as_bytes(), []);
    let refused = Some("CLIENT_ERROR line too long".to_owned());
    assert_eq!(long("set", LINE_MAX), (vec![], refused.clone()));
    assert_eq!(long("get", MANY_KEYS_MAX), (vec![], refused));
    assert_eq!(long("gets", MANY_KEYS_MAX / 2), (vec![], None));
}

#[test]
fn keys_and_numbers_have_their_ranges() {
    let long = [b'k'; KEY_MAX + 1];
    assert!(is_key(b"k") && is_key(&long[1..]) && is_key("sch\u{f6}n".as_bytes()));
    assert!(!is_key(b"") && !is_key(&long) && !is_key(b"a\tb") && !is_key(b"\0") && !is_key(b"\x7f"));
    assert_eq!(unsigned(b"18446744073709551615"), Some(u64::MAX));
    assert_eq!((unsigned(b"18446744073709551616"), unsigned(b""), unsigned(b"+1")), (None, None, None));
    assert_eq!((signed(b"-9223372036854775808"), signed(b"007")), (Some(i64::MIN), Some(7)));
    assert_eq!((signed(b"9223372036854775808"), signed(b"-"), signed(b"--1")), (None, None, None));
    assert_eq!((length(b"2147483645"), length(b"2147483646"), length(b"-1")), (Some(BLOCK_MAX), None, None));
}

/// Commands with everything that may follow them, some of it mangled.
fn random_text(rng: &mut Rng) -> Vec<u8> {
    let mut text = Vec::new();
    for _ in 0..1 + rng.index(20) {
        let name =
            *rng.pick(&["get", "gets", "set", "add", "cas", "append", "incr", "gat", "x", "flush_all"]);
        text.extend(name.bytes());
        for _ in 0..rng.index(8) {
            let word =
                *rng.pick(&[" k", " 0", " 1", " 12", " 3", " -1", " noreply", "  ", " 1100", " 4294967296"]);
            text.extend(word.bytes());
        }
        text.extend(rng.pick(&["\r\n", "\n", "\r\n\r\n", "\r\nabc\r\n", "\r\nabcdefghijkl\r\n"]).bytes());
        if rng.chance(10) {
            let bytes = rng.index(1200);
            text.extend(rng.bytes(bytes));
        }
    }
    for _ in 0..rng.index(4) {
        let at = rng.index(text.len());
        match rng.below(3) {
            0 => text[at] = rng.next_u64() as u8,
            1 => drop(text.remove(at)),
            _ => text.insert(at, *rng.pick(b" \r\n-019\0\xff")),
        }
    }
    text
}

#[test]
fn pieces_are_read_as_the_whole() {
    let mut rng = Rng::new(seed("memcached_pieces_are_read_as_the_whole"));
    let rounds = if std::env::var_os("TERRACE_SOAK").is_some() { 100_000 } else { 2_000 };
    for _ in 0..rounds {
        let text = random_text(&mut rng);
        let whole = requests(&text, []);
        assert_eq!(
            requests(&text, 0..text.len()),
            whole,
            "a byte at a time: {:?}",
            text.escape_ascii().to_string()
        );
        let at = rng.index(text.len() + 1);
        assert_eq!(requests(&text, [at]), whole, "in two at {at}: {:?}", text.escape_ascii().to_string());
    }
}
