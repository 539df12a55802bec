//! Comparison of the systems in each cell: Welch's t-test of two groups of runs, or Student's t-test of
//! pairs of runs.
//!
//! ```text
//!   rows (one a run) ─► cells by the values of `by` ─► groups by the value of the factor ─► each group against the baseline's
//! ```
//! In differences in per cent, the baseline's mean counts as exact, as in published studies. The uncertainty
//! of the ratio itself (Fieller) would need the same number of runs and give nearly the same interval.

use super::metric::{self, Better};
use super::outcome::{Outcome, Verdict, outcome, paired};
use crate::raw::Run;
use crate::stats;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;

/// One run, from any kind of file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Its place, for messages: "raw.jsonl: kernel/random/2/1".
    pub(crate) place: String,
    /// Column names and values, in the order of the source.
    pub(crate) columns: Vec<(String, String)>,
    /// Its numbers.
    pub metrics: BTreeMap<String, f64>,
    /// The run has a mark, and counts all the same.
    pub(crate) marked: bool,
    /// Why the run does not count.
    pub(crate) refused: Option<String>,
}

impl Row {
    /// The value of a column.
    pub(crate) fn column(&self, name: &str) -> Option<&str> {
        self.columns.iter().find(|(column, _)| column == name).map(|(_, value)| value.as_str())
    }
}

impl From<&Run> for Row {
    fn from(run: &Run) -> Row {
        Row {
            place: run.id.clone(),
            columns: run.columns(),
            metrics: run.metrics.clone(),
            marked: !run.marks.is_empty(),
            refused: run.refused.clone(),
        }
    }
}

/// The column present in every run.
pub const FILE: &str = "file";

/// Parameters of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Question {
    /// The column that distinguishes the systems.
    pub factor: String,
    /// The factor's value of the baseline.
    pub baseline: String,
    /// Columns with the values that make a cell.
    pub by: Vec<String>,
    /// Metrics to compare; empty: the usual ones of each cell ([`metric::usual`]).
    #[serde(skip)]
    pub metrics: Vec<String>,
    /// The column that pairs the runs of a cell; `None`: no pairs, Welch's test.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pair: Option<String>,
    /// Confidence of the intervals: 0.95.
    pub confidence: f64,
}

/// Result of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// "terrace.compare.v1".
    pub(crate) schema: &'static str,
    /// Its parameters.
    #[serde(flatten)]
    pub question: Question,
    /// By metric, then candidate, then cell, each in the order of the data.
    pub cells: Vec<CellComparison>,
    /// Runs that do not count, and why.
    pub(crate) refused: Vec<String>,
    /// Further remarks.
    pub(crate) notices: Vec<String>,
}

/// One metric of one cell: a candidate against the baseline.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CellComparison {
    /// The number's name.
    pub(crate) metric: String,
    /// The better direction.
    pub(crate) better: Better,
    /// Columns and values of the cell.
    #[serde(serialize_with = "as_map")]
    pub(crate) cell: Vec<(String, String)>,
    /// The baseline's runs.
    pub baseline: Side,
    /// The candidate's.
    pub candidate: Side,
    /// The test.
    pub(crate) outcome: Outcome,
    /// Verdict.
    pub verdict: Verdict,
}

/// The runs of one side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Side {
    /// Value of the factor.
    pub value: String,
    /// Runs that count and have the metric.
    pub(crate) runs: usize,
    /// Marked runs among them.
    pub(crate) marked: usize,
    /// In the metric's unit; `None` without a run.
    pub mean: Option<f64>,
    /// Standard deviation; `None` below two runs.
    pub(crate) deviation: Option<f64>,
}

/// Larger numbers are no measurements, and squares of their differences overflow.
const NUMBER_MAX: f64 = 1e100;

/// Compares, in each cell and for each metric, each value of the factor with the baseline.
///
/// # Errors
/// A missing column or value, or nothing to compare; one line with the cure.
pub fn compare(rows: &[Row], question: &Question) -> Result<Comparison, String> {
    check(rows, question)?;
    let (counting, refused): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.refused.is_none());
    let told = |row: &&Row| Some(format!("{}: {}", row.place, row.refused.as_ref()?));
    let mut answer = Comparison {
        schema: "terrace.compare.v1",
        question: question.clone(),
        cells: Vec::new(),
        refused: refused.iter().filter_map(told).collect(),
        notices: Vec::new(),
    };
    let groups = groups(&counting, question);
    for group in &groups {
        compare_group(group, question, &mut answer);
    }
    let position = |list: &[String], name: &str| list.iter().position(|n| n == name);
    let metrics = distinct(answer.cells.iter().map(|c| c.metric.as_str()));
    let values = distinct(rows.iter().filter_map(|row| row.column(&question.factor)));
    answer.notices.extend(absent(&values, &groups));
    // The sort is stable: cells of a metric and candidate stay in the order of the data.
    answer.cells.sort_by_key(|c| (position(&metrics, &c.metric), position(&values, &c.candidate.value)));
    if answer.cells.iter().all(|c| c.verdict == Verdict::TooFew) {
        return Err(nothing(&answer, question));
    }
    Ok(answer)
}

/// The distinct values, in the order of first occurrence.
pub(crate) fn distinct<'a>(values: impl Iterator<Item = &'a str>) -> Vec<String> {
    grouped(values.map(|value| (value, ()))).into_iter().map(|(value, _)| value.to_string()).collect()
}

/// Items by key, in the order of first occurrence.
pub fn grouped<K: Ord + Clone, T>(items: impl Iterator<Item = (K, T)>) -> Vec<(K, Vec<T>)> {
    let (mut groups, mut places): (Vec<(K, Vec<T>)>, _) = (Vec::new(), BTreeMap::new());
    for (key, item) in items {
        let at = *places.entry(key.clone()).or_insert(groups.len());
        if at == groups.len() {
            groups.push((key, Vec::new()));
        }
        groups[at].1.push(item);
    }
    groups
}

fn check(rows: &[Row], question: &Question) -> Result<(), String> {
    let Question { factor, baseline, by, metrics, pair, confidence } = question;
    if !(*confidence > 0.0 && *confidence < 1.0) {
        return Err(format!("no confidence: {confidence} (it lies between 0 and 1, as 0.95)"));
    }
    if rows.is_empty() {
        return Err("the files hold no run (name files of results)".into());
    }
    for row in rows.iter().filter(|row| row.refused.is_none()) {
        if let Some((name, value)) = row.metrics.iter().find(|(_, v)| v.is_nan() || v.abs() > NUMBER_MAX) {
            return Err(format!(
                "{}: {name} is {value}: no measurement (correct the run or take it out)",
                row.place
            ));
        }
    }
    for column in [factor].into_iter().chain(by).chain(pair) {
        if let Some(row) = rows.iter().find(|row| row.column(column).is_none()) {
            let there = row.columns.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
            return Err(format!("{} has no column {column} (there are {there})", row.place));
        }
    }
    if by.contains(factor) {
        return Err(format!(
            "{factor} is the factor: it cannot split the cells as well (leave it out of --by)"
        ));
    }
    let values = distinct(rows.iter().filter_map(|row| row.column(factor)));
    if !values.contains(baseline) {
        return Err(format!(
            "no run has {factor} {baseline} (--baseline takes one of {})",
            values.join(", ")
        ));
    }
    for metric in metrics {
        let there = distinct(rows.iter().flat_map(|row| row.metrics.keys().map(String::as_str)));
        if !there.contains(metric) {
            return Err(format!(
                "no run has the metric {metric} (--metric takes some of {})",
                there.join(", ")
            ));
        }
    }
    Ok(())
}

/// Why nothing could be compared.
fn nothing(answer: &Comparison, question: &Question) -> String {
    let Question { factor, baseline, .. } = question;
    match answer.cells.first() {
        None => format!(
            "no cell has runs of {factor} {baseline} and of another (see --factor, --baseline and --by)"
        ),
        Some(cell) => format!(
            "no cell has two runs on both sides, the first {} of {} and {} of {} (an interval needs two; {} runs were refused)",
            cell.baseline.runs,
            cell.baseline.value,
            cell.candidate.runs,
            cell.candidate.value,
            answer.refused.len()
        ),
    }
}

/// A cell: its columns, and the runs of each value of the factor.
struct Group<'a> {
    cell: Vec<(String, String)>,
    sides: Vec<(&'a str, Vec<&'a Row>)>,
}

impl Group<'_> {
    fn name(&self) -> String {
        self.cell.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(", ")
    }
}

/// A notice about cells without a run of some value of the factor: they are not compared.
fn absent(values: &[String], groups: &[Group]) -> Vec<String> {
    let mut notices = Vec::new();
    for value in values {
        let lacks = |group: &&Group| group.sides.iter().all(|(v, _)| v != value);
        let names: Vec<String> = groups.iter().filter(lacks).map(Group::name).collect();
        if !names.is_empty() {
            let more = if names.len() > CELLS_NAMED_MAX { "; ..." } else { "" };
            let named = names[..names.len().min(CELLS_NAMED_MAX)].join("; ");
            notices.push(format!("{value}: no valid run in {} cells ({named}{more})", names.len()));
        }
    }
    notices
}

/// Maximum number of cells named in a notice.
const CELLS_NAMED_MAX: usize = 4;

fn groups<'a>(rows: &[&'a Row], question: &Question) -> Vec<Group<'a>> {
    let value = |row: &'a Row, name: &str| row.column(name).unwrap_or_default();
    let column = |row: &'a Row, name: &String| (name.clone(), value(row, name).to_string());
    let cell = |row: &'a Row| question.by.iter().map(|name| column(row, name)).collect::<Vec<_>>();
    let sides = |rows: Vec<&'a Row>| grouped(rows.into_iter().map(|row| (value(row, &question.factor), row)));
    let cells = grouped(rows.iter().map(|row| (cell(row), *row)));
    cells.into_iter().map(|(cell, rows)| Group { cell, sides: sides(rows) }).collect()
}

fn compare_group(group: &Group, question: &Question, answer: &mut Comparison) {
    let empty = Vec::new();
    let name = || group.name();
    let base =
        group.sides.iter().find(|(value, _)| *value == question.baseline).map_or(&empty, |(_, rows)| rows);
    if base.is_empty() {
        return;
    }
    let all =
        group.sides.iter().flat_map(|(_, rows)| rows).flat_map(|row| row.metrics.keys().map(String::as_str));
    let there = distinct(all);
    let wanted = if question.metrics.is_empty() { metric::usual(&there) } else { question.metrics.clone() };
    for metric in wanted.iter().filter(|metric| there.contains(metric)) {
        for (value, rows) in group.sides.iter().filter(|(value, _)| *value != question.baseline) {
            for (side, rows) in [(question.baseline.as_str(), base), (value, rows)] {
                let silent = rows.iter().filter(|row| !row.metrics.contains_key(metric)).count();
                if silent > 0 {
                    let of = rows.len();
                    answer.notices.push(format!("{}: {silent} of {of} runs of {side} lack {metric}", name()));
                }
            }
            let better = Better::of(metric);
            let outcome = match &question.pair {
                Some(column) => paired(&pairs(base, rows, column, metric), question.confidence),
                None => outcome(&numbers(base, metric), &numbers(rows, metric), question.confidence),
            };
            answer.cells.push(CellComparison {
                metric: metric.clone(),
                better,
                cell: group.cell.clone(),
                baseline: side(&question.baseline, base, metric),
                candidate: side(value, rows, metric),
                outcome,
                verdict: Verdict::of(&outcome, better),
            });
        }
    }
}

fn numbers(rows: &[&Row], metric: &str) -> Vec<f64> {
    rows.iter().filter_map(|row| row.metrics.get(metric).copied()).collect()
}

/// Pairs of runs, one of each side, with the same value of `column`.
fn pairs(base: &[&Row], rows: &[&Row], column: &str, metric: &str) -> Vec<(f64, f64)> {
    let number = |row: &Row| row.metrics.get(metric).copied();
    let partner = |row: &&Row| rows.iter().find(|other| other.column(column) == row.column(column));
    base.iter().filter_map(|row| Some((number(row)?, number(partner(row)?)?))).collect()
}

fn side(value: &str, rows: &[&Row], metric: &str) -> Side {
    let numbers = numbers(rows, metric);
    Side {
        value: value.to_string(),
        runs: numbers.len(),
        marked: rows.iter().filter(|row| row.marked && row.metrics.contains_key(metric)).count(),
        mean: stats::mean(&numbers),
        deviation: stats::variance(&numbers).map(f64::sqrt),
    }
}

fn as_map<S: Serializer>(pairs: &[(String, String)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(name, value)| (name, value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(groups: &[(&str, &str, &[f64])]) -> Vec<Row> {
        let row = |cell: &str, system: &str, v: &f64| Row {
            place: format!("{cell} {system}"),
            columns: vec![("cell".into(), cell.into()), ("system".into(), system.into())],
            metrics: BTreeMap::from([("iops".into(), *v), ("p99_us".into(), 1e6 / *v)]),
            ..Row::default()
        };
        groups.iter().flat_map(|(cell, system, vs)| vs.iter().map(move |v| row(cell, system, v))).collect()
    }

    fn question() -> Question {
        Question {
            factor: "system".into(),
            baseline: "kernel".into(),
            by: vec!["cell".into()],
            metrics: vec!["iops".into()],
            pair: None,
            confidence: 0.95,
        }
    }

    fn verdicts(answer: &Comparison) -> Vec<Verdict> {
        answer.cells.iter().map(|c| c.verdict).collect()
    }

    #[test]
    fn two_runs_a_side_and_unequal_numbers_of_runs() {
        let data = rows(&[
            ("a", "kernel", &[1.0, 2.0]),
            ("a", "terrace", &[11.0, 12.0]),
            ("b", "kernel", &[1.0, 2.0]),
            ("b", "terrace", &[2.0, 3.0, 1.0, 2.0, 9.0]),
        ]);
        let answer = compare(&data, &question()).unwrap();
        assert_eq!(verdicts(&answer), [Verdict::Better, Verdict::NoSignificance]);
        let Outcome::Tested { difference, percent, t, df, p } = answer.cells[0].outcome else { panic!() };
        // Two groups of equal variance 0.5: se = sqrt(0.5), df = 2, t = 10 / sqrt(0.5); t(0.975, 2) = 4.302653.
        assert!((df - 2.0).abs() < 1e-12 && (t + 14.142_135_6).abs() < 1e-6, "{t} {df}");
        assert!((difference.low - (10.0 - 4.302_652_73 * 0.5f64.sqrt())).abs() < 1e-6);
        assert!((percent.unwrap().mean - 1000.0 / 1.5).abs() < 1e-9);
        // For two degrees of freedom, p = 1 - t / sqrt(2 + t^2).
        assert!((p - (1.0 - 14.142_135_6 / (202.0f64).sqrt())).abs() < 1e-8, "{p}");
        assert_eq!((answer.cells[1].baseline.runs, answer.cells[1].candidate.runs), (2, 5));
    }

    #[test]
    fn no_variance_on_both_sides_says_what_is_known() {
        let data = rows(&[
            ("same", "kernel", &[0.1; 10]),
            ("same", "terrace", &[0.1; 7]),
            ("other", "kernel", &[4.0, 4.0]),
            ("other", "terrace", &[5.0, 5.0]),
            ("one", "kernel", &[4.0, 4.0, 4.0]),
            ("one", "terrace", &[5.0, 6.0]),
        ]);
        let answer = compare(&data, &question()).unwrap();
        let expected = [Verdict::Identical, Verdict::DifferentWithoutVariance, Verdict::NoSignificance];
        assert_eq!(verdicts(&answer), expected);
        assert_eq!(answer.cells[1].outcome, Outcome::Constant { difference: 1.0, percent: Some(25.0) });
        let Outcome::Tested { df, .. } = answer.cells[2].outcome else { panic!("one side varies") };
        assert!((df - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_single_run_is_no_comparison() {
        let single = [("a", "kernel", &[1.0, 2.0][..]), ("a", "terrace", &[3.0])];
        let error = compare(&rows(&single), &question()).unwrap_err();
        assert!(error.contains("2 of kernel and 1 of terrace (an interval needs two"), "{error}");
        let mut groups = single.to_vec();
        groups.extend([("b", "kernel", &[1.0, 2.0][..]), ("b", "terrace", &[1.0, 2.0])]);
        let answer = compare(&rows(&groups), &question()).unwrap();
        assert_eq!(verdicts(&answer), [Verdict::TooFew, Verdict::NoSignificance]);
        assert_eq!(answer.cells[0].outcome, Outcome::TooFew);
    }

    #[test]
    fn refused_runs_are_never_averaged_in_and_told() {
        let mut data = rows(&[("a", "kernel", &[1.0, 2.0, 900.0]), ("a", "terrace", &[1.0, 2.0, 1.5])]);
        data[2].refused = Some("wrong data".into());
        data[0].marked = true;
        let answer = compare(&data, &question()).unwrap();
        let base = &answer.cells[0].baseline;
        assert_eq!((base.runs, base.marked, base.mean), (2, 1, Some(1.5)));
        assert_eq!(answer.refused, ["a kernel: wrong data"]);
    }

    #[test]
    fn cells_that_one_side_lacks_are_told() {
        let mut data = rows(&[
            ("a", "kernel", &[1.0, 2.0]),
            ("a", "terrace", &[1.0, 2.0]),
            ("b", "kernel", &[1.0, 2.0]),
            ("b", "terrace", &[1.0]),
            ("c", "terrace", &[1.0, 2.0]),
        ]);
        data[6].refused = Some("wrong data".into());
        let answer = compare(&data, &question()).unwrap();
        assert_eq!(answer.cells.len(), 1);
        let told = ["kernel: no valid run in 1 cells (c)", "terrace: no valid run in 1 cells (b)"];
        assert_eq!(answer.notices, told);
    }

    #[test]
    fn directions_follow_the_metric() {
        let data = rows(&[("a", "kernel", &[100.0, 101.0, 99.0]), ("a", "terrace", &[80.0, 81.0, 79.0])]);
        let answer = compare(&data, &Question { metrics: vec![], ..question() }).unwrap();
        let found: Vec<_> = answer.cells.iter().map(|c| (c.metric.as_str(), c.verdict)).collect();
        assert_eq!(found, [("iops", Verdict::Worse), ("p99_us", Verdict::Worse)]);
        let back = Question { baseline: "terrace".into(), metrics: vec![], ..question() };
        assert_eq!(verdicts(&compare(&data, &back).unwrap()), [Verdict::Better, Verdict::Better]);
    }

    #[test]
    fn order_is_metric_then_candidate_then_cell() {
        let two = [1.0, 2.0];
        let mut groups = Vec::new();
        for cell in ["z", "a"] {
            groups.extend(["terrace", "kernel", "direct"].map(|system| (cell, system, &two[..])));
        }
        let answer = compare(&rows(&groups), &Question { metrics: vec![], ..question() }).unwrap();
        let order: Vec<_> = answer
            .cells
            .iter()
            .map(|c| format!("{} {} {}", c.metric, c.candidate.value, c.cell[0].1))
            .collect();
        let four = |m: &str| ["terrace z", "terrace a", "direct z", "direct a"].map(|s| format!("{m} {s}"));
        assert_eq!(order, [four("iops"), four("p99_us")].concat());
    }

    #[test]
    fn wrong_questions_name_what_is_there() {
        let data = rows(&[("a", "kernel", &[1.0, 2.0]), ("a", "terrace", &[1.0, 2.0])]);
        let ask = |change: fn(&mut Question)| {
            let mut q = question();
            change(&mut q);
            compare(&data, &q).unwrap_err()
        };
        assert!(ask(|q| q.factor = "sistem".into()).contains("no column sistem (there are cell, system)"));
        assert!(ask(|q| q.by = vec!["x".into()]).contains("no column x"));
        assert!(ask(|q| q.by = vec!["system".into()]).contains("leave it out of --by"));
        assert!(ask(|q| q.baseline = "zram".into()).contains("takes one of kernel, terrace"));
        assert!(ask(|q| q.metrics = vec!["bw".into()]).contains("takes some of iops, p99_us"));
        assert!(ask(|q| q.confidence = 1.0).contains("as 0.95"));
        let alone = rows(&[("a", "kernel", &[1.0, 2.0])]);
        let why = |data: &[Row]| compare(data, &question()).unwrap_err();
        assert!(why(&alone).contains("no cell has runs of system kernel and of another"));
        assert!(why(&[]).contains("the files hold no run"));
        for bad in [f64::NAN, f64::INFINITY, -1e200] {
            let mut data = data.clone();
            data[3].metrics.insert("other".into(), bad);
            assert!(why(&data).starts_with("a terrace: other is "));
            data[3].refused = Some("wrong data".into());
            assert!(why(&data).contains("(an interval needs two; 1 runs were refused)"));
        }
    }

    #[test]
    fn values_that_some_runs_lack_are_reported() {
        let mut data = rows(&[("a", "kernel", &[1.0, 2.0, 3.0]), ("a", "terrace", &[1.0, 2.0])]);
        data[0].metrics.remove("iops");
        let answer = compare(&data, &question()).unwrap();
        assert_eq!(answer.cells[0].baseline.runs, 2);
        assert_eq!(answer.notices, ["a: 1 of 3 runs of kernel lack iops"]);
    }
}
