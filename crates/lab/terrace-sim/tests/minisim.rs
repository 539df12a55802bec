//! Miniatures of a policy ([`terrace_policy::minisim`]) against simulations of whole caches.

use terrace_policy::build;
use terrace_policy::minisim::Miniature;
use terrace_sim::sim::{Mode, run_ids};
use terrace_testkit::rng::Rng;

fn zipf(pages: u64, accesses: usize, theta: f64) -> Vec<u64> {
    let mut sum = 0.0;
    let cdf: Vec<f64> = (1..=pages)
        .map(|rank| {
            sum += (rank as f64).powf(-theta);
            sum
        })
        .collect();
    let mut rng = Rng::new(1);
    std::iter::repeat_with(|| {
        let at = rng.unit() * sum;
        cdf.partition_point(|&c| c < at) as u64
    })
    .take(accesses)
    .collect()
}

fn whole(policy: &str, trace: &[u64], pages: usize) -> f64 {
    let trace: Vec<u32> = trace.iter().map(|&page| page as u32).collect();
    let mut built = build(policy, pages, pages).unwrap();
    1.0 - run_ids(&mut *built, &trace, 50_000, pages, Mode::Sampled { batch: 64 }).miss_ratio()
}

#[test]
fn miniatures_miss_as_whole_caches_do() {
    let sizes = [2_000, 4_000, 8_000, 16_000];
    let loops: Vec<u64> = (0..150_000).map(|i| i % 12_000).collect();
    for (name, trace) in [("zipf", zipf(50_000, 200_000, 0.8)), ("loop", loops)] {
        for policy in ["strata", "lru", "clock"] {
            let mut mini = Miniature::new(policy, &sizes, 4000).unwrap();
            trace.iter().for_each(|&key| mini.feed(key));
            for (pages, ratio) in sizes.into_iter().zip(mini.hit_ratios()) {
                let real = whole(policy, &trace, pages);
                assert!((ratio - real).abs() < 0.04, "{name} {policy} {pages}: {ratio:.3}, really {real:.3}");
            }
        }
    }
}
