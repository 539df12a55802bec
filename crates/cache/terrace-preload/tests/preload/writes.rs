//! Announced writes: the records that each way of changing a file leaves.

use super::{Daemon, Running, behind, finish};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use terrace_shm::PAGE_SIZE;
use terrace_shm::layout::LEASES_SUSPENDED;
use terrace_shm::writes::{RECORDS, Span};

const PAGES: usize = 100;
const ALL: (u64, u64) = (0, Span::ALL);

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let out =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("preload-writes-{}", std::process::id()));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/preload/writes.c");
        assert!(Command::new("cc").args(["-O1", "-g", source, "-o"]).arg(&out).status().unwrap().success());
        out
    })
}

fn announcing() -> Running {
    let d = Running::start(256);
    d.announce_writes();
    d
}

fn command(d: &Daemon, args: &[&str]) -> Command {
    let mut c = Command::new(program());
    behind(d, c.args(args)).env("TERRACE_LEASED", &d.dir).env("TERRACE_WRITES", "exclusive");
    c
}

/// Changes a new file in one way. Returns first page and number of pages of each finished record, and whether
/// a write lasts after the end of the process.
fn change(d: &Daemon, dir: &Path, way: &str) -> (Vec<(u64, u64)>, bool) {
    let path = dir.join(way);
    std::fs::write(&path, vec![1; PAGES * PAGE_SIZE]).unwrap();
    let object = std::fs::metadata(&path).unwrap().ino();
    finish(&mut command(d, &[path.to_str().unwrap(), way]));
    let spans = d.finished_writes();
    assert!(spans.iter().all(|span| span.object == object), "{way}: {spans:?}");
    let spans = spans.iter().map(|span| (span.first, span.pages)).collect();
    (spans, d.writes.get().unwrap().0.is_written(object))
}

#[test]
fn each_write_is_announced() {
    let d = announcing();
    for (way, spans) in [
        ("nothing", vec![]),
        ("pwrite", vec![(2, 1)]),
        ("pwrite_append", vec![ALL]),
        ("late_append", vec![ALL]),
        ("write", vec![(3, 2)]),
        ("append", vec![(100, 1)]),
        ("writev", vec![(0, 2)]),
        ("pwritev", vec![(1, 2)]),
        ("pwritev2", vec![(0, 2), (9, 1)]),
        ("shared", vec![ALL]),
        ("dup", vec![ALL, (1, 1)]),
        ("failed_dup", vec![ALL, (1, 1)]),
        ("ftruncate", vec![ALL]),
        ("truncate", vec![ALL]),
        ("empty", vec![ALL]),
        ("empty_reading", vec![ALL]),
        ("fallocate", vec![ALL]),
        ("sendfile", vec![(0, 1)]),
        ("copy", vec![(5, 1)]),
        ("syscall", vec![(2, 1), (0, 1)]),
        ("stream", vec![ALL]),
        ("open_call", vec![(2, 1)]),
        ("openat2_call", vec![ALL, (2, 1)]),
        ("descriptor_of_process", vec![(2, 1)]),
        ("ioctl", vec![ALL; 2]),
        ("stream_duplicate", vec![ALL, (2, 1)]),
        ("reopened_output", vec![ALL, (2, 1)]),
        ("clone", vec![ALL]),
        ("print", vec![ALL]),
        ("print_list", vec![(0, 1)]),
        ("fork", vec![(1, 1)]),
        ("exec_inherited", vec![ALL]),
    ] {
        assert_eq!(change(&d, &d.dir, way), (spans, false), "{way}");
    }
    let printed = std::fs::read(d.dir.join("print")).unwrap();
    assert!(printed.starts_with(b"1 two 3.5 4.25 five 6 7 8\x01"));
    let all = &d.writes.get().unwrap().0;
    assert!(!all.take_repair_flag() && all.lost_slots().lost.is_empty());
    // A busy daemon frees records late: the other writes are counted without a record.
    let recorded = change(&d, &d.dir, "many").0.len();
    assert!((RECORDS..=1000).contains(&recorded), "{recorded}");
    assert_eq!(
        (all.take_repair_flag(), !all.lost_slots().lost.is_empty()),
        (recorded < 1000, recorded < 1000)
    );
    assert_eq!(d.given_up.load(SeqCst), 0);
}

#[test]
fn writes_to_standard_output_end_with_it() {
    let d = announcing();
    let (spans, lasts) = change(&d, &d.dir, "outputs");
    assert!(spans.iter().all(|&span| span == ALL) && !lasts);
    assert_eq!(d.given_up.load(SeqCst), 0);
}

#[test]
fn writes_to_a_temporary_file_are_announced() {
    let d = announcing();
    let path = d.dir.join("a");
    finish(&mut command(&d, &[path.to_str().unwrap(), "temporary"]));
    let object = std::fs::metadata(path).unwrap().ino();
    assert_eq!(d.finished_writes(), [Span { object, first: 0, pages: 1, is_whole: true }]);
}

#[test]
fn unseen_writes_last() {
    let d = announcing();
    let ways = [
        "open_stream",
        "aio",
        "aio_closed",
        "mapping",
        "forked_mapping",
        "output",
        "closed_path",
        "exec_output",
    ];
    for way in ways {
        // A dup2 is announced.
        let spans = vec![ALL; usize::from(way.ends_with("output"))];
        assert_eq!(change(&d, &d.dir, way), (spans, true), "{way}");
    }
    assert_eq!(d.clients(), ways.len() + 2, "a forked child with a mapping, and an exec, are clients");
    assert_eq!(change(&d, &d.dir, "spawn"), (vec![], true));
    assert_eq!(change(&d, &d.dir, "sent"), (vec![], false));
    assert_eq!(d.given_up.load(SeqCst), 1);
}

#[test]
fn files_of_a_process_that_is_refused_are_given_up() {
    let d = announcing();
    d.manners.hello_errno.store(libc::EUSERS as u32, SeqCst);
    let ways = ["pwrite", "write", "dup", "truncate", "empty", "empty_reading", "stream", "mapping", "fork"];
    for (i, way) in ways.into_iter().enumerate() {
        assert_eq!(change(&d, &d.dir, way), (vec![], false), "{way}");
        assert_eq!(d.given_up.load(SeqCst) as usize, i + 1, "{way}");
    }
    // The second write needs no announcement.
    change(&d, &d.dir, "many");
    assert_eq!(d.given_up.load(SeqCst) as usize, ways.len() + 1);
}

#[test]
fn files_of_a_program_without_the_library_are_given_up() {
    let d = announcing();
    assert_eq!(change(&d, &d.dir, "exec_without"), (vec![], false));
    assert_eq!(d.given_up.load(SeqCst), 1);
}

/// No terraced would answer.
#[test]
fn a_stopped_daemon_delays_no_program() {
    let d = announcing();
    change(&d, &d.dir, "nothing");
    let begin = Instant::now();
    d.segment.header().leases.store(LEASES_SUSPENDED, SeqCst);
    change(&d, &d.dir, "sent");
    assert_eq!(d.given_up.load(SeqCst), 0);
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    assert!(d.writes.get().unwrap().0.lost_slots().others, "a write that does not end");
}

#[test]
fn more_lasting_writes_than_entries_are_given_up() {
    let d = announcing();
    assert_eq!(change(&d, &d.dir, "mappings"), (vec![], false));
    assert_eq!(d.given_up.load(SeqCst), 1);
    d.manners.give_up_errno.store(libc::EAGAIN as u32, SeqCst);
    assert_eq!(change(&d, &d.dir, "mappings"), (vec![], true));
}

#[test]
fn a_child_of_a_closed_preload_path_is_a_client() {
    let d = announcing();
    assert_eq!(change(&d, &d.dir, "closed_fork"), (vec![], true));
    assert_eq!(d.clients(), 2);
    d.manners.lazy.store(true, SeqCst);
    change(&d, &d.dir, "many");
    assert!(!d.writes.get().unwrap().0.lost_slots().lost.is_empty(), "no count delays repairs");
}

#[test]
fn other_files_are_not_announced() {
    let d = announcing();
    let other = tempfile::tempdir_in("/dev/shm").unwrap();
    for way in ["pwrite", "empty", "stream", "mapping"] {
        assert_eq!(change(&d, other.path(), way), (vec![], false), "{way}");
    }
    assert_eq!(d.clients(), 0);
}

/// A file of the directory may have a name elsewhere.
#[test]
fn writes_by_another_name_are_announced() {
    let d = announcing();
    for (way, span) in [("pwrite", (2, 1)), ("empty", ALL), ("stream", ALL), ("truncate", ALL)] {
        assert_eq!(change(&d, d.dir.parent().unwrap(), way), (vec![span], false), "{way}");
    }
}

/// Pages in memory are read from there, unless a write is in flight, or the read ends after the file.
#[test]
fn a_file_is_served_unless_a_write_is_in_flight() {
    let d = announcing();
    let object = d.file("a", &vec![b'D'; PAGES * PAGE_SIZE]);
    (0..PAGES as u64).for_each(|page| d.fill(object, page, &[b'F'; PAGE_SIZE]));
    finish(&mut command(&d, &[d.dir.join("a").to_str().unwrap(), "reads"]));
    assert!(d.total(|c| &c.hits) > 0);
}
