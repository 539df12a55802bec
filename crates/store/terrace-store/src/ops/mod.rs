//! Operations on blobs and buckets.

pub(crate) mod buckets;
mod commit;
mod file_name;
pub(crate) mod get;
pub(crate) mod part;
pub(crate) mod persist;
pub(crate) mod prefetch;
pub(crate) mod put;
pub(crate) mod remove;
pub(crate) mod rename;
mod room;
pub(crate) mod tag;

use crate::error::{Error, Result};
use crate::record::KEY_MAX;

/// Maximum size of a blob, bytes.
pub(crate) const BLOB_MAX: u64 = 128 << 30;

/// # Errors
/// The key exceeds the maximum.
fn check_key(key: &[u8]) -> Result<()> {
    check("a key", key.len() as u64, KEY_MAX as u64)
}

/// # Errors
/// The blob exceeds the maximum.
fn check_size(size: Option<u64>) -> Result<u64> {
    let bytes = size.unwrap_or(u64::MAX);
    check("a blob", bytes, BLOB_MAX).map(|()| bytes)
}

fn check(what: &'static str, bytes: u64, max: u64) -> Result<()> {
    if bytes > max { Err(Error::TooLarge { what, bytes, max }) } else { Ok(()) }
}
