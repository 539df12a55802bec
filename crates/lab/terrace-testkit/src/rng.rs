//! Random numbers for tests, reproducible from one printed seed.

use std::time::{SystemTime, UNIX_EPOCH};

/// SplitMix64 (Steele, Lea, Flood 2014): the same numbers on every machine and in every version, as golden
/// results require.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator that gives the same numbers for the same seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A number below `n`; 0 when `n` is 0. The bias is under n / 2^64.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// An index into `len` items; 0 when `len` is 0.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// A number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `items`, which must not be empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.index(items.len())]
    }

    /// Shuffles `items` (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.index(i + 1));
        }
    }

    /// Returns `n` random bytes.
    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        self.fill(&mut bytes);
        bytes
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for word in bytes.chunks_mut(8) {
            word.copy_from_slice(&self.next_u64().to_le_bytes()[..word.len()]);
        }
    }
}

/// SplitMix64's finaliser: a bijection: every bit depends on all of `x`.
pub fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// The seed of this run: `TERRACE_SEED`, or a fresh one. Prints it, so that a failure can be repeated.
///
/// # Panics
/// If `TERRACE_SEED` is not a number.
pub fn seed(test: &str) -> u64 {
    let seed = match std::env::var("TERRACE_SEED") {
        Ok(text) => text.parse().expect("TERRACE_SEED is a number"),
        Err(_) => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64);
            mix(now ^ u64::from(std::process::id())) >> 32
        }
    };
    println!("{test}: TERRACE_SEED={seed}");
    seed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_one_sequence() {
        let (mut a, mut b) = (Rng::new(7), Rng::new(7));
        assert!((0..100).all(|_| a.next_u64() == b.next_u64()));
        // The reference implementation's first numbers for the seed 1234567.
        let mut known = Rng::new(1_234_567);
        assert_eq!(known.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(known.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn numbers_stay_below_and_cover() {
        let mut rng = Rng::new(1);
        let mut seen = [false; 10];
        (0..1000).for_each(|_| seen[rng.below(10) as usize] = true);
        assert_eq!((seen, rng.below(0)), ([true; 10], 0));
        assert!((0..1000).all(|_| (0.0..1.0).contains(&rng.unit())));
        let mut order: Vec<u32> = (0..100).collect();
        rng.shuffle(&mut order);
        assert_ne!(order, (0..100).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn fill_reaches_the_last_byte() {
        let (mut bytes, mut rng) = ([0; 1003], Rng::new(1));
        rng.fill(&mut bytes);
        assert!(bytes[1000..].iter().all(|byte| *byte != 0), "no byte of these is 0 by chance");
    }
}
