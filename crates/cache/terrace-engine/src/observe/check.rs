//! Consistency check of index, frames, policy and dirty sets.

use crate::context::Context;
use crate::file::dirty_pages::DirtyPages;
use crate::file::object::Object;
use crate::segment::flag::{DIRTY, UNDESTAGED, UNSTABLE, UNSYNCED, WRITEBACK};
use crate::state::State as CacheState;
use crate::state::device::Device;
use crate::state::slots::Named;
use crate::state::targets::Targets;
use std::sync::atomic::Ordering;
use terrace_shm::index::Place;
use terrace_shm::{DeviceSlot, Entry, State};
use terrace_tier::DeviceIo;
use terrace_tier::scan;

/// A resident page by the index.
struct ResidentPage {
    page: u64,
    place: Place,
    frame: u32,
    flags: u8,
}

fn check_page(state: &CacheState, o: &Object, dirty_pages: &DirtyPages, found: ResidentPage) -> Vec<String> {
    let ResidentPage { page, place, frame, flags } = found;
    let mut bad = Vec::new();
    let mut expect = |holds: bool, why: &dyn Fn() -> String| {
        if !holds {
            bad.push(why());
        }
    };
    expect(state.pages.place_of(frame) == Some(place), &|| "the frame's owner is another".into());
    expect(!state.frames.is_free(frame), &|| "the frame is free".into());
    let agree = dirty_pages.dirty.contains(&page) == (flags & (DIRTY | UNDESTAGED) == DIRTY)
        && dirty_pages.undestaged.contains(&page) == (flags & UNDESTAGED != 0)
        && dirty_pages.unstable.contains_key(&page) == (flags & UNSTABLE != 0);
    expect(agree, &|| format!("dirty set and flags ({flags}) disagree"));
    let known = state.pages.index.get(place).state() != State::Present || state.lru.policy.contains(frame);
    expect(known, &|| "unknown to the policy".into());
    // A truncate lowers the size for readers first, and drops the pages after the source's truncate.
    let within = page * (terrace_shm::PAGE_SIZE as u64) < o.size() || flags & UNSYNCED != 0;
    expect(within || o.content.try_read().is_none(), &|| {
        format!("beyond the end of the file ({})", o.size())
    });
    bad
}

/// Slots of devices named by an entry or a parked key.
#[derive(Default)]
struct Slots(Vec<DeviceSlot>);

impl Slots {
    fn note(&mut self, state: &CacheState, place: Place, e: Entry) {
        let Some(targets) = &state.targets else { return };
        self.0.extend(targets.slot_of(place, e));
    }
    /// Checks that each slot is named once, and that the log of its target counts as many.
    fn check(mut self, state: &CacheState, bad: &mut Vec<String>) {
        let Some(targets) = &state.targets else { return };
        for device in targets.all.iter().filter(|device| !device.is_scanning()) {
            self.0.extend(device.all_parked().map(|(slot, ..)| slot));
            let mut its: Vec<DeviceSlot> = self.0.iter().copied().filter(|slot| device.has(*slot)).collect();
            let (name, named) = (&device.config.name, its.len() as u64);
            its.sort_unstable_by_key(|slot| slot.bits());
            its.dedup();
            if named != its.len() as u64 {
                bad.push(format!("{} slots of {name} are named more than once", named - its.len() as u64));
            }
            if named != device.log.live() {
                bad.push(format!("{named} slots of {name} are named, {} counted", device.log.live()));
            }
        }
        bad.extend(
            self.0.iter().filter(|slot| targets.of(**slot).is_none()).map(|slot| format!("no {slot:?}")),
        );
    }
}

/// Disagreements; empty = all is well.
pub(crate) fn check(cx: &Context) -> Vec<String> {
    let mut bad = check_memory(cx);
    bad.extend(cx.devices.all().iter().flat_map(|device| check_keys(cx, device)));
    bad
}

/// Checks a target's keys: each has an entry or a queued tombstone. Locks the target's writer.
fn check_keys(cx: &Context, device: &DeviceIo) -> Vec<String> {
    let writer = device.writer();
    let is_serving = |targets: &Targets| targets.at(device.number()).is_some_and(Device::is_serving);
    if writer.has_ended() || !cx.state.lock().targets.as_ref().is_some_and(is_serving) {
        return Vec::new();
    }
    let scanned = match scan(&**device.medium(), writer.superblock(), &mut |_| {}) {
        Ok(scanned) => scanned,
        Err(e) => return vec![format!("the device's keys cannot be read: {e}")],
    };
    let state = cx.state.lock();
    let Some(tier) = state.targets.as_ref().and_then(|targets| targets.at(device.number())) else {
        return Vec::new();
    };
    let named = |(page, slot, _): &(u64, DeviceSlot, u32)| (*page, device.named(*slot));
    let keys = scanned
        .files
        .iter()
        .flat_map(|(object, file)| file.pages.iter().map(move |page| (*object, named(page))));
    let unnamed = keys.filter(|(object, (page, slot))| {
        tier.counts_in_log(*slot)
            && state.names(*slot, *object, *page) == Named::No
            && !tier.has_queued_tombstone(*object, *page)
    });
    unnamed
        .map(|(object, (page, slot))| {
            format!("object {object} page {page}: nothing names {slot:?}, and no tombstone waits")
        })
        .collect()
}

/// Disagreements in memory. Holds the state lock all the while.
fn check_memory(cx: &Context) -> Vec<String> {
    let state = cx.state.lock();
    let slots: Vec<u32> = state.objects.values().map(|o| o.slot_index()).collect();
    let mut bad = state.pages.index.check(&slots);
    bad.extend(state.lru.policy.check().err());
    let mut compressed = Vec::new();
    let mut slots = Slots::default();
    let (mut named, mut dirty, mut unstable, mut flagged) = (0u32, 0u64, 0u64, [0u64; 3]);
    for o in state.objects.values() {
        let dirty_pages = o.dirty.lock();
        dirty += (dirty_pages.dirty.len() + dirty_pages.undestaged.len()) as u64;
        unstable += dirty_pages.unstable.len() as u64;
        state.pages.index.for_range(o.slot_index(), 0, u64::MAX, |page, place| {
            let e = state.pages.index.get(place);
            if let Some(handle) = e.handle() {
                compressed.push((place, handle));
            }
            slots.note(&state, place, e);
            let Some(frame) = e.frame() else { return };
            named += 1;
            let flags = cx.handles.frame_flags(frame).load(Ordering::Relaxed);
            for (count, flag) in flagged.iter_mut().zip([DIRTY, WRITEBACK, UNSTABLE]) {
                *count += u64::from(flags & flag != 0);
            }
            let what = format!("object {} page {page} frame {frame}", o.id());
            let page_bad = check_page(&state, o, &dirty_pages, ResidentPage { page, place, frame, flags });
            bad.extend(page_bad.into_iter().map(|why| format!("{what}: {why}")));
        });
    }
    match &state.compressed {
        Some(tier) => tier.check(&compressed, &mut bad),
        None if compressed.is_empty() => {}
        None => bad.push(format!("{} pages in a tier that does not exist", compressed.len())),
    }
    slots.check(&state, &mut bad);
    if named + state.claimed != state.frames.in_use() {
        bad.push(format!(
            "{named} frames named, {} claimed, {} in use",
            state.claimed,
            state.frames.in_use()
        ));
    }
    let totals = state.dirty.totals;
    let shown = state.dirty.unwritten.load(Ordering::Relaxed);
    if shown != totals.all() {
        bad.push(format!("{shown} unwritten pages are shown to writers, {} counted", totals.all()));
    }
    if [dirty, totals.writeback, unstable] != flagged || [totals.dirty, totals.unstable] != [dirty, unstable]
    {
        bad.push(format!(
            "{dirty} dirty and {unstable} unstable in sets, {totals:?} counted, {flagged:?} flagged"
        ));
    }
    bad
}

#[cfg(test)]
mod tests {
    use crate::{Engine, EngineConfig, SegmentHandles, SystemClock};
    use std::os::fd::AsRawFd;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Barrier};
    use terrace_io::testing::{Call, HookIo, NullIo};

    #[test]
    fn truncate_under_way_is_no_disagreement() {
        let config = EngineConfig { memory_bytes: 16 << 20, ..EngineConfig::default() };
        let handles = Arc::new(SegmentHandles::create(&config).unwrap());
        let stop = Arc::new(Barrier::new(2));
        let (stopped, arm) = (stop.clone(), Arc::new(AtomicBool::new(false)));
        let armed = arm.clone();
        let device = HookIo::new(NullIo, move |call| {
            if call == Call::Truncate && armed.load(Ordering::Acquire) {
                stopped.wait();
                stopped.wait();
            }
            Ok(())
        });
        let engine = Engine::start(config, handles, Arc::new(SystemClock), Arc::new(device)).unwrap();
        let file = tempfile::tempfile().unwrap();
        let o = engine.object(7, file.as_raw_fd(), 0).unwrap();
        engine.write(&o, 0, &[1; 16384]).unwrap();
        engine.flush_all(true).unwrap();
        arm.store(true, Ordering::Release);
        std::thread::scope(|scope| {
            let truncates = scope.spawn(|| engine.truncate(&o, 0));
            stop.wait();
            let meanwhile = engine.check();
            stop.wait();
            truncates.join().unwrap().unwrap();
            assert_eq!((meanwhile, engine.check()), (Vec::new(), Vec::new()));
        });
    }
}
