//! Output of the programs (`terrace-bench`, `terrace-sim`, in part `terrace`): whole, or not at all; plots; and a line of progress meanwhile.
#![forbid(unsafe_code)]

pub mod plot;
mod progress;

pub use progress::Progress;

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// Prints all at once; a reader that went away (`| head`) is no error.
///
/// # Errors
/// Standard output that cannot be written.
pub fn print(text: &str) -> io::Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|e| unwritten("standard output", e)),
    }
}

/// A line as `println!` prints it, by [`print`]: `println!` panics where the reader went away.
#[macro_export]
macro_rules! print_line {
    ($($what:tt)*) => {
        $crate::print(&format!("{}\n", format_args!($($what)*)))
    };
}

/// Puts a file in place whole, or not at all. A pipe or device is not replaced but written to.
///
/// # Errors
/// The file's name, why it could not be written, the cure.
pub fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let named = |e| unwritten(path.display(), e);
    if fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
        return fs::write(path, text).map_err(named);
    }
    let unfinished = path.with_added_extension("new");
    fs::write(&unfinished, text).and_then(|()| fs::rename(&unfinished, path)).map_err(|e| {
        let _ = fs::remove_file(&unfinished);
        named(e)
    })
}

fn unwritten(what: impl fmt::Display, e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{what}: {e} (make room, or name another file)"))
}

/// A CSV of a head and rows of as many fields.
///
/// # Errors
/// A row of another number of fields.
pub fn csv<'a, R: IntoIterator<Item = String>>(
    head: impl IntoIterator<Item = &'a str>,
    rows: impl IntoIterator<Item = R>,
) -> io::Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(head)?;
    for row in rows {
        writer.write_record(row)?;
    }
    let bytes = writer.into_inner().map_err(|e| io::Error::other(e.to_string()))?;
    String::from_utf8(bytes).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_quotes_what_would_part_fields() {
        let row = |name: &str| [name.to_owned(), "1".to_owned()];
        let text = csv(["trace", "pages"], [row("a"), row("a,b"), row("a\"b")]).unwrap();
        assert_eq!(text, "trace,pages\na,1\n\"a,b\",1\n\"a\"\"b\",1\n");
    }
}
