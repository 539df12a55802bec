//! Misses of a client: versions of absent pages, and the check that a page read elsewhere is current.
//! Hits are in [`crate::reader`].

use crate::entry::{Below, DeviceSlot, State};
use crate::layout::{BLOCK_PAGES, ObjectSlot};
use crate::map::Segment;
pub use crate::protocol::PageVersion;
use crate::protocol::{NO_LEAF, look, same_epoch, same_version, unwritten_since};
use crate::sync::{Ordering, fence};

/// The version of an absent page, for [`is_current`] and for a page fill. None if the page is not absent:
/// try the hit again. [`is_current`] also checks whether the client must use the mount path.
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

/// After the client read the page from its slot of a device: true if the slot was the page's throughout. A
/// slot may be reused for another page. The source's content stays the page's while the file is not written.
pub fn is_current_on_device(seg: &Segment, slot: &ObjectSlot, page: u64, seen: PageVersion) -> bool {
    fence(Ordering::Acquire);
    slot.flags.load(Ordering::Acquire) == 0
        && snapshot_on_device(seg, slot, page).is_some_and(|(_, now)| now.identity == seen.identity)
}

/// After the client read the page from the source: true if nothing changed it since [`snapshot`], so that the
/// client has read the page's content.
pub fn is_current(seg: &Segment, slot: &ObjectSlot, page: u64, seen: PageVersion) -> bool {
    if slot.flags.load(Ordering::Acquire) != 0 {
        return false;
    }
    // The object was not written since: the common case, also if the page was cached meanwhile. The daemon,
    // which would publish the page for all clients, requires that the entry is unchanged.
    if unwritten_since(seen, &slot.write_clock) {
        return true;
    }
    snapshot(seg, slot, page).is_some_and(|now| same_version(seen, now.identity, &slot.write_clock))
}
