//! Tests of the follower of a recorded schedule: a simulated program, cache and source.

use super::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use terrace_testkit::rng::Rng;

/// Time of a fetch, and of the program's own wait for a page.
const LATENCY_NS: u64 = 1_000_000;

/// A program, a cache without a limit, and a source that does any number of fetches at once.
struct Fixture {
    follower: Follower,
    /// Pages in memory, and whether a program has used them.
    present: BTreeMap<u64, bool>,
    on_their_way: VecDeque<(u64, u32)>,
    now_ns: u64,
    hits: u64,
    misses: u64,
    most_pending: u64,
}

impl Fixture {
    fn new(pages: &[u64]) -> Fixture {
        Fixture::of(pages.iter().map(|&first| Piece { file: 0, pages: 1, first }).collect())
    }
    fn of(pieces: Vec<Piece>) -> Fixture {
        Fixture {
            follower: Follower::new(pieces),
            present: BTreeMap::new(),
            on_their_way: VecDeque::new(),
            now_ns: 1,
            hits: 0,
            misses: 0,
            most_pending: 0,
        }
    }

    fn read(&mut self, page: u64, pause_ns: u64) {
        self.work();
        match self.present.get_mut(&page) {
            Some(used) => {
                *used = true;
                self.hits += 1;
            }
            None => {
                self.misses += 1;
                self.follower.missed(0, page, 1, self.now_ns);
                self.now_ns += LATENCY_NS;
                self.work();
                self.present.insert(page, true);
            }
        }
        self.now_ns += pause_ns;
    }

    /// The work of a follower's owner.
    fn work(&mut self) {
        while let Some((_, number)) = self.on_their_way.pop_front_if(|(ready, _)| *ready <= self.now_ns) {
            let piece = self.follower.piece(number);
            let mut mask = 0;
            for i in 0..piece.pages {
                let new = !self.present.contains_key(&(piece.first + u64::from(i)));
                mask |= u32::from(new) << i;
                self.present.entry(piece.first + u64::from(i)).or_insert(false);
            }
            self.follower.landed(number, mask, self.now_ns);
        }
        for (number, page) in self.follower.watched() {
            if self.present[&page] {
                self.follower.used(number, self.now_ns);
            }
        }
        for (number, mask) in self.follower.due() {
            let first = self.follower.piece(number).first;
            let is_used = |i: &u32| mask >> i & 1 == 1 && self.present[&(first + u64::from(*i))];
            self.follower.judge(number, (0..32).filter(is_used).count() as u32);
        }
        while let Some(number) = self.follower.next(self.now_ns, 4096) {
            self.on_their_way.push_back((self.now_ns + LATENCY_NS, number));
        }
        assert!(self.follower.pending <= 2 * self.follower.window() + PIECE_PAGES);
        self.most_pending = self.most_pending.max(self.follower.pending);
    }
}

fn shuffled(of: u64, rng: &mut Rng) -> Vec<u64> {
    let mut pages: Vec<u64> = (0..of).collect();
    rng.shuffle(&mut pages);
    pages
}

#[test]
fn a_recorded_order_is_fetched_ahead() {
    let pages = shuffled(5000, &mut Rng::new(1));
    for pause_ns in [2_000, 100_000, 3_000_000] {
        let mut w = Fixture::new(&pages);
        pages.iter().for_each(|&page| w.read(page, pause_ns));
        w.work();
        let (counts, misses) = (w.follower.counts(), w.misses);
        assert!(misses < 250, "{misses} misses, {counts:?}, a page every {pause_ns} ns");
        assert_eq!((w.follower.end(), counts.unused), (Some(End::Done), 0), "{counts:?}");
        assert_eq!(counts.used, counts.fetched);
    }
}

/// The window follows the program's speed.
#[test]
fn a_slow_program_has_little_ahead() {
    let pages = shuffled(5000, &mut Rng::new(1));
    let ahead = |pause_ns| {
        let mut w = Fixture::new(&pages);
        pages.iter().for_each(|&page| w.read(page, pause_ns));
        w.most_pending
    };
    let (slow, fast) = (ahead(500_000), ahead(5_000));
    assert!(slow <= 2 * WINDOW_MIN && fast >= 4 * WINDOW_MIN, "{slow} pages ahead, {fast}");
}

/// Threads interleave differently than in the recording.
#[test]
fn turns_may_be_taken_in_another_way() {
    let (mut rng, pages) = (Rng::new(2), shuffled(5000, &mut Rng::new(1)));
    let mut now = pages.clone();
    for i in 0..now.len() {
        let with = (i + rng.below(30) as usize).min(now.len() - 1);
        now.swap(i, with);
    }
    let mut w = Fixture::new(&pages);
    now.iter().for_each(|&page| w.read(page, 100_000));
    assert!(w.misses < 500 && w.follower.end() != Some(End::Useless), "{} misses", w.misses);
}

#[test]
fn another_programs_schedule_ends_itself() {
    let of = 20_000;
    let pages = shuffled(of, &mut Rng::new(1));
    let mut sequence: Vec<u64> = (0..of).collect();
    for program in ["random", "sequential", "backwards"] {
        match program {
            "random" => sequence = shuffled(of, &mut Rng::new(7)),
            "sequential" => sequence.sort_unstable(),
            _ => sequence.reverse(),
        }
        let mut w = Fixture::new(&pages);
        sequence.iter().take(4000).for_each(|&page| w.read(page, 10_000));
        let counts = w.follower.counts();
        assert_eq!(w.follower.end(), Some(End::Useless), "{program}: {counts:?}");
        assert!(counts.fetched < 600, "{program}: {counts:?}");
    }
}

#[test]
fn of_files_that_nobody_reads_little_is_fetched() {
    let pages = shuffled(5000, &mut Rng::new(1));
    let mut w = Fixture::new(&pages);
    for page in 0..2000 {
        w.read(1_000_000 + page, 10_000);
    }
    assert_eq!(w.follower.counts().fetched, WINDOW_MIN);
}

/// The first half is in memory, or is skipped by the program.
#[test]
fn a_part_that_needs_no_fetching_is_passed() {
    let pages = shuffled(8000, &mut Rng::new(1));
    for there in [false, true] {
        let mut w = Fixture::new(&pages);
        if there {
            w.present = pages[..4000].iter().map(|&page| (page, true)).collect();
            pages[..4000].iter().for_each(|&page| w.read(page, 10_000));
        }
        pages[4000..].iter().for_each(|&page| w.read(page, 10_000));
        w.work();
        let counts = w.follower.counts();
        assert!(w.misses < 400, "there: {there}, {} misses, {counts:?}", w.misses);
        assert_eq!(w.follower.end(), Some(End::Done), "there: {there}, {counts:?}");
    }
}

#[test]
fn spans_are_fetched_piece_by_piece() {
    let piece = |n: u64| Piece { file: 0, pages: 32, first: n * 32 };
    let mut w = Fixture::of((0..200).map(piece).collect());
    (0..6400).for_each(|page| w.read(page, 20_000));
    w.work();
    let counts = w.follower.counts();
    assert!(w.misses < 200 && counts.unused < 100, "{} misses, {counts:?}", w.misses);
    assert!(counts.fetched > 6000);
}

/// The counters stay consistent under any order of answers and uses.
#[test]
fn any_order_of_events_keeps_the_books() {
    let mut rng = Rng::new(5);
    for _ in 0..300 {
        let piece = |n: u64| Piece { file: (n % 2) as u32, pages: 1 + (n % 32) as u32, first: n * 40 };
        let mut follower = Follower::new((0..200).map(piece).collect());
        let mut asked = BTreeSet::new();
        for now in 1..2000 {
            let any = asked.iter().nth(rng.below(asked.len().max(1) as u64) as usize).copied();
            match (rng.below(7), any) {
                (0 | 1, _) => asked.extend(follower.next(now, 64)),
                (2, Some(number)) => {
                    asked.remove(&number);
                    follower.landed(number, rng.below(2) as u32 * ((1 << (number % 32)) | 1), now);
                }
                (3, _) => {
                    if let Some(&(number, _)) = follower.watched().first() {
                        follower.used(number, now);
                    }
                }
                (4, _) => follower.missed(rng.below(3) as u32, rng.below(9000), 1 + rng.below(3), now),
                (5, _) => {
                    for (number, mask) in follower.due() {
                        follower.judge(number, rng.below(u64::from(mask.count_ones()) + 1) as u32);
                    }
                }
                (_, Some(number)) if rng.below(9) == 0 => {
                    asked.remove(&number);
                    follower.skip(number);
                }
                _ => {}
            }
            let waiting = |(number, piece): (&u32, &Ahead)| match (piece.used, piece.landed) {
                (true, _) => 0,
                (false, Some(mask)) => u64::from(mask.count_ones()),
                (false, None) => u64::from(follower.piece(*number).pages),
            };
            assert_eq!(follower.pending, follower.ahead.iter().map(waiting).sum::<u64>());
            let counts = follower.counts();
            assert!(counts.used + counts.unused <= counts.fetched, "{counts:?}");
        }
    }
}
