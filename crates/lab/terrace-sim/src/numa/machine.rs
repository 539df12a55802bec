//! The simulated machine: nodes of processors and persistent memory, and the time of an operation on them.
//!
//! A closed loop: every thread starts its next operation when one ends.
//!
//! ```text
//! time(t)   = sw / min(1, C / n)  +  sum over nodes d of  [ p_r (l_r + B / b_r) f_r  +  p_w (l_w + WA B / b_w) f_w ] stretch(d)
//! demand(d) = sum over threads of rate x ( p_r f_r B / Rcap(n_d)  +  p_w f_w WA B / Wcap(n_d) )
//! stretch(d) <- max(1, stretch(d) (1/2 + demand(d) / 2))          until nothing changes
//! ```
//! `sw`: time outside memory; `C`: processors of a node, `n`: threads on it; `p`: share of operations that read from or write to `d`;
//! `B`: block; `WA`: write amplification; `f`: 1 on the own node, else the remote factor; `n_d`: threads on node `d`. The numbers are those
//! published for one module of Optane memory and for two sockets of that time.

/// Read bandwidth of one module, GB a second, by threads.
const READ_GB_S: [(f64, f64); 8] =
    [(1.0, 2.92), (2.0, 5.66), (3.0, 6.45), (4.0, 6.5), (8.0, 6.5), (12.0, 5.91), (16.0, 4.73), (24.0, 3.89)];
/// Write bandwidth of one module with non-temporal stores, GB a second, by threads.
const WRITE_GB_S: [(f64, f64); 8] = [
    (1.0, 2.2),
    (4.0, 2.2),
    (6.0, 1.96),
    (8.0, 1.53),
    (10.0, 1.25),
    (12.0, 1.12),
    (16.0, 0.94),
    (24.0, 0.80),
];
/// Latency of a random read; the next constant is that of a store. Seconds.
const READ_LATENCY_S: f64 = 305e-9;
const WRITE_LATENCY_S: f64 = 90e-9;
/// Time of a remote read relative to a local one; the next constant is for writes.
const REMOTE_READ: f64 = 1.10;
const REMOTE_WRITE: f64 = 2.2;
/// The iteration stops when no stretch changes by more than this share, or after the maximum of rounds.
const STILL: f64 = 1e-9;
const ROUNDS_MAX: u32 = 400;

/// A machine of equal nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Machine {
    /// Number of nodes.
    pub(crate) nodes: usize,
    /// Processors of each node.
    pub(crate) processors: u32,
}

/// The operation that a thread repeats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Operation {
    /// Block size, bytes.
    pub(crate) block: f64,
    /// Share of operations that read, 0 to 1.
    pub(crate) reads: f64,
    /// Seconds outside memory.
    pub(crate) sw_s: f64,
    /// Bytes written for each byte of a write: log, metadata, compaction.
    pub(crate) write_amplification: f64,
}

/// A thread's node, and the nodes of its operations.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Placed {
    pub(crate) node: usize,
    /// Share of its reads served by each node; the sum is 1.
    pub(crate) read_from: Vec<f64>,
    /// The node of its writes.
    pub(crate) write_to: usize,
}

/// State of the machine in one second.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Second {
    /// Operations a second of each thread.
    pub(crate) rates: Vec<f64>,
    /// Demand on each node's memory, as a share of its bandwidth.
    pub(crate) demand: Vec<f64>,
}

/// Bandwidth at a number of threads, GB a second, interpolated linearly.
fn at(curve: &[(f64, f64)], threads: f64) -> f64 {
    let last = curve.len() - 1;
    if threads >= curve[last].0 {
        return curve[last].1;
    }
    let next = curve.iter().position(|point| point.0 > threads).unwrap_or(last);
    let Some(before) = next.checked_sub(1) else { return curve[0].1 };
    let ((x0, y0), (x1, y1)) = (curve[before], curve[next]);
    y0 + (y1 - y0) * (threads - x0) / (x1 - x0)
}

/// Read and write bandwidth of a node's memory for `threads`, bytes a second.
pub(crate) fn capacity(threads: f64) -> (f64, f64) {
    (at(&READ_GB_S, threads.max(1.0)) * 1e9, at(&WRITE_GB_S, threads.max(1.0)) * 1e9)
}

/// Cost of one operation of a thread: seconds outside memory; and for each node, seconds without waiting and
/// share of its capacity.
struct Cost {
    sw_s: f64,
    of: Vec<(f64, f64)>,
}

impl Machine {
    /// The equilibrium rates. `extra`: demand on each node besides the threads'.
    pub(crate) fn settle(&self, operation: &Operation, threads: &[Placed], extra: &[f64]) -> Second {
        let costs = self.costs(operation, threads);
        let mut stretch = vec![1.0f64; self.nodes];
        for _ in 0..ROUNDS_MAX {
            let demand = self.demand(&costs, &stretch, extra);
            let next: Vec<f64> =
                stretch.iter().zip(&demand).map(|(s, d)| (s * (0.5 + d / 2.0)).max(1.0)).collect();
            let change = stretch.iter().zip(&next).map(|(a, b)| (b / a - 1.0).abs()).fold(0.0, f64::max);
            stretch = next;
            if change < STILL {
                break;
            }
        }
        Second { rates: rates(&costs, &stretch), demand: self.demand(&costs, &stretch, extra) }
    }

    fn demand(&self, costs: &[Cost], stretch: &[f64], extra: &[f64]) -> Vec<f64> {
        let mut demand = extra.to_vec();
        demand.resize(self.nodes, 0.0);
        for (cost, rate) in costs.iter().zip(rates(costs, stretch)) {
            cost.of.iter().zip(&mut demand).for_each(|((_, share), demand)| *demand += rate * share);
        }
        demand
    }

    fn costs(&self, operation: &Operation, threads: &[Placed]) -> Vec<Cost> {
        let Operation { block, reads, sw_s, write_amplification } = *operation;
        let on = |node| threads.iter().filter(|t| t.node == node).count() as f64;
        let capacities: Vec<(f64, f64)> = (0..self.nodes).map(|d| capacity(on(d))).collect();
        let alone = capacity(1.0);
        let cost = |t: &Placed| {
            let of = |d: usize| {
                let (f_r, f_w) = if d == t.node { (1.0, 1.0) } else { (REMOTE_READ, REMOTE_WRITE) };
                let p_r = reads * t.read_from[d];
                let p_w = if t.write_to == d { 1.0 - reads } else { 0.0 };
                let (r, w) = (p_r * f_r, p_w * f_w);
                let written = write_amplification * block;
                let seconds =
                    r * (READ_LATENCY_S + block / alone.0) + w * (WRITE_LATENCY_S + written / alone.1);
                (seconds, r * block / capacities[d].0 + w * written / capacities[d].1)
            };
            let crowd = (f64::from(self.processors) / on(t.node)).min(1.0);
            Cost { sw_s: sw_s / crowd, of: (0..self.nodes).map(of).collect() }
        };
        threads.iter().map(cost).collect()
    }
}

fn rates(costs: &[Cost], stretch: &[f64]) -> Vec<f64> {
    let seconds =
        |cost: &Cost| cost.of.iter().zip(stretch).map(|((s, _), by)| s * by).sum::<f64>() + cost.sw_s;
    costs.iter().map(|cost| 1.0 / seconds(cost)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: Machine = Machine { nodes: 2, processors: 10 };

    fn operation(reads: f64) -> Operation {
        Operation { block: 4096.0, reads, sw_s: 4e-6, write_amplification: 1.5 }
    }

    fn all_on(node: usize, data: usize, threads: usize) -> Vec<Placed> {
        let read_from = (0..2).map(|n| if n == data { 1.0 } else { 0.0 }).collect();
        vec![Placed { node, read_from, write_to: data }; threads]
    }

    fn total(second: &Second) -> f64 {
        second.rates.iter().sum()
    }

    #[test]
    fn one_thread_takes_what_the_formula_says() {
        let seconds = 1.0 / total(&TWO.settle(&operation(1.0), &all_on(0, 0, 1), &[]));
        assert!((seconds - (4e-6 + 305e-9 + 4096.0 / 2.92e9)).abs() < 1e-12, "{seconds}");
        let seconds = 1.0 / total(&TWO.settle(&operation(0.0), &all_on(0, 1, 1), &[]));
        assert!((seconds - (4e-6 + (90e-9 + 6144.0 / 2.2e9) * 2.2)).abs() < 1e-12, "{seconds}");
    }

    #[test]
    fn saturated_node_delivers_its_capacity() {
        let second = TWO.settle(&operation(0.0), &all_on(0, 0, 8), &[]);
        assert!((total(&second) * 6144.0 / 1.53e9 - 1.0).abs() < 1e-3, "{second:?}");
        assert!((second.demand[0] - 1.0).abs() < 1e-3 && second.demand[1] == 0.0);
        let half = TWO.settle(&operation(0.0), &all_on(0, 0, 8), &[0.5, 0.0]);
        assert!((total(&half) / total(&second) - 0.5).abs() < 1e-3, "half is used by something else");
    }

    #[test]
    fn crowded_processors_take_longer() {
        let reads = |threads| TWO.settle(&operation(1.0), &all_on(0, 0, threads), &[]);
        assert!(reads(20).rates[0] < 0.7 * reads(10).rates[0]);
    }

    #[test]
    fn curves_pass_through_their_points() {
        assert_eq!((at(&READ_GB_S, 1.0), at(&READ_GB_S, 100.0)), (2.92, 3.89));
        assert!((at(&WRITE_GB_S, 5.0) - 2.08).abs() < 1e-12 && at(&WRITE_GB_S, 3.0) == 2.2);
    }
}
