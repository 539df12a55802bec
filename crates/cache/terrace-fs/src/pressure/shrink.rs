//! Makes the kernel forget unused inodes, and closes descriptors that can be reopened.
//!
//! The kernel keeps names, and with them inodes, as long as it has memory. Each costs the daemon a descriptor
//! and, once opened, an object of the page cache; both have limits. Above a mark, new names get a lifetime of
//! 0, so that the kernel forgets them after their last use. A thread prunes old names,
//! longest unused first. (Second chance: a lookup or an open marks an inode, the hand clears the mark and
//! comes back.)
//!
//! Descriptors that can be reopened are a cache. A request that finds none left closes data descriptors and
//! drops resting inodes ([`Namespace::with_room`]). If only the kernel can help, the request waits on a
//! thread without other requests. Others answer the FORGETs and RELEASEs that make room. A program gets
//! EMFILE only after a long shortage, which is logged.
//!
//! The kernel also forgets under memory pressure, which is common on the machines that terrace is made for.
//! An inode with cached content then *rests*: it stays in the table as if it were known. The same thread
//! drops resting inodes when no content is left. When the tables become crowded it drops the longest unused
//! first.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::heap::{FreedEntries, give_heap_back};
use super::{DESCRIPTOR_WAIT_MAX, MAY_WAIT, NOT_LOGGED, limits};
use crate::coherence;
use crate::error::{Error, Result};
use crate::inode::ROOT;
use crate::namespace::Namespace;
use crate::page_cache::{CachedFile, PageCache};

/// Interval of the shrinker's rounds without a wake-up.
const ROUND: Duration = Duration::from_secs(1);
/// Inodes in one prune request.
const BATCH: usize = 512;
/// Resting inodes checked in one round of a second: a stat and a look into the index each. A few more may
/// come from the rest of a shard.
const SWEEP_MAX: usize = 4096;
/// Inodes of any kind visited in one round to find those, while the table is not crowded.
const VISITS_MAX: usize = 16 * SWEEP_MAX;

impl<C: PageCache> Namespace<C> {
    /// Sets the number of threads that answer requests.
    pub(crate) fn set_threads(&self, threads: usize) {
        self.pressure.waiters_max.store(threads.saturating_sub(2).max(threads / 2), Ordering::Relaxed);
    }

    /// Declares that no other request waits for this thread, so the thread may wait for descriptors.
    /// `requested_at`: time of the present request.
    pub fn may_wait(requested_at: Instant) {
        MAY_WAIT.set(Some(requested_at));
    }

    /// Whether requests may have to wait for descriptors or table slots.
    pub(crate) fn is_short(&self) -> bool {
        self.pressure.is_short(self.inodes.len())
            || self.inodes.len() >= self.inodes.max() / 8 * 7
            || self.handles.len() >= self.handles.max() / 8 * 7
    }

    /// Runs `open` again as long as it meets a shortage. Between tries, descriptors that can be reopened are
    /// closed, then the kernel is waited for. `open` must have changed nothing when it fails so. The caller
    /// holds no lock of an inode, since making room may need it.
    pub(crate) fn with_room<T, E: Into<Error>>(
        &self,
        mut open: impl FnMut() -> std::result::Result<T, E>,
    ) -> Result<T> {
        let (mut began, mut gave_up) = (None, false);
        loop {
            let error = match open().map_err(Into::into) {
                Err(error) if error.is_shortage() => error,
                result => return result,
            };
            let began = *began.get_or_insert_with(|| MAY_WAIT.get().unwrap_or_else(Instant::now));
            if !self.find_room(began, &mut gave_up) || began.elapsed() > DESCRIPTOR_WAIT_MAX {
                if !NOT_LOGGED.get() {
                    self.log_shortage(&error);
                }
                return Err(error);
            }
        }
    }

    /// Runs `act`. If `quiet`, a shortage that it meets is not logged, since the caller repeats it.
    pub(crate) fn without_log<T>(&self, quiet: bool, act: impl FnOnce() -> T) -> T {
        NOT_LOGGED.set(quiet);
        let done = act();
        NOT_LOGGED.set(false);
        done
    }

    /// Logs, at intervals, that a program gets this error.
    pub(crate) fn log_shortage(&self, error: &Error) {
        if self.pressure.should_log_shortage() {
            let (inodes, handles) = (self.inodes.len(), self.handles.len());
            tracing::warn!(
                "{error}: programs get this error; {inodes} inodes are known, {handles} open handles; raise the limit of open \
                 files before the mount (`ulimit -n`, LimitNOFILE= of a unit) or limits.inodes_max"
            );
        }
    }

    /// Makes room, or waits a little for it. A sweep writes back and visits every inode, so a thread that
    /// answers requests leaves it to the shrinker. If such a thread may not wait either, it closes data
    /// descriptors once before it fails.
    fn find_room(&self, began: Instant, gave_up: &mut bool) -> bool {
        if self.pressure.answers_requests() {
            self.pressure.request_data_close();
            self.pressure.wait(began)
                || !std::mem::replace(gave_up, true) && self.close_data_descriptors() > 0
        } else {
            self.close_data_descriptors() > 0 || self.sweep(true) || self.pressure.wait(began)
        }
    }

    /// Closes data descriptors of files that are not read or written at this moment; the next use reopens
    /// them. Returns their number.
    pub(crate) fn close_data_descriptors(&self) -> usize {
        if self.bound_by_modes {
            return 0; // The mode may forbid reopening.
        }
        let mut open = Vec::new();
        for part in 0..self.inodes.shards() {
            self.inodes.visit(part, |inode| {
                let life = inode.life.try_lock();
                if life.is_some_and(|life| {
                    life.object.as_ref().is_some_and(|o| o.source().data_descriptors_open() > 0)
                }) {
                    open.push(inode.clone());
                }
            });
        }
        open.iter().filter_map(|inode| inode.life.try_lock().map(|life| inode.close_data(&life))).sum()
    }

    /// Makes the kernel forget unused inodes when there are too many. Returns after `end_shrinking`.
    pub(crate) fn shrink_loop(&self) {
        let pressure = &self.pressure;
        let (mut freed, mut looked) = (FreedEntries::default(), Instant::now());
        pressure.announce_shrinker();
        while !pressure.ended.load(Ordering::Acquire) {
            if looked.elapsed() >= ROUND {
                looked = Instant::now();
                self.forget_deleted();
                if freed.is_much(self.inodes.len()) {
                    give_heap_back();
                }
            }
            if pressure.data_close_requested.swap(false, Ordering::AcqRel) {
                self.close_data_descriptors();
            }
            let high = pressure.is_high(self.inodes.len());
            let crowded = high || pressure.is_filling(self.inodes.len());
            if self.sweep(crowded) && crowded || high && self.shrink() {
                continue;
            }
            pressure.shrinker_wakeup.wait_for(&mut pressure.waiting.lock(), ROUND);
        }
    }

    pub(crate) fn end_shrinking(&self) {
        let _names = self.pressure.names.lock();
        self.pressure.ended.store(true, Ordering::Release);
        self.pressure.shrinks.store(false, Ordering::Release);
        self.pressure.shrinker_wakeup.notify_all();
        self.pressure.names_added.notify_all();
    }

    /// Drops resting inodes without cached content, and those that lost their last name behind the mount.
    /// In a crowded table it also drops those unused since the last sweep. Visits a bounded number. Returns
    /// true if it dropped any or must come again.
    pub(crate) fn sweep(&self, crowded: bool) -> bool {
        #[cfg(test)]
        super::SWEPT_HERE.set(true);
        let (mut resting, mut written, mut visits) = (Vec::new(), Vec::new(), 0);
        let closes = self.bound_by_modes && !self.recent_reads.is_blind(coherence::now());
        for _ in 0..self.inodes.shards() {
            let hand = self.pressure.swept.fetch_add(1, Ordering::Relaxed);
            self.inodes.visit(hand, |inode| {
                visits += 1;
                match inode.life.try_lock() {
                    Some(life) if inode.is_forgotten(&life) => resting.push(inode.clone()),
                    Some(life) if closes && life.writers == 0 && inode.noted_writer() >= 0 => {
                        written.push(inode.clone());
                    }
                    _ => {}
                }
            });
            if resting.len() >= SWEEP_MAX || !crowded && visits >= VISITS_MAX {
                break;
            }
        }
        // Needed at the last writer's close, and perhaps not any more.
        for inode in written {
            inode.life.try_lock().iter().for_each(|life| inode.close_writer(life));
        }
        let (mut dropped, mut aged) = (false, false);
        for inode in resting {
            // The lock's holder may be in this function too, because of the same shortage.
            let Some(life) = inode.life.try_lock() else { continue };
            let used = crowded && inode.used.swap(false, Ordering::Relaxed);
            aged |= used;
            if inode.is_forgotten(&life) && !((used || !crowded) && self.rest(&inode, &life)) {
                dropped |= self.retire(&inode, life);
            }
        }
        if dropped && let Ok(root) = self.inode(ROOT) {
            self.pressure.newest.store(limits::descriptors_used(root.fd()), Ordering::Relaxed);
        }
        dropped || aged
    }

    /// One round. Returns whether there was anything to prune.
    fn shrink(&self) -> bool {
        let Ok(root) = self.inode(ROOT) else { return false };
        let (Some(kernel), unused) = (self.kernel.get(), self.unused(BATCH)) else { return false };
        if unused.is_empty() {
            return false;
        }
        if !kernel.prune(&unused) {
            // Before Linux 6.18: name by name.
            let names: Vec<_> = unused.iter().filter_map(|&nodeid| self.name_of(&root, nodeid)).collect();
            self.list_names(names);
        }
        // The FORGETs arrive as separate requests.
        std::thread::sleep(Duration::from_millis(1));
        self.pressure.newest.store(limits::descriptors_used(root.fd()), Ordering::Relaxed);
        true
    }

    /// Waits until a descriptor for a new inode is available. After its creation a refusal would be too late.
    pub(crate) fn make_room(&self, any: BorrowedFd<'_>) -> Result<()> {
        match self.pressure.is_high(self.inodes.len()) {
            true => {
                self.with_room(|| self.pressure.admit(rustix::io::fcntl_dupfd_cloexec(any, 0)?)).map(drop)
            }
            false => Ok(()),
        }
    }

    /// Up to `want` inodes without handles and without recent lookups.
    pub(crate) fn unused(&self, want: usize) -> Vec<u64> {
        let mut found = Vec::with_capacity(want);
        for _ in 0..2 * self.inodes.shards() {
            let hand = self.pressure.hand.fetch_add(1, Ordering::Relaxed);
            self.inodes.visit(hand, |inode| {
                let idle =
                    inode.nodeid != ROOT && inode.life.try_lock().is_some_and(|life| life.handles == 0);
                if idle && !inode.used.swap(false, Ordering::Relaxed) {
                    found.push(inode.nodeid);
                }
            });
            if found.len() >= want {
                break;
            }
        }
        found
    }
}
