//! The control socket: client and server of the protocol in [`terrace_api::control`].

mod client;
mod server;

use std::io::{self, Write};

use terrace_api::capture::Summary;
use terrace_api::control::{CommandError, Reply, Request};

pub use client::{Client, Frame, Frames};
pub use server::Server;

/// The answering side: the daemon; a stand-in in tests.
pub trait Answer: Sync {
    /// Carries out a request.
    fn answer(&self, request: Request) -> Result<Reply, CommandError>;
    /// Begins a recording.
    fn record(&self) -> Result<Box<dyn Record>, CommandError>;
}

/// A recording that has begun.
pub trait Record {
    /// Writes the capture until `ended`, and returns the summary.
    fn run(self: Box<Self>, out: &mut dyn Write, ended: &mut dyn FnMut() -> bool) -> io::Result<Summary>;
}
