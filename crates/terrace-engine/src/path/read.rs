//! Reads: resident pages are copied out, absent ones are read from the source and published.
//!
//! Path of a miss: [`read`] -> `plan` (under the state lock: pages and frames) -> I/O without a lock ->
//! `fill` (under the state lock: publishes pages that have not changed meanwhile), or `pass_on` for pages
//! that are not kept.

use crate::access_log::Kind;
use crate::context::Context;
use crate::file::object::{Object, ObjectRef};
use crate::io::{AlignedBuf, IoVec};
use crate::path::decompress::CompressedReader;
use crate::path::{ahead, fetch, park, promote};
use crate::state::State;
use crate::state::page_table::{NotInMemory, PageVersion, key_of};
use std::cell::RefCell;
use std::io;
use std::num::NonZeroU32;
use std::sync::atomic::Ordering;
use terrace_policy::InsertReason;
use terrace_shm::client::{Outcome, read_resident};
use terrace_shm::device_table::GAP_MAX;
use terrace_shm::{BLOCK_PAGES, DeviceSlot, PAGE_SIZE, State as EntryState};

const PAGE: u64 = PAGE_SIZE as u64;
/// Failed attempts for a page after which a read excludes writers: the page changes faster than the source
/// can be read.
const VAIN_MAX: u32 = 3;

thread_local! {
    static BOUNCE: RefCell<AlignedBuf> = RefCell::new(AlignedBuf::default());
}

/// Path of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessPath {
    /// A mount open behind the kernel's page cache: terrace is the second-level cache.
    Fuse,
    /// A mount open that bypasses the kernel's page cache (clients of the preload library).
    FuseDirect,
    /// The library.
    Preload,
}

/// A page of a plan.
pub(super) struct Planned {
    pub page: u64,
    before: PageVersion,
    pub frame: u32,
    /// None: to be read from the source.
    on_device: Option<DeviceSlot>,
}

/// An absent page, and the state of its entry.
pub(super) type Absent = (u64, NotInMemory);

/// A read that has reached an absent page.
#[derive(Clone, Copy)]
struct Miss {
    at: u64,
    access: AccessPath,
    /// The object's content lock is held: the source's answer for an absent page is its content, even if the
    /// entry changes meanwhile.
    calm: bool,
}

/// Plan for the pages at the start of a miss.
enum Plan {
    /// Another thread was faster, or is reading the pages: retry.
    Again,
    /// Read into these frames and publish. The flag: most of the pages were cached before.
    Fill(Vec<Planned>, bool),
    /// Pass on the source's content, and leave only a shadow.
    PassOn(Vec<Absent>),
}

/// Reads at `offset` into `buf`; short only at the end of the file.
///
/// # Errors
/// The source's error.
pub(crate) fn read(
    cx: &Context,
    o: &ObjectRef,
    offset: u64,
    buf: &mut [u8],
    access: AccessPath,
) -> io::Result<usize> {
    cx.counters.reads.fetch_add(1, Ordering::Relaxed);
    let (mut done, mut missed) = (0, 0);
    let (mut vain, mut calm) = (0, None);
    let traced = cx.is_traced();
    let mut reader = CompressedReader::new(&cx.handles);
    while done < buf.len() {
        let (at, rest) = (offset + done as u64, &mut buf[done..]);
        // SAFETY: `rest` is valid for its length; we hold the object, so the slot is its.
        let step = unsafe {
            let (seg, touches) = (&cx.handles.segment, &cx.handles.touches);
            read_resident(seg, touches, o.slot(), at, rest.as_mut_ptr(), rest.len(), &mut reader)
        };
        if traced {
            let (Outcome::Done(n) | Outcome::Miss { done: n } | Outcome::MountPath { done: n }) = step;
            cx.note_access(o, at, n, Kind::MainHit);
        }
        match step {
            Outcome::Done(n) => {
                done += n;
                break;
            }
            Outcome::Miss { done: n } => {
                let miss = Miss { at: at + n as u64, access, calm: calm.is_some() };
                let (n2, on_device) = fault(cx, o, miss, &mut rest[n..])?;
                if traced {
                    cx.note_access(o, miss.at, n2, Kind::MainMiss);
                }
                missed += n2.div_ceil(PAGE_SIZE).saturating_sub(on_device);
                done += n + n2;
                vain = if n + n2 == 0 { vain + 1 } else { 0 };
            }
            // A write is under way, or the page changes during each copy: wait for the writer.
            Outcome::MountPath { done: n } => {
                done += n;
                if calm.is_none() {
                    drop(o.content.read());
                }
                vain = if n == 0 { vain + 1 } else { 0 };
                if vain >= VAIN_MAX {
                    // A compressed page that cannot be decoded is damaged. The source has it.
                    cx.state.lock().invalidate_page(o, (offset + done as u64) / PAGE);
                }
            }
        }
        if vain >= VAIN_MAX && calm.is_none() {
            calm = Some(o.content.read());
        }
    }
    promote::finish_read(cx, o, reader);
    count_read(cx, done, missed);
    Ok(done)
}

/// Counts a read of `done` bytes, of which `missed` pages were not resident.
fn count_read(cx: &Context, done: usize, missed: usize) {
    cx.counters.read_bytes.fetch_add(done as u64, Ordering::Relaxed);
    cx.counters.miss_pages.fetch_add(missed as u64, Ordering::Relaxed);
    let pages = done.div_ceil(PAGE_SIZE);
    cx.counters.hit_pages.fetch_add(pages.saturating_sub(missed) as u64, Ordering::Relaxed);
}

/// Serves the absent pages at the start of `[at, at + buf.len())`. Returns the bytes delivered (0: retry),
/// and how many pages of them came from a device.
fn fault(cx: &Context, o: &ObjectRef, miss: Miss, buf: &mut [u8]) -> io::Result<(usize, usize)> {
    let Miss { at, access, .. } = miss;
    park::look_again(cx, o);
    let (first, size) = (at / PAGE, o.size());
    if at >= size {
        return Ok((0, 0));
    }
    let end = (at + buf.len() as u64).min(size);
    let mut pages = (end.div_ceil(PAGE) - first).min((cx.config.io_max_bytes / PAGE_SIZE) as u64);
    cx.followed.miss(o.id(), first, pages);
    if access != AccessPath::Fuse {
        // On a buffered open the kernel reads ahead; otherwise terrace does. Pages in flight had their
        // readahead already.
        let is_coming = cx.state.lock().in_flight.contains(&(o.slot_index(), first));
        let more = if is_coming { 0 } else { ahead::after_miss(cx, o, first, pages) };
        pages = (pages + more).min(size.div_ceil(PAGE) - first);
    }
    match plan(cx, o, first, pages, access) {
        Plan::Again => Ok((0, 0)),
        Plan::Fill(plan, known) => {
            let n = fill(cx, o, miss, end, buf, &plan, known)?;
            let slots = plan[..n.div_ceil(PAGE_SIZE)].iter().filter_map(|p| p.on_device);
            let on_device = slots.map(|slot| cx.count_device_hit(slot)).count();
            Ok((n, on_device))
        }
        Plan::PassOn(plan) => pass_on(cx, o, miss, end, buf, &plan).map(|n| (n, 0)),
    }
}

fn plan(cx: &Context, o: &Object, first: u64, pages: u64, access: AccessPath) -> Plan {
    let near = cx.near_caller();
    let mut state = cx.state.lock();
    let slot = o.slot_index();
    if state.in_flight.contains(&(slot, first)) {
        cx.fault_done.wait(&mut state);
        return Plan::Again;
    }
    // Only an entry distinguishes a change of its page from a change of its neighbours: without leaves, every
    // write to the file would invalidate reads in flight.
    if state.objects.is_known(o) {
        for page in (first..first + pages).step_by(BLOCK_PAGES).chain([first + pages - 1]) {
            state.pages.index.ensure(slot, page);
        }
    }
    // On a buffered open, pages cached before are kept and others are not, so they form separate runs. Pages
    // on the device go with either.
    let is_known = |seen: &NotInMemory| {
        (access == AccessPath::Fuse && seen.on_device.is_none()).then_some(seen.shadow != 0)
    };
    let (mut absent, mut of_run) = (Vec::new(), None);
    for page in first..first + pages {
        let seen = state.pages.snapshot(o, page).filter(|_| !state.in_flight.contains(&(slot, page)));
        let Some(seen) = seen else { break };
        let known = is_known(&seen);
        if known.is_some() && of_run.is_some() && known != of_run {
            break;
        }
        of_run = of_run.or(known);
        absent.push((page, seen));
    }
    if absent.is_empty() {
        return Plan::Again;
    }
    let was_here = |(_, seen): &&Absent| seen.shadow != 0 || seen.on_device.is_some();
    let known = absent.iter().filter(was_here).count();
    close_gaps(&mut absent);
    if of_run == Some(false) {
        // Only pages on the device are kept.
        let of_source = absent[0].1.on_device.is_none();
        let other = absent.iter().position(|(_, seen)| seen.on_device.is_none() != of_source);
        absent.truncate(other.unwrap_or(absent.len()));
        if of_source {
            return Plan::PassOn(absent);
        }
    }
    let plan = claim_frames(&mut state, &absent, near);
    if plan.is_empty() {
        // All frames are dirty or in use: no caching.
        return Plan::PassOn(absent);
    }
    state.in_flight.extend(plan.iter().map(|p| (slot, p.page)));
    cx.wake_reclaim_if_low(&state);
    Plan::Fill(plan, known * 2 >= absent.len())
}

/// Reads short runs of pages on the device from the source instead, between or beside pages of the source:
/// one long request replaces three.
fn close_gaps(run: &mut [Absent]) {
    let pages = run.len();
    let place = |seen: &NotInMemory| seen.on_device.is_some();
    for gap in run.chunk_by_mut(|(_, a), (_, b)| place(a) == place(b)) {
        if gap.len() <= GAP_MAX && gap.len() < pages {
            gap.iter_mut().for_each(|(_, seen)| seen.on_device = None);
        }
    }
}

fn fill(
    cx: &Context,
    o: &Object,
    miss: Miss,
    end: u64,
    buf: &mut [u8],
    plan: &[Planned],
    known: bool,
) -> io::Result<usize> {
    let at = miss.at;
    let Fetched { arrived, failure, costs, source_ns } = read_planned(cx, o, plan);
    let mut good = arrived.iter().take_while(|arrived| **arrived).count();
    // Only this thread uses the frames: it copies before they are published and can be evicted.
    copy_out(cx, at, end, buf, &plan[..good]);
    let mut state = cx.state.lock();
    for (i, p) in plan.iter().enumerate() {
        let asked_for = p.page * PAGE < end;
        let reason = if asked_for { InsertReason::Read } else { InsertReason::Readahead };
        let valid = publish_planned(&mut state, o, p, arrived[i], reason);
        // The slot may belong to another page by now. Content from the source was the page's content.
        if !valid && (!miss.calm || p.on_device.is_some()) {
            good = good.min(i);
        }
    }
    // On a buffered open the kernel reads ahead: two such reads are in flight at once.
    let at_once = if miss.access == AccessPath::Fuse && plan.len() > 1 { 2 } else { 1 };
    if failure.is_none() {
        note_cost(&mut state, plan, known, at_once, (&costs, source_ns));
    }
    drop(state);
    cx.fault_done.notify_all();
    // Later pages are requested again when a program needs them.
    let first_failed = !arrived[0] && plan[0].on_device.is_none();
    if let Some(failure) = failure.filter(|_| first_failed) {
        return Err(failure);
    }
    let until = (plan[0].page + good as u64) * PAGE;
    Ok(until.min(end).saturating_sub(at) as usize)
}

/// Ends the read of a page: publishes it if it has arrived unchanged. True: the frame had the page's content.
pub(super) fn publish_planned(
    state: &mut State,
    o: &Object,
    p: &Planned,
    arrived: bool,
    reason: InsertReason,
) -> bool {
    state.in_flight.remove(&(o.slot_index(), p.page));
    let current = state.is_current(o, p.page, p.before);
    if !arrived && current && p.on_device.is_some() {
        // Reads fall back to the source.
        state.lose_slot(o, p.page);
    }
    let valid = arrived && current;
    match valid.then(|| state.pages.index.ensure(o.slot_index(), p.page)).flatten() {
        Some(place) => drop(state.insert(place, p.frame, reason)),
        None => state.unclaim(p.frame),
    }
    valid
}

/// Result of the reads of a plan.
pub(super) struct Fetched {
    /// Whether each page has arrived.
    pub arrived: Vec<bool>,
    /// Error of the first failed read of the source.
    failure: Option<io::Error>,
    /// Targets, number of pages, and time of each in ns; time for the source.
    costs: Vec<(usize, u64, u64)>,
    source_ns: u64,
}

/// Reads the pages of a plan into their frames, those on devices first.
pub(super) fn read_planned(cx: &Context, o: &Object, plan: &[Planned]) -> Fetched {
    let slots: Vec<(DeviceSlot, u32)> = plan.iter().filter_map(|p| Some((p.on_device?, p.frame))).collect();
    let fetch::OfSlots { arrived: of_device, costs } = fetch::read_slots(cx, &slots);
    let mut of_device = of_device.into_iter();
    let between = cx.clock.now_ns();
    let frames: Vec<u32> = plan.iter().map(|p| p.frame).collect();
    let same_read =
        |a: &Planned, b: &Planned| a.on_device.is_none() == b.on_device.is_none() && a.page + 1 == b.page;
    let runs = plan.chunk_by(same_read);
    let (mut pieces, mut at) = (Vec::new(), 0);
    for run in runs.clone() {
        let frames = &frames[at..at + run.len()];
        at += run.len();
        if run[0].on_device.is_none() {
            pieces.push(fetch::Piece { object: o, first: run[0].page, frames });
        }
    }
    let mut of_source = fetch::read_pieces(cx, &pieces).into_iter();
    let (mut arrived, mut failure) = (Vec::with_capacity(plan.len()), None);
    for run in runs {
        if run[0].on_device.is_some() {
            arrived.extend(of_device.by_ref().take(run.len()));
            continue;
        }
        let end = of_source.next().expect("each piece has ended");
        arrived.extend(run.iter().map(|_| end.is_ok()));
        failure = failure.or(end.err());
    }
    let ended = cx.clock.now_ns();
    Fetched { arrived, failure, costs, source_ns: ended.saturating_sub(between) }
}

/// Notes the cost of reads from targets and source. `known`: most of the pages were cached before. `at_once`:
/// number of such reads in flight.
fn note_cost(
    state: &mut State,
    plan: &[Planned],
    known: bool,
    at_once: u64,
    (costs, source_ns): (&[(usize, u64, u64)], u64),
) {
    let on_device: u64 = costs.iter().map(|(_, pages, _)| pages).sum();
    // The targets were read concurrently.
    let device_ns = costs.iter().map(|(_, _, ns)| ns / at_once).max().unwrap_or(0);
    let (of_source, source_ns) = (plan.len() as u64 - on_device, source_ns / at_once);
    if let Some(targets) = &mut state.targets {
        costs.iter().for_each(|(number, pages, ns)| targets.note_read(*number, *pages, ns / at_once));
        if of_source > 0 {
            targets.note_source_read(of_source, source_ns, known);
        }
    }
    if let Some(compressed) = state.compressed.as_mut().filter(|_| known) {
        compressed.note_source_read(plan.len(), device_ns + source_ns);
    }
}

fn copy_out(cx: &Context, at: u64, end: u64, buf: &mut [u8], plan: &[Planned]) {
    for p in plan.iter().filter(|p| p.page * PAGE < end) {
        let from = at.max(p.page * PAGE);
        let to = end.min((p.page + 1) * PAGE);
        let (n, i) = ((to - from) as usize, (from - at) as usize);
        let out = &mut buf[i..i + n];
        // SAFETY: the frame is claimed by this thread; the range lies inside it.
        unsafe {
            let src = cx.handles.segment.frame(p.frame).add((from - p.page * PAGE) as usize);
            std::ptr::copy_nonoverlapping(src, out.as_mut_ptr(), n);
        }
    }
}

/// Passes on source pages without keeping them. The ghost remembers them, so that a second read admits them.
fn pass_on(
    cx: &Context,
    o: &Object,
    miss: Miss,
    end: u64,
    buf: &mut [u8],
    plan: &[Absent],
) -> io::Result<usize> {
    let at = miss.at;
    let (first, len) = (plan[0].0, plan.len() * PAGE_SIZE);
    let until = end.min((first + plan.len() as u64) * PAGE);
    let want = (until - at) as usize;
    let fd = o.source().reader()?;
    let direct = at.is_multiple_of(PAGE) && want == len && (buf.as_ptr() as usize).is_multiple_of(512);
    let read = |ptr: *mut u8| {
        // SAFETY: `ptr` is the start of `len` writable bytes: the caller's buffer or this thread's bounce
        // buffer.
        unsafe { cx.io.read(fd.raw(), first * PAGE, &[IoVec { ptr, len }]) }
    };
    if direct {
        let n = read(buf.as_mut_ptr())?;
        buf[n.min(len)..len].fill(0);
    } else {
        BOUNCE.with_borrow_mut(|bounce| {
            bounce.with(len, |b| -> io::Result<()> {
                let n = read(b.as_mut_ptr())?;
                b[n.min(len)..].fill(0);
                let skip = (at - first * PAGE) as usize;
                buf[..want].copy_from_slice(&b[skip..skip + want]);
                Ok(())
            })
        })?;
    }
    let mut state = cx.state.lock();
    let mut good = 0;
    for &(page, seen) in plan {
        if state.is_current(o, page, seen.before) {
            remember(&mut state, o, page);
            state.sampler.pass(key_of(o.id(), page));
        } else if !miss.calm {
            break;
        }
        good += 1;
    }
    state.counts.not_admitted += good;
    Ok(((first + good) * PAGE).min(until).saturating_sub(at) as usize)
}

/// Leaves a shadow for a passed-on page.
fn remember(state: &mut State, o: &Object, page: u64) {
    let Some(shadow) = state.lru.policy.shadow().map(|s| s.0).or(NonZeroU32::new(1)) else { return };
    if let Some(place) = state.pages.index.ensure(o.slot_index(), page) {
        let e = state.pages.index.get(place);
        if e.state() == EntryState::Absent && e.shadow() == 0 {
            terrace_shm::protocol::publish(state.pages.index.entry(place), e.with_shadow(shadow.get()));
        }
    }
}

/// Claims frames for consecutive pages, adjacent within each run where the pool has them.
pub(super) fn claim_frames(state: &mut State, absent: &[Absent], near: Option<usize>) -> Vec<Planned> {
    let mut plan: Vec<Planned> = Vec::with_capacity(absent.len());
    let mut i = 0;
    while i < absent.len() {
        let left_in_run = BLOCK_PAGES - (absent[i].0 % BLOCK_PAGES as u64) as usize;
        let n = left_in_run.min(absent.len() - i);
        let run = if n > 1 { state.claim_run(n, near) } else { None };
        for (k, &(page, NotInMemory { before, on_device, .. })) in absent[i..i + n].iter().enumerate() {
            let frame = match run {
                Some(first) => Some(first + k as u32),
                None => state.claim_near(near),
            };
            match frame {
                Some(frame) => plan.push(Planned { page, before, frame, on_device }),
                None => return plan,
            }
        }
        i += n;
    }
    plan
}

#[cfg(test)]
mod tests {
    use crate::io::testing::{Call, HookIo, NullIo};
    use crate::{AccessPath, Engine, EngineConfig, ObjectRef, SegmentHandles, SystemClock};
    use std::os::fd::AsRawFd;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::{RecvTimeoutError, SyncSender};
    use std::time::Duration;
    use terrace_sync::Mutex;

    /// Makes another thread change the file during each read of the source, and waits for it (with a limit:
    /// it may be excluded).
    #[derive(Debug, Default)]
    struct Meddling {
        reads: AtomicU32,
        meddler: Mutex<Option<SyncSender<SyncSender<()>>>>,
    }

    impl Meddling {
        fn during_reads(&self, at_once: usize) {
            for _ in 0..at_once {
                self.reads.fetch_add(1, Ordering::Relaxed);
                let meddler = self.meddler.lock().clone();
                if let Some(meddler) = meddler {
                    let (done, wait) = std::sync::mpsc::sync_channel(1);
                    meddler.send(done).unwrap();
                    assert_ne!(
                        wait.recv_timeout(Duration::from_millis(100)),
                        Err(RecvTimeoutError::Disconnected)
                    );
                }
            }
        }
    }

    /// Number of source reads for the first 16 pages of a file that `meddle` changes during each of them.
    fn reads_needed(access: AccessPath, meddle: impl Fn(&Engine, &ObjectRef) + Send) -> u32 {
        let config = EngineConfig {
            memory_bytes: 16 << 20,
            memory_max_bytes: Some(16 << 20),
            ..EngineConfig::default()
        };
        let handles = Arc::new(SegmentHandles::create(&config).unwrap());
        let meddling = Arc::new(Meddling::default());
        let during = meddling.clone();
        let device = HookIo::new(NullIo, move |call| {
            if let Call::Read(at_once) = call {
                during.during_reads(at_once);
            }
            Ok(())
        });
        let engine = Engine::start(config, handles, Arc::new(SystemClock), Arc::new(device)).unwrap();
        let file = tempfile::tempfile().unwrap();
        file.set_len(8 << 20).unwrap();
        let o = engine.object(7, file.as_raw_fd(), 8 << 20).unwrap();
        std::thread::scope(|s| {
            let (ask, asked) = std::sync::mpsc::sync_channel::<SyncSender<()>>(8);
            let (engine, o) = (&engine, &o);
            s.spawn(move || {
                for done in asked {
                    meddle(engine, o);
                    let _ = done.try_send(());
                }
            });
            *meddling.meddler.lock() = Some(ask);
            let mut buf = vec![1; 16 * 4096];
            assert_eq!(engine.read(o, 0, &mut buf, access).unwrap(), buf.len());
            assert!(buf.iter().all(|&b| b == 0));
            *meddling.meddler.lock() = None;
        });
        assert_eq!(engine.check(), Vec::<String>::new());
        meddling.reads.load(Ordering::Relaxed)
    }

    #[test]
    fn a_write_elsewhere_does_not_make_a_read_vain() {
        for access in [AccessPath::Preload, AccessPath::Fuse] {
            let needed = reads_needed(access, |engine, o| {
                engine.write(o, 5 << 20, &[2; 4096]).unwrap();
            });
            assert_eq!(needed, 1, "{access:?}");
        }
    }

    #[test]
    fn a_read_of_what_others_change_all_the_time_ends() {
        for access in [AccessPath::Preload, AccessPath::Fuse] {
            let needed = reads_needed(access, |engine, o| {
                engine.with_source(o, 0..16 * 4096, |_| Ok(())).unwrap();
            });
            assert!((1..=super::VAIN_MAX + 1).contains(&needed), "{needed} reads, {access:?}");
        }
    }
}
