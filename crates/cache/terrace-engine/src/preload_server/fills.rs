//! Page fills: pages read by clients from the source, with content or by name only.

use crate::context::Context;
use crate::file::object::{ObjectId, ObjectRef};
use crate::nodes::Nodes;
use crate::path::fetch::{self, Piece};
use crate::path::promote;
use crate::preload_server::clients::{Client, Clients};
use crate::preload_server::credentials::Trusted;
use crate::state::page_table::{NotInMemory, PageVersion};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use terrace_policy::InsertReason;
use terrace_shm::protocol::slot;
use terrace_shm::ring::Ring;
use terrace_shm::{DeviceSlot, PAGE_SIZE};

const PAGE: u64 = PAGE_SIZE as u64;

/// Time after the last page fill during which the drainer polls every two milliseconds.
const EAGER: Duration = Duration::from_millis(20);
/// Pause while clients fill their rings faster: a wake-up costs more than ten page fills.
const BUSY: Duration = Duration::from_micros(300);

pub(super) fn drain_loop(cx: &Context, clients: &Clients, wakeup: &OwnedFd) {
    let header = cx.handles.segment.header();
    let mut last = Instant::now();
    while !cx.is_stopping() {
        let fills: usize = clients.all().iter().map(|c| drain(cx, c)).sum();
        let found = fills + clients.writers.as_ref().map_or(0, |writers| writers.drain(cx));
        if found > 0 {
            last = Instant::now();
        }
        if found * 4 >= clients.ring_slots {
            std::thread::sleep(BUSY);
            continue;
        }
        let idle = last.elapsed();
        let pause_ms = if idle < EAGER {
            2
        } else if idle < Duration::from_secs(1) {
            10
        } else {
            100
        };
        header.drainer_sleeps.store(1, Ordering::SeqCst);
        let timeout = Timespec { tv_sec: 0, tv_nsec: pause_ms * 1_000_000 };
        let _ = poll(&mut [PollFd::new(wakeup, PollFlags::IN)], Some(&timeout));
        header.drainer_sleeps.store(0, Ordering::SeqCst);
        let _ = rustix::io::read(wakeup, &mut [0u8; 8]);
    }
}

/// The fields of a slot, each read once.
struct Offer {
    slot: usize,
    id: ObjectId,
    page: u64,
    before: PageVersion,
    /// 0: the page's name only.
    len: u64,
    /// Node of the client's thread.
    near: Option<usize>,
}

impl Offer {
    fn read(ring: &Ring, slot: usize, nodes: &Nodes) -> Offer {
        let d = ring.fill(slot);
        Offer {
            slot,
            id: d.object.load(Ordering::Relaxed),
            page: d.page.load(Ordering::Relaxed),
            before: PageVersion {
                identity: d.seen.load(Ordering::Relaxed),
                clock: d.clock.load(Ordering::Relaxed),
            },
            len: d.len.load(Ordering::Relaxed),
            near: nodes.of_cpu((d.cpu.load(Ordering::Relaxed) as usize).wrapping_sub(1)),
        }
    }
}

/// A page fill that passed the first checks.
struct Fill {
    slot: usize,
    object: ObjectRef,
    page: u64,
    before: PageVersion,
    frame: u32,
    /// Bytes of content; None: the daemon reads the page itself.
    len: Option<usize>,
    /// Slot to read from; None: read from the source.
    on_device: Option<DeviceSlot>,
}

/// Takes the page fills of one client. Returns the number of slots emptied.
fn drain(cx: &Context, client: &Client) -> usize {
    let ring = &client.ring;
    let ready: Vec<usize> = (0..ring.slots()).filter(|&i| slot::is_ready(&ring.fill(i).state)).collect();
    if ready.is_empty() {
        return 0;
    }
    let offers: Vec<Offer> = ready.iter().map(|&i| Offer::read(ring, i, &cx.nodes)).collect();
    // Reads the source's state and /proc: before the lock.
    let with_content: Vec<ObjectId> =
        offers.iter().filter(|offer| offer.len > 0).map(|offer| offer.id).collect();
    let trusted = client.credentials.trusted(&with_content, |id| cx.lookup_object(id));
    let accepted = accept(cx, &offers, &trusted);
    let filled = fill(cx, client, &accepted);
    let mut state = cx.state.lock();
    for (d, filled) in accepted.iter().zip(&filled) {
        let valid = *filled && state.is_current(&d.object, d.page, d.before);
        let place = if valid { state.pages.index.ensure(d.object.slot_index(), d.page) } else { None };
        match place {
            Some(place) => {
                state.insert(place, d.frame, InsertReason::Read);
                let count = if d.len.is_some() { &cx.counters.fills_taken } else { &cx.counters.fills_read };
                count.fetch_add(1, Ordering::Relaxed);
            }
            None => {
                state.unclaim(d.frame);
                cx.counters.fills_refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    drop(state);
    for &i in &ready {
        slot::free(&ring.fill(i).state);
    }
    ready.len()
}

/// Checks the keys and claims frames.
fn accept(cx: &Context, offers: &[Offer], trusted: &Trusted) -> Vec<Fill> {
    let mut accepted: Vec<Fill> = Vec::with_capacity(offers.len());
    let mut named: HashMap<(ObjectId, u64), ()> = HashMap::new();
    let mut to_promote: Vec<(ObjectRef, u64)> = Vec::new();
    let mut state = cx.state.lock();
    for offer in offers {
        let (id, page) = (offer.id, offer.page);
        let Some(object) = state.objects.get(&id).cloned() else { continue };
        if page >= object.size().div_ceil(PAGE) || named.insert((id, page), ()).is_some() {
            continue;
        }
        cx.followed.miss(id, page, 1);
        let Some(NotInMemory { before: ours, on_device, .. }) = state.pages.snapshot(&object, page) else {
            // A bare name of a page in memory: the client has read it in the compressed tier, more than once.
            to_promote.push((object, page));
            continue;
        };
        let content = offer.len > 0
            && offer.len <= PAGE
            && trusted.get(&id).is_some_and(|o| Arc::ptr_eq(o, &object))
            && state.is_current(&object, page, offer.before);
        let Some(frame) = state.claim_near(offer.near) else { break };
        let (before, len) = if content { (offer.before, Some(offer.len as usize)) } else { (ours, None) };
        accepted.push(Fill { slot: offer.slot, object, page, before, frame, len, on_device });
    }
    cx.wake_reclaim_if_low(&state);
    drop(state);
    promote::promote_pages(cx, to_promote.iter().map(|(o, page)| (&**o, *page)));
    accepted
}

/// Fills the claimed frames, from the ring or from the source. Returns whether each was filled.
fn fill(cx: &Context, client: &Client, fills: &[Fill]) -> Vec<bool> {
    let piece = |fill| {
        let Fill { object, page, frame, .. }: &Fill = fill;
        Piece { object, first: *page, frames: std::slice::from_ref(frame) }
    };
    let named = || fills.iter().filter(|fill| fill.len.is_none());
    let from_source: Vec<Piece<'_>> = named().filter(|fill| fill.on_device.is_none()).map(piece).collect();
    let on_device: Vec<(DeviceSlot, u32)> =
        named().filter_map(|fill| Some((fill.on_device?, fill.frame))).collect();
    let mut read = fetch::read_pieces(cx, &from_source).into_iter();
    let mut read_there = fetch::read_slots(cx, &on_device).arrived.into_iter();
    let filled = fills.iter().map(|fill| match fill.len {
        Some(len) => {
            copy_from_ring(cx, client, fill, len);
            true
        }
        None if fill.on_device.is_some() => read_there.next().is_some_and(|arrived| arrived),
        None => read.next().is_some_and(|result| result.is_ok()),
    });
    filled.collect()
}

fn copy_from_ring(cx: &Context, client: &Client, fill: &Fill, len: usize) {
    // SAFETY: the frame is claimed, and the ring page is mapped. The client may change it meanwhile: it may
    // write the file, so any result is content that it could have written.
    unsafe {
        let frame = cx.handles.segment.frame(fill.frame);
        std::ptr::copy_nonoverlapping(client.ring.content(fill.slot), frame, len);
        frame.add(len).write_bytes(0, PAGE_SIZE - len);
    }
}
