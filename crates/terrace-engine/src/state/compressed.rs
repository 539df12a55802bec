//! The compressed tier: a page that pressure pushes out of DRAM is kept in less room, and its next read is a decompression
//! instead of a read of the device.
//!
//! Life of a page in it: the policy gives it up, and the tier has room (which it fills slowly where processors are busy), or the page was
//! used more than once (`flag::REUSED`) -> [`Engine::compress`] (reclaim's thread, no lock) -> [`Core::stow`]: the entry names the pool's
//! object, the frame is free -> readers decode it into their own buffers (`terrace-shm/src/tier.rs`), and it stays where it is -> asked for
//! often enough of late ([`PROMOTE_AT`]): [`Core::promote`] -> or nobody reads it, and [`Core::make_room_below`] gives it up, oldest first.
//!
//! Only clean pages go there, so that a crash loses nothing: the next daemon begins with an empty pool. How much memory the tier has
//! follows what it earns (`terrace-policy/src/boundary.rs`).

use crate::clock::thread_cpu_ns;
use crate::engine::Engine;
use crate::file::object::Object;
use crate::preload_server::Totals;
use crate::reclaim::BATCH;
use crate::reclaim::cpu_headroom::Idle;
use crate::segment::SegmentHandles;
use crate::segment::flag::{HELD, LEAVING, REUSED};
use crate::state::Core;
use crate::stats::CompressedTier;
use std::cell::RefCell;
use std::io;
use std::num::NonZero;
use std::sync::atomic::Ordering;
use std::time::Duration;
use terrace_policy::boundary::{Boundary, Costs, Window};
use terrace_policy::{Shadow, Victim, Why};
use terrace_shm::codec::{Codec, Coded, Page, Unpack};
use terrace_shm::compress::{Compressor, Mode, Refusal, Unzstd};
use terrace_shm::index::Place;
use terrace_shm::layout::{CHUNK_FRAMES, HUGE};
use terrace_shm::protocol::{publish, replace};
use terrace_shm::zobject::Handle;
use terrace_shm::zpool::{Corrupt, ZPool};
use terrace_shm::{Entry, PAGE_SIZE, State};

/// What compressing a page costs, ns, until something better is known: LZ4.
const COMPRESS_NS: u64 = 8_000;
/// What a hit costs, ns, until something better is known; and of that what is not decompressing: finding, copying, checking.
const DECOMPRESS_NS: u64 = 3_500;
const HIT_NS: u64 = 1_500;
/// What a miss takes of the processors beyond a hit, ns: for each read of the device, which is begun and ended, with two changes of thread;
/// and for each page, which is donated and listed, and another one evicted. fio, nearly all of whose reads missed, took 24 us for a read of
/// one page, 30 for four, 62 for sixteen, its own calls included.
const READ_WORK_NS: u64 = 14_500;
const PAGE_WORK_NS: u64 = 2_500;
/// Reads of the device that tell what one takes.
const READS_MIN: u64 = 64;
/// Share of the processors that may go into filling the tier while they are busy: more would be felt before it can pay.
const FILLING_BUSY: f64 = 0.02;
/// A longer while in which nothing was judged does not count in full for that.
const FILLING_PAST_MAX: Duration = Duration::from_millis(500);
/// How often the boundary is looked at.
const JUDGED_EVERY: Duration = Duration::from_millis(50);
/// Objects given up under one lock to make room.
const GIVE_UP: usize = 64;
/// Bytes that compaction moves under one lock.
const COMPACT_BYTES: usize = 256 << 10;
/// Unused zspages that keep their memory, bytes.
const IDLE_BYTES: u64 = 1 << 20;
/// What a page that can be compressed says against so many of its file that cannot; and one that LZ4 can, against those left to zstd: a
/// vain try of LZ4 costs half of what zstd does.
const REFUSALS_OUTWEIGHED: u16 = u16::MAX;
const LZ4_OUTWEIGHS: u16 = 4;
/// The shadow of a page that was in memory, which is all that is known; the policy is not told. So of a page that left the tier: it has been
/// away longer than anything in DRAM. (With a shadow of the policy's, all pages of a loop came back as recent ones, and circulated.) And where
/// the policy makes none at all: the tier wants to know what comes back. No policy makes this one but once in 2^31 evictions.
pub(crate) const WAS_HERE: u32 = u32::MAX;
/// A page is promoted when it is touched so often below: then it has been read so much more than others there that what promoting costs,
/// a decompression and another page's compression, comes back in decompressions saved.
const PROMOTE_AT: u32 = 8;

/// Which pages go to the compressed tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admit {
    /// Those that were read again after they came, or that came back; any while there is room.
    Reused,
    /// All.
    All,
}

/// The compressed tier as it is configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompressedConfig {
    /// Codecs; None: no compressed tier.
    pub codec: Option<Mode>,
    /// Share of memory that it has in any case, per cent.
    pub min_share: u32,
    /// Share of memory that it may have, per cent.
    pub max_share: u32,
    /// Which pages it takes.
    pub admit: Admit,
    /// A page whose result is longer than this share of it stays uncompressed, per cent.
    pub refuse_percent: u32,
    /// What a read of the device costs, ns, until something better is known.
    pub miss_ns: u64,
}

impl Default for CompressedConfig {
    fn default() -> CompressedConfig {
        CompressedConfig {
            codec: Some(Mode::Mixed),
            min_share: 0,
            max_share: 75,
            admit: Admit::Reused,
            refuse_percent: 75,
            // An NVMe disk.
            miss_ns: 60_000,
        }
    }
}

/// What has happened in the tier beside what the pool counts.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct TierCounts {
    /// Pages refused: too long a result, and those whose file is known for it.
    pub reject_compress_poor: u64,
    pub reject_by_file: u64,
    /// Pages that came back to DRAM.
    pub promoted: u64,
    /// Pages whose content or state changed while they were compressed.
    pub changed: u64,
    /// Pages that the pool had already when they came.
    pub duplicates: u64,
    /// Pages compressed that were taken for no reason but that there was room.
    pub filling: u64,
    /// Pages compressed, whatever came of it, and the processor time that it took, putting away included, ns.
    pub compressed: u64,
    pub compress_ns: u64,
}

/// The tier's books. Behind the core lock.
#[derive(Debug)]
pub(crate) struct Compressed {
    pub pool: ZPool,
    pub boundary: Boundary,
    pub counts: TierCounts,
    admit: Admit,
    /// The policy keeps shadows: those it wants.
    has_ghost: bool,
    unzstd: Unzstd,
    compressor_bytes: usize,
    /// Pages that may be compressed for no reason but that there is room, until the tier is judged again.
    filling_may: u64,
    /// Of the window under way.
    refaults: u64,
    /// Counters when it began: pages stored, refused, not tried and promoted, reads answered, pages compressed for there was room.
    began: [u64; 6],
    /// Reads answered when touches were aged.
    aged_at: u64,
    /// What the daemon has read of the source, where most pages came back: pages, in how many reads, ns.
    source_read: [u64; 3],
    /// This, and what clients had read, when its cost was last looked at.
    read_at: [u64; 3],
}

/// A page on its way out of DRAM. Until it has arrived it is resident as before.
#[derive(Debug)]
pub(crate) struct Leaving {
    place: Place,
    frame: u32,
    entry: Entry,
    shadow: Option<Shadow>,
    /// A full tier would not have taken it.
    filling: bool,
    /// LZ4 need not be tried.
    beyond_lz4: bool,
}

/// When the reclaim thread last judged the tier, and what it keeps for that.
#[derive(Debug)]
pub(crate) struct Judge {
    at_ns: u64,
    idle: Idle,
    /// Asked once: the answer takes several files of /proc and the control group.
    processors: usize,
}

impl Judge {
    pub(crate) fn new() -> Judge {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        Judge { at_ns: 0, idle: Idle::default(), processors }
    }
}

impl Compressed {
    /// An empty tier; None if there is to be none.
    ///
    /// # Errors
    /// Out of memory; what a predecessor left in the pool cannot be given back.
    pub(crate) fn new(
        config: CompressedConfig,
        has_ghost: bool,
        handles: &SegmentHandles,
    ) -> io::Result<Option<Compressed>> {
        let pool = ZPool::new(handles.segment.clone(), handles.touches.clone())?;
        if config.codec.is_none() || config.max_share == 0 {
            return Ok(None);
        }
        let (read, work) = (config.miss_ns, READ_WORK_NS + PAGE_WORK_NS);
        let costs = Costs { read, work, compress: COMPRESS_NS, decompress: DECOMPRESS_NS };
        handles.segment.header().promote_at.store(PROMOTE_AT, Ordering::Relaxed);
        Ok(Some(Compressed {
            pool,
            boundary: Boundary::new(costs),
            counts: TierCounts::default(),
            admit: config.admit,
            has_ghost,
            unzstd: Unzstd::new()?,
            compressor_bytes: 0,
            filling_may: u64::MAX,
            refaults: 0,
            began: [0; 6],
            aged_at: 0,
            source_read: [0; 3],
            read_at: [0; 3],
        }))
    }

    /// Memory that it should have, bytes.
    pub(crate) fn target(&self) -> u64 {
        u64::from(self.boundary.chunks()) * HUGE as u64
    }
    /// Memory of its books and codecs, bytes.
    pub(crate) fn books_bytes(&self) -> u64 {
        self.pool.books_bytes() + (self.unzstd.bytes() + self.compressor_bytes) as u64
    }
    /// Whether more pages fit in without others leaving.
    pub(crate) fn has_room(&self) -> bool {
        !self.fills(self.pool.limit())
    }
    /// Whether it has filled so many bytes.
    fn fills(&self, bytes: u64) -> bool {
        self.pool.bytes() - self.pool.idle_bytes() >= bytes / 16 * 15
    }

    /// Sets what may be compressed to fill it in the next while, if it is like the last `past` ns of so many processors.
    fn allow_filling(&mut self, past: u64, processors: usize) {
        let ns = past as f64 * processors as f64 * FILLING_BUSY;
        let slowly = self.boundary.is_busy() && !self.boundary.is_least();
        self.filling_may = if slowly { ns as u64 / self.boundary.costs.compress.max(1) } else { u64::MAX };
    }
    /// Whether it has not filled what it had before its last step, and may not do so now.
    fn is_starved(&self) -> bool {
        self.filling_may == 0 && !self.fills(u64::from(self.boundary.chunks_before()) * HUGE as u64)
    }

    /// Learns what a missing page costs from reads of the source, those of clients being given: what one read takes, its pages share.
    fn note_reads(&mut self, clients: [u64; 3]) {
        let now: [u64; 3] = std::array::from_fn(|i| clients[i].wrapping_add(self.source_read[i]));
        let [pages, reads, ns] = std::array::from_fn(|i| now[i].saturating_sub(self.read_at[i]));
        if pages < READS_MIN {
            return;
        }
        self.read_at = now;
        // Clients count, and may count nonsense.
        let (reads, ns) = (reads.clamp(1, pages), (ns / pages).clamp(1_000, 1_000_000_000));
        let costs = &mut self.boundary.costs;
        learn::<9>(&mut costs.read, ns);
        learn::<9>(&mut costs.work, PAGE_WORK_NS + READ_WORK_NS.saturating_mul(reads) / pages);
    }

    /// Learns what decompressing costs from one page, for which it took `ns` of the processor. One tells little: zstd's take three times
    /// what LZ4's do, and the clock goes on while an interrupt is served or the hypervisor lets others run: one page of 5 ms would make
    /// the tier give up all its memory, and as it then compresses nothing, it would never hear of a better price.
    fn note_unpacking(&mut self, ns: u64) {
        let known = &mut self.boundary.costs.decompress;
        learn::<65>(known, (HIT_NS + ns).min(4 * *known));
    }

    /// What `terrace stat` shows; `hits` are counted at the doors.
    pub(crate) fn stats(&self, hits: u64) -> CompressedTier {
        let (pool, counts, c) = (&self.pool, self.pool.counts(), self.counts);
        let share = |a: u64, b: u64| if b > 0 { a as f64 / b as f64 } else { 0.0 };
        let compressed = counts.stored_pages + c.reject_compress_poor;
        CompressedTier {
            pool_bytes: pool.bytes(),
            pool_limit_bytes: pool.limit(),
            books_bytes: self.books_bytes(),
            live_bytes: pool.live_bytes(),
            pages: pool.stored_pages(),
            density: share(pool.stored_pages() * PAGE_SIZE as u64, pool.bytes()),
            bypassed: !self.boundary.compresses(),
            hits,
            hits_per_compression: share(hits, compressed),
            stored_pages: counts.stored_pages,
            loaded_pages: counts.loaded_pages,
            evicted_pages: counts.evicted_pages,
            pgpromote: c.promoted,
            reject_compress_poor: c.reject_compress_poor,
            reject_by_file: c.reject_by_file,
            alloc_failures: counts.alloc_failures,
            changed: c.changed,
            duplicates: c.duplicates,
            moved_bytes: counts.moved_bytes,
            compress_ns: c.compress_ns / c.compressed.max(1),
            miss_ns: self.boundary.costs.read,
        }
    }
}

/// A moving mean: what was `seen` last is one part in `PARTS` of it.
fn learn<const PARTS: u64>(known: &mut u64, seen: u64) {
    *known += seen / (PARTS - 1);
    *known -= *known / PARTS;
}

impl Core {
    /// A page was read from the source that had been here before.
    pub(crate) fn note_refault(&mut self) {
        self.tier.iter_mut().for_each(|tier| tier.refaults += 1);
    }

    /// The daemon has read so many pages at once, most of which had been here before. (What comes for the first time no tier would have saved:
    /// a scan is not to make misses look cheap.)
    pub(crate) fn note_source_read(&mut self, pages: usize, ns: u64) {
        let Some(tier) = &mut self.tier else { return };
        [pages as u64, 1, ns].iter().zip(&mut tier.source_read).for_each(|(more, sum)| *sum += more);
    }

    /// What the entry of a page that leaves memory keeps, given what the policy wants to be told when it comes back.
    pub(crate) fn trace_of(&self, shadow: Option<Shadow>) -> u32 {
        let untold = if self.tier.as_ref().is_some_and(|tier| !tier.has_ghost) { WAS_HERE } else { 0 };
        shadow.map_or(untold, |shadow| shadow.0.get())
    }

    /// Whether a page that is being given up is worth compressing. It goes back to the policy until it is.
    pub(crate) fn leaves_for_tier(&mut self, v: &Victim, place: Place) -> Option<Leaving> {
        let tier = self.tier.as_mut()?;
        let flags = self.handles.frame_flags(v.slot).load(Ordering::Relaxed);
        let filling = tier.admit == Admit::Reused && flags & REUSED == 0;
        if filling && (tier.filling_may == 0 || !tier.has_room()) {
            return None;
        }
        if !tier.boundary.compresses() {
            tier.boundary.passed();
            return None;
        }
        let has_memory = tier.pool.limit() > 0;
        let (slot, _) = self.index.whose(place);
        let object = self.object_in_slot(slot);
        // Also while there is no memory: the boundary should know what it would be for.
        if object.is_some_and(|o| o.compressing.spares()) {
            self.tier.as_mut()?.counts.reject_by_file += 1;
            return None;
        }
        let beyond_lz4 = object.is_some_and(|o| o.lz4.spares());
        if !has_memory {
            return None;
        }
        let tier = self.tier.as_mut()?;
        tier.filling_may -= u64::from(filling);
        self.policy.restore(v.slot);
        self.handles.frame_flags(v.slot).fetch_or(LEAVING, Ordering::Relaxed);
        let entry = self.index.get(place);
        Some(Leaving { place, frame: v.slot, entry, shadow: v.shadow, filling, beyond_lz4 })
    }

    /// The page that was to leave has been compressed, or cannot be: its frame becomes free, unless it is used otherwise by now.
    fn stow(&mut self, leaving: &Leaving, coded: Result<Coded<'_>, Refusal>) -> bool {
        let Leaving { place, frame, entry, shadow, filling, beyond_lz4 } = *leaving;
        let flags = self.handles.frame_flags(frame).fetch_and(!LEAVING, Ordering::Relaxed);
        let now = self.index.get(place);
        if now != entry || flags & HELD != 0 || !self.policy.contains(frame) {
            let counts = &mut self.tier.as_mut().expect("pages leave for it").counts;
            // What is there stays: it is not older than what we bring.
            let count = if now.state() == State::Tier { &mut counts.duplicates } else { &mut counts.changed };
            *count += 1;
            return false;
        }
        self.policy.remove(frame);
        self.tier.as_mut().expect("pages leave for it").counts.filling += u64::from(filling);
        let (slot, _) = self.index.whose(place);
        let codec = coded.as_ref().ok().map(|coded| coded.codec);
        if let Some(o) = self.object_in_slot(slot) {
            o.compressing.note(codec.is_some(), REFUSALS_OUTWEIGHED);
            if !beyond_lz4 && codec != Some(Codec::Same) {
                o.lz4.note(codec == Some(Codec::Lz4), LZ4_OUTWEIGHS);
            }
        }
        let handle = match coded {
            Ok(coded) => {
                let tier = self.tier.as_mut().expect("as above");
                tier.pool.store(coded, place).or_else(|| {
                    self.make_room_below(GIVE_UP);
                    self.tier.as_mut()?.pool.store(coded, place)
                })
            }
            Err(_) => {
                self.tier.as_mut().expect("as above").counts.reject_compress_poor += 1;
                None
            }
        };
        match handle {
            Some(handle) => {
                let clock = self.index.tick();
                replace(self.index.entry(place), Entry::tier(handle.0, clock));
                self.free_owned(frame);
            }
            None => self.release(place, frame, self.trace_of(shadow)),
        }
        self.counts.pgsteal += 1;
        true
    }

    /// Gives up to `want` pages of the tier up, oldest first, and brings what is left together. Pages given up.
    pub(crate) fn make_room_below(&mut self, want: usize) -> usize {
        let Some(tier) = &mut self.tier else { return 0 };
        let mut coldest = Vec::new();
        tier.pool.coldest(want, &mut coldest);
        for &(handle, place) in &coldest {
            self.make_absent(place, WAS_HERE);
            self.tier.as_mut().expect("as above").pool.evict(handle);
        }
        let Core { tier: Some(tier), index, .. } = self else { return 0 };
        tier.pool.compact(COMPACT_BYTES, |place, _, new| {
            let clock = index.tick();
            replace(index.entry(place), Entry::tier(new.0, clock));
        });
        if let Err(e) = tier.pool.trim(IDLE_BYTES) {
            tracing::warn!("memory of the compressed tier not given back: {e}");
        }
        coldest.len()
    }

    /// Drops the compressed page at `place`, if that is what stands there.
    pub(crate) fn expel(&mut self, place: Place) {
        let e = self.index.get(place);
        if e.state() != State::Tier {
            return;
        }
        self.make_absent(place, 0);
        self.tier.as_mut().expect("an entry names its pool").pool.remove(Handle(e.payload()));
    }

    /// Brings the compressed page at `place` back into a frame; false if there is no frame, or nothing there that could be read.
    pub(crate) fn promote(&mut self, place: Place) -> bool {
        if self.index.get(place).state() != State::Tier {
            return false;
        }
        let Some(frame) = self.claim() else { return false };
        // Making room for the frame may have made room below.
        let e = self.index.get(place);
        if e.state() != State::Tier || self.load(Handle(e.payload()), frame).is_err() {
            self.unclaim(frame);
            self.expel(place);
            return false;
        }
        self.book_frame(place, frame);
        let clock = self.index.tick();
        publish(self.index.entry(place), Entry::present(frame, clock));
        let tier = self.tier.as_mut().expect("an entry names its pool");
        tier.pool.remove(Handle(e.payload()));
        tier.counts.promoted += 1;
        // Whoever is read so often below has earned its place above.
        let shadow = self.policy.shadow();
        self.list(frame, shadow, Why::Read, true);
        self.handles.frame_flags(frame).store(REUSED, Ordering::Relaxed);
        true
    }

    /// Decompresses into a claimed frame.
    fn load(&mut self, handle: Handle, frame: u32) -> Result<(), Corrupt> {
        let Compressed { pool, unzstd, .. } = self.tier.as_mut().expect("an entry names its pool");
        let at = self.handles.segment.frame(frame).cast::<Page>();
        // SAFETY: a claimed frame is ours alone, and in bounds.
        let result = pool.load(handle, unzstd, unsafe { &mut *at });
        if result.is_err() {
            tracing::error!("a compressed page is damaged; it is read from the source again");
        }
        result
    }

    /// [`Core::promote`] by page.
    pub(crate) fn promote_page(&mut self, o: &Object, page: u64) -> bool {
        self.is_known(o) && self.index.find(o.slot_index(), page).is_some_and(|place| self.promote(place))
    }

    /// [`Core::expel`] by page.
    pub(crate) fn expel_page(&mut self, o: &Object, page: u64) {
        if let Some(place) = self.index.find(o.slot_index(), page).filter(|_| self.is_known(o)) {
            self.expel(place);
        }
    }

    /// What does not agree between the pool and the entries that name its objects, of which there are `named`.
    pub(crate) fn check_tier(&self, named: &[(Place, Handle)], bad: &mut Vec<String>) {
        let Some(tier) = &self.tier else {
            if !named.is_empty() {
                bad.push(format!("{} pages in a tier that does not exist", named.len()));
            }
            return;
        };
        bad.extend(tier.pool.check().err());
        for &(place, handle) in named {
            if !tier.pool.is_live(handle) || tier.pool.place(handle) != place {
                bad.push(format!("{place:?} names {handle:?}, which is no page of it"));
            }
        }
        if tier.pool.stored_pages() != named.len() as u64 {
            bad.push(format!("{} compressed pages, {} named", tier.pool.stored_pages(), named.len()));
        }
    }
}

impl Engine {
    /// Compresses pages that leave DRAM, and frees their frames. Frames freed.
    pub(crate) fn compress(&self, leaving: &[Leaving], compressor: &mut Compressor) -> usize {
        if leaving.is_empty() {
            return 0;
        }
        let mut freed = 0;
        let mut page: Page = [0; PAGE_SIZE];
        // What it costs decides whether it pays: how long we sleep for a lock or wait for a processor does not belong to that.
        let mut reader = Reader::new(self);
        let began = thread_cpu_ns();
        let mut unpacking = None;
        for l in leaving {
            // SAFETY: in bounds. A writer may change the page while it is copied: the entry then is another, and `stow` refuses it.
            unsafe {
                let frame = self.handles.segment.frame(l.frame);
                std::ptr::copy_nonoverlapping(frame, page.as_mut_ptr(), PAGE_SIZE);
            }
            let coded = match l.beyond_lz4 {
                true => compressor.compress_beyond_lz4(&page),
                false => compressor.compress(&page),
            };
            // And one of each batch tells what it will cost to have it back.
            if unpacking.is_none()
                && let Ok(coded) = coded
            {
                let before = thread_cpu_ns();
                let decoded = coded.decode(&mut page, &mut reader);
                unpacking = decoded.then(|| thread_cpu_ns().saturating_sub(before));
            }
            freed += usize::from(self.core.lock().stow(l, coded));
        }
        let spent = thread_cpu_ns().saturating_sub(began);
        if let Some(tier) = &mut self.core.lock().tier {
            if let Some(ns) = unpacking {
                tier.note_unpacking(ns);
            }
            tier.counts.compress_ns += spent.saturating_sub(unpacking.unwrap_or(0));
            tier.counts.compressed += leaving.len() as u64;
        }
        freed
    }

    /// Looks how idle the machine is, now and then. By reclaim's thread, also while it has nothing to do.
    pub(crate) fn note_idle(&self, judge: &mut Judge) {
        let own = self.core.lock().tier.as_ref().map_or(0, |tier| tier.counts.compress_ns);
        let Some(free) = judge.idle.share(self.clock.now_ns(), own) else { return };
        if let Some(tier) = &mut self.core.lock().tier {
            (tier.boundary.idle, tier.boundary.given) = (free.idle, free.given);
        }
    }

    /// Looks at what the last window brought, and moves the boundary if need be: by so many chunks.
    pub(crate) fn judge_tier(&self, judge: &mut Judge) -> i64 {
        let now = self.clock.now_ns();
        let past = now.saturating_sub(judge.at_ns);
        if past < JUDGED_EVERY.as_nanos() as u64 {
            return 0;
        }
        judge.at_ns = now;
        self.note_idle(judge);
        let fast = self.clients.totals();
        let hits = self.tier_hits(&fast);
        let mut core = self.core.lock();
        let Some(tier) = &mut core.tier else { return 0 };
        tier.note_reads([fast.misses, fast.reads, fast.read_ns]);
        let starved = tier.is_starved();
        let (c, pool) = (tier.counts, &tier.pool);
        let stored = pool.counts().stored_pages;
        let ends = [stored, c.reject_compress_poor, c.reject_by_file, c.promoted, hits, c.filling];
        let [stored, refused, untried, promoted, tier_hits, filling] =
            std::array::from_fn(|i| ends[i].saturating_sub(tier.began[i]));
        let window = Window {
            refaults: tier.refaults,
            tier_hits,
            promoted,
            stored,
            refused,
            filling,
            untried,
            tier_pages: pool.stored_pages(),
            tier_frames: pool.slot_bytes() / PAGE_SIZE as u64,
            full: tier.fills(tier.target()),
            starved,
        };
        tier.pool.age(hits.saturating_sub(std::mem::replace(&mut tier.aged_at, hits)) as usize);
        let (before, compressed) = (tier.boundary.chunks(), tier.boundary.compresses());
        if let Some(each) = c.compress_ns.checked_div(c.compressed) {
            tier.boundary.costs.compress = each;
        }
        tier.allow_filling(past.min(FILLING_PAST_MAX.as_nanos() as u64), judge.processors);
        if tier.boundary.judge(window) {
            (tier.refaults, tier.began) = (0, ends);
        }
        let rests = compressed && !tier.boundary.compresses();
        let moved = i64::from(tier.boundary.chunks()) - i64::from(before);
        let Boundary { costs, idle, given, .. } = tier.boundary;
        drop(core);
        if rests {
            tracing::info!(
                "the compressed tier does not pay, and rests: {costs:?}, {idle:.2} idle, {given:.2} given"
            );
        }
        moved
    }

    /// The boundary has moved by so many chunks: memory follows. What leaves DRAM for it goes below, as under pressure.
    pub(crate) fn follow_boundary(&self, moved: i64, compressor: &mut Compressor) {
        let want = u32::try_from(moved).unwrap_or(0) * CHUNK_FRAMES as u32;
        // Others may take what comes free.
        let mut tries = 2 * want as usize / BATCH;
        while tries > 0
            && self.core.lock().frames.free_count() < want
            && self.evict_batch(Some(compressor)) > 0
        {
            tries -= 1;
        }
        self.adjust_pool();
    }

    /// A compressor for reclaim's thread, if there is a tier.
    pub(crate) fn compressor(&self) -> Option<Compressor> {
        let mode = self.config.compressed.codec?;
        // Not when a page waits for it, or while it is learned what that costs.
        UNZSTD.with_borrow_mut(|unzstd| _ = make_unzstd(unzstd));
        let mut core = self.core.lock();
        let tier = core.tier.as_mut()?;
        match Compressor::new(mode, self.config.compressed.refuse_percent) {
            Ok(compressor) => {
                tier.compressor_bytes = compressor.bytes();
                Some(compressor)
            }
            Err(e) => {
                tracing::error!("no compressed tier: {e}");
                None
            }
        }
    }

    /// Fits the tier's share to the limit on all memory; it shrinks if it must.
    pub(crate) fn fit_tier(&self) {
        let limit = self.memory.load(Ordering::Relaxed);
        let all = u32::try_from(limit / HUGE as u64).unwrap_or(u32::MAX);
        let share = |percent: u32| (u64::from(all) * u64::from(percent) / 100) as u32;
        let CompressedConfig { min_share, max_share, .. } = self.config.compressed;
        {
            let mut core = self.core.lock();
            let Some(tier) = &mut core.tier else { return };
            tier.boundary.set_limits(share(min_share)..=share(max_share), all);
            tier.pool.set_limit(tier.target().min(tier.pool.limit()));
        }
        self.shrink_tier();
    }

    /// Brings the pool down to its limit, a bounded piece under each lock.
    fn shrink_tier(&self) {
        let mut vain = 0;
        loop {
            let mut core = self.core.lock();
            let Some(tier) = &core.tier else { return };
            let (before, pages) = (tier.pool.bytes(), tier.pool.stored_pages() as usize);
            // Pages that were touched stay at the first look: as long as it may take to look at all of them, and again.
            if before <= tier.pool.limit() || vain * GIVE_UP > pages {
                return;
            }
            // What is given up makes holes; it takes some to free a zspage.
            let gone = core.make_room_below(GIVE_UP);
            let moved = gone > 0 || core.tier.as_ref().is_some_and(|tier| tier.pool.bytes() < before);
            vain = if moved { 0 } else { vain + 1 };
        }
    }

    /// Gives up all that is compressed, a bounded piece under each lock. Pages dropped.
    pub(crate) fn empty_tier(&self) -> u64 {
        let mut dropped = 0;
        loop {
            let mut core = self.core.lock();
            if core.tier.as_ref().is_none_or(|tier| tier.pool.stored_pages() == 0) {
                return dropped;
            }
            dropped += core.make_room_below(GIVE_UP) as u64;
        }
    }

    /// [`Core::promote_page`], each page under a lock of its own: a decompression each.
    pub(crate) fn promote_pages<'a>(&self, pages: impl IntoIterator<Item = (&'a Object, u64)>) {
        for (o, page) in pages {
            self.core.lock().promote_page(o, page);
        }
    }

    /// Reads that compressed pages have answered, through both doors.
    pub(crate) fn tier_hits(&self, fast: &Totals) -> u64 {
        self.counts.tier_hits.load(Ordering::Relaxed) + fast.tier_hits
    }
}

thread_local! {
    static UNZSTD: RefCell<Option<Unzstd>> = const { RefCell::new(None) };
}

fn make_unzstd(unzstd: &mut Option<Unzstd>) -> Option<&mut Unzstd> {
    if unzstd.is_none() {
        *unzstd = Unzstd::new().ok();
    }
    unzstd.as_mut()
}

/// How the daemon reads compressed pages for a program: with all codecs, and a list of pages that are worth a frame.
#[derive(Debug)]
pub(crate) struct Reader {
    served: u64,
    promote_at: u32,
    worthy: Vec<u64>,
}

impl Unpack for Reader {
    fn zstd(&mut self, bytes: &[u8], out: &mut Page) -> bool {
        UNZSTD.with_borrow_mut(|unzstd| make_unzstd(unzstd).is_some_and(|unzstd| unzstd.zstd(bytes, out)))
    }
    fn served(&mut self, page: u64, before: u8) {
        self.served += 1;
        if u32::from(before) + 1 == self.promote_at {
            self.worthy.push(page);
        }
    }
}

impl Reader {
    pub(crate) fn new(engine: &Engine) -> Reader {
        let promote_at = engine.handles.segment.header().promote_at.load(Ordering::Relaxed);
        Reader { served: 0, promote_at, worthy: Vec::new() }
    }
    /// After a read: counts what came from the tier, and promotes what has been read there often enough.
    pub(crate) fn settle(self, engine: &Engine, o: &Object) {
        if self.served == 0 {
            return;
        }
        engine.counts.tier_hits.fetch_add(self.served, Ordering::Relaxed);
        engine.promote_pages(self.worthy.iter().map(|&page| (o, page)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::object::ObjectRef;
    use crate::io::BlockingIo;
    use crate::{Door, EngineConfig, SystemClock};
    use std::os::fd::AsRawFd;
    use std::sync::Arc;

    const PAGES: u64 = 256;

    /// A file of pages that tell their number, all of them read and then compressed. Reclaim is not served: the test is its thread.
    struct Squeezed {
        engine: Arc<Engine>,
        compressor: Compressor,
        o: ObjectRef,
        _file: tempfile::NamedTempFile,
    }

    /// A quarter noise (xorshift64), the rest text.
    fn content(page: u64) -> Vec<u8> {
        let mut x = page.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut bytes: Vec<u8> = Vec::with_capacity(2 * PAGE_SIZE);
        while bytes.len() < PAGE_SIZE / 4 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            bytes.extend(x.to_le_bytes());
        }
        bytes.extend(format!("page {page} of a file that compresses well; ").repeat(200).into_bytes());
        bytes.truncate(PAGE_SIZE);
        bytes
    }

    impl Squeezed {
        fn new(codec: Mode) -> Squeezed {
            Squeezed::under("strata", codec)
        }
        fn under(policy: &str, codec: Mode) -> Squeezed {
            let mut s = Squeezed::not_yet(policy, codec);
            s.squeeze();
            s
        }
        fn not_yet(policy: &str, codec: Mode) -> Squeezed {
            let compressed = CompressedConfig {
                codec: Some(codec),
                min_share: 25,
                admit: Admit::All,
                ..CompressedConfig::default()
            };
            let policy = policy.to_owned();
            let config =
                EngineConfig { memory_bytes: 32 << 20, policy, compressed, ..EngineConfig::default() };
            let handles = Arc::new(SegmentHandles::create(&config).unwrap());
            let engine =
                Engine::start(config, handles, Arc::new(SystemClock), Arc::new(BlockingIo::default()))
                    .unwrap();
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(&file, (0..PAGES).flat_map(content).collect::<Vec<u8>>()).unwrap();
            let o = engine.object(7, file.as_raw_fd(), PAGES * PAGE_SIZE as u64).unwrap();
            let compressor = engine.compressor().unwrap();
            let s = Squeezed { engine, compressor, o, _file: file };
            (0..PAGES).for_each(|page| assert_eq!(s.read(page), content(page)));
            s
        }
        fn squeeze(&mut self) {
            let mut leaving = Vec::new();
            self.engine.core.lock().relieve(PAGES as usize, Some(&mut leaving));
            self.engine.compress(&leaving, &mut self.compressor);
        }
        fn read(&self, page: u64) -> Vec<u8> {
            let mut buf = vec![0; PAGE_SIZE];
            let n = self.engine.read(&self.o, page * PAGE_SIZE as u64, &mut buf, Door::Library).unwrap();
            buf.truncate(n);
            buf
        }
        fn damage(&self) {
            let seg = &self.engine.handles.segment;
            for zspage in 0..2 {
                // SAFETY: memory of the segment, which only this thread uses.
                unsafe { seg.zspage(zspage).write_bytes(0xa5, terrace_shm::layout::ZSPAGE_SIZE) };
            }
        }
        fn stats(&self) -> CompressedTier {
            let stats = self.engine.stats();
            assert!(stats.memory.used_bytes <= stats.memory.limit_bytes, "{:?}", stats.memory);
            stats.compressed.unwrap()
        }
        fn state(&self, page: u64) -> State {
            let core = self.engine.core.lock();
            core.index.get(core.index.find(self.o.slot_index(), page).unwrap()).state()
        }
        fn is_watched(&self, page: u64) -> bool {
            let core = self.engine.core.lock();
            let place = core.index.find(self.o.slot_index(), page).unwrap();
            core.index.get(place).frame().is_some_and(|frame| core.sampler.watch.is_watched(frame))
        }
        fn agrees(&self) {
            assert_eq!(self.engine.check(), Vec::<String>::new());
        }
    }

    #[test]
    fn while_processors_are_busy_the_tier_fills_slowly() {
        let may = 50;
        for idle in [1.0, 0.0] {
            let mut s = Squeezed::not_yet("strata", Mode::Lz4);
            {
                let mut core = s.engine.core.lock();
                let tier = core.tier.as_mut().unwrap();
                (tier.admit, tier.boundary.idle) = (Admit::Reused, idle);
                tier.boundary.set_limits(0..=8, 16);
                let each = tier.boundary.costs.compress as f64 / 2.0 / FILLING_BUSY;
                tier.allow_filling((each * (may as f64 + 0.5)) as u64, 2);
            }
            s.squeeze();
            let filled = s.engine.core.lock().tier.as_ref().unwrap().counts.filling;
            assert!(if idle > 0.0 { filled > may } else { filled == may }, "idle: {idle}, {filled}");
            let starved = s.engine.core.lock().tier.as_ref().unwrap().is_starved();
            assert_eq!(starved, idle == 0.0, "the rest of its memory is no use to anybody");
            s.agrees();
        }
    }

    #[test]
    fn a_busy_machine_is_told_how_much_it_may_fill() {
        for idle in [1.0, 0.0] {
            let s = Squeezed::new(Mode::Lz4);
            s.engine.core.lock().tier.as_mut().unwrap().boundary.idle = idle;
            let mut judge = Judge { processors: 2, ..Judge::new() };
            s.engine.core.lock().tier.as_mut().unwrap().boundary.set_limits(0..=8, 16);
            s.engine.judge_tier(&mut judge);
            let core = s.engine.core.lock();
            let tier = core.tier.as_ref().unwrap();
            assert_eq!(tier.boundary.idle, idle, "the first look tells nothing yet");
            let slowly = FILLING_PAST_MAX.as_nanos() as f64 * 2.0 * FILLING_BUSY;
            let may = slowly as u64 / tier.boundary.costs.compress;
            assert_eq!(tier.filling_may, if idle > 0.0 { u64::MAX } else { may }, "idle: {idle}");
            assert!(tier.counts.compressed >= PAGES, "the pages here have told");
        }
    }

    #[test]
    fn what_leaves_dram_is_read_from_less_of_it() {
        for codec in [Mode::Lz4, Mode::Mixed, Mode::Dense] {
            let s = Squeezed::new(codec);
            s.agrees();
            let before = s.stats();
            assert_eq!(before.pages, PAGES, "{before:?}");
            assert!(before.live_bytes * 3 < PAGES * PAGE_SIZE as u64, "{before:?}");
            let misses = s.engine.stats().main_door.misses;
            (0..PAGES).for_each(|page| assert_eq!(s.read(page), content(page)));
            let after = s.stats();
            assert_eq!((after.hits, after.pgpromote, after.pages), (PAGES, 0, PAGES), "at first they stay");
            for _ in 2..PROMOTE_AT {
                (0..PAGES).for_each(|page| assert_eq!(s.read(page), content(page)));
            }
            assert_eq!(s.stats().pgpromote, 0);
            (0..PAGES).for_each(|page| assert_eq!(s.read(page), content(page)));
            let after = s.stats();
            assert_eq!((after.pgpromote, after.pages), (PAGES, 0), "often enough, and they come back");
            assert_eq!(s.engine.stats().main_door.misses, misses, "nothing was read from the source");
            let mrc = s.engine.mrc();
            // One in nine of the reads came before, to pages read ahead.
            let measured = mrc.measured_hit_ratio.unwrap();
            assert!(measured < 0.12, "DRAM alone would have missed them: {mrc:?}");
            assert!((0..PAGES).all(|page| s.is_watched(page)), "promoted, they are sampled as others are");
            s.agrees();
        }
    }

    #[test]
    fn whoever_needs_a_frame_meanwhile_takes_no_page_that_is_being_compressed() {
        let mut s = Squeezed::new(Mode::Lz4);
        // Back in DRAM.
        (0..u64::from(PROMOTE_AT) * PAGES).for_each(|i| assert_eq!(s.read(i % PAGES), content(i % PAGES)));
        let mut leaving = Vec::new();
        s.engine.core.lock().relieve(PAGES as usize / 2, Some(&mut leaving));
        assert_eq!(leaving.len(), PAGES as usize / 2);
        s.engine.core.lock().relieve(PAGES as usize, None);
        s.engine.compress(&leaving, &mut s.compressor);
        assert_eq!((s.stats().changed, s.stats().pages), (0, PAGES / 2));
        // Nothing is left of the mark.
        s.engine.drop_clean();
        assert_eq!((s.stats().pages, s.engine.stats().memory.pages), (0, 0));
        s.agrees();
    }

    /// Two threads that compress would do that; there is one, so it takes a batch that is kept back.
    #[test]
    fn a_page_that_the_tier_has_already_is_counted_and_stays_as_it_is() {
        let mut s = Squeezed::new(Mode::Lz4);
        s.engine.drop_clean();
        (0..PAGES).for_each(|page| assert_eq!(s.read(page), content(page)));
        let mut late = Vec::new();
        s.engine.core.lock().relieve(PAGES as usize, Some(&mut late));
        assert_eq!(late.len() as u64, PAGES);
        // As truncation does, and read again: in other frames, without the mark of what is being compressed.
        (0..PAGES).for_each(|page| s.engine.core.lock().drop_pages(&s.o, page, page));
        (0..PAGES).for_each(|page| assert_eq!(s.read(page), content(page)));
        s.squeeze();
        let before = s.stats();
        assert_eq!((before.pages, before.duplicates), (PAGES, 0));
        s.engine.compress(&late, &mut s.compressor);
        let after = s.stats();
        assert_eq!((after.duplicates, after.changed), (PAGES, before.changed));
        assert_eq!((after.pages, after.stored_pages), (PAGES, before.stored_pages));
        (0..PAGES).for_each(|page| assert_eq!(s.read(page), content(page)));
        s.agrees();
    }

    #[test]
    fn writes_and_cuts_find_compressed_pages() {
        let mut s = Squeezed::new(Mode::Mixed);
        let at = |page: u64| page * PAGE_SIZE as u64;
        s.engine.write(&s.o, at(3) + 10, b"!!!!").unwrap();
        s.engine.write(&s.o, at(4), &vec![9; PAGE_SIZE]).unwrap();
        let mut third = content(3);
        third[10..14].copy_from_slice(b"!!!!");
        assert_eq!((s.read(3), s.read(4)), (third.clone(), vec![9; PAGE_SIZE]));
        // Dirty pages stay; written back, they may go.
        s.squeeze();
        assert_eq!((s.state(3), s.state(4)), (State::Present, State::Present));
        s.agrees();
        s.engine.flush_all(false).unwrap();
        for _ in 0..4 {
            s.squeeze();
        }
        assert_eq!((s.state(3), s.state(4)), (State::Tier, State::Tier));
        assert_eq!((s.read(3), s.read(4)), (third, vec![9; PAGE_SIZE]));
        s.engine.truncate(&s.o, at(5) + 100).unwrap();
        assert_eq!(s.read(5), content(5)[..100]);
        s.engine.truncate(&s.o, at(8)).unwrap();
        assert_eq!(s.read(5), [&content(5)[..100], &[0; PAGE_SIZE - 100]].concat());
        assert_eq!(s.read(6), [0; PAGE_SIZE]);
        s.agrees();
        s.engine.drop_clean();
        assert_eq!(s.stats().pages, 0);
        s.agrees();
    }

    #[test]
    fn a_damaged_page_is_read_from_the_source() {
        let s = Squeezed::new(Mode::Mixed);
        let misses = s.engine.stats().main_door.misses;
        s.damage();
        (0..PAGES).for_each(|page| assert_eq!(s.read(page), content(page)));
        assert!(s.engine.stats().main_door.misses > misses, "some were damaged");
    }

    #[test]
    fn a_damaged_page_is_read_from_the_source_though_no_frame_is_free() {
        let s = Squeezed::new(Mode::Mixed);
        s.damage();
        let claimed: Vec<u32> = std::iter::from_fn(|| s.engine.core.lock().claim()).collect();
        (0..PAGES).for_each(|page| assert_eq!(s.read(page), content(page)));
        claimed.iter().for_each(|&frame| s.engine.core.lock().unclaim(frame));
    }

    #[test]
    fn one_page_that_took_long_says_nothing_of_others() {
        let s = Squeezed::new(Mode::Lz4);
        let mut core = s.engine.core.lock();
        let tier = core.tier.as_mut().unwrap();
        let decompress = |tier: &Compressed| tier.boundary.costs.decompress;
        let before = decompress(tier);
        tier.note_unpacking(5_000_000);
        assert!(decompress(tier) < before + before / 10, "{} instead of {before}", decompress(tier));
        (0..1000).for_each(|_| tier.note_unpacking(20_000));
        assert!((21_000..=22_000).contains(&decompress(tier)), "{}: all take so long", decompress(tier));
    }

    #[test]
    fn what_reads_take_is_what_a_miss_costs() {
        let s = Squeezed::new(Mode::Lz4);
        let mut core = s.engine.core.lock();
        let tier = core.tier.as_mut().unwrap();
        tier.note_reads([10, 10, 1]);
        assert_eq!(tier.boundary.costs.read, 60_000, "too few to tell");
        // Four pages a read: 20 us, and the work of one read, which they share.
        (1..200).for_each(|i| tier.note_reads([4, 1, 20_000].map(|each| i * READS_MIN * each)));
        let Costs { read, work, .. } = tier.boundary.costs;
        assert!((4_900..=5_100).contains(&read), "{read}");
        assert!((6_000..=6_200).contains(&work), "{work}");
        // What a client makes up has bounds, and is forgotten.
        tier.note_reads([u64::MAX / 2, u64::MAX, u64::MAX]);
        tier.note_reads([1, 1, 0]);
        tier.note_reads([u64::MAX, u64::MAX, u64::MAX]);
        assert!(tier.boundary.costs.work <= READ_WORK_NS + PAGE_WORK_NS);
        assert!(tier.boundary.costs.read < 200_000_000);
    }

    #[test]
    fn what_comes_back_through_the_main_door_tells_what_a_miss_costs_and_what_is_new_does_not() {
        let s = Squeezed::under("strata", Mode::Lz4);
        let read = |s: &Squeezed| s.engine.core.lock().tier.as_ref().unwrap().source_read;
        assert_eq!(read(&s), [0; 3], "all was new");
        assert!(s.engine.empty_tier() > 0);
        let mut buf = vec![0; 16 * PAGE_SIZE];
        for page in (0..PAGES).step_by(16) {
            s.engine.read(&s.o, page * PAGE_SIZE as u64, &mut buf, Door::MainCached).unwrap();
            assert_eq!(buf[..PAGE_SIZE], content(page));
        }
        let [pages, reads, ns] = read(&s);
        assert_eq!((pages, reads), (PAGES, PAGES / 16));
        assert!(ns > 0);
        let mut core = s.engine.core.lock();
        let tier = core.tier.as_mut().unwrap();
        (tier.read_at, tier.source_read) = ([0; 3], [1000, 10, 4_000_000]);
        (0..100).for_each(|i| tier.note_reads([i * 1000, i * 10, i * 4_000_000]));
        let Costs { read, work, .. } = tier.boundary.costs;
        assert!(
            (3_900..=4_100).contains(&read) && work < 3_000,
            "read in pieces of 100 pages: {read}, {work}"
        );
    }

    #[test]
    fn what_comes_back_is_known_where_the_policy_keeps_no_shadows() {
        for policy in ["lru", "strata"] {
            let s = Squeezed::under(policy, Mode::Lz4);
            assert!(s.engine.empty_tier() > 0);
            (0..PAGES).for_each(|page| assert_eq!(s.read(page), content(page)));
            s.engine.core.lock().relieve(PAGES as usize, None);
            let before = s.engine.core.lock().tier.as_ref().unwrap().refaults;
            // In no order: what is read ahead does not count, nor what it saves.
            let jump = |i| i * 37 % PAGES;
            (0..PAGES).map(jump).for_each(|page| assert_eq!(s.read(page), content(page)));
            let refaults = s.engine.core.lock().tier.as_ref().unwrap().refaults - before;
            assert!((PAGES / 2..=PAGES).contains(&refaults), "{policy}: {refaults}");
            s.agrees();
        }
    }

    #[test]
    fn the_tier_has_a_limit_and_shrinks() {
        let mut s = Squeezed::new(Mode::Lz4);
        // All of them were touched.
        (0..PAGES).for_each(|page| assert_eq!(s.read(page), content(page)));
        s.engine.core.lock().tier.as_mut().unwrap().pool.set_limit(128 << 10);
        s.engine.shrink_tier();
        let small = s.stats();
        assert!(small.pool_bytes <= 128 << 10 && small.pages < PAGES && small.evicted_pages > 0, "{small:?}");
        s.agrees();
        (0..PAGES).for_each(|page| assert_eq!(s.read(page), content(page)));
        s.squeeze();
        assert!(s.stats().pool_bytes <= 128 << 10);
        s.agrees();
        (0..PAGES).for_each(|page| assert_eq!(s.read(page), content(page)));
    }
}
