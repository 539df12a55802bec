//! terrace's own format: accesses of a live mount, in one to some fifteen bytes each.
//!
//! # Format, version 1
//! All numbers are little-endian; *varint* is LEB128 (seven bits a byte, the lowest first, the top bit says that
//! more follow, at most ten bytes), *zigzag* a varint of `(n << 1) ^ (n >> 63)`.
//!
//! | header, 32 bytes | |
//! |---|---|
//! | 0..8 | [`MAGIC`] |
//! | 8..10 | version, 1; a reader refuses others |
//! | 10..12 | length of the header in bytes, at least 32; what is beyond 32 is passed over |
//! | 12..16 | bytes of a page |
//! | 16..24 | start of the capture, milliseconds since 1970 |
//! | 24..28 | milliseconds of a tick, not 0 |
//! | 28..32 | 0 |
//!
//! Records follow to the end of the file. The low two bits of a record's first byte say what it is:
//!
//! | low bits | record | the other bits, and what follows |
//! |---|---|---|
//! | 0 | access | bit 2: write; bit 3: fast door; bits 4-7: step |
//! | 1 | loss | 0; varint: accesses that were not recorded, between the records before and after |
//! | 2 | time | 0; varint: ticks since the last time record, or since the start |
//!
//! Step 0 to 13: the same object as the last access, so many pages further on. 14: the same object; zigzag: pages
//! further on. 15: another object; zigzag: its number less the last one's; varint: page index. Before the first
//! access object and page are 0, and sums wrap at 64 bits. So a sequential read takes one byte a page.
//!
//! Records are written whole, in batches; a capture that was killed ends between two of them, and one cut by other
//! means is read up to the cut, where the error says how to repair it.

use std::io::{self, Write};

use crate::error::Error;
use crate::input::Input;
use crate::{Access, Door};

/// The first bytes of a capture. The first is not text, the last tells a file mangled as text.
pub const MAGIC: [u8; 8] = *b"\x89TRACE\r\n";
/// The version written.
pub const VERSION: u16 = 1;

const HEADER: usize = 32;
/// A record is no longer: its first byte, two varints.
const RECORD_MAX: usize = 21;
const WRITE: u8 = 1 << 2;
const FAST: u8 = 1 << 3;
const STEP_MAX: u64 = 13;
const MOVE: u8 = 14;
const OBJECT: u8 = 15;
const ACCESS: u8 = 0;
const LOSS: u8 = 1;
const TIME: u8 = 2;
/// Bytes gathered before they are written.
const BATCH: usize = 64 << 10;

/// What the head of a capture says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Start of the capture, milliseconds since 1970.
    pub start_ms: u64,
    /// Milliseconds of a tick: how coarse times are. Not 0.
    pub tick_ms: u32,
}

impl Default for Header {
    /// Pages of 4 KiB, ticks of 10 ms, start unknown.
    fn default() -> Header {
        Header { page_bytes: 4096, start_ms: 0, tick_ms: 10 }
    }
}

/// One access, as captures record it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The object's number (the inode number on the mount).
    pub object: u64,
    /// Page index in it.
    pub page: u64,
    /// A write.
    pub write: bool,
    /// The way it came.
    pub door: Door,
    /// Milliseconds since the start of the capture. Recorded in whole ticks; a time before the last one's counts as
    /// the last one's.
    pub time_ms: u64,
}

impl Event {
    /// As all formats have it.
    pub fn access(&self) -> Access {
        let key = page_key(self.object, self.page);
        Access { key, write: self.write, door: Some(self.door), time_ms: self.time_ms }
    }
}

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// One access.
    Access(Event),
    /// So many accesses are missing here.
    Lost(u64),
}

/// One number for a page: the object's, mixed, plus the page index, so that neighbours stay neighbours and objects
/// practically never meet.
pub fn page_key(object: u64, page: u64) -> u64 {
    mix(object).wrapping_add(page)
}

/// SplitMix64's finaliser, a bijection.
pub(crate) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// What writer and reader both remember from record to record.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    object: u64,
    page: u64,
    tick: u64,
}

/// Writes a capture. Bytes are gathered and written in batches of whole records; call [`Writer::flush`] at the end
/// and whenever the file is to be up to date (dropping the writer loses what was not flushed).
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    batch: Vec<u8>,
    last: Last,
    tick_ms: u64,
    bytes: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a capture (nothing is written before the first batch is full, or flushed).
    ///
    /// # Panics
    /// When a tick has no length.
    pub fn new(out: W, header: &Header) -> Writer<W> {
        assert!(header.tick_ms > 0, "a tick has a length");
        let mut batch = Vec::with_capacity(BATCH + RECORD_MAX);
        batch.extend_from_slice(&MAGIC);
        batch.extend_from_slice(&VERSION.to_le_bytes());
        batch.extend_from_slice(&(HEADER as u16).to_le_bytes());
        batch.extend_from_slice(&header.page_bytes.to_le_bytes());
        batch.extend_from_slice(&header.start_ms.to_le_bytes());
        batch.extend_from_slice(&header.tick_ms.to_le_bytes());
        batch.extend_from_slice(&[0; 4]);
        Writer { out, batch, last: Last::default(), tick_ms: u64::from(header.tick_ms), bytes: 0 }
    }

    /// Records an access. Fails only when a batch cannot be written; that batch is then lost.
    pub fn access(&mut self, event: &Event) -> io::Result<()> {
        let tick = event.time_ms / self.tick_ms;
        if tick > self.last.tick {
            self.batch.push(TIME);
            varint(&mut self.batch, tick - self.last.tick);
            self.last.tick = tick;
        }
        let flags = if event.write { WRITE } else { 0 } | if event.door == Door::Fast { FAST } else { 0 };
        let step = event.page.wrapping_sub(self.last.page);
        if event.object != self.last.object {
            self.batch.push(ACCESS | flags | OBJECT << 4);
            varint(&mut self.batch, zigzag(event.object.wrapping_sub(self.last.object)));
            varint(&mut self.batch, event.page);
        } else if step <= STEP_MAX {
            self.batch.push(ACCESS | flags | (step as u8) << 4);
        } else {
            self.batch.push(ACCESS | flags | MOVE << 4);
            varint(&mut self.batch, zigzag(step));
        }
        (self.last.object, self.last.page) = (event.object, event.page);
        self.flush_over(BATCH)
    }

    /// Records that so many accesses were not recorded here; none: nothing.
    pub fn lost(&mut self, accesses: u64) -> io::Result<()> {
        if accesses > 0 {
            self.batch.push(LOSS);
            varint(&mut self.batch, accesses);
        }
        self.flush_over(BATCH)
    }

    /// Bytes of the capture so far, written or gathered.
    pub fn bytes(&self) -> u64 {
        self.bytes + self.batch.len() as u64
    }

    /// Writes all that was gathered.
    pub fn flush(&mut self) -> io::Result<()> {
        self.flush_over(0)?;
        self.out.flush()
    }

    fn flush_over(&mut self, limit: usize) -> io::Result<()> {
        if self.batch.len() < limit.max(1) {
            return Ok(());
        }
        let written = self.out.write_all(&self.batch);
        self.bytes += self.batch.len() as u64;
        self.batch.clear();
        written
    }

    /// Flushes, and gives the sink back.
    pub fn finish(mut self) -> io::Result<W> {
        self.flush()?;
        Ok(self.out)
    }
}

fn zigzag(difference: u64) -> u64 {
    let n = difference as i64;
    ((n << 1) ^ (n >> 63)) as u64
}

fn unzigzag(n: u64) -> u64 {
    (n >> 1) ^ (n & 1).wrapping_neg()
}

fn varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Reads a varint off the front of `bytes`.
fn read_varint(bytes: &mut &[u8]) -> Result<u64, Broken> {
    let mut n = 0u64;
    for i in 0..10 {
        let (&byte, rest) = bytes.split_first().ok_or(Broken::Cut)?;
        *bytes = rest;
        n |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            return if i == 9 && byte > 1 {
                Err(Broken::Wrong("a number of more than 64 bits"))
            } else {
                Ok(n)
            };
        }
    }
    Err(Broken::Wrong("a number without an end"))
}

/// Why a record cannot be read.
enum Broken {
    Cut,
    Wrong(&'static str),
}

/// Reads the records of a capture.
#[derive(Debug)]
pub(crate) struct Decoder {
    header: Header,
    last: Last,
}

impl Decoder {
    pub(crate) fn new(input: &mut Input) -> Result<Decoder, Error> {
        let bytes = input.peek(HEADER)?;
        let Ok(bytes) = <[u8; HEADER]>::try_from(bytes) else {
            let fault = format!("{} bytes, a capture's header has {HEADER}", bytes.len());
            return Err(input.error(
                None,
                fault,
                "nothing was captured, or the file is cut short: capture again",
            ));
        };
        if !bytes.starts_with(&MAGIC) {
            return Err(input.error(None, "not a capture of terrace", "say what it is with --format"));
        }
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        if u16_at(8) != VERSION {
            let fault = format!("a capture of version {}, this program reads {VERSION}", u16_at(8));
            return Err(input.error(None, fault, "read it with the terrace that wrote it, or a later one"));
        }
        let header = Header { page_bytes: u32_at(12), start_ms: u64_at(16), tick_ms: u32_at(24) };
        let length = usize::from(u16_at(10));
        if length < HEADER || header.tick_ms == 0 || input.peek(length)?.len() < length {
            return Err(input.error(None, "the header is damaged", "capture again"));
        }
        input.consume(length);
        Ok(Decoder { header, last: Last::default() })
    }

    pub(crate) fn header(&self) -> Header {
        self.header
    }

    /// The next access or loss; `None` at the end.
    pub(crate) fn record(&mut self, input: &mut Input) -> Result<Option<Record>, Error> {
        loop {
            let bytes = input.peek(RECORD_MAX)?;
            if bytes.is_empty() {
                return Ok(None);
            }
            let mut rest = bytes;
            let parsed = self.parse(&mut rest);
            let taken = bytes.len() - rest.len();
            match parsed {
                Ok(record) => {
                    input.consume(taken);
                    if record.is_some() {
                        return Ok(record);
                    }
                }
                Err(Broken::Cut) => {
                    let cure = format!("`truncate -s {}` keeps the whole records before", input.position());
                    return Err(input.error(input.here(), "the last record is cut short", &cure));
                }
                Err(Broken::Wrong(fault)) => return Err(input.error(input.here(), fault, "capture again")),
            }
        }
    }

    /// One record; `None`: it only moved the clock.
    fn parse(&mut self, bytes: &mut &[u8]) -> Result<Option<Record>, Broken> {
        let (&first, rest) = bytes.split_first().ok_or(Broken::Cut)?;
        *bytes = rest;
        match (first & 3, first >> 2) {
            (ACCESS, _) => self.parse_access(first, bytes).map(|event| Some(Record::Access(event))),
            (LOSS, 0) => Ok(Some(Record::Lost(read_varint(bytes)?))),
            (TIME, 0) => {
                self.last.tick = self.last.tick.saturating_add(read_varint(bytes)?);
                Ok(None)
            }
            _ => Err(Broken::Wrong("not a record")),
        }
    }

    fn parse_access(&mut self, first: u8, bytes: &mut &[u8]) -> Result<Event, Broken> {
        let (object, page) = match first >> 4 {
            OBJECT => {
                let object = self.last.object.wrapping_add(unzigzag(read_varint(bytes)?));
                (object, read_varint(bytes)?)
            }
            MOVE => (self.last.object, self.last.page.wrapping_add(unzigzag(read_varint(bytes)?))),
            step => (self.last.object, self.last.page.wrapping_add(u64::from(step))),
        };
        (self.last.object, self.last.page) = (object, page);
        let door = if first & FAST != 0 { Door::Fast } else { Door::Main };
        let time_ms = self.last.tick.saturating_mul(u64::from(self.header.tick_ms));
        Ok(Event { object, page, write: first & WRITE != 0, door, time_ms })
    }
}

/// A capture being read record by record: an iterator that ends at the end or after the first error.
#[derive(Debug)]
pub struct Reader {
    input: Input,
    decoder: Decoder,
    over: bool,
}

impl Reader {
    /// Reads a stream, compressed with zstd or not; `name` stands in errors. Fails when it does not begin as a
    /// capture does.
    pub fn new(name: &str, stream: Box<dyn io::Read + Send>) -> Result<Reader, Error> {
        let mut input = Input::new(name, stream)?;
        let decoder = Decoder::new(&mut input)?;
        Ok(Reader { input, decoder, over: false })
    }

    /// What its head says.
    pub fn header(&self) -> Header {
        self.decoder.header()
    }
}

impl Iterator for Reader {
    type Item = Result<Record, Error>;

    fn next(&mut self) -> Option<Result<Record, Error>> {
        if self.over {
            return None;
        }
        let record = self.decoder.record(&mut self.input).transpose();
        self.over = !matches!(record, Some(Ok(_)));
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(object: u64, page: u64) -> Event {
        Event { object, page, write: false, door: Door::Main, time_ms: 0 }
    }

    fn read(bytes: Vec<u8>) -> Vec<Result<Record, Error>> {
        Reader::new("t", Box::new(io::Cursor::new(bytes))).unwrap().collect()
    }

    /// The bytes are the format: a change of them needs a new version.
    #[test]
    fn bytes_are_as_documented() {
        let header = Header { page_bytes: 4096, start_ms: 0x0102_0304, tick_ms: 10 };
        let mut writer = Writer::new(Vec::new(), &header);
        writer.access(&event(7, 0)).unwrap();
        writer.access(&Event { write: true, door: Door::Fast, time_ms: 29, ..event(7, 1) }).unwrap();
        writer.access(&event(7, 0)).unwrap();
        writer.lost(300).unwrap();
        writer.lost(0).unwrap();
        writer.access(&event(5, 200)).unwrap();
        let bytes = writer.finish().unwrap();
        let head = b"\x89TRACE\r\n\x01\0\x20\0\0\x10\0\0\x04\x03\x02\x01\0\0\0\0\x0a\0\0\0\0\0\0\0";
        assert_eq!(&bytes[..32], head);
        let records = [0xf0, 14, 0, 2, 2, 0x1c, 0xe0, 1, 1, 0xac, 2, 0xf0, 3, 0xc8, 1];
        assert_eq!(bytes[32..], records);
    }

    #[test]
    fn a_sequential_read_takes_one_byte_a_page() {
        let mut writer = Writer::new(Vec::new(), &Header::default());
        for page in 0..10_000 {
            writer.access(&event(0, page)).unwrap();
        }
        assert_eq!(writer.bytes(), 32 + 10_000);
        let bytes = writer.finish().unwrap();
        assert_eq!(bytes.len(), 32 + 10_000);
        assert_eq!(read(bytes).len(), 10_000);
    }

    #[test]
    fn what_is_cut_or_wrong_is_said_with_its_place() {
        let mut writer = Writer::new(Vec::new(), &Header::default());
        writer.access(&event(0, 3)).unwrap();
        writer.access(&event(1 << 40, 3)).unwrap();
        let bytes = writer.finish().unwrap();
        let cut = read(bytes[..bytes.len() - 1].to_vec());
        assert_eq!(cut.len(), 2);
        let error = cut[1].as_ref().unwrap_err().to_string();
        assert_eq!(
            error,
            "t: at byte 33: the last record is cut short (`truncate -s 33` keeps the whole records before)"
        );
        let mut unknown = bytes.clone();
        unknown.push(3);
        assert!(read(unknown)[2].as_ref().unwrap_err().to_string().contains("not a record"));
        let mut long = bytes.clone();
        long.push(LOSS);
        long.extend([0xff; 12]);
        assert!(read(long)[2].as_ref().unwrap_err().to_string().contains("without an end"));
        let mut later = bytes.clone();
        later[8] = 2;
        let error = Reader::new("t", Box::new(io::Cursor::new(later))).unwrap_err();
        assert!(error.to_string().contains("version 2"), "{error}");
    }
}
