//! A trace in whatever format: which one it is, and its accesses.

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
    /// Requests to disks, as MSR Cambridge has recorded them.
    Msr,
    /// A capture of terrace.
    Terrace,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 6] =
        [Format::U64, Format::Oracle, Format::Text, Format::Csv, Format::Msr, Format::Terrace];

    /// Its name for users.
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

    /// The format called `name`.
    pub fn named(name: &str) -> Option<Format> {
        Format::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Guessed from the content's first bytes, then from the file's name, then from whether it looks like text.
    fn guess(name: &str, head: &[u8], column: Option<&Column>) -> Option<Format> {
        if head.starts_with(&MAGIC) {
            return Some(Format::Terrace);
        }
        // A column that is named is meant.
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

/// Options of the reader beside the file.
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
        // Programs of Windows write this before text.
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
