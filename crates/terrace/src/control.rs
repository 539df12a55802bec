//! The control socket: client and server of the protocol in [`terrace_api::control`].

mod client;
mod server;

pub use client::{Client, Frame, Frames};
pub use server::{Answer, Record, Server};
