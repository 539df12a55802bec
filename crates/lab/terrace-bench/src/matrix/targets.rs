//! Targets of a matrix: bounds of ratios, and the measured ratios.

use super::spec::{Spec, TargetSpec};
use crate::compare::cells::grouped;
use crate::compare::{CellComparison, Outcome, Question, Row, compare};
use crate::format::markdown_table;
use crate::raw::Run;
use crate::stats::{Interval, mean_interval};

/// Hits dominate a cell if each run of both systems answered at least this share of its reads from memory.
const HITS_DOMINATE: f64 = 0.5;

/// Result of a target in one cell.
#[derive(Clone, Debug)]
pub struct TargetResult {
    /// "fio-4k, random, 2 jobs".
    pub(crate) cell: String,
    /// Metric and bound.
    pub(crate) target: String,
    /// Measured ratio.
    pub(crate) ratio: Option<Interval>,
    /// "met", "MISSED, within noise", "NOT MEASURED: why".
    pub(crate) verdict: String,
}

impl TargetResult {
    /// Whether the target is met.
    pub(crate) fn is_met(&self) -> bool {
        self.verdict.starts_with("met")
    }
}

/// All targets in all their cells.
pub(crate) fn evaluate(spec: &Spec, runs: &[Run]) -> Vec<TargetResult> {
    spec.target.iter().flat_map(|target| evaluate_target(spec, target, runs)).collect()
}

fn evaluate_target(spec: &Spec, target: &TargetSpec, runs: &[Run]) -> Vec<TargetResult> {
    let wanted = |wanted: &Option<String>, found: &str| wanted.as_ref().is_none_or(|name| name == found);
    let concerned = runs
        .iter()
        .filter(|run| run.system == target.system || !target.alone && run.system == target.baseline)
        .filter(|run| wanted(&target.load, &run.load) && wanted(&target.pattern, &run.pattern))
        .map(|run| ((&run.load, &run.pattern, run.jobs), run));
    let question = Question {
        factor: "system".into(),
        baseline: target.baseline.clone(),
        by: ["load", "pattern", "jobs"].map(String::from).to_vec(),
        metrics: vec![target.metric.clone()],
        pair: Some("repetition".into()),
        confidence: 0.95,
    };
    let result =
        |cell: String, ratio, verdict: String| TargetResult { cell, target: target.text(), ratio, verdict };
    let mut evaluated = Vec::new();
    for (_, cell) in grouped(concerned) {
        if target.where_hits && !hits_dominate(&cell) {
            continue;
        }
        let found = if target.alone { alone(target, &cell) } else { of_pairs(&question, &cell) };
        let verdict = match &found {
            Ok(found) => target.verdict(found).into(),
            Err(why) => format!("NOT MEASURED: {why}"),
        };
        evaluated.push(result(told(cell[0]), found.ok(), verdict));
    }
    if evaluated.is_empty() && !target.where_hits && !spec.load.is_empty() {
        let cell = target.load.clone().unwrap_or_else(|| "all".into());
        evaluated.push(result(cell, None, "NOT MEASURED: no run".into()));
    }
    evaluated
}

/// The ratio of a cell's systems.
fn of_pairs(question: &Question, cell: &[&Run]) -> Result<Interval, String> {
    let rows: Vec<Row> = cell.iter().map(|run| Row::from(*run)).collect();
    let answer = compare(&rows, question)?;
    answer.cells.first().and_then(ratio).ok_or_else(|| "an interval needs two good pairs".into())
}

/// The metric itself.
fn alone(target: &TargetSpec, cell: &[&Run]) -> Result<Interval, String> {
    let good = cell.iter().filter(|run| run.refused.is_none());
    let values: Vec<f64> = good.filter_map(|run| run.metrics.get(&target.metric).copied()).collect();
    mean_interval(&values, 0.95).ok_or_else(|| "an interval needs two good runs".into())
}

/// The cell of a run as text.
fn told(run: &Run) -> String {
    format!("{}, {}, {} jobs", run.load, run.pattern, run.jobs)
}

fn hits_dominate(cell: &[&Run]) -> bool {
    let good = cell.iter().filter(|run| run.refused.is_none());
    let mut shares = good.map(|run| run.metrics.get("miss_ratio").map(|misses| 1.0 - misses)).peekable();
    shares.peek().is_some() && shares.all(|share| share.is_some_and(|share| share >= HITS_DOMINATE))
}

fn ratio(cell: &CellComparison) -> Option<Interval> {
    match cell.outcome {
        Outcome::Tested { percent, .. } => percent.map(|percent| percent.map(|p| 1.0 + p / 100.0)),
        Outcome::Constant { percent, .. } => {
            let ratio = 1.0 + percent? / 100.0;
            Some(Interval { mean: ratio, low: ratio, high: ratio, n: cell.candidate.runs })
        }
        Outcome::TooFew => None,
    }
}

impl TargetSpec {
    fn text(&self) -> String {
        let bounds = [("<=", self.at_most), (">=", self.at_least), (">", self.above)];
        let bound = bounds.iter().find_map(|(sign, bound)| Some(format!("{sign} {:.2}", (*bound)?)));
        let of = if self.alone { "" } else { &format!(", {} : {}", self.system, self.baseline) };
        format!("{} {}{of}", self.metric, bound.unwrap_or_default())
    }

    /// Compares the ratio with the bound.
    fn verdict(&self, ratio: &Interval) -> &'static str {
        let (met, sure) = if let Some(b) = self.above {
            (ratio.low > b, ratio.low > b || ratio.high <= b)
        } else if let Some(b) = self.at_most {
            (ratio.mean <= b, ratio.high <= b || ratio.low > b)
        } else {
            let b = self.at_least.unwrap_or(0.0);
            (ratio.mean >= b, ratio.low >= b || ratio.high < b)
        };
        match (met, sure) {
            (true, true) => "met",
            (true, false) => "met, within noise",
            (false, true) => "MISSED",
            (false, false) => "MISSED, within noise",
        }
    }
}

/// The targets as a table, and the number met.
pub fn table(evaluated: &[TargetResult]) -> String {
    if evaluated.is_empty() {
        return String::new();
    }
    let mut table = markdown_table();
    table.set_header(["cell", "target", "measured (95 % interval)", "result"]);
    for j in evaluated {
        let ratio = j.ratio.map_or("-".into(), |r| format!("{:.3} ({:.3} to {:.3})", r.mean, r.low, r.high));
        table.add_row([&j.cell, &j.target, &ratio, &j.verdict]);
    }
    let met = evaluated.iter().filter(|j| j.is_met()).count();
    format!("{table}\n\n{met} of {} targets met\n", evaluated.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(bound: &str) -> TargetSpec {
        toml::from_str(&format!("metric = \"cpu\"\n{bound}")).unwrap()
    }

    #[test]
    fn verdicts_say_how_sure_they_are() {
        let i = |mean, low, high| Interval { mean, low, high, n: 5 };
        let most = target("at_most = 0.75");
        assert_eq!(most.verdict(&i(0.7, 0.68, 0.72)), "met");
        assert_eq!(most.verdict(&i(0.7, 0.6, 0.8)), "met, within noise");
        assert_eq!(most.verdict(&i(0.8, 0.7, 0.9)), "MISSED, within noise");
        assert_eq!(most.verdict(&i(0.8, 0.78, 0.82)), "MISSED");
        let least = target("at_least = 0.95");
        assert_eq!(least.verdict(&i(0.97, 0.96, 0.98)), "met");
        assert_eq!(least.verdict(&i(0.9, 0.85, 0.94)), "MISSED");
        let above = target("above = 1.0");
        assert_eq!(above.verdict(&i(1.1, 1.01, 1.2)), "met");
        assert_eq!(above.verdict(&i(1.1, 0.99, 1.2)), "MISSED, within noise");
        assert_eq!(above.verdict(&i(0.9, 0.8, 1.0)), "MISSED");
    }

    fn run(system: &str, repetition: u32, cpu: f64, misses: f64) -> Run {
        Run {
            id: format!("{system}/{repetition}"),
            system: system.into(),
            load: "fio".into(),
            pattern: "random".into(),
            jobs: 2,
            repetition,
            metrics: [("cpu".to_string(), cpu), ("miss_ratio".to_string(), misses)].into(),
            ..Run::default()
        }
    }

    const SPEC: &str = "name = \"x\"\nrepetitions = 3\nfile_mib = 1\npairing = true\n[[system]]\nkind = \"kernel\"\n[[system]]\nkind = \"terrace\"\nmemory_mib = 9\n\
        [[load]]\nkind = \"fio\"\nname = \"fio\"\n[[target]]\nmetric = \"cpu\"\nat_most = 0.75\n";

    #[test]
    fn pairs_judge_a_target_that_means_would_not() {
        let spec = Spec::parse(SPEC).unwrap();
        // The machine slows down threefold meanwhile; the ratios of pairs stay the same.
        let runs: Vec<Run> = (1..=3)
            .flat_map(|n| {
                let drift = f64::from(n);
                [run("kernel", n, 10.0 * drift, 0.1), run("terrace", n, 7.0 * drift, 0.1)]
            })
            .collect();
        let evaluated = evaluate(&spec, &runs);
        assert_eq!((evaluated.len(), evaluated[0].verdict.as_str()), (1, "met"));
        assert!((evaluated[0].ratio.unwrap().mean - 0.7).abs() < 1e-9);
        assert!(table(&evaluated).contains("1 of 1 targets met"));
        let evaluated = evaluate(&spec, &runs[..2]);
        assert!(evaluated[0].verdict.starts_with("NOT MEASURED") && !evaluated[0].is_met());
        assert!(!evaluate(&spec, &[])[0].is_met(), "no run at all");
    }

    #[test]
    fn a_target_alone_bounds_the_number_itself() {
        let spec = Spec::parse(&format!("{SPEC}alone = true\nbaseline = \"none\"\n")).unwrap();
        let runs: Vec<Run> =
            (1..=3).flat_map(|n| [run("kernel", n, 9.0, 0.1), run("terrace", n, 0.7, 0.1)]).collect();
        let evaluated = evaluate(&spec, &runs);
        assert_eq!((evaluated.len(), evaluated[0].verdict.as_str()), (1, "met"));
        assert!((evaluated[0].ratio.unwrap().mean - 0.7).abs() < 1e-9);
        assert!(evaluate(&spec, &runs[..2])[0].verdict.starts_with("NOT MEASURED"));
    }

    #[test]
    fn a_target_for_hits_holds_where_hits_dominate() {
        let spec = Spec::parse(&format!("{SPEC}where_hits = true\n")).unwrap();
        let runs = |misses| -> Vec<Run> {
            (1..=3).flat_map(|n| [run("kernel", n, 10.0, misses), run("terrace", n, 7.0, 0.1)]).collect()
        };
        assert_eq!((evaluate(&spec, &runs(0.4)).len(), evaluate(&spec, &runs(0.6)).len()), (1, 0));
    }
}
