//! The superblock: source and region layout of a target, and whether it was left clean; one page, in two
//! copies.
//!
//! ```text
//!    0 magic (8 bytes)    16 id of the tier (16)    40 sequence     64 bytes of a region    72 clean: 1 or 0
//!    8 layout version     32 hash of the source's   48 created      68 regions              76 bytes of the path
//!   12 crc32, itself 0       identity               56 last used    1104 run (u64)          80 path
//!                                                                   1112 undestaged pages: 1 or 0
//!                                                                   1120 boot, 1128 first trusted run
//! ```
//! Magic, layout version and crc have the same place in all layouts. A change writes the second copy once the
//! first is durable, so one copy is always sound. A run begins when neither copy has the clean flag.
//!
//! **Each run has its own laps**, from `run << 32` on. A power cut can remove a region's first batch and
//! leave a later one. With a reused lap, the next run would take that batch for its own.
//!
//! **A reboot in the middle of a run voids identities.** File systems make overwritten data durable before the
//! file's times (fdatasync(2)). After a power cut, a file may have new data and its old identity.

use super::format::{DATA_AT, Geometry, TierId, crc_without_itself, u32_at, u64_at};
use super::medium::{Medium, is_zero};
use std::io;
use terrace_io::AlignedBuf;
use terrace_shm::PAGE_SIZE;

/// Byte offsets of the two copies.
pub const COPIES_AT: [u64; 2] = [0, PAGE_SIZE as u64];
/// Bytes kept of the source's path.
pub(crate) const PATH_MAX: usize = 1024;
/// The layout of a target that never had undestaged pages.
pub(crate) const LAYOUT: u32 = 1;
/// The layout with records of undestaged pages. Versions without these records refuse it.
pub(crate) const LAYOUT_UNDESTAGED: u32 = 2;

const MAGIC: [u8; 8] = *b"terrTIER";
const CRC_AT: usize = 12;
const PATH_AT: usize = 80;
/// Bits of a lap below those of the run.
const LAP_BITS: u32 = 32;
const RUN_AT: usize = PATH_AT + PATH_MAX;
const UNDESTAGED_AT: usize = RUN_AT + 8;
const BOOT_AT: usize = UNDESTAGED_AT + 8;
const TRUSTED_AT: usize = BOOT_AT + 8;
/// Largest number of runs in a superblock, which leaves room to count later runs.
const RUNS_MAX: u64 = 1 << 31;

/// The source directory of a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Hash of the directory's identity.
    pub hash: u64,
    /// Path, for messages; cut off after [`PATH_MAX`] bytes.
    pub path: String,
}

/// Whether a target holds pages that the source lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UndestagedMark {
    /// No run could write undestaged pages: there are no records of them.
    Never,
    /// All pages are destaged.
    Destaged,
    /// Perhaps: a scan finds out.
    Perhaps,
}

/// A target's description of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The tier.
    pub id: TierId,
    /// The source of the pages.
    pub source: Source,
    /// Division into regions.
    pub geometry: Geometry,
    /// The last run flushed everything and ended.
    pub clean: bool,
    /// Whether the target holds pages that the source lacks.
    pub undestaged: UndestagedMark,
    /// Grows with each write of the superblock.
    pub(crate) sequence: u64,
    /// The last run that began.
    run: u64,
    /// The machine's boot in which the last run began.
    boot: u64,
    /// Identities of files that earlier runs recorded are void.
    trusted_run: u64,
    /// The last run is the present one. Not stored on the device.
    begun: bool,
    /// Time of the format: seconds since 1970.
    pub created: u64,
    /// Begin or end of the last run: seconds since 1970.
    pub used: u64,
}

/// Content of a superblock's place on a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Zeros.
    Empty,
    /// Data of another program.
    Foreign,
    /// A superblock of another layout version.
    Layout(u32),
    /// A superblock with an error.
    Damaged,
    /// A sound one.
    Ours(Superblock),
}

impl Superblock {
    /// The superblock of a new tier; [`format`] writes it.
    ///
    /// # Errors
    /// As [`TierId::random`].
    pub fn new(source: Source, geometry: Geometry, now: u64) -> io::Result<Superblock> {
        let unknown = Superblock::unknown(TierId::random()?, geometry);
        Ok(Superblock { source, clean: true, created: now, used: now, ..unknown })
    }

    /// A placeholder for the superblock of a target that cannot be read at the moment.
    pub(super) fn unknown(id: TierId, geometry: Geometry) -> Superblock {
        Superblock {
            id,
            source: Source { hash: 0, path: String::new() },
            geometry,
            clean: false,
            undestaged: UndestagedMark::Never,
            sequence: 0,
            run: 0,
            boot: 0,
            trusted_run: 0,
            begun: false,
            created: 0,
            used: 0,
        }
    }

    /// One copy.
    pub fn encode(&self) -> [u8; PAGE_SIZE] {
        let path = &self.source.path.as_bytes()[..self.source.path.floor_char_boundary(PATH_MAX)];
        let mut page = [0; PAGE_SIZE];
        page[..8].copy_from_slice(&MAGIC);
        let layout = if self.undestaged == UndestagedMark::Never { LAYOUT } else { LAYOUT_UNDESTAGED };
        page[8..12].copy_from_slice(&layout.to_le_bytes());
        page[16..32].copy_from_slice(&self.id.0);
        for (at, value) in [
            (32, self.source.hash),
            (40, self.sequence),
            (48, self.created),
            (56, self.used),
            (RUN_AT, self.run),
            (BOOT_AT, self.boot),
            (TRUSTED_AT, self.trusted_run),
        ] {
            page[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        let (geometry, undestaged) = (self.geometry, self.undestaged == UndestagedMark::Perhaps);
        for (at, value) in [
            (64, geometry.region_bytes()),
            (68, geometry.regions()),
            (72, self.clean.into()),
            (76, path.len() as u32),
            (UNDESTAGED_AT, undestaged.into()),
        ] {
            page[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        page[PATH_AT..PATH_AT + path.len()].copy_from_slice(path);
        let crc = crc_without_itself(&page, CRC_AT);
        page[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        page
    }

    /// Content of one copy.
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
            LAYOUT | LAYOUT_UNDESTAGED => Self::fields(page).map_or(Found::Damaged, Found::Ours),
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
            undestaged: match (u32_at(page, 8), u32_at(page, UNDESTAGED_AT)) {
                (LAYOUT, _) => UndestagedMark::Never,
                (_, 0) => UndestagedMark::Destaged,
                _ => UndestagedMark::Perhaps,
            },
            sequence: u64_at(page, 40),
            run: u64_at(page, RUN_AT),
            boot: u64_at(page, BOOT_AT),
            trusted_run: u64_at(page, TRUSTED_AT),
            begun: false,
            created: u64_at(page, 48),
            used: u64_at(page, 56),
        };
        (superblock.run < RUNS_MAX && superblock.sequence < u64::MAX / 2).then_some(superblock)
    }

    /// Decodes both copies: the newer sound one counts. A damaged copy may have been newer: the target then
    /// counts as not clean, with one more run begun.
    pub(crate) fn decode_both(first: &[u8], second: &[u8]) -> Found {
        match (Self::decode(first), Self::decode(second)) {
            (Found::Ours(a), Found::Ours(b)) => Found::Ours(if a.sequence >= b.sequence { a } else { b }),
            (Found::Ours(one), _) | (_, Found::Ours(one)) => {
                Found::Ours(Superblock { clean: false, sequence: one.sequence + 1, run: one.run + 1, ..one })
            }
            (Found::Layout(version), _) | (_, Found::Layout(version)) => Found::Layout(version),
            (Found::Damaged, _) | (_, Found::Damaged) => Found::Damaged,
            (Found::Foreign, _) | (_, Found::Foreign) => Found::Foreign,
            (Found::Empty, Found::Empty) => Found::Empty,
        }
    }

    /// First lap of the present run, or of the next one before it has begun.
    pub(super) fn lap_base(&self) -> u64 {
        (if self.begun { self.run } else { self.run + 1 }) << LAP_BITS
    }

    /// Notes the machine's present boot, before the scan. Voids all identities if the machine rebooted during the
    /// last run.
    pub fn enter_boot(&mut self, boot: u64) {
        if !self.clean && self.boot != boot {
            self.trusted_run = self.run + 1;
        }
        self.boot = boot;
    }

    /// Whether identities recorded in the run of this lap are valid.
    pub(super) fn trusts(&self, lap: u64) -> bool {
        lap >> LAP_BITS >= self.trusted_run
    }

    /// Whether the run of this lap has flushed its regions for sure.
    pub(super) fn is_flushed(&self, lap: u64) -> bool {
        self.clean && lap >> LAP_BITS == self.run
    }
}

/// The content of a target. An empty target has only zeros before the first region: some file systems leave
/// the first pages free.
///
/// # Errors
/// The medium's.
pub fn find(medium: &dyn Medium) -> io::Result<Found> {
    let found = AlignedBuf::default().with(2 * PAGE_SIZE, |copies| {
        medium.read(COPIES_AT[0], copies)?;
        io::Result::Ok(Superblock::decode_both(&copies[..PAGE_SIZE], &copies[PAGE_SIZE..]))
    })?;
    if found != Found::Empty {
        return Ok(found);
    }
    let start = medium.bytes().min(DATA_AT) / PAGE_SIZE as u64 * PAGE_SIZE as u64;
    Ok(if is_zero(medium, 0, start)? { Found::Empty } else { Found::Foreign })
}

/// Begins a run, at `now` seconds since 1970, and clears the clean flag. Called before the first batch, and
/// before or after the scan.
///
/// # Errors
/// The medium's: no batch may be written.
pub fn begin(medium: &dyn Medium, superblock: &mut Superblock, now: u64) -> io::Result<()> {
    if !superblock.begun {
        superblock.run += 1;
    }
    (superblock.begun, superblock.clean, superblock.used) = (true, false, now);
    store(medium, superblock)
}

/// Ends the run at `now` (seconds since 1970): flushes all batches, then sets the clean flag.
///
/// # Errors
/// The medium's: the target may not count as clean.
pub fn end(medium: &dyn Medium, superblock: &mut Superblock, now: u64) -> io::Result<()> {
    medium.flush()?;
    (superblock.clean, superblock.used) = (true, now);
    store(medium, superblock)
}

/// Changes the number of regions; their size stays.
///
/// # Errors
/// The medium's: the target has the new or the old division.
pub fn resize(medium: &dyn Medium, superblock: &mut Superblock, geometry: Geometry) -> io::Result<()> {
    assert_eq!(superblock.geometry.region_bytes(), geometry.region_bytes());
    medium.flush()?;
    superblock.geometry = geometry;
    store(medium, superblock)
}

/// Formats a target; its content is lost.
///
/// # Errors
/// The medium's, or `InvalidInput` if it is smaller than the geometry says.
pub fn format(medium: &dyn Medium, superblock: &mut Superblock) -> io::Result<()> {
    if medium.bytes() < superblock.geometry.bytes() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // The new sequence is above the old one, so a remaining old copy does not count.
    if let Found::Ours(old) = find(medium)? {
        superblock.sequence = superblock.sequence.max(old.sequence);
    }
    store(medium, superblock)
}

/// Writes both copies, with the next sequence, and makes them durable.
fn store(medium: &dyn Medium, superblock: &mut Superblock) -> io::Result<()> {
    superblock.sequence += 1;
    let page = superblock.encode();
    AlignedBuf::default().with(PAGE_SIZE, |buf| {
        medium.read(COPIES_AT[1], buf)?;
        let second_is_sound = matches!(Superblock::decode(buf), Found::Ours(_));
        buf.copy_from_slice(&page);
        // A damaged copy is written first: a power cut can damage the copy under write.
        for copy in if second_is_sound { [0, 1] } else { [1, 0] } {
            medium.write(COPIES_AT[copy], buf)?;
            medium.flush()?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests;
