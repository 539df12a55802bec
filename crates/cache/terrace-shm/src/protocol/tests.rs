//! The protocols between daemon and clients under loom: every order of the steps of writers and readers, up
//! to a bound of preemptions.

use super::*;
use crate::entry::{Below, DeviceSlot, Handle, State};
use loom::sync::Arc;
use loom::thread;

/// A frame of two words; a page's content is (x, x).
struct Frame([AtomicU64; 2]);
impl Frame {
    fn new(x: u64) -> Frame {
        Frame([AtomicU64::new(x), AtomicU64::new(x)])
    }
    fn write(&self, x: u64) {
        self.0[0].store(x, Ordering::Relaxed);
        self.0[1].store(x, Ordering::Relaxed);
    }
    fn read(&self) -> (u64, u64) {
        (self.0[0].load(Ordering::Relaxed), self.0[1].load(Ordering::Relaxed))
    }
}

struct Fixture {
    entry: AtomicU64,
    other: AtomicU64,
    epoch: AtomicU64,
    frame: Frame,
}

fn world() -> Arc<Fixture> {
    Arc::new(Fixture {
        entry: AtomicU64::new(Entry::present(0, 1).0),
        other: AtomicU64::new(Entry::EMPTY.0),
        epoch: AtomicU64::new(0),
        frame: Frame::new(1),
    })
}

/// One optimistic read: the content, or None when the reader must retry or use the mount path.
fn read(w: &Fixture, entry: &AtomicU64) -> Option<u64> {
    let e = look(entry);
    if e.state() != State::Present {
        return None;
    }
    let (a, b) = w.frame.read();
    unchanged(entry, e).then(|| {
        assert_eq!(a, b, "torn page accepted");
        a
    })
}

#[test]
fn lookup_against_write() {
    loom::model(|| {
        let w = world();
        let t = {
            let w = w.clone();
            thread::spawn(move || {
                withdraw(&w.entry, Entry::busy(0, 2));
                w.frame.write(2);
                publish(&w.entry, Entry::present(0, 3));
            })
        };
        if let Some(x) = read(&w, &w.entry) {
            assert!(x == 1 || x == 2);
        }
        t.join().unwrap();
        assert_eq!(read(&w, &w.entry), Some(2));
    });
}

#[test]
fn lookup_against_evict_and_reuse_of_the_frame() {
    loom::model(|| {
        let w = world();
        let t = {
            let w = w.clone();
            thread::spawn(move || {
                withdraw(&w.entry, Entry::absent(0, 2));
                w.frame.write(9);
                publish(&w.other, Entry::present(0, 3));
            })
        };
        if let Some(x) = read(&w, &w.entry) {
            assert_eq!(x, 1, "another page's content accepted");
        }
        if let Some(x) = read(&w, &w.other) {
            assert_eq!(x, 9);
        }
        t.join().unwrap();
    });
}

#[test]
fn lookup_against_truncate() {
    // Truncate: the size shrinks first, then the page goes. A reader that saw the page sees its old content or nothing.
    loom::model(|| {
        let w = world();
        let size = Arc::new(AtomicU64::new(4096));
        let t = {
            let (w, size) = (w.clone(), size.clone());
            thread::spawn(move || {
                size.store(0, Ordering::Release);
                withdraw(&w.entry, Entry::absent(0, 2));
                w.frame.write(7);
            })
        };
        if size.load(Ordering::Acquire) == 4096 {
            if let Some(x) = read(&w, &w.entry) {
                assert_eq!(x, 1);
            }
        }
        t.join().unwrap();
    });
}

/// A zspage of two slots: its class, and the address of an object of the size that stood there before.
struct Zspage {
    class: AtomicU64,
    slots: [Frame; 2],
}

/// A page in slot 0 of the first zspage, content 1; the second zspage is unused.
fn zspages() -> Arc<(AtomicU64, AtomicU64, [Zspage; 2])> {
    let zspage = |class, x| Zspage { class: AtomicU64::new(class), slots: [Frame::new(x), Frame::new(0)] };
    let (entry, other) = (Entry::compressed(Handle(0), 1).0, Entry::EMPTY.0);
    Arc::new((AtomicU64::new(entry), AtomicU64::new(other), [zspage(1, 1), zspage(0, 0)]))
}

/// One optimistic read of a compressed page. Handles are `zspage * 2 + slot`.
fn read_tier(zspages: &[Zspage; 2], entry: &AtomicU64) -> Option<(u64, u64)> {
    let e = look(entry);
    let at = e.handle()?.0 as usize;
    let zspage = &zspages[at / 2];
    let class = zspage.class.load(Ordering::Relaxed);
    let (a, b) = zspage.slots[at % 2].read();
    unchanged(entry, e).then(|| {
        assert_eq!(a, b, "torn object accepted");
        (class, a)
    })
}

#[test]
fn compressed_page_is_read_while_compaction_moves_it() {
    loom::model(|| {
        let w = zspages();
        let t = {
            let w = w.clone();
            thread::spawn(move || {
                let (entry, other, zspages) = &*w;
                // The copy, the callback, and then another page of another class in the old place.
                zspages[1].class.store(1, Ordering::Release);
                zspages[1].slots[1].write(1);
                replace(entry, Entry::compressed(Handle(3), 2));
                zspages[0].class.store(2, Ordering::Release);
                zspages[0].slots[0].write(9);
                publish(other, Entry::compressed(Handle(0), 3));
            })
        };
        let (entry, other, zspages) = &*w;
        if let Some(found) = read_tier(zspages, entry) {
            assert_eq!(found, (1, 1), "an object that compaction moved away accepted");
        }
        if let Some(found) = read_tier(zspages, other) {
            assert_eq!(found, (2, 9));
        }
        t.join().unwrap();
        assert_eq!(read_tier(zspages, entry), Some((1, 1)));
    });
}

#[test]
fn compressed_page_is_read_while_it_is_evicted_or_promoted() {
    for next in [Entry::absent(0, 2), Entry::present(0, 2)] {
        loom::model(move || {
            let w = zspages();
            let t = {
                let w = w.clone();
                thread::spawn(move || {
                    let (entry, other, zspages) = &*w;
                    withdraw(entry, next);
                    zspages[0].class.store(0, Ordering::Release);
                    zspages[0].class.store(2, Ordering::Release);
                    zspages[0].slots[0].write(9);
                    publish(other, Entry::compressed(Handle(0), 3));
                })
            };
            let (entry, other, zspages) = &*w;
            if let Some(found) = read_tier(zspages, entry) {
                assert_eq!(found, (1, 1), "another page's bytes accepted");
            }
            if let Some(found) = read_tier(zspages, other) {
                assert_eq!(found, (2, 9));
            }
            t.join().unwrap();
        });
    }
}

#[test]
fn page_becomes_compressed_under_a_reader() {
    // From frame to pool: the copy is published over the entry of the frame, which is then another page's.
    loom::model(|| {
        let (w, z) = (world(), zspages());
        let t = {
            let (w, z) = (w.clone(), z.clone());
            thread::spawn(move || {
                z.2[1].class.store(1, Ordering::Release);
                z.2[1].slots[0].write(1);
                replace(&w.entry, Entry::compressed(Handle(2), 2));
                w.frame.write(9);
                publish(&w.other, Entry::present(0, 3));
            })
        };
        if let Some(x) = read(&w, &w.entry) {
            assert_eq!(x, 1);
        }
        if let Some(found) = read_tier(&z.2, &w.entry) {
            assert_eq!(found, (1, 1));
        }
        t.join().unwrap();
    });
}

/// A slot of a device that is two words long, and its check.
struct Slot {
    content: Frame,
    check: AtomicU64,
}

/// One read of a page on a device: the content, or None when the reader must retry.
fn read_slot(slots: &[Slot; 2], entry: &AtomicU64) -> Option<u64> {
    let e = look(entry);
    let Some(Below::Device(at)) = e.below() else { return None };
    let slot = &slots[at.page() as usize];
    let (a, b) = slot.content.read();
    let check = slot.check.load(Ordering::Relaxed);
    unchanged(entry, e).then(|| {
        assert_eq!(a, b, "torn page accepted");
        assert_eq!(a, check, "the check is another page's");
        a
    })
}

/// Region reclaim against a reader: the page is rewritten elsewhere or dropped, and its slot is reused for
/// another page.
#[test]
fn slot_is_reused_under_a_reader() {
    let at = |page| DeviceSlot::new(0, page);
    for moves in [false, true] {
        loom::model(move || {
            let slot = |x| Slot { content: Frame::new(x), check: AtomicU64::new(x) };
            let (entry, other) = (Entry::device(at(0), 1).0, Entry::EMPTY.0);
            let w = Arc::new((AtomicU64::new(entry), AtomicU64::new(other), [slot(1), slot(0)]));
            let t = {
                let w = w.clone();
                thread::spawn(move || {
                    let (entry, other, slots) = &*w;
                    if moves {
                        slots[1].content.write(1);
                        slots[1].check.store(1, Ordering::Relaxed);
                        replace(entry, Entry::device(at(1), 2));
                    } else {
                        withdraw(entry, Entry::absent(0, 2));
                    }
                    slots[0].content.write(9);
                    slots[0].check.store(9, Ordering::Relaxed);
                    publish(other, Entry::device(at(0), 3));
                })
            };
            let (entry, other, slots) = &*w;
            if let Some(x) = read_slot(slots, entry) {
                assert_eq!(x, 1, "another page's content accepted");
            }
            if let Some(x) = read_slot(slots, other) {
                assert_eq!(x, 9);
            }
            t.join().unwrap();
        });
    }
}

#[test]
fn node_reuse_is_seen() {
    // `entry` is a slot of a leaf that belongs to page A until the daemon reuses the leaf for page B.
    loom::model(|| {
        let w = world();
        let link = Arc::new(AtomicU64::new(1)); // A's parent points to the leaf
        let t = {
            let (w, link) = (w.clone(), link.clone());
            thread::spawn(move || {
                withdraw(&w.entry, Entry::absent(0, 2));
                link.store(0, Ordering::Release);
                begin_reuse(&w.epoch);
                w.frame.write(9);
                publish(&w.entry, Entry::present(0, 3));
            })
        };
        let epoch = w.epoch.load(Ordering::Acquire);
        if link.load(Ordering::Acquire) == 1 {
            if let Some(x) = read(&w, &w.entry) {
                if same_epoch(&w.epoch, epoch) {
                    assert_eq!(x, 1, "page B's content read as page A");
                }
            }
        }
        t.join().unwrap();
    });
}

#[test]
fn reuse_of_a_parent_is_seen() {
    // The tree of page A outgrows its root, a small node, which becomes the root above page B.
    loom::model(|| {
        let (a, b) = (world(), world());
        b.frame.write(9);
        let (root, child) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let t = {
            let (a, root, child) = (a.clone(), root.clone(), child.clone());
            thread::spawn(move || {
                root.store(1, Ordering::Release);
                begin_reuse(&a.epoch);
                child.store(1, Ordering::Release);
            })
        };
        let epoch = a.epoch.load(Ordering::Acquire);
        let through_small_node = root.load(Ordering::Acquire) == 0;
        let leaf = if through_small_node && child.load(Ordering::Acquire) == 1 { &b } else { &a };
        if let Some(x) = read(leaf, &leaf.entry) {
            if same_epoch(&a.epoch, epoch) {
                assert_eq!(x, 1, "page B's content read as page A");
            }
        }
        t.join().unwrap();
    });
}

#[test]
fn fill_against_write() {
    // A client looked at the absent entry, read the source (content 1), and sends a page fill. A write
    // makes the page present (content 2), and may evict it again. The daemon accepts only if the entry's
    // identity is the one that the client saw.
    loom::model(|| {
        let entry = Arc::new(AtomicU64::new(Entry::absent(0, 1).0));
        let state = Arc::new(AtomicU64::new(slot::FREE));
        let key = Arc::new(AtomicU64::new(0));
        let client = {
            let (entry, state, key) = (entry.clone(), state.clone(), key.clone());
            thread::spawn(move || {
                let seen = look(&entry);
                if seen.state() == State::Absent && slot::claim(&state) {
                    key.store(seen.identity(), Ordering::Relaxed);
                    slot::ready(&state);
                }
            })
        };
        // daemon: a write comes and goes, then the ring is drained
        publish(&entry, Entry::present(0, 2));
        withdraw(&entry, Entry::absent(5, 3));
        if slot::is_ready(&state) {
            let accepted = Entry(entry.load(Ordering::Relaxed)).identity() == key.load(Ordering::Relaxed);
            let seen_after_write = key.load(Ordering::Relaxed) == Entry::absent(0, 3).identity();
            assert_eq!(accepted, seen_after_write, "content from before the write accepted");
            slot::free(&state);
        }
        client.join().unwrap();
    });
}

#[test]
fn fill_without_a_leaf_against_write() {
    // As above, but the client finds no leaf, so that only the clocks decide. The write makes leaf and
    // entry, goes to the source and is evicted before the ring is drained.
    loom::model(|| {
        let word = || Arc::new(AtomicU64::new(0));
        let (clock, write_clock, leaf, entry, source) = (word(), word(), word(), word(), word());
        let client = {
            let (clock, write_clock, leaf, source) =
                (clock.clone(), write_clock.clone(), leaf.clone(), source.clone());
            thread::spawn(move || {
                let seen = PageVersion { identity: NO_LEAF, clock: clock.load(Ordering::Acquire) };
                if leaf.load(Ordering::Acquire) != 0 {
                    return None;
                }
                let content = source.load(Ordering::Acquire);
                unwritten_since(seen, &write_clock).then_some((seen, content))
            })
        };
        publish(&entry, Entry::absent(0, tick(&clock)));
        leaf.store(1, Ordering::Release);
        withdraw(&entry, Entry::busy(0, tick(&clock)));
        stamp(&clock, &write_clock);
        publish(&entry, Entry::present(0, tick(&clock)));
        source.store(1, Ordering::Release);
        withdraw(&entry, Entry::absent(5, tick(&clock)));
        if let Some((seen, content)) = client.join().unwrap() {
            let now = Entry(entry.load(Ordering::Relaxed)).identity();
            if same_version(seen, now, &write_clock) {
                assert_eq!(content, 1, "content from before the write accepted");
            }
        }
    });
}

#[test]
fn two_clients_never_share_a_slot() {
    loom::model(|| {
        let state = Arc::new(AtomicU64::new(slot::FREE));
        let owner = Arc::new(AtomicU64::new(0));
        let t = {
            let (state, owner) = (state.clone(), owner.clone());
            thread::spawn(move || {
                if slot::claim(&state) {
                    assert_eq!(owner.fetch_add(1, Ordering::Relaxed), 0);
                    owner.fetch_sub(1, Ordering::Relaxed);
                    slot::ready(&state);
                }
            })
        };
        if slot::claim(&state) {
            assert_eq!(owner.fetch_add(1, Ordering::Relaxed), 0);
            owner.fetch_sub(1, Ordering::Relaxed);
            slot::ready(&state);
        }
        t.join().unwrap();
    });
}

#[test]
fn a_queue_hands_over_whole_records() {
    // One place, two producers, and a consumer: each record is seen whole and at most once.
    loom::model(|| {
        let word = || Arc::new(AtomicU64::new(0));
        let (head, tail, seq, a, b) = (word(), word(), word(), word(), word());
        let producers: Vec<_> = [1, 2]
            .map(|x| {
                let (head, tail, seq, a, b) = (head.clone(), tail.clone(), seq.clone(), a.clone(), b.clone());
                thread::spawn(move || {
                    if let Some(at) = queue::reserve(&head, &tail, 1) {
                        a.store(x, Ordering::Relaxed);
                        b.store(x, Ordering::Relaxed);
                        queue::publish(&seq, at);
                    }
                })
            })
            .into();
        let (mut cursor, mut seen) = (0, 0);
        for _ in 0..2 {
            if queue::is_there(&seq, cursor) {
                let (x, y) = (a.load(Ordering::Relaxed), b.load(Ordering::Relaxed));
                assert!(x == y && x != 0 && x != seen, "a torn or repeated record");
                seen = x;
                cursor += 1;
                queue::release(&tail, cursor);
            }
        }
        for producer in producers {
            producer.join().unwrap();
        }
    });
}

#[test]
fn a_place_is_replaced_while_nobody_is_at_it() {
    loom::model(|| {
        let w = Arc::new((AtomicU32::new(0), Frame::new(0)));
        let user = |w: Arc<(AtomicU32, Frame)>| {
            move || {
                let (users, content) = &*w;
                if place::enter(users) {
                    let (a, b) = content.read();
                    assert_eq!(a, b, "replaced under a user");
                    content.write(a + 10);
                    place::leave(users);
                }
            }
        };
        let (one, w2) = (thread::spawn(user(w.clone())), w.clone());
        let owner = thread::spawn(move || {
            let (users, content) = &*w2;
            let closed = (0..2).filter(|_| {
                let closed = place::close(users);
                if closed {
                    content.write(content.read().0 / 10 * 10 + 1);
                    place::open(users);
                }
                closed
            });
            closed.count()
        });
        one.join().unwrap();
        let closed = owner.join().unwrap();
        user(w.clone())();
        let (a, b) = w.1.read();
        assert_eq!(a, b);
        assert!(a >= 10, "open when all are done");
        assert!(closed == 0 || a % 10 == 1, "the owner's write is lost");
        assert!(place::close(&w.0), "all have left");
    });
}
