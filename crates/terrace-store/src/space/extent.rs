//! A part of the heap.

use crate::record::{Blob, INLINE};

/// Units of 64 bytes in a page.
pub(crate) const PAGE_UNITS: u64 = 64;
/// Bytes of a unit.
pub(crate) const UNIT: u64 = 64;
/// Bytes of a page.
pub(crate) const PAGE: u64 = PAGE_UNITS * UNIT;

/// A part of the heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Where it begins, in units.
    pub start: u64,
    /// Its size, in units; 0: nothing.
    pub units: u32,
}

impl Extent {
    /// Of a blob without bytes.
    pub(crate) const NONE: Extent = Extent { start: 0, units: 0 };

    /// That of a blob.
    pub(crate) fn of(blob: &Blob) -> Extent {
        if blob.has(INLINE) { Extent::NONE } else { Extent { start: blob.start(), units: blob.units } }
    }

    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.units) * UNIT
    }
    /// Its first byte in the heap's file.
    pub(crate) fn offset(&self) -> u64 {
        self.start * UNIT
    }
    /// Whether it is made of whole pages.
    pub(crate) fn is_pages(&self) -> bool {
        u64::from(self.units).is_multiple_of(PAGE_UNITS)
    }
    /// The page that it begins in.
    pub(super) fn page(&self) -> u64 {
        self.start / PAGE_UNITS
    }
}
