//! An extent: the part of the heap file that holds a blob, in units of 64 bytes.

use crate::record::{Blob, INLINE};

/// Units of 64 bytes in a page.
pub(crate) const PAGE_UNITS: u64 = 64;
pub(crate) const UNIT: u64 = 64;
pub(crate) const PAGE: u64 = PAGE_UNITS * UNIT;

/// A part of the heap file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Start, in units.
    pub start: u64,
    /// Size, in units. 0: empty.
    pub units: u32,
}

impl Extent {
    /// The extent of a blob without bytes, or of an inline one.
    pub(crate) const NONE: Extent = Extent { start: 0, units: 0 };

    pub(crate) fn of(blob: &Blob) -> Extent {
        if blob.has(INLINE) { Extent::NONE } else { Extent { start: blob.start(), units: blob.units } }
    }

    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.units) * UNIT
    }
    /// Offset of the first byte in the heap file.
    pub(crate) fn offset(&self) -> u64 {
        self.start * UNIT
    }
    /// Whether the extent consists of whole pages.
    pub(crate) fn is_pages(&self) -> bool {
        u64::from(self.units).is_multiple_of(PAGE_UNITS)
    }
    /// The page of the extent's start.
    pub(super) fn page(&self) -> u64 {
        self.start / PAGE_UNITS
    }
}
