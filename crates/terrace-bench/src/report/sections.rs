//! The plots of a report, by section: which panels there are, and a plain sentence for each that cannot be.

use super::dataset::{Cell, Dataset};
use super::metric::Metric;
use crate::compare::Better;
use crate::compare::metric::shown;
use crate::stats::Interval;
use std::collections::BTreeMap;
use terrace_output::plot::axis::Axis;
use terrace_output::plot::panel::{self, Bar, Curve, Dot, Group, Mean, Tail};
use terrace_output::plot::picture::{Picture, Point, Swatch};
use terrace_output::plot::text::{count, listed};

/// A heading, what is to be said, and panels.
#[derive(Clone, Debug)]
pub struct Section {
    /// Begins the names of its files.
    pub name: &'static str,
    /// Heading.
    pub title: String,
    /// How to read it, and what is missing.
    pub notes: Vec<String>,
    /// How the legend shows systems.
    pub swatch: Swatch,
    /// May be none; then the notes say why.
    pub panels: Vec<Picture>,
}

/// Points of a curve over time: more are averaged into these many.
const BINS: usize = 60;

/// All sections.
pub fn all(dataset: &Dataset) -> Vec<Section> {
    let told = dataset.metrics();
    let speed = speed(&told);
    let mut sections = vec![
        bars(dataset, "throughput", &speed, &told),
        latency(dataset),
        bars(dataset, "misses", &Metric::of("miss_ratio"), &told),
        bars(dataset, "cpu", &Metric::of("cpu_us_per_op"), &told),
        over_time(dataset, &speed),
    ];
    let drawn = |metric: &Metric| metric.known() || metric.key == speed.key;
    let own: Vec<Metric> =
        super::words::compared(dataset).into_iter().filter(|metric| !drawn(metric)).collect();
    sections.extend(own.iter().map(|metric| bars(dataset, "other", metric, &told)));
    sections
}

/// Throughput, or what runs tell instead.
fn speed(told: &[Metric]) -> Metric {
    let keys: Vec<String> = told.iter().map(|metric| metric.key.clone()).collect();
    let first = shown(&keys).into_iter().next().filter(|key| Better::of(key) == Better::Higher);
    Metric::of(first.as_deref().unwrap_or("throughput_mib_s"))
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// A panel for each pattern, a group of bars for each number of jobs.
fn bars(dataset: &Dataset, name: &'static str, metric: &Metric, told: &[Metric]) -> Section {
    let mut section = Section {
        name,
        title: capital(&metric.name),
        notes: Vec::new(),
        swatch: Swatch::Bar,
        panels: Vec::new(),
    };
    if !told.iter().any(|known| known.key == metric.key) {
        section.notes.push(format!("No run that counts tells its {}.", metric.name));
        return section;
    }
    let way = match metric.better {
        Better::Higher => " Longer is better.",
        Better::Lower => " Shorter is better.",
        Better::Unknown => "",
    };
    section.notes.push(format!(
        "Means of the runs, with 95 % intervals (Student's t) where there are two runs or more.{way} Each panel has a scale of its own."
    ));
    let mut empty = Vec::new();
    for cells in by_group(dataset) {
        let group = dataset.group(cells[0]);
        let groups: Vec<Group> = cells.iter().map(|cell| bar_group(dataset, cell, metric)).collect();
        if groups.iter().flat_map(|g| &g.bars).all(|bar| bar.value.is_none()) {
            empty.push(group);
            continue;
        }
        let title = format!("{}, {group}", capital(&metric.name));
        section.panels.push(panel::bars(title, &metric.titled(), &groups));
    }
    if !empty.is_empty() {
        section.notes.push(format!("No run that counts tells it for {}.", listed(&empty)));
    }
    section
}

fn bar_group(dataset: &Dataset, cell: &Cell, metric: &Metric) -> Group {
    let bar = |(system, name): (usize, &String)| Bar {
        system,
        name: name.clone(),
        value: dataset.estimate(name, cell, &metric.key).map(mean),
    };
    Group {
        label: count(cell.jobs as usize, "job"),
        bars: dataset.systems.iter().enumerate().map(bar).collect(),
    }
}

/// As a bar shows it.
fn mean(of: Interval) -> Mean {
    Mean { mean: of.mean, interval: of.ends(), runs: of.n }
}

/// The cells of each load and pattern.
fn by_group(dataset: &Dataset) -> impl Iterator<Item = Vec<&Cell>> {
    let same = |a: &Cell, b: &Cell| a.load == b.load && a.pattern == b.pattern;
    dataset.cells.chunk_by(same).map(|cells| cells.iter().collect())
}

fn latency(dataset: &Dataset) -> Section {
    let mut section = Section {
        name: "latency",
        title: "Latency percentiles".into(),
        notes: Vec::new(),
        swatch: Swatch::Line,
        panels: Vec::new(),
    };
    let mut empty = Vec::new();
    for cell in &dataset.cells {
        match latency_panel(dataset, cell) {
            Some(panel) => section.panels.push(panel),
            None => empty.push(dataset.name(cell)),
        }
    }
    missing(&mut section, &empty, "latency percentiles");
    if !section.panels.is_empty() {
        let note = "Each point is the mean, over the runs, of their percentile, with its 95 % interval where there are two or more; lower is better. The scale of \
                    latency is logarithmic; percentiles stand as far apart as the shares of operations beyond them, and systems \
                    a little beside each other, so that equal ones are all seen.";
        section.notes.insert(0, note.into());
    }
    section
}

/// Says of which cells no run tells a thing.
fn missing(section: &mut Section, empty: &[String], thing: &str) {
    if section.panels.is_empty() {
        section.notes.push(format!("No run that counts tells {thing}."));
    } else if !empty.is_empty() {
        section.notes.push(format!("No run that counts tells {thing} for {}.", listed(empty)));
    }
}

fn latency_panel(dataset: &Dataset, cell: &Cell) -> Option<Picture> {
    let told: Vec<_> = dataset.systems.iter().map(|system| dataset.percentiles(system, cell)).collect();
    let percentiles = || told.iter().flatten().map(|point| point.0);
    percentiles().next()?;
    let tail = Tail::of(percentiles());
    let curve = |(system, points): (usize, &Vec<_>)| Curve {
        system,
        name: dataset.systems[system].clone(),
        dots: points
            .iter()
            .map(|(percentile, value): &(f64, Interval)| Dot {
                x: tail.x(*percentile),
                y: value.mean,
                interval: value.ends(),
            })
            .collect(),
        runs: Vec::new(),
        shift: panel::shift(system, told.len()),
    };
    let curves: Vec<Curve> = told.iter().enumerate().map(curve).filter(|c| !c.dots.is_empty()).collect();
    let values = told.iter().flatten().map(|(_, value)| value.mean);
    let axes = (tail.axis(percentiles()), Axis::log(values));
    let title = format!("Latency percentiles, {}", dataset.name(cell));
    Some(panel::curves(title, axes, ("percentile", "latency, \u{b5}s"), &curves))
}

fn over_time(dataset: &Dataset, speed: &Metric) -> Section {
    let mut section = Section {
        name: "time",
        title: format!("{} over time", capital(&speed.name)),
        notes: Vec::new(),
        swatch: Swatch::Line,
        panels: Vec::new(),
    };
    let mut empty = Vec::new();
    for cell in &dataset.cells {
        match time_panel(dataset, cell, speed) {
            Some(panel) => section.panels.push(panel),
            None => empty.push(dataset.name(cell)),
        }
    }
    missing(&mut section, &empty, &format!("its {} over time", speed.name));
    if !section.panels.is_empty() {
        section
            .notes
            .insert(0, "Thin: single runs. Thick: their mean. Zero is where the measurement began.".into());
    }
    section
}

fn time_panel(dataset: &Dataset, cell: &Cell, speed: &Metric) -> Option<Picture> {
    let series: Vec<Vec<&Vec<Point>>> = dataset
        .systems
        .iter()
        .map(|system| {
            let told = dataset.good(system, cell).filter_map(|run| run.series.get(&speed.key));
            told.filter(|points| !points.is_empty()).collect()
        })
        .collect();
    let points = || series.iter().flatten().flat_map(|points| points.iter());
    points().next()?;
    let end = points().map(|p| p.0).fold(0.0, f64::max);
    let longest = series.iter().flatten().map(|points| points.len()).max().unwrap_or(1);
    let bins = longest.min(BINS);
    let curve = |(system, runs): (usize, &Vec<&Vec<Point>>)| {
        let runs: Vec<Vec<Point>> = runs.iter().map(|points| binned(points, end, bins)).collect();
        Curve { system, name: dataset.systems[system].clone(), dots: mean_of(&runs), runs, shift: 0.0 }
    };
    let curves: Vec<Curve> = series.iter().enumerate().map(curve).filter(|c| !c.dots.is_empty()).collect();
    let values = curves.iter().flat_map(|c| c.runs.iter().flatten().map(|p| p.1));
    let axes = (Axis::linear([end].into_iter(), 6), Axis::linear(values, 4));
    let title = format!("{} over time, {}", capital(&speed.name), dataset.name(cell));
    Some(panel::curves(title, axes, ("seconds", &speed.titled()), &curves))
}

/// Means of the points in each of `bins` equal parts of 0 to `end`, at the means of their times; parts without a point are left out.
fn binned(points: &[Point], end: f64, bins: usize) -> Vec<Point> {
    let mut sums: BTreeMap<usize, (f64, f64, f64)> = BTreeMap::new();
    for (at, value) in points.iter().filter(|p| p.0 >= 0.0) {
        let bin = if end > 0.0 { (at / end * bins as f64).ceil().max(1.0) as usize - 1 } else { 0 };
        let sum = sums.entry(bin.min(bins - 1)).or_default();
        *sum = (sum.0 + at, sum.1 + value, sum.2 + 1.0);
    }
    sums.into_values().map(|(at, value, n)| (at / n, value / n)).collect()
}

/// The mean of several runs: the n-th point of each, as far as the shortest goes.
fn mean_of(runs: &[Vec<Point>]) -> Vec<Dot> {
    let length = runs.iter().map(Vec::len).min().unwrap_or(0);
    let n = runs.len() as f64;
    let dot = |i: usize| Dot {
        x: runs.iter().map(|run| run[i].0).sum::<f64>() / n,
        y: runs.iter().map(|run| run[i].1).sum::<f64>() / n,
        interval: None,
    };
    (0..length).map(dot).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_keep_means_and_order() {
        let points: Vec<Point> = (1..=100).map(|i| (f64::from(i) * 0.1, f64::from(i))).collect();
        let bins = binned(&points, 10.0, 10);
        assert_eq!(bins.len(), 10);
        assert!((bins[0].1 - 5.5).abs() < 1e-9 && (bins[9].1 - 95.5).abs() < 1e-9, "{bins:?}");
        assert!(bins.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert_eq!(binned(&[(0.0, 7.0)], 0.0, 1), [(0.0, 7.0)]);
    }

    #[test]
    fn a_mean_goes_as_far_as_all_runs_do() {
        let runs = [vec![(1.0, 10.0), (2.0, 20.0)], vec![(1.0, 30.0)]];
        assert_eq!(mean_of(&runs), [Dot { x: 1.0, y: 20.0, interval: None }]);
    }
}
