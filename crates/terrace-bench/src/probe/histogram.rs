//! Times of operations, counted in buckets: each power of two of nanoseconds has 32, so that a quantile is right to 3 %. (The layout of
//! HdrHistogram.) Processes count for themselves, and their histograms are added.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Buckets of a power of two, as a power of two.
const FINE_BITS: u32 = 5;

/// Counts by bucket, their number and sum.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// Times seen.
    pub count: u64,
    /// Their sum, ns.
    pub sum_ns: u64,
    buckets: BTreeMap<u32, u64>,
}

/// The same while it is counted: no search.
#[derive(Debug)]
pub struct Counting {
    counts: Vec<u64>,
    sum_ns: u64,
}

fn bucket(ns: u64) -> u32 {
    let top = 63 - (ns | 1).leading_zeros();
    match top.checked_sub(FINE_BITS) {
        Some(shift) => ((shift + 1) << FINE_BITS) + ((ns >> shift) as u32 & ((1 << FINE_BITS) - 1)),
        None => ns as u32,
    }
}

/// The middle of a bucket, ns.
fn middle(bucket: u32) -> f64 {
    let (row, column) = (bucket >> FINE_BITS, u64::from(bucket & ((1 << FINE_BITS) - 1)));
    match row.checked_sub(1) {
        Some(shift) => ((((1 << FINE_BITS) + column) << shift) as f64) + ((1u64 << shift) - 1) as f64 / 2.0,
        None => column as f64,
    }
}

impl Default for Counting {
    fn default() -> Counting {
        Counting { counts: vec![0; bucket(u64::MAX) as usize + 1], sum_ns: 0 }
    }
}

impl Counting {
    /// One operation.
    #[inline]
    pub fn add(&mut self, ns: u64) {
        self.counts[bucket(ns) as usize] += 1;
        self.sum_ns += ns;
    }

    /// What was counted.
    pub fn done(self) -> Histogram {
        let buckets: BTreeMap<u32, u64> = (0..).zip(self.counts).filter(|(_, n)| *n > 0).collect();
        Histogram { count: buckets.values().sum(), sum_ns: self.sum_ns, buckets }
    }
}

impl Histogram {
    /// Another process's times.
    pub fn merge(&mut self, other: &Histogram) {
        self.count += other.count;
        self.sum_ns += other.sum_ns;
        for (bucket, n) in &other.buckets {
            *self.buckets.entry(*bucket).or_default() += n;
        }
    }

    /// The mean, ns; 0 of nothing.
    pub fn mean_ns(&self) -> f64 {
        self.sum_ns as f64 / self.count.max(1) as f64
    }

    /// The time that a share `q` of all does not exceed, ns, to 3 %; 0 of nothing.
    pub fn quantile_ns(&self, q: f64) -> f64 {
        let rank = ((self.count as f64 * q).ceil() as u64).max(1);
        let mut seen = 0;
        let found = self.buckets.iter().find(|(_, n)| {
            seen += **n;
            seen >= rank
        });
        found.map_or(0.0, |(bucket, _)| middle(*bucket))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::Rng;

    #[test]
    fn quantiles_are_those_of_the_sorted_times() {
        let mut rng = Rng::new(3);
        let mut times: Vec<u64> = (0..20_000).map(|_| 1 << (rng.below(40)) | rng.below(1 << 20)).collect();
        let (mut one, mut two) = (Counting::default(), Counting::default());
        for (i, ns) in times.iter().enumerate() {
            if i % 3 == 0 { one.add(*ns) } else { two.add(*ns) }
        }
        let mut all = one.done();
        all.merge(&two.done());
        times.sort_unstable();
        assert_eq!((all.count, all.sum_ns), (20_000, times.iter().sum()));
        for q in [0.001, 0.1, 0.5, 0.9, 0.99, 0.9999, 1.0] {
            let exact = times[((times.len() as f64 * q).ceil() as usize).max(1) - 1] as f64;
            let told = all.quantile_ns(q);
            assert!((told - exact).abs() <= exact * 0.032, "{q}: {told} instead of {exact}");
        }
    }

    #[test]
    fn every_time_has_its_bucket() {
        let mut last = None;
        for ns in (0..5000).chain([u64::MAX / 2, u64::MAX]) {
            let this = bucket(ns);
            assert!(Some(this) >= last, "{ns}");
            assert!((middle(this) - ns as f64).abs() <= ns as f64 / 32.0, "{ns}: {}", middle(this));
            last = Some(this);
        }
        assert_eq!((Histogram::default().mean_ns(), Histogram::default().quantile_ns(0.5)), (0.0, 0.0));
    }
}
