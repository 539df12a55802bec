//! The sampled miss-ratio curve against the exact one, on generated traces with fewer samples than pages.

use terrace_policy::mrc::{Exact, SAMPLES, Shards};
use terrace_testkit::rng::Rng;
use terrace_testkit::traces;

const ERROR_MAX: f64 = 0.02;

/// Mean absolute error at 1000 cache sizes up to the number of pages, and that number.
fn error(trace: impl Iterator<Item = u64>, samples: usize) -> (f64, f64) {
    let (mut exact, mut shards) = (Exact::default(), Shards::new(samples));
    trace.for_each(|key| {
        exact.feed(key);
        shards.feed(key);
    });
    let exact = exact.curve();
    (exact.difference(&shards.curve(), exact.pages, 1000).0, exact.pages)
}

#[test]
fn small_traces_with_a_quarter_of_their_pages() {
    for (name, trace) in traces::all() {
        let (_, pages) = error(trace.iter().copied(), SAMPLES);
        let (error, _) = error(trace.iter().copied(), pages as usize / 4);
        assert!(error < 2.0 * ERROR_MAX, "{name}: {error:.4} with a quarter of {pages} pages");
    }
}

/// A few hundred thousand pages: some popular, some read in order, and a loop over all.
#[test]
fn large_traces_with_the_usual_samples() {
    let mut rng = Rng::new(11);
    let mut skewed = move || {
        let scale = rng.below(1 << 18) + 1;
        rng.below(scale)
    };
    let mut rng = Rng::new(12);
    let traces: [(&str, Vec<u64>); 3] = [
        ("skewed", (0..600_000).map(|_| skewed()).collect()),
        (
            "loops",
            (0..600_000).map(|i| if i % 2 == 0 { i % 100_000 } else { 1_000_000 + i % 30_000 }).collect(),
        ),
        ("uniform", (0..600_000).map(|_| rng.below(200_000)).collect()),
    ];
    for (name, trace) in traces {
        let (error, pages) = error(trace.into_iter(), SAMPLES);
        assert!(pages > 2.0 * SAMPLES as f64, "{name} needs no sampling");
        assert!(error < ERROR_MAX, "{name}: {error:.4}");
    }
}
