//! The eviction policy's lists for administrators: their content, and the two commands of the kernel's
//! `lru_gen` file.
//!
//! Source: Linux, Documentation/admin-guide/mm/multigen_lru.rst ("Experimental features"). `lru_gen_full`
//! shows generations, tiers and their counters. `+` opens a generation: the next output shows the pages used
//! meanwhile (working-set estimation). `-` evicts generations up to a given one (proactive reclaim).
//! Differences: one set of lists, one type of page, and an error for a policy without generations.
//!
//! `min_ttl` is `/sys/kernel/mm/lru_gen/min_ttl_ms`: no eviction while the oldest generation with pages is
//! younger. The kernel then kills a process. In terrace a miss bypasses the cache, and a writer waits, at
//! most `min_ttl` for the first eviction.

use crate::context::Context;
use crate::segment::flag;
use crate::state::lru::is_generation;
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;
use terrace_api::lru::{Evicted, Kinds, ListRow, Lru, Schema, TierRow};

/// Frames visited under one state lock.
const WALK: u32 = 4096;
/// Pages evicted under one state lock.
const BATCH: usize = 64;

/// Reason for a refused command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// The policy has no generations.
    NoGenerations(&'static str),
    /// The generation is one of the two youngest, which are never evicted by command (the kernel's EINVAL).
    TooYoung {
        /// The requested generation.
        seq: u64,
        /// Open generations.
        open: RangeInclusive<u64>,
    },
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refused::NoGenerations(policy) => write!(f, "the policy {policy} has no generations"),
            Refused::TooYoung { seq, open } if *seq > *open.end() => {
                write!(f, "there is no generation {seq}: {} is the youngest", open.end())
            }
            Refused::TooYoung { seq, open } => {
                let end = open.end();
                write!(f, "generation {seq} is one of the two youngest ({} and {end})", end.saturating_sub(1))
            }
        }
    }
}

fn count(kinds: &mut Kinds, flags: u8) {
    *match flags {
        f if f & flag::DIRTY != 0 => &mut kinds.dirty,
        f if f & flag::WRITEBACK != 0 => &mut kinds.writeback,
        f if f & flag::UNSTABLE != 0 => &mut kinds.unstable,
        _ => &mut kinds.clean,
    } += 1;
}

/// See [`crate::Engine::lru`].
pub(crate) fn show(cx: &Context) -> Lru {
    let mut kinds = kinds(cx);
    let state = cx.state.lock();
    let (policy, window) = (&state.lru.policy, state.lru.policy.window());
    let lists = policy.generations(cx.uptime_ms()).into_iter().map(|g| {
        let seq = is_generation(&g).then_some(g.seq);
        let kinds = seq.map(|seq| kinds.remove(&Some(seq)).unwrap_or_default());
        ListRow { label: g.label, seq, age_ms: g.age_ms, pages: g.pages as u64, kinds }
    });
    let lists = lists.collect();
    let tiers = policy.tiers().into_iter().map(|t| TierRow {
        tier: t.tier,
        pages: t.pages as u64,
        refaulted: t.refaulted,
        evicted: t.evicted,
        protected: t.protected,
        avg_refaulted: t.avg_refaulted,
        avg_total: t.avg_total,
    });
    Lru {
        schema: Schema::V1,
        policy: policy.name().to_owned(),
        min_seq: window.as_ref().map(|w| *w.start()),
        max_seq: window.as_ref().map(|w| *w.end()),
        lists,
        queued: kinds.remove(&None).unwrap_or_default(),
        tiers: tiers.collect(),
        refaults: policy.refaults().total,
        refaults_recent: policy.refaults().recent,
        pgscan: state.counts.pgscan,
        pgsteal: state.counts.pgsteal,
        min_ttl_ms: state.lru.min_ttl.ttl.as_millis() as u64,
        min_ttl_refused: state.lru.min_ttl.refused,
    }
}

/// Pages of each generation by their state; None: pages in no generation.
fn kinds(cx: &Context) -> HashMap<Option<u64>, Kinds> {
    let mut kinds: HashMap<Option<u64>, Kinds> = HashMap::new();
    let mut from = 0;
    loop {
        let state = cx.state.lock();
        let end = state.frames.populated();
        if from >= end {
            return kinds;
        }
        let to = from.saturating_add(WALK).min(end);
        for frame in (from..to).filter(|&f| state.lru.policy.contains(f)) {
            let seq = state.lru.policy.position(frame).map(|s| s.seq);
            let flags = cx.handles.frame_flags(frame).load(Ordering::Relaxed);
            count(kinds.entry(seq).or_default(), flags);
        }
        from = to;
    }
}

/// See [`crate::Engine::lru_age`].
pub(crate) fn age(cx: &Context) -> Result<u64, Refused> {
    let mut state = cx.state.lock();
    state.lru.policy.set_time(cx.uptime_ms());
    let mut touches = state.lru.touches();
    let name = state.lru.policy.name();
    state.lru.policy.age(&mut touches).ok_or(Refused::NoGenerations(name))
}

/// See [`crate::Engine::lru_evict`].
pub(crate) fn evict(cx: &Context, seq: u64, pages: u64) -> Result<Evicted, Refused> {
    let mut done = Evicted::default();
    while done.evicted < pages {
        let mut state = cx.state.lock();
        let open = state.lru.policy.window().ok_or(Refused::NoGenerations(state.lru.policy.name()))?;
        if seq.saturating_add(2) > *open.end() && done == Evicted::default() {
            return Err(Refused::TooYoung { seq, open });
        }
        let want = usize::try_from(pages - done.evicted).unwrap_or(BATCH).min(BATCH);
        let Some((evicted, kept)) = state.evict_until(seq, want) else { break };
        done.evicted += evicted;
        done.kept += kept;
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Engine;
    use crate::clock::ManualClock;
    use crate::testing::started;
    use crate::{AccessPath, EngineConfig, ObjectRef};
    use std::os::fd::AsRawFd;
    use std::sync::Arc;
    use std::time::Duration;
    use terrace_io::testing::NullIo;

    const PAGE: u64 = 4096;

    struct Fixture {
        engine: Arc<Engine>,
        clock: Arc<ManualClock>,
        o: ObjectRef,
        _file: std::fs::File,
    }

    fn stage(policy: &str, min_ttl: Duration) -> Fixture {
        let config = EngineConfig {
            memory_bytes: 16 << 20,
            memory_max_bytes: Some(16 << 20),
            readahead_max_bytes: 0,
            policy: policy.into(),
            min_ttl,
            ..EngineConfig::default()
        };
        let clock = Arc::new(ManualClock::default());
        let engine = started(config, clock.clone(), NullIo);
        let file = tempfile::tempfile().unwrap();
        let o = engine.object(7, file.as_raw_fd(), 1 << 30).unwrap();
        Fixture { engine, clock, o, _file: file }
    }

    impl Fixture {
        fn read(&self, pages: RangeInclusive<u64>) {
            let mut buf = [0; 4096];
            for page in pages {
                self.engine.read(&self.o, page * PAGE, &mut buf, AccessPath::FuseDirect).unwrap();
            }
        }
        fn resident(&self, page: u64) -> bool {
            let state = self.engine.cx.state.lock();
            let place = state.pages.index.find(self.o.slot_index(), page);
            place.is_some_and(|p| state.pages.index.get(p).frame().is_some())
        }
    }

    #[test]
    fn generations_tell_what_their_pages_hold() {
        let s = stage("strata", Duration::ZERO);
        s.read(0..=299);
        s.engine.write(&s.o, 0, &[1; 10 * 4096]).unwrap();
        let lru = s.engine.lru();
        assert_eq!(lru.policy, "strata");
        let mut sum = lru.queued;
        for kinds in lru.lists.iter().filter_map(|row| row.kinds) {
            sum.clean += kinds.clean;
            sum.dirty += kinds.dirty;
        }
        let pages = s.engine.stats().memory.pages;
        assert_eq!(sum, Kinds { clean: pages - 10, dirty: 10, ..Kinds::default() });
        let of = |row: &ListRow| row.kinds.map_or(0, |k| k.clean + k.dirty);
        for row in lru.lists.iter().filter(|row| row.seq.is_some()) {
            assert_eq!(of(row), row.pages, "{row:?}");
        }
    }

    #[test]
    fn aging_shows_the_working_set_and_evicting_drops_other_pages() {
        for policy in ["strata", "mglru"] {
            let s = stage(policy, Duration::ZERO);
            // More pages than probation holds: the first ones are in generations.
            s.read(0..=1999);
            let used = s.engine.lru_age().unwrap();
            s.read(0..=99);
            assert_eq!([s.engine.lru_age(), s.engine.lru_age()], [Ok(used + 1), Ok(used + 2)]);
            assert!((0..100).all(|page| s.resident(page)));
            let before = s.engine.lru();
            let done = s.engine.lru_evict(used - 1, u64::MAX).unwrap();
            let old: u64 =
                before.lists.iter().filter(|r| r.seq.is_some_and(|q| q < used)).map(|r| r.pages).sum();
            assert!(done.evicted > 0 && done.evicted <= old, "{policy}: {done:?} of {old}");
            assert!((0..100).all(|page| s.resident(page)), "{policy}: what was used stays");
            assert!((100..1000).any(|page| !s.resident(page)), "{policy}");
            assert_eq!(s.engine.check(), Vec::<String>::new());
        }
    }

    #[test]
    fn evicting_is_bounded_and_leaves_unwritten_pages() {
        let s = stage("mglru", Duration::ZERO);
        s.engine.write(&s.o, 0, &[1; 20 * 4096]).unwrap();
        s.read(20..=999);
        let last = [(); 3].map(|()| s.engine.lru_age().unwrap())[2];
        assert_eq!(s.engine.lru_evict(last - 2, 70).unwrap().evicted, 70);
        let rest = s.engine.lru_evict(last - 2, u64::MAX).unwrap();
        assert!(rest.evicted > 0, "{rest:?}");
        assert!((0..20).all(|page| s.resident(page)));
        assert_eq!(s.engine.check(), Vec::<String>::new());
    }

    #[test]
    fn impossible_request_is_reported() {
        let s = stage("clock", Duration::ZERO);
        assert_eq!(s.engine.lru_age(), Err(Refused::NoGenerations("clock")));
        assert_eq!(s.engine.lru_evict(0, 1), Err(Refused::NoGenerations("clock")));
        assert_eq!((s.engine.lru().min_seq, s.engine.lru().tiers.len()), (None, 0));
        let s = stage("strata", Duration::ZERO);
        let open = s.engine.lru_age().unwrap();
        for seq in [open, open - 1 + u64::from(open == 0), u64::MAX] {
            let no = s.engine.lru_evict(seq, 1).unwrap_err();
            assert!(matches!(no, Refused::TooYoung { .. }), "{seq}: {no}");
        }
    }

    /// While all pages are younger than `min_ttl`, misses bypass the cache and nothing is evicted. A writer
    /// waits until a page is old enough.
    #[test]
    fn the_young_stay_and_others_wait() {
        let s = stage("strata", Duration::from_secs(10));
        let frames = u64::from(s.engine.cx.pool_frames());
        s.read(0..=frames - 1);
        s.read(frames..=frames + 500);
        assert!((0..frames).all(|page| s.resident(page)), "all of them are younger than 10 s");
        assert!(!s.resident(frames + 100));
        let lru = s.engine.lru();
        assert!(lru.min_ttl_refused > 0 && lru.pgsteal == 0, "{lru:?}");
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| s.engine.write(&s.o, (frames + 900) * PAGE, &[1; 4096]));
            std::thread::sleep(Duration::from_millis(150));
            assert!(!writer.is_finished(), "there is no frame for it yet");
            s.clock.advance(Duration::from_secs(11));
            assert_eq!(writer.join().unwrap().unwrap(), 4096);
        });
        assert!(s.engine.lru().pgsteal > 0);
        assert!(s.engine.drop_clean() > 0, "a command is no pressure");
    }
}
