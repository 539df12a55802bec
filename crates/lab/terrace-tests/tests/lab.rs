//! The policy laboratory on a live mount: traces, and estimates for other sizes of memory.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use terrace_api::capture::{AccessPath, Options, Reader, Summary, SummaryReport, page_key};
use terrace_api::lru::LruReport;
use terrace_api::numa::NumaReport;
use terrace_api::stats::StatReport;
use terrace_testkit::process::processor_time;
use terrace_tests::process::{self, wait_until};
use terrace_tests::rig::{Side, TestDir, TestMount, product};
use terrace_tests::rng::{Rng, fill, seed};
use terrace_tests::{amount, tools};

const PAGES: u64 = 2048;

/// A file of [`PAGES`] pages on the source; its inode number.
fn data(rig: &TestMount) -> u64 {
    let mut bytes = vec![0; PAGES as usize * 4096];
    fill(&mut bytes, 7);
    fs::write(rig.src().join("data"), bytes).unwrap();
    fs::metadata(rig.src().join("data")).unwrap().ino()
}

/// A mount of 16 MiB without a compressed tier, as simulator and estimates cover DRAM only; and the directory
/// of its configuration.
fn dram_alone(test: &str) -> (TestMount, TestDir) {
    let aside = TestDir::new(&format!("{test}-config"));
    let config = aside.path().join("terrace.toml");
    fs::write(&config, "[tier.compressed]\ncodec = \"none\"\n").unwrap();
    let rig =
        TestMount::with(test, Side::Preload, &["--memory", "16MiB", "--config", config.to_str().unwrap()]);
    (rig, aside)
}

/// A client that reads these pages one by one, with a pause after each hundred, so that a recorder can keep
/// up.
fn reader(rig: &TestMount, pages: &[u64]) -> Command {
    let list = rig.aside().join("pages");
    let lines: Vec<String> = pages.iter().map(u64::to_string).collect();
    fs::write(&list, lines.join("\n")).unwrap();
    let script = "import os,sys,time\nf=os.open('data',os.O_RDONLY)\n\
                  for i,p in enumerate(open(sys.argv[1])):\n  assert len(os.pread(f,4096,int(p)*4096))==4096\n  \
                  if i%100==99: time.sleep(0.002)";
    let mut command = rig.command("python3");
    command.args(["-c", script]).arg(list);
    command
}

/// Starts `terrace trace`; the file's header shows that it records.
fn recording(rig: &TestMount, file: &std::path::Path) -> Child {
    let mut command = Command::new(product("terrace"));
    command.arg("trace").arg(rig.at()).arg("-o").arg(file).arg("--json");
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let begun = wait_until(20, || fs::metadata(file).is_ok_and(|meta| meta.len() > 0));
    assert!(begun, "no recording");
    child
}

fn ended(child: Child) -> Summary {
    // SAFETY: the recorder that this test started and has not waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice::<SummaryReport>(&output.stdout).unwrap().summary
}

/// Hits of the preload path make no system call. The recording has them all the same, in order for each
/// thread's pages, and counts the rest as lost.
#[test]
fn a_trace_holds_the_hits_of_the_preload_path() {
    let rig = TestMount::new("lab-trace", Side::Preload, "64MiB");
    let ino = data(&rig);
    let all: Vec<u64> = (0..PAGES).collect();
    process::run(&mut reader(&rig, &all), 60).expect_success();
    process::run(&mut reader(&rig, &all), 60).expect_success();
    let mut rng = Rng::new(seed("lab-trace"));
    let pages: Vec<u64> = (0..20_000).map(|_| rng.below(PAGES)).collect();
    let file = rig.aside().join("data.trace");
    let child = recording(&rig, &file);
    process::run(&mut reader(&rig, &pages), 60).expect_success();
    let told = ended(child);
    let accesses: Vec<_> =
        Reader::open(&file, &Options::default()).unwrap().map(|access| access.unwrap()).collect();
    let wanted: Vec<u64> = pages.iter().map(|&page| page_key(ino, page)).collect();
    let ours: std::collections::HashSet<u64> = (0..PAGES).map(|page| page_key(ino, page)).collect();
    let got: Vec<u64> = accesses
        .iter()
        .filter(|a| a.via == Some(AccessPath::Preload) && ours.contains(&a.key))
        .map(|a| a.key)
        .collect();
    let (lost, hits) = (told.lost.total(), told.preload.hits);
    assert!(hits > 0 && got.len() as u64 + lost >= wanted.len() as u64, "{told:?}");
    // In order: the recording is the sequence with gaps.
    let mut rest = wanted.iter();
    for (at, key) in got.iter().enumerate() {
        assert!(rest.any(|k| k == key), "access {at} of {} is out of order: {told:?}", got.len());
    }
    let preload = rig.stat().cache.preload;
    assert!(preload.hits >= hits, "{preload:?}");
    rig.finish();
}

/// More readers than a recorder can follow: recorded and lost accesses add up to all.
#[test]
fn a_trace_under_load_tells_what_it_lost() {
    let rig = TestMount::new("lab-load", Side::Preload, "64MiB");
    data(&rig);
    let all: Vec<u64> = (0..PAGES).collect();
    process::run(&mut reader(&rig, &all), 60).expect_success();
    process::run(&mut reader(&rig, &all), 60).expect_success();
    let hits = || rig.stat().cache.preload.hits;
    let file = rig.aside().join("load.trace");
    let child = recording(&rig, &file);
    let before = hits();
    // Whole runs of pages a call, at full speed.
    let script = "import os\nf=os.open('data',os.O_RDONLY)\nb=bytearray(4096)\n\
                  for i in range(400000): os.preadv(f,[b],i*7919%2048*4096)";
    process::run(rig.command("python3").args(["-c", script]), 120).expect_success();
    let read = hits() - before;
    let told = ended(child);
    let recorded = told.preload.hits;
    // A thread descheduled between the two halves of a record makes the record late.
    let lost = told.lost.preload + told.lost.unclear;
    assert!(read >= 400_000, "{read}");
    assert_eq!(recorded + lost, read, "{told:?}");
    let in_file = Reader::open(&file, &Options::default()).unwrap();
    assert_eq!(
        in_file.filter(|a| a.as_ref().unwrap().via == Some(AccessPath::Preload)).count() as u64,
        recorded
    );
    // The memory of the lanes was freed.
    let tables = rig.stat().cache.memory.tables_bytes;
    assert!(tables < 16 << 20, "{tables}");
    rig.finish();
}

/// The estimate includes hits of the preload path, agrees with the measurement, and takes less than 1 % of a
/// processor.
#[test]
fn the_sample_is_cheap_and_right() {
    let (rig, _config) = dram_alone("lab-mrc");
    fs::write(rig.src().join("data"), vec![7; 12_000 * 4096]).unwrap();
    // Twelve thousand pages, the lower ones more often.
    let script = "import os,random,time\nf=os.open('data',os.O_RDONLY)\nr=random.Random(5)\nend=time.time()+4\n\
                  while time.time()<end:\n  for i in range(100): os.pread(f,4096,int(12000*r.random()**3)*4096)";
    let (begin, before) = (Instant::now(), processor_time(rig.terraced(), "sample"));
    process::run(rig.command("python3").args(["-c", script]), 60).expect_success();
    let ran = processor_time(rig.terraced(), "sample") - before;
    let share = ran.as_secs_f64() / begin.elapsed().as_secs_f64();
    let text = rig.terrace("stat", &["--mrc", "--json"]).expect_success();
    let mrc = serde_json::from_str::<StatReport>(&text).unwrap().mrc.unwrap();
    println!("{:.2} % of a processor; {mrc:?}", share * 100.0);
    assert!(share < 0.01, "{:.2} % of a processor", share * 100.0);
    let ratio = |i: usize| mrc.estimates[i].hit_ratio;
    let measured = mrc.measured_hit_ratio.unwrap();
    // Four seconds on a busy machine give few samples: an error of 0.09 occurred.
    assert!((ratio(1) - measured).abs() < 0.12, "{mrc:?}");
    assert!(ratio(0) < ratio(1) && ratio(1) < ratio(2) && ratio(2) <= ratio(3), "{mrc:?}");
    let text = rig.terrace("stat", &["--mrc"]).expect_success();
    assert!(text.contains("with memory  x0.5") && text.contains("one more GiB would save"), "{text}");
    rig.finish();
}

/// 64 threads that hit at full speed; the figure is printed (`--nocapture`). Two nodes are simulated, and the
/// threads of one belong to the other.
#[test]
fn the_observer_of_64_fast_readers_is_cheap() {
    let rig = TestMount::with("lab-numa", Side::Run, &["--memory", "64MiB", "--numa", "show"]);
    fs::write(rig.src().join("data"), vec![7; 16 << 20]).unwrap();
    terrace_testkit::nodes::feign(&rig.aside().join("sys"), &["0", "1-1023"]);
    let mut fio = rig.command("fio");
    fio.args(["--name=r", "--filename=data", "--size=16m", "--rw=randread", "--bs=4k", "--ioengine=psync"]);
    fio.args(["--invalidate=0", "--thread", "--numjobs=64", "--time_based", "--runtime=9", "--minimal"]);
    let fio = fio.env("TERRACE_TEST_SYS", rig.aside().join("sys"));
    let mut fio = fio.stdout(Stdio::null()).spawn().unwrap();
    let hits = || {
        let told = rig.terrace("stat", &["--json"]);
        serde_json::from_str::<StatReport>(&told.stdout).map_or(0, |stat| stat.cache.preload.hits)
    };
    assert!(wait_until(20, || hits() > 1_000_000), "no hits");
    let (begin, before) = (Instant::now(), processor_time(rig.terraced(), "numa"));
    std::thread::sleep(std::time::Duration::from_secs(4));
    let share =
        (processor_time(rig.terraced(), "numa") - before).as_secs_f64() / begin.elapsed().as_secs_f64();
    let told = rig.terrace("numa", &["--json"]).expect_success();
    let seen = serde_json::from_str::<NumaReport>(&told).unwrap().numa.threads.len();
    assert!(fio.wait().unwrap().success());
    println!("{:.2} % of a processor for {seen} threads", share * 100.0);
    assert!(seen >= 32, "{told}");
    let is_slow = product("terrace").parent().is_some_and(|dir| dir.ends_with("debug"));
    // Alone on a machine it takes 0.3 %; beside other tests its caches are cold.
    assert!(share < if is_slow { 0.1 } else { 0.01 }, "{:.2} % of a processor", share * 100.0);
    rig.finish();
}

/// Ratio of a program's page rates through `one` and `other`, in slices of 5 ms in turn on one processor:
/// neighbours of a virtual machine change its speed by a fifth from one second to the next.
fn ratio_in_turns(program: &Path, one: &TestMount, other: &TestMount, slices: usize) -> f64 {
    let (first, mut begin) = std::io::pipe().unwrap();
    let (second, passed_on) = std::io::pipe().unwrap();
    let told = |rig: &TestMount| rig.aside().join("told");
    let start = |rig: &TestMount, turn: std::io::PipeReader, next: std::io::PipeWriter| {
        let mut command = rig.command(program);
        command.args(["data", &slices.to_string(), "5000"]).stdin(turn).stdout(next);
        command.stderr(fs::File::create(told(rig)).unwrap()).spawn().unwrap()
    };
    let children = [start(one, first, passed_on), start(other, second, begin.try_clone().unwrap())];
    begin.write_all(&[0]).unwrap();
    drop(begin);
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let rates = [one, other].map(|rig| {
        let text = fs::read_to_string(told(rig)).unwrap();
        let rates: Vec<f64> = text.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(rates.len(), slices);
        rates.iter().sum::<f64>()
    });
    for rig in [one, other] {
        let cache = rig.stat().cache.preload;
        assert!(cache.hits as f64 > 0.95 * (cache.hits + cache.misses + cache.fallbacks) as f64, "{cache:?}");
    }
    rates[0] / rates[1]
}

/// `--numa auto` on a machine of one node, against a mount without it. The figure is printed (`--nocapture`).
/// TERRACE_SOAK uses many mounts, for speeds differ between mounts.
#[test]
fn one_memory_node_costs_nothing() {
    let nodes = fs::read_to_string("/sys/devices/system/node/online").unwrap_or_default();
    if nodes.contains([',', '-']) {
        terrace_testkit::skipped!("this machine has several memory nodes");
        return;
    }
    let aside = TestDir::new("lab-turns");
    let program = aside.path().join("turns");
    tools::compile("turns", &program, &[]);
    let (mounts, slices) = (amount("TERRACE_MOUNTS", 2, 60) as usize, 100);
    let pair = |n: usize| {
        let mount = |mode: &str| {
            let rig = TestMount::with(
                &format!("lab-one-{mode}"),
                Side::Preload,
                &["--memory", "32MiB", "--numa", mode],
            );
            fs::write(rig.src().join("data"), vec![7; 4 << 20]).unwrap();
            rig
        };
        // The first position alternates.
        let modes = if n.is_multiple_of(2) { ["auto", "off"] } else { ["off", "auto"] };
        let rigs = modes.map(mount);
        let ratio = ratio_in_turns(&program, &rigs[0], &rigs[1], slices).ln();
        rigs.into_iter().for_each(TestMount::finish);
        if n.is_multiple_of(2) { ratio } else { -ratio }
    };
    let logs: Vec<f64> = (0..mounts).map(pair).collect();
    let mean = logs.iter().sum::<f64>() / mounts as f64;
    let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (mounts - 1) as f64;
    let half = 1.96 * (variance / mounts as f64).sqrt();
    let (ratio, low, high) = (mean.exp(), (mean - half).exp(), (mean + half).exp());
    println!("auto : off {ratio:.4} ({low:.4} to {high:.4}), {mounts} pairs of mounts: {logs:.3?}");
    // A few mounts beside other tests show large differences only.
    let allowed = if mounts < 30 { 0.25 } else { 0.01 };
    assert!((ratio - 1.0).abs() <= allowed, "{ratio:.4} ({low:.4} to {high:.4})");
}

/// The simulator's result for a recording equals the mount's own counters.
#[test]
fn a_trace_replayed_does_what_the_mount_did() {
    let (rig, _config) = dram_alone("lab-replay");
    let pages = 8000;
    fs::write(rig.src().join("data"), vec![7; pages as usize * 4096]).unwrap();
    let mut rng = Rng::new(seed("lab-replay"));
    // The lower pages more often.
    let list: Vec<u64> =
        (0..40_000).map(|_| rng.below(pages).min(rng.below(pages)).min(rng.below(pages))).collect();
    let file = rig.aside().join("replay.trace");
    let child = recording(&rig, &file);
    process::run(&mut reader(&rig, &list), 60).expect_success();
    let told = ended(child);
    let misses = told.preload.misses + told.fuse.misses;
    let live = misses as f64 / told.accesses as f64;
    let frames = rig.stat().cache.memory.frames_max_bytes / 4096;
    let mut sim = Command::new(product("terrace-sim"));
    sim.arg("sim").arg("--trace").arg(&file).args([
        "--policy",
        "strata",
        "--csv",
        "--size",
        &frames.to_string(),
    ]);
    let csv = process::run(&mut sim, 60).expect_success();
    let simulated: f64 =
        csv.lines().last().and_then(|line| line.rsplit(',').next()).unwrap().parse().unwrap();
    println!("live {live:.4}, simulated {simulated:.4}");
    assert!(
        (live - simulated).abs() < 0.05 && live > 0.1,
        "live {live}, simulated {simulated}: {csv}{told:?}"
    );
    rig.finish();
}

/// Memory pressure does not evict pages younger than `min_ttl`: later misses are served, but not cached.
#[test]
fn the_young_are_not_evicted_under_pressure() {
    let aside = TestDir::new("lab-ttl");
    let config = aside.path().join("terrace.toml");
    fs::write(&config, "min_ttl = \"1h\"\n").unwrap();
    let rig = TestMount::with(
        "lab-ttl",
        Side::Preload,
        &["--memory", "16MiB", "--config", config.to_str().unwrap()],
    );
    fs::write(rig.src().join("data"), vec![7; 8000 * 4096]).unwrap();
    // Every third page, so that no scan is detected.
    let list: Vec<u64> = (0..8000).map(|i| i * 3 % 8000).collect();
    process::run(&mut reader(&rig, &list), 60).expect_success();
    let kept = rig.stat().cache.memory.pages;
    process::run(&mut reader(&rig, &list), 60).expect_success();
    let text = rig.terrace("lru", &["--json"]).expect_success();
    let lru = serde_json::from_str::<LruReport>(&text).unwrap().lru;
    assert!(lru.min_ttl_ms == 3_600_000 && lru.min_ttl_refused > 0, "{lru:?}");
    assert_eq!(lru.pgsteal, 0, "{lru:?}");
    let stat = rig.stat().cache;
    assert!(stat.memory.pages >= kept && kept > 3000, "{kept}: {stat:?}");
    assert!(stat.preload.hits > 3000, "what stays is served: {stat:?}");
    let dropped = rig.terrace("drop-caches", &[]).expect_success();
    assert!(dropped.ends_with("clean pages dropped\n") && !dropped.starts_with("0 "), "{dropped}");
    rig.finish();
}
