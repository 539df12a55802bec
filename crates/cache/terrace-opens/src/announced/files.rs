//! These files are served from memory while programs of `terrace run` write and announce each write.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Stat, fstat};
use rustix::io::Errno;
use terrace_engine::{Engine, ObjectId, ObjectRef, Serve};
use terrace_sync::{Condvar, Mutex};

use super::file::{AnnouncedFile, Found};
use crate::lease::{holder_word, reopen};

/// Interval of looks at some files.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Time for the last identities: a change must be 20 ms old, and records of dead processes are found after 100 ms.
const IDENTIFY_WITHIN: Duration = Duration::from_millis(300);
/// Files of one look.
const LOOKS_MAX: usize = 64;
/// Share of the files that are given up together when the table is full.
const GIVE_UP_PART: usize = 16;

/// Counts for `terrace stat`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Files read from memory.
    pub served: u64,
    /// Files that the kernel serves, after a change without an announcement.
    pub left: u64,
    /// Changes without an announcement so far.
    pub unannounced: u64,
}

#[derive(Debug, Default)]
struct Files {
    by_id: BTreeMap<ObjectId, Arc<AnnouncedFile>>,
    /// Where the next look begins.
    hand: usize,
}

/// The files in service.
#[derive(Debug)]
pub struct AnnouncedFiles {
    engine: Arc<Engine>,
    /// st_dev of the files that may be served.
    dev: u64,
    files_max: usize,
    /// The futex word of the supervisor ([`holder_word`]); None: the leases have it.
    word: Option<&'static AtomicU32>,
    files: Mutex<Files>,
    /// Signalled at the end.
    ended: Condvar,
    clock: AtomicU64,
    unannounced: AtomicU64,
    stopping: AtomicBool,
}

impl AnnouncedFiles {
    /// Serves at most `files_max` files of the device `dev`. `word`: the supervisor's, see [`holder_word`].
    pub fn new(
        engine: Arc<Engine>,
        dev: u64,
        files_max: usize,
        word: Option<&'static AtomicU32>,
    ) -> AnnouncedFiles {
        AnnouncedFiles {
            engine,
            dev,
            files_max: files_max.max(GIVE_UP_PART),
            word,
            files: Mutex::default(),
            ended: Condvar::new(),
            clock: AtomicU64::new(0),
            unannounced: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
        }
    }

    /// Takes over a dead daemon's files by their descriptors. Only files with an identity keep their pages: others
    /// may have changed since.
    ///
    /// # Safety
    /// The caller passes ownership of the descriptors: no other code uses or closes them.
    pub unsafe fn take_over(&self, descriptors: impl IntoIterator<Item = RawFd>) {
        // SAFETY: by this function's contract the descriptors have no other owner.
        let fds: Vec<OwnedFd> =
            descriptors.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).collect();
        let mut found = Vec::new();
        for fd in fds {
            let Ok(st) = fstat(&fd) else { continue };
            let fd = Arc::new(fd);
            if let Some(object) = self.engine.reattach_object(st.st_ino, fd.clone()) {
                found.push((object, fd));
            }
        }
        tracing::warn!("restarted terraced took over the cache: {:?}", self.engine.recover_pages());
        for (object, fd) in found {
            let is_given_up = object.is_slow();
            object.set_slow(true);
            let _ = self.engine.reload_if_changed(&object);
            if let Ok(file) = AnnouncedFile::new(fd, object.clone()) {
                if is_given_up {
                    file.give_up();
                } else {
                    object.set_slow(false);
                }
                self.files.lock().by_id.insert(object.id(), Arc::new(file));
            }
        }
    }

    /// Looks at the files until [`AnnouncedFiles::stop`]. Calls `begun` once the set-up is done.
    pub fn run(&self, begun: impl FnOnce()) {
        self.word.map(holder_word::resume);
        begun();
        self.look_until_stopped(|| {});
    }

    /// Looks at the files, and calls `also` after each look, until [`AnnouncedFiles::stop`].
    pub(crate) fn look_until_stopped(&self, also: impl Fn()) {
        while !self.stopping.load(Ordering::Acquire) {
            let mut files = self.files.lock();
            self.ended.wait_for(&mut files, LOOK_EVERY);
            drop(files);
            self.look();
            also();
        }
        self.identify_all();
        self.word.map(holder_word::end);
        for file in self.all() {
            file.give_up();
        }
    }

    /// Waits a short while for the identities of files that programs have just written.
    fn identify_all(&self) {
        let (begun, mut left) = (Instant::now(), self.all());
        while self.engine.has_targets() && !left.is_empty() && begun.elapsed() < IDENTIFY_WITHIN {
            left.retain(|file| {
                self.look_at(file);
                file.is_served() && !file.is_identified()
            });
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Ends [`AnnouncedFiles::run`].
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        // Without the lock, the notification could come between the other thread's check and its wait.
        drop(self.files.lock());
        self.ended.notify_all();
    }

    /// Counts for `terrace stat`.
    pub fn counts(&self) -> Counts {
        let files = self.all();
        let served = files.iter().filter(|file| file.is_served()).count() as u64;
        let left = files.len() as u64 - served;
        Counts { served, left, unannounced: self.unannounced.load(Ordering::Relaxed) }
    }

    pub(super) fn get(&self, id: ObjectId) -> Option<Arc<AnnouncedFile>> {
        self.files.lock().by_id.get(&id).cloned()
    }

    pub(super) fn remove(&self, id: ObjectId) {
        self.files.lock().by_id.remove(&id);
    }

    /// Adds a file with a slow object. The kernel serves it until a suspicion is refuted.
    pub(super) fn adopt(&self, fd: Arc<OwnedFd>, object: ObjectRef) -> std::io::Result<Arc<AnnouncedFile>> {
        self.make_room();
        let id = object.id();
        let file = Arc::new(AnnouncedFile::new(fd, object)?);
        file.suspect_all();
        file.object.set_watched(true);
        self.files.lock().by_id.insert(id, file.clone());
        Ok(file)
    }

    pub(super) fn all(&self) -> Vec<Arc<AnnouncedFile>> {
        self.files.lock().by_id.values().cloned().collect()
    }

    /// Drops deleted files, and finds changes without an announcement.
    fn look(&self) {
        let is_first = self.word.is_some_and(holder_word::is_suspended);
        let some: Vec<_> = {
            let mut files = self.files.lock();
            let (n, from) = (files.by_id.len(), files.hand);
            // After a SIGSTOP of this process, all files are checked before clients read memory again.
            let (from, count) = if is_first { (0, n) } else { (from, LOOKS_MAX) };
            files.hand = if from + count >= n { 0 } else { from + count };
            files.by_id.values().skip(from).take(count).cloned().collect()
        };
        for file in some {
            if fstat(&*file.fd).is_ok_and(|st| st.st_nlink == 0) {
                self.drop_file(&file);
            } else {
                self.look_at(&file);
            }
        }
        if is_first {
            self.word.map(holder_word::resume);
        }
    }

    fn look_at(&self, file: &AnnouncedFile) {
        if file.look(&self.engine) == Found::Unannounced
            && self.unannounced.fetch_add(1, Ordering::Relaxed) == 0
        {
            tracing::warn!(
                "a program changed inode {} without the preload library: the kernel serves the file for a while. \
                 Run all writers below `terrace run`; further changes are not logged",
                file.object.id()
            );
        }
    }

    /// Under the lock: the object's slot may be another file's afterwards.
    fn drop_file(&self, file: &Arc<AnnouncedFile>) {
        let id = file.object.id();
        let mut files = self.files.lock();
        if files.by_id.get(&id).is_some_and(|known| Arc::ptr_eq(known, file)) {
            file.give_up();
            files.by_id.remove(&id);
            let _ = self.engine.forget_object(id);
        }
    }

    /// Makes room for one more file: drops the files with the oldest requests. Given-up files stay.
    fn make_room(&self) {
        let mut files = self.all();
        if files.len() < self.files_max {
            return;
        }
        files.retain(|file| file.is_served());
        files.sort_by_key(|file| file.requested.load(Ordering::Relaxed));
        files.iter().take(files.len() / GIVE_UP_PART + 1).for_each(|file| self.drop_file(file));
    }

    /// The object, if the file is served at the moment.
    pub(super) fn object_of(&self, file: &AnnouncedFile) -> Result<ObjectRef, Errno> {
        file.note_request(self.clock.fetch_add(1, Ordering::Relaxed));
        if file.is_served() { Ok(file.object.clone()) } else { Err(Errno::BUSY) }
    }

    /// The file of a client's descriptor, added to the served ones if it is new.
    fn find(&self, shown: BorrowedFd<'_>) -> Result<Arc<AnnouncedFile>, Errno> {
        let st: Stat = fstat(shown)?;
        if st.st_dev != self.dev || FileType::from_raw_mode(st.st_mode) != FileType::RegularFile {
            return Err(Errno::XDEV);
        }
        // Without a name: its number may soon be another file's.
        if st.st_nlink == 0 {
            return Err(Errno::STALE);
        }
        if self.stopping.load(Ordering::Acquire) {
            return Err(Errno::AGAIN);
        }
        if let Some(file) = self.files.lock().by_id.get(&st.st_ino) {
            return Ok(file.clone());
        }
        self.make_room();
        let fd = Arc::new(reopen(shown)?);
        let errno = |err: std::io::Error| Errno::from_io_error(&err).unwrap_or(Errno::IO);
        let mut files = self.files.lock();
        if let Some(file) = files.by_id.get(&st.st_ino) {
            return Ok(file.clone());
        }
        // Clients find the object by themselves. A write that was applied before it existed may have changed content
        // and size.
        let object = self.engine.slow_object(st.st_ino, fd.clone(), st.st_size as u64).map_err(errno)?;
        self.engine.reload_if_changed(&object).map_err(errno)?;
        object.set_slow(false);
        let file = Arc::new(AnnouncedFile::new(fd, object).map_err(errno)?);
        files.by_id.insert(st.st_ino, file.clone());
        Ok(file)
    }
}

impl Serve for AnnouncedFiles {
    fn serve(&self, shown: BorrowedFd<'_>) -> Result<ObjectRef, Errno> {
        let file = self.find(shown)?;
        self.object_of(&file)
    }

    fn give_up(&self, shown: BorrowedFd<'_>) -> Result<(), Errno> {
        let file = self.find(shown)?;
        let files = self.files.lock();
        if files.by_id.get(&file.object.id()).is_some_and(|known| Arc::ptr_eq(known, &file)) {
            file.give_up();
        }
        Ok(())
    }
}

/// Descriptors of served files, as a dead daemon has left them: one a file.
pub fn descriptors(engine_has: impl Fn(ObjectId) -> bool, dev: u64, open: &[RawFd]) -> Vec<RawFd> {
    let mut found = BTreeMap::new();
    for &fd in open {
        // SAFETY: listed as open just now, and no other thread of this process opens or closes descriptors.
        let Ok(st) = fstat(unsafe { BorrowedFd::borrow_raw(fd) }) else { continue };
        let is_file = FileType::from_raw_mode(st.st_mode) == FileType::RegularFile;
        if st.st_dev == dev && is_file && engine_has(st.st_ino) {
            found.entry(st.st_ino).or_insert(fd);
        }
    }
    found.into_values().collect()
}
