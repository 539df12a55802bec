//! Which records are believed.
//!
//! After a power cut, or the death of a process whose segment died with it, the log may be ahead of the heap: either is written when it suits the
//! cache or the kernel. Records up to the last mark are believed as they are. Of each later one the bytes in the heap are looked at; the first whose
//! bytes did not arrive ends the log. Room that later records retired was not used again, for that takes a mark: their older blobs still stand. Room of a blob
//! that came and went since the last sync was: its record is then one whose bytes did not arrive.

use crate::open::files::Files;
use crate::record::{Blob, INLINE, Record, UNCHECKED};
use crate::space::UNIT;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes that are looked at at once.
const PIECE: usize = 1 << 20;

/// The judge of one start.
#[derive(Debug)]
pub(super) struct Belief {
    heap: File,
    /// All records up to this one are believed.
    upto: u64,
    buffer: Vec<u8>,
}

impl Belief {
    /// # Errors
    /// No descriptor.
    pub(super) fn new(files: &Files, upto: u64) -> io::Result<Belief> {
        Ok(Belief { heap: File::from(files.heap.try_clone()?), upto, buffer: Vec::new() })
    }

    /// Whether what the record says stands in the heap.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn holds(&mut self, number: u64, record: &Record<'_>) -> io::Result<bool> {
        match record {
            Record::Put { blob, .. } | Record::Move { blob, .. } if number > self.upto => self.stands(blob),
            _ => Ok(true),
        }
    }

    fn stands(&mut self, blob: &Blob) -> io::Result<bool> {
        // What stands in the record came with it.
        if blob.has(UNCHECKED) || blob.has(INLINE) {
            return Ok(true);
        }
        if blob.size > u64::from(blob.units) * UNIT {
            return Ok(false);
        }
        let mut hasher = crc32fast::Hasher::new();
        let mut done = 0;
        while done < blob.size {
            let n = (blob.size - done).min(PIECE as u64) as usize;
            self.buffer.resize(n.max(self.buffer.len()), 0);
            match self.heap.read_exact_at(&mut self.buffer[..n], blob.start() * UNIT + done) {
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
                read => read?,
            }
            hasher.update(&self.buffer[..n]);
            done += n as u64;
        }
        Ok(hasher.finalize() == blob.crc)
    }
}
