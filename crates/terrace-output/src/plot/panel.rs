//! The kinds of plots: bars of means with their intervals, and curves.
//!
//! A panel is 440 pixels wide, so that it can be read on a telephone and stands beside a second one elsewhere.

use super::axis::{Axis, Tick};
use super::palette::Ink;
use super::picture::{Anchor, FONT, Picture, Point, Shape};
use super::text::{count, fitted, number, width};

/// Pixels.
pub const WIDTH: f64 = 440.0;
const BAR: f64 = 15.0;
const GAP: f64 = 5.0;
const RIGHT: f64 = 14.0;
const CURVES: f64 = 270.0;
const NO_RUN: &str = "no good run";
/// A curve with more points has a mark only at some.
const MARKS_MAX: usize = 16;

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Which system.
    pub system: usize,
    /// Its name.
    pub name: String,
    /// `None`: no run.
    pub value: Option<Mean>,
}

/// A bar's values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mean {
    /// Its length.
    pub mean: f64,
    /// Ends of its interval; a single run has none.
    pub interval: Option<(f64, f64)>,
    /// Runs behind it.
    pub runs: usize,
}

/// Bars that stand together.
#[derive(Clone, Debug)]
pub struct Group {
    /// Left of them.
    pub label: String,
    /// In the order of the systems.
    pub bars: Vec<Bar>,
}

/// A panel of horizontal bars from zero, with a whisker for each interval and the mean in numbers. `axis` is what they measure, with unit.
pub fn bars(title: String, axis: &str, groups: &[Group]) -> Picture {
    let widest = groups.iter().map(|g| width(&g.label, FONT)).fold(0.0, f64::max);
    let left = widest.min(130.0) + 12.0;
    let all = || groups.iter().flat_map(|g| &g.bars).filter_map(|b| b.value);
    let ends = all()
        .flat_map(|v| [v.mean].into_iter().chain(v.interval.into_iter().flat_map(|(low, high)| [low, high])));
    let numbers = all().map(|v| width(&number(v.mean), FONT)).fold(0.0, f64::max);
    let scale = Axis::linear(ends, 4).at(left, WIDTH - RIGHT - numbers - 8.0);
    let rows: usize = groups.iter().map(|g| g.bars.len()).sum();
    let bottom = 8.0 + rows as f64 * (BAR + GAP) + groups.len() as f64 * 8.0;
    let mut picture = Picture::new(title, WIDTH, bottom + 40.0);
    let grid = scale.ticks.iter().map(|t| [(scale.px(t.value), 4.0), (scale.px(t.value), bottom)]).collect();
    picture.lines(Ink::Grid, grid);
    for tick in spread(&scale) {
        let at = (scale.px(tick.value), bottom + 15.0);
        picture.text(at, Anchor::Middle, Ink::Text, tick.label.clone());
    }
    let middle = (left + scale.px(f64::MAX)) / 2.0;
    picture.text((middle, bottom + 32.0), Anchor::Middle, Ink::Text, axis);
    let mut y = 8.0;
    for group in groups {
        let center = y + group.bars.len() as f64 * (BAR + GAP) / 2.0 + 2.0;
        let label = fitted(&group.label, FONT, left - 12.0);
        picture.text((left - 8.0, center), Anchor::End, Ink::Text, label);
        for bar in &group.bars {
            draw_bar(bar, &scale, y, &mut picture);
            y += BAR + GAP;
        }
        y += 8.0;
    }
    let zero = scale.px(0.0);
    picture.lines(Ink::Muted, vec![[(zero, 4.0), (zero, bottom)]]);
    picture
}

fn draw_bar(bar: &Bar, scale: &Axis, y: f64, picture: &mut Picture) {
    let (zero, base) = (scale.px(0.0), y + BAR - 3.0);
    let Some(value) = bar.value else {
        let right = zero + 6.0 + width(NO_RUN, FONT) < WIDTH;
        let (x, anchor) = if right { (zero + 6.0, Anchor::Start) } else { (zero - 6.0, Anchor::End) };
        picture.text((x, base), anchor, Ink::Muted, NO_RUN);
        return;
    };
    let end = scale.px(value.mean);
    let tip = match value.interval {
        Some((low, high)) => format!(
            "{}: {} ({} to {}, {})",
            bar.name,
            number(value.mean),
            number(low),
            number(high),
            count(value.runs, "run")
        ),
        None => format!("{}: {} (one run, no interval)", bar.name, number(value.mean)),
    };
    picture.bar(bar.system, (zero.min(end), y), ((end - zero).abs(), BAR), tip);
    let mut right = zero.max(end);
    if let Some((low, high)) = value.interval {
        let (low, high, middle) = (scale.px(low), scale.px(high), y + BAR / 2.0);
        let cap = |x: f64| [(x, middle - 4.0), (x, middle + 4.0)];
        let lines = vec![[(low, middle), (high, middle)], cap(low), cap(high)];
        // A whisker over a full bar needs an edge of the ground to be seen.
        picture.shapes.push(Shape::Segments { lines: lines.clone(), ink: Ink::Ground, width: 4.0 });
        picture.shapes.push(Shape::Segments { lines, ink: Ink::Text, width: 1.4 });
        right = right.max(high);
    }
    picture.text((right + 6.0, base), Anchor::Start, Ink::Text, number(value.mean));
}

/// The ticks of a horizontal axis whose labels do not touch.
fn spread(scale: &Axis) -> Vec<&Tick> {
    let mut end = f64::MIN;
    let free = |tick: &&Tick| {
        let (x, half) = (scale.px(tick.value), width(&tick.label, FONT) / 2.0);
        let free = x - half > end;
        if free {
            end = x + half + 4.0;
        }
        free
    };
    scale.ticks.iter().filter(free).collect()
}

/// A point of a curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dot {
    /// Along.
    pub x: f64,
    /// Up.
    pub y: f64,
    /// Ends of its interval.
    pub interval: Option<(f64, f64)>,
}

/// One system's curve.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Which system.
    pub system: usize,
    /// Its name.
    pub name: String,
    /// `x` rises.
    pub dots: Vec<Dot>,
    /// Single runs behind it, drawn thin.
    pub runs: Vec<Vec<Point>>,
    /// Pixels to the right: equal curves beside each other are all seen.
    pub shift: f64,
}

/// A panel of curves. `ends` are the names of the two directions.
pub fn curves(title: String, (x, y): (Axis, Axis), ends: (&str, &str), curves: &[Curve]) -> Picture {
    let labels = y.ticks.iter().map(|t| width(&t.label, FONT)).fold(0.0, f64::max);
    let (left, top, bottom) = (labels.min(90.0) + 32.0, 10.0, CURVES - 40.0);
    let (x, y) = (x.at(left + 8.0, WIDTH - RIGHT - 8.0), y.at(bottom, top));
    let mut picture = Picture::new(title, WIDTH, CURVES);
    let flat = y.ticks.iter().map(|t| [(left, y.px(t.value)), (WIDTH - RIGHT, y.px(t.value))]).collect();
    picture.lines(Ink::Grid, flat);
    let ticks = spread(&x);
    let upright = ticks.iter().map(|t| [(x.px(t.value), top), (x.px(t.value), bottom)]).collect();
    picture.lines(Ink::Grid, upright);
    for tick in &y.ticks {
        let at = (left - 6.0, y.px(tick.value) + 4.0);
        picture.text(at, Anchor::End, Ink::Text, tick.label.clone());
    }
    for tick in ticks {
        picture.text((x.px(tick.value), bottom + 15.0), Anchor::Middle, Ink::Text, tick.label.clone());
    }
    picture.text(((left + WIDTH - RIGHT) / 2.0, CURVES - 8.0), Anchor::Middle, Ink::Text, ends.0);
    let at = (13.0, (top + bottom) / 2.0);
    let text = ends.1.to_string();
    picture.shapes.push(Shape::Text {
        at,
        anchor: Anchor::Middle,
        text,
        size: FONT,
        ink: Ink::Text,
        upright: true,
    });
    for curve in curves {
        draw_curve(curve, &x, &y, &mut picture);
    }
    picture
}

fn draw_curve(curve: &Curve, x: &Axis, y: &Axis, picture: &mut Picture) {
    let ink = Ink::System(curve.system);
    for run in &curve.runs {
        let points = run.iter().map(|p| (x.px(p.0), y.px(p.1))).collect();
        picture.shapes.push(Shape::Line { points, ink, width: 1.0, opacity: 0.3, dash: &[] });
    }
    let at = |dot: &Dot| (x.px(dot.x) + curve.shift, y.px(dot.y));
    if curve.dots.len() > 1 {
        picture.curve(curve.system, curve.dots.iter().map(at).collect());
    }
    let marked = curve.dots.len() <= MARKS_MAX;
    let every = if marked { 1 } else { curve.dots.len().div_ceil(8) };
    // Curves that lie on each other have their marks at different places.
    let first = if marked { 0 } else { curve.system * every / 4 % every };
    for dot in curve.dots.iter().skip(first).step_by(every) {
        if let Some((low, high)) = dot.interval {
            let (px, low, high) = (at(dot).0, y.px(low), y.px(high));
            let lines = vec![
                [(px, low), (px, high)],
                [(px - 3.0, low), (px + 3.0, low)],
                [(px - 3.0, high), (px + 3.0, high)],
            ];
            picture.shapes.push(Shape::Segments { lines, ink, width: 1.2 });
        }
        picture.mark(curve.system, at(dot), format!("{}: {}", curve.name, number(dot.y)));
    }
}

/// How far to the right the n-th of so many curves goes: 3 pixels from one to the next, or less of many.
pub fn shift(n: usize, of: usize) -> f64 {
    let step = (14.0 / of.max(1) as f64).min(3.0);
    (n as f64 - (of as f64 - 1.0) / 2.0) * step
}

/// The axis of percentiles: as far apart as the shares of operations beyond them, by powers of ten. A percentile of 100 (the maximum)
/// stands after the last other one.
#[derive(Clone, Debug)]
pub struct Tail {
    max: f64,
}

impl Tail {
    /// For these percentiles, 0 to 100.
    pub fn of(percentiles: impl Iterator<Item = f64>) -> Tail {
        let below = percentiles.filter(|p| *p < 100.0).map(nines);
        Tail { max: below.fold(1.0, f64::max) + 0.5 }
    }

    /// Along the axis.
    pub fn x(&self, percentile: f64) -> f64 {
        if percentile < 100.0 { nines(percentile) } else { self.max }
    }

    /// The axis for these percentiles.
    pub fn axis(&self, percentiles: impl Iterator<Item = f64>) -> Axis {
        let names = [
            ("0", 0.0),
            ("50", 50.0),
            ("90", 90.0),
            ("99", 99.0),
            ("99.9", 99.9),
            ("99.99", 99.99),
            ("99.999", 99.999),
            ("max", 100.0),
        ];
        let ticks = names.map(|(label, p)| Tick { value: self.x(p), label: label.into() });
        Axis::custom(percentiles.map(|p| self.x(p)), ticks.into())
    }
}

fn nines(percentile: f64) -> f64 {
    -(1.0 - percentile.max(0.0) / 100.0).max(1e-9).log10()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(mean: f64) -> Option<Mean> {
        Some(Mean { mean, interval: Some((mean * 0.9, mean * 1.1)), runs: 3 })
    }

    /// All texts of a picture with their estimated boxes: left, top, right, bottom.
    fn boxes(picture: &Picture) -> Vec<(String, [f64; 4])> {
        let of = |shape: &Shape| match shape {
            Shape::Text { at, anchor, text, size, upright: false, .. } => {
                let wide = width(text, *size);
                let left = at.0 - wide * [0.0, 0.5, 1.0][*anchor as usize];
                Some((text.clone(), [left, at.1 - size * 0.8, left + wide, at.1 + size * 0.2]))
            }
            _ => None,
        };
        picture.shapes.iter().filter_map(of).collect()
    }

    fn assert_apart(picture: &Picture) {
        let boxes = boxes(picture);
        for (i, (text, a)) in boxes.iter().enumerate() {
            assert!(a[0] >= 0.0 && a[2] <= picture.width && a[3] <= picture.height, "{text} outside: {a:?}");
            for (other, b) in &boxes[..i] {
                let apart = a[2] <= b[0] || b[2] <= a[0] || a[3] <= b[1] || b[3] <= a[1];
                assert!(apart, "{text} over {other}: {a:?} {b:?}");
            }
        }
    }

    #[test]
    fn texts_of_bars_do_not_touch() {
        for mean in [0.001, 3.0, 8467.89, 1_234_567.0, 1e12, -5.0] {
            let group = |label: &str| Group {
                label: label.into(),
                bars: (0..5)
                    .map(|system| Bar {
                        system,
                        name: "n".repeat(200),
                        value: if system == 3 { None } else { interval(mean / (1.0 + system as f64)) },
                    })
                    .collect(),
            };
            let picture = bars("title".into(), "MiB/s", &[group("1 job"), group(&"long label ".repeat(9))]);
            assert_apart(&picture);
        }
    }

    #[test]
    fn texts_of_curves_do_not_touch() {
        for top in [1e-4, 0.5, 130.0, 2e6, 1e15] {
            let percentiles = [1.0, 50.0, 90.0, 99.0, 99.9, 99.99, 100.0];
            let tail = Tail::of(percentiles.into_iter());
            let dots = percentiles.map(|p| Dot { x: tail.x(p), y: top * p / 100.0, interval: None }).to_vec();
            let axes = (tail.axis(percentiles.into_iter()), Axis::log(dots.iter().map(|d| d.y)));
            let curve = Curve { system: 1, name: "n".into(), dots, runs: vec![], shift: 0.0 };
            assert_apart(&curves("t".into(), axes, ("per cent", "\u{b5}s"), &[curve]));
        }
    }

    #[test]
    fn an_interval_is_where_its_values_are() {
        let bar = Bar { system: 0, name: "k".into(), value: interval(100.0) };
        let picture = bars("t".into(), "u", &[Group { label: "g".into(), bars: vec![bar] }]);
        let whisker = picture.shapes.iter().find_map(|s| match s {
            Shape::Segments { lines, ink: Ink::Text, .. } => Some(lines[0]),
            _ => None,
        });
        let [low, high] = whisker.expect("a whisker").map(|p| p.0);
        let bar = picture.shapes.iter().find_map(|s| match s {
            Shape::Area { points, .. } => Some((points[0].0, points[1].0)),
            _ => None,
        });
        let (zero, end) = bar.expect("a bar");
        assert!(
            ((low - zero) / (end - zero) - 0.9).abs() < 1e-9
                && ((high - zero) / (end - zero) - 1.1).abs() < 1e-9
        );
    }
}
