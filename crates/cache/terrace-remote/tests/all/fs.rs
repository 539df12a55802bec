//! Tier targets in a store that is a directory: restarts, kills, damaged and lost objects, claims of other
//! instances.

use crate::fixture::{Fixture, PAGES};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;
use terrace_testkit::rng::Rng;
use terrace_testkit::wait::wait_until;

#[test]
fn pages_that_leave_memory_are_read_from_the_store() {
    let mut w = Fixture::new(None);
    let life = w.start();
    w.work(&life, &mut Rng::new(1), 12_000, 20);
    w.read_all(&life);
    let row = w.row(&life);
    assert!(row.hits > 1_000 && row.pages > PAGES / 2 && row.state == "serving", "{row:?}");
    w.check(&life);
    life.engine.shutdown().unwrap();
    let objects = std::fs::read_dir(w.store().join("r")).unwrap().count() as u64;
    assert!((1..=47).contains(&objects), "one object a region: {objects}");
}

#[test]
fn restart_begins_warm() {
    let mut w = Fixture::new(None);
    let life = w.start();
    w.work(&life, &mut Rng::new(2), 6_000, 50);
    w.read_all(&life);
    w.flush(&life);
    let before = w.restart_warm(life);
    assert!(before > PAGES / 2, "{before}");
}

/// Neither the open region nor the superblock reached the store. The lock stays behind.
#[test]
fn restart_after_a_kill_shows_no_wrong_page() {
    let mut w = Fixture::new(None);
    let mut rng = Rng::new(3);
    for turn in 0..4 {
        let life = w.start();
        w.work(&life, &mut rng, 3_000, 15);
        w.flush(&life);
        life.engine.record_identities();
        w.work(&life, &mut rng, 1_500, if turn % 2 == 0 { 0 } else { 10 });
        w.flush(&life);
        w.check(&life);
        life.engine.halt();
        // The lock names this process, which goes on, so it is released by hand.
        life.target.give_back();
    }
    let life = w.start();
    w.read_all(&life);
    w.check(&life);
    life.engine.shutdown().unwrap();
}

#[test]
fn daemon_that_dies_leaves_no_entry_of_what_was_lost() {
    let mut w = Fixture::new(None);
    let mut rng = Rng::new(4);
    let mut life = w.start();
    for _ in 0..3 {
        w.work(&life, &mut rng, 4_000, 20);
        w.flush(&life);
        life = w.restart(life);
        // Some reads run while the store is being listed.
        w.read_all(&life);
        w.settle(&life);
        w.check(&life);
    }
    w.work(&life, &mut rng, 2_000, 20);
    w.check(&life);
    life.engine.shutdown().unwrap();
}

#[test]
fn damaged_cut_and_lost_objects_are_read_from_the_source() {
    let mut w = Fixture::new(None);
    let mut rng = Rng::new(5);
    for turn in 0..3 {
        let life = w.start();
        w.work(&life, &mut rng, 6_000, 0);
        let objects: Vec<_> = std::fs::read_dir(w.store().join("r")).unwrap().flatten().collect();
        assert!(objects.len() > 3, "{objects:?}");
        for object in objects {
            match turn {
                0 => {
                    let mut content = std::fs::read(object.path()).unwrap();
                    content.iter_mut().step_by(997).for_each(|byte| *byte ^= 1);
                    std::fs::write(object.path(), content).unwrap();
                }
                1 => {
                    std::fs::File::options().write(true).open(object.path()).unwrap().set_len(20_000).unwrap()
                }
                _ => std::fs::remove_file(object.path()).unwrap(),
            }
        }
        w.read_all(&life);
        w.flush(&life);
        life.engine.shutdown().unwrap();
    }
}

#[test]
fn store_that_is_lost_and_comes_back_is_used_again() {
    let mut w = Fixture::new(None);
    let mut rng = Rng::new(6);
    let life = w.start();
    w.work(&life, &mut rng, 6_000, 20);
    // A file in place of the directory: nothing below it can be read or written.
    let aside = w.store().with_extension("aside");
    std::fs::rename(w.store(), &aside).unwrap();
    std::fs::write(w.store(), "").unwrap();
    let longest = w.read_all(&life);
    assert!(longest < Duration::from_secs(10), "a reader waited {longest:?}");
    let row = w.row(&life);
    assert!(row.state.starts_with("off: "), "{row:?}");
    w.work(&life, &mut rng, 4_000, 20);
    assert!(
        w.row(&life).bytes_written <= row.bytes_written + (1 << 20),
        "next to nothing is written: {row:?}"
    );
    std::fs::remove_file(w.store()).unwrap();
    std::fs::rename(aside, w.store()).unwrap();
    wait_until("the store", || w.row(&life).state == "serving");
    w.work(&life, &mut rng, 6_000, 20);
    w.read_all(&life);
    assert!(w.row(&life).bytes_written > row.bytes_written, "{row:?}");
    w.check(&life);
    life.engine.shutdown().unwrap();
}

#[test]
fn target_of_another_instance_source_or_size_is_refused() {
    let w = Fixture::new(None);
    let target = w.open().unwrap();
    let refused =
        |request| terrace_remote::open(&request, std::process::id() as i32).unwrap_err().to_string();
    let line = refused(w.request(Some(48 << 20)));
    assert!(
        line.ends_with(&format!(
            "the tier is in use by process {}; unmount that instance first, or name another file",
            std::process::id()
        )),
        "{line}"
    );
    target.give_back();
    assert!(refused(w.request(Some(96 << 20))).contains("the tier has 48MiB, not 96MiB; "));
    let elsewhere = Fixture::new(None);
    let theirs =
        terrace_tier::target::TargetRequest { source: elsewhere.request(None).source, ..w.request(None) };
    assert!(refused(theirs).contains("the tier belongs to "));
    let inside = format!("fs://{}/store", w.request(None).source.display());
    let inside = terrace_tier::target::TargetRequest { path: inside.into(), ..w.request(Some(48 << 20)) };
    assert!(refused(inside).contains("lies in the served directory"));
    w.open().unwrap().give_back();
    let set_mode =
        |mode| std::fs::set_permissions(w.store().join("r"), std::fs::Permissions::from_mode(mode)).unwrap();
    set_mode(0o750);
    assert!(refused(w.request(None)).contains("/r: others may read or write there; "));
    set_mode(0o700);
    w.open().unwrap().give_back();
}

#[test]
fn instance_whose_target_was_taken_writes_nothing_more() {
    let mut w = Fixture::new(None);
    let life = w.start();
    w.work(&life, &mut Rng::new(7), 4_000, 0);
    std::fs::write(w.store().join("lock/0000000009"), "host=far\npid=1\nstart=1\nboot=x\n").unwrap();
    // Like a suspend of this length.
    let life = w.restart(life);
    wait_until("the loss", || w.row(&life).state == "off: another instance has taken the tier");
    let written = w.row(&life).bytes_written;
    w.read_all(&life);
    assert_eq!(w.row(&life).bytes_written, written);
    life.engine.shutdown().unwrap();
    assert!(w.store().join("lock/0000000009").exists());
}

#[test]
fn target_that_is_given_up_is_empty_and_free() {
    let w = Fixture::new(None);
    let life = w.start();
    w.read_all(&life);
    w.flush(&life);
    let regions = || std::fs::read_dir(w.store().join("r")).unwrap().count();
    assert!(regions() > 3);
    let target = life.target.clone();
    life.engine.shutdown().unwrap();
    drop(life);
    // Another instance has the target already: its objects stay.
    let theirs = w.open().unwrap();
    target.give_up().unwrap();
    assert!(regions() > 3, "{}", regions());
    theirs.give_up().unwrap();
    assert_eq!(regions(), 0);
    w.open().unwrap().give_back();
}

#[test]
fn target_is_handed_on_counted_and_emptied() {
    use std::os::fd::AsFd;
    use terrace_tier::Found;
    let w = Fixture::new(None);
    let target = w.open().unwrap();
    let looked = terrace_remote::look(&w.path).unwrap();
    assert_eq!(looked.found, Found::Ours(target.superblock.clone()));
    assert_eq!(looked.holder.map(|holder| holder.pid), Some(std::process::id() as i32));
    let held = target.clone().handed_on().unwrap();
    let again = terrace_remote::Target::taken_over(held.fd.as_fd()).unwrap();
    assert_eq!(format!("{again:?}").replace("fresh: false", "fresh: true"), format!("{target:?}"));
    again.give_back();
    let life = w.start();
    w.read_all(&life);
    w.flush(&life);
    life.engine.shutdown().unwrap();
    let pages = |path| {
        terrace_remote::count(path).unwrap().files.values().map(|file| file.pages.len()).sum::<usize>()
    };
    let there = pages(&w.path);
    assert!(there as u64 > PAGES / 4, "{there}");
    terrace_remote::empty(&w.path).unwrap();
    assert_eq!(pages(&w.path), 0);
    assert!(terrace_remote::look(&w.path).unwrap().holder.is_none());
}
