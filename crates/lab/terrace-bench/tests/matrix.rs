//! `terrace-bench matrix` from the command line, as root: control groups, mounts, loop devices. Every matrix
//! here takes seconds.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use terrace_bench::compare::{Question, Row, Verdict, compare};
use terrace_bench::raw;
use terrace_system::{mounts, proc};
use terrace_testkit::command::Tool;
use terrace_testkit::wait::wait_until;

const BENCH: Tool = Tool { exe: env!("CARGO_BIN_EXE_terrace-bench"), name: "terrace-bench" };
const ARGS: &str = "matrix m.toml --dir work --state state --out out";

struct Place(tempfile::TempDir);

impl Place {
    /// In /var/tmp: data need a file system with direct I/O and room.
    fn new(matrix: &str) -> Place {
        let place = Place(tempfile::tempdir_in("/var/tmp").unwrap());
        fs::write(place.at("m.toml"), matrix).unwrap();
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Exit code and all output.
    #[track_caller]
    fn run(&self, args: &str) -> (i32, String) {
        let Output { status, stdout, stderr } = BENCH.command(self.0.path(), args).output().unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        assert!(!said.contains("panicked"), "{said}");
        (status.code().unwrap(), said)
    }

    fn results(&self) -> raw::Results {
        raw::read(&self.at("out/raw.jsonl")).unwrap()
    }
}

fn rows(results: &raw::Results) -> Vec<Row> {
    results.runs.iter().map(Row::from).collect()
}

fn question(baseline: &str, metric: &str) -> Question {
    let by = ["load", "pattern", "jobs"].map(String::from).to_vec();
    let metrics = vec![metric.to_string()];
    Question { factor: "system".into(), baseline: baseline.into(), by, metrics, pair: None, confidence: 0.95 }
}

/// Each system works at its own pace, with 3 % of noise that differs between runs but is reproducible with
/// any awk: awk's own random numbers differ between versions, and one takes no seeds above 2^31.
const PACES: &str = r#"
name = "paces"
repetitions = 10
seed = 5
jobs = [1, 2]

[[system]]
name = "plain"
kind = "command"
setup = ["mkdir -p {scratch}; echo 100 > {scratch}/pace; echo 1 > {scratch}/salt"]
teardown = ["rm -r {scratch}"]
dir = "{scratch}"

[[system]]
name = "slow"
kind = "command"
setup = ["mkdir -p {scratch}; echo 80 > {scratch}/pace; echo 2 > {scratch}/salt"]
teardown = ["rm -r {scratch}"]
dir = "{scratch}"

[[system]]
name = "equal"
kind = "command"
setup = ["mkdir -p {scratch}; echo 100 > {scratch}/pace; echo 3 > {scratch}/salt"]
teardown = ["rm -r {scratch}"]
dir = "{scratch}"

[[load]]
kind = "command"
command = "awk -v seed={seed} 'NR == 1 { pace = $1 } NR == 2 { noise = (seed * 10 + $1) % 99991; noise = noise * noise * 7919 % 10007 / 10007; print \"rate\", {jobs} * pace * (0.97 + 0.06 * noise), \"of\", {jobs} }' {dir}/pace {dir}/salt"
regex = 'rate ([0-9.]+)'
metric = "steps_per_s"
"#;

#[test]
fn a_slower_rival_is_found_and_an_equal_one_is_none() {
    let place = Place::new(PACES);
    let (code, said) = place.run(ARGS);
    assert_eq!(code, 0, "{said}");
    let results = place.results();
    assert_eq!(results.runs.len(), 60);
    assert!(results.runs.iter().all(|run| run.refused.is_none()), "{said}");
    let answer = compare(&rows(&results), &question("plain", "steps_per_s")).unwrap();
    assert_eq!(answer.cells.len(), 4, "two rivals, one and two jobs");
    for cell in &answer.cells {
        let wanted = if cell.candidate.value == "slow" { Verdict::Worse } else { Verdict::NoSignificance };
        assert_eq!(cell.verdict, wanted, "{cell:?}");
        let ratio = cell.candidate.mean.unwrap() / cell.baseline.mean.unwrap();
        let wanted = if cell.candidate.value == "slow" { 0.8 } else { 1.0 };
        assert!((ratio - wanted).abs() < 0.03, "{ratio} of {cell:?}");
    }
    let readme = fs::read_to_string(place.at("out/README.md")).unwrap();
    assert!(readme.contains("slow against plain") && readme.contains("matrix m.toml"), "{readme}");
    assert!(!place.at("work").exists(), "what it made it takes away");
    assert_eq!(fs::read_dir(place.at("state")).unwrap().count(), 0);
}

#[test]
fn resuming_makes_what_is_not_there_and_bears_a_torn_line() {
    let place = Place::new(PACES);
    let only = format!("{ARGS} --only /1/2");
    assert_eq!(place.run(&only).0, 0);
    let file = place.at("out/raw.jsonl");
    let text = fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    // One valid run, one refused, one torn.
    let again = lines[2].replace("\"refused\":null", "\"refused\":\"a reason\"");
    assert_ne!(again, lines[2]);
    fs::write(&file, [lines[0], lines[1], &again, &lines[3][..40]].join("\n")).unwrap();
    let (code, said) = place.run(&only);
    assert!(code == 2 && said.contains("torn") && said.contains("--resume"), "{said}");
    let (code, said) = place.run(&format!("{only} --resume"));
    assert!(code == 0 && said.contains("3 runs, 1 exist already"), "{said}");
    let results = place.results();
    assert_eq!(results.headers.len(), 1, "the machine is the same");
    let ids: BTreeSet<_> = results.runs.iter().map(|run| run.id.clone()).collect();
    assert!(ids.len() == 3 && results.runs.len() == 3 && results.runs.iter().all(|r| r.refused.is_none()));
    let first = &raw::parse(&file, text.as_bytes()).unwrap().runs[0];
    let kept = results.runs.iter().find(|run| run.id == first.id).unwrap();
    assert_eq!(first.started, kept.started, "the good one was not made again");
    let (_, said) = place.run(&format!("{only} --resume"));
    assert!(said.contains("3 runs, 3 exist already"), "{said}");
    fs::write(place.at("m.toml"), PACES.replace("seed = 5", "seed = 6")).unwrap();
    let (code, said) = place.run(&format!("{only} --resume"));
    assert!(code == 2 && said.contains("different version"), "{said}");
}

/// 8 MiB of data in a limit of 512: the limit is not reached, and the device is too slow to read all data
/// before the measurement. The rival named `liar` serves a file of the same name with other content.
const REFUSED: &str = r#"
name = "refused"
repetitions = 1
limit_mib = 512
file_mib = 8
content = "real"
ramp_s = 1
measure_s = 1

[device]
kind = "throttled"
on = "memory"
iops = 500

[[system]]
kind = "kernel"

[[system]]
name = "liar"
kind = "command"
setup = ["mkdir -p {scratch} && tr a-m n-z < {source}/real-8 > {scratch}/real-8"]
dir = "{scratch}"

[[load]]
name = "bound"
kind = "fio"
expect = "limit"

[[load]]
name = "free"
kind = "fio"
expect = "nothing"
"#;

#[test]
fn a_limit_that_does_not_bind_and_wrong_data_are_refused() {
    let place = Place::new(REFUSED);
    let (code, said) = place.run(ARGS);
    assert_eq!(code, 1, "{said}");
    let results = place.results();
    assert_eq!(results.runs.len(), 4, "{said}");
    for run in &results.runs {
        let why = run.refused.clone().unwrap_or_default();
        match (run.system.as_str(), run.load.as_str()) {
            ("kernel", "bound") => assert!(why.contains("the memory limit has no effect"), "{why}"),
            ("kernel", "free") => assert_eq!(why, "", "real data are right"),
            _ => assert!(why.contains("the data were wrong"), "{why}"),
        }
    }
    assert!(said.contains("REFUSED") && said.contains("3 runs refused"), "{said}");
    let why = compare(&rows(&results), &question("kernel", "iops")).unwrap_err();
    assert!(why.contains("no cell has runs"), "none is averaged in: {why}");
}

const KILLED: &str = r#"
name = "killed"
repetitions = 1
limit_mib = 64
file_mib = 8

[device]
kind = "memory"

[[system]]
kind = "command"
setup = ["mkdir -p MARKS; touch MARKS/up"]
teardown = ["rm -r MARKS"]

[[load]]
kind = "command"
command = "touch MARKS/running; sleep 60; echo 1"
"#;

/// The source answers 200 requests a second, cached by the kernel's page cache; the rival's program only
/// writes 4 MiB to its tier.
const TIERS: &str = r#"
name = "tiers"
repetitions = 1
limit_mib = 64
file_mib = 96
ramp_s = 1
measure_s = 3
patterns = ["zipf:0.8"]
jobs = [2]

[device]
kind = "throttled"
on = "memory"
iops = 200

[[system]]
kind = "kernel"

[[system]]
kind = "direct"

[[system]]
kind = "foyer"
tier_mib = 32

[[load]]
kind = "reads"
expect = "nothing"
"#;

#[test]
fn reads_are_counted_at_their_devices() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new(TIERS);
    let script = "#!/bin/sh\nwhile [ $1 != --tier ]; do shift; done\nmkdir $2\n\
        dd if=/dev/zero of=$2/data bs=1M count=4 oflag=direct 2>/dev/null\necho '{\"ops\": 9}'\n";
    fs::write(place.at("rival"), script).unwrap();
    fs::set_permissions(place.at("rival"), fs::Permissions::from_mode(0o755)).unwrap();
    BENCH.refused(place.0.path(), &format!("{ARGS} --foyer none"), "system foyer: no none");
    let (code, said) = place.run(&format!("{ARGS} --foyer rival"));
    assert_eq!(code, 0, "{said}");
    let results = place.results();
    let metrics =
        |system: &str| &results.runs.iter().find(|run| run.system == system).expect("it ran").metrics;
    let (kernel, direct, foyer) = (metrics("kernel"), metrics("direct"), metrics("foyer"));
    for system in [kernel, direct] {
        // The throttle lets more through in its first moments.
        assert!((400.0..900.0).contains(&system["source_reads"]), "{system:?}");
        assert_eq!(system["tier_write_mib"], 0.0);
    }
    assert!(direct["miss_ratio"] > 0.99 && direct["hits_per_s"] < 5.0, "{direct:?}");
    assert!(kernel["miss_ratio"] < 0.98, "{kernel:?}");
    assert!((4.0..6.0).contains(&foyer["tier_write_mib"]), "{foyer:?}");
    assert_eq!(foyer["ops"], 9.0);
    // The rival's program reads nothing; the file system may read some of its own blocks.
    assert!(foyer["source_reads"] < 100.0, "{foyer:?}");
}

fn mounts_below(dir: &Path) -> usize {
    mounts::table().iter().filter(|mount| mount.point.starts_with(dir)).count()
}

fn loops_below(dir: &Path) -> usize {
    let files =
        (0..64).filter_map(|n| fs::read_to_string(format!("/sys/block/loop{n}/loop/backing_file")).ok());
    files.filter(|file| Path::new(file.trim()).starts_with(dir)).count()
}

fn groups_of(pid: u32) -> Vec<PathBuf> {
    let name = format!("terrace-bench-{pid}");
    let below = fs::read_dir("/sys/fs/cgroup").unwrap().flatten().map(|entry| entry.path().join(&name));
    below.chain([Path::new("/sys/fs/cgroup").join(&name)]).filter(|dir| dir.exists()).collect()
}

/// Whether the process is gone, or a zombie.
fn has_ended(pid: &str) -> bool {
    proc::stat(pid).is_none_or(|stat| stat.state == 'Z')
}

#[test]
fn next_start_undoes_leftovers_of_a_killed_harness() {
    let place = Place::new("");
    let (dir, marks) = (place.0.path().canonicalize().unwrap(), place.at("marks"));
    fs::write(place.at("m.toml"), KILLED.replace("MARKS", marks.to_str().unwrap())).unwrap();
    // Without an `env` prefix: the process is the harness itself.
    let mut harness = std::process::Command::new(env!("CARGO_BIN_EXE_terrace-bench"));
    let mut harness = harness.current_dir(&dir).args(ARGS.split(' ')).spawn().unwrap();
    wait_until("it comes to its load", || marks.join("running").exists());
    harness.kill().unwrap();
    harness.wait().unwrap();
    assert_eq!(
        (mounts_below(&dir), loops_below(&dir)),
        (2, 1),
        "the kill left a tmpfs, a loop device and its ext4"
    );
    let groups = groups_of(harness.id());
    let left = fs::read_to_string(groups[0].join("cgroup.procs")).unwrap();
    assert!(left.lines().count() > 0, "and processes in its group");
    assert!(marks.exists() && place.at("work").exists());

    let (code, said) = place.run(&format!("{ARGS} --only nothing"));
    assert!(code == 2, "{said}");
    assert_eq!(loops_below(&dir), 1, "an error in the command is reported before any change");
    fs::write(place.at("m.toml"), PACES).unwrap();
    let (code, said) = place.run(&format!("{ARGS}2 --only plain/command/random/1/1"));
    assert!(code == 0 && said.contains("set-ups that process"), "{said}");
    assert_eq!((mounts_below(&dir), loops_below(&dir)), (0, 0), "{said}");
    assert_eq!(groups_of(harness.id()), Vec::<PathBuf>::new(), "{said}");
    assert!(left.lines().all(has_ended), "processes were ended");
    assert!(!marks.exists(), "the system was taken down");
    assert!(!place.at("work").exists(), "{said}");
}

#[test]
fn mistakes_are_told_with_line_and_key() {
    let place = Place::new(&PACES.replace("repetitions = 10", "repetition = 10"));
    BENCH.refused(place.0.path(), ARGS, "m.toml: line 3: repetition: unknown field `repetition`");
    fs::write(place.at("m.toml"), PACES.replace("jobs = [1, 2]", "jobs = [0]")).unwrap();
    BENCH.refused(place.0.path(), ARGS, "m.toml: line 5: jobs: 1 to 4096");
    BENCH.refused(place.0.path(), "matrix none.toml", "none.toml: No such file");
    fs::write(place.at("m.toml"), PACES).unwrap();
    BENCH.refused(place.0.path(), &format!("{ARGS} --only bogus"), "no run's id contains");
    assert!(!place.at("out").exists() && !place.at("state").exists());
}

#[test]
fn ready_matrices_are_right() {
    let place = Place::new("");
    let bench = place.at("bench");
    // The command line is split at spaces here, and the path of a clone may have some.
    std::os::unix::fs::symlink(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../bench"), &bench).unwrap();
    let mut n = 0;
    for file in fs::read_dir(bench).unwrap().map(|entry| entry.unwrap().path()) {
        if file.extension().is_some_and(|ending| ending == "toml") {
            // Refused on a machine with one memory node.
            if file.ends_with("numa.toml") && !std::path::Path::new("/sys/devices/system/node/node1").exists()
            {
                continue;
            }
            let said = BENCH.done(place.0.path(), &format!("matrix {} --dry-run", file.display()));
            assert!(said.contains(" runs, about "), "{said}");
            n += 1;
        }
    }
    assert!(n >= 5);
}
