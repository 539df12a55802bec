//! Fuzzing of the result readers: arbitrary bytes must be refused in a line that names the file. They must
//! not cause a panic, or yield an invalid number.

use std::path::Path;

use proptest::prelude::*;
use terrace_bench::compare::sources::load;
use terrace_bench::compare::{Compare, Format, compare, fio_output, show};
use terrace_bench::{fio, raw};

const FIO_3: &str = include_str!("../data/fio-3.33.json");
const FIO_3_BINS: &str = include_str!("../data/fio-3.33.json+");
const FIO_2: &str = r#"{"fio version":"fio-2.10","global options":{"bs":"8k"},"jobs":[{"jobname":"a","groupid":0,"error":0,
"read":{"io_bytes":89304,"bw":2976,"iops":744.13,"runtime":30003,"total_ios":22326,"clat":{"percentile":{"99.000000":1004}},"lat":{"mean":725.25}},
"write":{"io_bytes":0,"bw":0,"iops":0,"runtime":0,"total_ios":0},"usr_cpu":1.5,"sys_cpu":2.5}]}"#;
const STUDY: &str = include_str!("../../../../data/mglru-fio/throughput_mib_s.csv");
const SUITES: &str = r#"{"kind":"machine","machine":{"cpus":2}}
{"kind":"run","suite":"fio","cell":"zipf","system":"kernel","place":"baseline","round":1,"metrics":{"iops":100.5},"foreign_cpu":0.2}
{"kind":"run","suite":"fio","cell":"zipf","system":"terrace","place":"candidate","round":1,"refused":"wrong data"}
"#;
const MATRIX: &str = r#"{"machine":{"cpus":2},"matrix":{"name":"m","text":""}}
{"run":{"id":"kernel/zipf/2/1","system":"kernel","load":"fio","pattern":"zipf","jobs":2,"repetition":1,"order":1,"seed":1,"started":1,"seconds":9,"metrics":{"iops":5},"refused":null}}
"#;

/// 256 cases, or PROPTEST_CASES.
fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

/// Valid and invalid parts of results.
const WORDS: [&str; 24] = [
    "nan",
    "-inf",
    "1e999",
    "-1",
    "0",
    "null",
    "true",
    "\"\"",
    "{",
    "}",
    "[",
    "]",
    ",",
    "\"",
    ":",
    "\n",
    "18446744073709551616",
    "-0.0",
    "1e-320",
    "\"jobs\"",
    "\"read\"",
    "\"kind\"",
    "\u{feff}",
    "\\ud800",
];

/// A valid file with pieces removed, inserted and duplicated.
fn mangled() -> impl Strategy<Value = Vec<u8>> {
    let sound = prop::sample::select(vec![FIO_3, FIO_3_BINS, FIO_2, STUDY, SUITES, MATRIX]);
    let change =
        (any::<prop::sample::Index>(), 0..40usize, prop::sample::select(WORDS.to_vec()), 0..4u8, any::<u8>());
    (sound, prop::collection::vec(change, 0..6)).prop_map(|(sound, changes)| {
        let mut bytes = sound.as_bytes().to_vec();
        for (at, length, word, kind, byte) in changes {
            let at = at.index(bytes.len() + 1);
            let end = (at + length).min(bytes.len());
            match kind {
                0 => drop(bytes.splice(at..end, word.bytes())),
                1 => bytes.truncate(at),
                2 => bytes.extend_from_within(at..end),
                _ if at < bytes.len() => bytes[at] = byte,
                _ => {}
            }
        }
        bytes
    })
}

/// A report with one number replaced by another word: the shape stays valid, so that the whole reader runs.
fn renumbered() -> impl Strategy<Value = String> {
    let sound = prop::sample::select(vec![FIO_3, FIO_2]);
    (sound, any::<prop::sample::Index>(), prop::sample::select(WORDS.to_vec())).prop_map(
        |(text, at, word)| {
            let numbers: Vec<(usize, &str)> = text.match_indices(|c: char| c.is_ascii_digit()).collect();
            let start = numbers[at.index(numbers.len())].0;
            let end = text[start..]
                .find(|c: char| !(c.is_ascii_digit() || c == '.'))
                .map_or(text.len(), |n| start + n);
            format!("{}{word}{}", &text[..start], &text[end..])
        },
    )
}

/// Runs all readers on these bytes, and compares their rows.
fn read(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for row in fio_output::rows(&text).into_iter().flatten() {
        assert!(row.metrics.values().all(|value| !value.is_nan()), "{:?}", row.metrics);
    }
    let _ = fio::report(&text, "read");
    if let Ok(results) = raw::parse(Path::new("fuzz"), bytes) {
        assert!(results.runs.iter().all(|run| run.metrics.values().all(|value| value.is_finite())));
    }
    let dir = tempfile::tempdir().unwrap();
    let files = ["a", "b"].map(|name| dir.path().join(name)).to_vec();
    for path in &files {
        std::fs::write(path, bytes).unwrap();
    }
    for factor in [None, Some("kernel".to_string()), Some("direction".into())] {
        let asked = Compare { files: files.clone(), factor, confidence: 0.95, ..Compare::default() };
        match load(&asked).and_then(|loaded| compare(&loaded.rows, &loaded.question)) {
            Ok(answer) => {
                for format in [Format::Text, Format::Markdown, Format::Json, Format::Csv] {
                    assert!(!show::show(&answer, format).is_empty());
                }
            }
            Err(why) => assert!(!why.is_empty()),
        }
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn anything(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        read(&bytes);
    }

    #[test]
    fn sound_results_mangled(bytes in mangled()) {
        read(&bytes);
    }

    #[test]
    fn sound_reports_with_other_numbers(text in renumbered()) {
        read(text.as_bytes());
    }
}

#[test]
fn the_sound_ones_are_read() {
    for text in [FIO_3, FIO_3_BINS, FIO_2] {
        assert!(!fio_output::rows(text).unwrap().is_empty());
    }
    assert_eq!(raw::parse(Path::new("m"), MATRIX.as_bytes()).unwrap().runs.len(), 1);
    read(SUITES.as_bytes());
}
