//! The control socket: commands to a running instance, in the form that [`terrace_api::control`] says.

mod client;
mod server;

use std::io::{self, Write};

use terrace_api::capture::Summary;
use terrace_api::control::{CommandError, Reply, Request};

pub use client::{Client, Frame, Frames};
pub use server::Server;

/// Who answers: the daemon; in tests, something simpler.
pub trait Answer: Sync {
    /// Does what is asked.
    fn answer(&self, request: Request) -> Result<Reply, CommandError>;
    /// Begins a recording.
    fn record(&self) -> Result<Box<dyn Record>, CommandError>;
}

/// A recording that has begun.
pub trait Record {
    /// Writes the capture until `ended`; what it came to.
    fn run(self: Box<Self>, out: &mut dyn Write, ended: &mut dyn FnMut() -> bool) -> io::Result<Summary>;
}
