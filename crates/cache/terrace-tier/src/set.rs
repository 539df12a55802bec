//! The targets in use, by number. Targets come and go while the engine runs: a user of one holds an `Arc` of
//! it.

use crate::io::DeviceIo;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use terrace_shm::device_table::TARGETS_MAX;
use terrace_shm::{DeviceSlot, DeviceTable};
use terrace_sync::RwLock;

fn overlap(a: &DeviceTable, b: &DeviceTable) -> bool {
    let end = |table: &DeviceTable| table.first_region() + table.regions();
    a.first_region() < end(b) && b.first_region() < end(a)
}

/// Targets by number. A free number goes to the next new target.
#[derive(Debug, Default)]
pub struct Devices {
    places: RwLock<[Option<Arc<DeviceIo>>; TARGETS_MAX]>,
    count: AtomicUsize,
}

impl Devices {
    /// The targets that an engine starts with.
    pub fn new(all: Vec<DeviceIo>) -> Devices {
        let devices = Devices::default();
        all.into_iter().for_each(|device| devices.put(Arc::new(device)));
        devices
    }
    /// Adds a target.
    ///
    /// # Panics
    /// Its number or one of its regions is in use.
    pub fn put(&self, device: Arc<DeviceIo>) {
        let mut places = self.places.write();
        let number = device.number();
        assert!(places[number].is_none(), "number {number} is free");
        let others = places.iter().flatten();
        assert!(
            others.map(|other| other.table()).all(|other| !overlap(&other, &device.table())),
            "a region has one target"
        );
        places[number] = Some(device);
        self.count.fetch_add(1, Ordering::Release);
    }
    /// Whether a target may have this table: no other target uses a region of it.
    pub fn may_have(&self, number: usize, table: &DeviceTable) -> bool {
        let places = self.places.read();
        let mut others = places.iter().flatten().filter(|other| other.number() != number);
        others.all(|other| !overlap(&other.table(), table))
    }
    /// Removes a target. None: there is none of this number.
    pub fn take(&self, number: usize) -> Option<Arc<DeviceIo>> {
        let taken = self.places.write()[number].take();
        self.count.fetch_sub(usize::from(taken.is_some()), Ordering::Release);
        taken
    }
    /// The target of a number.
    pub fn get(&self, number: usize) -> Option<Arc<DeviceIo>> {
        self.places.read().get(number)?.clone()
    }
    /// All targets, by number.
    pub fn all(&self) -> Vec<Arc<DeviceIo>> {
        if self.is_empty() {
            return Vec::new();
        }
        self.places.read().iter().flatten().cloned().collect()
    }
    /// Whether any target may have pages that the source lacks.
    pub fn may_have_undestaged(&self) -> bool {
        !self.is_empty() && self.places.read().iter().flatten().any(|device| device.may_have_undestaged())
    }
    /// Number of the target that a slot belongs to.
    pub fn number_of(&self, slot: DeviceSlot) -> Option<usize> {
        self.places.read().iter().flatten().find(|device| device.has(slot)).map(|device| device.number())
    }
    /// Number of targets.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }
    /// Whether there is no target.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
