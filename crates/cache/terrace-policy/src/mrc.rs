//! Miss-ratio curves: the miss ratio of an LRU cache of each size.
//!
//! [`Exact`] knows every page's stack distance ([`crate::stack`]). An LRU cache of C pages misses accesses at
//! a distance of C or more. [`Shards`] estimates the same from a sample in fixed memory: C. Waldspurger, N.
//! Park, A. Garthwaite, I. Ahmad, "Efficient MRC Construction with SHARDS", FAST 2015.
//!
//! ```text
//!   key ─► hash ─► below the threshold? ── no ──► counted, that is all
//!                         │ yes
//!                         ▼
//!          distance among sampled keys / rate ─► histogram, with the weight 1 / rate
//!          more than `samples` keys? the largest hash goes, and is the new threshold
//! ```
//! So the sample takes a key always or never, and the rate (threshold / 2^64) falls with more keys. In the
//! paper each sample counts 1, and each fall multiplies the histogram by new rate / old rate. A weight of 1 /
//! rate at the sample is the same but for a constant factor, and costs nothing. SHARDS-adj (section 4.2
//! there): the sum of the weights should equal the number of accesses. The difference comes from very popular
//! pages, and goes to the smallest distance.

use std::collections::BinaryHeap;

use crate::keys::{KeyMap, mix};
use crate::stack::Distances;

/// Default number of sampled keys, in 0.8 MiB. On 17 real traces of up to 275,000 pages the mean error is at
/// most 0.007 (twice the keys: 0.0045).
pub const SAMPLES: usize = 8 << 10;

/// Bits of a distance in the histogram: its resolution is 1/512.
const PRECISION: u32 = 9;

/// A share of accesses missed, by cache size; never rising.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Cache size in pages, miss ratio; sizes rise strictly, the first is (0, 1). Straight lines between.
    pub(crate) points: Vec<(f64, f64)>,
    /// Number of accesses covered.
    pub accesses: f64,
    /// Number of different pages among them.
    pub pages: f64,
}

impl Curve {
    /// Built from weights of distances `[low, high)` in rising order; other `accesses` are first uses.
    fn new(hits: impl Iterator<Item = (f64, f64, f64)>, accesses: f64, pages: f64) -> Curve {
        let mut curve = Curve { points: vec![(0.0, 1.0)], accesses, pages };
        let (mut sum, mut least) = (0.0, 1.0f64);
        for (low, high, weight) in hits.filter(|(_, _, weight)| *weight != 0.0 && accesses > 0.0) {
            if curve.points.last().is_some_and(|last| last.0 < low) {
                curve.points.push((low, least));
            }
            sum += weight;
            least = least.min((1.0 - sum / accesses).max(0.0));
            curve.points.push((high, least));
        }
        curve
    }

    /// The miss ratio of a cache of `pages`.
    pub fn miss_ratio(&self, pages: f64) -> f64 {
        let after = self.points.partition_point(|point| point.0 <= pages);
        let Some(&(x1, y1)) = self.points.get(after) else { return self.points[after - 1].1 };
        let Some(&(x0, y0)) = after.checked_sub(1).map(|before| &self.points[before]) else { return 1.0 };
        y0 + (y1 - y0) * (pages - x0) / (x1 - x0)
    }

    /// Mean and greatest absolute difference of the miss ratios at `sizes` cache sizes, evenly spread up to
    /// `pages_max` pages.
    pub fn difference(&self, other: &Curve, pages_max: f64, sizes: usize) -> (f64, f64) {
        let (mut sum, mut greatest) = (0.0, 0.0f64);
        for i in 1..=sizes {
            let pages = (pages_max * i as f64 / sizes as f64).round().max(1.0);
            let difference = (self.miss_ratio(pages) - other.miss_ratio(pages)).abs();
            sum += difference;
            greatest = greatest.max(difference);
        }
        (sum / sizes.max(1) as f64, greatest)
    }
}

/// The exact curve. Some 40 bytes a page.
#[derive(Debug, Default)]
pub struct Exact {
    pages: KeyMap<u32>,
    distances: Distances,
    hits: Vec<u64>,
    accesses: u64,
}

impl Exact {
    /// One access.
    pub fn feed(&mut self, key: u64) {
        self.accesses += 1;
        let fresh = self.pages.len() as u32;
        let page = *self.pages.entry(key).or_insert(fresh);
        if let Some(distance) = self.distances.used(page) {
            if self.hits.len() <= distance as usize {
                self.hits.resize(distance as usize + 1, 0);
            }
            self.hits[distance as usize] += 1;
        }
    }

    /// The curve of all accesses so far.
    pub fn curve(&self) -> Curve {
        let hits = self.hits.iter().enumerate().map(|(d, hits)| (d as f64, d as f64 + 1.0, *hits as f64));
        Curve::new(hits, self.accesses as f64, self.pages.len() as f64)
    }
}

/// The sampled estimate: at most [`Shards::bytes_max`] bytes, whatever is fed.
#[derive(Debug)]
pub struct Shards {
    samples_max: usize,
    /// Hashes below this are sampled.
    threshold: u64,
    /// Sampled hashes, each with its number in `distances`.
    sampled: KeyMap<u32>,
    largest: BinaryHeap<(u64, u32)>,
    free: Vec<u32>,
    distances: Distances,
    hits: Histogram,
    /// Sum of the weights of all samples, including first uses.
    weight: f64,
    accesses: f64,
}

impl Shards {
    /// Samples at most `samples_max` keys (at least 2). The error falls with the root of their number.
    pub fn new(samples_max: usize) -> Shards {
        let samples_max = samples_max.clamp(2, 1 << 28);
        Shards {
            samples_max,
            threshold: u64::MAX,
            sampled: KeyMap::default(),
            largest: BinaryHeap::new(),
            free: Vec::new(),
            distances: Distances::default(),
            hits: Histogram::default(),
            weight: 0.0,
            accesses: 0.0,
        }
    }

    /// Whether `key` would be sampled now. For other keys a call of [`Shards::passed`] is enough.
    #[cfg(test)]
    pub(crate) fn wants(&self, key: u64) -> bool {
        mix(key) < self.threshold
    }

    /// The hash that decides the sampling, for callers without the estimator: keys below the
    /// [`Shards::threshold`] are sampled.
    pub fn hash(key: u64) -> u64 {
        mix(key)
    }

    /// Hashes below this are sampled; it never rises.
    pub fn threshold(&self) -> u64 {
        self.threshold
    }

    /// Counts accesses to keys outside the sample.
    pub fn passed(&mut self, accesses: u64) {
        self.accesses += accesses as f64;
    }

    /// One access. O(1) for most, O(log samples) for those sampled.
    pub fn feed(&mut self, key: u64) {
        self.accesses += 1.0;
        let hash = mix(key);
        if hash < self.threshold {
            self.sample(hash);
        }
    }

    fn sample(&mut self, hash: u64) {
        let weight = 1.0 / self.rate();
        self.weight += weight;
        let known = self.sampled.get(&hash).copied();
        let page = known.unwrap_or_else(|| self.free.pop().unwrap_or(self.sampled.len() as u32));
        let distance = self.distances.used(page);
        if let Some(distance) = distance {
            self.hits.add(f64::from(distance) * weight, weight);
        }
        if known.is_none() {
            self.sampled.insert(hash, page);
            self.largest.push((hash, page));
            if self.sampled.len() > self.samples_max {
                self.lower();
            }
        }
    }

    /// Lowers the threshold to the largest sampled hash and removes it from the sample.
    fn lower(&mut self) {
        let (hash, page) = self.largest.pop().expect("more are sampled than may be");
        self.threshold = hash;
        self.sampled.remove(&hash);
        self.distances.forget(page);
        self.free.push(page);
    }

    /// The share of sampled keys.
    pub fn rate(&self) -> f64 {
        // 2^64, to the precision of f64.
        if self.threshold == u64::MAX { 1.0 } else { self.threshold as f64 / 18_446_744_073_709_551_616.0 }
    }

    /// Number of accesses, fed or passed, less those removed by [`Shards::fade`].
    #[cfg(test)]
    pub(crate) fn accesses(&self) -> f64 {
        self.accesses
    }

    /// Multiplies the weight of all accesses so far by `share` (0 to 1): for a load that changes.
    pub fn fade(&mut self, share: f64) {
        let share = share.clamp(0.0, 1.0);
        self.hits.scale(share);
        self.weight *= share;
        self.accesses *= share;
    }

    /// The estimate from all accesses so far. O(buckets), some 10,000.
    pub fn curve(&self) -> Curve {
        let adjustment = self.accesses - self.weight;
        let first = std::iter::once((0.0, 1.0, self.hits.weight(0) + adjustment));
        let others = (1..self.hits.len()).map(|i| {
            let (low, high) = Histogram::range(i);
            (low, high, self.hits.weight(i))
        });
        Curve::new(first.chain(others), self.accesses, self.sampled.len() as f64 / self.rate())
    }

    /// Heap used.
    pub fn bytes(&self) -> usize {
        // A table has 8/7 to 16/7 of its keys, each 16 bytes and a control byte.
        self.sampled.capacity() * 17 * 8 / 7
            + self.largest.capacity() * size_of::<(u64, u32)>()
            + self.free.capacity() * 4
            + self.distances.bytes()
            + self.hits.bytes()
    }

    /// Maximum heap used with `samples_max` samples.
    #[cfg(test)]
    pub(crate) fn bytes_max(samples_max: usize) -> usize {
        256 * samples_max + Histogram::BYTES_MAX
    }
}

/// Weights by distance: one bucket each up to 2^9, 256 for each doubling beyond.
#[derive(Debug, Default)]
struct Histogram {
    weights: Vec<f64>,
}

impl Histogram {
    const HALF: u64 = 1 << (PRECISION - 1);
    /// Buckets for distances up to 2^63; twice, for a growing vector.
    #[cfg(test)]
    const BYTES_MAX: usize = 2 * 8 * ((64 - PRECISION as usize + 2) << (PRECISION - 1));

    fn bucket(distance: u64) -> usize {
        let shift = (64 - distance.leading_zeros()).saturating_sub(PRECISION);
        (u64::from(shift) * Self::HALF + (distance >> shift)) as usize
    }

    /// Distances `[low, high)` of a bucket.
    fn range(bucket: usize) -> (f64, f64) {
        let bucket = bucket as u64;
        let shift = (bucket / Self::HALF).saturating_sub(1);
        let low = bucket - shift * Self::HALF;
        ((low << shift) as f64, (((low + 1) as u128) << shift) as f64)
    }

    fn add(&mut self, distance: f64, weight: f64) {
        let bucket = Self::bucket((distance.round() as u64).min(u64::MAX >> 1));
        if self.weights.len() <= bucket {
            self.weights.resize(bucket + 1, 0.0);
        }
        self.weights[bucket] += weight;
    }

    fn weight(&self, bucket: usize) -> f64 {
        self.weights.get(bucket).copied().unwrap_or(0.0)
    }

    fn len(&self) -> usize {
        self.weights.len()
    }

    fn scale(&mut self, by: f64) {
        self.weights.iter_mut().for_each(|weight| *weight *= by);
    }

    fn bytes(&self) -> usize {
        self.weights.capacity() * size_of::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_curve_by_hand() {
        let mut exact = Exact::default();
        // a b a c b a: distances - - 1 - 2 2
        [1, 2, 1, 3, 2, 1].iter().for_each(|key| exact.feed(*key));
        let curve = exact.curve();
        let ratios = [0.0, 1.0, 2.0, 3.0, 100.0].map(|pages| (curve.miss_ratio(pages) * 6.0).round());
        assert_eq!(ratios, [6.0, 6.0, 5.0, 3.0, 3.0]);
        assert_eq!((curve.accesses, curve.pages), (6.0, 3.0));
        assert_eq!(Exact::default().curve().miss_ratio(5.0), 1.0, "nothing was fed");
    }

    #[test]
    fn buckets_follow_one_another() {
        let mut low_expected = 0.0;
        for bucket in 0..Histogram::bucket(u64::MAX >> 1) {
            let (low, high) = Histogram::range(bucket);
            assert_eq!(low, low_expected);
            assert_eq!(Histogram::bucket(low as u64), bucket);
            assert!(high - low <= 1.0 || (high - low) / low <= 1.0 / Histogram::HALF as f64);
            low_expected = high;
        }
        assert_eq!(Histogram::range(Histogram::bucket(300)), (300.0, 301.0));
    }

    /// While all keys are sampled, the estimate is exact.
    #[test]
    fn few_keys_are_exact() {
        let (mut exact, mut shards) = (Exact::default(), Shards::new(500));
        for i in 0..20_000u64 {
            let key = mix(i) % (1 + i % 499);
            exact.feed(key);
            shards.feed(key);
        }
        let (mean, greatest) = exact.curve().difference(&shards.curve(), 500.0, 500);
        assert!(mean < 1e-9 && greatest < 1e-9, "{mean} {greatest}");
        assert_eq!(shards.rate(), 1.0);
    }

    #[test]
    fn memory_is_bounded_by_the_samples() {
        for samples in [2, 100, 5000] {
            let mut shards = Shards::new(samples);
            for i in 0..200_000u64 {
                shards.feed(i / 3 % 150_000);
                assert!(shards.sampled.len() <= samples && shards.largest.len() <= samples + 1);
            }
            assert!(shards.bytes() <= Shards::bytes_max(samples), "{samples}: {} bytes", shards.bytes());
            let estimate = shards.curve().pages / 66_667.0;
            assert!(samples < 100 || (0.7..1.3).contains(&estimate), "{samples}: {estimate}");
        }
    }

    #[test]
    fn passing_by_is_as_good_as_feeding() {
        let (mut fed, mut asked) = (Shards::new(64), Shards::new(64));
        for i in 0..10_000u64 {
            let key = mix(i) % 2000;
            fed.feed(key);
            if asked.wants(key) { asked.feed(key) } else { asked.passed(1) }
        }
        assert_eq!(fed.curve(), asked.curve());
    }

    #[test]
    fn faded_history_counts_less() {
        let mut shards = Shards::new(1000);
        (0..10_000u64).for_each(|i| shards.feed(i % 100)); // distance 99
        shards.fade(0.0);
        (0..10_000u64).for_each(|_| shards.feed(1)); // distance 0, but for the first
        assert!(shards.curve().miss_ratio(1.0) < 0.001);
        assert_eq!(shards.accesses(), 10_000.0);
    }
}
