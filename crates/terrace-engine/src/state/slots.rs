//! Pages of the index and their slots on a device: the operations of [`State`] that touch both.

use crate::file::object::Object;
use crate::state::State;
use crate::state::compressed::WAS_HERE;
use crate::state::device::Status;
use std::num::NonZeroU32;
use terrace_policy::InsertReason;
use terrace_shm::entry::DeviceSlot;
use terrace_shm::index::Place;

impl State {
    /// [`State::insert`] of a page that was read from its slot, which stays as a copy.
    pub(super) fn insert_from_device(
        &mut self,
        place: Place,
        frame: u32,
        slot: DeviceSlot,
        reason: InsertReason,
    ) -> bool {
        self.remap(place, frame);
        self.pages.publish_present(place, frame);
        let device = self.device.as_mut().expect("an entry names its tier");
        device.set_copy(frame, slot);
        device.events.promoted += 1;
        let hits = device.note_hit(slot);
        // A second hit: the page came back, whatever the policy remembers of it.
        let came_back = self.lru.policy.shadow().filter(|_| hits > 0).map(|shadow| shadow.0);
        self.lru_add(frame, came_back.map_or(WAS_HERE, NonZeroU32::get), reason)
    }

    /// A clean page leaves its frame, which the policy does not list (any more), for the slot that has it already. False: it has none.
    pub(super) fn return_to_copy(&mut self, place: Place, frame: u32) -> bool {
        let Some(slot) = self.device.as_mut().and_then(|device| device.take_copy(frame)) else { return false };
        self.pages.publish_on_device(place, slot);
        self.free_mapped(frame);
        true
    }
    /// The page at `place` is compressed from now on, no longer in `frame`: its copy stays its copy.
    pub(super) fn keep_copy_below(&mut self, place: Place, frame: u32) {
        if let Some(device) = &mut self.device
            && let Some(slot) = device.take_copy(frame)
        {
            device.set_copy_below(place, slot);
        }
    }
    /// The compressed page at `place` is in `frame` from now on.
    pub(super) fn take_copy_up(&mut self, place: Place, frame: u32) {
        if let Some(device) = &mut self.device
            && let Some(slot) = device.take_copy_below(place)
        {
            device.set_copy(frame, slot);
        }
    }

    /// The content of a page in a frame changes: what the device has is its content no longer.
    pub(super) fn end_copy(&mut self, o: &Object, page: u64, frame: u32) {
        let Some(device) = &mut self.device else { return };
        let copy = device.take_copy(frame);
        if let Some(slot) = copy {
            device.kill(slot);
        }
        if copy.is_some() || device.status == Status::Scanning {
            device.bury(o.id(), page, page);
        }
    }
    /// [`State::end_copy`] of a compressed page.
    pub(super) fn end_copy_below(&mut self, place: Place) {
        if let Some(slot) = self.device.as_mut().and_then(|device| device.take_copy_below(place)) {
            self.end_slot(place, slot);
        }
    }
    /// The slot of the page at `place`, which nothing names any more, is its content no longer.
    pub(super) fn end_slot(&mut self, place: Place, slot: DeviceSlot) {
        let (object, page) = self.pages.index.whose(place);
        let id = self.objects.in_slot(object).map(|o| o.id());
        let Some(device) = &mut self.device else { return };
        device.kill(slot);
        if let Some(id) = id {
            device.bury(id, page, page);
        }
    }
    /// The slot of an object's page cannot be read, or holds something else.
    pub(crate) fn lose_slot(&mut self, o: &Object, page: u64) {
        if let Some(device) = &mut self.device {
            device.events.damaged += 1;
        }
        self.invalidate_page(o, page);
    }
    /// The pages `[first, last]` of an object change: what is parked of them goes. While the device is being scanned, whatever it holds.
    pub(super) fn end_parked(&mut self, o: &Object, first: u64, last: u64) {
        let Some(device) = &mut self.device else { return };
        device.unpark(o.id(), first, last);
        if device.status == Status::Scanning {
            device.bury(o.id(), first, last);
        }
    }
}
