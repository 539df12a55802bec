//! Puts pressure on a cache that is smaller than a file: reads the file (made by
//! `terrace_tests::exec::write_big`) in random order, again and again. Ends at the first page that differs
//! from its original.
//!
//! `presser FILE` runs until killed, or until a wrong page. `presser FILE -- COMMAND...` becomes the command once the cache is full,
//! and a child process continues the reads. The child ends with the command; a wrong page kills the command.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::time::Duration;
use terrace_tests::exec::BIG_PAGES;
use terrace_tests::rng::{Rng, fill, seed};

const PAGE: usize = 4096;
/// Reads at full speed before the paced ones, to fill the cache with nine pages of ten.
const HASTY: u64 = 2 * BIG_PAGES;
/// Reads between pauses: the test needs the processors, too.
const BATCH: u64 = 32;
const PAUSE: Duration = Duration::from_millis(5);

/// A buffer for direct reads.
#[repr(C, align(4096))]
struct Buffer([u8; PAGE]);

fn main() {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let wrong = match &args[..] {
        [file] => press(file.as_ref(), || ()),
        [file, dashes, command, rest @ ..] if dashes == "--" => {
            let (mut full, told) = std::io::pipe().expect("a pipe");
            // SAFETY: this program has one thread; the child continues with a copy of its whole state.
            let pid = unsafe { libc::fork() };
            assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
            if pid > 0 {
                drop(told);
                full.read_exact(&mut [0]).expect("the child tells that the cache is full");
                let why = std::process::Command::new(command).args(rest).exec();
                panic!("{}: {why}", command.display());
            }
            // SAFETY: plain integers.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            drop(full);
            let mut told = Some(told);
            press(file.as_ref(), || {
                let written = told.take().map(|mut told| told.write_all(b"."));
                assert!(matches!(written, Some(Ok(()))), "the command waits for it");
            })
        }
        _ => panic!("presser FILE [-- COMMAND...]"),
    };
    eprintln!("{wrong}");
    if args.len() > 1 {
        // SAFETY: plain integers. The parent is the command: if it had ended, PDEATHSIG would have ended this
        // process.
        unsafe { libc::kill(libc::getppid(), libc::SIGKILL) };
    }
    std::process::exit(1);
}

/// Reads until an error, and returns its text. Calls `full` once, when the cache must be full.
fn press(path: &Path, mut full: impl FnMut()) -> String {
    let mut rng = Rng::new(seed("presser"));
    let (mut buffer, mut wanted) = (Box::new(Buffer([0; PAGE])), vec![0; PAGE]);
    // Without the preload path, O_DIRECT bypasses the kernel's page cache in front of terrace's.
    let flags = if std::env::var_os("TERRACE_SOCKET").is_some() { 0 } else { libc::O_DIRECT };
    let mut file: Option<std::fs::File> = None;
    for n in 0_u64.. {
        file = file.or_else(|| std::fs::File::options().read(true).custom_flags(flags).open(path).ok());
        let page = rng.below(BIG_PAGES);
        let read = file.as_ref().map(|f| f.read_exact_at(&mut buffer.0, page * PAGE as u64));
        if !matches!(read, Some(Ok(()))) {
            // The mount's daemon may have been killed for good; another mount may follow.
            file = None;
            std::thread::sleep(Duration::from_millis(10));
            continue;
        }
        fill(&mut wanted, page);
        if buffer.0[..] != wanted[..] {
            return format!("presser: page {page} of {} is wrong", path.display());
        }
        if n == HASTY {
            full();
        }
        if n >= HASTY && n.is_multiple_of(BATCH) {
            std::thread::sleep(PAUSE);
        }
    }
    unreachable!("it reads for ever")
}
