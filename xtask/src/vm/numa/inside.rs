//! In the virtual machine: runs all checks in turn, even after a failure.

use super::super::command::{output, wrong};
use super::checks as c;
use super::fixture::{self, Fixture, MOUNT, terrace};
use std::io;
use std::process::Command;
use std::time::Instant;

type Check = fn(&Fixture) -> io::Result<String>;

const CHECKS: &[(&str, Check)] = &[
    ("thread follows its data", c::thread_follows_its_data),
    ("contention spreads threads", c::contention_spreads_threads),
    ("threads that share stay together", c::threads_that_share_stay_together),
    ("affinity restored at the end", c::affinity_is_restored_at_the_end),
    ("affinity restored after a crash", c::affinity_is_restored_after_a_crash),
    ("affinity restored after a kill", c::affinity_is_restored_after_a_kill),
    ("cpuset of one node", c::cpuset_of_one_node_is_kept),
    ("node offline", c::node_that_goes_offline_does_no_harm),
    ("frames on the reader's node", c::frames_lie_on_the_readers_node),
    ("1,000 threads", c::thousand_threads_make_no_storm),
];

/// Runs on a machine with `nodes` nodes.
pub(crate) fn run(nodes: usize) -> io::Result<()> {
    let mut failed = 0;
    fixture::prepare()?;
    if nodes < 2 {
        failed += check("one node", c::one_node_is_told);
    } else {
        let fixture = Fixture::new(nodes)?;
        for (name, of) in CHECKS {
            failed += check(name, || of(&fixture));
            clean_up();
        }
    }
    if failed > 0 { Err(wrong(format!("{failed} checks failed"))) } else { Ok(()) }
}

fn check(name: &str, of: impl FnOnce() -> io::Result<String>) -> usize {
    let begun = Instant::now();
    let seen = of();
    let line = match &seen {
        Ok(seen) => format!("ok {name}: {seen} ({:.0} s)", begun.elapsed().as_secs_f64()),
        Err(err) => format!("FAILED {name}: {err}"),
    };
    let printed = terrace_output::print_line!("{line}");
    usize::from(seen.is_err() || printed.is_err())
}

/// Cleans up after a failed check.
fn clean_up() {
    if fixture::processes().is_empty() {
        return;
    }
    let _ = output(&mut terrace(&["umount", MOUNT]));
    let _ = output(Command::new("killall").args(["-9", "terrace", "terraced"]));
}
