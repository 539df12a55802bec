//! Tests of the file behind a tier's device: whole reads over short and failing calls, and a device that
//! hangs.

use super::*;
use std::os::fd::AsRawFd;
use terrace_io::testing::{Faults, ShortCalls, SimIo};
use terrace_io::{AlignedBuf, BlockingIo, UringIo};
use terrace_testkit::rng::Rng;

const PAGE: usize = 4096;
const BYTES: usize = 64 * PAGE;

/// A file with random content, read through `io`, and that content.
fn medium(io: Arc<dyn Io>) -> (std::fs::File, FileMedium, Vec<u8>) {
    let file = tempfile::tempfile().unwrap();
    let medium = FileMedium::new(file.as_raw_fd(), io, BYTES as u64);
    let content = Rng::new(3).bytes(BYTES);
    file.set_len(BYTES as u64).unwrap();
    AlignedBuf::default().with(BYTES, |buf| {
        buf.copy_from_slice(&content);
        medium.write(0, buf).unwrap();
        medium.flush().unwrap();
    });
    (file, medium, content)
}

#[test]
fn medium_that_hangs_is_in_trouble_until_it_answers() {
    let (source, mut sink) = std::io::pipe().unwrap();
    let medium = FileMedium::new(source.as_raw_fd(), Arc::new(UringIo::new().unwrap()), BYTES as u64);
    let read = || AlignedBuf::default().with(PAGE, |buf| medium.read(0, buf)).unwrap_err().kind();
    assert!(medium.is_ready() && medium.trouble().is_none());
    assert_eq!(read(), io::ErrorKind::TimedOut);
    assert!(!medium.is_ready() && medium.trouble().is_some_and(|why| why.contains("not answered for 1 s")));
    let began = Instant::now();
    assert_eq!(read(), io::ErrorKind::TimedOut);
    assert!(began.elapsed() < READ_MAX, "the second one does not wait");
    std::io::Write::write_all(&mut sink, b"x").unwrap();
    while medium.trouble().is_some() && began.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(medium.is_ready());
}

fn read_in_pieces(medium: &FileMedium, buf: &mut [u8]) -> Vec<io::Result<()>> {
    let piece = |(i, part): (usize, &mut [u8])| {
        let (a, b) = part.split_at_mut(PAGE);
        let bufs = [a, b].map(|buf| IoVec { ptr: buf.as_mut_ptr(), len: buf.len() });
        ReadPiece::new((i * 4 * PAGE) as u64, bufs.to_vec())
    };
    let mut pieces: Vec<_> = buf.chunks_mut(4 * PAGE).enumerate().map(piece).collect();
    // SAFETY: the pieces lie in the buffer, which is borrowed for longer.
    unsafe { medium.read_batch(&mut pieces) };
    pieces.into_iter().map(|piece| piece.result).collect()
}

#[test]
fn reads_are_whole_though_calls_fall_short() {
    let short = || ShortCalls::new(1, 500);
    let kinds: [Arc<dyn Io>; 2] = [
        Arc::new(BlockingIo::with_short_calls(short())),
        Arc::new(UringIo::with_short_calls(short()).unwrap()),
    ];
    for io in kinds {
        let (_file, medium, content) = medium(io);
        AlignedBuf::default().with(BYTES, |buf| {
            medium.read(0, buf).unwrap();
            assert!(buf == content);
            buf.fill(0);
            assert!(read_in_pieces(&medium, buf).iter().all(Result::is_ok));
            assert!(buf == content);
        });
    }
}

#[test]
fn failed_and_cut_off_reads_are_errors() {
    let io = Arc::new(SimIo::new(BlockingIo::default(), 1, Faults::default()));
    let (file, medium, content) = medium(io.clone());
    io.set(Faults { read_eio: 300, write_eio: 1000, sync_eio: 1000, ..Faults::default() });
    AlignedBuf::default().with(BYTES, |buf| {
        let results = read_in_pieces(&medium, buf);
        let failed = results.iter().filter(|result| result.is_err()).count();
        assert!((1..16).contains(&failed), "{results:?}");
        for (i, _) in results.iter().enumerate().filter(|(_, result)| result.is_ok()) {
            assert!(buf[i * 4 * PAGE..][..4 * PAGE] == content[i * 4 * PAGE..][..4 * PAGE]);
        }
        assert!(medium.write(0, buf).is_err() && medium.flush().is_err());
        io.set(Faults::default());
        let kind = |result: io::Result<()>| result.unwrap_err().kind();
        assert_eq!(kind(medium.read(PAGE as u64, buf)), io::ErrorKind::UnexpectedEof);
        assert_eq!(kind(medium.write(u64::MAX, buf)), io::ErrorKind::UnexpectedEof);
        file.set_len(BYTES as u64 / 2).unwrap();
        assert_eq!(kind(medium.read(0, buf)), io::ErrorKind::UnexpectedEof);
        let cut = read_in_pieces(&medium, buf).into_iter().filter(|result| result.is_err());
        assert_eq!(cut.count(), 8);
    });
}
