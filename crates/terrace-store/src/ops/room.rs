//! Room for the bytes of a blob.

use crate::core::Core;
use crate::durable;
use crate::error::Result;
use crate::space::{Claim, Extent};

/// Claims room for `size` bytes. What overwritten blobs left is waited for, if need be.
///
/// # Errors
/// The store is full.
pub(super) fn claim(core: &Core, size: u64) -> Result<Claim> {
    match core.heap.claim(size) {
        Err(e) if e.is_full() && core.heap.space().retired_bytes() > 0 => {
            durable::sync(core)?;
            core.heap.claim(size)
        }
        claimed => claimed,
    }
}

/// Writes the bytes of a blob into room of its own.
///
/// # Errors
/// The store is full; writeback fails.
pub(super) fn place(core: &Core, parts: &[&[u8]], size: u64) -> Result<Extent> {
    let claim = claim(core, size)?;
    core.heap.fill(&claim, parts, size)?;
    Ok(claim.extent)
}
