//! Making the kernel forget inodes that nobody uses.
//!
//! The kernel keeps names, and with them inodes, as long as it has memory; each costs us a descriptor and, once opened, an
//! object of the page cache, and there are limits on those. Above a mark, new names are given no time to live, so that they go as soon as their last user does, and a
//! thread asks the kernel to drop old ones, those longest unused first (second chance: a lookup or an open marks an
//! inode, the hand takes the mark away and comes back).
//!
//! The kernel forgets for reasons of its own, too: under pressure for memory, the usual state of our users' machines. An inode
//! of which something is cached then *rests*: it stays in the table as if it were known. The same thread drops resting inodes when there is
//! nothing left to keep, and, the longest unused first, when the tables become crowded.

use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use super::error::{Error, Result};
use super::inode::{Inode, ROOT};
use super::lookup::stat_name;
use super::{Namespace, PageCache, limits};

/// How long a request waits for a descriptor: this, so often.
const WAIT: Duration = Duration::from_millis(2);
const WAITS_MAX: usize = 500;

/// Inodes asked for at a time.
const BATCH: usize = 512;
/// Resting inodes looked at in one round of a second: a stat and a look into the index each. A few more, the rest of a shard.
const SWEEP_MAX: usize = 4096;
/// Inodes of any kind that are looked at in one round to find those, while there is no hurry.
const VISITS_MAX: usize = 16 * SWEEP_MAX;

/// How full the tables are, and who waits for it.
#[derive(Debug)]
pub(crate) struct Pressure {
    /// Number of the descriptor opened last; as good as a count, since the kernel gives the lowest that is free.
    newest: AtomicU64,
    descriptors_mark: u64,
    inodes_mark: usize,
    /// Inodes that have an object.
    objects: AtomicUsize,
    objects_mark: usize,
    hand: AtomicUsize,
    /// The hand of `sweep`.
    swept: AtomicUsize,
    /// Threads that wait for room, and how many may: the others must answer the forgets that make it.
    waiters: AtomicUsize,
    waiters_max: AtomicUsize,
    ended: AtomicBool,
    waiting: Mutex<()>,
    bell: Condvar,
}

impl Pressure {
    /// The marks are three quarters of what there is; half of it for objects, whose table is open-addressed.
    pub(crate) fn new(inodes_max: usize, objects_max: usize, descriptors_max: u64) -> Self {
        Self {
            newest: AtomicU64::new(0),
            descriptors_mark: descriptors_max / 4 * 3,
            inodes_mark: inodes_max / 4 * 3,
            objects: AtomicUsize::new(0),
            objects_mark: objects_max / 2,
            hand: AtomicUsize::new(0),
            swept: AtomicUsize::new(0),
            waiters: AtomicUsize::new(0),
            waiters_max: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
            waiting: Mutex::new(()),
            bell: Condvar::new(),
        }
    }

    /// A descriptor of this number was opened.
    pub(crate) fn opened(&self, number: i32) {
        self.newest.store(number as u64, Ordering::Relaxed);
        if number as u64 >= self.descriptors_mark {
            self.bell.notify_one();
        }
    }

    /// Waits a little for descriptors to be closed. False: enough others wait.
    fn wait(&self) -> bool {
        let others = self.waiters.fetch_add(1, Ordering::AcqRel);
        let may = others < self.waiters_max.load(Ordering::Relaxed);
        if may {
            self.newest.store(u64::MAX, Ordering::Relaxed);
            self.bell.notify_one();
            std::thread::sleep(WAIT);
        }
        self.waiters.fetch_sub(1, Ordering::AcqRel);
        may
    }

    /// Is there need to forget?
    pub(crate) fn is_high(&self, inodes: usize) -> bool {
        self.newest.load(Ordering::Relaxed) >= self.descriptors_mark
            || inodes >= self.inodes_mark
            || self.objects() >= self.objects_mark
    }

    /// Are the tables so full that forgotten inodes had better make room? At half of the marks, so that resting inodes never
    /// cause what [`Pressure::is_high`] does. An inode is a descriptor; the number of the newest one tells too little here, for
    /// inodes that go leave holes, and then it is low.
    pub(crate) fn is_crowded(&self, inodes: usize) -> bool {
        let inodes_mark = self.inodes_mark.min(usize::try_from(self.descriptors_mark).unwrap_or(usize::MAX));
        let crowded = inodes >= inodes_mark / 2 || self.objects() >= self.objects_mark / 2;
        if crowded {
            self.bell.notify_one();
        }
        crowded
    }

    /// Inodes that have an object.
    pub(crate) fn objects(&self) -> usize {
        self.objects.load(Ordering::Relaxed)
    }

    /// An inode was given an object.
    pub(crate) fn object_made(&self) {
        if self.objects.fetch_add(1, Ordering::Relaxed) >= self.objects_mark {
            self.bell.notify_one();
        }
    }

    /// An inode's object is gone.
    pub(crate) fn object_gone(&self) {
        self.objects.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<C: PageCache> Namespace<C> {
    /// Says how many threads answer requests.
    pub fn set_threads(&self, threads: usize) {
        self.pressure.waiters_max.store(threads / 2, Ordering::Relaxed);
    }

    /// Runs `open`, or anything that may open something, again if need be while descriptors are short: some are always about
    /// to be given back. Nothing may have been done when it fails so.
    pub(crate) fn with_room<T, E: Into<Error>>(
        &self,
        mut open: impl FnMut() -> std::result::Result<T, E>,
    ) -> Result<T> {
        for _ in 0..WAITS_MAX {
            match open().map_err(Into::into) {
                Err(error) if (error.is(Errno::MFILE) || error.is(Errno::NFILE)) && self.pressure.wait() => {}
                result => return result,
            }
        }
        open().map_err(Into::into)
    }

    /// Asks the kernel to forget unused inodes whenever there are too many. Returns after `end_shrinking`.
    pub fn shrink_loop(&self) {
        let pressure = &self.pressure;
        while !pressure.ended.load(Ordering::Acquire) {
            let high = pressure.is_high(self.inodes.len());
            let crowded = high || pressure.is_crowded(self.inodes.len());
            if self.sweep(crowded) && crowded || high && self.shrink() {
                continue;
            }
            pressure.bell.wait_for(&mut pressure.waiting.lock(), Duration::from_secs(1));
        }
    }

    /// Ends `shrink_loop`.
    pub fn end_shrinking(&self) {
        self.pressure.ended.store(true, Ordering::Release);
        self.pressure.bell.notify_all();
    }

    /// Drops resting inodes of which nothing is cached any more, or whose last name has gone, behind the mount's back; in a crowded
    /// table also those that were not used since the last time. Looks at a bounded number. Is there anything to do at once?
    pub(super) fn sweep(&self, crowded: bool) -> bool {
        let (mut resting, mut visits) = (Vec::new(), 0);
        for _ in 0..self.inodes.shards() {
            let hand = self.pressure.swept.fetch_add(1, Ordering::Relaxed);
            self.inodes.visit(hand, |inode| {
                visits += 1;
                if inode.life.try_lock().is_some_and(|life| inode.is_forgotten(&life)) {
                    resting.push(inode.clone());
                }
            });
            if resting.len() >= SWEEP_MAX || !crowded && visits >= VISITS_MAX {
                break;
            }
        }
        let (mut dropped, mut aged) = (false, false);
        for inode in resting {
            let life = inode.life.lock();
            let used = crowded && inode.used.swap(false, Ordering::Relaxed);
            aged |= used;
            if inode.is_forgotten(&life) && !((used || !crowded) && self.rest(&inode, &life)) {
                self.retire(&inode, life);
                dropped = true;
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
            for (parent, name) in unused.iter().filter_map(|&nodeid| self.name_of(&root, nodeid)) {
                kernel.invalidate_name(parent, &name);
            }
        }
        // The forgets come in as requests of their own.
        std::thread::sleep(Duration::from_millis(1));
        self.pressure.newest.store(limits::descriptors_used(root.fd()), Ordering::Relaxed);
        true
    }

    /// A name of an inode and the directory of it, as far as /proc knows them and they are below the root.
    pub(super) fn name_of(&self, root: &Inode<C::Object>, nodeid: u64) -> Option<(u64, OsString)> {
        let path = |inode: &Inode<C::Object>| std::fs::read_link(inode.path().as_path()).ok();
        let inode = self.inode(nodeid).ok()?;
        let (top, path) = (path(root)?, path(&inode)?);
        let below = path.strip_prefix(top).ok()?;
        let (parent, name) = (below.parent()?, below.file_name()?);
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let parent = self.inodes.find(&stat_name(root.fd(), parent.as_os_str()).ok()?, |_| false)?;
        Some((parent.nodeid, name.to_owned()))
    }

    /// Up to `want` inodes that nobody has open and that were not looked up for a while.
    pub(super) fn unused(&self, want: usize) -> Vec<u64> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_descriptors_is_a_crowd() {
        let pressure = Pressure::new(100_000, 100_000, 1000);
        assert!(!pressure.is_crowded(374) && pressure.is_crowded(375));
        // Whatever number was the last: the inodes below it may have gone.
        pressure.opened(3);
        assert!(pressure.is_crowded(375));
    }

    #[test]
    fn any_table_that_fills_up_is_pressure() {
        let pressure = Pressure::new(100, 8, 1000);
        assert!(!pressure.is_high(74) && pressure.is_high(75));
        pressure.opened(749);
        assert!(!pressure.is_high(0));
        pressure.opened(750);
        assert!(pressure.is_high(0));
        pressure.opened(10);
        (0..4).for_each(|_| pressure.object_made());
        assert!(pressure.is_high(0));
        pressure.object_gone();
        assert!(!pressure.is_high(0));
    }
}
