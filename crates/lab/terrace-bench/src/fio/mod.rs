//! fio's options of random loads, and its logs. [`output`] parses its JSON.
//!
//! Two traps are avoided here. fio 3.33 repeats one random sequence whatever `--randseed` is, unless
//! `--randrepeat=0` is given with it. And without an explicit centre the hot spot of a zipf distribution
//! moves with the seed, so a warm-up with another seed would warm the wrong pages.

pub mod output;

pub use output::{Report, report};

/// Options of a random load: distribution, number of jobs, an effective seed.
pub(crate) fn random_options(distribution: &str, jobs: u32, seed: u64) -> Vec<String> {
    vec![
        format!("--random_distribution={distribution}"),
        format!("--numjobs={jobs}"),
        "--randrepeat=0".into(),
        format!("--randseed={seed}"),
        "--norandommap=1".into(),
    ]
}

/// Throughput over time from fio's bandwidth log (`--write_bw_log`, one file for all jobs): seconds, MiB a
/// second of all jobs together.
///
/// A line is "milliseconds, KiB a second, direction, ...". The jobs' lines have different times, so they are
/// rounded to steps of `step_ms`. A step is left out unless all jobs completed it.
pub(crate) fn throughput_series(log: &str, step_ms: u64) -> Vec<(f64, f64)> {
    let mut steps = std::collections::BTreeMap::<u64, (u32, f64)>::new();
    for line in log.lines() {
        let mut words = line.split(',').map(|w| w.trim().parse::<u64>());
        if let (Some(Ok(ms)), Some(Ok(kib))) = (words.next(), words.next()) {
            // The stamp of a window is its end, or up to a few milliseconds later.
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
