//! Pages for a tier are shared out over its targets, which are written at the same time.

use crate::context::Context;
use crate::device::io::DeviceIo;
use crate::reclaim::append::{self, Content};
use crate::reclaim::regions;
use crate::state::State;
use crate::state::device::DemoteCandidate;
use crate::state::targets::{Speed, Targets};
use terrace_policy::placement::{CUT, Share};
use terrace_shm::DeviceSlot;

/// Pages of a file that follow each other go to one target together, so many at the most: they are read together, too.
const PIECE_MAX: usize = 64;

/// Numbers of the pages that each target gets. `key`: file and page of each. `ask`: the engine, which is told the lengths of the pieces and the speeds of all
/// targets.
pub(super) fn place<T>(
    cx: &Context,
    pages: &[T],
    key: impl Fn(&T) -> (u64, u64),
    ask: impl FnOnce(&mut Targets, &[u64], &[Speed]) -> Vec<Share>,
) -> Vec<(usize, Vec<usize>)> {
    let follows = |a: &T, b: &T| {
        let ((file, page), (next_file, next_page)) = (key(a), key(b));
        file == next_file && page + 1 == next_page
    };
    let pieces: Vec<u64> = pages
        .chunk_by(follows)
        .flat_map(|run| run.chunks(PIECE_MAX))
        .map(|piece| piece.len() as u64)
        .collect();
    let speed = |device: &DeviceIo| {
        let (queued, write) = device.speed();
        Speed { queued, write }
    };
    let speeds: Vec<Speed> = cx.devices.iter().map(speed).collect();
    let shares = match &mut cx.state.lock().targets {
        Some(targets) => ask(targets, &pieces, &speeds),
        None => Vec::new(),
    };
    let starts: Vec<usize> =
        pieces.iter().scan(0, |at, pages| Some(std::mem::replace(at, *at + *pages as usize))).collect();
    let (mut next, mut of_target) = (starts, vec![Vec::new(); cx.devices.len()]);
    for share in shares {
        let (from, pages) = (next[share.piece], (share.bytes / CUT) as usize);
        next[share.piece] += pages;
        of_target[share.target].extend(from..from + pages);
    }
    of_target.into_iter().enumerate().filter(|(_, pages)| !pages.is_empty()).collect()
}

/// Does something for each target that got pages, for all at the same time.
pub(super) fn for_each<R: Send>(
    cx: &Context,
    shares: &[(usize, Vec<usize>)],
    work: impl Fn(&DeviceIo, &[usize]) -> R + Sync,
) -> Vec<R> {
    let work = &work;
    let Some(((number, pages), others)) = shares.split_first() else { return Vec::new() };
    std::thread::scope(|scope| {
        let start = |(number, pages): &(usize, Vec<usize>)| {
            let (number, pages) = (*number, pages.clone());
            let body = move || work(&cx.devices[number], &pages);
            std::thread::Builder::new().name(format!("write-{number}")).spawn_scoped(scope, body).ok()
        };
        let threads: Vec<_> = others.iter().map(start).collect();
        let mut done = vec![work(&cx.devices[*number], pages)];
        for (thread, (number, pages)) in threads.into_iter().zip(others) {
            done.push(match thread {
                Some(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                // The machine has no more threads.
                None => work(&cx.devices[*number], pages),
            });
        }
        done
    })
}

/// Writes pages that are in frames to a target. `done` is told of each, with its slot and checksum if it was written. Pages dealt with: the target does not take
/// more.
pub(super) fn write(
    cx: &Context,
    device: &DeviceIo,
    pages: &[DemoteCandidate],
    mut done: impl FnMut(&mut State, &DemoteCandidate, Option<(DeviceSlot, u32)>),
) -> usize {
    let mut rest = pages;
    let mut writer = device.writer.lock();
    while !rest.is_empty() {
        let content: Vec<Content> = rest.iter().map(|page| content(cx, page)).collect();
        let is_still = |state: &State, i: usize| state.is_still(&rest[i]);
        let Some(batch) = append::append(cx, device, &mut writer, &content, &[], is_still) else {
            // The target's thread has not kept regions free.
            if regions::reclaim_one(cx, device, &mut writer) {
                continue;
            }
            break;
        };
        let mut state = cx.state.lock();
        let mut written = batch.written.into_iter().peekable();
        for (i, page) in rest[..batch.taken].iter().enumerate() {
            let at = written.next_if(|(at, ..)| *at == i).map(|(_, slot, crc)| (slot, crc));
            done(&mut state, page, at);
        }
        drop(state);
        rest = &rest[batch.taken..];
    }
    if regions::due(&cx.state.lock(), device).is_some() {
        cx.device_wakeups[device.number].signal();
    }
    pages.len() - rest.len()
}

/// A page in its frame, to be written.
fn content(cx: &Context, page: &DemoteCandidate) -> Content {
    Content { object: page.object, page: page.page, from: cx.handles.segment.frame(page.frame) }
}
