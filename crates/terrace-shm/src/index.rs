//! The index as the daemon changes it: a radix tree of runs per object.
//!
//! One writer at a time (the engine's core lock); readers walk without a lock. A node that leaves a tree is not reused
//! before the reuse epoch has moved, so that a reader that still walks it notices.

use crate::entry::Entry;
use crate::layout::{FANOUT, FANOUT_BITS, HEIGHT_MAX, Inner, Leaf, OBJECTS_MAX, ObjectSlot, RUN_PAGES};
use crate::map::Segment;
use crate::nodes::{Nodes, STICKY, USED};
use crate::protocol::{begin_reuse, tick};
use crate::sync::{AtomicU64, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;

/// What the daemon knows of a leaf beside its entries: the word that [`Nodes`] keeps for it.
///
/// ```text
///    63    62    61   60      56 55    32 31    0
///  | used | queued | - | present | object | run |
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LeafInfo {
    /// Object slot that it belongs to.
    object: u32,
    /// Run that it covers.
    run: u32,
    /// Present or busy entries.
    present: usize,
}

const OBJECT_SHIFT: u32 = 32;
const PRESENT_SHIFT: u32 = 56;
/// Set while the leaf stands in the queue of those that hold shadows only, or did when it was queued.
const QUEUED: u64 = STICKY;

impl LeafInfo {
    fn word(self) -> u64 {
        u64::from(self.run) | u64::from(self.object) << OBJECT_SHIFT | (self.present as u64) << PRESENT_SHIFT
    }
    fn of(word: u64) -> LeafInfo {
        let bits = |from: u32, to: u32| (word >> from & ((1 << (to - from)) - 1)) as u32;
        LeafInfo {
            object: bits(OBJECT_SHIFT, PRESENT_SHIFT),
            run: bits(0, OBJECT_SHIFT),
            present: bits(PRESENT_SHIFT, 61) as usize,
        }
    }
}

const _: () = assert!(OBJECTS_MAX as u64 <= 1 << (PRESENT_SHIFT - OBJECT_SHIFT));
const _: () = assert!(RUN_PAGES < 1 << (61 - PRESENT_SHIFT));

/// Bytes of a leaf and its word.
const LEAF_BYTES: usize = size_of::<Leaf>() + size_of::<u64>();
/// Freed at once by an index that is full: each round of reuse makes readers under way look again.
const TRIM_BYTES: usize = 64 * LEAF_BYTES;
/// Entries of the queue of leaves without pages that may be out of date, beside as many as are not.
const STALE_MAX: usize = 64;
/// Inner nodes that one new leaf needs at the most: a higher tree, and a path down in it.
const LINK_INNERS_MAX: usize = 2 * HEIGHT_MAX as usize;

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

/// Memory of an index, bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct IndexBytes {
    /// Leaves, in the segment.
    pub leaves: usize,
    /// Inner nodes, in the segment.
    pub inners: usize,
    /// What the daemon knows of each node.
    pub books: usize,
    /// Leaves that hold shadows only, in the order in which they go.
    pub queue: usize,
}

impl IndexBytes {
    /// All of it.
    pub fn total(&self) -> usize {
        self.leaves + self.inners + self.books + self.queue
    }
}

/// The index. All methods need the engine's core lock.
#[derive(Debug)]
pub struct Index {
    seg: Arc<Segment>,
    leaves: Nodes,
    /// Their words count children.
    inners: Nodes,
    /// Leaves without a present page, in the order in which they lost the last; some have one again, or are free.
    shadow_only: VecDeque<u32>,
    /// How many are none of these.
    hollow: usize,
    bytes_max: usize,
}

impl Index {
    /// The index of a new segment.
    pub fn new(seg: Arc<Segment>) -> Index {
        let g = seg.geometry();
        Index {
            leaves: Nodes::new(g.leaves_max),
            inners: Nodes::new(g.inners_max),
            shadow_only: VecDeque::new(),
            hollow: 0,
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
        let i = self.info(place.leaf());
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
        let leaf = place.leaf();
        let was = self.info(leaf);
        let present = was.present.checked_add_signed(delta as isize).filter(|&n| n <= RUN_PAGES);
        let present = present.expect("pages of a leaf are counted in and out");
        let word = self.leaves.word_mut(leaf);
        *word = *word & (USED | QUEUED) | LeafInfo { present, ..was }.word();
        match (was.present, present) {
            (0, 1..) => self.hollow -= 1,
            (1.., 0) => self.note_hollow(leaf),
            _ => {}
        }
    }

    fn info(&self, leaf: u32) -> LeafInfo {
        LeafInfo::of(self.leaves.word(leaf))
    }

    /// The leaf has no present page (any more): it is freed when its turn comes, if that is so then.
    fn note_hollow(&mut self, leaf: u32) {
        self.hollow += 1;
        let word = self.leaves.word_mut(leaf);
        if *word & QUEUED == 0 {
            *word |= QUEUED;
            self.shadow_only.push_back(leaf);
        }
        if self.shadow_only.len() > 2 * self.hollow + STALE_MAX {
            self.tidy();
        }
    }

    /// Takes out of the queue what does not belong there any more. The queue then shrinks by half at the least.
    fn tidy(&mut self) {
        let leaves = &mut self.leaves;
        self.shadow_only.retain(|&leaf| {
            let stays = is_hollow(leaves.word(leaf));
            if !stays {
                *leaves.word_mut(leaf) &= !QUEUED;
            }
            stays
        });
        self.shadow_only.shrink_to(2 * self.hollow + STALE_MAX);
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
            *self.leaves.word_mut(leaf) &= !QUEUED;
            if is_hollow(self.leaves.word(leaf)) {
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

    /// Whether nothing of an object is known: no page, no shadow.
    pub fn is_empty(&self, object: u32) -> bool {
        self.seg.object(object).root.load(Ordering::Relaxed) == 0
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
        self.leaves.in_use() * LEAF_BYTES + self.inners.in_use() * size_of::<Inner>()
    }
    /// Memory that the index has ever touched (freed nodes are reused, not given back).
    pub fn resident_bytes(&self) -> IndexBytes {
        IndexBytes {
            leaves: self.leaves.touched() * size_of::<Leaf>(),
            inners: self.inners.touched() * size_of::<Inner>(),
            books: self.leaves.words_bytes() + self.inners.words_bytes(),
            queue: self.shadow_only.capacity() * size_of::<u32>(),
        }
    }

    fn new_leaf(&mut self, object: u32, run: u32) -> Option<u32> {
        let word = LeafInfo { object, run, present: 0 }.word();
        let leaf = self.leaves.take(&self.seg.header().epoch, word)?;
        let clock = self.tick();
        for e in &self.seg.leaf(leaf).0 {
            e.store(Entry::absent(0, clock).0, Ordering::Relaxed);
        }
        // It holds nothing yet; if the caller leaves it so, it can be trimmed.
        self.note_hollow(leaf);
        Some(leaf)
    }

    fn unuse_leaf(&mut self, leaf: u32) {
        assert!(is_hollow(self.leaves.word(leaf)), "leaf freed with pages present, or twice");
        self.hollow -= 1;
        self.leaves.put(leaf);
    }

    fn new_inner(&mut self) -> Option<u32> {
        let inner = self.inners.take(&self.seg.header().epoch, 0)?;
        for c in &self.seg.inner(inner).0 {
            c.store(0, Ordering::Relaxed);
        }
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
        *self.inners.word_mut(parent) += 1;
    }

    fn free_leaf(&mut self, leaf: u32) {
        let LeafInfo { object, run, .. } = self.info(leaf);
        self.empty_leaf(leaf);
        self.unlink(object, u64::from(run));
        self.unuse_leaf(leaf);
    }

    fn empty_leaf(&mut self, leaf: u32) {
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
            let word = self.inners.word_mut(parent);
            *word -= 1;
            if *word & !USED > 0 {
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
        inners_seen.sort_unstable();
        let seg = &self.seg;
        self.leaves.recover(leaves_seen.iter().map(|&(leaf, object, run)| {
            (leaf, LeafInfo { object, run, present: present_in(seg.leaf(leaf)) }.word())
        }));
        self.inners.recover(inners_seen.iter().map(|&i| {
            let children = seg.inner(i).0.iter().filter(|c| c.load(Ordering::Relaxed) != 0);
            (i, children.count() as u64)
        }));
        self.hollow = 0;
        self.shadow_only.clear();
        for (leaf, ..) in leaves_seen {
            if is_hollow(self.leaves.word(leaf)) {
                self.note_hollow(leaf);
            }
        }
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
        let (mut bad, mut hollow) = (Vec::new(), 0);
        let (mut leaves, mut inners) = (Vec::new(), Vec::new());
        for &object in objects {
            self.reach_all(object, &mut leaves, &mut inners);
        }
        for &(leaf, object, run) in &leaves {
            let (told, found) =
                (self.info(leaf), LeafInfo { object, run, present: present_in(self.seg.leaf(leaf)) });
            hollow += usize::from(found.present == 0);
            if told != found {
                bad.push(format!("leaf {leaf}: books say {told:?}, tree says {found:?}"));
            }
        }
        let queued = self.shadow_only.iter().filter(|&&leaf| is_hollow(self.leaves.word(leaf))).count();
        if (hollow, hollow) != (self.hollow, queued) {
            bad.push(format!("{hollow} leaves without pages, {} counted, {queued} queued", self.hollow));
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

/// A leaf that is used and has no present page, by its word.
fn is_hollow(word: u64) -> bool {
    word & USED != 0 && LeafInfo::of(word).present == 0
}

/// Present or busy entries.
fn present_in(leaf: &Leaf) -> usize {
    leaf.0.iter().filter(|e| Entry(e.load(Ordering::Relaxed)).frame().is_some()).count()
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
    fn leaves_that_got_pages_leave_the_queue() {
        let mut index = Index::new(segment(64));
        let mut place = |run: u64| {
            let place = index.ensure(1, run * RUN_PAGES as u64).unwrap();
            index.count_present(place, 1);
            assert!(index.shadow_only.len() <= STALE_MAX + 2, "{} queued", index.shadow_only.len());
            place
        };
        let places: Vec<Place> = (0..400).map(&mut place).collect();
        for (i, &place) in places.iter().enumerate() {
            index.count_present(place, -1);
            assert!(index.shadow_only.len() <= 2 * (i + 1) + STALE_MAX);
        }
        assert_eq!((index.hollow, index.check(&[1])), (400, Vec::new()));
        index.set_limit(0);
        assert_eq!((index.leaves.in_use(), index.shadow_only.len()), (0, 0), "all of them can go");
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
