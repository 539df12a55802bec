//! Metrics in Prometheus' text format, version 0.0.4: `terrace stat --prometheus`, and `/metrics` of
//! `--metrics ADDRESS`.
//!
//! Names follow the format's conventions: prefix `terrace_`, base units (seconds, bytes), `_total` for
//! counters. Each sample has the label `mount`, so that output for several mounts, and scrapes of several
//! daemons, can be joined. The policy's lists (`terrace lru`) are left out: their names change every few
//! seconds, and would create new series.

mod table;

use std::fmt::Write;

use terrace_api::control::StatReply;
use terrace_api::instance::Info;
use terrace_api::stats::{self, StatReport};

use table::{Metric, Sample};

pub(crate) use table::METRICS;

/// Statistics together with their instance.
pub(crate) fn report(info: &Info, answer: StatReply) -> StatReport {
    let instance = stats::Instance {
        src: info.src.clone(),
        mnt: info.mnt.clone(),
        kind: info.kind,
        pid: info.pid,
        terraced: info.terraced,
        restarts: info.restarts,
        last_death: info.last_death.clone(),
        version: info.version.clone(),
        supervisor_lives: answer.supervisor_lives,
        metrics: info.metrics.clone(),
    };
    StatReport { cache: *answer.stat, instance, kv: answer.kv, mrc: None }
}

/// All metrics of these mounts.
pub(crate) fn page(reports: &[StatReport]) -> String {
    let mut page = String::new();
    METRICS.iter().for_each(|metric| family(&mut page, metric, reports));
    page
}

/// One metric family; omitted without samples.
fn family(page: &mut String, metric: &Metric, reports: &[StatReport]) {
    let samples = reports.iter().flat_map(|report| {
        let mount = report.instance.mnt.display().to_string();
        metric.samples(report).into_iter().map(move |sample| (mount.clone(), sample))
    });
    let mut headed = false;
    for (mount, Sample { labels, value }) in samples {
        if !std::mem::replace(&mut headed, true) {
            let _ = writeln!(page, "# HELP {} {}", metric.name, metric.help);
            let _ = writeln!(page, "# TYPE {} {}", metric.name, metric.kind.name());
        }
        let _ = write!(page, "{}{{mount=\"{}\"", metric.name, escaped(&mount));
        for (label, text) in labels {
            let _ = write!(page, ",{label}=\"{}\"", escaped(&text));
        }
        let _ = writeln!(page, "}} {value}");
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use terrace_testkit::exposition;

    /// Statistics with all optional parts.
    fn full() -> StatReport {
        let mut report: StatReport =
            serde_json::from_str(include_str!("../../cache/terrace-api/tests/data/stat-mrc.json")).unwrap();
        report.cache.memory.ceiling_bytes = Some(7);
        report.kv = Some(stats::KeyValue::default());
        report.cache.tiers.push(terrace_api::tiers::TierRow {
            name: "s\"s\\d".to_owned(),
            read_us: Some(250.0),
            write_amplification: Some(1.25),
            days_of_life: Some(2.0),
            dram_bytes_per_page: Some(12.5),
            ..Default::default()
        });
        report
    }

    #[test]
    fn every_metric_is_well_formed_and_documented() {
        let parsed = exposition::parse(&page(&[full()])).unwrap();
        let listed: BTreeSet<&str> = METRICS.iter().map(|metric| metric.name).collect();
        assert_eq!(listed.len(), METRICS.len(), "a name comes twice");
        let told: BTreeSet<&str> = parsed.keys().map(String::as_str).collect();
        assert_eq!(told, listed);
        assert!(listed.iter().all(|name| name.starts_with("terrace_")));
    }

    #[test]
    fn values_are_those_of_stat_in_base_units() {
        let report = full();
        let parsed = exposition::parse(&page(std::slice::from_ref(&report))).unwrap();
        let value = |name: &str, label: &str| {
            parsed[name]
                .samples
                .iter()
                .find(|s| label.is_empty() || s.labels.values().any(|v| v == label))
                .unwrap()
                .value
        };
        assert_eq!(value("terrace_memory_used_bytes", ""), report.cache.memory.used_bytes as f64);
        assert_eq!(value("terrace_page_hits_total", "preload"), report.cache.preload.hits as f64);
        assert_eq!(value("terrace_page_hits_total", "mount"), report.cache.fuse.hits as f64);
        assert_eq!(value("terrace_tier_read_seconds", "s\"s\\d"), 250e-6);
        assert_eq!(value("terrace_tier_life_seconds", "s\"s\\d"), 2.0 * 86_400.0);
    }

    #[test]
    fn several_mounts_share_one_head_of_each_family() {
        let (one, mut other) = (full(), full());
        other.instance.mnt = "/line\nbreak".into();
        let parsed = exposition::parse(&page(&[one, other])).unwrap();
        let mounts: Vec<&str> =
            parsed["terrace_memory_used_bytes"].samples.iter().map(|s| s.labels["mount"].as_str()).collect();
        assert_eq!(mounts.len(), 2);
        assert!(mounts.contains(&"/line\nbreak"), "{mounts:?}");
    }

    #[test]
    fn every_metric_is_in_the_documents() {
        let page = include_str!("../../../docs/metrics.md");
        for metric in METRICS {
            let row = format!("| `{}` | {} | {} |", metric.name, metric.kind.name(), metric.help);
            assert!(page.lines().any(|line| line == row), "docs/metrics.md has no row:\n{row}");
        }
    }

    #[test]
    fn metrics_of_the_dashboard_exist() {
        let text = include_str!("../../../contrib/grafana-terrace.json");
        let board: serde_json::Value = serde_json::from_str(text).unwrap();
        let mut named = Vec::new();
        expressions(&board, &mut named);
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let used: BTreeSet<&str> = named
            .iter()
            .flat_map(|expression| expression.split(|c| !is_word(c)))
            .filter(|word| word.starts_with("terrace_"))
            .collect();
        assert!(used.len() > 10, "{used:?}");
        for name in used {
            assert!(METRICS.iter().any(|metric| metric.name == name), "{name} does not exist");
        }
    }

    /// All expressions of the Grafana dashboard: queries of panels and of variables.
    fn expressions(value: &serde_json::Value, found: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(fields) => {
                fields.iter().for_each(|(key, value)| match value.as_str() {
                    Some(text) if ["expr", "query", "definition"].contains(&key.as_str()) => {
                        found.push(text.to_owned())
                    }
                    _ => expressions(value, found),
                })
            }
            serde_json::Value::Array(all) => all.iter().for_each(|value| expressions(value, found)),
            _ => {}
        }
    }
}
