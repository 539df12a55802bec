//! Paints a [`Picture`] as PNG, light, at twice its size.
//!
//! Letters come with the program (Noto Sans Mono, Latin-1): a machine without fonts gives the same file as any other. A letter outside
//! Latin-1 is painted as a box; the SVG of the same plot has it.

use super::palette::Ink;
use super::picture::{Anchor, Picture, Point, Shape};
use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};
use std::io;
use tiny_skia::{
    Color, FillRule, LineCap, LineJoin, Paint, Path, PathBuilder, Pixmap, PremultipliedColorU8, Stroke,
    StrokeDash, Transform,
};

/// Pixels of the file for one of the picture.
const SCALE: f64 = 2.0;
/// More pixels than these are not painted: 256 MiB while at it.
const PIXELS_MAX: f64 = 64.0 * 1024.0 * 1024.0;

/// The picture as the bytes of a PNG file. Fails when it has more than 64 Mi pixels.
pub fn png(picture: &Picture) -> io::Result<Vec<u8>> {
    let (w, h) = ((picture.width * SCALE).ceil(), (picture.height * SCALE).ceil());
    let too_large =
        || io::Error::other(format!("a plot of {w} x {h} pixels is too large for PNG; its SVG is there"));
    if w * h > PIXELS_MAX {
        return Err(too_large());
    }
    let mut canvas = Pixmap::new(w as u32, h as u32).ok_or_else(too_large)?;
    let [r, g, b] = Ink::Ground.rgb();
    canvas.fill(Color::from_rgba8(r, g, b, 255));
    picture.shapes.iter().for_each(|shape| draw(shape, &mut canvas));
    canvas.encode_png().map_err(io::Error::other)
}

fn draw(shape: &Shape, canvas: &mut Pixmap) {
    match shape {
        Shape::Segments { lines, ink, width } => {
            let mut path = PathBuilder::new();
            for [from, to] in lines {
                path.move_to(from.0 as f32, from.1 as f32);
                path.line_to(to.0 as f32, to.1 as f32);
            }
            stroke(path.finish(), *ink, *width, 1.0, &[], canvas);
        }
        Shape::Line { points, ink, width, opacity, dash } => {
            stroke(outline(points, false), *ink, *width, *opacity, dash, canvas);
        }
        Shape::Area { points, ink, opacity, border, .. } => {
            fill(outline(points, true), *ink, *opacity, canvas);
            stroke(outline(points, true), *ink, *border, 1.0, &[], canvas);
        }
        Shape::Disc { at, radius, ink, filled, .. } => {
            let circle = || PathBuilder::from_circle(at.0 as f32, at.1 as f32, *radius as f32);
            fill(circle(), if *filled { *ink } else { Ink::Ground }, 1.0, canvas);
            stroke(circle(), *ink, 1.5, 1.0, &[], canvas);
        }
        Shape::Text { at, anchor, text, ink, upright, .. } => {
            Line { at: *at, anchor: *anchor, ink: *ink, upright: *upright }.write(text, canvas);
        }
    }
}

fn outline(points: &[Point], closed: bool) -> Option<Path> {
    let mut path = PathBuilder::new();
    let (first, rest) = points.split_first()?;
    path.move_to(first.0 as f32, first.1 as f32);
    rest.iter().for_each(|p| path.line_to(p.0 as f32, p.1 as f32));
    if closed {
        path.close();
    }
    path.finish()
}

fn paint(ink: Ink, opacity: f64) -> Paint<'static> {
    let [r, g, b] = ink.rgb();
    let mut paint = Paint::default();
    paint.set_color_rgba8(r, g, b, (opacity * 255.0).round() as u8);
    paint.anti_alias = true;
    paint
}

fn zoom() -> Transform {
    Transform::from_scale(SCALE as f32, SCALE as f32)
}

fn fill(path: Option<Path>, ink: Ink, opacity: f64, canvas: &mut Pixmap) {
    if let Some(path) = path.filter(|_| opacity > 0.0) {
        canvas.fill_path(&path, &paint(ink, opacity), FillRule::Winding, zoom(), None);
    }
}

fn stroke(path: Option<Path>, ink: Ink, width: f64, opacity: f64, dash: &[f64], canvas: &mut Pixmap) {
    let Some(path) = path.filter(|_| width > 0.0) else { return };
    let dash = StrokeDash::new(dash.iter().map(|d| *d as f32).collect(), 0.0);
    let style = Stroke {
        width: width as f32,
        line_cap: LineCap::Butt,
        line_join: LineJoin::Round,
        dash,
        ..Stroke::default()
    };
    canvas.stroke_path(&path, &paint(ink, opacity), &style, zoom(), None);
}

const WEIGHT: FontWeight = FontWeight::Regular;
/// The one size there is: 14 by 32 pixels of the file a letter, near what browsers take for 12 pixels.
const LETTER: RasterHeight = RasterHeight::Size32;

fn rows(c: char) -> Vec<Vec<u8>> {
    get_raster(c, WEIGHT, LETTER).map(|glyph| glyph.rows().map(<[u8]>::to_vec).collect()).unwrap_or_default()
}

/// Rows of a letter from its top down to the base line: where an H ends.
fn ascent() -> usize {
    rows('H').iter().rposition(|row| row.iter().any(|v| *v > 127)).map_or(0, |row| row + 1)
}

/// Coverage of a letter's pixels, row by row.
fn glyph(c: char) -> Vec<Vec<u8>> {
    let known = rows(c);
    if c == ' ' || !known.is_empty() {
        return known;
    }
    let (wide, high) = (get_raster_width(WEIGHT, LETTER), ascent());
    let edge = |x: usize, y: usize| x == 1 || x + 2 == wide || y == 8 || y + 1 == high;
    let inside = |x: usize, y: usize| (1..wide - 1).contains(&x) && (8..high).contains(&y);
    let pixel = |x, y| if inside(x, y) && edge(x, y) { 200 } else { 0 };
    (0..high).map(|y| (0..wide).map(|x| pixel(x, y)).collect()).collect()
}

/// A line of text.
struct Line {
    at: Point,
    anchor: Anchor,
    ink: Ink,
    upright: bool,
}

impl Line {
    fn write(&self, text: &str, canvas: &mut Pixmap) {
        let advance = get_raster_width(WEIGHT, LETTER) as i64;
        let long = advance * text.chars().count() as i64;
        let begin = match self.anchor {
            Anchor::Start => 0,
            Anchor::Middle => -long / 2,
            Anchor::End => -long,
        };
        let ascent = ascent() as i64;
        for (i, c) in text.chars().enumerate() {
            for (y, row) in glyph(c).iter().enumerate() {
                for (x, coverage) in row.iter().enumerate().filter(|(_, coverage)| **coverage > 0) {
                    let (along, down) = (begin + i as i64 * advance + x as i64, y as i64 - ascent);
                    self.dot(along, down, *coverage, canvas);
                }
            }
        }
    }

    /// One pixel of a letter: `along` the line and `down` from it.
    fn dot(&self, along: i64, down: i64, coverage: u8, canvas: &mut Pixmap) {
        let (dx, dy) = if self.upright { (down, -along) } else { (along, down) };
        let (x, y) = ((self.at.0 * SCALE) as i64 + dx, (self.at.1 * SCALE) as i64 + dy);
        let (w, h) = (i64::from(canvas.width()), i64::from(canvas.height()));
        if !(0..w).contains(&x) || !(0..h).contains(&y) {
            return;
        }
        let pixel = &mut canvas.pixels_mut()[(y * w + x) as usize];
        let [r, g, b] = self.ink.rgb();
        let mix = |old: u8, new: u8| {
            ((u32::from(old) * (255 - u32::from(coverage)) + u32::from(new) * u32::from(coverage)) / 255)
                as u8
        };
        let mixed = PremultipliedColorU8::from_rgba(
            mix(pixel.red(), r),
            mix(pixel.green(), g),
            mix(pixel.blue(), b),
            255,
        );
        *pixel = mixed.expect("the ground is opaque");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(text: &str, upright: bool) -> Picture {
        let mut picture = Picture::new("t".into(), 200.0, 200.0);
        let at = (100.0, 100.0);
        let text = text.to_string();
        picture.shapes.push(Shape::Text {
            at,
            anchor: Anchor::Middle,
            text,
            size: 12.0,
            ink: Ink::Text,
            upright,
        });
        picture
    }

    /// Left, top, right, bottom of what is not ground, in pixels of the picture.
    fn inked(picture: &Picture) -> Option<[f64; 4]> {
        let canvas = Pixmap::decode_png(&png(picture).unwrap()).unwrap();
        let w = canvas.width() as usize;
        let dark = |(i, p): (usize, &PremultipliedColorU8)| (p.red() < 128).then_some((i % w, i / w));
        canvas.pixels().iter().enumerate().filter_map(dark).fold(None, |all, (x, y)| {
            let (x, y) = (x as f64 / SCALE, y as f64 / SCALE);
            let [l, t, r, b] = all.unwrap_or([x, y, x, y]);
            Some([x.min(l), y.min(t), x.max(r), y.max(b)])
        })
    }

    #[test]
    fn text_stands_on_its_line_and_no_wider_than_estimated() {
        let [left, top, right, bottom] = inked(&picture("HHHH", false)).unwrap();
        assert!((bottom - 100.0).abs() <= 1.0 && top > 85.0, "{top} to {bottom}");
        assert!((left + right - 200.0).abs() < 4.0);
        assert!(right - left <= super::super::text::width("iiii", 12.0), "{}", right - left);
        let [left, top, right, bottom] = inked(&picture("HHHH", true)).unwrap();
        assert!((right - 100.0).abs() <= 1.0 && left > 85.0 && (top + bottom - 200.0).abs() < 4.0);
    }

    #[test]
    fn unknown_letters_are_boxes_and_spaces_nothing() {
        assert!(inked(&picture("   ", false)).is_none());
        assert!(inked(&picture("\u{4e2d}", false)).is_some());
        assert_ne!(png(&picture("\u{b5}s", false)).unwrap(), png(&picture("\u{4e2d}s", false)).unwrap());
    }

    #[test]
    fn what_is_too_large_is_an_error() {
        let mut large = picture("a", false);
        large.height = 1e6;
        assert!(png(&large).unwrap_err().to_string().contains("its SVG is there"));
    }
}
