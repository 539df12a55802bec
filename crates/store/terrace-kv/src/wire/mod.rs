//! Protocols: incremental request parsers ([`request`], [`memcached`]), replies ([`reply`]), and number
//! formats ([`number`]).
//!
//! Existing crates for Redis' protocol were no alternative. They parse replies and pushes but no inline
//! requests, and they restart with each piece of a long request.

pub(crate) mod memcached;
pub(crate) mod number;
pub(crate) mod reply;
pub(crate) mod request;

pub(crate) use reply::Reply;
pub(crate) use request::{Args, Limits, Parser};

use request::{Malformed, Progress, Request};

/// Protocol of a listener's clients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Protocol {
    #[default]
    Resp,
    Memcached,
}

/// Request parser of one connection.
#[derive(Debug)]
pub(crate) enum Incoming {
    Resp(Parser),
    Memcached(memcached::Parser),
}

impl Incoming {
    pub(crate) fn new(protocol: Protocol, limits: Limits) -> Incoming {
        match protocol {
            Protocol::Resp => Incoming::Resp(Parser::new(limits)),
            Protocol::Memcached => Incoming::Memcached(memcached::Parser::new(limits)),
        }
    }

    /// Continues with the request at the start of `bytes`: see [`Parser::advance`].
    ///
    /// # Errors
    /// The request is malformed or above a limit.
    pub(crate) fn advance(&mut self, bytes: &[u8], is_known: bool) -> Result<Progress, Malformed> {
        match self {
            Incoming::Resp(parser) => parser.advance(bytes, is_known),
            Incoming::Memcached(parser) => parser.advance(bytes),
        }
    }

    /// Takes the complete request: see [`Parser::take`].
    pub(crate) fn take(&mut self, request: &mut Request) {
        match self {
            Incoming::Resp(parser) => parser.take(request),
            Incoming::Memcached(parser) => parser.take(request),
        }
    }

    /// Memory, bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Incoming::Resp(parser) => parser.bytes(),
            Incoming::Memcached(parser) => parser.bytes(),
        }
    }
}
