//! Moves threads of programs to nodes, and restores their affinity masks.
//!
//! A move sets the thread's affinity to the node's processors that its own mask allows. The mover saves the
//! old mask before, and restores it at the end. **A program's own affinity wins**: threads bound to fewer
//! than all processors stay. So do moved threads that got another mask since.
//!
//! The system calls are behind a trait, [`Affinity`]: tests use a double.

use rustix::io::Errno;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use std::collections::BTreeMap;

/// System calls for affinity.
pub trait Affinity: Send + std::fmt::Debug {
    /// Processors that a thread may use.
    ///
    /// # Errors
    /// ESRCH: the thread has ended.
    fn get(&self, tid: u32) -> Result<CpuSet, Errno>;
    /// Restricts a thread to `cpus`.
    ///
    /// # Errors
    /// ESRCH: the thread has ended; EPERM: another user's thread; EINVAL: none of the processors is in its
    /// control group.
    fn set(&self, tid: u32, cpus: &CpuSet) -> Result<(), Errno>;
    /// Start time of a thread, in ticks since boot: it differs after a reuse of the thread ID. None: the
    /// thread has ended.
    fn began(&self, tid: u32) -> Option<u64>;
}

#[derive(Debug, Default)]
pub(crate) struct Kernel;

impl Affinity for Kernel {
    fn get(&self, tid: u32) -> Result<CpuSet, Errno> {
        sched_getaffinity(Some(pid(tid)?))
    }
    fn set(&self, tid: u32, cpus: &CpuSet) -> Result<(), Errno> {
        sched_setaffinity(Some(pid(tid)?), cpus)
    }
    fn began(&self, tid: u32) -> Option<u64> {
        terrace_system::proc::stat(tid).map(|stat| stat.began)
    }
}

fn pid(tid: u32) -> Result<Pid, Errno> {
    i32::try_from(tid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)
}

pub(crate) fn set_of(cpus: impl IntoIterator<Item = usize>) -> CpuSet {
    let mut set = CpuSet::new();
    cpus.into_iter().filter(|&cpu| cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(cpu));
    set
}

/// The processors of a set, ascending.
pub(crate) fn list_of(set: &CpuSet) -> Vec<usize> {
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// A moved thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    pub(crate) began: u64,
    /// The thread's own mask.
    pub(crate) own: CpuSet,
    /// The mask set by the daemon, or about to be set.
    pub(crate) given: CpuSet,
    /// The mask in force until `given` is set.
    pub(crate) before: CpuSet,
}

impl Moved {
    /// Whether the daemon has set this mask.
    fn is_ours(&self, mask: &CpuSet) -> bool {
        self.given == *mask || self.before == *mask
    }
}

/// Moves threads and restores their masks.
#[derive(Debug)]
pub struct ThreadMover {
    affinity: Box<dyn Affinity>,
    /// All processors: a smaller mask is a program's own.
    all: CpuSet,
    all_list: Vec<usize>,
    moved: BTreeMap<u32, Moved>,
    /// Thread ID where the next search for ended threads starts.
    next: u32,
    /// `moved` has changed since the last call of `has_changed`.
    changed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotMoved {
    Bound,
    Gone,
    Refused(Errno),
}

/// Threads checked in one search for ended ones.
const CHECKED_MAX: usize = 32;

impl ThreadMover {
    /// `all`: processors of unbound threads; `moved`: threads moved by a dead predecessor.
    pub fn new(affinity: Box<dyn Affinity>, all: CpuSet, moved: BTreeMap<u32, Moved>) -> ThreadMover {
        ThreadMover { affinity, all, all_list: list_of(&all), moved, next: 0, changed: true }
    }

    /// Whether a thread may be moved: its mask allows all processors, or the daemon has set it.
    ///
    /// # Errors
    /// The reason against a move.
    pub(crate) fn may_move(&self, tid: u32, began: u64) -> Result<(), NotMoved> {
        self.known(tid, began).map(|_| ())
    }

    /// A thread's mask, and its record if it was moved.
    fn known(&self, tid: u32, began: u64) -> Result<(CpuSet, Option<&Moved>), NotMoved> {
        let mask = self.affinity.get(tid).map_err(not_moved)?;
        let moved = self.moved.get(&tid).filter(|moved| moved.began == began);
        let is_free = || mask == self.all || self.all_list.iter().all(|&cpu| mask.is_set(cpu));
        if moved.is_some_and(|moved| moved.is_ours(&mask)) || is_free() {
            Ok((mask, moved))
        } else {
            Err(NotMoved::Bound)
        }
    }

    /// Records that a thread is to be restricted to `cpus`; [`ThreadMover::finish`] does it. The caller saves
    /// the records between the two calls, so that masks can be restored after a crash.
    ///
    /// # Errors
    /// The reason against a move.
    pub(crate) fn prepare(&mut self, tid: u32, began: u64, cpus: &[usize]) -> Result<(), NotMoved> {
        let (mask, moved) = self.known(tid, began)?;
        let own = moved.map_or(mask, |moved| moved.own);
        let given = set_of(cpus.iter().copied().filter(|&cpu| own.is_set(cpu)));
        if given.count() == 0 {
            return Err(NotMoved::Bound);
        }
        self.moved.insert(tid, Moved { began, own, given, before: mask });
        self.changed = true;
        Ok(())
    }

    /// Moves a prepared thread.
    ///
    /// # Errors
    /// The reason why it stays.
    pub(crate) fn finish(&mut self, tid: u32) -> Result<(), NotMoved> {
        let Some(moved) = self.moved.get_mut(&tid) else { return Err(NotMoved::Gone) };
        self.changed = true;
        // Reads the mask back: the kernel omits processors outside the thread's control group.
        let set = self.affinity.set(tid, &moved.given).and_then(|()| self.affinity.get(tid));
        let failed = match set {
            Ok(given) => {
                (moved.given, moved.before) = (given, given);
                return Ok(());
            }
            Err(err) => not_moved(err),
        };
        moved.given = moved.before;
        if failed == NotMoved::Gone || moved.before == moved.own {
            self.moved.remove(&tid);
        }
        Err(failed)
    }

    /// Threads with a mask set by the daemon, or about to be set.
    pub(crate) fn moved(&self) -> &BTreeMap<u32, Moved> {
        &self.moved
    }

    /// Whether these threads have changed since the last call.
    pub(crate) fn has_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Forgets ended threads; checks a limited number at each call.
    pub fn forget_ended(&mut self) {
        let checked: Vec<(u32, u64)> =
            self.moved.range(self.next..).take(CHECKED_MAX).map(|(&tid, moved)| (tid, moved.began)).collect();
        self.next = checked.last().filter(|_| checked.len() == CHECKED_MAX).map_or(0, |&(tid, _)| tid + 1);
        for (tid, began) in checked {
            if self.affinity.began(tid) != Some(began) {
                self.moved.remove(&tid);
                self.changed = true;
            }
        }
    }

    /// Restores the masks of all moved threads, except those changed by others since.
    pub(crate) fn restore(&mut self) {
        self.changed |= !self.moved.is_empty();
        for (tid, moved) in std::mem::take(&mut self.moved) {
            let is_it = self.affinity.began(tid) == Some(moved.began);
            if is_it && self.affinity.get(tid).is_ok_and(|mask| moved.is_ours(&mask)) {
                let _ = self.affinity.set(tid, &moved.own);
            }
        }
    }
}

impl Drop for ThreadMover {
    fn drop(&mut self) {
        self.restore();
    }
}

fn not_moved(err: Errno) -> NotMoved {
    if err == Errno::SRCH { NotMoved::Gone } else { NotMoved::Refused(err) }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    type Cpus = Vec<usize>;

    /// Threads with their start times and masks. Moves of thread 13 are refused.
    #[derive(Debug, Clone, Default)]
    struct FakeKernel(Arc<Mutex<BTreeMap<u32, (u64, Cpus)>>>);

    impl Affinity for FakeKernel {
        fn get(&self, tid: u32) -> Result<CpuSet, Errno> {
            self.mask(tid).map(set_of).ok_or(Errno::SRCH)
        }
        fn set(&self, tid: u32, cpus: &CpuSet) -> Result<(), Errno> {
            if tid == 13 {
                return Err(Errno::PERM);
            }
            let mut threads = self.0.lock().unwrap();
            threads.get_mut(&tid).map(|thread| thread.1 = list_of(cpus)).ok_or(Errno::SRCH)
        }
        fn began(&self, tid: u32) -> Option<u64> {
            self.0.lock().unwrap().get(&tid).map(|thread| thread.0)
        }
    }

    impl FakeKernel {
        fn mask(&self, tid: u32) -> Option<Cpus> {
            self.0.lock().unwrap().get(&tid).map(|thread| thread.1.clone())
        }
        fn put(&self, tid: u32, began: u64, mask: &[usize]) {
            self.0.lock().unwrap().insert(tid, (began, mask.to_vec()));
        }
    }

    fn stage(masks: &[(u32, &[usize])]) -> (FakeKernel, ThreadMover) {
        let fake = FakeKernel::default();
        masks.iter().for_each(|(tid, mask)| fake.put(*tid, 7, mask));
        let mover = ThreadMover::new(Box::new(fake.clone()), set_of(0..4), BTreeMap::new());
        (fake, mover)
    }

    /// Moves a thread with start time 7.
    fn moves(mover: &mut ThreadMover, tid: u32, cpus: &[usize]) -> Result<(), NotMoved> {
        mover.prepare(tid, 7, cpus)?;
        mover.finish(tid)
    }

    #[test]
    fn thread_gets_its_own_mask_back() {
        let (fake, mut mover) = stage(&[(5, &[0, 1, 2, 3])]);
        assert_eq!(moves(&mut mover, 5, &[2, 3]), Ok(()));
        assert_eq!(fake.mask(5).unwrap(), [2, 3]);
        assert_eq!(moves(&mut mover, 5, &[0, 1]), Ok(()), "it can be moved again");
        drop(mover);
        assert_eq!(fake.mask(5).unwrap(), [0, 1, 2, 3]);
    }

    #[test]
    fn affinity_of_the_program_wins() {
        let (fake, mut mover) = stage(&[(5, &[0]), (6, &[0, 1, 2, 3])]);
        assert_eq!(moves(&mut mover, 5, &[0, 1]), Err(NotMoved::Bound));
        moves(&mut mover, 6, &[0, 1]).unwrap();
        fake.put(6, 7, &[3]);
        assert_eq!(moves(&mut mover, 6, &[2, 3]), Err(NotMoved::Bound), "the program has bound it meanwhile");
        mover.restore();
        assert_eq!((fake.mask(5).unwrap(), fake.mask(6).unwrap()), (vec![0], vec![3]));
    }

    #[test]
    fn number_used_again_is_another_thread() {
        let (fake, mut mover) = stage(&[(5, &[0, 1, 2, 3])]);
        moves(&mut mover, 5, &[2, 3]).unwrap();
        fake.put(5, 8, &[2, 3]);
        assert_eq!(mover.may_move(5, 8), Err(NotMoved::Bound), "its mask is its own");
        mover.restore();
        assert_eq!(fake.mask(5).unwrap(), [2, 3], "it was born with this mask");
        assert_eq!(moves(&mut mover, 9, &[0]), Err(NotMoved::Gone));
    }

    #[test]
    fn successor_restores_what_a_dead_daemon_moved() {
        let (fake, mut mover) = stage(&[(5, &[0, 1, 2, 3]), (6, &[0, 1, 2, 3])]);
        moves(&mut mover, 5, &[2, 3]).unwrap();
        moves(&mut mover, 6, &[2, 3]).unwrap();
        mover.prepare(5, 7, &[0, 1]).unwrap();
        mover.prepare(6, 7, &[0, 1]).unwrap();
        let left = mover.moved().clone();
        // The thread ends between the two calls.
        mover.finish(6).unwrap();
        std::mem::forget(mover);
        drop(ThreadMover::new(Box::new(fake.clone()), set_of(0..4), left));
        assert_eq!([5, 6].map(|tid| fake.mask(tid).unwrap()), [[0, 1, 2, 3]; 2]);
    }

    #[test]
    fn thread_that_cannot_be_moved_is_not_noted() {
        let (fake, mut mover) = stage(&[(13, &[0, 1, 2, 3]), (5, &[0, 1, 2, 3])]);
        assert_eq!(moves(&mut mover, 13, &[2, 3]), Err(NotMoved::Refused(Errno::PERM)));
        mover.prepare(5, 7, &[2, 3]).unwrap();
        fake.0.lock().unwrap().remove(&5);
        assert_eq!(mover.finish(5), Err(NotMoved::Gone));
        assert!(mover.moved().is_empty());
    }

    #[test]
    fn threads_that_are_gone_are_forgotten_in_parts() {
        let all: Vec<(u32, &[usize])> = (0..100).map(|tid| (tid + 20, &[0, 1, 2, 3][..])).collect();
        let (fake, mut mover) = stage(&all);
        (20..120).for_each(|tid| moves(&mut mover, tid, &[2, 3]).unwrap());
        assert!(mover.has_changed() && !mover.has_changed());
        mover.forget_ended();
        assert!(!mover.has_changed());
        fake.0.lock().unwrap().retain(|tid, _| *tid == 60);
        (0..4).for_each(|_| mover.forget_ended());
        assert!(mover.has_changed());
        assert_eq!(mover.moved().keys().copied().collect::<Vec<_>>(), [60]);
    }

    /// A waiting thread, its ID, and the channel that ends it.
    pub(in crate::numa) fn waiting() -> (std::thread::JoinHandle<()>, u32, std::sync::mpsc::Sender<()>) {
        let (sender, tid) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel();
        let waits = std::thread::spawn(move || {
            sender.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
            let _ = ends.recv();
        });
        (waits, tid.recv().unwrap(), end)
    }

    #[test]
    fn kernel_moves_a_thread_and_back() {
        let own = Kernel.get(std::process::id()).unwrap();
        let first = list_of(&own)[0];
        let (waits, thread, end) = waiting();
        let began = Kernel.began(thread).unwrap();
        let mut mover = ThreadMover::new(Box::new(Kernel), own, BTreeMap::new());
        mover.prepare(thread, began, &[first]).unwrap();
        assert_eq!(Kernel.get(thread).unwrap(), own, "not yet");
        mover.finish(thread).unwrap();
        assert_eq!(list_of(&Kernel.get(thread).unwrap()), [first]);
        drop(mover);
        assert_eq!(Kernel.get(thread).unwrap(), own);
        drop(end);
        waits.join().unwrap();
        assert_eq!(Kernel.get(u32::MAX), Err(Errno::SRCH));
    }

    /// Prints costs (`--nocapture`): of the system call alone, and of a move with its checks.
    #[test]
    fn move_costs_microseconds() {
        let own = Kernel.get(std::process::id()).unwrap();
        let cpus = list_of(&own);
        let (waits, thread, end) = waiting();
        let began = Kernel.began(thread).unwrap();
        let mut mover = ThreadMover::new(Box::new(Kernel), own, BTreeMap::new());
        let ends = [vec![cpus[0]], vec![cpus[cpus.len() - 1]]];
        let sets = [0, 1].map(|n| set_of(ends[n].iter().copied()));
        let median = |of: &mut dyn FnMut(usize)| {
            let time = |n: usize| {
                let begun = std::time::Instant::now();
                of(n % 2);
                begun.elapsed()
            };
            let mut times: Vec<_> = (0..1001).map(time).collect();
            times.sort();
            times[500]
        };
        let call = median(&mut |n| Kernel.set(thread, &sets[n]).unwrap());
        Kernel.set(thread, &own).unwrap();
        let moved = median(&mut |n| {
            mover.prepare(thread, began, &ends[n]).unwrap();
            mover.finish(thread).unwrap();
        });
        println!("sched_setaffinity takes {call:?}, a move {moved:?}");
        assert!(moved.as_micros() < 1000, "{moved:?}");
        drop((mover, end));
        waits.join().unwrap();
    }
}
