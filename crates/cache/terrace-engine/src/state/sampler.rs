//! Sample of resident pages: the part of `terrace stat --mrc` (`observe/mrc.rs`) under the state lock.
//!
//! *Touch counts belong to the policy*. [`Watch`] returns to it the counts that the sample took from watched
//! frames. So the policy's decisions do not depend on the sample.

use crate::table::Map;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use terrace_policy::mrc::Shards;
use terrace_shm::TouchTable;
use terrace_shm::touch::TOUCH_MAX;
use terrace_sync::Mutex;

/// Frames examined under one lock.
const SLICE: usize = 512;
/// Largest number of uses noted between two looks; further ones are dropped.
pub(crate) const EVENTS_MAX: usize = 16 << 10;
/// Frames of a chunk of marks.
const CHUNK: usize = 64 * 64;

type Chunk = Box<[AtomicU64; CHUNK / 64]>;

/// The watched frames, and their touches that the policy has not consumed yet.
#[derive(Debug)]
pub(crate) struct Watch {
    touches: Arc<TouchTable>,
    /// One bit per frame, in chunks with watched frames.
    marks: Vec<OnceLock<Chunk>>,
    pages: Mutex<Watched>,
    /// Hashes below this are sampled.
    threshold: AtomicU64,
}

#[derive(Debug, Default)]
struct Watched {
    list: Vec<Page>,
    at: Map<u32, usize>,
}

#[derive(Debug, Clone, Copy)]
struct Page {
    frame: u32,
    key: u64,
    /// Touches taken from the table that belong to the policy.
    saved: u8,
    /// Used since the last look, but no longer visible in the table.
    used: bool,
}

impl Watch {
    pub(crate) fn new(touches: Arc<TouchTable>, frames_max: usize) -> Watch {
        Watch {
            touches,
            marks: (0..frames_max.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect(),
            pages: Mutex::default(),
            threshold: AtomicU64::new(u64::MAX),
        }
    }
    fn wants(&self, key: u64) -> bool {
        Shards::hash(key) < self.threshold.load(Ordering::Relaxed)
    }
    fn mark(&self, frame: u32) -> Option<&AtomicU64> {
        let chunk = self.marks[frame as usize / CHUNK].get()?;
        Some(&chunk[frame as usize % CHUNK / 64])
    }
    #[inline]
    pub(crate) fn is_watched(&self, frame: u32) -> bool {
        self.mark(frame).is_some_and(|word| word.load(Ordering::Relaxed) >> (frame % 64) & 1 != 0)
    }
    fn watch(&self, frame: u32, key: u64) {
        debug_assert!(!self.is_watched(frame), "frame {frame} is watched already");
        let new_chunk = || Box::new([const { AtomicU64::new(0) }; CHUNK / 64]);
        let chunk = self.marks[frame as usize / CHUNK].get_or_init(new_chunk);
        let mut pages = self.pages.lock();
        chunk[frame as usize % CHUNK / 64].fetch_or(1 << (frame % 64), Ordering::Relaxed);
        let at = pages.list.len();
        pages.list.push(Page { frame, key, saved: 0, used: false });
        pages.at.insert(frame, at);
    }
    /// Stops watching a frame. Returns its key, if the page was used since the last look.
    fn forget(&self, pages: &mut Watched, frame: u32) -> Option<u64> {
        let at = pages.at.remove(&frame)?;
        let page = pages.list.swap_remove(at);
        if let Some(moved) = pages.list.get(at) {
            pages.at.insert(moved.frame, at);
        }
        if let Some(word) = self.mark(frame) {
            word.fetch_and(!(1 << (frame % 64)), Ordering::Relaxed);
        }
        let count = self.touches.count(frame);
        let since = count.load(Ordering::Relaxed);
        count.store(since.saturating_add(page.saved).min(TOUCH_MAX), Ordering::Relaxed);
        (page.used || since > 0).then_some(page.key)
    }

    #[inline]
    pub(crate) fn peek(&self, frame: u32) -> u8 {
        let since = self.touches.count(frame).load(Ordering::Relaxed);
        if !self.is_watched(frame) {
            return since;
        }
        let pages = self.pages.lock();
        let saved = pages.at.get(&frame).map_or(0, |&at| pages.list[at].saved);
        since.saturating_add(saved).min(TOUCH_MAX)
    }
    #[inline]
    pub(crate) fn set(&self, frame: u32, count: u8) {
        let in_table = self.touches.count(frame);
        if !self.is_watched(frame) {
            in_table.store(count, Ordering::Relaxed);
            return;
        }
        let mut pages = self.pages.lock();
        let Some(&at) = pages.at.get(&frame) else { return };
        let page = &mut pages.list[at];
        page.used |= in_table.load(Ordering::Relaxed) > 0;
        page.saved = count;
        in_table.store(0, Ordering::Relaxed);
    }

    /// Appends the keys of pages used since the last look, from index `from` of the list on. Returns where to
    /// continue, if there is more.
    pub(crate) fn look(&self, from: usize, used: &mut Vec<u64>) -> Option<usize> {
        let mut pages = self.pages.lock();
        let to = (from + SLICE).min(pages.list.len());
        for page in &mut pages.list[from.min(to)..to] {
            let in_table = self.touches.count(page.frame);
            let since = in_table.load(Ordering::Relaxed);
            if since > 0 {
                in_table.store(0, Ordering::Relaxed);
                page.saved = page.saved.saturating_add(since).min(TOUCH_MAX);
            }
            if since > 0 || page.used {
                page.used = false;
                used.push(page.key);
            }
        }
        (to < pages.list.len()).then_some(to)
    }

    /// Stops watching frames outside the sample.
    pub(crate) fn narrow(&self, threshold: u64) {
        if self.threshold.swap(threshold, Ordering::Relaxed) == threshold {
            return;
        }
        let mut pages = self.pages.lock();
        let unwanted = |page: &&Page| Shards::hash(page.key) >= threshold;
        let frames: Vec<u32> = pages.list.iter().filter(unwanted).map(|page| page.frame).collect();
        for frame in frames {
            self.forget(&mut pages, frame);
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        let chunks = self.marks.iter().filter(|chunk| chunk.get().is_some()).count();
        let pages = self.pages.lock();
        // A table has a key, a value and a control byte per place, and 8/7 to 16/7 as many places as entries.
        chunks * size_of::<[u64; CHUNK / 64]>()
            + pages.list.capacity() * size_of::<Page>()
            + pages.at.capacity() * 17 * 8 / 7
    }
}

/// The part of the sample under the state lock.
#[derive(Debug)]
pub(crate) struct Sampler {
    pub(crate) watch: Arc<Watch>,
    /// Keys of sampled pages that entered or were written since the last look.
    events: Vec<u64>,
    pub(crate) dropped: u64,
    written: u64,
}

impl Sampler {
    pub(crate) fn new(touches: Arc<TouchTable>, frames_max: usize) -> Sampler {
        Sampler {
            watch: Arc::new(Watch::new(touches, frames_max)),
            events: Vec::new(),
            dropped: 0,
            written: 0,
        }
    }
    fn used(&mut self, key: u64) {
        if self.events.len() < EVENTS_MAX {
            self.events.push(key);
        } else {
            self.dropped += 1;
        }
    }
    /// Notes a page that has become resident in a mapped frame, for a use now (`used`) or later.
    pub(crate) fn enter(&mut self, frame: u32, key: u64, used: bool) {
        if self.watch.wants(key) {
            self.watch.watch(frame, key);
            if used {
                self.used(key);
            }
        }
    }
    /// Notes a page that was passed on without being kept.
    pub(crate) fn pass(&mut self, key: u64) {
        if self.watch.wants(key) {
            self.used(key);
        }
    }
    /// Notes a write to a page. `resident`: it had entered before.
    pub(crate) fn write(&mut self, frame: u32, resident: bool) {
        self.written += 1;
        if resident && self.watch.is_watched(frame) {
            let key = {
                let pages = self.watch.pages.lock();
                pages.at.get(&frame).map(|&at| pages.list[at].key)
            };
            if let Some(key) = key {
                self.used(key);
            }
        }
    }
    pub(crate) fn exit(&mut self, frame: u32) {
        if self.watch.is_watched(frame) {
            let watch = self.watch.clone();
            let used = watch.forget(&mut watch.pages.lock(), frame);
            if let Some(key) = used {
                self.used(key);
            }
        }
    }
    /// Takes the events since the last call.
    pub(crate) fn take(&mut self) -> Sampled {
        Sampled {
            watch: self.watch.clone(),
            events: std::mem::take(&mut self.events),
            dropped: std::mem::take(&mut self.dropped),
            written: self.written,
        }
    }
}

/// Events of sampled pages between two looks.
#[derive(Debug)]
pub(crate) struct Sampled {
    pub(crate) watch: Arc<Watch>,
    /// Keys of pages that entered or were written.
    pub(crate) events: Vec<u64>,
    pub(crate) dropped: u64,
    /// Pages written since the start.
    pub(crate) written: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_testkit::rng::Rng;

    fn table() -> Arc<TouchTable> {
        let geometry = terrace_shm::Geometry::for_frames(1 << 16);
        let fd = terrace_shm::map::memfd("touch", geometry.touch_bytes()).unwrap();
        Arc::new(TouchTable::create(&fd, &geometry).unwrap())
    }

    /// The policy gets the same counts for a watched frame, and the next look reports each use once.
    #[test]
    fn the_policy_does_not_notice_a_sampler() {
        let (plain, watched) = (table(), table());
        let watch = Watch::new(watched.clone(), 1 << 16);
        let mut rng = Rng::new(7);
        let frames = [3, 4, 63, 64, 4095, 4096, 40_000];
        frames.iter().for_each(|&f| watch.watch(f, u64::from(f)));
        let mut used = std::collections::BTreeSet::new();
        for step in 0..100_000 {
            let f = *rng.pick(&frames);
            match rng.below(8) {
                0 => {
                    let mut reported = Vec::new();
                    assert_eq!(watch.look(0, &mut reported), None);
                    reported.sort_unstable();
                    assert_eq!(reported, used.into_iter().collect::<Vec<u64>>(), "step {step}");
                    used = std::collections::BTreeSet::new();
                }
                1 => {
                    let count = rng.below(4) as u8;
                    plain.count(f).store(count, Ordering::Relaxed);
                    watch.set(f, count);
                }
                2 => {
                    let was_used = watch.forget(&mut watch.pages.lock(), f);
                    assert_eq!(was_used, used.take(&u64::from(f)), "step {step}");
                    let [ours, theirs] = [&watched, &plain].map(|t| t.count(f).load(Ordering::Relaxed));
                    assert_eq!(ours, theirs, "step {step}");
                    watch.set(f, 0);
                    plain.count(f).store(0, Ordering::Relaxed);
                    watch.watch(f, u64::from(f));
                }
                _ => {
                    plain.touch(f);
                    watched.touch(f);
                    used.insert(u64::from(f));
                }
            }
            for f in frames {
                assert_eq!(watch.peek(f), plain.count(f).load(Ordering::Relaxed), "step {step}");
            }
        }
    }
}
