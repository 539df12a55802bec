//! Data of `terrace top`: rates from two answers of `stat`, and the hit ratio over time.

use std::collections::VecDeque;

use terrace_api::stats::{Mode, StatReport};

use crate::size::PAGE;

/// Points of the history: ten minutes at one a second.
const HISTORY_MAX: usize = 600;

/// Counters since the daemon's start, in the order of [`Counter`].
pub(super) type Counters = [u64; Counter::ALL.len()];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub(super) enum Counter {
    Hits,
    TierHits,
    Misses,
    MissBytes,
    WriteBytes,
    Evicted,
    Refaults,
    Stored,
    TierEvicted,
    WrittenBack,
    DeviceReads,
    DeviceReadMs,
}

impl Counter {
    /// All counters, in order.
    pub(super) const ALL: [Counter; 12] = [
        Counter::Hits,
        Counter::TierHits,
        Counter::Misses,
        Counter::MissBytes,
        Counter::WriteBytes,
        Counter::Evicted,
        Counter::Refaults,
        Counter::Stored,
        Counter::TierEvicted,
        Counter::WrittenBack,
        Counter::DeviceReads,
        Counter::DeviceReadMs,
    ];
}

/// Present sizes in bytes, and other values that are not counters.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Levels {
    pub used: u64,
    pub limit: u64,
    /// Memory of the frames.
    pub dram: u64,
    /// Limit on `dram`.
    pub dram_max: u64,
    /// Memory of the compressed tier, and its limit; none: off.
    pub tier: Option<(u64, u64)>,
    /// Uncompressed bytes for each byte of the compressed tier.
    pub density: f64,
    /// The compressed tier is bypassed for lack of hits.
    pub bypassed: bool,
    /// Dirty bytes.
    pub dirty: u64,
    /// Limit at which writers wait.
    pub dirty_max: u64,
    /// errno of failing writeback; 0: none.
    pub failing: i32,
    /// Assumed cost of a miss, us.
    pub miss_us: Option<f64>,
}

/// One answer of `stat`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Snapshot {
    /// `/data on /mnt, strata`
    pub title: String,
    /// Process id of the supervisor; a change means another instance.
    pub supervisor: i32,
    /// Restarts of the daemon, which reset its counters.
    pub restarts: u32,
    pub src: String,
    pub counters: Counters,
    pub levels: Levels,
}

impl Snapshot {
    /// Extracts the counters and sizes of an answer.
    pub(super) fn of(stat: &StatReport) -> Snapshot {
        let StatReport { cache, instance, .. } = stat;
        let tier = cache.compressed.as_ref();
        let (fast, main, memory) = (&cache.preload, &cache.fuse, &cache.memory);
        let auto = memory.sizing.as_ref().is_some_and(|sizing| sizing.mode == Mode::Auto);
        let (src, mnt) = (instance.src.display().to_string(), instance.mnt.display());
        let place = if instance.src == instance.mnt { src.clone() } else { format!("{src} on {mnt}") };
        let mut counters = Counters::default();
        let counted = [
            (Counter::Hits, fast.hits + main.hits),
            (Counter::TierHits, tier.map_or(0, |t| t.hits)),
            (Counter::Misses, fast.misses + main.misses),
            (Counter::MissBytes, fast.miss_bytes + main.misses * PAGE),
            (Counter::WriteBytes, main.write_bytes),
            (Counter::Evicted, cache.reclaim.pgsteal),
            (Counter::Refaults, cache.reclaim.workingset_refault),
            (Counter::Stored, tier.map_or(0, |t| t.stored_pages)),
            (Counter::TierEvicted, tier.map_or(0, |t| t.evicted)),
            (Counter::WrittenBack, cache.writeback.written_back),
        ];
        counted.into_iter().for_each(|(counter, value)| counters[counter as usize] = value);
        Snapshot {
            title: format!("{place}, {}", cache.policy),
            supervisor: instance.pid,
            restarts: instance.restarts,
            src,
            counters,
            levels: Levels {
                used: memory.used_bytes,
                limit: memory.ceiling_bytes.filter(|_| auto).unwrap_or(memory.limit_bytes),
                dram: memory.frames_bytes,
                // While the boundary to the compressed tier moves, frames may exceed their limit.
                dram_max: memory.frames_max_bytes.max(memory.frames_bytes),
                tier: tier.map(|t| (t.pool_bytes, t.pool_limit_bytes)),
                density: tier.map_or(0.0, |t| t.density),
                bypassed: tier.is_some_and(|t| t.bypassed),
                dirty: cache.writeback.dirty_bytes,
                dirty_max: cache.writeback.dirty_limit * PAGE,
                failing: cache.writeback.failing_errno,
                miss_us: tier.map(|t| t.miss_ns as f64 / 1000.0),
            },
        }
    }
}

/// All data that are shown.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    pub now: Option<Snapshot>,
    /// Seconds since the start of `terrace top`.
    pub seconds: f64,
    /// Rates per second over the last interval; none before the second answer.
    pub rates: Option<[f64; Counter::ALL.len()]>,
    /// Hit ratio over time: seconds, per cent. Intervals without reads have no point.
    pub ratios: VecDeque<(f64, f64)>,
}

impl View {
    /// Takes a new answer, `seconds` after the start.
    pub(super) fn take(&mut self, snapshot: Snapshot, seconds: f64) {
        let time = seconds - self.seconds;
        let before = self
            .now
            .as_ref()
            .filter(|b| (b.supervisor, b.restarts) == (snapshot.supervisor, snapshot.restarts));
        self.rates = before.filter(|_| time > 0.0).map(|before| {
            std::array::from_fn(|i| snapshot.counters[i].saturating_sub(before.counters[i]) as f64 / time)
        });
        if let Some(ratio) = self.hit_percent() {
            if self.ratios.len() == HISTORY_MAX {
                self.ratios.pop_front();
            }
            self.ratios.push_back((seconds, ratio));
        }
        (self.now, self.seconds) = (Some(snapshot), seconds);
    }

    /// Rate of a counter over the last interval.
    pub(super) fn rate(&self, counter: Counter) -> Option<f64> {
        self.rates.map(|rates| rates[counter as usize])
    }

    /// Hit ratio over the last interval, per cent; none without reads.
    pub(super) fn hit_percent(&self) -> Option<f64> {
        share(self.rate(Counter::Hits)?, self.rate(Counter::Misses)?)
    }

    /// Hit ratio since the daemon's start, per cent.
    pub(super) fn hit_percent_all(&self) -> Option<f64> {
        let counters = &self.now.as_ref()?.counters;
        share(counters[Counter::Hits as usize] as f64, counters[Counter::Misses as usize] as f64)
    }

    /// Mean time of a device read over the last interval, us; none without reads or without statistics.
    pub(super) fn device_us(&self) -> Option<f64> {
        let (reads, ms) = (self.rate(Counter::DeviceReads)?, self.rate(Counter::DeviceReadMs)?);
        (reads > 0.0).then(|| ms * 1000.0 / reads)
    }
}

fn share(part: f64, rest: f64) -> Option<f64> {
    (part + rest > 0.0).then(|| part * 100.0 / (part + rest))
}

/// Answers of a real mount with a compressed tier, one second apart.
#[cfg(test)]
pub(super) fn recorded() -> Vec<Snapshot> {
    let text = include_str!("../../tests/data/stat.jsonl");
    text.lines().map(|line| Snapshot::of(&serde_json::from_str(line).unwrap())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_between_two_answers() {
        let mut view = View::default();
        let [first, second, third] = recorded().try_into().unwrap();
        assert_eq!((first.title.as_str(), first.src.as_str()), ("/data, strata", "/data"));
        view.take(first, 10.0);
        assert!(view.rates.is_none() && view.hit_percent().is_none());
        view.take(second, 12.0);
        // 444379 - 392949 hits and 53314 - 47960 misses, in two seconds.
        assert_eq!(view.rate(Counter::Hits), Some(25_715.0));
        assert_eq!(view.rate(Counter::Misses), Some(2_677.0));
        assert_eq!(view.rate(Counter::TierHits), Some((79_376.0 - 70_342.0) / 2.0));
        assert!((view.hit_percent().unwrap() - 90.571).abs() < 0.001);
        assert!((view.hit_percent_all().unwrap() - 89.28).abs() < 0.01);
        assert_eq!((view.device_us(), view.ratios.len()), (None, 1));
        // A crash of the daemon resets the counters: this interval has no rates.
        view.take(Snapshot { restarts: 1, ..third }, 13.0);
        assert!(view.rates.is_none());
    }

    #[test]
    fn an_idle_interval_has_no_hit_ratio_and_the_history_an_end() {
        let mut view = View::default();
        let snapshot = recorded().remove(0);
        view.take(snapshot.clone(), 1.0);
        view.take(snapshot.clone(), 2.0);
        assert_eq!((view.rate(Counter::Hits), view.hit_percent()), (Some(0.0), None));
        for i in 0..2 * HISTORY_MAX as u64 {
            let mut next = snapshot.clone();
            next.counters[Counter::Hits as usize] += i + 1;
            next.counters[Counter::DeviceReads as usize] += 4 * i;
            next.counters[Counter::DeviceReadMs as usize] += i;
            view.take(next, 3.0 + i as f64);
        }
        assert_eq!(
            (view.ratios.len(), view.hit_percent(), view.device_us()),
            (HISTORY_MAX, Some(100.0), Some(250.0))
        );
    }
}
