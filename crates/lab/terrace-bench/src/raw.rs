//! Raw results of a matrix: one JSON object a line, written at the end of each run, so that a killed harness
//! loses only its current run.
//!
//! ```text
//!   {"machine": {...}, "matrix": {"name": ..., "text": ...}}     first, and again where a run was resumed on a changed machine
//!   {"run": {"id": ..., "system": ..., "metrics": {...}, ...}}   a line a run, in the order they were made
//! ```
//! A line counts once its newline is written. After a kill there may be bytes behind the last newline:
//! [`read`] skips them with a notice, [`Writer`] cuts them off.

use crate::machine::Machine;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use terrace_api::capture::{At, Error};

/// The circumstances of the runs after it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The machine.
    pub machine: Machine,
    /// The matrix.
    pub matrix: Matrix,
}

/// A matrix as defined by the user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Matrix {
    /// Its name.
    pub name: String,
    /// Its TOML text, byte for byte.
    pub text: String,
    /// The systems of a cell were run in pairs, one for each repetition.
    #[serde(default)]
    pub paired: bool,
}

/// One run of one system.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// `system/load/pattern/jobs/repetition`: unique in a matrix, and the same when the matrix is resumed.
    pub id: String,
    /// The system under test.
    pub system: String,
    /// The load, as "fio-psync".
    pub load: String,
    /// The access pattern, as "zipf:0.8".
    pub pattern: String,
    /// Concurrent jobs.
    pub jobs: u32,
    /// Number of the repetition, from 1.
    pub repetition: u32,
    /// Position in the random order of the whole matrix.
    pub order: u64,
    /// Seed of the load.
    pub seed: u64,
    /// Seconds since 1970.
    pub started: f64,
    /// Seconds measured.
    pub seconds: f64,
    /// Numbers by name, the unit last: "throughput_mib_s", "p99_us", "cpu_us_per_op", "miss_ratio".
    pub metrics: BTreeMap<String, f64>,
    /// Values over time, by name: seconds since the start of the measurement, value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub series: BTreeMap<String, Vec<(f64, f64)>>,
    /// Percentiles of the latency: per cent, microseconds; rising.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latency_percentiles_us: Vec<(f64, f64)>,
    /// Remarks on a valid run: "disturbed: others used 7 % of the CPUs".
    #[serde(default)]
    pub marks: Vec<String>,
    /// Why the run is no measurement; refused runs are never averaged.
    pub refused: Option<String>,
    /// terrace's statistics at the end, of any version: stored, not interpreted.
    pub stats: Option<serde_json::Value>,
}

impl Run {
    /// Its columns besides the metrics: candidates for the factor and the cells of a comparison.
    pub fn columns(&self) -> Vec<(String, String)> {
        let columns = [
            ("system", self.system.clone()),
            ("load", self.load.clone()),
            ("pattern", self.pattern.clone()),
            ("jobs", self.jobs.to_string()),
            ("repetition", self.repetition.to_string()),
        ];
        columns.map(|(name, value)| (name.to_string(), value)).to_vec()
    }

    /// The name of a metric that is NaN or infinite: JSON cannot express it, and it must not be averaged.
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

/// Content of a results file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// In the order of the file.
    pub headers: Vec<Header>,
    /// In the order of the file, including refused ones. A repeated run replaces its earlier refused line.
    pub runs: Vec<Run>,
    /// Skipped lines.
    pub(crate) notices: Vec<String>,
}

/// Reads a file of raw results.
///
/// # Errors
/// File and line of text that is no header or run, of an invalid number, or of a duplicate run.
pub fn read(path: &Path) -> Result<Results, Error> {
    let bytes = fs::read(path).map_err(|e| error(path, None, e.to_string(), "name a file of raw results"))?;
    parse(path, &bytes)
}

/// Whether these bytes start like raw results. For readers of several formats.
pub(crate) fn is_raw(bytes: &[u8]) -> bool {
    let first = bytes.split(|&b| b == b'\n').next().unwrap_or_default();
    serde_json::from_slice::<Line>(first).is_ok_and(|line| line.machine.is_some() && line.matrix.is_some())
}

/// [`read`] for a file that is in memory.
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

const CURE_LINE: &str = "correct or remove the line; the other lines remain valid";

#[derive(Deserialize)]
struct Line {
    machine: Option<Machine>,
    matrix: Option<Matrix>,
    run: Option<Run>,
}

/// Parses a line. A run replaces an earlier refused one with its id, by `places`.
fn parse_line(line: &[u8], results: &mut Results, places: &mut HashMap<String, usize>) -> Result<(), String> {
    let line: Line =
        serde_json::from_slice(line).map_err(|e| e.to_string().replace(" at line 1 ", " at "))?;
    match line {
        Line { machine: Some(machine), matrix: Some(matrix), run: None } => {
            results.headers.push(Header { machine, matrix });
            return Ok(());
        }
        Line { run: Some(_), .. } if results.headers.is_empty() => {
            return Err("a run before the header line with machine and matrix".into());
        }
        Line { machine: None, matrix: None, run: Some(run) } => {
            match places.insert(run.id.clone(), results.runs.len()) {
                None => {}
                Some(before) if results.runs[before].refused.is_some() => {
                    results.runs.remove(before);
                    places.values_mut().filter(|place| **place > before).for_each(|place| *place -= 1);
                }
                Some(_) => return Err(format!("duplicate run {}: an earlier line has it", run.id)),
            }
            results.runs.push(run);
        }
        _ => return Err("neither a machine with its matrix nor a run".into()),
    }
    Ok(())
}

/// Bytes up to the last newline.
fn whole_lines(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1)
}

/// An error of a file of results.
pub(crate) fn error(path: &Path, line: Option<usize>, fault: impl Into<String>, cure: &str) -> Error {
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
    /// Opens or makes the file, and returns its content. A torn last line is cut off.
    ///
    /// # Errors
    /// Those of [`read`]; a file that another harness is writing.
    pub fn append(path: &Path) -> Result<(Writer, Results), Error> {
        let fault = |e: std::io::Error| error(path, None, e.to_string(), "name a file that can be written");
        let file = OpenOptions::new().create(true).read(true).append(true).open(path).map_err(fault)?;
        file.try_lock().map_err(|e| match e {
            TryLockError::WouldBlock => {
                error(path, None, "another harness is writing it", "wait for its end, or name another file")
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
    /// An invalid number: then nothing is written.
    pub fn run(&mut self, run: &Run) -> Result<(), Error> {
        #[derive(Serialize)]
        struct Line<'a> {
            run: &'a Run,
        }
        if let Some(name) = run.not_finite() {
            let fault = format!("the run {} has an invalid {name} (NaN or infinite)", run.id);
            return Err(error(&self.path, None, fault, "refuse the run, with the reason"));
        }
        self.line(&Line { run })
    }

    /// Each line is one write: a crash can only tear the last one.
    fn line(&mut self, line: &impl Serialize) -> Result<(), Error> {
        let mut text = serde_json::to_vec(line).map_err(|e| {
            error(&self.path, None, e.to_string(), "give every number and text a valid value")
        })?;
        text.push(b'\n');
        self.file.write_all(&text).map_err(|e| {
            error(&self.path, None, e.to_string(), "make room, and run again: existing results are kept")
        })
    }
}

impl Drop for Writer {
    /// Unlocks explicitly: after a close alone, a child forked meanwhile would hold the lock until its exec.
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
        let refused = Run { refused: Some("the memory limit has no effect".into()), ..Run::default() };
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

    /// The lines documented in bench/README.md, which other programs write, too.
    #[test]
    fn lines_as_documented() {
        let text = r#"{"machine": {"cpu": "EPYC", "cpus": 2}, "matrix": {"name": "quick", "text": ""}}
{"run": {"id": "kernel/random/2/1", "system": "kernel", "load": "fio-psync", "pattern": "random", "jobs": 2, "repetition": 1, "order": 17, "seed": 123, "started": 1795285249.5, "seconds": 10, "metrics": {"iops": 5000, "mean_us": 20.5}, "series": {"iops": [[0.5, 4900]]}, "latency_percentiles_us": [[50.0, 3.1]], "marks": [], "refused": null, "stats": null}}
"#;
        let results = parse(Path::new("raw.jsonl"), text.as_bytes()).unwrap();
        let run = &results.runs[0];
        assert_eq!((run.order, run.metrics["iops"], run.series["iops"][0]), (17, 5000.0, (0.5, 4900.0)));
        assert_eq!(results.headers[0].machine.cpus, 2);
        let columns: Vec<_> = run.columns().into_iter().map(|(_, value)| value).collect();
        assert_eq!(columns, ["kernel", "fio-psync", "random", "2", "1"]);
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
        assert!(error.contains("raw.jsonl: line 7: duplicate run a: an earlier line has it"), "{error}");
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
        assert!(error.contains("line 1: a run before the header line"), "{error}");
    }

    #[test]
    fn a_number_that_is_none_is_not_written() {
        let (_dir, path) = place();
        let (mut writer, _) = Writer::append(&path).unwrap();
        writer.header(&header()).unwrap();
        let mut bad = run("a");
        bad.metrics.insert("iops".into(), f64::NAN);
        assert!(writer.run(&bad).unwrap_err().to_string().contains("has an invalid iops"));
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
        assert!(error.contains("another harness is writing it"), "{error}");
        let inherited = first.0.file.try_clone().unwrap();
        drop(first);
        Writer::append(&path).unwrap();
        drop(inherited);
    }
}
