//! Raw results of a matrix: one JSON object a line, written as the runs end, so that a killed harness loses the run it was at and no other.
//!
//! ```text
//!   {"machine": {...}, "matrix": {"name": ..., "text": ...}}     first, and again where a run was resumed on a changed machine
//!   {"run": {"id": ..., "system": ..., "metrics": {...}, ...}}   a line a run, in the order they were made
//! ```
//! A line counts when its newline is there. A killed harness may leave bytes behind the last newline: [`read`] leaves it out with a notice, [`Writer`]
//! cuts it off.

use crate::machine::Machine;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use terrace_api::capture::{At, Error};

/// The columns of a run beside its metrics: what a comparison may take as its factor, or split its cells by.
pub const COLUMNS: [&str; 5] = ["system", "load", "pattern", "jobs", "repetition"];

/// Under what the runs after it were made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The machine.
    pub machine: Machine,
    /// The requested run.
    pub matrix: Matrix,
}

/// A matrix as it was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Matrix {
    /// Its name.
    pub name: String,
    /// Its TOML, to the byte.
    pub text: String,
    /// The systems of a cell were run in pairs, one for each repetition.
    #[serde(default)]
    pub paired: bool,
}

/// One run of one system.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// `system/pattern/jobs/repetition`, and what else tells the runs of a matrix apart; the same when the matrix is resumed.
    pub id: String,
    /// The system under test.
    pub system: String,
    /// The load, as "fio-psync".
    pub load: String,
    /// The access pattern, as "zipf:0.8".
    pub pattern: String,
    /// Concurrent jobs.
    pub jobs: u32,
    /// Which repetition, from 1.
    pub repetition: u32,
    /// Place in the random order of the whole matrix.
    pub order: u64,
    /// Seed of the load.
    pub seed: u64,
    /// Seconds since 1970.
    pub started: f64,
    /// Seconds measured.
    pub seconds: f64,
    /// Numbers by name, the unit last: "throughput_mib_s", "p99_us", "cpu_us_per_op", "miss_ratio".
    pub metrics: BTreeMap<String, f64>,
    /// Numbers over time by name: seconds since the measurement began, value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub series: BTreeMap<String, Vec<(f64, f64)>>,
    /// Per cent of the operations, microseconds in which so many were done; rising.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latency_percentiles_us: Vec<(f64, f64)>,
    /// Measured, but to be looked at: "disturbed: others used 7 % of the CPUs".
    #[serde(default)]
    pub marks: Vec<String>,
    /// Why the run is no measurement; it is never averaged in.
    pub refused: Option<String>,
    /// terrace's own statistics at the end, of whatever version it was: kept, not read.
    pub stats: Option<serde_json::Value>,
}

impl Run {
    /// The run's value of one of [`COLUMNS`].
    pub fn column(&self, name: &str) -> Option<String> {
        Some(match name {
            "system" => self.system.clone(),
            "load" => self.load.clone(),
            "pattern" => self.pattern.clone(),
            "jobs" => self.jobs.to_string(),
            "repetition" => self.repetition.to_string(),
            _ => return None,
        })
    }

    /// The name of a number that is none (NaN, infinite): JSON has no word for it, and nothing may be averaged with it.
    fn not_finite(&self) -> Option<String> {
        let times = [("started", self.started), ("seconds", self.seconds)];
        let mut numbers =
            times.into_iter().chain(self.metrics.iter().map(|(name, value)| (name.as_str(), *value)));
        if let Some((name, _)) = numbers.find(|(_, value)| !value.is_finite()) {
            return Some(name.into());
        }
        let bad =
            |points: &[(f64, f64)]| points.iter().any(|(at, value)| !(at.is_finite() && value.is_finite()));
        let series =
            self.series.iter().find(|(_, points)| bad(points)).map(|(name, _)| format!("series {name}"));
        series.or_else(|| bad(&self.latency_percentiles_us).then(|| "latency_percentiles_us".into()))
    }
}

/// All that a file holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// In the order of the file.
    pub headers: Vec<Header>,
    /// In the order of the file, refused ones among them; a refused run that was made again is there by its later line only.
    pub runs: Vec<Run>,
    /// Lines that the reader left out.
    pub notices: Vec<String>,
}

/// Reads a file of raw results.
///
/// # Errors
/// File and line of what is no header and no run, of a number that is none, of a run that is there twice.
pub fn read(path: &Path) -> Result<Results, Error> {
    let bytes = fs::read(path).map_err(|e| error(path, None, e.to_string(), "name a file of raw results"))?;
    parse(path, &bytes)
}

/// Do these bytes begin as raw results do? For readers of several formats.
pub fn is_raw(bytes: &[u8]) -> bool {
    let first = bytes.split(|&b| b == b'\n').next().unwrap_or_default();
    serde_json::from_slice::<Line>(first).is_ok_and(|line| line.machine.is_some() && line.matrix.is_some())
}

/// As [`read`], of a file that was read already.
pub fn parse(path: &Path, bytes: &[u8]) -> Result<Results, Error> {
    let mut results = Results::default();
    let mut places = HashMap::new();
    let whole = whole_lines(bytes);
    for (number, line) in bytes[..whole].split(|&b| b == b'\n').enumerate() {
        if !line.trim_ascii().is_empty() {
            parse_line(line, &mut results, &mut places)
                .map_err(|fault| error(path, Some(number + 1), fault, CURE_LINE))?;
        }
    }
    if whole < bytes.len() {
        let line = bytes[..whole].iter().filter(|&&b| b == b'\n').count() + 1;
        results.notices.push(format!("{}: line {line} is torn and left out", path.display()));
    }
    Ok(results)
}

const CURE_LINE: &str = "correct or remove the line; the runs of the others stay good";

#[derive(Deserialize)]
struct Line {
    machine: Option<Machine>,
    matrix: Option<Matrix>,
    run: Option<Run>,
}

/// A run takes the place of an earlier refused one with its id, in `places`.
fn parse_line(line: &[u8], results: &mut Results, places: &mut HashMap<String, usize>) -> Result<(), String> {
    let line: Line =
        serde_json::from_slice(line).map_err(|e| e.to_string().replace(" at line 1 ", " at "))?;
    match line {
        Line { machine: Some(machine), matrix: Some(matrix), run: None } => {
            results.headers.push(Header { machine, matrix });
            return Ok(());
        }
        Line { run: Some(_), .. } if results.headers.is_empty() => {
            return Err("a run before the line that tells the machine and the matrix".into());
        }
        Line { machine: None, matrix: None, run: Some(run) } => {
            match places.insert(run.id.clone(), results.runs.len()) {
                None => {}
                Some(before) if results.runs[before].refused.is_some() => {
                    results.runs.remove(before);
                    places.values_mut().filter(|place| **place > before).for_each(|place| *place -= 1);
                }
                Some(_) => return Err(format!("the run {} is there already, on a line before", run.id)),
            }
            results.runs.push(run);
        }
        _ => return Err("neither a machine with its matrix nor a run".into()),
    }
    Ok(())
}

/// Bytes up to and with the last newline.
fn whole_lines(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1)
}

fn error(path: &Path, line: Option<usize>, fault: impl Into<String>, cure: &str) -> Error {
    let at = line.map(|number| At::Line(number as u64));
    Error { file: path.display().to_string(), at, fault: fault.into(), cure: cure.into() }
}

/// Appends to a file of raw results; one harness at a time.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    file: File,
}

impl Writer {
    /// Opens or makes the file, and gives what it holds already. A torn last line is cut off.
    ///
    /// # Errors
    /// As [`read`]; a file that another harness writes to.
    pub fn append(path: &Path) -> Result<(Writer, Results), Error> {
        let fault = |e: std::io::Error| error(path, None, e.to_string(), "name a file that can be written");
        let file = OpenOptions::new().create(true).read(true).append(true).open(path).map_err(fault)?;
        file.try_lock().map_err(|e| match e {
            TryLockError::WouldBlock => {
                error(path, None, "another run writes to it", "wait for its end, or name another file")
            }
            TryLockError::Error(e) => fault(e),
        })?;
        let writer = Writer { path: path.to_owned(), file };
        let bytes = fs::read(path).map_err(fault)?;
        let results = parse(path, &bytes)?;
        writer.file.set_len(whole_lines(&bytes) as u64).map_err(fault)?;
        Ok((writer, results))
    }

    /// Appends a header.
    pub fn header(&mut self, header: &Header) -> Result<(), Error> {
        self.line(header)
    }

    /// Appends a run.
    ///
    /// # Errors
    /// A number that is none: nothing is written then.
    pub fn run(&mut self, run: &Run) -> Result<(), Error> {
        #[derive(Serialize)]
        struct Line<'a> {
            run: &'a Run,
        }
        if let Some(name) = run.not_finite() {
            let fault = format!("the run {} gave a {name} that is no number", run.id);
            return Err(error(&self.path, None, fault, "refuse the run, and say why in it"));
        }
        self.line(&Line { run })
    }

    /// One write a line: it is there, or torn at the end.
    fn line(&mut self, line: &impl Serialize) -> Result<(), Error> {
        let mut text = serde_json::to_vec(line)
            .map_err(|e| error(&self.path, None, e.to_string(), "name all numbers and texts"))?;
        text.push(b'\n');
        self.file.write_all(&text).map_err(|e| {
            error(&self.path, None, e.to_string(), "make room, and run again: what is there stays")
        })
    }
}

impl Drop for Writer {
    /// Closing alone would leave the lock to a child that was forked meanwhile, until it executes its program.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let machine = Machine { cpus: 2, kernel: "6.18".into(), ..Machine::default() };
        Header {
            machine,
            matrix: Matrix { name: "quick".into(), text: "[matrix]\nruns = 3\n".into(), paired: true },
        }
    }

    fn run(id: &str) -> Run {
        Run {
            id: id.into(),
            system: "kernel".into(),
            load: "fio-psync".into(),
            pattern: "zipf:0.8".into(),
            jobs: 2,
            repetition: 3,
            seed: u64::MAX,
            seconds: 10.0,
            metrics: BTreeMap::from([("p99_us".into(), 127.1), ("throughput_mib_s".into(), 1e-300)]),
            series: BTreeMap::from([("throughput_mib_s".into(), vec![(1.0, 5.5), (2.0, 6.0)])]),
            latency_percentiles_us: vec![(50.0, 3.1), (99.0, 127.1)],
            marks: vec!["disturbed: others used 7 % of the CPUs".into()],
            stats: Some(serde_json::json!({"schema": "terrace.stat.v2"})),
            ..Run::default()
        }
    }

    fn place() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("raw.jsonl");
        (dir, path)
    }

    #[test]
    fn written_data_are_read() {
        let (_dir, path) = place();
        let (mut writer, before) = Writer::append(&path).unwrap();
        assert_eq!(before, Results::default());
        writer.header(&header()).unwrap();
        let refused = Run { refused: Some("the memory limit did not bind".into()), ..Run::default() };
        for run in [&run("a"), &refused] {
            writer.run(run).unwrap();
        }
        drop(writer);
        let (mut writer, before) = Writer::append(&path).unwrap();
        assert_eq!((before.headers, before.runs), (vec![header()], vec![run("a"), refused.clone()]));
        writer.run(&run("b")).unwrap();
        let results = read(&path).unwrap();
        assert_eq!(results.runs, vec![run("a"), refused, run("b")]);
        assert!(results.notices.is_empty());
        assert!(is_raw(&fs::read(&path).unwrap()));
    }

    /// The lines of a harness as it is described in bench/README.md, which other programs write, too.
    #[test]
    fn lines_as_documented() {
        let text = r#"{"machine": {"cpu": "EPYC", "cpus": 2}, "matrix": {"name": "quick", "text": ""}}
{"run": {"id": "kernel/random/2/1", "system": "kernel", "load": "fio-psync", "pattern": "random", "jobs": 2, "repetition": 1, "order": 17, "seed": 123, "started": 1795285249.5, "seconds": 10, "metrics": {"iops": 5000, "mean_us": 20.5}, "series": {"iops": [[0.5, 4900]]}, "latency_percentiles_us": [[50.0, 3.1]], "marks": [], "refused": null, "stats": null}}
"#;
        let results = parse(Path::new("raw.jsonl"), text.as_bytes()).unwrap();
        let run = &results.runs[0];
        assert_eq!((run.order, run.metrics["iops"], run.series["iops"][0]), (17, 5000.0, (0.5, 4900.0)));
        assert_eq!(results.headers[0].machine.cpus, 2);
        let columns: Vec<_> = COLUMNS.iter().map(|c| run.column(c).unwrap()).collect();
        assert_eq!(columns, ["kernel", "fio-psync", "random", "2", "1"]);
        assert_eq!(run.column("seed"), None);
    }

    #[test]
    fn a_line_torn_at_any_byte_is_left_out_and_cut_off() {
        let (_dir, path) = place();
        let (mut writer, _) = Writer::append(&path).unwrap();
        writer.header(&header()).unwrap();
        writer.run(&run("a")).unwrap();
        let whole = fs::read(&path).unwrap();
        writer.run(&run("ä")).unwrap();
        drop(writer);
        let all = fs::read(&path).unwrap();
        for end in whole.len()..all.len() {
            fs::write(&path, &all[..end]).unwrap();
            let results = read(&path).unwrap();
            assert_eq!(results.runs, vec![run("a")]);
            assert_eq!(results.notices.len(), usize::from(end > whole.len()), "cut at {end}");
            let (mut writer, results) = Writer::append(&path).unwrap();
            assert_eq!(results.runs.len(), 1);
            writer.run(&run("c")).unwrap();
            let ids: Vec<_> = read(&path).unwrap().runs.into_iter().map(|r| r.id).collect();
            assert_eq!(ids, ["a", "c"]);
        }
    }

    #[test]
    fn a_refused_run_made_again_is_there_once() {
        let (_dir, path) = place();
        let (mut writer, _) = Writer::append(&path).unwrap();
        writer.header(&header()).unwrap();
        for id in ["a", "b", "c"] {
            writer.run(&Run { refused: Some("wrong data".into()), ..run(id) }).unwrap();
        }
        for id in ["b", "a"] {
            writer.run(&run(id)).unwrap();
        }
        let runs = read(&path).unwrap().runs;
        let told: Vec<_> = runs.iter().map(|r| (r.id.as_str(), r.refused.is_some())).collect();
        assert_eq!(told, [("c", true), ("b", false), ("a", false)]);
        writer.run(&run("a")).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("raw.jsonl: line 7: the run a is there already"), "{error}");
    }

    #[test]
    fn invalid_result_is_refused_with_its_line() {
        let header = serde_json::to_string(&header()).unwrap();
        let good = format!("{{\"run\":{}}}", serde_json::to_string(&run("a")).unwrap());
        for (bad, why) in [
            ("{}", "neither"),
            ("[1]", "invalid"),
            ("fio: error", "expected ident at column 2"),
            (good.replace("127.1", "NaN").as_str(), "expected value"),
            (good.replace("127.1", "null").as_str(), "invalid type: null, expected f64"),
            (good.replace("127.1", "1e999").as_str(), "out of range"),
            (good.replace("\"jobs\":2", "\"jobs\":-2").as_str(), "invalid value"),
            (good.replace("\"system\"", "\"sistem\"").as_str(), "missing field `system`"),
        ] {
            let text = format!("{header}\n{bad}\n{good}\n");
            let error = parse(Path::new("r.jsonl"), text.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with("r.jsonl: line 2: ") && error.contains(why), "{bad}: {error}");
        }
        let error = parse(Path::new("r"), format!("{good}\n").as_bytes()).unwrap_err().to_string();
        assert!(error.contains("line 1: a run before the line"), "{error}");
    }

    #[test]
    fn a_number_that_is_none_is_not_written() {
        let (_dir, path) = place();
        let (mut writer, _) = Writer::append(&path).unwrap();
        writer.header(&header()).unwrap();
        let mut bad = run("a");
        bad.metrics.insert("iops".into(), f64::NAN);
        assert!(writer.run(&bad).unwrap_err().to_string().contains("gave a iops that is no number"));
        let mut bad = run("a");
        bad.latency_percentiles_us.push((99.9, f64::INFINITY));
        assert!(writer.run(&bad).is_err());
        assert!(read(&path).unwrap().runs.is_empty());
    }

    #[test]
    fn one_harness_at_a_time() {
        let (_dir, path) = place();
        let first = Writer::append(&path).unwrap();
        let error = Writer::append(&path).unwrap_err().to_string();
        assert!(error.contains("another run writes to it"), "{error}");
        let inherited = first.0.file.try_clone().unwrap();
        drop(first);
        Writer::append(&path).unwrap();
        drop(inherited);
    }
}
