//! Comparison of cells: each policy's share above the optimum, and the ranking of the means.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use crate::cells::{Cell, OPT};

/// One policy on all cells.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rank {
    /// The policy's name.
    pub policy: String,
    /// Mean of the cells' miss ratios.
    pub miss_ratio_mean: f64,
    /// Mean of miss ratio / optimum - 1.
    pub above_opt_mean: f64,
    /// The worst cell's share above the optimum.
    pub(crate) above_opt_worst: f64,
    /// The worst cell.
    pub(crate) worst: String,
    /// Requests simulated a second of CPU time.
    pub requests_per_second: f64,
}

/// Misses of the optimum by trace and pool.
#[derive(Clone, Debug, Default)]
pub struct Bounds(BTreeMap<(String, usize), f64>);

impl Bounds {
    /// From the cells of `opt`.
    pub fn of(cells: &[Cell]) -> Bounds {
        let opt = cells.iter().filter(|cell| cell.policy == OPT);
        Bounds(opt.map(|cell| ((cell.trace.clone(), cell.cache_pages), cell.miss_ratio)).collect())
    }

    /// The miss ratio of `opt` in the same cell.
    pub(crate) fn at(&self, cell: &Cell) -> Option<f64> {
        self.0.get(&(cell.trace.clone(), cell.cache_pages)).copied()
    }

    /// Miss ratio / optimum - 1.
    pub fn above(&self, cell: &Cell) -> Option<f64> {
        self.at(cell).map(|best| cell.miss_ratio / best - 1.0)
    }
}

/// Policies by mean share above the optimum, the best first.
pub fn ranking(cells: &[Cell], bounds: &Bounds) -> Vec<Rank> {
    let mut by_policy: BTreeMap<&str, Vec<&Cell>> = BTreeMap::new();
    cells.iter().for_each(|cell| by_policy.entry(&cell.policy).or_default().push(cell));
    let mut ranks: Vec<Rank> = by_policy.iter().map(|(policy, cells)| rank(policy, cells, bounds)).collect();
    ranks.sort_by(|a, b| a.above_opt_mean.total_cmp(&b.above_opt_mean));
    ranks
}

fn rank(policy: &str, cells: &[&Cell], bounds: &Bounds) -> Rank {
    let n = cells.len() as f64;
    let above = |cell: &Cell| bounds.above(cell).unwrap_or(f64::NAN);
    let worst = cells.iter().max_by(|a, b| above(a).total_cmp(&above(b))).expect("a policy with cells");
    let requests: u64 = cells.iter().map(|cell| cell.requests).sum();
    Rank {
        policy: policy.to_owned(),
        miss_ratio_mean: cells.iter().map(|cell| cell.miss_ratio).sum::<f64>() / n,
        above_opt_mean: cells.iter().map(|cell| above(cell)).sum::<f64>() / n,
        above_opt_worst: above(worst),
        worst: format!("{} at {}", worst.trace, percent(worst.size_frac)),
        requests_per_second: requests as f64 / cells.iter().map(|cell| cell.seconds).sum::<f64>().max(1e-9),
    }
}

/// `0.001` is `0.1%`.
pub fn percent(share: f64) -> String {
    format!("{}%", (share * 1e6).round() / 1e4)
}

/// One block a trace: policies down, sizes across, miss ratio and share above the optimum.
pub fn table(cells: &[Cell], bounds: &Bounds) -> String {
    let mut out = String::new();
    cells.chunk_by(|a, b| a.trace == b.trace).for_each(|cells| block(cells, bounds, &mut out));
    out
}

fn block(cells: &[Cell], bounds: &Bounds, out: &mut String) {
    let mut sizes: Vec<(usize, f64)> = cells.iter().map(|cell| (cell.cache_pages, cell.size_frac)).collect();
    sizes.sort_by(|a, b| a.partial_cmp(b).expect("sizes are numbers"));
    sizes.dedup_by_key(|size| size.0);
    let mut policies: Vec<&str> = Vec::new();
    for cell in cells {
        if !policies.contains(&cell.policy.as_str()) {
            policies.push(&cell.policy);
        }
    }
    let _ = writeln!(out, "{}, {} requests", cells[0].trace, cells[0].requests);
    let head = sizes.iter().map(|(pages, share)| format!("{:>19}", format!("{} = {pages}", percent(*share))));
    let _ = writeln!(out, "{:12}{}", "", head.collect::<String>());
    for policy in policies {
        let mut line = format!("{policy:12}");
        for (pages, _) in &sizes {
            let cell = cells.iter().find(|cell| cell.policy == policy && cell.cache_pages == *pages);
            let text = cell.map_or(String::new(), |cell| {
                let above = bounds.above(cell).filter(|_| policy != OPT);
                let above = above.map_or(" ".repeat(9), |above| format!(" +{:5.1} %", above * 100.0));
                format!("{:.4}{above}", cell.miss_ratio)
            });
            let _ = write!(line, "{text:>19}");
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out.push('\n');
}

/// The ranking as a table.
pub fn ranking_table(ranks: &[Rank], cells: usize) -> String {
    let mut out = format!("{cells} cells; share above opt, on average and at worst\n");
    for rank in ranks {
        let _ = writeln!(
            out,
            "{:12}{:7.2} %{:8.1} %  {:36} mean miss ratio {:.4}  {:6.1} M requests/s",
            rank.policy,
            rank.above_opt_mean * 100.0,
            rank.above_opt_worst * 100.0,
            rank.worst,
            rank.miss_ratio_mean,
            rank.requests_per_second / 1e6
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(policy: &str, pages: usize, misses: u64) -> Cell {
        Cell {
            trace: "t".into(),
            policy: policy.into(),
            size_frac: pages as f64 / 1000.0,
            cache_pages: pages,
            requests: 100,
            misses,
            miss_ratio: misses as f64 / 100.0,
            seconds: 1e-6,
        }
    }

    #[test]
    fn ranks_by_the_mean_share_above_the_optimum() {
        let cells = [
            ("lru", 10, 60),
            ("lru", 100, 20),
            ("arc", 10, 50),
            ("arc", 100, 20),
            ("opt", 10, 40),
            ("opt", 100, 10),
        ]
        .map(|(policy, pages, misses)| cell(policy, pages, misses));
        let bounds = Bounds::of(&cells);
        let ranks = ranking(&cells, &bounds);
        let order: Vec<&str> = ranks.iter().map(|rank| rank.policy.as_str()).collect();
        assert_eq!(order, ["opt", "arc", "lru"]);
        assert!((ranks[1].above_opt_mean - 0.625).abs() < 1e-12); // 25 % and 100 %
        assert_eq!((ranks[2].above_opt_worst, ranks[2].worst.as_str()), (1.0, "t at 10%"));
        assert!((ranks[2].requests_per_second - 1e8).abs() < 1.0);
        let table = table(&cells, &bounds);
        assert!(
            table.contains("lru         0.6000 + 50.0 %") || table.contains("0.6000 + 50.0 %"),
            "{table}"
        );
    }
}
