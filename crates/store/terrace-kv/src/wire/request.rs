//! Requests of Redis' protocol: arrays of bulk strings, or one line of words (inline), as from telnet.
//!
//! A [`Parser`] gets the received, unconsumed bytes of a connection. It keeps its position, so a request in a
//! thousand pieces is parsed once. A [`Malformed`] request never ends the server: it ends its connection,
//! after an error reply.

use super::number::parse_int;

/// Maximum length of an inline request, bytes.
const LINE_MAX: usize = 64 * 1024;
/// Maximum length of a line with an array's or string's length, bytes. It is parsed from its start with each
/// piece received.
const LENGTH_LINE_MAX: usize = 32;
/// Maximum number of arguments before the password.
const ARGUMENTS_MAX_UNAUTHENTICATED: i64 = 10;
/// Maximum length of an argument before the password.
const ARGUMENT_MAX_UNAUTHENTICATED: i64 = 16 * 1024;

/// First bytes of requests in memcached's binary protocol and in TLS. No command begins with them. Such a
/// byte counts as a request of one word. The client is closed, since it waits for a reply in its own
/// protocol.
pub(super) const FOREIGN: [u8; 2] = [MEMCACHED_BINARY, TLS];
/// See [`FOREIGN`].
pub(crate) const MEMCACHED_BINARY: u8 = 0x80;
/// See [`FOREIGN`].
pub(crate) const TLS: u8 = 0x16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) arguments_max: i64,
    /// Length of one argument, bytes.
    pub(crate) argument_bytes_max: i64,
    /// Length of a request, bytes.
    pub(crate) request_bytes_max: usize,
}

/// A malformed request: the text of the error. The connection is closed after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Malformed(pub String);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Minimum number of missing bytes.
    Needs(usize),
    /// The request is complete ([`Parser::take`]), with this length in bytes.
    Complete(usize),
}

/// The arguments of one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Args<'a> {
    bytes: &'a [u8],
    places: &'a [(usize, usize)],
}

impl<'a> Args<'a> {
    /// Number of arguments, including the command's name.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
    /// One argument. The command's name is the first.
    ///
    /// # Panics
    /// The index is out of range.
    pub(crate) fn at(&self, index: usize) -> &'a [u8] {
        let (begin, end) = self.places[index];
        &self.bytes[begin..end]
    }
    /// One argument, if the index is in range.
    pub(crate) fn get(&self, index: usize) -> Option<&'a [u8]> {
        (index < self.len()).then(|| self.at(index))
    }
    /// The arguments behind the first `count`.
    pub(crate) fn after(&self, count: usize) -> Args<'a> {
        Args { bytes: self.bytes, places: &self.places[count.min(self.places.len())..] }
    }
    pub(crate) fn before(&self, count: usize) -> Args<'a> {
        Args { bytes: self.bytes, places: &self.places[..count.min(self.places.len())] }
    }
    pub(crate) fn from(
        &self,
        index: usize,
    ) -> impl DoubleEndedIterator<Item = &'a [u8]> + ExactSizeIterator + use<'a> {
        let (bytes, places) = (self.bytes, &self.places[index.min(self.places.len())..]);
        places.iter().map(move |&(begin, end)| &bytes[begin..end])
    }
}

/// A complete request, without its bytes.
#[derive(Debug, Default)]
pub(crate) struct Request {
    pub(super) places: Vec<(usize, usize)>,
    /// The unescaped words of an inline request.
    inline: Vec<u8>,
    is_inline: bool,
}

impl Request {
    /// The arguments of the request, which is at the start of `bytes`.
    pub(crate) fn args<'a>(&'a self, bytes: &'a [u8]) -> Args<'a> {
        Args { bytes: if self.is_inline { &self.inline } else { bytes }, places: &self.places }
    }

    /// Memory, bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<(usize, usize)>() + self.inline.capacity()
    }

    /// Clears the request, and frees memory that most requests do not need.
    pub(crate) fn clear(&mut self) {
        self.places.clear();
        self.places.shrink_to(PLACES_KEPT_MAX);
        self.inline = Vec::new();
        self.is_inline = false;
    }
}

/// Incremental parser of one connection's requests.
#[derive(Debug)]
pub(crate) struct Parser {
    limits: Limits,
    /// Position of the next unparsed byte, from the request's start.
    at: usize,
    /// Number of missing arguments. None: still unknown.
    left: Option<i64>,
    request: Request,
}

/// Capacity of positions that a cleared request keeps.
const PLACES_KEPT_MAX: usize = 64;

impl Parser {
    pub(crate) fn new(limits: Limits) -> Parser {
        Parser { limits, at: 0, left: None, request: Request::default() }
    }

    /// Swaps the complete request into `request`, and begins a new one with the next bytes.
    pub(crate) fn take(&mut self, request: &mut Request) {
        std::mem::swap(&mut self.request, request);
        self.request.clear();
        (self.at, self.left) = (0, None);
    }

    /// Memory, bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.request.bytes()
    }

    /// Continues with the request at the start of `bytes`, which has all of it received so far. `is_known`:
    /// the client has given the password.
    ///
    /// # Errors
    /// The request is malformed or above a limit.
    pub(crate) fn advance(&mut self, bytes: &[u8], is_known: bool) -> Result<Progress, Malformed> {
        match bytes.first() {
            None => return Ok(Progress::Needs(1)),
            Some(b'*') => {}
            Some(first) if FOREIGN.contains(first) => {
                self.request.inline.push(*first);
                self.request.places.push((0, 1));
                self.request.is_inline = true;
                return Ok(Progress::Complete(1));
            }
            Some(_) => return self.inline(bytes),
        }
        if self.left.is_none() {
            let Some((count, after)) = line_of(bytes, 0, b'*', "mbulk count")? else {
                return Ok(Progress::Needs(1));
            };
            self.left = Some(self.checked_count(count, is_known)?);
            self.at = after;
        }
        while self.left.is_some_and(|left| left > 0) {
            let Some((length, begin)) = line_of(bytes, self.at, b'$', "bulk count")? else {
                return Ok(Progress::Needs(1));
            };
            let end = begin + self.checked_length(length, is_known)?;
            if end + 2 > self.limits.request_bytes_max {
                return Err(malformed("the request is too large"));
            }
            if bytes.len() < end + 2 {
                return Ok(Progress::Needs(end + 2 - bytes.len()));
            }
            self.request.places.push((begin, end));
            self.at = end + 2;
            self.left = self.left.map(|left| left - 1);
        }
        Ok(Progress::Complete(self.at))
    }

    fn checked_count(&self, count: Option<i64>, is_known: bool) -> Result<i64, Malformed> {
        match count {
            Some(count) if count > self.limits.arguments_max => Err(malformed("invalid multibulk length")),
            Some(count) if !is_known && count > ARGUMENTS_MAX_UNAUTHENTICATED => {
                Err(malformed("unauthenticated multibulk length"))
            }
            Some(count) => Ok(count),
            None => Err(malformed("invalid multibulk length")),
        }
    }

    fn checked_length(&self, length: Option<i64>, is_known: bool) -> Result<usize, Malformed> {
        match length {
            Some(length) if !is_known && length > ARGUMENT_MAX_UNAUTHENTICATED => {
                Err(malformed("unauthenticated bulk length"))
            }
            Some(length) if (0..=self.limits.argument_bytes_max).contains(&length) => Ok(length as usize),
            _ => Err(malformed("invalid bulk length")),
        }
    }

    fn inline(&mut self, bytes: &[u8]) -> Result<Progress, Malformed> {
        let line = &bytes[..bytes.len().min(LINE_MAX)];
        let Some(end) = line.iter().skip(self.at).position(|byte| *byte == b'\n').map(|end| end + self.at)
        else {
            self.at = line.len();
            return match bytes.len() >= LINE_MAX {
                true => Err(malformed("too big inline request")),
                false => Ok(Progress::Needs(1)),
            };
        };
        let line = &bytes[..end];
        let Request { places, inline, is_inline } = &mut self.request;
        *is_inline = true;
        split_words(line.strip_suffix(b"\r").unwrap_or(line), inline, places)
            .ok_or_else(|| malformed("unbalanced quotes in request"))?;
        Ok(Progress::Complete(end + 1))
    }
}

/// The number of a line `*N` or `$N` at `at`, and the position behind the line. Inner None: not a number.
/// Outer None: the line is incomplete.
fn line_of(bytes: &[u8], at: usize, kind: u8, name: &str) -> Result<Option<(Option<i64>, usize)>, Malformed> {
    let bytes = bytes.get(at..).unwrap_or_default();
    match bytes.first() {
        None => return Ok(None),
        Some(first) if *first != kind => {
            let (kind, first) = (char::from(kind), char::from(*first));
            return Err(malformed(&format!("expected '{kind}', got '{}'", first.escape_default())));
        }
        Some(_) => {}
    }
    let line = &bytes[..bytes.len().min(LENGTH_LINE_MAX)];
    match line.iter().position(|byte| *byte == b'\r') {
        Some(end) if bytes.len() >= end + 2 => Ok(Some((parse_int(&line[1..end]), at + end + 2))),
        None if bytes.len() >= LENGTH_LINE_MAX => Err(malformed(&format!("too big {name} string"))),
        _ => Ok(None),
    }
}

fn malformed(why: &str) -> Malformed {
    Malformed(format!("Protocol error: {why}"))
}

/// Splits words at spaces; `"..."` with C escapes and `\xHH`, `'...'` with `\'` only. None: a quote is
/// unclosed, or closes within a word.
fn split_words(line: &[u8], words: &mut Vec<u8>, places: &mut Vec<(usize, usize)>) -> Option<()> {
    let mut rest = line;
    loop {
        while let [first, after @ ..] = rest
            && first.is_ascii_whitespace()
        {
            rest = after;
        }
        if rest.is_empty() {
            return Some(());
        }
        let begin = words.len();
        rest = one_word(rest, words)?;
        places.push((begin, words.len()));
    }
}

fn one_word<'a>(mut rest: &'a [u8], words: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        rest = match rest {
            [] => return Some(rest),
            [quote @ (b'"' | b'\''), after @ ..] => {
                let after = quoted(after, *quote, words)?;
                return after.first().is_none_or(u8::is_ascii_whitespace).then_some(after);
            }
            [byte, ..] if byte.is_ascii_whitespace() => return Some(rest),
            [byte, after @ ..] => {
                words.push(*byte);
                after
            }
        };
    }
}

/// Unescapes a quoted word. Returns the text behind it.
fn quoted<'a>(mut rest: &'a [u8], quote: u8, words: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        rest = match rest {
            [] => return None,
            [byte, after @ ..] if *byte == quote => return Some(after),
            [b'\\', b'x', high, low, after @ ..] if quote == b'"' && is_hex(*high) && is_hex(*low) => {
                words.push(hex(*high) * 16 + hex(*low));
                after
            }
            [b'\\', byte, after @ ..] if quote == b'"' => {
                words.push(match byte {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                after
            }
            [b'\\', b'\'', after @ ..] => {
                words.push(b'\'');
                after
            }
            [byte, after @ ..] => {
                words.push(*byte);
                after
            }
        };
    }
}

fn is_hex(byte: u8) -> bool {
    byte.is_ascii_hexdigit()
}

fn hex(byte: u8) -> u8 {
    char::from(byte).to_digit(16).unwrap_or(0) as u8
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
