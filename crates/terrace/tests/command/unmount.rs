//! An unmount that takes its time or is refused, and the mount that comes after it.

use std::fs;
use std::time::Duration;

use crate::stage::{Stage, possible};

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
