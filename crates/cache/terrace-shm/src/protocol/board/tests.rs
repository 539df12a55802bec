//! Boards under loom. A [`Fault`] changes one step, and its model must then fail.

use super::*;
use loom::sync::Arc;
use loom::thread;
use world::{Call, Daemon, Death, Fault, World};

mod world;

fn spawn<T: 'static>(w: &Arc<World>, steps: impl FnOnce(&World) -> T + 'static) -> thread::JoinHandle<T> {
    let w = w.clone();
    thread::spawn(move || steps(&w))
}

/// Two writers of one slot, a reader that begins with a read by the kernel, and the daemon.
fn writers(fault: Fault, second: Call) {
    loom::model(move || {
        let w = Arc::new(World::new(fault, false, Some(0)));
        let threads = [
            spawn(&w, |w| assert!(w.write(0, Call::Whole, Death::Never))),
            spawn(&w, move |w| assert!(w.write(1, second, Death::Never))),
            spawn(&w, |w| {
                w.read_plain();
                w.read();
            }),
        ];
        let mut daemon = Daemon::new(&w);
        daemon.take(None);
        threads.into_iter().for_each(|t| t.join().unwrap());
        daemon.check_end();
    });
}

/// A fill by a client beside a writer and a reader.
fn fills(fault: Fault) {
    loom::model(move || {
        let w = Arc::new(World::new(fault, false, Some(0)));
        let mut daemon = Daemon::new(&w);
        daemon.withdraw();
        let filler = spawn(&w, World::look_for_fill);
        let writer = spawn(&w, |w| assert!(w.write(0, Call::Halves, Death::Never)));
        let reader = spawn(&w, |w| {
            w.read();
        });
        daemon.take(None);
        if let Some(found) = filler.join().unwrap() {
            daemon.publish(found);
        }
        reader.join().unwrap();
        writer.join().unwrap();
        daemon.check_end();
    });
}

/// Two writers of one slot, a reader, a filler and the daemon. So many threads take one preemption.
fn together(fault: Fault) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.map(|_| 1);
    model.check(move || {
        let w = Arc::new(World::new(fault, false, Some(0)));
        let mut daemon = Daemon::new(&w);
        daemon.withdraw();
        let filler = spawn(&w, World::look_for_fill);
        let threads = [
            spawn(&w, |w| assert!(w.write(0, Call::Whole, Death::Never))),
            spawn(&w, |w| assert!(w.write(1, Call::OtherPage, Death::Never))),
            spawn(&w, |w| {
                w.read();
            }),
        ];
        daemon.take(None);
        if let Some(found) = filler.join().unwrap() {
            daemon.publish(found);
        }
        daemon.take(None);
        threads.into_iter().for_each(|t| t.join().unwrap());
        daemon.check_end();
    });
}

/// A fill that began before a rebase, beside a writer after it.
fn fill_over_rebase(fault: Fault) {
    loom::model(move || {
        let w = Arc::new(World::new(fault, true, Some(0)));
        let mut daemon = Daemon::new(&w);
        daemon.withdraw();
        let filler = spawn(&w, World::look_for_fill);
        let writer = spawn(&w, |w| assert!(w.write(0, Call::Halves, Death::Never)));
        daemon.rebase(1, false);
        if let Some(found) = filler.join().unwrap() {
            daemon.publish(found);
        }
        writer.join().unwrap();
        daemon.check_end();
    });
}

/// A writer dies after a step of its write; a reader reads throughout.
fn deaths(fault: Fault, death: Death) {
    loom::model(move || {
        let ends_torn = death == Death::InCall;
        let w = Arc::new(World { ends_torn, ..World::new(fault, true, Some(0)) });
        let dead = spawn(&w, move |w| assert!(!w.write(0, Call::Halves, death)));
        let reader = spawn(&w, |w| {
            w.read_plain();
            w.read();
        });
        let mut daemon = Daemon::new(&w);
        daemon.take(None);
        dead.join().unwrap();
        daemon.is_dead[0] = true;
        daemon.rebase(1, false);
        reader.join().unwrap();
        daemon.check_end();
    });
}

/// The daemon dies after it applied a record that stays in the queue. A client dies without its record.
fn restart(fault: Fault) {
    loom::model(move || {
        let w = Arc::new(World::new(fault, true, Some(0)));
        assert!(w.write(1, Call::OtherPage, Death::Never));
        let dead = spawn(&w, |w| assert!(!w.write(0, Call::Whole, Death::Called)));
        let reader = spawn(&w, |w| {
            w.read_plain();
            w.read();
        });
        Daemon::new(&w).take_one(1, None, false);
        dead.join().unwrap();
        let mut daemon = Daemon::new(&w);
        daemon.clock = 100;
        daemon.is_dead[0] = true;
        daemon.rebase(1, true);
        reader.join().unwrap();
        daemon.check_end();
    });
}

/// A second write finds the queue full.
fn overflow() {
    loom::model(|| {
        let w = Arc::new(World::new(Fault::None, true, Some(0)));
        let writer = spawn(&w, |w| {
            assert!(w.write(0, Call::Whole, Death::Never) && w.write(0, Call::Whole, Death::Never));
        });
        let reader = spawn(&w, |w| {
            w.read();
        });
        let mut daemon = Daemon::new(&w);
        daemon.take(None);
        let mut board = 0;
        for writer in [None, Some(writer)] {
            writer.into_iter().for_each(|writer| writer.join().unwrap());
            if has_overflowed(&w.boards[board].2) {
                board += 1;
                daemon.rebase(board as u32, false);
            }
        }
        reader.join().unwrap();
        daemon.check_end();
    });
}

/// The board that a dead client left unsettled serves the object again, beside a reader.
fn reuse(fault: Fault) {
    loom::model(move || {
        let w = Arc::new(World::new(fault, true, Some(0)));
        assert!(!w.write(0, Call::Whole, Death::Called));
        let reader = spawn(&w, |w| {
            w.read_plain();
            w.read();
        });
        let mut daemon = Daemon::new(&w);
        daemon.is_dead[0] = true;
        daemon.rebase(1, false);
        daemon.rebase(0, false);
        reader.join().unwrap();
        daemon.check_end();
    });
}

/// Rebases beside a writer and a reader.
fn rebases(fault: Fault, board: Option<u32>, times: u32) {
    loom::model(move || {
        let w = Arc::new(World::new(fault, true, board));
        let writer = spawn(&w, |w| assert!(w.write(0, Call::Whole, Death::Never)));
        let reader = spawn(&w, |w| {
            w.read();
        });
        let mut daemon = Daemon::new(&w);
        (1..=times).for_each(|fresh| daemon.rebase(fresh, false));
        reader.join().unwrap();
        writer.join().unwrap();
        daemon.check_end();
    });
}

#[test]
fn a_read_is_no_older_than_an_answered_write() {
    writers(Fault::None, Call::Whole);
}

#[test]
fn pages_share_a_slot() {
    writers(Fault::None, Call::OtherPage);
}

#[test]
fn a_fill_is_whole_and_current() {
    fills(Fault::None);
}

#[test]
fn all_roles_together() {
    together(Fault::None);
}

#[test]
fn a_fill_ends_with_its_board() {
    fill_over_rebase(Fault::None);
}

#[test]
fn dead_writers_leave_no_old_page() {
    for death in [Death::Entered, Death::Begun, Death::InCall, Death::Called, Death::Reserved, Death::Pushed]
    {
        deaths(Fault::None, death);
    }
}

#[test]
fn a_restarted_daemon_takes_a_record_again() {
    restart(Fault::None);
}

#[test]
fn a_full_queue_costs_a_rebase() {
    overflow();
}

#[test]
fn a_rebase_waits_for_writers() {
    rebases(Fault::None, Some(0), 1);
}

#[test]
fn a_rebase_begins_the_counts() {
    rebases(Fault::None, None, 1);
}

#[test]
fn a_board_returns() {
    reuse(Fault::None);
}

#[test]
fn a_late_writer_is_found_by_the_second_flip() {
    rebases(Fault::None, Some(0), 2);
}

const STALE: &str = "a read is older";
const TORN: &str = "a fill amid a write";
const UNSETTLED: &str = "the slot is settled again";
const OLD_COPY: &str = "the page is served again";

/// Runs the model of a fault.
///
/// # Panics
/// If the model holds in spite of the fault, or fails in another way.
fn must_fail(fault: Fault, how: &str, model: fn(Fault)) {
    let failed = std::panic::catch_unwind(|| model(fault)).expect_err("the model holds");
    let text = failed.downcast_ref::<String>().map(String::as_str);
    let text = text.or(failed.downcast_ref::<&str>().copied()).unwrap_or_default();
    assert!(text.contains(how), "{fault:?}: {text}");
}

#[test]
fn faults_of_a_write_or_a_read_are_found() {
    must_fail(Fault::SeqFirst, STALE, |f| writers(f, Call::OtherPage));
    must_fail(Fault::AppliedRelaxed, STALE, |f| writers(f, Call::OtherPage));
    must_fail(Fault::ReadWithoutFence, STALE, |f| writers(f, Call::Whole));
    must_fail(Fault::EarlyApply, STALE, |f| writers(f, Call::Whole));
}

#[test]
fn faults_of_a_fill_are_found() {
    must_fail(Fault::NoFirstLook, TORN, fills);
    must_fail(Fault::SecondLookWithoutGuard, TORN, fill_over_rebase);
    must_fail(Fault::AbsentKeepsVersion, OLD_COPY, fills);
    must_fail(Fault::ApplyWithoutFence, OLD_COPY, fills);
}

#[test]
fn faults_of_a_rebase_are_found() {
    must_fail(Fault::OneFlip, STALE, |f| rebases(f, Some(0), 2));
    must_fail(Fault::EnterWithoutFence, STALE, |f| rebases(f, Some(0), 1));
    must_fail(Fault::LostPagesStay, OLD_COPY, |f| deaths(f, Death::Called));
    must_fail(Fault::CountedTwice, OLD_COPY, restart);
    must_fail(Fault::BoardNotRenewed, UNSETTLED, reuse);
    must_fail(Fault::FlagsApart, STALE, |f| rebases(f, Some(0), 1));
}

#[test]
#[should_panic(expected = "the page is served again")]
fn a_record_before_the_write_leaves_an_old_copy() {
    fills(Fault::EarlyRecord);
}

#[test]
#[should_panic(expected = "a read is older")]
fn counts_without_a_fence_let_reads_go_back() {
    writers(Fault::BeginWithoutFence, Call::Whole);
}

#[test]
#[should_panic(expected = "a fill amid a write")]
fn a_fill_without_the_second_look_is_torn() {
    fills(Fault::NoSecondLook);
}

#[test]
#[should_panic(expected = "a read is older")]
fn a_rebase_without_a_grace_period_misses_a_write() {
    rebases(Fault::NoGrace, Some(0), 1);
}
