//! `terrace trace`, `terrace lru` and `terrace numa` on a live mount.

use std::fs;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use terrace_api::capture::{AccessPath, Lost, Options, Reader, Summary, SummaryReport};
use terrace_api::lru::{Evicted, LruReport};
use terrace_api::numa::NumaReport;
use terrace_testkit::process::processor_share;

use crate::test_mount::{Outcome, TestMount, json, kill, terrace, text, told, wait_until};

/// Starts `terrace trace MNT -o FILE --json MORE...`.
fn recording(test: &TestMount, file: &Path, more: &[&str]) -> Child {
    let _ = fs::remove_file(file);
    let mut command = terrace(["trace"]);
    command.arg(&test.mnt).args(["-o", text(file), "--json"]).args(more);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The head of the file is written with the first frame.
    wait_until("the recording began", || fs::metadata(file).is_ok_and(|meta| meta.len() > 0));
    child
}

fn ended(child: Child) -> Outcome {
    child.wait_with_output().unwrap().into()
}

#[test]
fn a_trace_holds_what_reaches_the_mount() {
    let Some(test) = TestMount::new() else { return };
    fs::write(test.src.join("data"), vec![7; 1 << 20]).unwrap();
    test.mount(&[]).fine();
    let file = test.file("one.trace");
    let child = recording(&test, &file, &[]);
    let busy = test.file("two.trace");
    test.ask("trace", &["-o", text(&busy)]).refused_with(1, &["a trace is being recorded already"]);
    let data = fs::File::options().read(true).write(true).open(test.mnt.join("data")).unwrap();
    data.read_at(&mut [0; 4096], 40 * 4096).unwrap();
    data.write_at(&[1; 8192], 100 * 4096).unwrap();
    data.sync_all().unwrap();
    drop(data);
    kill(child.id() as i32, libc::SIGINT);
    let told: SummaryReport = json(ended(child));
    assert_eq!(told.file, file);
    let told = told.summary;
    let reader = Reader::open(&file, &Options::default()).unwrap();
    let accesses: Vec<_> = reader.map(Result::unwrap).collect();
    assert_eq!(told.accesses, accesses.len() as u64);
    assert!(accesses.iter().all(|a| a.via == Some(AccessPath::Fuse)), "{accesses:?}");
    assert_eq!(accesses.iter().filter(|a| a.write).count(), 2);
    assert!(told.fuse.misses >= 1 && told.fuse.writes == 2, "{told:?}");
    assert_eq!(told.lost, Lost::default());
    test.finish();
}

#[test]
fn a_trace_ends_by_time_by_size_and_with_the_daemon() {
    let Some(test) = TestMount::new() else { return };
    fs::write(test.src.join("data"), vec![7; 8 << 20]).unwrap();
    test.mount(&[]).fine();
    let file = test.file("a.trace");
    let traced = |told: Outcome| json::<SummaryReport>(told).summary;
    let told: Summary = traced(test.ask("trace", &["-o", text(&file), "--seconds", "0.3", "--json"]));
    assert!(told.seconds < 5.0 && told.accesses == 0, "{told:?}");
    let told = test.ask("trace", &["-o", text(&file), "--seconds", "0.1"]).fine();
    assert!(told.out.starts_with("0 page accesses in 0."), "{}", told.out);

    let child = recording(&test, &file, &["--max", "4KiB"]);
    let data = fs::File::options().read(true).write(true).open(test.mnt.join("data")).unwrap();
    wait_until("the file is full", || {
        for page in (0..2048).rev() {
            data.write_at(&[1], page * 4096).unwrap();
        }
        fs::metadata(&file).unwrap().len() >= 4096
    });
    assert!(traced(ended(child)).bytes >= 4096);

    let child = recording(&test, &file, &[]);
    kill(test.processes().1, libc::SIGKILL);
    ended(child).refused(&["a.trace: the recording broke off", "can be read"]);
    assert_eq!(Reader::open(&file, &Options::default()).unwrap().filter(|a| a.is_err()).count(), 0);
    traced(test.ask("trace", &["-o", text(&file), "--seconds", "0.1", "--json"]));
    let child = recording(&test, &file, &[]);
    drop(data);
    test.ask("umount", &[]).fine();
    // An orderly end, with its summary.
    traced(ended(child));
    test.nothing_is_left();
}

#[test]
fn a_trace_is_not_written_where_it_would_record_itself() {
    let Some(test) = TestMount::mounted() else { return };
    let inside = test.mnt.join("t");
    test.ask("trace", &["-o", text(&inside)])
        .refused(&["it lies on the mount", "name a file outside the mount"]);
    assert!(!inside.exists());
    test.ask("trace", &["-o", "/nonexistent/t"]).refused(&["/nonexistent/t: No such file"]);
    test.ask("trace", &["-o", text(&test.src)]).refused(&["Is a directory"]);
    test.finish();
}

fn pages(report: &LruReport) -> u64 {
    report.lru.lists.iter().filter(|row| row.seq.is_some()).map(|row| row.pages).sum()
}

#[test]
fn generations_are_shown_aged_and_evicted() {
    let Some(test) = TestMount::new() else { return };
    fs::write(test.src.join("data"), vec![7; 16 << 20]).unwrap();
    test.mount(&[]).fine();
    // Two reads past the kernel's page cache: the second admits the pages.
    let mut reader = Command::new("dd");
    reader.args(["if=data", "of=/dev/null", "bs=1M", "iflag=direct", "status=none"]).current_dir(&test.mnt);
    for _ in 0..2 {
        assert!(reader.status().unwrap().success());
    }
    let lists = |more: &[&str]| json::<LruReport>(test.ask("lru", &[more, &["--json"]].concat()));
    let before = lists(&[]);
    assert_eq!(before.lru.policy, "strata");
    assert!(pages(&before) > 2000, "{before:?}");
    let first = lists(&["--age"]).opened.unwrap();
    let told = test.ask("lru", &["--age"]).fine();
    assert!(told.out.starts_with(&format!("generation {} opened\n", first + 1)), "{}", told.out);
    test.ask("lru", &["--evict", &(first + 1).to_string()])
        .refused(&["one of the two youngest", "name an older one"]);
    test.ask("lru", &["--evict", "4000000"]).refused(&["there is no generation 4000000"]);
    let last = (lists(&["--age"]).opened.unwrap() - 2).to_string();
    let some = lists(&["--evict", &last, "--pages", "100"]);
    assert_eq!(some.evicted, Some(Evicted { evicted: 100, kept: 0 }));
    let all = lists(&["--evict", &last]);
    assert!(all.evicted.unwrap().evicted > 1000 && pages(&all) < pages(&before), "{all:?}");
    test.ask("check", &[]).fine();
    test.finish();
}

#[test]
fn a_policy_without_generations_says_so() {
    let Some(test) = TestMount::new() else { return };
    test.mount(&["--policy", "clock"]).fine();
    assert!(test.ask("lru", &[]).fine().out.contains("clock, which has no generations"));
    for more in [&["--age"][..], &["--evict", "1"]] {
        test.ask("lru", more).refused(&["the policy clock has no generations", "mount with a policy"]);
    }
    told(terrace(["lru", "/nonexistent"]).arg("--age")).refused(&["/nonexistent"]);
    test.finish();
}

const ONLINE: &str = "devices/system/node/online";

/// A directory that describes a machine with two memory nodes and these processors, in place of /sys.
fn feigned_nodes(cpus: [&str; 2]) -> tempfile::TempDir {
    let sys = tempfile::tempdir().unwrap();
    terrace_testkit::nodes::feign(sys.path(), &cpus);
    sys
}

/// On one node nothing is observed; on two (simulated) nodes, threads appear with the nodes that they read
/// from.
#[test]
fn threads_are_shown_by_memory_node() {
    let Some(test) = TestMount::new() else { return };
    let sys = feigned_nodes(["0-1023", ""]);
    fs::write(test.src.join("data"), vec![7; 4 << 20]).unwrap();
    let reads =
        "for n in 1 2 3 4 5 6; do dd if=data of=/dev/null bs=64k iflag=direct status=none; sleep 0.1; done";
    for (online, mode) in [("0", "auto"), ("0-1", "off"), ("0-1", "auto")] {
        fs::write(sys.path().join(ONLINE), online).unwrap();
        told(test.mount_command(&["--numa", mode]).env("TERRACE_TEST_SYS", sys.path())).fine();
        let mut reader = Command::new("sh").args(["-c", reads]).current_dir(&test.mnt).spawn().unwrap();
        let report = json::<NumaReport>(test.ask("numa", &["--json"])).numa;
        assert_eq!((report.nodes.len(), report.moved), (online.len().div_ceil(2), 0), "{report:?}");
        let shown = test.ask("numa", &[]).fine().out;
        assert_eq!(
            shown == "this machine has one memory node: there is nothing to place\n",
            online == "0",
            "{shown}"
        );
        assert!(reader.wait().unwrap().success());
        test.ask("check", &[]).fine();
        test.ask("umount", &[]).fine();
    }
    test.mount(&["--numa", "fish"]).refused(&["--numa", "fish is no mode", "off, show or auto"]);
}

/// 64 threads read without a pause; the cost is printed (`--nocapture`).
#[test]
fn observer_of_64_threads_costs_little() {
    const THREADS: u64 = 64;
    const SECONDS: u64 = 5;
    let Some(test) = TestMount::new() else { return };
    let sys = feigned_nodes(["0", "1-1023"]);
    fs::write(test.src.join("data"), vec![7; 16 << 20]).unwrap();
    let mut mount = terrace(["mount", "--memory", "64MiB", "--numa", "show"]);
    told(mount.args([&test.src, &test.mnt]).env("TERRACE_TEST_SYS", sys.path())).fine();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(SECONDS + 1);
    let path = test.mnt.join("data");
    let path = &path;
    let reads = move |first: u64| {
        let file = fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
        let mut buf = Aligned([0; 4096]);
        let mut page = first * 61;
        while std::time::Instant::now() < end {
            file.read_exact_at(&mut buf.0, page % 4096 * 4096).unwrap();
            page += 1;
        }
    };
    let share = std::thread::scope(|scope| {
        (0..THREADS).for_each(|n| {
            scope.spawn(move || reads(n));
        });
        std::thread::sleep(std::time::Duration::from_millis(500));
        let sleep = || std::thread::sleep(std::time::Duration::from_secs(SECONDS));
        let share = processor_share(test.processes().1, "numa", sleep);
        let seen = json::<NumaReport>(test.ask("numa", &["--json"])).numa.threads.len();
        assert!(seen as u64 >= THREADS / 2, "{seen} threads seen");
        share
    });
    println!("the observer takes {:.2} % of a processor", share * 100.0);
    // Without optimisation, the cost is several times as high.
    assert!(share < if cfg!(debug_assertions) { 0.05 } else { 0.005 }, "{share}");
    test.ask("umount", &[]).fine();
}

#[repr(align(4096))]
struct Aligned([u8; 4096]);
