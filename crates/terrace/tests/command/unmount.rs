//! An unmount that takes its time or is refused, and the mount that comes after it.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;

use crate::stage::{Stage, kill, possible, wait_until};

/// generic/604 of xfstests: a mount that comes while the unmount still writes waits for its end.
#[test]
fn mount_waits_for_an_unmount_under_way() {
    if !possible() {
        return;
    }
    let stage = Stage::new();
    stage.mount(&[]).fine();
    fs::write(stage.mnt.join("a"), "b").unwrap();
    fs::write(stage.instances()[0].join("stopping"), "").unwrap();
    std::thread::scope(|scope| {
        let next = scope.spawn(|| stage.mount(&[]));
        std::thread::sleep(Duration::from_millis(300));
        assert!(!next.is_finished(), "it does not wait");
        stage.ask("umount", &[]).fine();
        next.join().unwrap().fine();
    });
    assert!(!stage.instances()[0].join("stopping").exists(), "the next one starts anew");
    assert_eq!(fs::read(stage.mnt.join("a")).unwrap(), b"b");
    stage.ask("umount", &[]).fine();
    stage.nothing_is_left();
}

/// A stop that fails leaves no mark behind: the mount stays, and another mount is refused at once.
#[test]
fn a_refused_unmount_keeps_others_out() {
    if !possible() {
        return;
    }
    let stage = Stage::new();
    stage.mount(&[]).fine();
    let open = fs::File::create(stage.mnt.join("a")).unwrap();
    stage.ask("umount", &[]).refused(&["in use"]);
    stage.mount(&[]).refused(&["already serves"]);
    drop(open);
    stage.ask("umount", &[]).fine();
    stage.nothing_is_left();
}

/// A mount that was taken away lazily lives on for its open files: the next one does not wait for those.
#[test]
fn mount_does_not_wait_for_open_files_of_a_lazy_unmount() {
    if !possible() {
        return;
    }
    let stage = Stage::new();
    stage.mount(&[]).fine();
    let open = fs::File::create(stage.mnt.join("a")).unwrap();
    kill(stage.processes().0, Signal::TERM);
    wait_until("the mount is gone", || !stage.is_mounted());
    let next = stage.mount(&[]);
    assert_eq!(next.code, Some(0), "{}", next.err);
    assert!(stage.is_mounted());
    drop(open);
    stage.ask("umount", &[]).fine();
    wait_until("the first one has ended", || stage.instances().is_empty());
    stage.nothing_is_left();
}
