//! The 64-bit index entry of one page.
//!
//! ```text
//!  63      34 33       2 1 0
//! | version  | payload  |st |    payload: frame number (Present, Busy), shadow (Absent) or handle (Tier)
//! ```
//! `version` is the low 30 bits of the daemon's event clock at the entry's last change: the clock moves with every
//! change of any entry, so a (entry, version) pair comes back only after 2^30 events.

/// What an entry says of its page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Not in the cache; the payload is the shadow of an earlier stay (0: none).
    Absent,
    /// In the frame that the payload names.
    Present,
    /// In a frame whose content the daemon is changing: readers take the main door.
    Busy,
    /// In the compressed pool: the payload is its handle there.
    Tier,
}

/// An index entry, decoded on demand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Entry(pub u64);

const VERSION_SHIFT: u32 = 34;
const PAYLOAD_SHIFT: u32 = 2;
const PAYLOAD_MASK: u64 = 0xffff_ffff << PAYLOAD_SHIFT;
const STATE_MASK: u64 = 3;

impl Entry {
    /// A page that the cache never saw.
    pub const EMPTY: Entry = Entry(0);

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
    /// A page in the compressed pool (a [`Handle`](crate::zobject::Handle)'s number), at event `clock`.
    pub fn tier(handle: u32, clock: u64) -> Entry {
        Entry::new(3, handle, clock)
    }
    /// The state.
    pub fn state(self) -> State {
        match self.0 & STATE_MASK {
            0 => State::Absent,
            1 => State::Present,
            2 => State::Busy,
            _ => State::Tier,
        }
    }
    /// Frame number, shadow or handle.
    pub fn payload(self) -> u32 {
        ((self.0 & PAYLOAD_MASK) >> PAYLOAD_SHIFT) as u32
    }
    /// The frame, if the page has one.
    pub fn frame(self) -> Option<u32> {
        matches!(self.state(), State::Present | State::Busy).then(|| self.payload())
    }
    /// The shadow of an absent page (0: none).
    pub fn shadow(self) -> u32 {
        if self.state() == State::Absent { self.payload() } else { 0 }
    }
    /// The same absent entry with another shadow. The version stays: nothing happened to the content.
    pub fn with_shadow(self, shadow: u32) -> Entry {
        debug_assert_eq!(self.state(), State::Absent);
        Entry(self.0 & !PAYLOAD_MASK | u64::from(shadow) << PAYLOAD_SHIFT)
    }
    /// State and version without the payload: what a donation must find unchanged.
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
        let z = Entry::tier(u32::MAX, 4);
        assert_eq!((z.state(), z.payload(), z.frame(), z.shadow()), (State::Tier, u32::MAX, None, 0));
        assert_eq!(Entry::EMPTY.state(), State::Absent);
    }
}
