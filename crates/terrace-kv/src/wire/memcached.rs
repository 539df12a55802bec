//! memcached's text protocol: a line of words, and for commands that store something a block of data behind it.
//!
//! ```text
//! set KEY FLAGS EXPTIME BYTES [noreply]\r\n            get KEY...\r\n
//! DATA\r\n
//! ```
//! The source is `doc/protocol.txt` of memcached. A request becomes the places of its words, as one of Redis' protocol does. Of a command that stores they are
//! always the same: the words, then the one behind them (`noreply`, or nothing), then the data. Where the data are missing the line says why: they are longer than permitted, or did not end
//! as they must. Data that nobody will use are dropped as they come.

use memchr::memchr;

use super::number::digits;
use super::request::{FOREIGN, Limits, Malformed, Progress, Request};

/// Longest line, bytes.
const LINE_MAX: usize = 2048;
/// Longest line of a command that takes many keys, bytes.
const MANY_KEYS_MAX: usize = 1 << 20;
/// Longest key, bytes.
pub const KEY_MAX: usize = 250;
/// Longest block of data that a line can name, bytes.
const BLOCK_MAX: u64 = i32::MAX as u64 - 2;
/// The word in the line that is the length of the data.
const LENGTH_AT: usize = 4;

/// Words in the line of a command that stores something, without `noreply`; 0: the command stores nothing.
pub fn words_before_data(name: &[u8]) -> usize {
    match name {
        b"set" | b"add" | b"replace" | b"append" | b"prepend" => 5,
        b"cas" => 6,
        _ => 0,
    }
}

/// Whether a word can be a key.
pub fn is_key(word: &[u8]) -> bool {
    // All of them, so that the processor looks at many at a time.
    let is_bad = |is_bad: bool, byte: &u8| is_bad | (*byte <= b' ') | (*byte == 0x7f);
    (1..=KEY_MAX).contains(&word.len()) && !word.iter().fold(false, is_bad)
}

/// A number without sign.
pub fn unsigned(word: &[u8]) -> Option<u64> {
    digits(word).and_then(|value| u64::try_from(value).ok())
}

/// A number that may be negative.
pub fn signed(word: &[u8]) -> Option<i64> {
    let value = match word {
        [b'-', rest @ ..] => -digits(rest)?,
        word => digits(word)?,
    };
    i64::try_from(value).ok()
}

/// A time, seconds. Times have 32 bits with a sign: some clients send a negative one as its 32 bits without a sign.
pub fn seconds_of(word: &[u8]) -> Option<i64> {
    signed(word).map(|seconds| u32::try_from(seconds).map_or(seconds, |bits| i64::from(bits.cast_signed())))
}

/// The length of a block of data.
pub fn length(word: &[u8]) -> Option<u64> {
    unsigned(word).filter(|length| *length <= BLOCK_MAX)
}

/// A block of data that is coming.
#[derive(Debug, Clone, Copy)]
struct Block {
    begin: usize,
    end: usize,
}

/// Reads one connection's requests, one after the other.
#[derive(Debug)]
pub struct Parser {
    limits: Limits,
    /// Bytes of the line in which its end was looked for.
    searched: usize,
    block: Option<Block>,
    /// Bytes still to come that are dropped.
    unwanted: u64,
    request: Request,
}

impl Parser {
    /// One for a new connection.
    pub fn new(limits: Limits) -> Parser {
        Parser { limits, searched: 0, block: None, unwanted: 0, request: Request::default() }
    }

    /// As [`super::request::Parser::take`].
    pub fn take(&mut self, request: &mut Request) {
        std::mem::swap(&mut self.request, request);
        self.request.clear();
        (self.searched, self.block) = (0, None);
    }

    /// Memory that it keeps, bytes.
    pub fn bytes(&self) -> usize {
        self.request.bytes()
    }

    /// Goes on with the request that begins with `bytes`. Bytes that are dropped are a request without words.
    ///
    /// # Errors
    /// A line is longer than permitted.
    pub fn advance(&mut self, bytes: &[u8]) -> Result<Progress, Malformed> {
        if bytes.is_empty() {
            return Ok(Progress::Needs(1));
        }
        if self.unwanted > 0 {
            let dropped = self.unwanted.min(bytes.len() as u64);
            self.unwanted -= dropped;
            return Ok(Progress::Complete(dropped as usize));
        }
        if let Some(block) = self.block {
            return Ok(self.data(bytes, block));
        }
        if FOREIGN.contains(&bytes[0]) {
            self.request.places.push((0, 1));
            return Ok(Progress::Complete(1));
        }
        let Some(end) = self.end_of_line(bytes)? else { return Ok(Progress::Needs(1)) };
        let line = &bytes[..end];
        split(line.strip_suffix(b"\r").unwrap_or(line), &mut self.request.places);
        Ok(self.line(bytes, end + 1))
    }

    /// Where the line feed is; none: it has not come.
    fn end_of_line(&mut self, bytes: &[u8]) -> Result<Option<usize>, Malformed> {
        let max = if takes_many_keys(bytes) { MANY_KEYS_MAX } else { LINE_MAX };
        let searched = bytes.get(self.searched..bytes.len().min(max)).unwrap_or_default();
        match memchr(b'\n', searched) {
            Some(at) => Ok(Some(self.searched + at)),
            None if bytes.len() >= max => Err(Malformed("CLIENT_ERROR line too long".to_owned())),
            None => {
                self.searched = bytes.len();
                Ok(None)
            }
        }
    }

    /// A line has come; what follows begins at `after`.
    fn line(&mut self, bytes: &[u8], after: usize) -> Progress {
        let args = self.request.args(bytes);
        let (words, count) = (args.get(0).map_or(0, words_before_data), args.len());
        let length = args.get(LENGTH_AT).filter(|_| words > 0).and_then(length);
        if let (Some(b"ms"), Some(length)) = (args.get(0), args.from(2).find_map(meta_length)) {
            self.unwanted = length + 2;
        }
        if words == 0 || count <= LENGTH_AT {
            return Progress::Complete(after);
        }
        if count == words {
            self.request.places.push((after, after));
        }
        let is_whole = (words..=words + 1).contains(&count);
        if !is_whole {
            // The command sees that words are missing.
            self.request.places.truncate(LENGTH_AT);
        }
        match length {
            Some(length) if is_whole && length <= self.limits.argument_bytes_max as u64 => {
                let block = Block { begin: after, end: after + length as usize };
                self.block = Some(block);
                self.data(bytes, block)
            }
            Some(length) => {
                self.unwanted = length + 2;
                Progress::Complete(after)
            }
            None => Progress::Complete(after),
        }
    }

    fn data(&mut self, bytes: &[u8], Block { begin, end }: Block) -> Progress {
        let Some(terminator) = bytes.get(end..end + 2) else {
            return Progress::Needs(end + 2 - bytes.len());
        };
        if terminator == b"\r\n" {
            self.request.places.push((begin, end));
        }
        Progress::Complete(end + 2)
    }
}

/// The length of the data of a meta command, `ms key LENGTH ...` or once `ms key SLENGTH ...`, which is not there: its data are no commands.
fn meta_length(word: &[u8]) -> Option<u64> {
    length(word.strip_prefix(b"S").unwrap_or(word))
}

fn takes_many_keys(line: &[u8]) -> bool {
    line.starts_with(b"get") || line.starts_with(b"gat")
}

fn split(line: &[u8], places: &mut Vec<(usize, usize)>) {
    let mut begin = 0;
    // Words are too short for a search of many bytes at a time.
    for (end, byte) in line.iter().chain(b" ").enumerate() {
        if *byte == b' ' {
            if end > begin {
                places.push((begin, end));
            }
            begin = end + 1;
        }
    }
}

#[cfg(test)]
#[path = "memcached_tests.rs"]
mod tests;
