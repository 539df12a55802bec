//! Fill levels of a mount: descriptors, inodes and objects against their limits, and the requests that wait
//! for room.

mod deleted;
pub(crate) mod heap;
pub mod limits;
mod names;
mod shrink;

use std::cell::Cell;
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use terrace_sync::{Condvar, Mutex};

/// Time between two tries of a request that waits for a descriptor.
const WAIT: Duration = Duration::from_millis(2);
/// Longest wait on a thread that runs no other requests. After that time programs hold all descriptors, and
/// more waiting does not help.
const DESCRIPTOR_WAIT_MAX: Duration = Duration::from_secs(30);
/// Longest wait on a thread that answers the kernel: on a busy machine, making room may be slow.
const ANSWERER_WAIT_MAX: Duration = Duration::from_secs(5);
/// Shortest time between two log messages about a shortage.
const SHORTAGE_LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Descriptors reserved for other uses than inodes: connections, open files, records.
const RESERVE_MAX: u64 = 64;

/// Fill levels and waiting requests.
#[derive(Debug)]
pub(crate) struct Pressure {
    /// Number of the last opened descriptor. It approximates a count, since the kernel assigns the lowest
    /// free number.
    newest: AtomicU64,
    descriptors_mark: u64,
    /// From this number on, threads that may wait run the requests that need a descriptor.
    short_mark: u64,
    /// From this number on, descriptors are not for inodes.
    reserve: u64,
    inodes_mark: usize,
    /// Inodes that have an object.
    objects: AtomicUsize,
    objects_mark: usize,
    hand: AtomicUsize,
    /// The hand of `sweep`.
    swept: AtomicUsize,
    /// Threads that wait for room, and their limit: the others must answer the FORGETs that make room.
    waiters: AtomicUsize,
    waiters_max: AtomicUsize,
    /// Names for the kernel to forget, with their directories: negative dentries, and unused inodes where the
    /// kernel cannot prune.
    names: Mutex<Vec<(u64, OsString)>>,
    names_added: Condvar,
    data_close_requested: AtomicBool,
    shrinks: AtomicBool,
    /// Time of the last log message about a shortage.
    logged_at: Mutex<Option<Instant>>,
    ended: AtomicBool,
    waiting: Mutex<()>,
    shrinker_wakeup: Condvar,
}

#[cfg(test)]
thread_local! {
    /// Set when this thread has swept.
    pub(crate) static SWEPT_HERE: Cell<bool> = const { Cell::new(false) };
}

thread_local! {
    /// Set on threads that run no requests others wait for: the time of the present request.
    static MAY_WAIT: Cell<Option<Instant>> = const { Cell::new(None) };
    /// The present shortage is not logged: the request is repeated.
    static NOT_LOGGED: Cell<bool> = const { Cell::new(false) };
}

impl Pressure {
    /// The marks are three quarters of each limit, but half for objects: their table is open-addressed.
    pub(crate) fn new(inodes_max: usize, objects_max: usize, descriptors_max: u64) -> Self {
        Self {
            newest: AtomicU64::new(0),
            descriptors_mark: descriptors_max / 4 * 3,
            short_mark: descriptors_max / 8 * 7,
            reserve: descriptors_max - RESERVE_MAX.min(descriptors_max / 16),
            inodes_mark: inodes_max / 4 * 3,
            objects: AtomicUsize::new(0),
            objects_mark: objects_max / 2,
            hand: AtomicUsize::new(0),
            swept: AtomicUsize::new(0),
            waiters: AtomicUsize::new(0),
            waiters_max: AtomicUsize::new(0),
            names: Mutex::default(),
            names_added: Condvar::new(),
            data_close_requested: AtomicBool::new(false),
            shrinks: AtomicBool::new(false),
            logged_at: Mutex::new(None),
            ended: AtomicBool::new(false),
            waiting: Mutex::new(()),
            shrinker_wakeup: Condvar::new(),
        }
    }

    /// Records that a descriptor of this number was opened. Returns true if it is one of the last, which are
    /// reserved for writeback and answers.
    pub(crate) fn opened(&self, number: i32) -> bool {
        self.newest.store(number as u64, Ordering::Relaxed);
        if number as u64 >= self.descriptors_mark {
            self.shrinker_wakeup.notify_one();
        }
        number as u64 >= self.reserve
    }

    /// Admits the descriptor of an inode or an open directory, unless it is one of the last, which are
    /// reserved.
    pub(crate) fn admit(&self, fd: OwnedFd) -> rustix::io::Result<OwnedFd> {
        match fd.as_raw_fd() as u64 >= self.reserve {
            true => Err(Errno::MFILE),
            false => Ok(fd),
        }
    }

    /// Makes the shrinker close data descriptors.
    pub(crate) fn request_data_close(&self) {
        self.data_close_requested.store(true, Ordering::Release);
        self.shrinker_wakeup.notify_one();
    }

    /// The shrinker runs from now on.
    pub(crate) fn announce_shrinker(&self) {
        self.shrinks.store(true, Ordering::Release);
    }

    /// Whether this thread answers the kernel, and so leaves slow work to the shrinker.
    fn answers_requests(&self) -> bool {
        MAY_WAIT.get().is_none() && self.shrinks.load(Ordering::Acquire)
    }

    /// Waits a little for descriptors to be closed. Returns false after too long a wait, or if enough threads
    /// wait.
    fn wait(&self, began: Instant) -> bool {
        let answers = MAY_WAIT.get().is_none();
        let wait_max = if answers { ANSWERER_WAIT_MAX } else { DESCRIPTOR_WAIT_MAX };
        if self.ended.load(Ordering::Acquire) || began.elapsed() > wait_max {
            return false;
        }
        let waiters = answers.then(|| self.waiters.fetch_add(1, Ordering::AcqRel));
        let may = waiters.is_none_or(|others| others < self.waiters_max.load(Ordering::Relaxed));
        // Later requests are queued from now on.
        self.newest.store(u64::MAX, Ordering::Relaxed);
        self.shrinker_wakeup.notify_one();
        if may {
            std::thread::sleep(WAIT);
        }
        if answers {
            self.waiters.fetch_sub(1, Ordering::AcqRel);
        }
        may
    }

    /// Whether a shortage is to be logged (again).
    fn should_log_shortage(&self) -> bool {
        let mut logged_at = self.logged_at.lock();
        let due = logged_at.is_none_or(|at| at.elapsed() > SHORTAGE_LOG_INTERVAL);
        if due {
            *logged_at = Some(Instant::now());
        }
        due
    }

    /// Whether descriptors are so few that a request may have to wait for one. Each inode has one.
    fn is_short(&self, inodes: usize) -> bool {
        self.newest.load(Ordering::Relaxed).max(inodes as u64) >= self.short_mark
    }

    /// Whether the kernel should forget inodes.
    pub(crate) fn is_high(&self, inodes: usize) -> bool {
        // Retired inodes leave holes in the numbers, which the next descriptors fill. The newest number may
        // then be low, so inodes are counted, too.
        self.newest.load(Ordering::Relaxed) >= self.descriptors_mark
            || inodes as u64 >= self.descriptors_mark
            || inodes >= self.inodes_mark
            || self.objects() >= self.objects_mark
    }

    /// Whether the tables are so full that forgotten inodes should make room. The threshold is half of the
    /// marks, so that resting inodes never cause [`Pressure::is_high`]. The newest descriptor's number is not
    /// used here: retired inodes leave holes, and then it is low.
    pub(crate) fn is_filling(&self, inodes: usize) -> bool {
        let crowded = self.is_half_full(inodes);
        if crowded {
            self.shrinker_wakeup.notify_one();
        }
        crowded
    }

    fn is_half_full(&self, inodes: usize) -> bool {
        let inodes_mark = self.inodes_mark.min(usize::try_from(self.descriptors_mark).unwrap_or(usize::MAX));
        inodes >= inodes_mark / 2 || self.objects() >= self.objects_mark / 2
    }

    pub(crate) fn objects(&self) -> usize {
        self.objects.load(Ordering::Relaxed)
    }

    pub(crate) fn note_object_made(&self) {
        if self.objects.fetch_add(1, Ordering::Relaxed) >= self.objects_mark {
            self.shrinker_wakeup.notify_one();
        }
    }

    pub(crate) fn note_object_dropped(&self) {
        self.objects.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_descriptors_is_filling() {
        let pressure = Pressure::new(100_000, 100_000, 1000);
        assert!(!pressure.is_filling(374) && pressure.is_filling(375));
        // The number of the last descriptor does not matter: the inodes below it may be retired.
        pressure.opened(3);
        assert!(pressure.is_filling(375));
    }

    #[test]
    fn requests_are_queued_from_seven_eighths_on() {
        let pressure = Pressure::new(100_000, 100_000, 1000);
        assert!(!pressure.is_short(874) && pressure.is_short(875));
        pressure.opened(874);
        assert!(!pressure.is_short(750), "the shrinker works, and no request needs to wait");
        pressure.opened(875);
        assert!(pressure.is_short(0));
    }

    #[test]
    fn the_last_descriptors_are_not_for_inodes() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let fd = || rustix::io::fcntl_dupfd_cloexec(&null, 100).unwrap();
        let admits = |fd: OwnedFd, beyond: u64| {
            Pressure::new(100, 100, fd.as_raw_fd() as u64 + beyond).admit(fd).is_ok()
        };
        assert!(!admits(fd(), 1), "the last of all");
        assert!(admits(fd(), 1000));
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
        (0..4).for_each(|_| pressure.note_object_made());
        assert!(pressure.is_high(0));
        pressure.note_object_dropped();
        assert!(!pressure.is_high(0));
    }
}
