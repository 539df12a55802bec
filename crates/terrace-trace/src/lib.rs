//! Traces of page accesses: read as a stream, whatever the format, and terrace's own captures written.
//!
//! ```text
//!   file ─► zstd? ─► Input (256 KiB) ─► u64 · oracle · text · csv · terrace ─► Access, Access, ...
//! ```
//! A trace is never held in memory: what a [`Reader`] needs does not depend on what it reads (300 KiB, and up to
//! 128 MiB inside zstd where the file was compressed with so long a window). What is wrong in a file comes as an
//! [`Error`] that names the file, the place and the cure; nothing a file holds makes a reader panic.
//!
//! | format | content | names |
//! |---|---|---|
//! | `u64` | little-endian 64-bit page keys | `.u64` |
//! | `oracle` | libCacheSim's oracleGeneral: time u32, key u64, size u32, next use i64, little-endian, 24 bytes | `*oracleGeneral*` |
//! | `text` | one key a line | `.txt` |
//! | `csv` | a key in one column ([`Column`]) | `.csv`, `.tsv` |
//! | `terrace` | [`capture`] | by its first bytes |
//!
//! Each of them may be compressed with zstd (known by its first bytes; `.zst` is then taken off the name). Every
//! request is one page: sizes that a format states are not looked at.
#![forbid(unsafe_code)]

mod binary;
pub mod capture;
mod error;
mod input;
mod text;

use std::fs::File;
use std::io::Read;
use std::path::Path;

pub use error::{At, Error};
use input::Input;
pub use text::Column;

/// One access to one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Names the page within the trace. Captures: [`capture::page_key`]. Text that is no number: a hash of it.
    pub key: u64,
    /// A write; false also where the format does not say.
    pub write: bool,
    /// The way it came, where the format says so.
    pub door: Option<Door>,
    /// Milliseconds on the trace's own clock, 0 where there is none.
    pub time_ms: u64,
}

impl Access {
    fn of(key: u64) -> Access {
        Access { key, write: false, door: None, time_ms: 0 }
    }
}

/// The way by which an access came into terrace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Door {
    /// Through the mount.
    Main,
    /// Through the preload library, without a system call.
    Fast,
}

/// How the bytes of a trace are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Little-endian 64-bit keys.
    U64,
    /// libCacheSim's oracleGeneral.
    Oracle,
    /// One key a line.
    Text,
    /// A key in one of several columns.
    Csv,
    /// A capture of terrace.
    Terrace,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 5] = [Format::U64, Format::Oracle, Format::Text, Format::Csv, Format::Terrace];

    /// What users call it.
    pub fn name(self) -> &'static str {
        match self {
            Format::U64 => "u64",
            Format::Oracle => "oracle",
            Format::Text => "text",
            Format::Csv => "csv",
            Format::Terrace => "terrace",
        }
    }

    /// The format called `name`.
    pub fn named(name: &str) -> Option<Format> {
        Format::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Guessed from the content's first bytes, then from the file's name, then from whether it looks like text.
    fn guess(name: &str, head: &[u8]) -> Option<Format> {
        if head.starts_with(&capture::MAGIC) {
            return Some(Format::Terrace);
        }
        let name = name.to_ascii_lowercase();
        let name = name.strip_suffix(".zst").or_else(|| name.strip_suffix(".zstd")).unwrap_or(&name);
        let ends = |suffixes: &[&str]| suffixes.iter().any(|suffix| name.ends_with(suffix));
        if name.contains("oraclegeneral") {
            Some(Format::Oracle)
        } else if ends(&[".u64"]) {
            Some(Format::U64)
        } else if ends(&[".txt"]) {
            Some(Format::Text)
        } else if ends(&[".csv", ".tsv"]) {
            Some(Format::Csv)
        } else {
            text::guess(head)
        }
    }
}

/// What the reader is told beside the file.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The format; `None`: by content and name.
    pub format: Option<Format>,
    /// Where a CSV has its keys; `None`: by its header, or as [`Column`] says.
    pub column: Option<Column>,
}

enum Decoder {
    U64,
    Oracle,
    Text(Vec<u8>),
    Csv(text::Csv),
    Terrace(capture::Decoder),
}

/// A trace being read: an iterator of accesses that ends at the end of the file or after the first error.
pub struct Reader {
    input: Input,
    format: Format,
    decoder: Decoder,
    lost: u64,
    over: bool,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("input", &self.input)
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}

impl Reader {
    /// Opens a file. Fails when it cannot be read, its format is not known, or its beginning is wrong.
    pub fn open(path: &Path, options: &Options) -> Result<Reader, Error> {
        let name = path.display().to_string();
        match File::open(path) {
            Ok(file) => Reader::new(&name, Box::new(file), options),
            Err(e) => {
                Err(Error::new(&name, None, format!("cannot be opened: {e}"), "name a file that can be read"))
            }
        }
    }

    /// Reads any stream; `name` stands in errors and, by its end, for the format.
    pub fn new(name: &str, stream: Box<dyn Read + Send>, options: &Options) -> Result<Reader, Error> {
        let mut input = Input::new(name, stream)?;
        let head = input.peek(input::HEAD)?;
        let Some(format) = options.format.or_else(|| Format::guess(name, head)) else {
            let names = Format::ALL.map(Format::name).join(", ");
            return Err(Error::new(name, None, "the format is not known", &format!("say --format {names}")));
        };
        let decoder = match format {
            Format::U64 => Decoder::U64,
            Format::Oracle => Decoder::Oracle,
            Format::Text => Decoder::Text(Vec::new()),
            Format::Csv => Decoder::Csv(text::Csv::new(&mut input, options.column.as_ref())?),
            Format::Terrace => Decoder::Terrace(capture::Decoder::new(&mut input)?),
        };
        Ok(Reader { input, format, decoder, lost: 0, over: false })
    }

    /// The format it is read as.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Accesses that the records read so far say were lost in the capture.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Bytes read of the (decompressed) content.
    pub fn position(&self) -> u64 {
        self.input.position()
    }

    fn step(&mut self) -> Result<Option<Access>, Error> {
        match &mut self.decoder {
            Decoder::U64 => binary::u64_key(&mut self.input),
            Decoder::Oracle => binary::oracle(&mut self.input),
            Decoder::Text(line) => text::line(&mut self.input, line),
            Decoder::Csv(csv) => csv.row(&mut self.input),
            Decoder::Terrace(decoder) => loop {
                match decoder.record(&mut self.input)? {
                    Some(capture::Record::Access(event)) => return Ok(Some(event.access())),
                    Some(capture::Record::Lost(accesses)) => self.lost = self.lost.saturating_add(accesses),
                    None => return Ok(None),
                }
            },
        }
    }
}

impl Iterator for Reader {
    type Item = Result<Access, Error>;

    fn next(&mut self) -> Option<Result<Access, Error>> {
        if self.over {
            return None;
        }
        let step = self.step().transpose();
        self.over = !matches!(step, Some(Ok(_)));
        step
    }
}
