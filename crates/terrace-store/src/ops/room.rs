//! Room for the bytes of a blob.

use crate::durable;
use crate::error::Result;
use crate::space::{Claim, Extent};
use crate::state::StoreState;

/// Claims room for `size` bytes. Waits for the room of overwritten blobs, if need be.
///
/// # Errors
/// The store is full.
pub(super) fn claim(state: &StoreState, size: u64) -> Result<Claim> {
    match state.heap.claim(size) {
        Err(e) if e.is_full() && state.heap.space().retired_bytes() > 0 => {
            durable::sync(state)?;
            state.heap.claim(size)
        }
        claimed => claimed,
    }
}

/// Writes the bytes of a blob into room of its own: `room` bytes, where there are as many.
///
/// # Errors
/// The store is full; writeback fails.
pub(super) fn place(state: &StoreState, parts: &[&[u8]], size: u64, room: u64) -> Result<Extent> {
    let claim = match room > size {
        true => state.heap.claim(room).or_else(|_| claim(state, size))?,
        false => claim(state, size)?,
    };
    state.heap.fill(&claim, parts, size)?;
    Ok(claim.extent)
}
