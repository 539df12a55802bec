//! Damaged store files: the open fails with a one-line error, or the store works. Nothing panics or hangs.

use crate::helpers::{dir, is_one_line, open, small};
use crate::model::Op;
use std::path::Path;
use terrace_store::{Error, Store};
use terrace_testkit::rng::{Rng, seed};

const SIZE_MAX: u64 = 12_000;

/// The files of a used store; with `anew`, its log was compacted in between.
fn files_of_a_store(rng: &mut Rng, anew: bool) -> [Vec<u8>; 2] {
    let place = dir();
    let store = open(place.path());
    for i in 0..150 {
        let op = Op::random(rng, SIZE_MAX);
        op.run(&store).unwrap();
        match i {
            70 if anew => store.checkpoint().unwrap(),
            40 | 110 => store.sync().unwrap(),
            _ => {}
        }
    }
    store.close().unwrap();
    [".store.names", ".store.heap"].map(|name| std::fs::read(place.path().join(name)).unwrap())
}

/// Damages a few bytes, a part, or the end.
fn damage(rng: &mut Rng, bytes: &mut Vec<u8>) {
    let at = rng.index(bytes.len());
    let end = (at + 1 + rng.index(5000)).min(bytes.len());
    match rng.below(6) {
        0 => bytes.truncate(at),
        1 => bytes[at..end].fill(0),
        2 => bytes.extend(rng.bytes(end - at)),
        3 => {
            let part = bytes[at..end].to_vec();
            let to = rng.index(bytes.len());
            bytes.splice(to..to, part);
        }
        4 => drop(bytes.drain(at..end)),
        _ => (0..1 + rng.below(4)).for_each(|_| {
            let at = rng.index(bytes.len());
            bytes[at] ^= 1 << rng.below(8);
        }),
    }
}

/// Reads, changes and closes the opened store. Errors are allowed.
fn use_it(store: &Store) {
    for name in store.buckets() {
        let bucket = store.bucket(&name).unwrap();
        for key in bucket.list(b"") {
            if let Err(e) = bucket.get(&key) {
                assert!(is_one_line(&e), "{e}");
            }
        }
        let _ = bucket.put(b"one more", &[7; 5000]).map(|()| {
            assert_eq!(bucket.get(b"one more").unwrap().unwrap(), [7; 5000]);
        });
    }
    assert_eq!(store.engine().check(), Vec::<String>::new());
}

fn write(place: &Path, [names, heap]: &[Vec<u8>; 2]) {
    std::fs::write(place.join(".store.names"), names).unwrap();
    std::fs::write(place.join(".store.heap"), heap).unwrap();
}

#[test]
fn damaged_files_are_refused_or_answer() {
    let mut rng = Rng::new(seed("damaged_files_are_refused_or_answer"));
    let rounds = if std::env::var_os("TERRACE_SOAK").is_some() { 5000 } else { 150 };
    let (mut opened, mut refused) = (0, 0);
    let mut whole = files_of_a_store(&mut rng, false);
    for round in 0..rounds {
        if round % 50 == 49 {
            let anew = rng.chance(50);
            whole = files_of_a_store(&mut rng, anew);
        }
        let mut files = whole.clone();
        // Mostly the log: any byte of the heap may be part of a blob.
        let which = usize::from(rng.chance(20));
        damage(&mut rng, &mut files[which]);
        let place = dir();
        write(place.path(), &files);
        match Store::open(place.path(), &small()) {
            Ok(store) => {
                opened += 1;
                use_it(&store);
                let _ = store.close();
            }
            Err(e) => {
                refused += 1;
                assert!(is_one_line(&e), "{e}");
            }
        }
    }
    println!("{opened} opened, {refused} refused");
    assert!(opened > rounds / 4 && refused > rounds / 8, "{opened} opened, {refused} refused");
}

#[test]
fn damaged_log_is_refused_where_later_records_were_durable() {
    let place = dir();
    let store = open(place.path());
    let bucket = store.bucket("b").unwrap();
    let log = place.path().join(".store.names");
    let mut sizes = Vec::new();
    for i in 0..4u8 {
        bucket.put(&[i], &[i; 3000]).unwrap();
        store.sync().unwrap();
        sizes.push(std::fs::metadata(&log).unwrap().len() as usize);
    }
    drop(bucket);
    store.close().unwrap();
    let whole = std::fs::read(&log).unwrap();
    // Damage in the second put is detected. Damage in the last one looks like a power cut.
    for (at, is_seen) in [(sizes[0] + 20, true), (sizes[2] + 20, false)] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        std::fs::write(&log, &bytes).unwrap();
        match Store::open(place.path(), &small()) {
            Ok(store) => assert!(!is_seen && store.find_bucket("b").unwrap().len() == 3),
            Err(e) => assert!(is_seen && matches!(e, Error::Damaged { .. }) && is_one_line(&e), "{e}"),
        }
    }
}
