//! The data of a report: the runs of one or more files, by cell and system, and, of two files of one benchmark, the old runs beside the new.

use super::metric::{Metric, PERCENTILES};
use crate::raw::{self, Header, Run};
use crate::stats::{self, Interval};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use terrace_output::plot::text::count;

/// Confidence of all intervals.
pub const CONFIDENCE: f64 = 0.95;

/// Where systems are compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// "fio-psync".
    pub load: String,
    /// "zipf:0.8".
    pub pattern: String,
    /// Concurrent jobs.
    pub jobs: u32,
}

/// The runs of a report.
#[derive(Clone, Debug, Default)]
pub struct Dataset {
    /// The baseline first, the others as they come in the files.
    pub systems: Vec<String>,
    /// In order of load, pattern, jobs.
    pub cells: Vec<Cell>,
    /// In the order of the files, each once.
    pub headers: Vec<Header>,
    /// All runs, refused ones too.
    pub runs: Vec<Run>,
    /// Lines that the readers left out.
    pub notices: Vec<String>,
    /// The same benchmark at an earlier time.
    pub old: Option<Box<Dataset>>,
}

impl Dataset {
    /// Reads raw results. Two files that have runs in common are one benchmark measured twice: the first is the old one.
    ///
    /// # Errors
    /// Fields that a file lacks; runs that are in several of three or more files; a baseline that no run has.
    pub fn read(paths: &[PathBuf], baseline: Option<&str>) -> io::Result<Dataset> {
        let mut datasets = Vec::new();
        for path in paths {
            let results = raw::read(path).map_err(io::Error::other)?;
            datasets.push(Dataset {
                headers: results.headers,
                runs: results.runs,
                notices: results.notices,
                ..Dataset::default()
            });
        }
        let mut dataset = match &mut datasets[..] {
            [old, new] if old.shared_with(new).is_some() => {
                let (old, mut new) = (std::mem::take(old), std::mem::take(new));
                new.old = Some(Box::new(old));
                new
            }
            _ => merged(datasets, paths)?,
        };
        if dataset.runs.is_empty() {
            let names: Vec<String> = paths.iter().map(|p| p.display().to_string()).collect();
            let why = format!("{}: no runs; name the raw.jsonl of a matrix that ran", names.join(", "));
            return Err(io::Error::other(why));
        }
        dataset.sort(baseline)?;
        Ok(dataset)
    }

    fn ids(&self) -> BTreeSet<(&str, &str)> {
        self.runs.iter().map(|run| (run.load.as_str(), run.id.as_str())).collect()
    }

    fn shared_with(&self, other: &Dataset) -> Option<String> {
        self.ids().intersection(&other.ids()).next().map(|(_, id)| (*id).to_string())
    }

    /// Finds systems and cells, and puts the baseline first: the one that is asked for, or `kernel`, or the first.
    fn sort(&mut self, baseline: Option<&str>) -> io::Result<()> {
        let runs = || self.runs.iter();
        let mut systems: Vec<String> = Vec::new();
        for run in runs() {
            if !systems.contains(&run.system) {
                systems.push(run.system.clone());
            }
        }
        let first = systems.iter().position(|system| system == baseline.unwrap_or("kernel"));
        if let (Some(name), None) = (baseline, first) {
            let why = format!("no run of the system {name}; --baseline can be {}", systems.join(", "));
            return Err(io::Error::other(why));
        }
        systems[..=first.unwrap_or(0)].rotate_right(1);
        let cells: BTreeSet<Cell> = runs().map(Cell::of).collect();
        self.cells = cells.into_iter().collect();
        self.systems = systems;
        Ok(())
    }

    /// The baseline.
    pub fn baseline(&self) -> &str {
        &self.systems[0]
    }

    /// Runs of a system in a cell that count.
    pub fn good<'a>(&'a self, system: &'a str, cell: &'a Cell) -> impl Iterator<Item = &'a Run> {
        let wanted = move |run: &&Run| run.refused.is_none() && run.system == system && cell.holds(run);
        self.runs.iter().filter(wanted)
    }

    /// A metric of the runs that count and tell it.
    pub fn values(&self, system: &str, cell: &Cell, metric: &str) -> Vec<f64> {
        self.good(system, cell).filter_map(|run| run.metrics.get(metric).copied()).collect()
    }

    /// Were the systems of a cell run in pairs, one for each repetition?
    pub fn paired(&self) -> bool {
        !self.headers.is_empty() && self.headers.iter().all(|header| header.matrix.paired)
    }

    /// A metric of the runs of a system and of the baseline that have the same repetition.
    pub fn pairs(&self, system: &str, cell: &Cell, metric: &str) -> Vec<(f64, f64)> {
        let number = |run: &Run| run.metrics.get(metric).copied();
        let partner = |run: &&Run| self.good(system, cell).find(|other| other.repetition == run.repetition);
        let base = self.good(self.baseline(), cell);
        base.filter_map(|run| Some((number(run)?, number(partner(&run)?)?))).collect()
    }

    /// Its mean with the interval; both ends are NaN for a single run.
    pub fn estimate(&self, system: &str, cell: &Cell, metric: &str) -> Option<Interval> {
        estimate(&self.values(system, cell, metric))
    }

    /// All metrics that a good run tells, in the order of a report.
    pub fn metrics(&self) -> Vec<Metric> {
        let good = self.runs.iter().filter(|run| run.refused.is_none());
        let keys: BTreeSet<&String> = good.flat_map(|run| run.metrics.keys()).collect();
        let mut metrics: Vec<Metric> = keys.into_iter().map(|key| Metric::of(key)).collect();
        metrics.sort_by(|a, b| a.rank().cmp(&b.rank()));
        metrics
    }

    /// Latency percentiles of a system in a cell: percentile and the mean over the runs that count. Only percentiles that each of these
    /// runs tells: else the mean of one is of other runs than that of its neighbour.
    pub fn percentiles(&self, system: &str, cell: &Cell) -> Vec<(f64, Interval)> {
        let mut by_percentile: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        let mut runs = 0;
        for points in self.good(system, cell).map(percentiles_of).filter(|points| !points.is_empty()) {
            runs += 1;
            for (percentile, value) in points {
                by_percentile.entry((percentile * 1e6).round() as u64).or_default().push(value);
            }
        }
        let told = by_percentile.into_iter().filter(|(_, values)| values.len() == runs);
        told.filter_map(|(key, values)| Some((key as f64 / 1e6, estimate(&values)?))).collect()
    }

    /// Has the report several loads, so that a cell must name its own?
    pub fn several_loads(&self) -> bool {
        self.cells.windows(2).any(|pair| pair[0].load != pair[1].load)
    }

    /// "zipf:0.8 at 2 jobs".
    pub fn name(&self, cell: &Cell) -> String {
        format!("{} at {}", self.group(cell), count(cell.jobs as usize, "job"))
    }

    /// "zipf:0.8", or with several loads "fio-psync zipf:0.8".
    pub fn group(&self, cell: &Cell) -> String {
        if self.several_loads() { format!("{} {}", cell.load, cell.pattern) } else { cell.pattern.clone() }
    }
}

impl Cell {
    /// The cell of a run.
    pub fn of(run: &Run) -> Cell {
        Cell { load: run.load.clone(), pattern: run.pattern.clone(), jobs: run.jobs }
    }

    fn holds(&self, run: &Run) -> bool {
        self.load == run.load && self.pattern == run.pattern && self.jobs == run.jobs
    }
}

fn estimate(values: &[f64]) -> Option<Interval> {
    let single = |mean| Interval { mean, low: f64::NAN, high: f64::NAN, n: 1 };
    match values {
        [one] => stats::mean(&[*one]).map(single),
        many => stats::mean_interval(many, CONFIDENCE),
    }
}

fn percentiles_of(run: &Run) -> Vec<(f64, f64)> {
    if !run.latency_percentiles_us.is_empty() {
        let valid = |point: &&(f64, f64)| (0.0..=100.0).contains(&point.0);
        return run.latency_percentiles_us.iter().filter(valid).copied().collect();
    }
    PERCENTILES.iter().filter_map(|(percentile, key)| Some((*percentile, *run.metrics.get(*key)?))).collect()
}

/// The files' runs together.
fn merged(datasets: Vec<Dataset>, paths: &[PathBuf]) -> io::Result<Dataset> {
    let mut all = Dataset::default();
    for (dataset, path) in datasets.into_iter().zip(paths) {
        if let Some(id) = all.shared_with(&dataset) {
            let why = format!(
                "{}: the run {id} is in a file before; name parts of one matrix, or two files of it, OLD NEW",
                path.display()
            );
            return Err(io::Error::other(why));
        }
        for header in dataset.headers {
            if !all.headers.contains(&header) {
                all.headers.push(header);
            }
        }
        all.runs.extend(dataset.runs);
        all.notices.extend(dataset.notices);
    }
    Ok(all)
}
