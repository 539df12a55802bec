//! Distinguishes a log that a power cut has shortened from a log that was damaged later.
//!
//! A sync appends its mark only after the previous sync has returned. So two marks behind an unreadable
//! record prove that the record was durable once. The file was damaged later, and a start without the records
//! behind would lose them silently.

use crate::record::{self, Header, MARK_BYTES, Record};
use crate::records::read_full;
use std::fs::File;
use std::io;

/// Bytes of one read.
const CHUNK: usize = 1 << 20;
/// Most records between a mark and the last record that it covers: those appended during the heap's sync.
const BETWEEN: u64 = 1 << 20;

/// Whether the unreadable records from byte `at` were durable once.
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
