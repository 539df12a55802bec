//! Every reader of traces and schedules on arbitrary bytes: it may return an error that names the file, but
//! must neither panic nor run for ever. (`memory.rs` tests memory use.)

use std::io::Cursor;

use proptest::prelude::*;
use terrace_api::capture::format::MAGIC;
use terrace_api::capture::{
    AccessPath, Column, Event, Format, Header, Name, Options, Reader, Record, RecordReader, Writer,
};
use terrace_api::schedule::{File, Schedule, Span, is_below};

/// 256 cases, or PROPTEST_CASES.
fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

/// Reads to the end or the first error. Uncompressed data cannot give more accesses than bytes.
fn drain(bytes: &[u8], format: Option<Format>, column: Option<Column>, accesses_max: Option<usize>) {
    let stream = Box::new(Cursor::new(bytes.to_vec()));
    let mut reader = match Reader::new("fuzz", stream, &Options { format, column }) {
        Ok(reader) => reader,
        Err(error) => return assert!(error.to_string().starts_with("fuzz: ")),
    };
    let mut accesses = 0;
    for access in &mut reader {
        match access {
            Ok(_) => accesses += 1,
            Err(error) => assert!(error.to_string().starts_with("fuzz: ") && !error.cure.is_empty()),
        }
        assert!(accesses_max.is_none_or(|max| accesses <= max));
    }
    assert!(reader.next().is_none(), "it stays at its end");
}

fn drain_all(bytes: &[u8]) {
    for format in Format::ALL.map(Some).into_iter().chain([None]) {
        drain(bytes, format, None, Some(bytes.len()));
        let packed = zstd::encode_all(bytes, 1).unwrap();
        drain(&packed, format, Some(Column::Number(1)), Some(bytes.len()));
        drain(&packed[..packed.len() / 2], format, Some(Column::Name("key".into())), None);
    }
}

fn events() -> impl Strategy<Value = Vec<Record>> {
    let number = || prop_oneof![0..40u64, any::<u64>(), Just(u64::MAX)];
    let access = (number(), number(), any::<bool>(), any::<bool>(), 0..1000u64).prop_map(
        |(object, page, write, fast, time_ms)| {
            let via = if fast { AccessPath::Preload } else { AccessPath::Fuse };
            Record::Access(Event { object, page, write, via, time_ms })
        },
    );
    let name =
        (number(), number(), any::<i64>(), "[^\0]{0,40}").prop_map(|(object, bytes, changed_ns, path)| {
            Record::Name(Name { object, path: path.into(), bytes, changed_ns })
        });
    let record = prop_oneof![9 => access, 1 => (1..u64::MAX).prop_map(Record::Lost), 1 => name];
    prop::collection::vec(record, 0..200)
}

fn written(records: &[Record], tick_ms: u32) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), &Header { tick_ms, ..Header::default() });
    for record in records {
        match record {
            Record::Access(event) => writer.access(event).unwrap(),
            Record::Lost(accesses) => writer.lost(*accesses).unwrap(),
            Record::Name(name) => writer.name(name).unwrap(),
        }
    }
    writer.finish().unwrap()
}

/// A valid file of each format, for [`mangled`].
fn sound(keys: &[u64]) -> Vec<Vec<u8>> {
    let lines = |line: fn(&u64) -> String| keys.iter().map(line).collect::<String>().into_bytes();
    let access = |page: &u64| {
        Record::Access(Event {
            object: page % 3,
            page: *page,
            write: false,
            via: AccessPath::Preload,
            time_ms: *page,
        })
    };
    let name = |key: &u64| {
        Record::Name(Name { object: key % 3, path: format!("f{key}").into(), bytes: *key, changed_ns: -1 })
    };
    let oracle = |key: &u64| [&[7; 4][..], &key.to_le_bytes(), &[1; 12]].concat();
    vec![
        keys.iter().flat_map(|key| key.to_le_bytes()).collect(),
        keys.iter().flat_map(oracle).collect(),
        lines(|key| format!("{key}\n")),
        [b"time,object\n".to_vec(), lines(|key| format!("1,{key}\n"))].concat(),
        written(&keys.iter().flat_map(|key| [name(key), access(key)]).collect::<Vec<_>>(), 10),
    ]
}

#[derive(Clone, Debug)]
struct Damage {
    at: usize,
    len: usize,
    how: u8,
    byte: u8,
}

fn damage() -> impl Strategy<Value = Vec<Damage>> {
    let one = (any::<usize>(), 0..40usize, 0..5u8, any::<u8>()).prop_map(|(at, len, how, byte)| Damage {
        at,
        len,
        how,
        byte,
    });
    prop::collection::vec(one, 1..5)
}

fn mangled(mut bytes: Vec<u8>, damage: &[Damage]) -> Vec<u8> {
    for Damage { at, len, how, byte } in damage {
        let at = at % (bytes.len() + 1);
        let to = (at + len).min(bytes.len());
        match how {
            0 => bytes.insert(at, *byte),
            1 => drop(bytes.drain(at..to)),
            2 => bytes.truncate(at),
            3 => drop(bytes.splice(at..at, bytes[at..to].to_vec())),
            _ => bytes[at..to].iter_mut().for_each(|b| *b ^= byte),
        }
    }
    bytes
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        drain_all(&bytes);
        drain_all(&[&MAGIC, bytes.as_slice()].concat());
        drain(&[&[0x28, 0xB5, 0x2F, 0xFD], bytes.as_slice()].concat(), None, None, None);
    }

    #[test]
    fn mutated_files(keys in prop::collection::vec(any::<u64>(), 0..60), damage in damage()) {
        for bytes in sound(&keys) {
            drain_all(&mangled(bytes.clone(), &damage));
            let packed = mangled(zstd::encode_all(bytes.as_slice(), 1).unwrap(), &damage);
            Format::ALL.iter().for_each(|format| drain(&packed, Some(*format), None, None));
        }
    }

    #[test]
    fn a_capture_gives_back_what_was_written(records in events(), tick_ms in 1..50u32) {
        let bytes = written(&records, tick_ms);
        let reader = RecordReader::new("t", Box::new(Cursor::new(bytes.clone()))).unwrap();
        let read: Vec<Record> = reader.map(Result::unwrap).collect();
        let mut now = 0;
        let expected: Vec<Record> = records
            .iter()
            .map(|record| match record.clone() {
                Record::Access(event) => {
                    now = now.max(event.time_ms / u64::from(tick_ms) * u64::from(tick_ms));
                    Record::Access(Event { time_ms: now, ..event })
                }
                other => other,
            })
            .collect();
        prop_assert_eq!(read, expected);
        // Truncated anywhere: the whole records are read, and the error names the place of the cut.
        for cut in [bytes.len() / 2, bytes.len().saturating_sub(1)].into_iter().filter(|cut| *cut >= 32) {
            let reader = RecordReader::new("t", Box::new(Cursor::new(bytes[..cut].to_vec()))).unwrap();
            let mut whole = cut;
            for error in reader.filter_map(Result::err) {
                let Some(terrace_api::capture::At::Byte(at)) = error.at else { panic!("{error}") };
                whole = at as usize;
            }
            let mut again = RecordReader::new("t", Box::new(Cursor::new(bytes[..whole].to_vec()))).unwrap();
            prop_assert!(again.all(|record| record.is_ok()));
        }
    }

    #[test]
    fn schedules_are_refused_or_sound(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        spans in prop::collection::vec((0..3u32, 0..99u64, 1..9u64), 0..30),
        damage in damage(),
    ) {
        let path = |n: u32| std::path::PathBuf::from(format!("a b/%{n}"));
        let files = (0..3).map(|n| File { path: path(n), bytes: 5, changed_ns: 7 }).collect();
        let spans = spans.into_iter().map(|(file, first, pages)| Span { file, first, pages }).collect();
        let schedule = Schedule { files, spans };
        let text = schedule.to_text();
        let read = Schedule::parse("fuzz", text.as_bytes()).unwrap();
        prop_assert_eq!(&read.spans, &schedule.spans);
        prop_assert!(schedule.files.starts_with(&read.files));
        for text in [mangled(text.into_bytes(), &damage), bytes] {
            match Schedule::parse("fuzz", &text) {
                Ok(read) => {
                    prop_assert!(read.files.iter().all(|file| is_below(&file.path)));
                    prop_assert!(read.spans.iter().all(|span| span.file < read.files.len() as u32 && span.pages > 0));
                }
                Err(error) => prop_assert!(error.to_string().starts_with("fuzz: ")),
            }
        }
    }
}
