//! The report in a real browser, where there is one (Debian's chromium): nothing wider than the window, no text of a plot over another, light and
//! dark grounds. Elsewhere the tests say that they saw nothing.

use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;
use terrace_bench::raw::{Header, Run, Writer};

/// Measures in the page and tells the page around it, one fault a line. It is put into a copy of the report: the report itself has no script.
const MEASURE: &str = r#"<script>
const faults = [];
const wide = document.documentElement.scrollWidth;
if (wide > innerWidth) faults.push(`the page is ${wide} wide, the window ${innerWidth}`);
for (const svg of document.querySelectorAll('figure svg')) {
  const inside = svg.getBoundingClientRect();
  const boxes = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
  boxes.forEach(([text, a], i) => {
    if (a.left < inside.left - 1 || a.right > inside.right + 1 || a.bottom > inside.bottom + 1) faults.push(`outside: ${text}`);
    for (const [other, b] of boxes.slice(0, i)) {
      const over = Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4;
      if (over) faults.push(`${text} over ${other}`);
    }
  });
}
const texts = document.querySelectorAll('figure text').length;
parent.postMessage(`measured ${texts} texts at ${innerWidth}\n` + faults.join('\n'), '*');
</script></body>"#;

/// Systems with short and very long names in cells with short and long names, all kinds of plots.
fn report(dir: &Path) -> String {
    let long = "a-system-with-a-name-as-long-as-they-come --policy=strata --memory=4GiB ".repeat(3);
    let mut runs = Vec::new();
    for system in ["kernel", "terrace", &long, "direct", &"x".repeat(150)] {
        for pattern in ["random", &"a pattern that nobody would call so ".repeat(4)] {
            for (jobs, repetition) in [(1, 1), (1, 2), (400, 1), (400, 2)] {
                let speed = 1234.5 * f64::from(jobs) + f64::from(repetition) * system.len() as f64;
                let metrics = [
                    ("throughput_mib_s", speed),
                    ("p99_us", 1e6 / speed),
                    ("cpu_us_per_op", 3.25),
                    ("miss_ratio", 0.25),
                ];
                runs.push(Run {
                    id: format!("{system}/{pattern}/{jobs}/{repetition}"),
                    system: system.into(),
                    load: "fio-psync".into(),
                    pattern: pattern.into(),
                    jobs,
                    repetition,
                    metrics: metrics.map(|(name, value)| (name.into(), value)).into(),
                    series: [("throughput_mib_s".into(), (1..40).map(|t| (f64::from(t), speed)).collect())]
                        .into(),
                    latency_percentiles_us: [1.0, 50.0, 90.0, 99.0, 99.9, 99.99, 100.0]
                        .map(|p| (p, p * 1e4 / speed))
                        .into(),
                    marks: vec!["disturbed: others used 7 % of the CPUs".into()],
                    ..Run::default()
                });
            }
        }
    }
    let (mut writer, _) = Writer::append(&dir.join("raw.jsonl")).unwrap();
    let machine = terrace_bench::machine::describe(dir);
    let matrix =
        terrace_bench::raw::Matrix { name: "quick".into(), text: format!("# {long}\n"), paired: false };
    writer.header(&Header { machine, matrix }).unwrap();
    runs.iter().for_each(|run| writer.run(run).unwrap());
    let bench = Command::new(env!("CARGO_BIN_EXE_terrace-bench"))
        .current_dir(dir)
        .args(["report", "raw.jsonl"])
        .status();
    assert!(bench.unwrap().success());
    std::fs::read_to_string(dir.join("report.html")).unwrap()
}

/// Output of the browser, or `None` where there is none.
fn browse(dir: &Path, args: &[&str], page: &str) -> Option<String> {
    let profile = format!("--user-data-dir={}", dir.join("profile").display());
    let page = format!("file://{}", dir.join(page).display());
    let out = Command::new("chromium")
        .args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--virtual-time-budget=2000",
            &profile,
        ])
        .args(args)
        .arg(page)
        .stderr(Stdio::null())
        .output();
    let Ok(out) = out else {
        eprintln!("no chromium: nothing seen");
        return None;
    };
    assert!(out.status.success(), "{}", out.status);
    Some(String::from_utf8_lossy(&out.stdout).into_owned())
}

#[test]
fn nothing_overlaps_and_nothing_is_wider_than_the_window() {
    let dir = TempDir::new().unwrap();
    let html = report(dir.path());
    std::fs::write(dir.path().join("measured.html"), html.replace("</body>", MEASURE)).unwrap();
    // A frame: windows are never narrower than 500 pixels.
    for wide in [1200, 720, 400] {
        let around = format!(
            "<output></output><iframe src=\"measured.html\" style=\"width:{wide}px;height:900px;border:0\"></iframe>\
             <script>onmessage = e => document.querySelector('output').textContent = e.data</script>"
        );
        std::fs::write(dir.path().join("around.html"), around).unwrap();
        let Some(dom) = browse(dir.path(), &["--window-size=1300,1000", "--dump-dom"], "around.html") else {
            return;
        };
        let told = dom.split_once("<output>").and_then(|(_, rest)| rest.split_once("</output>"));
        let mut told = told.unwrap_or_else(|| panic!("no measurement: {} bytes", dom.len())).0.trim().lines();
        let measured = told.next().unwrap();
        assert!(measured.starts_with("measured ") && !measured.starts_with("measured 0 "), "{measured}");
        assert!(measured.ends_with(&format!(" at {wide}")), "{measured}");
        let faults: Vec<&str> = told.collect();
        assert!(faults.is_empty(), "{wide}: {faults:#?}");
    }
}

#[test]
fn the_ground_follows_the_reader() {
    let dir = TempDir::new().unwrap();
    report(dir.path());
    // Blink's numbers of the two schemes.
    for (scheme, ground) in [("1", 0xff), ("0", 0x18)] {
        let picture = dir.path().join(format!("{scheme}.png"));
        let (scheme, shot) = (
            format!("--blink-settings=preferredColorScheme={scheme}"),
            format!("--screenshot={}", picture.display()),
        );
        let Some(_) = browse(dir.path(), &["--window-size=900,1400", &scheme, &shot], "report.html") else {
            return;
        };
        let (size, pixels) = decoded(&picture);
        let share = pixels.iter().filter(|pixel| **pixel == [ground; 3]).count() as f64 / size as f64;
        assert!((0.5..0.99).contains(&share), "{share:.3} of the page is ground {ground:#x}");
    }
}

/// Number and colours of a picture's pixels.
fn decoded(path: &Path) -> (usize, Vec<[u8; 3]>) {
    let file = std::io::BufReader::new(std::fs::File::open(path).unwrap());
    let mut reader = png::Decoder::new(file).read_info().unwrap();
    let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut bytes).unwrap();
    let pixels =
        bytes[..info.buffer_size()].chunks_exact(info.color_type.samples()).map(|p| [p[0], p[1], p[2]]);
    ((info.width * info.height) as usize, pixels.collect())
}
