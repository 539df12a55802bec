//! `--passthrough auto`: the kernel itself reads and writes files for programs that are not clients.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdout, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use terrace_tests::rng::seed;
use terrace_tests::stress::Stress;
use terrace_tests::{Chaos, Fault, Side, TestMount, amount, is_root};

const PAGE: usize = 4096;
const PAGES: usize = 256;

/// Whether passthrough is possible; prints the reason if not.
pub(crate) fn is_possible() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("/proc is mounted");
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < (6, 9) || !is_root() {
        terrace_testkit::skipped!("passthrough needs root and Linux 6.9, this is {}", release.trim());
        return false;
    }
    true
}

/// A mount with passthrough; None if kernel or user cannot have it.
fn mount(test: &str, side: Side) -> Option<TestMount> {
    is_possible().then(|| TestMount::with(test, side, &["--memory", "16MiB", "--passthrough", "auto"]))
}

/// A client reads one page after the other; returns the first byte of each.
fn first_bytes(mount: &TestMount) -> Vec<u8> {
    let script = format!(
        "import os; f = os.open('file', os.O_RDONLY); print(*[os.pread(f, {PAGE}, i * {PAGE})[0] for i in range({PAGES})])"
    );
    let mut command = mount.command("python3");
    let said = terrace_tests::process::run(command.args(["-c", &script]), 60).expect_success();
    said.split_whitespace().map(|word| word.parse().expect("a byte")).collect()
}

/// A client that keeps the file open.
struct Reader {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Reader {
    fn start(mount: &TestMount) -> Reader {
        let script = format!(
            "import os, sys; f = os.open('file', os.O_RDONLY)\nfor page in sys.stdin: print(os.pread(f, {PAGE}, int(page) * {PAGE})[0], flush=True)"
        );
        let mut command = mount.command("python3");
        let mut child = command
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 can be started");
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        Reader { child, answers }
    }

    fn first_byte(&mut self, page: usize) -> u8 {
        writeln!(self.child.stdin.as_mut().expect("a pipe"), "{page}").expect("the reader lives");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("the reader lives");
        line.trim().parse().expect("a byte")
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn hits(mount: &TestMount) -> u64 {
    mount.stat().cache.preload.hits
}

/// Reads until the preload path serves the file from its frames.
#[track_caller]
fn until_served(mount: &TestMount, expected: &[u8]) {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let before = hits(mount);
        assert_eq!(first_bytes(mount), expected);
        if hits(mount) >= before + PAGES as u64 {
            return;
        }
        assert!(Instant::now() < end, "the preload path does not serve the file again");
    }
}

/// A mapping through the mount changes the source without a request, even after its descriptor is closed.
#[test]
fn mapping_outliving_its_descriptor_is_seen_by_clients() {
    let Some(mount) = mount("passthrough-map", Side::Preload) else { return };
    std::fs::write(mount.src().join("file"), vec![b'a'; PAGES * PAGE]).unwrap();
    let mut expected = vec![b'a'; PAGES];
    until_served(&mount, &expected);
    let file = File::options().read(true).write(true).open(mount.at().join("file")).unwrap();
    // SAFETY: a new mapping of the whole file; its length does not change.
    let map = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(std::ptr::null_mut(), PAGES * PAGE, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    assert_ne!(map, libc::MAP_FAILED);
    drop(file);
    for page in [3, 200, 3] {
        expected[page] += 1;
        // SAFETY: within the mapping.
        unsafe { map.cast::<u8>().add(page * PAGE).write_volatile(expected[page]) };
        assert_eq!(first_bytes(&mount), expected, "while it is mapped");
        std::thread::sleep(Duration::from_millis(50));
    }
    // The kernel must not drop an inode with a mapped source.
    std::fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    let mut reader = Reader::start(&mount);
    for page in [5, 200, 5] {
        assert_eq!(reader.first_byte(page), expected[page]);
        expected[page] += 1;
        // SAFETY: within the mapping.
        unsafe { map.cast::<u8>().add(page * PAGE).write_volatile(expected[page]) };
        assert_eq!(reader.first_byte(page), expected[page], "read by a descriptor that stays open");
    }
    drop(reader);
    // SAFETY: mapped above, and no longer used.
    assert_eq!(unsafe { libc::munmap(map, PAGES * PAGE) }, 0);
    until_served(&mount, &expected);
    mount.finish();
}

/// Frames of a file stay after an open for writing without a write; a write drops them.
#[test]
fn frames_outlive_a_writer_that_wrote_nothing() {
    let Some(mount) = mount("passthrough-frames", Side::Preload) else { return };
    std::fs::write(mount.src().join("file"), vec![b'a'; PAGES * PAGE]).unwrap();
    let mut expected = vec![b'a'; PAGES];
    // A younger change could give the next one the same ctime.
    std::thread::sleep(Duration::from_millis(3100));
    until_served(&mount, &expected);
    let misses = |mount: &TestMount| mount.stat().cache.preload.misses;
    let before = misses(&mount);
    let open = || File::options().read(true).write(true).open(mount.at().join("file")).unwrap();
    drop(open());
    until_served(&mount, &expected);
    assert_eq!(misses(&mount), before, "its frames are still there");
    open().write_all_at(b"b", 7 * PAGE as u64).unwrap();
    expected[7] = b'b';
    until_served(&mount, &expected);
    assert!(misses(&mount) > before, "they were read again");
    mount.finish();
}

/// Under `run`, the kernel writes files by default, even for clients; on mounts terraced does.
#[test]
fn run_leaves_written_files_to_the_kernel() {
    if !is_possible() {
        return;
    }
    for (side, mode, comes) in
        [(Side::Run, None, false), (Side::Run, Some("off"), true), (Side::Mount, None, true)]
    {
        let mode = mode.map_or(Vec::new(), |mode| vec!["--passthrough", mode]);
        let mount =
            TestMount::with("passthrough-default", side, &[&["--memory", "16MiB"], &mode[..]].concat());
        let mut dd = mount.command("dd");
        let dd = dd.args(["if=/dev/zero", "of=made", "bs=64k", "count=32", "conv=fsync", "status=none"]);
        terrace_tests::process::run(dd, 60).expect_success();
        let stats = if side == Side::Run { mount.stats_of_runs().remove(0) } else { mount.stat() };
        assert_eq!(stats.cache.fuse.writes > 0, comes, "{side:?} {mode:?}: {:?}", stats.cache.fuse);
        assert_eq!(std::fs::metadata(mount.src().join("made")).unwrap().len(), 32 << 16);
        mount.finish();
    }
}

/// Reads, writes and mappings of other programs make no requests to terraced.
#[test]
fn other_programs_ask_terraced_for_no_content() {
    let Some(mount) = mount("passthrough-none", Side::Mount) else { return };
    std::fs::write(mount.src().join("file"), vec![b'a'; PAGES * PAGE]).unwrap();
    mount.shell("cmp file ../src/file && cp file copy && cmp copy ../src/copy && echo more >> copy", 60);
    assert!(std::fs::read(mount.src().join("copy")).unwrap().ends_with(b"amore\n"));
    let mounted = mount.stat().cache.fuse;
    assert_eq!((mounted.reads, mounted.writes), (0, 0));
    mount.finish();
}

/// For a small file that is read, the mount's page cache keeps the content: opens need no registration, reads
/// no request.
#[test]
fn small_files_are_read_from_the_page_cache_of_the_mount() {
    let Some(mount) = mount("passthrough-small", Side::Mount) else { return };
    std::fs::write(mount.src().join("file"), "before").unwrap();
    let (at, requests) = (mount.at().join("file"), |mount: &TestMount| mount.stat().cache.fuse);
    (0..5).for_each(|_| assert_eq!(std::fs::read_to_string(&at).unwrap(), "before"));
    assert_eq!(requests(&mount).reads, 1, "the first fills the page cache");
    // No process has it open: the kernel writes it.
    File::options().append(true).open(&at).unwrap().write_all(b" and after").unwrap();
    assert_eq!(requests(&mount).writes, 0);
    (0..5).for_each(|_| assert_eq!(std::fs::read_to_string(&at).unwrap(), "before and after"));
    assert_eq!(requests(&mount).reads, 1, "what was written a moment ago is read in the source's page cache");
    mount.finish();
}

/// While a small file is open for reading, writes go to terraced: readers see them at once, by both paths,
/// with size and time.
#[test]
fn small_file_that_is_open_is_written_through_terraced() {
    let Some(mount) = mount("passthrough-open", Side::Preload) else { return };
    std::fs::write(mount.src().join("file"), vec![b'a'; 2 * PAGE]).unwrap();
    let at = mount.at().join("file");
    let reader = File::open(&at).unwrap();
    let mut client = Reader::start(&mount);
    let first_byte = |page: usize| {
        let mut byte = [0];
        reader.read_exact_at(&mut byte, (page * PAGE) as u64).unwrap();
        byte[0]
    };
    assert_eq!((first_byte(1), client.first_byte(1)), (b'a', b'a'));
    let writer = File::options().write(true).open(&at).unwrap();
    for letter in b'b'..b'h' {
        let before = std::time::SystemTime::now() - Duration::from_millis(20);
        let size = u64::from(letter) * 100;
        writer.write_all_at(&[letter; 100], size - 100).unwrap();
        writer.write_all_at(&[letter], PAGE as u64).unwrap();
        assert_eq!((first_byte(1), client.first_byte(1)), (letter, letter));
        for metadata in [std::fs::metadata(&at).unwrap(), reader.metadata().unwrap()] {
            assert_eq!(metadata.len(), size.max(2 * PAGE as u64));
            assert!(metadata.modified().unwrap() >= before);
        }
    }
    assert!(mount.stat().cache.fuse.writes > 0, "they came to terraced");
    drop((reader, client, writer));
    let modified = std::fs::metadata(&at).unwrap().modified().unwrap();
    File::options().write(true).open(&at).unwrap().write_all_at(b"z", 0).unwrap();
    assert_eq!(std::fs::read(&at).unwrap()[0], b'z');
    assert!(std::fs::metadata(&at).unwrap().modified().unwrap() >= modified);
    mount.finish();
}

/// Small files are opened for reading and for writing in turn. The first open after a time without any
/// decides between kernel and terraced. No read is older than a write that completed before its open, even
/// across kills of terraced.
#[test]
fn small_files_change_hands_while_terraced_is_killed() {
    let Some(mount) = mount("passthrough-hands", Side::Mount) else { return };
    let seed = seed("passthrough-hands");
    let paths: Vec<_> = (0..4).map(|n| mount.at().join(format!("f{n}"))).collect();
    paths.iter().for_each(|path| std::fs::write(path, 0_u64.to_le_bytes()).unwrap());
    let written: [AtomicU64; 4] = Default::default();
    let chaos = Chaos::start(&mount, Fault::Kill, seed, 150);
    let end = Instant::now() + Duration::from_secs(amount("TERRACE_SECONDS", 5, 60));
    let read = || {
        for n in (0..paths.len()).cycle().take_while(|_| Instant::now() < end) {
            let before = written[n].load(Ordering::SeqCst);
            let mut content = [0; 8];
            File::open(&paths[n]).unwrap().read_exact_at(&mut content, 0).unwrap();
            let content = u64::from_le_bytes(content);
            assert!(content >= before, "{content} is older than {before}");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(read);
        scope.spawn(read);
        for n in (0..paths.len()).cycle().take_while(|_| Instant::now() < end) {
            let version = written[n].load(Ordering::SeqCst) + 1;
            let file = File::options().write(true).open(&paths[n]).unwrap();
            file.write_all_at(&version.to_le_bytes(), 0).unwrap();
            written[n].store(version, Ordering::SeqCst);
            drop(file);
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    println!("disturbed {} times", chaos.stop());
    for (path, written) in paths.iter().zip(written) {
        assert_eq!(std::fs::read(path).unwrap(), written.into_inner().to_le_bytes());
    }
    mount.finish();
}

#[test]
fn set_id_bits_go_with_the_first_write() {
    let Some(mount) = mount("passthrough-setid", Side::Mount) else { return };
    let script = "cp /bin/true file && chmod 6777 file && chmod 777 . &&
        setpriv --reuid 65534 --regid 65534 --clear-groups sh -c 'echo more >> file' && stat -c %a file";
    assert_eq!(mount.shell(script, 60).trim(), "777");
    assert_eq!(mount.shell("stat -c %a ../src/file", 60).trim(), "777");
    mount.finish();
}

#[test]
fn fsx_with_passthrough() {
    let kill = Some(Fault::Kill);
    for (side, disturbed) in
        [(Side::Mount, None), (Side::Preload, None), (Side::Preload, kill), (Side::Run, kill)]
    {
        let Some(mount) = mount("passthrough-fsx", side) else { return };
        crate::programs::fsx_on(&mount, disturbed);
        mount.finish();
    }
}

/// Writers and mappings beside clients that read, with kills of terraced.
#[test]
fn stress_with_passthrough_while_terraced_is_killed() {
    stress_files_of(4096, "passthrough-stress");
}

#[test]
fn stress_of_small_files_with_passthrough_and_kills() {
    stress_files_of(16, "passthrough-stress-small");
}

fn stress_files_of(pages: u64, test: &str) {
    let Some(mount) = mount(test, Side::Mount) else { return };
    let seed = seed(test);
    let mut stress = Stress::new(&mount, 6, pages, 3, seed);
    stress.allocate();
    let chaos = Chaos::start(&mount, Fault::Kill, seed, 400);
    stress.start("write", 0, false, &["sync=1", "torn=ok"]);
    stress.start("write", 1, true, &["sync=1", "torn=ok"]);
    stress.start("mapwrite", 2, false, &["torn=ok"]);
    stress.start("read", 0, true, &["torn=ok"]);
    stress.start("read", 1, false, &["torn=ok"]);
    stress.work(Duration::from_secs(amount("TERRACE_SECONDS", 6, 90)));
    println!("disturbed {} times", chaos.stop());
    stress.settle(&mount);
}
