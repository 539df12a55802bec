//! The simulator's boundary between DRAM and the compressed tier: it settles after each change of load,
//! rests there, and never exceeds the memory. A load without gain from compression pays nothing for it.

use terrace_policy::build;
use terrace_sim::compressed_sim::{CompressedOutcome, CompressedSim, Content, Prices, Setup};
use terrace_testkit::rng::Rng;
use terrace_testkit::traces::Zipf;

/// Memory, pages; files are twice as large.
const BUDGET: usize = 8192;
const FILE: u32 = 2 * BUDGET as u32;
/// First page of an incompressible file; the next constant is that of pages read once only.
const NOISE: u32 = FILE;
const ONCE: u32 = 2 * FILE;
/// Length of a phase: judged windows; the next constant is in requests.
const WINDOWS: u64 = 160;
const PHASE: usize = 240 * BUDGET;
/// Windows after which the boundary must rest. It can cross the whole range in 64, once the last phase's
/// pages have left DRAM.
const SETTLED: usize = 128;

/// A phase of accesses.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Four fifths of the memory, uniform.
    Fits,
    /// A file of twice the memory, zipf.
    Zipf,
    /// A file of twice the memory, uniform.
    Uniform,
    /// Each page once.
    Scan,
    /// Twice the memory, sequential, repeated.
    Loop,
    /// An incompressible file of twice the memory, zipf.
    Noise,
}

/// Draws the pages of phases.
struct Programs {
    zipf: Zipf,
    rng: Rng,
    scanned: u32,
}

impl Programs {
    fn new(seed: u64) -> Programs {
        Programs { zipf: Zipf::new(u64::from(FILE)), rng: Rng::new(seed), scanned: 0 }
    }
    fn page(&mut self, phase: Phase) -> u32 {
        match phase {
            Phase::Fits => self.rng.below(BUDGET as u64 * 4 / 5) as u32,
            Phase::Uniform => self.rng.below(u64::from(FILE)) as u32,
            Phase::Zipf => self.zipf.draw(&mut self.rng) as u32,
            Phase::Noise => NOISE + self.zipf.draw(&mut self.rng) as u32,
            Phase::Loop => {
                self.scanned += 1;
                self.scanned % FILE
            }
            Phase::Scan => {
                self.scanned += 1;
                ONCE + self.scanned
            }
        }
    }
}

fn content(page: u32) -> Content {
    let noise = (NOISE..ONCE).contains(&page);
    Content { file: u8::from(noise), compresses: !noise }
}

fn setup(percent_max: u32) -> Setup {
    Setup { budget: BUDGET, ratio: 1.87, percent: 0..=percent_max, prices: Prices::default(), device: None }
}

/// The result of a phase.
struct Seen {
    counts: CompressedOutcome,
    /// The tier's memory limit after each window, pages.
    shares: Vec<usize>,
    /// Turns of the boundary after the settling time.
    turns_late: u64,
}

/// Runs a phase and checks the memory at each request.
fn run(sim: &mut CompressedSim<'_>, programs: &mut Programs, phase: Phase) -> Seen {
    let before = sim.outcome();
    let (mut shares, mut turns_settled) = (Vec::new(), None);
    for _ in 0..PHASE {
        sim.request(programs.page(phase));
        let (dram, tier) = sim.used();
        assert!(dram + tier <= BUDGET, "{phase:?}: {dram} + {tier} pages, {sim:?}");
        let now = sim.outcome();
        if now.windows - before.windows > shares.len() as u64 {
            shares.push(sim.share());
            if shares.len() == SETTLED {
                turns_settled = Some(now.turns);
            }
        }
        if shares.len() as u64 == WINDOWS {
            break;
        }
    }
    let now = sim.outcome();
    Seen { counts: since(now, before), shares, turns_late: now.turns - turns_settled.unwrap_or(now.turns) }
}

/// The counts of pages and requests since `before`.
fn since(now: CompressedOutcome, before: CompressedOutcome) -> CompressedOutcome {
    CompressedOutcome {
        requests: now.requests - before.requests,
        tier_hits: now.tier_hits - before.tier_hits,
        misses: now.misses - before.misses,
        stored: now.stored - before.stored,
        refused: now.refused - before.refused,
        ..now
    }
}

/// Runs one phase twice on a fresh cache. Returns the second result.
fn alone(phase: Phase, percent_max: u32) -> Seen {
    alone_under("strata", phase, percent_max)
}

fn alone_under(policy: &str, phase: Phase, percent_max: u32) -> Seen {
    let mut policy = build(policy, BUDGET, BUDGET).unwrap();
    let mut sim =
        CompressedSim::new(policy.as_mut(), setup(percent_max), ONCE as usize + 2 * PHASE + 1, &content);
    let mut programs = Programs::new(7);
    run(&mut sim, &mut programs, phase);
    run(&mut sim, &mut programs, phase)
}

#[test]
fn the_boundary_settles_after_every_change_and_rests() {
    let phases = [
        Phase::Zipf,
        Phase::Fits,
        Phase::Uniform,
        Phase::Scan,
        Phase::Zipf,
        Phase::Noise,
        Phase::Uniform,
        Phase::Fits,
        Phase::Zipf,
    ];
    let mut policy = build("strata", BUDGET, BUDGET).unwrap();
    let mut sim = CompressedSim::new(policy.as_mut(), setup(90), ONCE as usize + PHASE + 1, &content);
    let mut programs = Programs::new(1);
    for (i, &phase) in phases.iter().enumerate() {
        let Seen { counts, shares, turns_late } = run(&mut sim, &mut programs, phase);
        let told = format!("phase {i}, {phase:?}: {shares:?}, {counts:?}");
        assert!(turns_late <= 2, "{turns_late} turns: {told}");
        if let Some(late) = shares.get(SETTLED..).filter(|late| !late.is_empty()) {
            let range = late.iter().max().unwrap() - late.iter().min().unwrap();
            assert!(range <= BUDGET / 8, "{range} pages: {told}");
        }
        let end = sim.share();
        match phase {
            Phase::Uniform => assert!(end > BUDGET * 3 / 4, "{told}"),
            Phase::Noise => assert!(end <= BUDGET / 32, "{told}"),
            _ => {}
        }
    }
}

#[test]
fn move_without_a_gain_costs_nothing() {
    for phase in [Phase::Fits, Phase::Scan, Phase::Noise] {
        let (with, without) = (alone(phase, 90).counts, alone(phase, 0).counts);
        let [with_ns, without_ns] = [with, without].map(|counts| counts.request_ns(&Prices::default()));
        assert!(with_ns <= without_ns * 1.03, "{phase:?}: {with_ns:.0} ns instead of {without_ns:.0}");
        let tried = with.stored + with.refused;
        assert!(tried <= with.misses / 60, "{phase:?}: {tried} pages compressed, {} misses", with.misses);
        assert!(phase != Phase::Scan || tried == 0, "a scan: {tried} pages compressed");
    }
}

#[test]
fn move_with_a_gain_is_made() {
    for (phase, percent, most) in
        [(Phase::Uniform, 90, 0.6), (Phase::Zipf, 90, 0.8), (Phase::Loop, 50, 0.9), (Phase::Loop, 90, 0.9)]
    {
        let [with, without] =
            [percent, 0].map(|percent| alone(phase, percent).counts.request_ns(&Prices::default()));
        assert!(with < without * most, "{phase:?}, {percent}: {with:.0} ns instead of {without:.0}");
    }
}

/// `lru` keeps no shadows: the entries show refaults.
#[test]
fn a_policy_without_shadows_gains_as_well() {
    let [with, without] =
        [90, 0].map(|percent| alone_under("lru", Phase::Zipf, percent).counts.request_ns(&Prices::default()));
    assert!(with < without * 0.8, "{with:.0} ns instead of {without:.0}");
}
