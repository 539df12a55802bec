//! All faults of targets, and all usable targets.

use super::*;
use crate::superblock::COPIES_AT;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::Command;
use terrace_sync::{Mutex, MutexGuard};
use terrace_testkit::is_root;

const MIB: u64 = 1 << 20;

/// A process between fork and exec holds all descriptors, and so all locks of targets, for a moment. So tests
/// that open targets and tests that start processes take turns.
static TURN: Mutex<()> = Mutex::new(());

/// A source and a place for targets, on a file system with direct I/O.
struct Fixture {
    dir: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Fixture {
    fn new() -> Fixture {
        let turn = TURN.lock();
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::create_dir(dir.path().join("src")).unwrap();
        Fixture { dir, _turn: turn }
    }
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
    fn request(&self, name: &str, size: Option<u64>) -> TargetRequest {
        TargetRequest {
            path: self.path(name),
            size,
            source: self.path("src"),
            memory_bytes: 64 * MIB,
            format: false,
            others: Others::default(),
        }
    }
    fn open(&self, size: Option<u64>) -> Result<Target, TargetError> {
        open(&self.request("t", size))
    }
    /// Opens with `--format-tier`.
    fn format(&self, size: Option<u64>) -> Target {
        open(&TargetRequest { format: true, ..self.request("t", size) }).unwrap()
    }
    fn tier(&self) -> fs::File {
        fs::File::options().read(true).write(true).open(self.path("t")).unwrap()
    }
}

#[track_caller]
fn refused(target: Result<Target, TargetError>, parts: &[&str]) {
    let line = target.unwrap_err().to_string();
    for part in parts {
        assert!(line.contains(part), "`{part}` is not in: {line}");
    }
}

#[test]
fn new_file_is_made_private_and_allocated() {
    let stage = Fixture::new();
    let target = stage.open(Some(32 * MIB)).unwrap();
    assert!(target.fresh && target.superblock.clean);
    assert_eq!(target.superblock.geometry, Geometry::plan(32 * MIB).unwrap());
    let meta = stage.tier().metadata().unwrap();
    let allocated = std::os::unix::fs::MetadataExt::blocks(&meta) * 512;
    assert_eq!((meta.len(), meta.permissions().mode() & 0o777), (32 * MIB, 0o600));
    assert!(allocated >= 32 * MIB, "{allocated}");
    let flags = rustix::fs::fcntl_getfl(&target.fd).unwrap();
    assert!(flags.contains(OFlags::DIRECT | OFlags::RDWR));
    assert!(rustix::io::fcntl_getfd(&target.fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
}

#[test]
fn second_open_finds_the_tier_of_the_first() {
    let stage = Fixture::new();
    let first = stage.open(Some(32 * MIB)).unwrap().superblock;
    for size in [None, Some(32 * MIB)] {
        let again = stage.open(size).unwrap();
        assert!(!again.fresh);
        assert_eq!(again.superblock, first);
    }
    // `--format-tier` permits to erase. It does not erase a usable tier.
    let again = stage.format(None);
    assert!(!again.fresh && again.superblock == first);
}

#[test]
fn empty_file_is_used_without_leave() {
    let stage = Fixture::new();
    fs::File::create(stage.path("t")).unwrap().set_len(32 * MIB).unwrap();
    assert!(stage.open(None).unwrap().fresh);
    fs::File::create(stage.path("t")).unwrap();
    assert!(stage.open(Some(16 * MIB)).unwrap().fresh);
}

#[test]
fn foreign_content_is_refused_and_kept() {
    let stage = Fixture::new();
    for at in [0, 1080, 64 << 10, MIB - 1] {
        let file = fs::File::create(stage.path("t")).and(Ok(stage.tier())).unwrap();
        file.set_len(32 * MIB).unwrap();
        file.write_all_at(b"x", at).unwrap();
        refused(stage.open(None), &["holds data that are not terrace's", "--format-tier"]);
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        assert_eq!(byte, *b"x");
        assert!(stage.format(None).fresh);
        file.read_exact_at(&mut byte, at.max(2 * PAGE_SIZE as u64)).unwrap();
        assert_eq!(byte, [0]);
    }
    fs::write(stage.path("t"), "a letter").unwrap();
    refused(stage.open(Some(32 * MIB)), &["not terrace's"]);
    assert_eq!(fs::read(stage.path("t")).unwrap(), b"a letter");
}

#[test]
fn tier_in_use_is_refused_by_name_and_process() {
    let stage = Fixture::new();
    let held = stage.open(Some(32 * MIB)).unwrap();
    refused(stage.open(None), &["/t: the tier is in use by"]);
    refused(open(&TargetRequest { format: true, ..stage.request("t", None) }), &["in use"]);
    // A child that inherits the descriptor holds the lock as well.
    let twin = rustix::io::dup(&held.fd).unwrap();
    let mut child = Command::new("sleep").arg("60").stdin(twin).spawn().unwrap();
    drop(held);
    let line = stage.open(None).unwrap_err().to_string();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(line.contains(&format!("in use by process {};", child.id())), "{line}");
    stage.open(None).unwrap();
}

/// As after the death of all processes of an instance: the kernel releases the file a moment later.
fn held_a_moment_longer<T>(held: Target, other: impl FnOnce() -> T) -> T {
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            drop(held);
        });
        other()
    })
}

#[test]
fn lock_that_nobody_is_seen_to_hold_is_waited_for() {
    let stage = Fixture::new();
    let held = || stage.open(Some(32 * MIB)).unwrap();
    held_a_moment_longer(held(), || stage.open(None).unwrap());
    held_a_moment_longer(held(), || empty(&stage.path("t")).unwrap());
    // The reader sees the last writes of the previous user.
    let mut user = held();
    let found = std::thread::scope(|scope| {
        let looks = scope.spawn(|| look_unused(&stage.path("t")).unwrap().found);
        std::thread::sleep(std::time::Duration::from_millis(50));
        superblock::begin(&medium(&user.fd, 32 * MIB), &mut user.superblock, 7).unwrap();
        drop(user);
        looks.join().unwrap()
    });
    assert_eq!(tier_of(&stage.path("t"), found).unwrap().used, 7);
}

#[test]
fn lock_lives_as_long_as_a_duplicate() {
    let stage = Fixture::new();
    let open = || fs::File::options().create(true).append(true).open(stage.path("t")).unwrap();
    let (first, second) = (open(), open());
    assert!(!lock::is_taken(&first).unwrap());
    assert!(lock::take(&first).unwrap() && lock::take(&first).unwrap());
    assert!(!lock::take(&second).unwrap());
    assert!(lock::is_taken(&second).unwrap() && !lock::is_taken(&first).unwrap());
    let twin = first.try_clone().unwrap();
    drop(first);
    assert!(!lock::take(&second).unwrap());
    drop(twin);
    assert!(lock::take(&second).unwrap());
}

#[test]
fn tier_of_another_source_is_refused() {
    let stage = Fixture::new();
    drop(stage.open(Some(32 * MIB)).unwrap());
    let id = stage.open(None).unwrap().superblock.id;
    fs::create_dir(stage.path("other")).unwrap();
    let mut request = TargetRequest { source: stage.path("other"), ..stage.request("t", None) };
    let src = stage.path("src").display().to_string();
    refused(open(&request), &[&format!("the tier belongs to {src};"), "--format-tier"]);
    // The same path names a new directory.
    fs::rename(stage.path("src"), stage.path("was")).unwrap();
    fs::create_dir(stage.path("src")).unwrap();
    refused(stage.open(None), &["belongs to an earlier directory", "which has been replaced"]);
    request.format = true;
    let target = open(&request).unwrap();
    assert!(target.fresh && target.superblock.id != id);
    assert_eq!(target.superblock.source.path, stage.path("other").to_string_lossy());
}

#[test]
fn renamed_source_keeps_its_tier() {
    let stage = Fixture::new();
    drop(stage.open(Some(32 * MIB)).unwrap());
    fs::rename(stage.path("src"), stage.path("now")).unwrap();
    assert!(!open(&TargetRequest { source: stage.path("now"), ..stage.request("t", None) }).unwrap().fresh);
}

#[test]
fn other_layout_and_damage_are_refused() {
    let stage = Fixture::new();
    let superblock = stage.open(Some(32 * MIB)).unwrap().superblock;
    let write = |page: &[u8]| COPIES_AT.iter().for_each(|at| stage.tier().write_all_at(page, *at).unwrap());
    let mut page = superblock.encode();
    page[100] ^= 1;
    stage.tier().write_all_at(&page, 0).unwrap();
    assert_eq!(stage.open(None).unwrap().superblock.id, superblock.id, "one sound copy does");
    write(&page);
    refused(stage.open(None), &["both superblocks of the tier are damaged", "--format-tier"]);
    assert!(stage.format(None).fresh);
    page[100] ^= 1;
    page[8] += 2;
    page[12..16].fill(0);
    let crc = crate::format::crc(&page).to_le_bytes();
    page[12..16].copy_from_slice(&crc);
    write(&page);
    refused(stage.open(None), &["layout version 3, made by another version of terrace", "--format-tier"]);
    assert!(stage.format(None).fresh);
}

#[test]
fn other_size_needs_consent_and_a_cut_file_is_reported() {
    let stage = Fixture::new();
    let first = stage.open(Some(32 * MIB)).unwrap().superblock;
    refused(stage.open(Some(64 * MIB)), &["not 64MiB; leave the size out", "--format-tier"]);
    refused(stage.open(Some(16 * MIB)), &["not 16MiB"]);
    let grown = stage.format(Some(64 * MIB));
    assert!(grown.fresh && grown.superblock.id != first.id);
    assert_eq!(stage.tier().metadata().unwrap().len(), 64 * MIB);
    drop(grown);
    stage.tier().set_len(20 * MIB).unwrap();
    refused(stage.open(None), &["the file has been truncated to 20MiB"]);
    assert_eq!(stage.format(None).superblock.geometry, Geometry::plan(20 * MIB).unwrap());
}

#[test]
fn size_must_be_given_and_large_enough() {
    let stage = Fixture::new();
    refused(stage.open(None), &["/t: the tier does not exist, and its size is not given"]);
    let min = size_min();
    refused(stage.open(Some(min - 1)), &["too small for a tier", &format!("at least {}MiB", min / MIB)]);
    refused(stage.open(Some(0)), &["0 bytes is too small"]);
    assert!(!stage.path("t").exists());
    fs::File::create(stage.path("t")).unwrap();
    refused(stage.open(None), &["0 bytes is too small"]);
    assert!(stage.open(Some(min)).unwrap().fresh);
}

#[test]
fn index_must_fit_a_quarter_of_the_memory() {
    let stage = Fixture::new();
    let request =
        |memory_mib, size| TargetRequest { memory_bytes: memory_mib * MIB, ..stage.request("t", Some(size)) };
    let parts = ["a quarter of --memory (64MiB)", "give --memory 96MiB, or a tier of at most 5461MiB"];
    refused(open(&request(64, 8 << 30)), &parts);
    assert!(!stage.path("t").exists());
    drop(open(&request(1, 16 * MIB)).unwrap());
    // The limit suggested by the message is sufficient.
    let geometry = Geometry::plan(5461 * MIB).unwrap();
    check_index(64 * MIB, Others::default(), geometry).unwrap();
    check_index(96 * MIB, Others::default(), Geometry::plan(8 << 30).unwrap()).unwrap();
    // An existing tier needs its index, too.
    let small = TargetRequest { memory_bytes: 100_000, ..stage.request("t", None) };
    refused(open(&small), &["more than a quarter"]);
}

#[test]
fn paths_that_cannot_be_targets() {
    let stage = Fixture::new();
    let at =
        |path: &Path| open(&TargetRequest { path: path.to_owned(), ..stage.request("", Some(32 * MIB)) });
    refused(at(&stage.path("src").join("..")), &["the tier is a directory"]);
    refused(at(Path::new("/dev/null")), &["no file and no block device"]);
    refused(at(&stage.path("src/in")), &["/src/in: the tier lies in the served directory", "/src;"]);
    fs::write(stage.path("src/in"), "").unwrap();
    std::os::unix::fs::symlink(stage.path("src/in"), stage.path("link")).unwrap();
    refused(at(&stage.path("link")), &["/link: the tier lies in the served directory"]);
    refused(at(&stage.path("none/t")), &["/none/t: No such file"]);
    refused(at(&stage.path("link/t")), &["/link/t: Not a directory"]);
}

#[test]
fn source_mounted_elsewhere_is_recognised() {
    if !is_root() {
        return;
    }
    let stage = Fixture::new();
    fs::create_dir(stage.path("also")).unwrap();
    run("mount", &["--bind", stage.path("src").to_str().unwrap(), stage.path("also").to_str().unwrap()]);
    let target = open(&stage.request("also/t", Some(32 * MIB)));
    run("umount", &[stage.path("also").to_str().unwrap()]);
    refused(target, &["/also/t: the tier lies in the served directory", "/src;"]);
}

#[test]
fn tmpfs_is_refused() {
    if !fs::metadata("/dev/shm").is_ok_and(|meta| meta.is_dir()) {
        return terrace_testkit::skipped!("no /dev/shm");
    }
    let (stage, shm) = (Fixture::new(), tempfile::tempdir_in("/dev/shm").unwrap());
    let path = shm.path().join("t");
    refused(
        open(&TargetRequest { path: path.clone(), ..stage.request("", Some(32 * MIB)) }),
        &["/t: the tier's file system is memory (tmpfs)"],
    );
    assert!(!path.exists());
}

fn run(program: &str, args: &[&str]) -> String {
    let done = Command::new(program).args(args).output().unwrap();
    assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).trim().to_owned()
}

/// A loop device over a file, detached at the end.
struct Loop {
    dev: String,
    mounted: Option<PathBuf>,
}

impl Loop {
    /// None: this user or machine has no loop devices.
    fn new(file: &Path, more: &[&str]) -> Option<Loop> {
        if !is_root() {
            return None;
        }
        let done = Command::new("losetup").args(["-f", "--show"]).args(more).arg(file).output().ok()?;
        if !done.status.success() {
            terrace_testkit::skipped!("{}", String::from_utf8_lossy(&done.stderr));
            return None;
        }
        Some(Loop { dev: String::from_utf8_lossy(&done.stdout).trim().to_owned(), mounted: None })
    }
    /// With a file system on it.
    fn mount(&mut self, at: PathBuf) {
        run("mkfs.ext4", &["-q", "-F", &self.dev]);
        fs::create_dir_all(&at).unwrap();
        run("mount", &[&self.dev, at.to_str().unwrap()]);
        self.mounted = Some(at);
    }
    fn unmount(&mut self) {
        if let Some(at) = self.mounted.take() {
            run("umount", &[at.to_str().unwrap()]);
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.unmount();
        run("losetup", &["-d", &self.dev]);
    }
}

#[test]
fn block_device_must_be_empty_or_a_tier() {
    let stage = Fixture::new();
    let disk = fs::File::create(stage.path("disk")).unwrap();
    disk.set_len(40 * MIB).unwrap();
    let Some(mut device) = Loop::new(&stage.path("disk"), &[]) else { return };
    let request = TargetRequest { path: device.dev.clone().into(), ..stage.request("", None) };
    let size = |size| TargetRequest { size: Some(size), ..request.clone() };
    let format = TargetRequest { format: true, ..request.clone() };

    let first = open(&request).unwrap();
    assert!(first.fresh && first.superblock.geometry == Geometry::plan(40 * MIB).unwrap());
    refused(open(&request), &["in use by"]);
    assert!(!held_a_moment_longer(first, || open(&request).unwrap()).fresh);
    refused(open(&size(64 * MIB)), &["not 64MiB"]);
    refused(
        open(&TargetRequest { size: Some(64 * MIB), ..format.clone() }),
        &["the device has 40MiB, not 64MiB"],
    );

    device.mount(stage.path("mnt"));
    refused(open(&format), &["the device is mounted or otherwise in use"]);
    device.unmount();
    refused(open(&request), &["not terrace's"]);
    assert!(open(&format).unwrap().fresh);
    assert!(!open(&request).unwrap().fresh);
    let signs = Command::new("blkid").args(["-p", &device.dev]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&signs.stdout), "", "no file system is seen any more");
}

/// A file, and loop devices over it, are one target.
#[test]
fn target_has_one_user_by_all_of_its_names() {
    let stage = Fixture::new();
    drop(stage.open(Some(40 * MIB)).unwrap());
    let (Some(one), Some(two)) = (Loop::new(&stage.path("t"), &[]), Loop::new(&stage.path("t"), &[])) else {
        return;
    };
    // A loop device over a loop device.
    let Some(above) = Loop::new(Path::new(&one.dev), &[]) else { return };
    let at = |path: &str| TargetRequest { path: path.into(), ..stage.request("", None) };
    let file = stage.path("t").to_str().unwrap().to_owned();
    for (used, other) in [(&file, &two.dev), (&file, &above.dev), (&one.dev, &file), (&above.dev, &two.dev)] {
        let held = open(&at(used)).unwrap();
        let line = open(&at(other)).unwrap_err().to_string();
        assert!(line.contains("in use"), "{other} while {used} is in use: {line}");
        drop(held);
    }
}

#[test]
fn target_below_the_source_is_refused_by_each_of_its_names() {
    if !is_root() {
        return;
    }
    let stage = Fixture::new();
    fs::create_dir_all(stage.path("src/below")).unwrap();
    fs::create_dir(stage.path("bound")).unwrap();
    let (below, bound) = (stage.path("src/below"), stage.path("bound"));
    run("mount", &["--bind", below.to_str().unwrap(), bound.to_str().unwrap()]);
    let through_bind = open(&TargetRequest { path: bound.join("t"), ..stage.request("", Some(40 * MIB)) });
    run("umount", &[bound.to_str().unwrap()]);
    refused(through_bind, &["the tier lies in the served directory"]);
    drop(open(&TargetRequest { path: bound.join("t"), ..stage.request("", Some(40 * MIB)) }).unwrap());
}

#[test]
fn mark_at_the_end_of_a_device_counts() {
    let stage = Fixture::new();
    let disk = fs::File::create(stage.path("disk")).unwrap();
    disk.set_len(40 * MIB).unwrap();
    disk.write_all_at(b"EFI PART", 40 * MIB - 512).unwrap();
    let Some(device) = Loop::new(&stage.path("disk"), &[]) else { return };
    let request = TargetRequest { path: device.dev.clone().into(), ..stage.request("", None) };
    refused(open(&request), &["not terrace's"]);
    assert!(open(&TargetRequest { format: true, ..request.clone() }).unwrap().fresh);
}

#[test]
fn full_and_read_only_file_systems_are_reported() {
    let stage = Fixture::new();
    fs::File::create(stage.path("disk")).unwrap().set_len(40 * MIB).unwrap();
    let Some(mut device) = Loop::new(&stage.path("disk"), &[]) else { return };
    device.mount(stage.path("mnt"));
    let at = |name: &str, size| {
        open(&TargetRequest { path: stage.path("mnt").join(name), ..stage.request("", Some(size)) })
    };
    refused(at("t", 64 * MIB), &["/mnt/t: the tier needs 64MiB more", "left:", "are missing; make room"]);
    assert!(!stage.path("mnt/t").exists());
    drop(at("t", 16 * MIB).unwrap());
    // A tier that cannot grow stays as it was.
    let grow = TargetRequest { path: stage.path("mnt/t"), format: true, ..stage.request("", Some(64 * MIB)) };
    refused(open(&grow), &["the tier needs 48MiB more"]);
    assert!(!at("t", 16 * MIB).unwrap().fresh);
    run("mount", &["-o", "remount,ro", stage.path("mnt").to_str().unwrap()]);
    refused(at("t", 16 * MIB), &["the tier cannot be written: Read-only file system"]);
    refused(at("new", 16 * MIB), &["the tier cannot be written: Read-only file system"]);
}

#[test]
fn file_of_another_user_is_read_only() {
    if rustix::process::geteuid().is_root() {
        return terrace_testkit::skipped!("root may write every file");
    }
    let stage = Fixture::new();
    fs::write(stage.path("t"), "").unwrap();
    fs::set_permissions(stage.path("t"), fs::Permissions::from_mode(0o444)).unwrap();
    refused(stage.open(Some(32 * MIB)), &["the tier cannot be written: Permission denied"]);
}

#[test]
fn look_sees_a_tier_that_is_in_use() {
    let stage = Fixture::new();
    let held = stage.open(Some(32 * MIB)).unwrap();
    let found = look(&stage.path("t")).unwrap();
    assert!(found.in_use && found.bytes == 32 * MIB);
    assert_eq!(tier_of(&stage.path("t"), found.found).unwrap(), held.superblock);
    assert!(empty(&stage.path("t")).unwrap_err().to_string().contains("in use"));
    drop(held);
    assert!(!look(&stage.path("t")).unwrap().in_use);
    fs::write(stage.path("t"), "a letter").unwrap();
    let found = look(&stage.path("t")).unwrap().found;
    assert!(tier_of(&stage.path("t"), found).unwrap_err().to_string().contains("no tier of terrace here"));
    assert!(empty(&stage.path("t")).unwrap_err().to_string().contains("no tier of terrace here"));
}

#[test]
fn emptied_tier_keeps_its_source_and_size() {
    let stage = Fixture::new();
    let was = stage.open(Some(32 * MIB)).unwrap().superblock;
    assert_eq!(empty(&stage.path("t")).unwrap().id, was.id);
    let target = stage.open(Some(32 * MIB)).unwrap();
    assert!(target.superblock.id != was.id && target.superblock.clean);
    let scanned = look(&stage.path("t")).unwrap().scan(&target.superblock).unwrap();
    assert_eq!((scanned.files.len(), scanned.regions.len()), (0, 0));
}
