//! The library under LD_PRELOAD against a test daemon, in which rare behaviour of a real daemon is frequent.

mod daemon;
mod environment;
mod writes;

use daemon::{Daemon, Running};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use terrace_shm::PAGE_SIZE;
use terrace_testkit::rng::{Rng, seed};

/// The library, built in this test's profile. (Cargo does not build a package's cdylib for its tests.)
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "-q", "-p", "terrace-preload"]);
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success());
        let exe = std::env::current_exe().unwrap();
        let profile = exe.parent().and_then(Path::parent).unwrap();
        nameable(profile.join("libterrace_preload.so"))
    })
}

/// The same library by a path without spaces and colons, which divide the list in LD_PRELOAD.
fn nameable(path: PathBuf) -> PathBuf {
    if !path.as_os_str().as_encoded_bytes().iter().any(|b| b" :".contains(b)) {
        return path;
    }
    let name = path.file_name().unwrap().to_str().unwrap();
    let link = PathBuf::from(format!("/var/tmp/terrace-{}-{name}", std::process::id()));
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(path, &link).unwrap();
    link
}

fn worker() -> &'static Path {
    static WORKER: OnceLock<PathBuf> = OnceLock::new();
    WORKER.get_or_init(|| {
        let out =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("preload-worker-{}", std::process::id()));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/preload/worker.c");
        let made =
            Command::new("cc").args(["-O1", "-g", "-pthread", source, "-o"]).arg(&out).status().unwrap();
        assert!(made.success());
        out
    })
}

/// Runs the worker through the mount path.
fn plain(args: &[&str]) -> String {
    finish(Command::new(worker()).args(args))
}
/// Runs the worker through the preload path.
fn fast(d: &Daemon, args: &[&str]) -> String {
    finish(behind(d, Command::new(worker()).args(args)))
}
fn behind<'a>(d: &Daemon, c: &'a mut Command) -> &'a mut Command {
    c.env("LD_PRELOAD", library()).env("TERRACE_SOCKET", &d.socket).env("TERRACE_DEV", d.dev.to_string());
    // The files of the tests are small.
    c.env("TERRACE_LARGE_FILE", "0")
}
#[track_caller]
fn finish(c: &mut Command) -> String {
    let Output { status, stdout, stderr } = c.output().unwrap();
    let said = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{c:?}: {status}\n{said}");
    assert!(!said.contains("panicked"), "{c:?}: {said}");
    String::from_utf8(stdout).unwrap()
}

fn bytes(len: usize, seed: u64) -> Vec<u8> {
    Rng::new(seed).bytes(len)
}
fn publish(d: &Daemon, name: &str, content: &[u8], keep: impl Fn(u64) -> bool) -> (u32, String) {
    let object = d.file(name, content);
    for (page, content) in content.chunks(PAGE_SIZE).enumerate() {
        if keep(page as u64) {
            d.fill(object, page as u64, content);
        }
    }
    (object, d.dir.join(name).to_str().unwrap().to_owned())
}

#[test]
fn hits_come_from_the_frames() {
    let d = Running::start(1024);
    let content = bytes(64 * PAGE_SIZE + 100, 1);
    let (object, path) = publish(&d, "a", &content, |_| true);
    // Other content on disk reveals reads of the source.
    std::fs::write(&path, bytes(content.len(), 2)).unwrap();
    let twin = d.dir.join("twin");
    std::fs::write(&twin, &content).unwrap();
    for (step, shift) in [("4096", "0"), ("65536", "0"), ("1000", "3"), ("250000", "1")] {
        let right = plain(&["sum", twin.to_str().unwrap(), step, shift]);
        assert_eq!(fast(&d, &["sum", &path, step, shift]), right);
    }
    assert!(d.total(|c| &c.hits) >= 4 * 65 && d.touched() == 65);
    assert_eq!(d.total(|c| &c.misses) + d.total(|c| &c.fallbacks), 0);
    // Slow: reads use the mount path, so they return the content on disk.
    d.slow(object, true);
    assert_eq!(fast(&d, &["sum", &path, "4096", "0"]), plain(&["sum", &path, "4096", "0"]));
}

#[test]
fn misses_of_the_process_are_page_fills() {
    let d = Running::start(1024);
    let content = bytes(64 * PAGE_SIZE + 100, 3);
    for (round, (step, shift)) in
        [("4096", "0"), ("12288", "0"), ("5000", "0"), ("65536", "3")].into_iter().enumerate()
    {
        let (_, path) = publish(&d, &format!("f{round}"), &content, |page| page % 7 == 3);
        let right = plain(&["backwards", &path, step, shift, "3"]);
        let misses = d.total(|c| &c.misses);
        assert_eq!(fast(&d, &["backwards", &path, step, shift, "3"]), right);
        let misses = d.total(|c| &c.misses) - misses;
        assert!(misses > 20, "step {step}: {misses} own misses");
        // Whole pages into an aligned buffer need no slot, so none of these needed the mount path.
        if round < 2 {
            let served = d.total(|c| &c.hit_bytes) + d.total(|c| &c.miss_bytes);
            assert_eq!(
                (served, d.total(|c| &c.fallbacks)),
                (3 * (round as u64 + 1) * content.len() as u64, 0)
            );
        }
    }
    assert_eq!(d.sources_asked.load(SeqCst), 4);
    assert!(d.total(|c| &c.fills) > 100, "{}", d.total(|c| &c.fills));
    assert_eq!(d.keys_only.load(SeqCst), 0);
}

#[test]
fn content_is_not_donated_by_those_who_may_not_write() {
    let d = Running::start(256);
    d.manners.may_write.store(false, SeqCst);
    let (_, path) = publish(&d, "a", &bytes(40 * PAGE_SIZE, 5), |_| false);
    for shift in ["0", "9"] {
        let args = ["backwards", &path, "8192", shift, "2"];
        assert_eq!(fast(&d, &args), plain(&args));
    }
    std::thread::sleep(Duration::from_millis(20));
    assert!(d.keys_only.load(SeqCst) > 20);
    assert_eq!(d.keys_only.load(SeqCst), d.total(|c| &c.fills));
}

#[test]
fn a_source_without_direct_reads_is_left_alone() {
    let d = Running::start(256);
    d.manners.align.store(0, SeqCst);
    let (_, path) = publish(&d, "a", &bytes(40 * PAGE_SIZE, 5), |page| page % 2 == 0);
    let args = ["backwards", &path, "4096", "0", "2"];
    assert_eq!(fast(&d, &args), plain(&args));
    assert_eq!((d.total(|c| &c.misses), d.sources_asked.load(SeqCst)), (0, 1));
    assert_eq!(d.total(|c| &c.fallbacks), 40);
}

#[test]
fn scans_and_small_files_take_the_mount_path() {
    let d = Running::start(256);
    let (_, small) = publish(&d, "small", &bytes(16 * PAGE_SIZE, 6), |_| false);
    let (_, large) = publish(&d, "large", &bytes(80 * PAGE_SIZE, 7), |_| false);
    assert_eq!(
        fast(&d, &["backwards", &small, "4096", "0", "1"]),
        plain(&["backwards", &small, "4096", "0", "1"])
    );
    assert_eq!((d.total(|c| &c.misses), d.sources_asked.load(SeqCst)), (0, 0));
    assert_eq!(fast(&d, &["sum", &large, "4096", "0"]), plain(&["sum", &large, "4096", "0"]));
    assert_eq!(d.total(|c| &c.misses), 2, "the third adjacent read is a scan");
}

#[test]
fn nobody_drains() {
    let d = Running::start(256);
    d.manners.lazy.store(true, SeqCst);
    let (_, path) = publish(&d, "a", &bytes(90 * PAGE_SIZE, 8), |page| page % 5 == 0);
    for shift in ["0", "1"] {
        let args = ["backwards", &path, "20480", shift, "3"];
        assert_eq!(fast(&d, &args), plain(&args));
    }
    assert_eq!(d.total(|c| &c.fills), 2 * 16);
    d.segment.header().serving.store(0, SeqCst);
    let args = ["backwards", &path, "20480", "1", "2"];
    assert_eq!(fast(&d, &args), plain(&args));
    assert_eq!(d.total(|c| &c.fills), 2 * 16, "no page fill goes to a daemon that is away");
}

/// For any use of the ring, a miss detects that it is no longer drained.
#[test]
fn a_new_daemon_gets_to_know_its_clients() {
    let d = Running::start(256);
    d.manners.lazy.store(true, SeqCst);
    d.manners.hangs_up.store(true, SeqCst);
    let (_, path) = publish(&d, "a", &bytes(90 * PAGE_SIZE, 8), |page| page % 5 == 0);
    for (may_write, shift) in [(true, "0"), (true, "9"), (false, "0"), (false, "9")] {
        d.manners.may_write.store(may_write, SeqCst);
        let before = d.clients();
        let args = ["backwards", &path, "4096", shift, "2"];
        assert_eq!(fast(&d, &args), plain(&args));
        assert_eq!(d.clients() - before, 2, "may write: {may_write}, shifted by {shift}");
    }
}

/// More daemons follow than a process can have rings, while threads miss. The last daemon still gets page
/// fills, and no page is torn.
#[test]
fn a_client_outlives_many_daemons() {
    const PAGES: u64 = 96;
    let d = Running::start(48);
    let all: Vec<u8> = (0..PAGES).flat_map(|page| stormy(page, 0)).collect();
    let (_, storm) = publish(&d, "storm", &all, |_| false);
    (0..250).for_each(|i| drop(publish(&d, &format!("f{i}"), &bytes(17 * PAGE_SIZE, i), |_| false)));
    d.manners.hangs_up.store(true, SeqCst);
    let files = d.dir.join("f");
    let said = fast(&d, &["daemons", &storm, files.to_str().unwrap(), &PAGES.to_string(), "100"]);
    let said: Vec<usize> = said.split_whitespace().map(|n| n.parse().unwrap()).collect();
    println!("{} daemons, {} rings at the end", d.clients(), said[0]);
    assert!(d.clients() >= 100 && said[0] < 8, "{} daemons, {} rings", d.clients(), said[0]);
    assert_eq!(said[1], 0, "torn pages");
    assert!(d.fills_of_the_last() > 10, "{}", d.fills_of_the_last());
}

#[test]
fn a_daemon_that_does_not_answer() {
    let d = Running::start(256);
    d.manners.mute.store(true, SeqCst);
    let (_, path) = publish(&d, "a", &bytes(90 * PAGE_SIZE, 8), |page| page % 5 == 0);
    let args = ["sum", &path, "4096", "0"];
    assert_eq!(fast(&d, &args), plain(&args));
    assert_eq!(d.clients(), 0);
}

/// The same random calls through both paths: all results, errnos and bytes are equal.
#[test]
fn answers_as_the_mount() {
    let seed = seed("preload-answers");
    let d = Running::start(300);
    let mut paths = Vec::new();
    for (i, len) in [200 * PAGE_SIZE, 70 * PAGE_SIZE + 1, 40 * PAGE_SIZE - 1, 3 * PAGE_SIZE + 77, 5000]
        .into_iter()
        .enumerate()
    {
        paths.push(publish(&d, &format!("f{i}"), &bytes(len, i as u64 + 10), |page| (page / 3) % 2 == 0).1);
    }
    let files: Vec<&str> = paths.iter().map(String::as_str).collect();
    for round in 0..25 {
        let seed = (seed + round).to_string();
        let args = [&["ops", &seed, "400"], &files[..]].concat();
        let (right, ours) = (plain(&args), fast(&d, &args));
        let differ = right.lines().zip(ours.lines()).enumerate().find(|(_, (r, o))| r != o);
        assert!(right == ours, "round {round}: TERRACE_SEED={seed}: {differ:?}");
    }
    assert!(d.total(|c| &c.hits) > 1000 && d.total(|c| &c.misses) > 100);
}

/// A page that contains its number and its version.
fn stormy(page: u64, version: u64) -> [u8; PAGE_SIZE] {
    let mut out = [0; PAGE_SIZE];
    for words in out.chunks_mut(16) {
        words[..8].copy_from_slice(&page.to_le_bytes());
        words[8..].copy_from_slice(&version.to_le_bytes());
    }
    out
}

/// Pages are written, evicted, filled and offered while four threads read: none is torn, and no version goes
/// back.
#[test]
fn a_storm() {
    const PAGES: u64 = 96;
    let d = Running::start(48);
    let all: Vec<u8> = (0..PAGES).flat_map(|page| stormy(page, 0)).collect();
    let (object, path) = publish(&d, "storm", &all, |page| page % 2 == 0);
    let file = File::options().write(true).open(&path).unwrap();
    let ms = if cfg!(debug_assertions) { 1500 } else { 3000 };
    let child = std::thread::spawn({
        let daemon = d.daemon.clone();
        move || fast(&daemon, &["storm", &path, &PAGES.to_string(), "4", &ms.to_string()])
    });
    let (mut rng, mut version) = (Rng::new(1), 0);
    while !child.is_finished() {
        let page = rng.below(PAGES);
        match rng.below(4) {
            0 => {
                version += 1;
                d.write(object, &file, page, &stormy(page, version));
            }
            1 => d.evict(object, page),
            _ => std::thread::yield_now(),
        }
    }
    let said = child.join().unwrap();
    let said: Vec<u64> = said.split_whitespace().map(|n| n.parse().unwrap()).collect();
    let (hits, misses, main) = (d.total(|c| &c.hits), d.total(|c| &c.misses), d.total(|c| &c.fallbacks));
    println!(
        "{} pages read, {version} written, {hits} hits, {misses} misses, {main} mount path, {} torn",
        said[0], said[1]
    );
    assert!(hits > 1000 && misses > 10 && version > 20);
    assert!(hits + misses + 16 * main >= said[0], "a thread's descriptor was not classified");
    // The mount path of this test is a kernel file system, with possibly torn reads. The preload path has
    // none.
    assert!(said[1] <= 16 * main, "{} torn, {main} by the mount path", said[1]);
}

#[test]
fn in_signal_handlers() {
    let d = Running::start(256);
    let (_, path) = publish(&d, "a", &bytes(64 * PAGE_SIZE, 8), |page| page % 2 == 0);
    fast(&d, &["signals", &path]);
    assert!(d.total(|c| &c.hits) > 1000);
}

#[test]
fn a_hit_is_a_cancellation_point() {
    let d = Running::start(256);
    let (_, path) = publish(&d, "a", &bytes(20 * PAGE_SIZE, 8), |_| true);
    fast(&d, &["cancel", &path]);
    assert!(d.total(|c| &c.hits) > 100);
}

#[test]
fn shared_mappings_and_sync_are_told() {
    let d = Running::start(256);
    let (_, path) = publish(&d, "a", &bytes(20 * PAGE_SIZE, 8), |_| true);
    fast(&d, &["shared_map", &path]);
    assert_eq!((d.maps_told.load(SeqCst), d.flushes.load(SeqCst)), (1, 2));
}

/// Other processes rely on MAPPED and FLUSH: both are sent after the preload path has closed for this
/// process.
#[test]
fn a_closed_connection_still_reports() {
    for how in ["ring", "clone", "unshare"] {
        let d = Running::start(256);
        let (_, path) = publish(&d, "a", &bytes(20 * PAGE_SIZE, 8), |_| true);
        fast(&d, &["closed_connection", &path, how]);
        assert_eq!((d.maps_told.load(SeqCst), d.flushes.load(SeqCst)), (1, 3), "{how}");
    }
}

#[test]
fn clients_do_not_wait_for_a_slow_sync() {
    let d = Running::start(256);
    d.manners.flush_waits.store(2, SeqCst);
    let (_, path) = publish(&d, "a", &bytes(20 * PAGE_SIZE, 8), |_| true);
    fast(&d, &["sync_and_map", &path]);
    assert_eq!((d.maps_told.load(SeqCst), d.flushes.load(SeqCst)), (1, 2));
    assert_eq!(d.flushes_alone.load(SeqCst), 0, "mmap or a second syncfs waited for the first");
}

/// A mapping that cannot be announced would leave other processes with older content for good.
#[test]
fn a_mapping_is_told_or_refused() {
    let d = Running::start(256);
    d.manners.map_errno.store(libc_eio(), SeqCst);
    let (_, path) = publish(&d, "a", &bytes(20 * PAGE_SIZE, 8), |_| true);
    fast(&d, &["map_refused", &path]);
    assert_eq!(d.maps_told.load(SeqCst), 1);
}

#[test]
fn process_that_gave_up_rights_maps_as_before() {
    let d = Running::start(256);
    let (_, path) = publish(&d, "a", &bytes(20 * PAGE_SIZE, 8), |_| true);
    fast(&d, &["dropped", &path]);
    assert_eq!(d.clients(), 1);
}

fn libc_eio() -> u32 {
    rustix::io::Errno::IO.raw_os_error() as u32
}

/// The first open does not drop the process's locks, and inotify sees no close.
#[test]
fn the_first_open_closes_nothing() {
    let d = Running::start(256);
    let (_, path) = publish(&d, "a", &bytes(20 * PAGE_SIZE, 8), |_| true);
    fast(&d, &["locks", &path]);
    assert_eq!(d.clients(), 1);
    assert!(d.total(|c| &c.hits) > 0);
}

/// The first file that a process opens is a new one, by a path of each form.
#[test]
fn a_new_file_makes_a_client() {
    let d = Running::start(64);
    for (i, path) in ["new", "./new", d.dir.join("new").to_str().unwrap()].into_iter().enumerate() {
        let _ = std::fs::remove_file(d.dir.join("new"));
        finish(behind(&d, Command::new(worker()).args(["create", path])).current_dir(&d.dir));
        assert_eq!((d.clients(), d.early.load(SeqCst)), (i + 1, i as u32 + 1), "{path}");
    }
}

/// Reads of small files, and a few new files, do not register the process. A large file, a file changed in
/// place, and many new files do.
#[test]
fn small_files_make_no_client() {
    let d = Running::start(64);
    let small = publish(&d, "small", &bytes(PAGE_SIZE, 1), |_| true).1;
    let large = publish(&d, "large", &bytes(1 << 20, 2), |_| true).1;
    let mut clients = 0;
    for (args, is_client) in [
        (["touch", &small, "ro", "100"], false),
        (["touch", &large, "ro", "1"], true),
        (["touch", &small, "rw", "1"], true),
        (["touch", &large, "trunc", "1"], false),
        (["touch", &small, "trunc", "31"], false),
        (["touch", &small, "trunc", "32"], true),
    ] {
        finish(behind(&d, Command::new(worker()).args(args)).env_remove("TERRACE_LARGE_FILE"));
        clients += usize::from(is_client);
        assert_eq!(d.clients(), clients, "{args:?}");
    }
}

#[test]
fn numbers_that_changed_their_meaning_unseen() {
    let d = Running::start(256);
    let (_, path) = publish(&d, "a", &bytes(20 * PAGE_SIZE, 8), |_| true);
    let ring = d.dir.with_file_name("libring.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/preload/ring.c");
    assert!(
        Command::new("cc").args(["-shared", "-fPIC", source, "-o"]).arg(&ring).status().unwrap().success()
    );
    for how in ["ring", "pipe", "pipe2", "socketpair", "eventfd", "recvmsg", "__close", "__dup2"] {
        let mut worker = Command::new(worker());
        let worker = behind(&d, worker.args(["numbers", &path, how]));
        let preload = format!("{}:{}", library().display(), nameable(ring.clone()).display());
        finish(worker.env("LD_PRELOAD", preload));
    }
    std::fs::remove_file(ring).unwrap();
}

/// Under seccomp's strict mode, any call but read and write kills the program.
#[test]
fn sandboxed_programs_make_no_call_but_their_own() {
    let d = Running::start(256);
    let (_, path) = publish(&d, "a", &bytes(20 * PAGE_SIZE, 8), |_| true);
    for (i, how) in ["prctl", "seccomp", "prctl-syscall"].into_iter().enumerate() {
        fast(&d, &["sandboxed", &path, how]);
        assert_eq!(d.maps_told.load(SeqCst), i as u32 + 1, "files that may be mapped are announced");
    }
}

/// A child forked without handlers is a client of its own, and does not keep its parent's connection open.
#[test]
fn forks_without_handlers() {
    let d = Running::start(256);
    let (_, path) = publish(&d, "a", &bytes(64 * PAGE_SIZE, 8), |page| page % 2 == 0);
    for how in ["syscall", "asm"] {
        fast(&d, &["raw_fork", &path, how]);
    }
    assert_eq!(d.clients(), 4);
}

/// A handler forks and returns in the middle of a miss.
#[test]
fn forks_in_signal_handlers() {
    let d = Running::start(256);
    d.manners.lazy.store(true, SeqCst);
    let (_, path) = publish(&d, "a", &bytes(128 * PAGE_SIZE, 8), |_| false);
    fast(&d, &["signal_forks", &path]);
}

#[test]
fn the_bell_rings_nowhere_else() {
    let d = Running::start(256);
    d.segment.header().drainer_sleeps.store(1, SeqCst);
    d.manners.lazy.store(true, SeqCst);
    let (_, path) = publish(&d, "a", &bytes(64 * PAGE_SIZE, 8), |_| false);
    fast(&d, &["backwards", &path, "12288", "9", "2"]);
    assert!(d.rung.load(SeqCst) > 0, "a full ring wakes the daemon");
    fast(&d, &["raw_eventfd", &path]);
}

#[test]
fn programs_that_close_what_is_not_theirs() {
    let d = Running::start(256);
    let (_, path) = publish(&d, "a", &bytes(64 * PAGE_SIZE, 8), |page| page % 2 == 0);
    let (_, other) = publish(&d, "b", &bytes(64 * PAGE_SIZE, 9), |_| false);
    let right = plain(&["backwards", &path, "12288", "0", "3"]);
    assert_eq!(fast(&d, &["close_all", &path]), right);
    let before = std::fs::read(&other).unwrap();
    assert_eq!(fast(&d, &["raw_reuse", &path, &other]), plain(&["backwards", &path, "4096", "0", "3"]));
    assert_eq!(std::fs::read(&other).unwrap(), before, "a wake-up was written to a file of the program");
}

#[test]
fn programs_without_our_files_are_left_alone() {
    let d = Running::start(64);
    for script in [
        "ls /usr/bin | md5sum",
        "sort /etc/passwd | tail -1; echo $((1+1)); exec 3</etc/passwd; read -u 3 x; echo $x",
    ] {
        let plain = finish(Command::new("bash").args(["-c", script]));
        // Another device than that of bash and its libraries.
        let mut bash = Command::new("bash");
        let bash = behind(&d, bash.args(["-c", script])).env("TERRACE_DEV", (d.dev + 1).to_string());
        assert_eq!(finish(bash), plain);
    }
    assert_eq!(d.clients(), 0);
}
