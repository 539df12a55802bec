//! Demotion writes valuable pages to a device before they leave DRAM. Then they leave like any page with a
//! copy on a device.

use crate::context::Context;
use crate::file::object::Object;
use crate::state::Leaving;
use crate::state::device::DemoteCandidate;
use crate::state::targets::{Speeds, Targets};
use crate::tier::place;
use terrace_policy::placement::Share;
use terrace_policy::prefetch::Span;

/// Writes the pages to be demoted. They leave their frames, or join the pages to be compressed.
pub(crate) fn demote(cx: &Context, leaving: &mut Leaving) {
    let mut all = std::mem::take(&mut leaving.to_device);
    // A stable sort: pages of a tier keep their order.
    all.sort_by_key(|page| page.level);
    for of_tier in all.chunk_by(|a, b| a.level == b.level) {
        let level = of_tier[0].level;
        let choose =
            |targets: &mut Targets, pieces: &[u64], speeds: &Speeds| targets.place(level, pieces, speeds);
        demote_to(cx, of_tier, choose, leaving);
    }
}

/// As [`crate::Engine::stage_down`]. Pages with a copy on a device stay in their frames.
pub(crate) fn stage_down(cx: &Context, o: &Object, span: Span, level: u8) -> u64 {
    let pages = cx.state.lock().begin_stage_down(o, span);
    let mut leaving = Leaving { now_ns: cx.clock.now_ns(), ..Leaving::default() };
    let choose = |targets: &mut Targets, pieces: &[u64], speeds: &Speeds| {
        targets.place_last(level, pieces, speeds, false)
    };
    demote_to(cx, &pages, choose, &mut leaving);
    cx.state.lock().on_devices(o, span)
}

/// Distributes the pages by `ask`, and writes them.
fn demote_to(
    cx: &Context,
    pages: &[DemoteCandidate],
    choose: impl FnOnce(&mut Targets, &[u64], &Speeds) -> Vec<Share>,
    leaving: &mut Leaving,
) {
    let (now_ns, compresses) = (leaving.now_ns, leaving.compresses);
    let shares = place::place(cx, pages, |page| (page.object, page.page), choose);
    let done = place::for_each(&shares, |device, numbers| {
        let its: Vec<DemoteCandidate> = numbers.iter().map(|i| pages[*i]).collect();
        let mut left = Leaving { now_ns, compresses, ..Leaving::default() };
        let dealt_with = place::write(cx, device, &its, |state, page, at| match at {
            Some((slot, crc)) => state.finish_demotion(page, slot, crc, &mut left),
            None => state.stay(page),
        });
        (left.to_compressed, numbers[dealt_with..].to_vec())
    });
    let mut stay = vec![true; pages.len()];
    shares.iter().flat_map(|(_, numbers)| numbers).for_each(|i| stay[*i] = false);
    for (to_compressed, refused) in done {
        leaving.to_compressed.extend(to_compressed);
        refused.into_iter().for_each(|i| stay[i] = true);
    }
    let state = cx.state.lock();
    pages.iter().zip(stay).filter(|(_, stay)| *stay).for_each(|(page, _)| state.stay(page));
}
