//! Parser of fio's JSON of any version (2.0 on), `json` and `json+`.
//!
//! | | 2.x | 3.x |
//! |---|---|---|
//! | latencies | `clat`, `lat`, in microseconds | `clat_ns`, `lat_ns` |
//! | bandwidth | `bw`, KiB a second | the same, and `bw_bytes` |
//! | operations | `total_ios`, from 2.1.11 on | `total_ios` |
//! | processor time of the jobs | only shares of an unknown sum | shares of `job_runtime` |
//!
//! Lines before the JSON are fio's messages. With `--status-interval` there are several objects, and the last
//! one counts. Jobs of one group ran at the same time: their throughputs are added, and their percentiles are
//! lost unless fio joined them (`group_reporting`).

use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Directions of fio's I/O; `mixed` with unified_rw_reporting.
pub(crate) const DIRECTIONS: [&str; 4] = ["read", "write", "trim", "mixed"];

/// Parsed output of one fio run.
#[derive(Debug, Deserialize)]
pub(crate) struct Document {
    /// "fio-3.33".
    #[serde(rename = "fio version", default)]
    pub(crate) version: String,
    #[serde(rename = "global options", default)]
    global: Map<String, Value>,
    #[serde(alias = "client_stats")]
    jobs: Vec<Job>,
}

/// One job, or the joined jobs of one group.
#[derive(Debug, Deserialize)]
struct Job {
    jobname: String,
    #[serde(default)]
    groupid: u64,
    #[serde(default)]
    error: f64,
    #[serde(rename = "job options", default)]
    options: Map<String, Value>,
    job_runtime: Option<f64>,
    #[serde(default)]
    usr_cpu: f64,
    #[serde(default)]
    sys_cpu: f64,
    read: Option<Direction>,
    write: Option<Direction>,
    trim: Option<Direction>,
    mixed: Option<Direction>,
}

#[derive(Debug, Deserialize)]
struct Direction {
    iops: f64,
    bw: Option<f64>,
    bw_bytes: Option<f64>,
    #[serde(default)]
    io_bytes: f64,
    total_ios: Option<f64>,
    #[serde(default)]
    runtime: f64,
    #[serde(default)]
    lat: Latency,
    #[serde(default)]
    clat: Latency,
    lat_ns: Option<Latency>,
    clat_ns: Option<Latency>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Latency {
    mean: Option<f64>,
    #[serde(default)]
    percentile: BTreeMap<String, f64>,
}

/// I/O of a group's jobs in one direction.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Operations a second.
    pub(crate) iops: f64,
    /// Bytes a second.
    pub(crate) bytes_per_s: f64,
    /// Operations.
    pub(crate) ios: f64,
    /// Bytes of all operations, as counted by 3.x.
    pub(crate) bytes: f64,
    /// Mean latency.
    pub(crate) mean_us: Option<f64>,
    /// CPU time of fio's own jobs, per operation of any direction.
    pub(crate) cpu_us_per_op: Option<f64>,
    /// Percentiles of the completion latency: per cent, microseconds; rising. Empty for several jobs.
    pub(crate) percentiles_us: Vec<(f64, f64)>,
}

impl Report {
    /// The latency of one percentile, if fio reported it.
    pub(crate) fn percentile_us(&self, percent: f64) -> Option<f64> {
        self.percentiles_us.iter().find(|(p, _)| *p == percent).map(|(_, us)| *us)
    }
}

/// Jobs that ran at the same time.
#[derive(Debug)]
pub(crate) struct Group<'a> {
    jobs: Vec<&'a Job>,
    global: &'a Map<String, Value>,
}

impl Document {
    /// The last JSON object in fio's output.
    ///
    /// # Errors
    /// No JSON, or not fio's.
    pub(crate) fn parse(text: &str) -> Result<Document, String> {
        let begins = |text: &str| {
            if text.starts_with('{') { Some(0) } else { text.find("\n{").map(|at| at + 1) }
        };
        let (mut rest, mut last) = (text, None);
        while let Some(at) = begins(rest) {
            let mut documents = serde_json::Deserializer::from_str(&rest[at..]).into_iter::<Value>();
            let document = documents.next().ok_or("no JSON")?.map_err(|e| format!("no JSON of fio: {e}"))?;
            rest = &rest[at + documents.byte_offset()..];
            last = Some(document);
        }
        let last = last.ok_or("no JSON (run fio with --output-format=json)")?;
        serde_json::from_value(last).map_err(|e| format!("no report of fio: {e}"))
    }

    /// Its groups, in their order. With several clients, fio's last entry is the total, and is the only
    /// group.
    pub(crate) fn groups(&self) -> Vec<Group<'_>> {
        let sum: Vec<&Job> = self.jobs.iter().filter(|job| job.jobname == "All clients").take(1).collect();
        let jobs = if sum.is_empty() { self.jobs.iter().collect() } else { sum };
        let mut groups: BTreeMap<u64, Vec<&Job>> = BTreeMap::new();
        for job in jobs {
            groups.entry(job.groupid).or_default().push(job);
        }
        groups.into_values().map(|jobs| Group { jobs, global: &self.global }).collect()
    }
}

impl Group<'_> {
    /// Why the run failed.
    pub(crate) fn failure(&self) -> Option<String> {
        let failed = self.jobs.iter().map(|job| job.error).find(|error| *error != 0.0);
        failed.map(|error| format!("fio failed with error {error}"))
    }

    /// Names of the jobs.
    pub(crate) fn names(&self) -> Vec<String> {
        self.jobs.iter().map(|job| job.jobname.clone()).collect()
    }

    /// Options with the values of all jobs: the job's own over the global ones.
    pub(crate) fn options(&self) -> BTreeMap<String, Vec<String>> {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
        let mut options: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for job in &self.jobs {
            let mut all = self.global.clone();
            all.extend(job.options.clone());
            for (name, value) in &all {
                options.entry(name.clone()).or_default().push(text(value));
            }
        }
        options
    }

    /// The I/O in a direction; `None` without any.
    ///
    /// # Errors
    /// A missing number.
    pub(crate) fn report(&self, direction: &str) -> Result<Option<Report>, String> {
        let parts = self.jobs.iter().filter_map(|job| job.direction(direction));
        let active: Vec<&Direction> = parts.filter(|part| part.ios() > 0.0).collect();
        let Some(first) = active.first() else { return Ok(None) };
        let ios: f64 = active.iter().map(|part| part.ios()).sum();
        let bytes_per_s: Option<f64> = active.iter().map(|part| part.bytes_per_s()).sum();
        let weighted: Option<f64> = active.iter().map(|part| Some(part.mean_us()? * part.ios())).sum();
        let all_ios: f64 = self.jobs.iter().map(|job| job.all_ios()).sum();
        let cpu_us: Option<f64> = self.jobs.iter().map(|job| job.cpu_us()).sum();
        Ok(Some(Report {
            iops: active.iter().map(|part| part.iops).sum(),
            bytes_per_s: bytes_per_s.ok_or("a job without bw")?,
            ios,
            bytes: active.iter().map(|part| part.io_bytes).sum(),
            mean_us: weighted.map(|total| total / ios),
            cpu_us_per_op: cpu_us.map(|us| us / all_ios),
            percentiles_us: if active.len() == 1 { first.percentiles_us() } else { Vec::new() },
        }))
    }
}

impl Job {
    fn direction(&self, name: &str) -> Option<&Direction> {
        match name {
            "read" => self.read.as_ref(),
            "write" => self.write.as_ref(),
            "trim" => self.trim.as_ref(),
            _ => self.mixed.as_ref(),
        }
    }

    fn all_ios(&self) -> f64 {
        DIRECTIONS.iter().filter_map(|name| self.direction(name)).map(Direction::ios).sum()
    }

    /// CPU time: shares of `job_runtime`, the sum over the jobs that fio joined.
    fn cpu_us(&self) -> Option<f64> {
        Some((self.usr_cpu + self.sys_cpu) / 100.0 * self.job_runtime? * 1000.0)
    }
}

impl Direction {
    /// Number of operations; before fio had `total_ios`, the product of rate and time.
    fn ios(&self) -> f64 {
        self.total_ios.unwrap_or(self.iops * self.runtime / 1000.0)
    }

    fn bytes_per_s(&self) -> Option<f64> {
        self.bw_bytes.or_else(|| Some(self.bw? * 1024.0))
    }

    fn mean_us(&self) -> Option<f64> {
        match &self.lat_ns {
            Some(latency) => latency.mean.map(|ns| ns / 1000.0),
            None => self.lat.mean,
        }
    }

    /// Percentiles of completions, or else of total latencies.
    fn percentiles_us(&self) -> Vec<(f64, f64)> {
        let of = |ns: &Option<Latency>, us: &Latency| match ns {
            Some(latency) => (latency.percentile.clone(), 1000.0),
            None => (us.percentile.clone(), 1.0),
        };
        let clat = of(&self.clat_ns, &self.clat);
        let (found, unit) = if clat.0.is_empty() { of(&self.lat_ns, &self.lat) } else { clat };
        let one = |(percent, time): (String, f64)| Some((percent.parse().ok()?, time / unit));
        let mut all: Vec<(f64, f64)> = found.into_iter().filter_map(one).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        all
    }
}

/// The only reporting group of a measuring fio run.
///
/// # Errors
/// A fio that failed, did no I/O, or reported no latency.
pub fn report(text: &str, direction: &str) -> Result<Report, String> {
    let document = Document::parse(text)?;
    let groups = document.groups();
    let group = groups.first().ok_or("fio's JSON: no job")?;
    if let Some(why) = group.failure() {
        return Err(why);
    }
    group.report(direction)?.ok_or_else(|| "fio did nothing".into())
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
        let r = report(JSON, "read").unwrap();
        assert_eq!((r.iops, r.bytes_per_s, r.ios), (5000.0, 20_480_000.0, 10_000.0));
        assert_eq!(r.mean_us, Some(190.0005));
        assert_eq!(r.percentiles_us, [(50.0, 90.0), (99.0, 325.0), (99.9, 400.0)]);
        assert_eq!((r.bytes, r.percentile_us(50.0), r.percentile_us(95.0)), (40_960_000.0, Some(90.0), None));
        assert!((r.cpu_us_per_op.unwrap() - 100.0).abs() < 1e-9);
    }

    #[test]
    fn invalid_report_is_refused() {
        assert!(report("", "read").is_err());
        assert!(report("{}", "read").is_err());
        assert!(report(JSON, "write").is_err(), "nothing was written");
        assert!(report(&JSON.replace("\"error\":0", "\"error\":5"), "read").is_err());
        assert!(report(&JSON[..200], "read").is_err());
    }
}
