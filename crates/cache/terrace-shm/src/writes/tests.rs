//! Slots of spans, and both sides of the files of announced writes.

use super::*;
use crate::map::{memfd, read_only_twin};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use terrace_testkit::rng::{Rng, seed};

const FILE: u64 = 77;
const PAGE: u64 = PAGE_SIZE as u64;
const GROUP: u64 = GROUP_PAGES * PAGE;
/// A time that no bounded loop takes.
const QUICK: Duration = Duration::from_secs(5);

fn files() -> (OwnedFd, OwnedFd) {
    (memfd("terrace-test", CLIENTS_BYTES).unwrap(), memfd("terrace-test", DAEMON_BYTES).unwrap())
}
/// The same files as mapped by the daemon and by a client, and the client's page.
fn both_sides() -> (Writes, Writes, usize) {
    let (clients, daemon) = files();
    let ours = Writes::create(&clients, &daemon).unwrap();
    let theirs = Writes::attach(&clients, read_only_twin(daemon.as_fd()).unwrap()).unwrap();
    let i = ours.admit(1).unwrap();
    (ours, theirs, i)
}
fn slots(span: Span) -> Vec<usize> {
    span.slots().collect()
}
fn take(ours: &Writes, i: usize) -> Vec<Span> {
    let mut taken = Vec::new();
    let count = ours.apply(ours.client(i), &mut u32::MAX.clone(), |span| taken.push(span));
    assert_eq!(count, taken.len());
    taken
}
/// Repairs all lost slots.
fn repair(ours: &Writes) -> usize {
    let lost = ours.lost_slots().lost;
    lost.iter().for_each(|&(slot, begun)| ours.settle(slot, begun));
    lost.len()
}
fn unsettled(w: &Writes) -> Vec<usize> {
    (0..SLOTS).filter(|&i| !steps::is_settled(&w.seq()[i], &w.applied()[i])).collect()
}

#[test]
fn a_span_covers_the_slot_of_each_of_its_pages() {
    let mut rng = Rng::new(seed("a_span_covers_the_slot_of_each_of_its_pages"));
    for _ in 0..4000 {
        let object = rng.next_u64() >> rng.below(64);
        let offset = match rng.below(4) {
            0 => u64::MAX - rng.below(4 * GROUP),
            _ => rng.next_u64() >> rng.below(64),
        };
        let len = rng.next_u64() >> (40 + rng.below(24));
        let span = Span::of(object, offset, len);
        let found = slots(span);
        if span.is_whole {
            assert_eq!(found, [slot_of_file(object)], "{span:?}");
            assert!(len > GROUPS_MAX * GROUP - GROUP);
            continue;
        }
        let last = offset.saturating_add(len.max(1) - 1) / PAGE;
        let mut expected: Vec<_> = (offset / PAGE..=last).map(|page| slot_of_page(object, page)).collect();
        expected.dedup();
        if len > 0 {
            assert_eq!(found, expected, "{len} bytes at {offset} of {object}");
            assert_eq!((span.first, span.first + (span.pages - 1)), (offset / PAGE, last));
        }
    }
}

#[test]
fn a_long_or_unknown_span_is_the_whole_file() {
    assert!(!Span::of(FILE, 0, GROUPS_MAX * GROUP).is_whole);
    assert_eq!(slots(Span::of(FILE, 0, GROUPS_MAX * GROUP)).len(), GROUPS_MAX as usize);
    for span in [
        Span::of(FILE, 0, GROUPS_MAX * GROUP + 1),
        Span::of(FILE, 1, GROUPS_MAX * GROUP),
        Span::of(FILE, GROUP, u64::MAX),
        Span::of(FILE, 0, u64::MAX),
        Span::all(FILE),
    ] {
        assert!(span.is_whole, "{span:?}");
        assert_eq!(slots(span), [slot_of_file(FILE)], "{span:?}");
    }
    assert_eq!(Span::all(FILE).pages, Span::ALL);
    assert_eq!(Span::of(FILE, 5 * PAGE + 1, u64::MAX).first, 5);
}

#[test]
fn a_hostile_span_has_few_slots() {
    let ends = [0, 1, GROUP_PAGES - 1, u64::MAX / 2, u64::MAX - GROUP_PAGES, u64::MAX - 1, u64::MAX];
    let begun = Instant::now();
    for object in ends {
        for (first, pages) in ends.iter().flat_map(|&first| ends.map(|pages| (first, pages))) {
            for is_whole in [false, true] {
                let found = slots(Span { object, first, pages, is_whole });
                assert!(found.len() <= GROUPS_MAX as usize && found.iter().all(|&i| i < SLOTS));
            }
            let found = slots(Span::of(object, first, pages));
            assert!(found.len() <= GROUPS_MAX as usize && (pages == 0 || !found.is_empty()));
        }
    }
    assert!(begun.elapsed() < QUICK);
}

#[test]
fn a_read_of_any_length_looks_at_each_slot_once() {
    let (_, theirs, _) = both_sides();
    let begun = Instant::now();
    for offset in [0, 1, u64::MAX / 2, u64::MAX] {
        for len in [0, 1, usize::MAX / 2, usize::MAX] {
            assert!(theirs.is_settled(FILE, offset, len));
        }
    }
    assert!(theirs.begin(None, Span::of(FILE, 1 << 50, 1)).is_none());
    assert!(!theirs.is_settled(FILE, 0, usize::MAX));
    assert!(begun.elapsed() < QUICK);
}

#[test]
fn a_write_unsettles_its_slots_until_it_is_applied() {
    let (ours, theirs, i) = both_sides();
    let page = theirs.client(i);
    let span = Span::of(FILE, 3 * GROUP - 1, GROUP + 2);
    let r = theirs.begin(Some(page), span).unwrap();
    let is_settled = |at: u64| theirs.is_settled(FILE, at * GROUP, GROUP as usize);
    let groups = |w: &dyn Fn(u64) -> bool| (0..8).filter(|&at| !w(at)).collect::<Vec<_>>();
    assert_eq!(groups(&is_settled), [2, 3, 4]);
    assert!(!theirs.is_settled(FILE, 0, 8 * GROUP as usize) && theirs.is_settled(FILE + 1, 0, 1));
    assert!(theirs.is_settled(FILE, 0, 2 * GROUP as usize), "the end is exclusive");
    assert!(!theirs.is_settled(FILE, 0, 2 * GROUP as usize + 1));
    assert!(ours.is_written(FILE) && !ours.is_written(FILE + 1));
    assert_eq!(take(&ours, i), []);
    page.finish(r);
    assert!(ours.is_written(FILE) && ours.lost_slots().lost.is_empty());
    assert_eq!(groups(&is_settled), [2, 3, 4]);
    assert_eq!(take(&ours, i), [span]);
    assert!(!ours.is_written(FILE) && unsettled(&theirs).is_empty());
    assert_eq!(take(&ours, i), []);
}

#[test]
fn a_page_without_news_costs_no_look() {
    let (ours, theirs, i) = both_sides();
    let (page, mut seen) = (theirs.client(i), 0);
    assert_eq!(ours.apply(page, &mut seen, |_| ()), 0);
    for _ in 0..3 {
        let r = theirs.begin(Some(page), Span::of(FILE, 0, 1)).unwrap();
        page.finish(r);
    }
    assert_eq!((ours.apply(page, &mut seen, |_| ()), seen), (3, 3));
    record::finish(&page.records[0].state);
    assert_eq!(ours.apply(page, &mut seen, |_| ()), 0, "the count has not moved");
    seen = 0;
    assert_eq!(ours.apply(page, &mut seen, |_| ()), 1);
}

#[test]
fn two_writes_of_a_slot_are_both_applied() {
    let (ours, theirs, i) = both_sides();
    let (page, span) = (theirs.client(i), Span::of(FILE, 0, 1));
    let [a, b] = [(); 2].map(|()| theirs.begin(Some(page), span).unwrap());
    page.finish(b);
    assert_eq!(take(&ours, i), [span]);
    assert!(!theirs.is_settled(FILE, 0, 1));
    page.finish(a);
    assert_eq!(take(&ours, i), [span]);
    assert!(theirs.is_settled(FILE, 0, 1));
}

#[test]
fn a_write_to_an_unknown_range_unsettles_the_whole_file() {
    let (ours, theirs, i) = both_sides();
    let page = theirs.client(i);
    let r = theirs.begin(Some(page), Span::all(FILE)).unwrap();
    for at in [0, 5 * GROUP, u64::MAX] {
        assert!(!theirs.is_settled(FILE, at, 1));
    }
    assert_eq!(unsettled(&theirs), [slot_of_file(FILE)]);
    r.narrow(5 * GROUP, 10);
    page.finish(r);
    let pages = 1;
    assert_eq!(take(&ours, i), [Span { object: FILE, first: 5 * GROUP_PAGES, pages, is_whole: true }]);
    assert!(unsettled(&theirs).is_empty());
}

#[test]
fn a_write_without_a_free_record_is_repaired() {
    let (ours, theirs, i) = both_sides();
    let (page, span) = (theirs.client(i), Span::of(FILE, GROUP, 2 * GROUP));
    let held: Vec<_> = (0..RECORDS as u64)
        .map(|n| {
            assert_eq!(page.is_half_full(), n * 2 >= RECORDS as u64);
            theirs.begin(Some(page), Span::of(n, 0, 1)).unwrap()
        })
        .collect();
    let bare = [(); 2].map(|()| theirs.begin(Some(page), span));
    assert!(bare.iter().all(Option::is_none) && !ours.take_repair_flag());
    theirs.finish_bare(Some(page));
    assert!(ours.take_repair_flag() && !ours.take_repair_flag());
    assert!(ours.lost_slots().lost.is_empty(), "a writer without a record is inside its call");
    theirs.finish_bare(Some(page));
    assert!(ours.take_repair_flag(), "the second write is to be repaired too");
    let mut lost: Vec<_> = slots(span).into_iter().map(|slot| (slot, 2)).collect();
    lost.sort_unstable();
    assert_eq!(ours.lost_slots().lost, lost, "the slots of records in flight stay");
    assert_eq!(repair(&ours), 2);
    assert!(theirs.is_settled(FILE, GROUP, 2 * GROUP as usize));
    held.iter().for_each(|r| page.finish(r));
    assert_eq!(take(&ours, i).len(), RECORDS);
    assert!(unsettled(&theirs).is_empty() && !page.is_half_full());
}

#[test]
fn a_lost_slot_waits_for_its_records() {
    let (ours, theirs, i) = both_sides();
    let (page, span) = (theirs.client(i), Span::of(FILE, 0, 1));
    assert!(theirs.begin(None, span).is_none());
    assert!(ours.lost_slots().lost.is_empty(), "a writer without a page is inside its call");
    theirs.finish_bare(None);
    let r = theirs.begin(Some(page), span).unwrap();
    assert!(ours.lost_slots().lost.is_empty());
    page.finish(r);
    assert!(ours.lost_slots().lost.is_empty());
    take(&ours, i);
    assert_eq!(ours.lost_slots().lost, [(slot_of_page(FILE, 0), 2)]);
    let late = theirs.begin(Some(page), span).unwrap();
    ours.settle(slot_of_page(FILE, 0), 2);
    assert!(!theirs.is_settled(FILE, 0, 1), "a write has begun since");
    page.finish(late);
    take(&ours, i);
    assert!(theirs.is_settled(FILE, 0, 1));
}

#[test]
fn a_dead_client_leaves_lost_slots() {
    let (ours, theirs, i) = both_sides();
    let page = theirs.client(i);
    let finished = theirs.begin(Some(page), Span::of(FILE, 0, 1)).unwrap();
    page.finish(finished);
    theirs.begin(Some(page), Span::of(FILE, GROUP, 1)).unwrap();
    theirs.begin(Some(page), Span::all(FILE)).unwrap();
    while theirs.begin(Some(page), Span::all(FILE + 1)).is_some() {}
    assert!(ours.lost_slots().lost.is_empty());
    ours.release(i);
    assert_eq!(ours.clients().count(), 0);
    assert_eq!(take(&ours, i), []);
    assert_eq!(repair(&ours), 4);
    assert!(unsettled(&theirs).is_empty());
    assert_eq!(ours.admit(2), Some(i), "the page has another process");
    assert!(!page.is_half_full());
}

#[test]
fn clients_are_admitted_until_all_pages_are_in_use() {
    let (ours, theirs, first) = both_sides();
    assert_eq!(first, 0);
    assert!((1..CLIENTS_MAX).all(|i| ours.admit(i as u32 + 1) == Some(i)));
    assert_eq!(ours.admit(5000), None);
    let found: HashMap<_, _> = theirs.clients().collect();
    assert!((0..CLIENTS_MAX).all(|i| found[&i] == i as u32 + 1));
    ours.release(700);
    assert_eq!((ours.admit(5000), ours.admit(5001)), (Some(700), None));
}

#[test]
#[should_panic(expected = "i < CLIENTS_MAX")]
fn a_client_page_beyond_the_last_one_is_refused() {
    both_sides().0.client(CLIENTS_MAX);
}

#[test]
fn short_files_are_refused() {
    let (clients, daemon) = files();
    let short = |bytes: usize| memfd("terrace-test", bytes).unwrap();
    for bytes in [0, PAGE_SIZE, DAEMON_BYTES - PAGE_SIZE, DAEMON_BYTES - 1] {
        assert!(Writes::attach(&clients, short(bytes)).is_err(), "{bytes}");
        assert!(Writes::create(&clients, short(bytes)).is_err(), "{bytes}");
    }
    for bytes in [0, CLIENTS_AT, CLIENTS_BYTES - PAGE_SIZE, CLIENTS_BYTES - 1] {
        let error = Writes::attach(short(bytes), &daemon).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::INVAL.raw_os_error()), "{bytes}");
    }
    assert!(Writes::attach(short(CLIENTS_BYTES + PAGE_SIZE), &daemon).is_ok(), "a longer file");
    let read_only = read_only_twin(daemon.as_fd()).unwrap();
    assert!(Writes::create(&clients, read_only).is_err(), "the daemon's file is writable");
}

#[test]
fn any_content_of_the_file_of_clients_is_harmless() {
    let mut rng = Rng::new(seed("any_content_of_the_file_of_clients_is_harmless"));
    let begun = Instant::now();
    for round in 0..4 {
        let (clients, daemon) = files();
        let ours = Writes::create(&clients, &daemon).unwrap();
        let mut bytes = vec![0xff; CLIENTS_BYTES];
        if round > 0 {
            rng.fill(&mut bytes);
        }
        for state in (0..CLIENTS_MAX * RECORDS).filter(|_| round > 1) {
            let at = CLIENTS_AT + state / RECORDS * PAGE_SIZE + (state % RECORDS + 1) * 32;
            bytes[at..at + 4].copy_from_slice(&(rng.below(5) as u32).to_ne_bytes());
        }
        rustix::io::pwrite(&clients, &bytes, 0).unwrap();
        assert_eq!(ours.admit(1), None);
        for i in 0..CLIENTS_MAX {
            take(&ours, i);
        }
        ours.take_repair_flag();
        repair(&ours);
        ours.is_written(FILE);
        ours.is_settled(FILE, 0, usize::MAX);
        for (i, _) in ours.clients().collect::<Vec<_>>() {
            ours.client(i).is_half_full();
            ours.release(i);
        }
        let i = ours.admit(1).unwrap();
        let r = ours.begin(Some(ours.client(i)), Span::of(FILE, 0, 1)).unwrap();
        ours.client(i).finish(r);
        assert_eq!(take(&ours, i), [Span::of(FILE, 0, 1)]);
    }
    assert!(begun.elapsed() < 10 * QUICK);
}
