//! A small seeded generator: every random run of the tests can be replayed from one printed number.

/// SplitMix64. Enough for tests, and short enough to be the same in every program here.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator that always gives the same numbers for the same seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number in `0..n`; 0 when `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.next_u64() % n }
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `items`.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }
}

/// The finaliser of SplitMix64: spreads a counter over all 64 bits.
pub fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The seed of this run: `TERRACE_SEED`, or a fresh one. It is printed, so that a failure can be repeated.
pub fn seed(test: &str) -> u64 {
    let seed = match std::env::var("TERRACE_SEED") {
        Ok(text) => text.parse().expect("TERRACE_SEED is a number"),
        Err(_) => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
            mix(now.as_nanos() as u64 ^ u64::from(std::process::id())) >> 32
        }
    };
    println!("{test}: TERRACE_SEED={seed}");
    seed
}

/// Fills `buf` with bytes that depend on `pattern` and on the position in the pattern, none of them zero in the first
/// byte of each word, so that written data never look like a hole. Of 8 words in a row 1 to 8 are noise, as the pattern will have it,
/// the others are the pattern's own: some of it compresses well, some a little, some not at all.
pub fn fill(buf: &mut [u8], pattern: u64) {
    let (from, noisy) = (pattern.wrapping_mul(0x1000_0001), 1 + pattern % 8);
    let own = mix(pattern) | 1;
    for (i, word) in (0_u64..).zip(buf.chunks_mut(8)) {
        let value = if i % 8 < noisy { mix(from.wrapping_add(i)) | 1 } else { own };
        word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
    }
}

/// FNV-1a over 64-bit words, the tail bytewise: a content hash for comparing logs, nothing more.
pub fn hash(buf: &[u8]) -> u64 {
    let mut h = 0xcbf2_9ce4_8422_2325u64 ^ buf.len() as u64;
    let mut words = buf.chunks_exact(8);
    for word in &mut words {
        h = (h ^ u64::from_le_bytes(word.try_into().expect("8 bytes"))).wrapping_mul(0x0000_0100_0000_01b3);
        h ^= h >> 29;
    }
    for byte in words.remainder() {
        h = (h ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    mix(h)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_numbers() {
        let (mut a, mut b) = (Rng::new(7), Rng::new(7));
        assert!((0..100).all(|_| a.next_u64() == b.next_u64()));
    }

    #[test]
    fn hash_sees_every_byte() {
        let mut data = vec![0; 1003];
        fill(&mut data, 5);
        let clean = hash(&data);
        for at in 0..data.len() {
            data[at] ^= 1;
            assert_ne!(hash(&data), clean, "byte {at}");
            data[at] ^= 1;
        }
    }
}
