//! Where clients keep all processors busy, a client of this machine and the thread that serves it are brought to the same processor.
//!
//! They wake each other once a request. On one processor that is a switch of tasks. Across processors it is an interrupt, which in a virtual machine costs more than the request
//! does; and while it is on its way a processor is idle, to which the scheduler then moves other tasks, away from their counterparts. The kernel tells which processor
//! received the last packet of a connection (SO_INCOMING_CPU, socket(7)): by the loopback device that is the one on which the client ran. A thread compares it now and then with its own.
//! A thread with one client moves to the client's processor, one with several hands the client over to the thread of that processor; neither if
//! that would have more threads, or clients, already: programs whose only thread has many connections must not get one processor for all of it.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Rounds of a thread from one look to the next. A look is a system call for each client that is ready.
const LOOK_EVERY: u32 = 8;
/// Looks in a row that must find a client on another processor before anything moves.
const APART_LOOKS: u8 = 2;

/// The rounds of a thread.
#[derive(Debug, Default)]
pub struct Looks(u32);

impl Looks {
    /// One more round; whether it is one to look in.
    pub fn is_due(&mut self) -> bool {
        self.0 = (self.0 + 1) % LOOK_EVERY;
        self.0 == 0
    }
}

/// Looks in a row that found a client and its thread on two processors.
#[derive(Debug, Default)]
pub struct Apart(u8);

impl Apart {
    /// A look: the thread is on processor `here`, the client on `there`. Where the client is, if it was elsewhere often enough.
    pub fn look(&mut self, here: usize, there: Option<usize>) -> Option<usize> {
        let there = there.filter(|there| *there != here);
        self.0 = if there.is_some() { self.0 + 1 } else { 0 };
        let is_enough = self.0 >= APART_LOOKS;
        if is_enough {
            self.0 = 0;
        }
        there.filter(|_| is_enough)
    }
}

/// Moves this thread to a processor, if it may use that one. It is not bound to it: where it is woken next time is the scheduler's choice again.
///
/// # Errors
/// The kernel does not let it choose.
pub fn move_to(processor: usize) -> io::Result<()> {
    let allowed = sched_getaffinity(None)?;
    if processor >= CpuSet::MAX_CPU || !allowed.is_set(processor) {
        return Ok(());
    }
    let mut there = CpuSet::new();
    there.set(processor);
    sched_setaffinity(None, &there)?;
    Ok(sched_setaffinity(None, &allowed)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_client_that_stays_away_counts() {
        let mut apart = Apart::default();
        let mut look = |there| apart.look(1, there);
        assert_eq!([look(Some(0)), look(Some(1)), look(Some(0)), look(None), look(Some(0))], [None; 5]);
        assert_eq!([look(Some(0)), look(Some(0)), look(Some(2))], [Some(0), None, Some(2)]);
        let mut looks = Looks::default();
        assert_eq!((0..4 * LOOK_EVERY).filter(|_| looks.is_due()).count(), 4);
    }

    /// Right after the call: later the scheduler may choose another processor.
    #[test]
    fn thread_moves_and_may_use_all_processors_after() {
        let allowed = sched_getaffinity(None).unwrap();
        let before: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
        for cpu in before.iter().copied().chain([CpuSet::MAX_CPU, usize::MAX]) {
            let is_there = || {
                move_to(cpu).unwrap();
                rustix::thread::sched_getcpu() == cpu || !before.contains(&cpu)
            };
            assert!((0..100).any(|_| is_there()), "never on {cpu}");
            assert_eq!(sched_getaffinity(None).unwrap(), allowed);
        }
        std::thread::spawn(move || {
            let mut last = CpuSet::new();
            last.set(*before.last().unwrap());
            sched_setaffinity(None, &last).unwrap();
            move_to(before[0]).unwrap();
            assert_eq!(sched_getaffinity(None).unwrap(), last, "who was bound stays where it was bound to");
        })
        .join()
        .unwrap();
    }
}
