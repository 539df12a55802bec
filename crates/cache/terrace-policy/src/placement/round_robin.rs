//! Placement engine `round-robin`: each piece goes to the next target that has room for it.

use super::target::{Placement, Share, Target, next_with_room};

/// The engine; it keeps the next target from batch to batch.
#[derive(Debug, Default)]
pub(crate) struct RoundRobin {
    next: usize,
}

impl Placement for RoundRobin {
    fn place(&mut self, pieces: &[u64], targets: &[Target], out: &mut Vec<Share>) {
        let mut room: Vec<u64> = targets.iter().map(|target| target.free).collect();
        for (piece, &bytes) in pieces.iter().enumerate().filter(|(_, bytes)| **bytes > 0) {
            if let Some(target) = next_with_room(&room, self.next, bytes) {
                room[target] -= bytes;
                self.next = (target + 1) % room.len();
                out.push(Share { piece, target, bytes });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_targets_are_passed_over() {
        let target = |free| Target { free, queued: 0, write: 1.0 };
        let (mut engine, mut out) = (RoundRobin::default(), Vec::new());
        engine.place(&[4, 4, 4, 4], &[target(4), target(100), target(3)], &mut out);
        engine.place(&[4], &[target(4), target(4), target(4)], &mut out);
        assert_eq!(out.iter().map(|share| share.target).collect::<Vec<_>>(), [0, 1, 1, 1, 2]);
    }
}
