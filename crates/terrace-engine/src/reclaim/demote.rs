//! Pages that leave DRAM and are worth it are written to a device first: then they leave as pages do that are there already.

use crate::context::Context;
use crate::reclaim::place;
use crate::state::Leaving;
use crate::state::device::DemoteCandidate;

/// Writes the pages that are to go to devices. They leave their frames, or join those to be compressed.
pub(crate) fn demote(cx: &Context, leaving: &mut Leaving) {
    let mut all = std::mem::take(&mut leaving.to_device);
    // Within a tier they stay in their order.
    all.sort_by_key(|page| page.level);
    for of_tier in all.chunk_by(|a, b| a.level == b.level) {
        demote_to(cx, of_tier[0].level, of_tier, leaving);
    }
}

fn demote_to(cx: &Context, level: u8, pages: &[DemoteCandidate], leaving: &mut Leaving) {
    let (now_ns, compresses) = (leaving.now_ns, leaving.compresses);
    let shares = place::place(
        cx,
        pages,
        |page| (page.object, page.page),
        |targets, pieces, speeds| targets.place(level, pieces, speeds),
    );
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
