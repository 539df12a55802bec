//! Protocols: requests as they come ([`request`], [`memcached`]), replies as they go ([`reply`]), and numbers as both write them ([`number`]).
//!
//! The parsers are our own: crates for Redis' protocol parse replies and pushes too, but not the inline form, and they begin anew with each piece of a
//! long request.

pub mod memcached;
pub mod number;
pub mod reply;
pub mod request;

pub use reply::Reply;
pub use request::{Args, Limits, Parser};

use request::{Malformed, Progress, Request};

/// What the clients of a listener speak.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Protocol {
    /// Redis'.
    #[default]
    Resp,
    /// memcached's text protocol.
    Memcached,
}

/// The requests of one connection.
#[derive(Debug)]
pub enum Incoming {
    /// In Redis' protocol.
    Resp(Parser),
    /// In memcached's.
    Memcached(memcached::Parser),
}

impl Incoming {
    /// Of a new connection.
    pub fn new(protocol: Protocol, limits: Limits) -> Incoming {
        match protocol {
            Protocol::Resp => Incoming::Resp(Parser::new(limits)),
            Protocol::Memcached => Incoming::Memcached(memcached::Parser::new(limits)),
        }
    }

    /// Goes on with the request that begins with `bytes`: see [`Parser::advance`].
    ///
    /// # Errors
    /// It is no request, or larger than permitted.
    pub fn advance(&mut self, bytes: &[u8], is_known: bool) -> Result<Progress, Malformed> {
        match self {
            Incoming::Resp(parser) => parser.advance(bytes, is_known),
            Incoming::Memcached(parser) => parser.advance(bytes),
        }
    }

    /// Gives the request that is complete: see [`Parser::take`].
    pub fn take(&mut self, request: &mut Request) {
        match self {
            Incoming::Resp(parser) => parser.take(request),
            Incoming::Memcached(parser) => parser.take(request),
        }
    }

    /// Memory that it keeps, bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Incoming::Resp(parser) => parser.bytes(),
            Incoming::Memcached(parser) => parser.bytes(),
        }
    }
}
