//! The namespace behind a real mount: it behaves as a local directory, also after kill -9 of the daemon.
//!
//! Each test runs on the null cache, which shows faults of the namespace alone, and on the engine. The tests
//! need root and /dev/fuse; otherwise they are skipped with a message.

#[path = "namespace/direct.rs"]
mod direct;
#[path = "namespace/mount.rs"]
mod mount;
#[path = "namespace/names.rs"]
mod names;
#[path = "namespace/set_id.rs"]
mod set_id;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mount::{Cache, Mount, caches, open, source};
use rustix::fs::{AtFlags, CWD, FallocateFlags, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;
use terrace_testkit::wait::holds_within;

#[test]
fn supervisor_role() {
    mount::keep_if_told();
}

/// Runs a test on a mount with each cache.
fn each(test: impl Fn(&mut Mount)) {
    for &cache in caches() {
        eprintln!("on {cache:?}");
        test(&mut Mount::new(cache));
    }
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

fn rename(mount: &Mount, from: &str, to: &str, flags: RenameFlags) -> rustix::io::Result<()> {
    rustix::fs::renameat_with(CWD, mount.path(from), CWD, mount.path(to), flags)
}

#[test]
fn content_goes_to_the_source() {
    each(|mount| {
        fs::write(mount.path("a"), b"hello").unwrap();
        assert_eq!(fs::read(mount.path("a")).unwrap(), b"hello");
        assert_eq!(source(mount, "a"), b"hello");
        let (ours, theirs) =
            (fs::metadata(mount.path("a")).unwrap(), fs::metadata(mount.src.join("a")).unwrap());
        assert_eq!((ours.ino(), ours.len(), ours.mode()), (theirs.ino(), theirs.len(), theirs.mode()));
        assert_eq!(fs::metadata(&mount.mnt).unwrap().ino(), 1);
        assert_eq!(errno(fs::read(mount.path("none"))), libc::ENOENT);
    });
}

#[test]
fn names_are_renamed_linked_and_exchanged() {
    each(|mount| {
        fs::write(mount.path("a"), b"A").unwrap();
        fs::write(mount.path("b"), b"B").unwrap();
        assert_eq!(rename(mount, "a", "b", RenameFlags::NOREPLACE), Err(Errno::EXIST));
        rename(mount, "a", "b", RenameFlags::EXCHANGE).unwrap();
        assert_eq!(fs::read(mount.path("a")).unwrap(), b"B");
        fs::hard_link(mount.path("a"), mount.path("c")).unwrap();
        assert_eq!(fs::metadata(mount.path("a")).unwrap().nlink(), 2);
        fs::write(mount.path("c"), b"through c").unwrap();
        assert_eq!(fs::read(mount.path("a")).unwrap(), b"through c");
        fs::rename(mount.path("c"), mount.path("b")).unwrap();
        assert_eq!(fs::metadata(mount.path("b")).unwrap().nlink(), 2);
        rename(mount, "b", "w", RenameFlags::WHITEOUT).unwrap();
        assert_eq!(fs::symlink_metadata(mount.path("b")).unwrap().rdev(), 0);
        symlink("a", mount.path("link")).unwrap();
        assert_eq!(fs::read_link(mount.path("link")).unwrap(), Path::new("a"));
        assert_eq!(fs::read(mount.path("link")).unwrap(), b"through c");
        fs::hard_link(mount.path("link"), mount.path("link2")).unwrap();
        assert_eq!(fs::symlink_metadata(mount.path("link2")).unwrap().nlink(), 2);
        let long = "n".repeat(255);
        fs::write(mount.path(&long), b"").unwrap();
        assert_eq!(errno(fs::write(mount.path(&"n".repeat(256)), b"")), libc::ENAMETOOLONG);
    });
}

#[test]
fn directories_fill_and_empty() {
    each(|mount| {
        let dir = mount.path("d");
        fs::create_dir(&dir).unwrap();
        let names: BTreeSet<String> = (0..20_000).map(|i| format!("entry-{i:05}")).collect();
        names.iter().for_each(|name| drop(File::create(dir.join(name)).unwrap()));
        let list = || -> BTreeSet<String> {
            fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
        };
        assert_eq!(list(), names);
        assert_eq!(list(), names, "and again");
        assert_eq!(errno(fs::remove_dir(&dir)), libc::ENOTEMPTY);
        names.iter().for_each(|name| fs::remove_file(dir.join(name)).unwrap());
        assert_eq!(list().len(), 0);
        fs::remove_dir(&dir).unwrap();
        assert_eq!(errno(fs::metadata(&dir)), libc::ENOENT);
        assert!(fs::read_dir(&mount.src).unwrap().next().is_none());
    });
}

#[test]
fn an_unlinked_file_lives_until_it_is_closed() {
    each(|mount| {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(mount.path("u"))
            .unwrap();
        file.write_all(&[7; 10_000]).unwrap();
        fs::remove_file(mount.path("u")).unwrap();
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        file.write_all(&[8; 10_000]).unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        let mut all = Vec::new();
        file.read_to_end(&mut all).unwrap();
        assert_eq!(all, [[7; 10_000], [8; 10_000]].concat());
        // A file renamed over an open one.
        let mut old = File::open({
            fs::write(mount.path("v"), b"old").unwrap();
            mount.path("v")
        })
        .unwrap();
        fs::write(mount.path("w"), b"new").unwrap();
        fs::rename(mount.path("w"), mount.path("v")).unwrap();
        let mut text = String::new();
        old.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), fs::read(mount.path("v")).unwrap().as_slice()), ("old", &b"new"[..]));
    });
}

#[test]
fn extended_attributes() {
    each(|mount| {
        let path = mount.path("x");
        fs::write(&path, b"").unwrap();
        let get = |name: &str| {
            let mut buf = [0; 256];
            rustix::fs::getxattr(&path, name, &mut buf[..]).map(|len| buf[..len].to_vec())
        };
        let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&path, name, value, flags);
        assert_eq!(get("user.k"), Err(Errno::NODATA));
        set("user.k", b"v", XattrFlags::CREATE).unwrap();
        assert_eq!(set("user.k", b"w", XattrFlags::CREATE), Err(Errno::EXIST));
        assert_eq!(set("user.no", b"w", XattrFlags::REPLACE), Err(Errno::NODATA));
        set("trusted.t", b"tt", XattrFlags::empty()).unwrap();
        assert_eq!(get("user.k").unwrap(), b"v");
        let mut names = [0; 256];
        let len = rustix::fs::listxattr(&path, &mut names[..]).unwrap();
        let names: BTreeSet<_> = names[..len].split(|&b| b == 0).filter(|n| !n.is_empty()).collect();
        assert_eq!(names, BTreeSet::from([&b"trusted.t"[..], b"user.k"]));
        rustix::fs::removexattr(&path, "user.k").unwrap();
        assert_eq!(rustix::fs::removexattr(&path, "user.k"), Err(Errno::NODATA));
        symlink("x", mount.path("l")).unwrap();
        rustix::fs::lsetxattr(mount.path("l"), "trusted.l", b"of the link", XattrFlags::empty()).unwrap();
        assert_eq!(get("trusted.l"), Err(Errno::NODATA));
    });
}

#[test]
fn default_acls_and_umask_decide_over_modes() {
    // version 2; user::rwx, user:1:rwx, group::rwx, mask::rwx, other::r-x
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in
        [(1u16, 7u16, u32::MAX), (2, 7, 1), (4, 7, u32::MAX), (16, 7, u32::MAX), (32, 5, u32::MAX)]
    {
        acl.extend(tag.to_le_bytes().into_iter().chain(perm.to_le_bytes()).chain(id.to_le_bytes()));
    }
    each(|mount| {
        let mode = |name: &str| fs::metadata(mount.path(name)).unwrap().mode() & 0o7777;
        let create = |name: &str| {
            drop(
                OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .mode(0o666)
                    .open(mount.path(name))
                    .unwrap(),
            )
        };
        fs::create_dir(mount.path("plain")).unwrap();
        fs::create_dir(mount.path("acl")).unwrap();
        let given =
            rustix::fs::setxattr(mount.path("acl"), "system.posix_acl_default", &acl, XattrFlags::empty());
        if given == Err(Errno::OPNOTSUPP) {
            return terrace_testkit::skipped!("the source has no ACLs");
        }
        given.unwrap();
        // The umask of the test process is 022.
        create("plain/f");
        assert_eq!(mode("plain/f"), 0o644);
        create("acl/f");
        assert_eq!(mode("acl/f"), 0o664, "a default ACL stands in for the umask");
        let mut buf = [0; 64];
        assert!(rustix::fs::getxattr(mount.path("acl/f"), "system.posix_acl_access", &mut buf[..]).is_ok());
    });
}

#[test]
fn holes_are_found_punched_and_filled() {
    each(|mount| {
        let file = open(&mount.path("h"), OFlags::RDWR | OFlags::CREATE).unwrap();
        let block = 64 * 1024u64;
        file.write_all_at(&vec![1; block as usize], 4 * block).unwrap();
        file.set_len(16 * block).unwrap();
        let seek = |what| rustix::fs::seek(&file, what);
        assert_eq!(seek(rustix::fs::SeekFrom::Data(0)), Ok(4 * block));
        assert_eq!(seek(rustix::fs::SeekFrom::Hole(4 * block)), Ok(5 * block));
        assert_eq!(seek(rustix::fs::SeekFrom::Data(5 * block)), Err(Errno::NXIO));
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, 4 * block, block / 2).unwrap();
        assert_eq!(seek(rustix::fs::SeekFrom::Data(0)), Ok(4 * block + block / 2));
        let mut half = vec![9; block as usize];
        file.read_exact_at(&mut half, 4 * block).unwrap();
        assert_eq!(half, [vec![0; half.len() / 2], vec![1; half.len() / 2]].concat());
        rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, 4 * block, block).unwrap();
        file.read_exact_at(&mut half, 4 * block).unwrap();
        assert_eq!(half, vec![0; half.len()]);
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 17 * block).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 17 * block);
        assert!(file.metadata().unwrap().blocks() >= 17 * block / 512);
        // Larger than 4 GiB, and truncated.
        file.write_all_at(b"far", 5 << 30).unwrap();
        let mut far = [0; 3];
        file.read_exact_at(&mut far, 5 << 30).unwrap();
        assert_eq!((&far, file.metadata().unwrap().len()), (b"far", (5 << 30) + 3));
        file.set_len(10).unwrap();
        file.set_len(20).unwrap();
        assert_eq!(fs::read(mount.path("h")).unwrap(), [0; 20]);
    });
}

#[test]
fn ranges_are_copied() {
    each(|mount| {
        let data: Vec<u8> = (0..300_000u32).map(|i| (i * 7) as u8).collect();
        fs::write(mount.path("from"), &data).unwrap();
        let from = File::open(mount.path("from")).unwrap();
        let to = File::create(mount.path("to")).unwrap();
        to.write_all_at(&[1; 100], 0).unwrap();
        let (mut at, mut into) = (1000, 50);
        while at < 300_000 {
            let n = rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut into), 300_000).unwrap();
            assert!(n > 0);
        }
        let copy = fs::read(mount.path("to")).unwrap();
        assert_eq!((&copy[..50], &copy[50..]), (&[1; 50][..], &data[1000..]));
    });
}

#[test]
fn open_flags_mean_what_they_say() {
    each(|mount| {
        let path = mount.path("f");
        let appender = open(&path, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::APPEND).unwrap();
        assert_eq!(open(&path, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL).unwrap_err(), Errno::EXIST);
        (&appender).write_all(b"one").unwrap();
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"two").unwrap();
        (&appender).write_all(b"three").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"onetwothree");
        drop(open(&path, OFlags::WRONLY | OFlags::TRUNC).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        // Bypassing the page cache, and both ways mixed.
        let direct = open(&path, OFlags::RDWR | OFlags::DIRECT).unwrap();
        let mut pages = aligned::<8192>();
        pages.0.fill(5);
        direct.write_all_at(&pages.0, 0).unwrap();
        assert_eq!(fs::read(&path).unwrap(), [5; 8192]);
        fs::OpenOptions::new().write(true).open(&path).unwrap().write_all_at(&[6; 100], 4000).unwrap();
        direct.read_exact_at(&mut pages.0, 0).unwrap();
        assert_eq!((pages.0[3999], pages.0[4000], pages.0[4099], pages.0[4100]), (5, 6, 6, 5));
        let stable = open(&path, OFlags::WRONLY | OFlags::SYNC).unwrap();
        stable.write_all_at(&[7; 10], 0).unwrap();
        assert_eq!(source(mount, "f")[..10], [7; 10]);
        let stable = open(&path, OFlags::WRONLY | OFlags::DSYNC | OFlags::DIRECT).unwrap();
        stable.write_all_at(&pages.0, 4096).unwrap();
        assert_eq!(source(mount, "f")[4096..8096], [5; 4000]);
    });
}

#[repr(align(4096))]
struct Aligned<const N: usize>([u8; N]);

fn aligned<const N: usize>() -> Box<Aligned<N>> {
    Box::new(Aligned([0; N]))
}

#[test]
fn mappings_are_shared_with_readers() {
    each(|mount| {
        let file = open(&mount.path("m"), OFlags::RDWR | OFlags::CREATE).unwrap();
        file.set_len(8192).unwrap();
        // SAFETY: a fresh mapping of the test's file, used below and then unmapped.
        let bytes = unsafe {
            let prot = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
            let map =
                rustix::mm::mmap(std::ptr::null_mut(), 8192, prot, rustix::mm::MapFlags::SHARED, &file, 0)
                    .unwrap();
            std::slice::from_raw_parts_mut(map.cast::<u8>(), 8192)
        };
        file.write_all_at(b"by write", 4096).unwrap();
        assert_eq!(&bytes[4096..4104], b"by write");
        bytes[..6].copy_from_slice(b"by map");
        let mut read = [0; 6];
        file.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(&read, b"by map");
        // SAFETY: the mapping made above.
        unsafe {
            rustix::mm::msync(bytes.as_mut_ptr().cast(), 8192, rustix::mm::MsyncFlags::SYNC).unwrap();
            rustix::mm::munmap(bytes.as_mut_ptr().cast(), 8192).unwrap();
        }
        assert_eq!(&source(mount, "m")[..6], b"by map");
    });
}

/// The kernel unlocks the pages of a write before it sends the request. A mapping of the same file, opened
/// past the page cache, empties that cache. A read of the page may then be served before the write.
#[test]
fn a_read_that_overtakes_a_write_leaves_nothing_old_behind() {
    each(|mount| overtake(&mount.path("m"), OFlags::RDWR));
}

/// The same with a writer that bypasses the page cache.
#[test]
fn a_read_that_overtakes_a_burst_leaves_nothing_old_behind() {
    each(|mount| overtake(&mount.path("m"), OFlags::WRONLY));
}

fn overtake(path: &Path, writing: OFlags) {
    const PAGES: u64 = 64;
    let file = open(path, writing | OFlags::CREATE).unwrap();
    let reader = File::open(path).unwrap();
    file.set_len(PAGES * 4096).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _done = Defer(|| done.store(true, Ordering::Relaxed));
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let past = open(path, OFlags::RDONLY | OFlags::DIRECT).unwrap();
                    touch_mapped(&past, PAGES as usize * 4096);
                }
            });
        }
        let end = Instant::now() + Duration::from_secs(2);
        for version in 1_u64.. {
            if Instant::now() > end {
                break;
            }
            let at = version % PAGES * 4096;
            file.write_all_at(&[version as u8; 4096], at).unwrap();
            let mut read = [0; 4096];
            reader.read_exact_at(&mut read, at).unwrap();
            assert!(
                read == [version as u8; 4096],
                "write {version} to page {}: {} was read",
                at / 4096,
                read[0]
            );
        }
    });
}

/// Runs a function at the end of its scope, also after a panic.
struct Defer<F: Fn()>(F);

impl<F: Fn()> Drop for Defer<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Maps a file and reads a byte of each page.
fn touch_mapped(file: &File, len: usize) {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    // SAFETY: a fresh mapping of a file of this length, read byte by byte, and unmapped.
    unsafe {
        let map = mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0).unwrap();
        for at in (0..len).step_by(4096) {
            map.cast::<u8>().add(at).read_volatile();
        }
        munmap(map, len).unwrap();
    }
}

#[test]
fn attributes_are_set_and_kept() {
    each(|mount| {
        let path = mount.path("t");
        fs::write(&path, b"content").unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        let old = std::time::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
        file.set_times(fs::FileTimes::new().set_modified(old).set_accessed(old)).unwrap();
        drop(file);
        std::thread::sleep(Duration::from_millis(700));
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), old, "write-back does not change it");
        assert_eq!(fs::metadata(mount.src.join("t")).unwrap().modified().unwrap(), old);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4711)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o4711);
        std::os::unix::fs::chown(&path, Some(12), Some(34)).unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert_eq!(
            (meta.uid(), meta.gid(), meta.mode() & 0o7777),
            (12, 34, 0o711),
            "chown takes set-id away"
        );
        let statfs = (rustix::fs::statfs(&mount.mnt).unwrap(), rustix::fs::statfs(&mount.src).unwrap());
        assert_eq!((statfs.0.f_blocks, statfs.0.f_bsize), (statfs.1.f_blocks, statfs.1.f_bsize));
        rustix::fs::utimensat(
            CWD,
            &path,
            &rustix::fs::Timestamps {
                last_access: rustix::fs::Timespec { tv_sec: -5, tv_nsec: 250_000_000 },
                last_modification: rustix::fs::Timespec { tv_sec: -5, tv_nsec: 250_000_000 },
            },
            AtFlags::empty(),
        )
        .unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert_eq!((meta.mtime(), meta.mtime_nsec()), (-5, 250_000_000));
    });
}

#[test]
fn times_and_blocks_follow_the_source() {
    each(|mount| {
        let path = mount.path("b");
        let file = open(&path, OFlags::RDWR | OFlags::CREATE).unwrap();
        file.write_all_at(&[1; 300_000], 0).unwrap();
        let early = file.metadata().unwrap();
        drop(file);
        let theirs = fs::metadata(mount.src.join("b")).unwrap();
        let ours = fs::metadata(&path).unwrap();
        assert_eq!((ours.blocks(), ours.len()), (theirs.blocks(), 300_000), "early: {}", early.blocks());
        // A first read updates the access time by the rule of relatime, and nothing else.
        let old = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        File::open(&path).unwrap().set_times(fs::FileTimes::new().set_accessed(old)).unwrap();
        let before = fs::metadata(&path).unwrap();
        assert_eq!(before.accessed().unwrap(), old);
        drop_pages(&path);
        assert_eq!(fs::read(&path).unwrap().len(), 300_000);
        let after = fs::metadata(mount.src.join("b")).unwrap();
        assert!(after.accessed().unwrap() > old);
        assert_eq!(
            (after.ctime(), after.ctime_nsec(), after.mtime_nsec()),
            (before.ctime(), before.ctime_nsec(), before.mtime_nsec())
        );
    });
}

/// Drops a file's pages from the kernel's page cache, so that reads reach the daemon.
fn drop_pages(path: &Path) {
    rustix::fs::fadvise(File::open(path).unwrap(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

#[test]
fn more_files_than_descriptors() {
    for &cache in caches() {
        let mount = Mount::with_descriptors(cache, 1500);
        let path = |i: usize| mount.path(&format!("f{i}"));
        let held: Vec<_> = (0..100)
            .map(|i| {
                fs::write(path(i), i.to_string()).unwrap();
                open(&path(i), OFlags::RDWR).unwrap()
            })
            .collect();
        (100..3000).for_each(|i| fs::write(path(i), i.to_string()).unwrap());
        (0..3000).for_each(|i| assert_eq!(fs::read(path(i)).unwrap(), i.to_string().as_bytes()));
        assert_eq!(
            fs::read_dir(&mount.mnt)
                .unwrap()
                .filter(|e| e.as_ref().unwrap().metadata().unwrap().is_file())
                .count(),
            3000
        );
        for (i, file) in held.iter().enumerate() {
            file.write_all_at(b"held", 0).unwrap();
            assert_eq!(&fs::read(path(i)).unwrap()[..4], b"held");
        }
        assert!(mount.descriptors() < 1500, "{} descriptors", mount.descriptors());
    }
}

/// More concurrent programs than threads that answer: requests that need a descriptor wait, and others make
/// room.
#[test]
fn many_writers_with_few_descriptors_meet_no_error() {
    for &cache in caches() {
        let mount = Mount::with_descriptors(cache, 400);
        std::thread::scope(|scope| {
            for writer in 0..24 {
                let mount = &mount;
                scope.spawn(move || {
                    let dir = mount.path(&format!("d{writer}"));
                    let fine = |what: &str, done: std::io::Result<()>| {
                        done.unwrap_or_else(|err| panic!("{what} by writer {writer}: {err}"));
                    };
                    fine("mkdir", fs::create_dir(&dir));
                    let path = |i: usize| dir.join(format!("f{i}"));
                    (0..60).for_each(|i| fine("write", fs::write(path(i), [i as u8; 3000])));
                    (0..60).for_each(|i| {
                        fine("read", fs::read(path(i)).map(|found| assert_eq!(found, [i as u8; 3000])));
                    });
                    fine("rename", (0..30).try_for_each(|i| fs::rename(path(i), path(100 + i))));
                    fine("remove", fs::remove_dir_all(&dir));
                });
            }
        });
        assert!(mount.descriptors() < 400, "{} descriptors", mount.descriptors());
    }
}

/// Negative dentries pin their directories in the kernel.
#[test]
fn negative_lookups_in_more_directories_than_descriptors_work() {
    if !terrace_testkit::can_mount() {
        return;
    }
    let mount = Mount::with_descriptors(Cache::Direct, 1500);
    for i in 0..5000 {
        let dir = mount.path(&format!("d{i}"));
        fs::create_dir(&dir).unwrap_or_else(|err| panic!("{}: {err}", dir.display()));
        assert!(!dir.join("in vain").try_exists().unwrap());
    }
    assert!(mount.descriptors() < 1500, "{} descriptors", mount.descriptors());
}

/// Runs `act` in a process of user and group 4242.
fn as_other_user(act: impl FnOnce() -> bool) {
    // SAFETY: the child runs only `act`, which creates files, and exits.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            let fine = libc::setgroups(0, std::ptr::null()) == 0
                && libc::setgid(4242) == 0
                && libc::setuid(4242) == 0
                && act();
            libc::_exit(i32::from(!fine));
        }
        let mut status = 0;
        libc::waitpid(pid, &mut status, 0);
        assert_eq!(status, 0, "the other user failed");
    }
}

#[test]
fn files_belong_to_their_makers() {
    each(|mount| {
        let (file, dir, link) = (mount.path("file"), mount.path("dir"), mount.path("link"));
        let set_id = mount.path("set-id");
        fs::write(&set_id, b"x").unwrap();
        fs::set_permissions(&set_id, fs::Permissions::from_mode(0o6777)).unwrap();
        fs::create_dir(mount.path("group")).unwrap();
        std::os::unix::fs::chown(mount.path("group"), None, Some(99)).unwrap();
        fs::set_permissions(mount.path("group"), fs::Permissions::from_mode(0o2777)).unwrap();
        let in_group = mount.path("group/sub");
        fs::write(mount.path("closed"), b"").unwrap();
        fs::set_permissions(mount.path("closed"), fs::Permissions::from_mode(0o600)).unwrap();
        let closed = mount.path("closed");
        as_other_user(|| {
            fs::write(&file, b"mine").is_ok()
                && fs::create_dir(&dir).is_ok()
                && symlink("x", &link).is_ok()
                && fs::create_dir(&in_group).is_ok()
                && fs::OpenOptions::new().write(true).open(&set_id).is_ok_and(|f| f.write_at(b"y", 0).is_ok())
                && fs::File::open(&closed).is_err_and(|e| e.raw_os_error() == Some(libc::EACCES))
        });
        for path in [&file, &dir, &link] {
            let meta = fs::symlink_metadata(path).unwrap();
            assert_eq!((meta.uid(), meta.gid()), (4242, 4242), "{}", path.display());
        }
        let sub = fs::metadata(&in_group).unwrap();
        assert_eq!((sub.uid(), sub.gid(), sub.mode() & 0o2000), (4242, 99, 0o2000));
        assert_eq!(fs::metadata(&set_id).unwrap().mode() & 0o7777, 0o777, "a write takes set-id away");
    });
}

/// As the other user's `open`, with a mode.
fn open_as(path: &Path, flags: i32, mode: u32) -> std::io::Result<File> {
    let access = OFlags::from_bits_retain(flags as u32);
    Ok(rustix::fs::open(path, access | OFlags::CLOEXEC, rustix::fs::Mode::from_raw_mode(mode))?.into())
}

#[test]
fn a_new_file_keeps_its_set_id_bits() {
    each(|mount| {
        // More files than threads: a thread must not lose its capabilities by the change of user.
        let paths: Vec<_> = (0..12).map(|i| mount.path(&format!("new{i}"))).collect();
        as_other_user(|| {
            paths
                .iter()
                .all(|path| open_as(path, libc::O_CREAT | libc::O_TRUNC | libc::O_WRONLY, 0o4755).is_ok())
        });
        for path in &paths {
            assert_eq!(fs::metadata(path).unwrap().mode() & 0o7777, 0o4755);
        }
    });
}

#[test]
fn a_file_made_beside_the_mount_is_opened_by_its_own_mode() {
    each(|mount| {
        for round in 0..3 {
            let (name, text) = (format!("secret{round}"), b"for root alone");
            let path = mount.path(&name);
            // The kernel keeps the negative dentry for a second.
            assert_eq!(errno(fs::metadata(&path)), libc::ENOENT);
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(mount.src.join(&name))
                .unwrap();
            file.write_all(text).unwrap();
            as_other_user(|| {
                let refused = open_as(&path, libc::O_CREAT | libc::O_RDWR | libc::O_TRUNC, 0o666);
                refused.is_err_and(|e| e.raw_os_error() == Some(libc::EACCES))
            });
            let mut found = Vec::new();
            open_as(&path, libc::O_CREAT | libc::O_RDWR, 0o666).unwrap().read_to_end(&mut found).unwrap();
            assert_eq!(found, text);
        }
    });
}

/// An open file can still be used when its mode forbids later opens, also by a daemon without root's rights.
#[test]
fn modes_hold_for_opens_and_not_for_open_files() {
    for &cache in caches() {
        let mount = Mount::of_user(cache, 4242);
        let (made, closed, blind, late) =
            (mount.path("made"), mount.path("closed"), mount.path("blind"), mount.path("late"));
        fs::write(mount.src.join("late"), b"late").unwrap();
        std::os::unix::fs::chown(mount.src.join("late"), Some(4242), Some(4242)).unwrap();
        let text = [b'x'; 5000];
        as_other_user(|| {
            let create = libc::O_CREAT | libc::O_EXCL;
            // As git creates its objects.
            let made = open_as(&made, create | libc::O_RDWR, 0o444).unwrap();
            made.write_all_at(&text, 0).unwrap();
            made.sync_all().unwrap();
            // The mode changes to 000 after the open and before the first write.
            let file = open_as(&closed, create | libc::O_RDWR, 0o644).unwrap();
            file.set_permissions(fs::Permissions::from_mode(0o000)).unwrap();
            file.write_all_at(&text, 0).unwrap();
            file.write_all_at(b"y", 4999).unwrap();
            file.sync_all().unwrap();
            rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 20_000).unwrap();
            let mut back = [0; 5000];
            file.read_exact_at(&mut back, 0).unwrap();
            // Unreadable from the start.
            let file = open_as(&blind, create | libc::O_WRONLY, 0o200).unwrap();
            file.write_all_at(&text, 0).unwrap();
            file.sync_all().unwrap();
            // The mode changes to 000 after the open and before the first read.
            let file = File::open(&late).unwrap();
            file.set_permissions(fs::Permissions::from_mode(0o000)).unwrap();
            let mut found = [0; 4];
            file.read_exact_at(&mut found, 0).unwrap();
            back[4999] == b'y' && &found == b"late" && File::open(&late).is_err()
        });
        assert_eq!(source(&mount, "made"), text);
        assert_eq!(source(&mount, "closed")[..4999], text[..4999]);
        assert_eq!(source(&mount, "blind"), text);
    }
}

#[test]
fn a_file_closed_to_its_daemon_can_be_written_after_a_kill() {
    for &cache in caches() {
        let mut mount = Mount::of_user(cache, 4242);
        let file = open_as(&mount.path("f"), libc::O_CREAT | libc::O_RDWR, 0o400).unwrap();
        file.write_all_at(&[b'x'; 9000], 0).unwrap();
        file.set_permissions(fs::Permissions::from_mode(0o000)).unwrap();
        for kill in 1..=3 {
            mount.kill_daemon();
            file.write_all_at(b"y", kill).unwrap();
        }
        file.sync_all().unwrap();
        let mut wanted = [b'x'; 9000];
        wanted[1..4].fill(b'y');
        assert_eq!(source(&mount, "f"), wanted);
    }
}

#[test]
fn open_for_writing_fails_where_the_source_forbids_it() {
    each(|mount| {
        const FS_IOC_SETFLAGS: libc::c_ulong = 0x4008_6602;
        const IMMUTABLE: libc::c_int = 0x10;
        const APPEND_ONLY: libc::c_int = 0x20;
        fs::write(mount.src.join("f"), b"x").unwrap();
        let file = File::open(mount.src.join("f")).unwrap();
        let mark = |flags: libc::c_int| {
            // SAFETY: reads one word.
            unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&file), FS_IOC_SETFLAGS, &flags) == 0 }
        };
        for flags in [IMMUTABLE, APPEND_ONLY] {
            if !mark(flags) {
                return terrace_testkit::skipped!("the source file system has no attributes");
            }
            let refused = open(&mount.path("f"), OFlags::WRONLY | OFlags::APPEND);
            assert!(mark(0));
            assert_eq!(refused.unwrap_err(), Errno::PERM);
        }
        fs::write(mount.path("f"), b"y").unwrap();
    });
}

#[test]
fn closed_files_keep_no_data_descriptors() {
    each(|mount| {
        for i in 0..40 {
            let path = mount.path(&format!("f{i}"));
            fs::write(&path, [b'x'; 5000]).unwrap();
            drop_pages(&path);
            assert_eq!(fs::read(&path).unwrap().len(), 5000);
            rustix::fs::ftruncate(OpenOptions::new().write(true).open(&path).unwrap(), 100).unwrap();
        }
        // The kernel sends RELEASE with a delay.
        let closed = holds_within(Duration::from_secs(10), || mount.data_descriptors() == 0);
        assert!(closed, "{} data descriptors", mount.data_descriptors());
    });
}

#[test]
fn a_source_changed_behind_the_mount_is_seen_at_open() {
    each(|mount| {
        fs::write(mount.path("o"), b"first").unwrap();
        assert_eq!(fs::read(mount.path("o")).unwrap(), b"first");
        std::thread::sleep(Duration::from_millis(400));
        assert_eq!(fs::read(mount.path("o")).unwrap(), b"first");
        fs::write(mount.src.join("o"), b"second, and longer").unwrap();
        assert_eq!(fs::read(mount.path("o")).unwrap(), b"second, and longer");
        fs::write(mount.src.join("o"), b"3rd").unwrap();
        assert_eq!(fs::read(mount.path("o")).unwrap(), b"3rd");
        assert_eq!(fs::metadata(mount.path("o")).unwrap().len(), 3);
    });
}

#[test]
fn special_files_are_made() {
    each(|mount| {
        rustix::fs::mknodat(CWD, mount.path("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let null = rustix::fs::makedev(1, 3);
        rustix::fs::mknodat(
            CWD,
            mount.path("null"),
            rustix::fs::FileType::CharacterDevice,
            0o666.into(),
            null,
        )
        .unwrap();
        assert_eq!(fs::metadata(mount.path("null")).unwrap().rdev(), null);
        fs::write(mount.path("null"), b"gone").unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(mount.path("socket")).unwrap();
        std::os::unix::net::UnixStream::connect(mount.path("socket")).unwrap();
        let fifo = mount.path("fifo");
        let writer = std::thread::spawn(move || fs::write(fifo, b"through").unwrap());
        assert_eq!(fs::read(mount.path("fifo")).unwrap(), b"through");
        writer.join().unwrap();
    });
}

#[test]
fn many_threads_at_once() {
    each(|mount| {
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let mount = &*mount;
                scope.spawn(move || {
                    for round in 0..100 {
                        let (a, b) = (
                            mount.path(&format!("{thread}-{round}")),
                            mount.path(&format!("{thread}-moved")),
                        );
                        fs::write(&a, format!("{thread} {round}")).unwrap();
                        fs::rename(&a, &b).unwrap();
                        assert_eq!(fs::read_to_string(&b).unwrap(), format!("{thread} {round}"));
                        let shared = mount.path("shared");
                        let _ = fs::hard_link(&b, &shared);
                        let _ = fs::read(&shared);
                        let _ = fs::remove_file(&shared);
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(&mount.src).unwrap().count(), 8);
    });
}

/// Programs run while the daemon is killed repeatedly: no error, no loss, no repetition.
#[test]
fn nothing_is_lost_when_the_daemon_is_killed() {
    each(|mount| {
        let dir = mount.path("work");
        fs::create_dir(&dir).unwrap();
        let held = open(&mount.path("held"), OFlags::RDWR | OFlags::CREATE).unwrap();
        fs::remove_file(mount.path("held")).unwrap();
        let rounds: [AtomicU64; 4] = Default::default();
        let enough = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let end = EndOfWork(&enough);
            let start = |(worker, rounds)| {
                let (dir, enough) = (&dir, &enough);
                scope.spawn(move || work(dir, worker, rounds, enough))
            };
            let workers: Vec<_> = rounds.iter().enumerate().map(start).collect();
            let too_few = || rounds.iter().any(|rounds| rounds.load(Ordering::Relaxed) <= 20);
            let mut kills = 0u64;
            while (kills < 20 || too_few()) && !workers.iter().any(|worker| worker.is_finished()) {
                std::thread::sleep(Duration::from_millis(150 + kills * 37 % 200));
                mount.kill_daemon();
                kills += 1;
                held.write_all_at(&kills.to_le_bytes(), kills * 8).unwrap();
            }
            drop(end);
            eprintln!("{kills} kills, {rounds:?} rounds");
            for kill in 1..=kills {
                let mut word = [0; 8];
                held.read_exact_at(&mut word, kill * 8).unwrap();
                assert_eq!(u64::from_le_bytes(word), kill);
            }
        });
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    });
}

/// Ends the work, also when a check fails.
struct EndOfWork<'a>(&'a AtomicBool);

impl Drop for EndOfWork<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Creates, checks and removes names and content. Every step must succeed exactly once.
fn work(dir: &Path, worker: usize, rounds: &AtomicU64, enough: &AtomicBool) {
    while !enough.load(Ordering::Relaxed) {
        let round = rounds.load(Ordering::Relaxed);
        let path = |name: &str| dir.join(format!("{worker}-{name}-{round}"));
        let (a, b, d) = (path("a"), path("b"), path("dir"));
        let text = format!("{worker} {round} ").repeat(1000);
        let mut file = OpenOptions::new().write(true).create_new(true).open(&a).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        if round.is_multiple_of(3) {
            file.sync_all().unwrap();
        }
        drop(file);
        fs::create_dir(&d).unwrap();
        fs::hard_link(&a, &b).unwrap();
        symlink("target", path("link")).unwrap();
        rustix::fs::renameat_with(CWD, &a, CWD, path("link"), RenameFlags::EXCHANGE).unwrap();
        assert_eq!(fs::read_link(&a).unwrap(), Path::new("target"));
        fs::rename(&b, d.join("moved")).unwrap();
        rustix::fs::setxattr(d.join("moved"), "user.round", b"x", XattrFlags::CREATE).unwrap();
        assert_eq!(fs::read_to_string(d.join("moved")).unwrap(), text);
        assert_eq!(fs::metadata(path("link")).unwrap().nlink(), 2);
        assert_eq!(fs::read_dir(&d).unwrap().count(), 1);
        rustix::fs::removexattr(d.join("moved"), "user.round").unwrap();
        fs::remove_file(d.join("moved")).unwrap();
        fs::remove_dir(&d).unwrap();
        fs::remove_file(&a).unwrap();
        fs::remove_file(path("link")).unwrap();
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}
