//! Files come and go, and their pages on the device stay: parked while the file is not published, believed again when it comes back
//! with the identity that it had.

use crate::context::Context;
use crate::file::identity::Identity;
use crate::file::object::{Object, ObjectId};
use crate::state::State;
use rustix::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use terrace_shm::device_table::TARGETS_MAX;

/// Parked pages that come back under one lock.
const BATCH: usize = 1024;

/// The identity of a file that is about to be published; None: there is no tier that would ask, or it cannot be had.
pub(crate) fn identity_of(cx: &Context, path_fd: BorrowedFd<'_>) -> Option<u64> {
    if !cx.has_devices() {
        return None;
    }
    Identity::of(path_fd).ok().map(|identity| identity.digest)
}

/// The identity of a file for what the device holds of it: None if its present state is not certainly what the cache has seen.
pub(crate) fn believable(cx: &Context, o: &Object) -> Option<u64> {
    let wrote = o.slot().write_clock.load(Ordering::Acquire);
    if o.is_unsettled() {
        return None;
    }
    let (identity, stat) = (Identity::of(o.source().as_path()).ok()?, o.source().stat().ok()?);
    let ours = match o.times() {
        // Written through the cache: the source has the times that the cache gave it.
        Some(_) => !o.is_changed_behind(&stat),
        None => o.identity.load(Ordering::Relaxed) == identity.digest,
    };
    let settled = identity.is_settled(cx.clock.wall_ns()) && stat.st_size as u64 == o.size();
    let same = o.slot().write_clock.load(Ordering::Acquire) == wrote && !o.is_unsettled();
    (ours && settled && same).then_some(identity.digest)
}

/// Brings parked pages that target `number` has of published files back into the index, a bounded number under each lock.
pub(crate) fn bring_back(cx: &Context, number: usize) {
    let next = || cx.state.lock().next_arriving(number);
    while let Some(id) = next() {
        while !cx.is_stopping() && cx.state.lock().bring_back(number, id, BATCH) {}
        if cx.is_stopping() {
            return;
        }
    }
}

impl State {
    /// The object was just published: do its parked pages come back? True if some do.
    pub(crate) fn welcome(&mut self, o: &Object) -> bool {
        // Each target, not only the first that has some.
        (0..TARGETS_MAX).filter(|number| self.welcome_on(*number, o, &[])).count() > 0
    }
    /// [`State::welcome`] for one target. `named`: pages that have slots there, and keep them.
    pub(crate) fn welcome_on(&mut self, number: usize, o: &Object, named: &[u64]) -> bool {
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
    /// Some of the parked pages of a file come back; true if there are more.
    fn bring_back(&mut self, number: usize, id: ObjectId, most: usize) -> bool {
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
    /// The kernel forgets the object: its pages go, and what the device holds of them is parked. `digest`: its identity, if it is believed.
    pub(crate) fn forget(&mut self, o: &Object, digest: Option<u64>) {
        let mut pages = self.take_slots(o);
        for device in self.targets.iter_mut().flat_map(|targets| &mut targets.all) {
            // Those that had not come back yet.
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
