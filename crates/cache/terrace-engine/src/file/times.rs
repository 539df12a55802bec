//! Times of an object.
//!
//! The slot holds mtime and ctime of the last write, so that an acknowledged utimens survives a crash of
//! terraced. After writeback, the source gets this mtime in place of the writeback's own.

use crate::file::object::Object;
use crate::file::source::times_of;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};
use std::sync::atomic::{AtomicU64, Ordering};
use terrace_shm::layout::{TIMES_KNOWN, TIMES_RESTORE};

/// Coarsest granularity of a file system's times: FAT's, ns.
const COARSEST_NS: i64 = 2_000_000_000;

impl Object {
    /// mtime and ctime (ns since 1970) where the cache's are newer than the source's.
    pub fn times(&self) -> Option<(i64, i64)> {
        let _times = self.times.lock();
        self.known_times()
    }
    fn known_times(&self) -> Option<(i64, i64)> {
        let slot = self.slot();
        let known = slot.times_known.load(Ordering::Acquire) & TIMES_KNOWN != 0;
        let time = |t: &AtomicU64| t.load(Ordering::Relaxed).cast_signed();
        known.then(|| (time(&slot.mtime), time(&slot.ctime)))
    }
    /// Sets the times, then the flag that they are valid. The caller holds the lock `times`.
    fn set_times(&self, (mtime, ctime): (i64, i64), restore: bool) {
        let slot = self.slot();
        slot.mtime.store(mtime.cast_unsigned(), Ordering::Relaxed);
        slot.ctime.store(ctime.cast_unsigned(), Ordering::Relaxed);
        slot.times_known.store(TIMES_KNOWN | if restore { TIMES_RESTORE } else { 0 }, Ordering::Release);
    }
    /// Whether the source still lacks the mtime of a write.
    pub(crate) fn restore_due(&self) -> bool {
        self.slot().times_known.load(Ordering::Relaxed) & TIMES_RESTORE != 0
    }

    /// Notes a write by a program at `now`.
    pub(crate) fn note_write(&self, now: i64) {
        let _times = self.times.lock();
        self.set_times((now, now), true);
    }
    /// Notes an mtime set through the mount. The source has it already, unless a writeback has just restored
    /// the old one.
    pub fn adopt_mtime(&self, mtime: i64) {
        let times = self.times.lock();
        let Some((_, ctime)) = self.known_times() else { return };
        self.set_times((mtime, ctime), true);
        drop(times);
        self.restore_times();
    }
    /// Notes a change of metadata through the mount (chmod, link, ...): the source's ctime is the newest.
    pub fn adopt_ctime(&self) {
        let _times = self.times.lock();
        if let (Some((mtime, _)), Some((_, ctime))) = (self.known_times(), self.source().times()) {
            self.set_times((mtime, ctime), self.restore_due());
        }
    }
    /// Notes a change of the source itself (fallocate, ...): its times are the newest.
    pub(crate) fn adopt_times(&self) {
        let _times = self.times.lock();
        if let (Some(_), Some(newest)) = (self.known_times(), self.source().times()) {
            self.set_times(newest, self.restore_due());
        }
    }

    /// After a writeback: gives the source the mtime of the write instead of that of the writeback.
    pub(crate) fn restore_times(&self) {
        let _times = self.times.lock();
        let Some((mtime, ctime)) = self.known_times().filter(|_| self.restore_due()) else { return };
        if let Err(e) = self.set_mtime_of_source(mtime) {
            tracing::debug!("object {}: mtime not restored: {e}", self.id());
        }
        // A file system with coarse times truncates them. A larger difference is another program's change.
        let cut = |actual: &i64| (0..COARSEST_NS).contains(&(mtime - actual));
        let actual = self.source().times().map(|(actual, _)| actual).filter(cut);
        self.set_times((actual.unwrap_or(mtime), ctime), self.dirty_pages() > 0);
    }

    /// Notes a second writeback of written pages, after which the mtime must be restored again.
    pub(crate) fn note_second_writeback(&self) {
        let _times = self.times.lock();
        if let Some(times) = self.known_times()
            && self.dirty_pages() > 0
        {
            self.set_times(times, true);
        }
    }

    /// Whether another program has changed the source since its mtime was restored after a writeback; `stat`:
    /// the present state. (Also true if the mtime could not be restored, as for a file of another owner.)
    pub fn is_changed_behind(&self, stat: &rustix::fs::Stat) -> bool {
        let _times = self.times.lock();
        let (newest, _) = times_of(stat);
        let resized = stat.st_size as u64 != self.size();
        self.known_times().is_some_and(|(mtime, _)| !self.restore_due() && (newest != mtime || resized))
    }

    /// Gives the source's file a new ctime and changes nothing else.
    pub(crate) fn renew_ctime(&self) -> std::io::Result<()> {
        let _times = self.times.lock();
        let (mtime, _) = times_of(&self.source().stat()?);
        self.set_mtime_of_source(mtime)
    }

    /// By path, because a descriptor for writing may be missing.
    fn set_mtime_of_source(&self, mtime: i64) -> std::io::Result<()> {
        let time =
            Timespec { tv_sec: mtime.div_euclid(1_000_000_000), tv_nsec: mtime.rem_euclid(1_000_000_000) };
        let omit = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
        let times = Timestamps { last_access: omit, last_modification: time };
        Ok(rustix::fs::utimensat(CWD, self.source().proc_path(), &times, AtFlags::empty())?)
    }
}
