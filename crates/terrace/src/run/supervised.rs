//! Messages of the supervisor to `terrace run`.

use crate::error::Failure;
use crate::handover::channel::{self, Channel, Event, Poll};

/// The supervisor, as seen by `terrace run`.
pub(super) struct Supervisor {
    /// Channel to the supervisor.
    pub line: Channel,
    /// The supervisor has reported an orderly end.
    pub done: bool,
}

impl Supervisor {
    /// Reads messages up to the last one. Returns whether the instance ended in order.
    pub(super) fn ends_in_order(&mut self) -> bool {
        while !self.done && self.poll() {}
        self.done
    }

    /// Reads one message, blocking; false at end of file.
    pub(super) fn poll(&mut self) -> bool {
        match self.line.poll() {
            Poll::End => return false,
            Poll::Nothing => {}
            Poll::Line(line) => match channel::parse(&line) {
                Some(Event::Gone(why)) => terrace_output::error_line!("{}", Failure::from_line(&why)),
                Some(Event::Done) => self.done = true,
                _ => {}
            },
        }
        true
    }
}
