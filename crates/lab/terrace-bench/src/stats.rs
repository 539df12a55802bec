//! The statistics of comparisons: Student's t interval of a mean, the ratio of paired runs, Welch's test.
//!
//! Two systems are run in pairs, one right after the other. A pair shares the state of the machine, so the
//! logarithm of its ratio varies less than either number. The result is `exp` of the mean log-ratio with its
//! t interval ("0.62x, 0.60 to 0.64"). Rejected: the ratio of two means. One slow pair distorts it, and its
//! interval needs approximations that ten runs do not justify.
//!
//! Welch's test compares two unpaired groups, such as published data.

use serde::Serialize;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// A mean with its two-sided interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// The estimate.
    pub(crate) mean: f64,
    /// Lower end.
    pub(crate) low: f64,
    /// Upper end.
    pub(crate) high: f64,
    /// Observations behind it.
    pub(crate) n: usize,
}

impl Interval {
    /// Whether the interval contains `value`.
    pub(crate) fn holds(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }

    /// The interval after a monotonically rising transformation.
    pub(crate) fn map(self, f: impl Fn(f64) -> f64) -> Interval {
        Interval { mean: f(self.mean), low: f(self.low), high: f(self.high), n: self.n }
    }
}

/// Arithmetic mean; `None` without data, with NaN, or if the sum overflows.
///
/// The second pass corrects rounding: the mean of equal numbers is that number, so that they have no
/// variance.
pub(crate) fn mean(xs: &[f64]) -> Option<f64> {
    let n = xs.len() as f64;
    let rough = xs.iter().sum::<f64>() / n;
    let mean = rough + xs.iter().map(|x| x - rough).sum::<f64>() / n;
    mean.is_finite().then_some(mean)
}

/// Sample variance (n - 1); `None` below two observations.
pub(crate) fn variance(xs: &[f64]) -> Option<f64> {
    let m = mean(xs)?;
    (xs.len() >= 2).then(|| xs.iter().map(|x| (x - m).powi(2)).sum::<f64>() / (xs.len() - 1) as f64)
}

/// A t-test: an estimate with its interval, and the test that there is no effect.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Test {
    /// A mean, a difference of means, or a ratio.
    pub interval: Interval,
    /// The statistic; not finite without variance.
    pub(crate) t: f64,
    /// Degrees of freedom.
    pub(crate) df: f64,
    /// Two-sided probability of such an estimate by chance; not finite without variance.
    pub(crate) p: f64,
}

/// The test that the true value of an estimate with standard error `se`, of `n` observations, is zero.
fn test(mean: f64, se: f64, df: f64, n: usize, confidence: f64) -> Option<Test> {
    let student = StudentsT::new(0.0, 1.0, df).ok()?;
    let (half, t) = (student.inverse_cdf(0.5 + confidence / 2.0) * se, mean / se);
    let p = if t.is_finite() { 2.0 * student.cdf(-t.abs()) } else { f64::NAN };
    Some(Test { interval: Interval { mean, low: mean - half, high: mean + half, n }, t, df, p })
}

/// Student's test that the mean of `xs` is zero.
fn student(xs: &[f64], confidence: f64) -> Option<Test> {
    let (m, v, n) = (mean(xs)?, variance(xs)?, xs.len());
    test(m, (v / n as f64).sqrt(), (n - 1) as f64, n, confidence)
}

/// Student's interval for the mean of `xs`.
pub fn mean_interval(xs: &[f64], confidence: f64) -> Option<Interval> {
    Some(student(xs, confidence)?.interval)
}

/// Ratio candidate / baseline over pairs: geometric mean with interval, and the test that it is 1.
///
/// `None` if a number is not positive and finite: such a pair is no measurement.
pub fn paired_ratio(pairs: &[(f64, f64)], confidence: f64) -> Option<Test> {
    let good = |x: f64| x.is_finite() && x > 0.0;
    if !pairs.iter().all(|&(base, cand)| good(base) && good(cand)) {
        return None;
    }
    let logs: Vec<f64> = pairs.iter().map(|(base, cand)| (cand / base).ln()).collect();
    let test = student(&logs, confidence)?;
    Some(Test { interval: test.interval.map(f64::exp), ..test })
}

/// Welch's unequal-variance t-test (Biometrika 34, 1947) of the mean of `a` less that of `b`, unpaired groups;
/// with Satterthwaite's degrees of freedom.
///
/// `None` if one has less than two observations, or if neither varies: then there is no scale for the
/// difference. One group may be constant.
pub fn welch(a: &[f64], b: &[f64], confidence: f64) -> Option<Test> {
    let (va, vb) = (variance(a)? / a.len() as f64, variance(b)? / b.len() as f64);
    let se = (va + vb).sqrt();
    if se == 0.0 || !se.is_finite() {
        return None;
    }
    // By the shares of the two variances: their squares could overflow.
    let share = |v: f64, xs: &[f64]| (v / (va + vb)).powi(2) / (xs.len() - 1) as f64;
    test(mean(a)? - mean(b)?, se, 1.0 / (share(va, a) + share(vb, b)), a.len() + b.len(), confidence)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64, tolerance: f64) {
        assert!((a - b).abs() <= tolerance, "{a} is not {b}");
    }

    /// Student's own sleep data (1908), group 1 and group 2: textbooks give the paired and the Welch results.
    const SLEEP_1: [f64; 10] = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0];
    const SLEEP_2: [f64; 10] = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4];

    #[test]
    fn mean_interval_golden() {
        let d: Vec<f64> = SLEEP_1.iter().zip(SLEEP_2).map(|(a, b)| a - b).collect();
        let i = mean_interval(&d, 0.95).unwrap();
        near(i.mean, -1.58, 1e-12);
        near(i.low, -2.459_885_8, 1e-6);
        near(i.high, -0.700_114_2, 1e-6);
    }

    #[test]
    fn welch_golden() {
        let w = welch(&SLEEP_1, &SLEEP_2, 0.95).unwrap();
        near(w.t, -1.860_813_5, 1e-6);
        near(w.df, 17.776_474, 1e-5);
        near(w.p, 0.079_394_14, 1e-7);
        near(w.interval.low, -3.365_483_2, 1e-6);
        near(w.interval.high, 0.205_483_2, 1e-6);
    }

    #[test]
    fn quantiles_match_the_table() {
        for (df, t) in [(1.0, 12.7062), (2.0, 4.3027), (4.0, 2.7764), (9.0, 2.2622), (30.0, 2.0423)] {
            near(test(0.0, 1.0, df, 2, 0.95).unwrap().interval.high, t, 5e-5);
        }
    }

    #[test]
    fn ratio_of_equal_pairs_is_one_and_of_halved_pairs_a_half() {
        let equal = [(1.0, 1.0), (5.0, 5.0), (9.0, 9.0)];
        assert_eq!(
            paired_ratio(&equal, 0.95).unwrap().interval,
            Interval { mean: 1.0, low: 1.0, high: 1.0, n: 3 }
        );
        let half = [(2.0, 1.0), (8.0, 4.0), (100.0, 50.0)];
        let i = paired_ratio(&half, 0.95).unwrap().interval;
        near(i.mean, 0.5, 1e-12);
        near(i.low, 0.5, 1e-12);
    }

    #[test]
    fn ratio_golden() {
        // ln ratios 0.1, 0.2, 0.3: mean 0.2, sd 0.1, half-width 4.30265 * 0.1 / sqrt(3) = 0.248414.
        let pairs: Vec<(f64, f64)> = [0.1f64, 0.2, 0.3].iter().map(|l| (3.0, 3.0 * l.exp())).collect();
        let i = paired_ratio(&pairs, 0.95).unwrap().interval;
        near(i.mean, 0.2f64.exp(), 1e-12);
        near(i.low, (0.2f64 - 0.248_413_8).exp(), 1e-6);
        near(i.high, (0.2f64 + 0.248_413_8).exp(), 1e-6);
    }

    #[test]
    fn invalid_measurement_is_refused() {
        assert!(paired_ratio(&[(1.0, 1.0)], 0.95).is_none(), "one pair has no interval");
        assert!(paired_ratio(&[(1.0, 0.0), (1.0, 1.0)], 0.95).is_none());
        assert!(paired_ratio(&[(1.0, f64::NAN), (1.0, 1.0)], 0.95).is_none());
        assert!(mean_interval(&[1.0, f64::INFINITY], 0.95).is_none());
        assert!(welch(&[1.0, 1.0], &[2.0, 2.0], 0.95).is_none(), "no variance, no test");
        assert!(welch(&[1.0], &[2.0, 3.0], 0.95).is_none());
        assert!(welch(&[1.0, f64::NAN], &[2.0, 3.0], 0.95).is_none());
        assert!(mean(&[]).is_none() && mean(&[1e308, 1e308]).is_none());
    }

    /// Each of these sums is off by rounding.
    #[test]
    fn equal_numbers_do_not_vary() {
        for x in [0.1, 0.7, 1e-300, 12_345.678_9, -3.3e15] {
            for n in 2..200 {
                assert_eq!((mean(&vec![x; n]), variance(&vec![x; n])), (Some(x), Some(0.0)), "{n} times {x}");
            }
        }
    }

    #[test]
    fn one_side_without_variance_has_the_degrees_of_the_other() {
        let w = welch(&[3.0, 3.0, 3.0, 3.0], &[1.0, 2.0], 0.95).unwrap();
        near(w.df, 1.0, 1e-12);
        near(w.t, 3.0, 1e-12);
        near(w.interval.high, 1.5 + 12.706_204_74 * 0.5, 1e-6);
        let tiny = welch(&[3e-150, 1e-150], &[1e-150, 2e-150], 0.95).unwrap();
        let same = welch(&[3.0, 1.0], &[1.0, 2.0], 0.95).unwrap();
        near(tiny.df, same.df, 1e-12);
        near(tiny.t, same.t, 1e-12);
    }

    /// The interval must contain the true value about as often as its confidence.
    #[test]
    fn coverage_of_simulated_equal_systems() {
        let mut rng = fastrand::Rng::with_seed(2024);
        let mut noise = || (0..12).map(|_| rng.f64()).sum::<f64>() - 6.0;
        let held = (0..1000)
            .filter(|_| {
                let pairs: Vec<(f64, f64)> = (0..5)
                    .map(|_| (100.0 * (0.05 * noise()).exp(), 100.0 * (0.05 * noise()).exp()))
                    .collect();
                paired_ratio(&pairs, 0.95).unwrap().interval.holds(1.0)
            })
            .count();
        assert!((930..=968).contains(&held), "95 % intervals held the truth {held} times in 1000");
    }
}
