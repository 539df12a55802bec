//! A prefetch schedule: the pages that a program reads, in the order of first use.
//!
//! `terrace-bench schedule` makes it from a capture, and `terrace run --prefetch` prefetches by it. It is
//! text, for reading and editing:
//!
//! ```text
//! terrace-schedule 1 4096                 version, bytes of a page
//! file 1048576 1700000000000000000 a/b    bytes, last change in nanoseconds since 1970, path relative to the source
//! 0 17                                    page 17 of file 0 (the first one)
//! 0 3 5                                   five pages of file 0, from page 3 on
//! ```
//! A file line comes before the file's first span. Bytes of a path that are not printable ASCII, and `%`, are
//! written as `%` and two hexadecimal digits.

use std::ffi::OsString;
use std::fmt::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use crate::capture::format::PATH_MAX;
use crate::capture::{At, Error};

const HEAD: &str = "terrace-schedule 1 4096";
const AGAIN: &str = "make it again with `terrace-bench schedule`";

/// The pages to be read, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Schedule {
    /// The files, in the order of their first spans.
    pub files: Vec<File>,
    /// Spans of these files.
    pub spans: Vec<Span>,
}

/// A file, with its attributes at the time of the recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Relative to the source, without `..`.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// Its last change (mtime), nanoseconds since 1970.
    pub changed_ns: i64,
}

impl File {
    /// Whether a file with these attributes is unchanged since the recording.
    pub fn is_same(&self, bytes: u64, changed_ns: i64) -> bool {
        (self.bytes, self.changed_ns) == (bytes, changed_ns)
    }
}

/// Consecutive pages of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Index in [`Schedule::files`].
    pub file: u32,
    /// The first page.
    pub first: u64,
    /// Number of pages, at least 1.
    pub pages: u64,
}

impl Schedule {
    /// Appends a span, merged with the last one if adjacent.
    pub fn push(&mut self, span: Span) {
        match self.spans.last_mut() {
            Some(last) if last.file == span.file && last.first + last.pages == span.first => {
                last.pages += span.pages;
            }
            _ => self.spans.push(span),
        }
    }

    /// Serializes as text.
    pub fn to_text(&self) -> String {
        let mut text = format!("{HEAD}\n");
        let mut named = 0;
        for Span { file, first, pages } in &self.spans {
            for File { path, bytes, changed_ns } in
                self.files.iter().take(*file as usize + 1).skip(named as usize)
            {
                let _ = writeln!(text, "file {bytes} {changed_ns} {}", escaped(path));
            }
            named = named.max(file + 1);
            let _ = match pages {
                1 => writeln!(text, "{file} {first}"),
                _ => writeln!(text, "{file} {first} {pages}"),
            };
        }
        text
    }

    /// Parses the text; `name` is for errors.
    ///
    /// # Errors
    /// The first invalid line.
    pub fn parse(name: &str, text: &[u8]) -> Result<Schedule, Error> {
        let mut schedule = Schedule::default();
        let fault =
            |number: usize, fault: &str| Error::new(name, Some(At::Line(number as u64)), fault, AGAIN);
        let mut lines =
            text.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        if lines.next() != Some(HEAD.as_bytes()) {
            return Err(fault(1, "not a schedule that this program reads"));
        }
        for (number, line) in lines.enumerate().filter(|(_, line)| !line.is_empty()) {
            let line = std::str::from_utf8(line).ok();
            let read = line.ok_or("not text").and_then(|line| schedule.read_line(line));
            read.map_err(|why| fault(number + 2, why))?;
        }
        Ok(schedule)
    }

    fn read_line(&mut self, line: &str) -> Result<(), &'static str> {
        let mut words = line.split(' ');
        let number = |word: Option<&str>, what| word.and_then(|word| word.parse::<u64>().ok()).ok_or(what);
        match words.next() {
            Some("file") => {
                let bytes = number(words.next(), "a file without a size")?;
                let changed = words.next().and_then(|word| word.parse().ok());
                let changed_ns = changed.ok_or("a file without the time of its change")?;
                let path = words.next().and_then(unescaped).ok_or("a file without a path")?;
                self.files.push(File { path, bytes, changed_ns });
            }
            file => {
                let file = number(file, "neither a file nor pages of one")?;
                let first = number(words.next(), "pages without a number")?;
                let pages = words.next().map_or(Ok(1), |word| number(Some(word), "not a number of pages"))?;
                if file >= self.files.len() as u64 {
                    return Err("pages of a file that is not named before");
                }
                if pages == 0 || first.checked_add(pages).is_none_or(|end| end > u64::MAX / 4096) {
                    return Err("pages that no file has");
                }
                self.spans.push(Span { file: file as u32, first, pages });
            }
        }
        words.next().map_or(Ok(()), |_| Err("more than a line has"))
    }
}

/// Does the relative path stay below its base directory?
pub fn is_below(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::Normal(_))) && !path.as_os_str().is_empty()
}

fn escaped(path: &Path) -> String {
    let mut text = String::new();
    for &byte in path.as_os_str().as_bytes() {
        let _ = match byte {
            b'%' => write!(text, "%25"),
            b'!'..=b'~' => write!(text, "{}", char::from(byte)),
            _ => write!(text, "%{byte:02x}"),
        };
    }
    text
}

fn unescaped(word: &str) -> Option<PathBuf> {
    let mut parts = word.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    let path = PathBuf::from(OsString::from_vec(bytes));
    let sound = path.as_os_str().len() <= PATH_MAX && !path.as_os_str().as_bytes().contains(&0);
    (sound && is_below(&path)).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_as_documented() {
        let file =
            |path: &[u8]| File { path: OsString::from_vec(path.to_vec()).into(), bytes: 7, changed_ns: -3 };
        let mut schedule = Schedule { files: vec![file(b"a/b c%\xff"), file(b"d")], spans: Vec::new() };
        for (file, first) in [(0, 5), (0, 6), (0, 9), (1, 10)] {
            schedule.push(Span { file, first, pages: 1 });
        }
        let text = "terrace-schedule 1 4096\nfile 7 -3 a/b%20c%25%ff\n0 5 2\n0 9\nfile 7 -3 d\n1 10\n";
        assert_eq!(schedule.to_text(), text);
        assert_eq!(Schedule::parse("t", text.as_bytes()).unwrap(), schedule);
    }

    #[test]
    fn faults_are_told_with_their_line() {
        let cases = [
            ("", "line 1: not a schedule"),
            ("terrace-schedule 2 4096\n", "line 1: not a schedule"),
            ("file 7 3 ../a", "line 2: a file without a path"),
            ("file 7 3 /a", "line 2: a file without a path"),
            ("file 7 3 a%0", "line 2: a file without a path"),
            ("file 7 3 a%00", "line 2: a file without a path"),
            ("file 7 x a", "line 2: a file without the time"),
            ("0 5", "line 2: pages of a file that is not named"),
            ("file 7 3 a\n0 5 0", "line 3: pages that no file has"),
            ("file 7 3 a\n0 18446744073709551615", "line 3: pages that no file has"),
            ("file 7 3 a\n0 5 1 1", "line 3: more than a line has"),
        ];
        for (text, fault) in cases {
            let text = if text.starts_with("file") || text.starts_with('0') {
                format!("{HEAD}\n{text}")
            } else {
                text.into()
            };
            let told = Schedule::parse("t", text.as_bytes()).unwrap_err().to_string();
            assert!(told.starts_with(&format!("t: {fault}")), "{told}");
        }
    }
}
