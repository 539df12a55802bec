//! A sorted set: members in order of their scores, those of one score in order of their bytes.
//!
//! A tree beside a table. The tree counts nothing below its nodes, so a place by rank (ZRANGE 100 200, ZRANK) walks from the nearer end;
//! ranges of scores and of members begin at once.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use hashbrown::hash_map::EntryRef;
use hashbrown::{DefaultHashBuilder, HashMap};

use super::collection::Collection;
use super::record::MemberRecord;
use super::superseded::Superseded;
use super::word::Kind;

/// Memory of a member beside its bytes: shared allocation, entries of tree and table with their room to spare.
const MEMBER_BYTES: usize = 132;

/// A member in its order.
#[derive(Debug, Clone)]
pub struct Ranked {
    /// Its score; never NaN.
    pub score: f64,
    /// Its name.
    pub member: Arc<[u8]>,
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

#[derive(Debug, Clone, Copy)]
struct Score {
    score: f64,
    /// Place of the record that set it.
    place: u64,
}

/// The members.
#[derive(Debug, Default)]
pub struct Zset {
    scores: HashMap<Arc<[u8]>, Score, DefaultHashBuilder>,
    order: BTreeSet<Ranked>,
    encoded: usize,
    /// Place of the log that changes are added to.
    log_place: u64,
    superseded: Superseded,
}

impl Zset {
    /// A member's score.
    pub fn score(&self, member: &[u8]) -> Option<f64> {
        self.scores.get(member).map(|found| found.score)
    }
    /// Has the processor fetch these members. The look-ups do not depend on each other, so that they overlap.
    pub fn prefetch(&self, names: &[&[u8]]) {
        for name in names {
            if let Some((member, _)) = self.scores.get_key_value(*name) {
                terrace_store::prefetch(member.as_ptr(), member.len());
            }
        }
    }
    /// Sets a member's score; the one before.
    pub fn set(&mut self, member: &[u8], score: f64, log: &mut Vec<u8>) -> Option<f64> {
        let old = self.insert(member, score, self.log_place + log.len() as u64);
        if old != Some(score) {
            MemberRecord::Set(member, score).write(log);
        }
        old
    }
    /// Deletes a member; whether it was there.
    pub fn delete(&mut self, member: &[u8], log: &mut Vec<u8>) -> bool {
        let there = self.remove(member);
        if there {
            MemberRecord::Delete(member).write(log);
        }
        there
    }
    /// All, from the lowest.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Ranked> + ExactSizeIterator {
        self.order.iter()
    }
    /// Those from the first with a score of at least (`true`) or above (`false`) the given one.
    pub fn from_score(&self, score: f64, included: bool) -> impl DoubleEndedIterator<Item = &Ranked> {
        let begin = match included {
            true => Bound::Included(Ranked { score, member: Arc::default() }),
            false => match next_up(score) {
                Some(score) => Bound::Included(Ranked { score, member: Arc::default() }),
                None => return self.order.range((Bound::Excluded(self.beyond()), Bound::Unbounded)),
            },
        };
        self.order.range((begin, Bound::Unbounded))
    }
    /// Those up to the last with a score of at most (`true`) or below (`false`) the given one.
    pub fn to_score(&self, score: f64, included: bool) -> impl DoubleEndedIterator<Item = &Ranked> {
        let end = match included {
            false => Bound::Excluded(Ranked { score, member: Arc::default() }),
            true => match next_up(score) {
                Some(score) => Bound::Excluded(Ranked { score, member: Arc::default() }),
                None => Bound::Unbounded,
            },
        };
        self.order.range((Bound::Unbounded, end))
    }
    /// How many stand before the member.
    pub fn rank(&self, member: &[u8]) -> Option<usize> {
        let score = self.score(member)?;
        let (member, _) = self.scores.get_key_value(member)?;
        Some(self.order.range(..Ranked { score, member: member.clone() }).count())
    }
    /// The member at a place, counted from the lowest.
    pub fn at(&self, index: usize) -> Option<&Ranked> {
        match index < self.order.len() / 2 {
            true => self.order.iter().nth(index),
            false => self.order.iter().rev().nth(self.order.len().checked_sub(index + 1)?),
        }
    }

    /// Above all members.
    fn beyond(&self) -> Ranked {
        self.order.last().cloned().unwrap_or(Ranked { score: f64::INFINITY, member: Arc::default() })
    }
    fn insert(&mut self, member: &[u8], score: f64, place: u64) -> Option<f64> {
        // There is one zero.
        let score = if score == 0.0 { 0.0 } else { score };
        match self.scores.entry_ref(member) {
            EntryRef::Occupied(known) if known.get().score == score => Some(score),
            EntryRef::Occupied(mut known) => {
                let Score { score: old, place } = std::mem::replace(known.get_mut(), Score { score, place });
                self.superseded.note(place);
                let moved = self.order.take(&Ranked { score: old, member: known.key().clone() });
                let member = moved.expect("the tree has what the table has").member;
                self.order.insert(Ranked { score, member });
                Some(old)
            }
            EntryRef::Vacant(new) => {
                self.encoded += MemberRecord::bytes(member.len());
                let member: Arc<[u8]> = member.into();
                new.insert_with_key(member.clone(), Score { score, place });
                self.order.insert(Ranked { score, member });
                None
            }
        }
    }
    fn remove(&mut self, member: &[u8]) -> bool {
        let Some((member, Score { score, place })) = self.scores.remove_entry(member) else { return false };
        self.superseded.note(place);
        self.encoded -= MemberRecord::bytes(member.len());
        self.order.remove(&Ranked { score, member });
        true
    }
}

/// The next larger float; none: there is none.
fn next_up(score: f64) -> Option<f64> {
    (score < f64::INFINITY).then(|| score.next_up())
}

impl Collection for Zset {
    const KIND: Kind = Kind::Zset;

    type Record<'a> = MemberRecord<'a>;

    fn apply(&mut self, record: MemberRecord<'_>, place: u64) {
        match record {
            MemberRecord::Set(member, score) => {
                if self.insert(member, score, place) == Some(score) {
                    // The score is the same, but this record counts now.
                    let before = self.place(member);
                    before.into_iter().for_each(|before| self.superseded.note(before));
                    self.set_place(member, place);
                }
            }
            MemberRecord::Delete(member) => drop(self.remove(member)),
        }
    }
    fn place(&self, name: &[u8]) -> Option<u64> {
        self.scores.get(name).map(|found| found.place)
    }
    fn superseded(&mut self) -> &mut Superseded {
        &mut self.superseded
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
        self.encoded + self.len() * MEMBER_BYTES + self.superseded.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_testkit::rng::{Rng, seed};

    #[test]
    fn log_of_changes_decodes_to_the_sorted_set() {
        let mut rng = Rng::new(seed("log_of_changes_decodes_to_the_sorted_set"));
        let (mut zset, mut log) = (Zset::default(), Vec::new());
        let mut model = std::collections::BTreeMap::new();
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
        let from = |score, included| zset.from_score(score, included).count();
        assert_eq!(
            [from(1.0, true), from(1.0, false), from(f64::INFINITY, true), from(f64::INFINITY, false)],
            [4, 2, 1, 0]
        );
        let to = |score, included| zset.to_score(score, included).count();
        assert_eq!(
            [to(1.0, true), to(1.0, false), to(f64::INFINITY, true), to(f64::NEG_INFINITY, false)],
            [3, 1, 5, 0]
        );
    }
}
