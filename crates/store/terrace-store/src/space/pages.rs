//! A table of pages by number, for pages that are mostly adjacent: chunks of 64 pages. An empty chunk takes
//! no memory.
//!
//! A hash table took three times the memory. Its growth copied all entries, and no other thread could claim
//! room meanwhile.

use crate::allocated::allocated;

/// A class of slots.
pub(super) type Class = u8;

/// A page divided into slots.
#[derive(Debug, Clone, Copy)]
pub(super) struct Page {
    /// Bit i: slot i is free.
    pub free: u64,
    pub class: Class,
    /// The page is in the list of its class.
    pub listed: bool,
}

const CHUNK: usize = u64::BITS as usize;

#[derive(Debug)]
struct Chunk {
    /// Bit i: the i-th page is in the table.
    present: u64,
    /// Bit i: the i-th page is listed.
    listed: u64,
    free: [u64; CHUNK],
    class: [Class; CHUNK],
}

impl Chunk {
    fn get(&self, at: usize) -> Option<Page> {
        let is_set = |bits: u64| bits & 1 << at != 0;
        let page = Page { free: self.free[at], class: self.class[at], listed: is_set(self.listed) };
        is_set(self.present).then_some(page)
    }

    fn set(&mut self, at: usize, page: Page) {
        self.present |= 1 << at;
        self.listed = self.listed & !(1 << at) | u64::from(page.listed) << at;
        (self.free[at], self.class[at]) = (page.free, page.class);
    }
}

#[derive(Debug, Default)]
pub(super) struct Pages {
    chunks: Vec<Option<Box<Chunk>>>,
    /// Chunks that exist.
    len: usize,
}

fn place(page: u64) -> (usize, usize) {
    (page as usize / CHUNK, page as usize % CHUNK)
}

impl Pages {
    /// Returns a page. None: it is not in the table.
    pub(super) fn get(&self, page: u64) -> Option<Page> {
        let (chunk, at) = place(page);
        self.chunks.get(chunk)?.as_ref()?.get(at)
    }

    /// Inserts or replaces a page.
    pub(super) fn set(&mut self, page: u64, slab: Page) {
        let (chunk, at) = place(page);
        if chunk >= self.chunks.len() {
            self.chunks.resize_with(chunk + 1, || None);
        }
        let len = &mut self.len;
        let chunk = self.chunks[chunk].get_or_insert_with(|| {
            *len += 1;
            Box::new(Chunk { present: 0, listed: 0, free: [0; CHUNK], class: [0; CHUNK] })
        });
        chunk.set(at, slab);
    }

    pub(super) fn remove(&mut self, page: u64) {
        let (number, at) = place(page);
        let Some(Some(chunk)) = self.chunks.get_mut(number) else { return };
        chunk.present &= !(1 << at);
        if chunk.present == 0 {
            self.chunks[number] = None;
            self.len -= 1;
        }
    }

    /// All pages, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, Page)> + '_ {
        let chunks = self.chunks.iter().enumerate().filter_map(|(at, chunk)| Some((at, chunk.as_ref()?)));
        chunks.flat_map(|(number, chunk)| {
            (0..CHUNK).filter_map(move |at| Some(((number * CHUNK + at) as u64, chunk.get(at)?)))
        })
    }

    pub(super) fn memory(&self) -> usize {
        let chunks = self.len * allocated(size_of::<Chunk>()) as usize;
        chunks + self.chunks.capacity() * size_of::<Option<Box<Chunk>>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use terrace_testkit::rng::{Rng, seed};

    #[test]
    fn pages_are_those_of_a_map() {
        let mut rng = Rng::new(seed("pages of slots"));
        let (mut pages, mut model) = (Pages::default(), BTreeMap::new());
        for _ in 0..20_000 {
            let page = rng.below(1000);
            let entry = (rng.next_u64(), rng.below(14) as Class, rng.below(2) == 0);
            if rng.below(3) == 0 {
                let (free, class, listed) = entry;
                pages.set(page, Page { free, class, listed });
                model.insert(page, entry);
            } else {
                pages.remove(page);
                model.remove(&page);
            }
            let got = |Page { free, class, listed }: Page| (free, class, listed);
            assert_eq!(pages.get(page).map(got), model.get(&page).copied());
        }
        let all: Vec<_> =
            pages.iter().map(|(page, slab)| (page, (slab.free, slab.class, slab.listed))).collect();
        assert_eq!(all, model.iter().map(|(page, entry)| (*page, *entry)).collect::<Vec<_>>());
        assert!(pages.memory() > 0 && !all.is_empty());
        (0..1000).for_each(|page| pages.remove(page));
        assert_eq!((pages.len, pages.iter().count()), (0, 0), "chunks without pages take no memory");
        assert_eq!(pages.get(u64::MAX).map(|page| page.class), None);
    }
}
