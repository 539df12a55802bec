//! Disturbances of a live mount during a test: dropped and flushed caches, resizes, and kills of terraced.

use crate::process::{self, DeadlySignals};
use crate::test_dir::terrace;
use crate::test_mount::{Side, TestMount};
use crate::{leftovers, rng};
use std::path::Path;

/// Disturbs a live mount from another thread until dropped: drops, flushes, resizes, and kills if selected.
#[derive(Debug)]
pub struct Chaos {
    stop: std::sync::mpsc::Sender<()>,
    thread: Option<std::thread::JoinHandle<u32>>,
    /// A plain directory has nothing to disturb.
    idle: bool,
}

/// The action of [`Chaos`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `terrace drop-caches`, `sync` and `resize`.
    Commands,
    /// kill -9 of terraced, and sometimes of its successor during recovery.
    Kill,
    /// The same with all fatal signals.
    Signals,
}

impl Chaos {
    /// Starts it: one disturbance about every `pause_ms`.
    pub fn start(mount: &TestMount, trouble: Fault, seed: u64, pause_ms: u64) -> Chaos {
        let (stop, stopped) = std::sync::mpsc::channel();
        let at = mount.at().to_owned();
        let idle = mount.side() == Side::Plain;
        let mut rng = rng::Rng::new(seed);
        let thread = std::thread::spawn(move || {
            let (mut done, mut signals) = (0, DeadlySignals::default());
            loop {
                let pause = std::time::Duration::from_millis(pause_ms / 2 + rng.below(pause_ms));
                if stopped.recv_timeout(pause) != Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                    return done;
                }
                done += u32::from(!idle && disturb(&at, trouble, &mut signals, &mut rng));
            }
        });
        Chaos { stop, thread: Some(thread), idle }
    }

    /// Ends it and returns the number of disturbances. None would make the test meaningless.
    #[track_caller]
    pub fn stop(mut self) -> u32 {
        let _ = self.stop.send(());
        let done = self.thread.take().expect("stopped once").join().expect("the troublemaker itself is well");
        assert!(self.idle || done > 0, "nothing was disturbed: the test was too short");
        done
    }
}

impl Drop for Chaos {
    fn drop(&mut self) {
        let _ = self.stop.send(());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn disturb(at: &Path, trouble: Fault, signals: &mut DeadlySignals, rng: &mut rng::Rng) -> bool {
    if trouble != Fault::Commands {
        return kill_terraced(at, trouble, signals, rng);
    }
    let (verb, size) = match rng.below(5) {
        0..=1 => ("drop-caches", None),
        2 => ("sync", None),
        3 => ("resize", Some("16MiB")),
        _ => ("resize", Some("24MiB")),
    };
    process::run(terrace(&[verb]).arg(at).args(size), 60).expect_success();
    true
}

/// Kills the serving terraced; sometimes also its successor, a moment after its start. Not always: there must
/// be progress.
fn kill_terraced(at: &Path, trouble: Fault, signals: &mut DeadlySignals, rng: &mut rng::Rng) -> bool {
    let mut signal = |rng: &mut rng::Rng| match trouble {
        Fault::Signals => signals.pick(rng),
        _ => libc::SIGKILL,
    };
    let Some((_, info)) = leftovers::instances().into_iter().find(|(_, info)| info.mnt == at) else {
        return false;
    };
    let (supervisor, first) = (info.pid, info.terraced);
    let killed = process::kill(first, signal(rng));
    if killed
        && rng.chance(20)
        && let Some(second) = process::next_child(supervisor, first)
    {
        std::thread::sleep(std::time::Duration::from_micros(rng.below(6000)));
        process::kill(second, signal(rng));
    }
    killed
}
