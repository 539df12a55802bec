//! Input and output of placement engines: targets, pieces and shares; also helpers of several engines.

/// A piece for two targets is cut at a multiple of this, bytes.
pub const CUT: u64 = 4096;

/// A place for data, at the time of a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Target {
    /// Room, bytes.
    pub free: u64,
    /// Data still to be written before the batch, bytes.
    pub queued: u64,
    /// Bandwidth of writes, bytes a second; more than 0.
    pub write: f64,
}

impl Target {
    /// Seconds until the target has written `bytes` more.
    pub fn seconds(&self, bytes: u64) -> f64 {
        (self.queued + bytes) as f64 / self.write
    }
}

/// A part of a piece, and the target that takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Number of the piece in its batch.
    pub piece: usize,
    /// Number of the target.
    pub target: usize,
    /// Bytes of the piece that go there.
    pub bytes: u64,
}

/// Chooses targets for batches of pieces.
pub trait Placement: Send + std::fmt::Debug {
    /// Appends the shares of `pieces` (sizes in bytes) to `out`, in the order of the pieces. A piece that
    /// fits nowhere has no share: the caller writes it to the source.
    fn place(&mut self, pieces: &[u64], targets: &[Target], out: &mut Vec<Share>);
}

/// The first target from number `start` on, cyclically, with room for all of `bytes`.
pub(super) fn next_with_room(room: &[u64], start: usize, bytes: u64) -> Option<usize> {
    let n = room.len();
    (0..n).map(|i| (start + i) % n).find(|&target| room[target] >= bytes)
}

/// Deals the pieces by `quotas` (bytes), target by target; the end of a quota cuts a piece.
pub(super) fn deal(pieces: &[u64], mut quotas: Vec<u64>, out: &mut Vec<Share>) {
    let mut target = 0;
    for (piece, &size) in pieces.iter().enumerate() {
        let mut left = size;
        while left > 0 && target < quotas.len() {
            let bytes = left.min(quotas[target]);
            if bytes > 0 {
                out.push(Share { piece, target, bytes });
            }
            (left, quotas[target]) = (left - bytes, quotas[target] - bytes);
            target += usize::from(quotas[target] == 0);
        }
    }
}

pub(super) fn by_speed(targets: &[Target]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..targets.len()).collect();
    order.sort_by(|&a, &b| targets[b].write.total_cmp(&targets[a].write));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_cut_where_a_quota_ends() {
        let mut out = Vec::new();
        deal(&[10, 10], vec![0, 15, 3], &mut out);
        let shares: Vec<_> = out.iter().map(|s| (s.piece, s.target, s.bytes)).collect();
        assert_eq!(shares, [(0, 1, 10), (1, 1, 5), (1, 2, 3)]);
    }
}
