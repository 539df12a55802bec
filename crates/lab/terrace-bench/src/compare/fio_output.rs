//! Reads fio's JSON output: one run for each group of jobs and direction.

use super::cells::{Row, distinct};
use crate::fio::Report;
use crate::fio::output::{DIRECTIONS, Document, Group};
use crate::pages::MIB;
use std::collections::BTreeMap;

const PERCENTILES: [(f64, &str); 5] =
    [(50.0, "p50_us"), (90.0, "p90_us"), (95.0, "p95_us"), (99.0, "p99_us"), (99.9, "p999_us")];

/// Whether the text looks like fio's output.
pub(crate) fn is_fio(text: &str) -> bool {
    text.contains("\"fio version\"") && text.contains('{')
}

/// A row for each group of jobs and direction with I/O. Columns: `direction`, `jobname`, `fio` (the version),
/// and the options.
///
/// # Errors
/// A missing value, or text that is no JSON.
pub fn rows(text: &str) -> Result<Vec<Row>, String> {
    let document = Document::parse(text)?;
    let mut rows = Vec::new();
    for group in document.groups() {
        rows.extend(group_rows(&group, &document.version)?);
    }
    if rows.is_empty() {
        return Err("no job did any I/O".into());
    }
    Ok(rows)
}

fn group_rows(group: &Group<'_>, version: &str) -> Result<Vec<Row>, String> {
    let joined = |values: &[String]| distinct(values.iter().map(String::as_str)).join("+");
    let mut columns =
        vec![("jobname".to_string(), joined(&group.names())), ("fio".to_string(), version.into())];
    columns.extend(group.options().into_iter().map(|(name, values)| (name, joined(&values))));
    let refused = group.failure();
    let row = |direction: &str, metrics| Row {
        columns: [vec![("direction".into(), direction.into())], columns.clone()].concat(),
        metrics,
        refused: refused.clone(),
        ..Row::default()
    };
    let mut rows = Vec::new();
    for direction in DIRECTIONS {
        rows.extend(group.report(direction)?.map(|report| row(direction, metrics(&report))));
    }
    if rows.is_empty() && refused.is_some() {
        rows.push(row("-", BTreeMap::new()));
    }
    Ok(rows)
}

fn metrics(report: &Report) -> BTreeMap<String, f64> {
    let mut found = vec![("iops", report.iops), ("throughput_mib_s", report.bytes_per_s / MIB as f64)];
    found.extend(report.mean_us.map(|us| ("mean_us", us)));
    found.extend(report.cpu_us_per_op.map(|us| ("cpu_us_per_op", us)));
    found.extend(
        PERCENTILES.iter().filter_map(|(percent, name)| Some((*name, report.percentile_us(*percent)?))),
    );
    found.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIO_2_1: &str = r#"{
      "fio version" : "fio-2.1.4",
      "jobs" : [ { "jobname" : "old", "groupid" : 0, "error" : 0,
        "read" : { "io_bytes" : 40960, "bw" : 2048, "iops" : 512, "runtime" : 20000,
          "slat" : { "min" : 0, "max" : 0, "mean" : 0.00, "stddev" : 0.00 },
          "clat" : { "min" : 0, "max" : 1684, "mean" : 11.34, "stddev" : 31.27,
            "percentile" : { "50.000000" : 9, "99.000000" : 350, "0.00" : 0, "0.00" : 0 } },
          "lat" : { "min" : 0, "max" : 1684, "mean" : 12.5, "stddev" : 31.28 } },
        "write" : { "io_bytes" : 0, "bw" : 0, "iops" : 0, "runtime" : 0, "clat" : { "percentile" : { "99.000000" : 0 } } },
        "usr_cpu" : 3.5, "sys_cpu" : 20.1 } ] }"#;

    const FIO_2_10: &str = r#"{ "fio version" : "fio-2.10", "timestamp" : 1480611510,
      "global options" : { "ioengine" : "libaio", "direct" : "1", "bs" : "8k" },
      "jobs" : [ { "jobname" : "seq", "groupid" : 0, "error" : 0, "job options" : { "bs" : "4k", "rw" : "rw" },
        "read" : { "io_bytes" : 89304, "bw" : 2976, "iops" : 744.13, "runtime" : 30003, "total_ios" : 22326,
          "clat" : { "mean" : 700.5, "percentile" : { "99.000000" : 1004, "99.900000" : 2008 } }, "lat" : { "mean" : 725.25 } },
        "write" : { "io_bytes" : 89304, "bw" : 1488, "iops" : 372, "runtime" : 30003, "total_ios" : 11163,
          "clat" : { "mean" : 600, "percentile" : { "99.000000" : 904 } }, "lat" : { "mean" : 625 } } } ] }"#;

    fn of<'a>(rows: &'a [Row], i: usize, name: &str) -> &'a str {
        rows[i].column(name).unwrap()
    }

    #[test]
    fn fio_2_counts_kibibytes_and_microseconds() {
        let rows = rows(FIO_2_1).unwrap();
        assert_eq!(rows.len(), 1, "nothing was written");
        let expected = [
            ("iops", 512.0),
            ("mean_us", 12.5),
            ("p50_us", 9.0),
            ("p99_us", 350.0),
            ("throughput_mib_s", 2.0),
        ];
        assert_eq!(rows[0].metrics, BTreeMap::from(expected.map(|(k, v)| (k.to_string(), v))));
        assert_eq!(
            (of(&rows, 0, "fio"), of(&rows, 0, "jobname"), of(&rows, 0, "direction")),
            ("fio-2.1.4", "old", "read")
        );
    }

    #[test]
    fn directions_are_rows_and_options_columns() {
        let rows = rows(FIO_2_10).unwrap();
        let p99: Vec<_> = rows.iter().map(|r| r.metrics["p99_us"]).collect();
        assert_eq!(p99, [1004.0, 904.0]);
        assert_eq!(
            (of(&rows, 1, "direction"), of(&rows, 1, "bs"), of(&rows, 1, "ioengine")),
            ("write", "4k", "libaio")
        );
        assert_eq!(
            (rows[0].metrics["throughput_mib_s"], rows[0].metrics["p999_us"]),
            (2976.0 / 1024.0, 2008.0)
        );
    }

    /// Output of fio (3.33, mixed reads and writes, two jobs in one report), `json` and `json+`.
    #[test]
    fn fio_3_counts_bytes_and_nanoseconds() {
        for text in [include_str!("../../data/fio-3.33.json"), include_str!("../../data/fio-3.33.json+")] {
            let rows = rows(text).unwrap();
            assert_eq!((rows.len(), of(&rows, 0, "numjobs"), of(&rows, 1, "rw")), (2, "2", "randrw"));
            for row in &rows {
                let m = |name: &str| row.metrics[name];
                assert!((m("iops") / 256.0 - m("throughput_mib_s")).abs() < 0.01);
                assert!(m("p50_us") < m("p99_us") && m("p99_us") < m("p999_us") && m("mean_us") > 1.0);
                assert!(m("cpu_us_per_op") > 1.0 && m("cpu_us_per_op") < 1000.0);
            }
        }
        let rows = rows(include_str!("../../data/fio-3.33.json")).unwrap();
        assert_eq!(rows[0].metrics["p99_us"], 164.864);
    }

    fn job(name: &str, group: u32, ios: u32, ns: u32) -> String {
        format!(
            r#"{{"jobname":"{name}","groupid":{group},"error":0,"job_runtime":1000,"usr_cpu":10,"sys_cpu":10,
            "read":{{"iops":{ios},"bw_bytes":1048576,"total_ios":{ios},"lat_ns":{{"mean":{ns}}},
            "clat_ns":{{"percentile":{{"99.000000":{ns}}}}}}}}}"#
        )
    }

    fn with_jobs(jobs: &[String]) -> String {
        format!("{{\"fio version\":\"fio-3.36\",\"jobs\":[{}]}}", jobs.join(","))
    }

    #[test]
    fn jobs_that_ran_together_add_up_and_stages_do_not() {
        let rows = rows(&with_jobs(&[job("a", 0, 100, 1000), job("b", 0, 300, 5000), job("c", 1, 10, 9000)]))
            .unwrap();
        assert_eq!((rows.len(), of(&rows, 0, "jobname"), of(&rows, 1, "jobname")), (2, "a+b", "c"));
        let m = &rows[0].metrics;
        assert_eq!(
            (m["iops"], m["throughput_mib_s"], m["mean_us"], m["cpu_us_per_op"]),
            (400.0, 2.0, 4.0, 1000.0)
        );
        assert!(!m.contains_key("p99_us"), "it is unknown");
        assert_eq!(rows[1].metrics["p99_us"], 9.0);
    }

    #[test]
    fn last_interim_report_counts_and_messages_are_skipped() {
        let (first, last) = (with_jobs(&[job("a", 0, 1, 1)]), with_jobs(&[job("a", 0, 7, 1)]));
        let text = format!("fio: {{hint}} of fio\n{first}\nfio: message\n{last}\n\nfio: bye\n");
        assert_eq!(rows(&text).unwrap()[0].metrics["iops"], 7.0);
        assert!(rows(&format!("{first}\n{}", &last[..last.len() / 2])).is_err(), "the last one is torn");
    }

    #[test]
    fn clients_are_taken_from_their_sum() {
        let text = with_jobs(&[job("one", 0, 1, 1), job("All clients", 0, 2, 1)])
            .replace("\"jobs\"", "\"client_stats\"");
        let rows = rows(&text).unwrap();
        assert_eq!((rows.len(), rows[0].metrics["iops"]), (1, 2.0));
    }

    #[test]
    fn a_failed_job_is_refused_and_what_is_no_report_too() {
        let failed = with_jobs(&[job("a", 0, 5, 1)]).replace("\"error\":0", "\"error\":5");
        assert_eq!(rows(&failed).unwrap()[0].refused.as_deref(), Some("fio failed with error 5"));
        let failed = failed.replace("\"total_ios\":5", "\"total_ios\":0");
        assert_eq!(rows(&failed).unwrap()[0].refused.as_deref(), Some("fio failed with error 5"));
        let idle = with_jobs(&[job("a", 0, 0, 1)]);
        for text in ["", "{}", "{\"jobs\":[]}", "{\"jobs\":3}", idle.as_str(), "fio: no {json}"] {
            assert!(rows(text).is_err(), "{text}");
        }
        let nan = with_jobs(&[job("a", 0, 5, 1)]).replace("\"iops\":5", "\"iops\":nan");
        assert!(rows(&nan).unwrap_err().contains("no JSON of fio"));
    }
}
