//! The loads of the paper on thread placement (NThread, see [`terrace_policy::numa`]): fio, and RocksDB.
//! Each thread has its own file or database. More than half of the data lie on node 0, as with a file system
//! that ignores nodes.

use terrace_policy::mix;

use super::machine::Machine;

/// Spreads small numbers over all bits (SplitMix64's increment).
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Number of sampled layouts on more than two nodes.
const SAMPLED: u64 = 40;

/// A load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// Blocks of 4 KiB at random, at 20, 40, 60 and 80 % reads.
    Fio,
    /// Puts, gets, and half of each.
    Rocksdb,
}

/// One kind of operations of a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Kind {
    /// Name in the paper's plots.
    pub(crate) name: &'static str,
    /// Share of operations that read, percent.
    pub(crate) reads_percent: u32,
}

impl Preset {
    /// The load called `name` on the command line.
    pub fn named(name: &str) -> Option<Preset> {
        [Preset::Fio, Preset::Rocksdb].into_iter().find(|preset| preset.name() == name)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Preset::Fio => "fio",
            Preset::Rocksdb => "rocksdb",
        }
    }

    /// Its kinds of operations.
    pub(crate) fn kinds(self) -> &'static [Kind] {
        const FIO: [Kind; 4] = [
            Kind { name: "20 % reads", reads_percent: 20 },
            Kind { name: "40 % reads", reads_percent: 40 },
            Kind { name: "60 % reads", reads_percent: 60 },
            Kind { name: "80 % reads", reads_percent: 80 },
        ];
        const ROCKSDB: [Kind; 3] = [
            Kind { name: "PUT", reads_percent: 0 },
            Kind { name: "MIX", reads_percent: 50 },
            Kind { name: "GET", reads_percent: 100 },
        ];
        match self {
            Preset::Fio => &FIO,
            Preset::Rocksdb => &ROCKSDB,
        }
    }

    /// Share of the files fixed on node 0; the others are on any node, with equal probability.
    fn forced(self) -> f64 {
        match self {
            Preset::Fio => 0.4,
            Preset::Rocksdb => 0.9,
        }
    }

    /// Layouts of the threads' files with their probabilities. Thread `t` starts on node `t % nodes`. Two
    /// nodes: all distinct cases; more nodes: a sample.
    pub(crate) fn layouts(self, threads: usize, nodes: usize) -> Vec<Layout> {
        if nodes > 2 {
            let layout =
                |seed| Layout { weight: 1.0 / SAMPLED as f64, homes: self.homes(threads, nodes, seed) };
            return (0..SAMPLED).map(layout).collect();
        }
        let (each, on_0) = (threads / 2, self.forced() + (1.0 - self.forced()) / 2.0);
        let cases = (0..=each).flat_map(|a| (0..=each).map(move |b| (a, b)));
        let layout = |(a, b)| Layout {
            weight: binomial(each, a, on_0) * binomial(each, b, on_0),
            homes: (0..threads).map(|t| usize::from(t / 2 >= if t % 2 == 0 { a } else { b })).collect(),
        };
        cases.map(layout).collect()
    }

    fn homes(self, threads: usize, nodes: usize, seed: u64) -> Vec<usize> {
        let draw = |n: u64| mix((seed << 32 | (n + 1)).wrapping_mul(GOLDEN)) as f64 / u64::MAX as f64;
        let home = |t: u64| {
            let forced = draw(2 * t) < self.forced();
            if forced { 0 } else { (draw(2 * t + 1) * nodes as f64) as usize % nodes }
        };
        (0..threads as u64).map(home).collect()
    }
}

/// The node of each thread's file.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// Probability.
    pub(crate) weight: f64,
    /// Node of each thread's file.
    pub(crate) homes: Vec<usize>,
}

/// Binomial probability of `k` of `n`, each with `p`.
fn binomial(n: usize, k: usize, p: f64) -> f64 {
    let choose = (0..k).map(|i| (n - i) as f64 / (i + 1) as f64).product::<f64>();
    choose * p.powi(k as i32) * (1.0 - p).powi((n - k) as i32)
}

/// The paper's machines: two sockets of ten cores, or four nodes. Four threads run on each node.
pub(crate) fn machine(nodes: usize) -> (Machine, usize) {
    (Machine { nodes, processors: 10 }, 4 * nodes)
}
