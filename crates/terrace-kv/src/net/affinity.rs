//! Where clients keep all processors busy, a client of this machine and the thread that serves it are brought to the same processor.
//!
//! They wake each other once a request. On one processor that is a switch of tasks. Across processors it is an interrupt, which in a virtual machine costs more than the request
//! does; and while it is on its way a processor is idle, to which the scheduler then moves other tasks, away from their counterparts. The kernel tells which processor
//! received the last packet of a connection (SO_INCOMING_CPU, socket(7)): on the loopback device it is the one on which the client ran. A thread compares it now and then with its own.
//! A thread with one client moves to the client's processor, one with several hands the client over to the thread of that processor. Neither happens if
//! more threads, or clients, are there already: a program with one thread and many connections must not draw all of the server to its processor.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Rounds of a thread from one sample to the next, which is a system call for each client that is ready. A prime: clients that ask in turn are all sampled.
const SAMPLE_EVERY: u32 = 7;
/// Samples in a row that must find a client on the same other processor before anything moves.
const REMOTE_SAMPLES: u8 = 2;

/// From so many clients on all processors are in use, and each has one of `sharing` threads; `usize::MAX`: they have not.
pub fn pairing_clients(sharing: usize) -> usize {
    // Not `available_parallelism`, which a limit on processor time makes less.
    let processors = sched_getaffinity(None).map_or(1, |allowed| allowed.count() as usize);
    if processors > 1 && sharing >= processors { processors } else { usize::MAX }
}

/// When a thread samples where its clients are.
#[derive(Debug, Default)]
pub struct SampleInterval {
    rounds: u32,
    has_ended: bool,
}

impl SampleInterval {
    /// One more round; whether it samples.
    pub fn is_due(&mut self) -> bool {
        self.rounds = (self.rounds + 1) % SAMPLE_EVERY;
        self.rounds == 0 && !self.has_ended
    }

    /// No more samples.
    pub fn end(&mut self) {
        self.has_ended = true;
    }
}

/// Samples in a row that found a client on another processor than its thread.
#[derive(Debug, Default)]
pub struct RemoteSamples {
    processor: usize,
    samples: u8,
}

impl RemoteSamples {
    /// A sample: the thread is on processor `here`, the client on `there`, if that is known. Where the client is, if it stays on another processor.
    pub fn add(&mut self, here: usize, there: Option<usize>) -> Option<usize> {
        let Some(there) = there.filter(|there| *there != here) else {
            self.samples = 0;
            return None;
        };
        let is_same = std::mem::replace(&mut self.processor, there) == there;
        self.samples = if is_same { self.samples + 1 } else { 1 };
        if self.samples < REMOTE_SAMPLES {
            return None;
        }
        self.samples = 0;
        Some(there)
    }
}

/// Moves this thread to a processor; false: it may not use that one. It is not bound to it: where it is woken next time is the scheduler's choice again.
///
/// # Errors
/// The kernel does not let it choose.
pub fn move_to(processor: usize) -> io::Result<bool> {
    let allowed = sched_getaffinity(None)?;
    if processor >= CpuSet::MAX_CPU || !allowed.is_set(processor) {
        return Ok(false);
    }
    sched_setaffinity(None, &set_of([processor]))?;
    // With all processors asked for it has those of its control group, also when these become more. If that is more than before, its user has chosen fewer.
    sched_setaffinity(None, &set_of(0..CpuSet::MAX_CPU))?;
    if sched_getaffinity(None)? != allowed {
        sched_setaffinity(None, &allowed)?;
    }
    Ok(true)
}

/// The set of these processors.
pub(super) fn set_of(processors: impl IntoIterator<Item = usize>) -> CpuSet {
    let mut set = CpuSet::new();
    processors.into_iter().for_each(|processor| set.set(processor));
    set
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Those that this program may use.
    pub fn processors() -> Vec<usize> {
        let allowed = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect()
    }

    /// Lets this thread run on one processor only.
    pub fn bind_to(processor: usize) {
        sched_setaffinity(None, &set_of([processor])).unwrap();
    }

    #[test]
    fn only_a_client_that_stays_elsewhere_counts() {
        let mut samples = RemoteSamples::default();
        let mut sample = |there| samples.add(1, there);
        let in_vain = [Some(0), Some(1), Some(0), None, Some(0), Some(2), Some(0)];
        assert_eq!(in_vain.map(&mut sample), [None; 7]);
        assert_eq!([Some(0), Some(0), Some(0)].map(sample), [Some(0), None, Some(0)]);
        let mut interval = SampleInterval::default();
        assert_eq!((0..4 * SAMPLE_EVERY).filter(|_| interval.is_due()).count(), 4);
        interval.end();
        assert_eq!((0..4 * SAMPLE_EVERY).filter(|_| interval.is_due()).count(), 0);
    }

    /// Looked at right after the call: later the scheduler may choose another processor.
    #[test]
    fn thread_moves_and_may_use_the_same_processors_after() {
        let processors = processors();
        for cpu in &processors {
            let is_there = || move_to(*cpu).unwrap() && rustix::thread::sched_getcpu() == *cpu;
            assert!((0..100).any(|_| is_there()), "never on {cpu}");
            assert_eq!(super::tests::processors(), processors);
        }
        assert!(!move_to(CpuSet::MAX_CPU).unwrap() && !move_to(usize::MAX).unwrap());
        let bound = std::thread::spawn(move || {
            let (first, last) = (processors[0], *processors.last().unwrap());
            bind_to(last);
            assert!(move_to(last).unwrap());
            assert_eq!(move_to(first).unwrap(), first == last);
            assert_eq!(super::tests::processors(), [last]);
        });
        bound.join().unwrap();
    }

    #[test]
    fn clients_are_paired_when_they_are_as_many_as_processors() {
        let processors = processors().len();
        let wanted = if processors > 1 { processors } else { usize::MAX };
        assert_eq!(
            [processors - 1, processors, 64.max(processors)].map(pairing_clients),
            [usize::MAX, wanted, wanted]
        );
    }
}
