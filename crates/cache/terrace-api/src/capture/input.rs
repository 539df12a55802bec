//! The content of a trace file, decompressed if necessary, with a look-ahead window of 256 KiB.

use std::fmt;
use std::io::{BufReader, Read};

use super::error::{At, Error};

/// Bytes that determine the format.
pub(super) const HEAD: usize = 4096;
/// Bytes in the window, more than the longest record.
pub(super) const WINDOW: usize = 256 << 10;
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];
const COMPRESSED: usize = 128 << 10;

pub(super) struct Input {
    name: String,
    stream: Box<dyn Read + Send>,
    compressed: bool,
    window: Box<[u8]>,
    start: usize,
    end: usize,
    ended: bool,
    /// Offset of `window[start]` in the content.
    position: u64,
    /// Lines before `window[start]`; counted by readers of text.
    pub(super) lines: u64,
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Input")
            .field("name", &self.name)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

impl Input {
    pub(super) fn new(name: &str, stream: Box<dyn Read + Send>) -> Result<Input, Error> {
        let window = vec![0; WINDOW].into_boxed_slice();
        let mut input = Input {
            name: name.into(),
            stream,
            compressed: false,
            window,
            start: 0,
            end: 0,
            ended: false,
            position: 0,
            lines: 0,
        };
        if input.peek(4)?.starts_with(&ZSTD_MAGIC) {
            input.decompress()?;
        }
        Ok(input)
    }

    /// Inserts a decoder between stream and window, at the start of the stream.
    fn decompress(&mut self) -> Result<(), Error> {
        let begun = std::io::Cursor::new(self.window[self.start..self.end].to_vec());
        let rest = std::mem::replace(&mut self.stream, Box::new(std::io::empty()));
        let whole = BufReader::with_capacity(COMPRESSED, begun.chain(rest));
        let decoder = zstd::stream::read::Decoder::with_buffer(whole)
            .map_err(|e| self.error(None, format!("zstd cannot start: {e}"), "free some memory"))?;
        self.stream = Box::new(decoder);
        (self.compressed, self.start, self.end, self.ended) = (true, 0, 0, false);
        Ok(())
    }

    /// The next `want` bytes (at most [`WINDOW`]), fewer only at the end, without consuming them.
    pub(super) fn peek(&mut self, want: usize) -> Result<&[u8], Error> {
        if self.end - self.start < want {
            self.fill(want)?;
        }
        Ok(&self.window[self.start..self.end.min(self.start + want)])
    }

    /// The whole window, at least one byte unless at the end.
    pub(super) fn window(&mut self) -> Result<&[u8], Error> {
        if self.start == self.end {
            self.fill(1)?;
        }
        Ok(&self.window[self.start..self.end])
    }

    fn fill(&mut self, want: usize) -> Result<(), Error> {
        assert!(want <= WINDOW, "no record is longer than the window");
        self.window.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        while self.end < want && !self.ended {
            match self.stream.read(&mut self.window[self.end..]) {
                Ok(0) => self.ended = true,
                Ok(n) => self.end += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.unreadable(&e)),
            }
        }
        Ok(())
    }

    fn unreadable(&self, e: &std::io::Error) -> Error {
        let at = Some(At::Byte(self.position + (self.end - self.start) as u64));
        let cure = match (self.compressed, e.kind()) {
            (false, _) => "see whether the device can be read",
            (true, std::io::ErrorKind::UnexpectedEof) => "the file is cut short: get it again",
            (true, _) => {
                "`zstd -t` tells whether the file is damaged; `zstd -d --long=31` unpacks longer windows"
            }
        };
        self.error(at, format!("cannot be {}: {e}", if self.compressed { "unpacked" } else { "read" }), cure)
    }

    /// Consumes `n` bytes that were peeked at.
    pub(super) fn consume(&mut self, n: usize) {
        self.start += n;
        self.position += n as u64;
        assert!(self.start <= self.end, "only what was looked at can be taken");
    }

    pub(super) fn position(&self) -> u64 {
        self.position
    }

    pub(super) fn here(&self) -> Option<At> {
        Some(At::Byte(self.position))
    }

    pub(super) fn error(&self, at: Option<At>, fault: impl Into<String>, cure: &str) -> Error {
        Error::new(&self.name, at, fault, cure)
    }
}
