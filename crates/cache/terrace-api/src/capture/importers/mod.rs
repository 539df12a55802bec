//! Reader of a trace in one of six formats: it detects the format, and iterates over the page accesses.

mod binary;
mod msr;
mod text;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::capture::access::Access;
use crate::capture::error::Error;
use crate::capture::format::{MAGIC, Record};
use crate::capture::input::{HEAD, Input};
use crate::capture::reader::Decoder as Capture;
pub use text::Column;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Format of a trace.
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
    /// Disk requests, as recorded by MSR Cambridge.
    Msr,
    /// A capture of terrace.
    Terrace,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 6] =
        [Format::U64, Format::Oracle, Format::Text, Format::Csv, Format::Msr, Format::Terrace];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Format::U64 => "u64",
            Format::Oracle => "oracle",
            Format::Text => "text",
            Format::Csv => "csv",
            Format::Msr => "msr",
            Format::Terrace => "terrace",
        }
    }

    /// The format with this name.
    pub fn named(name: &str) -> Option<Format> {
        Format::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Guesses the format: by the first bytes, then by the file's name, then by whether the content is text.
    fn guess(name: &str, head: &[u8], column: Option<&Column>) -> Option<Format> {
        if head.starts_with(&MAGIC) {
            return Some(Format::Terrace);
        }
        // An explicit column excludes the MSR format.
        if column.is_none() && msr::begins(head) {
            return Some(Format::Msr);
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
            Format::guess_text(head)
        }
    }

    /// Text or CSV, if `head` is text at all.
    fn guess_text(head: &[u8]) -> Option<Format> {
        let columns = text::has_columns(head)?;
        Some(if columns { Format::Csv } else { Format::Text })
    }
}

/// Options of the reader.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The format; `None`: detect it by content and name.
    pub format: Option<Format>,
    /// Column of a CSV's keys; `None`: by its header, or as in [`Column`].
    pub column: Option<Column>,
}

enum Decoder {
    U64,
    Oracle,
    Text(Vec<u8>),
    Csv(text::Csv),
    Msr(msr::Msr),
    Terrace(Capture),
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
    /// Opens a file. Fails if it cannot be read, its format is unknown, or its beginning is invalid.
    pub fn open(path: &Path, options: &Options) -> Result<Reader, Error> {
        let name = path.display().to_string();
        match File::open(path) {
            Ok(file) => Reader::new(&name, Box::new(file), options),
            Err(e) => {
                Err(Error::new(&name, None, format!("cannot be opened: {e}"), "name a file that can be read"))
            }
        }
    }

    /// Reads any stream. `name` is for errors, and its extension for the format.
    pub fn new(name: &str, stream: Box<dyn Read + Send>, options: &Options) -> Result<Reader, Error> {
        let mut input = Input::new(name, stream)?;
        // Windows programs write a byte-order mark before text.
        if input
            .peek(HEAD)?
            .strip_prefix(BYTE_ORDER_MARK)
            .is_some_and(|rest| text::has_columns(rest).is_some())
        {
            input.consume(BYTE_ORDER_MARK.len());
        }
        let head = input.peek(HEAD)?;
        let guess = || Format::guess(name, head, options.column.as_ref());
        let Some(format) = options.format.or_else(guess) else {
            let names = Format::ALL.map(Format::name).join(", ");
            return Err(Error::new(name, None, "the format is not known", &format!("say --format {names}")));
        };
        let decoder = match format {
            Format::U64 => Decoder::U64,
            Format::Oracle => Decoder::Oracle,
            Format::Text => Decoder::Text(Vec::new()),
            Format::Csv => Decoder::Csv(text::Csv::new(&mut input, options.column.as_ref())?),
            Format::Msr => Decoder::Msr(msr::Msr::default()),
            Format::Terrace => Decoder::Terrace(Capture::new(&mut input)?),
        };
        Ok(Reader { input, format, decoder, lost: 0, over: false })
    }

    /// The detected format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Accesses lost in the capture, by the records read so far.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Position in the (decompressed) content, bytes.
    pub fn position(&self) -> u64 {
        self.input.position()
    }

    fn step(&mut self) -> Result<Option<Access>, Error> {
        match &mut self.decoder {
            Decoder::U64 => binary::u64_key(&mut self.input),
            Decoder::Oracle => binary::oracle(&mut self.input),
            Decoder::Text(line) => text::line(&mut self.input, line),
            Decoder::Csv(csv) => csv.row(&mut self.input),
            Decoder::Msr(msr) => msr.access(&mut self.input),
            Decoder::Terrace(decoder) => loop {
                match decoder.record(&mut self.input)? {
                    Some(Record::Access(event)) => return Ok(Some(event.access())),
                    Some(Record::Lost(accesses)) => self.lost = self.lost.saturating_add(accesses),
                    Some(Record::Name(_)) => {}
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
