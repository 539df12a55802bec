//! Processor time of the kernel's I/O workers per page of a block device. Loop devices and encryption have
//! work that the kernel does not charge to the reader.

use std::collections::HashMap;
use std::fs;
use terrace_shm::PAGE_SIZE;
use terrace_system::{count, proc};

/// Minimum number of pages transferred for a result.
const PAGES_MIN: u64 = 1000;
/// kthreadd, the parent of all kernel threads.
const CHILDREN: &str = "/proc/2/task/2/children";

/// Sums since boot: time of each worker, ns, and pages transferred by devices.
#[derive(Debug)]
struct Sums {
    workers: HashMap<u32, u64>,
    pages: u64,
}

/// Samples the kernel's accounting.
#[derive(Debug, Default)]
pub(crate) struct IoWorkers {
    last: Option<Sums>,
}

impl IoWorkers {
    /// The workers' time per page since the last sample, ns. None: the first sample, few transfers, or no
    /// data (kernel threads are not visible in a container).
    pub(crate) fn look(&mut self) -> Option<u64> {
        let now = sums();
        let before = std::mem::replace(&mut self.last, now);
        each(&before?, self.last.as_ref()?)
    }

    pub(crate) fn forget(&mut self) {
        self.last = None;
    }
}

/// New workers do not count: they may have run before.
fn each(before: &Sums, now: &Sums) -> Option<u64> {
    let since = |(worker, ns): (&u32, &u64)| Some(ns.saturating_sub(*before.workers.get(worker)?));
    let ns: u64 = now.workers.iter().filter_map(since).sum();
    let pages = now.pages.saturating_sub(before.pages);
    (pages >= PAGES_MIN).then(|| ns / pages)
}

fn sums() -> Option<Sums> {
    let children = fs::read_to_string(CHILDREN).ok()?;
    let is_worker = |id: &u32| proc::text(id, "comm").is_ok_and(|name| name.starts_with("kworker/"));
    let ids = children.split_whitespace().filter_map(|id| id.parse().ok()).filter(is_worker);
    let workers = ids.filter_map(|id| Some((id, proc::run_ns(id)?))).collect();
    Some(Sums { workers, pages: pages(&fs::read_to_string("/proc/vmstat").ok()?)? })
}

/// `pgpgin` and `pgpgout` of /proc/vmstat: KiB read and written by block devices, including direct I/O.
fn pages(vmstat: &str) -> Option<u64> {
    Some((count(vmstat, "pgpgin")? + count(vmstat, "pgpgout")?) * 1024 / PAGE_SIZE as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_workers_is_shared_by_the_pages_of_devices() {
        let sums = |workers: &[(u32, u64)], pages| Sums { workers: workers.iter().copied().collect(), pages };
        let before = sums(&[(7, 1_000_000), (8, 500)], 100);
        // One worker has ended, one is new.
        let now = sums(&[(7, 9_000_000), (9, 77_000_000)], 100 + PAGES_MIN);
        assert_eq!(each(&before, &now), Some(8_000_000 / PAGES_MIN));
        assert_eq!(each(&before, &Sums { pages: 99 + PAGES_MIN, ..now }), None, "too few pages");
        assert_eq!(pages("nr_free 3\npgpgin 400\npgpgout 40\npgpgoutrun 9\n"), Some(110));
        assert_eq!(pages("pgpgin 400\n"), None);
    }

    #[test]
    fn the_kernels_workers_are_found() {
        let mut workers = IoWorkers::default();
        assert_eq!(workers.look(), None, "the first look");
        let seen = workers.last.as_ref().map(|sums| sums.workers.len());
        assert_eq!(seen.is_some(), fs::metadata(CHILDREN).is_ok(), "{seen:?}");
        workers.forget();
        assert_eq!(workers.look(), None);
    }
}
