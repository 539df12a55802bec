//! Placement engine `min-io-time`: every target works for the same time, as far as it has room.
//!
//! Water-filling finds the smallest time T in which the targets can take the batch. Target j takes at most
//! `min(free_j, T * write_j - queued_j)` bytes. Their sum over T is piecewise linear: it bends where a
//! target's queue ends, and where a target is full. T lies on the first line that reaches the size of the
//! batch.

use super::target::{CUT, Placement, Share, Target, by_speed, deal};

#[derive(Debug)]
pub(crate) struct MinIoTime;

impl Placement for MinIoTime {
    fn place(&mut self, pieces: &[u64], targets: &[Target], out: &mut Vec<Share>) {
        deal(pieces, quotas(pieces.iter().sum(), targets), out);
    }
}

/// Seconds until targets that share `bytes` optimally have written them; infinite without enough room.
pub fn seconds(bytes: u64, targets: &[Target]) -> f64 {
    if targets.iter().map(|target| u128::from(target.free)).sum::<u128>() < bytes.into() {
        return f64::INFINITY;
    }
    // Times at which a line bends, and the change of its slope there.
    let mut bends: Vec<(f64, f64)> = Vec::with_capacity(2 * targets.len());
    for target in targets.iter().filter(|target| target.free > 0) {
        bends.push((target.seconds(0), target.write));
        bends.push((target.seconds(target.free), -target.write));
    }
    bends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut taken, mut slope, mut at, mut working) = (0.0, 0.0, 0.0, 0);
    for (time, change) in bends {
        let until = taken + slope * (time - at);
        // Floating-point sums may fall just short of a whole number.
        if until + 0.5 >= bytes as f64 {
            break;
        }
        working += if change > 0.0 { 1 } else { -1 };
        // Changes that cancel each other leave a rounding error instead of a zero slope.
        slope = if working == 0 { 0.0 } else { slope + change };
        (taken, at) = (until, time);
    }
    let left = bytes as f64 - taken;
    // On a flat line the targets are full: the remainder is a rounding error.
    if left > 0.0 && slope > 0.0 { at + left / slope } else { at }
}

/// Bytes for each target: its part at that time, cut at pages. The remainder goes where there is room, the
/// fastest target first.
fn quotas(bytes: u64, targets: &[Target]) -> Vec<u64> {
    let time = seconds(bytes, targets);
    let part = |target: &Target| {
        let by_then = (time * target.write - target.queued as f64).max(0.0);
        // Saturates where the time is infinite.
        (by_then as u64 / CUT * CUT).min(target.free)
    };
    let mut quotas: Vec<u64> = targets.iter().map(part).collect();
    let mut over = quotas.iter().map(|quota| u128::from(*quota)).sum::<u128>().saturating_sub(bytes.into());
    let mut left = bytes.saturating_sub(quotas.iter().fold(0, |sum: u64, quota| sum.saturating_add(*quota)));
    for target in by_speed(targets) {
        let more = left.min(targets[target].free - quotas[target]);
        let less = over.min(quotas[target].into());
        quotas[target] = quotas[target] + more - less as u64;
        (left, over) = (left - more, over - less);
    }
    quotas
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1_000_000_000;

    /// RAM, NVMe and SSD of the published study: room and bandwidth of writes.
    fn published() -> [Target; 3] {
        [(20, 6.0), (150, 0.39), (400, 0.51)].map(|(free, write)| Target {
            free: free * GB,
            queued: 0,
            write: write * GB as f64,
        })
    }

    #[test]
    fn targets_end_at_the_same_time() {
        let targets = published();
        let mut out = Vec::new();
        MinIoTime.place(&vec![GB / 1000; 40_000], &targets, &mut out);
        let time = |n: usize| {
            let bytes = out.iter().filter(|share| share.target == n).map(|share| share.bytes).sum();
            targets[n].seconds(bytes)
        };
        // RAM takes all that it has room for; the others share 20 GB at 0.9 GB/s.
        let expected = 20.0 / 0.9;
        assert!(
            (time(1) - expected).abs() < 0.01 && (time(2) - expected).abs() < 0.01,
            "{} {}",
            time(1),
            time(2)
        );
        assert!(time(0) < expected);
    }

    #[test]
    fn rounding_errors_of_full_targets_take_no_time() {
        let targets = [
            Target { free: 6_225_920, queued: 2_686_976, write: 3_860_070.4 },
            Target { free: 1_048_576, queued: 3_211_264, write: 1_887_436.8 },
        ];
        let found = seconds(6_225_920 + 1_048_576, &targets);
        assert!((found - targets[0].seconds(6_225_920)).abs() < 1e-6, "{found}");
    }

    #[test]
    fn queued_data_delay_a_target() {
        let target = |queued| Target { free: 100 * CUT, queued, write: CUT as f64 };
        assert_eq!(seconds(10 * CUT, &[target(0), target(4 * CUT)]), 7.0);
        assert_eq!(quotas(10 * CUT, &[target(0), target(4 * CUT)]), [7 * CUT, 3 * CUT]);
        assert_eq!(seconds(201 * CUT, &[target(0), target(0)]), f64::INFINITY);
        assert_eq!(quotas(201 * CUT, &[target(0), target(0)]), [100 * CUT, 100 * CUT]);
    }
}
