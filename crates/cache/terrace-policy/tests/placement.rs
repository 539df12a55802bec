//! Placement engines, which divide a batch among targets: their times against a linear program, and
//! invariants of all of them.

use microlp::{ComparisonOp, OptimizationDirection, Problem};
use proptest::prelude::*;
use terrace_policy::placement::{NAMES, Share, Target, build, min_io_time};

const PIECE: u64 = 64 * 1024;

fn targets() -> impl Strategy<Value = Vec<Target>> {
    let one = (0..200u64, 0..100u64, 1..1000u32).prop_map(|(free, queued, write)| Target {
        free: free * PIECE,
        queued: queued * PIECE,
        write: f64::from(write) * PIECE as f64 / 10.0,
    });
    proptest::collection::vec(one, 1..6)
}

/// Bytes that each target got.
fn taken(shares: &[Share], targets: usize) -> Vec<u64> {
    let of = |n| shares.iter().filter(|share| share.target == n).map(|share| share.bytes).sum();
    (0..targets).map(of).collect()
}

fn place(engine: &str, pieces: usize, targets: &[Target]) -> Vec<u64> {
    let mut out = Vec::new();
    build(engine, 1).unwrap().place(&vec![PIECE; pieces], targets, &mut out);
    taken(&out, targets.len())
}

/// Hermes' program: minimise the sum of bytes / bandwidth.
fn least_sum(bytes: u64, targets: &[Target]) -> f64 {
    let mut problem = Problem::new(OptimizationDirection::Minimize);
    let x: Vec<_> = targets.iter().map(|t| problem.add_var(1.0 / t.write, (0.0, t.free as f64))).collect();
    problem.add_constraint(x.iter().map(|v| (*v, 1.0)), ComparisonOp::Eq, bytes as f64);
    problem.solve().expect("the batch fits").into_solution().expect("no limit stops the solver").objective()
}

/// Minimises the time of the slowest target, with the queues of idle ones.
fn least_time(bytes: u64, targets: &[Target]) -> f64 {
    let mut problem = Problem::new(OptimizationDirection::Minimize);
    let time = problem.add_var(1.0, (0.0, f64::INFINITY));
    let x: Vec<_> = targets.iter().map(|t| problem.add_var(0.0, (0.0, t.free as f64))).collect();
    problem.add_constraint(x.iter().map(|v| (*v, 1.0)), ComparisonOp::Eq, bytes as f64);
    for (v, target) in x.iter().zip(targets) {
        problem.add_constraint([(*v, 1.0), (time, -target.write)], ComparisonOp::Le, -(target.queued as f64));
    }
    problem.solve().expect("the batch fits").into_solution().expect("no limit stops the solver").objective()
}

proptest! {
    #[test]
    fn no_engine_overfills_or_loses(pieces in 0..600usize, targets in targets(), seed: u64) {
        let batch = vec![PIECE; pieces];
        let room: u64 = targets.iter().map(|target| target.free).sum();
        for name in NAMES {
            let mut out = Vec::new();
            build(name, seed).unwrap().place(&batch, &targets, &mut out);
            for (target, bytes) in targets.iter().zip(taken(&out, targets.len())) {
                prop_assert!(bytes <= target.free, "{}: {} bytes in {:?}", name, bytes, target);
            }
            prop_assert!(out.iter().is_sorted_by_key(|share| share.piece), "{}: pieces out of order", name);
            // Rooms are whole pieces here, so all that fits is placed.
            let placed: u64 = out.iter().map(|share| share.bytes).sum();
            prop_assert_eq!(placed, room.min(pieces as u64 * PIECE), "{}", name);
        }
    }

    #[test]
    fn min_io_sum_is_the_optimum_of_hermes(pieces in 1..600usize, targets in targets()) {
        let room: u64 = targets.iter().map(|target| target.free).sum();
        let bytes = (pieces as u64 * PIECE).min(room);
        let found: f64 = place("min-io-sum", (bytes / PIECE) as usize, &targets)
            .iter().zip(&targets).map(|(bytes, target)| *bytes as f64 / target.write).sum();
        let best = least_sum(bytes, &targets);
        prop_assert!((found - best).abs() <= 1e-6 * best.max(1.0), "{} s, the program {} s", found, best);
    }

    #[test]
    fn min_io_time_is_the_optimum_of_the_slowest(pieces in 1..600usize, targets in targets()) {
        let room: u64 = targets.iter().map(|target| target.free).sum();
        let bytes = (pieces as u64 * PIECE).min(room);
        let queues = targets.iter().map(|target| target.seconds(0)).fold(0.0, f64::max);
        let best = least_time(bytes, &targets);
        let found = min_io_time::seconds(bytes, &targets).max(queues);
        prop_assert!((found - best).abs() <= 1e-6 * best.max(1.0), "{} s, the program {} s", found, best);
        // The bytes correspond to that time, except for rounding to pages.
        let placed = place("min-io-time", (bytes / PIECE) as usize, &targets);
        let slowest = placed.iter().zip(&targets).map(|(bytes, target)| target.seconds(*bytes)).fold(queues, f64::max);
        let page = targets.iter().map(|target| 6.0 * 4096.0 / target.write).fold(0.0, f64::max);
        prop_assert!(slowest <= best + page, "{} s, the program {} s", slowest, best);
    }
}
