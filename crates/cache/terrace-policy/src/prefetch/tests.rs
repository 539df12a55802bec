//! Tests of readahead: windows, strides, several readers of a file, and random reads.

use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

const MAX: u64 = 128;
const LIMITS: Limits = Limits { window_max: MAX, file_pages: 1 << 30 };

/// A file in a cache without evictions: pages in memory, and pages used.
#[derive(Default)]
struct File {
    prefetcher: Prefetcher,
    here: HashSet<u64>,
    used: HashSet<u64>,
    misses: u64,
    ahead: u64,
}

impl File {
    /// Reads `pages` at `first`; true if all of them were in memory. A miss begins at the first absent page.
    fn read(&mut self, first: u64, pages: u64, limits: Limits) -> bool {
        let cached = (first..first + pages).take_while(|page| self.here.contains(page)).count() as u64;
        let hit = cached == pages;
        if !hit {
            self.misses += 1;
            let used = &self.used;
            let spans =
                self.prefetcher.miss(first + cached, pages - cached, limits, |page| used.contains(&page));
            for page in spans.iter().flat_map(|span| span.first..span.end()) {
                assert!(page < limits.file_pages);
                self.ahead += u64::from(self.here.insert(page));
            }
        }
        self.here.extend(first..first + pages);
        self.used.extend(first..first + pages);
        hit
    }
}

/// A reader of one page after the other that uses all: pages read ahead by its next miss, from `at` on.
fn read(prefetcher: &mut Prefetcher, at: &mut u64) -> u64 {
    let window = along(prefetcher, *at);
    *at += 1 + window;
    window
}

/// Pages read ahead by a miss of one page.
fn along(prefetcher: &mut Prefetcher, at: u64) -> u64 {
    match prefetcher.miss(at, 1, LIMITS, |_| true)[..] {
        [] => 0,
        [Span { first, pages }] if first == at + 1 => pages,
        ref spans => panic!("{spans:?} at {at}"),
    }
}

#[test]
fn windows_double_up_to_the_limit() {
    let (mut prefetcher, mut at) = (Prefetcher::default(), 0);
    let windows: Vec<u64> = (0..6).map(|_| read(&mut prefetcher, &mut at)).collect();
    assert_eq!(windows, [16, 32, 64, 128, 128, 128]);
    let small = Limits { window_max: 4, ..LIMITS };
    assert_eq!(Prefetcher::default().miss(0, 1, small, |_| true), [Span { first: 1, pages: 4 }]);
    assert_eq!(Prefetcher::default().miss(0, 1, Limits { window_max: 0, ..LIMITS }, |_| true), []);
}

#[test]
fn window_that_is_cut_or_followed_by_pages_in_memory_goes_on() {
    let (mut prefetcher, mut at) = (Prefetcher::default(), 0);
    let mut windows = Vec::new();
    for arrived in [16, 1, 32, 20, 64, 2, 128, 128] {
        // This many pages of the window were read.
        windows.push(along(&mut prefetcher, at));
        at += 1 + arrived;
    }
    assert_eq!(windows, [16, 32, 32, 64, 64, 128, 128, 128]);
    assert_eq!(prefetcher.streams.len(), 1, "one reader, one stream");
    at = prefetcher.streams[0].next + 30;
    assert_eq!(read(&mut prefetcher, &mut at), MAX, "30 pages were in memory");
    at = prefetcher.streams[0].next + 33;
    assert_eq!(read(&mut prefetcher, &mut at), 0, "as far away as another reader's");
}

#[test]
fn readers_of_one_file_keep_their_windows() {
    // Far apart, and near enough that the first misses could be a stride's.
    for apart in [100_000, 500] {
        let mut prefetcher = Prefetcher::default();
        let mut readers: Vec<u64> = (0..STREAMS_MAX as u64).map(|n| 1000 + n * (apart + n)).collect();
        for _ in 0..3 {
            readers.iter_mut().for_each(|at| {
                read(&mut prefetcher, at);
            });
        }
        assert!(readers.iter_mut().all(|at| read(&mut prefetcher, at) == 64), "{apart} pages apart");
    }
}

#[test]
fn random_misses_do_not_end_a_stream() {
    let (mut prefetcher, mut at) = (Prefetcher::default(), 0);
    for n in 1..200 {
        read(&mut prefetcher, &mut at);
        for miss in 0..20 {
            assert_eq!(along(&mut prefetcher, (1 << 20) + crate::mix(n * 20 + miss) % (1 << 28)), 0);
        }
    }
    assert_eq!(read(&mut prefetcher, &mut at), MAX);
    assert_eq!(prefetcher.streams.len(), STREAMS_MAX);
}

#[test]
fn streams_that_end_make_room_for_new_ones() {
    let mut prefetcher = Prefetcher::default();
    for n in 1..100 {
        let mut at = n * 10_000;
        let windows: Vec<u64> = (0..3).map(|_| read(&mut prefetcher, &mut at)).collect();
        assert_eq!(windows, [0, 16, 32], "reader {n}");
    }
}

#[test]
fn stride_is_read_ahead() {
    let mut file = File::default();
    // 4 KiB every 64 KiB.
    for n in 0..1000 {
        file.read(7 + n * 16, 1, LIMITS);
    }
    assert!((5..=40).contains(&file.misses), "{} misses", file.misses);
    assert!(file.ahead <= 1000 + u64::from(STEPS_MAX), "{} pages for 1000 reads", file.ahead);
    assert!(file.prefetcher.streams.len() <= STREAMS_MAX);
}

#[test]
fn strides_of_two_readers_and_backwards_are_read_ahead() {
    let mut file = File::default();
    for n in 0..500 {
        // Near each other, with different steps; a third goes backwards, two pages a read.
        file.read(100 + n * 16, 1, LIMITS);
        file.read(20_000 + n * 24, 1, LIMITS);
        file.read(90_000 - n * 20, 2, LIMITS);
        file.read(200_000 - n, 1, LIMITS);
    }
    assert!(file.misses <= 150, "{} misses of four readers of 500 each", file.misses);
}

#[test]
fn stride_survives_misses_out_of_line() {
    let mut file = File::default();
    for n in 0..1000 {
        file.read(n * 16, 1, LIMITS);
        if n % 5 == 0 {
            file.read(n * 16 + 300 + crate::mix(n) % 500, 1, LIMITS);
        }
    }
    assert!(file.misses < 450, "{} misses, 200 of them out of line", file.misses);
}

#[test]
fn distances_are_counted_by_majority() {
    assert_eq!(majority(&[16; 3]), None, "too few");
    assert_eq!(majority(&[16; 4]), Some(16));
    assert_eq!(majority(&[16, 1, 16, 2, 16, 3, 16, 16]), Some(16), "5 of 8");
    assert_eq!(majority(&[16, 1, 16, 2, 16, 3, 16, 4]), None, "4 of 8");
    let mut late = [16; 32];
    late[24..].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(majority(&late), Some(16), "8 of 16 are no majority, 24 of 32 are");
}

#[test]
fn useless_windows_halve_and_useful_ones_grow_again() {
    let (mut prefetcher, mut at) = (Prefetcher::default(), 0);
    for _ in 0..4 {
        read(&mut prefetcher, &mut at);
    }
    let mut windows = Vec::new();
    for tenths in [0, 3, 4, 0, 0, 0, 0, 10, 10, 6] {
        // This share of a window was used.
        let spans = prefetcher.miss(at, 1, LIMITS, |page| page % 10 < tenths);
        windows.push(spans[0].pages);
        at = spans[0].end();
    }
    assert_eq!(windows, [64, 32, 16, 8, 4, 2, 2, 4, 8, 16]);
}

#[test]
fn announced_reader_gets_the_largest_window_at_once() {
    let mut prefetcher = Prefetcher::default();
    prefetcher.expect(5000, MAX);
    assert_eq!(along(&mut prefetcher, 5000), MAX);
    prefetcher.expect(0, MAX);
    assert_eq!(along(&mut prefetcher, 9000), 0, "no announcement for this place");
    prefetcher.expect(0, 0);
    assert!(prefetcher.streams.len() <= 3);
}

#[test]
fn small_file_that_is_read_whole_costs_no_memory() {
    let mut prefetcher = Prefetcher::default();
    let spans = prefetcher.miss(0, 4, Limits { window_max: MAX, file_pages: 12 }, |_| true);
    assert_eq!(spans, [Span { first: 4, pages: 8 }]);
    assert_eq!(prefetcher.streams.capacity(), 0);
}

/// Misses by a distribution: pages of `of`, uniform, or with rank r as often as 1/r.
fn draws(seed: u64, of: u64, zipf: bool) -> impl Iterator<Item = u64> {
    (0..20_000).map(move |n| {
        let uniform = crate::mix(seed ^ crate::mix(n)) % of;
        if !zipf {
            return uniform;
        }
        let share = uniform as f64 / of as f64;
        crate::mix((of as f64).powf(share) as u64) % of
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn random_and_zipf_get_next_to_nothing(seed: u64, log in 10_u32..20, zipf: bool) {
        // Every read is a miss: the cache is small, and there is no stream.
        let limits = Limits { file_pages: 1 << log, ..LIMITS };
        let mut prefetcher = Prefetcher::default();
        let mut ahead = 0;
        for page in draws(seed, limits.file_pages, zipf) {
            let spans = prefetcher.miss(page, 1, limits, |_| false);
            ahead += spans.iter().map(|span| span.pages).sum::<u64>();
        }
        // In 1,024 pages neighbours follow each other by chance.
        prop_assert!(ahead <= 20_000 * 3 / 100 + 40_000_000 / limits.file_pages / 40, "{} pages", ahead);
    }

    #[test]
    fn spans_lie_in_the_file_and_in_the_window(
        misses in prop::collection::vec((0_u64..3000, 1_u64..40, any::<bool>()), 1..300),
        window_max in 0_u64..200,
        file_pages in 1_u64..3000,
    ) {
        let limits = Limits { window_max, file_pages };
        let mut prefetcher = Prefetcher::default();
        let mut at = 0;
        for (first, pages, follow) in misses {
            at = if follow { (at + 16) % file_pages } else { first % file_pages };
            let pages = pages.min(file_pages - at);
            let spans = prefetcher.miss(at, pages, limits, |page| page % 3 == 0);
            let sum: u64 = spans.iter().map(|span| span.pages).sum();
            prop_assert!(sum <= window_max, "{sum} of {window_max}");
            prop_assert!(spans.iter().all(|span| span.pages > 0 && span.end() <= file_pages));
            prop_assert!(prefetcher.streams.len() <= STREAMS_MAX);
        }
    }

    #[test]
    fn every_steady_reader_is_served(step in -900_i64..900, pages in 1_u64..8, start in 800_000_u64..900_000) {
        prop_assume!(step.unsigned_abs() >= pages);
        let mut file = File::default();
        for n in 0..400 {
            file.read(start.checked_add_signed(n * step).unwrap(), pages, LIMITS);
        }
        prop_assert!(file.misses <= 60, "{} misses of 400", file.misses);
    }
}
