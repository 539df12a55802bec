//! Page fills and requests for a frame, sent to the daemon through the ring.

use crate::connection;
use crate::file::File;
use crate::sys::count;
use std::sync::atomic::{AtomicU64, Ordering};
use terrace_shm::client::PageVersion;
use terrace_shm::codec::{Page, Unpack};
use terrace_shm::protocol::slot;
use terrace_shm::ring::{PageFill, Ring};
use terrace_shm::unzstd::unzstd;

/// Callbacks for hits in the compressed tier: counts them, and requests a frame for a page that is read
/// often.
#[derive(Debug)]
pub(crate) struct FromTier<'a>(pub &'a File<'a>);

impl Unpack for FromTier<'_> {
    #[cold]
    fn zstd(&mut self, bytes: &[u8], out: &mut Page) -> bool {
        unzstd(bytes, out, self.0.local.stripe())
    }
    #[cold]
    fn served(&mut self, page: u64, before: u8) {
        let Some(ring) = connection::ring() else { return };
        count(&ring.counters(self.0.local.stripe()).tier_hits, 1);
        // Requested once, at the threshold: a request has a cost, and promotion takes a while.
        if u32::from(before) + 1 == self.0.world.segment.header().promote_at.load(Ordering::Relaxed) {
            ask_for(self.0, page);
        }
    }
}

/// Requests a frame for a page: a fill without content.
fn ask_for(file: &File, page: u64) {
    let Some(ring) = connection::hold_ring() else { return };
    let Some(slot) = is_serving(file).then(|| claim(&ring, file)).flatten() else { return };
    // A request without content needs no version.
    offer(ring.fill(slot.into()), file, page, PageVersion { identity: 0, clock: 0 }, 0);
}

/// Makes a claimed slot ready: with `len` bytes of content, or with the key alone (0).
pub(crate) fn offer(d: &PageFill, file: &File, page: u64, seen: PageVersion, len: usize) {
    d.object.store(file.object, Ordering::Relaxed);
    d.page.store(page, Ordering::Relaxed);
    d.seen.store(seen.identity, Ordering::Relaxed);
    d.clock.store(seen.clock, Ordering::Relaxed);
    d.len.store(len as u64, Ordering::Relaxed);
    // The processor, near which the frame should lie. Not a system call: the kernel publishes the number in
    // memory. -1: it does not.
    // SAFETY: the call takes and changes nothing.
    let cpu = unsafe { libc::sched_getcpu() };
    d.cpu.store(u64::try_from(cpu + 1).unwrap_or(0), Ordering::Relaxed);
    slot::ready(&d.state);
}

/// False while the daemon stops: fills are not consumed then.
pub(crate) fn is_serving(file: &File) -> bool {
    file.world.segment.header().serving.load(Ordering::Relaxed) != 0
}

/// Takes a free slot of the ring. Threads begin at different slots and continue after their last one, so that
/// adjacent pages mostly get adjacent slots.
pub(crate) fn claim(ring: &Ring, file: &File) -> Option<u8> {
    static START: AtomicU64 = AtomicU64::new(0);
    let slots = ring.slots();
    let next = &file.local.next_slot;
    if next.get() == 0 {
        next.set(1 + START.fetch_add(16, Ordering::Relaxed) as u32 % 1024);
    }
    let start = next.get() as usize;
    let found = (start..start + slots).find(|&i| slot::claim(&ring.fill(i % slots).state))?;
    next.set((found % slots) as u32 + 1);
    Some((found % slots) as u8)
}
