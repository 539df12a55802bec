//! The namespace without a kernel: hand-made requests, and daemons killed at critical moments.

use std::ffi::OsStr;
use std::os::fd::{OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use terrace_engine::{Engine, EngineConfig, SegmentHandles, SystemClock};
use terrace_io::BlockingIo;

use crate::inode::durable::tests::region;
use crate::*;
use direct::Direct;

#[path = "../tests/namespace/direct.rs"]
mod direct;
mod lives;
mod names;
mod room;

const LAYOUT: DurableLayout = DurableLayout { inodes_max: 64, handles_max: 8, journal_max: 8 };
const RESENT: u64 = 1 << 63;

struct Fixture<C: PageCache> {
    dir: tempfile::TempDir,
    region: DurableRegion,
    cache: Arc<C>,
    namespace: Namespace<C>,
    unique: u64,
}

fn config() -> NamespaceConfig {
    NamespaceConfig { layout: LAYOUT, ..NamespaceConfig::default() }
}

fn root(dir: &Path) -> OwnedFd {
    rustix::fs::open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

impl Fixture<Direct> {
    fn new() -> Self {
        Self::over(Arc::new(Direct))
    }
}

impl<C: PageCache> Fixture<C> {
    fn over(cache: Arc<C>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let region = region(LAYOUT);
        let namespace = Namespace::new(cache.clone(), root(dir.path()), region, config()).unwrap();
        Self { dir, region, cache, namespace, unique: 0 }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    /// Runs a request that is answered.
    fn ask<T>(&mut self, act: impl FnOnce(&Namespace<C>, &mut Op<'_>) -> T) -> T {
        self.unique += 2;
        let mut op = self.namespace.begin(caller(self.unique));
        act(&self.namespace, &mut op)
    }

    /// Kills the daemon: its descriptors stay open, and a successor recovers.
    fn kill(&mut self) {
        let successor = Namespace::recover(self.cache.clone(), self.region, config()).unwrap();
        std::mem::forget(std::mem::replace(&mut self.namespace, successor));
        self.namespace.finish_recovery();
    }

    /// Runs a request without an answer, kills the daemon, and resends it. Returns the outcome of the second
    /// try.
    fn ask_twice<T>(&mut self, act: impl Fn(&Namespace<C>, &mut Op<'_>) -> Result<T>) -> Result<T> {
        self.unique += 2;
        let mut op = self.namespace.begin(caller(self.unique));
        assert!(act(&self.namespace, &mut op).is_ok(), "the first try");
        std::mem::forget(op);
        self.kill();
        let mut op = self.namespace.begin(caller(self.unique | RESENT));
        act(&self.namespace, &mut op)
    }

    fn nlookup(&self, nodeid: u64) -> u64 {
        self.namespace.inode(nodeid).unwrap().nlookup()
    }
}

fn caller(unique: u64) -> Caller {
    Caller { uid: 0, gid: 0, tid: std::process::id(), unique }
}

fn name(text: &str) -> &OsStr {
    OsStr::new(text)
}

#[test]
fn references_are_counted_and_forgotten() {
    let mut world = Fixture::new();
    std::fs::write(world.path("a"), b"x").unwrap();
    let a = world.ask(|ns, op| ns.lookup(op, ROOT, name("a"))).unwrap().attr.ino;
    world.ask(|ns, op| ns.lookup(op, ROOT, name("a"))).unwrap();
    assert_eq!((world.nlookup(a), world.namespace.inodes_known()), (2, 2));
    world.namespace.forget(a, 1);
    assert_eq!(world.nlookup(a), 1);
    // A handle keeps the inode after the last reference: FORGET may overtake RELEASE.
    let opened = world.ask(|ns, op| ns.open(op, a, libc::O_RDWR as u32)).unwrap();
    assert_eq!(world.namespace.pressure.objects(), 1);
    world.namespace.forget(a, 1);
    let mut buf = [0; 4];
    assert_eq!(world.namespace.read(opened.fh, 0, &mut buf, None).unwrap(), 1);
    world.namespace.release(opened.fh);
    assert_eq!((world.namespace.inodes_known(), world.namespace.handles_open()), (1, 0));
    assert_eq!(world.namespace.pressure.objects(), 0);
    assert_eq!(world.namespace.getattr(a).unwrap_err().errno(), libc::ESTALE);
    assert_eq!(world.namespace.getattr(ROOT).unwrap().0.ino, ROOT);
}

#[test]
fn recovery_closes_only_descriptors_named_before_it() {
    let mut world = Fixture::new();
    std::fs::write(world.path("a"), "a").unwrap();
    let a = world.ask(|ns, op| ns.lookup(op, ROOT, name("a"))).unwrap().attr.ino;
    let inode = world.namespace.inodes.release(a, 1).unwrap();
    let named = descriptors_named(world.region, LAYOUT).unwrap();
    assert!(named.contains(&inode.raw_fd()), "killed between the last reference and the end of the inode");
    world.kill();
    assert_eq!(world.namespace.inodes_known(), 1);
    let left = descriptors_named(world.region, LAYOUT).unwrap();
    assert!(!left.contains(&inode.raw_fd()) && left.is_subset(&named), "its number may be used again");
    // The recovery has closed its descriptors.
    std::mem::forget(inode);
}

/// The records name the descriptors that a recovery takes over. A failed recovery must not close them.
#[test]
fn a_recovery_that_fails_leaves_everything_to_the_next() {
    let mut world = Fixture::new();
    std::fs::write(world.path("a"), "a").unwrap();
    let a = world.ask(|ns, op| ns.lookup(op, ROOT, name("a"))).unwrap().attr.ino;
    let dir = world.ask(|ns, op| ns.opendir(op, ROOT)).unwrap();
    world.ask(|ns, op| ns.open(op, a, libc::O_RDWR as u32)).unwrap();
    let named = descriptors_named(world.region, LAYOUT).unwrap();
    let inode = world.namespace.inode(a).unwrap();
    inode.note_object(false);
    let failed = Namespace::recover(world.cache.clone(), world.region, config());
    assert!(failed.is_err(), "a handle of a file without an object");
    // SAFETY: fcntl takes any number.
    let is_open = |fd: &RawFd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } >= 0;
    assert!(named.len() >= 3 && named.iter().all(is_open), "{named:?}");
    inode.note_object(true);
    world.kill();
    assert_eq!(world.namespace.handles_open(), 2);
    world.namespace.release(dir);
}

#[test]
fn unanswered_create_is_done_once() {
    let mut world = Fixture::new();
    let made = world.ask_twice(|ns, op| ns.mkdir(op, ROOT, name("d"), 0o755, 0)).unwrap().attr.ino;
    assert_eq!(world.nlookup(made), 1, "counted once");
    let again = world.ask(|ns, op| ns.mkdir(op, ROOT, name("d"), 0o755, 0));
    assert_eq!(again.unwrap_err().errno(), libc::EEXIST, "another request gets the real error");

    let file = world.ask_twice(|ns, op| ns.mknod(op, ROOT, name("f"), 0o100_644, 0, 0)).unwrap().attr.ino;
    let linked = world.ask_twice(|ns, op| ns.link(op, file, ROOT, name("g"))).unwrap().attr;
    assert_eq!((linked.ino, linked.nlink), (file, 2));
    world.ask_twice(|ns, op| ns.symlink(op, ROOT, name("l"), name("target"))).unwrap();
    let excl = (libc::O_RDWR | libc::O_EXCL) as u32;
    let (_, opened) = world.ask_twice(|ns, op| ns.create(op, ROOT, name("c"), 0o644, 0, excl)).unwrap();
    assert_eq!(world.namespace.handles_open(), 1, "the second try got the first one's handle");
    world.namespace.release(opened.fh);

    let set = |ns: &Namespace<Direct>, op: &mut Op<'_>| {
        ns.setxattr(op, file, name("user.k"), b"v", libc::XATTR_CREATE as u32)
    };
    world.ask_twice(set).unwrap();
    assert_eq!(world.ask(set).unwrap_err().errno(), libc::EEXIST);
    world.ask_twice(|ns, op| ns.removexattr(op, file, name("user.k"))).unwrap();
    let gone = world.ask(|ns, op| ns.removexattr(op, file, name("user.k")));
    assert_eq!(gone.unwrap_err().errno(), libc::ENODATA);
}

#[test]
fn unanswered_remove_is_done_once() {
    let mut world = Fixture::new();
    std::fs::create_dir(world.path("d")).unwrap();
    for file in ["a", "b", "c"] {
        std::fs::write(world.path(file), file).unwrap();
    }
    // As the kernel does before it removes or moves a name.
    for known in ["a", "b", "c", "d"] {
        world.ask(|ns, op| ns.lookup(op, ROOT, name(known))).unwrap();
    }
    world.ask_twice(|ns, op| ns.unlink(op, ROOT, name("a"))).unwrap();
    let gone = world.ask(|ns, op| ns.unlink(op, ROOT, name("a")));
    assert_eq!(gone.unwrap_err().errno(), libc::ENOENT);
    world.ask_twice(|ns, op| ns.rmdir(op, ROOT, name("d"))).unwrap();
    world.ask_twice(|ns, op| ns.rename(op, ROOT, name("b"), ROOT, name("b2"), 0)).unwrap();
    let exchange = libc::RENAME_EXCHANGE;
    world.ask_twice(|ns, op| ns.rename(op, ROOT, name("b2"), ROOT, name("c"), exchange)).unwrap();
    assert_eq!(std::fs::read(world.path("c")).unwrap(), b"b", "exchanged once, not back");
    world.ask_twice(|ns, op| ns.rename(op, ROOT, name("c"), ROOT, name("b2"), 0)).unwrap();
    assert_eq!(std::fs::read(world.path("b2")).unwrap(), b"b");
    assert!(!world.path("c").exists());
}

#[test]
fn a_resent_request_that_was_never_begun_is_done() {
    let mut world = Fixture::new();
    world.kill();
    let ask = |world: &Fixture<Direct>, act: &dyn Fn(&Namespace<Direct>, &mut Op<'_>) -> Result<()>| {
        let mut op = world.namespace.begin(caller(100 | RESENT));
        act(&world.namespace, &mut op)
    };
    ask(&world, &|ns, op| ns.mkdir(op, ROOT, name("d"), 0o755, 0).map(drop)).unwrap();
    let twice = ask(&world, &|ns, op| ns.mkdir(op, ROOT, name("d"), 0o755, 0).map(drop));
    assert_eq!(twice.unwrap_err().errno(), libc::EEXIST);
    ask(&world, &|ns, op| ns.rmdir(op, ROOT, name("d"))).unwrap();
}

#[test]
fn handles_and_listings_go_on_after_a_kill() {
    let mut world = Fixture::new();
    for i in 0..50 {
        std::fs::write(world.path(&format!("f{i}")), b"content").unwrap();
    }
    let dir = world.ask_twice(|ns, op| ns.opendir(op, ROOT)).unwrap();
    let (mut seen, mut offset) = (Vec::new(), 0);
    let mut some = |world: &Fixture<Direct>, max: usize| {
        let before = seen.len();
        world
            .namespace
            .readdir(dir, offset, |entry| {
                if seen.len() < before + max {
                    seen.push(entry.name.to_owned());
                    offset = entry.next;
                    return false;
                }
                true
            })
            .unwrap();
        seen.len() - before
    };
    assert_eq!(some(&world, 20), 20);
    world.kill();
    assert_eq!(some(&world, 100), 32);
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 52, "fifty files, `.` and `..`, none twice");

    let f0 = world.ask(|ns, op| ns.lookup(op, ROOT, name("f0"))).unwrap().attr.ino;
    let opened = world.ask(|ns, op| ns.open(op, f0, libc::O_RDWR as u32)).unwrap();
    world.ask(|ns, op| ns.unlink(op, ROOT, name("f0"))).unwrap();
    world.kill();
    let mut buf = [0; 16];
    assert_eq!(world.namespace.read(opened.fh, 0, &mut buf, None).unwrap(), 7);
    world.namespace.release(opened.fh);
    world.namespace.release(dir);
    world.namespace.forget(f0, 1);
    assert_eq!((world.namespace.inodes_known(), world.namespace.handles_open()), (1, 0));
}

#[test]
fn full_tables_are_an_error_and_no_loss() {
    let mut world = Fixture::new();
    for i in 0..100 {
        std::fs::write(world.path(&format!("f{i}")), b"").unwrap();
    }
    let mut known = Vec::new();
    for i in 0..100 {
        let found = world.ask(|ns, op| ns.lookup(op, ROOT, name(&format!("f{i}"))));
        match found {
            Ok(entry) => {
                let kept = !entry.entry_ttl.is_zero();
                assert_eq!(kept, known.len() < 46, "from three quarters on, names are not kept");
                known.push(entry.attr.ino);
            }
            Err(error) => assert_eq!(error.errno(), libc::ENFILE),
        }
    }
    assert_eq!(known.len(), 63);
    known.iter().for_each(|&nodeid| world.namespace.forget(nodeid, 1));
    assert!(world.ask(|ns, op| ns.lookup(op, ROOT, name("f99"))).is_ok());
    let handles: Vec<_> = (0..8).map(|_| world.ask(|ns, op| ns.opendir(op, ROOT)).unwrap()).collect();
    assert_eq!(world.ask(|ns, op| ns.opendir(op, ROOT)).unwrap_err().errno(), libc::ENFILE);
    handles.into_iter().for_each(|fh| world.namespace.release(fh));
    assert_eq!(world.namespace.handles_open(), 0);
}

#[test]
fn listings_with_attributes_count_what_they_hand_out() {
    let mut world = Fixture::new();
    let others = tempfile::tempdir_in(world.dir.path().parent().unwrap()).unwrap();
    let other = others.path().join("other");
    std::fs::write(&other, b"").unwrap();
    for i in 0..10 {
        std::fs::write(world.path(&format!("f{i}")), b"").unwrap();
    }
    let dir = world.ask(|ns, op| ns.opendir(op, ROOT)).unwrap();
    let five = |ns: &Namespace<Direct>, op: &mut Op<'_>| {
        let mut taken = Vec::new();
        ns.readdirplus(op, dir, 0, |plus| {
            let full = taken.len() == 5;
            if !full {
                taken.push((plus.listed.name.to_owned(), plus.entry.attr.ino));
            }
            full
        })?;
        taken.retain(|(name, _)| !name.to_string_lossy().starts_with('.'));
        Ok(taken)
    };
    let files = world.ask(five).unwrap();
    assert_eq!(world.namespace.inodes_known(), 1 + files.len());
    files.iter().for_each(|(_, ino)| assert_eq!(world.nlookup(*ino), 1));
    let again = world.ask_twice(five).unwrap();
    assert_eq!(again, files);
    files.iter().for_each(|(_, ino)| assert_eq!(world.nlookup(*ino), 2, "a resent listing counts once"));

    // Another file has a listed name when the request is resent.
    world.unique += 2;
    let mut op = world.namespace.begin(caller(world.unique));
    five(&world.namespace, &mut op).unwrap();
    std::mem::forget(op);
    world.kill();
    std::fs::rename(&other, world.path(files[0].0.to_str().unwrap())).unwrap();
    let mut op = world.namespace.begin(caller(world.unique | RESENT));
    let (_, new) = five(&world.namespace, &mut op).unwrap().swap_remove(0);
    drop(op);
    assert_eq!(world.nlookup(new), 1, "the kernel's only reference to it");
}

#[test]
fn a_create_opens_nothing_that_others_made() {
    let mut world = Fixture::new();
    std::fs::write(world.path("secret"), b"theirs").unwrap();
    for (flags, errno) in [(libc::O_RDWR, libc::ESTALE), (libc::O_RDWR | libc::O_EXCL, libc::EEXIST)] {
        let made = world.ask(|ns, op| ns.create(op, ROOT, name("secret"), 0o644, 0, flags as u32));
        assert_eq!(made.unwrap_err().errno(), errno);
    }
    assert_eq!((world.namespace.inodes_known(), world.namespace.handles_open()), (1, 0));
}

#[test]
fn nothing_is_left_of_an_open_that_fails() {
    let mut world = Fixture::new();
    std::fs::write(world.path("f"), b"").unwrap();
    let f = world.ask(|ns, op| ns.lookup(op, ROOT, name("f"))).unwrap().attr.ino;
    let dirs: Vec<_> = (0..8).map(|_| world.ask(|ns, op| ns.opendir(op, ROOT)).unwrap()).collect();
    let full = world.ask(|ns, op| ns.open(op, f, libc::O_RDWR as u32));
    assert_eq!(full.unwrap_err().errno(), libc::ENFILE);
    let inode = world.namespace.inode(f).unwrap();
    let life = inode.life.lock();
    assert_eq!((life.handles, life.writers, life.unseen_writers), (0, 0, 0));
    drop(life);
    dirs.into_iter().for_each(|fh| world.namespace.release(fh));
    world.namespace.forget(f, 1);
    assert_eq!(world.namespace.inodes_known(), 1);
}

#[test]
fn a_name_is_found_for_old_kernels_to_forget() {
    let mut world = Fixture::new();
    std::fs::create_dir(world.path("d")).unwrap();
    std::fs::write(world.path("d/f"), b"").unwrap();
    let d = world.ask(|ns, op| ns.lookup(op, ROOT, name("d"))).unwrap().attr.ino;
    let f = world.ask(|ns, op| ns.lookup(op, d, name("f"))).unwrap().attr.ino;
    let root = world.namespace.inode(ROOT).unwrap();
    assert_eq!(world.namespace.name_of(&root, f), Some((d, "f".into())));
    assert_eq!(world.namespace.name_of(&root, d), Some((ROOT, "d".into())));
    std::fs::remove_file(world.path("d/f")).unwrap();
    // Second chance: the first visit clears the marks.
    let unused = world.namespace.unused(10);
    assert!(unused.contains(&f) && unused.contains(&d) && !unused.contains(&ROOT));
}

/// A file of ten pages behind an engine: opened and read as by a preload client, then forgotten.
struct Rested {
    world: Fixture<Engine>,
    ino: u64,
}

impl Rested {
    fn new() -> Self {
        let config = EngineConfig { memory_bytes: 16 << 20, ..EngineConfig::default() };
        let handles = Arc::new(SegmentHandles::create(&config).unwrap());
        let engine =
            Engine::start(config, handles, Arc::new(SystemClock), Arc::new(BlockingIo::default())).unwrap();
        let mut rested = Self { world: Fixture::over(engine), ino: 0 };
        std::fs::write(rested.world.path("f"), [1; 40960]).unwrap();
        assert_eq!(rested.read(), ([1; 40960].to_vec(), 10), "ten misses");
        rested
    }

    /// Looks the file up, reads it, and forgets it. Returns its content and the number of pages that were not
    /// in memory.
    fn read(&mut self) -> (Vec<u8>, u64) {
        let misses = |world: &Fixture<Engine>| world.cache.stats().fuse.misses;
        let before = misses(&self.world);
        self.ino = self.world.ask(|ns, op| ns.lookup(op, ROOT, name("f"))).unwrap().attr.ino;
        let opened =
            self.world.ask(|ns, op| ns.open(op, self.ino, (libc::O_RDONLY | libc::O_DIRECT) as u32)).unwrap();
        let mut content = vec![0; 1 << 20];
        let n = self.world.namespace.read(opened.fh, 0, &mut content, None).unwrap();
        content.truncate(n);
        self.world.namespace.release(opened.fh);
        self.world.namespace.forget(self.ino, 1);
        (content, misses(&self.world) - before)
    }

    /// Looks the file up and opens it for writing. Returns the handle.
    fn open_to_write(&mut self) -> u64 {
        let opened = self.world.ask(|ns, op| {
            let ino = ns.lookup(op, ROOT, name("f")).unwrap().attr.ino;
            ns.open(op, ino, libc::O_RDWR as u32)
        });
        opened.unwrap().fh
    }

    fn known(&self) -> usize {
        self.world.namespace.inodes_known()
    }
}

#[test]
fn a_forgotten_file_keeps_what_is_cached_of_it() {
    let mut rested = Rested::new();
    assert_eq!((rested.known(), rested.world.nlookup(rested.ino)), (2, 0));
    assert!(!rested.world.namespace.sweep(false), "there is something to keep");
    assert_eq!(rested.read(), ([1; 40960].to_vec(), 0), "no miss");
    rested.world.cache.drop_clean();
    rested.world.namespace.sweep(false);
    assert_eq!(rested.known(), 2, "its shadows are kept as well");
}

#[test]
fn forgotten_file_changed_behind_the_mount_is_read_anew() {
    let mut rested = Rested::new();
    std::thread::sleep(Duration::from_millis(20));
    std::fs::write(rested.world.path("f"), [2; 50000]).unwrap();
    rested.world.namespace.sweep(false);
    assert_eq!(rested.read(), ([2; 50000].to_vec(), 13), "the sweep has not taken the change for its own");
    std::thread::sleep(Duration::from_millis(20));
    std::fs::write(rested.world.path("f"), [5; 50000]).unwrap();
    rested.world.kill();
    assert_eq!(rested.read(), ([5; 50000].to_vec(), 13), "nor has the next daemon");
    rested.world.kill();
    assert_eq!(rested.read(), ([5; 50000].to_vec(), 0), "which keeps what has not changed");
    // Written through the mount, then changed behind it.
    let (ino, fh) = (rested.ino, rested.open_to_write());
    rested.world.namespace.write(ino, fh, 0, &[3; 50000], WriteKind::default()).unwrap();
    rested.world.namespace.release(fh);
    rested.world.namespace.forget(ino, 1);
    assert_eq!(
        std::fs::read(rested.world.path("f")).unwrap(),
        [3; 50000],
        "written back when it was forgotten"
    );
    std::thread::sleep(Duration::from_millis(20));
    std::fs::write(rested.world.path("f"), [4; 50000]).unwrap();
    assert_eq!(rested.read().0, [4; 50000]);
}

#[test]
fn written_file_changed_behind_the_mount_is_read_anew() {
    let mut rested = Rested::new();
    let (ino, fh) = (rested.ino, rested.open_to_write());
    let caller = caller(1);
    let write = |world: &Fixture<Engine>, byte: u8| {
        world.namespace.write(ino, fh, 0, &[byte; 50000], WriteKind::default()).unwrap();
        world.namespace.flush(&caller, fh).unwrap();
    };
    write(&rested.world, 3);
    assert_eq!(rested.read(), ([3; 50000].to_vec(), 0), "the change is the mount's own");
    // No lookup has come since.
    write(&rested.world, 4);
    std::thread::sleep(Duration::from_millis(20));
    std::fs::write(rested.world.path("f"), [5; 50000]).unwrap();
    assert_eq!(rested.read(), ([5; 50000].to_vec(), 13));
    rested.world.namespace.release(fh);
}

#[test]
fn crash_between_look_and_open_keeps_change_behind_mount() {
    let mut rested = Rested::new();
    std::thread::sleep(Duration::from_millis(20));
    std::fs::write(rested.world.path("f"), [2; 50000]).unwrap();
    // The first half of an open.
    let inode = rested.world.namespace.inode(rested.ino).unwrap();
    assert!(inode.look(inode.life.lock().object.as_ref().unwrap()).unwrap().changed);
    drop(inode);
    rested.world.kill();
    assert_eq!(rested.read(), ([2; 50000].to_vec(), 13));
    assert_eq!(rested.read(), ([2; 50000].to_vec(), 0), "now it is known");
}

#[test]
fn a_writer_that_stays_open_is_named_at_every_moment() {
    let mut rested = Rested::new();
    let (ino, fh) = (rested.ino, rested.open_to_write());
    let namespace = &rested.world.namespace;
    namespace.write(ino, fh, 0, &[3; 100], WriteKind::default()).unwrap();
    namespace.release(fh);
    let inode = namespace.inode(ino).unwrap();
    let (began, done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|s| {
        let unnamed = s.spawn(|| {
            let mut unnamed = 0;
            while !done.load(Ordering::Relaxed) {
                unnamed += u32::from(inode.noted_writer() < 0);
                began.store(true, Ordering::Relaxed);
            }
            unnamed
        });
        while !began.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        let life = inode.life.lock();
        for _ in 0..20_000 {
            inode.close_writer(&life);
        }
        drop(life);
        done.store(true, Ordering::Relaxed);
        assert_eq!(unnamed.join().unwrap(), 0, "what is dirty has to be written by it");
    });
    assert!(inode.noted_writer() >= 0, "dirty still");
}

#[test]
fn resting_file_is_dropped_without_name_or_with_full_tables() {
    let rested = Rested::new();
    std::fs::remove_file(rested.world.path("f")).unwrap();
    assert!(rested.world.namespace.sweep(false));
    assert_eq!((rested.known(), rested.world.cache.stats().memory.pages), (1, 0));

    let mut rested = Rested::new();
    assert!(rested.world.namespace.sweep(true));
    assert_eq!(rested.known(), 2, "used since the last time");
    assert!(rested.world.namespace.sweep(true));
    assert_eq!((rested.known(), rested.world.namespace.pressure.objects()), (1, 0));
    assert_eq!(rested.read().1, 10);

    // A file without a name, after a removal through the mount, does not rest.
    let ino = rested.ino;
    rested.world.ask(|ns, op| ns.lookup(op, ROOT, name("f"))).unwrap();
    rested.world.ask(|ns, op| ns.unlink(op, ROOT, name("f"))).unwrap();
    rested.world.namespace.forget(ino, 1);
    assert_eq!((rested.known(), rested.world.cache.stats().memory.pages), (1, 0));
}

#[test]
fn set_time_is_reported_whatever_writeback_does_to_source() {
    let mut rested = Rested::new();
    let (ino, fh) = (rested.ino, rested.open_to_write());
    rested.world.namespace.write(ino, fh, 0, &[3; 100], WriteKind::default()).unwrap();
    // A writeback changes the source's times until it restores them.
    let (path, done) = (rested.world.path("f"), AtomicBool::new(false));
    std::thread::scope(|s| {
        s.spawn(|| {
            let source = std::fs::File::options().write(true).open(&path).unwrap();
            while !done.load(Ordering::Relaxed) {
                source.set_modified(std::time::SystemTime::now()).unwrap();
            }
        });
        let caller = caller(1);
        let told = (0..2000).find_map(|sec| {
            let at = Time { sec, nsec: 7 };
            let set = SetAttr { mtime: Some(SetTime::At(at)), ..SetAttr::default() };
            let (told, _) = rested.world.namespace.setattr(&caller, ino, &set).unwrap();
            (told.mtime != at).then_some((at, told.mtime))
        });
        done.store(true, Ordering::Relaxed);
        assert_eq!(told, None, "set, told");
    });
    rested.world.namespace.release(fh);
}
