//! Colours, hatchings and marks that tell systems apart: by colour for most eyes and both grounds, by hatching and mark for all eyes, on
//! grey paper as well.
//!
//! The hues are those of Okabe and Ito ("Color Universal Design", 2008), darkened on white and lightened on black until each stands out from
//! its ground by 3:1 (WCAG 2.1, 1.4.11).

use std::fmt::Write;

/// Meaning of a stroke or a fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    /// Text and axes.
    Text,
    /// Text of less weight.
    Muted,
    /// Lines behind the data.
    Grid,
    /// The ground.
    Ground,
    /// The n-th system.
    System(usize),
}

/// A colour on white and on black, each 0xRRGGBB.
type Pair = (u32, u32);

const SYSTEMS: [Pair; 8] = [
    (0x005a96, 0x6cb4f0),
    (0xc65200, 0xff9a52),
    (0x007f5c, 0x3fd0a4),
    (0xa5447f, 0xf0a6d2),
    (0x8a6800, 0xf0dc50),
    (0x4a4a4a, 0xd0d0d0),
    (0x5b3fb5, 0xb8a4ff),
    (0x8c1c2c, 0xff8c98),
];
const TEXT: Pair = (0x1b1b1b, 0xe8e8e8);
const MUTED: Pair = (0x5f5f5f, 0xa8a8a8);
const GRID: Pair = (0xd9d9d9, 0x444444);
const GROUND: Pair = (0xffffff, 0x181818);

/// How a bar is filled over its tint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hatch {
    /// The full colour.
    Full,
    /// Rising lines.
    Rising,
    /// The tint alone.
    Tint,
    /// Falling lines.
    Falling,
    /// Both.
    Crossed,
    /// Upright lines.
    Upright,
    /// Flat lines.
    Flat,
    /// Upright and flat.
    Squared,
}

/// The shape of a point of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Filled circle.
    Disc,
    /// Filled square.
    Square,
    /// Open circle.
    Ring,
    /// Filled triangle, point up.
    Triangle,
    /// Open square.
    Box,
    /// Filled diamond.
    Diamond,
    /// Triangle, point down.
    Wedge,
    /// Open diamond.
    Rhomb,
}

const HATCHES: [Hatch; 8] = [
    Hatch::Full,
    Hatch::Rising,
    Hatch::Tint,
    Hatch::Crossed,
    Hatch::Falling,
    Hatch::Upright,
    Hatch::Flat,
    Hatch::Squared,
];
const MARKS: [Mark; 8] = [
    Mark::Disc,
    Mark::Square,
    Mark::Ring,
    Mark::Triangle,
    Mark::Box,
    Mark::Diamond,
    Mark::Wedge,
    Mark::Rhomb,
];
/// Dashes of lines, in pixels: drawn, left out.
const DASHES: [&[f64]; 4] = [&[], &[7.0, 3.0], &[2.0, 2.5], &[9.0, 3.0, 2.0, 3.0]];

/// Colours repeat after these many systems, hatchings and marks with a shift: pairs are different up to the square of it.
pub const KINDS: usize = SYSTEMS.len();

/// The hatching of the n-th system.
pub fn hatch(system: usize) -> Hatch {
    HATCHES[(system + system / KINDS) % KINDS]
}

/// The mark of the n-th system.
pub fn mark(system: usize) -> Mark {
    MARKS[(system + system / KINDS) % KINDS]
}

/// The dash of the n-th system's lines.
pub fn dash(system: usize) -> &'static [f64] {
    DASHES[(system + system / KINDS) % DASHES.len()]
}

impl Ink {
    fn pair(self) -> Pair {
        match self {
            Ink::Text => TEXT,
            Ink::Muted => MUTED,
            Ink::Grid => GRID,
            Ink::Ground => GROUND,
            Ink::System(n) => SYSTEMS[n % KINDS],
        }
    }

    /// The name of its class in a style sheet, after `f` (fill) or `s` (stroke).
    pub fn class(self) -> String {
        match self {
            Ink::Text => "text".into(),
            Ink::Muted => "muted".into(),
            Ink::Grid => "grid".into(),
            Ink::Ground => "ground".into(),
            Ink::System(n) => format!("{}", n % KINDS),
        }
    }
}

/// The rules of all inks, `.f-NAME` and `.s-NAME`, light everywhere and dark on screens that ask for it. Plain colours, no variables: many
/// programs that show SVG know no others.
pub fn style_sheet() -> String {
    let inks = [Ink::Text, Ink::Muted, Ink::Grid, Ink::Ground];
    let inks: Vec<Ink> = inks.into_iter().chain((0..KINDS).map(Ink::System)).collect();
    let rules = |out: &mut String, colour: &dyn Fn(Pair) -> u32| {
        for ink in &inks {
            let (name, colour) = (ink.class(), colour(ink.pair()));
            let _ = write!(out, ".f-{name}{{fill:#{colour:06x}}}.s-{name}{{stroke:#{colour:06x}}}");
        }
    };
    let mut out = String::new();
    rules(&mut out, &|pair| pair.0);
    out.push_str("\n@media screen and (prefers-color-scheme:dark){");
    rules(&mut out, &|pair| pair.1);
    out.push('}');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linear(colour: u32) -> [f64; 3] {
        let [_, r, g, b] = colour.to_be_bytes();
        [r, g, b].map(|c| {
            let c = f64::from(c) / 255.0;
            if c <= 0.040_45 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
        })
    }

    fn luminance(colour: u32) -> f64 {
        let [r, g, b] = linear(colour);
        0.2126 * r + 0.7152 * g + 0.0722 * b
    }

    /// WCAG 2.1, contrast ratio.
    fn contrast(a: u32, b: u32) -> f64 {
        let (a, b) = (luminance(a) + 0.05, luminance(b) + 0.05);
        if a > b { a / b } else { b / a }
    }

    #[test]
    fn everything_stands_out_from_its_ground() {
        for pair in SYSTEMS {
            assert!(contrast(pair.0, GROUND.0) >= 3.0 && contrast(pair.1, GROUND.1) >= 3.0, "{pair:06x?}");
        }
        for pair in [TEXT, MUTED] {
            assert!(contrast(pair.0, GROUND.0) >= 4.5 && contrast(pair.1, GROUND.1) >= 4.5, "{pair:06x?}");
        }
    }

    /// Distance in CIELAB (1976) of two linear colours.
    fn distance(a: [f64; 3], b: [f64; 3]) -> f64 {
        let lab = |[r, g, b]: [f64; 3]| {
            let f = |t: f64| if t > 0.008_856 { t.cbrt() } else { 7.787 * t + 16.0 / 116.0 };
            let x = f((0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505);
            let y = f(0.2126 * r + 0.7152 * g + 0.0722 * b);
            let z = f((0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089);
            [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
        };
        lab(a).iter().zip(lab(b)).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
    }

    /// The first four systems are as many as most reports have: their colours differ for the colour-blind too (matrices of Machado,
    /// Oliveira and Fernandes 2009, full severity).
    #[test]
    fn colours_differ_for_the_colour_blind() {
        let protanopia = [
            [0.152_286, 1.052_583, -0.204_868],
            [0.114_503, 0.786_281, 0.099_216],
            [-0.003_882, -0.048_116, 1.051_998],
        ];
        let deuteranopia = [
            [0.367_322, 0.860_646, -0.227_968],
            [0.280_085, 0.672_501, 0.047_413],
            [-0.011_820, 0.042_940, 0.968_881],
        ];
        let normal = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]];
        for eye in [protanopia, deuteranopia, normal] {
            let seen = |c: u32| {
                let rgb = linear(c);
                eye.map(|row| row.iter().zip(rgb).map(|(m, c)| m * c).sum::<f64>().clamp(0.0, 1.0))
            };
            for (i, a) in SYSTEMS[..4].iter().enumerate() {
                for b in &SYSTEMS[..i] {
                    let near = distance(seen(a.0), seen(b.0)).min(distance(seen(a.1), seen(b.1)));
                    assert!(near >= 10.0, "{a:06x?} and {b:06x?} are {near:.1} apart");
                }
            }
        }
    }

    #[test]
    fn systems_differ_without_colour() {
        let kinds = |of: &dyn Fn(usize) -> String| {
            (0..KINDS * KINDS)
                .map(|n| format!("{} {}", n % KINDS, of(n)))
                .collect::<std::collections::BTreeSet<_>>()
                .len()
        };
        assert_eq!(kinds(&|n| format!("{:?}", hatch(n))), KINDS * KINDS);
        assert_eq!(kinds(&|n| format!("{:?}", mark(n))), KINDS * KINDS);
        assert!((1..KINDS).all(|n| hatch(n) != hatch(0) && mark(n) != mark(0)));
    }
}
