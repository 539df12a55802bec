//! The workload program of a storm (see `terrace_tests::storm`). Ends with status 1 and a message at the
//! first violation.
//!
//! `storm names dir=DIR expected=DIR workers=N seconds=S seed=N [direct=1]`: names and data against an exact model.
//! `storm acked dir=DIR src=DIR workers=N seconds=S seed=N`: until the mount dies; then all acknowledged data
//! must be in `src`.
//! `storm full dir=DIR expected=FILE seconds=S seed=N`: more data than the source has room for.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;
use terrace_tests::storm::{acked, full, names};

fn main() {
    // SAFETY: no other thread yet.
    unsafe { libc::umask(0o022) };
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (role, options) = args.split_first().expect("a role");
    let options: HashMap<&str, &str> =
        options.iter().map(|a| a.split_once('=').expect("key=value")).collect();
    let number = |key: &str| options.get(key).map_or(0, |v| v.parse::<u64>().expect("a number"));
    let path = |key: &str| Path::new(options[key]);
    let (lasts, seed, workers) = (Duration::from_secs(number("seconds")), number("seed"), number("workers"));
    let done = match role.as_str() {
        "names" => names::run(path("dir"), path("expected"), workers, lasts, seed, number("direct") == 1),
        "acked" => acked::run(path("dir"), path("src"), workers, lasts, seed),
        "full" => full::run(path("dir"), path("expected"), lasts, seed),
        other => panic!("no such role: {other}"),
    };
    if let Err(why) = done {
        println!("{role}: {why}");
        std::process::exit(1);
    }
}
