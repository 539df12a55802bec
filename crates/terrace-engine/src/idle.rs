//! How much of the machine's processors would have nothing to do without the compressed tier.

use std::fs;
use std::time::Duration;

/// How often a look is worth its while.
const EVERY: Duration = Duration::from_secs(1);

/// Idle and all time of the processors since the machine started, ticks, and what the tier took of it, ns.
type Times = [u64; 3];

/// Looks at the kernel's account from time to time.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    last: Option<Times>,
    at_ns: u64,
}

impl Idle {
    /// The share of the processors that was idle since the last look, 0 to 1, at `now_ns` of a monotonic clock; or that was the tier's, which
    /// has taken `own_ns` of them so far: a tier that fills what was idle is not to think that it disturbs others. None: the last look was
    /// just now, it is the first one, or the kernel does not tell.
    pub(crate) fn share(&mut self, now_ns: u64, own_ns: u64) -> Option<f64> {
        if now_ns.saturating_sub(self.at_ns) < EVERY.as_nanos() as u64 {
            return None;
        }
        self.at_ns = now_ns;
        let [idle, all] = ticks(&fs::read_to_string("/proc/stat").ok()?)?;
        let now = [idle, all, own_ns];
        let last = self.last.replace(now)?;
        let [idle, all, own_ns] = std::array::from_fn(|i| now[i].saturating_sub(last[i]) as f64);
        let own = own_ns * rustix::param::clock_ticks_per_second() as f64 / 1e9;
        (all > 0.0).then(|| ((idle + own) / all).clamp(0.0, 1.0))
    }
}

/// Idle and all ticks. The first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal. A processor that only waits for a
/// device is idle.
fn ticks(stat: &str) -> Option<[u64; 2]> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let all: Vec<u64> = line.split_whitespace().take(8).map(|n| n.parse().ok()).collect::<Option<_>>()?;
    (all.len() == 8).then(|| [all[3] + all[4], all.iter().sum()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_account() {
        let stat = "cpu  10 1 5 70 8 1 2 3 0 0\ncpu0 1 2 3\n";
        assert_eq!(ticks(stat), Some([78, 100]));
        for bad in ["", "cpu0 1 2 3 4 5 6 7 8", "cpu  1 2 3", "cpu  1 2 x 4 5 6 7 8"] {
            assert_eq!(ticks(bad), None, "{bad}");
        }
        let mut idle = Idle::default();
        let second = EVERY.as_nanos() as u64;
        assert_eq!(idle.share(second, 0), None);
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(idle.share(2 * second - 1, 0), None);
        assert!(idle.share(2 * second, 0).is_some_and(|share| (0.0..=1.0).contains(&share)));
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(idle.share(3 * second, 3600 * second), Some(1.0), "all the tier's");
    }
}
