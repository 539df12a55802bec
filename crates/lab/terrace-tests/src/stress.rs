//! A verifying stress test: starts its processes (`verifier`), ends them, and checks that none found a
//! violation.

use crate::pages::VersionTable;
use crate::process::{Background, helper};
use crate::test_mount::TestMount;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Files of self-describing pages on a test mount, their version table, and the processes that use them.
#[derive(Debug)]
pub struct Stress<'a> {
    mount: &'a TestMount,
    /// The version table.
    pub versions: VersionTable,
    versions_path: PathBuf,
    files: u64,
    pages: u64,
    writers: u64,
    seed: u64,
    workers: Vec<Worker>,
    /// A killed writer through mappings.
    killed: Option<u64>,
}

#[derive(Debug)]
struct Worker {
    role: String,
    id: u64,
    fast: bool,
    process: Background,
    log: PathBuf,
}

impl<'a> Stress<'a> {
    /// Prepares `files` files of `pages` pages each, written by at most `writers` processes.
    pub fn new(mount: &'a TestMount, files: u64, pages: u64, writers: u64, seed: u64) -> Stress<'a> {
        let versions_path = mount.aside().join("versions");
        let versions = VersionTable::open(&versions_path, files * pages);
        for n in 0..files {
            let file = std::fs::File::create(mount.at().join(format!("f{n}"))).expect("a file on the mount");
            file.set_len(pages * 4096).expect("a file on the mount");
        }
        Stress {
            mount,
            versions,
            versions_path,
            files,
            pages,
            writers,
            seed,
            workers: Vec::new(),
            killed: None,
        }
    }

    /// Allocates the blocks of all pages. Otherwise a direct read of the source fails with EIO, on the plain
    /// directory as well, if it meets a page that another process has just touched in its mapping of a hole
    /// (fs/iomap/direct-io.c, IOMAP_DELALLOC).
    pub fn allocate(&self) {
        for n in 0..self.files {
            let file = std::fs::File::options().write(true).open(self.mount.src().join(format!("f{n}")));
            let file = file.expect("made above");
            // SAFETY: a plain call on an open descriptor.
            let errno = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, (self.pages * 4096) as i64) };
            assert_eq!(errno, 0, "blocks for the files");
        }
    }

    fn command(&self, role: &str, fast: bool) -> Command {
        let mut command = Command::new(helper("verifier"));
        if fast {
            self.mount.through_preload(&mut command);
        }
        command.arg(role).arg(format!("dir={}", self.mount.at().display()));
        command.arg(format!("versions={}", self.versions_path.display()));
        command.args([format!("files={}", self.files), format!("pages={}", self.pages)]);
        command
    }

    /// Starts a worker. `fast` gives it the preload library; `more` are further options.
    pub fn start(&mut self, role: &str, id: u64, fast: bool, more: &[&str]) {
        let log = self.mount.aside().join(format!("{role}-{id}.log"));
        let mut command = self.command(role, fast);
        command.args([
            format!("id={id}"),
            format!("writers={}", self.writers),
            format!("seed={}", self.seed),
        ]);
        command.args(more).stdin(Stdio::null());
        let out = std::fs::File::options().create(true).append(true).open(&log).expect("a log");
        command.stdout(out.try_clone().expect("a descriptor")).stderr(out);
        let process = Background::new(&mut command);
        self.workers.push(Worker { role: role.into(), id, fast, process, log });
    }

    /// Panics if a worker has ended by itself: it found a violation.
    #[track_caller]
    pub fn expect_all_running(&mut self) {
        for worker in &mut self.workers {
            if let Some(status) = worker.process.wait(Duration::ZERO) {
                panic!("{}", worker.tell(&format!("ended too early: {status}"), self.seed));
            }
        }
    }

    /// kill -9 of one worker, by index of its start; a new one takes its place.
    pub fn replace(&mut self, n: usize, more: &[&str]) {
        let mut worker = self.workers.remove(n);
        worker.process.kill();
        if worker.role == "mapwrite" {
            self.killed = Some(worker.id);
        }
        self.seed = self.seed.wrapping_add(1);
        self.start(&worker.role.clone(), worker.id, worker.fast, more);
    }

    /// Number of workers.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.workers.len()
    }

    /// Kills all workers at once, as a crash does.
    pub fn kill_all(&mut self) {
        self.workers.iter_mut().for_each(|w| w.process.kill());
        self.workers.clear();
    }

    /// Lets the workers run for this time, and checks that none fails.
    #[track_caller]
    pub fn work(&mut self, for_: Duration) {
        let end = std::time::Instant::now() + for_;
        while std::time::Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
            self.expect_all_running();
        }
    }

    /// Stops all workers; each must end without a violation.
    #[track_caller]
    pub fn stop(&mut self) {
        self.versions.stop().store(1, SeqCst);
        for mut worker in std::mem::take(&mut self.workers) {
            match worker.process.wait(Duration::from_secs(60)) {
                Some(status) if status.success() => {}
                Some(status) => panic!("{}", worker.tell(&status.to_string(), self.seed)),
                None => panic!("{}", worker.tell("does not end", self.seed)),
            }
        }
        self.versions.stop().store(0, SeqCst);
        println!("{}", self.versions.summary());
    }

    /// Reads every page once through the mount or the preload path, or (`None`) from the source, and compares
    /// it with the version table.
    #[track_caller]
    pub fn verify(&self, preload: Option<bool>, require: &str) {
        let mut command = self.command("check", preload == Some(true));
        if preload.is_none() {
            command.arg(format!("dir={}", self.mount.src().display()));
        }
        command.args([format!("require={require}"), format!("writers={}", self.writers)]);
        command.args(self.killed.map(|id| format!("killed={id}")));
        let outcome = crate::process::run(&mut command, 120);
        assert!(outcome.status.success(), "preload {preload:?}, seed {}: {outcome}", self.seed);
    }

    /// The end of a test: all acknowledged data are readable by both paths, and in the source after umount.
    #[track_caller]
    pub fn settle(mut self, mount: &TestMount) {
        self.stop();
        self.verify(Some(true), "acked");
        self.verify(Some(false), "acked");
        mount.check();
        mount.umount();
        self.verify(None, "acked");
    }
}

impl Worker {
    fn tell(&self, what: &str, seed: u64) -> String {
        let preload = if self.fast { "preload path" } else { "mount path" };
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        format!("{} {} ({preload}): {what} (seed {seed})\n{log}", self.role, self.id)
    }
}
