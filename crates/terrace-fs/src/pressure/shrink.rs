//! Making the kernel forget inodes that nobody uses.
//!
//! The kernel keeps names, and with them inodes, as long as it has memory; each costs us a descriptor and, once opened, an
//! object of the page cache, and there are limits on those. Above a mark, new names are given no time to live, so that they go as soon as their last user does, and a
//! thread asks the kernel to drop old ones, those longest unused first (second chance: a lookup or an open marks an
//! inode, the hand takes the mark away and comes back).
//!
//! Descriptors that can be had again are a cache: those of data are given up, and resting inodes dropped, by the request that finds none left
//! ([`Namespace::with_room`]). Where only the kernel can help, the request waits, on a thread that answers nothing else: the
//! FORGETs and RELEASEs that make room must be answered meanwhile. A program meets EMFILE only if nothing was to be had for
//! a long time, and the log says so.
//!
//! The kernel forgets for reasons of its own, too: under pressure for memory, the usual state of our users' machines. An inode
//! of which something is cached then *rests*: it stays in the table as if it were known. The same thread drops resting inodes when there is
//! nothing left to keep, and, the longest unused first, when the tables become crowded.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::heap::{Freed, give_heap_back};
use super::{MAY_WAIT, PATIENCE, QUIET, limits};
use crate::coherence;
use crate::error::{Error, Result};
use crate::inode::ROOT;
use crate::namespace::Namespace;
use crate::page_cache::{CachedFile, PageCache};

/// How often the shrinker looks around where nothing calls it.
const ROUND: Duration = Duration::from_secs(1);
/// Inodes asked for at a time.
const BATCH: usize = 512;
/// Resting inodes looked at in one round of a second: a stat and a look into the index each. A few more, the rest of a shard.
const SWEEP_MAX: usize = 4096;
/// Inodes of any kind that are looked at in one round to find those, while there is no hurry.
const VISITS_MAX: usize = 16 * SWEEP_MAX;

impl<C: PageCache> Namespace<C> {
    /// Says how many threads answer requests.
    pub fn set_threads(&self, threads: usize) {
        self.pressure.waiters_max.store(threads.saturating_sub(2).max(threads / 2), Ordering::Relaxed);
    }

    /// Says that this thread answers no request that another may wait for, now one that was asked at this time: it may wait for descriptors.
    pub fn may_wait(asked: Instant) {
        MAY_WAIT.set(Some(asked));
    }

    /// Are descriptors or places in the tables so few that a request that needs one may have to wait?
    pub fn is_short(&self) -> bool {
        self.pressure.is_short(self.inodes.len())
            || self.inodes.len() >= self.inodes.max() / 8 * 7
            || self.handles.len() >= self.handles.max() / 8 * 7
    }

    /// Runs `open`, or anything that may open something, again while there is no room for it: what can be had again is given up, and then
    /// the kernel is waited for. Nothing may have been done when `open` fails so. The caller holds no lock of an inode: whoever makes room may need it.
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
            if !self.find_room(began, &mut gave_up) || began.elapsed() > PATIENCE {
                if !QUIET.get() {
                    self.tell_shortage(&error);
                }
                return Err(error);
            }
        }
    }

    /// Runs `act`; if `quiet`, the log is not told of a shortage that it meets, for the caller begins it again.
    pub(crate) fn quietly<T>(&self, quiet: bool, act: impl FnOnce() -> T) -> T {
        QUIET.set(quiet);
        let done = act();
        QUIET.set(false);
        done
    }

    /// Tells the log, from time to time, that a program gets this error.
    pub(crate) fn tell_shortage(&self, error: &Error) {
        if self.pressure.is_to_be_told() {
            let (inodes, handles) = (self.inodes.len(), self.handles.len());
            tracing::warn!(
                "{error}: programs get this error; {inodes} inodes are known, {handles} open handles; raise the limit of open \
                 files before the mount (`ulimit -n`, LimitNOFILE= of a unit) or limits.inodes_max"
            );
        }
    }

    /// Makes room, or waits a little for it. Sweeping writes back, and looks at every inode: so a thread that answers requests has the shrinker do
    /// that. Only where it may not wait either does it close what can be closed at once, one time, rather than fail.
    fn find_room(&self, began: Instant, gave_up: &mut bool) -> bool {
        if self.pressure.answers_requests() {
            self.pressure.ask_for_data();
            self.pressure.wait(began) || !std::mem::replace(gave_up, true) && self.give_up_data() > 0
        } else {
            self.give_up_data() > 0 || self.sweep(true) || self.pressure.wait(began)
        }
    }

    /// Closes data descriptors that are opened again where they are needed: those of files that nobody reads or writes at this moment.
    /// How many?
    pub(crate) fn give_up_data(&self) -> usize {
        if self.bound_by_modes {
            return 0; // The mode may forbid to open them again.
        }
        let mut open = Vec::new();
        for part in 0..self.inodes.shards() {
            self.inodes.visit(part, |inode| {
                let life = inode.life.try_lock();
                if life.is_some_and(|life| life.object.as_ref().is_some_and(|o| o.source().data_held() > 0)) {
                    open.push(inode.clone());
                }
            });
        }
        open.iter().filter_map(|inode| inode.life.try_lock().map(|life| inode.close_data(&life))).sum()
    }

    /// Asks the kernel to forget unused inodes whenever there are too many. Returns after `end_shrinking`.
    pub fn shrink_loop(&self) {
        let pressure = &self.pressure;
        let (mut freed, mut looked) = (Freed::default(), Instant::now());
        pressure.announce_shrinker();
        while !pressure.ended.load(Ordering::Acquire) {
            if looked.elapsed() >= ROUND {
                looked = Instant::now();
                self.forget_deleted();
                if freed.is_much(self.inodes.len()) {
                    give_heap_back();
                }
            }
            if pressure.data_asked_for.swap(false, Ordering::AcqRel) {
                self.give_up_data();
            }
            let high = pressure.is_high(self.inodes.len());
            let crowded = high || pressure.is_crowded(self.inodes.len());
            if self.sweep(crowded) && crowded || high && self.shrink() {
                continue;
            }
            pressure.bell.wait_for(&mut pressure.waiting.lock(), ROUND);
        }
    }

    /// Ends `shrink_loop`.
    pub fn end_shrinking(&self) {
        let _names = self.pressure.names.lock();
        self.pressure.ended.store(true, Ordering::Release);
        self.pressure.shrinks.store(false, Ordering::Release);
        self.pressure.bell.notify_all();
        self.pressure.names_bell.notify_all();
    }

    /// Drops resting inodes of which nothing is cached any more, or whose last name has gone, behind the mount's back; in a crowded
    /// table also those that were not used since the last time. Looks at a bounded number. Is there anything to do at once?
    pub(crate) fn sweep(&self, crowded: bool) -> bool {
        #[cfg(test)]
        super::SWEPT_HERE.set(true);
        let (mut resting, mut written, mut visits) = (Vec::new(), Vec::new(), 0);
        let closes = self.bound_by_modes && !self.paging.is_blind(coherence::now());
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
        // It was needed when the last writer went, and may be so no longer.
        for inode in written {
            inode.life.try_lock().iter().for_each(|life| inode.close_writer(life));
        }
        let (mut dropped, mut aged) = (false, false);
        for inode in resting {
            // The thread that holds it may be in here as well, for want of a descriptor.
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

    /// One round; was there anything to ask for?
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
        // The forgets come in as requests of their own.
        std::thread::sleep(Duration::from_millis(1));
        self.pressure.newest.store(limits::descriptors_used(root.fd()), Ordering::Relaxed);
        true
    }

    /// Waits until an inode that is about to be made can be opened. Once it is made, it is too late to refuse.
    pub(crate) fn make_room(&self, any: BorrowedFd<'_>) -> Result<()> {
        match self.pressure.is_high(self.inodes.len()) {
            true => {
                self.with_room(|| self.pressure.admit(rustix::io::fcntl_dupfd_cloexec(any, 0)?)).map(drop)
            }
            false => Ok(()),
        }
    }

    /// Up to `want` inodes that nobody has open and that were not looked up for a while.
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
