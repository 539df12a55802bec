//! The harness itself: a plain directory agrees with a plain directory, and a deliberate fault is found.

use terrace_tests::compare::{Driver, Pair, prepare};
use terrace_tests::gen_ops::sequence;
use terrace_tests::rig::{Rig, Side};
use terrace_tests::rng::{Rng, seed};

fn pair_of_plains(test: &str, driver: Driver, count: u64, len: usize) -> Result<(), String> {
    let seed = seed(test);
    let (left, right) = (Rig::new(test, Side::Plain, ""), Rig::new(test, Side::Plain, ""));
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
