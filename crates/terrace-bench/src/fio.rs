//! fio: its command lines and its JSON.
//!
//! Two traps are closed here. fio 3.33 replays one random sequence, whatever `--randseed` says, unless `--randrepeat=0` is given with it; and
//! without an explicit centre the hot spot of a zipf distribution moves with the seed, so that a warm-up with another seed would warm the
//! wrong pages.

use serde::Serialize;
use serde_json::Value;

/// One fio command.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    /// I/O engine.
    pub engine: &'a str,
    /// read, write, randread.
    pub rw: &'a str,
    /// Block size, as fio writes it.
    pub bs: &'a str,
    /// File name below the directory under test.
    pub file: &'a str,
    /// Bytes of the file.
    pub size: u64,
    /// Seconds; 0: once over the file.
    pub seconds: u64,
    /// Further options.
    pub more: Vec<String>,
}

impl Job<'_> {
    /// The command line; `{dir}` is left for the plan to fill in.
    pub fn argv(&self) -> Vec<String> {
        let mut argv = vec![
            "fio".to_string(),
            "--name=bench".into(),
            "--output-format=json".into(),
            "--group_reporting=1".into(),
            format!("--ioengine={}", self.engine),
            format!("--rw={}", self.rw),
            format!("--bs={}", self.bs),
            format!("--filename={{dir}}/{}", self.file),
            format!("--size={}", self.size),
            // fio would drop the file's cached pages before it starts: the warm-up would be lost.
            "--invalidate=0".into(),
            "--create_on_open=1".into(),
        ];
        if self.seconds > 0 {
            argv.extend(["--time_based=1".into(), format!("--runtime={}", self.seconds)]);
        }
        argv.extend(self.more.iter().cloned());
        argv
    }
}

/// Options of a random load: distribution, number of jobs, a seed that counts.
pub fn random_options(distribution: &str, jobs: u32, seed: u64) -> Vec<String> {
    vec![
        format!("--random_distribution={distribution}"),
        format!("--numjobs={jobs}"),
        "--randrepeat=0".into(),
        format!("--randseed={seed}"),
        "--norandommap=1".into(),
    ]
}

/// What is taken from fio's JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Operations a second.
    pub iops: f64,
    /// Bytes a second.
    pub bytes_per_s: f64,
    /// Operations.
    pub ios: f64,
    /// Mean latency.
    pub latency_us_mean: f64,
    /// 99th percentile of the completion latency.
    pub latency_us_p99: f64,
    /// CPU time of fio's own jobs an operation.
    pub fio_cpu_us_per_op: f64,
    /// Bytes of all operations.
    pub bytes: f64,
    /// Completion latency: per cent of the operations, microseconds in which so many were done; rising.
    pub percentiles_us: Vec<(f64, f64)>,
}

impl Report {
    /// The latency of one percentile, where fio was asked for it.
    pub fn percentile_us(&self, percent: f64) -> Option<f64> {
        self.percentiles_us.iter().find(|(p, _)| *p == percent).map(|(_, us)| *us)
    }
}

/// Reads fio's JSON output of one reporting group; `direction` is "read" or "write".
pub fn parse(text: &str, direction: &str) -> Result<Report, String> {
    let start = text.find('{').ok_or("fio printed no JSON")?;
    let json: Value = serde_json::from_str(&text[start..]).map_err(|e| format!("fio's JSON: {e}"))?;
    let job = json.pointer("/jobs/0").ok_or("fio's JSON: no job")?;
    let number = |path: &str| {
        let value = job.pointer(path).and_then(Value::as_f64);
        value.ok_or_else(|| format!("fio's JSON: no {path}"))
    };
    if number("/error")? != 0.0 {
        return Err(format!("fio failed with error {}", number("/error")?));
    }
    let ios = number(&format!("/{direction}/total_ios"))?;
    if ios == 0.0 {
        return Err("fio did nothing".into());
    }
    let cpu_share = (number("/usr_cpu")? + number("/sys_cpu")?) / 100.0;
    // job_runtime is the sum over the group's jobs, the percentages their mean: the product is their CPU time.
    let cpu_us = cpu_share * number("/job_runtime")? * 1000.0;
    Ok(Report {
        iops: number(&format!("/{direction}/iops"))?,
        bytes_per_s: number(&format!("/{direction}/bw_bytes"))?,
        ios,
        latency_us_mean: number(&format!("/{direction}/lat_ns/mean"))? / 1000.0,
        latency_us_p99: number(&format!("/{direction}/clat_ns/percentile/99.000000"))? / 1000.0,
        fio_cpu_us_per_op: cpu_us / ios,
        bytes: number(&format!("/{direction}/io_bytes"))?,
        percentiles_us: percentiles(job, direction),
    })
}

fn percentiles(job: &Value, direction: &str) -> Vec<(f64, f64)> {
    let found = job.pointer(&format!("/{direction}/clat_ns/percentile")).and_then(Value::as_object);
    let one = |(percent, ns): (&String, &Value)| Some((percent.parse().ok()?, ns.as_f64()? / 1000.0));
    let mut all: Vec<(f64, f64)> = found.into_iter().flatten().filter_map(one).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    all
}

/// Throughput over time from fio's bandwidth log (`--write_bw_log`, one file for all jobs): seconds, MiB a second of all jobs together.
///
/// A line is "milliseconds, KiB a second, direction, ...", for each job at times of its own: they are put into steps of `step_ms`. Steps that not all
/// jobs reach the end of are left out.
pub fn throughput_series(log: &str, step_ms: u64) -> Vec<(f64, f64)> {
    let mut steps = std::collections::BTreeMap::<u64, (u32, f64)>::new();
    for line in log.lines() {
        let mut words = line.split(',').map(|w| w.trim().parse::<u64>());
        if let (Some(Ok(ms)), Some(Ok(kib))) = (words.next(), words.next()) {
            // A window is stamped at its end, or up to a few milliseconds after it.
            let (jobs, mib) = steps.entry(((ms + step_ms / 2) / step_ms).max(1)).or_default();
            (*jobs, *mib) = (*jobs + 1, *mib + kib as f64 / 1024.0);
        }
    }
    let jobs_max = steps.values().map(|(jobs, _)| *jobs).max().unwrap_or(0);
    let whole = steps.into_iter().filter(|(_, (jobs, _))| *jobs == jobs_max);
    whole.map(|(step, (_, mib))| ((step * step_ms) as f64 / 1000.0, mib)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"fio: generating zetan for theta=0.8
    {"fio version":"fio-3.33","jobs":[{"jobname":"bench","error":0,"job_runtime":2000,"usr_cpu":10.0,"sys_cpu":40.0,
    "read":{"iops":5000.0,"bw_bytes":20480000,"io_bytes":40960000,"total_ios":10000,"lat_ns":{"mean":190000.5},
    "clat_ns":{"percentile":{"99.000000":325000,"50.000000":90000,"99.900000":400000}}},
    "write":{"iops":0.0,"bw_bytes":0,"total_ios":0,"lat_ns":{"mean":0.0},"clat_ns":{"percentile":{}}}}]}"#;

    #[test]
    fn report_of_fio_3_33() {
        let r = parse(JSON, "read").unwrap();
        assert_eq!((r.iops, r.bytes_per_s, r.ios), (5000.0, 20_480_000.0, 10_000.0));
        assert_eq!((r.latency_us_mean, r.latency_us_p99), (190.0005, 325.0));
        assert_eq!(r.percentiles_us, [(50.0, 90.0), (99.0, 325.0), (99.9, 400.0)]);
        assert_eq!((r.bytes, r.percentile_us(50.0), r.percentile_us(95.0)), (40_960_000.0, Some(90.0), None));
        assert!((r.fio_cpu_us_per_op - 100.0).abs() < 1e-9);
    }

    #[test]
    fn what_is_no_report_is_refused() {
        assert!(parse("", "read").is_err());
        assert!(parse("{}", "read").is_err());
        assert!(parse(JSON, "write").is_err(), "nothing was written");
        assert!(parse(&JSON.replace("\"error\":0", "\"error\":5"), "read").is_err());
        assert!(parse(&JSON[..200], "read").is_err());
    }

    #[test]
    fn jobs_of_a_log_are_added_up() {
        let log = "500, 1024, 0, 0, 0, 0\n1001, 2048, 0, 0, 0, 0\n501, 1024, 0, 0, 0, 0\n1003, 1024, 0, 0, 0, 0\n1502, 7, 0, 0\n";
        assert_eq!(throughput_series(log, 500), [(0.5, 2.0), (1.0, 3.0)]);
        assert!(throughput_series("", 500).is_empty() && throughput_series("no log", 500).is_empty());
    }

    #[test]
    fn seeds_count() {
        let options = random_options("zipf:0.8:0.5", 2, 9);
        assert!(
            options.contains(&"--randrepeat=0".to_string()) && options.contains(&"--randseed=9".to_string())
        );
    }
}
