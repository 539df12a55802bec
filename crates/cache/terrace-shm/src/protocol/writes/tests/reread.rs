//! The daemon reads a written page again before it applies the write.

use super::*;

impl Daemon {
    /// Withdraws the page, and publishes the content that the source has then.
    fn reread(&self) {
        self.0.entry.swap(Entry::busy(0, tick(&self.0.clock)).0, Ordering::Relaxed);
        fence(Ordering::Release);
        stamp(&self.0.clock, &self.0.write_clock);
        let content = self.0.read_source();
        let next = Entry::present(content as u32, tick(&self.0.clock));
        self.0.entry.swap(next.0, Ordering::Release);
    }
    pub(super) fn take_and_reread(&self) {
        self.take_from(0, Crash::Never, Daemon::reread);
    }
}

/// The daemon reads the page of an answered write again, while another write of the page, or of its neighbour, is
/// under way.
#[test]
fn a_page_is_read_again_during_a_write() {
    for second in [PAGE, NEIGHBOUR] {
        for role in [reader, fresh_reader] {
            loom::model(move || {
                let w = World::new();
                assert!(w.write(0, PAGE, Death::Never));
                join([writer(&w, 1, second), role(&w), daemon(&w, Daemon::take_and_reread)]);
                Daemon(w).check_end();
            });
        }
    }
}

/// A daemon dies after it has read the page again.
#[test]
fn a_second_daemon_repairs_a_page_read_again() {
    for crash in [Crash::Withdrawn, Crash::FirstApplied] {
        loom::model(move || {
            let w = World::new();
            let daemons = move |daemon: &Daemon| {
                assert!(daemon.0.write(0, BOTH, Death::Never));
                daemon.take_from(0, crash, Daemon::reread);
                daemon.repair();
            };
            join([reader(&w), daemon(&w, daemons)]);
            Daemon(w).check_end();
        });
    }
}
