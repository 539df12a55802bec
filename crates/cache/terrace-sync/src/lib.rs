//! Locks of the standard library with parking_lot's interface, without poisoning: a panic of the holder frees
//! the lock. [`Wakeup`] wakes one thread.
//!
//! Alternative that failed: parking_lot. Its waiters call `sched_yield` several times before they sleep. The
//! kernel's scheduler (EEVDF) then runs other threads for some milliseconds: 1 % of updates took 0.6 to 1.1
//! ms (bench/results.md, YCSB). The standard library's waiters spin for a few microseconds and then sleep.
//! parking_lot also keeps sleepers in a table of the process. A forked child inherits entries of threads that
//! it lacks, and loses wake-ups.
//!
//! A lock of the standard library is unfair: a thread that unlocks and locks again precedes a waking sleeper.
//! So `waiting.rs` bounds the wait: once a thread has waited 2 ms, later threads sleep before they lock.

mod waiting;
mod wakeup;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{self, LockResult, PoisonError, TryLockError, TryLockResult};
use std::time::{Duration, Instant};
use waiting::Waiting;

pub use std::sync::WaitTimeoutResult;
pub use wakeup::Wakeup;

/// A mutex.
#[derive(Default)]
pub struct Mutex<T: ?Sized> {
    waiting: Waiting,
    lock: sync::Mutex<T>,
}

/// Access to the value of a [`Mutex`]. Empty only while a [`Condvar`] waits.
#[must_use]
pub struct MutexGuard<'a, T: ?Sized>(Option<sync::MutexGuard<'a, T>>);

impl<T> Mutex<T> {
    /// Guards a value.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex { waiting: Waiting::new(), lock: sync::Mutex::new(value) }
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits until the mutex is free. A thread that holds it already waits for ever.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.waiting.give_way();
        let held = self.try_lock();
        held.unwrap_or_else(|| self.waiting.wait(|| MutexGuard(Some(clean(self.lock.lock())))))
    }

    /// `None`: a thread holds it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        free(self.lock.try_lock()).map(|guard| MutexGuard(Some(guard)))
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock.fmt(f)
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.0.as_ref().expect("no wait is under way")
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("no wait is under way")
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// A lock of one writer or many readers.
#[derive(Default)]
pub struct RwLock<T: ?Sized> {
    /// Readers that wait: the standard library's lock admits readers only when no writer waits.
    waiting: Waiting,
    lock: sync::RwLock<T>,
}

/// Shared access.
pub type RwLockReadGuard<'a, T> = sync::RwLockReadGuard<'a, T>;
/// Exclusive access.
pub type RwLockWriteGuard<'a, T> = sync::RwLockWriteGuard<'a, T>;

impl<T> RwLock<T> {
    /// Guards a value.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock { waiting: Waiting::new(), lock: sync::RwLock::new(value) }
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until no writer holds the lock or waits for it. So a thread that already reads may wait for
    /// ever.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.try_read().unwrap_or_else(|| self.waiting.wait(|| clean(self.lock.read())))
    }

    /// Waits until the lock is free.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.waiting.give_way();
        clean(self.lock.write())
    }

    /// `None`: a writer holds the lock or waits for it.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        free(self.lock.try_read())
    }

    /// `None`: a thread holds the lock.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        free(self.lock.try_write())
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock.fmt(f)
    }
}

fn clean<G>(result: LockResult<G>) -> G {
    result.unwrap_or_else(PoisonError::into_inner)
}

fn free<G>(result: TryLockResult<G>) -> Option<G> {
    match result {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// A condition variable for a locked [`Mutex`]. A wait may end without a notification. The condition changes
/// only while the mutex is locked.
#[derive(Debug, Default)]
pub struct Condvar {
    /// With no sleeper, a notification needs no system call. A thread counts itself while it still holds the
    /// mutex.
    sleepers: AtomicU32,
    condvar: sync::Condvar,
}

impl Condvar {
    /// A condition variable without waiters.
    pub const fn new() -> Condvar {
        Condvar { sleepers: AtomicU32::new(0), condvar: sync::Condvar::new() }
    }

    /// Ends a wait, if there is one.
    pub fn notify_one(&self) {
        if self.has_sleepers() {
            self.condvar.notify_one();
        }
    }

    /// Ends all waits.
    pub fn notify_all(&self) {
        if self.has_sleepers() {
            self.condvar.notify_all();
        }
    }

    fn has_sleepers(&self) -> bool {
        self.sleepers.load(Ordering::Relaxed) > 0
    }

    /// Waits. The mutex is unlocked meanwhile.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        self.sleep(guard, |held| (clean(self.condvar.wait(held)), ()));
    }

    /// As [`Condvar::wait`], for `at_most`.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, at_most: Duration) -> WaitTimeoutResult {
        self.sleep(guard, |held| clean(self.condvar.wait_timeout(held, at_most)))
    }

    /// As [`Condvar::wait`], until `end` at the latest.
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, end: Instant) -> WaitTimeoutResult {
        self.wait_for(guard, end.saturating_duration_since(Instant::now()))
    }

    /// Waits as long as the condition holds.
    pub fn wait_while<T>(&self, guard: &mut MutexGuard<'_, T>, condition: impl FnMut(&mut T) -> bool) {
        self.sleep(guard, |held| (clean(self.condvar.wait_while(held, condition)), ()));
    }

    /// As [`Condvar::wait_while`], for `at_most`. Timed out: the condition still holds.
    pub fn wait_while_for<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        condition: impl FnMut(&mut T) -> bool,
        at_most: Duration,
    ) -> WaitTimeoutResult {
        self.sleep(guard, |held| clean(self.condvar.wait_timeout_while(held, at_most, condition)))
    }

    fn sleep<'a, T, R>(
        &self,
        guard: &mut MutexGuard<'a, T>,
        wait: impl FnOnce(sync::MutexGuard<'a, T>) -> (sync::MutexGuard<'a, T>, R),
    ) -> R {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        let (held, result) = wait(guard.0.take().expect("no wait is under way"));
        guard.0 = Some(held);
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread;

    #[test]
    fn a_panic_leaves_locks_free() {
        let (mutex, lock) = (Mutex::new(1), RwLock::new(1));
        let panics = || {
            let (mut one, mut other) = (mutex.lock(), lock.write());
            (*one, *other) = (2, 2);
            panic!("on purpose");
        };
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        assert_eq!((*mutex.lock(), *lock.read()), (2, 2));
        assert_eq!(
            (mutex.try_lock().map(|value| *value), lock.try_read().map(|value| *value)),
            (Some(2), Some(2))
        );
        *lock.write() = 2;
        assert_eq!((*mutex.lock(), *lock.read()), (2, 2));
    }

    #[test]
    fn what_another_has_is_not_to_be_had() {
        let (mutex, lock) = (Mutex::new(()), RwLock::new(()));
        let held = (mutex.lock(), lock.read());
        let tried = || (mutex.try_lock().is_some(), lock.try_read().is_some(), lock.try_write().is_some());
        thread::scope(|scope| assert_eq!(scope.spawn(tried).join().unwrap(), (false, true, false)));
        drop(held);
        assert_eq!((mutex.try_lock().is_some(), lock.try_write().is_some()), (true, true));
    }

    #[test]
    fn waits_give_the_mutex_up_and_have_it_again() {
        let (state, changed) = (Mutex::new(0), Condvar::new());
        thread::scope(|scope| {
            let mut now = state.lock();
            scope.spawn(|| {
                for next in 1..=3 {
                    let mut now = state.lock();
                    changed.wait_while(&mut now, |now| *now != next * 10);
                    *now += 1;
                    changed.notify_all();
                }
            });
            for next in 1..=3 {
                *now = next * 10;
                changed.notify_one();
                while *now % 10 == 0 {
                    changed.wait(&mut now);
                }
                assert!(state.try_lock().is_none());
            }
        });
        assert_eq!(*state.lock(), 31);
    }

    #[test]
    fn waits_come_to_their_end() {
        let (state, changed) = (Mutex::new(()), Condvar::new());
        let mut guard = state.lock();
        let short = Duration::from_millis(5);
        let begun = Instant::now();
        while !changed.wait_for(&mut guard, short).timed_out() {}
        while !changed.wait_until(&mut guard, begun + 3 * short).timed_out() {}
        assert!(changed.wait_while_for(&mut guard, |()| true, short).timed_out());
        assert!(!changed.wait_while_for(&mut guard, |()| false, Duration::ZERO).timed_out());
        assert!(begun.elapsed() >= 4 * short);
    }
}
