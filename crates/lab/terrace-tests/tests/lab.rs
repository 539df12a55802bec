//! The policy laboratory on a live mount: recorded traces, estimates for other sizes of memory, and the
//! simulator's agreement. Also the cost of the observer of memory nodes, and the protection of young pages.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use terrace_api::capture::{AccessPath, Options, Reader, Summary, SummaryReport, page_key};
use terrace_api::lru::LruReport;
use terrace_api::numa::NumaReport;
use terrace_api::stats::StatReport;
use terrace_testkit::process::processor_share;
use terrace_testkit::wait::holds_within;
use terrace_tests::process;
use terrace_tests::rng::{Rng, fill, seed};
use terrace_tests::{Side, TestDir, TestMount, amount, product, terrace, tools};

const PAGES: u64 = 2048;

/// A file of [`PAGES`] pages on the source; its inode number.
fn data(mount: &TestMount) -> u64 {
    let mut bytes = vec![0; PAGES as usize * 4096];
    fill(&mut bytes, 7);
    fs::write(mount.src().join("data"), bytes).unwrap();
    fs::metadata(mount.src().join("data")).unwrap().ino()
}

/// A mount of 16 MiB with this configuration, and the directory of that.
fn configured(test: &str, configuration: &str) -> (TestMount, TestDir) {
    let aside = TestDir::new(&format!("{test}-config"));
    let config = aside.path().join("terrace.toml");
    fs::write(&config, configuration).unwrap();
    let options = ["--memory", "16MiB", "--config", config.to_str().unwrap()];
    (TestMount::with(test, Side::Preload, &options), aside)
}

/// A mount without a compressed tier, as simulator and estimates cover DRAM only.
fn dram_alone(test: &str) -> (TestMount, TestDir) {
    configured(test, "[tier.compressed]\ncodec = \"none\"\n")
}

/// A client that reads these pages one by one, with a pause after each hundred, so that a recorder can keep
/// up.
fn reader(mount: &TestMount, pages: &[u64]) -> Command {
    let list = mount.aside().join("pages");
    let lines: Vec<String> = pages.iter().map(u64::to_string).collect();
    fs::write(&list, lines.join("\n")).unwrap();
    let script = "import os,sys,time\nf=os.open('data',os.O_RDONLY)\n\
                  for i,p in enumerate(open(sys.argv[1])):\n  assert len(os.pread(f,4096,int(p)*4096))==4096\n  \
                  if i%100==99: time.sleep(0.002)";
    let mut command = mount.command("python3");
    command.args(["-c", script]).arg(list);
    command
}

/// Starts `terrace trace`; the file's header shows that it records.
fn recording(mount: &TestMount, file: &std::path::Path) -> Child {
    let mut command = terrace(&["trace", "--json", "-o"]);
    let child = command.arg(file).arg(mount.at()).stdout(Stdio::piped()).spawn().unwrap();
    let begun = holds_within(Duration::from_secs(20), || fs::metadata(file).is_ok_and(|meta| meta.len() > 0));
    assert!(begun, "no recording");
    child
}

fn ended(child: Child) -> Summary {
    assert!(process::kill(child.id() as i32, libc::SIGINT));
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice::<SummaryReport>(&output.stdout).unwrap().summary
}

/// Hits of the preload path make no system call. The recording has them all the same, in order for each
/// thread's pages, and counts the rest as lost.
#[test]
fn a_trace_holds_the_hits_of_the_preload_path() {
    let mount = TestMount::new("lab-trace", Side::Preload, "64MiB");
    let ino = data(&mount);
    let all: Vec<u64> = (0..PAGES).collect();
    process::run(&mut reader(&mount, &all), 60).expect_success();
    process::run(&mut reader(&mount, &all), 60).expect_success();
    let mut rng = Rng::new(seed("lab-trace"));
    let pages: Vec<u64> = (0..20_000).map(|_| rng.below(PAGES)).collect();
    let file = mount.aside().join("data.trace");
    let child = recording(&mount, &file);
    process::run(&mut reader(&mount, &pages), 60).expect_success();
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
    let preload = mount.stat().cache.preload;
    assert!(preload.hits >= hits, "{preload:?}");
    mount.finish();
}

/// More readers than a recorder can follow: recorded and lost accesses add up to all.
#[test]
fn a_trace_under_load_tells_what_it_lost() {
    let mount = TestMount::new("lab-load", Side::Preload, "64MiB");
    data(&mount);
    let all: Vec<u64> = (0..PAGES).collect();
    process::run(&mut reader(&mount, &all), 60).expect_success();
    process::run(&mut reader(&mount, &all), 60).expect_success();
    let hits = || mount.stat().cache.preload.hits;
    let file = mount.aside().join("load.trace");
    let child = recording(&mount, &file);
    let before = hits();
    // Whole runs of pages a call, at full speed.
    let script = "import os\nf=os.open('data',os.O_RDONLY)\nb=bytearray(4096)\n\
                  for i in range(400000): os.preadv(f,[b],i*7919%2048*4096)";
    process::run(mount.command("python3").args(["-c", script]), 120).expect_success();
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
    let tables = mount.stat().cache.memory.tables_bytes;
    assert!(tables < 16 << 20, "{tables}");
    mount.finish();
}

/// The estimate includes hits of the preload path, agrees with the measurement, and takes less than 1 % of a
/// processor.
#[test]
fn the_sample_is_cheap_and_right() {
    let (mount, _config) = dram_alone("lab-mrc");
    fs::write(mount.src().join("data"), vec![7; 12_000 * 4096]).unwrap();
    // Twelve thousand pages, the lower ones more often.
    let script = "import os,random,time\nf=os.open('data',os.O_RDONLY)\nr=random.Random(5)\nend=time.time()+4\n\
                  while time.time()<end:\n  for i in range(100): os.pread(f,4096,int(12000*r.random()**3)*4096)";
    let share = processor_share(mount.terraced(), "sample", || {
        process::run(mount.command("python3").args(["-c", script]), 60).expect_success();
    });
    let mrc = mount.terrace("stat", &["--mrc", "--json"]).json::<StatReport>().mrc.unwrap();
    println!("{:.2} % of a processor; {mrc:?}", share * 100.0);
    assert!(share < 0.01, "{:.2} % of a processor", share * 100.0);
    let ratio = |i: usize| mrc.estimates[i].hit_ratio;
    let measured = mrc.measured_hit_ratio.unwrap();
    // Four seconds on a busy machine give few samples: an error of 0.09 occurred.
    assert!((ratio(1) - measured).abs() < 0.12, "{mrc:?}");
    assert!(ratio(0) < ratio(1) && ratio(1) < ratio(2) && ratio(2) <= ratio(3), "{mrc:?}");
    let text = mount.terrace("stat", &["--mrc"]).expect_success();
    assert!(text.contains("with memory  x0.5") && text.contains("one more GiB would save"), "{text}");
    mount.finish();
}

/// 64 threads that hit at full speed; the figure is printed (`--nocapture`). Two nodes are simulated, and the
/// threads of one belong to the other.
#[test]
fn the_observer_of_64_fast_readers_is_cheap() {
    let mount = TestMount::with("lab-numa", Side::Run, &["--memory", "64MiB", "--numa", "show"]);
    fs::write(mount.src().join("data"), vec![7; 16 << 20]).unwrap();
    terrace_testkit::nodes::feign(&mount.aside().join("sys"), &["0", "1-1023"]);
    let mut fio = mount.command("fio");
    fio.args(["--name=r", "--filename=data", "--size=16m", "--rw=randread", "--bs=4k", "--ioengine=psync"]);
    fio.args(["--invalidate=0", "--thread", "--numjobs=64", "--time_based", "--runtime=9", "--minimal"]);
    let fio = fio.env("TERRACE_TEST_SYS", mount.aside().join("sys"));
    let mut fio = fio.stdout(Stdio::null()).spawn().unwrap();
    let hits = || {
        let stat = mount.terrace("stat", &["--json"]).stdout;
        serde_json::from_str::<StatReport>(&stat).map_or(0, |stat| stat.cache.preload.hits)
    };
    assert!(holds_within(Duration::from_secs(20), || hits() > 1_000_000), "no hits");
    let share = processor_share(mount.terraced(), "numa", || std::thread::sleep(Duration::from_secs(4)));
    let threads = mount.terrace("numa", &["--json"]).json::<NumaReport>().numa.threads;
    let seen = threads.len();
    assert!(fio.wait().unwrap().success());
    println!("{:.2} % of a processor for {seen} threads", share * 100.0);
    assert!(seen >= 32, "{threads:?}");
    let is_slow = product("terrace").parent().is_some_and(|dir| dir.ends_with("debug"));
    // Alone on a machine it takes 0.3 %; beside other tests its caches are cold.
    assert!(share < if is_slow { 0.1 } else { 0.01 }, "{:.2} % of a processor", share * 100.0);
    mount.finish();
}

/// Ratio of a program's page rates through `one` and `other`, in slices of 5 ms in turn on one processor:
/// neighbours of a virtual machine change its speed by a fifth from one second to the next.
fn ratio_in_turns(program: &Path, one: &TestMount, other: &TestMount, slices: usize) -> f64 {
    let (first, mut begin) = std::io::pipe().unwrap();
    let (second, passed_on) = std::io::pipe().unwrap();
    let told = |mount: &TestMount| mount.aside().join("told");
    let start = |mount: &TestMount, turn: std::io::PipeReader, next: std::io::PipeWriter| {
        let mut command = mount.command(program);
        command.args(["data", &slices.to_string(), "5000"]).stdin(turn).stdout(next);
        command.stderr(fs::File::create(told(mount)).unwrap()).spawn().unwrap()
    };
    let children = [start(one, first, passed_on), start(other, second, begin.try_clone().unwrap())];
    begin.write_all(&[0]).unwrap();
    drop(begin);
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let rates = [one, other].map(|mount| {
        let text = fs::read_to_string(told(mount)).unwrap();
        let rates: Vec<f64> = text.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(rates.len(), slices);
        rates.iter().sum::<f64>()
    });
    for mount in [one, other] {
        let cache = mount.stat().cache.preload;
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
            let options = ["--memory", "32MiB", "--numa", mode];
            let mount = TestMount::with(&format!("lab-one-{mode}"), Side::Preload, &options);
            fs::write(mount.src().join("data"), vec![7; 4 << 20]).unwrap();
            mount
        };
        // The first position alternates.
        let modes = if n.is_multiple_of(2) { ["auto", "off"] } else { ["off", "auto"] };
        let both = modes.map(mount);
        let ratio = ratio_in_turns(&program, &both[0], &both[1], slices).ln();
        both.into_iter().for_each(TestMount::finish);
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
    let (mount, _config) = dram_alone("lab-replay");
    let pages = 8000;
    fs::write(mount.src().join("data"), vec![7; pages as usize * 4096]).unwrap();
    let mut rng = Rng::new(seed("lab-replay"));
    // The lower pages more often.
    let list: Vec<u64> =
        (0..40_000).map(|_| rng.below(pages).min(rng.below(pages)).min(rng.below(pages))).collect();
    let file = mount.aside().join("replay.trace");
    let child = recording(&mount, &file);
    process::run(&mut reader(&mount, &list), 60).expect_success();
    let told = ended(child);
    let misses = told.preload.misses + told.fuse.misses;
    let live = misses as f64 / told.accesses as f64;
    let frames = mount.stat().cache.memory.frames_max_bytes / 4096;
    let mut sim = Command::new(product("terrace-sim"));
    sim.args(["sim", "--policy", "strata", "--csv", "--size", &frames.to_string(), "--trace"]);
    let csv = process::run(sim.arg(&file), 60).expect_success();
    let simulated: f64 =
        csv.lines().last().and_then(|line| line.rsplit(',').next()).unwrap().parse().unwrap();
    println!("live {live:.4}, simulated {simulated:.4}");
    assert!(
        (live - simulated).abs() < 0.05 && live > 0.1,
        "live {live}, simulated {simulated}: {csv}{told:?}"
    );
    mount.finish();
}

/// Memory pressure does not evict pages younger than `min_ttl`: later misses are served, but not cached.
#[test]
fn the_young_are_not_evicted_under_pressure() {
    let (mount, _config) = configured("lab-ttl", "min_ttl = \"1h\"\n");
    fs::write(mount.src().join("data"), vec![7; 8000 * 4096]).unwrap();
    // Every third page, so that no scan is detected.
    let list: Vec<u64> = (0..8000).map(|i| i * 3 % 8000).collect();
    process::run(&mut reader(&mount, &list), 60).expect_success();
    let kept = mount.stat().cache.memory.pages;
    process::run(&mut reader(&mount, &list), 60).expect_success();
    let lru = mount.terrace("lru", &["--json"]).json::<LruReport>().lru;
    assert!(lru.min_ttl_ms == 3_600_000 && lru.min_ttl_refused > 0, "{lru:?}");
    assert_eq!(lru.pgsteal, 0, "{lru:?}");
    let stat = mount.stat().cache;
    assert!(stat.memory.pages >= kept && kept > 3000, "{kept}: {stat:?}");
    assert!(stat.preload.hits > 3000, "what stays is served: {stat:?}");
    let dropped = mount.terrace("drop-caches", &[]).expect_success();
    assert!(dropped.ends_with("clean pages dropped\n") && !dropped.starts_with("0 "), "{dropped}");
    mount.finish();
}
