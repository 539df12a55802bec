//! A client's miss: reads the source or a target, copies the page, and offers the daemon a page fill.
//!
//! 1. `snapshot`: records the index's version of each absent page.
//! 2. `land`: chooses each page's destination: a claimed slot of the ring, or the caller's buffer.
//! 3. `read`: reads all pages with one direct read.
//! 4. `is_current`: ends the batch at a page that changed since 1; the mount path reads that one.
//! 5. `hand_over`: after 4, copies each page to the caller and makes its slot ready. Wakes the daemon if it
//!    sleeps and the ring is half full.

use crate::connection;
use crate::device::{self, Device};
use crate::file::File;
use crate::fill::{FromTier, claim, is_serving, offer};
use crate::quiet;
use crate::run::Run;
use crate::source::{self, Source};
use crate::sys::{self, count};
use libc::iovec;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;
use terrace_shm::client::{self, PageVersion, is_current, snapshot};
use terrace_shm::codec::Page;
use terrace_shm::device_table::check_of_page;
use terrace_shm::protocol::slot;
use terrace_shm::protocol::writes::source_read;
use terrace_shm::reader::{Outcome, Reader};
use terrace_shm::ring::{Ring, SLOTS_MAX};
use terrace_shm::scratch::Scratch;
use terrace_shm::{BLOCK_PAGES, DeviceSlot, PAGE_SIZE};

/// Maximum number of pages in one direct read: 1 MiB, so that large reads reach the device's speed.
const BATCH_MAX: usize = 256;
/// Maximum number of vectors in one direct read. Adjacent slots, and adjacent pages of the buffer, share one.
const VECTORS_MAX: usize = SLOTS_MAX;
/// The daemon fetches files up to this size whole, and they need no descriptor here.
const SMALL_FILE: u64 = (BLOCK_PAGES * PAGE_SIZE) as u64;
/// In place of a slot: the caller's buffer.
const NO_SLOT: u8 = u8::MAX;
/// In place of a slot: a page of the library.
const PAST: u8 = u8::MAX - 1;
/// Longest read that continues page by page while the ring is full.
const PAST_MAX: usize = 4 * PAGE_SIZE;

/// End of a read.
#[derive(Debug)]
pub(crate) enum Progress {
    /// Bytes delivered, up to the end of the read.
    Done(usize),
    /// Bytes delivered. The mount path reads the rest.
    MountPath(usize),
}

/// Continues a read at its absent page, at `offset + done`.
///
/// # Safety
/// `buf` is the program's buffer of `n` bytes.
#[cold]
pub(crate) unsafe fn go_on(file: &File, buf: *mut u8, n: usize, offset: u64, mut done: usize) -> Progress {
    let _inside = quiet::enter();
    let source = if quiet::is_silent() { None } else { source_of(file) };
    let Some(source) = source else { return Progress::MountPath(done) };
    loop {
        let at = offset + done as u64;
        // SAFETY: done < n, so the rest of the buffer is the program's as well.
        let got = unsafe { fetch(file, source, buf.add(done), n - done, at) };
        // The size of a slot that was reused for another file may have cut this read.
        if got == 0 || !file.has_slot() {
            return Progress::MountPath(done);
        }
        done += got;
        if done == n {
            return Progress::Done(done);
        }
        let (seg, touches) = (&file.world.segment, &file.world.touches);
        let (at, left) = (offset + done as u64, n - done);
        if !file.is_settled(at, left) {
            return Progress::MountPath(done);
        }
        // SAFETY: as above.
        let outcome =
            unsafe { Reader { seg, touches }.read(file.slot, at, buf.add(done), left, &mut FromTier(file)) };
        if !file.has_slot() {
            return Progress::MountPath(done);
        }
        let (Outcome::Done(k) | Outcome::Miss { done: k } | Outcome::MountPath { done: k }) = outcome;
        file.count_hit(at, k);
        done += k;
        match outcome {
            Outcome::Done(_) => return Progress::Done(done),
            Outcome::Miss { .. } => {}
            Outcome::MountPath { .. } => return Progress::MountPath(done),
        }
    }
}

fn source_of(file: &File) -> Option<Source> {
    if file.slot.size.load(Ordering::Relaxed) <= SMALL_FILE {
        return None;
    }
    // A forked child has no ring, and registers here.
    if !connection::is_registered() && !connection::register(false) {
        return None;
    }
    source::of(file.fd, file.class, file.object)
}

/// Reads adjacent absent pages, from the one at `offset` on. Returns the bytes delivered; 0: the mount path
/// has to read.
unsafe fn fetch(file: &File, source: Source, buf: *mut u8, n: usize, offset: u64) -> usize {
    let Some(ring) = connection::hold_ring() else { return 0 };
    let Some(mut scratch) = Scratch::take() else { return 0 };
    let (ring, (first_page, past)) = (&*ring, scratch.pages());
    device::look(&file.world.segment);
    let first = offset / PAGE_SIZE as u64;
    let base = first * PAGE_SIZE as u64;
    let mut batch = Batch {
        file,
        source,
        ring,
        on_device: None,
        buf,
        n,
        offset,
        base,
        clock: 0,
        tables: Tables::of(first_page),
        past: past.as_mut_ptr(),
        len: 0,
        full: false,
    };
    batch.snapshot();
    // Loaded after the clock: if the size has changed since, `is_current` detects it.
    let size = file.slot.size.load(Ordering::Acquire);
    let seen = batch.len;
    batch.land(size);
    if batch.len == 0 && seen > 0 && n <= PAST_MAX && batch.on_device.is_none() && source.is_own() {
        // SAFETY: the program's buffer.
        return unsafe { batch.read_past(size) };
    }
    if batch.len == 0 {
        // Perhaps because no slot is free: then the ring is checked.
        batch.look_at_ring();
        return 0;
    }
    // SAFETY: the program's buffer.
    unsafe { batch.fetch(size) }
}

/// State of each page, up to `Batch::len`, and the vectors of the read.
#[repr(C)]
struct Tables {
    /// The page's version in the index.
    seen: [u64; BATCH_MAX],
    /// The page's destination: a slot of the ring, NO_SLOT or PAST.
    slots: [u8; BATCH_MAX],
    vectors: [iovec; VECTORS_MAX],
}

const _: () = assert!(size_of::<Tables>() <= PAGE_SIZE);

impl Tables {
    /// Tables of arbitrary content, in a page of scratch memory.
    fn of(page: &mut MaybeUninit<Page>) -> &mut Tables {
        // SAFETY: the page is aligned to its size and always initialised, and any content is valid.
        unsafe { &mut *page.as_mut_ptr().cast() }
    }
}

struct Batch<'a> {
    file: &'a File<'a>,
    source: Source,
    ring: &'a Ring,
    /// The pages lie on a device, from this slot on. None: they are read from the source.
    on_device: Option<(Device, DeviceSlot)>,
    /// The program's buffer, its length, and its start in the file.
    buf: *mut u8,
    n: usize,
    offset: u64,
    /// Start of the first page.
    base: u64,
    /// Event clock before the first load of an entry.
    clock: u64,
    tables: &'a mut Tables,
    /// The library's page.
    past: *mut u8,
    len: usize,
    /// The ring had no slot for a page.
    full: bool,
}

impl Batch<'_> {
    fn page(&self, i: usize) -> u64 {
        self.base / PAGE_SIZE as u64 + i as u64
    }
    fn start(&self, i: usize) -> u64 {
        self.base + (i * PAGE_SIZE) as u64
    }
    /// The address in the caller's buffer for page `i`, if the whole page belongs there.
    fn direct(&self, i: usize, size: u64) -> Option<*mut u8> {
        let (start, end) = (self.start(i), self.start(i) + PAGE_SIZE as u64);
        if start < self.offset || end > self.offset + self.n as u64 || end > size {
            return None;
        }
        // SAFETY: the page lies inside the buffer.
        let at = unsafe { self.buf.add((start - self.offset) as usize) };
        (at as usize).is_multiple_of(self.source.align.max(1)).then_some(at)
    }

    /// The address of page `i`'s destination.
    fn content(&self, i: usize, size: u64) -> *mut u8 {
        match self.tables.slots[i] {
            // `land` has left only pages for which this is Some.
            NO_SLOT => self.direct(i, size).unwrap_or(std::ptr::null_mut()),
            PAST => self.past,
            slot => self.ring.content(slot.into()),
        }
    }

    /// Phase 1.
    fn snapshot(&mut self) {
        let size = self.file.slot.size.load(Ordering::Acquire);
        let end = (self.offset + self.n as u64).min(size);
        let (mut run, mut i) = (Run::default(), 0);
        while i < BATCH_MAX && self.start(i) < end {
            let Some((seen, on_device)) = self.look(i) else { break };
            if i == 0 {
                self.clock = seen.clock;
            }
            self.tables.seen[i] = seen.identity;
            i += 1;
            if !run.add(on_device) {
                break;
            }
        }
        let (at, len) = run.end();
        self.on_device = at.and_then(|at| Some((device::of(&self.file.world.segment, at)?, at)));
        self.len = if at.is_some() && self.on_device.is_none() { 0 } else { len };
    }

    /// The version of page `i`, and its slot if it is on a device. None: it is neither absent nor on a
    /// device.
    fn look(&self, i: usize) -> Option<(PageVersion, Option<DeviceSlot>)> {
        let (segment, slot, page) = (&self.file.world.segment, self.file.slot, self.page(i));
        if let Some(seen) = snapshot(segment, slot, page) {
            return Some((seen, None));
        }
        let (at, seen) = client::snapshot_on_device(segment, slot, page)?;
        Some((seen, Some(at)))
    }

    /// Phase 2. Ends the batch at the first page without a destination.
    fn land(&mut self, size: u64) {
        let serving = is_serving(self.file);
        let observed = std::mem::replace(&mut self.len, 0);
        for i in 0..observed {
            if self.start(i) >= size {
                return;
            }
            let direct = self.direct(i, size).is_some();
            let fill = serving && self.source.may_write && !self.full;
            let slot = (fill || !direct).then(|| self.claim()).flatten();
            if slot.is_none() && !direct {
                return;
            }
            self.tables.slots[i] = slot.unwrap_or(NO_SLOT);
            self.len = i + 1;
        }
    }

    /// Phases 3 to 5. Returns the bytes delivered. A separate function, so that its frame is not counted
    /// twice.
    #[inline(never)]
    unsafe fn fetch(&mut self, size: u64) -> usize {
        let began = sys::now_ns();
        // SAFETY: every vector is a page of the ring, of the caller's buffer or of the library.
        let read = unsafe { self.read() };
        let took = sys::now_ns().saturating_sub(began);
        let stripe = self.file.local.stripe();
        match self.on_device {
            None => {
                let counters = self.ring.counters(stripe);
                count(&counters.reads, 1);
                count(&counters.read_ns, took);
            }
            Some((device, _)) => count(&self.ring.target_counters(stripe).read_ns[device.number], took),
        }
        // SAFETY: as above.
        unsafe { self.hand_over(read, size) }
    }

    /// Reads the first page past the ring, without a fill, when it has no destination. The program's own read
    /// would leave it in the page cache, which would grow at the expense of this cache.
    unsafe fn read_past(&mut self, size: u64) -> usize {
        (self.tables.slots[0], self.len) = (PAST, 1);
        // SAFETY: the program's buffer.
        unsafe { self.fetch(size) }
    }

    /// Phase 3. Returns the bytes read.
    unsafe fn read(&mut self) -> usize {
        let mut vectors = 0;
        for i in 0..self.len {
            let at = self.content(i, u64::MAX);
            let iov = &mut self.tables.vectors;
            match iov[..vectors].last_mut() {
                Some(last) if last.iov_base.wrapping_byte_add(last.iov_len) == at.cast() => {
                    last.iov_len += PAGE_SIZE
                }
                // The remaining pages count as not read.
                _ if vectors == VECTORS_MAX => break,
                _ => {
                    iov[vectors] = iovec { iov_base: at.cast(), iov_len: PAGE_SIZE };
                    vectors += 1;
                }
            }
        }
        let iov = &self.tables.vectors[..vectors];
        let Some((device, first)) = self.on_device else {
            // SAFETY: see above.
            let got = unsafe { self.source.read(iov, self.base, self.offers_content()) };
            source_read();
            return got;
        };
        let Some(at) = device.table.offset(first) else { return 0 };
        // SAFETY: see above.
        let got = unsafe { sys::preadv(device.fd, iov, at) };
        source_read();
        usize::try_from(got).unwrap_or(0)
    }

    /// Whether pages of the batch are offered to other processes with content.
    fn offers_content(&self) -> bool {
        let slots = &self.tables.slots[..self.len];
        self.source.may_write && slots.iter().any(|slot| !matches!(*slot, NO_SLOT | PAST))
    }

    /// Phases 4 and 5. Returns the bytes delivered.
    unsafe fn hand_over(&mut self, read: usize, size: u64) -> usize {
        let serving = is_serving(self.file);
        let (mut delivered, mut good) = (0, 0);
        for i in 0..self.len {
            // The source has the object's size. A shorter read met an error or a concurrent change: the mount
            // path reads the rest.
            let valid = usize::try_from(size - self.start(i)).unwrap_or(PAGE_SIZE).min(PAGE_SIZE);
            let whole = i * PAGE_SIZE + valid <= read;
            let seen = PageVersion { identity: self.tables.seen[i], clock: self.clock };
            if !whole || !self.is_current(i, seen, size) {
                break;
            }
            // SAFETY: the page's part of the caller's buffer. The slot is this thread's until it is ready.
            delivered += unsafe { self.deliver(i, valid) };
            if serving {
                self.fill(i, valid);
            } else {
                self.give_up(i);
            }
            good += 1;
        }
        for i in good..self.len {
            self.give_up(i);
        }
        self.count(good as u64, delivered as u64);
        if good > 0 && self.file.is_traced() {
            let miss = self.on_device.is_none();
            self.file.trace(self.ring, self.base, good * PAGE_SIZE, miss);
        }
        self.look_at_ring();
        delivered
    }

    /// Phase 4. Whether page `i` still is the content that was read.
    fn is_current(&self, i: usize, seen: PageVersion, size: u64) -> bool {
        let (segment, slot, page) = (&self.file.world.segment, self.file.slot, self.page(i));
        let Some((device, first)) = self.on_device else { return is_current(segment, slot, page, seen) };
        let at = DeviceSlot::new(first.region(), first.page() + i as u32);
        let content = self.content(i, size);
        if content.is_null() {
            return false;
        }
        // SAFETY: a whole page of the ring or of the caller's buffer, which was just read.
        let check = check_of_page(unsafe { std::slice::from_raw_parts(content, PAGE_SIZE) });
        let intact = device.table.check(at).is_some_and(|known| known.load(Ordering::Relaxed) == check);
        intact && client::is_current_on_device(segment, slot, page, seen)
    }

    /// Counts pages and bytes delivered.
    fn count(&self, pages: u64, bytes: u64) {
        let c = self.ring.counters(self.file.local.stripe());
        match self.on_device {
            None => {
                count(&c.misses, pages);
                count(&c.miss_bytes, bytes);
            }
            Some((device, _)) => {
                let of_target = self.ring.target_counters(self.file.local.stripe());
                count(&of_target.hits[device.number], pages);
                count(&c.hits, pages);
                count(&c.hit_bytes, bytes);
            }
        }
    }

    /// Copies the wanted part of page `i` to the caller, unless it was read there.
    unsafe fn deliver(&self, i: usize, valid: usize) -> usize {
        let skip = self.offset.saturating_sub(self.start(i)) as usize;
        let to = (self.start(i) + skip as u64 - self.offset) as usize;
        let bytes = (valid.saturating_sub(skip)).min(self.n - to);
        if self.tables.slots[i] != NO_SLOT {
            let content = self.content(i, u64::MAX);
            // SAFETY: `bytes` fit into the page after `skip` and into the buffer after `to`.
            unsafe { std::ptr::copy_nonoverlapping(content.add(skip), self.buf.add(to), bytes) };
        }
        bytes
    }

    /// Sends a fill: with content if this process may write the file, otherwise the key alone.
    fn fill(&mut self, i: usize, valid: usize) {
        let slot = match self.tables.slots[i] {
            PAST => None,
            NO_SLOT if self.source.may_write => None,
            NO_SLOT => self.claim(),
            slot => Some(slot),
        };
        let c = self.ring.counters(self.file.local.stripe());
        let Some(slot) = slot else {
            count(&c.fills_dropped, 1);
            return;
        };
        let seen = PageVersion { identity: self.tables.seen[i], clock: self.clock };
        let len = if self.source.may_write { valid } else { 0 };
        offer(self.ring.fill(slot.into()), self.file, self.page(i), seen, len);
        count(&c.fills, 1);
    }

    fn claim(&mut self) -> Option<u8> {
        let slot = claim(self.ring, self.file);
        self.full |= slot.is_none();
        slot
    }

    fn give_up(&self, i: usize) {
        if !matches!(self.tables.slots[i], NO_SLOT | PAST) {
            slot::free(&self.ring.fill(self.tables.slots[i].into()).state);
        }
    }

    /// Wakes the daemon if it sleeps and the ring is half full. Checks the ring if it is full.
    fn look_at_ring(&self) {
        if !is_serving(self.file) {
            return;
        }
        let sleeps = self.file.world.segment.header().drainer_sleeps.load(Ordering::Relaxed) != 0;
        if !sleeps && !self.full {
            return;
        }
        let states = || (0..self.ring.slots()).map(|i| self.ring.fill(i).state.load(Ordering::Relaxed));
        if sleeps && states().filter(|&s| s != slot::FREE).count() * 2 >= self.ring.slots() {
            connection::ring_bell();
        }
        if self.full {
            // Leaked slots are those still held after a read: at any one moment other threads may hold all.
            let has_read = self.len > 0 && self.source.may_write;
            connection::check_ring(has_read && states().all(|s| s == slot::CLAIMED));
        }
    }
}
