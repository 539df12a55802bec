//! `compare` from the command line: the published study to every digit, simulated systems, all kinds of
//! files, refusals.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;
use terrace_bench::machine::Machine;
use terrace_bench::raw::{Header, Matrix, Run, Writer};
use terrace_testkit::command::Tool;

const BENCH: Tool = Tool { exe: env!("CARGO_BIN_EXE_terrace-bench"), name: "terrace-bench" };

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// The lines of the list of tests: the cell, the interval in per cent or "no significance", t, df, p.
fn tests(args: &str) -> Vec<[String; 5]> {
    let text = BENCH.done(&root(), args);
    let lines = text.lines().filter(|line| line.starts_with("  ") && line.contains("10, 10"));
    let read = |line: &str| {
        let words: Vec<&str> = line.split("  ").map(str::trim).filter(|word| !word.is_empty()).collect();
        let share = &words[3][words[3].find('[').unwrap()..];
        let result = if words[7] == "no significance" { words[7] } else { share };
        [words[0], result, words[4], words[5], words[6]].map(str::to_string)
    };
    lines.map(read).collect()
}

#[track_caller]
fn golden(args: &str, expected: &[[&str; 5]]) {
    assert_eq!(tests(args), expected.iter().map(|line| line.map(str::to_string)).collect::<Vec<_>>());
}

/// Intervals, t, df and p as printed in the study.
#[test]
fn throughput_of_the_study_patched_against_baseline() {
    golden(
        "compare data/mglru-fio/throughput_mib_s.csv --factor kernel --baseline baseline --by jobs,distribution",
        &[
            ["40, random", "[38.95, 40.26] %", "-132.15", "11.177", "< 2.2e-16"],
            ["40, zipf", "[4.12, 6.64] %", "-9.5917", "9.4797", "3.463e-06"],
            ["40, gaussian", "[9.26, 10.36] %", "-37.744", "17.33", "< 2.2e-16"],
            ["80, random", "[42.32, 49.15] %", "-30.144", "9.3334", "1.281e-10"],
            ["80, zipf", "[9.44, 9.89] %", "-92.164", "13.276", "< 2.2e-16"],
            ["80, gaussian", "[20.99, 22.86] %", "-49.453", "17.863", "< 2.2e-16"],
        ],
    );
}

#[test]
fn throughput_of_the_study_two_jobs_a_cpu_against_one() {
    golden(
        "compare data/mglru-fio/throughput_mib_s.csv --factor jobs --baseline 40 --by kernel,distribution",
        &[
            ["baseline, random", "no significance", "-0.22947", "16.403", "0.8213"],
            ["baseline, zipf", "[-11.54, -11.02] %", "91.86", "17.875", "< 2.2e-16"],
            ["baseline, gaussian", "[-21.61, -20.30] %", "67.477", "17.539", "< 2.2e-16"],
            ["patched, random", "[2.04, 6.92] %", "-4.1443", "9.0781", "0.002459"],
            ["patched, zipf", "[-8.86, -6.48] %", "14.566", "9.1026", "1.291e-07"],
            ["patched, gaussian", "[-12.83, -11.64] %", "43.826", "15.275", "< 2.2e-16"],
        ],
    );
}

/// At 80 jobs all runs of one side are equal: the degrees of freedom are the other side's.
#[test]
fn latency_of_the_study() {
    golden(
        "compare data/mglru-fio/p99_latency_us.csv --factor kernel --baseline baseline --by jobs,distribution",
        &[
            ["40, random", "[-41.77, -40.35] %", "123.52", "15.287", "< 2.2e-16"],
            ["40, zipf", "no significance", "0.23667", "16.437", "0.8158"],
            ["40, gaussian", "[6.64, 13.95] %", "-5.9754", "16.001", "1.94e-05"],
            ["80, random", "[-41.97, -40.59] %", "134.89", "9", "3.437e-16"],
            ["80, zipf", "[-47.74, -47.04] %", "288.1", "13.292", "< 2.2e-16"],
            ["80, gaussian", "[-51.32, -50.27] %", "203.64", "17.798", "< 2.2e-16"],
        ],
    );
}

/// The intervals in units, to the digits printed by R, in every format.
#[test]
fn units_of_the_study_in_every_format() {
    let args = "compare data/mglru-fio/throughput_mib_s.csv --factor kernel --baseline baseline --by jobs,distribution --format";
    let answer: Value = serde_json::from_str(&BENCH.done(&root(), &format!("{args} json"))).unwrap();
    let of = |cell: &Value, path: &str| cell.pointer(path).unwrap().as_f64().unwrap();
    let units = [
        (3275.766, 3386.514),
        (600.7307, 967.8353),
        (1348.850, 1508.328),
        (3562.653, 4137.381),
        (1220.931, 1279.417),
        (2417.052, 2631.656),
    ];
    let cells = answer["cells"].as_array().unwrap();
    for (cell, (low, high)) in cells.iter().zip(units) {
        let (l, h) = (of(cell, "/outcome/difference/low"), of(cell, "/outcome/difference/high"));
        assert!(
            (l - low).abs() < 0.000_51 && (h - high).abs() < 0.000_51,
            "[{l}, {h}] is not [{low}, {high}]"
        );
    }
    assert_eq!((answer["schema"].as_str(), cells.len()), (Some("terrace.compare.v1"), 6));
    assert_eq!(cells[0]["cell"]["distribution"], "random");
    let csv = BENCH.done(&root(), &format!("{args} csv"));
    let line: Vec<&str> = csv.lines().nth(1).unwrap().split(',').collect();
    assert_eq!(line[..7], ["throughput_mib_s", "40", "random", "baseline", "patched", "10", "10"]);
    assert_eq!((line.len(), line[18]), (19, "better"));
    assert!((line[9].parse::<f64>().unwrap() - of(&cells[0], "/outcome/difference/mean")).abs() < 1e-9);
    let markdown = BENCH.done(&root(), &format!("{args} markdown"));
    let row = "| 40 | random | 8411 | 11742 | 10, 10 | 3331 [3276, 3387] | 39.61 [38.95, 40.26] % | -132.15 | 11.177 | < 2.2e-16 | better |";
    assert!(markdown.lines().any(|line| line == row), "{markdown}");
    let text = BENCH.done(&root(), &format!("{args} text"));
    let table = [
        "| Mean [95 % CI]        | jobs 40          | jobs 80          |",
        "| distribution random   | 8411 / 11742     | 8417 / 12267     |",
        "|                       | [38.95, 40.26] % | [42.32, 49.15] % |",
    ];
    for row in table {
        assert!(text.lines().any(|line| line == row), "{text}");
    }
}

#[test]
fn both_tables_of_the_study_at_once() {
    let both = "compare data/mglru-fio/throughput_mib_s.csv data/mglru-fio/p99_latency_us.csv --factor kernel --baseline baseline --by jobs,distribution";
    assert_eq!(tests(both).len(), 12);
    let wider = BENCH.done(&root(), &format!("{both} --confidence 0.99 --metric p99_latency_us"));
    assert!(
        wider.contains("[99 % CI]")
            && wider.contains("p99_latency_us (lower is better): patched against baseline")
    );
    assert!(!wider.contains("throughput"), "{wider}");
}

/// Raw results of a matrix: `cells` patterns, `runs` repetitions of each system, with the given speeds and
/// noise.
fn matrix(path: &Path, seed: u64, cells: usize, runs: u32, systems: &[(&str, f64)]) {
    let (mut writer, _) = Writer::append(path).unwrap();
    let machine = Machine { cpus: 2, cpu: "EPYC".into(), ..Machine::default() };
    writer
        .header(&Header {
            machine,
            matrix: Matrix { name: "simulated".into(), text: String::new(), paired: false },
        })
        .unwrap();
    let mut rng = fastrand::Rng::with_seed(seed);
    for cell in 0..cells {
        for repetition in 1..=runs {
            for (system, speed) in systems {
                let noise = 1.0 + 0.05 * ((0..12).map(|_| rng.f64()).sum::<f64>() - 6.0);
                let rate = 1000.0 * speed * noise;
                let metrics = [
                    ("throughput_mib_s", rate),
                    ("p99_us", 1e6 / rate),
                    ("miss_ratio", 0.25),
                    ("iops", rate * 256.0),
                ];
                let run = Run {
                    id: format!("{system}/p{cell}/2/{repetition}"),
                    system: (*system).into(),
                    load: "fio-psync".into(),
                    pattern: format!("p{cell:03}"),
                    jobs: 2,
                    repetition,
                    metrics: metrics.map(|(name, v)| (name.to_string(), v)).into(),
                    ..Run::default()
                };
                writer.run(&run).unwrap();
            }
        }
    }
}

fn place() -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("raw.jsonl");
    (dir, path)
}

fn verdicts(dir: &Path, args: &str) -> BTreeMap<String, usize> {
    let answer: Value = serde_json::from_str(&BENCH.done(dir, args)).unwrap();
    let mut counts = BTreeMap::new();
    for cell in answer["cells"].as_array().unwrap() {
        *counts.entry(cell["verdict"].as_str().unwrap().to_string()).or_default() += 1;
    }
    counts
}

/// 1000 comparisons of systems that differ by noise only: 95 % intervals exclude zero in one of 20.
#[test]
fn equal_systems_show_no_significance() {
    let mut all = 0;
    for seed in 1..=10 {
        let (dir, path) = place();
        matrix(&path, seed, 100, 5, &[("kernel", 1.0), ("twin", 1.0)]);
        let args =
            "compare raw.jsonl --factor system --baseline kernel --metric throughput_mib_s --format json";
        let counts = verdicts(dir.path(), args);
        assert!(counts["no_significance"] >= 90, "seed {seed}: {counts:?}");
        all += counts["no_significance"];
    }
    assert!((930..=975).contains(&all), "{all} of 1000: the interval is not one of 95 %");
}

#[test]
fn a_system_a_fifth_slower_is_found() {
    let (dir, path) = place();
    matrix(&path, 42, 100, 5, &[("kernel", 1.0), ("slow", 0.8)]);
    let answer = BENCH.done(dir.path(), "compare raw.jsonl --factor system --baseline kernel --format json");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let of = |metric: &str| {
        let cells = answer["cells"].as_array().unwrap();
        cells.iter().filter(|c| c["metric"] == metric).cloned().collect::<Vec<_>>()
    };
    let throughput = of("throughput_mib_s");
    let worse = throughput.iter().filter(|c| c["verdict"] == "worse").count();
    let at = |cell: &Value, end: &str| cell["outcome"]["percent"][end].as_f64().unwrap();
    let holds = throughput.iter().filter(|c| at(c, "low") <= -20.0 && -20.0 <= at(c, "high")).count();
    assert!(worse >= 98 && holds >= 90, "{worse} found, {holds} intervals hold the truth");
    assert!(of("p99_us").iter().filter(|c| c["verdict"] == "worse").count() >= 98, "its latency is higher");
    assert!(of("miss_ratio").iter().all(|c| c["verdict"] == "identical"));
    assert!(of("iops").is_empty(), "throughput is shown by one number");
}

#[test]
fn two_runs_of_one_benchmark_show_regressions() {
    let dir = TempDir::new().unwrap();
    for (name, speed) in [("old", 1.0), ("new", 0.7)] {
        fs::create_dir(dir.path().join(name)).unwrap();
        matrix(&dir.path().join(name).join("raw.jsonl"), 7, 1, 6, &[("kernel", 1.0), ("terrace", speed)]);
    }
    let text = BENCH.done(dir.path(), "compare old/raw.jsonl new/raw.jsonl");
    assert!(
        text.contains("throughput_mib_s (higher is better): new/raw.jsonl against old/raw.jsonl"),
        "{text}"
    );
    assert!(
        text.contains(
            "2 regressions and 0 improvements in 6 comparisons\nregression: throughput_mib_s terrace: -"
        ),
        "{text}"
    );
    assert!(text.contains("\nregression: p99_us terrace: 4"), "{text}");
    // The same benchmark twice, with identical runs.
    fs::write(dir.path().join("twin.jsonl"), fs::read(dir.path().join("old/raw.jsonl")).unwrap()).unwrap();
    assert!(BENCH.done(dir.path(), "compare old twin.jsonl").contains("0 regressions and 0 improvements"));
    assert!(BENCH.done(dir.path(), "compare new old").contains("0 regressions and 2 improvements"));
}

#[test]
fn refused_runs_are_told_and_left_out() {
    let (dir, path) = place();
    matrix(&path, 3, 1, 3, &[("kernel", 1.0), ("terrace", 1.0)]);
    let (mut writer, _) = Writer::append(&path).unwrap();
    let wild = Run {
        id: "terrace/p0/2/9".into(),
        system: "terrace".into(),
        load: "fio-psync".into(),
        pattern: "p000".into(),
        jobs: 2,
        metrics: BTreeMap::from([("throughput_mib_s".into(), 1e9)]),
        refused: Some("the memory limit did not bind".into()),
        ..Run::default()
    };
    writer.run(&wild).unwrap();
    let text = BENCH.done(dir.path(), "compare raw.jsonl --factor system --baseline kernel");
    assert!(
        text.contains("refused, not averaged in: raw.jsonl: terrace/p0/2/9: the memory limit did not bind\n"),
        "{text}"
    );
    assert!(text.contains("3, 3") && !text.contains("3, 4") && !text.contains("00000"), "{text}");
    let csv = BENCH
        .command(dir.path(), "compare raw.jsonl --factor system --baseline kernel --format csv")
        .output()
        .unwrap();
    assert!(
        String::from_utf8_lossy(&csv.stderr).contains("refused, not averaged in: raw.jsonl: terrace/p0/2/9")
    );
    assert!(csv.status.success() && csv.stdout.starts_with(b"metric,baseline,candidate,"));
}

/// Results of the former suites, made by another harness.
#[test]
fn old_suite_results_name_their_report() {
    BENCH.refused(
        &root().join("bench/runs/20261121-2xEPYC"),
        "compare raw.jsonl --factor system --baseline kernel",
        "report.txt",
    );
}

#[test]
fn pairs_show_what_a_drifting_machine_hides() {
    let (dir, path) = place();
    let (mut writer, _) = Writer::append(&path).unwrap();
    let matrix = Matrix { name: "drift".into(), text: String::new(), paired: true };
    writer.header(&Header { machine: Machine::default(), matrix }).unwrap();
    for repetition in 1..=5 {
        for (system, speed) in [("kernel", 1.0), ("terrace", 1.1)] {
            let rate = speed * f64::from(repetition * 100) + f64::from(repetition % 2);
            let id = format!("{system}/{repetition}");
            let metrics = BTreeMap::from([("iops".into(), rate)]);
            writer.run(&Run { id, system: system.into(), repetition, metrics, ..Run::default() }).unwrap();
        }
    }
    let args = "compare raw.jsonl --factor system --baseline kernel";
    let paired = BENCH.done(dir.path(), args);
    assert!(paired.lines().any(|line| line.contains("5, 5") && line.ends_with("better")), "{paired}");
    let copy = std::fs::read_to_string(&path).unwrap().replace("\"paired\":true", "\"paired\":false");
    fs::write(dir.path().join("groups.jsonl"), copy).unwrap();
    assert!(BENCH.done(dir.path(), &args.replace("raw", "groups")).contains("no significance"));
    let asked = BENCH.done(dir.path(), &(args.replace("raw", "groups") + " --pair repetition"));
    assert_eq!(asked, paired);
}

#[test]
fn fio_reports_by_directory_and_by_option() {
    let dir = TempDir::new().unwrap();
    let report = include_str!("../data/fio-3.33.json");
    for (system, factor) in [("kernel", 1.0), ("rival", 0.5)] {
        fs::create_dir(dir.path().join(system)).unwrap();
        for run in 0..3 {
            let iops = factor * (34_974.0 + f64::from(run));
            let text = report.replace("\"iops\" : 34974.025974", &format!("\"iops\" : {iops}"));
            assert_ne!(text, report);
            fs::write(dir.path().join(system).join(format!("{run}.json")), text).unwrap();
        }
    }
    let files: Vec<String> =
        (0..3).flat_map(|r| ["kernel", "rival"].map(|s| format!("{s}/{r}.json"))).collect();
    let args = format!("compare {} --factor dir --baseline kernel --metric iops,mean_us", files.join(" "));
    let text = BENCH.done(dir.path(), &args);
    let line = |cell: &str| text.lines().find(|line| line.starts_with(&format!("  {cell} "))).unwrap();
    assert!(line("read").contains("-50.00 [-50.01, -49.99] %") && line("read").ends_with("worse"), "{text}");
    assert!(line("write").ends_with("identical"), "{text}");
}

#[test]
fn wrong_uses_are_told_in_one_line_with_the_cure() {
    let dir = TempDir::new().unwrap();
    let at = dir.path();
    fs::write(at.join("a.csv"), "system,run,mib\nx,1,5\nx,2,6\ny,1,7\n").unwrap();
    fs::write(at.join("nan.csv"), "system,run,mib\nx,1,5\nx,2,NaN\ny,1,7\ny,2,7\n").unwrap();
    fs::write(at.join("b.json"), "{\"fio version\": \"fio-3.33\", \"jobs\": [").unwrap();
    BENCH.refused(at, "compare", "the following required arguments were not provided: <FILE>");
    BENCH.refused(at, "compare none.csv --factor system --baseline x", "none.csv: No such file");
    BENCH.refused(at, "compare a.csv", "--factor COLUMN, or two files");
    BENCH.refused(at, "compare a.csv --factor system", "--baseline takes one of x, y");
    BENCH.refused(at, "compare a.csv --factor system --baseline z", "takes one of x, y");
    BENCH.refused(at, "compare a.csv --factor sistem --baseline x", "no column sistem");
    BENCH.refused(
        at,
        "compare a.csv --factor system --baseline x",
        "2 of x and 1 of y (an interval needs two",
    );
    BENCH.refused(at, "compare a.csv a.csv --factor system --baseline x", "a.csv is named twice");
    BENCH.refused(at, "compare nan.csv --factor system --baseline x", "nan.csv: line 3: mib is \"NaN\"");
    BENCH.refused(at, "compare b.json --factor system --baseline x", "b.json: no JSON of fio");
    BENCH.refused(at, "compare a.csv --factor system --baseline x --confidence 95", "as 0.95");
    BENCH.refused(at, "compare a.csv --factor system --baseline x --format html", "invalid value 'html'");
    fs::write(at.join("a.csv"), "system,run,mib\nx,1,0.1\nx,2,0.1\ny,1,0.7\ny,2,0.7\nz,1,0.1\nz,2,0.1\n")
        .unwrap();
    let text = BENCH.done(at, "compare a.csv --factor system --baseline x");
    assert!(text.contains("0.1000 / 0.7000") && text.contains("different without variance"), "{text}");
    assert!(text.contains("identical"), "{text}");
    assert!(BENCH.done(at, "compare --help").contains("no significance"));
}
