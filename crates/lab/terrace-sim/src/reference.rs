//! Miss ratios of the published policies, measured by another simulator: `reference_miss_ratios.csv`, made with libCacheSim 0.3.5.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use csv::StringRecord;
use terrace_policy::NAMES;

use crate::cells::{Cell, OPT};
use crate::gates::{Gate, Group, against};

/// The file in a directory of traces (trace,policy,size_frac,cache_objects,miss_ratio).
const REFERENCE: &str = "reference_miss_ratios.csv";
/// Minimum pool size compared, pages.
pub const PAGES_MIN: usize = 10;
/// Maximum deviation of a published policy's miss ratio from the reference.
const TOLERANCE: f64 = 0.02;
/// Half a unit of the reference's last digit, plus floating-point error.
const ROUNDING: f64 = 0.000_050_1;
/// Published policies, by our names and by the reference's.
const PUBLISHED: [(&str, &str); 9] = [
    ("lru", "lru"),
    ("clock", "clock"),
    ("fifo", "fifo"),
    ("2q", "twoq"),
    ("arc", "arc"),
    ("s3fifo", "s3fifo"),
    ("sieve", "sieve"),
    ("w-tinylfu", "wtinyLFU"),
    ("lirs", "lirs"),
];

/// The reference's miss ratios.
#[derive(Debug, Default)]
pub struct Reference {
    /// Pools by trace: pages and share.
    pub sizes: BTreeMap<String, Vec<(usize, f64)>>,
    /// Miss ratio by trace, pages, policy.
    ratios: BTreeMap<(String, usize, String), f64>,
}

impl Reference {
    /// Reads the reference of a directory of traces.
    pub fn read(dir: &Path) -> io::Result<Reference> {
        let path = dir.join(REFERENCE);
        let unread = |e: csv::Error| {
            let cure = "name the directory of traces with --traces or TERRACE_TRACES";
            io::Error::other(format!("{}: {e} ({cure})", path.display()))
        };
        let mut reference = Reference::default();
        for row in csv::ReaderBuilder::new().flexible(true).from_path(&path).map_err(unread)?.records() {
            let row = row.map_err(unread)?;
            reference.add(&row).ok_or_else(|| no_reference(&path, &row))?;
        }
        Ok(reference)
    }

    fn add(&mut self, row: &StringRecord) -> Option<()> {
        let (trace, policy, share, pages, ratio): (String, String, f64, usize, f64) =
            row.deserialize(None).ok().filter(|_| row.len() == 5)?;
        if pages >= PAGES_MIN {
            let sizes = self.sizes.entry(trace.clone()).or_default();
            if !sizes.iter().any(|size| size.0 == pages) {
                sizes.push((pages, share));
                sizes.sort_by_key(|size| size.0);
            }
            self.ratios.insert((trace, pages, policy), ratio);
        }
        Some(())
    }

    fn ratio(&self, cell: &Cell, policy: &str) -> Option<f64> {
        self.ratios.get(&(cell.trace.clone(), cell.cache_pages, policy.to_owned())).copied()
    }
}

/// The error for a malformed row.
pub(crate) fn no_reference(path: &Path, row: &StringRecord) -> io::Error {
    let line = row.position().map_or(0, csv::Position::line);
    let row = row.iter().collect::<Vec<_>>().join(",");
    io::Error::other(format!("{}: line {line}: not a reference: {row}", path.display()))
}

/// The gates that compare with it.
pub fn gates(reference: &Reference, gated: &Group) -> [Gate; 2] {
    let off = off_belady(reference, gated);
    [
        published_are_as_published(reference, gated),
        Gate::none("opt is the reference's Belady to 4 digits", off),
    ]
}

/// Whether a policy's documentation explains a difference in this cell: where a hundredth of the pool is less
/// than a page, libCacheSim's W-TinyLFU has no window and admits nothing.
fn differs_by_definition(policy: &str, reference: f64) -> bool {
    policy == "w-tinylfu" && reference == 1.0
}

/// Every cell of every published policy must be compared; documented differences are printed, and pass.
fn published_are_as_published(reference: &Reference, gated: &Group) -> Gate {
    let missing = PUBLISHED.iter().filter(|(ours, _)| !NAMES.contains(ours));
    let mut off: Vec<String> = missing.map(|(ours, _)| format!("{ours}: not simulated")).collect();
    let theirs =
        |cell: &Cell| PUBLISHED.iter().find(|(ours, _)| *ours == cell.policy).map(|(_, theirs)| *theirs);
    let compared = || {
        let published = gated.exact.iter().filter_map(|cell| Some((cell, theirs(cell)?)));
        published.map(|(cell, theirs)| (cell, reference.ratio(cell, theirs).unwrap_or(f64::NAN)))
    };
    let (explained, plain): (Vec<_>, Vec<_>) =
        compared().partition(|(cell, expected)| differs_by_definition(&cell.policy, *expected));
    let near = |ours: f64, theirs: f64| (ours / theirs - 1.0).abs() <= TOLERANCE;
    off.extend(against(plain.into_iter(), "reference", near));
    let explained = against(explained.into_iter(), "by its definition; reference", near);
    Gate {
        gate: format!("published policies within {:.0} % of the reference in every cell", TOLERANCE * 100.0),
        passed: off.is_empty(),
        found: off.into_iter().chain(explained).collect(),
    }
}

fn off_belady(reference: &Reference, gated: &Group) -> Vec<String> {
    let opt = gated.exact.iter().filter(|cell| cell.policy == OPT);
    let pairs = opt.map(|cell| (cell, reference.ratio(cell, "belady").unwrap_or(f64::NAN)));
    against(pairs, "belady", |opt, belady| (opt - belady).abs() <= ROUNDING)
}
