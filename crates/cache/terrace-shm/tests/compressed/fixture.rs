//! Fixture of the tests of compressed pages: a segment, its touch table, and a pool.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use terrace_shm::index::Place;
use terrace_shm::layout::ZSPAGE_SIZE;
use terrace_shm::map::memfd;
use terrace_shm::zobject::Handle;
use terrace_shm::zpool::ZPool;
use terrace_shm::zread::PageCopy;
use terrace_shm::{Geometry, Segment, TouchTable};

pub(crate) struct Fixture {
    pub seg: Arc<Segment>,
    pub touches: Arc<TouchTable>,
    pub fd: OwnedFd,
    pub pool: ZPool,
}

/// Room for `zspages_max` zspages, of which `limit` may be used.
pub(crate) fn fixture(zspages_max: u32, limit: u32) -> Fixture {
    let geometry = Geometry { objects_max: 64, inners_max: 64, leaves_max: 64, frames_max: 8, zspages_max };
    let fd = memfd("pool-test", geometry.segment_bytes()).unwrap();
    let touch = memfd("pool-touch", geometry.touch_bytes()).unwrap();
    let seg = Arc::new(Segment::create(&fd, geometry).unwrap());
    let touches = Arc::new(TouchTable::create(&touch, &geometry).unwrap());
    let mut pool = ZPool::new(seg.clone(), touches.clone()).unwrap();
    pool.set_limit(u64::from(limit) * ZSPAGE_SIZE as u64);
    Fixture { seg, touches, fd, pool }
}

/// The bytes at a handle, if they are the page of `place`.
pub(crate) fn fetch(seg: &Segment, handle: Handle, place: u32) -> Option<Vec<u8>> {
    let mut room = MaybeUninit::uninit();
    let mut copied = PageCopy::new(&mut room);
    if !copied.fetch(seg, handle) {
        return None;
    }
    copied.coded(Place(place)).map(|c| c.bytes.to_vec())
}
