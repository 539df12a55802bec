//! Files come and go, and their pages on the device stay: parked while the file is not published, believed again when it comes back
//! with the identity that it had.

use crate::context::Context;
use crate::file::identity::Identity;
use crate::file::object::{Object, ObjectId};
use crate::state::State;
use rustix::fd::BorrowedFd;
use std::sync::atomic::Ordering;

/// Parked pages that come back under one lock.
const BATCH: usize = 1024;

/// The identity of a file that is about to be published; None: there is no tier that would ask, or it cannot be had.
pub(crate) fn identity_of(cx: &Context, path_fd: BorrowedFd<'_>) -> Option<u64> {
    cx.device.as_ref()?;
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

/// Brings parked pages of published files back into the index, a bounded number under each lock.
pub(crate) fn bring_back(cx: &Context) {
    let next = || cx.state.lock().next_arriving();
    while let Some(id) = next() {
        while !cx.is_stopping() && cx.state.lock().bring_back(id, BATCH) {}
        if cx.is_stopping() {
            return;
        }
    }
}

impl State {
    /// The object was just published: do its parked pages come back? True if some do.
    pub(crate) fn welcome(&mut self, o: &Object) -> bool {
        let id = o.id();
        let Some(device) = self.device.as_mut().filter(|device| !device.is_scanning()) else { return false };
        let Some(parked) = device.parked.get(&id) else { return false };
        let identity = o.identity.load(Ordering::Relaxed);
        if identity == 0 || parked.digest != Some(identity) {
            device.unpark(id, 0, u64::MAX);
            return false;
        }
        device.arriving.push(id);
        true
    }
    fn next_arriving(&mut self) -> Option<ObjectId> {
        self.device.as_mut()?.arriving.pop()
    }
    /// Some of the parked pages of a file come back; true if there are more.
    fn bring_back(&mut self, id: ObjectId, most: usize) -> bool {
        let Some(o) = self.objects.get(&id).cloned() else { return false };
        let Some(parked) = self.device.as_mut().and_then(|device| device.parked.get_mut(&id)) else {
            return false;
        };
        let from = parked.pages.len().saturating_sub(most);
        let pages: Vec<_> = parked.pages.drain(from..).collect();
        let more = from > 0;
        if !more && let Some(device) = &mut self.device {
            device.parked.remove(&id);
        }
        for (page, slot) in pages {
            self.name_slot(&o, page.into(), slot);
        }
        more
    }
    /// The kernel forgets the object: its pages go, and what the device holds of them is parked. `digest`: its identity, if it is believed.
    pub(crate) fn forget(&mut self, o: &Object, digest: Option<u64>) {
        let knows = self.device.as_ref().is_some_and(|device| !device.is_scanning());
        let mut pages = if knows { self.take_slots(o) } else { Vec::new() };
        if let Some(parked) = self.device.as_mut().filter(|_| knows).and_then(|d| d.parked.remove(&o.id())) {
            // Those that had not come back yet.
            pages.extend(parked.pages);
        }
        self.remove_object(o);
        if let Some(device) = &mut self.device {
            device.park(o.id(), digest, pages);
        }
    }
}
