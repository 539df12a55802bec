//! Metrics of a run, and reasons to refuse it as a measurement.

use super::load::{Load, SERIES_MS};
use super::spec::{Access, Expect, LoadKind, Preload, SystemKind};
use crate::fio;
use crate::pages::MIB;
use crate::steps::{Outcome, VERIFY};
use crate::system::End;
use std::collections::BTreeMap;
use terrace_api::stats::Stats;

/// Numbers by name.
pub(crate) type Metrics = BTreeMap<String, f64>;

/// Results of one run.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    /// Metrics by name, the unit last.
    pub(crate) metrics: Metrics,
    /// Values over time.
    pub(crate) series: BTreeMap<String, Vec<(f64, f64)>>,
    /// Percentiles of the latency.
    pub(crate) percentiles_us: Vec<(f64, f64)>,
}

impl Numbers {
    /// The metrics of the measured step. `log` is fio's bandwidth log.
    ///
    /// # Errors
    /// The output of fio or the command is no valid result.
    pub(crate) fn of(load: &Load<'_>, outcome: &Outcome, log: &str) -> Result<Numbers, String> {
        let mut numbers = match load.spec.kind {
            LoadKind::Fio => of_fio(load, outcome, log)?,
            LoadKind::Reads | LoadKind::Command => of_command(load, outcome)?,
        };
        // Counters of a loop that read the meters around its own timed part are more exact.
        for (name, n) in &outcome.counted {
            numbers.metrics.entry(name.clone()).or_insert(*n);
        }
        numbers.metrics.insert("foreign_cpu_percent".into(), outcome.foreign_cpu() * 100.0);
        if let Some(preload) = outcome.preload {
            numbers.metrics.insert("preload_hit_mib".into(), preload.hit_bytes as f64 / MIB as f64);
            numbers.metrics.insert("preload_miss_mib".into(), preload.miss_bytes as f64 / MIB as f64);
        }
        Ok(numbers)
    }

    /// Adds the metrics after a restart, and the share of the hits that remains.
    pub(crate) fn add_restarted(&mut self, after: &Numbers) {
        for name in ["hit_ratio", "reads_per_s", "device_hits"] {
            if let Some(n) = after.metrics.get(name) {
                self.metrics.insert(format!("restarted_{name}"), *n);
            }
        }
        let ratio = |numbers: &Numbers| numbers.metrics.get("hit_ratio").copied();
        if let Some((before, after)) = ratio(self).zip(ratio(after)).filter(|(before, _)| *before > 0.0) {
            self.metrics.insert("hit_ratio_kept".into(), after / before);
        }
    }

    /// Adds the group's memory counters.
    pub(crate) fn add_memory(&mut self, end: &End) {
        let Some(memory) = end.memory else { return };
        let mut put = |name: &str, value: f64| self.metrics.insert(name.into(), value);
        put("memory_max_mib", memory.usage_max as f64 / MIB as f64);
        put("limit_hits", memory.limit_hits as f64);
        put("major_faults", memory.major_faults as f64);
        put("pinned_max_mib", end.pinned_max as f64 / MIB as f64);
    }
}

fn of_fio(load: &Load<'_>, outcome: &Outcome, log: &str) -> Result<Numbers, String> {
    let direction = if load.spec.rw == Access::Write { "write" } else { "read" };
    let report = fio::report(&outcome.output, direction)?;
    let mut metrics = Metrics::new();
    let mut put = |name: &str, value: Option<f64>| {
        metrics.extend(value.map(|value| (name.to_string(), value)));
    };
    put("throughput_mib_s", Some(report.bytes_per_s / MIB as f64));
    put("iops", Some(report.iops));
    put("ops", Some(report.ios));
    put("mean_us", report.mean_us);
    for (name, percent) in [("p50_us", 50.0), ("p95_us", 95.0), ("p99_us", 99.0), ("p999_us", 99.9)] {
        put(name, report.percentile_us(percent));
    }
    put("fio_cpu_us_per_op", report.cpu_us_per_op);
    put("cpu_us_per_op", outcome.cpu_ns.map(|ns| ns as f64 / 1000.0 / report.ios));
    put("kernel_threads_us_per_op", Some(outcome.kernel_threads_ns as f64 / 1000.0 / report.ios));
    if direction == "read" {
        // A process's own account includes reads of a tier's device.
        let source = outcome.counted.get("source_read_mib").map(|mib| mib * MIB as f64);
        let missed = source.or(outcome.read_bytes.map(|bytes| bytes as f64));
        put("miss_ratio", missed.map(|bytes| bytes / report.bytes));
    }
    let series = fio::throughput_series(log, SERIES_MS);
    let series = (!series.is_empty()).then(|| ("throughput_mib_s".to_string(), series));
    Ok(Numbers { metrics, series: series.into_iter().collect(), percentiles_us: report.percentiles_us })
}

fn of_command(load: &Load<'_>, outcome: &Outcome) -> Result<Numbers, String> {
    let mut metrics = match object_in(&outcome.output).filter(|_| load.spec.regex.is_none()) {
        Some(all) => all,
        None => {
            Metrics::from([(load.spec.metric_key(), number_in(&outcome.output, load.spec.regex.as_deref())?)])
        }
    };
    // With the load's own count of bytes, the missed ones are known.
    let read = outcome.read_bytes.zip(metrics.get("bytes").copied());
    if let Some((device, all)) = read.filter(|_| !metrics.contains_key("miss_ratio")) {
        metrics.insert("miss_ratio".into(), device as f64 / all.max(1.0));
    }
    metrics.insert("wall_s".into(), outcome.wall_ns as f64 / 1e9);
    metrics.extend(outcome.cpu_ns.map(|ns| ("cpu_s".to_string(), ns as f64 / 1e9)));
    metrics
        .extend(outcome.read_bytes.map(|bytes| ("device_read_mib".to_string(), bytes as f64 / MIB as f64)));
    Ok(Numbers { metrics, ..Numbers::default() })
}

/// The metrics of a JSON object on the last line; `null` means not measured.
fn object_in(text: &str) -> Option<Metrics> {
    let found: BTreeMap<String, Option<f64>> = serde_json::from_str(text.trim_end().lines().last()?).ok()?;
    Some(found.into_iter().filter_map(|(name, value)| Some((name, value?))).collect())
}

/// The number printed by a command: the first group of `regex`, or the last number.
fn number_in(text: &str, regex: Option<&str>) -> Result<f64, String> {
    let last_line = || text.lines().last().unwrap_or_default();
    let number = |word: &str| word.parse::<f64>().ok().filter(|n| n.is_finite());
    let found = match regex {
        Some(regex) => {
            let regex = regex_lite::Regex::new(regex).map_err(|e| e.to_string())?;
            regex.captures(text).and_then(|found| number(found.get(1).or(found.get(0))?.as_str()))
        }
        None => {
            let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')));
            words.rev().find_map(|word| number(word.trim_end_matches('.')))
        }
    };
    found.ok_or_else(|| format!("the command printed no number, but {:?}", last_line()))
}

/// Why a run failed, with more than the exit code for the last step.
pub(crate) fn told(why: &str) -> String {
    if why.ends_with(&format!("of the step: {VERIFY}")) {
        return format!("the data were wrong, or could not be read ({why})");
    }
    why.to_string()
}

/// Minimum share of misses, or of hits, in a run of misses only, or of hits only.
const ALL: f64 = 0.99;
/// With fewer misses, the data were cached outside the limited group.
const MISSES_MIN: f64 = 0.001;

/// Why a run of terrace used another path than required.
pub(crate) fn other_path(load: &Load<'_>, outcome: &Outcome, metrics: &Metrics) -> Option<String> {
    let wanted = load.spec.preload?;
    let Some(preload) = outcome.preload else {
        return Some("terrace stat failed: the access path is unknown".into());
    };
    let hits_only = load.spec.expect == Some(Expect::Hits);
    let served = preload.hit_bytes + if hits_only { 0 } else { preload.miss_bytes };
    let block = super::spec::block_bytes(&load.spec.bs).unwrap_or(0) as f64;
    let read = metrics.get("bytes").copied().or_else(|| Some(metrics.get("ops")? * block)).unwrap_or(0.0);
    let share = served as f64 / read.max(1.0);
    match wanted {
        Preload::Some if served == 0 => {
            Some("nothing went through the preload path: the program cannot reach it".into())
        }
        Preload::All if share < ALL => {
            let what = if hits_only { "were hits at" } else { "went through" };
            Some(format!(
                "only {:.1} % of {:.0} MiB {what} the preload path",
                share * 100.0,
                read / MIB as f64
            ))
        }
        _ => None,
    }
}

/// Why a run is no measurement; `None` for a valid one.
pub(crate) fn refusal(
    expect: Expect,
    system: SystemKind,
    limit: Option<u64>,
    metrics: &Metrics,
    stats: Option<&Stats>,
) -> Option<String> {
    let misses = metrics.get("miss_ratio").copied();
    match (expect, misses) {
        (Expect::Nothing, _) => None,
        (Expect::Limit, Some(misses)) if misses < MISSES_MIN => {
            Some("nothing was read from the device: the data are cached outside the limit".into())
        }
        (Expect::Limit, _) => unbound(system, limit?, metrics, stats),
        (Expect::Hits | Expect::Misses, None) => Some("the device's reads were not counted".into()),
        (Expect::Hits, Some(misses)) if misses > 1.0 - ALL => {
            Some(format!("{:.1} % of the reads missed, but all should hit", misses * 100.0))
        }
        (Expect::Misses, Some(misses)) if misses < ALL => {
            Some(format!("{:.1} % of the reads hit, but all should miss", (1.0 - misses) * 100.0))
        }
        _ => None,
    }
}

/// Why the memory limit was not effective.
fn unbound(system: SystemKind, limit: u64, metrics: &Metrics, stats: Option<&Stats>) -> Option<String> {
    let Some(used) = metrics.get("memory_max_mib").copied() else {
        return Some("no memory controller: there was no limit".into());
    };
    let share = used * MIB as f64 / limit as f64;
    let told = format!("the memory limit has no effect: {used:.0} of {} MiB used", limit / MIB);
    match system {
        // foyer has its own memory setting, below the limit.
        SystemKind::Direct | SystemKind::Foyer => None,
        SystemKind::Terrace | SystemKind::TerraceMount => {
            let evicted = stats.map_or(0, |stats| stats.reclaim.pgsteal);
            (evicted == 0).then(|| format!("{told}, and terrace evicted nothing"))
        }
        // The system may size its cache itself; then the kernel need not reclaim.
        SystemKind::Command => (share < 0.9).then_some(told),
        SystemKind::Kernel | SystemKind::KernelMglru | SystemKind::Zram | SystemKind::PassThrough => {
            let met = metrics.get("limit_hits").is_some_and(|n| *n > 0.0);
            (!met || share < 0.98).then_some(told)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::PreloadBytes;
    use terrace_api::stats::Reclaim;

    fn metrics(pairs: &[(&str, f64)]) -> Metrics {
        pairs.iter().map(|(name, value)| (name.to_string(), *value)).collect()
    }

    #[test]
    fn a_limit_that_does_not_bind_is_told() {
        let limit = Some(64 * MIB);
        let evaluate = |system, pairs: &[(&str, f64)], stats: Option<Stats>| {
            refusal(Expect::Limit, system, limit, &metrics(pairs), stats.as_ref())
        };
        let bound = [("miss_ratio", 0.3), ("memory_max_mib", 64.0), ("limit_hits", 9.0)];
        let half = [("miss_ratio", 0.3), ("memory_max_mib", 32.0), ("limit_hits", 0.0)];
        let cached = [("miss_ratio", 0.0), ("memory_max_mib", 64.0), ("limit_hits", 9.0)];
        assert_eq!(evaluate(SystemKind::Kernel, &bound, None), None);
        let why = evaluate(SystemKind::Kernel, &half, None).unwrap();
        assert_eq!(why, "the memory limit has no effect: 32 of 64 MiB used");
        assert!(evaluate(SystemKind::Kernel, &cached, None).unwrap().contains("outside the limit"));
        assert!(evaluate(SystemKind::Kernel, &bound[..1], None).unwrap().contains("no memory controller"));
        let evicted =
            |pgsteal| Some(Stats { reclaim: Reclaim { pgsteal, ..Reclaim::default() }, ..Stats::default() });
        assert_eq!(evaluate(SystemKind::Terrace, &half, evicted(7)), None);
        assert!(evaluate(SystemKind::Terrace, &bound, evicted(0)).unwrap().contains("evicted nothing"));
        assert!(evaluate(SystemKind::Terrace, &bound, None).is_some());
        assert!(evaluate(SystemKind::Command, &half, None).is_some());
        assert_eq!(evaluate(SystemKind::Command, &bound[..2], None), None);
        assert_eq!(evaluate(SystemKind::Direct, &half, None), None);
    }

    #[test]
    fn hits_and_misses_are_held_to_their_name() {
        let evaluate = |expect, misses| {
            refusal(expect, SystemKind::Kernel, None, &metrics(&[("miss_ratio", misses)]), None)
        };
        assert_eq!((evaluate(Expect::Hits, 0.005), evaluate(Expect::Misses, 0.995)), (None, None));
        assert!(evaluate(Expect::Hits, 0.02).unwrap().contains("2.0 % of the reads missed"));
        assert!(evaluate(Expect::Misses, 0.5).unwrap().contains("50.0 % of the reads hit"));
        assert!(refusal(Expect::Hits, SystemKind::Kernel, None, &Metrics::new(), None).is_some());
        assert_eq!(evaluate(Expect::Nothing, 0.5), None);
    }

    #[test]
    fn the_number_of_a_command() {
        assert_eq!(number_in("did 5 things\nin 2.5 s.\n", None), Ok(2.5));
        assert_eq!(number_in("rate=1e3/s", None), Ok(1000.0));
        assert_eq!(number_in("tps 812.5 (of 900)", Some(r"tps ([\d.]+)")), Ok(812.5));
        assert!(number_in("tps none", Some(r"tps (\d+)")).unwrap_err().contains("tps none"));
        assert!(number_in("nothing at all", None).is_err());
        assert!(number_in("nan inf", None).is_err());
    }

    #[test]
    fn a_run_by_another_path_is_refused() {
        let spec = |expect: &str| {
            let text = format!(
                "name = \"x\"\nrepetitions = 1\nfile_mib = 1\n[[system]]\nkind = \"kernel\"\n[[load]]\nkind = \"fio\"\npreload = \"all\"\n{expect}"
            );
            crate::matrix::spec::Spec::parse(&text).unwrap()
        };
        let (hits, any) = (spec("expect = \"hits\""), spec(""));
        let read = metrics(&[("ops", 10.0)]);
        let evaluate = |spec: &crate::matrix::spec::Spec, preload| {
            let outcome = Outcome { preload, ..Outcome::default() };
            other_path(&Load::new(spec, &spec.load[0], "random", 1), &outcome, &read)
        };
        let mixed = Some(PreloadBytes { hit_bytes: 20_480, miss_bytes: 20_400, used_bytes: 0 });
        assert_eq!(evaluate(&any, mixed), None);
        assert!(evaluate(&hits, mixed).unwrap().contains("50.0 %"));
        assert!(evaluate(&any, None).is_some());
    }

    #[test]
    fn an_object_on_the_last_line_is_all_numbers() {
        let found = object_in("warming up\n{\"tps\": 812.5, \"p95_ms\": null}\n").unwrap();
        assert_eq!(found, metrics(&[("tps", 812.5)]));
        assert_eq!((object_in("812.5"), object_in("{\"tps\": \"x\"}"), object_in("")), (None, None, None));
    }
}
