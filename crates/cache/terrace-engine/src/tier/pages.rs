//! Lists the pages of a region from its keys.

use crate::file::object::ObjectId;
use crate::state::State;
use crate::tier::append::Content;
use terrace_policy::device::log::most_read;
use terrace_shm::{DeviceSlot, PAGE_SIZE};
use terrace_tier::DeviceIo;
use terrace_tier::format::{self, Record};

#[derive(Debug, Clone, Copy)]
pub(super) struct Page {
    pub(crate) slot: DeviceSlot,
    pub(crate) object: ObjectId,
    pub(crate) page: u64,
    pub(crate) crc: u32,
}

impl Page {
    /// As page `i` of the buffer `content`.
    pub(super) fn content(&self, i: usize, content: &[u8]) -> Content {
        Content { object: self.object, page: self.page, from: content[i * PAGE_SIZE..].as_ptr() }
    }
}

pub(super) fn pages_of(device: &DeviceIo, keys: &[(DeviceSlot, Record)]) -> Vec<Page> {
    let page = |(slot, record): &(DeviceSlot, Record)| match *record {
        Record::Page { object, page, crc } => Some(Page { slot: device.named(*slot), object, page, crc }),
        _ => None,
    };
    keys.iter().filter_map(page).collect()
}

/// The most read pages, as many as the log reinserts.
pub(super) fn most_read_of(state: &State, device: &DeviceIo, pages: &[Page]) -> Vec<Page> {
    let rated = |page: &Page| Some((state.reinsertion_hits(page.slot, page.object, page.page)?, *page));
    let mut rated: Vec<(u8, Page)> = pages.iter().filter_map(rated).collect();
    let of = state.targets.as_ref().and_then(|targets| targets.at(device.number()));
    let most = of.map_or(0, |of| of.log.reinserted_max());
    most_read(&mut rated, most as usize);
    rated.into_iter().map(|(_, page)| page).collect()
}

/// Reads pages from their slots. Returns whether each matches its checksum.
pub(super) fn read(device: &DeviceIo, pages: &[Page], content: &mut [u8]) -> Vec<bool> {
    let adjacent = |a: &Page, b: &Page| a.slot.page() + 1 == b.slot.page();
    let (table, mut rest, mut intact) = (device.table(), content, Vec::with_capacity(pages.len()));
    for run in pages.chunk_by(adjacent) {
        let (part, behind) = rest.split_at_mut(run.len() * PAGE_SIZE);
        let at = table.offset(run[0].slot).unwrap_or(u64::MAX);
        let read = device.medium().read(at, part);
        let page = |(page, bytes): (&Page, &[u8])| read.is_ok() && format::crc(bytes) == page.crc;
        intact.extend(run.iter().zip(part.chunks_exact(PAGE_SIZE)).map(page));
        rest = behind;
    }
    intact
}
