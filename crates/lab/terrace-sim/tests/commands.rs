//! terrace-sim's commands from the user's side: output, refusals, files left behind.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use terrace_testkit::command::{Tool, check_outputs};
use terrace_testkit::rng::Rng;

const SIM: Tool = Tool { exe: env!("CARGO_BIN_EXE_terrace-sim"), name: "terrace-sim" };

/// Requests over some 2000 pages, a few of them popular.
fn keys(seed: u64) -> Vec<u64> {
    let mut rng = Rng::new(seed);
    let mut key = || {
        let scale = 1 + rng.below(2000);
        1 + rng.below(scale)
    };
    (0..20_000).map(|_| key()).collect()
}

fn write(dir: &Path, name: &str, bytes: impl AsRef<[u8]>) {
    std::fs::write(dir.join(name), bytes).unwrap();
}

fn u64s(keys: &[u64]) -> Vec<u8> {
    keys.iter().flat_map(|key| key.to_le_bytes()).collect()
}

/// A directory with the same requests as `a.u64` and `b.txt`.
fn place() -> TempDir {
    let dir = TempDir::new().unwrap();
    write(dir.path(), "a.u64", u64s(&keys(1)));
    let lines: String = keys(1).iter().map(|key| format!("{key}\n")).collect();
    write(dir.path(), "b.txt", lines);
    dir
}

#[test]
fn prices_of_a_device_come_from_a_profile() {
    let dir = place();
    let device = |name: &str, get_us: f64| {
        format!("[device.\"{name}\"]\nget_latency_us = {get_us}\nput_mib_s = 1000.0\n")
    };
    write(dir.path(), "p.toml", device("/nfs", 700.0) + &device("/nvme", 70.0));
    let sim = "sim --trace a.u64 --policy lru --size 5% --device 30% --csv";
    let profile = |tier| format!("{sim} --profile p.toml --profile-source /nfs --profile-tier {tier}");
    let by_profile = SIM.done(dir.path(), &profile("/nvme"));
    assert_eq!(by_profile, SIM.done(dir.path(), &format!("{sim} --source-us 700 --device-us 70")));
    assert_ne!(by_profile, SIM.done(dir.path(), sim));
    SIM.refused(dir.path(), &profile("/hdd"), "p.toml: knows no device `/hdd`; it has /nfs, /nvme");
}

#[test]
fn traces_of_one_key_and_negative_prices_are_refused() {
    let dir = place();
    let msr = |disk: u64, page: u64| format!("1281663{disk},hm,{disk},Read,{},4096,413\n", page * 4096);
    let pages: String = keys(1).iter().map(|page| msr(1, *page)).collect();
    write(dir.path(), "msr.csv", &pages);
    // The pages of a disk request equal those of a page trace.
    let misses = |trace: &str| {
        let table = SIM.done(dir.path(), &format!("sim --trace {trace} --policy lru --size 100 --csv"));
        table.lines().nth(1).unwrap().split(',').skip(4).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(misses("msr.csv"), misses("a.u64"));
    write(dir.path(), "one.csv", "1,vol,4096\n2,vol,8192\n");
    SIM.refused(dir.path(), "sim --trace one.csv --policy lru --size 1", "all 2 requests have one key");
    assert!(SIM.done(dir.path(), "sim --trace one.csv --policy lru --size 1 --column 2").contains("lru"));
    let device = "sim --trace a.u64 --policy lru --size 5% --device 30%";
    for price in ["--source-us=-5", "--device-us=nan", "--write-budget=-1"] {
        SIM.refused(dir.path(), &format!("{device} {price}"), "a number from 0 on");
    }
}

#[test]
fn outputs_that_fail_are_no_panic() {
    let dir = place();
    let sim = "sim --trace a.u64 --policy lru --size 5%";
    for args in [sim, &format!("{sim} --json"), "mrc --trace a.u64", "placement", "--help", "--version"] {
        check_outputs(|| SIM.command(dir.path(), args));
    }
}

#[test]
fn a_compressed_tier_is_shown_beside_none() {
    let dir = place();
    let args = "sim --trace a.u64 --policy strata,lru --size 200 --compress 1.87,4 --compress-share 50";
    let report: Value = serde_json::from_str(&SIM.done(dir.path(), &format!("{args} --json"))).unwrap();
    let cells = report["cells"].as_array().unwrap();
    let ratios: Vec<f64> = cells.iter().map(|cell| cell["ratio"].as_f64().unwrap()).collect();
    assert_eq!(ratios, [1.0, 1.87, 4.0, 1.0, 1.87, 4.0]);
    for cells in cells.chunks(3) {
        let of = |name: &str| -> Vec<f64> { cells.iter().map(|cell| cell[name].as_f64().unwrap()).collect() };
        let misses = of("misses");
        assert!(misses[0] > misses[1] && misses[1] > misses[2], "denser is better: {misses:?}");
        assert_eq!((of("tier_share_mean")[0], of("tier_hits")[0], of("time_ratio")[0]), (0.0, 0.0, 1.0));
        assert!(
            of("tier_hits")[1] > 0.0 && of("time_ratio")[1] < 1.0 && of("tier_share_end")[1] == 0.495,
            "{cells:?}"
        );
    }
    let csv = SIM.done(dir.path(), &format!("{args} --csv"));
    assert_eq!(csv.lines().count(), 7);
    assert!(csv.lines().all(|line| line.split(',').count() == 22), "{csv}");
    assert!(SIM.done(dir.path(), args).contains("strata"));
    let refused_all = SIM.done(dir.path(), &format!("{args} --csv --compress-refused 100%"));
    assert!(refused_all.lines().skip(1).all(|line| line.split(',').nth(8) == Some("0")), "{refused_all}");
    SIM.refused(dir.path(), "sim --trace a.u64 --policy opt --compress 2", "opt has no tiers below memory");
}

#[test]
fn csv_has_one_row_a_cell_and_formats_agree() {
    let dir = place();
    let csv = SIM.done(dir.path(), "sim --trace a.u64 b.txt --policy strata,lru,opt --size 1%,10%,200 --csv");
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("trace,policy,size_frac,cache_pages,requests,misses,miss_ratio"));
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    assert_eq!(rows.len(), 2 * 3 * 3);
    for (a, b) in rows.iter().zip(&rows[9..]) {
        assert_eq!((a[0], b[0], &a[1..]), ("a", "b", &b[1..]));
        let (requests, misses, ratio): (f64, f64, f64) =
            (a[4].parse().unwrap(), a[5].parse().unwrap(), a[6].parse().unwrap());
        assert!(requests == 20_000.0 && (misses / requests - ratio).abs() < 1e-6, "{a:?}");
    }
    let misses = |policy: &str, pages: &str| -> u64 {
        rows.iter().find(|row| row[1] == policy && row[3] == pages).unwrap()[5].parse().unwrap()
    };
    assert!(misses("opt", "200") < misses("strata", "200") && misses("opt", "200") < misses("lru", "200"));
    let named =
        |names: &str| SIM.done(dir.path(), &format!("sim --trace a.u64 --policy {names} --size 200 --csv"));
    assert_eq!(named("mglru,mglru-fg"), named("mglru-fg"), "each policy once, by whatever name");
    let exact = SIM.done(dir.path(), "sim --trace a.u64 --policy lru --size 200 --csv");
    let sampled = SIM.done(dir.path(), "sim --trace a.u64 --policy lru --size 200 --csv --sampled");
    assert_ne!(exact, sampled, "batches differ from single accesses");
}

#[test]
fn table_and_json_agree_with_the_optimum() {
    let dir = place();
    let table = SIM.done(dir.path(), "sim --trace a.u64 --policy lru --size 10%");
    assert!(
        table.contains("a, 20000 requests") && table.contains("\nopt ") && table.contains("1 cells;"),
        "{table}"
    );
    let json: Value =
        serde_json::from_str(&SIM.done(dir.path(), "sim --trace a.u64 --size 5%,10% --json")).unwrap();
    assert_eq!(json["schema"], "terrace.sim.v1");
    let cells = json["cells"].as_array().unwrap();
    assert!(cells.iter().all(|cell| cell["above_opt"].as_f64().unwrap() >= 0.0));
    assert_eq!(json["ranking"][0]["policy"], "opt");
    assert_eq!(json["ranking"].as_array().unwrap().len() * 2, cells.len());
}

#[test]
fn curves() {
    let dir = place();
    let csv = SIM.done(dir.path(), "mrc --trace a.u64 --samples 200 --exact --csv");
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("trace,size_frac,cache_pages,miss_ratio,exact"));
    let rows: Vec<Vec<f64>> =
        lines.map(|line| line.split(',').skip(1).map(|field| field.parse().unwrap()).collect()).collect();
    assert!(
        rows.len() > 100 && rows.windows(2).all(|pair| pair[0][1] < pair[1][1] && pair[0][2] >= pair[1][2])
    );
    // At each size the exact curve equals the misses of `lru`.
    let at = rows.iter().find(|row| row[1] >= 200.0).unwrap();
    let sim = SIM.done(dir.path(), &format!("sim --trace a.u64 --policy lru --csv --size {}", at[1]));
    assert!(sim.trim_end().ends_with(&format!("{:.6}", at[3])), "{sim} {at:?}");
    let json = SIM.done(dir.path(), "mrc --trace a.u64 --samples 1000 --exact --json");
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["schema"], "terrace-sim.mrc.v1", "not that of `terrace stat --mrc`, whose shape differs");
    assert!(json["traces"][0]["error_mean"].as_f64().unwrap() < 0.03, "{json}");
    assert!(SIM.done(dir.path(), "mrc --trace a.u64").contains("100.00 % of the pages sampled"));
}

#[test]
fn senseless_options_are_refused_with_a_reason() {
    let dir = place();
    for name in ["none.u64", "none.txt", "none.csv"] {
        write(dir.path(), name, "");
        SIM.refused(dir.path(), &format!("sim --trace {name}"), "no requests, read as");
        SIM.refused(dir.path(), &format!("mrc --trace {name}"), "no requests, read as");
    }
    SIM.refused(dir.path(), "sim --trace a.u64 --policy lru,best", "no policy best; there are strata,");
    SIM.refused(dir.path(), "sim --trace a.u64 --size 0", "at least one page");
    SIM.refused(
        dir.path(),
        "sim --trace a.u64 --size 0.01%",
        "a: 0.01% of 1816 pages are less than one page; give a larger --size",
    );
    SIM.refused(dir.path(), "sim --trace a.u64 --size big", "big is no size");
    SIM.refused(dir.path(), "sim --trace missing", "missing: cannot be opened");
    SIM.refused(
        dir.path(),
        "sim --trace a.u64 --format tape",
        "there are u64, oracle, text, csv, msr, terrace",
    );
    SIM.refused(dir.path(), "sim --trace a.u64 --format terrace", "a.u64: not a capture of terrace");
    SIM.refused(dir.path(), "sim", "--trace <FILE>");
    SIM.refused(dir.path(), "sim --trace b.txt --format oracle", "bytes are left over");
    SIM.refused(dir.path(), "mrc --trace a.u64 --samples 1", "1 is not in");
    SIM.refused(dir.path(), "policies --traces .", "reference_miss_ratios.csv");
    write(
        dir.path(),
        "reference_miss_ratios.csv",
        "trace,policy,size_frac,cache_objects,miss_ratio\na,lru,x\n",
    );
    SIM.refused(dir.path(), "policies --traces .", "line 2: not a reference");
}

/// The simulator reports a capture's losses and uses the rest.
#[test]
fn captures_are_replayed_and_their_losses_told() {
    use terrace_api::capture::{AccessPath, Event, Header, Writer};
    let dir = TempDir::new().unwrap();
    let mut writer = Writer::new(Vec::new(), &Header::default());
    for page in keys(2) {
        writer
            .access(&Event { object: page % 5, page, write: false, via: AccessPath::Preload, time_ms: page })
            .unwrap();
    }
    writer.lost(5000).unwrap();
    write(dir.path(), "today.trc", writer.finish().unwrap());
    let Output { status, stdout, stderr } =
        SIM.command(dir.path(), "sim --trace today.trc --policy lru --size 10% --csv").output().unwrap();
    assert!(status.success() && String::from_utf8_lossy(&stdout).contains("today.trc,lru,0.1,"));
    assert_eq!(
        String::from_utf8_lossy(&stderr),
        "today.trc: the capture lost 5000 accesses (20.00 %); miss ratios are of those it has\n"
    );
}

/// Two files of one name with different requests: each is measured by its own optimum.
#[test]
fn traces_of_one_name_are_told_apart() {
    let dir = place();
    std::fs::create_dir(dir.path().join("d")).unwrap();
    write(dir.path(), "d/a.u64", u64s(&keys(9)));
    let json = SIM.done(dir.path(), "sim --trace a.u64 d/a.u64 --policy opt --size 200 --json");
    let json: Value = serde_json::from_str(&json).unwrap();
    let of = |i: usize| (json["cells"][i]["trace"].as_str().unwrap(), json["cells"][i]["above_opt"].as_f64());
    assert_eq!((of(0), of(1)), (("a.u64", Some(0.0)), ("d/a.u64", Some(0.0))));
}

/// An interrupt during an endless trace ends the process at once, without a file.
#[test]
fn an_interrupt_leaves_nothing() {
    let dir = TempDir::new().unwrap();
    let mut child = SIM
        .command(dir.path(), "sim --trace /dev/stdin --format text")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    (0..1000).for_each(|key| writeln!(stdin, "{key}").unwrap());
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    assert_eq!(child.wait().unwrap().signal(), Some(2));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Gates pass with a correct reference, and each fails with a wrong one.
#[test]
fn gates_pass_and_fail() {
    let dir = TempDir::new().unwrap();
    write(dir.path(), "a.u64", u64s(&keys(3)));
    write(dir.path(), "b.u64", u64s(&keys(4)));
    let csv = SIM.done(dir.path(), "sim --trace a.u64 --size 1%,10% --csv");
    let reference = |belady: &str, lru: f64| {
        let mut text = String::from("trace,policy,size_frac,cache_objects,miss_ratio\n");
        for row in csv.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>()) {
            let ratio: f64 = row[6].parse().unwrap();
            let (policy, ratio) = match row[1] {
                "opt" => (belady, ratio),
                "lru" => ("lru", ratio * lru),
                "2q" => ("twoq", ratio),
                "w-tinylfu" => ("wtinyLFU", ratio),
                other => (other, ratio),
            };
            text += &format!("{},{policy},{},{},{ratio:.4}\n", row[0], row[2], row[3]);
        }
        write(dir.path(), "reference_miss_ratios.csv", text);
    };
    let verdicts = || {
        let output = SIM.command(dir.path(), "policies --traces . --json").output().unwrap();
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        let gates =
            json["gates"].as_array().unwrap().iter().map(|gate| gate["passed"] == true).collect::<Vec<_>>();
        assert_eq!(output.status.code(), Some(i32::from(gates.contains(&false))));
        assert_eq!(json["others"]["cells"]["exact"][0]["trace"], "b");
        gates
    };
    reference("belady", 1.0);
    let sound = verdicts();
    assert_eq!(sound[1..], [true; 4], "the first gate is the default's on a trace of this test's making");
    reference("belady", 1.03);
    assert_eq!(verdicts()[1..], [true, false, true, true], "lru is 3 % off");
    reference("nobody", 1.0);
    assert_eq!(verdicts()[1..], [true, true, false, true], "no Belady to compare with");
    reference("clock", 1.0); // the optimum's numbers stand for clock's
    assert!(!verdicts()[2]);
    let output = SIM.command(dir.path(), "policies --traces .").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("FAILED published")
            && text.contains("clock on a at 1%")
            && text.contains("== Other traces")
    );
}
