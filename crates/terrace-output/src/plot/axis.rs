//! Axes: where a value is on the paper, and which values have a tick and what it is called.

use super::text::number;

/// A number beside an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// Where.
    pub value: f64,
    /// Its name.
    pub label: String,
}

/// From values to pixels along one direction.
#[derive(Clone, Debug)]
pub struct Axis {
    from: f64,
    to: f64,
    begin_px: f64,
    end_px: f64,
    log: bool,
    /// The ticks, rising.
    pub ticks: Vec<Tick>,
}

/// Smallest value that a logarithmic axis shows.
const POSITIVE_MIN: f64 = 1e-6;
/// Values beyond stand at the end: their difference is a number still.
const VALUE_MAX: f64 = 1e250;

impl Axis {
    /// A linear axis that holds zero and all `values`, with about `ticks` ticks.
    pub fn linear(values: impl Iterator<Item = f64>, ticks: usize) -> Axis {
        let (low, high) = span(values).map_or((0.0, 1.0), |(low, high)| (low.min(0.0), high.max(0.0)));
        let high = if high > low { high } else { low + 1.0 };
        let step = nice_step((high - low) / ticks.max(1) as f64);
        let (from, to) = ((low / step).floor(), (high / step - 1e-9).ceil());
        let decimals = (-step.log10().floor()).clamp(0.0, 12.0) as usize;
        let label = |value: f64| match value.abs() {
            0.0 => "0".to_string(),
            a if !(1e-6..1e7).contains(&a) => number(value),
            _ => format!("{value:.decimals$}"),
        };
        let values = (0..=(to - from) as usize).map(|i| (from + i as f64) * step);
        let ticks = values.map(|value| Tick { value, label: label(value) }).collect();
        Axis { from: from * step, to: to * step, begin_px: 0.0, end_px: 1.0, log: false, ticks }
    }

    /// A logarithmic axis from the 1, 2 or 5 below all `values` to that above. Values of 0 or less stand at its begin.
    pub fn log(values: impl Iterator<Item = f64>) -> Axis {
        let values = values.map(|v| v.max(POSITIVE_MIN));
        let (low, high) = span(values).unwrap_or((1.0, 10.0));
        let steps: Vec<f64> = (-6..=300).flat_map(|p| [1.0, 2.0, 5.0].map(|s| s * 10f64.powi(p))).collect();
        let from = steps.iter().copied().rfind(|s| *s <= low * 1.0001).unwrap_or(POSITIVE_MIN);
        let to = steps.iter().copied().find(|s| *s >= high * 0.9999 && *s > from).unwrap_or(f64::MAX);
        let inside: Vec<f64> = steps.into_iter().filter(|s| (from..=to).contains(s)).collect();
        let power = |s: f64| s.log10().round() as i32;
        let is_power = |s: f64| (s / 10f64.powi(power(s)) - 1.0).abs() < 1e-9;
        let powers = inside.iter().filter(|s| is_power(**s)).count();
        let every = powers.div_ceil(7).max(1) as i32;
        let shown = |s: &f64| powers < 3 || (is_power(*s) && power(*s) % every == 0);
        let ticks =
            inside.into_iter().filter(shown).map(|value| Tick { value, label: plain(value) }).collect();
        Axis { from, to, begin_px: 0.0, end_px: 1.0, log: true, ticks }
    }

    /// An axis of its caller's ticks, from the first to the last of `values`.
    pub fn custom(values: impl Iterator<Item = f64>, ticks: Vec<Tick>) -> Axis {
        let (from, to) = span(values).unwrap_or((0.0, 1.0));
        let to = if to > from { to } else { from + 1.0 };
        let ticks = ticks.into_iter().filter(|t| (from - 1e-9..=to + 1e-9).contains(&t.value)).collect();
        Axis { from, to, begin_px: 0.0, end_px: 1.0, log: false, ticks }
    }

    /// The axis laid between two pixels.
    pub fn at(mut self, begin_px: f64, end_px: f64) -> Axis {
        (self.begin_px, self.end_px) = (begin_px, end_px);
        self
    }

    /// Where a value is, within the axis.
    pub fn px(&self, value: f64) -> f64 {
        let f = |v: f64| if self.log { v.max(POSITIVE_MIN).log10() } else { v.clamp(-VALUE_MAX, VALUE_MAX) };
        let share = (f(value) - f(self.from)) / (f(self.to) - f(self.from));
        self.begin_px + share.clamp(0.0, 1.0) * (self.end_px - self.begin_px)
    }
}

/// Least and greatest of what is finite.
fn span(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let finite = values.filter(|v| v.is_finite()).map(|v| v.clamp(-VALUE_MAX, VALUE_MAX));
    finite.fold(None, |all, v| Some(all.map_or((v, v), |(low, high): (f64, f64)| (low.min(v), high.max(v)))))
}

/// The 1, 2 or 5 times a power of ten at or above `step`.
fn nice_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let times = [1.0, 2.0, 5.0].into_iter().find(|t| t * power >= step * 0.9999);
    times.unwrap_or(10.0) * power
}

/// A 1, 2 or 5 times a power of ten, short.
fn plain(v: f64) -> String {
    match v {
        v if !(0.99e-3..0.99e9).contains(&v) => format!("{v:.0e}"),
        v if v >= 0.99e6 => format!("{:.0}M", v / 1e6),
        v if v >= 0.99e4 => format!("{:.0}k", v / 1e3),
        v => format!("{}", (v * 1000.0).round() / 1000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|t| t.label.as_str()).collect()
    }

    #[test]
    fn linear_axes_hold_zero_and_all_values() {
        let axis = Axis::linear([8467.89, 13_000.0].into_iter(), 5).at(0.0, 100.0);
        assert_eq!(labels(&axis), ["0", "5000", "10000", "15000"]);
        assert_eq!((axis.px(0.0), axis.px(15_000.0), axis.px(7500.0)), (0.0, 100.0, 50.0));
        assert_eq!(
            labels(&Axis::linear([0.31, 0.07].into_iter(), 5)),
            ["0.0", "0.1", "0.2", "0.3", "0.4"].map(|l| if l == "0.0" { "0" } else { l })
        );
        assert_eq!(labels(&Axis::linear([-3.0, 4.0].into_iter(), 4)), ["-4", "-2", "0", "2", "4"]);
    }

    #[test]
    fn log_axes_begin_and_end_at_round_numbers() {
        assert_eq!(labels(&Axis::log([3.1, 127.1].into_iter())), ["2", "5", "10", "20", "50", "100", "200"]);
        assert_eq!(labels(&Axis::log([12_000.0, 13_000.0].into_iter())), ["10k", "20k"]);
        assert_eq!(
            labels(&Axis::log([0.5, 90_000.0].into_iter())),
            ["1", "10", "100", "1000", "10k", "100k"]
        );
        let axis = Axis::log([1.0, 100.0].into_iter()).at(100.0, 0.0);
        assert_eq!((axis.px(10.0), axis.px(0.0)), (50.0, 100.0));
    }

    #[test]
    fn no_value_breaks_an_axis() {
        let hostile = [f64::NAN, f64::INFINITY, 0.0, -1.0, 1e300, f64::MIN_POSITIVE, f64::MAX];
        for a in hostile {
            for b in hostile {
                for axis in [Axis::linear([a, b].into_iter(), 5), Axis::log([a, b].into_iter())] {
                    let axis = axis.at(10.0, 90.0);
                    assert!(axis.ticks.len() < 40, "{a} {b}: {} ticks", axis.ticks.len());
                    for v in [a, b].into_iter().filter(|v| v.is_finite()) {
                        assert!((10.0..=90.0).contains(&axis.px(v)), "{a} {b}: {v} at {}", axis.px(v));
                    }
                }
            }
        }
        assert_eq!(labels(&Axis::linear([].into_iter(), 2)), ["0", "0.5", "1.0"]);
    }
}
