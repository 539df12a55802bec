//! Whose device it is, how it is divided, whether it was left clean: one page, in two copies.
//!
//! ```text
//!    0 magic (8 bytes)    16 id of the tier (16)    40 sequence      64 bytes of a region    72 clean: 1 or 0
//!    8 layout version     32 hash of the source's   48 created       68 regions              76 bytes of the path
//!   12 crc32, itself 0       identity               56 last used                             80 path
//! ```
//! Magic, layout version and crc stay where they are in all layouts. Both copies are written whenever one changes, the second after
//! the first is durable: so one of them is always sound, and a run begins only when neither says any longer that the one before ended clean.
//!
//! **The sequence also numbers the laps.** A power cut can take the first batch of a region and leave a later one. If the next run used
//! the same lap again, that later batch would count as its own. So each run has laps of its own: those from `sequence << 32` on.

use super::format::{Filling, Geometry, TierId, crc_without_itself, u32_at, u64_at};
use terrace_shm::PAGE_SIZE;

/// Where the two copies lie, in bytes.
pub const COPIES_AT: [u64; 2] = [0, PAGE_SIZE as u64];
/// Bytes of the source's path that are kept.
pub const PATH_MAX: usize = 1024;
/// The layout that this program reads and writes.
pub const LAYOUT: u32 = 1;

const MAGIC: [u8; 8] = *b"terrTIER";
const CRC_AT: usize = 12;
const PATH_AT: usize = 80;
/// Bits of a lap below those of the run.
const LAP_BITS: u32 = 32;

/// The directory whose pages a tier holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Hash of what identifies it.
    pub hash: u64,
    /// Its path, for messages; what is longer than [`PATH_MAX`] bytes is cut off.
    pub path: String,
}

/// What a target says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The tier.
    pub id: TierId,
    /// Whose pages it holds.
    pub source: Source,
    /// How it is divided.
    pub geometry: Geometry,
    /// The last run flushed everything and ended.
    pub clean: bool,
    /// Higher in what was written later; below 2^32 - 1.
    pub sequence: u64,
    /// When it was formatted: seconds since 1970.
    pub created: u64,
    /// When a run last began or ended: seconds since 1970.
    pub used: u64,
}

/// What stands where a superblock should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Zeros.
    Empty,
    /// Something that is not terrace's.
    Foreign,
    /// A superblock of another layout version.
    Layout(u32),
    /// A superblock of which something is wrong.
    Damaged,
    /// A sound one.
    Ours(Superblock),
}

impl Superblock {
    /// One copy.
    ///
    /// # Panics
    /// If the sequence is too high.
    pub fn encode(&self) -> [u8; PAGE_SIZE] {
        assert!(self.sequence < SEQUENCE_END, "sequence {}", self.sequence);
        let path = &self.source.path.as_bytes()[..self.source.path.floor_char_boundary(PATH_MAX)];
        let mut page = [0; PAGE_SIZE];
        page[..8].copy_from_slice(&MAGIC);
        page[8..12].copy_from_slice(&LAYOUT.to_le_bytes());
        page[16..32].copy_from_slice(&self.id.0);
        for (at, value) in [(32, self.source.hash), (40, self.sequence), (48, self.created), (56, self.used)]
        {
            page[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        let (geometry, clean) = (self.geometry, u32::from(self.clean));
        for (at, value) in
            [(64, geometry.region_bytes()), (68, geometry.regions()), (72, clean), (76, path.len() as u32)]
        {
            page[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        page[PATH_AT..PATH_AT + path.len()].copy_from_slice(path);
        let crc = crc_without_itself(&page, CRC_AT);
        page[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        page
    }

    /// What one copy says.
    pub fn decode(page: &[u8]) -> Found {
        if page.iter().all(|byte| *byte == 0) {
            return Found::Empty;
        }
        if !page.starts_with(&MAGIC) {
            return Found::Foreign;
        }
        if page.len() != PAGE_SIZE || crc_without_itself(page, CRC_AT) != u32_at(page, CRC_AT) {
            return Found::Damaged;
        }
        match u32_at(page, 8) {
            LAYOUT => Self::fields(page).map_or(Found::Damaged, Found::Ours),
            other => Found::Layout(other),
        }
    }

    fn fields(page: &[u8]) -> Option<Superblock> {
        let path = page[PATH_AT..PATH_AT + PATH_MAX].get(..u32_at(page, 76) as usize)?;
        let superblock = Superblock {
            id: TierId(page[16..32].try_into().expect("16 bytes")),
            source: Source { hash: u64_at(page, 32), path: str::from_utf8(path).ok()?.to_owned() },
            geometry: Geometry::new(u32_at(page, 64), u32_at(page, 68))?,
            clean: u32_at(page, 72) == 1,
            sequence: u64_at(page, 40),
            created: u64_at(page, 48),
            used: u64_at(page, 56),
        };
        (superblock.sequence < SEQUENCE_END).then_some(superblock)
    }

    /// What both copies together say: the newer sound one counts. If the other is not sound, it may have been newer: then the target
    /// was not left clean, and the sequence of the other is taken as used.
    pub fn decode_both(first: &[u8], second: &[u8]) -> Found {
        match (Self::decode(first), Self::decode(second)) {
            (Found::Ours(a), Found::Ours(b)) => Found::Ours(if a.sequence >= b.sequence { a } else { b }),
            (Found::Ours(one), _) | (_, Found::Ours(one)) => {
                let sequence = (one.sequence + 1).min(SEQUENCE_END - 1);
                Found::Ours(Superblock { clean: false, sequence, ..one })
            }
            (Found::Layout(version), _) | (_, Found::Layout(version)) => Found::Layout(version),
            (Found::Damaged, _) | (_, Found::Damaged) => Found::Damaged,
            (Found::Foreign, _) | (_, Found::Foreign) => Found::Foreign,
            (Found::Empty, Found::Empty) => Found::Empty,
        }
    }

    /// The first filling of a run that begins with this superblock on the target, if there is nothing on it yet.
    pub fn first_filling(&self) -> Filling {
        let lap = self.lap_base();
        Filling { lap, before: None, oldest: lap }
    }

    /// The laps of the run that wrote this superblock begin here.
    pub(super) fn lap_base(&self) -> u64 {
        self.sequence.max(1) << LAP_BITS
    }
}

const SEQUENCE_END: u64 = (1 << (64 - LAP_BITS)) - 1;
