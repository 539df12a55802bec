//! The index as the daemon changes it: a radix tree of runs per object.
//!
//! One writer at a time (the engine's core lock); readers walk without a lock. A node that leaves a tree is not reused
//! before the reuse epoch has moved, so that a reader that still walks it notices.

use crate::entry::{Entry, State};
use crate::layout::{FANOUT, FANOUT_BITS, HEIGHT_MAX, Inner, Leaf, ObjectSlot, RUN_PAGES};
use crate::map::Segment;
use crate::protocol::{begin_reuse, tick};
use crate::sync::{AtomicU64, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;

/// What the daemon knows of a leaf, beside its entries.
#[derive(Debug, Clone, Copy)]
pub struct LeafInfo {
    /// Object slot that it belongs to; `FREE` if none.
    pub object: u32,
    /// Run that it covers.
    pub run: u32,
    /// Present or busy entries.
    pub present: u8,
    /// Queued among the leaves that hold shadows only.
    queued: bool,
}

/// Freed at once by an index that is full: each round of reuse makes readers under way look again.
const TRIM_BYTES: usize = 64 * (size_of::<Leaf>() + size_of::<LeafInfo>());

const FREE: u32 = u32::MAX;
/// Inner nodes that one new leaf needs at the most: a higher tree, and a path down in it.
const LINK_INNERS_MAX: usize = 2 * HEIGHT_MAX as usize;
const _: () = assert!(size_of::<LeafInfo>() == 12);

/// A node number pool: fresh ones, ones ready for reuse, ones that wait for the epoch.
#[derive(Debug, Default)]
struct Pool {
    next: u32,
    max: u32,
    ready: Vec<u32>,
    waiting: Vec<u32>,
}

impl Pool {
    fn take(&mut self, epoch: &AtomicU64) -> Option<u32> {
        if self.ready.is_empty() && !self.waiting.is_empty() {
            begin_reuse(epoch);
            std::mem::swap(&mut self.ready, &mut self.waiting);
        }
        if let Some(i) = self.ready.pop() {
            return Some(i);
        }
        (self.next < self.max).then(|| {
            self.next += 1;
            self.next - 1
        })
    }
    fn put(&mut self, i: u32) {
        self.waiting.push(i);
    }
    /// Nodes that can still be taken.
    fn left(&self) -> usize {
        self.max as usize - self.in_use()
    }
    fn in_use(&self) -> usize {
        self.next as usize - self.ready.len() - self.waiting.len()
    }
    fn heap_bytes(&self) -> usize {
        (self.ready.capacity() + self.waiting.capacity()) * 4
    }
}

/// A place in the index: leaf number and entry within.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place(pub u32);

impl Place {
    fn new(leaf: u32, at: usize) -> Place {
        Place(leaf * RUN_PAGES as u32 + at as u32)
    }
    fn leaf(self) -> u32 {
        self.0 / RUN_PAGES as u32
    }
    fn at(self) -> usize {
        self.0 as usize % RUN_PAGES
    }
}

/// The index. All methods need the engine's core lock.
#[derive(Debug)]
pub struct Index {
    seg: Arc<Segment>,
    leaves: Pool,
    inners: Pool,
    info: Vec<LeafInfo>,
    children: Vec<u16>,
    shadow_only: VecDeque<u32>,
    bytes_max: usize,
}

impl Index {
    /// The index of a new segment.
    pub fn new(seg: Arc<Segment>) -> Index {
        let g = seg.geometry();
        Index {
            leaves: Pool { max: g.leaves_max, ..Pool::default() },
            inners: Pool { max: g.inners_max, ..Pool::default() },
            info: Vec::new(),
            children: Vec::new(),
            shadow_only: VecDeque::new(),
            bytes_max: usize::MAX,
            seg,
        }
    }

    /// Moves the event clock and returns the new time.
    pub fn tick(&self) -> u64 {
        tick(&self.seg.header().clock)
    }

    /// The atomic entry at `place`.
    pub fn entry(&self, place: Place) -> &AtomicU64 {
        &self.seg.leaf(place.leaf()).0[place.at()]
    }
    /// The entry at `place`, decoded.
    pub fn get(&self, place: Place) -> Entry {
        Entry(self.entry(place).load(Ordering::Relaxed))
    }
    /// Object slot and page of a place.
    pub fn whose(&self, place: Place) -> (u32, u64) {
        let i = self.info[place.leaf() as usize];
        (i.object, u64::from(i.run) * RUN_PAGES as u64 + place.at() as u64)
    }
    /// Where `page` of the object in slot `object` stands, if its leaf exists.
    pub fn find(&self, object: u32, page: u64) -> Option<Place> {
        let run = page / RUN_PAGES as u64;
        let leaf =
            self.seg.walk(self.seg.object(object), run).expect("a tree of the index names its nodes")?;
        Some(Place::new(leaf, (page % RUN_PAGES as u64) as usize))
    }
    /// Like [`Index::find`], but grows the tree. None if the index is full or the page lies beyond what it can hold.
    pub fn ensure(&mut self, object: u32, page: u64) -> Option<Place> {
        let run = u32::try_from(page / RUN_PAGES as u64).ok()?;
        if let Some(p) = self.find(object, page) {
            return Some(p);
        }
        if self.live_bytes() >= self.bytes_max {
            self.trim(self.bytes_max.saturating_sub(TRIM_BYTES));
        }
        let leaf = self.new_leaf(object, run)?;
        if self.link(object, run, leaf).is_none() {
            self.unuse_leaf(leaf);
            return None;
        }
        Some(Place::new(leaf, (page % RUN_PAGES as u64) as usize))
    }

    /// Counts a page of the leaf as present (+1) or no longer (-1). A leaf without present pages is queued for [`Index::trim`].
    pub fn count_present(&mut self, place: Place, delta: i32) {
        let i = &mut self.info[place.leaf() as usize];
        i.present = (i32::from(i.present) + delta) as u8;
        if i.present == 0 && !i.queued {
            i.queued = true;
            self.shadow_only.push_back(place.leaf());
        }
    }

    /// Bytes that the index may have; above, it forgets shadows. What is needed for present pages it takes all the same.
    pub fn set_limit(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
        self.trim(bytes_max);
    }

    /// Frees leaves that hold shadows only, oldest first, until index bytes are at most `bytes_max` or none is left.
    fn trim(&mut self, bytes_max: usize) {
        while self.live_bytes() > bytes_max {
            let Some(leaf) = self.shadow_only.pop_front() else { return };
            let i = &mut self.info[leaf as usize];
            i.queued = false;
            if i.object != FREE && i.present == 0 {
                self.free_leaf(leaf);
            }
        }
    }

    /// Calls `f` for each existing place of `[first, last]` of an object, in page order.
    pub fn for_range(&self, object: u32, first: u64, last: u64, mut f: impl FnMut(u64, Place)) {
        let mut leaves = Vec::new();
        let root = self.seg.object(object).root.load(Ordering::Relaxed);
        if root == 0 {
            return;
        }
        self.collect(
            (root >> 32) as u32,
            root as u32 - 1,
            0,
            first / RUN_PAGES as u64,
            last / RUN_PAGES as u64,
            &mut leaves,
        );
        for (run, leaf) in leaves {
            for at in 0..RUN_PAGES {
                let page = run * RUN_PAGES as u64 + at as u64;
                if (first..=last).contains(&page) {
                    f(page, Place::new(leaf, at));
                }
            }
        }
    }

    fn collect(&self, height: u32, node: u32, prefix: u64, first: u64, last: u64, out: &mut Vec<(u64, u32)>) {
        if height == 0 {
            out.push((prefix, node));
            return;
        }
        let below = (height - 1) * FANOUT_BITS;
        let low = (first.max(prefix << (height * FANOUT_BITS)) >> below) & (FANOUT as u64 - 1);
        for c in low..FANOUT as u64 {
            let run = (prefix << FANOUT_BITS) | c;
            if run << below > last {
                return;
            }
            if let Some(child) = self.seg.inner(node).0[c as usize].load(Ordering::Relaxed).checked_sub(1) {
                self.collect(height - 1, child, run, first, last, out);
            }
        }
    }

    /// Frees the whole tree of an object. No page of it may be present.
    pub fn clear_object(&mut self, object: u32) {
        let (mut leaves, mut inners) = (Vec::new(), Vec::new());
        self.reach_all(object, &mut leaves, &mut inners);
        self.seg.object(object).root.store(0, Ordering::Release);
        for (leaf, _, _) in leaves {
            self.empty_leaf(leaf);
            self.unuse_leaf(leaf);
        }
        for inner in inners {
            self.inners.put(inner);
        }
    }

    /// Bytes of index nodes in use, and of what the daemon keeps beside them.
    pub fn live_bytes(&self) -> usize {
        self.leaves.in_use() * (size_of::<Leaf>() + size_of::<LeafInfo>())
            + self.inners.in_use() * size_of::<Inner>()
    }
    /// Bytes of memory that the index has ever touched (freed nodes are reused, not given back).
    pub fn resident_bytes(&self) -> usize {
        self.leaves.next as usize * size_of::<Leaf>()
            + self.inners.next as usize * size_of::<Inner>()
            + self.info.capacity() * size_of::<LeafInfo>()
            + self.children.capacity() * 2
            + self.shadow_only.capacity() * 4
            + self.leaves.heap_bytes()
            + self.inners.heap_bytes()
    }

    fn new_leaf(&mut self, object: u32, run: u32) -> Option<u32> {
        let leaf = self.leaves.take(&self.seg.header().epoch)?;
        let clock = self.tick();
        for e in &self.seg.leaf(leaf).0 {
            e.store(Entry::absent(0, clock).0, Ordering::Relaxed);
        }
        let info = LeafInfo { object, run, present: 0, queued: false };
        if leaf as usize == self.info.len() {
            self.info.push(info);
        } else {
            self.info[leaf as usize] = LeafInfo { queued: self.info[leaf as usize].queued, ..info };
        }
        // It holds nothing yet; if the caller leaves it so, it can be trimmed.
        self.count_present(Place::new(leaf, 0), 0);
        Some(leaf)
    }

    fn unuse_leaf(&mut self, leaf: u32) {
        self.info[leaf as usize].object = FREE;
        self.leaves.put(leaf);
    }

    fn new_inner(&mut self) -> Option<u32> {
        let inner = self.inners.take(&self.seg.header().epoch)?;
        for c in &self.seg.inner(inner).0 {
            c.store(0, Ordering::Relaxed);
        }
        if inner as usize == self.children.len() {
            self.children.push(0);
        }
        self.children[inner as usize] = 0;
        Some(inner)
    }

    /// Hangs a leaf into its object's tree, growing it as needed. Each step leaves a tree that readers can walk.
    fn link(&mut self, object: u32, run: u32, leaf: u32) -> Option<()> {
        let slot = self.seg.clone();
        let slot: &ObjectSlot = slot.object(object);
        let needed = (0..=HEIGHT_MAX).find(|h| u64::from(run) >> (h * FANOUT_BITS) == 0)?;
        let root = slot.root.load(Ordering::Relaxed);
        // All or nothing: what was built by half would belong to no leaf, and nobody would free it.
        if (needed > 0 || root >> 32 > 0) && self.inners.left() < LINK_INNERS_MAX {
            return None;
        }
        if root == 0 {
            let mut node = leaf;
            for height in 1..=needed {
                node = self.parent_of(node, u64::from(run) >> ((height - 1) * FANOUT_BITS))?;
            }
            slot.root.store(u64::from(needed) << 32 | u64::from(node + 1), Ordering::Release);
            return Some(());
        }
        let (mut height, mut node) = ((root >> 32) as u32, root as u32 - 1);
        while height < needed {
            node = self.parent_of(node, 0)?;
            height += 1;
            slot.root.store(u64::from(height) << 32 | u64::from(node + 1), Ordering::Release);
        }
        while height > 1 {
            height -= 1;
            let c = (run >> (height * FANOUT_BITS)) as usize % FANOUT;
            node = match self.seg.inner(node).0[c].load(Ordering::Relaxed).checked_sub(1) {
                Some(n) => n,
                None => {
                    let n = self.new_inner()?;
                    self.adopt(node, c, n);
                    n
                }
            };
        }
        self.adopt(node, run as usize % FANOUT, leaf);
        Some(())
    }

    fn parent_of(&mut self, child: u32, key: u64) -> Option<u32> {
        let n = self.new_inner()?;
        self.adopt(n, key as usize % FANOUT, child);
        Some(n)
    }

    fn adopt(&mut self, parent: u32, c: usize, child: u32) {
        self.seg.inner(parent).0[c].store(child + 1, Ordering::Release);
        self.children[parent as usize] += 1;
    }

    fn free_leaf(&mut self, leaf: u32) {
        let LeafInfo { object, run, .. } = self.info[leaf as usize];
        self.empty_leaf(leaf);
        self.unlink(object, u64::from(run));
        self.unuse_leaf(leaf);
    }

    fn empty_leaf(&mut self, leaf: u32) {
        assert_eq!(self.info[leaf as usize].present, 0, "leaf freed with pages present");
        let clock = self.tick();
        for e in &self.seg.leaf(leaf).0 {
            e.store(Entry::absent(0, clock).0, Ordering::Release);
        }
    }

    /// Takes a leaf out of its tree, with every inner node that it leaves empty.
    fn unlink(&mut self, object: u32, run: u64) {
        let seg = self.seg.clone();
        let slot = seg.object(object);
        let root = slot.root.load(Ordering::Relaxed);
        let (height, node) = ((root >> 32) as u32, root as u32 - 1);
        let mut path = Vec::new();
        let mut n = node;
        for h in (0..height).rev() {
            let c = (run >> (h * FANOUT_BITS)) as usize % FANOUT;
            path.push((n, c));
            n = seg.inner(n).0[c].load(Ordering::Relaxed) - 1;
        }
        while let Some((parent, c)) = path.pop() {
            seg.inner(parent).0[c].store(0, Ordering::Release);
            self.children[parent as usize] -= 1;
            if self.children[parent as usize] > 0 {
                return;
            }
            self.inners.put(parent);
        }
        slot.root.store(0, Ordering::Release);
    }

    /// After a restart: finds every node that the trees of the given objects reach; all others are free.
    /// Trees are as some instruction of the dead daemon left them, and each step of it leaves a walkable tree.
    pub fn recover(&mut self, objects: &[u32]) {
        let (mut leaves_seen, mut inners_seen) = (Vec::new(), Vec::new());
        for &object in objects {
            self.reach_all(object, &mut leaves_seen, &mut inners_seen);
        }
        leaves_seen.sort_unstable_by_key(|&(leaf, _, _)| leaf);
        self.leaves.next = leaves_seen.last().map_or(0, |l| l.0 + 1);
        self.info =
            vec![LeafInfo { object: FREE, run: 0, present: 0, queued: false }; self.leaves.next as usize];
        for &(leaf, object, run) in &leaves_seen {
            let entries = &self.seg.leaf(leaf).0;
            let present =
                entries.iter().filter(|e| Entry(e.load(Ordering::Relaxed)).frame().is_some()).count();
            self.info[leaf as usize] = LeafInfo { object, run, present: present as u8, queued: false };
            if present == 0 {
                self.count_present(Place::new(leaf, 0), 0);
            }
        }
        self.leaves.waiting =
            (0..self.leaves.next).filter(|&l| self.info[l as usize].object == FREE).collect();
        inners_seen.sort_unstable();
        self.inners.next = inners_seen.last().map_or(0, |i| i + 1);
        self.children = vec![0; self.inners.next as usize];
        for &i in &inners_seen {
            self.children[i as usize] =
                self.seg.inner(i).0.iter().filter(|c| c.load(Ordering::Relaxed) != 0).count() as u16;
        }
        self.inners.waiting =
            (0..self.inners.next).filter(|i| inners_seen.binary_search(i).is_err()).collect();
        // Nodes that only the dead daemon knew count as never used from here on, and so do the frames they name: a reader
        // who has stood in one of them since before the crash must notice.
        begin_reuse(&self.seg.header().epoch);
    }

    /// All nodes of the tree of an object: leaves (with object and run) and inner nodes.
    fn reach_all(&self, object: u32, leaves: &mut Vec<(u32, u32, u32)>, inners: &mut Vec<u32>) {
        let root = self.seg.object(object).root.load(Ordering::Acquire);
        if root != 0 {
            self.reach(object, (root >> 32) as u32, root as u32 - 1, 0, leaves, inners);
        }
    }

    fn reach(
        &self,
        object: u32,
        height: u32,
        node: u32,
        prefix: u32,
        leaves: &mut Vec<(u32, u32, u32)>,
        inners: &mut Vec<u32>,
    ) {
        if height == 0 {
            leaves.push((node, object, prefix));
            return;
        }
        inners.push(node);
        for c in 0..FANOUT {
            if let Some(child) = self.seg.inner(node).0[c].load(Ordering::Relaxed).checked_sub(1) {
                self.reach(object, height - 1, child, prefix << FANOUT_BITS | c as u32, leaves, inners);
            }
        }
    }

    /// What does not agree between nodes and their books.
    pub fn check(&self, objects: &[u32]) -> Vec<String> {
        let mut bad = Vec::new();
        let (mut leaves, mut inners) = (Vec::new(), Vec::new());
        for &object in objects {
            self.reach_all(object, &mut leaves, &mut inners);
        }
        for &(leaf, object, run) in &leaves {
            let i = self.info[leaf as usize];
            let present = self.seg.leaf(leaf).0.iter().filter(|e| {
                let e = Entry(e.load(Ordering::Relaxed));
                matches!(e.state(), State::Present | State::Busy)
            });
            let present = present.count();
            if (i.object, i.run, usize::from(i.present)) != (object, run, present) {
                bad.push(format!(
                    "leaf {leaf}: books say {i:?}, tree says object {object} run {run} present {present}"
                ));
            }
        }
        if leaves.len() != self.leaves.in_use() || inners.len() != self.inners.in_use() {
            bad.push(format!(
                "index nodes: {} leaves and {} inner nodes reachable, {} and {} in use",
                leaves.len(),
                inners.len(),
                self.leaves.in_use(),
                self.inners.in_use()
            ));
        }
        bad
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Geometry;
    use crate::map::memfd;

    fn segment(inners_max: u32) -> Arc<Segment> {
        let geometry = Geometry { objects_max: 64, inners_max, leaves_max: 512, frames_max: 512 };
        let fd = memfd("terrace-test", geometry.segment_bytes()).unwrap();
        Arc::new(Segment::create(&fd, geometry).unwrap())
    }

    #[test]
    fn shadows_never_outgrow_the_limit() {
        let mut index = Index::new(segment(64));
        index.set_limit(30_000);
        let kept = index.ensure(1, 0).unwrap();
        index.entry(kept).store(Entry::present(0, 1).0, Ordering::Relaxed);
        index.count_present(kept, 1);
        for run in 1..400 {
            index.ensure(1, run * RUN_PAGES as u64).unwrap();
            assert!(index.live_bytes() <= 30_000 + 144, "{} bytes after {run}", index.live_bytes());
        }
        assert_eq!(index.find(1, 0), Some(kept), "a leaf with a page stays");
        assert_eq!(index.find(1, 16), None, "the oldest shadows went");
        assert!(index.find(1, 399 * 16).is_some());
        assert_eq!(index.check(&[1]), Vec::<String>::new());
    }

    #[test]
    fn a_restart_moves_the_epoch_before_a_node_is_used_again() {
        let seg = segment(64);
        let mut index = Index::new(seg.clone());
        let old = index.ensure(1, 40).unwrap();
        let epoch = seg.header().epoch.load(Ordering::Relaxed);
        // Nobody claims object 1: its nodes are above all that the next index knows.
        let mut index = Index::new(seg.clone());
        index.recover(&[]);
        assert_eq!(index.ensure(2, 40).unwrap(), old, "the node is another object's now");
        assert_ne!(seg.header().epoch.load(Ordering::Relaxed), epoch, "who stands in it must notice");
    }

    #[test]
    fn no_inner_node_is_lost_when_they_run_out() {
        let seg = segment(40);
        let mut index = Index::new(seg);
        let far = |i: u64| (i + 1) << 30;
        let objects: Vec<u32> = (0..30).collect();
        let mut full = 0;
        for (i, &o) in objects.iter().enumerate() {
            full += u32::from(index.ensure(o, far(i as u64)).is_none());
            full += u32::from(index.ensure(o, 3).is_none());
            assert_eq!(index.check(&objects), Vec::<String>::new());
        }
        assert!(full > 0, "40 inner nodes cannot hold 30 sparse files");
        for &o in &objects {
            index.clear_object(o);
            assert_eq!(index.seg.object(o).root.load(Ordering::Relaxed), 0);
        }
        assert_eq!((index.leaves.in_use(), index.inners.in_use()), (0, 0));
    }

    #[test]
    fn a_reader_survives_a_node_that_was_reused_at_another_height() {
        let seg = segment(64);
        let slot = seg.object(1);
        slot.size.store(1 << 40, Ordering::Relaxed);
        // The root says height 2; the node that it names has become a parent of leaves: their numbers are no inner nodes'.
        slot.root.store(2 << 32 | 1, Ordering::Relaxed);
        seg.inner(0).0[0].store(500, Ordering::Relaxed);
        assert!(seg.walk(slot, 3).is_err());
        assert_eq!(seg.find_leaf(slot, 3), None);
        // Or of leaves that do not exist.
        slot.root.store(1 << 32 | 1, Ordering::Relaxed);
        seg.inner(0).0[3].store(5000, Ordering::Relaxed);
        assert_eq!(seg.find_leaf(slot, 3), None);
        let seen = crate::client::observe(&seg, slot, 3 * RUN_PAGES as u64).unwrap();
        assert_eq!(seen.identity, crate::protocol::NO_LEAF);
    }
}
