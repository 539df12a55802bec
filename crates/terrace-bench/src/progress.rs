//! One line on a terminal that says how far things are.

use std::io::{self, IsTerminal, Write};

/// A line on stderr, if that is a terminal; gone when dropped.
#[derive(Debug, Default)]
pub struct Progress {
    shown: bool,
}

impl Progress {
    /// Shows what `line` says.
    pub fn now(&mut self, line: impl FnOnce() -> String) {
        if io::stderr().is_terminal() {
            let _ = write!(io::stderr(), "\r\x1b[K{}", line());
            self.shown = true;
        }
    }

    /// Takes the line away.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
