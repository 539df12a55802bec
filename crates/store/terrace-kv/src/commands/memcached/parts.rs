//! Common parts of memcached's commands: error lines, keys, expiry times.

use crate::blobs::Db;
use crate::error::{Outcome, Refusal};
use crate::keyspace::LockedKeys;
use crate::wire::memcached::is_key;

/// The database of the items, which are its strings.
pub(super) const DB: Db = 0;

/// The error line for a malformed command.
pub(super) const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
/// The error line for data above the limit.
pub(super) const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";

pub(super) fn line(text: &str) -> Refusal {
    Refusal::Other(text.to_owned())
}

/// Checks a word that must be a key.
///
/// # Errors
/// Not a valid key.
pub(super) fn key(word: &[u8]) -> Outcome<&[u8]> {
    if is_key(word) { Ok(word) } else { Err(line(BAD_FORMAT)) }
}

/// Maximum relative time, seconds. Larger numbers are seconds since 1970.
const RELATIVE_MAX: i64 = 60 * 60 * 24 * 30;

/// Expiry time of an item, milliseconds since 1970. None: it does not expire. A negative time has expired
/// already.
pub(super) fn expires(seconds: i64, locked: &LockedKeys<'_>) -> Option<i64> {
    match seconds {
        0 => None,
        ..0 => Some(0),
        1..=RELATIVE_MAX => Some(locked.now() as i64 + seconds * 1000),
        _ => Some(seconds.saturating_mul(1000)),
    }
}
