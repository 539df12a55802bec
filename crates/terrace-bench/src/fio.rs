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
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
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
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"fio: generating zetan for theta=0.8
    {"fio version":"fio-3.33","jobs":[{"jobname":"bench","error":0,"job_runtime":2000,"usr_cpu":10.0,"sys_cpu":40.0,
    "read":{"iops":5000.0,"bw_bytes":20480000,"total_ios":10000,"lat_ns":{"mean":190000.5},
    "clat_ns":{"percentile":{"99.000000":325000}}},
    "write":{"iops":0.0,"bw_bytes":0,"total_ios":0,"lat_ns":{"mean":0.0},"clat_ns":{"percentile":{}}}}]}"#;

    #[test]
    fn report_of_fio_3_33() {
        let r = parse(JSON, "read").unwrap();
        assert_eq!((r.iops, r.bytes_per_s, r.ios), (5000.0, 20_480_000.0, 10_000.0));
        assert_eq!((r.latency_us_mean, r.latency_us_p99), (190.0005, 325.0));
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
    fn seeds_count() {
        let options = random_options("zipf:0.8:0.5", 2, 9);
        assert!(
            options.contains(&"--randrepeat=0".to_string()) && options.contains(&"--randseed=9".to_string())
        );
    }
}
