//! Undestaged pages: fsync has made them durable on a tier only. They survive the death of all processes, and
//! `terrace recover` decides on files that have changed since.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use terrace_api::tiers::SERVING;

use crate::crashes::kill_all;
use crate::test_mount::{Outcome, TestMount, crash, terrace, text, told, wait_until};

const PAGE: usize = 4096;

/// Overwrites two pages of an open file, the second twice, with an fsync after each, then waits. The first
/// fsync goes to the source, which makes the file known there.
const WRITER: &str = "
import os, sys
f = os.open(sys.argv[1], os.O_RDWR)
for at, byte in (0, b'b'), (4096, b'c'), (4096, b'd'):
    os.pwrite(f, byte * 4096, at)
    os.fsync(f)
print('synced', flush=True)
sys.stdin.read()
";

/// Leaves an undestaged page of each of three files. Then deletes the first, renames another file over the
/// second, and truncates the third within that page.
const CHANGER: &str = "
import os, sys
os.chdir(sys.argv[1])
files = {name: os.open(name, os.O_RDWR) for name in 'urt'}
for f in files.values():
    for at, byte in (0, b'b'), (4096, b'd'):
        os.pwrite(f, byte * 4096, at)
        os.fsync(f)
print('undestaged', flush=True)
sys.stdin.readline()
os.unlink('u')
new = os.open('new', os.O_RDWR | os.O_CREAT)
os.pwrite(new, b'n' * 4096, 0)
os.fsync(new)
os.rename('new', 'r')
os.ftruncate(files['t'], 6000)
os.fsync(files['t'])
print('changed', flush=True)
sys.stdin.read()
";

/// Writes a new file with an fsync, renames it, extends it with another fsync, then waits. Its sizes are not
/// multiples of a page.
const GROWER: &str = "
import os, sys
os.chdir(sys.argv[1])
f = os.open('part', os.O_RDWR | os.O_CREAT | os.O_EXCL)
os.write(f, b'n' * 300_000)
os.fsync(f)
print('new', flush=True)
sys.stdin.readline()
os.rename('part', 'grown')
os.write(f, b'm' * 300_000)
os.fsync(f)
print('longer', flush=True)
sys.stdin.read()
";

struct Writer(Child);

impl Writer {
    /// A separate process: each child forked by another test closes copies of this process's descriptors,
    /// which writes back.
    fn start(test: &TestMount) -> Writer {
        let mut writer = Writer::of(WRITER, &test.mnt.join("f"));
        writer.says("synced");
        writer
    }
    fn of(program: &str, path: &Path) -> Writer {
        let mut python = Command::new("python3");
        python.args(["-c", program]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        Writer(python.spawn().unwrap())
    }
    fn says(&mut self, word: &str) {
        let mut line = vec![0; word.len() + 1];
        self.0.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
        assert_eq!(String::from_utf8_lossy(&line).trim_end(), word);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn content(test: &TestMount) -> String {
    let file = fs::read(test.src.join("f")).unwrap();
    file.chunks(PAGE).map(|page| char::from(page[PAGE - 1])).collect()
}

fn mount(test: &TestMount) -> Outcome {
    mount_with(test, &["--tier", &format!("{}:16MiB", text(&test.file("t.tier")))])
}

fn mount_with(test: &TestMount, more: &[&str]) -> Outcome {
    let config = test.file("undestaged.toml");
    // Only the test's own steps write undestaged pages to the source, even on a slow machine.
    fs::write(&config, "[dirty]\ndurable = \"tier\"\nexpire = \"24h\"\n").unwrap();
    test.mount(&[more, &["--config", text(&config)]].concat())
}

/// Mounts, and waits until the tier serves.
fn mount_scanned(test: &TestMount) {
    mount(test).fine();
    wait_until("the scan", || test.stat().cache.tiers.iter().any(|tier| tier.state == SERVING));
}

/// Kills all processes; programs see that the mount is dead.
fn kill_all_of(test: &TestMount, writer: Writer) {
    kill_all(test);
    drop(writer);
    wait_until("the kernel has noticed", || fs::read_dir(&test.mnt).is_err());
}

/// Kills all processes while a page is only on the tier.
fn die_with_undestaged_pages(test: &TestMount) {
    fs::write(test.src.join("f"), "a".repeat(4 * PAGE)).unwrap();
    mount_scanned(test);
    let writer = Writer::start(test);
    assert_eq!((content(test), test.stat().cache.writeback.owed_bytes), ("baaa".to_owned(), 4096));
    kill_all_of(test, writer);
}

fn recover(test: &TestMount, more: &[&str]) -> Outcome {
    told(terrace(["recover"]).arg(test.file("t.tier")).args(more))
}

#[test]
fn what_a_tier_has_acknowledged_outlives_the_death_of_all() {
    let Some(test) = TestMount::new() else { return };
    die_with_undestaged_pages(&test);
    assert_eq!(content(&test), "baaa");
    let drop = told(terrace(["tier", "drop", "--yes", text(&test.file("t.tier"))]));
    drop.refused(&["synced data that its source lacks", "terrace recover"]);
    let told = mount(&test);
    assert_eq!(told.code, Some(0), "{}", told.err);
    assert_eq!(content(&test), "bdaa");
    assert_eq!(fs::read(test.mnt.join("f")).unwrap()[PAGE], b'd');
    test.ask("umount", &[]).fine();
    assert_eq!(recover(&test, &[]).fine().out.matches("has all data").count(), 1);
    test.nothing_is_left();
}

#[test]
fn recover_decides_over_files_that_were_changed_since() {
    for (decision, becomes) in [("--write", "xdaa"), ("--discard", "xxaa")] {
        let Some(test) = TestMount::new() else { return };
        die_with_undestaged_pages(&test);
        let source = File::options().write(true).open(test.src.join("f")).unwrap();
        source.write_all_at("x".repeat(2 * PAGE).as_bytes(), 0).unwrap();
        assert_eq!(mount(&test).code, Some(0));
        assert_eq!((content(&test), test.stat().cache.writeback.conflict_bytes), ("xxaa".to_owned(), 4096));
        assert!(test.ask("stat", &[]).fine().out.contains("terrace recover"));
        recover(&test, &[decision]).refused(&["in use"]);
        test.ask("umount", &[]).fine();
        let shown = recover(&test, &["--show"]);
        assert_eq!((shown.code, shown.out.trim()), (Some(1), "4KiB  f"), "{}", shown.err);
        let done = recover(&test, &[decision]);
        assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
        assert_eq!(content(&test), becomes, "{decision}: {}", done.out);
        assert!(recover(&test, &[]).fine().out.contains("has all data"));
        test.nothing_is_left();
    }
}

/// Kills all processes; no other program could have changed the files before the next mount.
#[track_caller]
fn outlive_the_death_of_all(test: &TestMount, writer: Writer) {
    kill_all_of(test, writer);
    assert_eq!(mount(test).code, Some(0));
    assert_eq!(test.stat().cache.writeback.conflict_bytes, 0);
}

/// A new file, and one that has grown: the source has only their sizes.
#[test]
fn files_that_grow_outlive_the_death_of_all() {
    grow(GROWER);
    grow(&GROWER.replace("O_RDWR", "O_WRONLY"));
}

fn grow(grower: &str) {
    let Some(test) = TestMount::new() else { return };
    mount_scanned(&test);
    let mut writer = Writer::of(grower, &test.mnt);
    writer.says("new");
    assert!(fs::read(test.src.join("part")).unwrap() == vec![0; 300_000]);
    assert_eq!(test.stat().cache.writeback.owed_bytes, 300_000u64.next_multiple_of(PAGE as u64));
    writer.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    writer.says("longer");
    assert!(fs::read(test.src.join("grown")).unwrap() == vec![0; 600_000]);
    outlive_the_death_of_all(&test, writer);
    assert!(!test.src.join("part").exists());
    assert!(fs::read(test.src.join("grown")).unwrap() == [[b'n'; 300_000], [b'm'; 300_000]].concat());
    test.finish();
}

/// A new file is written through a write-only descriptor: none of it enters the mount's page cache. Later
/// reads load it there. Mapping and descriptor then see each following write, also after a kill of terraced.
/// Files that are open for reading and writing stay in the page cache.
#[test]
fn bursts_bypass_the_page_cache_of_the_mount() {
    const PAGES: usize = 300;
    let Some(test) = TestMount::new() else { return };
    mount(&test).fine();
    let both = File::options().read(true).write(true).create_new(true).open(test.mnt.join("both")).unwrap();
    let second = File::options().write(true).open(test.mnt.join("both")).unwrap();
    for (page, file) in [(0, &both), (1, &second)] {
        file.write_all_at(&[b'x'; PAGE], page * PAGE as u64).unwrap();
    }
    assert_eq!(Mapped::new(&both, 2 * PAGE).cached_pages(), 2);
    drop((both, second));
    let at = test.mnt.join("f");
    let writer = File::create(&at).unwrap();
    writer.write_all_at(&[b'a'; PAGES * PAGE], 0).unwrap();
    let reader = File::open(&at).unwrap();
    let map = Mapped::new(&reader, PAGES * PAGE);
    assert_eq!(map.cached_pages(), 0);
    assert!(map.bytes().iter().all(|&byte| byte == b'a'));
    assert_eq!(map.cached_pages(), PAGES);
    for round in 0..100 {
        if round == 50 {
            crash(test.processes().1, libc::SIGKILL);
        }
        let (from, byte) = (round * 11_003, b'b' + (round % 20) as u8);
        writer.write_all_at(&[byte; 5000], from as u64).unwrap();
        let mut read = [0; 5000];
        reader.read_exact_at(&mut read, from as u64).unwrap();
        assert!(read == [byte; 5000] && map.bytes()[from..from + 5000] == read, "round {round}");
    }
    drop((writer, reader, map));
    test.finish();
}

/// A mapping of a file, for reading.
struct Mapped(*mut std::ffi::c_void, usize);

impl Mapped {
    fn new(file: &File, bytes: usize) -> Mapped {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        // SAFETY: a new mapping.
        let at = unsafe { mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, file, 0) };
        Mapped(at.unwrap(), bytes)
    }
    /// The present content; no write happens during its use.
    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped in `new`, and the file is not truncated.
        unsafe { std::slice::from_raw_parts(self.0.cast(), self.1) }
    }
    fn cached_pages(&self) -> usize {
        let mut resident = vec![0u8; self.1.div_ceil(PAGE)];
        // SAFETY: the mapping of `new`, and one byte for each of its pages.
        assert_eq!(unsafe { libc::mincore(self.0, self.1, resident.as_mut_ptr()) }, 0);
        resident.iter().filter(|page| **page & 1 != 0).count()
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; no slice of `bytes` is left.
        unsafe { rustix::mm::munmap(self.0, self.1) }.unwrap();
    }
}

/// The next terraced takes over the undestaged pages and writes them back. After that, the death of all
/// restores nothing.
#[test]
fn killed_terraced_leaves_undestaged_pages_to_the_next() {
    let Some(test) = TestMount::new() else { return };
    fs::write(test.src.join("f"), "a".repeat(4 * PAGE)).unwrap();
    mount_scanned(&test);
    let writer = Writer::start(&test);
    crash(test.processes().1, libc::SIGKILL);
    assert_eq!(fs::read(test.mnt.join("f")).unwrap()[PAGE], b'd');
    test.ask("sync", &[]).fine();
    assert_eq!(content(&test), "bdaa");
    kill_all_of(&test, writer);
    let source = File::options().write(true).open(test.src.join("f")).unwrap();
    source.write_all_at("x".repeat(2 * PAGE).as_bytes(), 0).unwrap();
    assert_eq!(mount(&test).code, Some(0));
    assert_eq!((content(&test), test.stat().cache.writeback.conflict_bytes), ("xxaa".to_owned(), 0));
    test.finish();
}

/// Files with undestaged pages are deleted, replaced and truncated: after the death of all, the last change
/// holds.
#[test]
fn renames_and_resizes_outlive_undestaged_pages() {
    let Some(test) = TestMount::new() else { return };
    for name in ["u", "r", "t"] {
        fs::write(test.src.join(name), "a".repeat(4 * PAGE)).unwrap();
    }
    mount_scanned(&test);
    let mut writer = Writer::of(CHANGER, &test.mnt);
    writer.says("undestaged");
    assert_eq!(test.stat().cache.writeback.owed_bytes, 3 * PAGE as u64);
    writer.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    writer.says("changed");
    outlive_the_death_of_all(&test, writer);
    assert!(!test.src.join("u").exists());
    assert!(fs::read(test.src.join("r")).unwrap() == [b'n'; PAGE]);
    assert!(
        fs::read(test.src.join("t")).unwrap() == [[b'b'; PAGE].as_slice(), &[b'd'; 6000 - PAGE]].concat()
    );
    test.finish();
}

/// A tier that may have undestaged pages is more than a cache: the mount is refused without it.
#[test]
fn mount_is_refused_without_a_tier_with_undestaged_pages() {
    let Some(test) = TestMount::new() else { return };
    let other = TestMount::dirs();
    let cure = "set [dirty] durable = \"source\"";
    mount_with(&test, &[]).refused(&["no tier on a device of this machine", "--tier"]);
    let path = test.file("t.tier");
    let tier = text(&path);
    mount_with(&test, &["--tier", tier]).refused(&["the tier does not exist", cure]);
    die_with_undestaged_pages(&test);
    // Both superblocks are damaged.
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mut superblocks = vec![0; 2 * PAGE];
    file.read_exact_at(&mut superblocks, 0).unwrap();
    let damaged: Vec<u8> =
        superblocks.iter().enumerate().map(|(i, b)| b ^ u8::from(i % PAGE == 100)).collect();
    file.write_all_at(&damaged, 0).unwrap();
    let told = mount(&test);
    assert!(
        told.code == Some(2) && told.err.contains("both superblocks of the tier are damaged"),
        "{}",
        told.err
    );
    assert!(told.err.contains(cure), "{}", told.err);
    file.write_all_at(&superblocks, 0).unwrap();
    assert_eq!(mount(&test).code, Some(0));
    assert_eq!(content(&test), "bdaa");
    // The tier is in use.
    mount_with(&other, &["--tier", tier]).refused(&["the tier is in use by the mount of", cure]);
    // A tier file created for a refused start is deleted.
    let made = other.file("made.tier");
    mount_with(&other, &["--tier", &format!("{}:16MiB", text(&made)), "--tier", tier]).refused(&[cure]);
    assert!(!made.exists());
    test.finish();
    other.nothing_is_left();
}
