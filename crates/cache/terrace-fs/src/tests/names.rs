//! Lifetimes of names and attributes in the kernel, and changes that are refused after a restart.

use super::*;

#[test]
fn unwatched_names_are_cached_for_a_second() {
    let mut world = Fixture::new();
    for file in ["one", "linked"] {
        std::fs::write(world.path(file), file).unwrap();
    }
    std::fs::hard_link(world.path("linked"), world.path("second")).unwrap();
    std::fs::create_dir(world.path("d")).unwrap();
    std::fs::write(world.path("d/inner"), "").unwrap();
    let (long, short) = (Duration::from_secs(3600), Duration::from_secs(1));
    let mut kept = |parent, name: &str| {
        let entry = world.ask(|ns, op| ns.lookup(op, parent, OsStr::new(name))).unwrap();
        (entry.attr.ino, entry.entry_ttl, entry.attr_ttl)
    };
    let (dir, ttl, _) = kept(ROOT, "d");
    if ttl < long {
        return terrace_testkit::skipped!("no fanotify");
    }
    let (one, ..) = kept(ROOT, "one");
    assert_eq!(kept(ROOT, "one"), (one, long, long));
    let (linked, ..) = kept(ROOT, "linked");
    assert_eq!(kept(ROOT, "linked"), (linked, long, short), "another name may be in any directory");
    world.namespace.watch_failed.store(true, Ordering::Relaxed);
    assert_eq!(world.namespace.getattr(one).unwrap().1, short);
    let inner = world.ask(|ns, op| ns.lookup(op, dir, name("inner"))).unwrap();
    assert_eq!((inner.entry_ttl, inner.attr_ttl), (short, short), "in a directory without a mark");
}

#[test]
fn changes_that_were_given_up_are_refused() {
    let mut world = Fixture::new();
    std::fs::write(world.path("a"), "a").unwrap();
    let a = world.ask(|ns, op| ns.lookup(op, ROOT, name("a"))).unwrap().attr.ino;
    let (read, write) = (libc::O_RDONLY as u32, libc::O_RDWR as u32);
    let writer = world.ask(|ns, op| ns.open(op, a, write)).unwrap().fh;
    assert!(!world.namespace.give_up_changes() && !world.namespace.is_given_up());
    let second = world.ask(|ns, op| ns.open(op, a, write)).unwrap().fh;
    [writer, second].into_iter().for_each(|fh| world.namespace.release(fh));
    assert!(world.namespace.give_up_changes());
    for _ in 0..2 {
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        let by_handle = SetAttr { by_handle: true, ..set };
        let refused = [
            world.ask(|ns, op| ns.open(op, a, write).map(drop)),
            world.ask(|ns, op| ns.setattr(&op.caller, a, &set).map(drop)),
            world.ask(|ns, op| ns.setattr(&op.caller, a, &by_handle).map(drop)),
            world.ask(|ns, op| ns.link(op, a, ROOT, name("b")).map(drop)),
            world.ask(|ns, op| ns.create(op, ROOT, name("b"), 0o644, 0, write).map(drop)),
            world.ask(|ns, op| ns.mkdir(op, ROOT, name("b"), 0o755, 0).map(drop)),
            world.ask(|ns, op| ns.mknod(op, ROOT, name("b"), 0o100_644, 0, 0).map(drop)),
            world.ask(|ns, op| ns.symlink(op, ROOT, name("b"), name("a")).map(drop)),
            world.ask(|ns, op| ns.unlink(op, ROOT, name("a"))),
            world.ask(|ns, op| ns.rename(op, ROOT, name("a"), ROOT, name("b"), 0)),
            world.ask(|ns, op| ns.setxattr(op, a, name("user.a"), b"a", 0)),
            world.ask(|ns, op| ns.removexattr(op, a, name("user.a"))),
        ];
        let errors = refused.map(|it| it.map_err(|error| error.errno()));
        assert_eq!(errors, [Err(libc::EROFS); 12]);
        let reader = world.ask(|ns, op| ns.open(op, a, read)).unwrap().fh;
        assert_eq!(world.namespace.read(reader, 0, &mut [0; 4], None).unwrap(), 1);
        world.namespace.release(reader);
        world.kill();
    }
    assert_eq!((std::fs::read(world.path("a")).unwrap(), world.path("b").exists()), (b"a".into(), false));
}

/// The kernel repeats a refused system call once: lookups and the request again. A restart may come between.
#[test]
fn a_restart_after_the_repeated_lookup_refuses_no_second_time() {
    let write = libc::O_RDWR as u32;
    for names in [&["a", "b"][..], &["b"]] {
        let mut world = Fixture::new();
        std::fs::write(world.path("a"), "a").unwrap();
        let file = world.ask(|ns, op| ns.lookup(op, ROOT, name("a"))).unwrap().attr.ino;
        for other in ["b", "c"] {
            world.ask(|ns, op| ns.link(op, file, ROOT, name(other)).map(drop)).unwrap();
            world.ask(|ns, op| ns.lookup(op, ROOT, name(other))).unwrap();
        }
        for gone in ["a", "c"].into_iter().filter(|name| *name == "c" || !names.contains(name)) {
            world.ask(|ns, op| ns.unlink(op, ROOT, name(gone))).unwrap();
        }
        assert_eq!(world.ask(|ns, op| ns.open(op, file, write)).unwrap_err().errno(), libc::ESTALE);
        world.ask(|ns, op| ns.lookup(op, ROOT, name("b"))).unwrap();
        world.kill();
        let opened = world.ask(|ns, op| ns.open(op, file, write)).expect("the lookup was a moment ago");
        world.namespace.release(opened.fh);
    }
}

/// The place recorded before a restart is no evidence for a file that others have moved, replaced or removed
/// since, even after a refusal and the lookup that follows it.
#[test]
fn a_file_that_others_moved_during_a_restart_is_refused() {
    type Change = fn(&Path);
    // The last looked-up name, and what others do then.
    let changes: [(&str, Change); 7] = [
        ("a", |dir| std::fs::rename(dir.join("a"), dir.join("new")).unwrap()),
        ("a", |dir| std::fs::rename(dir.join("a"), dir.join("d/a")).unwrap()),
        ("a", |dir| std::fs::rename(dir.join("a"), dir.with_extension("outside")).unwrap()),
        ("a", |dir| std::fs::remove_file(dir.join("a")).unwrap()),
        ("b", |dir| std::fs::rename(dir.join("b"), dir.join("new")).unwrap()),
        ("b", |dir| {
            std::fs::remove_file(dir.join("a")).unwrap();
            std::fs::rename(dir.join("b"), dir.join("new")).unwrap();
        }),
        ("b", |dir| {
            std::fs::write(dir.join("other"), "other").unwrap();
            std::fs::rename(dir.join("other"), dir.join("b")).unwrap();
        }),
    ];
    let write = libc::O_RDWR as u32;
    for (number, (found, change)) in changes.into_iter().enumerate() {
        let mut world = Fixture::new();
        let dir = world.dir.path().to_owned();
        std::fs::write(dir.join("a"), "a").unwrap();
        std::fs::create_dir(dir.join("d")).unwrap();
        world.ask(|ns, op| ns.lookup(op, ROOT, name("d"))).unwrap();
        let file = world.ask(|ns, op| ns.lookup(op, ROOT, name("a"))).unwrap().attr.ino;
        if found == "b" {
            for link in ["b", "c"] {
                std::fs::hard_link(dir.join("a"), dir.join(link)).unwrap();
                world.ask(|ns, op| ns.lookup(op, ROOT, name(link))).unwrap();
            }
            std::fs::remove_file(dir.join("c")).unwrap();
            let refused = world.ask(|ns, op| ns.open(op, file, write));
            assert_eq!(refused.unwrap_err().errno(), libc::ESTALE);
            world.ask(|ns, op| ns.lookup(op, ROOT, name("b"))).unwrap();
        }
        change(&dir);
        world.kill();
        let opened = world.ask(|ns, op| ns.open(op, file, write));
        assert_eq!(opened.unwrap_err().errno(), libc::ESTALE, "change {number}");
        let _ = std::fs::remove_file(dir.with_extension("outside"));
    }
}

/// A lookup and an open of the existing file follow a refused CREATE.
#[test]
fn a_restart_after_a_refused_create_refuses_no_second_time() {
    let mut world = Fixture::new();
    std::fs::write(world.path("a"), "a").unwrap();
    let file = world.ask(|ns, op| ns.lookup(op, ROOT, name("a"))).unwrap().attr.ino;
    std::fs::hard_link(world.path("a"), world.path("b")).unwrap();
    let flags = libc::O_RDWR as u32;
    let made = world.ask(|ns, op| ns.create(op, ROOT, name("b"), 0o644, 0, flags));
    assert_eq!(made.unwrap_err().errno(), libc::ESTALE);
    world.ask(|ns, op| ns.lookup(op, ROOT, name("b"))).unwrap();
    world.kill();
    let opened = world.ask(|ns, op| ns.open(op, file, flags)).expect("found a moment ago");
    world.namespace.release(opened.fh);
}
