//! How much of the machine's processors would have nothing to do without the compressed tier.

use std::fs;
use std::time::Duration;

/// How often a look is worth its while.
const EVERY: Duration = Duration::from_secs(1);
/// The first time, or after a pause, which tells nothing of what is now.
const SOON: Duration = Duration::from_millis(100);

/// Idle and all time of the processors since the machine started, and what the calling thread had of it that nobody else wanted, ns.
type Times = [u64; 3];

/// Looks at the kernel's account from time to time.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    last: Option<Times>,
    at_ns: u64,
    again: Duration,
}

impl Idle {
    /// The share of the processors that was idle since the last look, 0 to 1, at `now_ns` of a monotonic clock. What the calling thread used is
    /// idle too, for it is the one that compresses: a tier that fills what was idle is not to think that it disturbs others. But while it
    /// waited for a processor, others had use for them all: so long, what it used it took from them. None: the last look was just now, it is
    /// the first one after a pause, or the kernel does not tell.
    pub(crate) fn share(&mut self, now_ns: u64) -> Option<f64> {
        let past = Duration::from_nanos(now_ns.saturating_sub(self.at_ns));
        if past < self.again {
            return None;
        }
        let [idle, all] = ticks(&fs::read_to_string("/proc/stat").ok()?)?;
        let own = fs::read_to_string("/proc/thread-self/schedstat").ok().and_then(|stat| unopposed(&stat));
        let now = [idle, all, own.unwrap_or(0)];
        let last = self.last.replace(now).filter(|_| past < 2 * EVERY);
        (self.at_ns, self.again) = (now_ns, if last.is_some() { EVERY } else { SOON });
        share(last?, now)
    }
}

fn share(last: Times, now: Times) -> Option<f64> {
    let [idle, all, own] = std::array::from_fn(|i| now[i].saturating_sub(last[i]) as f64);
    (all > 0.0).then(|| ((idle + own) / all).clamp(0.0, 1.0))
}

/// Idle and all time. The first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal, in ticks. A processor that only waits
/// for a device is idle; what the hypervisor gave to others (steal) nobody here had.
fn ticks(stat: &str) -> Option<[u64; 2]> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let all: Vec<u64> = line.split_whitespace().take(7).map(|n| n.parse().ok()).collect::<Option<_>>()?;
    let tick = 1_000_000_000 / rustix::param::clock_ticks_per_second();
    (all.len() == 7).then(|| [(all[3] + all[4]) * tick, all.iter().sum::<u64>() * tick])
}

/// What a thread had of the processors beyond the time that it waited for one. Its schedstat: both, in ns, and how often it ran.
fn unopposed(schedstat: &str) -> Option<u64> {
    let mut words = schedstat.split_whitespace().map(|n| n.parse::<u64>().ok());
    let (ran, waited) = (words.next()??, words.next()??);
    Some(ran.saturating_sub(waited))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_account() {
        let stat = "cpu  10 1 5 70 8 1 2 3000 0 0\ncpu0 1 2 3\n";
        let [idle, all] = ticks(stat).unwrap();
        assert_eq!(
            (idle * 97, all * 78),
            (idle * 97, idle * 97),
            "78 of 97: nothing is stolen from somebody here"
        );
        for bad in ["", "cpu0 1 2 3 4 5 6 7 8", "cpu  1 2 3", "cpu  1 2 x 4 5 6 7 8"] {
            assert_eq!(ticks(bad), None, "{bad}");
        }
        assert_eq!((unopposed("900 200 7\n"), unopposed("900 1000 7")), (Some(700), Some(0)));
        assert_eq!((unopposed("900"), unopposed("x 1 1")), (None, None));
        assert_eq!(share([100, 1000, 50], [150, 1200, 100]), Some(0.5));
        assert_eq!(share([100, 1000, 50], [300, 1200, 100]), Some(1.0));
        assert_eq!(share([100, 1000, 50], [100, 1000, 50]), None);
    }

    #[test]
    fn looks_are_a_second_apart_and_a_pause_tells_nothing() {
        let mut idle = Idle::default();
        let ms = 1_000_000;
        let mut look = |at: u64| {
            std::thread::sleep(Duration::from_millis(50));
            idle.share(at * ms)
        };
        let start = 1_000_000;
        assert_eq!(look(start), None, "the first");
        assert_eq!(look(start + 99), None, "just now");
        assert!(look(start + 100).is_some_and(|share| (0.0..=1.0).contains(&share)));
        assert_eq!(look(start + 1099), None, "just now");
        assert!(look(start + 1100).is_some());
        assert_eq!(look(start + 9000), None, "after a pause");
        assert!(look(start + 9100).is_some());
    }
}
