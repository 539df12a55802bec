//! A progress line on stderr, if that is a terminal.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// Minimum time between two updates.
const PAUSE: Duration = Duration::from_millis(200);

/// A line on stderr, if that is a terminal; removed when dropped.
#[derive(Debug)]
pub struct Progress {
    shown: bool,
    terminal: bool,
    next: Instant,
}

impl Default for Progress {
    fn default() -> Progress {
        Progress { shown: false, terminal: io::stderr().is_terminal(), next: Instant::now() + PAUSE }
    }
}

impl Progress {
    /// Shows the text of `line`, a few times a second.
    pub fn tick(&mut self, line: impl FnOnce() -> String) {
        if Instant::now() >= self.next {
            self.now(line);
        }
    }

    /// Shows the text at once, before a long step.
    pub fn now(&mut self, line: impl FnOnce() -> String) {
        if self.terminal {
            let _ = write!(io::stderr(), "\r\x1b[K{}", line());
            self.shown = true;
            self.next = Instant::now() + PAUSE;
        }
    }

    /// Time to wait for results between two ticks.
    pub fn pause(&self) -> Duration {
        PAUSE
    }

    /// Removes the line.
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
