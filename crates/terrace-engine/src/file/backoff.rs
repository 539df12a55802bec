//! What is tried again and again with the pages of a file, and mostly in vain, is spared most of them.

use std::sync::atomic::{AtomicU16, Ordering};

/// Vain tries, less those that worked, after which further ones are spared, but for one in so many.
const TRIES: u16 = 16;
const REPROBE: u16 = 64;

/// The last tries with pages of one file.
#[derive(Debug, Default)]
pub(crate) struct Vain(AtomicU16);

impl Vain {
    /// Whether the next try should be spared. What is spared is counted, too, so that one in so many is tried. (Two bytes: there is one an
    /// object. When they overflow, it is tried anew.)
    pub(crate) fn spares(&self) -> bool {
        let vain = self.0.load(Ordering::Relaxed);
        if vain < TRIES {
            return false;
        }
        self.0.fetch_add(1, Ordering::Relaxed);
        !(vain - TRIES).is_multiple_of(REPROBE)
    }

    /// How a try ended. One that worked outweighs so many in vain.
    pub(crate) fn note(&self, worked: bool, outweighs: u16) {
        if worked {
            let vain = self.0.load(Ordering::Relaxed).min(TRIES);
            self.0.store(vain.saturating_sub(outweighs), Ordering::Relaxed);
        } else {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_tries_are_spared_until_one_works() {
        let vain = Vain::default();
        (0..TRIES).for_each(|_| {
            assert!(!vain.spares());
            vain.note(false, TRIES);
        });
        let tried = (0..10 * REPROBE).filter(|_| !vain.spares()).count();
        assert_eq!(tried, 10);
        vain.note(true, TRIES);
        (0..TRIES).for_each(|_| {
            assert!(!vain.spares());
            vain.note(false, TRIES);
        });
        assert!(!vain.spares() && vain.spares(), "the first is a probe");
    }

    #[test]
    fn what_works_now_and_then_is_spared_if_that_is_too_seldom() {
        // Of 1000 pages each `one_in`th would do.
        let tried = |one_in: u32| {
            let vain = Vain::default();
            (1..=1000)
                .filter(|i| {
                    !vain.spares() && {
                        vain.note(i % one_in == 0, 4);
                        true
                    }
                })
                .count()
        };
        assert_eq!(tried(4), 1000);
        assert!(tried(10) < 200, "{}", tried(10));
    }
}
