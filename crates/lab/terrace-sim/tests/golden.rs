//! Exact miss counts of every policy on small traces at 8 sizes, with each access reported and in batches.
//!
//! A changed number is a changed policy: check it, then paste the table that this test prints.
//! No policy may beat Belady's optimum, in either mode.

mod common;

use common::{opt_misses, policy_opt_misses, run};
use terrace_sim::sim::Mode;
use terrace_sim::yardsticks::{build, names};
use terrace_testkit::traces;

const CAPACITIES: [usize; 8] = [10, 25, 50, 100, 200, 400, 800, 1600];
const EXACT: &str = include_str!("golden_exact.txt");
const SAMPLED: &str = include_str!("golden_sampled.txt");

fn row(trace: &str, name: &str, misses: impl Iterator<Item = u64>) -> String {
    let misses: Vec<String> = misses.map(|misses| format!("{misses:6}")).collect();
    format!("{trace:6} {name:10}{}\n", misses.join(""))
}

fn table(mode: Mode) -> String {
    let mut table = String::new();
    for (trace_name, trace) in traces::all() {
        let best = CAPACITIES.map(|capacity| opt_misses(&trace, capacity));
        assert_eq!(CAPACITIES.map(|capacity| policy_opt_misses(&trace, capacity)), best);
        table += &row(trace_name, "opt", best.into_iter());
        for name in names() {
            let misses = CAPACITIES.map(|capacity| {
                let mut policy = build(name, capacity, capacity).unwrap();
                let outcome = run(policy.as_mut(), &trace, capacity, mode);
                policy.check().unwrap();
                assert_eq!(outcome.misses - outcome.evictions, policy.resident() as u64);
                outcome.misses
            });
            for ((capacity, best), misses) in CAPACITIES.iter().zip(best).zip(misses) {
                assert!(misses >= best, "{name} on {trace_name} at {capacity}: {misses} misses, opt {best}");
            }
            table += &row(trace_name, name, misses.into_iter());
        }
    }
    table
}

#[track_caller]
fn compare(actual: &str, expected: &str) {
    assert!(actual == expected, "miss counts changed; the table is now\n{actual}");
}

#[test]
fn exact_miss_counts() {
    compare(&table(Mode::Exact), EXACT);
}

#[test]
fn sampled_miss_counts() {
    compare(&table(Mode::Sampled { batch: 16 }), SAMPLED);
}
