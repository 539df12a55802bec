//! CPU headroom: the share of the machine's processors that would be idle without the compressed tier.

use std::time::Duration;
use terrace_system::proc::{self, Ticks};

const SAMPLE_PERIOD: Duration = Duration::from_secs(1);
/// Interval before the second sample, without which there is no result.
const SOON: Duration = Duration::from_millis(100);

/// Sums since boot, ns: the processors' idle, total and stolen time, the tier's work, and its thread's wait
/// for a processor.
type Times = [u64; 5];

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CpuShare {
    /// Idle share, 0 to 1.
    pub(crate) idle: f64,
    /// Share of time granted by the hypervisor, 0 to 1.
    pub(crate) cpu_share: f64,
}

/// Samples the kernel's accounting at intervals.
#[derive(Debug, Default)]
pub(crate) struct CpuHeadroom {
    last: Option<Times>,
    at_ns: u64,
    again: Duration,
}

impl CpuHeadroom {
    /// CPU headroom since the last sample, at `now_ns` of a monotonic clock. Compression (`own_ns` so far)
    /// counts as idle time, except while this thread waited for a processor: other programs then needed all.
    /// None: the first sample, one just after another, or no data from the kernel.
    pub(crate) fn sample(&mut self, now_ns: u64, own_ns: u64) -> Option<CpuShare> {
        if u128::from(now_ns.saturating_sub(self.at_ns)) < self.again.as_nanos() {
            return None;
        }
        (self.at_ns, self.again) = (now_ns, if self.last.is_some() { SAMPLE_PERIOD } else { SOON });
        // A processor that only waits for a device is idle. This machine did not have the stolen time.
        let Ticks { idle, all, stolen } = proc::ticks_of_all()?;
        let tick = 1_000_000_000 / rustix::param::clock_ticks_per_second();
        // Without this accounting in the kernel, waiting counts as zero.
        let waited = proc::text("thread-self", "schedstat").ok().and_then(|stat| waited(&stat));
        let now = [idle * tick, all * tick, stolen * tick, own_ns, waited.unwrap_or(0)];
        share(self.last.replace(now)?, now)
    }
}

fn share(last: Times, now: Times) -> Option<CpuShare> {
    let [idle, all, stolen, own, waited] = std::array::from_fn(|i| now[i].saturating_sub(last[i]));
    let unused = idle + own.saturating_sub(waited);
    let of = |part: u64, whole: u64| (part as f64 / whole as f64).min(1.0);
    (all > 0).then(|| CpuShare { idle: of(unused, all), cpu_share: of(all, all + stolen) })
}

/// Time of a thread's waits for a processor, ns. Its schedstat: run time, wait time, number of runs.
fn waited(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_time_is_the_second_number() {
        assert_eq!((waited("900 200 7\n"), waited("900"), waited("1 x 1")), (Some(200), None, None));
    }

    #[test]
    fn compression_time_is_idle_unless_it_waited() {
        let before = [100, 1000, 7, 50, 9000];
        let free = |idle, cpu_share| Some(CpuShare { idle, cpu_share });
        assert_eq!(share(before, [150, 1200, 7, 100, 9000]), free(0.5, 1.0));
        assert_eq!(share(before, [150, 1200, 207, 100, 9020]), free(0.4, 0.5));
        assert_eq!(share(before, [150, 1200, 7, 100, 9999]), free(0.25, 1.0), "however long it waited");
        assert_eq!(share(before, [300, 1200, 7, 100, 9000]), free(1.0, 1.0));
        assert_eq!(share(before, before), None);
    }

    #[test]
    fn looks_are_a_second_apart_but_for_the_first_ones() {
        let mut idle = CpuHeadroom::default();
        let mut looks = |at_ms: u64| {
            idle.sample(at_ms * 1_000_000, 0);
            idle.at_ns == at_ms * 1_000_000
        };
        let start = 1_000_000;
        let looked: Vec<u64> =
            [0, 99, 100, 1099, 1100, 9000].into_iter().filter(|ms| looks(start + ms)).collect();
        assert_eq!(looked, [0, 100, 1100, 9000]);
        // The kernel's accounting works, too.
        std::thread::sleep(Duration::from_millis(300));
        let free = idle.sample((start + 10_000) * 1_000_000, 0);
        let sound = |share: f64| (0.0..=1.0).contains(&share);
        assert!(free.is_some_and(|free| sound(free.idle) && sound(free.cpu_share)), "{free:?}");
    }
}
