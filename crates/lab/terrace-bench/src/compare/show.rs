//! Output of a comparison of benchmark results: plain-text tables, Markdown, JSON, CSV.
//!
//! Means and differences have four significant digits, or all digits of their whole part. Percentages have
//! two decimals; t and its degrees of freedom have five digits, as in R. JSON and CSV have all digits.

use super::cells::{CellComparison, Comparison, FILE, Side, distinct};
use super::outcome::{Outcome, Verdict};
use crate::format::plain_table;
use crate::stats::Interval;
use clap::ValueEnum;
use comfy_table::{ContentLineStyle, LineStyle, Table, TableStyle};
use std::fmt::Write as _;

/// Output format of a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Tables in plain text.
    #[default]
    Text,
    /// Tables in Markdown.
    Markdown,
    /// All numbers in one object: terrace.compare.v1.
    Json,
    /// All numbers, one line a test.
    Csv,
}

/// Maximum columns of a text table; further cells follow below.
const TABLE_COLUMNS_MAX: usize = 6;
/// R prints smaller values of p as "less than".
const P_MIN: f64 = 2.2e-16;

/// The comparison in an output format.
pub fn show(answer: &Comparison, format: Format) -> String {
    match format {
        Format::Text => text(answer),
        Format::Markdown => markdown(answer),
        Format::Json => serde_json::to_string_pretty(answer).expect("names are texts") + "\n",
        Format::Csv => csv(answer),
    }
}

/// The cells, by metric and candidate.
fn sections(answer: &Comparison) -> impl Iterator<Item = &[CellComparison]> {
    answer.cells.chunk_by(|a, b| a.metric == b.metric && a.candidate.value == b.candidate.value)
}

fn title(cell: &CellComparison) -> String {
    format!(
        "{} ({}): {} against {}",
        cell.metric,
        cell.better.text(),
        cell.candidate.value,
        cell.baseline.value
    )
}

fn percentage(confidence: f64) -> String {
    format!("{} %", significant(confidence * 100.0, 6))
}

fn text(answer: &Comparison) -> String {
    let mut out = String::new();
    for section in sections(answer) {
        let _ = writeln!(out, "{}\n", title(&section[0]));
        out.push_str(&boxes(section, answer));
        out.push('\n');
        out.push_str(&tests(section, answer));
        out.push('\n');
    }
    out + &remarks(answer, "")
}

/// A table as in published studies: the first column of `by` forms the table's columns if the cells fill a
/// grid. Each cell has both means and the interval of their difference.
fn boxes(section: &[CellComparison], answer: &Comparison) -> String {
    let head = |(name, value): &(String, String)| format!("{name} {value}");
    let across = usize::from(answer.question.by.len() > 1 && is_grid(section));
    let column = |c: &CellComparison| c.cell[..across].iter().map(head).collect::<Vec<_>>().join(", ");
    let row = |c: &CellComparison| c.cell[across..].iter().map(head).collect::<Vec<_>>().join(", ");
    let names = |of: &dyn Fn(&CellComparison) -> String| {
        let all: Vec<String> = section.iter().map(of).collect();
        distinct(all.iter().map(String::as_str))
    };
    let (columns, rows) = (names(&column), names(&row));
    let mut table = vec![vec![vec![format!("Mean [{} CI]", percentage(answer.question.confidence))]]];
    let means = || format!("{} / {}", section[0].baseline.value, section[0].candidate.value);
    table[0].extend(columns.iter().map(|c| vec![if c.is_empty() { means() } else { c.clone() }]));
    for r in &rows {
        let mut line = vec![vec![r.clone()]];
        for c in &columns {
            let found = section.iter().find(|cell| column(cell) == *c && row(cell) == *r);
            line.push(found.map(in_box).unwrap_or_default());
        }
        table.push(line);
    }
    framed(table)
}

/// Whether each value of the first column has every combination of the others.
fn is_grid(section: &[CellComparison]) -> bool {
    let values = distinct(section.iter().map(|c| c.cell[0].1.as_str())).len();
    let mut rest: Vec<_> = section.iter().map(|c| &c.cell[1..]).collect();
    rest.sort();
    rest.dedup();
    values <= TABLE_COLUMNS_MAX && values * rest.len() == section.len()
}

fn in_box(cell: &CellComparison) -> Vec<String> {
    let mean = |side: &Side| side.mean.map_or("-".into(), number);
    let means = format!("{} / {}", mean(&cell.baseline), mean(&cell.candidate));
    match &cell.outcome {
        Outcome::Tested { difference, percent, .. } => {
            let share = percent.map(|p| format!("{} %", bounds(&p, 2)));
            let last =
                if cell.verdict == Verdict::NoSignificance { Some("no significance".into()) } else { share };
            [means, interval(difference)].into_iter().chain(last).collect()
        }
        Outcome::Constant { .. } => vec![means, cell.verdict.text()],
        Outcome::TooFew => vec![means, format!("{} and {} runs", cell.baseline.runs, cell.candidate.runs)],
    }
}

/// A framed table with several lines a cell.
fn framed(table: Vec<Vec<Vec<String>>>) -> String {
    let (rule, cells) = (|mark| LineStyle::new('+', mark, '+', '+'), ContentLineStyle::new('|', '|', '|'));
    let style = TableStyle::new().top_border(rule('-')).header_lines(cells).header_separator(rule('='));
    let mut out = Table::new();
    out.load_style(style.content_lines(cells).row_separator(rule('-')).bottom_border(rule('-')));
    let mut rows =
        table.into_iter().map(|row| row.into_iter().map(|cell| cell.join("\n")).collect::<Vec<_>>());
    out.set_header(rows.next().unwrap_or_default());
    out.add_rows(rows);
    format!("{out}\n")
}

/// The fields of a test's line; the first ones name the cell.
fn words(cell: &CellComparison) -> [String; 8] {
    let name = cell.cell.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(", ");
    let marked = cell.baseline.marked + cell.candidate.marked;
    let marks = if marked > 0 { format!(" ({marked} marked)") } else { String::new() };
    let runs = format!("{}, {}{marks}", cell.baseline.runs, cell.candidate.runs);
    let verdict = cell.verdict.text();
    match &cell.outcome {
        Outcome::Tested { difference, percent, t, df, p } => [
            name,
            runs,
            format!("{} {}", number(difference.mean), interval(difference)),
            percent.map_or("-".into(), |p| format!("{:.2} {} %", tidy(p.mean, 2), bounds(&p, 2))),
            significant(*t, 5),
            significant(*df, 5),
            probability(*p),
            verdict,
        ],
        Outcome::Constant { difference, percent } => {
            let share = percent.map_or("-".into(), |p| format!("{:.2} %", tidy(p, 2)));
            [name, runs, number(*difference), share, "-".into(), "-".into(), "-".into(), verdict]
        }
        Outcome::TooFew => {
            let dash = || "-".to_string();
            [name, runs, dash(), dash(), dash(), dash(), dash(), verdict]
        }
    }
}

fn tests(section: &[CellComparison], answer: &Comparison) -> String {
    let ci = format!("[{} CI]", percentage(answer.question.confidence));
    let head = [
        answer.question.by.join(", "),
        "runs".into(),
        format!("difference {ci}"),
        format!("per cent {ci}"),
        "t".into(),
        "df".into(),
        "p".into(),
        String::new(),
    ];
    let mut out = plain_table();
    out.set_header(head).add_rows(section.iter().map(words));
    for column in out.column_iter_mut() {
        column.set_padding((2, 0));
    }
    out.trim_fmt() + "\n"
}

fn markdown(answer: &Comparison) -> String {
    let ci = format!("[{} CI]", percentage(answer.question.confidence));
    let escaped = |text: &str| text.replace('|', "\\|").replace('\n', " ");
    let mut out = String::new();
    for section in sections(answer) {
        let (base, cand) = (&section[0].baseline.value, &section[0].candidate.value);
        let _ = writeln!(out, "### {}\n", escaped(&title(&section[0])));
        let mut head: Vec<String> = answer.question.by.clone();
        head.extend([
            base.clone(),
            cand.clone(),
            "runs".into(),
            format!("difference {ci}"),
            format!("per cent {ci}"),
        ]);
        head.extend(["t", "df", "p", "result"].map(String::from));
        let line = |cells: &[String]| {
            format!("| {} |\n", cells.iter().map(|c| escaped(c)).collect::<Vec<_>>().join(" | "))
        };
        out.push_str(&line(&head));
        out.push_str(&format!("|{}\n", "---|".repeat(head.len())));
        for cell in section {
            let mean = |side: &Side| side.mean.map_or("-".into(), number);
            let mut cells: Vec<String> = cell.cell.iter().map(|(_, value)| value.clone()).collect();
            cells.extend([mean(&cell.baseline), mean(&cell.candidate)]);
            cells.extend(words(cell).into_iter().skip(1));
            out.push_str(&line(&cells));
        }
        out.push('\n');
    }
    out + &remarks(answer, "- ")
}

/// Remarks below the tables: regressions between two files, refused runs, notices.
fn remarks(answer: &Comparison, bullet: &str) -> String {
    let mut out = String::new();
    if answer.question.factor == FILE {
        let count = |verdict| answer.cells.iter().filter(|c| c.verdict == verdict).count();
        let (worse, better, all) = (count(Verdict::Worse), count(Verdict::Better), answer.cells.len());
        let _ = writeln!(out, "{bullet}{worse} regressions and {better} improvements in {all} comparisons");
        for cell in answer.cells.iter().filter(|c| c.verdict == Verdict::Worse) {
            let [name, _, difference, share, ..] = words(cell);
            let share = if share == "-" { difference } else { share };
            let _ = writeln!(out, "{bullet}regression: {} {name}: {share}", cell.metric);
        }
    }
    for why in &answer.refused {
        let _ = writeln!(out, "{bullet}refused, not averaged in: {why}");
    }
    for notice in &answer.notices {
        let _ = writeln!(out, "{bullet}note: {notice}");
    }
    out
}

fn csv(answer: &Comparison) -> String {
    let fixed = "baseline,candidate,baseline_runs,candidate_runs,baseline_mean,candidate_mean,difference,difference_low,difference_high,\
        percent,percent_low,percent_high,t,df,p,result";
    let by = answer.question.by.iter().map(String::as_str);
    let head = ["metric"].into_iter().chain(by).chain(fixed.split(','));
    terrace_output::csv(head, answer.cells.iter().map(csv_line)).expect("fields are text")
}

fn csv_line(cell: &CellComparison) -> Vec<String> {
    let mut line = vec![cell.metric.clone()];
    line.extend(cell.cell.iter().map(|(_, value)| value.clone()));
    let sides = [&cell.baseline, &cell.candidate];
    line.extend(sides.map(|side| side.value.clone()));
    line.extend(sides.map(|side| side.runs.to_string()));
    let value = |v: Option<f64>| v.map_or(String::new(), |v| v.to_string());
    line.extend(sides.map(|side| value(side.mean)));
    let of = |i: Option<Interval>| [i.map(|i| i.mean), i.map(|i| i.low), i.map(|i| i.high)];
    let (difference, percent, rest) = match cell.outcome {
        Outcome::Tested { difference, percent, t, df, p } => {
            (of(Some(difference)), of(percent), [t, df, p].map(Some))
        }
        Outcome::Constant { difference, percent } => {
            ([Some(difference), None, None], [percent, None, None], [None; 3])
        }
        Outcome::TooFew => ([None; 3], [None; 3], [None; 3]),
    };
    line.extend([difference, percent, rest].into_iter().flatten().map(value));
    line.push(cell.verdict.text());
    line
}

/// Four significant digits, but at least the whole part.
fn number(v: f64) -> String {
    if v == 0.0 || (1e-4..1e15).contains(&v.abs()) {
        let decimals = decimals(v.abs());
        format!("{:.decimals$}", tidy(v, decimals))
    } else {
        format!("{v:.3e}")
    }
}

/// Decimals of a number with four significant digits.
fn decimals(magnitude: f64) -> usize {
    if magnitude == 0.0 { 0 } else { (3 - magnitude.log10().floor() as i32).clamp(0, 12) as usize }
}

/// Both ends with the decimals of the larger one.
fn interval(i: &Interval) -> String {
    let magnitude = i.low.abs().max(i.high.abs());
    if (1e-4..1e15).contains(&magnitude) {
        bounds(i, decimals(magnitude))
    } else {
        format!("[{:.3e}, {:.3e}]", i.low, i.high)
    }
}

fn bounds(i: &Interval, decimals: usize) -> String {
    format!("[{:.decimals$}, {:.decimals$}]", tidy(i.low, decimals), tidy(i.high, decimals))
}

/// A number that rounds to -0.00 is shown as 0.
fn tidy(v: f64, decimals: usize) -> f64 {
    if v.abs() < 0.5 * 10f64.powi(-(decimals as i32)) { 0.0 } else { v }
}

/// As `%.5g`: at most `digits` significant digits, no trailing zeros, an exponent for very large or small
/// numbers.
fn significant(v: f64, digits: usize) -> String {
    let scientific = format!("{:.*e}", digits - 1, v);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let short = |text: &str| {
        if text.contains('.') {
            text.trim_end_matches('0').trim_end_matches('.').to_string()
        } else {
            text.to_string()
        }
    };
    if (-4..digits as i32).contains(&exponent) {
        short(&format!("{:.*}", (digits as i32 - 1 - exponent) as usize, v))
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{}e{sign}{:02}", short(mantissa), exponent.abs())
    }
}

fn probability(p: f64) -> String {
    if p < P_MIN { "< 2.2e-16".into() } else { significant(p, 4) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let shown =
            [8410.71, 15_360.453, 0.21758, 12.345_6, 1.0, 0.0, -3331.14, 0.000_05, 2.5e17].map(number);
        assert_eq!(
            shown,
            ["8411", "15360", "0.2176", "12.35", "1.000", "0", "-3331", "5.000e-5", "2.500e17"]
        );
        let r = [-132.148_16, 11.177_22, 134.888_79, 9.000_000_1, -0.229_47, 0.000_245_9, 123_456.0, 0.0];
        assert_eq!(
            r.map(|v| significant(v, 5)),
            ["-132.15", "11.177", "134.89", "9", "-0.22947", "0.0002459", "1.2346e+05", "0"]
        );
        assert_eq!(
            [1e-20, 3.463e-6, 0.8213, 1.0].map(probability),
            ["< 2.2e-16", "3.463e-06", "0.8213", "1"]
        );
        let i = |low, high| Interval { mean: 0.0, low, high, n: 2 };
        assert_eq!(interval(&i(-55.401_55, 68.88)), "[-55.40, 68.88]");
        assert_eq!(interval(&i(3275.766, 3386.514)), "[3276, 3387]");
        assert_eq!(bounds(&i(-0.001, 1.0), 2), "[0.00, 1.00]");
    }
}
