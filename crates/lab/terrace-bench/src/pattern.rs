//! Page numbers of a random load: fio's distributions (`--random_distribution`) for other loops, so that
//! programs that do not read files get the same keys.
//!
//! - zipf: ranks by the method of Gray et al. ("Quickly generating billion-record synthetic databases",
//!   1994), as in fio.
//! - normal: fio's deviate is the mean of twelve uniform numbers from an interval of DEV per cent of the
//!   file, so its standard deviation is DEV / 12 per cent of the file: `normal:40` reads a quarter of the
//!   file, and hardly ever the rest.
//!
//! The mapping of ranks to pages is fixed: a warm-up with another seed warms the right pages. fio hashes the
//! rank instead, so some ranks share a page.

use fastrand::Rng;
use std::sync::Arc;

/// Distribution of the page numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pattern {
    /// Uniform.
    Random,
    /// Zipf: the page of rank i has the weight i^-theta.
    Zipf(f64),
    /// Normal around the middle, DEV in per cent of the file, as in fio.
    Normal(f64),
}

impl std::str::FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Pattern, String> {
        let number = |text: &str, max: f64| text.parse::<f64>().ok().filter(|n| *n > 0.0 && *n <= max);
        let pattern = match text.split_once(':') {
            None if text == "random" => Some(Pattern::Random),
            Some(("zipf", theta)) => number(theta, 10.0).filter(|theta| *theta != 1.0).map(Pattern::Zipf),
            Some(("normal", dev)) => number(dev, 100.0).map(Pattern::Normal),
            _ => None,
        };
        pattern.ok_or_else(|| format!("{text:?} is none of random, zipf:THETA, normal:DEV"))
    }
}

/// A pattern over a file; threads share it.
#[derive(Clone, Debug)]
pub struct Pages {
    pattern: Pattern,
    zipf: Zipf,
    /// Page of each rank.
    order: Arc<[u32]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Zipf {
    theta: f64,
    zeta: f64,
    eta: f64,
}

/// Seed of the mapping of ranks to pages.
const ORDER_SEED: u64 = 0x7465_7272_6163_6531;

impl Pages {
    /// Pages 0 to `pages` - 1.
    pub fn new(pattern: Pattern, pages: u64) -> Pages {
        let mut order: Vec<u32> = (0..pages as u32).collect();
        Rng::with_seed(ORDER_SEED).shuffle(&mut order);
        let zipf = match pattern {
            Pattern::Zipf(theta) => Zipf::new(theta, pages),
            _ => Zipf::default(),
        };
        Pages { pattern, zipf, order: order.into() }
    }

    /// Draws the next page.
    #[inline]
    pub fn draw(&self, rng: &mut Rng) -> u64 {
        let of = self.order.len() as u64;
        let rank = match self.pattern {
            Pattern::Random => rng.u64(..of),
            Pattern::Zipf(_) => self.zipf.rank(rng.f64(), of as f64) as u64,
            Pattern::Normal(dev) => normal_rank(dev, rng, of as f64),
        };
        u64::from(self.order[rank.min(of - 1) as usize])
    }
}

impl Zipf {
    fn new(theta: f64, pages: u64) -> Zipf {
        let zeta: f64 = (1..=pages).map(|i| (i as f64).powf(-theta)).sum();
        let zeta_2 = 1.0 + 0.5f64.powf(theta);
        let eta = (1.0 - (2.0 / pages as f64).powf(1.0 - theta)) / (1.0 - zeta_2 / zeta);
        Zipf { theta, zeta, eta }
    }

    /// The rank, from 0, of a uniform number.
    fn rank(&self, uniform: f64, pages: f64) -> f64 {
        let weight = uniform * self.zeta;
        if weight < 1.0 {
            return 0.0;
        }
        if weight < 1.0 + 0.5f64.powf(self.theta) {
            return 1.0;
        }
        pages * (self.eta * uniform - self.eta + 1.0).powf(1.0 / (1.0 - self.theta))
    }
}

fn normal_rank(dev: f64, rng: &mut Rng, pages: f64) -> u64 {
    let interval = (pages * dev / 100.0).min(pages / 2.0);
    let sum: f64 = (0..12).map(|_| rng.f64() - 0.5).sum();
    (pages / 2.0 + sum / 12.0 * interval).max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads of each page, in descending order.
    fn counts(pattern: &str, pages: u64, draws: u64) -> Vec<u64> {
        let from = Pages::new(pattern.parse().unwrap(), pages);
        let mut rng = Rng::with_seed(7);
        let mut counts = vec![0; pages as usize];
        (0..draws).for_each(|_| counts[from.draw(&mut rng) as usize] += 1);
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts
    }

    #[test]
    fn zipf_draws_follow_their_law() {
        let (pages, draws) = (10_000, 1_000_000);
        let counts = counts("zipf:0.8", pages, draws);
        let zeta: f64 = (1..=pages).map(|i| (i as f64).powf(-0.8)).sum();
        let share = |n: usize| counts[..n].iter().sum::<u64>() as f64 / draws as f64;
        let law = |n: u64| (1..=n).map(|i| (i as f64).powf(-0.8)).sum::<f64>() / zeta;
        for n in [1, 10, 100, 2_500, 7_500] {
            assert!(
                (share(n) - law(n as u64)).abs() < 0.02,
                "{n}: {} instead of {}",
                share(n),
                law(n as u64)
            );
        }
    }

    #[test]
    fn normal_40_reads_a_quarter_of_the_file() {
        let counts = counts("normal:40", 10_000, 1_000_000);
        let share = |n: usize| counts[..n].iter().sum::<u64>() as f64 / 1e6;
        // The standard deviation is 333 pages: two on either side contain 95.4 %, and four all but 0.006 %.
        assert!((share(1333) - 0.954).abs() < 0.01, "{}", share(1333));
        assert!(share(2667) > 0.999 && counts[3500] == 0);
    }

    #[test]
    fn hot_pages_stay_when_the_seed_changes() {
        let pages = Pages::new(Pattern::Zipf(0.8), 1000);
        let hottest = |seed| {
            let mut rng = Rng::with_seed(seed);
            let mut counts = vec![0; 1000];
            (0..100_000).for_each(|_| counts[pages.draw(&mut rng) as usize] += 1);
            (0..1000).max_by_key(|page| counts[*page]).unwrap()
        };
        assert_eq!(hottest(1), hottest(2));
    }

    #[test]
    fn invalid_pattern_is_refused() {
        assert!(
            ["", "zipf", "zipf:1", "normal:x", "pareto:0.9"].iter().all(|p| p.parse::<Pattern>().is_err())
        );
        assert_eq!("normal:40".parse(), Ok(Pattern::Normal(40.0)));
    }
}
