//! A direct read takes adjacent pages from the device if their slots are adjacent, and else from the source.
//!
//! Some pages of a run may be on the device while those around them are not. The source has these pages, too.
//! Reading them on the device would split one request to the source in two. So a gap of up to [`GAP_MAX`]
//! pages is read from the source with its neighbours. In a scan beside a tier as fast as the source, that
//! gives six times the speed.

use terrace_shm::DeviceSlot;
use terrace_shm::device_table::GAP_MAX;

/// Adjacent pages without a frame, from the first one on.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pages: usize,
    /// Slot of the first page.
    first: Option<DeviceSlot>,
    /// Number of pages from the first one on with adjacent slots on the device.
    on_device: usize,
    /// Number of pages up to the last one that only the source has.
    to_source: usize,
}

impl Run {
    /// Adds a page, with its slot if the device has it. False: no further page can join.
    pub(crate) fn add(&mut self, slot: Option<DeviceSlot>) -> bool {
        let i = self.pages;
        self.pages += 1;
        match (slot, self.first) {
            (None, _) if self.to_source == 0 && i > GAP_MAX => return false,
            (None, _) => self.to_source = self.pages,
            (Some(at), None) if i == 0 => (self.first, self.on_device) = (Some(at), 1),
            (Some(at), Some(first)) if self.on_device == i && follows(first, at, i) => self.on_device += 1,
            _ => {}
        }
        match self.to_source {
            0 => self.on_device == self.pages || self.pages <= GAP_MAX,
            to_source => self.pages - to_source <= GAP_MAX,
        }
    }

    /// The slot to read from (None: the source), and the number of pages.
    pub(crate) fn end(&self) -> (Option<DeviceSlot>, usize) {
        match self.to_source {
            0 => (self.first, self.on_device),
            to_source => (None, to_source),
        }
    }
}

fn follows(first: DeviceSlot, at: DeviceSlot, by: usize) -> bool {
    at.region() == first.region() && at.page() as usize == first.page() as usize + by
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `-`: absent. A letter: on the device; adjacent letters have adjacent slots.
    fn run(pages: &str) -> (bool, usize) {
        let mut run = Run::default();
        for page in pages.bytes() {
            let slot = (page != b'-').then(|| DeviceSlot::new(1, page.into()));
            if !run.add(slot) {
                break;
            }
        }
        let (at, len) = run.end();
        (at.is_some(), len)
    }

    #[test]
    fn adjacent_slots_are_one_read_of_the_device() {
        assert_eq!(run("abcd"), (true, 4));
        assert_eq!(run("abdc"), (true, 2));
        assert_eq!(run("abcdefghijklmnopqrstuvwxyz"), (true, 26));
    }

    #[test]
    fn short_gaps_are_read_from_the_source() {
        assert_eq!(run("----"), (false, 4));
        assert_eq!(run("--a--q-"), (false, 7));
        assert_eq!(run("a-"), (false, 2), "one request instead of two");
        assert_eq!(run("zxv-"), (false, 4));
    }

    #[test]
    fn what_the_device_has_alone_is_read_there() {
        assert_eq!(run("--ab"), (false, 2), "no absent page follows");
        let long = "abcdefghijklmnopqrstuvwxyz";
        assert_eq!(run(&format!("{long}--")), (true, 26));
        assert_eq!(run(&format!("--{long}--")), (false, 2), "a gap of 26 pages");
        assert_eq!(run("acegikmoqsuwybdfhjl-"), (true, 1), "scattered, and the source is far");
    }
}
