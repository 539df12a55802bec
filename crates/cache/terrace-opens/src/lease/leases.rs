//! The files served by leases, the thread that gives leases back, and the thread that takes them again.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;
use terrace_engine::{Engine, ObjectId, ObjectRef, Serve};
use terrace_sync::{Condvar, Mutex};

use super::file::LeasedFile;
use super::{fcntl, holder_word};

/// Interval of the check for a stopped daemon, and for deleted files: our descriptor keeps their space.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOKS_MAX: usize = 2048;
/// When the table is full, one in so many files is given up.
const GIVE_UP_PART: usize = 16;

/// Counts of leases for `terrace stat`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Files with a lease.
    pub held: u64,
    /// Files that a program has, or had a moment ago, open for writing.
    pub written: u64,
    /// Leases given back for an open.
    pub broken: u64,
    /// Times that the kernel gave no lease on a file: another user's, mostly.
    pub refused: u64,
}

/// Counters since the start.
#[derive(Debug, Default)]
struct Counters {
    broken: AtomicU64,
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct Files {
    by_id: HashMap<ObjectId, Arc<LeasedFile>>,
    by_fd: HashMap<RawFd, ObjectId>,
    /// Files that wait for a new lease.
    waiting: HashSet<ObjectId>,
    /// Start of the next check.
    hand: usize,
}

impl Files {
    fn insert(&mut self, file: Arc<LeasedFile>) {
        self.by_fd.insert(file.fd.as_raw_fd(), file.object.id());
        self.by_id.insert(file.object.id(), file);
    }
    fn remove(&mut self, id: ObjectId) -> Option<Arc<LeasedFile>> {
        let file = self.by_id.remove(&id)?;
        self.by_fd.remove(&file.fd.as_raw_fd());
        self.waiting.remove(&id);
        Some(file)
    }
}

/// The files in service.
#[derive(Debug)]
pub struct Leases {
    engine: Arc<Engine>,
    /// st_dev of the files that may be served.
    dev: u64,
    /// Most files at a time: each may cost two descriptors.
    files_max: usize,
    /// The futex word of the supervisor ([`holder_word`]).
    word: &'static AtomicU32,
    files: Mutex<Files>,
    /// Signalled when a file waits for its lease, and at the end.
    changed: Condvar,
    /// The thread that gives leases back.
    tid: OnceLock<i32>,
    clock: AtomicU64,
    counters: Counters,
    stopping: AtomicBool,
    before_resume: OnceLock<BeforeResume>,
}

/// Set-up of the owner before clients read memory again after a stop of this process.
struct BeforeResume(Box<dyn Fn() + Send + Sync>);

impl fmt::Debug for BeforeResume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BeforeResume")
    }
}

impl Leases {
    /// Serves at most `files_max` files of the device `dev`. `word`: the supervisor's, see [`holder_word`].
    pub fn new(engine: Arc<Engine>, dev: u64, files_max: usize, word: &'static AtomicU32) -> Leases {
        Leases {
            engine,
            dev,
            files_max: files_max.max(GIVE_UP_PART),
            word,
            files: Mutex::default(),
            changed: Condvar::new(),
            tid: OnceLock::new(),
            clock: AtomicU64::new(0),
            counters: Counters::default(),
            stopping: AtomicBool::new(false),
            before_resume: OnceLock::new(),
        }
    }

    /// Calls `f` before clients read memory again after a stop (SIGSTOP) of this process.
    pub(crate) fn before_resume(&self, f: impl Fn() + Send + Sync + 'static) {
        let _ = self.before_resume.set(BeforeResume(Box::new(f)));
    }

    /// Takes over a dead daemon's leases by their descriptors. Drops the pages of all other files before it
    /// closes a descriptor, and with it a lease.
    ///
    /// # Safety
    /// The caller passes ownership of the descriptors: no other code uses or closes them.
    pub unsafe fn take_over(&self, leased: impl IntoIterator<Item = RawFd>) {
        // SAFETY: by this function's contract the descriptors have no other owner.
        let fds: Vec<OwnedFd> = leased.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).collect();
        let mut given_up = Vec::new();
        for fd in fds {
            let fd = Arc::new(fd);
            let id = fstat(&fd).map_or(0, |st| st.st_ino);
            match self.engine.reattach_object(id, fd.clone()) {
                // The old daemon died during the break, or before its check of the pages under a new lease.
                Some(object) if object.is_slow() => given_up.push((Some(object), fd)),
                Some(object) => self.files.lock().insert(Arc::new(LeasedFile::new(fd, object))),
                None => given_up.push((None, fd)),
            }
        }
        tracing::warn!("restarted terraced took over the cache: {:?}", self.engine.recover_pages());
        for (object, _) in &given_up {
            if let Some(object) = object {
                let _ = self.engine.forget_object(object.id());
            }
        }
    }

    /// Gives leases back when they are broken, until [`Leases::stop`]. Calls `begun` once the set-up is done.
    pub fn run(&self, begun: impl FnOnce()) {
        fcntl::block();
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        // Files taken over: the signals of earlier breaks went to a dead thread.
        for file in self.all() {
            let _ = fcntl::tell(file.fd.as_fd(), tid);
        }
        let _ = self.tid.set(tid);
        self.check_all();
        holder_word::resume(self.word);
        begun();
        std::thread::scope(|scope| {
            // A separate thread: opens of other files must not wait while it drops a changed file's pages.
            let again = std::thread::Builder::new().name("leases".into());
            let again = again.spawn_scoped(scope, || self.ask_again(tid));
            if let Err(err) = &again {
                tracing::error!(
                    "the thread that renews leases cannot start ({err}): files written once stay uncached"
                );
            }
            while !self.stopping.load(Ordering::Acquire) {
                match fcntl::wait(LOOK_EVERY) {
                    fcntl::Wakeup::Break(fd) => self.broken(fd),
                    fcntl::Wakeup::Any => self.check_all(),
                    fcntl::Wakeup::Nothing => {}
                }
            }
        });
        holder_word::end(self.word);
        for file in self.all() {
            file.end();
        }
    }

    /// Body of the second thread: takes leases again after writers have gone, and checks all files regularly.
    fn ask_again(&self, tid: i32) {
        let mut looked = Instant::now();
        while !self.stopping.load(Ordering::Acquire) {
            self.wait_until_due(looked);
            self.try_again(tid);
            if looked.elapsed() >= LOOK_EVERY {
                looked = Instant::now();
                self.look();
            }
        }
    }

    /// Ends [`Leases::run`].
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        // Without the lock, the notification could come between the other thread's check and its wait.
        drop(self.files.lock());
        self.changed.notify_all();
        if let Some(&tid) = self.tid.get() {
            fcntl::wake(tid);
        }
    }

    /// Counts for `terrace stat`.
    pub fn counts(&self) -> Counts {
        let files = self.all();
        let held = files.iter().filter(|file| file.is_held()).count() as u64;
        Counts {
            held,
            written: files.len() as u64 - held,
            broken: self.counters.broken.load(Ordering::Relaxed),
            refused: self.counters.refused.load(Ordering::Relaxed),
        }
    }

    fn all(&self) -> Vec<Arc<LeasedFile>> {
        self.files.lock().by_id.values().cloned().collect()
    }

    fn broken(&self, fd: RawFd) {
        let file = {
            let files = self.files.lock();
            files.by_fd.get(&fd).and_then(|id| files.by_id.get(id)).cloned()
        };
        // A missing file is about to be inserted, with another check of its lease.
        if let Some(file) = file {
            self.break_lease(&file);
        }
    }

    fn break_lease(&self, file: &LeasedFile) {
        if file.break_lease() {
            self.files.lock().waiting.insert(file.object.id());
            self.changed.notify_all();
            self.counters.broken.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Gives back every lease that an open waits for: its signal may be lost.
    fn check_all(&self) {
        for file in self.all() {
            if file.is_held() && !fcntl::is_held(file.fd.as_fd()) {
                self.break_lease(&file);
            }
        }
    }

    /// Takes the files out of service that programs have open for writing. Their objects are slow.
    pub(crate) fn take_written(&self) -> Vec<(Arc<OwnedFd>, ObjectRef)> {
        let waiting = self.waiting().into_iter();
        waiting.filter(|file| file.end_if_written()).map(|file| self.release(&file)).collect()
    }

    /// The file of a descriptor, which is not in service by another way. It may be written.
    ///
    /// # Errors
    /// The file cannot be served.
    pub(crate) fn find_or_begin(&self, shown: BorrowedFd<'_>) -> Result<Arc<LeasedFile>, Errno> {
        let &tid = self.tid.get().ok_or(Errno::AGAIN)?;
        let id = fstat(shown)?.st_ino;
        let known = self.files.lock().by_id.get(&id).cloned();
        known.map_or_else(|| self.begin(shown, id, tid), Ok)
    }

    /// Takes a file out of service. Its object is slow.
    pub(crate) fn end(&self, file: &LeasedFile) -> (Arc<OwnedFd>, ObjectRef) {
        file.end();
        self.release(file)
    }

    fn release(&self, file: &LeasedFile) -> (Arc<OwnedFd>, ObjectRef) {
        self.files.lock().remove(file.object.id());
        (file.fd.clone(), file.object.clone())
    }

    /// Serves a file with a slow object once its lease can be taken.
    pub(crate) fn admit(&self, fd: Arc<OwnedFd>, object: ObjectRef) {
        let id = object.id();
        let mut files = self.files.lock();
        files.insert(Arc::new(LeasedFile::written(fd, object)));
        files.waiting.insert(id);
        self.changed.notify_all();
    }

    fn waiting(&self) -> Vec<Arc<LeasedFile>> {
        let files = self.files.lock();
        files.waiting.iter().filter_map(|id| files.by_id.get(id)).cloned().collect()
    }

    fn wait_until_due(&self, looked: Instant) {
        let mut files = self.files.lock();
        if self.stopping.load(Ordering::Acquire) {
            return;
        }
        let waiting = files.waiting.iter().filter_map(|id| files.by_id.get(id));
        let due = waiting.filter_map(|file| file.due()).min();
        let next = (looked + LOOK_EVERY).min(due.unwrap_or(looked + LOOK_EVERY));
        // At most a thousand attempts a second.
        let pause = next.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        self.changed.wait_for(&mut files, pause);
    }

    fn try_again(&self, tid: i32) {
        let now = Instant::now();
        for file in self.waiting() {
            if file.due().is_some_and(|due| due <= now) {
                file.try_again(&self.engine, tid);
            }
            // Under the lock: a thread that breaks the lease inserts the file into `waiting` after this.
            let mut files = self.files.lock();
            if file.due().is_none() {
                files.waiting.remove(&file.object.id());
            }
        }
    }

    /// Gives up deleted files, and finds changes that broke no lease. After a SIGSTOP of this process it
    /// checks all leases before clients read memory again.
    fn look(&self) {
        if holder_word::is_suspended(self.word) {
            let check = || {
                self.check_all();
                self.before_resume.get().into_iter().for_each(|before| before.0());
            };
            check();
            holder_word::resume(self.word);
            // For a second stop in between.
            check();
        }
        let some: Vec<_> = {
            let mut files = self.files.lock();
            let (n, from) = (files.by_id.len(), files.hand);
            files.hand = if from + LOOKS_MAX >= n { 0 } else { from + LOOKS_MAX };
            files.by_id.values().skip(from).take(LOOKS_MAX).cloned().collect()
        };
        for file in some {
            if fstat(&*file.fd).is_ok_and(|st| st.st_nlink == 0) {
                self.give_up(&file);
            } else if file.is_changed() {
                self.break_lease(&file);
            } else if file.is_held() && self.engine.announces_writes() {
                // After a reload: the tier keeps pages by identity.
                self.engine.renew_identity(&file.object, || file.is_held());
            }
        }
    }

    fn give_up(&self, file: &LeasedFile) {
        let id = file.object.id();
        file.end();
        self.files.lock().remove(id);
        let _ = self.engine.forget_object(id);
    }

    /// Makes room for one more file: gives up the files with the oldest requests.
    fn make_room(&self) {
        let mut files = self.all();
        if files.len() < self.files_max {
            return;
        }
        files.sort_by_key(|file| file.asked.load(Ordering::Relaxed));
        files.iter().take(files.len() / GIVE_UP_PART + 1).for_each(|file| self.give_up(file));
    }

    fn begin(&self, shown: BorrowedFd<'_>, id: ObjectId, tid: i32) -> Result<Arc<LeasedFile>, Errno> {
        self.make_room();
        let fd = Arc::new(reopen(shown)?);
        let leased = fcntl::take(fd.as_fd(), tid);
        let is_written = leased.as_ref().is_err_and(|err| err.kind() == io::ErrorKind::WouldBlock);
        if let Err(err) = leased
            && !is_written
        {
            if self.counters.refused.fetch_add(1, Ordering::Relaxed) == 0 {
                tracing::warn!(
                    "the kernel refuses a lease ({err}): it serves the file without terrace. Later refusals are not logged"
                );
            }
            return Err(Errno::from_io_error(&err).unwrap_or(Errno::IO));
        }
        let size = fstat(&fd)?.st_size as u64;
        let object = match is_written {
            true => self.engine.slow_object(id, fd.clone(), size),
            false => self.engine.object(id, fd.clone(), size),
        };
        let object = object.map_err(|err| Errno::from_io_error(&err).unwrap_or(Errno::IO))?;
        let file =
            Arc::new(if is_written { LeasedFile::written(fd, object) } else { LeasedFile::new(fd, object) });
        {
            let mut files = self.files.lock();
            files.insert(file.clone());
            if is_written {
                files.waiting.insert(id);
                self.changed.notify_all();
            }
        }
        if self.stopping.load(Ordering::Acquire) {
            file.end();
            return Err(Errno::AGAIN);
        }
        // The lease was broken before the insert: the signal found no file.
        if !is_written && !fcntl::is_held(file.fd.as_fd()) {
            self.break_lease(&file);
        }
        Ok(file)
    }
}

/// A new descriptor of the same file.
pub(crate) fn reopen(shown: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", shown.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match open(&path, flags | OFlags::NOATIME, Mode::empty()) {
        // O_NOATIME needs ownership.
        Err(Errno::PERM) => open(&path, flags, Mode::empty()),
        opened => opened,
    }
}

impl Serve for Leases {
    fn give_up(&self, _shown: BorrowedFd<'_>) -> Result<(), Errno> {
        // A lease shows each open for writing.
        Err(Errno::INVAL)
    }
    fn serve(&self, shown: BorrowedFd<'_>) -> Result<ObjectRef, Errno> {
        let st = fstat(shown)?;
        if st.st_dev != self.dev || FileType::from_raw_mode(st.st_mode) != FileType::RegularFile {
            return Err(Errno::XDEV);
        }
        let &tid = self.tid.get().filter(|_| !self.stopping.load(Ordering::Acquire)).ok_or(Errno::AGAIN)?;
        let known = self.files.lock().by_id.get(&st.st_ino).cloned();
        let file = match known {
            Some(file) => file,
            None => self.begin(shown, st.st_ino, tid)?,
        };
        if file.is_changed() {
            self.break_lease(&file);
        }
        file.note_asked(self.clock.fetch_add(1, Ordering::Relaxed));
        if file.is_held() || file.try_again(&self.engine, tid) {
            Ok(file.object.clone())
        } else {
            Err(Errno::BUSY)
        }
    }
}
