//! Parking: pages of unpublished files stay on the device. They become valid when the file is published with
//! the same identity.

use crate::context::Context;
use crate::file::identity::{Identity, Known};
use crate::file::object::{Object, ObjectId};
use crate::state::State;
use rustix::fd::BorrowedFd;
use std::sync::Once;
use std::sync::atomic::Ordering;
use terrace_shm::device_table::TARGETS_MAX;

/// Logs once that a tier cannot keep files without a lasting identity.
static NO_LASTING_IDENTITY: Once = Once::new();

/// Parked pages restored under one lock.
const BATCH: usize = 1024;

/// Largest file that is read again for an identity.
pub(crate) const FEW_BYTES: u64 = 1 << 20;
/// For larger files: reads up to this long after the change has settled are done again.
const FEW_NS: u64 = 100_000_000;

/// Identity of a file, taken before any content is read.
pub(crate) fn identity_of(cx: &Context, path_fd: BorrowedFd<'_>) -> Known {
    if !cx.has_devices() {
        return Known::default();
    }
    let Ok(identity) = Identity::of(path_fd) else { return Known::default() };
    if !identity.is_lasting {
        NO_LASTING_IDENTITY.call_once(|| {
            tracing::warn!(
                "the source has neither lasting inode numbers nor times finer than seconds; the next start drops its pages from tiers"
            );
        });
        return Known::default();
    }
    match identity.is_settled(cx.clock.wall_ns()) {
        true => Known { identity: Some(identity.digest), until: 0 },
        false => Known { identity: None, until: cx.clock.now_ns() + identity.settles_in() },
    }
}

/// Gives a file of an instance without a mount its present identity, so that its pages on devices outlive the
/// run. False: there is no tier, or a change is too recent or under way. `is_coherent`, called after the file's
/// identity was taken: all changes so far have withdrawn their pages.
pub(crate) fn renew_identity(cx: &Context, o: &Object, is_coherent: impl FnOnce() -> bool) -> bool {
    let wrote = o.write_clock();
    let known = identity_of(cx, o.source().as_path());
    let is_valid = known.identity.is_some() && is_coherent() && o.write_clock() == wrote;
    if is_valid && known.identity != Some(o.identity.load(Ordering::Relaxed)) {
        o.set_known(&known);
        cx.state.lock().void_recorded(o.id());
    }
    is_valid
}

/// Identifies a file published soon after a change, once the change has settled.
#[inline]
pub(crate) fn retry_identity(cx: &Context, o: &Object) {
    let until = o.identity_due_ns.load(Ordering::Relaxed);
    if until != 0 && cx.clock.now_ns() > until {
        take_late_identity(cx, o, until);
    }
}

/// Gives a file its identity late. Pages read before may be older. Few such pages are dropped; many are worth
/// more than the identity.
#[cold]
fn take_late_identity(cx: &Context, o: &Object, until: u64) {
    let Some(_content) = o.content.try_write() else { return };
    if o.identity_due_ns.swap(0, Ordering::Relaxed) == 0 || o.gone.load(Ordering::Relaxed) {
        return;
    }
    let has_few = o.size() <= FEW_BYTES
        || cx.clock.now_ns() < until.saturating_add(FEW_NS)
        || cx.state.lock().pages.index.is_empty(o.slot_index());
    // With the cache's own times, `valid_identity` needs no identity.
    if !has_few || o.times().is_some() || o.has_unsynced_pages() {
        return;
    }
    let known = identity_of(cx, o.source().as_path());
    if known.identity.is_some() {
        cx.state.lock().drop_pages(o, 0, u64::MAX);
    }
    o.set_known(&known);
}

/// The identity that keeps a file's pages on the device valid. None: its present state may differ from the
/// cached one.
pub(crate) fn valid_identity(cx: &Context, o: &Object) -> Option<u64> {
    let wrote = o.slot().write_clock.load(Ordering::Acquire);
    if o.has_unsynced_pages() {
        return None;
    }
    let (identity, stat) = (Identity::of(o.source().as_path()).ok()?, o.source().stat().ok()?);
    let ours = match o.times() {
        // Written through the cache: the source has the times set by the cache.
        Some(_) => !o.is_changed_behind(&stat),
        None => o.identity.load(Ordering::Relaxed) == identity.digest,
    };
    let settled =
        identity.is_lasting && identity.is_settled(cx.clock.wall_ns()) && stat.st_size as u64 == o.size();
    let same = o.slot().write_clock.load(Ordering::Acquire) == wrote && !o.has_unsynced_pages();
    (ours && settled && same).then_some(identity.digest)
}

/// Restores parked pages of published files on target `number`, a bounded number under each lock.
pub(crate) fn restore_parked(cx: &Context, number: usize) {
    let next = || cx.state.lock().next_arriving(number);
    while let Some(id) = next() {
        while !cx.is_stopping() && cx.state.lock().restore_parked(number, id, BATCH) {}
        if cx.is_stopping() {
            return;
        }
    }
}

impl State {
    /// The targets record the object's identity anew.
    fn void_recorded(&mut self, id: ObjectId) {
        for device in self.targets.iter_mut().flat_map(|targets| &mut targets.all) {
            device.void_recorded(id);
        }
    }
    /// Prepares the return of a just published object's parked pages. True: there are some.
    pub(crate) fn begin_restore(&mut self, o: &Object) -> bool {
        // All targets, not only the first one with pages.
        (0..TARGETS_MAX).filter(|number| self.begin_restore_on(*number, o, &[])).count() > 0
    }
    /// [`State::begin_restore`] for one target. `named`: pages with slots there, which keep them.
    pub(crate) fn begin_restore_on(&mut self, number: usize, o: &Object, named: &[u64]) -> bool {
        let id = o.id();
        let device = self.target_mut(number);
        let Some(device) = device.filter(|device| !device.is_scanning()) else { return false };
        let Some(parked) = device.parked.get(&id) else { return false };
        let identity = o.identity.load(Ordering::Relaxed);
        if identity == 0 || parked.digest != Some(identity) {
            device.unpark_between(id, named);
            return false;
        }
        device.arriving.push(id);
        true
    }
    fn next_arriving(&mut self, number: usize) -> Option<ObjectId> {
        self.targets.as_mut()?.at_mut(number)?.arriving.pop()
    }
    /// Restores some parked pages of a file. True: more are left.
    fn restore_parked(&mut self, number: usize, id: ObjectId, most: usize) -> bool {
        let Some(o) = self.objects.get(&id).cloned() else { return false };
        let device = self.target_mut(number);
        let Some(device) = device else { return false };
        let Some(parked) = device.parked.get_mut(&id) else { return false };
        let from = parked.pages.len().saturating_sub(most);
        let pages: Vec<_> = parked.pages.drain(from..).collect();
        let more = from > 0;
        if !more {
            device.parked.remove(&id);
        }
        for (page, slot) in pages {
            self.name_slot(&o, page.into(), slot);
        }
        more
    }
    /// Drops an object that the kernel forgets, and parks its pages. `digest`: its identity, if valid.
    pub(crate) fn forget(&mut self, o: &Object, digest: Option<u64>) {
        let mut pages = self.take_slots(o);
        for device in self.targets.iter_mut().flat_map(|targets| &mut targets.all) {
            // Pages not restored yet.
            let parked = if device.is_scanning() { None } else { device.parked.remove(&o.id()) };
            pages.extend(parked.map(|parked| parked.pages).unwrap_or_default());
        }
        self.remove_object(o);
        for device in self.targets.iter_mut().flat_map(|targets| &mut targets.all) {
            let of_device = pages.iter().filter(|(_, slot)| device.has(*slot)).copied().collect();
            device.park(o.id(), digest, of_device);
        }
    }
}
