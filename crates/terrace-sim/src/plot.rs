//! Curves as one HTML file: inline SVG, no script, nothing fetched, readable in light and dark.

use std::fmt::Write;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 44.0;
/// Line colours on light and on dark ground; more lines than these repeat them with other dashes.
const COLOURS: [(&str, &str); 8] = [
    ("#0b62c4", "#6cb2ff"),
    ("#c2410c", "#ff9d66"),
    ("#15803d", "#63d68b"),
    ("#a21caf", "#e88bf0"),
    ("#8a6a00", "#e6c34d"),
    ("#0e7490", "#5fd3ec"),
    ("#be123c", "#ff8099"),
    ("#57534e", "#c4bdb5"),
];
const DASHES: [&str; 3] = ["", "7 4", "2 3"];

/// One named curve.
#[derive(Clone, Debug)]
pub struct Line {
    /// In the legend.
    pub name: String,
    /// Cache size in pages and miss ratio; sizes rise.
    pub points: Vec<(f64, f64)>,
}

/// One chart.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Above it.
    pub title: String,
    /// Its curves.
    pub lines: Vec<Line>,
}

/// The whole file.
pub fn page(title: &str, charts: &[Chart]) -> String {
    let mut out = String::new();
    let (mut light, mut dark) = (String::new(), String::new());
    for (i, (on_light, on_dark)) in COLOURS.iter().enumerate() {
        let _ = write!(light, "--c{i}:{on_light};");
        let _ = write!(dark, "--c{i}:{on_dark};");
    }
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n<style>\n\
         :root{{color-scheme:light dark;--ink:#1c1917;--faint:#d6d3d1;--ground:#fff;{light}}}\n\
         @media(prefers-color-scheme:dark){{:root{{--ink:#e7e5e4;--faint:#44403c;--ground:#1c1917;{dark}}}}}\n\
         body{{font:14px system-ui,sans-serif;color:var(--ink);background:var(--ground);max-width:60em;margin:2em auto;padding:0 1em}}\n\
         h1{{font-size:1.3em}}h2{{font-size:1.05em;margin:2em 0 .3em}}\n\
         svg{{width:100%;height:auto}}text{{fill:var(--ink);font-size:12px}}.grid{{stroke:var(--faint)}}\n\
         .line{{fill:none;stroke-width:1.8}}.key{{display:inline-block;margin-right:1.2em;white-space:nowrap}}\n\
         .key svg{{width:28px;height:8px;vertical-align:middle;margin-right:.4em}}\n\
         </style></head><body>\n<h1>{title}</h1>\n",
        title = escaped(title)
    );
    charts.iter().for_each(|chart| draw(chart, &mut out));
    out.push_str("</body></html>\n");
    out
}

/// Text for element content and quoted attributes. Control characters, which names of files can have, become U+FFFD.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Where values are on the paper.
struct Scale {
    low: f64,
    high: f64,
    top: f64,
}

impl Scale {
    fn of(chart: &Chart) -> Scale {
        let points = || chart.lines.iter().flat_map(|line| &line.points);
        let sizes = || points().map(|point| point.0.max(1.0).log10());
        let (low, high) = (sizes().fold(f64::MAX, f64::min), sizes().fold(0.0, f64::max));
        let top = points().map(|point| point.1).fold(0.0, f64::max);
        let top = ((top * 10.0 - 1e-9).ceil() / 10.0).clamp(0.1, 1.0);
        let low = if low < high { low } else { high - 0.5 };
        Scale { low, high: if low < high { high } else { high + 0.5 }, top }
    }

    fn x(&self, pages: f64) -> f64 {
        let at = (pages.max(1.0).log10() - self.low) / (self.high - self.low);
        LEFT + at * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, ratio: f64) -> f64 {
        HEIGHT - BOTTOM - ratio / self.top * (HEIGHT - TOP - BOTTOM)
    }
}

fn draw(chart: &Chart, out: &mut String) {
    let scale = Scale::of(chart);
    let _ = writeln!(out, "<h2>{}</h2>", escaped(&chart.title));
    let _ = writeln!(out, "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">");
    axes(&scale, out);
    for (i, line) in chart.lines.iter().enumerate() {
        let (style, name) = (style(i), escaped(&line.name));
        let points: Vec<String> =
            line.points.iter().map(|(x, y)| format!("{:.1},{:.1}", scale.x(*x), scale.y(*y))).collect();
        let _ = write!(
            out,
            "<g {style}><title>{name}</title><polyline class=\"line\" points=\"{}\"/>",
            points.join(" ")
        );
        if line.points.len() <= 20 {
            for (x, y) in &line.points {
                let _ = write!(
                    out,
                    "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" style=\"fill:var(--c{})\"><title>{name}, {x} pages: {y:.4}</title></circle>",
                    scale.x(*x),
                    scale.y(*y),
                    i % COLOURS.len()
                );
            }
        }
        out.push_str("</g>\n");
    }
    out.push_str("</svg>\n<p>");
    for (i, line) in chart.lines.iter().enumerate() {
        let _ = writeln!(
            out,
            "<span class=\"key\"><svg viewBox=\"0 0 28 8\"><g {}><path class=\"line\" d=\"M0 4H28\"/></g></svg>{}</span>",
            style(i),
            escaped(&line.name)
        );
    }
    out.push_str("</p>\n");
}

fn style(line: usize) -> String {
    let dash = DASHES[line / COLOURS.len() % DASHES.len()];
    format!("style=\"stroke:var(--c{});stroke-dasharray:{dash}\"", line % COLOURS.len())
}

fn axes(scale: &Scale, out: &mut String) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let step = [(0.1, 0.02), (0.2, 0.05), (0.6, 0.1)].iter().find(|(top, _)| scale.top <= top + 1e-9);
    let step = step.map_or(0.2, |(_, step)| *step);
    for ratio in (0..).map(|i| f64::from(i) * step).take_while(|ratio| *ratio <= scale.top + 1e-9) {
        let y = scale.y(ratio);
        let _ = writeln!(
            out,
            "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{ratio:.2}</text>",
            LEFT - 6.0,
            y + 4.0
        );
    }
    for tick in ticks(scale) {
        let x = scale.x(tick);
        let _ = writeln!(
            out,
            "<path class=\"grid\" d=\"M{x:.1} {TOP}V{bottom}\"/><text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 16.0,
            short(tick)
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">cache size, pages</text>\
         <text transform=\"translate(14 {:.1}) rotate(-90)\" text-anchor=\"middle\">miss ratio</text>",
        (LEFT + right) / 2.0,
        HEIGHT - 6.0,
        (TOP + bottom) / 2.0
    );
}

/// Powers of ten within the scale; where there are few, their doubles and fivefolds too.
fn ticks(scale: &Scale) -> Vec<f64> {
    let within = |steps: &[f64]| -> Vec<f64> {
        let powers = (scale.low.floor() as i32..=scale.high.ceil() as i32).map(|power| 10f64.powi(power));
        let all = powers.flat_map(|power| steps.iter().map(move |step| step * power));
        all.filter(|tick| (scale.low - 1e-9..=scale.high + 1e-9).contains(&tick.log10())).collect()
    };
    let few = within(&[1.0]);
    if few.len() >= 4 { few } else { within(&[1.0, 2.0, 5.0]) }
}

fn short(pages: f64) -> String {
    match pages {
        p if p >= 1e6 => format!("{}M", p / 1e6),
        p if p >= 1e3 => format!("{}k", p / 1e3),
        p => format!("{p}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Well-formed enough: tags that open, close, in order.
    fn balanced(html: &str) -> bool {
        let mut open = Vec::new();
        for tag in html.split('<').skip(1).map(|rest| &rest[..rest.find('>').expect("a tag ends")]) {
            let name = tag.split([' ', '/']).next().unwrap_or_default();
            match tag.strip_prefix('/') {
                Some(closed) if open.pop() != Some(closed) => return false,
                None if !tag.starts_with('!') && !tag.ends_with('/') && name != "meta" => open.push(name),
                _ => {}
            }
        }
        open.is_empty()
    }

    #[test]
    fn a_page_is_whole_and_needs_nothing_else() {
        let line = |name: &str, points: &[(f64, f64)]| Line { name: name.into(), points: points.to_vec() };
        let many: Vec<Line> =
            (0..20).map(|i| line(&format!("p{i}"), &[(1.0, 0.9), (275_171.0, 0.1)])).collect();
        let charts = [
            Chart { title: "a<b> & \"c\"".into(), lines: many },
            Chart { title: "one point".into(), lines: vec![line("lru", &[(100.0, 0.3)])] },
            Chart { title: "nothing".into(), lines: vec![line("lru", &[])] },
        ];
        let html = page("sim", &charts);
        assert!(balanced(&html), "{html}");
        assert!(
            !html.contains("http")
                && !html.contains("<script")
                && !html.contains("NaN")
                && !html.contains("inf")
        );
        assert!(
            html.contains("a&lt;b&gt; &amp; &quot;c&quot;") && html.contains("prefers-color-scheme:dark")
        );
        assert_eq!(html.matches("<polyline").count(), 22);
    }
}
