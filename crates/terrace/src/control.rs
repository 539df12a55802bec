//! The control socket: client and server of the protocol in [`terrace_api::control`].

mod client;
mod server;

pub(crate) use client::{Client, Frame, Frames};
pub(crate) use server::{Answer, Record, Server};
