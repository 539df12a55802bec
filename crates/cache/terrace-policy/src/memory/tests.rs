//! Tests of the rule for the cache's size, under simulated loads: a control group with a cache, a program
//! that reads through it, and other programs.

use super::*;

const MIB: u64 = 1 << 20;
const LOOK: Duration = Duration::from_millis(50);

/// A program that reads at random: size of its data in bytes, pages a second.
#[derive(Clone, Copy, Default)]
struct Load {
    bytes: u64,
    pages_a_second: f64,
}

impl Load {
    fn hit_ratio(&self, cached: u64) -> f64 {
        if self.bytes == 0 { 1.0 } else { (cached as f64 / self.bytes as f64).min(1.0) }
    }
}

/// A control group with a cache, a program that reads through it, and one that reads other files.
struct Fixture {
    limit: u64,
    pinned: u64,
    ours: u64,
    /// Bytes by which the cache stays below its target.
    short: u64,
    here: Load,
    there: Load,
    now: Duration,
    hits: f64,
    misses: f64,
    lost: f64,
    sizer: Sizer,
    /// Targets, one a call.
    targets: Vec<u64>,
    /// Calls at which the total was above the limit: the kernel would have killed a process.
    kills: usize,
}

impl Fixture {
    fn new(limit: u64, fixed: Option<u64>) -> Fixture {
        let rule = Rule { most: fixed.unwrap_or(1 << 40), fixed: fixed.is_some(), own: 24 * MIB };
        Fixture {
            limit,
            pinned: 20 * MIB,
            ours: MIB,
            short: 0,
            here: Load::default(),
            there: Load::default(),
            now: Duration::ZERO,
            hits: 0.0,
            misses: 0.0,
            lost: 0.0,
            sizer: Sizer::new(rule),
            targets: Vec::new(),
            kills: 0,
        }
    }

    fn cached(&self) -> u64 {
        self.there.bytes.min(self.limit.saturating_sub(self.pinned + self.ours))
    }

    fn level(&self) -> Level {
        let used = self.ours + self.pinned + self.cached();
        Level {
            limit: self.limit,
            used,
            cached: self.cached(),
            refaults: self.lost as u64,
            stalled_ns: None,
            met: if used == self.limit { self.now.as_millis() as u64 } else { 0 },
        }
    }

    /// One call of the sizer, and the programs' work until the next.
    fn look(&mut self) {
        self.kills += usize::from(self.ours + self.pinned > self.limit);
        let level = [self.level()];
        self.sizer.fit(self.now, self.ours, &level);
        if self.targets.len().is_multiple_of(10) {
            let earning = Earning {
                hits: self.hits as u64,
                misses: self.misses as u64,
                refaults: self.misses as u64,
                chunk_saves: if self.ours < self.here.bytes {
                    CHUNK as f64 / self.here.bytes as f64
                } else {
                    0.0
                },
                miss_ns: 100_000,
            };
            let target = self.sizer.weigh(self.now, self.ours, &earning, &level);
            assert!(target <= self.limit - self.pinned, "{target}");
        }
        self.targets.push(self.sizer.target());
        self.ours = self.ours.min(self.sizer.target());
        let seconds = LOOK.as_secs_f64();
        let reads = self.here.pages_a_second * seconds;
        let found = reads * self.here.hit_ratio(self.ours);
        (self.hits, self.misses) = (self.hits + found, self.misses + reads - found);
        let filled = self.ours + (reads - found) as u64 * 4096;
        self.ours = filled.min(self.sizer.target() - self.short).min(self.here.bytes.max(self.ours));
        self.lost += self.there.pages_a_second * seconds * (1.0 - self.there.hit_ratio(self.cached()));
        self.now += LOOK;
    }

    fn run(&mut self, seconds: u64) {
        (0..seconds * 20).for_each(|_| self.look());
    }

    /// Smallest and largest target of the last seconds, MiB.
    fn range(&self, seconds: usize) -> (u64, u64) {
        let last = &self.targets[self.targets.len() - 20 * seconds..];
        (last.iter().min().unwrap() / MIB, last.iter().max().unwrap() / MIB)
    }
}

#[test]
fn free_memory_is_taken_but_for_the_reserve() {
    let mut world = Fixture::new(512 * MIB, None);
    world.here = Load { bytes: 1024 * MIB, pages_a_second: 40_000.0 };
    world.run(10);
    // 20 MiB of programs, a sixteenth as the reserve.
    assert_eq!(world.range(2), (460, 460));
    assert!(world.ours > 455 * MIB, "{}", world.ours / MIB);
    assert_eq!(world.sizer.why(), SizeReason::Room(0));
}

#[test]
fn cache_is_as_large_as_it_is_of_use() {
    let mut world = Fixture::new(512 * MIB, None);
    world.here = Load { bytes: 100 * MIB, pages_a_second: 40_000.0 };
    world.run(10);
    assert_eq!(world.ours.div_ceil(MIB), 100);
}

#[test]
fn pages_that_earn_push_out_idle_ones_faster_each_time() {
    let mut world = Fixture::new(512 * MIB, None);
    world.there = Load { bytes: 2048 * MIB, pages_a_second: 0.0 };
    world.here = Load { bytes: 300 * MIB, pages_a_second: 40_000.0 };
    world.run(1);
    assert!(world.range(1).1 <= 16 + 8 + 16, "{:?}", world.range(1));
    world.run(14);
    let of_looks = |looks| world.targets.windows(looks).map(move |w| w[looks - 1].saturating_sub(w[0]));
    assert!(of_looks(10).max().unwrap() <= world.limit / 8, "{:?}", world.targets);
    assert!(world.ours > 290 * MIB, "{}", world.ours / MIB);
}

/// Frames become a part of the compressed tier in pieces, and are missing for a moment.
#[test]
fn cache_that_never_fills_its_target_to_the_end_grows() {
    for (limit, short) in [(128, 6), (512, 17)] {
        let mut world = Fixture::new(limit * MIB, None);
        world.short = short * MIB;
        world.there = Load { bytes: 64 * MIB, pages_a_second: 0.0 };
        world.here = Load { bytes: 2 * limit * MIB, pages_a_second: 40_000.0 };
        world.run(10);
        assert!(
            world.ours + (16 + 20 + 16 + short) * MIB + world.limit / 16 > world.limit,
            "{:?}",
            world.range(5)
        );
        assert_eq!(world.kills, 0);
    }
}

#[test]
fn pages_that_earn_push_out_pages_in_use_step_by_step() {
    let mut world = Fixture::new(512 * MIB, None);
    world.there = Load { bytes: 2048 * MIB, pages_a_second: 200.0 };
    world.here = Load { bytes: 300 * MIB, pages_a_second: 20_000.0 };
    world.run(10);
    let most = world.targets.windows(21).map(|w| w[20].saturating_sub(w[0])).max().unwrap();
    assert!(most <= CHUNKS_A_SECOND * CHUNK, "{}", most / MIB);
    world.run(20);
    assert!(world.ours > 290 * MIB, "{}", world.ours / MIB);
}

#[test]
fn program_that_grows_gets_its_memory_at_once() {
    let mut world = Fixture::new(512 * MIB, None);
    world.here = Load { bytes: 1024 * MIB, pages_a_second: 40_000.0 };
    world.run(10);
    for _ in 0..20 {
        world.pinned += 15 * MIB;
        world.look();
    }
    assert_eq!(world.kills, 0);
    assert!(world.ours < 170 * MIB);
    // Memory of a burst is kept free for a while.
    assert_eq!(world.sizer.reserve(), 32 * MIB);
    world.pinned += 25 * MIB;
    world.look();
    world.look();
    assert!(world.sizer.reserve() > 45 * MIB, "{}", world.sizer.reserve() / MIB);
    world.pinned = 20 * MIB;
    world.run(1);
    assert!(world.range(1).1 < 250, "it grows slowly again: {:?}", world.range(1));
    world.run(60);
    assert!(world.ours > 420 * MIB);
    assert_eq!(world.kills, 0);
}

#[test]
fn two_caches_settle_and_do_not_swing() {
    let mut world = Fixture::new(512 * MIB, None);
    world.here = Load { bytes: 600 * MIB, pages_a_second: 10_000.0 };
    world.there = Load { bytes: 600 * MIB, pages_a_second: 10_000.0 };
    world.run(90);
    let (least, most) = world.range(30);
    assert!(most - least <= 40, "{least} to {most}");
    assert!(least > 64 && most < 460, "{least} to {most}: both have a part");
}

#[test]
fn idle_cache_gives_way_down_to_its_floor() {
    // At once after a time of idleness; otherwise when losses have lasted.
    for (idle, within) in [(10, 1), (0, 3)] {
        let mut world = Fixture::new(512 * MIB, None);
        world.here = Load { bytes: 1024 * MIB, pages_a_second: 40_000.0 };
        world.run(10);
        world.here.pages_a_second = 0.0;
        world.run(idle);
        world.there = Load { bytes: 480 * MIB, pages_a_second: 20_000.0 };
        let before = world.ours;
        world.run(within);
        assert!(world.ours < before, "within {within} s");
        assert!(matches!(world.sizer.why(), SizeReason::GaveWay(0)));
        world.run(6 - within);
        assert!(world.ours + 6 * 16 * MIB >= before, "eight chunks a second at the most");
        world.run(60);
        assert_eq!(world.range(5), (16, 16));
    }
}

#[test]
fn scan_of_more_than_can_be_held_takes_nothing() {
    let mut world = Fixture::new(512 * MIB, None);
    world.here = Load { bytes: 600 * MIB, pages_a_second: 10_000.0 };
    world.run(10);
    let before = world.ours;
    world.there = Load { bytes: 1 << 40, pages_a_second: 20_000.0 };
    world.run(120);
    assert!(world.range(100).0 * MIB + 80 * MIB > before, "{:?} of {}", world.range(100), before / MIB);
}

#[test]
fn fixed_limit_is_taken_whole_and_given_up_when_programs_thrash() {
    let mut world = Fixture::new(256 * MIB, Some(232 * MIB));
    world.here = Load { bytes: 512 * MIB, pages_a_second: 20_000.0 };
    world.run(10);
    assert_eq!(world.range(1), (230, 230), "what fits beside programs and 6 MiB");
    // Programs' own code and files: little memory, used all the time.
    world.there = Load { bytes: 40 * MIB, pages_a_second: 50_000.0 };
    world.run(10);
    assert!(matches!(world.sizer.why(), SizeReason::GaveWay(0)));
    assert!(world.ours < 205 * MIB, "{}", world.ours / MIB);
    assert!(world.range(5).0 > 180, "and no more than that: {:?}", world.range(5));
    world.there = Load::default();
    world.run(60);
    assert_eq!(world.range(1), (230, 230), "it comes back");
}

/// A program starts in a full group: its code was dropped, and is read once.
#[test]
fn fixed_limit_outlasts_the_start_of_a_program() {
    let mut world = Fixture::new(256 * MIB, Some(232 * MIB));
    world.here = Load { bytes: 512 * MIB, pages_a_second: 20_000.0 };
    world.run(10);
    for _ in 0..3 {
        world.there = Load { bytes: 6 * MIB, pages_a_second: 0.0 };
        // 5 MiB of code, within a second.
        for _ in 0..20 {
            world.lost += 64.0;
            world.look();
        }
        world.run(9);
    }
    assert_eq!(world.range(30), (230, 230));
    assert_eq!(world.sizer.given, 0);
}

/// A cache that fills its group but for 16 MiB.
fn full_group() -> Fixture {
    let mut world = Fixture::new(128 * MIB, None);
    world.here = Load { bytes: 256 * MIB, pages_a_second: 20_000.0 };
    world.there = Load { bytes: 24 * MIB, pages_a_second: 0.0 };
    world.run(10);
    world
}

/// Lets a starting program read `pages` pages of code again, within `looks` calls; then `seconds` pass.
/// Returns the smallest target.
fn start_program(world: &mut Fixture, pages: u32, looks: u32, seconds: u32) -> u64 {
    let at = world.targets.len();
    for look in 0..20 * seconds {
        // The start is behind a weighing, so that a short one falls into a single weighing.
        world.lost += if (1..=looks).contains(&look) { f64::from(pages / looks) } else { 0.0 };
        world.look();
    }
    *world.targets[at..].iter().min().unwrap()
}

#[test]
fn cache_of_use_outlasts_the_start_of_a_program() {
    let mut world = full_group();
    let before = world.sizer.target();
    for looks in [1, 10, 20] {
        assert_eq!(start_program(&mut world, 5000, looks, 10), before, "within {looks} looks");
    }
}

#[test]
fn programs_that_start_again_and_again_get_memory() {
    let mut world = full_group();
    let before = world.sizer.target();
    let least = (0..8).map(|_| start_program(&mut world, 5000, 4, 1)).min().unwrap();
    assert!(least < before, "{least} of {before}");
}

/// Pages that were read again once will not be lost by the next chunk.
#[test]
fn losses_that_have_ended_take_nothing() {
    let mut world = full_group();
    let before = world.sizer.target();
    assert!(start_program(&mut world, 50_000, 50, 3) < before, "some seconds of them take some");
    world.run(1);
    let after = world.sizer.target();
    world.run(5);
    assert!(world.range(5).0 * MIB >= after, "{:?} of {}", world.range(5), after / MIB);
}

#[test]
fn losses_are_ignored_while_there_is_free_memory() {
    let mut world = Fixture::new(512 * MIB, None);
    world.here = Load { bytes: 100 * MIB, pages_a_second: 40_000.0 };
    world.run(5);
    let level = |refaults| Level { refaults, ..world.level() };
    let mut sizer = Sizer::new(world.sizer.rule());
    for (at, refaults) in [(0, 0), (1, 100_000), (2, 200_000)] {
        sizer.fit(Duration::from_secs(at), 100 * MIB, &[level(refaults)]);
        sizer.weigh(Duration::from_secs(at), 100 * MIB, &Earning::default(), &[level(refaults)]);
    }
    assert_eq!((sizer.why(), sizer.yielded()), (SizeReason::Room(0), 0));
}

#[test]
fn level_without_a_limit_leaves_the_limit_of_the_user() {
    let mut sizer = Sizer::new(Rule { most: 64 * MIB, fixed: true, own: 24 * MIB });
    assert_eq!((sizer.fit(Duration::ZERO, 0, &[]), sizer.why()), (64 * MIB, SizeReason::Most));
}

/// No program reads files except through the cache, so the group never fills.
#[test]
fn cache_takes_idle_pages_of_a_group_that_is_nearly_full() {
    for idle_mib in (180..=236).step_by(4) {
        let mut world = Fixture::new(256 * MIB, None);
        world.there = Load { bytes: idle_mib * MIB, pages_a_second: 0.0 };
        world.here = Load { bytes: 512 * MIB, pages_a_second: 5000.0 };
        world.run(60);
        assert!(world.range(1).0 > 200, "{idle_mib} MiB idle: {:?}", world.range(1));
        assert_eq!(world.kills, 0);
    }
}
