//! CPU affinity of clients and threads: on busy processors a local client and its thread run on the same
//! processor.
//!
//! Client and thread wake each other once per request. On one processor a wake-up is a context switch. Across
//! processors it is an interrupt, and in a virtual machine it costs more than the request. One of the two
//! processors is idle meanwhile. The scheduler moves other tasks there, away from their counterparts.
//!
//! SO_INCOMING_CPU (socket(7)) is the processor that received the last packet of a connection: on the
//! loopback device, the client's. A thread compares it now and then with the processor it runs on. A thread
//! with one client moves to the client's processor. A thread with several clients hands the client over to
//! the thread of that processor. Neither happens if that processor already has more threads or clients.
//! Otherwise a program with one thread and many connections would draw the whole server to its processor.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Rounds of a thread between samples; a sample is a system call for each ready client. A prime, so that
/// clients with requests in turn are all sampled.
const SAMPLE_EVERY: u32 = 7;
/// Consecutive samples that must find a client on the same other processor before anything moves.
const REMOTE_SAMPLES: u8 = 2;

/// Minimum number of clients for pairing: then all processors are in use, and each has one of `sharing`
/// threads. `usize::MAX`: no pairing.
pub(super) fn pairing_clients(sharing: usize) -> usize {
    // `available_parallelism` is no alternative: a CPU quota lowers it.
    let processors = sched_getaffinity(None).map_or(1, |allowed| allowed.count() as usize);
    if processors > 1 && sharing >= processors { processors } else { usize::MAX }
}

/// Chooses the rounds in which a thread samples its clients' processors.
#[derive(Debug, Default)]
pub(super) struct SampleInterval {
    rounds: u32,
    has_ended: bool,
}

impl SampleInterval {
    /// Counts a round. Returns whether it samples.
    pub(super) fn is_due(&mut self) -> bool {
        self.rounds = (self.rounds + 1) % SAMPLE_EVERY;
        self.rounds == 0 && !self.has_ended
    }

    pub(super) fn end(&mut self) {
        self.has_ended = true;
    }
}

/// Consecutive samples that found a client on another processor than its thread.
#[derive(Debug, Default)]
pub(super) struct RemoteSamples {
    processor: usize,
    samples: u8,
}

impl RemoteSamples {
    /// Adds a sample: the thread runs on `here`, the client on `there`, if known. Returns the client's
    /// processor once it stays a different one.
    pub(super) fn add(&mut self, here: usize, there: Option<usize>) -> Option<usize> {
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

/// Moves this thread to a processor, without binding it: at the next wake-up the scheduler chooses again.
/// Returns false if the thread may not run there.
///
/// # Errors
/// The system call fails.
pub(super) fn move_to(processor: usize) -> io::Result<bool> {
    let allowed = sched_getaffinity(None)?;
    if processor >= CpuSet::MAX_CPU || !allowed.is_set(processor) {
        return Ok(false);
    }
    sched_setaffinity(None, &set_of([processor]))?;
    // A request for all processors restores those of the control group, also if these grow later. If that is
    // more than before, the user has restricted the thread: restore the old set.
    sched_setaffinity(None, &set_of(0..CpuSet::MAX_CPU))?;
    if sched_getaffinity(None)? != allowed {
        sched_setaffinity(None, &allowed)?;
    }
    Ok(true)
}

pub(super) fn set_of(processors: impl IntoIterator<Item = usize>) -> CpuSet {
    let mut set = CpuSet::new();
    processors.into_iter().for_each(|processor| set.set(processor));
    set
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The processors that this program may use.
    pub(crate) fn processors() -> Vec<usize> {
        let allowed = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect()
    }

    pub(crate) fn bind_to(processor: usize) {
        sched_setaffinity(None, &set_of([processor])).unwrap();
    }

    #[test]
    fn only_a_client_that_stays_elsewhere_counts() {
        let mut samples = RemoteSamples::default();
        let mut sample = |there| samples.add(1, there);
        let without_move = [Some(0), Some(1), Some(0), None, Some(0), Some(2), Some(0)];
        assert_eq!(without_move.map(&mut sample), [None; 7]);
        assert_eq!([Some(0), Some(0), Some(0)].map(sample), [Some(0), None, Some(0)]);
        let mut interval = SampleInterval::default();
        assert_eq!((0..4 * SAMPLE_EVERY).filter(|_| interval.is_due()).count(), 4);
        interval.end();
        assert_eq!((0..4 * SAMPLE_EVERY).filter(|_| interval.is_due()).count(), 0);
    }

    /// Checked right after the call: later the scheduler may choose another processor.
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
