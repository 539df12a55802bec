//! Places pages on the targets of a tier, and writes the targets concurrently.

use crate::context::Context;
use crate::state::State;
use crate::state::device::DemoteCandidate;
use crate::state::targets::{Speed, Speeds, Targets};
use crate::tier::append::{self, Content, Pages};
use crate::tier::regions;
use std::sync::Arc;
use terrace_policy::placement::{CUT, Share};
use terrace_shm::DeviceSlot;
use terrace_shm::device_table::TARGETS_MAX;
use terrace_tier::{DeviceIo, Writer};

/// Maximum number of successive pages of a file placed together: programs read them together.
const PIECE_MAX: usize = 64;

/// Indexes of the pages for each target. `key`: file and page; `ask`: calls the placement engine with the
/// lengths of the pieces and the speeds of all targets.
pub(super) fn place<T>(
    cx: &Context,
    pages: &[T],
    key: impl Fn(&T) -> (u64, u64),
    choose: impl FnOnce(&mut Targets, &[u64], &Speeds) -> Vec<Share>,
) -> Vec<(Arc<DeviceIo>, Vec<usize>)> {
    let follows = |a: &T, b: &T| {
        let ((file, page), (next_file, next_page)) = (key(a), key(b));
        file == next_file && page + 1 == next_page
    };
    let pieces: Vec<u64> = pages
        .chunk_by(follows)
        .flat_map(|run| run.chunks(PIECE_MAX))
        .map(|piece| piece.len() as u64)
        .collect();
    let mut speeds = Speeds::default();
    for device in cx.devices.all() {
        let (queued, write) = device.speed();
        speeds[device.number()] = Speed { queued, write };
    }
    let shares = match &mut cx.state.lock().targets {
        Some(targets) => choose(targets, &pieces, &speeds),
        None => Vec::new(),
    };
    let starts: Vec<usize> =
        pieces.iter().scan(0, |at, pages| Some(std::mem::replace(at, *at + *pages as usize))).collect();
    let (mut next, mut of_target) = (starts, vec![Vec::new(); TARGETS_MAX]);
    for share in shares {
        let (from, pages) = (next[share.piece], (share.bytes / CUT) as usize);
        next[share.piece] += pages;
        of_target[share.target].extend(from..from + pages);
    }
    let got_some = of_target.into_iter().enumerate().filter(|(_, pages)| !pages.is_empty());
    // A just removed target gets no pages.
    got_some.filter_map(|(number, pages)| Some((cx.devices.get(number)?, pages))).collect()
}

/// Calls `work` for each target with pages, concurrently.
pub(super) fn for_each<R: Send>(
    shares: &[(Arc<DeviceIo>, Vec<usize>)],
    work: impl Fn(&DeviceIo, &[usize]) -> R + Sync,
) -> Vec<R> {
    let work = &work;
    let Some(((device, pages), others)) = shares.split_first() else { return Vec::new() };
    std::thread::scope(|scope| {
        let start = |(device, pages): &'_ (Arc<DeviceIo>, Vec<usize>)| {
            let (name, device, pages) = (format!("write-{}", device.number()), device.clone(), pages.clone());
            let body = move || work(&device, &pages);
            std::thread::Builder::new().name(name).spawn_scoped(scope, body).ok()
        };
        let threads: Vec<_> = others.iter().map(start).collect();
        let mut done = vec![work(device, pages)];
        for (thread, (device, pages)) in threads.into_iter().zip(others) {
            done.push(match thread {
                Some(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                // No thread can be started.
                None => work(device, pages),
            });
        }
        done
    })
}

/// Writes pages in frames to a target. `done` is called for each, with slot and checksum if it was written.
/// Returns the pages handled: the target may not take more.
pub(super) fn write(
    cx: &Context,
    device: &DeviceIo,
    pages: &[DemoteCandidate],
    done: impl FnMut(&mut State, &DemoteCandidate, Option<(DeviceSlot, u32)>),
) -> usize {
    let content = |page: &DemoteCandidate| content(cx, page);
    let pages = Pages { all: pages, content, is_still: State::is_still };
    // The target's thread may be late with free regions.
    let make_room = |writer: &mut Writer| regions::make_room(cx, device, writer);
    let dealt_with = append::append_all(cx, device, &mut device.writer(), &pages, done, make_room);
    if regions::due(&cx.state.lock(), device).is_some() {
        device.wake();
    }
    dealt_with
}

fn content(cx: &Context, page: &DemoteCandidate) -> Content {
    Content { object: page.object, page: page.page, from: cx.handles.segment.frame(page.frame) }
}
