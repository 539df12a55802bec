//! Every eviction policy under load: files of twice the memory, written and read through both paths.

use std::time::Duration;
use terrace_tests::amount;
use terrace_tests::process;
use terrace_tests::rng::seed;
use terrace_tests::stress::Stress;
use terrace_tests::{Side, TestMount, terrace};

/// The names of the policies, from the command's error message for an unknown one.
fn names() -> Vec<String> {
    let outcome = process::run(terrace(&["mount", "--policy", "nonesuch", "/tmp", "/tmp"]), 60);
    assert!(!outcome.status.success());
    let text = outcome.to_string();
    let list = text.split_once("choose one of ").expect("the cure names the policies").1;
    let list = list.lines().next().expect("a line");
    list.split(", ").map(|name| name.trim().to_owned()).collect()
}

#[test]
fn every_policy_serves_twice_the_memory() {
    let names = names();
    assert!(names.len() >= 4, "{names:?}");
    for name in &names {
        println!("{name}");
        let mount = TestMount::with("policy", Side::Mount, &["--memory", "16MiB", "--policy", name]);
        let mut stress = Stress::new(&mount, 4, 2048, 1, seed("policy"));
        stress.start("write", 0, true, &["sync=1"]);
        stress.start("read", 0, true, &["torn=ok"]);
        stress.start("read", 1, false, &["torn=ok"]);
        stress.work(Duration::from_secs(amount("TERRACE_POLICY_SECONDS", 1, 10)));
        stress.stop();
        stress.verify(Some(true), "acked");
        stress.verify(Some(false), "acked");
        let stat = mount.stat();
        assert_eq!(&stat.cache.policy, name, "{stat:?}");
        let stolen = stat.cache.reclaim.pgsteal;
        assert!(stolen > 1000, "{name} evicted {stolen} pages: {stat:?}");
        mount.check();
        mount.umount();
        stress.verify(None, "acked");
    }
}
