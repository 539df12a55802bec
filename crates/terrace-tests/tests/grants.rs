//! Clients that write the source themselves, while the kernel does so for everybody (`--passthrough auto`).

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant, SystemTime};

use terrace_tests::process::kill;
use terrace_tests::rig::{Rig, Side, SmallDisk};
use terrace_tests::rng::{Rng, seed};

use crate::passthrough::{rig, rig_over};

const PAGE: usize = 4096;
const PAGES: usize = 64;

/// A program with the library that does what it is told: expressions of Python, `f` is the file open for reading and writing.
struct Program {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Program {
    fn start(rig: &Rig) -> Program {
        let script = "import fcntl, os, struct, sys
f = os.open('file', os.O_RDWR)
def fill(letter, page, to=None): return os.pwrite(f if to is None else to, letter.encode() * 4096, page * 4096)
def child(act):
    pid = os.fork()
    if pid == 0: act(); os._exit(0)
    return os.waitpid(pid, 0)[1]
for line in sys.stdin:
    try: print(eval(line), flush=True)
    except OSError as error: print('errno', error.errno, flush=True)";
        let mut command = rig.command("python3");
        let mut child = command
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 can be started");
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        Program { child, answers }
    }

    /// Writes until it has a descriptor of the source.
    #[track_caller]
    fn with_grant(rig: &Rig) -> Program {
        let mut program = Program::start(rig);
        (0..6).for_each(|page| program.expect(&format!("fill('a', {page})"), "4096"));
        assert_eq!(program.writers_of(&rig.src().join("file")), 1, "it does not write the source itself");
        program.expect("os.fsync(f)", "None");
        program
    }

    #[track_caller]
    fn expect(&mut self, expression: &str, answer: &str) {
        assert_eq!(self.ask(expression), answer, "{expression}");
    }

    fn ask(&mut self, expression: &str) -> String {
        writeln!(self.child.stdin.as_mut().expect("a pipe"), "{expression}").expect("the program lives");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("the program lives");
        line.trim().to_owned()
    }

    /// Its descriptors that are open for writing on this very file.
    fn writers_of(&self, file: &Path) -> usize {
        let file = file.canonicalize().expect("the file is there");
        let proc = format!("/proc/{}", self.child.id());
        let fds = std::fs::read_dir(format!("{proc}/fd")).expect("the program lives");
        fds.flatten()
            .filter(|fd| {
                let info = std::fs::read_to_string(format!("{proc}/fdinfo/{}", fd.file_name().display()));
                let writes =
                    info.is_ok_and(|info| info.lines().any(|l| l.starts_with("flags:") && l.ends_with('2')));
                writes && std::fs::read_link(fd.path()).is_ok_and(|target| target == file)
            })
            .count()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn make_file(rig: &Rig) {
    std::fs::write(rig.src().join("file"), vec![b'0'; PAGES * PAGE]).unwrap();
}

fn first_byte(file: &Path, page: usize) -> u8 {
    let mut byte = [0];
    File::open(file).unwrap().read_exact_at(&mut byte, (page * PAGE) as u64).unwrap();
    byte[0]
}

/// Neither writes nor syncs of such a file need terraced, and others see them at once.
#[test]
fn writes_and_syncs_go_on_while_terraced_is_stopped() {
    let Some(rig) = rig("grants-stopped", Side::Fast) else { return };
    make_file(&rig);
    let mut program = Program::with_grant(&rig);
    let terraced = rig.terraced();
    assert!(kill(terraced, libc::SIGSTOP));
    let begun = Instant::now();
    for page in 10..20 {
        program.expect(&format!("fill('b', {page})"), "4096");
        program.expect("os.fdatasync(f)", "None");
        assert_eq!(first_byte(&rig.src().join("file"), page), b'b');
    }
    let took = begun.elapsed();
    std::thread::sleep(Duration::from_secs(1).saturating_sub(took));
    assert!(kill(terraced, libc::SIGCONT));
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert_eq!(first_byte(&rig.at().join("file"), 19), b'b');
    let mut other = Program::start(&rig);
    other.expect("os.pread(f, 1, 19 * 4096)", "b'b'");
    other.expect("os.pwrite(f, b'c', 19 * 4096)", "1");
    program.expect("os.pread(f, 2, 19 * 4096)", "b'cb'");
    drop((program, other));
    rig.finish();
}

/// What was answered is in the source, and the next mount serves it.
#[test]
fn answered_writes_survive_the_death_of_everything() {
    let Some(rig) = rig("grants-death", Side::Fast) else { return };
    make_file(&rig);
    let mut program = Program::with_grant(&rig);
    let mut rng = Rng::new(seed("grants-death"));
    for page in 10..40 {
        program.expect(&format!("fill('b', {page})"), "4096");
        if page == 25 {
            let last = rig.terraced();
            kill(last, libc::SIGKILL);
            rig.next_terraced(last);
        }
    }
    rig.kill_everything(&mut rng);
    (10..40).for_each(|page| assert_eq!(first_byte(&rig.src().join("file"), page), b'b'));
    drop(program);
    rig.umount();
}

/// Size and times of the file, by path and by descriptor, in the program and in others, also where frames were served before.
#[test]
fn size_and_times_show_at_once() {
    let Some(rig) = rig("grants-attributes", Side::Fast) else { return };
    make_file(&rig);
    let mut program = Program::with_grant(&rig);
    let open = File::open(rig.at().join("file")).unwrap();
    let mut last = 0;
    for page in (10..40).chain([PAGES + 3]) {
        let before = SystemTime::now() - Duration::from_millis(20);
        program.expect(&format!("fill('b', {page})"), "4096");
        let size = (PAGES.max(page + 1) * PAGE) as u64;
        for metadata in [std::fs::metadata(rig.at().join("file")).unwrap(), open.metadata().unwrap()] {
            assert!(metadata.modified().unwrap() >= before, "page {page}");
            assert_eq!(metadata.len(), size);
        }
        program.expect("os.fstat(f).st_mtime_ns == os.stat('file').st_mtime_ns", "True");
        let now: u128 = program.ask("os.stat('file').st_mtime_ns").parse().unwrap();
        assert!(now >= last, "the time goes back");
        last = now;
    }
    drop((program, open));
    let settled = std::fs::metadata(rig.at().join("file")).unwrap().modified().unwrap();
    assert!(settled.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() >= last);
    // Frames from before are gone.
    let mut reader = Program::start(&rig);
    reader.expect("os.pread(f, 1, 39 * 4096), os.pread(f, 1, 67 * 4096)", "(b'b', b'b')");
    drop(reader);
    rig.finish();
}

/// Duplicates, children, files that are appended to and numbers that mean another file write what they should.
#[test]
fn duplicates_forks_and_appends_keep_their_meaning() {
    let Some(rig) = rig("grants-meaning", Side::Fast) else { return };
    make_file(&rig);
    std::fs::write(rig.src().join("other"), vec![b'0'; PAGES * PAGE]).unwrap();
    let (file, other) = (rig.src().join("file"), rig.src().join("other"));
    let mut program = Program::with_grant(&rig);
    program.expect("child(lambda: (fill('c', 1), os.fsync(f), os.close(f)))", "0");
    program.expect("fill('d', 2)", "4096");
    assert_eq!((first_byte(&file, 1), first_byte(&file, 2)), (b'c', b'd'));
    program.expect("[(n := os.dup(f)) > 0, fill('e', 3, n), fill('f', 4)]", "[True, 4096, 4096]");
    assert_eq!(program.writers_of(&file), 0, "two descriptors may be told of failures");
    assert_eq!((first_byte(&file, 3), first_byte(&file, 4)), (b'e', b'f'));
    drop(program);
    let mut program = Program::with_grant(&rig);
    program.expect(
        "[os.dup2(o := os.open('other', os.O_RDWR), f) > 0, os.close(o), fill('g', 5)]",
        "[True, None, 4096]",
    );
    assert_eq!((first_byte(&file, 5), first_byte(&other, 5)), (b'a', b'g'));
    assert_eq!(program.writers_of(&file), 0, "the number means another file");
    drop(program);
    let mut program = Program::with_grant(&rig);
    program.expect("fcntl.fcntl(f, fcntl.F_SETFL, os.O_APPEND)", "0");
    program.expect("fill('h', 6)", "4096");
    assert_eq!((first_byte(&file, 6), first_byte(&file, PAGES)), (b'0', b'h'));
    drop(program);
    rig.finish();
}

/// A lock that the program has on the source by another way stays when its descriptor of the mount's file is closed.
#[test]
fn closing_releases_no_lock() {
    let Some(rig) = rig("grants-lock", Side::Fast) else { return };
    make_file(&rig);
    let source = rig.src().join("file");
    let mut program = Program::with_grant(&rig);
    program.expect(&format!("(s := os.open('{}', os.O_RDWR)) > 0", source.display()), "True");
    program.expect("fcntl.lockf(s, fcntl.LOCK_EX)", "None");
    program.expect("os.close(f)", "None");
    let other = format!(
        "import fcntl, os; fcntl.lockf(os.open('{}', os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)",
        source.display()
    );
    let mut taker = std::process::Command::new("python3");
    let taken = terrace_tests::process::run(taker.args(["-c", &other]), 60);
    assert!(!taken.status.success(), "the lock is gone");
    drop(program);
    terrace_tests::process::run(taker.args(["-c", &other]), 60).expect_success();
    rig.finish();
}

/// A full device is the writer's error.
#[test]
fn full_device_is_told_to_the_writer() {
    let Some(disk) = SmallDisk::new("grants-full", 16) else { return };
    let Some(rig) = rig_over("grants-full", Side::Fast, Some(disk.path())) else { return };
    File::create(rig.src().join("file")).unwrap().set_len((PAGES * PAGE) as u64).unwrap();
    let mut program = Program::with_grant(&rig);
    let rest = std::process::Command::new("sh")
        .args(["-c", "for again in 1 2 3; do cat /dev/zero >> rest; sync; done 2> /dev/null"])
        .current_dir(rig.src())
        .status();
    assert!(rest.is_ok_and(|status| status.success()));
    let full = format!("errno {}", libc::ENOSPC);
    let refused = (40..PAGES).find(|page| program.ask(&format!("fill('b', {page})")) == full);
    let refused = refused.expect("a full device takes no more pages");
    program.expect("fill('b', 1)", "4096");
    std::fs::remove_file(rig.src().join("rest")).unwrap();
    program.expect(&format!("fill('b', {refused})"), "4096");
    program.expect("os.fsync(f)", "None");
    [1, refused].iter().for_each(|&page| assert_eq!(first_byte(&rig.src().join("file"), page), b'b'));
    drop(program);
    rig.finish();
}
