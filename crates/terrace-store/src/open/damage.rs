//! Tells a log that ends early because the power was cut from one that was damaged later.
//!
//! A sync appends its mark after the sync before it has returned. Two marks behind the place where no record can be read therefore prove that the
//! record there was durable once: something else has changed the file, and to go on without all that follows would lose it silently.

use crate::record::{self, Header, MARK_BYTES, Record};
use crate::records::read_full;
use std::fs::File;
use std::io;

/// Bytes that are looked at at once.
const CHUNK: usize = 1 << 20;
/// Records between the last one that a mark covers and the mark at the most: what others append while the heap is synced.
const BETWEEN: u64 = 1 << 20;

/// Whether records that cannot be read from byte `at` on were durable once.
///
/// # Errors
/// Failing I/O.
pub(super) fn is_damaged(file: &File, header: &Header, at: u64) -> io::Result<bool> {
    let mut buffer = vec![0; CHUNK + MARK_BYTES];
    let (mut at, mut marks) = (at, 0);
    loop {
        let n = read_full(file, &mut buffer, at)?;
        for place in 0..n.min(CHUNK) {
            marks += usize::from(is_mark(&buffer[place..n], header));
        }
        if marks >= 2 {
            return Ok(true);
        }
        if n <= CHUNK {
            return Ok(false);
        }
        at += CHUNK as u64;
    }
}

fn is_mark(bytes: &[u8], header: &Header) -> bool {
    let Some(upto) = record::mark_upto(bytes) else { return false };
    let Some(last) = upto.checked_add(BETWEEN) else { return false };
    (upto + 1..last).any(|number| {
        matches!(record::decode(bytes, header.generation, number), Some((Record::Mark { .. }, _)))
    })
}
