//! Curves as one HTML file, with its pictures inside: no script, nothing fetched, readable in light and dark.

use std::fmt::Write;
use terrace_output::plot::axis::Axis;
use terrace_output::plot::palette::style_sheet;
use terrace_output::plot::panel::{self, Curve, Dot};
use terrace_output::plot::picture::{Picture, Swatch};
use terrace_output::plot::text::escaped;

const STYLE: &str = ":root{color-scheme:light dark;--ink:#1b1b1b;--ground:#fff}
@media screen and (prefers-color-scheme:dark){:root{--ink:#e8e8e8;--ground:#181818}}
body{font:14px system-ui,'DejaVu Sans',sans-serif;color:var(--ink);background:var(--ground);max-width:60em;margin:2em auto;padding:0 1em}
h1{font-size:1.3em}h2{font-size:1.05em;margin:2em 0 .3em}
.plot{width:100%;height:auto;max-width:50em}
.key{display:inline-block;margin-right:1.2em;white-space:nowrap}.key svg{width:30px;height:14px;vertical-align:middle;margin-right:.4em}
";

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
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width\"/>\n<title>{0}</title>\n\
         <style>\n{STYLE}{1}\n</style></head><body>\n<h1>{0}</h1>\n",
        escaped(title),
        style_sheet()
    );
    charts.iter().for_each(|chart| draw(chart, &mut out));
    out.push_str("</body></html>\n");
    out
}

fn draw(chart: &Chart, out: &mut String) {
    let _ = writeln!(out, "<h2>{}</h2>\n{}<p>", escaped(&chart.title), picture(chart).inline_svg());
    for (n, line) in chart.lines.iter().enumerate() {
        let swatch = Picture { title: line.name.clone(), ..Picture::swatch(Swatch::Line, n) };
        let _ = writeln!(out, "<span class=\"key\">{}{}</span>", swatch.inline_svg(), escaped(&line.name));
    }
    out.push_str("</p>\n");
}

/// Sizes are far apart: their axis is logarithmic.
fn picture(chart: &Chart) -> Picture {
    let points = || chart.lines.iter().flat_map(|line| &line.points);
    let axes = (Axis::log(points().map(|point| point.0)), Axis::linear(points().map(|point| point.1), 5));
    let curve = |(system, line): (usize, &Line)| Curve {
        system,
        name: line.name.clone(),
        dots: line.points.iter().map(|&(x, y)| Dot { x, y, interval: None }).collect(),
        runs: Vec::new(),
        shift: 0.0,
    };
    let curves: Vec<Curve> = chart.lines.iter().enumerate().map(curve).collect();
    panel::curves(chart.title.clone(), axes, ("cache size, pages", "miss ratio"), &curves)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
        roxmltree::Document::parse_with_options(&html, options).unwrap_or_else(|e| panic!("{e}: {html}"));
        assert!(
            !html.contains("http")
                && !html.contains("<script")
                && !html.contains("NaN")
                && !html.contains("inf")
        );
        assert!(
            html.contains("a&lt;b&gt; &amp; &quot;c&quot;") && html.contains("prefers-color-scheme:dark")
        );
        // 20 curves of two points; each of the 22 lines has a key.
        assert_eq!(html.matches("<polyline").count(), 20 + 22);
    }
}
