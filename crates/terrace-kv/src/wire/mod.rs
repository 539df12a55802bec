//! Redis' protocol: requests as they come ([`request`]), replies as they go ([`reply`]), and numbers as both write them ([`number`]).
//!
//! The parser is our own: crates parse replies and pushes too, but not the inline form, and they begin anew with each piece of a
//! long request.

pub mod number;
pub mod reply;
pub mod request;

pub use reply::Reply;
pub use request::{Args, Limits, Parser};
