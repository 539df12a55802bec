//! Tests of the test harness itself: two plain directories agree, and a deliberate fault is found.

use terrace_tests::compare::{Driver, Pair, prepare, run_script};
use terrace_tests::gen_ops::sequence;
use terrace_tests::rng::{Rng, seed};
use terrace_tests::{Side, TestMount};

fn pair_of_plains(test: &str, driver: Driver, count: u64, len: usize) -> Result<(), String> {
    let seed = seed(test);
    let (left, right) = (TestMount::new(test, Side::Plain, ""), TestMount::new(test, Side::Plain, ""));
    prepare(&left);
    prepare(&right);
    let pair = Pair::new(&left, &right, driver);
    let mut rng = Rng::new(seed);
    let sequences: Vec<_> = (0..count).map(|_| sequence(rng.next_u64(), len)).collect();
    pair.check(&sequences, &mut rng)?;
    pair.check_sources()
}

#[test]
fn plain_agrees_with_plain() {
    for _ in 0..terrace_tests::amount("TERRACE_ROUNDS", 2, 20) {
        pair_of_plains("plain", Driver::default(), 60, 80).unwrap();
    }
}

#[test]
fn a_wrong_byte_in_a_read_is_found() {
    let driver = Driver { fault: Some("read:1".into()), ..Driver::default() };
    let why = pair_of_plains("broken-read", driver, 10, 60).unwrap_err();
    assert!(why.contains("the least that differs"), "{why}");
}

#[test]
fn a_wrong_byte_in_a_write_is_found() {
    let driver = Driver { fault: Some("write:40".into()), ..Driver::default() };
    assert!(pair_of_plains("broken-write", driver, 40, 60).is_err());
}

/// Too large for a gap, so that the second mapping is placed right before the first, as the part of the file
/// before it.
#[test]
fn mappings_that_could_be_one_stay_two() {
    let mount = TestMount::new("neighbours", Side::Plain, "");
    prepare(&mount);
    let script = "@0\nopen 3 a 0x42 0x1a4\nmapkeep 3 1 40960000 40960000\nmapkeep 3 0 0 40960000\n\
                  mappoke 1 27240 5645 1\nmappoke 0 27240 5645 2\n";
    let log = run_script(&mount, &Driver::default(), script).log;
    let poked: Vec<&str> = log.lines().filter(|line| line.contains("mappoke")).collect();
    assert!(
        poked.len() == 2 && poked.iter().all(|line| line.ends_with("=> 0")),
        "beyond the end of the file: {log}"
    );
}
