//! Moves threads of other programs to nodes, and gives them their own processors back.
//!
//! A thread is moved by its affinity: the processors of the node that its own affinity allows. The old mask is saved before and put back
//! at the end. **A program's own affinity wins**: a thread whose mask is not that of all processors was bound by its program and is left
//! alone, and so is one whose mask has changed since it was moved.
//!
//! The system's calls are behind a trait, [`Affinity`]: tests use a double.

use rustix::io::Errno;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use std::collections::BTreeMap;

/// Processors as a set, by number; a mask of the kernel.
pub type Cpus = Vec<usize>;

/// Operations of the kernel.
pub trait Affinity: Send + std::fmt::Debug {
    /// Processors that a thread may use.
    ///
    /// # Errors
    /// ESRCH: it is gone.
    fn get(&self, tid: u32) -> Result<Cpus, Errno>;
    /// Lets it use these only.
    ///
    /// # Errors
    /// ESRCH: it is gone; EPERM: another user's; EINVAL: none of them is in its control group.
    fn set(&self, tid: u32, cpus: &Cpus) -> Result<(), Errno>;
    /// When it began, in ticks since the machine did: a number used again has another. None: it is gone.
    fn began(&self, tid: u32) -> Option<u64>;
}

/// The kernel.
#[derive(Debug, Default)]
pub struct Kernel;

impl Affinity for Kernel {
    fn get(&self, tid: u32) -> Result<Cpus, Errno> {
        let set = sched_getaffinity(Some(pid(tid)?))?;
        Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
    }
    fn set(&self, tid: u32, cpus: &Cpus) -> Result<(), Errno> {
        let mut set = CpuSet::new();
        cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU).for_each(|&cpu| set.set(cpu));
        sched_setaffinity(Some(pid(tid)?), &set)
    }
    fn began(&self, tid: u32) -> Option<u64> {
        crate::proc::stat(tid).map(|stat| stat.began)
    }
}

fn pid(tid: u32) -> Result<Pid, Errno> {
    i32::try_from(tid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)
}

/// A thread that was moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// When it began.
    pub began: u64,
    /// Its own mask.
    pub own: Cpus,
    /// The one that it was given.
    pub given: Cpus,
}

/// Processes whose threads are moved, and how they are put back.
#[derive(Debug)]
pub struct Actor {
    affinity: Box<dyn Affinity>,
    /// All processors: a mask with fewer is a program's own.
    all: Cpus,
    moved: BTreeMap<u32, Moved>,
}

/// Why a thread is not moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// Its program has bound it.
    Bound,
    /// It is gone.
    Gone,
    /// The kernel refuses.
    Refused(Errno),
}

impl Actor {
    /// Of threads that may use `all` processors if nobody has bound them; `moved`: what a predecessor that died has moved.
    pub fn new(affinity: Box<dyn Affinity>, all: Cpus, moved: BTreeMap<u32, Moved>) -> Actor {
        Actor { affinity, all, moved }
    }

    /// Whether a thread may be moved: its mask is that of all processors, or the one that it was given.
    ///
    /// # Errors
    /// Why not.
    pub fn may_move(&self, tid: u32) -> Result<(), Kept> {
        let mask = self.affinity.get(tid).map_err(kept)?;
        let ours = self.moved.get(&tid).is_some_and(|moved| moved.given == mask);
        if ours || self.all.iter().all(|cpu| mask.contains(cpu)) { Ok(()) } else { Err(Kept::Bound) }
    }

    /// Lets a thread run on `cpus` only.
    ///
    /// # Errors
    /// Why it stays as it is.
    pub fn move_to(&mut self, tid: u32, cpus: &Cpus) -> Result<(), Kept> {
        let began = self.affinity.began(tid).ok_or(Kept::Gone)?;
        self.moved.retain(|&known, moved| known != tid || moved.began == began);
        self.may_move(tid)?;
        let own = match self.moved.get(&tid) {
            Some(moved) => moved.own.clone(),
            None => self.affinity.get(tid).map_err(kept)?,
        };
        let given: Cpus = cpus.iter().copied().filter(|cpu| own.contains(cpu)).collect();
        if given.is_empty() {
            return Err(Kept::Bound);
        }
        self.affinity.set(tid, &given).map_err(kept)?;
        // The mask that the kernel accepted: processors outside its control group are missing.
        let given = self.affinity.get(tid).map_err(kept)?;
        self.moved.insert(tid, Moved { began, own, given });
        Ok(())
    }

    /// Threads that have another mask than their own by us.
    pub fn moved(&self) -> &BTreeMap<u32, Moved> {
        &self.moved
    }

    /// Forgets threads that are gone.
    pub fn forget_gone(&mut self) {
        let affinity = &self.affinity;
        self.moved.retain(|&tid, moved| affinity.began(tid) == Some(moved.began));
    }

    /// Gives all threads their own masks back, but those that have got another one since.
    pub fn restore(&mut self) {
        for (tid, moved) in std::mem::take(&mut self.moved) {
            let is_it = self.affinity.began(tid) == Some(moved.began);
            if is_it && self.affinity.get(tid).as_ref() == Ok(&moved.given) {
                let _ = self.affinity.set(tid, &moved.own);
            }
        }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.restore();
    }
}

fn kept(err: Errno) -> Kept {
    if err == Errno::SRCH { Kept::Gone } else { Kept::Refused(err) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// Threads: when they began, and their masks.
    #[derive(Debug, Clone, Default)]
    struct Double(Arc<Mutex<BTreeMap<u32, (u64, Cpus)>>>);

    impl Affinity for Double {
        fn get(&self, tid: u32) -> Result<Cpus, Errno> {
            self.0.lock().unwrap().get(&tid).map(|thread| thread.1.clone()).ok_or(Errno::SRCH)
        }
        fn set(&self, tid: u32, cpus: &Cpus) -> Result<(), Errno> {
            let mut threads = self.0.lock().unwrap();
            threads.get_mut(&tid).map(|thread| thread.1 = cpus.clone()).ok_or(Errno::SRCH)
        }
        fn began(&self, tid: u32) -> Option<u64> {
            self.0.lock().unwrap().get(&tid).map(|thread| thread.0)
        }
    }

    fn stage(masks: &[(u32, &[usize])]) -> (Double, Actor) {
        let double = Double::default();
        double.0.lock().unwrap().extend(masks.iter().map(|(tid, mask)| (*tid, (7, mask.to_vec()))));
        let actor = Actor::new(Box::new(double.clone()), vec![0, 1, 2, 3], BTreeMap::new());
        (double, actor)
    }

    #[test]
    fn thread_gets_its_own_mask_back() {
        let (double, mut actor) = stage(&[(5, &[0, 1, 2, 3])]);
        assert_eq!(actor.move_to(5, &vec![2, 3]), Ok(()));
        assert_eq!(double.get(5), Ok(vec![2, 3]));
        assert_eq!(actor.move_to(5, &vec![0, 1]), Ok(()), "it can be moved again");
        drop(actor);
        assert_eq!(double.get(5), Ok(vec![0, 1, 2, 3]));
    }

    #[test]
    fn affinity_of_the_program_wins() {
        let (double, mut actor) = stage(&[(5, &[0]), (6, &[0, 1, 2, 3])]);
        assert_eq!(actor.move_to(5, &vec![0, 1]), Err(Kept::Bound));
        actor.move_to(6, &vec![0, 1]).unwrap();
        double.set(6, &vec![3]).unwrap();
        assert_eq!(actor.move_to(6, &vec![2, 3]), Err(Kept::Bound), "the program has bound it meanwhile");
        actor.restore();
        assert_eq!((double.get(5), double.get(6)), (Ok(vec![0]), Ok(vec![3])));
    }

    #[test]
    fn number_used_again_is_another_thread() {
        let (double, mut actor) = stage(&[(5, &[0, 1, 2, 3])]);
        actor.move_to(5, &vec![2, 3]).unwrap();
        double.0.lock().unwrap().insert(5, (8, vec![2, 3]));
        actor.restore();
        assert_eq!(double.get(5), Ok(vec![2, 3]), "it was born with this mask");
        assert_eq!(actor.move_to(9, &vec![0]), Err(Kept::Gone));
    }

    #[test]
    fn successor_restores_what_a_dead_daemon_moved() {
        let (double, mut actor) = stage(&[(5, &[0, 1, 2, 3])]);
        actor.move_to(5, &vec![2, 3]).unwrap();
        let left = actor.moved().clone();
        std::mem::forget(actor);
        drop(Actor::new(Box::new(double.clone()), vec![0, 1, 2, 3], left));
        assert_eq!(double.get(5), Ok(vec![0, 1, 2, 3]));
    }

    /// A thread that waits, its number, and what ends it.
    fn waiting() -> (std::thread::JoinHandle<()>, u32, std::sync::mpsc::Sender<()>) {
        let (tell, tid) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel();
        let waits = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
            let _ = ends.recv();
        });
        (waits, tid.recv().unwrap(), end)
    }

    #[test]
    fn kernel_moves_a_thread_and_back() {
        let own = Kernel.get(std::process::id()).unwrap();
        let (waits, thread, end) = waiting();
        let mut actor = Actor::new(Box::new(Kernel), own.clone(), BTreeMap::new());
        actor.move_to(thread, &vec![own[0]]).unwrap();
        assert_eq!(Kernel.get(thread).unwrap(), [own[0]]);
        drop(actor);
        assert_eq!(Kernel.get(thread).unwrap(), own);
        drop(end);
        waits.join().unwrap();
        assert_eq!(Kernel.get(u32::MAX), Err(Errno::SRCH));
    }

    /// The figures are printed (`--nocapture`): the call of the kernel, and a move with its checks.
    #[test]
    fn move_costs_microseconds() {
        let own = Kernel.get(std::process::id()).unwrap();
        let (waits, thread, end) = waiting();
        let mut actor = Actor::new(Box::new(Kernel), own.clone(), BTreeMap::new());
        let masks = [vec![own[0]], vec![own[own.len() - 1]]];
        let median = |of: &mut dyn FnMut(&Cpus)| {
            let time = |n: usize| {
                let begun = std::time::Instant::now();
                of(&masks[n % 2]);
                begun.elapsed()
            };
            let mut times: Vec<_> = (0..1001).map(time).collect();
            times.sort();
            times[500]
        };
        let call = median(&mut |mask| Kernel.set(thread, mask).unwrap());
        Kernel.set(thread, &own).unwrap();
        let moved = median(&mut |mask| actor.move_to(thread, mask).unwrap());
        println!("sched_setaffinity takes {call:?}, a move {moved:?}");
        assert!(moved.as_micros() < 1000, "{moved:?}");
        drop((actor, end));
        waits.join().unwrap();
    }
}
