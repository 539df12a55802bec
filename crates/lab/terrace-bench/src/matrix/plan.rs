//! The list of runs and their order: repetition by repetition, and within each all cells of all systems in
//! random order. So drift affects all systems alike, and a matrix that is stopped early has as many runs of
//! each. With pairing, the systems of a cell follow one another; with interleaving, all repetitions of a cell
//! do.

use super::load::Load;
use super::spec::{Spec, SystemSpec};
use crate::pages::mix;
use fastrand::Rng;
use std::time::Duration;

/// One run to make.
#[derive(Clone, Debug)]
pub(crate) struct Planned<'a> {
    /// "system/load/pattern/jobs/repetition".
    pub(crate) id: String,
    /// The system that serves.
    pub(crate) system: &'a SystemSpec,
    pub(crate) load: Load<'a>,
    /// Number of the repetition, from 1.
    pub(crate) repetition: u32,
    /// Position in the order of the whole matrix, from 1.
    pub(crate) order: u64,
    /// Seed of the load; the same for all systems of a cell and repetition.
    pub(crate) seed: u64,
}

impl Planned<'_> {
    /// "load/pattern/jobs".
    pub(crate) fn cell(&self) -> String {
        format!("{}/{}/{}", self.load.spec.name, self.load.pattern, self.load.jobs)
    }
}

/// FNV-1a: a name as a number.
pub(crate) fn number_of(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// All runs of a matrix, in order, on a machine with `cpus` processors.
pub(crate) fn plan(spec: &Spec, seed: u64, cpus: usize) -> Vec<Planned<'_>> {
    let mut rng = Rng::with_seed(seed);
    let cells = cells(spec, cpus);
    // The unit of the random order: a run, or all runs of a cell.
    let mut all = Vec::new();
    for repetition in 1..=spec.repetitions {
        let mut block: Vec<Vec<Planned<'_>>> =
            cells.iter().map(|load| systems_of(spec, seed, load, repetition, &mut rng)).collect();
        if !spec.is_paired() {
            block = block.into_iter().flatten().map(|run| vec![run]).collect();
        }
        if spec.interleave.is_none() {
            rng.shuffle(&mut block);
        }
        all.extend(block.into_iter().flatten());
    }
    if spec.interleave.is_some() {
        let place = |run: &Planned<'_>| {
            let same = |load: &Load<'_>| {
                (&load.spec.name, load.pattern, load.jobs)
                    == (&run.load.spec.name, run.load.pattern, run.load.jobs)
            };
            cells.iter().position(same)
        };
        all.sort_by_key(place);
    }
    for (planned, order) in all.iter_mut().zip(1..) {
        planned.order = order;
    }
    all
}

fn cells(spec: &Spec, cpus: usize) -> Vec<Load<'_>> {
    let mut cells = Vec::new();
    for load in &spec.load {
        for pattern in spec.patterns_of(load) {
            cells.extend(spec.jobs_on(cpus).into_iter().map(|jobs| Load::new(spec, load, pattern, jobs)));
        }
    }
    cells
}

/// The systems of a cell in random order.
fn systems_of<'a>(
    spec: &'a Spec,
    seed: u64,
    load: &Load<'a>,
    repetition: u32,
    rng: &mut Rng,
) -> Vec<Planned<'a>> {
    let cell = format!("{}/{}/{}/{repetition}", load.spec.name, load.pattern, load.jobs);
    // fio takes seeds of 32 bits in some places; the measurement's is one more.
    let seed = mix(seed ^ number_of(&cell)) >> 33;
    let of = |system: &'a SystemSpec| Planned {
        id: format!("{}/{cell}", system.name),
        system,
        load: *load,
        repetition,
        order: 0,
        seed,
    };
    let mut runs: Vec<Planned<'a>> =
        spec.system.iter().filter(|system| load.spec.is_for(system)).map(of).collect();
    rng.shuffle(&mut runs);
    runs
}

/// Estimated time of a run beside its warm-up and measurement, until measured.
const BESIDE: Duration = Duration::from_millis(3000);

pub(crate) fn estimate(runs: &[Planned<'_>]) -> Duration {
    runs.iter().map(|run| Duration::from_secs(run.load.ramp_s + run.load.measure_s) + BESIDE).sum()
}

/// A duration as text.
pub(crate) fn minutes(time: Duration) -> String {
    let s = time.as_secs();
    if s < 90 { format!("{s} s") } else { format!("{} min", s.div_ceil(60)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    const TEXT: &str = r#"
name = "x"
repetitions = 5
limit_mib = 64
file_set = 2.0
patterns = ["random", "zipf:0.8"]
jobs = [2, 4]
[[system]]
kind = "kernel"
[[system]]
kind = "direct"
[[load]]
kind = "fio"
[[load]]
name = "write"
kind = "fio"
rw = "write"
"#;

    #[test]
    fn runs_are_interleaved_in_an_order_that_the_seed_repeats() {
        let spec = Spec::parse(TEXT).unwrap();
        let runs = plan(&spec, 7, 2);
        assert_eq!(runs.len(), 5 * 2 * (2 * 2 + 2));
        let ids = |runs: &[Planned<'_>]| runs.iter().map(|r| r.id.clone()).collect::<Vec<_>>();
        assert_eq!(ids(&runs), ids(&plan(&spec, 7, 2)));
        assert_ne!(ids(&runs), ids(&plan(&spec, 8, 2)));
        assert_eq!(ids(&runs).into_iter().collect::<BTreeSet<_>>().len(), runs.len());
        assert!(ids(&runs).contains(&"direct/write/sequential/4/5".to_string()));
        let first: BTreeSet<_> =
            runs.chunks(12).map(|block| block[0].id.rsplit_once('/').unwrap().0.to_string()).collect();
        assert!(first.len() > 1, "each repetition has an order of its own");
        assert!(
            runs.chunks(12)
                .enumerate()
                .all(|(i, block)| block.iter().all(|r| r.repetition as usize == i + 1))
        );
        assert!(runs.iter().zip(1..).all(|(run, order)| run.order == order));
    }

    #[test]
    fn systems_share_the_seeds_of_a_cell_and_nothing_else_does() {
        let spec = Spec::parse(TEXT).unwrap();
        let mut seeds = BTreeMap::<u64, BTreeSet<String>>::new();
        for run in plan(&spec, 7, 2) {
            let cell = run.id.split_once('/').unwrap().1.to_string();
            seeds.entry(run.seed).or_default().insert(cell);
        }
        assert_eq!(seeds.len(), 30);
        assert!(seeds.values().all(|cells| cells.len() == 1));
    }

    #[test]
    fn pairs_follow_one_another_and_turns_stay_in_their_cell() {
        let text = TEXT.replace("name = \"x\"", "name = \"x\"\npairing = true");
        let spec = Spec::parse(&text).unwrap();
        let runs = plan(&spec, 7, 2);
        assert!(runs.chunks(2).all(|pair| pair[0].cell() == pair[1].cell() && pair[0].seed == pair[1].seed));
        let first: BTreeSet<_> = runs.chunks(2).map(|pair| pair[0].system.name.clone()).collect();
        assert_eq!(first.len(), 2, "either system comes first");
        let text = TEXT
            .replace("name = \"x\"", "name = \"x\"\ninterleave = 3")
            .replace("rw = \"write\"", "rw = \"read\"");
        let spec = Spec::parse(&text).unwrap();
        let runs = plan(&spec, 7, 2);
        assert_eq!(runs.iter().map(Planned::cell).collect::<Vec<_>>().chunk_by(|a, b| a == b).count(), 6);
        assert!(runs.chunks(2).all(|pair| pair[0].repetition == pair[1].repetition));
    }
}
