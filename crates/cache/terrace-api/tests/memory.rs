//! The memory of a trace reader does not grow with the file. The test measures the peak memory of its process
//! (VmHWM), so no other test may run in this process.

use std::io::{Cursor, Read};

use terrace_api::capture::{Format, Header, Options, Reader, Writer};

/// Peak memory of this process, KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// 12 MiB of every format, and a decompression bomb: memory does not grow.
#[test]
fn memory_does_not_follow_the_file() {
    const BYTES: u64 = 12 << 20;
    let streams = || -> Vec<(Format, Box<dyn Read + Send>)> {
        let bomb = zstd::encode_all(std::io::repeat(b'7').take(BYTES), 1).unwrap();
        let mut streams: Vec<(Format, Box<dyn Read + Send>)> = Vec::new();
        for format in Format::ALL {
            streams.push((format, Box::new(std::io::repeat(b'7').take(BYTES))));
            streams.push((format, Box::new(std::io::repeat(b'\n').take(BYTES))));
            streams.push((format, Box::new(Cursor::new(bomb.clone()))));
        }
        let capture = Writer::new(Vec::new(), &Header::default()).finish().unwrap();
        streams
            .push((Format::Terrace, Box::new(Cursor::new(capture).chain(std::io::repeat(0x10).take(BYTES)))));
        streams
    };
    let before = peak_kib();
    for (format, stream) in streams() {
        let options = Options { format: Some(format), column: None };
        let _ = Reader::new("t", stream, &options).map(Iterator::count);
    }
    let grown = peak_kib() - before;
    assert!(grown < 6 << 10, "{grown} KiB");
}
