//! The capture is terrace's own trace format: page accesses of a live instance, in 1 to 21 bytes each.
//!
//! # Format, version 2
//! All numbers are little-endian. *varint* is LEB128: seven bits a byte, the lowest first; the top bit says
//! that more follow; at most ten bytes. *zigzag* is a varint of `(n << 1) ^ (n >> 63)`.
//!
//! | header, 32 bytes | |
//! |---|---|
//! | 0..8 | [`MAGIC`] |
//! | 8..10 | version, 2; a reader also takes 1, which has no names, and refuses others |
//! | 10..12 | length of the header in bytes, at least 32; bytes beyond 32 are ignored |
//! | 12..16 | bytes of a page |
//! | 16..24 | start of the capture, milliseconds since 1970 |
//! | 24..28 | milliseconds of a tick, not 0 |
//! | 28..32 | 0 |
//!
//! Records follow to the end of the file. The low two bits of a record's first byte are its type:
//!
//! | low bits | record | the other bits, and what follows |
//! |---|---|---|
//! | 0 | access | bit 2: write; bit 3: preload path; bits 4-7: step |
//! | 1 | loss | 0; varint: accesses that were not recorded, between the records before and after |
//! | 2 | time | 0; varint: ticks since the last time record, or since the start |
//! | 3 | name | 0; varints: object, bytes of the file, zigzag of its change in nanoseconds since 1970, length of the path; the path |
//!
//! Step 0 to 13: same object as the last access, this many pages further on. 14: same object; zigzag: pages
//! further on. 15: another object; zigzag: its number less the last one's; varint: page index. The first
//! access counts from object 0 and page 0, and sums wrap at 64 bits. So a sequential read takes one byte a
//! page.
//!
//! An object's name, if known, comes before its first access: the path of the file relative to the source, of
//! any bytes but 0.
//!
//! Whole records are written in batches, so a killed capture ends between two records. A capture truncated
//! otherwise is readable up to the cut, and the error names the repair.

use std::path::PathBuf;

use super::access::{Access, AccessPath};

/// First bytes of a capture. The first byte is not text; the last two reveal a file that was converted as
/// text.
pub const MAGIC: [u8; 8] = *b"\x89TRACE\r\n";
/// The version written.
pub const VERSION: u16 = 2;
/// The first version, without names.
pub(super) const NAMELESS: u16 = 1;
/// Longest path, bytes (PATH_MAX).
pub const PATH_MAX: usize = 4096;

pub(super) const HEADER: usize = 32;
/// Longest record other than a name: its first byte, two varints.
pub(super) const RECORD_MAX: usize = 21;
/// Longest name record: its first byte, four varints, the path.
pub(super) const NAME_MAX: usize = 41 + PATH_MAX;
pub(super) const WRITE: u8 = 1 << 2;
pub(super) const FAST: u8 = 1 << 3;
pub(super) const STEP_MAX: u64 = 13;
pub(super) const MOVE: u8 = 14;
pub(super) const OBJECT: u8 = 15;
pub(super) const ACCESS: u8 = 0;
pub(super) const LOSS: u8 = 1;
pub(super) const TIME: u8 = 2;
pub(super) const NAME: u8 = 3;

/// The head of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Start of the capture, milliseconds since 1970.
    pub start_ms: u64,
    /// Length of a tick, milliseconds: the resolution of times. Not 0.
    pub tick_ms: u32,
}

impl Default for Header {
    /// Pages of 4 KiB, ticks of 10 ms, start unknown.
    fn default() -> Header {
        Header { page_bytes: 4096, start_ms: 0, tick_ms: 10 }
    }
}

/// One access, as recorded in a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The object's number (the inode number on the mount).
    pub object: u64,
    /// Page index in it.
    pub page: u64,
    /// A write.
    pub write: bool,
    /// The access path.
    pub via: AccessPath,
    /// Milliseconds since the start of the capture, recorded in whole ticks. A time before the last one's
    /// counts as the last one's.
    pub time_ms: u64,
}

impl Event {
    /// The access in the form common to all formats.
    pub fn access(&self) -> Access {
        let key = page_key(self.object, self.page);
        Access { key, write: self.write, via: Some(self.via), time_ms: self.time_ms }
    }
}

/// A file, with its attributes at the time of the recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The object's number.
    pub object: u64,
    /// Its path, relative to the source.
    pub path: PathBuf,
    /// Its size, bytes.
    pub bytes: u64,
    /// Its last change (mtime), nanoseconds since 1970.
    pub changed_ns: i64,
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// One access.
    Access(Event),
    /// This many accesses are missing here.
    Lost(u64),
    /// The file of an object.
    Name(Name),
}

/// Key of a page: the object's number, mixed, plus the page index. Neighbouring pages have neighbouring keys,
/// and keys of different objects practically never collide.
pub fn page_key(object: u64, page: u64) -> u64 {
    mix(object).wrapping_add(page)
}

/// SplitMix64's finaliser, a bijection.
pub(super) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// State kept by writer and reader between records.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Last {
    pub object: u64,
    pub page: u64,
    pub tick: u64,
}

pub(super) fn zigzag(difference: u64) -> u64 {
    let n = difference as i64;
    ((n << 1) ^ (n >> 63)) as u64
}

pub(super) fn unzigzag(n: u64) -> u64 {
    (n >> 1) ^ (n & 1).wrapping_neg()
}

pub(super) fn varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Takes a varint from the front of `bytes`.
pub(super) fn read_varint(bytes: &mut &[u8]) -> Result<u64, Broken> {
    let mut n = 0u64;
    for i in 0..10 {
        let (&byte, rest) = bytes.split_first().ok_or(Broken::Cut)?;
        *bytes = rest;
        n |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            return if i == 9 && byte > 1 {
                Err(Broken::Wrong("a number of more than 64 bits"))
            } else {
                Ok(n)
            };
        }
    }
    Err(Broken::Wrong("a number without an end"))
}

/// Why a record cannot be read.
pub(super) enum Broken {
    Cut,
    Wrong(&'static str),
}
