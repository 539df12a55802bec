//! What the commands share: lines of errors, keys, times.

use crate::blobs::Db;
use crate::error::{Outcome, Refusal};
use crate::keyspace::Held;
use crate::wire::memcached::is_key;

/// The database whose strings are the items.
pub const DB: Db = 0;

/// A line that is no such command.
pub const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
/// Data that are longer than permitted.
pub const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";

/// A refusal that is this line.
pub fn line(text: &str) -> Refusal {
    Refusal::Other(text.to_owned())
}

/// A word that is a key.
///
/// # Errors
/// It can be none.
pub fn key(word: &[u8]) -> Outcome<&[u8]> {
    if is_key(word) { Ok(word) } else { Err(line(BAD_FORMAT)) }
}

/// Longest time from now on, seconds; larger numbers are seconds since 1970.
const RELATIVE_MAX: i64 = 60 * 60 * 24 * 30;

/// When an item expires, milliseconds since 1970; none: never. One with a negative time has expired.
pub fn expires(seconds: i64, held: &Held<'_>) -> Option<i64> {
    match seconds {
        0 => None,
        ..0 => Some(0),
        1..=RELATIVE_MAX => Some(held.now() as i64 + seconds * 1000),
        _ => Some(seconds.saturating_mul(1000)),
    }
}
