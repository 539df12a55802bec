//! Traces in text form: one key a line, or one column of several.
//!
//! A key is a decimal number or, with the prefix `0x`, a hexadecimal one. Any other word stands for its hash.
//! Empty lines and lines that begin with `#` are ignored.

use crate::capture::access::Access;
use crate::capture::error::{At, Error};
use crate::capture::format::mix;
use crate::capture::input::{Input, WINDOW};

/// Longest line, bytes.
const LINE_MAX: usize = 64 << 10;
const _: () = assert!(LINE_MAX < WINDOW);

/// Header names for the key's column, best first.
const KEY_NAMES: [&str; 12] =
    ["obj_id", "obj-id", "objid", "object_id", "object", "obj", "key", "page", "lbn", "lba", "block", "id"];

/// Column of a CSV's keys. By default, the header's column `obj_id`, `object`, `key`, `page`, `lbn`, ...
/// Without a header, the second column (libCacheSim's order is time, object, size), or the only one. A first
/// line without any number is a header; a header without such a name is an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Column {
    /// Column number, from 1.
    Number(usize),
    /// Column name in the header.
    Name(String),
}

impl Column {
    /// Parses a number or a name.
    pub fn parse(text: &str) -> Column {
        text.parse().map_or_else(|_| Column::Name(text.into()), Column::Number)
    }
}

/// Do the lines of `head` have several columns? None: it is not text.
pub(super) fn has_columns(head: &[u8]) -> Option<bool> {
    let printable = |b: &u8| matches!(b, b'\t' | b'\n' | b'\r' | 0x20..=0x7e);
    if head.is_empty() || !head.iter().all(printable) {
        return None;
    }
    let mut lines = head.split(|b| *b == b'\n').filter(|line| !line.is_empty() && line[0] != b'#');
    let first = lines.next().unwrap_or_default();
    Some(delimiter(first).is_some())
}

fn delimiter(line: &[u8]) -> Option<u8> {
    b",;\t| ".iter().copied().find(|d| line.contains(d))
}

/// Copies the next line that is neither empty nor a comment into `line`, without its end.
pub(super) fn next_line(input: &mut Input, line: &mut Vec<u8>) -> Result<bool, Error> {
    loop {
        line.clear();
        if !whole_line(input, line)? {
            return Ok(false);
        }
        input.lines += 1;
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        if !line.is_empty() && line[0] != b'#' {
            return Ok(true);
        }
    }
}

fn whole_line(input: &mut Input, line: &mut Vec<u8>) -> Result<bool, Error> {
    loop {
        let window = input.window()?;
        if window.is_empty() {
            return Ok(!line.is_empty());
        }
        let end = window.iter().position(|b| *b == b'\n');
        let part = end.unwrap_or(window.len());
        if line.len() + part > LINE_MAX {
            let at = Some(At::Line(input.lines + 1));
            let fault = format!("longer than {LINE_MAX} bytes");
            return Err(input.error(at, fault, "is this text? see --format"));
        }
        line.extend_from_slice(&window[..part]);
        input.consume(part + usize::from(end.is_some()));
        if end.is_some() {
            return Ok(true);
        }
    }
}

pub(super) fn number(word: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(word).ok()?;
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) if !digits.starts_with('+') => u64::from_str_radix(digits, 16).ok(),
        None if !text.starts_with('+') => text.parse().ok(),
        _ => None,
    }
}

/// The number itself, or a hash of the word: FNV-1a, its bits mixed by SplitMix64's finaliser.
pub(super) fn key(word: &[u8]) -> u64 {
    number(word).unwrap_or_else(|| {
        let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        mix(word.iter().fold(0xcbf2_9ce4_8422_2325, fnv))
    })
}

fn checked(input: &Input, word: &[u8]) -> Result<Access, Error> {
    let at = Some(At::Line(input.lines));
    if word.is_empty() {
        return Err(input.error(at, "the key is empty", "see whether --column names the right one"));
    }
    if std::str::from_utf8(word).is_err() || word.iter().any(u8::is_ascii_control) {
        return Err(input.error(at, "not text", "say what it is with --format"));
    }
    Ok(Access::of(key(word)))
}

/// Key of the next line; `None` at the end. `line` is a buffer.
pub(super) fn line(input: &mut Input, line: &mut Vec<u8>) -> Result<Option<Access>, Error> {
    if !next_line(input, line)? {
        return Ok(None);
    }
    let word = line.trim_ascii();
    if word.iter().any(u8::is_ascii_whitespace) {
        let at = Some(At::Line(input.lines));
        return Err(input.error(at, "more than one word", "say --format csv, and --column for the key's"));
    }
    checked(input, word).map(Some)
}

/// A CSV being read.
#[derive(Debug)]
pub(super) struct Csv {
    delimiter: u8,
    column: usize,
    line: Vec<u8>,
    /// `line` holds a pending row: the first one, if it is not a header.
    held: bool,
}

impl Csv {
    pub(super) fn new(input: &mut Input, column: Option<&Column>) -> Result<Csv, Error> {
        let mut csv = Csv { delimiter: b',', column: 0, line: Vec::new(), held: false };
        if !next_line(input, &mut csv.line)? {
            return Ok(csv);
        }
        csv.delimiter = delimiter(&csv.line).unwrap_or(b',');
        let fields: Vec<String> = fields(&csv.line, csv.delimiter)
            .map(|field| String::from_utf8_lossy(field).to_ascii_lowercase())
            .collect();
        csv.held =
            fields.iter().any(|field| number(field.as_bytes()).is_some() || field.parse::<f64>().is_ok());
        let named = |name: &str| fields.iter().position(|field| field == name).filter(|_| !csv.held);
        let at = Some(At::Line(input.lines));
        csv.column = match column {
            Some(Column::Number(0)) => return Err(input.error(at, "no column 0", "columns count from 1")),
            Some(Column::Number(number)) => number - 1,
            Some(Column::Name(name)) => named(&name.to_ascii_lowercase()).ok_or_else(|| {
                let there = if csv.held { "no header".into() } else { fields.join(", ") };
                input.error(
                    at,
                    format!("no column {name}, but {there}"),
                    "name one of them, or give its number",
                )
            })?,
            None if csv.held || fields.len() == 1 => usize::from(fields.len() > 1),
            None => KEY_NAMES.iter().find_map(|name| named(name)).ok_or_else(|| {
                let fault = format!("no column of {} is known as the key's", fields.join(", "));
                input.error(at, fault, "name it with --column")
            })?,
        };
        Ok(csv)
    }

    /// Key of the next row; `None` at the end.
    pub(super) fn row(&mut self, input: &mut Input) -> Result<Option<Access>, Error> {
        if !std::mem::take(&mut self.held) && !next_line(input, &mut self.line)? {
            return Ok(None);
        }
        let Some(word) = fields(&self.line, self.delimiter).nth(self.column) else {
            let has = fields(&self.line, self.delimiter).count();
            let fault = format!("{has} columns, the key's is number {}", self.column + 1);
            return Err(input.error(Some(At::Line(input.lines)), fault, "name the key's with --column"));
        };
        checked(input, word).map(Some)
    }
}

/// The fields of a line, without surrounding spaces and quotes; within quotes, a delimiter is text.
pub(super) fn fields(line: &[u8], delimiter: u8) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(line);
    std::iter::from_fn(move || {
        let line = rest?;
        let mut quoted = false;
        let ends = |b: &u8| {
            quoted ^= *b == b'"';
            *b == delimiter && !quoted
        };
        let end = line.iter().position(ends);
        rest = end.map(|end| &line[end + 1..]);
        let field = line[..end.unwrap_or(line.len())].trim_ascii();
        Some(field.strip_prefix(b"\"").and_then(|field| field.strip_suffix(b"\"")).unwrap_or(field))
    })
}
