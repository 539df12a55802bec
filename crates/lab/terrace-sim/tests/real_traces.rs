//! Conditions on real traces, which are not part of the project:
//! `TERRACE_TRACES=DIR cargo test --release -p terrace-sim --test real_traces -- --ignored --nocapture`

use std::path::PathBuf;

use terrace_api::capture::{Options, Reader};
use terrace_policy::mrc::{Exact, SAMPLES, Shards};

/// The traces of the directory in TERRACE_TRACES.
fn traces() -> Vec<PathBuf> {
    let dir = std::env::var_os("TERRACE_TRACES").expect("TERRACE_TRACES names a directory of traces");
    let entries =
        std::fs::read_dir(dir).expect("TERRACE_TRACES can be read").map(|entry| entry.unwrap().path());
    let mut traces: Vec<PathBuf> =
        entries.filter(|path| path.to_string_lossy().ends_with(".u64.zst")).collect();
    traces.sort();
    assert!(!traces.is_empty(), "TERRACE_TRACES holds NAME.u64.zst");
    traces
}

/// Mean absolute error of the sampled curve under 0.02 on every trace, at cache sizes up to all pages.
#[test]
#[ignore = "needs real traces"]
fn sampled_curves_are_near_the_exact_ones() {
    let mut far = Vec::new();
    for path in traces() {
        let (mut exact, mut shards) = (Exact::default(), Shards::new(SAMPLES));
        for access in Reader::open(&path, &Options::default()).unwrap() {
            let key = access.unwrap().key;
            exact.feed(key);
            shards.feed(key);
        }
        let exact = exact.curve();
        let (mean, greatest) = exact.difference(&shards.curve(), exact.pages, 1000);
        let name = path.file_name().unwrap_or_default().display();
        println!(
            "{name:36}{:9} pages  rate {:6.4}  mean {mean:.5}  greatest {greatest:.4}",
            exact.pages,
            shards.rate()
        );
        if mean >= 0.02 {
            far.push(path);
        }
    }
    assert!(far.is_empty(), "{far:?}");
}
