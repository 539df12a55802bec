//! The published objects, by number and by slot.

use crate::file::object::{Object, ObjectId, ObjectRef};
use crate::table::{Map, trim};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use terrace_shm::Segment;

#[derive(Debug)]
pub(crate) struct Objects {
    segment: Arc<Segment>,
    by_id: Map<ObjectId, ObjectRef>,
    by_slot: Map<u32, ObjectRef>,
}

impl Objects {
    pub(crate) fn new(segment: Arc<Segment>) -> Objects {
        Objects { segment, by_id: Map::default(), by_slot: Map::default() }
    }
    pub(crate) fn get(&self, id: &ObjectId) -> Option<&ObjectRef> {
        self.by_id.get(id)
    }
    pub(crate) fn in_slot(&self, slot: u32) -> Option<&ObjectRef> {
        self.by_slot.get(&slot)
    }
    pub(crate) fn values(&self) -> impl Iterator<Item = &ObjectRef> {
        self.by_id.values()
    }
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }
    /// False for a forgotten object: its slot may belong to another one by now.
    pub(crate) fn is_known(&self, o: &Object) -> bool {
        self.by_slot.get(&o.slot_index()).is_some_and(|now| std::ptr::eq(&**now, o))
    }

    /// Publishes a new object, written at event `clock`, in a free slot. None: no slot is free.
    pub(crate) fn publish(
        &mut self,
        id: ObjectId,
        size: u64,
        flags: u32,
        clock: u64,
        make: impl FnOnce(u32) -> Object,
    ) -> Option<ObjectRef> {
        let i = self.segment.free_slot(id)?;
        let slot = self.segment.object(i);
        slot.root.store(0, Ordering::Relaxed);
        slot.size.store(size, Ordering::Relaxed);
        slot.flags.store(flags, Ordering::Relaxed);
        slot.times_known.store(0, Ordering::Relaxed);
        slot.has_undestaged.store(0, Ordering::Relaxed);
        slot.write_clock.store(clock, Ordering::Relaxed);
        slot.id.store(id, Ordering::Release);
        Some(self.adopt(make(i)))
    }
    /// Adds an object with an already valid slot.
    pub(crate) fn adopt(&mut self, object: Object) -> ObjectRef {
        let object = Arc::new(object);
        self.by_id.insert(object.id(), object.clone());
        self.by_slot.insert(object.slot_index(), object.clone());
        object
    }
    /// Removes an object without pages.
    pub(crate) fn remove(&mut self, o: &Object) {
        o.slot().id.store(0, Ordering::Release);
        self.by_id.remove(&o.id());
        self.by_slot.remove(&o.slot_index());
        trim(&mut self.by_id);
        trim(&mut self.by_slot);
    }
}
