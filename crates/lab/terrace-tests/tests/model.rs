//! The model test: random operation sequences have the same results on a plain directory, through the mount,
//! through the preload path and under `terrace run`; also while the cache is disturbed, and while terraced is
//! killed.

use std::time::{Duration, Instant};
use terrace_tests::compare::{Driver, Pair, prepare};
use terrace_tests::gen_ops::sequence;
use terrace_tests::rng::{Rng, seed};
use terrace_tests::{Chaos, Fault, Side, SoakEnd, TestMount, amount, product};

/// Sequences that interleave in one driver process.
const BATCH: u64 = 50;

/// Checks batches until `sequences` have run; checks the source after umount.
#[track_caller]
fn model(test: &str, side: Side, sequences: u64, trouble: Option<(Fault, u64)>) {
    let seed = seed(test);
    let (plain, mount) = (TestMount::new(test, Side::Plain, ""), TestMount::new(test, side, "16MiB"));
    prepare(&plain);
    prepare(&mount);
    let pair = Pair::new(&plain, &mount, Driver::default());
    let chaos = trouble.map(|(what, pause_ms)| Chaos::start(&mount, what, seed, pause_ms));
    let (begun, soak) = (Instant::now(), SoakEnd::after(150));
    let mut rng = Rng::new(seed);
    let mut done = 0;
    while done < sequences && !soak.has_come() {
        let batch: Vec<_> = (0..BATCH).map(|_| sequence(rng.next_u64(), 60)).collect();
        if let Err(why) = pair.check(&batch, &mut rng) {
            panic!("{test}: TERRACE_SEED={seed}, batch {}: {why}", done / BATCH);
        }
        done += BATCH;
    }
    let disturbed = chaos.map_or(0, Chaos::stop);
    println!("{test}: {done} sequences equal in {:?}, disturbed {disturbed} times", begun.elapsed());
    mount.check();
    mount.umount();
    if let Err(why) = pair.check_sources() {
        panic!("{test}: TERRACE_SEED={seed}: {why}");
    }
}

#[test]
fn the_mount_answers_as_a_plain_directory() {
    model("model-mount", Side::Mount, amount("TERRACE_SEQUENCES", 600, 30_000), None);
}

#[test]
fn preload_answers_as_a_plain_directory() {
    model("model-fast", Side::Preload, amount("TERRACE_SEQUENCES", 600, 30_000), None);
}

#[test]
fn drop_flush_and_resize_change_no_answer() {
    let n = amount("TERRACE_SEQUENCES", 300, 10_000);
    model("model-disturbed", Side::Preload, n, Some((Fault::Commands, 40)));
}

#[test]
fn killing_terraced_changes_no_answer_through_the_mount() {
    let n = amount("TERRACE_SEQUENCES", 200, 10_000);
    model("model-killed-mount", Side::Mount, n, Some((Fault::Kill, 150)));
}

#[test]
fn killing_terraced_changes_no_preload_answer() {
    let n = amount("TERRACE_SEQUENCES", 200, 10_000);
    model("model-killed-fast", Side::Preload, n, Some((Fault::Kill, 150)));
}

/// Each batch is one `terrace run` of the driver, in the directory's usual place.
#[test]
fn terrace_run_answers_as_a_plain_directory() {
    let test = "model-run";
    let seed = seed(test);
    let (plain, mount) =
        (TestMount::new(test, Side::Plain, ""), TestMount::new("model-run-on", Side::Plain, ""));
    prepare(&plain);
    prepare(&mount);
    let on = mount.at().to_str().expect("a UTF-8 path").to_owned();
    let terrace = product("terrace").to_str().expect("a UTF-8 path").to_owned();
    let mut rng = Rng::new(seed);
    let (end, soak) = (Instant::now() + Duration::from_secs(600), SoakEnd::after(150));
    for batch in 0..amount("TERRACE_SEQUENCES", 200, 5_000) / BATCH {
        if soak.has_come() {
            break;
        }
        let policy = *rng.pick(&["strata", "mglru", "clock", "lru"]);
        let words = [&terrace, "run", "--mount", "--on", &on, "--memory", "16MiB", "--policy", policy, "--"];
        let driver = Driver { wrapper: words.map(str::to_owned).to_vec(), fault: None };
        let pair = Pair::new(&plain, &mount, driver);
        let sequences: Vec<_> = (0..BATCH).map(|_| sequence(rng.next_u64(), 60)).collect();
        let result = pair.check(&sequences, &mut rng).and_then(|()| pair.check_sources());
        if let Err(why) = result {
            panic!("{test}: TERRACE_SEED={seed}, batch {batch}, policy {policy}: {why}");
        }
        assert!(Instant::now() < end, "far too slow");
    }
    let left = terrace_tests::leftovers::find(mount.dir());
    assert!(left.is_empty(), "left behind: {left:#?}");
}
