//! Room for inodes, handles and descriptors: requests that wait for it, and descriptors and references that
//! stay as long as they are used.

use std::time::{Duration, Instant};

use rustix::io::Errno;
use terrace_testkit::wait::holds_within;

use super::*;
use crate::fuse::Movable;
use crate::pressure::SWEPT_HERE;

/// A writer without a descriptor waits. Meanwhile other threads get attributes of the file and release it.
#[test]
fn writer_waiting_for_room_holds_no_inode_lock() {
    let mut world = Fixture::new();
    std::fs::write(world.path("f"), b"").unwrap();
    let f = world.ask(|ns, op| ns.lookup(op, ROOT, name("f"))).unwrap().attr.ino;
    let open = |ns: &Namespace<Direct>, op: &mut Op<'_>| ns.open(op, f, libc::O_RDWR as u32);
    let handles: Vec<_> = (0..LAYOUT.handles_max).map(|_| world.ask(open).unwrap().fh).collect();
    let namespace = &world.namespace;
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            Namespace::<Direct>::may_wait(Instant::now());
            namespace.open(&namespace.begin(caller(1000)), f, libc::O_RDWR as u32).map(|file| file.fh)
        });
        let begun = Instant::now();
        // It retries all the time, so the lock is free here only if it does not hold it.
        for _ in 0..100 {
            let inode = namespace.inode(f).unwrap();
            let mut seen = None;
            let is_free = holds_within(Duration::from_secs(10), || {
                seen = inode.life.try_lock().map(|life| life.handles as usize);
                seen.is_some()
            });
            assert!(is_free, "held over the wait");
            assert_eq!(seen, Some(handles.len()));
            assert!(namespace.getattr(f).is_ok());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!waiting.is_finished() && begun.elapsed() < Duration::from_secs(10));
        namespace.release(handles[0]);
        assert!(waiting.join().unwrap().is_ok(), "a place in the table of handles is waited for");
    });
}

/// A thread that answers requests leaves sweeping to the shrinker, and uses the room that it makes.
#[test]
fn room_is_made_by_the_shrinker_for_those_who_answer() {
    let mut world = Fixture::new();
    for i in 0..LAYOUT.inodes_max {
        std::fs::write(world.path(&format!("f{i}")), b"").unwrap();
    }
    let known: Vec<_> = (1..LAYOUT.inodes_max)
        .map(|i| world.ask(|ns, op| ns.lookup(op, ROOT, name(&format!("f{i}")))).unwrap().attr.ino)
        .collect();
    let namespace = &world.namespace;
    // Forgotten by the kernel, without a check afterwards: a sweep finds them.
    known.iter().for_each(|&nodeid| drop(namespace.inodes.release(nodeid, 1)));
    std::thread::scope(|scope| {
        namespace.set_threads(4);
        // The shrinker starts late, so the lookup finds no room.
        namespace.pressure.announce_shrinker();
        let shrinker = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            namespace.shrink_loop();
        });
        let found = namespace.lookup(&mut namespace.begin(caller(1000)), ROOT, name("f0"));
        namespace.end_shrinking();
        shrinker.join().unwrap();
        assert!(found.is_ok(), "{found:?}");
    });
    assert!(!SWEPT_HERE.get(), "this thread answers requests");
}

#[test]
fn a_resent_listing_that_comes_less_far_takes_no_reference_away() {
    let mut world = Fixture::new();
    for i in 0..6 {
        std::fs::write(world.path(&format!("f{i}")), b"").unwrap();
    }
    let dir = world.ask(|ns, op| ns.opendir(op, ROOT)).unwrap();
    let list = |ns: &Namespace<Direct>, op: &mut Op<'_>, room: usize| {
        let mut seen = Vec::new();
        ns.readdirplus(op, dir, 0, |plus| {
            let dots = plus.listed.name.as_encoded_bytes().starts_with(b".");
            seen.extend((!dots).then_some(plus.entry.attr.ino));
            seen.len() > room
        })
        .unwrap();
        seen
    };
    world.unique += 2;
    let mut op = world.namespace.begin(caller(world.unique));
    let files = list(&world.namespace, &mut op, 5);
    std::mem::forget(op);
    world.kill();
    // For example, names were replaced by longer ones beside the mount.
    let mut op = world.namespace.begin(caller(world.unique | RESENT));
    assert_eq!(list(&world.namespace, &mut op, 3), files[..4]);
    drop(op);
    (0..5).for_each(|i| assert_eq!(world.nlookup(files[i]), 1, "file {i}"));
}

#[test]
fn an_object_that_outlives_its_inode_names_no_other_file() {
    let mut world = Fixture::new();
    ["f", "g"].iter().for_each(|name| std::fs::write(world.path(name), name).unwrap());
    let f = world.ask(|ns, op| ns.lookup(op, ROOT, name("f"))).unwrap().attr.ino;
    let fh = world.ask(|ns, op| ns.open(op, f, libc::O_RDONLY as u32)).unwrap().fh;
    let held = world.namespace.inode(f).unwrap().life.lock().object.clone().unwrap();
    let ino = held.source().stat().unwrap().st_ino;
    world.namespace.release(fh);
    world.namespace.forget(f, 1);
    assert_eq!(world.namespace.inodes_known(), 1);
    // The new descriptor gets the lowest free number: the inode's own, if that was closed.
    world.ask(|ns, op| ns.lookup(op, ROOT, name("g"))).unwrap();
    assert_eq!(held.source().stat().unwrap().st_ino, ino);
    let mut byte = [0];
    assert!(rustix::io::pread(&*held.source().reader().unwrap(), &mut byte, 0).is_ok() && byte == *b"f");
}

/// Runs a request that meets a shortage after it recorded a change, or before. Returns the answer, if any,
/// and whether the request was given back.
fn run_into_a_shortage(changes: bool, stays: bool) -> (Option<Result<()>>, bool) {
    let world = Fixture::new();
    let (answer, answered) = std::sync::mpsc::channel();
    let act = move |_: &Namespace<Direct>, op: &mut Op<'_>, _: &mut _| {
        changes.then(|| op.intend(0));
        Err(Errno::MFILE.into())
    };
    let movable = Movable {
        caller: caller(2),
        reply: answer,
        act,
        answer: |_: &Namespace<Direct>, reply: std::sync::mpsc::Sender<Result<()>>, done| {
            reply.send(done).unwrap();
        },
    };
    let left = movable.run(&world.namespace, stays).is_some();
    (answered.try_recv().ok(), left)
}

#[test]
fn a_request_that_meets_a_shortage_is_begun_again_elsewhere() {
    let (answer, left) = run_into_a_shortage(false, false);
    assert!(answer.is_none() && left, "it has changed nothing: {answer:?}");
    for (changes, stays) in [(true, false), (false, true)] {
        let (answer, left) = run_into_a_shortage(changes, stays);
        let error = answer.expect("it is answered").unwrap_err();
        assert!(error.is_shortage() && !left, "{error}");
    }
}

/// New files are answered although only reserved descriptors are left.
#[test]
fn a_file_that_was_made_has_its_descriptor() {
    let mut world = Fixture::new();
    std::fs::write(world.path("found"), b"").unwrap();
    // All further descriptors are of the reserve.
    world.namespace.pressure = crate::pressure::Pressure::new(64, 64, 4);
    world.namespace.end_shrinking();
    let found = world.ask(|ns, op| ns.lookup(op, ROOT, name("found")));
    assert!(found.is_err_and(|error| error.is_shortage()));
    let made = world.ask(|ns, op| {
        op.intend(0);
        ns.lookup(op, ROOT, name("found"))
    });
    assert!(made.is_ok(), "{made:?}");
}
