//! A ghost queue: a FIFO of the pages evicted last. A page that is faulted again leaves it.
//!
//! It has no keys, links or hash table. Each evicted page gets the next *serial number* as the shadow in its
//! index entry. The queue is one bit a number.
//!
//! ```text
//!   serials:  ... 41   42   43   44   45   46   47 ► next
//!   live:          0    1    1    0    1    1    1
//!                  ▲ oldest: forgotten when the queue is longer than allowed
//!                                 44 came back: its place is empty, so 41's successors stay longer
//! ```
//! It equals a linked list with removal, with one exception. The bits are a ring, which forgets an entry
//! after `slack` times the maximum length of further pushes.

use std::num::NonZeroU32;

use crate::Shadow;

/// Serial numbers have 31 bits. The other bit of a shadow distinguishes a policy's two ghosts.
const MASK: u32 = u32::MAX >> 1;

#[derive(Debug)]
pub(crate) struct Ghost {
    live: Vec<u64>,
    oldest: u32,
    next: u32,
    len: usize,
    /// Entry removed by [`Ghost::announce`], before the insertion of its page.
    announced: Option<u32>,
}

impl Ghost {
    /// A ghost of at most `len_max` entries. It forgets an entry at the latest after `slack * len_max`
    /// further ones.
    pub(crate) fn new(len_max: usize, slack: usize) -> Ghost {
        let ring = (len_max * slack).next_power_of_two().clamp(64, 1 << 30);
        Ghost { live: vec![0; ring / 64], oldest: 1, next: 1, len: 0, announced: None }
    }

    /// Length of the ring, in entries.
    pub(crate) fn ring(&self) -> usize {
        self.live.len() * 64
    }

    /// Index of a serial number in tables parallel to the ring.
    pub(crate) fn place(&self, serial: u32) -> usize {
        serial as usize & (self.ring() - 1)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> usize {
        self.live.capacity() * size_of::<u64>()
    }

    fn span(&self) -> u32 {
        self.next.wrapping_sub(self.oldest) & MASK
    }

    fn is_live(&self, serial: u32) -> bool {
        let place = self.place(serial);
        self.live[place / 64] >> (place % 64) & 1 == 1
    }

    fn kill(&mut self, serial: u32) {
        let place = self.place(serial);
        self.live[place / 64] &= !(1 << (place % 64));
        self.len -= 1;
    }

    /// Adds an evicted page. Returns its serial number, never 0.
    pub(crate) fn push(&mut self) -> u32 {
        while self.span() as usize >= self.ring() {
            if self.is_live(self.oldest) {
                self.kill(self.oldest);
            }
            self.oldest = (self.oldest + 1) & MASK;
        }
        let serial = self.next;
        let place = self.place(serial);
        self.live[place / 64] |= 1 << (place % 64);
        self.len += 1;
        self.next = ((serial + 1) & MASK).max(1);
        serial
    }

    pub(crate) fn contains(&self, serial: u32) -> bool {
        let ago = self.next.wrapping_sub(serial) & MASK;
        ago != 0 && ago <= self.span() && serial != 0 && self.is_live(serial)
    }

    /// Removes the entry; false if it was forgotten already.
    pub(crate) fn take(&mut self, serial: u32) -> bool {
        let found = self.contains(serial);
        if found {
            self.kill(serial);
        }
        found
    }

    /// Removes the entry of a page at the begin of its fault, before its insertion; false if it was forgotten.
    pub(crate) fn announce(&mut self, serial: u32) -> bool {
        let found = self.take(serial);
        self.announced = found.then_some(serial);
        found
    }

    /// Whether an announced fault still waits for its insertion.
    pub(crate) fn is_announced(&self) -> bool {
        self.announced.is_some()
    }

    /// Whether this page was announced; ends the announcement.
    pub(crate) fn was_announced(&mut self, serial: u32) -> bool {
        self.announced.take() == Some(serial)
    }

    /// Whether the inserted page is remembered, now or when it was announced. Removes it.
    pub(crate) fn recall(&mut self, serial: u32) -> bool {
        self.was_announced(serial) || self.take(serial)
    }

    pub(crate) fn oldest(&mut self) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        while !self.is_live(self.oldest) {
            self.oldest = (self.oldest + 1) & MASK;
        }
        Some(self.oldest)
    }

    pub(crate) fn forget_oldest(&mut self) {
        if let Some(serial) = self.oldest() {
            self.kill(serial);
        }
    }

    /// Forgets the oldest entries until `len_max` are left.
    pub(crate) fn trim(&mut self, len_max: usize) {
        while self.len > len_max {
            self.forget_oldest();
        }
    }

    /// The serial numbers, newest first, as text.
    pub(crate) fn show(&self) -> String {
        let serials = (1..=self.span()).map(|ago| self.next.wrapping_sub(ago) & MASK);
        serials.filter(|&s| self.contains(s)).map(|s| s.to_string()).collect::<Vec<_>>().join(" ")
    }

    /// Checks that the length counts the live places.
    pub(crate) fn check(&self) -> Result<(), String> {
        let live: usize = self.live.iter().map(|word| word.count_ones() as usize).sum();
        if live == self.len { Ok(()) } else { Err(format!("ghost: {live} live, {} counted", self.len)) }
    }
}

/// A shadow made of a serial number and one bit of the policy.
pub(crate) fn shadow_of(serial: u32, bit: bool) -> Shadow {
    Shadow(NonZeroU32::new(serial << 1 | u32::from(bit)).expect("no serial is 0"))
}

/// The arguments of [`shadow_of`].
pub(crate) fn serial_of(shadow: Shadow) -> (u32, bool) {
    (shadow.0.get() >> 1, shadow.0.get() & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use terrace_testkit::rng::Rng;

    #[test]
    fn it_is_a_list_with_removal() {
        let mut rng = Rng::new(1);
        let mut ghost = Ghost::new(20, 8);
        let mut model: VecDeque<u32> = VecDeque::new();
        ghost.oldest = MASK - 1000; // so that the numbers wrap on the way
        ghost.next = ghost.oldest;
        for _ in 0..20_000 {
            let draw = rng.index(1 << 31);
            if draw.is_multiple_of(3) && !model.is_empty() {
                let serial = model.remove(draw / 3 % model.len()).unwrap();
                assert!(ghost.recall(serial));
                assert!(!ghost.recall(serial));
            } else {
                model.push_front(ghost.push());
                model.truncate(20);
                ghost.trim(20);
            }
            assert_eq!(ghost.len(), model.len());
            assert_eq!(ghost.oldest(), model.back().copied());
            ghost.check().unwrap();
        }
        let all: Vec<String> = model.iter().map(|serial| serial.to_string()).collect();
        assert_eq!(ghost.show(), all.join(" "));
    }

    #[test]
    fn ring_forgets_a_request_that_waits_too_long() {
        let mut ghost = Ghost::new(64, 1);
        let first = ghost.push();
        for _ in 0..63 {
            let serial = ghost.push();
            assert!(ghost.take(serial));
        }
        assert!(ghost.contains(first));
        ghost.push();
        assert!(!ghost.contains(first));
        assert_eq!(ghost.len(), 1);
    }

    #[test]
    fn an_announced_page_is_out_of_the_queue_and_recalled_once() {
        let mut ghost = Ghost::new(8, 1);
        let (a, b) = (ghost.push(), ghost.push());
        assert!(ghost.announce(a) && ghost.is_announced());
        assert_eq!(ghost.show(), b.to_string());
        assert!(ghost.recall(a));
        assert!(!ghost.recall(a));
        assert_eq!(serial_of(shadow_of(b, true)), (b, true));
    }
}
