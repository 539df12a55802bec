//! Growing files: the target answers their fsyncs, too. Power cuts and kills of the daemon hit new, growing
//! and truncated files.

use super::*;
use crate::service::flusher;
use std::os::unix::fs::PermissionsExt;

/// Unit of writes and sizes, less than a page: some writes cover a part, and the last page is rarely whole.
const BLOCK: usize = 1024;
const BLOCKS: usize = 40;

fn block(version: u32) -> Vec<u8> {
    version.to_le_bytes().repeat(BLOCK / 4)
}

struct File {
    /// Size in blocks, and the possible sizes after a power cut.
    size: usize,
    sizes: BTreeSet<usize>,
    /// Versions by block. 0: zeros.
    now: Vec<u32>,
    may_be: Vec<Versions>,
    /// An fsync was answered.
    acknowledged: bool,
}

impl File {
    fn new() -> File {
        let may_be = vec![Versions::from([0]); BLOCKS];
        File { size: 0, sizes: [0].into(), now: vec![0; BLOCKS], may_be, acknowledged: false }
    }
    fn acknowledge(&mut self) {
        self.acknowledged = true;
        self.sizes = [self.size].into();
        self.may_be = self.now.iter().map(|now| [*now].into()).collect();
    }
}

struct Growing {
    world: Fixture,
    files: Vec<File>,
    next: u32,
    /// Deleted files, kept open so that their inode numbers are not reused.
    deleted: Vec<Arc<std::fs::File>>,
}

fn growing_with(regions: u32, adjust: impl FnOnce(&mut EngineConfig)) -> Growing {
    let mut world = Fixture::with(regions, |config| {
        config.tier_fsync_min = 1;
        adjust(config);
    });
    world.root = Some(std::fs::File::open("/var/tmp").unwrap());
    world.set_root();
    world.io.loses_sizes.store(true, Ordering::Relaxed);
    let mut growing = Growing { world, files: Vec::new(), next: 1, deleted: Vec::new() };
    for file in 0..FILES {
        growing.files.push(File::new());
        growing.make_anew(file);
    }
    growing
}

fn growing(regions: u32) -> Growing {
    growing_with(regions, |_| {})
}

impl Growing {
    /// Deletes a file, and puts a new one in its place.
    fn make_anew(&mut self, file: usize) {
        let id = self.world.objects[file].id();
        self.world.engine.discard_object(id);
        self.world.engine.forget_object(id).unwrap();
        self.deleted.push(self.world.io.replace(file, volatile::new_file()));
        self.files[file] = File::new();
        self.world.publish();
    }
    fn write(&mut self, file: usize, at: usize, blocks: usize) {
        let end = (at + blocks).min(BLOCKS);
        let data: Vec<u8> = (at..end).flat_map(|at| block(self.next + at as u32)).collect();
        self.world.engine.write(&self.world.objects[file], (at * BLOCK) as u64, &data).unwrap();
        let of = &mut self.files[file];
        for at in at..end {
            of.now[at] = self.next + at as u32;
            of.may_be[at].insert(of.now[at]);
        }
        if end > of.size {
            of.size = end;
            of.sizes.insert(end);
        }
        self.next += BLOCKS as u32;
    }
    fn append(&mut self, file: usize, blocks: usize) {
        let size = self.files[file].size;
        self.write(file, size, blocks);
    }
    fn sync(&mut self, file: usize, data_only: bool) -> io::Result<()> {
        let o = &self.world.objects[file];
        let before = o.dirty_pages();
        self.world.engine.fsync(o, data_only, &o.error_cursor())?;
        self.world.target_fsyncs += u64::from(before > 0 && o.dirty_pages() > 0);
        self.files[file].acknowledge();
        Ok(())
    }
    fn fsync(&mut self, file: usize) {
        self.sync(file, false).unwrap();
    }
    fn cut(&mut self, file: usize, size: usize) {
        self.world.engine.truncate(&self.world.objects[file], (size * BLOCK) as u64).unwrap();
        let of = &mut self.files[file];
        if size >= of.size {
            of.sizes.insert(size);
        } else {
            // The source of these tests truncates durably.
            of.sizes = [size].into();
            of.now[size..].fill(0);
            of.may_be[size..].fill([0].into());
        }
        of.size = size;
    }
    fn write_back(&self, file: usize) {
        self.world.engine.flush(&self.world.objects[file], 0..u64::MAX).unwrap();
    }
    fn put_ahead(&self, file: usize) {
        put_ahead(&self.world.engine.cx, &self.world.objects[file]);
    }
    /// Compares the content that programs see.
    fn check(&self, what: &str) {
        for (file, (of, o)) in self.files.iter().zip(&self.world.objects).enumerate() {
            assert_eq!(o.size(), (of.size * BLOCK) as u64);
            let mut buf = vec![0; of.size * BLOCK];
            self.world.engine.read(o, 0, &mut buf, AccessPath::Preload).unwrap();
            for (at, buf) in buf.chunks(BLOCK).enumerate() {
                let (version, now) = (u32::from_le_bytes(buf[..4].try_into().unwrap()), of.now[at]);
                assert!(buf == block(now), "{what}: file {file} block {at} is {version}, not {now}");
            }
        }
        assert_eq!(self.world.engine.check(), Vec::<String>::new(), "{what}");
    }
    /// Checks that each block of the source is an expected version, and takes it as the new state. False: a
    /// block is a mix of two writes, because it was under write.
    fn look(&mut self, what: &str) -> bool {
        let mut whole = true;
        for (file, of) in self.files.iter_mut().enumerate() {
            let source = self.world.io.file(file);
            let len = source.metadata().unwrap().len() as usize;
            let sizes = &of.sizes;
            assert!(
                len.is_multiple_of(BLOCK) && sizes.contains(&(len / BLOCK)),
                "{what}: file {file} has {len} bytes, not one of {sizes:?} KiB"
            );
            of.size = len / BLOCK;
            of.sizes = [of.size].into();
            let mut buf = vec![0; BLOCKS * BLOCK];
            source.read_exact_at(&mut buf[..len], 0).unwrap();
            for (at, buf) in buf.chunks(BLOCK).enumerate() {
                let words: Versions =
                    buf.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
                let may_be = &of.may_be[at];
                assert!(
                    at >= of.size || words.is_subset(may_be),
                    "{what}: file {file} block {at} is {words:?}, not of {may_be:?}"
                );
                whole &= words.len() == 1;
                of.now[at] = *words.first().unwrap();
                of.may_be[at] = [of.now[at]].into();
            }
        }
        self.world.began = Instant::now();
        whole
    }
    fn power_cut(&mut self, rng: &mut Rng) -> (u64, Vec<Conflict>) {
        for (file, of) in self.files.iter().enumerate() {
            assert!(!of.acknowledged || self.world.io.is_there(file), "file {file} is lost");
        }
        self.world.power_cut(rng)
    }
    /// A power cut without a conflict or a wrong block. Returns the pages written back.
    #[track_caller]
    fn outlives_cut(&mut self, seed: u64) -> u64 {
        let (written, conflicts) = self.power_cut(&mut Rng::new(seed));
        assert_eq!(conflicts, []);
        self.look("after the cut");
        written
    }
    /// Kills the daemon. Its successor knows the undestaged pages of all live files. Those of deleted files
    /// may be found, or not.
    fn kill(&mut self) {
        self.world.next_terraced();
        self.world.set_root();
        let undestaged = self.world.engine.undestaged().unwrap();
        let left: Vec<u64> = undestaged.iter().map(|undestaged| undestaged.file).collect();
        assert!(self.world.objects.iter().all(|o| !left.contains(&o.id())), "{undestaged:?}");
    }
    fn step(&mut self, rng: &mut Rng) {
        let (file, at, blocks) = (rng.index(FILES), rng.index(BLOCKS), 1 + rng.index(9));
        match rng.below(100) {
            0..25 if self.files[file].size < BLOCKS => self.append(file, blocks),
            0..40 => self.write(file, at, blocks),
            40..68 => self.sync(file, rng.chance(50)).unwrap(),
            68..74 => self.put_ahead(file),
            74..79 => self.write_back(file),
            79..83 => self.cut(file, at),
            83..85 => {
                // As a rename does.
                self.world.engine.change_metadata(&self.world.objects[file]);
                let mode = std::fs::Permissions::from_mode(0o600 | rng.below(8) as u32);
                self.world.io.file(file).set_permissions(mode).unwrap();
            }
            85..87 => self.make_anew(file),
            87..89 => {
                self.world.engine.flush_all(true).unwrap();
                self.files.iter_mut().for_each(File::acknowledge);
            }
            89..92 => destage_due(&self.world.engine.cx, &self.world.engine.cx.devices.get(0).unwrap()),
            92..94 => {
                self.world.engine.forget_object(self.world.objects[file].id()).unwrap();
                self.world.publish();
            }
            94..96 => self.kill(),
            _ => self.check("a look"),
        }
    }
}

fn lives(seed: u64, regions: u32) -> (u64, u64) {
    let rng = &mut Rng::new(seed);
    let mut growing = growing_with(regions, |config| spread::often(config, seed));
    let mut written = 0;
    for life in 0..4 {
        for _ in 0..rng.below(60) {
            growing.step(rng);
        }
        growing.check(&format!("seed {seed} life {life}"));
        let (pages, conflicts) = growing.power_cut(rng);
        if growing.world.began.elapsed() > LIFE_MAX {
            break;
        }
        assert_eq!(conflicts, [], "seed {seed} life {life}");
        written += pages;
        if !growing.look(&format!("seed {seed} life {life}")) {
            break;
        }
        growing.check(&format!("seed {seed} after life {life}"));
    }
    (written, growing.world.target_fsyncs)
}

#[test]
fn power_cuts_take_nothing_of_files_that_grow() {
    let first = seed("power_cuts_take_nothing_of_files_that_grow");
    let rounds = if std::env::var_os("TERRACE_SOAK").is_some() { 400 } else { 12 };
    let (mut written, mut target_fsyncs) = (0, 0);
    for round in 0..rounds {
        let (pages, answered) = lives(first + round, *Rng::new(first + round).pick(&[5, 8, 40]));
        (written, target_fsyncs) = (written + pages, target_fsyncs + answered);
    }
    assert!(
        written > rounds / 2 && target_fsyncs > 4 * rounds,
        "{written} pages written, {target_fsyncs} fsyncs of the target"
    );
}

/// First fsync of a new file, and each after growth: the source commits the size alone.
#[test]
fn fsync_of_a_file_that_grows_writes_nothing_to_the_source() {
    let mut growing = growing(8);
    for (n, blocks) in [9, 1, 6, 3].into_iter().enumerate() {
        growing.append(0, blocks);
        growing.fsync(0);
        assert_eq!(growing.world.target_fsyncs, n as u64 + 1);
    }
    assert_eq!(growing.world.io.written.load(Ordering::Relaxed), 0);
    assert_eq!(growing.outlives_cut(1), 5);
    assert_eq!(growing.files[0].size, 19);
}

/// The source has a newer version of a page than the target, and has made it durable.
#[test]
fn page_in_the_source_is_not_replayed_over_a_new_base_version() {
    let mut growing = growing(8);
    growing.append(0, 8);
    growing.fsync(0);
    growing.write(0, 0, 8);
    growing.write_back(0);
    growing.append(0, 4);
    growing.fsync(0);
    assert_eq!((growing.world.target_fsyncs, growing.world.dirty(0)), (1, 0), "the source has answered");
    growing.outlives_cut(2);
}

/// A file grows after its fsync; a power cut may undo that or not.
#[test]
fn growth_beyond_a_base_is_no_conflict() {
    for seed in 0..8 {
        let mut growing = growing(8);
        growing.append(0, 5);
        growing.fsync(0);
        growing.append(0, 5);
        growing.put_ahead(0);
        growing.append(0, 5);
        let written = growing.outlives_cut(seed);
        assert!(written >= 2, "{written}");
    }
}

/// All pages went to the target ahead of the fsync, which only records the new base version.
#[test]
fn pages_that_went_ahead_have_the_base_of_their_fsync() {
    let mut growing = growing(8);
    growing.append(0, 4);
    growing.fsync(0);
    growing.append(0, 6);
    growing.put_ahead(0);
    assert_eq!(growing.world.objects[0].dirty.lock().undestaged.len(), 3);
    growing.fsync(0);
    assert_eq!(growing.world.target_fsyncs, 2);
    growing.world.engine.halt();
    // All processes die. With an older base version, the changes would be of unknown origin.
    assert_eq!(growing.world.restart(Some(1)), (3, vec![]));
    growing.look("after the death of all");
}

/// The file grows just after the source has committed its size: the next fsync commits the new size.
#[test]
fn growth_during_a_commit_is_not_in_the_base_version() {
    for seed in 0..4 {
        let mut growing = growing(8);
        growing.append(0, 4);
        let (engine, o) = (growing.world.engine.clone(), growing.world.objects[0].clone());
        let data = block(77);
        let write = move || {
            engine.write(&o, 4 * BLOCK as u64, &data).unwrap();
        };
        *growing.world.io.meanwhile.lock() = Some(Box::new(write));
        growing.fsync(0);
        (growing.files[0].size, growing.files[0].now[4]) = (5, 77);
        growing.fsync(0);
        growing.outlives_cut(seed);
    }
}

/// Pages written ahead are durable only after a flush of the target.
#[test]
fn fsync_after_all_went_ahead_flushes() {
    for seed in 0..4 {
        let mut growing = growing(8);
        growing.append(0, 8);
        growing.fsync(0);
        growing.write(0, 0, 8);
        growing.put_ahead(0);
        growing.fsync(0);
        assert_eq!(growing.outlives_cut(seed), 2);
    }
}

/// The source cannot make the size durable, and reports that once: the fsync fails.
#[test]
fn failed_commit_of_the_source_is_reported() {
    let mut growing = growing(8);
    for times in 1..=2 {
        growing.append(0, 4);
        growing.world.io.failing_syncs.store(true, Ordering::Relaxed);
        assert_eq!(growing.sync(0, false).unwrap_err().raw_os_error(), Some(libc::EIO));
        growing.check("after the failure");
        growing.fsync(0);
        assert_eq!(growing.world.target_fsyncs, times);
    }
    growing.outlives_cut(4);
}

/// A source that refuses writes is tried at each fsync, so that each fsync reports the error.
#[test]
fn failing_writeback_is_reported_by_each_fsync() {
    let mut growing = growing(8);
    growing.append(0, 4);
    growing.world.io.failing.store(true, Ordering::Relaxed);
    let flushed = growing.world.engine.flush(&growing.world.objects[0], 0..u64::MAX);
    assert!(flushed.is_err());
    for _ in 0..2 {
        assert_eq!(growing.sync(0, false).unwrap_err().raw_os_error(), Some(libc::EIO));
    }
    growing.world.io.failing.store(false, Ordering::Relaxed);
    growing.fsync(0);
    assert_eq!((growing.world.target_fsyncs, growing.world.dirty(0)), (0, 0), "the source has answered");
}

/// A killed terraced may have written pages to the source, with older versions on the target.
#[test]
fn next_terraced_destages_before_a_new_base_version() {
    // Otherwise the successor writes back the dirty pages at once.
    let mut growing = growing_with(8, |config| config.dirty_expire = Duration::from_secs(1 << 32));
    growing.append(0, 8);
    growing.fsync(0);
    growing.write(0, 0, 8);
    // Direct I/O: the page is clean, and is not written again.
    writeback::write_back(&growing.world.engine.cx, &growing.world.objects[0], 0..PAGE as u64).unwrap();
    assert_eq!(growing.world.dirty(0), 1);
    growing.kill();
    growing.append(0, 4);
    growing.fsync(0);
    assert_eq!((growing.world.target_fsyncs, growing.world.dirty(0)), (1, 0), "the source has answered");
    growing.outlives_cut(2);
}

/// A target without room is not tried again at each write.
#[test]
fn full_target_gets_nothing_ahead() {
    let mut growing = growing(8);
    growing.append(0, 4);
    growing.fsync(0);
    let full = |of: &mut crate::state::device::Device| {
        let pages = of.log.region_pages();
        while of.log.reserve(1, pages, pages - 1).is_some() {}
    };
    on_target(&mut growing.world.engine.cx.state.lock(), 0, full);
    growing.append(0, 8);
    growing.put_ahead(0);
    assert!(growing.world.objects[0].burst.lock().must_destage);
    growing.fsync(0);
    assert_eq!((growing.world.target_fsyncs, growing.world.dirty(0)), (1, 0), "the source has answered");
}

/// The source has no space for missing pages: the fsync reports that, before any acknowledgement.
#[test]
fn full_source_is_reported_by_the_fsync() {
    for ahead in [false, true] {
        let mut growing = growing(8);
        growing.append(0, 4);
        growing.fsync(0);
        growing.world.io.full.store(true, Ordering::Relaxed);
        growing.append(0, 8);
        if ahead {
            growing.put_ahead(0);
        }
        assert_eq!(growing.sync(0, false).unwrap_err().raw_os_error(), Some(libc::ENOSPC), "ahead: {ahead}");
        growing.check("after the failure");
        growing.world.io.full.store(false, Ordering::Relaxed);
        growing.fsync(0);
        growing.outlives_cut(5);
    }
}

/// The source's clock is checked by a new change of the file: the last write may be long ago.
#[test]
fn grown_file_with_another_clock_is_the_sources() {
    for shift in [-10, 10] {
        let mut growing = growing(8);
        growing.append(0, 4);
        growing.world.clock.0.store(shift * 1_000_000_000, Ordering::Relaxed);
        growing.fsync(0);
        growing.append(0, 4);
        growing.fsync(0);
        assert_eq!((growing.world.target_fsyncs, growing.world.dirty(0)), (0, 0), "{shift}");
        growing.world.clock.0.store(0, Ordering::Relaxed);
        growing.append(0, 4);
        growing.fsync(0);
        assert_eq!(growing.world.target_fsyncs, 1, "the clock is right");
        growing.world.clock.0.store(shift * 1_000_000_000, Ordering::Relaxed);
        growing.append(0, 4);
        growing.fsync(0);
        assert_eq!(growing.world.target_fsyncs, 1, "{shift}: it is no longer");
    }
}

/// With few pages, the source writes them along with the commit of the size, which is needed anyway.
#[test]
fn small_appends_are_answered_by_the_source() {
    let mut growing = growing_with(8, |config| config.tier_fsync_min = 3);
    for _ in 0..5 {
        growing.append(0, 1);
        growing.fsync(0);
    }
    assert_eq!((growing.world.target_fsyncs, growing.world.dirty(0)), (0, 0));
    growing.append(0, 12);
    growing.fsync(0);
    // Beside many undestaged pages the target takes them: the source would have to write all of them.
    growing.append(0, 1);
    growing.fsync(0);
    assert_eq!(growing.world.target_fsyncs, 2);
}

/// The close of a file with undestaged pages starts no I/O: that would delay the next file's commit. It
/// follows after the burst.
#[test]
fn close_of_what_a_tier_has_does_not_hurry_the_source() {
    for has_undestaged in [true, false] {
        let growing = growing(40);
        let (engine, o) = (&growing.world.engine, &growing.world.objects[0]);
        engine.write(o, 0, &[7; 100 * PAGE]).unwrap();
        if has_undestaged {
            engine.fsync(o, false, &o.error_cursor()).unwrap();
            assert_eq!(engine.cx.state.lock().dirty.totals.undestaged, 100);
        }
        engine.flush(o, 0..u64::MAX).unwrap();
        assert_eq!(o.dirty_pages(), 0, "the source shows it");
        assert_eq!(growing.world.io.hurried.load(Ordering::Relaxed), !has_undestaged);
        let unstable = || engine.stats().writeback.unstable;
        flusher::stabilize_due(&engine.cx);
        assert_eq!(unstable(), 100);
        std::thread::sleep(Duration::from_millis(1100));
        flusher::stabilize_due(&engine.cx);
        assert_eq!(unstable(), if has_undestaged { 0 } else { 100 });
    }
}

/// Concurrent appends, writes ahead to the target and writebacks.
#[test]
fn appends_and_fsyncs_at_once_lose_nothing() {
    let rng = &mut Rng::new(seed("appends_and_fsyncs_at_once_lose_nothing"));
    for _ in 0..3 {
        let mut growing = growing_with(40, |config| spread::often(config, rng.next_u64()));
        let (engine, o) = (growing.world.engine.clone(), growing.world.objects[0].clone());
        let (ended, written, acked) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        let append = || {
            while !ended.load(Ordering::Relaxed) && written.load(Ordering::Relaxed) < 2000 {
                let at = written.load(Ordering::Relaxed);
                engine.write(&o, at * BLOCK as u64, &block(at as u32 + 1)).unwrap();
                written.store(at + 1, Ordering::Release);
                std::thread::sleep(Duration::from_micros(100));
            }
        };
        let sync = || {
            let cursor = o.error_cursor();
            while !ended.load(Ordering::Relaxed) {
                let before = written.load(Ordering::Acquire);
                engine.fsync(&o, before.is_multiple_of(2), &cursor).unwrap();
                acked.fetch_max(before, Ordering::Relaxed);
            }
        };
        std::thread::scope(|scope| {
            let threads = [scope.spawn(append), scope.spawn(sync), scope.spawn(sync)];
            let device = engine.cx.devices.get(0).unwrap();
            for _ in 0..60 {
                match rng.below(8) {
                    0 => engine.flush(&o, 0..u64::MAX).unwrap(),
                    1 => destage_due(&engine.cx, &device),
                    _ => put_ahead(&engine.cx, &o),
                }
                std::thread::sleep(Duration::from_millis(3));
            }
            ended.store(true, Ordering::Relaxed);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        let (began, acked) = (Instant::now(), acked.into_inner());
        let (_, conflicts) = growing.world.power_cut(rng);
        if began.elapsed() > LIFE_MAX {
            continue;
        }
        assert_eq!(conflicts, []);
        let file = growing.world.io.file(0);
        let len = file.metadata().unwrap().len();
        assert!(
            (acked..=written.into_inner()).contains(&(len / BLOCK as u64)),
            "{len} bytes, {acked} KiB acknowledged"
        );
        let mut buf = vec![0; len as usize];
        file.read_exact_at(&mut buf, 0).unwrap();
        for (at, buf) in buf.chunks(BLOCK).enumerate().take(acked as usize) {
            assert!(buf == block(at as u32 + 1), "block {at} of {acked}");
        }
    }
}
