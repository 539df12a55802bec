//! Readahead marks: when a sequential reader reaches its last window, the workers fetch the next one.
//!
//! ```text
//! miss ■□□□□□□□□□□□ next        □ read along with the miss, or fetched by workers
//!       ▲ marked: once it is touched, the workers fetch the window from `next` on and mark its first page
//! ```
//! A client's hit is one store and causes no event, so this thread polls young marks every millisecond. A
//! faster reader misses at `next`, and continues as without a mark.

use crate::context::Context;
use crate::context::prefetch_queue::Job;
use crate::context::read_marks::Mark;
use crate::readahead::window;
use crate::state::State;
use std::time::Duration;
use terrace_policy::prefetch::Span;
use terrace_shm::PAGE_SIZE;

const LOOK_PERIOD: Duration = Duration::from_millis(1);
/// A mark expires after 200 ms: the reader has stopped or jumped.
const YOUNG_NS: u64 = 200_000_000;
/// Largest sample of the window before the mark, pages.
const JUDGED: u64 = 32;

pub(crate) fn mark_loop(cx: &Context) {
    while !cx.is_stopping() {
        if cx.marks.wait(Duration::from_secs(60)) {
            std::thread::sleep(LOOK_PERIOD);
            look(cx);
        }
    }
}

/// Whether the reader has used at least half of the pages before the mark, by a sample.
fn has_read_before(state: &State, mark: &Mark) -> bool {
    let every = (mark.before.pages / JUDGED).max(1) as usize;
    let sample = (mark.before.first..mark.before.end()).step_by(every);
    let used = sample.clone().filter(|page| state.is_page_used(&mark.object, *page)).count();
    used * 2 >= sample.count()
}

fn look(cx: &Context) {
    let now_ns = cx.clock.now_ns();
    let (mut touched, mut wanted) = (Vec::new(), 0);
    {
        // Inside the lock of the marks, only the state lock is allowed.
        let mut waiting = cx.marks.waiting.lock();
        let mut state = cx.state.lock();
        waiting.retain(|mark| {
            let is_touched = state.is_page_used(&mark.object, mark.page);
            if is_touched && has_read_before(&state, mark) {
                touched.push((mark.object.clone(), mark.page, mark.next));
            }
            !is_touched && now_ns.saturating_sub(mark.since_ns) < YOUNG_NS
        });
        // Without room for the whole window, the reader's own miss is better.
        let window_max = cx.config.readahead_max_bytes / PAGE_SIZE + 1;
        touched.retain(|(_, page, next)| {
            let with_it = wanted + window_max.min(2 * (next - page) as usize);
            let fits = state.room_ahead(cx.pool_frames(), with_it) >= with_it;
            wanted = if fits { with_it } else { wanted };
            fits
        });
    }
    for (object, page, next) in touched {
        if let Some(span) = window::reached(cx, &object, next) {
            cx.jobs.push(Job::Fetch(object.clone(), vec![span]));
            let before = Span { first: page, pages: next - page };
            cx.marks.put(Mark { object, page: next, next: span.end(), before, since_ns: now_ns });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::prefetch;
    use crate::testing::{sparse_object, started};
    use crate::{AccessPath, Engine, EngineConfig, ObjectRef, SystemClock};
    use std::fs::File;
    use std::sync::Arc;
    use terrace_io::testing::NullIo;
    use terrace_testkit::rng::Rng;

    const PAGES: u64 = 20_000;

    /// An engine without threads: after each read the marks are polled and the jobs done.
    struct Fixture {
        engine: Arc<Engine>,
        o: ObjectRef,
        _file: File,
    }

    impl Fixture {
        fn new(mib: u64) -> Fixture {
            let config = EngineConfig {
                memory_bytes: mib << 20,
                memory_max_bytes: Some(mib << 20),
                ..EngineConfig::default()
            };
            let engine = started(config, Arc::new(SystemClock), NullIo);
            let (o, file) = sparse_object(&engine, 1, PAGES * 4096);
            engine.cx.jobs.open();
            Fixture { engine, o, _file: file }
        }
        fn read(&self, page: u64) {
            let mut buf = [0; 4096];
            self.engine.read(&self.o, page * 4096, &mut buf, AccessPath::FuseDirect).unwrap();
            look(&self.engine.cx);
            prefetch::do_all(&self.engine.cx);
        }
        /// Number of misses, and of pages fetched by workers.
        fn counts(&self) -> (u64, u64) {
            let stats = self.engine.stats();
            (stats.fuse.misses, stats.prefetch.fetched)
        }
    }

    #[test]
    fn a_sequential_reader_waits_for_its_first_windows_only() {
        let w = Fixture::new(32);
        (0..2000).for_each(|page| w.read(page));
        let (misses, fetched) = w.counts();
        assert!(misses <= 3, "{misses} misses, {fetched} pages fetched");
        assert!(fetched < 2000 + 2 * 128, "{fetched} pages fetched");
        assert_eq!(w.engine.check(), Vec::<String>::new());
    }

    #[test]
    fn four_readers_in_turn_do_likewise() {
        let w = Fixture::new(200);
        for i in 0..4000 {
            w.read(i % 4 * 5000 + i / 4);
        }
        let (misses, fetched) = w.counts();
        assert!(misses <= 16, "{misses} misses, {fetched} pages fetched");
    }

    /// A sixteenth of the pool is too small for the windows of all readers: some read their own.
    #[test]
    fn readers_without_room_are_no_worse_than_without_marks() {
        let w = Fixture::new(16);
        for i in 0..4000 {
            w.read(i % 4 * 5000 + i / 4);
        }
        let (misses, fetched) = w.counts();
        assert!(misses <= 60, "{misses} misses, {fetched} pages fetched");
    }

    #[test]
    fn a_reader_that_ends_leaves_two_windows() {
        let w = Fixture::new(32);
        for n in 0..10 {
            (0..60).for_each(|page| w.read(n * 2000 + page));
        }
        let (misses, fetched) = w.counts();
        assert!(fetched <= 10 * 128, "{misses} misses, {fetched} pages fetched");
    }

    #[test]
    fn random_readers_have_nothing_marked() {
        let w = Fixture::new(32);
        let mut rng = Rng::new(7);
        for _ in 0..4000 {
            w.read(rng.below(PAGES));
        }
        let (misses, fetched) = w.counts();
        assert!(fetched * 50 < misses, "{misses} misses, {fetched} pages fetched");
    }

    #[test]
    fn marks_that_nobody_touches_are_forgotten() {
        let w = Fixture::new(32);
        (0..40).for_each(|page| w.read(page));
        assert!(!w.engine.cx.marks.waiting.lock().is_empty());
        w.engine.cx.marks.waiting.lock().iter_mut().for_each(|mark| mark.since_ns = 0);
        look(&w.engine.cx);
        assert!(w.engine.cx.marks.waiting.lock().is_empty());
        (40..600).for_each(|page| w.read(page));
        assert!(w.counts().0 <= 8, "{:?}", w.counts());
    }
}
