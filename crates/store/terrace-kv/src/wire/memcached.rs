//! memcached's text protocol: a line of words. In storage commands a data block follows.
//!
//! ```text
//! set KEY FLAGS EXPTIME BYTES [noreply]\r\n            get KEY...\r\n
//! DATA\r\n
//! ```
//! Source: `doc/protocol.txt` of memcached. A parsed request has the positions of its words, like one of
//! Redis' protocol. A storage command has a fixed layout: the words, then `noreply` or nothing, then the
//! data. A request may lack its data: they were above the limit, or had a wrong terminator. Its line shows
//! the reason. Rejected data are dropped as they arrive.

use memchr::memchr;

use super::number::digits;
use super::request::{FOREIGN, Limits, Malformed, Progress, Request};

/// Maximum length of a line, bytes.
const LINE_MAX: usize = 2048;
/// Maximum length of a line with many keys, bytes.
const MANY_KEYS_MAX: usize = 1 << 20;
/// Maximum length of a key, bytes.
pub(crate) const KEY_MAX: usize = 250;
/// Maximum length of a data block in a line, bytes.
const BLOCK_MAX: u64 = i32::MAX as u64 - 2;
/// Index of the word with the data's length.
const LENGTH_AT: usize = 4;

/// Number of words in a storage command's line, without `noreply`. 0: another command.
pub(crate) fn words_before_data(name: &[u8]) -> usize {
    match name {
        b"set" | b"add" | b"replace" | b"append" | b"prepend" => 5,
        b"cas" => 6,
        _ => 0,
    }
}

/// Whether a word is a valid key.
pub(crate) fn is_key(word: &[u8]) -> bool {
    // Checks all bytes without a branch, so that the compiler vectorizes the loop.
    let is_bad = |is_bad: bool, byte: &u8| is_bad | (*byte <= b' ') | (*byte == 0x7f);
    (1..=KEY_MAX).contains(&word.len()) && !word.iter().fold(false, is_bad)
}

pub(crate) fn unsigned(word: &[u8]) -> Option<u64> {
    digits(word).and_then(|value| u64::try_from(value).ok())
}

pub(crate) fn signed(word: &[u8]) -> Option<i64> {
    let value = match word {
        [b'-', rest @ ..] => -digits(rest)?,
        word => digits(word)?,
    };
    i64::try_from(value).ok()
}

/// Parses a time in seconds. Times are signed 32-bit numbers, and some clients send a negative one as
/// unsigned.
pub(crate) fn seconds_of(word: &[u8]) -> Option<i64> {
    signed(word).map(|seconds| u32::try_from(seconds).map_or(seconds, |bits| i64::from(bits.cast_signed())))
}

/// Parses the length of a data block.
pub(crate) fn length(word: &[u8]) -> Option<u64> {
    unsigned(word).filter(|length| *length <= BLOCK_MAX)
}

/// A data block being received.
#[derive(Debug, Clone, Copy)]
struct Block {
    begin: usize,
    end: usize,
}

/// Incremental parser of one connection's requests.
#[derive(Debug)]
pub(crate) struct Parser {
    limits: Limits,
    /// Bytes of the line already searched for its end.
    searched: usize,
    block: Option<Block>,
    /// Bytes still to be dropped.
    unwanted: u64,
    request: Request,
}

impl Parser {
    pub(crate) fn new(limits: Limits) -> Parser {
        Parser { limits, searched: 0, block: None, unwanted: 0, request: Request::default() }
    }

    /// Like [`super::request::Parser::take`].
    pub(crate) fn take(&mut self, request: &mut Request) {
        std::mem::swap(&mut self.request, request);
        self.request.clear();
        (self.searched, self.block) = (0, None);
    }

    /// Memory, bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.request.bytes()
    }

    /// Continues with the request at the start of `bytes`. Dropped bytes count as a request without words.
    ///
    /// # Errors
    /// The line is too long.
    pub(crate) fn advance(&mut self, bytes: &[u8]) -> Result<Progress, Malformed> {
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

    /// Position of the line feed. None: not received yet.
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

    /// Handles a complete line. `after`: the position behind it.
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
            // Too few words show the command that the line is wrong.
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

/// Data length of a meta command (`ms key LENGTH ...`, or `ms key SLENGTH ...` in old versions). Meta
/// commands are not supported, and their data must not be parsed as commands.
fn meta_length(word: &[u8]) -> Option<u64> {
    length(word.strip_prefix(b"S").unwrap_or(word))
}

fn takes_many_keys(line: &[u8]) -> bool {
    line.starts_with(b"get") || line.starts_with(b"gat")
}

fn split(line: &[u8], places: &mut Vec<(usize, usize)>) {
    let mut begin = 0;
    // Words are too short for a vectorized search.
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
