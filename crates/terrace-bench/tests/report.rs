//! The report as a user gets it: whole, harmless whatever the names in the raw results are, and with a plain sentence for what is missing.

use fastrand::Rng;
use roxmltree::{Document, Node, ParsingOptions};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;
use terrace_bench::machine::Machine;
use terrace_bench::raw::{Header, Matrix, Run, Writer};

fn header(text: &str) -> Header {
    let machine = Machine {
        cpu: "EPYC".into(),
        cpus: 2,
        memory_bytes: 8 << 30,
        time: 1_795_285_249,
        ..Machine::default()
    };
    Header { machine, matrix: Matrix { name: "quick".into(), text: text.into(), paired: false } }
}

fn write(path: &Path, header: &Header, runs: &[Run]) {
    let (mut writer, _) = Writer::append(path).unwrap();
    writer.header(header).unwrap();
    runs.iter().for_each(|run| writer.run(run).unwrap());
}

fn run(system: &str, pattern: &str, jobs: u32, repetition: u32, metrics: &[(&str, f64)]) -> Run {
    Run {
        id: format!("{system}/{pattern}/{jobs}/{repetition}"),
        system: system.into(),
        load: "fio-psync".into(),
        pattern: pattern.into(),
        jobs,
        repetition,
        seconds: 10.0,
        metrics: metrics.iter().map(|(name, value)| ((*name).into(), *value)).collect(),
        ..Run::default()
    }
}

/// The published study (12 cells, 10 runs each) as runs of a matrix: its throughput and p99 latency, with percentiles, a course over time and
/// CPU made up around them, `slower` times as slow.
fn study(slower: f64) -> Vec<Run> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/mglru-fio");
    let read = |name: &str| -> BTreeMap<String, f64> {
        let text = std::fs::read_to_string(dir.join(name)).unwrap();
        let line =
            |line: &str| line.rsplit_once(',').map(|(key, value)| (key.to_string(), value.parse().unwrap()));
        text.lines().skip(1).filter_map(line).collect()
    };
    let latency = read("p99_latency_us.csv");
    let mut rng = Rng::with_seed(11);
    let mut noise = move || 0.98 + 0.04 * rng.f64();
    let mut runs = Vec::new();
    for (key, throughput) in read("throughput_mib_s.csv") {
        let words: Vec<&str> = key.split(',').collect();
        let [system, jobs, pattern, repetition] = words[..] else { panic!("{key}") };
        let (speed, p99) = (throughput / slower, latency[&key] * slower);
        let metrics = [("throughput_mib_s", speed), ("p99_us", p99), ("cpu_us_per_op", 20.0 * noise())];
        let mut run = run(system, pattern, jobs.parse().unwrap(), repetition.parse().unwrap(), &metrics);
        run.latency_percentiles_us = [(50.0, 0.06), (90.0, 0.4), (99.0, 1.0), (99.9, 2.5), (100.0, 9.0)]
            .map(|(p, share)| (p, p99 * share))
            .into();
        let course = (1..=30).map(|t| (f64::from(t), speed * noise())).collect();
        run.series.insert("throughput_mib_s".into(), course);
        runs.push(run);
    }
    runs
}

struct Made {
    _dir: TempDir,
    at: PathBuf,
    html: String,
}

fn bench(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_terrace-bench"))
        .current_dir(dir)
        .arg("report")
        .args(args)
        .output()
        .unwrap()
}

/// Reports these files of runs.
#[track_caller]
fn report(files: &[&[Run]], args: &[&str]) -> Made {
    let dir = TempDir::new().unwrap();
    let mut all: Vec<String> = Vec::new();
    for (i, runs) in files.iter().enumerate() {
        let name = format!("{i}.jsonl");
        write(&dir.path().join(&name), &header("[matrix]\nname = \"quick\"\n"), runs);
        all.push(name);
    }
    let mut args: Vec<&str> = all.iter().map(String::as_str).chain(args.iter().copied()).collect();
    args.extend(["--out", "r.html"]);
    let Output { status, stderr, .. } = bench(dir.path(), &args);
    assert!(status.success(), "{status}: {}", String::from_utf8_lossy(&stderr));
    let html = std::fs::read_to_string(dir.path().join("r.html")).unwrap();
    Made { at: dir.path().into(), _dir: dir, html }
}

/// Parses a page, and checks that it is whole, fetches and runs nothing, and shows no empty plot.
#[track_caller]
fn checked(html: &str) -> Document<'_> {
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    let page = Document::parse_with_options(html, options).unwrap_or_else(|e| panic!("{e}"));
    const KNOWN: [&str; 30] = [
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "h1",
        "h2",
        "h3",
        "p",
        "ul",
        "li",
        "span",
        "div",
        "figure",
        "figcaption",
        "svg",
        "path",
        "polyline",
        "polygon",
        "circle",
        "rect",
        "text",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "pre",
    ];
    for node in page.descendants().filter(Node::is_element) {
        let name = node.tag_name().name();
        assert!(KNOWN.contains(&name), "<{name}>");
        for attribute in node.attributes() {
            let (name, value) = (attribute.name(), attribute.value());
            assert!(!name.starts_with("on") && !["src", "href", "style"].contains(&name), "{name}={value}");
            assert!(
                name == "aria-label" || !value.contains("NaN") && !value.contains("inf"),
                "{name}={value}"
            );
        }
    }
    let style = page.descendants().find(|n| n.has_tag_name("style")).and_then(|n| n.text()).unwrap();
    assert!(
        !style.contains("url(") && !style.contains("@import") && style.contains("prefers-color-scheme:dark")
    );
    assert!(style.contains("@media print"));
    for figure in page.descendants().filter(|n| n.has_tag_name("figure")) {
        let data = |n: &Node| {
            n.attribute("class")
                .is_some_and(|c| c.contains("s-") && c.ends_with(|l: char| l.is_ascii_digit()))
        };
        assert!(figure.descendants().any(|n| data(&n)), "an empty plot: {}", text(figure));
    }
    page
}

fn text(node: Node) -> String {
    node.descendants()
        .filter(Node::is_text)
        .filter_map(|n| n.text())
        .collect::<String>()
        .replace('\u{a0}', " ")
}

/// Texts of the page's elements of a name.
fn texts(page: &Document, name: &str) -> Vec<String> {
    page.descendants().filter(|n| n.has_tag_name(name)).map(text).collect()
}

/// The rows of the table below a heading.
fn rows(page: &Document, heading: &str) -> Vec<Vec<String>> {
    let heading = page.descendants().find(|n| n.tag_name().name().starts_with('h') && text(*n) == heading);
    let table = heading
        .expect("the heading")
        .next_siblings()
        .find(|n| n.descendants().any(|n| n.has_tag_name("tbody")));
    let body = table.unwrap().descendants().find(|n| n.has_tag_name("tbody")).unwrap();
    let fields = |row: Node| row.children().filter(|n| n.has_tag_name("td")).map(text).collect();
    body.children().filter(|n| n.has_tag_name("tr")).map(fields).collect()
}

#[test]
fn the_study_is_told_in_words_tables_and_plots() {
    let made = report(&[&study(1.0)], &["--baseline", "baseline", "--plots", "plots"]);
    let page = checked(&made.html);
    let rows = rows(&page, "throughput, MiB/s");
    let interval = |cell: &str| rows.iter().find(|row| row[0] == cell).unwrap()[3].clone();
    assert_eq!(interval("random at 40 jobs"), "[38.95, 40.26] %");
    assert_eq!(interval("zipf at 40 jobs"), "[4.12, 6.64] %");
    assert_eq!(interval("gaussian at 80 jobs"), "[20.99, 22.86] %");
    let told = texts(&page, "li");
    let has = |what: &str| assert!(told.iter().any(|li| li.contains(what)), "{what}: {told:#?}");
    has(
        "throughput: better (higher) in 6 of 6: from +5.4 % (zipf at 40 jobs) to +45.7 % (random at 80 jobs)",
    );
    has("worse (higher) in 1 of 6: gaussian at 40 jobs (+10.3 %); no significance in 1.");
    assert_eq!(texts(&page, "figure").len(), 3 + 6 + 3 + 6, "throughput, latency, CPU, time");
    assert!(texts(&page, "p").iter().any(|p| p == "No run that counts tells its miss ratio."));
    assert!(
        texts(&page, "pre")[0].contains("name = \"quick\"") && made.html.contains("2026-11-21 18:20 UTC")
    );
    files_are_whole(&made.at.join("plots"), 18);
}

/// Each plot as SVG, which parses.
fn files_are_whole(dir: &Path, plots: usize) {
    let names: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(names.len(), plots, "{names:?}");
    for name in names {
        let svg = std::fs::read_to_string(&name).unwrap();
        let svg = Document::parse(&svg).unwrap();
        assert_eq!(svg.root_element().tag_name().namespace(), Some("http://www.w3.org/2000/svg"));
        assert!(!svg.descendants().any(|n| n.has_tag_name("script") || n.has_tag_name("image")));
    }
}

#[test]
fn names_are_text_whatever_they_are() {
    let hostile = [
        "<script>alert(1)</script>",
        "\"><img src=x onerror=alert(1)>",
        "</style></svg></title><b>",
        "&amp;&#60;",
        "]]><!--",
        "a\u{0}b\u{1b}[31m\u{202e}c\r\n",
        "\u{4e2d}\u{6587}\u{1f600}",
        "../../etc/passwd",
        "",
    ];
    let mut rng = Rng::with_seed(7);
    let mut any = |most: u64| -> String {
        let letter = |rng: &mut Rng| match rng.u64(..) >> 62 {
            0 => char::from_u32((rng.u64(..) >> 40) as u32 % 0x3000).unwrap_or('<'),
            _ => ['<', '>', '&', '"', '\'', '/', '!', '-', ' ', 'x'][(rng.u64(..) >> 32) as usize % 10],
        };
        (0..(rng.u64(..) >> 33) % most).map(|_| letter(&mut rng)).collect()
    };
    for round in 0..60 {
        let name = |any: &mut dyn FnMut(u64) -> String| {
            hostile.get(round).map_or_else(|| any(300), |h| (*h).to_string())
        };
        let (one, other, pattern) = (name(&mut any), any(30) + "2", name(&mut any));
        let mut runs = Vec::new();
        for system in [&one, &other] {
            for repetition in 1..=2 {
                let metrics =
                    [("throughput_mib_s", f64::from(repetition)), ("p99_us", 3.0), (one.as_str(), 4.0)];
                let mut run = run(system, &pattern, 1, repetition, &metrics);
                run.load = one.clone();
                run.marks = vec![one.clone()];
                run.series.insert("throughput_mib_s".into(), vec![(1.0, 2.0), (2.0, 2.0)]);
                runs.push(run);
            }
        }
        runs.push(Run { id: "r".into(), refused: Some(one.clone()), ..runs[0].clone() });
        let dir = TempDir::new().unwrap();
        let mut header = header(&format!("# {one}\n"));
        header.matrix.name = one.clone();
        header.machine.cpu = one.clone();
        write(&dir.path().join("raw.jsonl"), &header, &runs);
        let out = bench(dir.path(), &["raw.jsonl", "--plots", "plots"]);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let html = std::fs::read_to_string(dir.path().join("report.html")).unwrap();
        let page = checked(&html);
        let plain =
            |c: &char| !c.is_control() && !c.is_whitespace() && *c != '\u{fffd}' && (*c as u32) < 0x2000;
        let shown: String = texts(&page, "h1")[0].chars().filter(plain).collect();
        let meant: String = one.chars().filter(plain).collect();
        assert!(shown.ends_with(&meant), "{one:?}: {shown}");
        assert!(texts(&page, "figure").len() >= 3);
        files_are_whole(&dir.path().join("plots"), texts(&page, "figure").len());
    }
}

#[test]
fn missing_metric_has_a_sentence_and_no_plot() {
    let speed = |system: &str, repetition, value| {
        run(system, "random", 1, repetition, &[("throughput_mib_s", value)])
    };
    let says = |runs: &[Run], figures: usize, sentences: &[&str]| {
        let made = report(&[runs], &[]);
        let page = checked(&made.html);
        let told = texts(&page, "body").concat();
        for sentence in sentences {
            assert!(told.contains(sentence), "{sentence}: {told}");
        }
        assert_eq!(texts(&page, "figure").len(), figures);
    };
    let two = [
        speed("kernel", 1, 10.0),
        speed("kernel", 2, 11.0),
        speed("terrace", 1, 20.0),
        speed("terrace", 2, 22.0),
    ];
    says(
        &two,
        1,
        &[
            "No run that counts tells latency percentiles.",
            "No run that counts tells its throughput over time.",
            "No run that counts tells its miss ratio.",
            "No run that counts tells its CPU an operation.",
            "None: no run was marked, none was refused.",
        ],
    );
    says(&two[..2], 1, &["One system, kernel, so nothing to compare it with", "nothing to compare it with."]);
    says(&two[1..3], 1, &["too few runs", "so nothing can be said about it"]);
    let refused = two.clone().map(|run| Run { refused: Some("the memory limit did not bind".into()), ..run });
    says(
        &refused,
        0,
        &[
            "Every run was refused",
            "refused: the memory limit did not bind",
            "No run that counts tells a number.",
        ],
    );
    let half: Vec<Run> = two[..2].iter().chain(&refused[2..]).cloned().collect();
    says(
        &half,
        1,
        &["no good run", "2 refused and left out", "terrace: no cell has two good runs on both sides"],
    );
    let equal = [
        speed("kernel", 1, 5.0),
        speed("kernel", 2, 5.0),
        speed("terrace", 1, 5.0),
        speed("terrace", 2, 5.0),
    ];
    says(&equal, 1, &["identical"]);
    // The harness's own numbers beside those that a user's command printed have no plot and no test, but a column.
    let own = [1, 2].map(|i| {
        let beside =
            ["wall_s", "cpu_s", "device_read_mib", "foreign_cpu_percent", "memory_max_mib", "limit_hits"];
        let mut metrics = vec![("ballots_counted", f64::from(i))];
        metrics.extend(beside.map(|name| (name, 2.0)));
        metrics.extend(["major_faults", "pinned_max_mib", "ops"].map(|name| (name, 2.0)));
        run("mine", "-", 1, i, &metrics)
    });
    let sentences =
        ["ballots_counted", "No run that counts tells its throughput.", "most memory of the group, MiB"];
    says(&own, 1, &sentences);
}

#[test]
fn many_numbers_are_in_tables_that_paper_holds() {
    let names: Vec<String> = (0..20).map(|i| format!("number-{i}")).collect();
    let metrics: Vec<(&str, f64)> = names.iter().map(|name| (name.as_str(), 1.5)).collect();
    let made = report(&[&[run("kernel", "random", 1, 1, &metrics)]], &[]);
    let page = checked(&made.html);
    let tables: Vec<usize> = page
        .descendants()
        .filter(|n| n.has_tag_name("thead"))
        .map(|head| head.descendants().filter(|n| n.has_tag_name("th")).count())
        .collect();
    assert_eq!(tables, [11, 11, 7, 2], "cell, system and runs before the numbers; the machine");
}

#[test]
fn two_files_of_one_benchmark_show_what_became_worse() {
    let made = report(&[&study(1.0), &study(1.1)], &[]);
    let page = checked(&made.html);
    let body = texts(&page, "body").concat();
    assert!(
        body.contains(
            "36 comparisons of a metric in a cell, of the same system then and now: 23 worse, 0 better, 1 different without variance, 12 no significance."
        ),
        "{body}"
    );
    assert!(body.contains("throughput: worse (lower) in 6 of 6") && body.contains("-9.1 %"), "{body}");
    let same = report(&[&study(1.0), &study(1.0)], &[]);
    assert!(
        texts(&checked(&same.html), "body")
            .concat()
            .contains("0 worse, 0 better, 35 no significance, 1 identical.")
    );
    let (first, second): (Vec<Run>, Vec<Run>) = study(1.0).into_iter().partition(|run| run.jobs == 40);
    let parts = report(&[&first, &second], &[]);
    assert!(!parts.html.contains("then and now") && parts.html.contains("120 runs that count"));
}

#[test]
fn faults_are_told_in_a_line_with_the_cure() {
    let dir = TempDir::new().unwrap();
    let runs = [run("kernel", "random", 1, 1, &[("iops", 1.0)])];
    write(&dir.path().join("a.jsonl"), &header(""), &runs);
    write(&dir.path().join("empty.jsonl"), &header(""), &[]);
    std::fs::write(dir.path().join("bad.jsonl"), "hello\n").unwrap();
    for (args, what) in [
        (&["none.jsonl"][..], "none.jsonl: "),
        (&["bad.jsonl"], "bad.jsonl: line 1: "),
        (&["empty.jsonl"], "no runs; name the raw.jsonl of a matrix that ran"),
        (&["a.jsonl", "--baseline", "linux"], "no run of the system linux; --baseline can be kernel"),
        (
            &["a.jsonl", "a.jsonl", "a.jsonl"],
            "a.jsonl: the run kernel/random/1/1 is in a file before; name parts",
        ),
        (&["a.jsonl", "--out", "no/r.html"], "name a place that can be written with --out"),
        (&["a.jsonl", "--plots", "a.jsonl"], "name a directory that can be written with --plots"),
        (&[], "RAW.jsonl"),
    ] {
        let Output { status, stderr, .. } = bench(dir.path(), args);
        let stderr = String::from_utf8_lossy(&stderr);
        assert_eq!(status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.lines().count() == 1 && stderr.starts_with("terrace-bench: "), "{args:?}: {stderr}");
        assert!(stderr.contains(what), "{args:?}: {stderr}");
    }
}
