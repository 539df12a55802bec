//! Reads result files into runs; the content determines the kind of a file.
//!
//! | file | a run is | cells by default |
//! |---|---|---|
//! | of a matrix (`raw.jsonl`) | a line | system, load, pattern, jobs |
//! | fio's JSON | a direction of a group of jobs | direction, rw, bs, numjobs, iodepth, ioengine, random_distribution |
//! | CSV with a header | a line | every column that is no metric and does not number the runs |
//!
//! Every run also has the column `file`, and a run of fio `dir`, the file's directory. Columns of a cell that
//! never change are left out.

use super::cells::{FILE, Question, Row, distinct};
use super::fio_output;
use super::options::Compare;
use crate::machine::Machine;
use crate::raw;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Maximum size of a file, bytes.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// Columns that number the runs of a cell: no metric, and no part of a cell.
const RUN_NUMBERS: [&str; 9] =
    ["run", "runs", "repetition", "rep", "round", "iteration", "sample", "seed", "order"];
/// The runs of all files, and the complete question.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// All runs.
    pub rows: Vec<Row>,
    /// The question.
    pub question: Question,
    /// Notices about the files.
    pub(crate) notices: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Matrix,
    Fio,
    Csv,
}

impl Kind {
    fn by(self) -> &'static [&'static str] {
        match self {
            Kind::Matrix => &["system", "load", "pattern", "jobs"],
            Kind::Fio => &["direction", "rw", "bs", "numjobs", "iodepth", "ioengine", "random_distribution"],
            Kind::Csv => &[],
        }
    }
}

/// The runs of one file.
struct File {
    kind: Kind,
    rows: Vec<Row>,
    notices: Vec<String>,
    machine: Option<Machine>,
    /// The systems of a cell were run in pairs.
    paired: bool,
}

/// Reads the files and completes the question.
///
/// # Errors
/// One line: file, line, fault, cure.
pub fn load(asked: &Compare) -> Result<Loaded, String> {
    let paths = &asked.files;
    if let Some(twice) = paths.iter().enumerate().find_map(|(i, p)| paths[..i].contains(p).then_some(p)) {
        return Err(format!("{} is named twice (each run counts once)", twice.display()));
    }
    let factor = match &asked.factor {
        Some(factor) => factor.clone(),
        None if paths.len() == 2 => FILE.to_string(),
        None => return Err("the factor is missing (--factor COLUMN, or two files, OLD NEW)".into()),
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
    // Runs of two files did not alternate.
    let paired = factor != FILE && files.iter().all(|file| file.paired);
    let kinds: Vec<Kind> = files.iter().map(|file| file.kind).collect();
    let mut rows: Vec<Row> = files.into_iter().flat_map(|file| file.rows).collect();
    if kinds.iter().all(|kind| *kind == Kind::Fio) {
        same_columns(&mut rows);
    }
    let question = Question {
        baseline: baseline(&rows, &factor, asked)?,
        by: asked.by.as_deref().map_or_else(|| default_by(&rows, &factor, &kinds, asked), named),
        factor,
        metrics: named(&asked.metric),
        pair: asked.pair.clone().or_else(|| paired.then(|| "repetition".into())),
        confidence: asked.confidence,
    };
    Ok(Loaded { rows, question, notices })
}

/// The names in a list of the command line, which may be empty.
fn named(list: &[String]) -> Vec<String> {
    list.iter().filter(|name| !name.is_empty()).cloned().collect()
}

fn baseline(rows: &[Row], factor: &str, asked: &Compare) -> Result<String, String> {
    match &asked.baseline {
        Some(value) => Ok(value.clone()),
        None if factor == FILE => Ok(asked.files[0].display().to_string()),
        None => {
            let values = distinct(rows.iter().filter_map(|row| row.column(factor)));
            Err(format!(
                "the baseline of {factor} is missing (--baseline takes one of {})",
                values.join(", ")
            ))
        }
    }
}

/// The default columns of the files' kinds that all runs have, without the factor and those that never
/// change.
fn default_by(rows: &[Row], factor: &str, kinds: &[Kind], asked: &Compare) -> Vec<String> {
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
            name == factor || name == FILE || numbers_runs(name) || asked.metric.iter().any(|m| m == name);
        !other && varies(name) && rows.iter().all(|row| row.column(name).is_some())
    };
    names.iter().filter(makes_cells).cloned().collect()
}

fn numbers_runs(name: &str) -> bool {
    RUN_NUMBERS.contains(&name.to_lowercase().as_str())
}

/// fio prints only the given options: the others get the value "-".
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

/// A notice if the files come from unequal machines: their differences would mix with the compared ones.
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
    raw::error(path, line, fault, cure).to_string()
}

/// A directory of a run stands for its raw results.
fn results_of(path: &Path) -> PathBuf {
    let inside = path.join("raw.jsonl");
    if inside.exists() { inside } else { path.to_owned() }
}

fn read(given: &Path, factor: &str, asked: &Compare) -> Result<File, String> {
    let path = &results_of(given);
    let unread = |e: std::io::Error| fault(path, None, e.to_string(), "name a file of results");
    let size = fs::metadata(path).map_err(unread)?.len();
    if size > FILE_BYTES_MAX {
        return Err(fault(path, None, format!("{size} bytes"), "larger than 1 GiB"));
    }
    let bytes = fs::read(path).map_err(unread)?;
    rows_of(path, &bytes, factor, asked)
}

fn rows_of(path: &Path, bytes: &[u8], factor: &str, asked: &Compare) -> Result<File, String> {
    if raw::is_raw(bytes) {
        return matrix(path, bytes);
    }
    let text = str::from_utf8(bytes).map_err(|_| fault(path, None, "no text", CURE_FORMAT))?;
    let first: Option<Value> = text.lines().next().and_then(|line| serde_json::from_str(line).ok());
    if first.is_some_and(|line| line.get("kind").is_some()) {
        let cure = "read the report.txt beside them";
        return Err(fault(
            path,
            None,
            "raw results of the former suites of 2026, which are not supported any more",
            cure,
        ));
    }
    if fio_output::is_fio(text) {
        return fio(path, text);
    }
    let header =
        text.trim_start_matches('\u{feff}').lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    if header.starts_with(['{', '[', '<']) || !header.contains([',', ';', '\t']) {
        return Err(fault(path, None, "unknown format of results", CURE_FORMAT));
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
    let paired = results.headers.iter().all(|header| header.matrix.paired);
    Ok(File { kind: Kind::Matrix, rows: rows.collect(), notices: results.notices, machine, paired })
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
    Ok(File { kind: Kind::Fio, rows, notices: Vec::new(), machine: None, paired: false })
}

/// Maximum number of columns of a CSV.
const COLUMNS_MAX: usize = 1000;

/// A CSV with a header line, from which the separator is detected: `,`, `;` or tab.
struct Table {
    names: Vec<String>,
    /// Records with their line numbers.
    records: Vec<(u64, csv::StringRecord)>,
}

impl Table {
    fn read(path: &Path, text: &str) -> Result<Table, String> {
        let text = text.trim_start_matches('\u{feff}');
        let header = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        let delimiter =
            [b'\t', b';', b','].into_iter().max_by_key(|d| header.bytes().filter(|b| b == d).count());
        let mut builder = csv::ReaderBuilder::new();
        builder.delimiter(delimiter.unwrap_or(b',')).trim(csv::Trim::All);
        let mut reader = builder.from_reader(text.as_bytes());
        let wrong = |e: csv::Error| {
            let line = e.position().map(|at| at.line() as usize);
            let why = match e.kind() {
                csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
                    format!("{len} fields where the header names {expected_len}")
                }
                _ => e.to_string(),
            };
            fault(path, line, why, "correct the line")
        };
        let names: Vec<String> = reader.headers().map_err(wrong)?.iter().map(String::from).collect();
        if names.len() > COLUMNS_MAX {
            let why = format!("{} columns, more than {COLUMNS_MAX}", names.len());
            return Err(fault(path, Some(1), why, "name a table of results"));
        }
        if let Some(twice) = names.iter().enumerate().find_map(|(i, n)| names[..i].contains(n).then_some(n)) {
            return Err(fault(path, Some(1), format!("two columns are called \"{twice}\""), "rename one"));
        }
        let records: Result<Vec<_>, String> = reader
            .records()
            .map(|record| record.map(|r| (r.position().map_or(0, csv::Position::line), r)).map_err(wrong))
            .collect();
        Ok(Table { names, records: records? })
    }
}

/// The metrics are the named ones, or the only column of numbers that is neither factor nor cell nor number
/// of a run.
fn csv_rows(path: &Path, text: &str, factor: &str, asked: &Compare) -> Result<File, String> {
    let table = Table::read(path, text)?;
    let metrics = csv_metrics(&table, factor, asked).map_err(|(why, cure)| fault(path, None, why, &cure))?;
    let mut rows = Vec::new();
    for (line, fields) in &table.records {
        let mut row = Row { place: format!("{}: line {line}", path.display()), ..Row::default() };
        for (name, field) in table.names.iter().zip(fields) {
            if !metrics.contains(name) {
                row.columns.push((name.clone(), field.to_string()));
                continue;
            }
            let value = field.parse::<f64>().ok().filter(|value| value.is_finite());
            let wrong = || {
                let cure = "every run needs a number; leave out runs that have none";
                fault(path, Some(*line as usize), format!("{name} is \"{field}\""), cure)
            };
            row.metrics.insert(name.clone(), value.ok_or_else(wrong)?);
        }
        rows.push(row);
    }
    Ok(File { kind: Kind::Csv, rows, notices: Vec::new(), machine: None, paired: false })
}

fn csv_metrics(csv: &Table, factor: &str, asked: &Compare) -> Result<Vec<String>, (String, String)> {
    let named: Vec<String> = named(&asked.metric).into_iter().filter(|m| csv.names.contains(m)).collect();
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
    use std::collections::BTreeMap;

    fn asked() -> Compare {
        Compare { factor: Some("kernel".into()), baseline: Some("old".into()), ..Compare::default() }
    }

    fn file(name: &str, text: &str, asked: &Compare) -> Result<File, String> {
        rows_of(Path::new(name), text.as_bytes(), asked.factor.as_deref().unwrap_or(FILE), asked)
    }

    fn wrong(name: &str, text: &str, asked: &Compare) -> String {
        file(name, text, asked).map(|f| f.rows.len()).unwrap_err()
    }

    const TABLE: &str = "kernel,jobs,pattern,run,mib\nold,40,zipf,1,10.5\nnew,80,zipf,2,11\n";

    #[test]
    fn a_csvs_metric_is_what_nothing_else_is() {
        let by = |names: &[&str]| Some(names.iter().map(|n| (*n).to_string()).collect::<Vec<_>>());
        let found = file("t.csv", TABLE, &Compare { by: by(&["jobs", "pattern"]), ..asked() }).unwrap();
        assert_eq!(found.rows[1].metrics, BTreeMap::from([("mib".to_string(), 11.0)]));
        assert_eq!(found.rows[1].column("run"), Some("2"));
        let error = wrong("t.csv", TABLE, &asked());
        assert_eq!(
            error,
            "t.csv: jobs and mib could each be the metric (name it with --metric, or what makes the cells with --by)"
        );
        let named = Compare { metric: vec!["mib".into()], ..asked() };
        let found = file("t.csv", TABLE, &named).unwrap();
        assert_eq!(
            default_by(&found.rows, "kernel", &[Kind::Csv], &named),
            ["jobs"],
            "the pattern never changes"
        );
    }

    #[test]
    fn invalid_number_is_refused_with_file_and_line() {
        let by = Compare { by: Some(vec!["jobs".into()]), ..asked() };
        for bad in ["NaN", "inf", "-inf", "1e999"] {
            let error = wrong("t.csv", &TABLE.replace("11\n", &format!("{bad}\n")), &by);
            assert!(error.starts_with(&format!("t.csv: line 3: mib is \"{bad}\" (every run")), "{error}");
        }
        let named = Compare { metric: vec!["mib".into()], ..asked() };
        let error = wrong("t.csv", &TABLE.replace("10.5", ""), &named);
        assert!(error.starts_with("t.csv: line 2: mib is \"\""), "{error}");
        assert!(wrong("t.csv", "kernel,mib\n", &asked()).contains("no line but the header"));
        assert!(wrong("t.csv", "kernel,mib\na,b\n", &asked()).contains("no column holds numbers"));
    }

    #[test]
    fn invalid_result_is_reported() {
        for text in ["", "hello", "[1,2]", "{\"a\": 1}", "<html></html>", "\0,\0"] {
            assert!(wrong("x", text, &asked()).starts_with("x: "), "{text}");
        }
        assert!(rows_of(Path::new("x"), &[0xff, 0xfe, 1], FILE, &asked()).is_err());
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
