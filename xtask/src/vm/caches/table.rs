//! The results side by side.

use super::plan::Counts;
use super::trace::Trace;
use std::fmt::Write;

/// A system on a trace.
#[derive(Debug)]
pub struct Row {
    trace: String,
    requests: u64,
    memory_mib: f64,
    device_mib: f64,
    system: String,
    /// Requests that memory did not answer.
    reached: u64,
    counts: Counts,
}

impl Row {
    /// Of one system.
    pub fn new(trace: &Trace, system: &str, reached: u64, counts: Counts) -> Row {
        let mib = |pages: u64| pages as f64 / 256.0;
        Row {
            trace: trace.name.clone(),
            requests: trace.requests,
            memory_mib: mib(trace.memory),
            device_mib: mib(trace.device),
            system: system.to_owned(),
            reached,
            counts,
        }
    }
}

/// A table of Markdown.
pub fn markdown(rows: &[Row]) -> String {
    let mut out = String::from(
        "| trace | system | reads below memory | source reads | of all requests | MiB read | MiB written to the cache | bytes a request |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let Counts { source_reads, source_read_bytes, cache_written_bytes } = row.counts;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let _ = writeln!(
            out,
            "| {}: {} requests, memory {:.0} MiB, device {:.0} MiB | {} | {} | {} | {:.1} % | {:.0} | {:.0} | {:.0} |",
            row.trace,
            row.requests,
            row.memory_mib,
            row.device_mib,
            row.system,
            row.reached,
            source_reads,
            source_reads as f64 / row.requests as f64 * 100.0,
            mib(source_read_bytes),
            mib(cache_written_bytes),
            cache_written_bytes as f64 / row.requests as f64,
        );
    }
    out
}
