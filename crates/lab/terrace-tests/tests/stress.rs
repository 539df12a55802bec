//! Many processes read and write the same files through both paths at once; every page read is judged.

use std::time::Duration;
use terrace_tests::amount;
use terrace_tests::rng::seed;
use terrace_tests::stress::Stress;
use terrace_tests::{Chaos, Fault, Side, TestMount};

fn seconds() -> Duration {
    Duration::from_secs(amount("TERRACE_SECONDS", 6, 90))
}

/// 96 MiB of files over 16 MiB of memory.
fn stress<'a>(mount: &'a TestMount, seed: u64) -> Stress<'a> {
    Stress::new(mount, 6, 4096, 3, seed)
}

#[test]
fn the_stress_itself_passes_on_a_plain_directory() {
    let mount = TestMount::new("stress-plain", Side::Plain, "");
    let mut stress = Stress::new(&mount, 2, 512, 2, seed("stress-plain"));
    for id in 0..2 {
        stress.start("write", id, false, &["sync=1"]);
        stress.start("read", id, false, &["torn=ok"]);
    }
    stress.start("mapread", 0, false, &["torn=ok"]);
    stress.work(Duration::from_secs(2));
    stress.stop();
    stress.verify(None, "acked");
}

#[test]
fn a_lost_write_is_found() {
    let mount = TestMount::new("stress-lost", Side::Plain, "");
    let mut stress = Stress::new(&mount, 1, 64, 1, seed("stress-lost"));
    stress.start("write", 0, false, &[]);
    stress.work(Duration::from_secs(1));
    let older = std::fs::read(mount.src().join("f0")).expect("the file is there");
    stress.work(Duration::from_secs(1));
    stress.stop();
    std::fs::write(mount.src().join("f0"), older).expect("the file can be written");
    // The panic is caught, so that the mount ends normally, without leftovers.
    let verified = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| stress.verify(None, "acked")));
    let told = *verified.expect_err("the lost write was not found").downcast::<String>().expect("a text");
    assert!(told.contains("must be"), "{told}");
}

#[test]
fn both_paths_at_once() {
    let seed = seed("stress-paths");
    let mount = TestMount::new("stress-paths", Side::Mount, "16MiB");
    let mut stress = stress(&mount, seed);
    stress.start("write", 0, true, &["sync=1"]);
    stress.start("write", 1, false, &["sync=1", "torn=ok"]);
    stress.start("read", 0, true, &["torn=ok"]);
    stress.start("read", 1, true, &["torn=ok"]);
    stress.start("read", 2, false, &["torn=ok"]);
    stress.work(seconds());
    stress.settle(&mount);
}

#[test]
fn preload_readers_see_no_torn_page() {
    let seed = seed("stress-whole");
    let mount = TestMount::new("stress-whole", Side::Mount, "16MiB");
    let mut stress = stress(&mount, seed);
    stress.start("write", 0, true, &["sync=1"]);
    stress.start("write", 1, true, &["sync=1"]);
    stress.start("read", 0, true, &[]);
    stress.start("read", 1, true, &[]);
    stress.work(seconds());
    stress.settle(&mount);
}

#[test]
fn shared_mappings_beside_both_paths() {
    let seed = seed("stress-maps");
    let mount = TestMount::new("stress-maps", Side::Mount, "16MiB");
    let mut stress = stress(&mount, seed);
    stress.start("mapwrite", 0, true, &["torn=ok"]);
    stress.start("mapwrite", 1, false, &["torn=ok"]);
    stress.start("write", 2, true, &["torn=ok"]);
    stress.start("read", 0, true, &["torn=ok"]);
    stress.start("read", 1, false, &["torn=ok"]);
    stress.start("mapread", 2, false, &["torn=ok"]);
    stress.work(seconds());
    stress.settle(&mount);
}

#[test]
fn disturbed_by_drop_flush_and_resize() {
    let seed = seed("stress-disturbed");
    let mount = TestMount::new("stress-disturbed", Side::Mount, "24MiB");
    let mut stress = stress(&mount, seed);
    let chaos = Chaos::start(&mount, Fault::Commands, seed, 60);
    stress.start("write", 0, true, &["sync=1"]);
    stress.start("write", 1, false, &["sync=1", "torn=ok"]);
    stress.start("read", 0, true, &["torn=ok"]);
    stress.start("read", 1, false, &["torn=ok"]);
    stress.work(seconds());
    println!("disturbed {} times", chaos.stop());
    stress.settle(&mount);
}
