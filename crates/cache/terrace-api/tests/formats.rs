//! Each format of traces: its content, its detection by name or content, and its errors with place and cure.

use std::io::Cursor;

use terrace_api::capture::{
    Access, AccessPath, At, Column, Error, Event, Format, Header, Options, Reader, RecordReader, Writer,
    page_key,
};

fn read(name: &str, bytes: &[u8], options: &Options) -> Result<Vec<Access>, Error> {
    Reader::new(name, Box::new(Cursor::new(bytes.to_vec())), options)?.collect()
}

fn keys(name: &str, bytes: &[u8]) -> Vec<u64> {
    read(name, bytes, &Options::default()).unwrap().iter().map(|access| access.key).collect()
}

#[track_caller]
fn fault(name: &str, bytes: &[u8], options: &Options) -> String {
    read(name, bytes, options).unwrap_err().to_string()
}

fn of(format: Format) -> Options {
    Options { format: Some(format), column: None }
}

fn u64s(keys: &[u64]) -> Vec<u8> {
    keys.iter().flat_map(|key| key.to_le_bytes()).collect()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 3).unwrap()
}

#[test]
fn plain_keys() {
    let bytes = u64s(&[1, u64::MAX, 1 << 33]);
    assert_eq!(keys("a.u64", &bytes), [1, u64::MAX, 1 << 33]);
    assert_eq!(keys("a.u64.zst", &zstd(&bytes)), [1, u64::MAX, 1 << 33]);
    assert_eq!(keys("a.u64", &[]), Vec::<u64>::new());
    let two_frames = [zstd(&bytes), zstd(&bytes)].concat();
    assert_eq!(keys("a.u64", &two_frames).len(), 6);
    let error = read("a.u64", &bytes[..19], &Options::default()).unwrap_err();
    assert_eq!(error.at, Some(At::Byte(16)));
    assert!(
        error.to_string().starts_with("a.u64: at byte 16: 3 bytes are left over, a key has 8"),
        "{error}"
    );
}

#[test]
fn oracle_general() {
    let mut bytes = Vec::new();
    for (time, key) in [(5u32, 77u64), (6, 1 << 40)] {
        bytes.extend(time.to_le_bytes());
        bytes.extend(key.to_le_bytes());
        bytes.extend(4096u32.to_le_bytes());
        bytes.extend((-1i64).to_le_bytes());
    }
    let accesses = read("w.oracleGeneral.bin.zst", &zstd(&bytes), &Options::default()).unwrap();
    assert_eq!(
        accesses.iter().map(|a| (a.time_ms, a.key)).collect::<Vec<_>>(),
        [(5000, 77), (6000, 1 << 40)]
    );
    let error = fault("w", &bytes[..30], &of(Format::Oracle));
    assert!(error.contains("at byte 24: 6 bytes are left over"), "{error}");
}

#[test]
fn text() {
    assert_eq!(keys("a", b"1\n2\r\n\n# remark\n 0x10 \n2"), [1, 2, 16, 2]);
    let words = keys("a.txt", b"ann\nbob\nann\n99999999999999999999\n");
    assert!(words[0] == words[2] && words[0] != words[1] && words[3] > 0);
    let error = fault("a.txt", b"1\n2 3\n", &Options::default());
    assert!(error.starts_with("a.txt: line 2: more than one word"), "{error}");
    let error = fault("a", b"1\n\xff\xfe\n", &of(Format::Text));
    assert!(error.starts_with("a: line 2: not text"), "{error}");
    let error = fault("a", &vec![b'7'; 70_000], &of(Format::Text));
    assert!(error.starts_with("a: line 1: longer than"), "{error}");
}

#[test]
fn csv() {
    assert_eq!(keys("a.csv", b"time,object,size\n1,10,4096\n2,11,4096\n"), [10, 11]);
    assert_eq!(keys("a.csv", b"key,time\n10,1\n11,2\n"), [10, 11]);
    assert_eq!(keys("no-extension", b"1,10,4096\n2,11,4096\n"), [10, 11]);
    assert_eq!(keys("a.csv", b"10\n11\n"), [10, 11]);
    assert_eq!(keys("a.csv", b"t;obj_id\n0; \"12\"\n"), [12]);
    assert_eq!(keys("a.csv", b"1,\"a,b\"\n2,\"a,b\"\n").len(), 2);
    let at = |column| Options { format: None, column: Some(Column::parse(column)) };
    let sizes = read("a.csv", b"time,object,size\n1,10,4096\n", &at("Size")).unwrap();
    assert_eq!(sizes[0].key, 4096);
    assert_eq!(read("a.csv", b"1,10,4096\n", &at("1")).unwrap()[0].key, 1);
    let error = fault("a.csv", b"1,10\n2\n", &Options::default());
    assert_eq!(error, "a.csv: line 2: 1 columns, the key's is number 2 (name the key's with --column)");
    let error = fault("a.csv", b"time,object\n", &at("page"));
    assert!(error.contains("no column page, but time, object"), "{error}");
    let error = fault("a.csv", b"1,2\n", &at("page"));
    assert!(error.contains("no column page, but no header"), "{error}");
    let error = fault("a.csv", b"1,2\n", &at("0"));
    assert!(error.contains("count from 1"), "{error}");
    let error = fault("a.csv", b"1,\n", &Options::default());
    assert!(error.contains("line 1: the key is empty"), "{error}");
}

#[test]
fn headers_without_a_known_key_are_refused() {
    let error = fault("a.csv", b"ts,volume,offset,size\n1,v0,4096,8192\n", &Options::default());
    assert!(error.contains("no column of ts, volume, offset, size is known as the key's"), "{error}");
    assert!(error.contains("name it with --column"), "{error}");
    assert_eq!(keys("a.csv", b"page\n10\n"), [10]);
    assert_eq!(keys("a.csv", b"pages\n10\n"), [10]);
    for name in ["a.csv", "a"] {
        assert_eq!(keys(name, b"\xef\xbb\xbfobj_id,time\n7,1\n"), [7]);
    }
    assert_eq!(keys("a.txt", b"\xef\xbb\xbf7\n8\n"), [7, 8]);
    assert_eq!(keys("a.u64", b"\xef\xbb\xbf\0\0\0\0\0"), [0x00bf_bbef]);
}

#[test]
fn requests_of_an_msr_trace_are_of_pages() {
    let lines = "128166372003061629,hm,1,Read,8192,8192,41\n128166372003071629,hm,1,Write,12287,2,4\r\n\
                 128166372013061629,hm,0,read,8192,0,4\n";
    for name in ["msr.csv", "hm_1"] {
        let all = read(name, lines.as_bytes(), &Options::default()).unwrap();
        let seen: Vec<_> = all.iter().map(|a| (a.key.wrapping_sub(all[0].key), a.write, a.time_ms)).collect();
        let other_disk = seen[4].0;
        assert_eq!(
            seen,
            [(0, false, 0), (1, false, 0), (0, true, 1000), (1, true, 1000), (other_disk, false, 1_000_000)]
                .map(|(page, write, us)| (page, write, us / 1000))
        );
        assert!(other_disk > 1);
    }
    let cut = format!("{lines}128166372003061629,hm,1,Read\n");
    let error = fault("msr.csv", cut.as_bytes(), &Options::default());
    assert!(error.contains("line 4: not a request of an MSR trace"), "{error}");
    let named = Options { column: Some(Column::parse("5")), format: None };
    let offsets: Vec<_> = read("msr.csv", lines.as_bytes(), &named).unwrap().iter().map(|a| a.key).collect();
    assert_eq!(offsets, [8192, 12287, 8192]);
}

#[test]
fn captures() {
    let event =
        |page| Event { object: 9, page, write: page == 1, via: AccessPath::Preload, time_ms: page * 100 };
    let mut writer = Writer::new(Vec::new(), &Header::default());
    writer.access(&event(1)).unwrap();
    writer.lost(5).unwrap();
    writer.access(&event(2)).unwrap();
    writer.lost(7).unwrap();
    let bytes = writer.finish().unwrap();
    for bytes in [bytes.clone(), zstd(&bytes)] {
        let mut reader = Reader::new("x", Box::new(Cursor::new(bytes)), &Options::default()).unwrap();
        assert_eq!(reader.format(), Format::Terrace);
        let accesses: Vec<Access> = (&mut reader).map(Result::unwrap).collect();
        assert_eq!(accesses, [event(1).access(), event(2).access()]);
        assert_eq!(accesses[1].key, page_key(9, 2));
        assert_eq!(reader.lost(), 12);
    }
    assert!(fault("x", &bytes[..20], &Options::default()).contains("20 bytes, a capture's header has 32"));
    assert!(
        fault("x", b"1\n2\n3\n4\n5\n6\n7\n8\n9\n1\n1\n1\n1\n1\n1\n1\n", &of(Format::Terrace))
            .contains("not a capture")
    );
    assert_eq!(RecordReader::new("x", Box::new(Cursor::new(bytes))).unwrap().header(), Header::default());
}

#[test]
fn unknown_value_is_asked_for() {
    let error = fault("mystery", &[0, 1, 2, 3, 4, 5, 6, 7], &Options::default());
    assert_eq!(error, "mystery: the format is not known (say --format u64, oracle, text, csv, msr, terrace)");
    let error = Reader::open("/nonexistent/x".as_ref(), &Options::default()).unwrap_err().to_string();
    assert!(error.starts_with("/nonexistent/x: cannot be opened: No such file"), "{error}");
    let cut = &zstd(&u64s(&(0..1000).collect::<Vec<_>>()))[..200];
    let error = fault("a.u64.zst", cut, &Options::default());
    assert!(error.contains("cannot be unpacked") && error.contains("cut short"), "{error}");
    for format in Format::ALL {
        assert_eq!(Format::named(format.name()), Some(format));
    }
}
