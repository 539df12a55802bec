//! The life of an inode's slot: hand-made orders of events, and many threads at once against a model.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, FromRawFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicU64};

use super::*;
use crate::inode::{Inode, handle};
use terrace_testkit::rng::{Rng, seed};

/// FORGET and a sweep reach the same inode. One retires it, a lookup makes the number's next inode, and the
/// other one has a stale reference.
#[test]
fn stale_reference_leaves_the_next_inode_alone() {
    let mut world = Fixture::new();
    for file in ["a", "b"] {
        std::fs::write(world.path(file), file).unwrap();
    }
    let a = world.ask(|ns, op| ns.lookup(op, ROOT, name("a"))).unwrap().attr.ino;
    let last = world.ask(|ns, op| ns.lookup(op, ROOT, name("b"))).unwrap().attr.ino;
    let stale = world.namespace.inodes.release(a, 1).unwrap();
    world.namespace.retire_if_unused(&stale);
    // Its slot is on top of the free list.
    world.namespace.forget(last, 1);
    assert_eq!(world.namespace.inodes_known(), 1);
    let again = world.ask(|ns, op| ns.lookup(op, ROOT, name("a"))).unwrap().attr.ino;
    world.namespace.retire_if_unused(&stale);
    assert_eq!((world.nlookup(a), world.namespace.inodes_known()), (1, 2));
    let b = world.ask(|ns, op| ns.lookup(op, ROOT, name("b"))).unwrap().attr.ino;
    assert_eq!((again, world.namespace.inodes_known()), (a, 3));

    for ino in [a, b] {
        let inode = world.namespace.inode(ino).unwrap();
        inode.note_object(true);
        inode.distrust();
    }
    stale.touch();
    stale.forget_writer();
    stale.note_object(false);
    for ino in [a, b] {
        let inode = world.namespace.inode(ino).unwrap();
        assert!(inode.had_object() && !inode.is_unseen(), "the record is another's");
        inode.note_object(false);
    }
    let mut life = stale.life.lock();
    assert!(world.namespace.object_of(&stale, &mut life).is_err(), "its descriptor ends with it");
    drop(life);
    drop(stale);
    world.kill();
    assert_eq!((world.nlookup(a), world.nlookup(b)), (1, 1));
    every_slot_is_free_once(&mut world);
}

/// The kernel drops its last reference while a handle is open. RELEASE then finds the inode retired by a
/// sweep, and made again.
#[test]
fn release_after_a_retirement_leaves_the_next_inode_alone() {
    let mut world = Fixture::new();
    std::fs::write(world.path("a"), "a").unwrap();
    std::fs::write(world.path("b"), "b").unwrap();
    let a = world.ask(|ns, op| ns.lookup(op, ROOT, name("a"))).unwrap().attr.ino;
    let b = world.ask(|ns, op| ns.lookup(op, ROOT, name("b"))).unwrap().attr.ino;
    let opened = world.ask(|ns, op| ns.open(op, a, libc::O_RDONLY as u32)).unwrap();
    world.namespace.forget(a, 1);
    // `Namespace::release`, up to its check whether the inode is still needed.
    let handle = world.namespace.handles.remove(opened.fh).unwrap();
    handle::count_release(&handle, &mut handle.inode.life.lock());
    while world.namespace.sweep(true) {}
    world.namespace.forget(b, 1);
    assert_eq!(world.namespace.inodes_known(), 1);
    world.ask(|ns, op| ns.lookup(op, ROOT, name("a"))).unwrap();
    world.namespace.retire_if_unused(&handle.inode);
    assert_eq!((world.nlookup(a), world.namespace.inodes_known()), (1, 2));
    drop(handle);
    every_slot_is_free_once(&mut world);
}

/// A file held by name is known to the kernel's lookup, and retired after its release.
#[test]
fn a_held_file_is_known_until_it_is_given_back() {
    let mut world = Fixture::new();
    std::fs::create_dir_all(world.path("d/e")).unwrap();
    std::fs::write(world.path("d/e/f"), "four").unwrap();
    std::os::unix::fs::symlink("d", world.path("l")).unwrap();
    let held = world.namespace.open_ahead("d/e/f".as_ref()).unwrap();
    assert_eq!((held.stat.st_size, held.object.source().stat().unwrap().st_size), (4, 4));
    assert_eq!(
        (world.nlookup(held.nodeid), world.namespace.inodes_known()),
        (1, 2),
        "its directories are not held"
    );
    let opened = world.ask(|ns, op| ns.open(op, held.nodeid, libc::O_RDONLY as u32)).unwrap();
    world.namespace.release(opened.fh);
    world.namespace.forget(held.nodeid, 1);
    assert_eq!(world.namespace.inodes_known(), 1);
    for path in ["d/e", "d/e/none", "none/f", "l/e/f", "d/e/f/g"] {
        assert!(world.namespace.open_ahead(path.as_ref()).is_err(), "{path}");
        assert_eq!(world.namespace.inodes_known(), 1, "{path}");
    }
    every_slot_is_free_once(&mut world);
}

/// A daemon is killed after an inode left the table and before its descriptor is closed. No record names the
/// descriptor: it is an orphan.
#[test]
fn retired_inode_is_named_by_no_record() {
    let mut world = Fixture::new();
    std::fs::write(world.path("a"), "a").unwrap();
    let a = world.ask(|ns, op| ns.lookup(op, ROOT, name("a"))).unwrap().attr.ino;
    let held = world.namespace.inode(a).unwrap();
    world.namespace.forget(a, 1);
    assert!(!descriptors_named(world.region, LAYOUT).unwrap().contains(&held.raw_fd()));
    world.kill();
    assert!(held.stat().is_ok(), "the recovery left it open: the next daemon closes orphans");
    world.ask(|ns, op| ns.lookup(op, ROOT, name("a"))).unwrap();
    assert_eq!(world.nlookup(a), 1);
}

/// Fills the table to the last slot: each slot is taken once.
fn every_slot_is_free_once<C: PageCache>(world: &mut Fixture<C>) {
    for i in 0..LAYOUT.inodes_max {
        std::fs::write(world.path(&format!("fill{i}")), b"").unwrap();
    }
    let free = LAYOUT.inodes_max as usize - world.namespace.inodes_known();
    let mut known = Vec::new();
    for i in 0..LAYOUT.inodes_max {
        match world.ask(|ns, op| ns.lookup(op, ROOT, name(&format!("fill{i}")))) {
            Ok(entry) => known.push(entry.attr.ino),
            Err(error) => assert_eq!(error.errno(), libc::ENFILE),
        }
    }
    assert_eq!(known.len(), free);
    known.into_iter().for_each(|ino| world.namespace.forget(ino, 1));
}

const FILES: usize = 8;
const THREADS: usize = 4;

/// A page cache over memory files that survive a killed daemon.
trait Mortal: PageCache + Sized {
    /// The parts of the first daemon's cache that its successor gets.
    type Left;
    fn first() -> (Arc<Self>, Self::Left);
    fn next(left: &Self::Left) -> Arc<Self>;
    fn recover_pages(&self) {}
}

impl Mortal for Direct {
    type Left = ();
    fn first() -> (Arc<Self>, ()) {
        (Arc::new(Direct), ())
    }
    fn next((): &()) -> Arc<Self> {
        Arc::new(Direct)
    }
}

impl Mortal for Engine {
    type Left = Arc<SegmentHandles>;
    fn first() -> (Arc<Self>, Self::Left) {
        let handles = Arc::new(SegmentHandles::create(&engine_config()).unwrap());
        (Self::next(&handles), handles)
    }
    fn next(handles: &Self::Left) -> Arc<Self> {
        let io = Arc::new(BlockingIo::default());
        Engine::start(engine_config(), handles.clone(), Arc::new(SystemClock), io).unwrap()
    }
    fn recover_pages(&self) {
        Engine::recover_pages(self);
    }
}

fn engine_config() -> EngineConfig {
    EngineConfig { memory_bytes: 16 << 20, ..EngineConfig::default() }
}

/// The kernel's part: references and handles of one thread's programs.
struct Held<C: PageCache> {
    references: [u64; FILES],
    handles: Vec<(usize, u64)>,
    /// Inodes that lost their last reference by this thread. The second half of FORGET is still to do.
    begun: Vec<Arc<Inode<C::Object>>>,
}

impl<C: PageCache> Held<C> {
    fn new() -> Self {
        Self { references: [0; FILES], handles: Vec::new(), begun: Vec::new() }
    }
}

struct Model<C: Mortal> {
    world: Fixture<C>,
    left: C::Left,
    inos: [u64; FILES],
    unique: AtomicU64,
    /// References to each file by all threads.
    references: [AtomicI64; FILES],
}

fn content(file: usize) -> [u8; 5000] {
    [b'a' + file as u8; 5000]
}

impl<C: Mortal> Model<C> {
    fn new() -> Self {
        let (cache, left) = C::first();
        let world = Fixture::over(cache);
        let mut inos = [0; FILES];
        for (file, ino) in inos.iter_mut().enumerate() {
            let path = world.path(&format!("f{file}"));
            std::fs::write(&path, content(file)).unwrap();
            *ino = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).unwrap());
        }
        let references = std::array::from_fn(|_| AtomicI64::new(0));
        Self { world, left, inos, unique: AtomicU64::new(2), references }
    }

    fn caller(&self) -> Caller {
        caller(self.unique.fetch_add(2, Ordering::Relaxed))
    }

    /// Operations of one thread on a file.
    fn step(&self, random: &mut Rng, held: &mut Held<C>) {
        let (ns, file) = (&self.world.namespace, random.index(FILES));
        match random.below(16) {
            0..=3 => self.look_up(file, held),
            4..=9 => self.forget(random, held),
            10 | 11 if held.references[file] > 0 && held.handles.len() < 2 => {
                let op = ns.begin(self.caller());
                let access = [libc::O_RDONLY, libc::O_RDWR][random.index(2)];
                held.handles.push((file, ns.open(&op, self.inos[file], access as u32).unwrap().fh));
            }
            12 | 13 if !held.handles.is_empty() => {
                let (file, fh) = held.handles.swap_remove(random.index(held.handles.len()));
                self.use_handle(file, fh, random);
                ns.release(fh);
            }
            14 if random.below(4) == 0 => drop(ns.sweep(random.below(2) == 0)),
            14 => self.finish(held, random),
            // An inode that other threads, or none, refer to: as the check of another file's name does.
            _ => {
                let known = ns.known_at(&ns.inode(ROOT).unwrap(), name(&format!("f{file}")));
                known.iter().for_each(|inode| ns.links_changed(inode));
            }
        }
    }

    /// FORGET of a file that this thread refers to, mostly with all its references.
    fn forget(&self, random: &mut Rng, held: &mut Held<C>) {
        // An open file keeps a reference, as in the kernel.
        let spare = |file: usize| {
            held.references[file] - u64::from(held.handles.iter().any(|&(open, _)| open == file))
        };
        let spare: Vec<(usize, u64)> =
            (0..FILES).filter(|&file| held.references[file] > 0).map(|file| (file, spare(file))).collect();
        if spare.is_empty() {
            return;
        }
        let (file, spare) = *random.pick(&spare);
        let n = if random.below(4) == 0 { spare.min(1) } else { spare };
        held.references[file] -= n;
        self.references[file].fetch_sub(n as i64, Ordering::Relaxed);
        held.begun.extend(self.world.namespace.inodes.release(self.inos[file], n));
        // Each waiting inode has a slot.
        if random.below(2) == 0 || held.begun.len() > 4 {
            self.finish(held, random);
        }
    }

    /// The second half of a FORGET. Any number of another thread's requests may come before it.
    fn finish(&self, held: &mut Held<C>, random: &mut Rng) {
        if !held.begun.is_empty() {
            let inode = held.begun.swap_remove(random.index(held.begun.len()));
            self.world.namespace.retire_if_unused(&inode);
        }
    }

    fn look_up(&self, file: usize, held: &mut Held<C>) {
        let ns = &self.world.namespace;
        let mut op = ns.begin(self.caller());
        let entry = ns.lookup(&mut op, ROOT, name(&format!("f{file}"))).unwrap();
        assert_eq!((entry.attr.ino, entry.attr.size), (self.inos[file], 5000));
        held.references[file] += 1;
        self.references[file].fetch_add(1, Ordering::Relaxed);
    }

    /// Checks that the content is the file's own: a descriptor under a wrong number would read another
    /// file's.
    fn use_handle(&self, file: usize, fh: u64, random: &mut Rng) {
        let (ns, mut buf) = (&self.world.namespace, [0; 8192]);
        assert_eq!(ns.read(fh, 0, &mut buf, None).unwrap(), 5000);
        assert!(buf[..5000] == content(file), "file {file} reads {:?}", char::from(buf[0]));
        if ns.handles.get(fh).unwrap().file().unwrap().writes() && random.below(4) == 0 {
            let at = random.below(4900);
            ns.write(self.inos[file], fh, at, &content(file)[..100], WriteKind::default()).unwrap();
        }
    }

    /// Without requests under way, tables, references and descriptors agree.
    fn check(&self, held: &[Held<C>]) {
        let ns = &self.world.namespace;
        let mut owner: HashMap<RawFd, u64> = HashMap::new();
        for inode in ns.inodes.all() {
            assert!(inode.stat().is_ok_and(|stat| inode.nodeid == ROOT || stat.st_ino == inode.nodeid));
            assert!(owner.insert(inode.raw_fd(), inode.nodeid).is_none());
        }
        for (file, &ino) in self.inos.iter().enumerate() {
            let expected = self.references[file].load(Ordering::Relaxed) as u64;
            assert_eq!(expected, held.iter().map(|held| held.references[file]).sum::<u64>());
            assert_eq!(ns.inode(ino).map_or(0, |inode| inode.nlookup()), expected, "file {file}");
        }
        let (open, named) = (self.descriptors(), descriptors_named(self.world.region, LAYOUT).unwrap());
        assert!(named.iter().all(|fd| open.contains_key(fd)), "{named:?} {open:?}");
        let orphans = open.iter().filter(|(fd, is_path)| **is_path && !named.contains(fd)).count();
        assert_eq!(orphans, 0, "descriptors of inodes without an owner");
    }

    /// Descriptors of this process open in the source. True: with O_PATH, so an inode's.
    fn descriptors(&self) -> HashMap<RawFd, bool> {
        let dir = self.world.dir.path().canonicalize().unwrap();
        let mut found = HashMap::new();
        for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
            if !std::fs::read_link(entry.path()).is_ok_and(|to| to.starts_with(&dir)) {
                continue;
            }
            let fd = entry.file_name().to_str().unwrap().parse().unwrap();
            // SAFETY: the descriptor is only queried.
            let flags = rustix::fs::fcntl_getfl(unsafe { BorrowedFd::borrow_raw(fd) });
            found.insert(fd, flags.is_ok_and(|flags| flags.contains(OFlags::PATH)));
        }
        found
    }

    /// Kills the daemon. A successor recovers and closes descriptors that no record names.
    fn kill(&mut self) {
        let named = descriptors_named(self.world.region, LAYOUT).unwrap();
        let orphans: Vec<RawFd> = self.descriptors().into_keys().filter(|fd| !named.contains(fd)).collect();
        let cache = C::next(&self.left);
        let successor = Namespace::recover(cache.clone(), self.world.region, config()).unwrap();
        cache.recover_pages();
        std::mem::forget(std::mem::replace(&mut self.world.namespace, successor));
        std::mem::forget(std::mem::replace(&mut self.world.cache, cache));
        self.world.namespace.finish_recovery();
        // SAFETY: their owner was forgotten just before and never runs again.
        orphans.into_iter().for_each(|fd| drop(unsafe { OwnedFd::from_raw_fd(fd) }));
    }
}

/// Runs all threads at once, `rounds` times, with a check after each and sometimes a kill. At the end nothing
/// is in use.
fn run_model<C: Mortal>(seed: u64, rounds: usize, steps: usize)
where
    C::Left: Sync,
    C::Object: Sync,
{
    let mut model = Model::<C>::new();
    let mut held: Vec<Held<C>> = (0..THREADS).map(|_| Held::new()).collect();
    for round in 0..rounds {
        std::thread::scope(|scope| {
            for (thread, held) in held.iter_mut().enumerate() {
                let model = &model;
                let mut random = Rng::new(seed + (round * THREADS + thread) as u64 * 7919 + 1);
                scope.spawn(move || {
                    (0..steps).for_each(|_| model.step(&mut random, held));
                    while !held.begun.is_empty() {
                        model.finish(held, &mut random);
                    }
                });
            }
        });
        model.check(&held);
        if round % 3 == 2 {
            model.kill();
            model.check(&held);
        }
    }
    for held in &held {
        held.handles.iter().for_each(|&(_, fh)| model.world.namespace.release(fh));
        for (file, &n) in held.references.iter().enumerate().filter(|(_, n)| **n > 0) {
            model.world.namespace.forget(model.inos[file], n);
        }
    }
    while model.world.namespace.sweep(true) {}
    let world = &mut model.world;
    assert_eq!((world.namespace.inodes_known(), world.namespace.pressure.objects()), (1, 0));
    every_slot_is_free_once(world);
    for file in 0..FILES {
        let path: PathBuf = world.path(&format!("f{file}"));
        assert!(std::fs::read(path).unwrap() == content(file), "file {file} in the source");
    }
}

#[test]
fn slots_agree_with_the_model_without_a_cache() {
    run_model::<Direct>(seed("fs-lives"), 12, 4000);
}

#[test]
fn slots_agree_with_the_model_behind_an_engine() {
    run_model::<Engine>(seed("fs-lives"), 12, 400);
}
