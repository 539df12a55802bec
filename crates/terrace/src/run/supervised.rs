//! Messages of the supervisor to `terrace run`.

use crate::error::Failure;
use crate::handover::channel::{self, Channel, Event, Poll};

/// The supervisor's state, as known here.
pub struct Supervisor {
    /// To it and from it.
    pub line: Channel,
    /// It said that the instance ended in order.
    pub done: bool,
}

impl Supervisor {
    /// Its next word, waited for; false when there is nothing more to come.
    pub fn poll(&mut self) -> bool {
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
