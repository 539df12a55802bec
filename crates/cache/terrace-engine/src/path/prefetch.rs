//! The prefetch workers: they fetch pages before programs need them, and drop unneeded clean pages.
//!
//! ```text
//! a miss, a hint ──► jobs (bounded: dropped when full) ──► workers ──► frames, on probation
//! ```
//! A program's read of a page under prefetch waits for it. Nothing else waits for a worker. Workers report no
//! errors: the program reads the page itself.

use crate::context::Context;
use crate::context::prefetch_queue::Job;
use crate::file::object::Object;
use crate::path::fault;
use crate::path::pass_on::Absent;
use crate::state::State;
use std::sync::atomic::Ordering;
use terrace_policy::InsertReason;
use terrace_policy::prefetch::Span;
use terrace_shm::PAGE_SIZE;

const PAGE: u64 = PAGE_SIZE as u64;
/// Largest number of pages in a batch of reads, or in a search for clean pages.
const BATCH_MAX: u64 = 256;

/// Does jobs until the engine stops.
pub(crate) fn work_loop(cx: &Context) {
    while let Some(job) = cx.jobs.take() {
        run(cx, &job);
    }
}

#[cfg(test)]
pub(crate) fn do_all(cx: &Context) {
    while let Some(job) = cx.jobs.try_take() {
        run(cx, &job);
    }
}

fn run(cx: &Context, job: &Job) {
    match job {
        Job::Fetch(o, spans) => {
            // Stops when there is no room.
            let mut batches = batches(spans, o.size().div_ceil(PAGE)).take_while(|_| !cx.is_stopping());
            while batches.next().is_some_and(|batch| fetch(cx, o, &batch, &mut |_| {})) {}
        }
        Job::Scheduled(o, pieces) => fetch_pieces(cx, o, pieces),
        Job::Drop(o, span) => drop(drop_clean(cx, o, *span)),
    }
}

/// The pages of the spans within the file, in batches of reads.
fn batches(spans: &[Span], end: u64) -> impl Iterator<Item = Vec<Span>> {
    let pieces = move |span: &Span| {
        let (first, end) = (span.first, span.end().min(end));
        (first..end)
            .step_by(BATCH_MAX as usize)
            .map(move |at| Span { first: at, pages: (end - at).min(BATCH_MAX) })
    };
    let mut pieces = spans.iter().flat_map(pieces).peekable();
    std::iter::from_fn(move || {
        let mut batch = vec![pieces.next()?];
        let mut pages = batch[0].pages;
        while let Some(piece) = pieces.next_if(|piece| pages + piece.pages <= BATCH_MAX) {
            pages += piece.pages;
            batch.push(piece);
        }
        Some(batch)
    })
}

/// Fetches pieces of a schedule, and notifies its follower.
fn fetch_pieces(cx: &Context, o: &Object, pieces: &[(u32, Span)]) {
    let spans: Vec<Span> = pieces.iter().map(|(_, span)| *span).collect();
    let mut masks = vec![0; pieces.len()];
    let mut came = |page| {
        if let Some(at) = spans.iter().position(|span| (span.first..span.end()).contains(&page)) {
            masks[at] |= 1 << (page - spans[at].first);
        }
    };
    let mut batches = batches(&spans, o.size().div_ceil(PAGE)).take_while(|_| !cx.is_stopping());
    while batches.next().is_some_and(|batch| fetch(cx, o, &batch, &mut came)) {}
    cx.followed.landed(pieces.iter().map(|(number, _)| *number).zip(masks));
}

/// Reads the absent pages of the spans, and calls `came` for each. False: there is no room for more.
fn fetch(cx: &Context, o: &Object, spans: &[Span], came: &mut dyn FnMut(u64)) -> bool {
    let mut state = cx.state.lock();
    let mut absent = absent(&mut state, o, spans);
    let room = state.room_ahead(cx.pool_frames(), absent.len());
    let fits = absent.len() <= room;
    absent.truncate(room);
    if absent.is_empty() {
        return fits;
    }
    let mut plan = Vec::with_capacity(absent.len());
    for run in absent.chunk_by(|(a, _), (b, _)| a + 1 == *b) {
        plan.extend(fault::claim_frames(&mut state, run, None));
    }
    if plan.is_empty() {
        return false;
    }
    state.in_flight.extend(plan.iter().map(|p| (o.slot_index(), p.page)));
    cx.wake_reclaim_if_low(&state);
    drop(state);
    let arrived = fault::read_planned(cx, o, &plan).arrived;
    let mut state = cx.state.lock();
    for (p, arrived) in plan.iter().zip(arrived) {
        let published = fault::publish_planned(&mut state, o, p, arrived, InsertReason::Readahead);
        // A page without a place in the index is not kept.
        if published && state.lru.policy.contains(p.frame) {
            state.ahead.add(p.frame);
            came(p.page);
            cx.counters.prefetched.fetch_add(1, Ordering::Relaxed);
        }
    }
    drop(state);
    cx.fault_done.notify_all();
    fits
}

/// Absent pages of the spans that no thread is reading.
fn absent(state: &mut State, o: &Object, spans: &[Span]) -> Vec<Absent> {
    // The file has an invisible writer: prefetched content may become outdated, unread by clients.
    if !state.objects.is_known(o) || o.is_slow() {
        return Vec::new();
    }
    let slot = o.slot_index();
    // The file may have shrunk. A truncate sets the size first, and drops frames claimed before.
    let end = o.size().div_ceil(PAGE);
    let mut absent = Vec::new();
    for page in spans.iter().flat_map(|span| span.first..span.end().min(end)) {
        if state.in_flight.contains(&(slot, page)) {
            continue;
        }
        // See `read::plan`.
        state.pages.index.ensure(slot, page);
        absent.extend(state.pages.snapshot(o, page).map(|seen| (page, seen)));
    }
    absent
}

/// Drops the clean pages of a span. Returns their number.
pub(crate) fn drop_clean(cx: &Context, o: &Object, span: Span) -> u64 {
    let end = span.end().min(o.size().div_ceil(PAGE));
    let drop = |first: u64| cx.state.lock().drop_clean(o, first, (first + BATCH_MAX).min(end) - 1);
    let dropped = (span.first..end).step_by(BATCH_MAX as usize).map(drop).sum();
    cx.counters.dropped.fetch_add(dropped, Ordering::Relaxed);
    dropped
}

/// Pins a span's resident pages until `until_ns`, up to half of the pool. Returns their number.
pub(crate) fn pin(cx: &Context, o: &Object, span: Span, until_ns: u64) -> u64 {
    let end = span.end().min(o.size().div_ceil(PAGE));
    let pin = |first: u64| {
        let last = (first + BATCH_MAX).min(end) - 1;
        cx.state.lock().pin(o, first, last, until_ns, cx.pool_frames())
    };
    (span.first..end).step_by(BATCH_MAX as usize).map(pin).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{sparse_object, started};
    use crate::{AccessPath, Engine, EngineConfig, ObjectRef, SystemClock};
    use std::fs::File;
    use std::sync::{Arc, OnceLock};
    use terrace_io::testing::{Call, HookIo, NullIo};
    use terrace_io::{BlockingIo, Io};
    use terrace_testkit::rng::Rng;

    const PAGES: u64 = 10_000;

    /// An engine without threads: [`Fixture::work`] does the jobs.
    struct Fixture {
        engine: Arc<Engine>,
        o: ObjectRef,
        _file: File,
    }

    impl Fixture {
        fn new(io: impl Io + 'static) -> Fixture {
            let config = EngineConfig {
                memory_bytes: 16 << 20,
                memory_max_bytes: Some(16 << 20),
                ..EngineConfig::default()
            };
            let engine = started(config, Arc::new(SystemClock), io);
            let (o, file) = sparse_object(&engine, 1, PAGES * PAGE);
            engine.cx.jobs.open();
            Fixture { engine, o, _file: file }
        }
        fn work(&self) {
            do_all(&self.engine.cx);
        }
        fn read(&self, page: u64) -> Vec<u8> {
            let mut buf = vec![1; PAGE_SIZE];
            let n = self.engine.read(&self.o, page * PAGE, &mut buf, AccessPath::FuseDirect).unwrap();
            assert_eq!(n, PAGE_SIZE);
            buf
        }
        /// Number of pages fetched by workers, and of misses.
        fn counts(&self) -> (u64, u64) {
            let stats = self.engine.stats();
            (stats.prefetch.fetched, stats.fuse.misses)
        }
        fn finish(self) {
            let state = self.engine.cx.state.lock();
            assert_eq!((state.claimed, state.in_flight.len()), (0, 0));
            drop(state);
            assert_eq!(self.engine.check(), Vec::<String>::new());
        }
    }

    #[test]
    fn steps_of_a_stride_are_fetched_by_workers() {
        let w = Fixture::new(NullIo);
        for n in 0..600 {
            w.read(5 + n * 16);
            w.work();
        }
        let (fetched, misses) = w.counts();
        assert!(misses <= 40 && (550..640).contains(&fetched), "{misses} misses, {fetched} pages fetched");
        w.finish();
    }

    #[test]
    fn random_reads_have_nothing_fetched() {
        let w = Fixture::new(NullIo);
        let mut rng = Rng::new(3);
        for _ in 0..3000 {
            w.read(rng.below(PAGES));
            w.work();
        }
        let (fetched, misses) = w.counts();
        assert!(fetched < misses / 100, "{fetched} pages fetched for {misses} misses");
        w.finish();
    }

    /// The file is truncated after a worker has read its size.
    #[test]
    fn nothing_is_fetched_beyond_an_end_that_came_meanwhile() {
        let w = Fixture::new(BlockingIo::default());
        w.engine.truncate(&w.o, 5 * PAGE + 9).unwrap();
        let mut came = Vec::new();
        assert!(fetch(&w.engine.cx, &w.o, &[Span { first: 2, pages: 60 }], &mut |page| came.push(page)));
        assert_eq!(came, [2, 3, 4, 5]);
        w.finish();
    }

    #[test]
    fn fetched_pages_are_hits_and_at_most_a_sixteenth() {
        let w = Fixture::new(NullIo);
        let max = u64::from(w.engine.cx.pool_frames() / 16);
        w.engine.will_need(&w.o, 100, PAGES);
        w.work();
        assert_eq!(w.counts(), (max, 0));
        w.engine.will_need(&w.o, 100 + max, 50);
        w.work();
        assert_eq!(w.counts().0, max, "none of them was used");
        for n in 0..max {
            w.read(100 + n);
        }
        assert_eq!(w.counts().1, 0, "all were hits");
        w.engine.will_need(&w.o, 100 + max, 50);
        w.work();
        assert_eq!(w.counts().0, max + 50, "those that were used make room");
        w.engine.will_need(&w.o, u64::MAX - 5, 5);
        w.work();
        w.finish();
    }

    #[test]
    fn page_written_while_it_is_fetched_stays_as_written() {
        let engine: Arc<OnceLock<(Arc<Engine>, ObjectRef)>> = Arc::default();
        let writer = engine.clone();
        let w = Fixture::new(HookIo::new(NullIo, move |call| {
            if let (Call::Read(_), Some((engine, o))) = (call, writer.get()) {
                engine.write(o, 7 * PAGE, &[9; PAGE_SIZE]).unwrap();
            }
            Ok(())
        }));
        engine.set((w.engine.clone(), w.o.clone())).unwrap();
        w.engine.will_need(&w.o, 5, 5);
        w.work();
        assert_eq!(w.counts().0, 4, "all but the one that was written");
        for page in 5..10 {
            assert_eq!(w.read(page), vec![if page == 7 { 9 } else { 0 }; PAGE_SIZE], "page {page}");
        }
        w.finish();
    }

    #[test]
    fn failed_fetch_is_nobodys_error() {
        let w = Fixture::new(HookIo::new(NullIo, |call| match call {
            Call::Read(2..) => Err(std::io::ErrorKind::Other.into()),
            _ => Ok(()),
        }));
        let spans = [5, 8].map(|first| Span { first, pages: 1 });
        w.engine.cx.jobs.push(Job::Fetch(w.o.clone(), spans.to_vec()));
        w.work();
        assert_eq!(w.counts().0, 0);
        assert_eq!(w.read(5), vec![0; PAGE_SIZE]);
        w.finish();
    }

    #[test]
    fn clean_pages_are_dropped_and_dirty_ones_stay() {
        let w = Fixture::new(BlockingIo::default());
        for page in 0..20 {
            w.read(page);
        }
        w.engine.write(&w.o, 12 * PAGE, &[5; PAGE_SIZE]).unwrap();
        let before = w.engine.stats().memory.pages;
        w.engine.wont_need(&w.o, 10, 5);
        w.work();
        let stats = w.engine.stats();
        assert_eq!((before - stats.memory.pages, stats.prefetch.dropped), (4, 4));
        assert_eq!(w.read(12), vec![5; PAGE_SIZE]);
        w.engine.flush(&w.o, 0..u64::MAX).unwrap();
        w.engine.wont_need(&w.o, 0, u64::MAX);
        w.work();
        assert_eq!((w.read(12), w.read(13)), (vec![5; PAGE_SIZE], vec![0; PAGE_SIZE]));
        w.finish();
    }

    #[test]
    fn jobs_beyond_the_queue_are_dropped() {
        let w = Fixture::new(NullIo);
        (0..100).for_each(|n| w.engine.will_need(&w.o, n, 1));
        assert_eq!(w.engine.stats().prefetch.refused, 36);
        w.work();
        assert_eq!(w.counts().0, 64);
        w.engine.cx.jobs.close();
        w.engine.will_need(&w.o, 200, 1);
        assert_eq!(w.engine.stats().prefetch.refused, 37);
        assert!(w.engine.cx.jobs.take().is_none(), "workers end");
        w.finish();
    }

    #[test]
    fn batches_have_a_maximum_and_end_with_the_file() {
        let all = |spans: &[(u64, u64)], end| {
            let spans: Vec<Span> = spans.iter().map(|&(first, pages)| Span { first, pages }).collect();
            let batch = |batch: Vec<Span>| batch.iter().map(|s| (s.first, s.pages)).collect::<Vec<_>>();
            batches(&spans, end).map(batch).collect::<Vec<_>>()
        };
        let cut = [vec![(0, 256)], vec![(256, 256)], vec![(512, 88), (900, 50)]];
        assert_eq!(all(&[(0, 600), (900, 100)], 950), cut);
        assert_eq!(all(&[(1000, 5), (u64::MAX - 1, 1)], 950), Vec::<Vec<(u64, u64)>>::new());
    }
}
