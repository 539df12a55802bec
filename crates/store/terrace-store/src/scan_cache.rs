//! Scans through unordered names, piece by piece. The place of a name is a number from its hash. Each piece
//! has the names with the next lowest places.
//!
//! Finding the ten lowest of a million names needs a pass over all of them. So one pass collects an eighth of
//! the names. The first of them are the current piece; the *rest* is kept for later pieces. A rest lacks
//! names added later. A scan under way may miss them. A new scan must not, so it drops these rests. A rest
//! may have names that were removed later, so the caller looks up each name.

use crate::allocated::allocated;
use std::ops::RangeInclusive;
use terrace_engine::prefetch;

/// A look picks out one name in this many.
const PARTS: usize = 8;
/// Minimum number of names that a look picks out.
const NAMES_MIN: usize = 64;
/// Maximum number of kept rests. The oldest is dropped for a new one.
const WALKS_MAX: usize = 8;

/// A name and its place.
type Placed = (u64, Box<[u8]>);

/// Memory of the names themselves, bytes.
fn spelled_bytes(names: &[Placed]) -> usize {
    names.iter().map(|(_, name)| allocated(name.len()) as usize).sum()
}

/// Iterates over items and prefetches the memory that each points to (`target`) a few items ahead.
pub fn fetched<I: Iterator + Clone>(
    items: I,
    target: impl Fn(&I::Item) -> (*const u8, usize),
) -> impl Iterator<Item = I::Item> {
    /// Distance of the prefetch, items.
    const AHEAD: usize = 16;
    let mut ahead = items.clone();
    let mut fetch = move || {
        if let Some((start, bytes)) = ahead.next().as_ref().map(&target) {
            prefetch(start, bytes);
        }
    };
    (0..AHEAD).for_each(|_| fetch());
    items.inspect(move |_| fetch())
}

/// Keeps the `count` names with the lowest places, and those that share the place of the last. Returns that
/// place.
fn keep_first(names: &mut Vec<(u64, &[u8])>, count: usize) -> u64 {
    let last = names.select_nth_unstable_by_key(count - 1, |(place, _)| *place).1.0;
    names.retain(|(place, _)| *place <= last);
    last
}

/// Names that a look picked out and no piece has taken yet.
#[derive(Debug)]
pub struct ScanRemainder {
    /// Lowest place covered: the rest has all names from here up to `next`.
    from: u64,
    /// Sorted from the last name to the first.
    names: Vec<Placed>,
    /// Place where the names behind the rest begin. 0: there are none.
    next: u64,
    spelled_bytes: usize,
}

impl ScanRemainder {
    /// Picks out the lowest of the names within `places`: at least `count`, if there are as many. `names`
    /// yields all names with their places, about `len` of them.
    pub fn look<'a>(
        places: RangeInclusive<u64>,
        count: usize,
        len: usize,
        names: impl Iterator<Item = (u64, &'a [u8])>,
    ) -> ScanRemainder {
        let wanted = count.max(len / PARTS).max(NAMES_MIN);
        let (from, mut last) = places.into_inner();
        let (mut first, mut first_max) = (Vec::new(), wanted.saturating_mul(2));
        for (place, name) in names.filter(|(place, _)| *place >= from) {
            if place <= last {
                first.push((place, name));
            }
            if first.len() == first_max {
                last = keep_first(&mut first, wanted);
                // Many names may share the last place.
                first_max = first.len().saturating_add(wanted);
            }
        }
        if first.len() > wanted {
            last = keep_first(&mut first, wanted);
        }
        let mut names: Vec<Placed> = first.into_iter().map(|(place, name)| (place, name.into())).collect();
        names.sort_unstable_by(|a, b| b.cmp(a));
        names.shrink_to_fit();
        let spelled_bytes = spelled_bytes(&names);
        ScanRemainder { from, names, next: last.wrapping_add(1), spelled_bytes }
    }

    /// Takes out the first `count` names, and those that share the place of the last of them.
    pub fn piece(&mut self, count: usize) -> impl ExactSizeIterator<Item = Placed> + use<> {
        let at = self.names.len().saturating_sub(count.max(1));
        let begin =
            self.names.get(at).map_or(0, |(last, _)| self.names.partition_point(|(place, _)| place > last));
        let piece = self.names.split_off(begin);
        self.spelled_bytes -= spelled_bytes(&piece);
        self.from = match piece.first() {
            Some((last, _)) if !self.names.is_empty() => last + 1,
            _ => self.next,
        };
        piece.into_iter().rev()
    }

    /// Place of the next piece. 0: there is none.
    pub fn begin(&self) -> u64 {
        self.from
    }

    fn bytes(&self) -> usize {
        self.names.capacity() * size_of::<Placed>() + self.spelled_bytes
    }
}

/// The kept rests of scans.
#[derive(Debug, Default)]
pub struct ScanCache {
    /// Each with the number of its owner, which the caller assigns. Oldest first.
    rests: Vec<(u64, ScanRemainder)>,
}

impl ScanCache {
    /// Takes the rest of the names of `owner` for a piece that begins at `from`, if it was kept. A new scan
    /// (0) first forgets all rests of `owner`.
    pub fn take(&mut self, owner: u64, from: u64) -> Option<ScanRemainder> {
        if from == 0 {
            self.rests.retain(|(of, _)| *of != owner);
        }
        let at = self.rests.iter().position(|(of, rest)| *of == owner && rest.from == from)?;
        Some(self.rests.remove(at).1)
    }

    /// Keeps the rest of a scan. All rests together take at most `bytes_max` bytes: the oldest are dropped.
    pub fn keep(&mut self, owner: u64, rest: ScanRemainder, bytes_max: usize) {
        if rest.names.is_empty() || rest.bytes() > bytes_max {
            return;
        }
        while self.rests.len() == WALKS_MAX || self.bytes() + rest.bytes() > bytes_max {
            self.rests.remove(0);
        }
        self.rests.push((owner, rest));
    }

    /// Drops all rests.
    pub fn clear(&mut self) {
        self.rests.clear();
    }

    /// Memory, bytes.
    pub fn bytes(&self) -> usize {
        self.rests.iter().map(|(_, rest)| rest.bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::collections::BTreeSet;
    use terrace_testkit::rng::{Rng, seed};

    /// Too little for the scans of the first test.
    const BYTES_MAX: usize = 500_000;

    fn place(name: u64) -> u64 {
        (name / 3).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// One piece of a scan through numbers as names, three of each place. Counts the looks at all names.
    fn walk(
        scan_cache: &mut ScanCache,
        numbers: &BTreeSet<u64>,
        from: u64,
        count: usize,
        looks: &Cell<usize>,
    ) -> (Vec<u64>, u64) {
        let names: Vec<Placed> = numbers.iter().map(|n| (place(*n), n.to_le_bytes().into())).collect();
        let mut rest = scan_cache.take(1, from).unwrap_or_else(|| {
            looks.set(looks.get() + 1);
            let names = names.iter().map(|(place, name)| (*place, &**name));
            ScanRemainder::look(from..=u64::MAX, count, numbers.len(), names)
        });
        let piece =
            rest.piece(count).map(|(_, name)| u64::from_le_bytes((*name).try_into().unwrap())).collect();
        let next = rest.begin();
        scan_cache.keep(1, rest, BYTES_MAX);
        (piece, next)
    }

    #[test]
    fn walks_beside_changes_meet_what_stays() {
        let mut rng = Rng::new(seed("walks_beside_changes_meet_what_stays"));
        for _ in 0..20 {
            let (mut scan_cache, mut numbers) = (ScanCache::default(), (0..6000).collect::<BTreeSet<u64>>());
            // For each scan: its cursor, the names it has met, the names that were present all the time.
            let mut under_way: Vec<(u64, BTreeSet<u64>, BTreeSet<u64>)> = Vec::new();
            let mut over = 0;
            while over < 4 {
                if under_way.is_empty() || rng.chance(2) {
                    under_way.push((0, BTreeSet::new(), numbers.clone()));
                }
                let number = rng.next_u64() % 8000;
                match numbers.remove(&number) {
                    true => under_way.iter_mut().for_each(|(.., stays)| _ = stays.remove(&number)),
                    false => _ = numbers.insert(number),
                }
                let at = rng.index(under_way.len());
                let (from, met, _) = &mut under_way[at];
                let (piece, next) = walk(&mut scan_cache, &numbers, *from, 1 + rng.index(300), &Cell::new(0));
                (*from, _) = (next, met.extend(piece));
                if next == 0 {
                    let (_, met, stays) = under_way.swap_remove(at);
                    assert!(stays.is_subset(&met), "{:?}", stays.difference(&met).next());
                    over += 1;
                }
            }
            assert!(scan_cache.rests.len() <= WALKS_MAX);
            let spelled = |rest: &ScanRemainder| rest.spelled_bytes == spelled_bytes(&rest.names);
            assert!(
                scan_cache.rests.iter().all(|(_, rest)| spelled(rest)) && scan_cache.bytes() <= BYTES_MAX
            );
        }
    }

    #[test]
    fn more_names_of_a_place_than_a_piece_has() {
        let names = [9, 5, 5, 5, 7, u64::MAX, u64::MAX, u64::MAX].map(|place| (place, &b"name"[..]));
        let (mut scan_cache, mut from, mut pieces) = (ScanCache::default(), 0, Vec::new());
        while pieces.is_empty() || from != 0 {
            let kept = scan_cache.take(1, from);
            let mut rest = kept
                .unwrap_or_else(|| ScanRemainder::look(from..=u64::MAX, 2, names.len(), names.into_iter()));
            pieces.push(rest.piece(2).len());
            from = rest.begin();
            scan_cache.keep(1, rest, BYTES_MAX);
            assert!(pieces.len() < 10, "{pieces:?}");
        }
        assert_eq!(pieces, [3, 2, 3]);
    }

    #[test]
    fn one_look_is_for_many_pieces() {
        let (mut scan_cache, numbers, looks) = (ScanCache::default(), (0..60_000).collect(), Cell::new(0));
        let (mut from, mut told, mut pieces) = (0, Vec::new(), 0);
        while pieces == 0 || from != 0 {
            let (piece, next) = walk(&mut scan_cache, &numbers, from, 10, &looks);
            assert!(piece.len() <= 12, "{}", piece.len());
            told.extend(piece);
            (from, pieces) = (next, pieces + 1);
        }
        told.sort_unstable();
        assert!(told.into_iter().eq(0..60_000), "each once");
        assert!(looks.get() <= PARTS + 1, "{} looks for {pieces} pieces", looks.get());
        assert_eq!(scan_cache.bytes(), 0);
    }
}
