//! The report in words: what was compared, where it wins, where it loses. Losing cells are always named, winning ones up to a number.

use super::dataset::Dataset;
use super::metric::Metric;
use super::versus::{self, Row};
use crate::compare::metric::shown;
use crate::compare::{Better, Verdict};
use terrace_output::plot::text::{count, listed};

/// Cells on the good side that a sentence names; of more it tells the least and the most.
const NAMED_MAX: usize = 4;

/// The metrics that headline and tests are about: the usual ones, and those that a command of the user's told. The harness's other numbers of
/// each run are in the table of all numbers.
pub fn compared(dataset: &Dataset) -> Vec<Metric> {
    let told = dataset.metrics();
    let keys: Vec<String> = told.iter().map(|metric| metric.key.clone()).collect();
    let mut compared: Vec<Metric> = shown(&keys).iter().map(|key| Metric::of(key)).collect();
    let own = told.iter().filter(|metric| !metric.known() && !compared.contains(metric)).cloned();
    let own: Vec<Metric> = own.collect();
    compared.extend(own);
    if compared.is_empty() { told } else { compared }
}

/// The compared systems, and how many runs count.
pub fn subject(dataset: &Dataset) -> String {
    let (good, refused): (Vec<_>, Vec<_>) = dataset.runs.iter().partition(|run| run.refused.is_none());
    let marked = good.iter().filter(|run| !run.marks.is_empty()).count();
    let others = listed(&dataset.systems[1..]);
    let against = if others.is_empty() {
        format!("One system, {}, so nothing to compare it with", dataset.baseline())
    } else {
        format!("{others} against {}", dataset.baseline())
    };
    let mut counts = vec![format!(
        "{} that {}",
        count(good.len(), "run"),
        if good.len() == 1 { "counts" } else { "count" }
    )];
    if marked > 0 {
        counts.push(format!("{marked} of them marked, to be looked at"));
    }
    if !refused.is_empty() {
        counts.push(format!("{} refused and left out", refused.len()));
    }
    let cells = count(dataset.cells.len(), "cell");
    format!("{against}: {cells} ({}); {}.", cells_in_short(dataset), counts.join(", "))
}

/// "fio-psync; random, zipf:0.8; 1, 2 jobs".
fn cells_in_short(dataset: &Dataset) -> String {
    let names = |of: &dyn Fn(&super::dataset::Cell) -> String| {
        let mut names: Vec<String> = Vec::new();
        for cell in &dataset.cells {
            let name = of(cell);
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.join(", ")
    };
    let jobs = names(&|cell| cell.jobs.to_string());
    let plural = if jobs == "1" { "" } else { "s" };
    format!(
        "{}; {}; {jobs} job{plural}",
        names(&|cell| cell.load.clone()),
        names(&|cell| cell.pattern.clone())
    )
}

/// A sentence for each metric about one system, against the baseline or, with `old`, against the same system in the old report.
pub fn verdicts(dataset: &Dataset, system: &str, old: bool) -> Vec<String> {
    let mut sentences = Vec::new();
    for metric in compared(dataset) {
        let rows = if old { versus::times(dataset, &metric) } else { versus::systems(dataset, &metric) };
        let rows: Vec<Row> = rows.into_iter().filter(|row| row.system == system).collect();
        sentences.extend(sentence(dataset, &metric, &rows));
    }
    sentences
}

/// "throughput: better (higher) in 2 of 3: ...; worse (lower) in 1 of 3: zipf:0.8 at 1 job (-3.1 %)." `None` where no cell has a test.
fn sentence(dataset: &Dataset, metric: &Metric, rows: &[Row]) -> Option<String> {
    let tested: Vec<&Row> = rows.iter().filter(|row| row.verdict != Verdict::TooFew).collect();
    if tested.is_empty() {
        return None;
    }
    let (good, bad) = match metric.better {
        Better::Higher => ("better (higher)", "worse (lower)"),
        _ => ("better (lower)", "worse (higher)"),
    };
    let mut parts = Vec::new();
    for (verdict, word) in [
        (Verdict::Better, good),
        (Verdict::Worse, bad),
        (Verdict::Higher, "higher"),
        (Verdict::Lower, "lower"),
        (Verdict::DifferentWithoutVariance, "different without variance"),
    ] {
        let of: Vec<&Row> = tested.iter().copied().filter(|row| row.verdict == verdict).collect();
        if !of.is_empty() {
            let all = verdict != Verdict::Better || of.len() <= NAMED_MAX;
            let cells = if all { named(dataset, &of) } else { spanned(dataset, of.clone()) };
            parts.push(format!("{word} in {} of {}: {cells}", of.len(), tested.len()));
        }
    }
    match tested
        .iter()
        .filter(|row| matches!(row.verdict, Verdict::NoSignificance | Verdict::Identical))
        .count()
    {
        0 => {}
        1 if tested.len() == 1 => parts.push("no significance".into()),
        n if n == tested.len() => parts.push(format!("no significance in any of {n} cells")),
        n => parts.push(format!("no significance in {n}")),
    }
    if tested.len() < rows.len() {
        parts.push(format!("too few runs in {}", rows.len() - tested.len()));
    }
    Some(format!("{}: {}.", metric.name, parts.join("; ")))
}

fn named(dataset: &Dataset, rows: &[&Row]) -> String {
    let named: Vec<String> =
        rows.iter().map(|row| format!("{} ({})", dataset.name(&row.cell), row.short())).collect();
    listed(&named)
}

/// "from +5.4 % (zipf at 1 job) to +45.5 % (random at 2 jobs)".
fn spanned(dataset: &Dataset, mut rows: Vec<&Row>) -> String {
    rows.sort_by(|a, b| a.size().total_cmp(&b.size()));
    let one = |row: &Row| format!("{} ({})", row.short(), dataset.name(&row.cell));
    match &rows[..] {
        [least, .., most] if least.short() == most.short() => format!("{} in each", least.short()),
        [least, .., most] => format!("from {} to {}", one(least), one(most)),
        few => named(dataset, few),
    }
}
