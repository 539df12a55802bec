//! The page: one file of HTML that is also well-formed XML, with its style sheet and pictures inside, without a script, and with no address in
//! it that a browser would fetch.

use super::dataset::Dataset;
use super::metric::Metric;
use super::sections::Section;
use super::versus::{self, Row};
use super::words;
use crate::compare::Verdict;
use crate::raw::{Header, Run};
use std::fmt::Write;
use terrace_output::plot::palette;
use terrace_output::plot::picture::Picture;
use terrace_output::plot::text::{count, escaped, listed, number, rough};

/// A longer name does not head a column of numbers.
const HEADING_MAX: usize = 20;

/// Numbers beside each other in the table of all of them: what paper holds.
const COLUMNS_MAX: usize = 8;

/// A longer name may be broken in a table.
const SHORT_MAX: usize = 28;

/// The whole report.
pub fn page(dataset: &Dataset, title: &str, sections: &[Section]) -> String {
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{0}</title>\n\
         <style>\n{1}{2}\n</style>\n</head>\n<body>\n<h1>{0}</h1>\n",
        escaped(title),
        include_str!("report.css"),
        palette::style_sheet()
    );
    lead(dataset, &mut out);
    sections.iter().for_each(|section| plots(dataset, section, &mut out));
    comparisons(dataset, &mut out);
    values(dataset, &mut out);
    marked_and_refused(dataset, &mut out);
    machines(dataset, &mut out);
    out.push_str("</body>\n</html>\n");
    out
}

fn element(name: &str, text: &str, out: &mut String) {
    let end = name.split(' ').next().unwrap_or_default();
    let _ = writeln!(out, "<{name}>{}</{end}>", escaped(text));
}

fn list(items: &[String], out: &mut String) {
    out.push_str("<ul>\n");
    items.iter().for_each(|item| element("li", item, out));
    out.push_str("</ul>\n");
}

/// The comparison: which system wins and loses in which cell.
fn lead(dataset: &Dataset, out: &mut String) {
    element("p class=\"lead\"", &words::subject(dataset), out);
    if dataset.runs.iter().all(|run| run.refused.is_some()) {
        let all = "Every run was refused, so there is no number to show; the reasons are below.";
        element("p", all, out);
        return;
    }
    let mut tested = false;
    for system in &dataset.systems[1..] {
        let sentences = words::verdicts(dataset, system, false);
        if sentences.is_empty() {
            let why = format!(
                "{system}: no cell has two good runs on both sides, so nothing can be said about it."
            );
            element("p", &why, out);
        } else {
            element("p", &format!("{system} against {}:", dataset.baseline()), out);
            list(&sentences, out);
            tested = true;
        }
    }
    if tested {
        let test = if dataset.paired() { "Student's t-test of pairs of runs" } else { "Welch's t-test" };
        let note = format!(
            "Better, worse: the 95 % interval of the difference ({test}) does not hold zero. Each cell is tested for itself; of \
             twenty equal cells one will seem to differ."
        );
        element("p class=\"note\"", &note, out);
    }
    regressions(dataset, out);
}

/// Against the old report of the same benchmark.
fn regressions(dataset: &Dataset, out: &mut String) {
    let Some(old) = &dataset.old else { return };
    element("h2", "Since the old report", out);
    let changed = changes(&old.headers, &dataset.headers);
    if !changed.is_empty() {
        let note = format!("Something else has changed since, too: {}.", listed(&changed));
        element("p", &note, out);
    }
    let metrics = words::compared(dataset);
    let rows: Vec<Row> = metrics.iter().flat_map(|metric| versus::times(dataset, metric)).collect();
    element("p", &tally(&rows), out);
    for system in &dataset.systems {
        let sentences = words::verdicts(dataset, system, true);
        if !sentences.is_empty() {
            element("p", &format!("{system}, now against then:"), out);
            list(&sentences, out);
        }
    }
    for metric in &metrics {
        comparison(dataset, metric, &versus::times(dataset, metric), ("then", "now"), out);
    }
}

/// Differences of the machine between the two runs: "kernel 6.1 then, 6.18 now". Time and commit are.
fn changes(old: &[Header], new: &[Header]) -> Vec<String> {
    let fields = |headers: &[Header]| headers.last().map(machine).unwrap_or_default();
    let (then, now) = (fields(old), fields(new));
    let value = |rows: &[Vec<Field>], name: &str| -> String {
        let row = rows.iter().find(|row| row[0].1 == name);
        row.map_or_else(|| "not told".into(), |row| row[1].1.clone())
    };
    let mut names: Vec<&String> = then.iter().chain(&now).map(|row| &row[0].1).collect();
    names.sort();
    names.dedup();
    let told = |name: &String| {
        let (then, now) = (value(&then, name), value(&now, name));
        let other = then != now && !["time", "commit"].contains(&name.as_str());
        other.then(|| format!("{name} ({then} then, {now} now)"))
    };
    names.into_iter().filter_map(told).collect()
}

/// How many comparisons of each verdict there are.
fn tally(rows: &[Row]) -> String {
    if rows.is_empty() {
        return "No cell has good runs in both files: no regression can be seen.".into();
    }
    let verdicts = [
        Verdict::Worse,
        Verdict::Better,
        Verdict::Higher,
        Verdict::Lower,
        Verdict::DifferentWithoutVariance,
        Verdict::NoSignificance,
        Verdict::Identical,
        Verdict::TooFew,
    ];
    let told = |verdict: &Verdict| {
        let n = rows.iter().filter(|row| row.verdict == *verdict).count();
        let always = matches!(verdict, Verdict::Worse | Verdict::Better);
        (n > 0 || always).then(|| format!("{n} {}", verdict.text()))
    };
    let told: Vec<String> = verdicts.iter().filter_map(told).collect();
    format!(
        "{} of a metric in a cell, of the same system then and now: {}.",
        count(rows.len(), "comparison"),
        told.join(", ")
    )
}

fn plots(dataset: &Dataset, section: &Section, out: &mut String) {
    element("h2", &section.title, out);
    section.notes.iter().for_each(|note| element("p class=\"note\"", note, out));
    if section.panels.is_empty() {
        return;
    }
    out.push_str("<ul class=\"legend\">\n");
    for (n, system) in dataset.systems.iter().enumerate() {
        let swatch = Picture { title: system.clone(), ..Picture::swatch(section.swatch, n) };
        let _ = writeln!(out, "<li>{}<span>{}</span></li>", swatch.inline_svg(), escaped(system));
    }
    out.push_str("</ul>\n<div class=\"panels\">\n");
    for panel in &section.panels {
        let _ = writeln!(
            out,
            "<figure><figcaption>{}</figcaption>{}</figure>",
            escaped(&panel.title),
            panel.inline_svg()
        );
    }
    out.push_str("</div>\n");
}

/// A field of a table: class and text.
type Field = (&'static str, String);

fn table(head: &[Field], rows: &[Vec<Field>], out: &mut String) {
    let class = |class: &str| if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
    out.push_str("<div class=\"scroll\" tabindex=\"0\"><table>\n<thead><tr>");
    for (name, text) in head {
        let _ = write!(out, "<th scope=\"col\"{}>{}</th>", class(name), escaped(text));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        out.push_str("<tr>");
        for (name, text) in row {
            let short = *name == "name" && text.chars().count() <= SHORT_MAX;
            let name = if short { "name short" } else { name };
            let _ = write!(out, "<td{}>{}</td>", class(name), escaped(text));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
}

fn comparisons(dataset: &Dataset, out: &mut String) {
    element("h2", "Comparisons", out);
    if dataset.systems.len() < 2 {
        element("p", "There is one system only: nothing to compare it with.", out);
        return;
    }
    let metrics = words::compared(dataset);
    if metrics.is_empty() {
        element("p", "No run that counts tells a number.", out);
        return;
    }
    let test = match dataset.paired() {
        true => "Student's t-test of the ratios of pairs of runs, each system against",
        false => "Welch's t-test of each system against",
    };
    let note = format!(
        "{test} {}: the difference of the means and its 95 % interval, in per cent of {0}'s mean and in units; \
         p is the probability of such a difference, or a larger one, between equal systems.",
        dataset.baseline()
    );
    element("p class=\"note\"", &note, out);
    let sides = match &dataset.systems[..] {
        [base, other] if base.len().max(other.len()) <= HEADING_MAX => (base.as_str(), other.as_str()),
        _ => ("baseline", "system"),
    };
    for metric in &metrics {
        comparison(dataset, metric, &versus::systems(dataset, metric), sides, out);
    }
}

/// One table: `sides` are the headings of the two means. Where one system is all there is, its name needs no column.
fn comparison(dataset: &Dataset, metric: &Metric, rows: &[Row], sides: (&str, &str), out: &mut String) {
    let Some(first) = rows.first() else { return };
    element("h3", &metric.titled(), out);
    let named = rows.iter().any(|row| row.system != first.system);
    let text = |text: &str| ("", text.to_string());
    let num = |text: &str| ("n", text.to_string());
    let mut head = vec![text("cell")];
    head.extend(named.then(|| text("system")));
    head.push(text("verdict"));
    head.extend(["difference", "95 % interval", sides.0, sides.1, "in units", "p", "runs"].map(num));
    let rows: Vec<Vec<Field>> = rows.iter().map(|row| comparison_row(dataset, row, named)).collect();
    table(&head, &rows, out);
}

fn comparison_row(dataset: &Dataset, row: &Row, named: bool) -> Vec<Field> {
    let num = |text: String| ("n", text);
    let mean = |mean: Option<f64>| num(mean.map_or_else(|| "-".into(), number));
    let [difference, percent, units, p] = row.numbers().map(num);
    let mut fields = vec![("name", dataset.name(&row.cell))];
    fields.extend(named.then(|| ("name", row.system.clone())));
    fields.push((verdict_class(row.verdict), row.verdict.text().to_string()));
    let (base, candidate) = (mean(row.baseline.0), mean(row.candidate.0));
    let runs = num(format!("{}, {}", row.baseline.1, row.candidate.1));
    fields.extend([difference, percent, base, candidate, units, p, runs]);
    fields
}

fn verdict_class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "verdict better",
        Verdict::Worse => "verdict worse",
        _ => "verdict",
    }
}

/// Every mean behind the plots.
fn values(dataset: &Dataset, out: &mut String) {
    let metrics = dataset.metrics();
    if metrics.is_empty() {
        return;
    }
    element("h2", "All numbers", out);
    element("p class=\"note\"", "Means of the runs that count, \u{b1} half of their 95 % intervals.", out);
    metrics.chunks(COLUMNS_MAX).for_each(|metrics| values_of(dataset, metrics, out));
}

fn values_of(dataset: &Dataset, metrics: &[Metric], out: &mut String) {
    let mut head = vec![("", "cell".to_string()), ("", "system".into()), ("n", "runs".into())];
    head.extend(metrics.iter().map(|metric| ("n", metric.titled())));
    let mut rows = Vec::new();
    for cell in &dataset.cells {
        for system in &dataset.systems {
            let runs = dataset.good(system, cell).count();
            let mut row =
                vec![("name", dataset.name(cell)), ("name", system.clone()), ("n", runs.to_string())];
            row.extend(metrics.iter().map(|metric| ("n", value(dataset, system, cell, metric))));
            rows.push(row);
        }
    }
    table(&head, &rows, out);
}

fn value(dataset: &Dataset, system: &str, cell: &super::dataset::Cell, metric: &Metric) -> String {
    match dataset.estimate(system, cell, &metric.key) {
        None => "-".into(),
        Some(v) if v.ends().is_some() => format!("{} \u{b1}\u{a0}{}", number(v.mean), rough(v.high - v.mean)),
        Some(v) => number(v.mean),
    }
}

fn marked_and_refused(dataset: &Dataset, out: &mut String) {
    element("h2", "Marked and refused runs", out);
    let why = |run: &Run| match &run.refused {
        Some(why) => format!("refused: {why}"),
        None => run.marks.join("; "),
    };
    let rows: Vec<Vec<Field>> = dataset
        .runs
        .iter()
        .filter(|run| run.refused.is_some() || !run.marks.is_empty())
        .map(|run| {
            let repetition = ("n", run.repetition.to_string());
            let cell = dataset.name(&super::dataset::Cell::of(run));
            vec![("name", cell), ("name", run.system.clone()), repetition, ("name", why(run))]
        })
        .collect();
    if rows.is_empty() {
        element("p", "None: no run was marked, none was refused.", out);
    } else {
        let note = "A refused run is in no mean and no test. A marked one is, and should be looked at.";
        element("p class=\"note\"", note, out);
        let head = ["cell", "system", "repetition", "why"].map(|text| ("", text.to_string()));
        table(&head, &rows, out);
    }
    if !dataset.notices.is_empty() {
        list(&dataset.notices, out);
    }
}

/// Where it was measured, and what to rerun.
fn machines(dataset: &Dataset, out: &mut String) {
    let several = dataset.headers.len() > 1;
    element("h2", if several { "Machines" } else { "Machine" }, out);
    if several {
        let note =
            format!("The runs were made under {} descriptions, one after the other.", dataset.headers.len());
        element("p", &note, out);
    }
    for header in &dataset.headers {
        table(&[("", "what".to_string()), ("", "value".into())], &machine(header), out);
    }
    element("h2", "To run it again", out);
    let mut texts: Vec<&crate::raw::Matrix> = Vec::new();
    for header in &dataset.headers {
        if !texts.contains(&&header.matrix) {
            texts.push(&header.matrix);
        }
    }
    for matrix in texts {
        if matrix.text.trim().is_empty() {
            let none = format!("The raw results do not hold the text of the matrix {}.", matrix.name);
            element("p", &none, out);
            continue;
        }
        element(
            "p",
            &format!("{0}: save this as {0}.toml, then `terrace-bench matrix {0}.toml`.", matrix.name),
            out,
        );
        element("pre", &matrix.text, out);
    }
}

/// The fields of a machine, as they are called in the raw results.
fn machine(header: &Header) -> Vec<Vec<Field>> {
    let fields = serde_json::to_value(&header.machine).unwrap_or_default();
    let text = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let fields = fields.as_object().cloned().unwrap_or_default();
    let row = |(name, value): (String, serde_json::Value)| {
        let shown = match name.as_str() {
            "memory_bytes" => format!("{} MiB", value.as_u64().unwrap_or(0) >> 20),
            "time" => utc(value.as_u64().unwrap_or(0)),
            _ => text(&value),
        };
        (!shown.is_empty()).then(|| vec![("name", name.replace('_', " ")), ("name", shown)])
    };
    fields.into_iter().filter_map(row).collect()
}

/// The sections of a report with files of their own: name without ending, picture to stand alone.
pub fn files(dataset: &Dataset, sections: &[Section]) -> Vec<(String, Picture)> {
    let mut files = Vec::new();
    for section in sections {
        for panel in &section.panels {
            let name = format!(
                "{:02}-{}",
                files.len() + 1,
                slug(&format!("{} {}", section.name, tail(&panel.title)))
            );
            files.push((name, panel.framed(section.swatch, &dataset.systems)));
        }
    }
    files
}

/// A title after its first comma: pattern and jobs.
fn tail(title: &str) -> &str {
    title.split_once(", ").map_or(title, |(_, tail)| tail)
}

/// Letters and digits with dashes between, at most 60: names of systems and patterns may be anything.
fn slug(text: &str) -> String {
    let plain: String = text
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '.' { c.to_ascii_lowercase() } else { '-' })
        .collect();
    let words: Vec<&str> =
        plain.split('-').map(|word| word.trim_matches('.')).filter(|word| !word.is_empty()).collect();
    words.join("-").chars().take(60).collect()
}

/// "2026-11-21 22:25 UTC".
fn utc(seconds: u64) -> String {
    /// The year 9999 ends: a time beyond is an error in the file.
    const LAST: u64 = 253_402_300_799;
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds.min(LAST));
    let text = humantime::format_rfc3339_seconds(time).to_string();
    format!("{} UTC", text[..16].replace('T', " "))
}
