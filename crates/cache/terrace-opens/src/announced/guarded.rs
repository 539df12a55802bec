//! Files of a `terrace run` with the right to use fanotify. Leases serve files without writers. Once a program
//! opens a file for writing, its writes are announced, and fanotify shows all opens of the file.
//!
//! ```text
//!              an open for writing breaks the lease          no process writes
//!   leased ──────────────────────────────────────► watched ───────────────────► leased
//!                                                    │  ▲
//!            each writer announces its writes: served ◄──► suspect: a stranger opens it for writing
//! ```
//!
//! A *stranger* is a process that does not announce its writes. Its open waits until the file is the kernel's. A
//! look at all processes ([`crate::guard::writers`]) shows when no stranger has the file open any more.
//!
//! The listener's thread takes no lock under which this process opens a file: that open would wait for it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::fstat;
use rustix::io::Errno;
use terrace_engine::{Engine, ObjectRef, Serve};
use terrace_sync::Mutex;

use super::file::AnnouncedFile;
use super::files::{self, AnnouncedFiles};
use crate::guard::{FileId, Handler, Listener, Task, writers};
use crate::lease::{self, Leases};

/// Most reported opens of one file a second: each delays a program by 50 to 100 us. A file with more is left to
/// the kernel.
const OPENS_MAX: u64 = 200;

/// The files in service, leased or watched.
#[derive(Debug)]
pub struct GuardedFiles {
    engine: Arc<Engine>,
    /// st_dev of the files that may be served.
    dev: u64,
    leases: Arc<Leases>,
    watched: Arc<AnnouncedFiles>,
    listener: Arc<Listener>,
    /// Held while a file moves between the two tables.
    moves: Mutex<()>,
    /// Opens for writing by strangers so far.
    strangers: AtomicU64,
    /// Time of the last [`GuardedFiles::end_costly`].
    counted: Mutex<Instant>,
}

impl GuardedFiles {
    /// Serves at most `files_max` files of the device `dev` in each way. `word`: the supervisor's, see
    /// [`crate::holder_word`]. The supervisor keeps the listener's group open.
    pub fn new(
        engine: Arc<Engine>,
        dev: u64,
        files_max: usize,
        word: &'static AtomicU32,
        listener: Arc<Listener>,
    ) -> GuardedFiles {
        let leases = Arc::new(Leases::new(engine.clone(), dev, files_max, word));
        let watched = Arc::new(AnnouncedFiles::new(engine.clone(), dev, files_max, None));
        let suspects = watched.clone();
        leases.before_resume(move || suspects.all().iter().for_each(|file| file.suspect_all()));
        let (moves, strangers, counted) = (Mutex::new(()), AtomicU64::new(0), Mutex::new(Instant::now()));
        GuardedFiles { engine, dev, leases, watched, listener, moves, strangers, counted }
    }

    /// Takes over a dead daemon's leases, as [`Leases::take_over`]. Its watched files are forgotten. `open`: all
    /// descriptors of the table shared with the dead daemon: opens that it did not answer go on.
    ///
    /// # Errors
    /// Those of [`Listener::answer_orphans`].
    ///
    /// # Safety
    /// As [`Leases::take_over`].
    pub unsafe fn take_over(
        &self,
        leased: impl IntoIterator<Item = RawFd>,
        open: impl IntoIterator<Item = RawFd>,
    ) -> io::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.leases.take_over(leased) };
        self.listener.answer_orphans(open, self).map(|_| ())
    }

    /// Serves until [`GuardedFiles::stop`]. Calls `begun` once the set-up is done.
    pub fn run(&self, begun: impl FnOnce()) {
        std::thread::scope(|scope| {
            let named = |name: &str| std::thread::Builder::new().name(name.into());
            let listens = named("opens").spawn_scoped(scope, || self.listen());
            let looks =
                named("writers").spawn_scoped(scope, || self.watched.look_until_stopped(|| self.look()));
            for err in [listens.as_ref().err(), looks.as_ref().err()].into_iter().flatten() {
                tracing::error!("a thread cannot start ({err}): the kernel serves files that programs write");
                self.end_watch();
            }
            self.leases.run(begun);
            if let Ok(looks) = looks {
                let _ = looks.join();
            }
            self.end_watch();
        });
    }

    /// Ends [`GuardedFiles::run`].
    pub fn stop(&self) {
        self.leases.stop();
        self.watched.stop();
    }

    /// Counts for `terrace stat`: those of leased files, those of watched files, and opens for writing by
    /// strangers.
    pub fn counts(&self) -> (lease::Counts, files::Counts, u64) {
        (self.leases.counts(), self.watched.counts(), self.strangers.load(Ordering::Relaxed))
    }

    fn listen(&self) {
        if let Err(err) = self.listener.run(self) {
            tracing::error!("opens are not reported ({err}): the kernel serves files that programs write");
            self.end_watch();
        }
    }

    /// The kernel serves all watched files from here on, and their opens wait no longer.
    fn end_watch(&self) {
        self.watched.stop();
        self.watched.all().iter().for_each(|file| file.give_up());
        if let Err(err) = self.listener.unwatch_all() {
            tracing::error!("fanotify: opens are reported still: {err}");
        }
        self.listener.stop();
    }

    /// Watches files that programs write. Looks for strangers that have suspect files open.
    fn look(&self) {
        let moves = self.moves.lock();
        for (fd, object) in self.leases.take_written() {
            if let Err(err) = self.begin_watch(fd, object) {
                tracing::debug!("a written file stays with the kernel: {err}");
            }
        }
        let due: BTreeMap<FileId, (Arc<AnnouncedFile>, u64)> =
            self.watched.all().into_iter().filter_map(|file| self.due(file)).collect();
        self.end_costly();
        drop(moves);
        if due.is_empty() {
            return;
        }
        // The processes come first: one of them may end, and its number may become a stranger's.
        let announcing = self.engine.announcing_processes();
        match writers(due.keys().copied(), &announcing) {
            Ok(found) => {
                for (id, (file, number)) in &due {
                    match found.get(id).is_some_and(|writers| file.is_refuted_by(writers)) {
                        true => file.refute(&self.engine, *number),
                        false => file.postpone(),
                    }
                }
            }
            Err(err) => {
                tracing::debug!("no look for writers: {err}");
                due.values().for_each(|(file, _)| file.postpone());
            }
        }
    }

    /// Leaves files to the kernel that programs open too often, for the rest of the run.
    fn end_costly(&self) {
        let mut counted = self.counted.lock();
        if counted.elapsed() < Duration::from_secs(1) {
            return;
        }
        let max = OPENS_MAX as f64 * counted.elapsed().as_secs_f64();
        *counted = Instant::now();
        for file in self.watched.all().into_iter().filter(|file| file.take_opens() as f64 > max) {
            tracing::info!(
                "inode {} is opened too often to be watched: it is the kernel's",
                file.object.id()
            );
            file.give_up();
            let _ = self.listener.unwatch(file.fd.as_fd());
        }
    }

    /// A suspect file for the next look. A file that no process writes is leased again.
    fn due(&self, file: Arc<AnnouncedFile>) -> Option<(FileId, (Arc<AnnouncedFile>, u64))> {
        let number = file.due()?;
        if lease::is_written(file.fd.as_fd()) {
            return Some((FileId { dev: self.dev, ino: file.object.id() }, (file, number)));
        }
        self.watched.remove(file.object.id());
        file.object.set_watched(false);
        let _ = self.listener.unwatch(file.fd.as_fd());
        self.leases.admit(file.fd.clone(), file.object.clone());
        None
    }

    /// Reports the opens of a file from here on. A program that opens it later without an announcement is seen,
    /// an earlier one is found by the look.
    fn begin_watch(&self, fd: Arc<OwnedFd>, object: ObjectRef) -> io::Result<Arc<AnnouncedFile>> {
        self.listener.watch(fd.as_fd())?;
        self.watched.adopt(fd, object)
    }
}

fn errno(err: io::Error) -> Errno {
    Errno::from_io_error(&err).unwrap_or(Errno::IO)
}

impl Handler for GuardedFiles {
    fn opened(&self, file: FileId, opener: Task) {
        let Some(known) = self.watched.get(file.ino).filter(|_| file.dev == self.dev) else { return };
        known.note_open();
        let announces = || opener.process().is_some_and(|pid| self.engine.announces_open(pid));
        if opener.opens_for_reading() || announces() {
            return;
        }
        known.suspect_one(opener.process());
        if self.strangers.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(
                "process {} opens inode {} for writing without the preload library: the kernel serves the file \
                 until it is closed. Run all writers below `terrace run`; further opens are not logged",
                opener.process().unwrap_or_default(),
                file.ino
            );
        }
    }

    fn closed(&self, file: FileId, wrote: bool, closer: Task) {
        if let Some(known) = self.watched.get(file.ino).filter(|_| wrote && file.dev == self.dev) {
            let announcing = self.engine.announcing_processes();
            known.note_close(closer.process().is_none_or(|pid| !announcing.contains(&pid)));
        }
    }

    fn lost(&self) {
        self.watched.all().iter().for_each(|file| file.suspect_all());
    }
}

impl Serve for GuardedFiles {
    fn serve(&self, shown: BorrowedFd<'_>) -> Result<ObjectRef, Errno> {
        let st = fstat(shown)?;
        let _moves = self.moves.lock();
        match self.watched.get(st.st_ino).filter(|_| st.st_dev == self.dev) {
            Some(file) => self.watched.object_of(&file),
            None => self.leases.serve(shown),
        }
    }

    fn watch(&self, shown: BorrowedFd<'_>) -> Result<(), Errno> {
        let st = fstat(shown)?;
        if st.st_dev != self.dev {
            return Err(Errno::XDEV);
        }
        let _moves = self.moves.lock();
        if self.watched.get(st.st_ino).is_some() {
            return Ok(());
        }
        let leased = self.leases.find_or_begin(shown)?;
        self.listener.watch(leased.fd.as_fd()).map_err(errno)?;
        let was_held = leased.is_held() && lease::is_held(leased.fd.as_fd());
        // An open counts as a writer before it waits for the listener or the lease (Linux: do_dentry_open).
        let is_written = lease::is_written(leased.fd.as_fd());
        let (fd, object) = self.leases.end(&leased);
        let file = self.watched.adopt(fd, object).map_err(errno)?;
        if !is_written {
            file.begin(&self.engine, was_held);
        }
        Ok(())
    }

    fn give_up(&self, shown: BorrowedFd<'_>) -> Result<(), Errno> {
        let st = fstat(shown)?;
        if st.st_dev != self.dev {
            return Err(Errno::XDEV);
        }
        let _moves = self.moves.lock();
        // The descriptor is open for writing, so a lease of the file is broken.
        let file = match self.watched.get(st.st_ino) {
            Some(file) => file,
            None => {
                let (fd, object) = self.leases.end(&*self.leases.find_or_begin(shown)?);
                self.begin_watch(fd, object).map_err(errno)?
            }
        };
        file.give_up();
        Ok(())
    }
}
