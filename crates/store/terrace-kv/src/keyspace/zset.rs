//! A sorted set in memory: members ordered by score, then by their bytes.
//!
//! The set has a tree for the order and a hash table for the scores. A rank index finds places by rank
//! (ZRANGE 100 200, ZRANK); it is built when first needed.

use std::cell::OnceCell;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use hashbrown::hash_map::EntryRef;
use hashbrown::{DefaultHashBuilder, HashMap};

use terrace_store::{ScanCache, fetched};

use super::collection::Collection;
use super::dead_records::DeadRecords;
use super::rank_index::RankIndex;
use super::record::MemberRecord;
use super::word::Kind;

/// Memory of a member without its bytes: shared allocation, entries of tree and table with spare room.
const MEMBER_BYTES: usize = 132;

/// A member with its sort order.
#[derive(Debug, Clone)]
pub(crate) struct Ranked {
    /// Its score; never NaN.
    pub(crate) score: f64,
    pub(crate) member: Arc<[u8]>,
}

impl Ord for Ranked {
    fn cmp(&self, other: &Ranked) -> Ordering {
        let scores = self.score.partial_cmp(&other.score).unwrap_or(Ordering::Equal);
        scores.then_with(|| self.member.cmp(&other.member))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Ranked) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Ranked) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Ranked {}

/// A position in the order: before the first member not below it. None: behind all members.
pub(crate) type Point = Option<Ranked>;

/// The position of the lowest member with this score; with `behind`, behind the highest.
pub(crate) fn point_of_score(score: f64, behind: bool) -> Point {
    let score = match behind {
        true if score == f64::INFINITY => return None,
        true => score.next_up(),
        false => score,
    };
    Some(Ranked { score, member: Arc::default() })
}

#[derive(Debug, Clone, Copy)]
struct Score {
    score: f64,
    /// Place of the record that set the score.
    place: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Zset {
    scores: HashMap<Arc<[u8]>, Score, DefaultHashBuilder>,
    order: BTreeSet<Ranked>,
    encoded: usize,
    /// Place where the log of changes begins.
    log_place: u64,
    dead_records: DeadRecords,
    scan_cache: ScanCache,
    /// Built when first needed.
    rank_index: OnceCell<RankIndex<Ranked>>,
}

impl Zset {
    pub(crate) fn score(&self, member: &[u8]) -> Option<f64> {
        self.scores.get(member).map(|found| found.score)
    }
    /// Prefetches these members into the CPU caches. The look-ups are independent, so their memory accesses
    /// overlap.
    pub(crate) fn prefetch(&self, names: &[&[u8]]) {
        for name in names {
            if let Some((member, _)) = self.scores.get_key_value(*name) {
                terrace_store::prefetch(member.as_ptr(), member.len());
            }
        }
    }
    /// Sets a member's score. Returns the previous one.
    pub(crate) fn set(&mut self, member: &[u8], score: f64, log: &mut Vec<u8>) -> Option<f64> {
        let old = self.insert(member, score, self.log_place + log.len() as u64);
        if old != Some(score) {
            MemberRecord::Set(member, score).write(log);
        }
        old
    }
    /// Deletes a member. Returns whether it existed.
    pub(crate) fn delete(&mut self, member: &[u8], log: &mut Vec<u8>) -> bool {
        let there = self.remove(member);
        if there {
            MemberRecord::Delete(member).write(log);
        }
        there
    }
    /// Names of all members, unordered.
    pub(crate) fn members(&self) -> impl Iterator<Item = &[u8]> {
        let members = fetched(self.scores.keys(), |member| (member.as_ptr(), member.len()));
        members.map(|member| &**member)
    }
    /// All members, lowest first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Ranked> + ExactSizeIterator {
        self.order.iter()
    }
    /// The members at these ranks, counted from the lowest or from the highest.
    pub(crate) fn range(&self, places: Range<usize>, from_highest: bool) -> Vec<&Ranked> {
        let (start, end) = (places.start, places.end.min(self.len()));
        if start >= end {
            return Vec::new();
        }
        let count = end - start;
        // Ranges at an end need no rank index.
        match from_highest {
            false if start == 0 => self.order.iter().take(count).collect(),
            false => self.rank_index().from(start, &self.order).take(count).collect(),
            true if end == self.len() => self.order.iter().rev().take(count).collect(),
            true => {
                let beyond = self.rank_index().from(end, &self.order).next();
                beyond.map_or_else(Vec::new, |end| self.order.range(..end).rev().take(count).collect())
            }
        }
    }
    /// The members between two positions.
    pub(crate) fn between<'a>(
        &'a self,
        start: &Point,
        end: &Point,
    ) -> impl DoubleEndedIterator<Item = &'a Ranked> + use<'a> {
        let range = match (start, end) {
            (Some(start), Some(end)) if start < end => Some(self.order.range(start..end)),
            (Some(start), None) => Some(self.order.range(start..)),
            _ => None,
        };
        range.into_iter().flatten()
    }
    /// Number of members before a position.
    pub(crate) fn below(&self, point: &Point) -> usize {
        // Positions before the first member and behind the last need no rank index.
        match point {
            None => self.len(),
            Some(at) if self.order.first().is_none_or(|first| first >= at) => 0,
            Some(at) if self.order.last().is_some_and(|last| last < at) => self.len(),
            Some(at) => self.rank_index().rank(at, &self.order),
        }
    }
    /// The position of a name, or behind it. Ranges of names need one score for all members: that of the
    /// first member, or of the last with `is_last`.
    pub(crate) fn point_of_name(&self, name: &[u8], behind: bool, is_last: bool) -> Point {
        let of = if is_last { self.order.last() } else { self.order.first() };
        // The next name in byte order is this one with a zero appended.
        let member = if behind { [name, &[0]].concat().into() } else { name.into() };
        of.map(|Ranked { score, .. }| Ranked { score: *score, member })
    }
    /// Number of members before this one.
    pub(crate) fn rank(&self, member: &[u8]) -> Option<usize> {
        let (member, Score { score, .. }) = self.scores.get_key_value(member)?;
        Some(self.below(&Some(Ranked { score: *score, member: member.clone() })))
    }
    /// The member at a rank, counted from the lowest.
    pub(crate) fn at(&self, index: usize) -> Option<&Ranked> {
        self.range(index..index + 1, false).pop()
    }

    fn rank_index(&self) -> &RankIndex<Ranked> {
        self.rank_index.get_or_init(|| RankIndex::new(&self.order))
    }
    /// Adds a member to the tree and the rank index.
    fn add_place(&mut self, ranked: Ranked) {
        match self.rank_index.get_mut() {
            None => _ = self.order.insert(ranked),
            Some(rank_index) => {
                self.order.insert(ranked.clone());
                rank_index.insert(&ranked, &self.order);
            }
        }
    }
    /// Removes a member from the tree and the rank index.
    fn take_place(&mut self, ranked: &Ranked) -> Ranked {
        let taken = self.order.take(ranked).expect("the tree has what the table has");
        if let Some(rank_index) = self.rank_index.get_mut() {
            rank_index.remove(&taken, &self.order);
        }
        taken
    }
    fn insert(&mut self, member: &[u8], score: f64, place: u64) -> Option<f64> {
        // -0.0 becomes 0.0.
        let score = if score == 0.0 { 0.0 } else { score };
        match self.scores.entry_ref(member) {
            EntryRef::Occupied(known) if known.get().score == score => Some(score),
            EntryRef::Occupied(mut known) => {
                let Score { score: old, place } = std::mem::replace(known.get_mut(), Score { score, place });
                self.dead_records.note(place);
                let member = known.key().clone();
                let member = self.take_place(&Ranked { score: old, member }).member;
                self.add_place(Ranked { score, member });
                Some(old)
            }
            EntryRef::Vacant(new) => {
                self.encoded += MemberRecord::bytes(member.len());
                let member: Arc<[u8]> = member.into();
                new.insert_with_key(member.clone(), Score { score, place });
                self.add_place(Ranked { score, member });
                None
            }
        }
    }
    fn remove(&mut self, member: &[u8]) -> bool {
        let Some((member, Score { score, place })) = self.scores.remove_entry(member) else { return false };
        self.dead_records.note(place);
        self.encoded -= MemberRecord::bytes(member.len());
        self.take_place(&Ranked { score, member });
        if self.order.is_empty() {
            self.rank_index.take();
        }
        true
    }
}

impl Collection for Zset {
    const KIND: Kind = Kind::Zset;

    type Record<'a> = MemberRecord<'a>;

    fn apply(&mut self, record: MemberRecord<'_>, place: u64) {
        match record {
            MemberRecord::Set(member, score) => {
                if self.insert(member, score, place) == Some(score) {
                    // The score is the same, but this record is now the live one.
                    let before = self.place(member);
                    before.into_iter().for_each(|before| self.dead_records.note(before));
                    self.set_place(member, place);
                }
            }
            MemberRecord::Delete(member) => drop(self.remove(member)),
        }
    }
    fn place(&self, name: &[u8]) -> Option<u64> {
        self.scores.get(name).map(|found| found.place)
    }
    fn dead_records(&mut self) -> &mut DeadRecords {
        &mut self.dead_records
    }
    fn scan_cache(&mut self) -> &mut ScanCache {
        &mut self.scan_cache
    }
    fn shed(&mut self) {
        self.scan_cache.clear();
        self.rank_index.take();
    }
    fn set_place(&mut self, name: &[u8], place: u64) {
        if let Some(found) = self.scores.get_mut(name) {
            found.place = place;
        }
    }
    fn set_log_place(&mut self, place: u64) {
        self.log_place = place;
    }
    fn encode(&self) -> Vec<u8> {
        let mut records = Vec::with_capacity(self.encoded);
        for Ranked { score, member } in &self.order {
            MemberRecord::Set(member, *score).write(&mut records);
        }
        records
    }
    fn len(&self) -> usize {
        self.order.len()
    }
    fn encoded_bytes(&self) -> usize {
        self.encoded
    }
    fn memory_bytes(&self) -> usize {
        let rank_index = self.rank_index.get().map_or(0, RankIndex::bytes);
        self.encoded
            + self.len() * MEMBER_BYTES
            + self.dead_records.bytes()
            + self.scan_cache.bytes()
            + rank_index
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use terrace_testkit::rng::{Rng, seed};

    #[test]
    fn log_of_changes_decodes_to_the_sorted_set() {
        let mut rng = Rng::new(seed("log_of_changes_decodes_to_the_sorted_set"));
        let (mut zset, mut log) = (Zset::default(), Vec::new());
        let mut model = BTreeMap::new();
        for _ in 0..2000 {
            let (member, score) = (rng.index(50).to_string().into_bytes(), rng.index(9) as f64 - 4.0);
            if rng.chance(60) {
                assert_eq!(zset.set(&member, score, &mut log), model.insert(member, score));
            } else {
                assert_eq!(zset.delete(&member, &mut log), model.remove(&member).is_some());
            }
        }
        let mut order: Vec<(f64, Vec<u8>)> =
            model.iter().map(|(member, score)| (*score, member.clone())).collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
        let compact = zset.encode();
        assert_eq!(compact.len(), zset.encoded_bytes());
        for bytes in [log, compact] {
            let zset = Zset::decode(&bytes).unwrap();
            let read: Vec<_> = zset.iter().map(|ranked| (ranked.score, ranked.member.to_vec())).collect();
            assert_eq!(read, order);
            for (rank, (score, member)) in order.iter().enumerate() {
                assert_eq!((zset.rank(member), zset.score(member)), (Some(rank), Some(*score)));
                assert_eq!(&*zset.at(rank).unwrap().member, member);
            }
        }
    }

    #[test]
    fn ranges_of_scores_keep_their_bounds() {
        let mut zset = Zset::default();
        for (member, score) in
            [("a", f64::NEG_INFINITY), ("b", 1.0), ("c", 1.0), ("d", 2.0), ("e", f64::INFINITY)]
        {
            zset.set(member.as_bytes(), score, &mut Vec::new());
        }
        for (score, below, to) in
            [(f64::NEG_INFINITY, 0, 1), (0.0, 1, 1), (1.0, 1, 3), (2.0, 3, 4), (f64::INFINITY, 4, 5)]
        {
            let (start, end) = (point_of_score(score, false), point_of_score(score, true));
            assert_eq!((zset.below(&start), zset.below(&end)), (below, to), "{score}");
            assert_eq!(zset.between(&start, &end).count(), to - below);
            assert_eq!(zset.between(&end, &start).count(), 0);
        }
        let from = |score, included: bool| zset.between(&point_of_score(score, !included), &None).count();
        assert_eq!(
            [from(1.0, true), from(1.0, false), from(f64::INFINITY, true), from(f64::INFINITY, false)],
            [4, 2, 1, 0]
        );
        let lowest = point_of_score(f64::NEG_INFINITY, false);
        let to = |score, included| zset.between(&lowest, &point_of_score(score, included)).count();
        assert_eq!(
            [to(1.0, true), to(1.0, false), to(f64::INFINITY, true), to(f64::NEG_INFINITY, false)],
            [3, 1, 5, 0]
        );
    }

    #[test]
    fn large_set_finds_places_while_it_grows_and_shrinks() {
        let mut rng = Rng::new(seed("large_set_finds_places_while_it_grows_and_shrinks"));
        let (mut zset, mut model) = (Zset::default(), BTreeMap::<Vec<u8>, f64>::new());
        // First most changes add members, then most remove them, and at last all are removed.
        for round in 0..13 {
            for _ in 0..1500 {
                let (member, score) = (rng.index(6000).to_string().into_bytes(), rng.index(300) as f64);
                if round < 12 && rng.chance(if round % 6 < 3 { 90 } else { 10 }) {
                    assert_eq!(zset.set(&member, score, &mut Vec::new()), model.insert(member, score));
                } else {
                    let from = model.range(member..).chain(&model).next().map(|(member, _)| member.clone());
                    let Some(member) = from else { continue };
                    assert!(zset.delete(&member, &mut Vec::new()) && model.remove(&member).is_some());
                }
            }
            let mut order: Vec<(f64, &[u8])> =
                model.iter().map(|(member, score)| (*score, &**member)).collect();
            order.sort_by(|a, b| a.partial_cmp(b).unwrap());
            let read = |places, from_highest| -> Vec<(f64, &[u8])> {
                let members = zset.range(places, from_highest).into_iter();
                members.map(|ranked| (ranked.score, &*ranked.member)).collect()
            };
            assert_eq!(read(0..order.len(), false), order);
            for _ in 0..200.min(order.len()) {
                let (at, score) = (rng.index(order.len()), rng.index(301) as f64);
                assert_eq!((zset.rank(order[at].1), zset.at(at)), (Some(at), zset.iter().nth(at)));
                let end = (at + rng.index(600)).min(order.len());
                assert_eq!(read(at..end, false), order[at..end]);
                assert!(read(at..end, true).iter().eq(order[at..end].iter().rev()));
                let points = [point_of_score(score, false), point_of_score(score, true)];
                let places = [
                    order.partition_point(|(other, _)| *other < score),
                    order.partition_point(|(other, _)| *other <= score),
                ];
                assert_eq!(points.each_ref().map(|point| zset.below(point)), places);
                assert_eq!(zset.between(&points[0], &points[1]).count(), places[1] - places[0]);
            }
            // The rank index takes a few tenths of a byte per member.
            let rank_index = zset.rank_index.get().map_or(0, RankIndex::bytes);
            assert!(rank_index <= 8192, "{rank_index} bytes for {} members", order.len());
        }
        assert!(zset.is_empty() && zset.rank_index.get().is_none());
    }
}
