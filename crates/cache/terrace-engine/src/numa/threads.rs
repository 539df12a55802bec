//! Statistics of watched threads in /proc. Their files stay open: a read takes a third of an open.

use rustix::process::{Resource, getrlimit};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use terrace_system::proc::{self, Stat};

/// Largest number of threads with open files, two each. The files of other threads are opened at each read.
const OPEN_MAX: usize = 128;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct ThreadSample {
    pub(crate) stat: Stat,
    /// Processors kept busy since the measurement before; 0 at the first one.
    pub(crate) cpu: f64,
}

#[derive(Debug)]
pub(super) struct Threads {
    known: HashMap<u32, Known>,
    open: usize,
    open_max: usize,
}

#[derive(Debug, Default)]
struct Known {
    /// `stat` and `schedstat`.
    files: Option<(File, File)>,
    began: u64,
    ran_ns: Option<u64>,
}

impl Default for Threads {
    fn default() -> Threads {
        // A small limit on descriptors is left to files of programs.
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let open_max = usize::try_from(limit / 16).map_or(OPEN_MAX, |part| part.min(OPEN_MAX));
        Threads { known: HashMap::new(), open: 0, open_max }
    }
}

impl Threads {
    /// Measures a thread `period_ns` after the measurement before. None: the thread has ended.
    pub(super) fn look(&mut self, tid: u32, period_ns: u64) -> Option<ThreadSample> {
        let mut known = self.known.remove(&tid).unwrap_or_else(|| self.open(tid));
        let (stat, ran_ns) = match &known.files {
            Some((stat, sched)) => (proc::stat_in(stat), proc::run_ns_in(sched)),
            None => (proc::stat(tid), proc::run_ns(tid)),
        };
        let Some(stat) = stat else {
            self.open -= usize::from(known.files.is_some());
            return None;
        };
        let before = known.ran_ns.filter(|_| known.began == stat.began).or(ran_ns);
        let ran = ran_ns.unwrap_or(0).saturating_sub(before.unwrap_or(0));
        (known.ran_ns, known.began) = (ran_ns, stat.began);
        self.known.insert(tid, known);
        Some(ThreadSample { stat, cpu: (ran as f64 / period_ns.max(1) as f64).min(1.0) })
    }

    fn open(&mut self, tid: u32) -> Known {
        let file = |name: &str| File::open(format!("/proc/{tid}/{name}")).ok();
        let files = if self.open < self.open_max { file("stat").zip(file("schedstat")) } else { None };
        self.open += usize::from(files.is_some());
        Known { files, ..Known::default() }
    }

    /// Closes the files of all threads except `threads`.
    pub(super) fn forget_but(&mut self, threads: &HashSet<u32>) {
        self.known.retain(|tid, _| threads.contains(tid));
        self.open = self.known.values().filter(|known| known.files.is_some()).count();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numa::act::tests::waiting;

    fn burn() {
        let begun = std::time::Instant::now();
        while begun.elapsed().as_millis() < 20 {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn own_thread_is_busy_and_another_is_gone() {
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        for open_max in [0, 1] {
            let mut threads = Threads { open_max, ..Threads::default() };
            let first = threads.look(own, 1).unwrap();
            assert_eq!((first.cpu, threads.open), (0.0, open_max), "nothing is known before");
            burn();
            let second = threads.look(own, 1_000_000_000).unwrap();
            assert!(second.cpu > 0.0 && second.cpu < 1.0 && second.stat.began == first.stat.began);
            assert_eq!(threads.look(u32::MAX, 1), None);
            threads.forget_but(&HashSet::new());
            assert!(threads.known.is_empty() && threads.open == 0);
        }
    }

    #[test]
    fn open_file_of_an_ended_thread_shows_the_end() {
        let ((waits, tid, end), mut threads) = (waiting(), Threads::default());
        assert!(threads.look(tid, 1).is_some() && threads.open == 1);
        drop(end);
        waits.join().unwrap();
        // The kernel removes a thread from /proc a moment after its end.
        let gone = terrace_testkit::wait::holds_within(std::time::Duration::from_secs(5), || {
            threads.look(tid, 1).is_none()
        });
        assert!(gone && threads.open == 0);
    }
}
