//! From files to runs: whose results a file holds is told by its content.
//!
//! | file | a run is | cells by default |
//! |---|---|---|
//! | of a matrix (`raw.jsonl`) | a line | system, load, pattern, jobs |
//! | of the suites (`--json`) | a line | suite, cell, system |
//! | fio's JSON | a direction of a group of jobs | direction, rw, bs, numjobs, iodepth, ioengine, random_distribution |
//! | CSV with a header | a line | every column that is no metric and does not number the runs |
//!
//! Every run has the column `file` besides, and one of fio `dir`, the directory that the file is in. Of the cells' columns those that never change are left out.

use super::cells::{Question, Row, distinct};
use super::{csv, fio_output};
use crate::machine::Machine;
use crate::raw;
use crate::trial::FOREIGN_CPU_MAX;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use terrace_trace::{At, Error};

/// Bytes of a file at the most.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// Columns that number the runs of a cell: neither a metric nor what makes a cell.
const RUN_NUMBERS: [&str; 9] =
    ["run", "runs", "repetition", "rep", "round", "iteration", "sample", "seed", "order"];
/// The column that every run has.
pub const FILE: &str = "file";

/// A question as it was asked: what is not said follows from the files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Asked {
    /// The factor; with two files by default the file.
    pub factor: Option<String>,
    /// Its value; with the file as the factor by default the first one.
    pub baseline: Option<String>,
    /// Columns of a cell.
    pub by: Option<Vec<String>>,
    /// Metrics; none: the usual ones.
    pub metrics: Vec<String>,
    /// Of the interval.
    pub confidence: f64,
}

/// What files hold, and the question in full.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// All runs.
    pub rows: Vec<Row>,
    /// The question.
    pub question: Question,
    /// What to know of the files.
    pub notices: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Matrix,
    Suites,
    Fio,
    Csv,
}

impl Kind {
    fn by(self) -> &'static [&'static str] {
        match self {
            Kind::Matrix => &["system", "load", "pattern", "jobs"],
            Kind::Suites => &["suite", "cell", "system"],
            Kind::Fio => &["direction", "rw", "bs", "numjobs", "iodepth", "ioengine", "random_distribution"],
            Kind::Csv => &[],
        }
    }
}

/// What one file gave.
struct File {
    kind: Kind,
    rows: Vec<Row>,
    notices: Vec<String>,
    machine: Option<Machine>,
}

/// Reads the files and completes the question.
///
/// # Errors
/// One line: file, line, fault, cure.
pub fn load(paths: &[PathBuf], asked: &Asked) -> Result<Loaded, String> {
    if let Some(twice) = paths.iter().enumerate().find_map(|(i, p)| paths[..i].contains(p).then_some(p)) {
        return Err(format!("{} is named twice (each run counts once)", twice.display()));
    }
    let factor = match &asked.factor {
        Some(factor) => factor.clone(),
        None if paths.len() == 2 => FILE.to_string(),
        None => return Err("nothing says what is compared (--factor COLUMN, or two files, OLD NEW)".into()),
    };
    let mut files = Vec::new();
    for path in paths {
        let mut file = read(path, &factor, asked)?;
        for row in &mut file.rows {
            row.columns.push((FILE.into(), path.display().to_string()));
        }
        files.push(file);
    }
    let mut notices: Vec<String> = files.iter().flat_map(|file| file.notices.clone()).collect();
    notices.extend(other_machine(&files, paths));
    let kinds: Vec<Kind> = files.iter().map(|file| file.kind).collect();
    let mut rows: Vec<Row> = files.into_iter().flat_map(|file| file.rows).collect();
    if kinds.iter().all(|kind| *kind == Kind::Fio) {
        same_columns(&mut rows);
    }
    let question = Question {
        baseline: baseline(&rows, &factor, asked, paths)?,
        by: asked.by.clone().unwrap_or_else(|| default_by(&rows, &factor, &kinds, asked)),
        factor,
        metrics: asked.metrics.clone(),
        confidence: asked.confidence,
    };
    Ok(Loaded { rows, question, notices })
}

fn baseline(rows: &[Row], factor: &str, asked: &Asked, paths: &[PathBuf]) -> Result<String, String> {
    match &asked.baseline {
        Some(value) => Ok(value.clone()),
        None if factor == FILE => Ok(paths[0].display().to_string()),
        None => {
            let values = distinct(rows.iter().filter_map(|row| row.column(factor)));
            Err(format!(
                "nothing says what {factor} is compared with (--baseline takes one of {})",
                values.join(", ")
            ))
        }
    }
}

/// The usual columns of the files' kinds that all runs have, but the factor, and those that never change.
fn default_by(rows: &[Row], factor: &str, kinds: &[Kind], asked: &Asked) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for kind in kinds {
        let of_csv =
            rows.first().map(|row| row.columns.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>());
        let all = if *kind == Kind::Csv { of_csv.unwrap_or_default() } else { kind.by().to_vec() };
        names.extend(all.iter().map(|name| (*name).to_string()));
    }
    let names = distinct(names.iter().map(String::as_str));
    let varies = |name: &str| rows.windows(2).any(|pair| pair[0].column(name) != pair[1].column(name));
    let makes_cells = |name: &&String| {
        let name = name.as_str();
        let other =
            name == factor || name == FILE || numbers_runs(name) || asked.metrics.iter().any(|m| m == name);
        !other && varies(name) && rows.iter().all(|row| row.column(name).is_some())
    };
    names.iter().filter(makes_cells).cloned().collect()
}

fn numbers_runs(name: &str) -> bool {
    RUN_NUMBERS.contains(&name.to_lowercase().as_str())
}

/// fio tells only the options that were given: the others' value is "-".
fn same_columns(rows: &mut [Row]) {
    let names = distinct(rows.iter().flat_map(|row| row.columns.iter().map(|(name, _)| name.as_str())));
    for row in rows {
        for name in &names {
            if row.column(name).is_none() {
                row.columns.push((name.clone(), "-".into()));
            }
        }
    }
}

/// Files of unequal machines differ by more than what was to be compared.
fn other_machine(files: &[File], paths: &[PathBuf]) -> Option<String> {
    let known: Vec<(&Machine, &PathBuf)> =
        files.iter().zip(paths).filter_map(|(f, p)| Some((f.machine.as_ref()?, p))).collect();
    let (first, path) = known.first()?;
    let told =
        |m: &Machine| format!("{} x {}, {} MiB, Linux {}", m.cpus, m.cpu, m.memory_bytes >> 20, m.kernel);
    let (machine, other) = known.iter().find(|(machine, _)| told(machine) != told(first))?;
    Some(format!(
        "different machines: {} ({}), {} ({})",
        path.display(),
        told(first),
        other.display(),
        told(machine)
    ))
}

fn fault(path: &Path, line: Option<usize>, fault: impl Into<String>, cure: &str) -> String {
    let at = line.map(|line| At::Line(line as u64));
    Error { file: path.display().to_string(), at, fault: fault.into(), cure: cure.into() }.to_string()
}

/// A directory of a run, or its report, stands for the raw results in it.
fn results_of(path: &Path) -> PathBuf {
    let beside = match path.extension() {
        _ if path.is_dir() => path.join("raw.jsonl"),
        Some(ending) if ending == "html" => path.with_file_name("raw.jsonl"),
        _ => return path.to_owned(),
    };
    if beside.exists() { beside } else { path.to_owned() }
}

fn read(given: &Path, factor: &str, asked: &Asked) -> Result<File, String> {
    let path = &results_of(given);
    let unread = |e: std::io::Error| fault(path, None, e.to_string(), "name a file of results");
    let size = fs::metadata(path).map_err(unread)?.len();
    if size > FILE_BYTES_MAX {
        return Err(fault(path, None, format!("{size} bytes"), "results of more than 1 GiB are none"));
    }
    let bytes = fs::read(path).map_err(unread)?;
    rows_of(path, &bytes, factor, asked)
}

fn rows_of(path: &Path, bytes: &[u8], factor: &str, asked: &Asked) -> Result<File, String> {
    if raw::is_raw(bytes) {
        return matrix(path, bytes);
    }
    let text = str::from_utf8(bytes).map_err(|_| fault(path, None, "no text", CURE_FORMAT))?;
    let first: Option<Value> = text.lines().next().and_then(|line| serde_json::from_str(line).ok());
    if first.is_some_and(|line| line.get("kind").is_some()) {
        return suites(path, text);
    }
    if fio_output::is_fio(text) {
        return fio(path, text);
    }
    let header =
        text.trim_start_matches('\u{feff}').lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    if header.starts_with(['{', '[', '<']) || !header.contains([',', ';', '\t']) {
        return Err(fault(path, None, "no results that are known", CURE_FORMAT));
    }
    csv_rows(path, text, factor, asked)
}

const CURE_FORMAT: &str = "name raw results of terrace-bench, fio's JSON, or CSV with a header line";

fn matrix(path: &Path, bytes: &[u8]) -> Result<File, String> {
    let mut results = raw::parse(path, bytes).map_err(|e| e.to_string())?;
    // Runs were made in random order; comparisons keep the order of the data.
    let key = |run: &raw::Run| {
        (run.load.clone(), run.pattern.clone(), run.jobs, run.system.clone(), run.repetition, run.order)
    };
    results.runs.sort_by_cached_key(key);
    let rows =
        results.runs.iter().map(|run| Row { place: format!("{}: {}", path.display(), run.id), ..run.into() });
    let machine = results.headers.first().map(|header| header.machine.clone());
    Ok(File { kind: Kind::Matrix, rows: rows.collect(), notices: results.notices, machine })
}

/// Lines of the suites: `machine` begins a session, `run` is a run, of which a disturbed round was made again; `ratio` follows from them.
fn suites(path: &Path, text: &str) -> Result<File, String> {
    let mut file = File { kind: Kind::Suites, rows: Vec::new(), notices: Vec::new(), machine: None };
    let mut session = 0;
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |why: String| fault(path, Some(number + 1), why, "correct or remove the line");
        let line: Value = match serde_json::from_str(line) {
            Err(_) if !text.ends_with('\n') && number + 1 == text.lines().count() => {
                file.notices.push(format!("{}: line {} is torn and left out", path.display(), number + 1));
                break;
            }
            parsed => parsed.map_err(|e| wrong(e.to_string()))?,
        };
        match line.get("kind").and_then(Value::as_str) {
            Some("machine") => {
                session += 1;
                let machine = line.get("machine").cloned().and_then(|m| serde_json::from_value(m).ok());
                file.machine = file.machine.or(machine);
            }
            Some("run") => {
                let row = suite_run(path, &line).map_err(wrong)?;
                let id = format!("{session} {}", row.place);
                match places.get(&id) {
                    Some(&before) => file.rows[before] = row,
                    None => {
                        places.insert(id, file.rows.len());
                        file.rows.push(row);
                    }
                }
            }
            Some(_) => {}
            None => return Err(wrong("no kind".into())),
        }
    }
    Ok(file)
}

fn suite_run(path: &Path, line: &Value) -> Result<Row, String> {
    let text = |name: &str| match line.get(name) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Number(number)) => Ok(number.to_string()),
        _ => Err(format!("a run without {name}")),
    };
    let mut columns = Vec::new();
    for name in ["suite", "cell", "system", "place", "round"] {
        columns.push((name.to_string(), text(name)?));
    }
    let mut metrics = BTreeMap::new();
    for (name, value) in line.get("metrics").and_then(Value::as_object).into_iter().flatten() {
        metrics.insert(name.clone(), value.as_f64().ok_or_else(|| format!("{name} is no number"))?);
    }
    let refused = line.get("refused").and_then(Value::as_str).map(str::to_string);
    if metrics.is_empty() && refused.is_none() {
        return Err("a run without metrics that was not refused".into());
    }
    let place = columns.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>().join("/");
    let foreign = line.get("foreign_cpu").and_then(Value::as_f64).unwrap_or(0.0);
    let place = format!("{}: {place}", path.display());
    Ok(Row { place, columns, metrics, marked: foreign > FOREIGN_CPU_MAX, refused })
}

fn fio(path: &Path, text: &str) -> Result<File, String> {
    let mut rows = fio_output::rows(text)
        .map_err(|why| fault(path, None, why, "run fio with --output-format=json, and let it end"))?;
    let dir = path
        .parent()
        .and_then(|dir| dir.file_name())
        .map_or_else(|| ".".into(), |name| name.to_string_lossy());
    for row in &mut rows {
        row.place = path.display().to_string();
        row.columns.retain(|(name, _)| name != FILE && name != "dir");
        row.columns.push(("dir".into(), dir.to_string()));
    }
    Ok(File { kind: Kind::Fio, rows, notices: Vec::new(), machine: None })
}

/// A metric is what was named, or the one column of numbers that is neither factor nor cell nor a number of the run.
fn csv_rows(path: &Path, text: &str, factor: &str, asked: &Asked) -> Result<File, String> {
    let csv = csv::parse(text).map_err(|(line, why)| fault(path, Some(line), why, "correct the line"))?;
    let metrics = csv_metrics(&csv, factor, asked).map_err(|(why, cure)| fault(path, None, why, &cure))?;
    let mut rows = Vec::new();
    for (line, fields) in &csv.records {
        let mut row = Row { place: format!("{}: line {line}", path.display()), ..Row::default() };
        for (name, field) in csv.names.iter().zip(fields) {
            if !metrics.contains(name) {
                row.columns.push((name.clone(), field.clone()));
                continue;
            }
            let value = field.parse::<f64>().ok().filter(|value| value.is_finite());
            let wrong = || {
                let cure = "every run needs a number; leave out runs that have none";
                fault(path, Some(*line), format!("{name} is \"{field}\""), cure)
            };
            row.metrics.insert(name.clone(), value.ok_or_else(wrong)?);
        }
        rows.push(row);
    }
    Ok(File { kind: Kind::Csv, rows, notices: Vec::new(), machine: None })
}

fn csv_metrics(csv: &csv::Csv, factor: &str, asked: &Asked) -> Result<Vec<String>, (String, String)> {
    let named: Vec<String> = asked.metrics.iter().filter(|m| csv.names.contains(m)).cloned().collect();
    if !named.is_empty() {
        return Ok(named);
    }
    let cell = |name: &String| asked.by.as_ref().is_some_and(|by| by.contains(name));
    let is_number = |i: usize| csv.records.iter().all(|(_, fields)| fields[i].parse::<f64>().is_ok());
    let free = csv
        .names
        .iter()
        .enumerate()
        .filter(|(_, name)| *name != factor && !cell(name) && !numbers_runs(name));
    let found: Vec<String> = free.filter(|(i, _)| is_number(*i)).map(|(_, name)| name.clone()).collect();
    let columns = csv.names.join(", ");
    match found.len() {
        _ if csv.records.is_empty() => Err(("no line but the header".into(), "name a file with runs".into())),
        0 => Err(("no column holds numbers only".into(), format!("--metric takes some of {columns}"))),
        1 => Ok(found),
        _ => Err((
            format!("{} could each be the metric", found.join(" and ")),
            "name it with --metric, or what makes the cells with --by".into(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Asked {
        Asked {
            factor: Some("kernel".into()),
            baseline: Some("old".into()),
            confidence: 0.95,
            ..Asked::default()
        }
    }

    fn file(name: &str, text: &str, asked: &Asked) -> Result<File, String> {
        rows_of(Path::new(name), text.as_bytes(), asked.factor.as_deref().unwrap_or(FILE), asked)
    }

    fn wrong(name: &str, text: &str, asked: &Asked) -> String {
        file(name, text, asked).map(|f| f.rows.len()).unwrap_err()
    }

    const TABLE: &str = "kernel,jobs,pattern,run,mib\nold,40,zipf,1,10.5\nnew,80,zipf,2,11\n";

    #[test]
    fn a_csvs_metric_is_what_nothing_else_is() {
        let by = |names: &[&str]| Some(names.iter().map(|n| (*n).to_string()).collect::<Vec<_>>());
        let found = file("t.csv", TABLE, &Asked { by: by(&["jobs", "pattern"]), ..asked() }).unwrap();
        assert_eq!(found.rows[1].metrics, BTreeMap::from([("mib".to_string(), 11.0)]));
        assert_eq!(found.rows[1].column("run"), Some("2"));
        let error = wrong("t.csv", TABLE, &asked());
        assert_eq!(
            error,
            "t.csv: jobs and mib could each be the metric (name it with --metric, or what makes the cells with --by)"
        );
        let named = Asked { metrics: vec!["mib".into()], ..asked() };
        let found = file("t.csv", TABLE, &named).unwrap();
        assert_eq!(
            default_by(&found.rows, "kernel", &[Kind::Csv], &named),
            ["jobs"],
            "the pattern never changes"
        );
    }

    #[test]
    fn what_is_no_number_is_refused_with_file_and_line() {
        let by = Asked { by: Some(vec!["jobs".into()]), ..asked() };
        for bad in ["NaN", "inf", "-inf", "1e999"] {
            let error = wrong("t.csv", &TABLE.replace("11\n", &format!("{bad}\n")), &by);
            assert!(error.starts_with(&format!("t.csv: line 3: mib is \"{bad}\" (every run")), "{error}");
        }
        let named = Asked { metrics: vec!["mib".into()], ..asked() };
        let error = wrong("t.csv", &TABLE.replace("10.5", ""), &named);
        assert!(error.starts_with("t.csv: line 2: mib is \"\""), "{error}");
        assert!(wrong("t.csv", "kernel,mib\n", &asked()).contains("no line but the header"));
        assert!(wrong("t.csv", "kernel,mib\na,b\n", &asked()).contains("no column holds numbers"));
    }

    #[test]
    fn what_is_no_result_is_told() {
        for text in ["", "hello", "[1,2]", "{\"a\": 1}", "<html></html>", "\0,\0"] {
            assert!(wrong("x", text, &asked()).starts_with("x: "), "{text}");
        }
        assert!(rows_of(Path::new("x"), &[0xff, 0xfe, 1], FILE, &asked()).is_err());
    }

    const SUITES: &str = r#"{"kind":"machine","schema":"terrace.bench.v1","machine":{"cpus":2}}
{"kind":"run","suite":"fio","cell":"zipf","system":"kernel","place":"baseline","round":1,"seed":5,"metrics":{"iops":100.5},"foreign_cpu":0.2}
{"kind":"run","suite":"fio","cell":"zipf","system":"terrace","place":"candidate","round":1,"refused":"wrong data"}
{"kind":"run","suite":"fio","cell":"zipf","system":"kernel","place":"baseline","round":1,"seed":6,"metrics":{"iops":101.5},"foreign_cpu":0.01}
{"kind":"ratio","cell":"fio zipf","metric":"iops"}
{"kind":"machine","machine":{"cpus":2}}
{"kind":"run","suite":"fio","cell":"zipf","system":"kernel","place":"baseline","round":1,"seed":7,"metrics":{"iops":99},"foreign_cpu":0.3}
"#;

    #[test]
    fn suites_count_the_last_try_of_a_round_and_know_refused_runs() {
        let found = file("raw.jsonl", SUITES, &asked()).unwrap();
        let told: Vec<_> = found.rows.iter().map(|r| (r.metrics.get("iops").copied(), r.marked)).collect();
        assert_eq!(told, [(Some(101.5), false), (None, false), (Some(99.0), true)]);
        assert_eq!(found.rows[1].refused.as_deref(), Some("wrong data"));
        assert_eq!(found.rows[1].place, "raw.jsonl: fio/zipf/terrace/candidate/1");
        let torn = file("raw.jsonl", &SUITES[..SUITES.len() - 9], &asked()).unwrap();
        assert_eq!((torn.rows.len(), torn.notices.len()), (2, 1));
        let null = wrong("raw.jsonl", &SUITES.replace("100.5", "null"), &asked());
        assert_eq!(null, "raw.jsonl: line 2: iops is no number (correct or remove the line)");
        assert!(
            wrong("raw.jsonl", &SUITES.replace("\"round\":1,\"refused\"", "\"refused\""), &asked())
                .contains("line 3: a run without round")
        );
    }

    #[test]
    fn options_that_one_fio_was_not_given_are_a_dash() {
        let row = |columns: &[(&str, &str)]| Row {
            columns: columns.iter().map(|(n, v)| ((*n).to_string(), (*v).to_string())).collect(),
            ..Row::default()
        };
        let mut rows = vec![row(&[("bs", "4k")]), row(&[("bs", "4k"), ("direct", "1")])];
        same_columns(&mut rows);
        assert_eq!(rows[0].column("direct"), Some("-"));
        assert_eq!(default_by(&rows, "direct", &[Kind::Fio], &asked()), Vec::<String>::new());
    }
}
