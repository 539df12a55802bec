//! How results leave the program: printed at once, or put in place as a whole file.

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

/// Puts a file in place whole, or not at all. What is no file (a pipe, a device) is not replaced but written to.
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
