//! A drawing of few kinds of shapes, written as SVG. Hatchings are lines of it, so that a picture has no identifiers that could clash with those
//! of another in one page.

use super::palette::{Hatch, Ink, Mark, dash, hatch, mark, style_sheet};
use super::text::{escaped, width, wrapped};
use std::fmt::Write;

/// Pixels from the left and from the top.
pub type Point = (f64, f64);

/// Where a text stands to its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// Begins there.
    Start,
    /// Is centred there.
    Middle,
    /// Ends there.
    End,
}

/// One shape.
#[derive(Clone, Debug)]
pub enum Shape {
    /// Single lines.
    Segments {
        /// From, to.
        lines: Vec<[Point; 2]>,
        /// Colour.
        ink: Ink,
        /// Pixels.
        width: f64,
    },
    /// A line through points.
    Line {
        /// Two or more.
        points: Vec<Point>,
        /// Colour.
        ink: Ink,
        /// Pixels.
        width: f64,
        /// 0 to 1.
        opacity: f64,
        /// Pixels drawn and left out in turn; empty: all drawn.
        dash: &'static [f64],
    },
    /// A filled polygon, with a border of the same colour.
    Area {
        /// Three or more.
        points: Vec<Point>,
        /// Colour.
        ink: Ink,
        /// Of the fill, 0 to 1.
        opacity: f64,
        /// Pixels of the border.
        border: f64,
        /// Text under a pointer over it.
        tip: String,
    },
    /// A circle with a border of its colour; filled, or with the ground inside.
    Disc {
        /// Centre.
        at: Point,
        /// Pixels.
        radius: f64,
        /// Colour.
        ink: Ink,
        /// With its own colour.
        filled: bool,
        /// Text under a pointer over it.
        tip: String,
    },
    /// One line of text.
    Text {
        /// On the base line.
        at: Point,
        /// To `at`.
        anchor: Anchor,
        /// As it is, not escaped.
        text: String,
        /// Pixels.
        size: f64,
        /// Colour.
        ink: Ink,
        /// Reads upwards.
        upright: bool,
    },
}

/// A drawing.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    /// Its subject; a caption in a page, drawn above it in a file.
    pub title: String,
    /// Pixels.
    pub width: f64,
    /// Pixels.
    pub height: f64,
    /// From back to front.
    pub shapes: Vec<Shape>,
}

/// How a legend shows its systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swatch {
    /// As bars.
    Bar,
    /// As lines with marks.
    Line,
}

/// Font size of everything but captions.
pub const FONT: f64 = 12.0;
const SWATCH: f64 = 30.0;
const ROW: f64 = 18.0;
const PAD: f64 = 10.0;

impl Picture {
    /// An empty one.
    pub fn new(title: String, width: f64, height: f64) -> Picture {
        Picture { title, width, height, shapes: Vec::new() }
    }

    /// Adds one line of text.
    pub fn text(&mut self, at: Point, anchor: Anchor, ink: Ink, text: impl Into<String>) {
        self.shapes.push(Shape::Text { at, anchor, text: text.into(), size: FONT, ink, upright: false });
    }

    /// Adds single lines of one pixel.
    pub fn lines(&mut self, ink: Ink, lines: Vec<[Point; 2]>) {
        self.shapes.push(Shape::Segments { lines, ink, width: 1.0 });
    }

    /// Adds a bar of a system.
    pub fn bar(&mut self, system: usize, corner: Point, size: (f64, f64), tip: String) {
        let ((x, y), (w, h)) = (corner, size);
        let kind = hatch(system);
        let opacity = if kind == Hatch::Full { 0.85 } else { 0.22 };
        let points = vec![(x, y), (x + w, y), (x + w, y + h), (x, y + h)];
        self.cover(points.clone());
        self.shapes.push(Shape::Area { points, ink: Ink::System(system), opacity, border: 1.0, tip });
        let lines = hatching(kind, x, y, w, h);
        if !lines.is_empty() {
            self.shapes.push(Shape::Segments { lines, ink: Ink::System(system), width: 1.2 });
        }
    }

    /// Adds a system's mark.
    pub fn mark(&mut self, system: usize, at: Point, tip: String) {
        let (ink, (x, y), r) = (Ink::System(system), at, 4.0);
        let square = [(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)];
        let diamond = [(0.0, -1.2), (1.2, 0.0), (0.0, 1.2), (-1.2, 0.0)];
        let (corners, filled): (&[Point], bool) = match mark(system) {
            Mark::Disc => (&[], true),
            Mark::Ring => (&[], false),
            Mark::Square => (&square, true),
            Mark::Box => (&square, false),
            Mark::Diamond => (&diamond, true),
            Mark::Rhomb => (&diamond, false),
            Mark::Triangle => (&[(0.0, -1.15), (1.1, 0.85), (-1.1, 0.85)], true),
            Mark::Wedge => (&[(0.0, 1.15), (1.1, -0.85), (-1.1, -0.85)], true),
        };
        if corners.is_empty() {
            self.shapes.push(Shape::Disc { at, radius: r * 0.95, ink, filled, tip });
            return;
        }
        let points: Vec<Point> = corners.iter().map(|(dx, dy)| (x + dx * r, y + dy * r)).collect();
        if !filled {
            self.cover(points.clone());
        }
        let opacity = if filled { 1.0 } else { 0.0 };
        self.shapes.push(Shape::Area { points, ink, opacity, border: 1.5, tip });
    }

    /// Hides what is below an area.
    fn cover(&mut self, points: Vec<Point>) {
        self.shapes.push(Shape::Area {
            points,
            ink: Ink::Ground,
            opacity: 1.0,
            border: 0.0,
            tip: String::new(),
        });
    }

    /// Adds a system's line.
    pub fn curve(&mut self, system: usize, points: Vec<Point>) {
        let shape =
            Shape::Line { points, ink: Ink::System(system), width: 2.0, opacity: 1.0, dash: dash(system) };
        self.shapes.push(shape);
    }

    /// A legend's mark beside a name.
    pub fn swatch(kind: Swatch, system: usize) -> Picture {
        let mut picture = Picture::new(String::new(), SWATCH, 14.0);
        match kind {
            Swatch::Bar => picture.bar(system, (1.0, 1.0), (SWATCH - 2.0, 12.0), String::new()),
            Swatch::Line => {
                picture.curve(system, vec![(0.0, 7.0), (SWATCH, 7.0)]);
                picture.mark(system, (SWATCH / 2.0, 7.0), String::new());
            }
        }
        picture
    }

    /// A copy to stand alone: title above, legend below, both wrapped to the width.
    pub fn framed(&self, kind: Swatch, systems: &[String]) -> Picture {
        let (size, room) = (14.0, self.width - 2.0 * PAD);
        let title = wrapped(&self.title, size, room, 4);
        let top = PAD + ROW * title.len() as f64 + 6.0;
        let mut all = Picture::new(self.title.clone(), self.width, top);
        for (i, line) in title.into_iter().enumerate() {
            let at = (PAD, PAD + 12.0 + ROW * i as f64);
            let text =
                Shape::Text { at, anchor: Anchor::Start, text: line, size, ink: Ink::Text, upright: false };
            all.shapes.push(text);
        }
        all.append(self, 0.0, top);
        all.height += self.height + PAD;
        let (mut x, mut y) = (PAD, all.height);
        for (n, name) in systems.iter().enumerate() {
            let lines = wrapped(name, FONT, room - SWATCH - 6.0, 4);
            let wide = SWATCH + 6.0 + lines.iter().map(|line| width(line, FONT)).fold(0.0, f64::max);
            if x > PAD && x + wide > self.width - PAD {
                (x, y) = (PAD, y + ROW);
            }
            all.append(&Picture::swatch(kind, n), x, y);
            let below = ROW * (lines.len() - 1) as f64;
            for (i, line) in lines.into_iter().enumerate() {
                all.text((x + SWATCH + 6.0, y + 11.0 + ROW * i as f64), Anchor::Start, Ink::Text, line);
            }
            (x, y) = if below > 0.0 { (PAD, y + below + ROW) } else { (x + wide + 18.0, y) };
        }
        all.height = if x > PAD { y + ROW } else { y } + PAD;
        all
    }

    /// Adds the shapes of another, moved.
    fn append(&mut self, other: &Picture, dx: f64, dy: f64) {
        let to = |(x, y): Point| (x + dx, y + dy);
        self.shapes.extend(other.shapes.iter().cloned().map(|mut shape| {
            match &mut shape {
                Shape::Segments { lines, .. } => lines.iter_mut().flatten().for_each(|p| *p = to(*p)),
                Shape::Line { points, .. } | Shape::Area { points, .. } => {
                    points.iter_mut().for_each(|p| *p = to(*p));
                }
                Shape::Disc { at, .. } | Shape::Text { at, .. } => *at = to(*at),
            }
            shape
        }));
    }

    /// As an SVG element to stand in a page that has [`style_sheet`]'s rules.
    pub fn inline_svg(&self) -> String {
        let mut out = format!(
            "<svg class=\"plot\" viewBox=\"0 0 {} {}\" width=\"{}\" height=\"{}\" role=\"img\" aria-label=\"{}\">",
            px(self.width),
            px(self.height),
            px(self.width),
            px(self.height),
            escaped(&self.title)
        );
        self.shapes.iter().for_each(|shape| shape.svg(&mut out));
        out.push_str("</svg>\n");
        out
    }

    /// As an SVG file, with ground and colours of its own.
    pub fn svg_file(&self) -> String {
        let (w, h) = (px(self.width), px(self.height));
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w} {h}\" width=\"{w}\" height=\"{h}\" role=\"img\">\n\
             <title>{}</title>\n<style>{}\ntext{{font-family:system-ui,'DejaVu Sans',sans-serif}}</style>\n\
             <rect class=\"f-ground\" width=\"{w}\" height=\"{h}\"/>\n",
            escaped(&self.title),
            style_sheet()
        );
        self.shapes.iter().for_each(|shape| shape.svg(&mut out));
        out.push_str("</svg>\n");
        out
    }
}

/// A coordinate in a tenth of a pixel.
fn px(v: f64) -> String {
    let text = format!("{v:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_string)
}

fn pairs(points: &[Point]) -> String {
    points.iter().map(|(x, y)| format!("{},{}", px(*x), px(*y))).collect::<Vec<_>>().join(" ")
}

fn tipped(tip: &str) -> String {
    if tip.is_empty() { String::new() } else { format!("<title>{}</title>", escaped(tip)) }
}

impl Shape {
    fn svg(&self, out: &mut String) {
        let _ = match self {
            Shape::Segments { lines, ink, width } => {
                let line = |[a, b]: &[Point; 2]| format!("M{} {}L{} {}", px(a.0), px(a.1), px(b.0), px(b.1));
                let data: String = lines.iter().map(line).collect();
                writeln!(out, "<path class=\"s-{}\" stroke-width=\"{width}\" d=\"{data}\"/>", ink.class())
            }
            Shape::Line { points, ink, width, opacity, dash } => {
                let dash: Vec<String> = dash.iter().map(f64::to_string).collect();
                let dash = if dash.is_empty() {
                    String::new()
                } else {
                    format!(" stroke-dasharray=\"{}\"", dash.join(" "))
                };
                writeln!(
                    out,
                    "<polyline class=\"s-{}\" fill=\"none\" stroke-width=\"{width}\" stroke-linejoin=\"round\" \
                     stroke-opacity=\"{opacity}\"{dash} points=\"{}\"/>",
                    ink.class(),
                    pairs(points)
                )
            }
            Shape::Area { points, ink, opacity, border, tip } => writeln!(
                out,
                "<polygon class=\"f-{0} s-{0}\" fill-opacity=\"{opacity}\" stroke-width=\"{border}\" points=\"{1}\">{2}</polygon>",
                ink.class(),
                pairs(points),
                tipped(tip)
            ),
            Shape::Disc { at, radius, ink, filled, tip } => writeln!(
                out,
                "<circle class=\"f-{} s-{}\" stroke-width=\"1.5\" cx=\"{}\" cy=\"{}\" r=\"{radius:.1}\">{}</circle>",
                if *filled { *ink } else { Ink::Ground }.class(),
                ink.class(),
                px(at.0),
                px(at.1),
                tipped(tip)
            ),
            Shape::Text { at, anchor, text, size, ink, upright } => {
                let (x, y) = (px(at.0), px(at.1));
                let at = if *upright {
                    format!("transform=\"translate({x} {y}) rotate(-90)\"")
                } else {
                    format!("x=\"{x}\" y=\"{y}\"")
                };
                let anchor = ["start", "middle", "end"][*anchor as usize];
                let (class, text) = (ink.class(), escaped(text));
                writeln!(
                    out,
                    "<text class=\"f-{class}\" font-size=\"{size}\" text-anchor=\"{anchor}\" {at}>{text}</text>"
                )
            }
        };
    }
}

/// Lines of a hatching, cut to the rectangle.
fn hatching(kind: Hatch, x: f64, y: f64, w: f64, h: f64) -> Vec<[Point; 2]> {
    let upright = || grid_steps(w, 4.0).map(move |d| [(x + d, y), (x + d, y + h)]);
    let flat = || grid_steps(h, 4.0).map(move |d| [(x, y + d), (x + w, y + d)]);
    // Rising: x + y is the same on a line; the rectangle cuts it where either meets a side.
    let rising = || {
        grid_steps(w + h, 6.0).map(move |d| {
            let (left, right) = ((d - h).max(0.0), d.min(w));
            [(x + left, y + d - left), (x + right, y + d - right)]
        })
    };
    let falling = || rising().map(move |line| line.map(|(px, py)| (px, 2.0 * y + h - py)));
    match kind {
        Hatch::Full | Hatch::Tint => Vec::new(),
        Hatch::Rising => rising().collect(),
        Hatch::Falling => falling().collect(),
        Hatch::Crossed => rising().chain(falling()).collect(),
        Hatch::Upright => upright().collect(),
        Hatch::Flat => flat().collect(),
        Hatch::Squared => upright().chain(flat()).collect(),
    }
}

/// Multiples of `step` inside (0, length).
fn grid_steps(length: f64, step: f64) -> impl Iterator<Item = f64> {
    (1..).map(move |i| f64::from(i) * step).take_while(move |d| *d < length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hatchings_stay_in_their_bar() {
        for n in 0..super::super::palette::KINDS {
            for (w, h) in [(100.0, 14.0), (3.0, 14.0), (0.0, 14.0), (30.0, 2.0)] {
                for (x, y) in hatching(hatch(n), 10.0, 20.0, w, h).into_iter().flatten() {
                    let inside = (9.99..=10.01 + w).contains(&x) && (19.99..=20.01 + h).contains(&y);
                    assert!(inside, "{:?} {w}x{h}: {x}, {y}", hatch(n));
                }
            }
        }
    }

    #[test]
    fn a_framed_picture_holds_all_its_text_inside() {
        let names: Vec<String> = ["kernel".into(), "terrace ".repeat(40), "x".repeat(400)].to_vec();
        let picture = Picture::new("a title of many words ".repeat(20), 440.0, 100.0);
        let framed = picture.framed(Swatch::Line, &names);
        let mut bottoms = Vec::new();
        for shape in &framed.shapes {
            if let Shape::Text { at, text, size, .. } = shape {
                assert!(at.0 + width(text, *size) <= 440.0 && at.1 < framed.height, "{text}");
                assert!(!bottoms.contains(&(at.0 as i64, at.1 as i64)), "two texts at {at:?}");
                bottoms.push((at.0 as i64, at.1 as i64));
            }
        }
        let svg = framed.svg_file();
        roxmltree::Document::parse(&svg).expect("well-formed");
    }
}
