//! The two tests of a comparison, and their verdicts: Welch's test of two groups, and Student's of the ratios
//! of pairs.

use super::metric::Better;
use crate::format::name_of;
use crate::stats::{self, Interval};
use serde::Serialize;

/// Result of a test.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Outcome {
    /// Welch's test of two groups, or Student's of pairs.
    Tested {
        /// Candidate less baseline, in the metric's unit.
        difference: Interval,
        /// The difference in per cent of the baseline's mean, `None` if that is zero.
        percent: Option<Interval>,
        /// Statistic of baseline less candidate, as in R's `t.test(baseline, candidate)`; for pairs, of the
        /// logarithms of their ratios.
        t: f64,
        /// Degrees of freedom: Welch-Satterthwaite, or one less than the number of pairs.
        df: f64,
        /// Two-sided probability of this t by chance.
        p: f64,
    },
    /// All runs of each side are equal: the difference has no interval.
    Constant {
        /// Candidate less baseline.
        difference: f64,
        /// The difference in per cent of the baseline, `None` if that is zero.
        percent: Option<f64>,
    },
    /// A side has less than two valid runs.
    TooFew,
}

/// Verdict of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The interval contains zero.
    NoSignificance,
    /// The whole interval is on the better side.
    Better,
    /// The whole interval is on the worse side.
    Worse,
    /// Higher, and the better direction is unknown.
    Higher,
    /// Lower, and the better direction is unknown.
    Lower,
    /// All runs of both sides are equal.
    Identical,
    /// The sides differ, and neither varies.
    DifferentWithoutVariance,
    /// Less than two runs on a side.
    TooFew,
}

impl Verdict {
    /// Text for a table.
    pub fn text(self) -> String {
        if self == Verdict::TooFew { "too few runs".into() } else { name_of(self).replace('_', " ") }
    }

    /// The verdict of an outcome, by the direction of its metric.
    pub(crate) fn of(outcome: &Outcome, better: Better) -> Verdict {
        let difference = match outcome {
            Outcome::TooFew => return Verdict::TooFew,
            Outcome::Constant { difference: 0.0, .. } => return Verdict::Identical,
            Outcome::Constant { .. } => return Verdict::DifferentWithoutVariance,
            // For pairs the ratio was tested.
            Outcome::Tested { difference, percent, .. } => percent.as_ref().unwrap_or(difference),
        };
        match (better, difference.low > 0.0) {
            _ if difference.holds(0.0) => Verdict::NoSignificance,
            (Better::Unknown, true) => Verdict::Higher,
            (Better::Unknown, false) => Verdict::Lower,
            (Better::Higher, true) | (Better::Lower, false) => Verdict::Better,
            (Better::Higher, false) | (Better::Lower, true) => Verdict::Worse,
        }
    }
}

/// Tests two groups of runs by Welch. `confidence` is between 0 and 1; all numbers are at most 1e100.
pub fn outcome(baseline: &[f64], candidate: &[f64], confidence: f64) -> Outcome {
    let (Some(base), Some(cand)) = (stats::mean(baseline), stats::mean(candidate)) else {
        return Outcome::TooFew;
    };
    if baseline.len().min(candidate.len()) < 2 {
        return Outcome::TooFew;
    }
    let percent = |v: f64| 100.0 * v / base.abs();
    match stats::welch(candidate, baseline, confidence) {
        Some(welch) => Outcome::Tested {
            difference: welch.interval,
            percent: (base != 0.0).then(|| welch.interval.map(percent)),
            t: -welch.t,
            df: welch.df,
            p: welch.p,
        },
        None => {
            let difference = cand - base;
            Outcome::Constant { difference, percent: (base != 0.0).then(|| percent(difference)) }
        }
    }
}

/// Tests pairs of runs, baseline and candidate, by their ratio: an influence on both leaves it unchanged.
/// Without a ratio (a number that is not positive) or without variance, the pairs are tested as two groups.
pub fn paired(pairs: &[(f64, f64)], confidence: f64) -> Outcome {
    let (base, cand): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let differences: Vec<f64> = pairs.iter().map(|(base, cand)| cand - base).collect();
    let tested = || {
        let test = stats::paired_ratio(pairs, confidence)?;
        let difference = stats::mean_interval(&differences, confidence)?;
        let percent = Some(test.interval.map(|ratio| (ratio - 1.0) * 100.0));
        if !test.t.is_finite() {
            return Some(Outcome::Constant { difference: difference.mean, percent: percent.map(|p| p.mean) });
        }
        Some(Outcome::Tested { difference, percent, t: -test.t, df: test.df, p: test.p })
    };
    tested().unwrap_or_else(|| outcome(&base, &cand, confidence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_baseline_has_no_percent_and_negative_keeps_its_sign() {
        let Outcome::Tested { percent, .. } = outcome(&[-1.0, 1.0], &[4.0, 6.0], 0.95) else { panic!() };
        assert_eq!(percent, None);
        let Outcome::Tested { percent, .. } = outcome(&[-11.0, -9.0], &[-6.0, -4.0], 0.95) else { panic!() };
        assert!((percent.unwrap().mean - 50.0).abs() < 1e-9);
    }

    #[test]
    fn pairs_are_tested_by_their_ratios() {
        // Logarithms of the ratios: 0.1, 0.2, 0.3; t = 0.2 / (0.1 / sqrt 3).
        let pairs: Vec<(f64, f64)> =
            [0.1f64, 0.2, 0.3].iter().zip([1.0, 50.0, 7.0]).map(|(l, b)| (b, b * l.exp())).collect();
        let Outcome::Tested { percent, t, df, .. } = paired(&pairs, 0.95) else { panic!() };
        assert!((percent.unwrap().mean - 100.0 * (0.2f64.exp() - 1.0)).abs() < 1e-9);
        assert!((t + 12f64.sqrt()).abs() < 1e-9 && df == 2.0, "{t} {df}");
        assert_eq!(paired(&pairs[..1], 0.95), Outcome::TooFew);
        let halved = Outcome::Constant { difference: -1.5, percent: Some(-50.0) };
        assert_eq!(paired(&[(2.0, 1.0), (4.0, 2.0)], 0.95), halved, "nothing varies");
    }
}
