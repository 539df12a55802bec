//! The 64-bit index entry of one page.
//!
//! ```text
//!  63      34 33       2 1 0
//! | version  | payload  |st |    payload: frame number (Present, Busy), shadow (Absent) or place (Below)
//!
//!            |0| handle in the compressed pool |
//!            |1| region (19 bits) | page (12)  |    a slot of a device
//! ```
//! `version` is the low 30 bits of the daemon's event clock at the entry's last change. Every change of any
//! entry moves the clock, so a pair of entry and version returns only after 2^30 events.

/// The state of an entry's page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Not in the cache; the payload is the shadow of an earlier stay (0: none).
    Absent,
    /// In the frame that the payload names.
    Present,
    /// In a frame that the daemon is changing: clients use the mount path.
    Busy,
    /// Below DRAM: see [`Below`].
    Below,
}

/// Place of a compressed page in the pool: zspage and slot, decoded in `zobject.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u32);

/// Place of a page below DRAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Below {
    /// In the compressed pool.
    Compressed(Handle),
    /// On a device.
    Device(DeviceSlot),
}

/// A page of a device: regions of 16 MiB, numbered over all devices.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DeviceSlot(u32);

const DEVICE: u32 = 1 << 31;
const REGION_PAGES_SHIFT: u32 = 12;

impl DeviceSlot {
    /// Number of regions that an entry can name.
    pub const REGIONS_MAX: u32 = DEVICE >> REGION_PAGES_SHIFT;
    /// Pages of a region.
    pub const REGION_PAGES: u32 = 1 << REGION_PAGES_SHIFT;

    /// Page `page` of region `region`.
    ///
    /// # Panics
    /// If an entry cannot name that region or page.
    pub fn new(region: u32, page: u32) -> DeviceSlot {
        assert!(region < Self::REGIONS_MAX && page < Self::REGION_PAGES, "no page {page} of region {region}");
        DeviceSlot(region << REGION_PAGES_SHIFT | page)
    }
    /// The region.
    pub fn region(self) -> u32 {
        self.0 >> REGION_PAGES_SHIFT
    }
    /// The slot as a number below 2^31, for tables.
    pub fn bits(self) -> u32 {
        self.0
    }
    /// Inverse of [`DeviceSlot::bits`].
    pub fn from_bits(bits: u32) -> DeviceSlot {
        DeviceSlot(bits & !DEVICE)
    }
    /// The page in the region.
    pub fn page(self) -> u32 {
        self.0 & (Self::REGION_PAGES - 1)
    }
}

impl std::fmt::Debug for DeviceSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceSlot({}:{})", self.region(), self.page())
    }
}

impl Below {
    fn payload(self) -> u32 {
        match self {
            Below::Compressed(handle) => {
                debug_assert!(handle.0 & DEVICE == 0, "{handle:?} lies outside of any pool");
                handle.0
            }
            Below::Device(slot) => DEVICE | slot.0,
        }
    }
    fn of_payload(payload: u32) -> Below {
        match payload & DEVICE {
            0 => Below::Compressed(Handle(payload)),
            _ => Below::Device(DeviceSlot(payload & !DEVICE)),
        }
    }
}

/// An index entry, decoded on demand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Entry(pub u64);

const VERSION_SHIFT: u32 = 34;
const PAYLOAD_SHIFT: u32 = 2;
const PAYLOAD_MASK: u64 = 0xffff_ffff << PAYLOAD_SHIFT;
const STATE_MASK: u64 = 3;

impl Entry {
    /// A page that was never cached.
    #[cfg(test)]
    pub(crate) const EMPTY: Entry = Entry(0);

    fn new(state: u64, payload: u32, clock: u64) -> Entry {
        Entry(state | u64::from(payload) << PAYLOAD_SHIFT | clock << VERSION_SHIFT)
    }
    /// An absent page with its shadow (0: none), at event `clock`.
    pub fn absent(shadow: u32, clock: u64) -> Entry {
        Entry::new(0, shadow, clock)
    }
    /// A page in `frame`, at event `clock`.
    pub fn present(frame: u32, clock: u64) -> Entry {
        Entry::new(1, frame, clock)
    }
    /// A page in `frame` under change, at event `clock`.
    pub fn busy(frame: u32, clock: u64) -> Entry {
        Entry::new(2, frame, clock)
    }
    /// A page in the compressed pool, at event `clock`.
    pub fn compressed(handle: Handle, clock: u64) -> Entry {
        Entry::new(3, Below::Compressed(handle).payload(), clock)
    }
    /// A page on a device, at event `clock`.
    pub fn device(slot: DeviceSlot, clock: u64) -> Entry {
        Entry::new(3, Below::Device(slot).payload(), clock)
    }
    /// The state.
    pub fn state(self) -> State {
        match self.0 & STATE_MASK {
            0 => State::Absent,
            1 => State::Present,
            2 => State::Busy,
            _ => State::Below,
        }
    }
    /// Frame number, shadow or place below.
    pub fn payload(self) -> u32 {
        ((self.0 & PAYLOAD_MASK) >> PAYLOAD_SHIFT) as u32
    }
    /// The frame, if the page has one.
    pub fn frame(self) -> Option<u32> {
        matches!(self.state(), State::Present | State::Busy).then(|| self.payload())
    }
    /// The page's place below DRAM, if it has one.
    pub fn below(self) -> Option<Below> {
        (self.state() == State::Below).then(|| Below::of_payload(self.payload()))
    }
    /// The page's handle in the compressed pool, if it is there.
    pub fn handle(self) -> Option<Handle> {
        match self.below() {
            Some(Below::Compressed(handle)) => Some(handle),
            _ => None,
        }
    }
    /// The shadow of an absent page (0: none).
    pub fn shadow(self) -> u32 {
        if self.state() == State::Absent { self.payload() } else { 0 }
    }
    /// The same absent entry with another shadow. The version stays, since the content did not change.
    pub fn with_shadow(self, shadow: u32) -> Entry {
        debug_assert_eq!(self.state(), State::Absent);
        Entry(self.0 & !PAYLOAD_MASK | u64::from(shadow) << PAYLOAD_SHIFT)
    }
    /// State and version without the payload: a page fill is valid only if they are unchanged.
    pub fn identity(self) -> u64 {
        self.0 & !PAYLOAD_MASK
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}({})v{}", self.state(), self.payload(), self.0 >> VERSION_SHIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_and_unpacks() {
        let e = Entry::present(u32::MAX, u64::MAX);
        assert_eq!((e.state(), e.frame()), (State::Present, Some(u32::MAX)));
        let a = Entry::absent(7, 5);
        assert_eq!((a.state(), a.shadow(), a.frame()), (State::Absent, 7, None));
        assert_eq!(a.with_shadow(9).identity(), a.identity());
        assert_ne!(Entry::absent(7, 6).identity(), a.identity());
        assert_eq!(Entry::busy(3, 1).frame(), Some(3));
        assert_eq!(Entry::EMPTY.state(), State::Absent);
    }

    #[test]
    fn entries_below_dram_decode_to_what_they_encode() {
        let (max, page_max) = (DeviceSlot::REGIONS_MAX - 1, DeviceSlot::REGION_PAGES - 1);
        assert_eq!(u64::from(DeviceSlot::REGIONS_MAX) * u64::from(DeviceSlot::REGION_PAGES) * 4096, 8 << 40);
        for handle in [Handle(0), Handle(1), Handle(u32::MAX >> 1)] {
            let e = Entry::compressed(handle, u64::MAX);
            assert_eq!((e.state(), e.below()), (State::Below, Some(Below::Compressed(handle))));
            assert_eq!((e.handle(), e.frame(), e.shadow()), (Some(handle), None, 0));
        }
        for (region, page) in [(0, 0), (0, page_max), (1, 0), (max, 0), (max, page_max)] {
            let slot = DeviceSlot::new(region, page);
            assert_eq!((slot.region(), slot.page()), (region, page));
            let e = Entry::device(slot, 5);
            assert_eq!((e.state(), e.below()), (State::Below, Some(Below::Device(slot))));
            assert_eq!((e.handle(), e.frame(), e.shadow()), (None, None, 0));
            assert_ne!(e.identity(), Entry::device(slot, 6).identity(), "the version stays whole");
        }
        for e in [Entry::EMPTY, Entry::present(u32::MAX, 1), Entry::busy(7, 1), Entry::absent(1 << 31, 1)] {
            assert_eq!((e.below(), e.handle()), (None, None), "{e:?}");
        }
    }
}
