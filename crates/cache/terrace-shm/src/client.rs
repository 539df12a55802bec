//! Misses of a client: versions of absent pages, and the check that a page read elsewhere is current. Hits
//! are in [`crate::reader`].

use crate::entry::{Below, DeviceSlot, State};
use crate::layout::{BLOCK_PAGES, ObjectSlot};
use crate::map::Segment;
pub use crate::protocol::PageVersion;
use crate::protocol::{NO_LEAF, look, same_epoch, same_version, unwritten_since};
use crate::sync::{Ordering, fence};

/// The version of an absent page, for [`is_current`] and for a page fill. None: the page is not absent, so
/// try the hit again.
pub fn snapshot(seg: &Segment, slot: &ObjectSlot, page: u64) -> Option<PageVersion> {
    let clock = seg.header().clock.load(Ordering::Acquire);
    let epoch = seg.header().epoch.load(Ordering::Acquire);
    let identity = match seg.find_leaf(slot, page / BLOCK_PAGES as u64).ok()? {
        None => NO_LEAF,
        Some((_, leaf)) => {
            let e = look(&leaf.0[(page % BLOCK_PAGES as u64) as usize]);
            if e.state() != State::Absent || !same_epoch(&seg.header().epoch, epoch) {
                return None;
            }
            e.identity()
        }
    };
    Some(PageVersion { identity, clock })
}

/// The slot of a page on a device, and the version for [`is_current_on_device`] and for a page fill. None if
/// the page is not on a device.
pub fn snapshot_on_device(seg: &Segment, slot: &ObjectSlot, page: u64) -> Option<(DeviceSlot, PageVersion)> {
    let clock = seg.header().clock.load(Ordering::Acquire);
    let epoch = seg.header().epoch.load(Ordering::Acquire);
    let (_, leaf) = seg.find_leaf(slot, page / BLOCK_PAGES as u64).ok()??;
    let e = look(&leaf.0[(page % BLOCK_PAGES as u64) as usize]);
    match e.below() {
        Some(Below::Device(on_device)) if same_epoch(&seg.header().epoch, epoch) => {
            Some((on_device, PageVersion { identity: e.identity(), clock }))
        }
        _ => None,
    }
}

/// After a read of the page from its slot on a device: true if the slot was the page's throughout. A slot may
/// be reused for another page. Content from the source stays right while the file is not written.
pub fn is_current_on_device(seg: &Segment, slot: &ObjectSlot, page: u64, seen: PageVersion) -> bool {
    fence(Ordering::Acquire);
    slot.flags.load(Ordering::Acquire) == 0
        && snapshot_on_device(seg, slot, page).is_some_and(|(_, now)| now.identity == seen.identity)
}

/// After a read of the source: true if the page is unchanged since [`snapshot`], and the file
/// is still served without the mount.
pub fn is_current(seg: &Segment, slot: &ObjectSlot, page: u64, seen: PageVersion) -> bool {
    if slot.flags.load(Ordering::Acquire) != 0 {
        return false;
    }
    // Common case: the object was not written since, even if the page was cached meanwhile. The daemon, which
    // publishes for all clients, requires an unchanged entry.
    if unwritten_since(seen, &slot.write_clock) {
        return true;
    }
    snapshot(seg, slot, page).is_some_and(|now| same_version(seen, now.identity, &slot.write_clock))
}
