//! Division of targets into tiers: read times of targets in a tier differ by at most a factor of two.

/// Maximum ratio of the read times of a tier's slowest and fastest target.
const ALIKE: u64 = 2;

/// The tier of each target, 0 the fastest, by the time of a read of each, ns. Pages are spread over the
/// targets of a tier, and none moves between them.
pub fn levels(read_ns: &[u64]) -> Vec<u8> {
    let mut order: Vec<usize> = (0..read_ns.len()).collect();
    order.sort_by_key(|target| read_ns[*target]);
    let mut levels = vec![0; read_ns.len()];
    let (mut level, mut fastest) = (0, order.first().map_or(0, |target| read_ns[*target]));
    for target in order {
        if read_ns[target] > fastest.saturating_mul(ALIKE) {
            (level, fastest) = (level + 1, read_ns[target]);
        }
        levels[target] = level;
    }
    levels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_of_like_speed_are_one_tier() {
        assert_eq!(levels(&[]), []);
        assert_eq!(levels(&[90_000]), [0]);
        assert_eq!(levels(&[90_000, 90_000, 180_000]), [0, 0, 0]);
        assert_eq!(levels(&[8_000_000, 100_000, 10_000, 150_000, 5_000_000]), [2, 1, 0, 1, 2]);
        // A chain of neighbours is cut where the ends differ too much.
        assert_eq!(levels(&[10, 15, 21, 40, 43]), [0, 0, 1, 1, 2]);
    }
}
