//! Announced writes under loom: a page in a slot, with the source's page cache, clients and the daemon.
//!
//! The page cache has the least order of a kernel: relaxed. A content is the number of writes before it. The
//! entry holds the content in place of a frame, because sequence locks have models of their own. A fill
//! publishes by compare-exchange, in place of the daemon's lock.
//!
//! The daemon of the small models is a thread. A step of the main thread before a join costs a preemption.

use super::super::{PageVersion, look, stamp, tick, unwritten_since};
use super::*;
use crate::entry::{Entry, State};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

mod reread;

/// What a write covers: bits of slots, and a bit of the page.
type Span = u32;
const NEIGHBOUR: Span = 1;
const ELSEWHERE: Span = 2;
const PAGE_BIT: Span = 4;
const PAGE: Span = NEIGHBOUR | PAGE_BIT;
const BOTH: Span = PAGE | ELSEWHERE;

const SLOTS: usize = 2;
const CLIENTS: usize = 2;
/// A client without a page of records.
const NO_PAGE: usize = CLIENTS;

/// The last step of a writer that dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Death {
    Claimed,
    Begun,
    FirstCount,
    Counted,
    Called,
    Finished,
    Never,
}

/// The last step of a daemon that dies while it takes a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Crash {
    Freed,
    Withdrawn,
    FirstApplied,
    Never,
}

#[derive(Default)]
struct Slot {
    seq: AtomicU64,
    applied: AtomicU64,
}

/// A client's page, with one record.
#[derive(Default)]
struct Client {
    state: AtomicU32,
    span: AtomicU32,
    /// Finds unordered accesses to the span: a load under loom sees no later store.
    owner: UnsafeCell<()>,
    bare: AtomicU32,
}

impl Client {
    fn span(&self) -> Span {
        self.owner.with(|_| self.span.load(Ordering::Relaxed))
    }
    fn set_span(&self, span: Span) {
        self.owner.with_mut(|_| self.span.store(span, Ordering::Relaxed));
    }
}

struct World {
    slots: [Slot; SLOTS],
    clients: [Client; CLIENTS],
    /// Writers without a page.
    bare: AtomicU32,
    source: AtomicU64,
    entry: AtomicU64,
    clock: AtomicU64,
    write_clock: AtomicU64,
    /// The newest content that an answered write or an ended read had.
    floor: AtomicU64,
}

fn slots_of(span: Span) -> impl Iterator<Item = usize> {
    (0..SLOTS).filter(move |i| span >> i & 1 == 1)
}

impl World {
    /// The page is cached with the content of the source.
    fn new() -> Arc<World> {
        Arc::new(World {
            slots: Default::default(),
            clients: Default::default(),
            bare: AtomicU32::new(0),
            source: AtomicU64::new(0),
            entry: AtomicU64::new(Entry::present(0, 1).0),
            clock: AtomicU64::new(1),
            write_clock: AtomicU64::new(0),
            floor: AtomicU64::new(0),
        })
    }

    /// A write of client `client`, without a record if its record is in use. False: the client has died.
    fn write(&self, client: usize, span: Span, death: Death) -> bool {
        let counts = match death {
            Death::Begun => 0,
            Death::FirstCount => 1,
            _ => SLOTS,
        };
        let seqs = slots_of(span).take(counts).map(|i| &self.slots[i].seq);
        let bare = self.clients.get(client).map_or(&self.bare, |client| &client.bare);
        let record = self.clients.get(client).filter(|r| record::claim(&r.state));
        if let Some(r) = record {
            r.set_span(span);
            if death == Death::Claimed {
                return false;
            }
            begin(&r.state, seqs);
        } else {
            begin_bare(bare, seqs);
        }
        if death <= Death::Counted {
            return false;
        }
        let stores = u64::from(span & PAGE_BIT != 0);
        let content = self.source.fetch_add(stores, Ordering::Relaxed) + stores;
        if death == Death::Called {
            return false;
        }
        match record {
            Some(r) => record::finish(&r.state),
            None => finish_bare(bare),
        }
        if death == Death::Never && stores > 0 {
            self.floor.fetch_max(content, Ordering::Release);
        }
        death == Death::Never
    }

    fn is_settled(&self) -> bool {
        is_settled(&self.slots[0].seq, &self.slots[0].applied)
    }
    fn hit(&self) -> Option<u64> {
        let e = self.is_settled().then(|| look(&self.entry))?;
        (e.state() == State::Present).then_some(e.payload().into())
    }
    fn read_source(&self) -> u64 {
        let content = self.source.load(Ordering::Relaxed);
        source_read();
        content
    }
    fn check(&self, content: impl FnOnce() -> u64) {
        let floor = self.floor.load(Ordering::Acquire);
        let content = content();
        assert!(content >= floor, "a read is older than an answered write or an ended read");
        self.floor.fetch_max(content, Ordering::Release);
    }
    /// A read of the page by any thread: the hit, or the kernel's.
    fn read(&self) {
        self.check(|| self.hit().unwrap_or_else(|| self.read_source()));
    }
    /// A read by the kernel alone.
    fn read_plain(&self) {
        self.check(|| self.read_source());
    }
    /// A fill of the absent page by a client or by the daemon.
    fn fill(&self) {
        let seen = look(&self.entry);
        if seen.state() == State::Absent {
            let content = self.read_source();
            let next = Entry::present(content as u32, 0).0;
            let _ = self.entry.compare_exchange(seen.0, next, Ordering::Release, Ordering::Relaxed);
        }
    }
}

struct Daemon(Arc<World>);

impl Daemon {
    fn withdraw(&self) {
        let next = Entry::absent(0, tick(&self.0.clock));
        // `withdraw` as an exchange: loom gives a store no order after the exchange of a fill.
        self.0.entry.swap(next.0, Ordering::Relaxed);
        fence(Ordering::Release);
        stamp(&self.0.clock, &self.0.write_clock);
    }
    fn take(&self) {
        self.take_from(0, Crash::Never, Daemon::withdraw);
    }
    /// Takes the finished records of a client and of the next ones.
    fn take_from(&self, client: usize, crash: Crash, withdraw: fn(&Daemon)) {
        for r in self.0.clients[client..].iter().filter(|r| record::is_finished(&r.state)) {
            let span = r.span();
            record::free(&r.state);
            if crash == Crash::Freed {
                return;
            }
            begin_apply();
            if span & PAGE_BIT != 0 {
                withdraw(self);
            }
            if crash == Crash::Withdrawn {
                return;
            }
            for i in slots_of(span) {
                apply(&self.0.slots[i].applied);
                if crash == Crash::FirstApplied {
                    return;
                }
            }
        }
    }
    fn lost_slots(&self) -> Vec<(usize, u64)> {
        let w = &self.0;
        let unsettled = |i: usize| Some((i, unsettled(&w.slots[i].seq, &w.slots[i].applied)?));
        let mut lost: Vec<_> = (0..SLOTS).filter_map(unsettled).collect();
        let mut bares = w.clients.iter().map(|client| &client.bare).chain([&w.bare]);
        if lost.is_empty() || !bares.all(has_no_bare) {
            return Vec::new();
        }
        let in_flight = w.clients.iter().filter(|r| record::is_in_flight(&r.state));
        let in_flight = in_flight.fold(0, |spans, r| spans | r.span());
        lost.retain(|(i, _)| slots_of(in_flight).all(|used| used != *i));
        begin_apply();
        lost
    }
    fn repair(&self) {
        for (i, begun) in self.lost_slots() {
            if i == 0 {
                self.withdraw();
            }
            settle(&self.0.slots[i].applied, begun);
        }
    }
    /// Frees the page of a dead client.
    fn release(&self, client: usize) {
        record::free(&self.0.clients[client].state);
        self.0.clients[client].bare.store(0, Ordering::Relaxed);
    }
    /// All writers are done: the slots are settled, and a fill makes the page a hit.
    fn check_end(&self) {
        self.take();
        let w = &self.0;
        let begun = |s: &Slot| s.seq.load(Ordering::Relaxed);
        assert!(w.slots.iter().all(|s| s.applied.load(Ordering::Relaxed) <= begun(s)), "counted twice");
        self.repair();
        assert!(w.slots.iter().all(|s| is_settled(&s.seq, &s.applied)), "the slots are settled again");
        w.fill();
        assert_eq!(w.hit(), Some(w.source.load(Ordering::Relaxed)), "the page is served again");
        w.read();
    }
}

fn spawn(w: &Arc<World>, work: impl FnOnce(&World) + Send + 'static) -> thread::JoinHandle<()> {
    let w = w.clone();
    thread::spawn(move || work(&w))
}
fn writer(w: &Arc<World>, client: usize, span: Span) -> thread::JoinHandle<()> {
    spawn(w, move |w| assert!(w.write(client, span, Death::Never)))
}
fn join(threads: impl IntoIterator<Item = thread::JoinHandle<()>>) {
    threads.into_iter().for_each(|t| t.join().unwrap());
}
/// The daemon as a thread. The models spawn it after the threads beside it.
fn daemon(w: &Arc<World>, work: impl FnOnce(&Daemon) + 'static) -> thread::JoinHandle<()> {
    let daemon = Daemon(w.clone());
    thread::spawn(move || work(&daemon))
}
fn fresh_reader(w: &Arc<World>) -> thread::JoinHandle<()> {
    spawn(w, World::read)
}
fn reader(w: &Arc<World>) -> thread::JoinHandle<()> {
    spawn(w, |w| {
        w.read_plain();
        w.read();
    })
}
fn filler(w: &Arc<World>) -> thread::JoinHandle<()> {
    spawn(w, |w| {
        w.fill();
        w.read();
    })
}

/// A write, beside two readers.
#[test]
fn a_read_is_no_older_than_a_write_or_a_read() {
    loom::model(|| {
        let w = World::new();
        let threads = [writer(&w, 0, PAGE), reader(&w), fresh_reader(&w)];
        Daemon(w.clone()).take();
        join(threads);
        Daemon(w).check_end();
    });
}

/// A write is applied, beside a reader.
#[test]
fn a_write_is_applied_beside_a_reader() {
    loom::model(|| {
        let w = World::new();
        join([writer(&w, 0, PAGE), reader(&w), daemon(&w, Daemon::take)]);
        Daemon(w).check_end();
    });
}

/// An answered write is applied, beside a reader or a fill.
#[test]
fn an_applied_write_is_seen() {
    for take in [Daemon::take, Daemon::take_and_reread] {
        for role in [reader, fresh_reader, filler] {
            loom::model(move || {
                let w = World::new();
                assert!(w.write(0, PAGE, Death::Never));
                join([role(&w), daemon(&w, take)]);
                Daemon(w).check_end();
            });
        }
    }
}

/// A fill after the withdrawal has the content of the applied write.
#[test]
fn a_fill_reads_an_applied_write() {
    loom::model(|| {
        let w = World::new();
        join([writer(&w, 0, PAGE), daemon(&w, Daemon::take), spawn(&w, World::fill)]);
        Daemon(w).check_end();
    });
}

/// Two writers of one slot, beside a reader. The second one writes the page, or its neighbour.
#[test]
fn two_writers_share_a_slot() {
    for second in [PAGE, NEIGHBOUR] {
        loom::model(move || {
            let w = World::new();
            let threads = [writer(&w, 0, PAGE), writer(&w, 1, second), reader(&w)];
            Daemon(w.clone()).take();
            join(threads);
            Daemon(w).check_end();
        });
    }
}

/// The second write of a slot begins and is applied first, while the first one is answered.
#[test]
fn a_later_write_is_applied_first() {
    for role in [fresh_reader, filler] {
        loom::model(move || {
            let w = World::new();
            assert!(w.write(0, PAGE, Death::Never));
            let later = |daemon: &Daemon| {
                assert!(daemon.0.write(1, NEIGHBOUR, Death::Never));
                daemon.take_from(1, Crash::Never, Daemon::withdraw);
            };
            join([role(&w), daemon(&w, later)]);
            Daemon(w).check_end();
        });
    }
}

/// Two writes are applied beside a reader. The second one begins in between.
#[test]
fn a_write_begins_between_two_applied_ones() {
    for second in [PAGE, NEIGHBOUR] {
        loom::model(move || {
            let w = World::new();
            assert!(w.write(0, PAGE, Death::Never));
            let both = move |daemon: &Daemon| {
                daemon.take();
                daemon.0.fill();
                assert!(daemon.0.write(0, second, Death::Never));
                daemon.take();
            };
            join([reader(&w), daemon(&w, both)]);
            Daemon(w).check_end();
        });
    }
}

/// A fill, beside a writer. A second fill begins after the withdrawal.
#[test]
fn a_fill_is_current() {
    for is_absent in [true, false] {
        loom::model(move || {
            let w = World::new();
            if is_absent {
                Daemon(w.clone()).withdraw();
            }
            join([writer(&w, 0, PAGE), filler(&w), daemon(&w, Daemon::take)]);
            Daemon(w).check_end();
        });
    }
}

/// A fill of a page without a leaf: the clocks decide.
#[test]
fn a_fill_without_a_leaf_is_current() {
    for is_lost in [false, true] {
        loom::model(move || {
            let w = World::new();
            let death = if is_lost { Death::Called } else { Death::Never };
            let writer = spawn(&w, move |w| assert_eq!(w.write(0, PAGE, death), !is_lost));
            let filler = {
                let w = w.clone();
                thread::spawn(move || {
                    let clock = w.clock.load(Ordering::Acquire);
                    (PageVersion { identity: crate::protocol::NO_LEAF, clock }, w.read_source())
                })
            };
            let daemon = daemon(&w, move |daemon| {
                daemon.take();
                join([writer]);
                daemon.take();
                if is_lost {
                    daemon.release(0);
                    daemon.repair();
                }
            });
            let (seen, content) = filler.join().unwrap();
            join([daemon]);
            assert!(w.is_settled());
            let is_current = content == w.source.load(Ordering::Relaxed);
            assert!(is_current || !unwritten_since(seen, &w.write_clock), "an old fill is accepted");
        });
    }
}

/// A writer without a record, beside a repair, and a reader or a fill.
#[test]
fn writers_without_a_record_wait_for_a_repair() {
    for role in [reader, filler] {
        loom::model(move || {
            let w = World::new();
            join([writer(&w, NO_PAGE, PAGE), role(&w), daemon(&w, Daemon::repair)]);
            Daemon(w).check_end();
        });
    }
}

/// A fill after a repair's withdrawal has the content of a write without a record.
#[test]
fn a_fill_reads_a_repaired_write() {
    loom::model(|| {
        let w = World::new();
        join([writer(&w, NO_PAGE, PAGE), daemon(&w, Daemon::repair), spawn(&w, World::fill)]);
        Daemon(w).check_end();
    });
}

/// A client writes twice with one record.
#[test]
fn a_record_is_used_again() {
    loom::model(|| {
        let w = World::new();
        let twice = |w: &World| assert!(w.write(0, PAGE, Death::Never) && w.write(0, BOTH, Death::Never));
        let take_and_repair = |daemon: &Daemon| {
            daemon.take();
            daemon.repair();
            daemon.0.read();
        };
        join([spawn(&w, twice), daemon(&w, take_and_repair)]);
        Daemon(w).check_end();
    });
}

/// A writer dies after a step, beside a reader or a fill.
#[test]
fn dead_writers_leave_no_old_page() {
    use Death::*;
    let cases = [Claimed, Begun, FirstCount, Counted, Called, Finished].map(|death| (false, death));
    for (is_bare, death) in cases.into_iter().chain([FirstCount, Counted, Called].map(|death| (true, death)))
    {
        for role in [reader, filler] {
            loom::model(move || {
                let w = World::new();
                assert!(!is_bare || !w.write(0, PAGE, Claimed));
                let dead = spawn(&w, move |w| assert!(!w.write(0, BOTH, death)));
                let other = role(&w);
                let daemon = daemon(&w, move |daemon| {
                    daemon.take();
                    join([dead]);
                    daemon.release(0);
                    daemon.repair();
                });
                join([other, daemon]);
                Daemon(w).check_end();
            });
        }
    }
}

/// A lost write is repaired, beside a reader or a fill.
#[test]
fn a_repaired_write_is_seen() {
    for role in [reader, filler] {
        loom::model(move || {
            let w = World::new();
            assert!(!w.write(0, PAGE, Death::Called));
            Daemon(w.clone()).release(0);
            join([role(&w), daemon(&w, Daemon::repair)]);
            Daemon(w).check_end();
        });
    }
}

/// A writer dies after a step, while another one writes.
#[test]
fn a_writer_dies_beside_another_one() {
    use Death::*;
    for death in [FirstCount, Counted, Called, Finished] {
        loom::model(move || {
            let w = World::new();
            assert!(!w.write(0, BOTH, death));
            let threads = [writer(&w, 1, PAGE), reader(&w)];
            let daemon = Daemon(w.clone());
            daemon.release(0);
            daemon.repair();
            w.fill();
            daemon.take();
            join(threads);
            daemon.check_end();
        });
    }
}

/// A daemon dies amid a record. The next one repairs, beside a reader or a fill.
#[test]
fn a_second_daemon_repairs() {
    for crash in [Crash::Freed, Crash::Withdrawn, Crash::FirstApplied] {
        for role in [reader, filler] {
            loom::model(move || {
                let w = World::new();
                let daemons = move |daemon: &Daemon| {
                    assert!(daemon.0.write(0, BOTH, Death::Never));
                    daemon.take_from(0, crash, Daemon::withdraw);
                    daemon.take();
                    daemon.repair();
                    daemon.0.fill();
                };
                join([role(&w), daemon(&w, daemons)]);
                Daemon(w).check_end();
            });
        }
    }
}

/// The same beside a second writer and a reader.
#[test]
fn a_second_daemon_repairs_beside_a_writer() {
    for crash in [Crash::Freed, Crash::Withdrawn, Crash::FirstApplied] {
        loom::model(move || {
            let w = World::new();
            assert!(w.write(0, BOTH, Death::Never));
            Daemon(w.clone()).take_from(0, crash, Daemon::withdraw);
            let threads = [writer(&w, 1, BOTH), fresh_reader(&w)];
            let daemon = Daemon(w.clone());
            daemon.take();
            daemon.repair();
            w.fill();
            join(threads);
            daemon.check_end();
        });
    }
}

/// A repair beside a write in flight, with a record or without, after a lost write or none.
#[test]
fn a_repair_settles_no_write_in_flight() {
    for client in [1, NO_PAGE] {
        for is_lost in [false, true] {
            loom::model(move || {
                let w = World::new();
                if is_lost {
                    assert!(!w.write(0, PAGE, Death::Called));
                    Daemon(w.clone()).release(0);
                }
                let repair = |daemon: &Daemon| {
                    daemon.repair();
                    daemon.0.fill();
                    daemon.0.read();
                };
                join([writer(&w, client, PAGE), daemon(&w, repair)]);
                Daemon(w).check_end();
            });
        }
    }
}
