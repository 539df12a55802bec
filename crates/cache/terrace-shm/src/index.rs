//! The index as the daemon changes it: a radix tree for each object. Its leaves cover runs, which are blocks
//! of 16 pages.
//!
//! One writer at a time, under the engine's state lock. Readers walk without a lock. The reuse epoch moves
//! before the reuse of a node, so that a reader in the node detects it.

use crate::entry::{Entry, State};
use crate::layout::{
    BLOCK_PAGES, Branch, FANOUT, FANOUT_BITS, HEIGHT_MAX, Inner, Leaf, OBJECTS_MAX, ObjectSlot, SMALL_NODE,
    SMALL_NODE_FANOUT, SmallNode,
};
use crate::map::Segment;
use crate::nodes::{Nodes, STICKY, USED};
use crate::protocol::{begin_reuse, tick};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;

/// The daemon's data about a leaf beside its entries: the word that [`Nodes`] keeps for it.
///
/// ```text
///    63    62    61   60      56 55    32 31    0
///  | used | queued | - | present | object | run |
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LeafInfo {
    object: u32,
    run: u32,
    /// Entries that are not absent.
    present: usize,
}

const OBJECT_SHIFT: u32 = 32;
const PRESENT_SHIFT: u32 = 56;
/// Set while the leaf is in the queue of leaves without pages.
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
const _: () = assert!(BLOCK_PAGES < 1 << (61 - PRESENT_SHIFT));

/// Bytes of a leaf and its word.
const LEAF_BYTES: usize = size_of::<Leaf>() + size_of::<u64>();
/// Bytes that a full index frees at once: each round of reuse makes readers repeat their walk.
const TRIM_BYTES: usize = 64 * LEAF_BYTES;
/// Maximum outdated entries in the queue of leaves without pages, beyond the number of valid ones.
const STALE_MAX: usize = 64;
/// Maximum number of inner nodes for one new leaf: a higher tree, and a path down in it.
const LINK_INNERS_MAX: usize = 2 * HEIGHT_MAX as usize;

/// A place in the index: leaf number and entry within.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place(pub u32);

impl Place {
    pub(crate) fn new(leaf: u32, at: usize) -> Place {
        Place(leaf * BLOCK_PAGES as u32 + at as u32)
    }
    pub(crate) fn leaf(self) -> u32 {
        self.0 / BLOCK_PAGES as u32
    }
    pub(crate) fn at(self) -> usize {
        self.0 as usize % BLOCK_PAGES
    }
}

/// Memory of an index, bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct IndexBytes {
    /// Leaves, in the segment.
    pub leaves: usize,
    /// Inner nodes and small nodes, in the segment.
    pub inners: usize,
    /// The daemon's word for each node.
    pub node_words: usize,
    /// The queue of leaves that hold shadows only.
    pub queue: usize,
}

impl IndexBytes {
    /// All of it.
    pub fn total(&self) -> usize {
        self.leaves + self.inners + self.node_words + self.queue
    }
}

/// The index. All methods need the engine's state lock.
#[derive(Debug)]
pub struct Index {
    seg: Arc<Segment>,
    leaves: Nodes,
    /// A word counts the node's children, as for small nodes.
    inners: Nodes,
    small_nodes: Nodes,
    /// Queue of leaves without a present page, the oldest first. Some have pages again, or are free.
    shadow_only: VecDeque<u32>,
    without_page: usize,
    bytes_max: usize,
}

impl Index {
    /// The index of a new segment.
    pub fn new(seg: Arc<Segment>) -> Index {
        let g = seg.geometry();
        Index {
            leaves: Nodes::new(g.leaves_max),
            inners: Nodes::new(g.inners_max),
            small_nodes: Nodes::new(g.small_nodes_max()),
            shadow_only: VecDeque::new(),
            without_page: 0,
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
    pub fn owner_of(&self, place: Place) -> (u32, u64) {
        let i = self.info(place.leaf());
        (i.object, u64::from(i.run) * BLOCK_PAGES as u64 + place.at() as u64)
    }
    /// The place of `page` of the object in slot `object`, if its leaf exists.
    pub fn find(&self, object: u32, page: u64) -> Option<Place> {
        let run = page / BLOCK_PAGES as u64;
        let (leaf, _) =
            self.seg.walk(self.seg.object(object), run).expect("a tree of the index names its nodes")?;
        Some(Place::new(leaf, (page % BLOCK_PAGES as u64) as usize))
    }
    /// Like [`Index::find`], but grows the tree. None if the index is full or the page lies beyond its range.
    pub fn ensure(&mut self, object: u32, page: u64) -> Option<Place> {
        let run = u32::try_from(page / BLOCK_PAGES as u64).ok()?;
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
        Some(Place::new(leaf, (page % BLOCK_PAGES as u64) as usize))
    }

    /// Counts a page of the leaf in (+1) or out (-1): a page is present in a frame or below DRAM. A leaf
    /// without present pages is queued for [`Index::trim`].
    pub fn count_present(&mut self, place: Place, delta: i32) {
        let leaf = place.leaf();
        let was = self.info(leaf);
        let present = was.present.checked_add_signed(delta as isize).filter(|&n| n <= BLOCK_PAGES);
        let present = present.expect("pages of a leaf are counted in and out");
        let word = self.leaves.word_mut(leaf);
        *word = *word & (USED | QUEUED) | LeafInfo { present, ..was }.word();
        match (was.present, present) {
            (0, 1..) => self.without_page -= 1,
            (1.., 0) => self.queue_without_page(leaf),
            _ => {}
        }
    }

    fn info(&self, leaf: u32) -> LeafInfo {
        LeafInfo::of(self.leaves.word(leaf))
    }

    /// Queues a leaf without a present page. `trim` frees it if it still has none then.
    fn queue_without_page(&mut self, leaf: u32) {
        self.without_page += 1;
        let word = self.leaves.word_mut(leaf);
        if *word & QUEUED == 0 {
            *word |= QUEUED;
            self.shadow_only.push_back(leaf);
        }
        if self.shadow_only.len() > 2 * self.without_page + STALE_MAX {
            self.drop_outdated();
        }
    }

    /// Removes outdated leaves from the queue, which then shrinks at least by half.
    fn drop_outdated(&mut self) {
        let leaves = &mut self.leaves;
        self.shadow_only.retain(|&leaf| {
            let stays = is_without_page(leaves.word(leaf));
            if !stays {
                *leaves.word_mut(leaf) &= !QUEUED;
            }
            stays
        });
        self.shadow_only.shrink_to(2 * self.without_page + STALE_MAX);
    }

    /// Sets the memory limit of the index. Above it, the index drops shadows. Nodes for present pages are
    /// allocated in any case.
    pub fn set_limit(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
        self.trim(bytes_max);
    }

    /// Frees leaves with shadows only, oldest first, until the index has at most `bytes_max` bytes.
    fn trim(&mut self, bytes_max: usize) {
        while self.live_bytes() > bytes_max {
            let Some(leaf) = self.shadow_only.pop_front() else { return };
            *self.leaves.word_mut(leaf) &= !QUEUED;
            if is_without_page(self.leaves.word(leaf)) {
                self.free_leaf(leaf);
            }
        }
    }

    /// Calls `f` for each existing place of `[first, last]` of an object, in page order.
    pub fn for_range(&self, object: u32, first: u64, last: u64, mut f: impl FnMut(u64, Place)) {
        let mut leaves = Vec::new();
        let Some(root) = self.root(object) else { return };
        self.collect(root, 0, first / BLOCK_PAGES as u64, last / BLOCK_PAGES as u64, &mut leaves);
        for (run, leaf) in leaves {
            for at in 0..BLOCK_PAGES {
                let page = run * BLOCK_PAGES as u64 + at as u64;
                if (first..=last).contains(&page) {
                    f(page, Place::new(leaf, at));
                }
            }
        }
    }

    /// True if the index has no page and no shadow of the object.
    pub fn is_empty(&self, object: u32) -> bool {
        self.seg.object(object).root.load(Ordering::Relaxed) == 0
    }

    fn collect(&self, at: Branch, prefix: u64, first: u64, last: u64, out: &mut Vec<(u64, u32)>) {
        let height = levels(at);
        if height == 0 {
            out.push((prefix, at.node));
            return;
        }
        let below = (height - 1) * FANOUT_BITS;
        let low = (first.max(prefix << (height * FANOUT_BITS)) >> below) as usize % FANOUT;
        for (c, child) in self.children(at).iter().enumerate().skip(low) {
            let run = (prefix << FANOUT_BITS) | c as u64;
            if run << below > last {
                return;
            }
            if let Some(node) = child.load(Ordering::Relaxed).checked_sub(1) {
                self.collect(Branch { height: height - 1, node }, run, first, last, out);
            }
        }
    }

    fn root(&self, object: u32) -> Option<Branch> {
        Branch::of(self.seg.object(object).root.load(Ordering::Acquire))
    }

    /// Children of an inner or small node: number + 1, 0 = none.
    fn children(&self, of: Branch) -> &[AtomicU32] {
        if of.height == SMALL_NODE { &self.seg.small_node(of.node).0 } else { &self.seg.inner(of.node).0 }
    }

    /// All nodes of the kind of `of`, an inner or small node.
    fn nodes_like(&mut self, of: Branch) -> &mut Nodes {
        if of.height == SMALL_NODE { &mut self.small_nodes } else { &mut self.inners }
    }

    /// Frees the whole tree of an object. No page of it may be present.
    pub fn clear_object(&mut self, object: u32) {
        let (mut leaves, mut branches) = (Vec::new(), Vec::new());
        self.visit_tree(object, &mut leaves, &mut branches);
        self.seg.object(object).root.store(0, Ordering::Release);
        for (leaf, _, _) in leaves {
            self.empty_leaf(leaf);
            self.unuse_leaf(leaf);
        }
        for branch in branches {
            self.nodes_like(branch).put(branch.node);
        }
    }

    /// Bytes of index nodes in use, and of the daemon's data about them.
    pub(crate) fn live_bytes(&self) -> usize {
        self.leaves.in_use() * LEAF_BYTES
            + self.inners.in_use() * size_of::<Inner>()
            + self.small_nodes.in_use() * size_of::<SmallNode>()
    }
    /// Memory that the index has ever touched (freed nodes are reused, not released).
    pub fn resident_bytes(&self) -> IndexBytes {
        IndexBytes {
            leaves: self.leaves.touched() * size_of::<Leaf>(),
            inners: self.inners.touched() * size_of::<Inner>()
                + self.small_nodes.touched() * size_of::<SmallNode>(),
            node_words: self.leaves.words_bytes()
                + self.inners.words_bytes()
                + self.small_nodes.words_bytes(),
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
        // The leaf is empty. If the caller does not fill it, it can be trimmed.
        self.queue_without_page(leaf);
        Some(leaf)
    }

    fn unuse_leaf(&mut self, leaf: u32) {
        assert!(is_without_page(self.leaves.word(leaf)), "leaf freed with pages present, or twice");
        self.without_page -= 1;
        self.leaves.put(leaf);
    }

    fn new_branch(&mut self, height: u32) -> Option<Branch> {
        let seg = self.seg.clone();
        let like = Branch { height, node: 0 };
        let node = self.nodes_like(like).take(&seg.header().epoch, 0)?;
        let branch = Branch { node, ..like };
        self.children(branch).iter().for_each(|c| c.store(0, Ordering::Relaxed));
        Some(branch)
    }

    /// Links a leaf into its object's tree, which may grow. Each step leaves a walkable tree.
    fn link(&mut self, object: u32, run: u32, leaf: u32) -> Option<()> {
        let seg = self.seg.clone();
        let slot = seg.object(object);
        let needed = (0..=HEIGHT_MAX).find(|h| u64::from(run) >> (h * FANOUT_BITS) == 0)?;
        let leaf = Branch { height: 0, node: leaf };
        let root = self.root(object);
        // All or nothing: unfinished nodes belong to no leaf, and would never be freed.
        if needed.max(root.map_or(0, levels)) > 0 && self.inners.left() < LINK_INNERS_MAX {
            return None;
        }
        let Some(root) = root else {
            let mut top = leaf;
            while levels(top) < needed {
                top = self.parent_of(top, run, run)?;
            }
            slot.root.store(top.word(), Ordering::Release);
            return Some(());
        };
        let mut at = self.grow(slot, root, needed, run)?;
        while levels(at) > 1 {
            let height = levels(at) - 1;
            let c = (run >> (height * FANOUT_BITS)) as usize % FANOUT;
            at = match self.children(at)[c].load(Ordering::Relaxed).checked_sub(1) {
                Some(node) => Branch { height, node },
                None => {
                    let new = self.new_branch(height)?;
                    self.adopt(at, c, new);
                    new
                }
            };
        }
        self.adopt(at, run as usize % FANOUT, leaf);
        Some(())
    }

    /// Raises a tree that is too low for `run`. Returns the root.
    fn grow(&mut self, slot: &ObjectSlot, root: Branch, needed: u32, run: u32) -> Option<Branch> {
        let mut top = root;
        if top.height == SMALL_NODE && run as usize >= SMALL_NODE_FANOUT {
            top = self.grow_to_inner(slot, top)?;
        }
        while levels(top) < needed {
            top = self.parent_of(top, 0, run)?;
            slot.root.store(top.word(), Ordering::Release);
        }
        Some(top)
    }

    /// Replaces a small node by an inner node. A reader still in the small node finds the same leaves.
    fn grow_to_inner(&mut self, slot: &ObjectSlot, small_node: Branch) -> Option<Branch> {
        let inner = self.new_branch(1)?;
        for (from, to) in self.children(small_node).iter().zip(self.children(inner)) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        *self.inners.word_mut(inner.node) = self.small_nodes.word(small_node.node);
        slot.root.store(inner.word(), Ordering::Release);
        self.small_nodes.put(small_node.node);
        Some(inner)
    }

    /// A new node above `child`, which holds `key`. It is a small node if that suffices for `run` too.
    fn parent_of(&mut self, child: Branch, key: u32, run: u32) -> Option<Branch> {
        let small_node =
            child.height == 0 && (run as usize) < SMALL_NODE_FANOUT && self.small_nodes.left() > 0;
        let parent = self.new_branch(if small_node { SMALL_NODE } else { levels(child) + 1 })?;
        self.adopt(parent, (key >> (levels(child) * FANOUT_BITS)) as usize % FANOUT, child);
        Some(parent)
    }

    fn adopt(&mut self, parent: Branch, c: usize, child: Branch) {
        self.children(parent)[c].store(child.node + 1, Ordering::Release);
        *self.nodes_like(parent).word_mut(parent.node) += 1;
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

    /// Unlinks a leaf from its tree, with every inner node that becomes empty.
    fn unlink(&mut self, object: u32, run: u64) {
        let seg = self.seg.clone();
        let slot = seg.object(object);
        let mut at = self.root(object).expect("the leaf is in the tree");
        let mut path = Vec::new();
        while levels(at) > 0 {
            let height = levels(at) - 1;
            let c = (run >> (height * FANOUT_BITS)) as usize % FANOUT;
            path.push((at, c));
            at = Branch { height, node: self.children(at)[c].load(Ordering::Relaxed) - 1 };
        }
        while let Some((parent, c)) = path.pop() {
            self.children(parent)[c].store(0, Ordering::Release);
            let nodes = self.nodes_like(parent);
            let word = nodes.word_mut(parent.node);
            *word -= 1;
            if *word & !USED > 0 {
                return;
            }
            nodes.put(parent.node);
        }
        slot.root.store(0, Ordering::Release);
    }

    /// After a restart: finds every node in the trees of these objects; all others are free. The dead daemon
    /// may have stopped anywhere: each of its steps leaves a walkable tree.
    pub fn recover(&mut self, objects: &[u32]) {
        let (mut leaves_seen, mut branches_seen) = (Vec::new(), Vec::new());
        for &object in objects {
            self.visit_tree(object, &mut leaves_seen, &mut branches_seen);
        }
        leaves_seen.sort_unstable_by_key(|&(leaf, _, _)| leaf);
        branches_seen.sort_unstable_by_key(|branch| branch.node);
        let seg = &self.seg;
        self.leaves.recover(leaves_seen.iter().map(|&(leaf, object, run)| {
            (leaf, LeafInfo { object, run, present: present_in(seg.leaf(leaf)) }.word())
        }));
        let (small_nodes, inners): (Vec<Branch>, _) =
            branches_seen.into_iter().partition(|branch| branch.height == SMALL_NODE);
        for branches in [small_nodes, inners] {
            let Some(&like) = branches.first() else { continue };
            let words = branches.iter().map(|&branch| {
                let children = self.children(branch).iter().filter(|c| c.load(Ordering::Relaxed) != 0);
                (branch.node, children.count() as u64)
            });
            let words: Vec<(u32, u64)> = words.collect();
            self.nodes_like(like).recover(words.into_iter());
        }
        self.without_page = 0;
        self.shadow_only.clear();
        for (leaf, ..) in leaves_seen {
            if is_without_page(self.leaves.word(leaf)) {
                self.queue_without_page(leaf);
            }
        }
        // The dead daemon's other nodes, and their frames, count as never used. A reader in one of them since
        // before the crash must detect their reuse.
        begin_reuse(&self.seg.header().epoch);
    }

    /// All nodes of the tree of an object: leaves (with object and run) and others.
    fn visit_tree(&self, object: u32, leaves: &mut Vec<(u32, u32, u32)>, branches: &mut Vec<Branch>) {
        if let Some(root) = self.root(object) {
            self.visit(object, root, 0, leaves, branches);
        }
    }

    fn visit(
        &self,
        object: u32,
        at: Branch,
        prefix: u32,
        leaves: &mut Vec<(u32, u32, u32)>,
        branches: &mut Vec<Branch>,
    ) {
        if at.height == 0 {
            leaves.push((at.node, object, prefix));
            return;
        }
        branches.push(at);
        for (c, child) in self.children(at).iter().enumerate() {
            if let Some(node) = child.load(Ordering::Relaxed).checked_sub(1) {
                let below = Branch { height: levels(at) - 1, node };
                self.visit(object, below, prefix << FANOUT_BITS | c as u32, leaves, branches);
            }
        }
    }

    /// Reports inconsistencies between nodes and the data about them.
    pub fn check(&self, objects: &[u32]) -> Vec<String> {
        let (mut bad, mut without_page) = (Vec::new(), 0);
        let (mut leaves, mut branches) = (Vec::new(), Vec::new());
        for &object in objects {
            self.visit_tree(object, &mut leaves, &mut branches);
        }
        for &(leaf, object, run) in &leaves {
            let (recorded, found) =
                (self.info(leaf), LeafInfo { object, run, present: present_in(self.seg.leaf(leaf)) });
            without_page += usize::from(found.present == 0);
            if recorded != found {
                bad.push(format!("leaf {leaf}: recorded {recorded:?}, found {found:?}"));
            }
        }
        let queued = self.shadow_only.iter().filter(|&&leaf| is_without_page(self.leaves.word(leaf))).count();
        if (without_page, without_page) != (self.without_page, queued) {
            bad.push(format!(
                "{without_page} leaves without pages, {} counted, {queued} queued",
                self.without_page
            ));
        }
        let small_nodes = branches.iter().filter(|branch| branch.height == SMALL_NODE).count();
        let reachable = [leaves.len(), small_nodes, branches.len() - small_nodes];
        let in_use = [self.leaves.in_use(), self.small_nodes.in_use(), self.inners.in_use()];
        if reachable != in_use {
            bad.push(format!("leaves, small_nodes, inner nodes: {reachable:?} reachable, {in_use:?} in use"));
        }
        bad
    }
}

fn levels(of: Branch) -> u32 {
    if of.height == SMALL_NODE { 1 } else { of.height }
}

/// Whether the word is that of a used leaf without a present page.
fn is_without_page(word: u64) -> bool {
    word & USED != 0 && LeafInfo::of(word).present == 0
}

/// Entries that are not absent.
fn present_in(leaf: &Leaf) -> usize {
    leaf.0.iter().filter(|e| Entry(e.load(Ordering::Relaxed)).state() != State::Absent).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Geometry;
    use crate::map::{WalkError, memfd};

    fn segment(inners_max: u32) -> Arc<Segment> {
        let geometry =
            Geometry { objects_max: 64, inners_max, leaves_max: 512, frames_max: 512, zspages_max: 0 };
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
            index.ensure(1, run * BLOCK_PAGES as u64).unwrap();
            assert!(index.live_bytes() <= 30_000 + 144, "{} bytes after {run}", index.live_bytes());
        }
        assert_eq!(index.find(1, 0), Some(kept), "a leaf with a page stays");
        assert_eq!(index.find(1, 16), None, "the oldest shadows went");
        assert!(index.find(1, 399 * 16).is_some());
        assert_eq!(index.check(&[1]), Vec::<String>::new());
    }

    /// A tree grows from a leaf to a small node to higher trees, and shrinks to nothing, with a restart at
    /// each step.
    #[test]
    fn a_tree_grows_through_a_small_node() {
        let seg = segment(64);
        let mut index = Index::new(seg.clone());
        let runs = [0, 31, 7, 32, 255, 256, 70_000, 5];
        let kinds = [(0, 0), (1, 0), (1, 0), (0, 1), (0, 1), (0, 3), (0, 6), (0, 6)];
        let mut places = Vec::new();
        for (i, (&run, kinds)) in runs.iter().zip(kinds).enumerate() {
            let page = run * BLOCK_PAGES as u64 + 3;
            places.push((page, index.ensure(1, page).unwrap()));
            assert_eq!((index.small_nodes.in_use(), index.inners.in_use()), kinds, "with run {run}");
            index.count_present(places[i].1, 1);
            index.entry(places[i].1).store(Entry::present(i as u32, 1).0, Ordering::Relaxed);
            let mut successor = Index::new(seg.clone());
            successor.recover(&[1]);
            index = successor;
            assert_eq!(index.check(&[1]), Vec::<String>::new());
            for &(page, place) in &places {
                assert_eq!((index.find(1, page), index.owner_of(place)), (Some(place), (1, page)));
            }
            let mut found = Vec::new();
            index.for_range(1, 3, u64::MAX, |page, place| {
                found.extend(index.get(place).frame().map(|_| (page, place)));
            });
            places.sort_unstable_by_key(|&(page, _)| page);
            assert_eq!(found, places);
        }
        for (i, (_, place)) in places.into_iter().enumerate() {
            index.entry(place).store(Entry::EMPTY.0, Ordering::Relaxed);
            index.count_present(place, -1);
            index.set_limit(0);
            assert_eq!(index.check(&[1]), Vec::<String>::new());
            assert_eq!(index.leaves.in_use(), runs.len() - 1 - i);
        }
        assert_eq!((index.inners.in_use(), seg.object(1).root.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn small_node_is_freed_with_its_last_leaf() {
        let mut index = Index::new(segment(64));
        let epoch = |index: &Index| index.seg.header().epoch.load(Ordering::Relaxed);
        index.ensure(1, 20).unwrap();
        index.ensure(1, 40).unwrap();
        index.ensure(2, 40).unwrap();
        assert_eq!((index.small_nodes.in_use(), index.inners.in_use()), (2, 0));
        index.set_limit(0);
        assert_eq!((index.small_nodes.in_use(), index.seg.object(1).root.load(Ordering::Relaxed)), (0, 0));
        let before = epoch(&index);
        index.set_limit(usize::MAX);
        index.ensure(3, 40).unwrap();
        assert!(epoch(&index) > before, "a reader in the small node must notice");
        index.clear_object(3);
        assert_eq!((index.small_nodes.in_use(), index.check(&[1, 2, 3])), (0, Vec::new()));
    }

    #[test]
    fn leaves_that_got_pages_leave_the_queue() {
        let mut index = Index::new(segment(64));
        let mut place = |run: u64| {
            let place = index.ensure(1, run * BLOCK_PAGES as u64).unwrap();
            index.count_present(place, 1);
            assert!(index.shadow_only.len() <= STALE_MAX + 2, "{} queued", index.shadow_only.len());
            place
        };
        let places: Vec<Place> = (0..400).map(&mut place).collect();
        for (i, &place) in places.iter().enumerate() {
            index.count_present(place, -1);
            assert!(index.shadow_only.len() <= 2 * (i + 1) + STALE_MAX);
        }
        assert_eq!((index.without_page, index.check(&[1])), (400, Vec::new()));
        index.set_limit(0);
        assert_eq!((index.leaves.in_use(), index.shadow_only.len()), (0, 0), "all of them can go");
    }

    #[test]
    fn a_restart_moves_the_epoch_before_a_node_is_used_again() {
        let seg = segment(64);
        let mut index = Index::new(seg.clone());
        let old = index.ensure(1, 40).unwrap();
        let epoch = seg.header().epoch.load(Ordering::Relaxed);
        // Object 1 is not recovered: its nodes are unknown to the next index.
        let mut index = Index::new(seg.clone());
        index.recover(&[]);
        assert_eq!(index.ensure(2, 40).unwrap(), old, "the node is another object's now");
        assert_ne!(seg.header().epoch.load(Ordering::Relaxed), epoch, "a reader in it must notice");
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
        // The root has height 2, but its node has become a parent of leaves: their numbers are not numbers of
        // inner nodes.
        slot.root.store(2 << 32 | 1, Ordering::Relaxed);
        seg.inner(0).0[0].store(500, Ordering::Relaxed);
        assert!(seg.walk(slot, 3).is_err());
        assert!(matches!(seg.find_leaf(slot, 3), Ok(None)));
        // Numbers of leaves that do not exist.
        slot.root.store(1 << 32 | 1, Ordering::Relaxed);
        seg.inner(0).0[3].store(5000, Ordering::Relaxed);
        assert!(matches!(seg.find_leaf(slot, 3), Ok(None)));
        // Numbers of a small node, or of a leaf in a small node, that do not exist.
        slot.root.store(Branch { height: SMALL_NODE, node: 256 }.word(), Ordering::Relaxed);
        assert_eq!(seg.walk(slot, 3).err(), Some(WalkError::Number(256)));
        assert!(matches!(seg.find_leaf(slot, 3), Ok(None)));
        slot.root.store(Branch { height: SMALL_NODE, node: 0 }.word(), Ordering::Relaxed);
        seg.small_node(0).0[3].store(5000, Ordering::Relaxed);
        assert_eq!(seg.walk(slot, 3).err(), Some(WalkError::Number(4999)));
        assert!(matches!(seg.walk(slot, 32), Ok(None)));
        let seen = crate::client::snapshot(&seg, slot, 3 * BLOCK_PAGES as u64).unwrap();
        assert_eq!(seen.identity, crate::protocol::NO_LEAF);
    }
}
