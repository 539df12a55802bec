//! The common part of the programs (`terrace-bench`, `terrace-sim`, partly `terrace`): output, complete or not
//! at all; a progress line; signals.

#![deny(unsafe_code)]

mod progress;
pub mod signals;

pub use progress::Progress;

use clap::Parser;
use clap::error::ErrorKind;
use std::fmt;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

/// The main function of the program `name`. A wrong use or a failed command prints one line, with exit code
/// 2.
pub fn main<C: Parser>(name: &str, run: impl FnOnce(C) -> io::Result<u8>) -> ExitCode {
    let failed = |e: io::Error| {
        error_line!("{name}: {e}");
        ExitCode::from(2)
    };
    let e = match C::try_parse() {
        Ok(cli) => return run(cli).map_or_else(failed, ExitCode::from),
        Err(e) => e,
    };
    let text = e.render();
    if !e.use_stderr() || e.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let code = ExitCode::from(e.exit_code() as u8);
        return print(&styled(&text, text.ansi())).map_or_else(failed, |()| code);
    }
    let text = text.to_string();
    let why = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
    let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
    failed(io::Error::other(format!("{why} (see `{name} --help`)")))
}

/// Prints all at once; a closed pipe (`| head`) is no error.
///
/// # Errors
/// Standard output that cannot be written.
pub fn print(text: &str) -> io::Result<()> {
    put(text).map(drop).map_err(|e| unwritten("standard output", e))
}

/// Prints all at once; false: the pipe is closed.
///
/// # Errors
/// Standard output that cannot be written: the system's own error.
pub fn put(text: &str) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    // An explicit flush reports write errors; the flush at program exit hides them.
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        other => other.map(|()| true),
    }
}

/// Prints a line as `println!` does, by [`print`]: `println!` panics on a closed pipe.
#[macro_export]
macro_rules! print_line {
    ($($what:tt)*) => {
        $crate::print(&format!("{}\n", format_args!($($what)*)))
    };
}

/// Prints a line to stderr as `eprintln!` does, but ignores a failed write instead of panicking: the exit
/// code then reports the error.
#[macro_export]
macro_rules! error_line {
    ($($what:tt)*) => {
        $crate::put_error(format_args!($($what)*))
    };
}

/// A help text: with terminal styles on a terminal, plain elsewhere.
pub fn styled(plain: impl fmt::Display, styled: impl fmt::Display) -> String {
    let is_read = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    if is_read { styled.to_string() } else { plain.to_string() }
}

/// See [`error_line!`].
pub fn put_error(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Replaces a file completely, or not at all. A pipe or device is not replaced but written to.
///
/// # Errors
/// The file's name, the reason, the cure.
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

/// Puts the name of a file before an error.
pub fn named(path: &Path) -> impl Fn(io::Error) -> io::Error + Copy {
    move |e| io::Error::new(e.kind(), format!("{}: {e}", path.display()))
}

fn unwritten(what: impl fmt::Display, e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{what}: {e} (make room, or name another file)"))
}

/// A CSV of a header and rows.
///
/// # Errors
/// A row with a different number of fields.
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
    use std::process::Command;
    use tempfile::TempDir;

    #[test]
    fn a_file_is_replaced_whole_and_a_pipe_stays_a_pipe() {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("a.csv");
        fs::write(&file, "an earlier one, which is longer").unwrap();
        write_whole(&file, "a").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "a");
        let pipe = dir.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let read = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read_to_string(pipe).unwrap()
        });
        write_whole(&pipe, "b").unwrap();
        assert_eq!(read.join().unwrap(), "b");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing unfinished is left");
    }

    #[test]
    fn an_unwritable_place_is_named() {
        let dir = TempDir::new().unwrap();
        for (place, what) in
            [(dir.path().join("no/a.csv"), "no/a.csv: "), (dir.path().into(), ": Is a directory")]
        {
            let error = write_whole(&place, "a").unwrap_err().to_string();
            assert!(error.contains(what) && error.starts_with(&place.display().to_string()), "{error}");
        }
    }

    #[test]
    fn csv_quotes_what_would_part_fields() {
        let row = |name: &str| [name.to_owned(), "1".to_owned()];
        let text = csv(["trace", "pages"], [row("a"), row("a,b"), row("a\"b")]).unwrap();
        assert_eq!(text, "trace,pages\na,1\n\"a,b\",1\n\"a\"\"b\",1\n");
    }
}
