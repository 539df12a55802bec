//! Page faults: absent pages are read from device or source into frames, and published.
//!
//! [`fault`] -> `plan` (state lock: pages and frames) -> I/O without a lock -> `fill` (state lock: publishes
//! unchanged pages). Pages that are not kept take `pass_on` instead.

use crate::context::Context;
use crate::file::object::{Object, ObjectRef};
use crate::path::fetch;
use crate::path::pass_on::{Absent, pass_on};
use crate::readahead::window;
use crate::state::State;
use crate::state::page_table::{NotInMemory, PageVersion};
use crate::tier::park;
use std::io;
use terrace_policy::InsertReason;
use terrace_shm::device_table::GAP_MAX;
use terrace_shm::{BLOCK_PAGES, DeviceSlot, PAGE_SIZE};

const PAGE: u64 = PAGE_SIZE as u64;

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

pub(super) struct Planned {
    pub(crate) page: u64,
    before: PageVersion,
    pub(crate) frame: u32,
    /// None: to be read from the source.
    on_device: Option<DeviceSlot>,
}

/// A read that has reached an absent page.
#[derive(Clone, Copy)]
pub(super) struct Miss {
    pub(crate) at: u64,
    pub(crate) access: AccessPath,
    /// The content lock is held: the source has an absent page's content, even if the entry changes.
    pub(crate) calm: bool,
}

/// Plan for the pages at the start of a miss.
enum Plan {
    /// Another thread has read the pages, or is reading them: retry.
    Again,
    /// Read into these frames and publish. The flag: most of the pages were cached before.
    Fill(Vec<Planned>, bool),
    /// Pass on the source's content, and leave only a shadow.
    PassOn(Vec<Absent>),
}

/// Serves the absent pages at the start of `[at, at + buf.len())`. Returns the bytes delivered (0: retry),
/// and how many pages of them came from a device.
pub(super) fn fault(cx: &Context, o: &ObjectRef, miss: Miss, buf: &mut [u8]) -> io::Result<(usize, usize)> {
    let Miss { at, access, .. } = miss;
    park::retry_identity(cx, o);
    let (first, size) = (at / PAGE, o.size());
    if at >= size {
        return Ok((0, 0));
    }
    let end = (at + buf.len() as u64).min(size);
    let mut pages = (end.div_ceil(PAGE) - first).min((cx.config.io_max_bytes / PAGE_SIZE) as u64);
    cx.followed.miss(o.id(), first, pages);
    if access != AccessPath::Fuse {
        // On a buffered open the kernel reads ahead, otherwise terrace. Pages in flight had their readahead
        // already.
        let is_coming = cx.state.lock().in_flight.contains(&(o.slot_index(), first));
        let more = if is_coming { 0 } else { window::after_miss(cx, o, first, pages) };
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
        Plan::PassOn(plan) => pass_on(cx, o, at..end, buf, &plan, miss.calm).map(|n| (n, 0)),
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
    // Creates the leaves: without entries, every write to the file would invalidate all reads in flight.
    if state.objects.is_known(o) {
        for page in (first..first + pages).step_by(BLOCK_PAGES).chain([first + pages - 1]) {
            state.pages.index.ensure(slot, page);
        }
    }
    // A buffered open keeps only pages cached before, so these and others form separate runs. Pages on the
    // device go with either.
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

/// Reads short runs of device pages beside pages of the source there: one request replaces three.
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
        let is_requested = p.page * PAGE < end;
        let reason = if is_requested { InsertReason::Read } else { InsertReason::Readahead };
        let valid = publish_planned(&mut state, o, p, arrived[i], reason);
        // Another page may have the slot by now. Content from the source was the page's content.
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
    // A later read of a program requests these pages again.
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

pub(super) struct Fetched {
    pub(crate) arrived: Vec<bool>,
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
