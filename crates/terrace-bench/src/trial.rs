//! Rounds of a comparison: the systems of a cell one after the other in random order, the same number of times, on fresh caches; every run
//! kept as a JSON line; the paired ratios and the verdict at the end.

use crate::pages::Rng;
use crate::stats::{self, Interval};
use crate::system::{self, Places, System};
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Share of the machine's CPU that others may use before a run is marked as disturbed.
pub const FOREIGN_CPU_MAX: f64 = 0.04;
const CONFIDENCE: f64 = 0.95;
/// Name of the metric that tells which share of the reads was answered from memory.
pub const HIT_SHARE: &str = "hit_share";
/// Hits dominate a cell where each run of it, of both systems, answered at least this share of its reads from memory.
pub const HITS_DOMINATE: f64 = 0.5;

/// Numbers of one run, by name.
pub type Sample = BTreeMap<&'static str, f64>;

/// What one run of a load gave.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Its numbers.
    pub sample: Sample,
    /// Share of the machine's CPU that others used meanwhile.
    pub foreign_cpu: f64,
    /// terrace's own statistics at the end, for the raw results.
    pub stats: Option<serde_json::Value>,
}

/// What a metric's ratio (candidate / baseline) is held to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Reported only.
    None,
    /// The ratio must not be above.
    AtMost(f64),
    /// The ratio must not be below.
    AtLeast(f64),
    /// The ratio must be above, the whole interval of it.
    Above(f64),
    /// The ratio must not be above, in cells where hits dominate (see [`HITS_DOMINATE`]); elsewhere it is reported only.
    AtMostWhereHits(f64),
}

impl Bound {
    /// How the ratio stands to the bound.
    pub fn verdict(self, ratio: &Interval) -> &'static str {
        let (met, sure) = match self {
            Bound::None => return "",
            Bound::Above(b) => (ratio.low > b, ratio.low > b || ratio.high <= b),
            Bound::AtMost(b) | Bound::AtMostWhereHits(b) => {
                (ratio.mean <= b, ratio.high <= b || ratio.low > b)
            }
            Bound::AtLeast(b) => (ratio.mean >= b, ratio.low >= b || ratio.high < b),
        };
        match (met, sure) {
            (true, true) => "met",
            (true, false) => "met, within noise",
            (false, true) => "MISSED",
            (false, false) => "MISSED, within noise",
        }
    }

    /// The bound for a cell with these rounds; `None` where that cannot be told.
    fn of(self, rounds: &[[Sample; 2]]) -> Option<Bound> {
        let Bound::AtMostWhereHits(b) = self else { return Some(self) };
        let shares: Option<Vec<f64>> = rounds.iter().flatten().map(|s| s.get(HIT_SHARE).copied()).collect();
        let least = shares?.into_iter().reduce(f64::min)?;
        Some(if least >= HITS_DOMINATE { Bound::AtMost(b) } else { Bound::None })
    }

    fn text(self) -> String {
        match self {
            Bound::None => String::new(),
            Bound::AtMost(b) | Bound::AtMostWhereHits(b) => format!("<= {b:.2}"),
            Bound::AtLeast(b) => format!(">= {b:.2}"),
            Bound::Above(b) => format!("> {b:.2}"),
        }
    }
}

/// One comparison.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Which suite.
    pub suite: &'static str,
    /// Which cell of it.
    pub name: String,
    /// Baseline, candidate.
    pub systems: [System; 2],
    /// Metrics and what they are held to, in the order of the report.
    pub judged: Vec<(&'static str, Bound)>,
}

/// How much to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// Rounds of each cell.
    pub runs: usize,
    /// Seed of the order and of the loads.
    pub seed: u64,
    /// Put the baseline in the candidate's place: the intervals must hold 1.
    pub self_check: bool,
    /// Only cells whose "suite name" contains this.
    pub only: Option<String>,
    /// Times that a disturbed round is repeated.
    pub retries: usize,
    /// Seconds to wait, before each round, for others to be done.
    pub wait_quiet_s: u64,
}

/// A comparison's result.
#[derive(Clone, Debug, Serialize)]
pub struct Ratio {
    /// Suite and cell.
    pub cell: String,
    /// The number.
    pub metric: &'static str,
    /// The baseline's mean.
    pub baseline: f64,
    /// The candidate's mean.
    pub candidate: f64,
    /// Candidate / baseline.
    pub ratio: Interval,
    /// What it is held to.
    pub bound: Bound,
    /// "met", "MISSED".
    pub verdict: &'static str,
    /// Rounds with a disturbed run in them.
    pub disturbed: usize,
}

/// A session of comparisons.
#[derive(Debug)]
pub struct Trial {
    /// Where things are.
    pub places: Places,
    /// How much to do.
    pub options: Options,
    rng: Rng,
    raw: Option<File>,
    ratios: Vec<Ratio>,
    refused: Vec<String>,
    /// What has no ratio though it was to be judged.
    unmeasured: Vec<Unmeasured>,
}

/// A metric without a ratio.
#[derive(Clone, Debug, Serialize)]
struct Unmeasured {
    cell: String,
    metric: &'static str,
    /// It was held to something, which so is not met.
    bound: bool,
    why: String,
}

impl Trial {
    /// Opens the raw file and writes the machine's description into it.
    pub fn new(places: Places, options: Options, raw: Option<&Path>) -> io::Result<Trial> {
        let raw = raw.map(File::create).transpose()?;
        let rng = Rng::new(options.seed);
        let mut trial = Trial {
            places,
            options,
            rng,
            raw,
            ratios: Vec::new(),
            refused: Vec::new(),
            unmeasured: Vec::new(),
        };
        let machine = crate::machine::describe(&trial.places.data);
        println!(
            "{} x {}, {} MiB, Linux {}, {} on {} ({}), {}; seed {}",
            machine.cpus,
            machine.cpu,
            machine.memory_bytes >> 20,
            machine.kernel,
            machine.file_system,
            machine.device,
            machine.scheduler,
            machine.fio,
            trial.options.seed
        );
        let line = json!({"schema": "terrace.bench.v1", "kind": "machine", "machine": machine, "seed": trial.options.seed});
        trial.record(&line)?;
        Ok(trial)
    }

    fn record(&mut self, line: &serde_json::Value) -> io::Result<()> {
        match &mut self.raw {
            Some(file) => writeln!(file, "{line}"),
            None => Ok(()),
        }
    }

    /// Is this cell asked for?
    pub fn wanted(&self, suite: &str, name: &str) -> bool {
        self.options.only.as_ref().is_none_or(|only| format!("{suite} {name}").contains(only.as_str()))
    }

    /// Runs all rounds of a cell. `load` makes one run and gives its numbers; the seed it is handed is the same for both systems of a
    /// round. A refused run (wrong data, killed, limit not binding) leaves its round out and is told in the report.
    pub fn cell(
        &mut self,
        mut cell: Cell,
        mut load: impl FnMut(&Places, &System, u64) -> Result<Measured, String>,
    ) -> io::Result<()> {
        if !self.wanted(cell.suite, &cell.name) || system::interrupted() {
            return Ok(());
        }
        if self.options.self_check {
            cell.systems[1] = cell.systems[0].clone();
        }
        let mut rounds: Vec<[Sample; 2]> = Vec::new();
        let (mut disturbed, mut retries) = (0, self.options.retries);
        let mut round = 0;
        while round < self.options.runs && !system::interrupted() {
            round += 1;
            let Some((samples, foreign)) = self.round(&cell, round, &mut load)? else { continue };
            if foreign > FOREIGN_CPU_MAX && retries > 0 {
                (retries, round) = (retries - 1, round - 1);
                continue;
            }
            disturbed += usize::from(foreign > FOREIGN_CPU_MAX);
            rounds.push(samples);
        }
        self.conclude(&cell, &rounds, disturbed)
    }

    fn round(
        &mut self,
        cell: &Cell,
        round: usize,
        load: &mut impl FnMut(&Places, &System, u64) -> Result<Measured, String>,
    ) -> io::Result<Option<([Sample; 2], f64)>> {
        crate::machine::wait_until_quiet(self.options.wait_quiet_s);
        let seed = self.rng.word();
        let mut order = [0, 1];
        self.rng.shuffle(&mut order);
        let mut samples = [Sample::new(), Sample::new()];
        let mut foreign_max = 0.0f64;
        for side in order {
            let system = &cell.systems[side];
            let result = load(&self.places, system, seed >> 16);
            if system::interrupted() {
                return Ok(None);
            }
            let place = ["baseline", "candidate"][side];
            let mut line = json!({"kind": "run", "suite": cell.suite, "cell": cell.name, "system": system.name(), "place": place,
                "round": round, "seed": seed >> 16});
            match result {
                Ok(Measured { sample, foreign_cpu: foreign, stats }) => {
                    eprintln!(
                        "{} {} round {round}: {:18} {}",
                        cell.suite,
                        cell.name,
                        system.name(),
                        brief(&sample, cell, foreign)
                    );
                    line["metrics"] = json!(sample);
                    line["foreign_cpu"] = json!(foreign);
                    line["stats"] = json!(stats);
                    self.record(&line)?;
                    foreign_max = foreign_max.max(foreign);
                    samples[side] = sample;
                }
                Err(why) => {
                    eprintln!("{} {} round {round}: {} REFUSED: {why}", cell.suite, cell.name, system.name());
                    self.refused.push(format!(
                        "{} {} round {round}, {}: {why}",
                        cell.suite,
                        cell.name,
                        system.name()
                    ));
                    line["refused"] = json!(why);
                    self.record(&line)?;
                    return Ok(None);
                }
            }
        }
        Ok(Some((samples, foreign_max)))
    }

    fn conclude(&mut self, cell: &Cell, rounds: &[[Sample; 2]], disturbed: usize) -> io::Result<()> {
        let mut ratios = Vec::new();
        let mut unmeasured = Vec::new();
        for &(metric, bound) in &cell.judged {
            let bound = if self.options.self_check { Bound::None } else { bound };
            let result = self.ratio(cell, rounds, metric, bound, disturbed);
            let mut line = match &result {
                Ok(ratio) => serde_json::to_value(ratio)?,
                Err(unmeasured) => serde_json::to_value(unmeasured)?,
            };
            line["kind"] = json!(if result.is_ok() { "ratio" } else { "unmeasured" });
            self.record(&line)?;
            match result {
                Ok(ratio) => ratios.push(ratio),
                Err(missing) => unmeasured.push(missing),
            }
        }
        print!("{}", table(&ratios, &unmeasured, cell));
        self.ratios.extend(ratios);
        self.unmeasured.extend(unmeasured);
        Ok(())
    }

    fn ratio(
        &self,
        cell: &Cell,
        rounds: &[[Sample; 2]],
        metric: &'static str,
        bound: Bound,
        disturbed: usize,
    ) -> Result<Ratio, Unmeasured> {
        let cell_name = format!("{} {}", cell.suite, cell.name);
        let missing = |why: &str| Unmeasured {
            cell: cell_name.clone(),
            metric,
            bound: bound != Bound::None,
            why: why.to_string(),
        };
        let pairs: Option<Vec<(f64, f64)>> =
            rounds.iter().map(|[b, c]| Some((*b.get(metric)?, *c.get(metric)?))).collect();
        let pairs = pairs.ok_or_else(|| missing("a run did not tell it"))?;
        if pairs.len() < 2 {
            return Err(missing("an interval needs two good rounds"));
        }
        let ratio = stats::paired_ratio(&pairs, CONFIDENCE)
            .ok_or_else(|| missing("a run gave a number that is no measurement"))?;
        let bound = bound.of(rounds).ok_or_else(|| missing("a run did not tell its share of hits"))?;
        let (base, cand): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
        Ok(Ratio {
            cell: cell_name,
            metric,
            baseline: stats::mean(&base).unwrap_or(f64::NAN),
            candidate: stats::mean(&cand).unwrap_or(f64::NAN),
            ratio,
            bound,
            verdict: bound.verdict(&ratio),
            disturbed,
        })
    }

    /// Says what was refused and what is missing; the exit code: 1 when a bound was missed or could not be judged, or a run was
    /// refused.
    pub fn finish(self) -> i32 {
        for why in &self.refused {
            println!("refused: {why}");
        }
        let open = self.unmeasured.iter().filter(|u| u.bound).count();
        let missed = self.ratios.iter().filter(|r| r.verdict.starts_with("MISSED")).count();
        let bound = self.ratios.iter().filter(|r| r.bound != Bound::None).count() + open;
        if bound > 0 {
            let met = bound - missed - open;
            println!(
                "{met} of {bound} targets met, {open} not measured, {} runs refused",
                self.refused.len()
            );
        }
        i32::from(missed + open > 0 || !self.refused.is_empty() || system::interrupted())
    }
}

fn brief(sample: &Sample, cell: &Cell, foreign: f64) -> String {
    let mut text = String::new();
    for (metric, _) in &cell.judged {
        if let Some(v) = sample.get(metric) {
            let _ = write!(text, "{metric} {}  ", number(*v));
        }
    }
    if foreign > FOREIGN_CPU_MAX {
        let _ = write!(text, "(others used {:.0} % of the CPUs)", foreign * 100.0);
    }
    text
}

/// Three significant digits or more, no exponents.
pub fn number(v: f64) -> String {
    match v.abs() {
        a if a >= 100.0 => format!("{v:.0}"),
        a if a >= 10.0 => format!("{v:.1}"),
        a if a >= 1.0 => format!("{v:.2}"),
        _ => format!("{v:.3}"),
    }
}

fn table(ratios: &[Ratio], unmeasured: &[Unmeasured], cell: &Cell) -> String {
    let mut text = format!(
        "\n{} {}: {} against {}\n{:26} {:>12} {:>12}  {:24} {:8}\n",
        cell.suite,
        cell.name,
        cell.systems[1].name(),
        cell.systems[0].name(),
        "",
        "baseline",
        "candidate",
        "ratio (95 % interval)",
        "target"
    );
    for r in ratios {
        let interval = format!("{:.3}  ({:.3} to {:.3})", r.ratio.mean, r.ratio.low, r.ratio.high);
        let (base, cand) = (number(r.baseline), number(r.candidate));
        let _ = writeln!(
            text,
            "{:26} {base:>12} {cand:>12}  {interval:24} {:8} {}",
            r.metric,
            r.bound.text(),
            r.verdict
        );
    }
    for u in unmeasured {
        let _ = writeln!(text, "{:26} NOT MEASURED: {}", u.metric, u.why);
    }
    if let Some(r) = ratios.first() {
        let disturbed =
            if r.disturbed > 0 { format!(", {} disturbed by others", r.disturbed) } else { String::new() };
        let _ = writeln!(text, "{} rounds{disturbed}", r.ratio.n);
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts() {
        let i = |mean, low, high| Interval { mean, low, high, n: 5 };
        assert_eq!(Bound::AtMost(0.75).verdict(&i(0.7, 0.68, 0.72)), "met");
        assert_eq!(Bound::AtMost(0.75).verdict(&i(0.7, 0.6, 0.8)), "met, within noise");
        assert_eq!(Bound::AtMost(0.75).verdict(&i(0.8, 0.7, 0.9)), "MISSED, within noise");
        assert_eq!(Bound::AtMost(0.75).verdict(&i(0.8, 0.78, 0.82)), "MISSED");
        assert_eq!(Bound::AtLeast(0.95).verdict(&i(0.97, 0.96, 0.98)), "met");
        assert_eq!(Bound::AtLeast(0.95).verdict(&i(0.9, 0.85, 0.94)), "MISSED");
        assert_eq!(Bound::Above(1.0).verdict(&i(1.1, 1.01, 1.2)), "met");
        assert_eq!(Bound::Above(1.0).verdict(&i(1.1, 0.99, 1.2)), "MISSED, within noise");
        assert_eq!(Bound::Above(1.0).verdict(&i(0.9, 0.8, 1.0)), "MISSED");
        assert_eq!(Bound::None.verdict(&i(9.0, 8.0, 10.0)), "");
    }

    fn trial(runs: usize) -> Trial {
        let at = std::path::PathBuf::from("/");
        let places = Places {
            data: at.clone(),
            scratch: at.clone(),
            terrace: at.clone(),
            bench: at,
            terrace_args: vec![],
            lenient: false,
            favour: false,
            throttle: None,
        };
        let options = Options { runs, seed: 3, self_check: false, only: None, retries: 0, wait_quiet_s: 0 };
        Trial::new(places, options, None).unwrap()
    }

    fn cell() -> Cell {
        let systems = [System::Kernel, System::PassThrough { threads: 1 }];
        Cell { suite: "test", name: "cell".into(), systems, judged: vec![("t", Bound::AtMost(1.1))] }
    }

    #[test]
    fn a_slower_candidate_is_found_in_either_order() {
        let mut trial = trial(6);
        let mut firsts = Vec::new();
        trial
            .cell(cell(), |_, system, seed| {
                firsts.push((system.name(), seed));
                let base = 100.0 + (seed % 50) as f64;
                let t = if *system == System::Kernel { base } else { base * 1.2 };
                Ok(Measured { sample: Sample::from([("t", t)]), ..Measured::default() })
            })
            .unwrap();
        let r = &trial.ratios[0];
        assert!((r.ratio.mean - 1.2).abs() < 1e-9 && r.verdict == "MISSED");
        assert!(firsts.chunks(2).all(|p| p[0].1 == p[1].1), "both sides of a round get one seed");
        let leaders: std::collections::BTreeSet<_> = firsts.iter().step_by(2).map(|f| f.0).collect();
        assert_eq!(leaders.len(), 2, "the order is random");
        assert_eq!(trial.finish(), 1);
    }

    #[test]
    fn a_cell_without_a_ratio_shows_no_other_cells_and_is_not_met() {
        let ok = |n: f64| Ok(Measured { sample: Sample::from([("t", n)]), ..Measured::default() });
        let mut trial = trial(3);
        trial.cell(cell(), |_, _, _| ok(1.0)).unwrap();
        trial.cell(cell(), |_, _, _| Err("wrong data".into())).unwrap();
        trial.cell(cell(), |_, _, _| Ok(Measured::default())).unwrap();
        trial.options.runs = 1;
        trial.cell(cell(), |_, _, _| ok(1.0)).unwrap();
        assert_eq!((trial.ratios.len(), trial.unmeasured.len()), (1, 3));
        let text = table(&[], &trial.unmeasured[..1], &cell());
        assert!(text.contains("NOT MEASURED: an interval needs") && !text.contains("1.000"), "{text}");
        trial.refused.clear();
        assert_eq!(trial.finish(), 1);
    }

    #[test]
    fn a_bound_for_hits_holds_where_hits_dominate() {
        let round = |base, cand| [base, cand].map(|share| Sample::from([(HIT_SHARE, share)]));
        let bound = Bound::AtMostWhereHits(0.75);
        assert_eq!(bound.of(&[round(0.6, 0.5), round(0.6, 0.7)]), Some(Bound::AtMost(0.75)));
        assert_eq!(bound.of(&[round(0.6, 0.5), round(0.4, 0.7)]), Some(Bound::None));
        assert_eq!(bound.of(&[[Sample::new(), Sample::new()]]), None);
        assert_eq!(Bound::AtLeast(1.0).of(&[]), Some(Bound::AtLeast(1.0)));
    }

    #[test]
    fn refused_runs_are_left_out_and_told() {
        let mut trial = trial(4);
        let mut n = 0;
        trial
            .cell(cell(), |_, _, _| {
                n += 1;
                let sample = Sample::from([("t", 1.0)]);
                if n == 1 { Err("wrong data".into()) } else { Ok(Measured { sample, ..Measured::default() }) }
            })
            .unwrap();
        assert_eq!((trial.ratios[0].ratio.n, trial.refused.len()), (3, 1));
        assert_eq!(trial.finish(), 1);
    }
}
