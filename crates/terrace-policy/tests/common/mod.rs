//! Small traces from a seed, by integer arithmetic alone (the same on every machine), and Belady's optimum.
#![allow(dead_code)] // no test needs all of it

use std::collections::{BTreeSet, HashMap};

use terrace_policy::Evict;
use terrace_policy::evict::opt::{Opt, next_uses};
use terrace_policy::sim::{Ids, Mode, run_ids};

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}

/// Zipf with exponent 1 over `n` keys: a table of cumulated integer weights.
pub struct Zipf(Vec<u64>);

impl Zipf {
    pub fn new(n: u64) -> Zipf {
        let mut sum = 0;
        Zipf(
            (1..=n)
                .map(|rank| {
                    sum += (1 << 32) / rank;
                    sum
                })
                .collect(),
        )
    }

    pub fn draw(&self, random: &mut Random) -> u64 {
        let at = random.below(*self.0.last().unwrap());
        self.0.partition_point(|&sum| sum <= at) as u64
    }
}

pub const REQUESTS: usize = 20_000;

/// The traces by name: 20,000 requests each, over 1000 to some 8000 keys.
pub fn traces() -> Vec<(&'static str, Vec<u64>)> {
    vec![("zipf", zipf(1)), ("loop", looped()), ("scan", scan(2)), ("shift", shift(3)), ("mixed", mixed(4))]
}

fn zipf(seed: u64) -> Vec<u64> {
    let (zipf, mut random) = (Zipf::new(2000), Random(seed));
    (0..REQUESTS).map(|_| zipf.draw(&mut random)).collect()
}

/// The same 1000 pages in order, over and over.
fn looped() -> Vec<u64> {
    (0..REQUESTS as u64).map(|i| i % 1000).collect()
}

/// Zipf interrupted by sequential reads of pages never used again.
fn scan(seed: u64) -> Vec<u64> {
    let (zipf, mut random) = (Zipf::new(1000), Random(seed));
    let mut fresh = 1_000_000;
    let mut trace = Vec::new();
    while trace.len() < REQUESTS {
        trace.extend((0..600).map(|_| zipf.draw(&mut random)));
        trace.extend((0..200).map(|i| fresh + i));
        fresh += 200;
    }
    trace.truncate(REQUESTS);
    trace
}

/// Zipf whose favourites change five times.
fn shift(seed: u64) -> Vec<u64> {
    let (zipf, mut random) = (Zipf::new(1500), Random(seed));
    (0..REQUESTS).map(|i| zipf.draw(&mut random) + (i / (REQUESTS / 6)) as u64 * 1000).collect()
}

/// Records read piecemeal (several requests for a page in a row), a slow loop beneath, uniform noise.
fn mixed(seed: u64) -> Vec<u64> {
    let (zipf, mut random) = (Zipf::new(800), Random(seed));
    let mut trace = Vec::new();
    let mut at = 0;
    while trace.len() < REQUESTS {
        let key = zipf.draw(&mut random);
        trace.extend((0..=random.below(3)).map(|_| key));
        trace.push(100_000 + at % 400);
        at += 1;
        if random.below(4) == 0 {
            trace.push(200_000 + random.below(2000));
        }
    }
    trace.truncate(REQUESTS);
    trace
}

/// Misses of the policy `opt`.
pub fn policy_opt_misses(trace: &[u64], capacity: usize) -> u64 {
    let mut numbers = Ids::default();
    let ids: Vec<u32> = trace.iter().map(|&key| numbers.id(key)).collect();
    let mut opt = Opt::new(capacity, next_uses(&ids));
    let outcome = run_ids(&mut opt, &ids, numbers.len(), capacity, Mode::Exact);
    opt.check().unwrap();
    outcome.misses
}

/// Misses of Belady's MIN, by plain means.
pub fn opt_misses(trace: &[u64], capacity: usize) -> u64 {
    let mut next = vec![usize::MAX; trace.len()];
    let mut seen: HashMap<u64, usize> = HashMap::new();
    for i in (0..trace.len()).rev() {
        if let Some(later) = seen.insert(trace[i], i) {
            next[i] = later;
        }
    }
    // Resident pages by their next use; pages never used again are told apart by key.
    let mut by_next: BTreeSet<(usize, u64)> = BTreeSet::new();
    let mut next_of: HashMap<u64, usize> = HashMap::new();
    let mut misses = 0;
    for (i, &key) in trace.iter().enumerate() {
        if let Some(expected) = next_of.remove(&key) {
            by_next.remove(&(expected, key));
        } else {
            misses += 1;
            if next_of.len() == capacity {
                let (_, farthest) = by_next.pop_last().expect("a full pool is not empty");
                next_of.remove(&farthest);
            }
        }
        next_of.insert(key, next[i]);
        by_next.insert((next[i], key));
    }
    misses
}
