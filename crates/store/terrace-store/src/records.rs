//! Reader of a record log.

use crate::log::Position;
use crate::record::{self, HEADER, Header, Record};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes of one read.
const CHUNK: u64 = 1 << 20;

/// A reader of the records of a log.
#[derive(Debug)]
pub(crate) struct Records<'a> {
    file: &'a File,
    generation: u64,
    position: Position,
    buffer: Vec<u8>,
    /// The next record begins here in the buffer.
    at: usize,
    is_end: bool,
}

impl<'a> Records<'a> {
    /// From the first record.
    pub(crate) fn new(file: &'a File, header: &Header) -> Records<'a> {
        Records::from(file, header.generation, Position { at: HEADER as u64, number: header.first })
    }

    pub(crate) fn from(file: &'a File, generation: u64, position: Position) -> Records<'a> {
        Records { file, generation, position, buffer: Vec::new(), at: 0, is_end: false }
    }

    /// Position of the next record.
    pub(crate) fn position(&self) -> Position {
        self.position
    }

    /// The next record and its number. None: the end of the log.
    pub(crate) fn next(&mut self) -> io::Result<Option<(u64, Record<'_>)>> {
        let len = loop {
            match record::decode(&self.buffer[self.at..], self.generation, self.position.number) {
                Some((_, body)) => break body.end,
                None if self.is_end || self.buffer.len() - self.at >= record::BODY_MAX + record::PREFIX => {
                    return Ok(None);
                }
                None => self.fill()?,
            }
        };
        let (begin, number) = (self.at, self.position.number);
        self.at += len;
        self.position.at += len as u64;
        self.position.number += 1;
        let record = record::parse(&self.buffer[begin + record::PREFIX..begin + len]);
        Ok(record.map(|record| (number, record)))
    }

    fn fill(&mut self) -> io::Result<()> {
        self.buffer.drain(..self.at);
        self.at = 0;
        let have = self.buffer.len();
        let rest = self.file.metadata()?.len().saturating_sub(self.position.at + have as u64);
        self.buffer.resize(have + rest.min(CHUNK) as usize, 0);
        let n = read_full(self.file, &mut self.buffer[have..], self.position.at + have as u64)?;
        self.buffer.truncate(have + n);
        self.is_end = n == 0;
        Ok(())
    }
}

/// Reads up to the end of the file or of the buffer. Returns the length.
pub(crate) fn read_full(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], at + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}
