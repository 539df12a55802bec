//! Tests of the parser of Redis' requests: whole requests, requests in pieces, malformed ones.

use super::*;
use terrace_testkit::rng::{Rng, seed};

const LIMITS: Limits =
    Limits { arguments_max: 1024, argument_bytes_max: 1 << 20, request_bytes_max: 1 << 21 };

fn parse(bytes: &[u8]) -> Result<Option<Vec<Vec<u8>>>, String> {
    let mut parser = Parser::new(LIMITS);
    match parser.advance(bytes, true) {
        Ok(Progress::Complete(_)) => Ok(Some(taken(&mut parser, bytes))),
        Ok(Progress::Needs(_)) => Ok(None),
        Err(Malformed(why)) => Err(why),
    }
}

fn taken(parser: &mut Parser, bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut request = Request::default();
    parser.take(&mut request);
    request.args(bytes).from(0).map(<[u8]>::to_vec).collect()
}

fn words(text: &str) -> Option<Vec<String>> {
    let words = parse(text.as_bytes()).unwrap()?;
    Some(words.into_iter().map(|word| String::from_utf8_lossy(&word).into_owned()).collect())
}

#[test]
fn arrays_and_lines_are_requests() {
    assert_eq!(words("*2\r\n$3\r\nGET\r\n$0\r\n\r\n").unwrap(), ["GET", ""]);
    assert_eq!(words("GET  a\r\n").unwrap(), ["GET", "a"]);
    assert_eq!(words("SET a \"x \\x41\\n\\\"\" 'it\\'s'\n").unwrap(), ["SET", "a", "x A\n\"", "it's"]);
    assert_eq!(words("\r\n").unwrap(), [""; 0]);
    assert_eq!(words("*-10\r\n").unwrap(), [""; 0]);
    assert_eq!(words("*1\r\n$4\r\nPIN"), None);
    assert_eq!(words("PING"), None);
}

#[test]
fn invalid_request_is_named() {
    for (text, why) in [
        ("*3000000000\r\n", "invalid multibulk length"),
        ("*x\r\n", "invalid multibulk length"),
        ("*1\r\nfoo\r\n", "expected '$', got 'f'"),
        ("*1\r\n$-1\r\n", "invalid bulk length"),
        ("*1\r\n$2000000000\r\n", "invalid bulk length"),
        ("*1\r\n$blabla\r\n", "invalid bulk length"),
        ("GET \"a\n", "unbalanced quotes in request"),
        ("GET \"a\"b\n", "unbalanced quotes in request"),
    ] {
        assert_eq!(parse(text.as_bytes()), Err(format!("Protocol error: {why}")), "{text:?}");
    }
    let long = |first: &str| parse(&[first.as_bytes(), &vec![b'1'; LINE_MAX]].concat()).unwrap_err();
    assert!(long("*").contains("too big mbulk count string"));
    assert!(long("*1\r\n$").contains("too big bulk count string"));
    assert!(long("x").contains("too big inline request"));
}

#[test]
fn requests_before_the_password_are_short() {
    let stranger = |text: &str| Parser::new(LIMITS).advance(text.as_bytes(), false);
    assert!(stranger("*11\r\n").unwrap_err().0.contains("unauthenticated multibulk length"));
    assert!(stranger("*2\r\n$20000\r\n").unwrap_err().0.contains("unauthenticated bulk length"));
    assert_eq!(stranger("*2\r\n$4\r\nAUTH\r\n$2\r\n"), Ok(Progress::Needs(4)));
}

#[test]
fn request_of_many_arguments_has_a_limit() {
    let mut text = b"*1000\r\n".to_vec();
    for _ in 0..3 {
        text.extend(format!("${}\r\n", 1 << 20).bytes());
        text.extend(vec![b'x'; 1 << 20]);
        text.extend(b"\r\n");
    }
    assert_eq!(parse(&text), Err("Protocol error: the request is too large".to_owned()));
}

fn random_request(rng: &mut Rng) -> (Vec<u8>, Vec<Vec<u8>>) {
    let words: Vec<Vec<u8>> = (0..1 + rng.index(5))
        .map(|_| {
            let length = rng.index(40);
            rng.bytes(length)
        })
        .collect();
    let mut text = format!("*{}\r\n", words.len()).into_bytes();
    for word in &words {
        text.extend(format!("${}\r\n", word.len()).bytes());
        text.extend(word);
        text.extend(b"\r\n");
    }
    (text, words)
}

#[test]
fn pieces_are_read_as_the_whole() {
    let mut rng = Rng::new(seed("pieces_are_read_as_the_whole"));
    for _ in 0..500 {
        let requests: Vec<_> = (0..1 + rng.index(4)).map(|_| random_request(&mut rng)).collect();
        let text: Vec<u8> = requests.iter().flat_map(|(text, _)| text.clone()).collect();
        let (mut parser, mut begin, mut come, mut seen) = (Parser::new(LIMITS), 0, 0, Vec::new());
        while begin < text.len() {
            match parser.advance(&text[begin..come], true).unwrap() {
                Progress::Needs(bytes) => {
                    assert!(bytes > 0 && come < text.len(), "needs more than there is");
                    come += 1 + rng.index(9).min(text.len() - come - 1);
                }
                Progress::Complete(bytes) => {
                    seen.push(taken(&mut parser, &text[begin..come]));
                    begin += bytes;
                }
            }
        }
        assert_eq!(seen, requests.into_iter().map(|(_, words)| words).collect::<Vec<_>>());
    }
}

#[test]
fn damaged_requests_do_not_end_the_parser() {
    let mut rng = Rng::new(seed("damaged_requests_do_not_end_the_parser"));
    for _ in 0..20_000 {
        let (mut text, _) = random_request(&mut rng);
        for _ in 0..1 + rng.index(4) {
            let at = rng.index(text.len());
            match rng.below(3) {
                0 => text[at] = rng.next_u64() as u8,
                1 => text.truncate(at + 1),
                _ => text.insert(at, *rng.pick(b"*$\r\n-0159\"'\\x ")),
            }
        }
        let (mut parser, mut begin) = (Parser::new(LIMITS), 0);
        while let Ok(Progress::Complete(bytes)) = parser.advance(&text[begin..], rng.chance(50)) {
            assert!(bytes > 0);
            let _ = taken(&mut parser, &text[begin..]);
            begin += bytes;
        }
    }
}
