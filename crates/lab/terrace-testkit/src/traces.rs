//! Small traces from a seed, by integer arithmetic only: the same on every machine.

use crate::rng::Rng;

/// Zipf with exponent 1 over `n` keys: a table of cumulative integer weights.
#[derive(Clone, Debug)]
pub struct Zipf(Vec<u64>);

impl Zipf {
    /// A distribution over keys below `n`.
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

    /// Draws a key.
    pub fn draw(&self, rng: &mut Rng) -> u64 {
        let at = rng.below(*self.0.last().expect("there are keys"));
        self.0.partition_point(|&sum| sum <= at) as u64
    }
}

/// Requests in each of [`all`].
pub(crate) const REQUESTS: usize = 20_000;

/// The traces by name: 20,000 requests each, over 1000 to some 8000 keys.
pub fn all() -> Vec<(&'static str, Vec<u64>)> {
    vec![("zipf", zipf(1)), ("loop", looped()), ("scan", scan(2)), ("shift", shift(3)), ("mixed", mixed(4))]
}

fn zipf(seed: u64) -> Vec<u64> {
    let (zipf, mut rng) = (Zipf::new(2000), Rng::new(seed));
    (0..REQUESTS).map(|_| zipf.draw(&mut rng)).collect()
}

/// The same 1000 pages in order, repeated.
fn looped() -> Vec<u64> {
    (0..REQUESTS as u64).map(|i| i % 1000).collect()
}

/// Zipf interrupted by sequential reads of pages that are never used again.
fn scan(seed: u64) -> Vec<u64> {
    let (zipf, mut rng) = (Zipf::new(1000), Rng::new(seed));
    let mut fresh = 1_000_000;
    let mut trace = Vec::new();
    while trace.len() < REQUESTS {
        trace.extend((0..600).map(|_| zipf.draw(&mut rng)));
        trace.extend((0..200).map(|i| fresh + i));
        fresh += 200;
    }
    trace.truncate(REQUESTS);
    trace
}

/// Zipf with popular keys that change five times.
fn shift(seed: u64) -> Vec<u64> {
    let (zipf, mut rng) = (Zipf::new(1500), Rng::new(seed));
    (0..REQUESTS).map(|i| zipf.draw(&mut rng) + (i / (REQUESTS / 6)) as u64 * 1000).collect()
}

/// Records read piecemeal (several consecutive requests for a page), a slow loop, uniform noise.
fn mixed(seed: u64) -> Vec<u64> {
    let (zipf, mut rng) = (Zipf::new(800), Rng::new(seed));
    let mut trace = Vec::new();
    let mut at = 0;
    while trace.len() < REQUESTS {
        let key = zipf.draw(&mut rng);
        trace.extend((0..=rng.below(3)).map(|_| key));
        trace.push(100_000 + at % 400);
        at += 1;
        if rng.below(4) == 0 {
            trace.push(200_000 + rng.below(2000));
        }
    }
    trace.truncate(REQUESTS);
    trace
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_have_their_length_and_favourites() {
        for (name, trace) in all() {
            assert_eq!(trace.len(), REQUESTS, "{name}");
        }
        let (zipf, mut rng) = (Zipf::new(1000), Rng::new(1));
        let draws: Vec<u64> = (0..10_000).map(|_| zipf.draw(&mut rng)).collect();
        let of = |key| draws.iter().filter(|drawn| **drawn == key).count();
        assert!(of(0) > 5 * of(9) && draws.iter().all(|key| *key < 1000));
    }
}
