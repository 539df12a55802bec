//! Slots of the compressed pool: the free ones, and the order of eviction. This file touches no memory of the
//! pool.
//!
//! *Picture*: a slab allocator with slabs of 64 KiB, each of one size class. Each class has lists of zspages
//! with free slots, by quarters of fullness. New objects go to the fullest zspages, and compaction empties
//! the emptiest: sparse zspages drain. Source: N. Gupta and M. Kim, zsmalloc (Linux, mm/zsmalloc.c: fullness
//! groups). Unlike there, an object lies in one zspage, since 64 KiB leave little at the end.
//!
//! A slot costs one [`Link`] of 8 bytes: the neighbours in age of a live object, or the next free slot.

use crate::zobject::{CLASS_MAX, Handle, slot_bytes, slots_of};

/// No slot, no zspage, no object.
const NONE: u32 = u32::MAX;
/// In `older` of a free slot. No handle has this number, see [`Handle`].
const FREE: u32 = u32::MAX - 1;

#[derive(Debug, Clone, Copy)]
struct Link {
    older: u32,
    newer: u32,
}

/// Lists of a class, by the quarters of slots in use.
const GROUPS: usize = 4;
/// Number of lists, indexed by `class * GROUPS + group`. Those of class 0 hold zspages without a class.
const LISTS: usize = (CLASS_MAX as usize + 1) * GROUPS;
/// Unused, with memory.
const IDLE: u8 = 0;
/// Unused, without memory.
const UNBACKED: u8 = 1;
/// On no list: full.
const NOWHERE: u8 = u8::MAX;
/// On no list: compaction is emptying it.
const EMPTYING: u8 = u8::MAX - 1;

const _: () = assert!(LISTS <= EMPTYING as usize);

#[derive(Debug)]
struct Zspage {
    links: Box<[Link]>,
    next: u32,
    prev: u32,
    live: u16,
    /// First free slot of the chain.
    free: u16,
    class: u8,
    list: u8,
}

const NO_SLOT: u16 = u16::MAX;

/// The slots of all zspages.
#[derive(Debug)]
pub(crate) struct Zspages {
    pages: Vec<Zspage>,
    lists: [u32; LISTS],
    free: [usize; CLASS_MAX as usize + 1],
    max: u32,
    held: u32,
    idle: u32,
    live: usize,
    links: usize,
    oldest: u32,
    newest: u32,
}

impl Zspages {
    /// Address space for `max` zspages. Memory follows their use.
    pub(crate) fn new(max: u32) -> Zspages {
        Zspages {
            pages: Vec::with_capacity(max as usize),
            lists: [NONE; LISTS],
            free: [0; CLASS_MAX as usize + 1],
            max,
            held: 0,
            idle: 0,
            live: 0,
            links: 0,
            oldest: NONE,
            newest: NONE,
        }
    }
    pub(crate) fn held(&self) -> u32 {
        self.held
    }
    /// Unused zspages with memory.
    pub(crate) fn idle(&self) -> u32 {
        self.idle
    }
    pub(crate) fn live(&self) -> usize {
        self.live
    }
    pub(crate) fn bytes(&self) -> usize {
        self.pages.len() * size_of::<Zspage>() + self.links * size_of::<Link>()
    }
    /// Class of a zspage, 0 if it is not used.
    pub(crate) fn class(&self, zspage: u32) -> u8 {
        self.pages.get(zspage as usize).map_or(0, |z| z.class)
    }
    /// Zspages that were ever used.
    pub(crate) fn zspages(&self) -> u32 {
        self.pages.len() as u32
    }
    pub(crate) fn live_in(&self, zspage: u32) -> usize {
        self.pages.get(zspage as usize).map_or(0, |z| z.live.into())
    }
    /// True if there is an object at `handle`.
    pub(crate) fn is_live(&self, handle: Handle) -> bool {
        self.slot(handle).is_some_and(|link| link.older != FREE)
    }

    // ---- zspages -------------------------------------------------------------------------------------------------

    /// Opens a zspage for slots of `class`: an idle one, or, if `grow`, an additional one. None: there is
    /// none.
    pub(crate) fn open(&mut self, class: u8, grow: bool) -> Option<u32> {
        let n = self.unused(grow)?;
        let slots = slots_of(class);
        assert!(slots > 0, "no class");
        let chain = |slot| Link { older: FREE, newer: if slot + 1 < slots { slot + 1 } else { NONE } };
        let z = &mut self.pages[n as usize];
        z.links = (0..slots).map(chain).collect();
        (z.live, z.free, z.class) = (0, 0, class);
        self.links += slots as usize;
        self.free[class as usize] += slots as usize;
        self.file(n);
        Some(n)
    }
    fn unused(&mut self, grow: bool) -> Option<u32> {
        let idle = self.lists[IDLE as usize];
        if idle != NONE {
            self.unlist(idle);
            self.idle -= 1;
            return Some(idle);
        }
        if !grow {
            return None;
        }
        let unbacked = self.lists[UNBACKED as usize];
        let n = if unbacked != NONE {
            self.unlist(unbacked);
            unbacked
        } else if self.pages.len() < self.max as usize {
            let links = Box::default();
            self.pages.push(Zspage {
                links,
                next: NONE,
                prev: NONE,
                live: 0,
                free: 0,
                class: 0,
                list: NOWHERE,
            });
            self.pages.len() as u32 - 1
        } else {
            return None;
        };
        self.held += 1;
        Some(n)
    }
    /// Closes a zspage without objects: it can be opened for any class.
    fn close(&mut self, n: u32) {
        self.unlist(n);
        let z = &mut self.pages[n as usize];
        let slots = std::mem::take(&mut z.links).len();
        self.free[z.class as usize] -= slots;
        z.class = 0;
        self.links -= slots;
        self.idle += 1;
        self.enlist_in(n, IDLE);
    }
    /// An unused zspage with memory. The caller releases the memory and calls
    /// [`Zspages::note_memory_released`].
    pub(crate) fn first_idle(&self) -> Option<u32> {
        Some(self.lists[IDLE as usize]).filter(|&n| n != NONE)
    }
    pub(crate) fn note_memory_released(&mut self, n: u32) {
        assert_eq!(self.pages[n as usize].list, IDLE);
        self.unlist(n);
        self.idle -= 1;
        self.held -= 1;
        self.enlist_in(n, UNBACKED);
    }

    fn enlist_in(&mut self, n: u32, list: u8) {
        let first = std::mem::replace(&mut self.lists[list as usize], n);
        let z = &mut self.pages[n as usize];
        debug_assert_eq!(z.list, NOWHERE);
        (z.list, z.prev, z.next) = (list, NONE, first);
        if first != NONE {
            self.pages[first as usize].prev = n;
        }
    }
    fn unlist(&mut self, n: u32) {
        let z = &mut self.pages[n as usize];
        let (list, prev, next) = (std::mem::replace(&mut z.list, NOWHERE), z.prev, z.next);
        if list >= EMPTYING {
            return;
        }
        if next != NONE {
            self.pages[next as usize].prev = prev;
        }
        match prev {
            NONE => self.lists[list as usize] = next,
            _ => self.pages[prev as usize].next = next,
        }
    }
    /// Moves a zspage to the list for its present fullness.
    fn file(&mut self, n: u32) {
        let z = &self.pages[n as usize];
        let (live, slots) = (usize::from(z.live), z.links.len());
        let list = match live == slots {
            true => NOWHERE,
            false => (z.class as usize * GROUPS + live * GROUPS / slots) as u8,
        };
        if list != z.list {
            self.unlist(n);
            if list != NOWHERE {
                self.enlist_in(n, list);
            }
        }
    }

    // ---- slots ---------------------------------------------------------------------------------------------------

    fn slot(&self, handle: Handle) -> Option<&Link> {
        self.pages.get(handle.zspage() as usize)?.links.get(handle.slot() as usize)
    }
    fn link(&mut self, handle: u32) -> &mut Link {
        let handle = Handle(handle);
        &mut self.pages[handle.zspage() as usize].links[handle.slot() as usize]
    }

    /// Takes a slot of exactly this class, in the fullest group of its zspages. [`Zspages::add_newest`] makes
    /// it an object.
    pub(crate) fn take(&mut self, class: u8) -> Option<Handle> {
        let first = class as usize * GROUPS;
        let n = self.lists[first..first + GROUPS].iter().rev().copied().find(|&n| n != NONE)?;
        Some(self.take_in(n))
    }
    fn take_in(&mut self, n: u32) -> Handle {
        let z = &mut self.pages[n as usize];
        let slot = z.free;
        let link = &mut z.links[usize::from(slot)];
        z.free = u16::try_from(link.newer).unwrap_or(NO_SLOT);
        z.live += 1;
        *link = Link { older: NONE, newer: NONE };
        self.free[z.class as usize] -= 1;
        self.file(n);
        Handle::new(n, u32::from(slot))
    }
    /// Frees the slot. Its content may be overwritten from now on.
    fn put(&mut self, handle: Handle) {
        let n = handle.zspage();
        let z = &mut self.pages[n as usize];
        let next = if z.free == NO_SLOT { NONE } else { u32::from(z.free) };
        z.links[handle.slot() as usize] = Link { older: FREE, newer: next };
        z.free = handle.slot() as u16;
        z.live -= 1;
        let (live, class, list) = (z.live, z.class, z.list);
        self.free[class as usize] += 1;
        match live {
            0 => self.close(n),
            _ if list == EMPTYING => {}
            _ => self.file(n),
        }
    }

    // ---- age -----------------------------------------------------------------------------------------------------

    /// Makes the slot's content the newest object.
    pub(crate) fn add_newest(&mut self, handle: Handle) {
        let before = std::mem::replace(&mut self.newest, handle.0);
        *self.link(handle.0) = Link { older: before, newer: NONE };
        match before {
            NONE => self.oldest = handle.0,
            _ => self.link(before).newer = handle.0,
        }
        self.live += 1;
    }
    fn leave(&mut self, handle: Handle) {
        let Link { older, newer } = *self.link(handle.0);
        self.join(older, newer);
        self.live -= 1;
    }
    /// Makes two objects, or ends, neighbours.
    fn join(&mut self, older: u32, newer: u32) {
        match older {
            NONE => self.oldest = newer,
            _ => self.link(older).newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            _ => self.link(newer).older = older,
        }
    }
    pub(crate) fn remove(&mut self, handle: Handle) {
        assert!(self.is_live(handle), "{handle:?} is no object");
        self.leave(handle);
        self.put(handle);
    }
    pub(crate) fn make_newest(&mut self, handle: Handle) {
        self.leave(handle);
        self.add_newest(handle);
    }
    pub(crate) fn oldest(&self) -> Option<Handle> {
        Some(Handle(self.oldest)).filter(|h| h.0 != NONE)
    }
    pub(crate) fn newer(&self, handle: Handle) -> Option<Handle> {
        self.slot(handle).map(|link| Handle(link.newer)).filter(|h| h.0 != NONE)
    }

    // ---- compaction ----------------------------------------------------------------------------------------------

    /// The zspage with the fewest bytes to move into others of its class, which must have room. It is on no
    /// list until it is empty, so that no new object goes there.
    pub(crate) fn begin_emptying(&mut self) -> Option<u32> {
        let cost = |n: u32| {
            let z = &self.pages[n as usize];
            let elsewhere = self.free[z.class as usize] - (z.links.len() - usize::from(z.live));
            (elsewhere >= usize::from(z.live)).then(|| usize::from(z.live) * slot_bytes(z.class))
        };
        let sparsest = |class: usize| {
            let lists = &self.lists[class * GROUPS..(class + 1) * GROUPS];
            lists.iter().copied().find(|&n| n != NONE)
        };
        let classes = 1..=CLASS_MAX as usize;
        let (_, n) = classes.filter_map(sparsest).filter_map(|n| Some((cost(n)?, n))).min()?;
        self.unlist(n);
        self.pages[n as usize].list = EMPTYING;
        Some(n)
    }
    /// The next object of a zspage that is being emptied, and the slot to copy it to.
    pub(crate) fn next_move(&mut self, n: u32, from_slot: u32) -> Option<(Handle, Handle)> {
        let slots = self.pages[n as usize].links.len() as u32;
        let from = (from_slot..slots).map(|slot| Handle::new(n, slot)).find(|&h| self.is_live(h))?;
        let to = self.take(self.class(n)).expect("others of the class have room");
        Some((from, to))
    }
    /// Makes `to` the object's handle, with its old age, and frees the slot `from`.
    pub(crate) fn renumber(&mut self, from: Handle, to: Handle) {
        let Link { older, newer } = *self.link(from.0);
        *self.link(to.0) = Link { older, newer };
        self.join(older, to.0);
        self.join(to.0, newer);
        self.put(from);
    }

    // ---- check ---------------------------------------------------------------------------------------------------

    pub(crate) fn check(&self) -> Result<(), String> {
        let mut free = [0; CLASS_MAX as usize + 1];
        let (mut live, mut links, mut idle, mut unbacked) = (0, 0, 0, 0);
        for (n, z) in self.pages.iter().enumerate() {
            let marked = z.links.iter().filter(|l| l.older == FREE).count();
            let (used, chained) = (z.links.len() - marked, chain_len(z));
            free[z.class as usize] += marked;
            live += used;
            links += z.links.len();
            idle += u32::from(z.list == IDLE);
            unbacked += u32::from(z.list == UNBACKED);
            let group = if z.links.is_empty() { 0 } else { used * GROUPS / z.links.len() };
            let list = z.class as usize * GROUPS + group;
            let filed = match (z.class, used == z.links.len()) {
                (0, _) => z.list == IDLE || z.list == UNBACKED,
                (_, true) => z.list == NOWHERE,
                (_, false) => usize::from(z.list) == list,
            };
            let sized = z.links.len() == slots_of(z.class) as usize;
            if used != usize::from(z.live) && z.class > 0 || chained != marked || !filed || !sized {
                return Err(format!(
                    "zspage {n}: class {}, {used} of {} slots live, {} counted, {chained} free ones linked, list {}",
                    z.class,
                    z.links.len(),
                    z.live,
                    z.list
                ));
            }
        }
        let listed: usize = (0..LISTS).map(|list| self.list_len(list)).sum();
        let full = self.pages.iter().filter(|z| z.list == NOWHERE).count();
        let linked = self.linked();
        let recorded = (self.free, self.live, self.links, self.idle, self.held, self.pages.len(), self.live);
        let found = (free, live, links, idle, self.pages.len() as u32 - unbacked, listed + full, linked);
        if recorded == found { Ok(()) } else { Err(format!("recorded {recorded:?}, found {found:?}")) }
    }
    fn list_len(&self, list: usize) -> usize {
        let (mut n, mut len) = (self.lists[list], 0);
        while n != NONE && len <= self.pages.len() {
            len += usize::from(usize::from(self.pages[n as usize].list) == list);
            n = self.pages[n as usize].next;
        }
        len
    }
    /// Objects in the list from the oldest to the newest. Their links must agree.
    fn linked(&self) -> usize {
        let (mut before, mut at, mut n) = (NONE, self.oldest, 0);
        while let Some(link) =
            self.slot(Handle(at)).filter(|l| at != NONE && l.older == before && n <= self.live)
        {
            (before, at) = (at, link.newer);
            n += 1;
        }
        if before == self.newest { n } else { usize::MAX }
    }
}

fn chain_len(z: &Zspage) -> usize {
    let (mut slot, mut len) = (if z.class == 0 { NO_SLOT } else { z.free }, 0);
    while slot != NO_SLOT && len <= z.links.len() {
        slot = u16::try_from(z.links[usize::from(slot)].newer).unwrap_or(NO_SLOT);
        len += 1;
    }
    len
}
