//! Placement engine `random`: each piece goes to a random target, or to the next after it that has room.

use super::target::{Placement, Share, Target, next_with_room};
use crate::keys::mix;

/// The engine, with the state of its random numbers.
#[derive(Debug)]
pub(crate) struct Random {
    state: u64,
}

impl Random {
    /// Numbers that begin at `seed`.
    pub(crate) fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    /// SplitMix64.
    fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.state)
    }
}

impl Placement for Random {
    fn place(&mut self, pieces: &[u64], targets: &[Target], out: &mut Vec<Share>) {
        let mut room: Vec<u64> = targets.iter().map(|target| target.free).collect();
        for (piece, &bytes) in pieces.iter().enumerate().filter(|(_, bytes)| **bytes > 0) {
            let start = (self.number() % room.len().max(1) as u64) as usize;
            if let Some(target) = next_with_room(&room, start, bytes) {
                room[target] -= bytes;
                out.push(Share { piece, target, bytes });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_chosen_equally_often() {
        let targets = [Target { free: u64::MAX, queued: 0, write: 1.0 }; 3];
        let mut out = Vec::new();
        Random::new(7).place(&[1; 3000], &targets, &mut out);
        for n in 0..3 {
            let chosen = out.iter().filter(|share| share.target == n).count();
            assert!((900..1100).contains(&chosen), "target {n}: {chosen} of 3000");
        }
    }
}
