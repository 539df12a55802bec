//! Promises about the mount and the command that need several processes or operations to test.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::process::Command;
use std::time::Duration;
use terrace_testkit::wait::holds_within;
use terrace_tests::memory::Memory;
use terrace_tests::process::{self, Background};
use terrace_tests::rng::{Rng, fill, seed};
use terrace_tests::tools::compile;
use terrace_tests::{Side, SmallDisk, TestDir, TestMount, amount, is_root, leftovers, product, terrace};

fn bytes(pattern: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    fill(&mut out, pattern);
    out
}

#[test]
fn a_directory_of_100_000_entries() {
    let mount = TestMount::new("entries", Side::Mount, "32MiB");
    let count = 100_000;
    fs::create_dir(mount.src().join("many")).unwrap();
    for n in 0..count {
        fs::File::create(mount.src().join(format!("many/entry-{n:06}"))).unwrap();
    }
    let names: Vec<String> = fs::read_dir(mount.at().join("many"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names.len(), count);
    let unique: BTreeSet<&String> = names.iter().collect();
    assert_eq!(unique.len(), count, "an entry came twice");
    assert_eq!(*unique.first().unwrap(), "entry-000000");
    assert_eq!(*unique.last().unwrap(), "entry-099999");
    // Removing while reading: each other entry appears exactly once.
    let mut left = BTreeSet::new();
    for (n, entry) in fs::read_dir(mount.at().join("many")).unwrap().enumerate() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if n % 50 == 0 {
            fs::remove_file(mount.at().join("many").join(&name)).unwrap();
        } else {
            assert!(left.insert(name), "an entry came twice");
        }
    }
    assert_eq!(left.len(), count - count / 50);
    mount.finish();
}

#[test]
fn names_of_255_bytes() {
    let mount = TestMount::new("names", Side::Mount, "16MiB");
    let (longest, too_long) = ("x".repeat(255), "x".repeat(256));
    fs::write(mount.at().join(&longest), "text").unwrap();
    assert_eq!(fs::read(mount.src().join(&longest)).unwrap(), b"text");
    assert_eq!(fs::read_dir(mount.at()).unwrap().next().unwrap().unwrap().file_name().len(), 255);
    let why = fs::write(mount.at().join(&too_long), "text").unwrap_err();
    assert_eq!(why.raw_os_error(), Some(libc::ENAMETOOLONG));
    let not_utf8 = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"\xff\xfe \n\"\\");
    fs::write(mount.at().join(not_utf8), "odd").unwrap();
    assert_eq!(fs::read(mount.at().join(not_utf8)).unwrap(), b"odd");
    mount.finish();
}

#[test]
fn files_over_4_gib() {
    for side in [Side::Mount, Side::Preload] {
        let mount = TestMount::new("huge", side, "16MiB");
        let script = r#"
            for at in 0 4194303 4294967290 4294967296 5000000000 8796093000000; do
                printf "at $at" | dd of=huge bs=1 seek=$at conv=notrunc status=none
            done
            stat -c %s huge
            for at in 0 4194303 4294967290 4294967296 5000000000 8796093000000; do
                dd if=huge bs=1 skip=$at count=12 status=none | tr '\0' .; echo
            done
            truncate -s 4294967300 huge; stat -c %s huge; tail -c 12 huge
        "#;
        let said = mount.shell(script, 120);
        mount.drop_cache();
        let plain = TestMount::new("huge", Side::Plain, "");
        assert_eq!(said, plain.shell(script, 120));
        let tail = mount.shell("tail -c 12 huge; test $(du -k huge | cut -f 1) -lt 1000", 60);
        assert_eq!(tail.len(), 12);
        mount.finish();
    }
}

#[test]
fn locks_between_processes() {
    let mount = TestMount::new("locks", Side::Mount, "16MiB");
    fs::write(mount.at().join("file"), "text").unwrap();
    mount.shell("exec 9< file; flock 9; ! flock -n file true; flock -u 9; flock -n file true", 30);
    let python = "import fcntl, os, sys\n\
        f = open('file', 'r+'); fcntl.lockf(f, fcntl.LOCK_EX, 10, 5)\n\
        pid = os.fork()\n\
        if pid == 0:\n\
        \x20   g = open('file', 'r+')\n\
        \x20   fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 0)\n\
        \x20   try: fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 10)\n\
        \x20   except OSError: os._exit(0)\n\
        \x20   os._exit(1)\n\
        assert os.waitpid(pid, 0)[1] == 0\n";
    process::run(mount.command("python3").args(["-c", python]), 30).expect_success();
    mount.finish();
}

#[test]
fn statfs_is_the_sources() {
    let mount = TestMount::new("statfs", Side::Mount, "16MiB");
    let tell = |path: &std::path::Path| {
        let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: statvfs is plain data, filled by the call.
        unsafe {
            let mut st: libc::statvfs = std::mem::zeroed();
            assert_eq!(libc::statvfs(path.as_ptr(), &raw mut st), 0);
            (st.f_blocks * st.f_frsize, st.f_files, st.f_namemax, st.f_bsize)
        }
    };
    assert_eq!(tell(mount.at()), tell(mount.src()));
    mount.finish();
}

#[test]
fn permissions_are_checked_by_the_mount() {
    if !is_root() {
        return;
    }
    for side in [Side::Mount, Side::Preload] {
        let mount = TestMount::new("permissions", side, "16MiB");
        fs::set_permissions(mount.src(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(mount.at().join("secret"), bytes(1, 9000)).unwrap();
        fs::set_permissions(mount.at().join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(mount.at().join("public"), bytes(2, 9000)).unwrap();
        // Resident in the cache: still inaccessible to other users.
        fs::read(mount.at().join("secret")).unwrap();
        let mut command = mount.command("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "/bin/bash", "-uc"]);
        command.arg(
            "cat public | wc -c; cat secret; echo x > public; echo x > new; mv public other; rm -f public; \
             chmod 777 secret; ln public hard; truncate -s 0 secret; setfattr -n user.x -v y public; ls | sort | xargs",
        );
        let outcome = process::run(&mut command, 30);
        let said: Vec<&str> = outcome.stdout.lines().collect();
        assert_eq!(said, ["9000", "public secret"], "{outcome}");
        assert!(
            outcome.stderr.matches("denied").count() + outcome.stderr.matches("not permitted").count() >= 8,
            "{outcome}"
        );
        mount.finish();
    }
}

#[test]
fn many_openers_at_once() {
    let mount = TestMount::new("openers", Side::Mount, "16MiB");
    for n in 0..8 {
        fs::write(mount.at().join(format!("f{n}")), bytes(n, 300_000)).unwrap();
    }
    std::thread::scope(|scope| {
        for t in 0..64u64 {
            let at = mount.at();
            scope.spawn(move || {
                let mut rng = Rng::new(t);
                for _ in 0..30 {
                    let n = rng.below(8);
                    let file = fs::File::open(at.join(format!("f{n}"))).unwrap();
                    let (offset, len) = (rng.below(290_000), 1 + rng.below(9000) as usize);
                    let mut buf = vec![0; len];
                    file.read_exact_at(&mut buf, offset).unwrap();
                    assert!(buf == bytes(n, 300_000)[offset as usize..][..len], "file {n} at {offset}");
                }
            });
        }
    });
    // Thousands of descriptors on one file.
    let all: Vec<fs::File> = (0..800).map(|_| fs::File::open(mount.at().join("f1")).unwrap()).collect();
    let mut buf = [0; 100];
    all.iter().for_each(|file| file.read_exact_at(&mut buf, 777).unwrap());
    drop(all);
    mount.finish();
}

/// Programs that bypass the mount see data after fsync, after close, and after `terrace sync`.
#[test]
fn source_shows_data_after_sync_and_close() {
    let mount = TestMount::new("source", Side::Mount, "16MiB");
    let data = bytes(5, 100_000);
    let file = fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(mount.at().join("file"))
        .unwrap();
    let source = |name: &str| fs::read(mount.src().join(name)).unwrap();
    file.write_all_at(&data, 0).unwrap();
    assert_eq!(
        fs::metadata(mount.src().join("file")).unwrap().len(),
        100_000,
        "the size is extended at once"
    );
    file.sync_data().unwrap();
    assert!(source("file") == data, "after fdatasync");
    file.write_all_at(b"more", 50_000).unwrap();
    file.sync_all().unwrap();
    assert_eq!(&source("file")[50_000..50_004], b"more", "after fsync");
    file.write_all_at(b"flushed", 60_000).unwrap();
    mount.terrace("sync", &[]).expect_success();
    assert_eq!(&source("file")[60_000..60_007], b"flushed", "after terrace sync");
    file.write_all_at(b"closed", 70_000).unwrap();
    drop(file);
    assert_eq!(&source("file")[70_000..70_006], b"closed", "after close");
    let sync = |flag: i32| {
        let file = fs::File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(flag)
            .open(mount.at().join("sync"))
            .unwrap();
        file.write_all_at(&data[..5000], 3).unwrap();
        assert!(source("sync")[3..] == data[..5000], "written with flags {flag:x}");
    };
    sync(libc::O_SYNC);
    sync(libc::O_DSYNC);
    // O_DIRECT with a tail shorter than a block.
    let direct = fs::File::options()
        .write(true)
        .create(true)
        .custom_flags(libc::O_DIRECT)
        .open(mount.at().join("direct"))
        .unwrap();
    let mut buffer = vec![0u8; 3 * 4096];
    let start = buffer.as_ptr().align_offset(4096);
    fill(&mut buffer[start..][..8192], 9);
    direct.write_all_at(&buffer[start..][..8192], 0).unwrap();
    direct.set_len(5000).unwrap();
    drop(direct);
    assert!(source("direct") == buffer[start..][..5000]);
    mount.finish();
}

/// Changes of the source before the mount, or in files that are not cached, are visible.
#[test]
fn a_fresh_mount_shows_the_source() {
    let mount = TestMount::new("fresh", Side::Mount, "16MiB");
    for round in 0..3 {
        let data = bytes(round, 70_000);
        fs::write(mount.at().join("file"), &data).unwrap();
        assert!(fs::read(mount.at().join("file")).unwrap() == data);
        mount.umount();
        assert!(fs::read(mount.src().join("file")).unwrap() == data);
        fs::write(mount.src().join("file"), bytes(round + 100, 50_000)).unwrap();
        mount.mount();
        assert!(fs::read(mount.at().join("file")).unwrap() == bytes(round + 100, 50_000));
    }
    mount.finish();
}

#[test]
fn timestamps_move_as_they_should() {
    let mount = TestMount::new("times", Side::Mount, "16MiB");
    let path = mount.at().join("file");
    fs::write(&path, "text").unwrap();
    let times = || {
        let m = fs::metadata(&path).unwrap();
        ((m.mtime(), m.mtime_nsec()), (m.ctime(), m.ctime_nsec()))
    };
    let pause = || std::thread::sleep(std::time::Duration::from_millis(30));
    let before = times();
    pause();
    fs::read(&path).unwrap();
    assert_eq!(times(), before, "reading");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(times().0, before.0, "chmod leaves mtime");
    assert!(times().1 > before.1, "chmod moves ctime");
    let before = times();
    pause();
    fs::File::options().write(true).open(&path).unwrap().write_all_at(b"more", 2).unwrap();
    assert!(times().0 > before.0 && times().1 > before.1, "write moves both");
    let written = times();
    mount.terrace("sync", &[]).expect_success();
    mount.drop_cache();
    assert_eq!(times().0, written.0, "writeback does not move mtime");
    mount.umount();
    let source = fs::metadata(mount.src().join("file")).unwrap();
    let gap = (source.mtime() - written.0.0) * 1_000_000_000 + source.mtime_nsec() - written.0.1;
    assert!(gap.abs() < 20_000_000, "the source has the mtime that was shown: {gap} ns apart");
    mount.mount();
    mount.finish();
}

/// A full source file system gives an error at the write or at fsync; no page acknowledged as synced is lost.
#[test]
fn a_full_source() {
    let Some(disk) = SmallDisk::new("full", 48) else { return };
    let (dir, src) = (TestDir::new("full"), disk.path());
    let mnt = dir.sub("mnt");
    process::run(terrace(&["mount", "--memory", "16MiB"]).args([src, &mnt]), 120).expect_success();
    let file = fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(mnt.join("file"))
        .unwrap();
    let (mut synced, mut failed) = (0u64, false);
    for n in 0..80u64 {
        let wrote = file.write_all_at(&bytes(n, 1 << 20), n << 20);
        let fsynced = file.sync_all();
        match (wrote, fsynced) {
            (Ok(()), Ok(())) if !failed => synced = n + 1,
            (Ok(()), Ok(())) => {}
            (wrote, fsynced) => {
                let why = wrote.and(fsynced).unwrap_err();
                assert_eq!(why.raw_os_error(), Some(libc::ENOSPC), "{why}");
                failed = true;
            }
        }
    }
    assert!(failed, "80 MiB fitted into 48");
    for n in 0..synced {
        let mut back = vec![0; 1 << 20];
        file.read_exact_at(&mut back, n << 20).unwrap();
        assert!(back == bytes(n, 1 << 20), "MiB {n} through the mount");
    }
    // With room again, the file is usable as any other.
    file.set_len(synced << 20).unwrap();
    file.sync_all().ok();
    fs::write(mnt.join("small"), "text").unwrap();
    file.write_all_at(b"again", 100).unwrap();
    file.sync_all().expect("there is room again");
    drop(file);
    process::run(terrace(&["check"]).arg(&mnt), 120).expect_success();
    process::run(terrace(&["umount"]).arg(&mnt), 120).expect_success();
    let source = fs::File::open(src.join("file")).unwrap();
    for n in 0..synced {
        let mut back = vec![0; 1 << 20];
        source.read_exact_at(&mut back, n << 20).unwrap();
        let mut expected = bytes(n, 1 << 20);
        if n == 0 {
            expected[100..105].copy_from_slice(b"again");
        }
        assert!(back == expected, "MiB {n} in the source");
    }
    drop(source);
    process::run(Command::new("umount").arg(src), 120).expect_success();
    let left = leftovers::find(dir.path());
    assert!(left.is_empty(), "left behind: {left:#?}");
}

#[test]
fn memory_is_a_hard_limit_and_can_be_changed() {
    let mount = TestMount::new("memory", Side::Preload, "64MiB");
    let mib = amount("TERRACE_MEMORY_MIB", 200, 2000);
    let script = |n: u64| {
        format!(
            "dd if=/dev/urandom of=big bs=1M count={n} status=none; for i in 1 2; do dd if=big of=/dev/null bs=64k status=none; done"
        )
    };
    mount.shell(&script(mib), 600);
    Memory::of(&mount).within(64);
    mount.terrace("resize", &["24MiB"]).expect_success();
    Memory::of(&mount).within(24);
    mount.shell("for i in 1 2; do dd if=big of=/dev/null bs=64k status=none; done", 600);
    Memory::of(&mount).within(24);
    mount.check();
    mount.terrace("resize", &["64MiB"]).expect_success();
    mount.shell("md5sum big > /dev/null", 600);
    mount.finish();
}

/// Each client has a ring of a quarter of a megabyte: many clients must not take the pool's memory, nor
/// exceed the instance's limit.
#[test]
fn memory_is_a_hard_limit_for_a_crowd_of_clients() {
    let mount = TestMount::new("crowd", Side::Preload, "24MiB");
    mount.shell(
        "dd if=/dev/urandom of=big bs=1M count=40 status=none; seq 1 2000 | split -l 1 -a 4 - small",
        600,
    );
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let reader = "dd if=big of=/dev/null bs=256k status=none; cat small* > /dev/null";
            mount.shell(&format!("for i in $(seq 60); do ({reader}) & done; wait"), 600);
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        while !done.load(std::sync::atomic::Ordering::Relaxed) {
            Memory::of(&mount).within(24);
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    });
    Memory::of(&mount).within(24);
    mount.finish();
}

#[test]
fn run_keeps_status_signals_and_leaves_nothing() {
    let dir = TestDir::new("run");
    let on = dir.sub("data");
    let run = |args: &[&str]| {
        let mut command = terrace(&["run", "--memory", "16MiB", "--on"]);
        command.arg(&on).arg("--").args(args);
        command
    };
    let code = |args: &[&str]| process::run(run(args), 60).status.code();
    assert_eq!(code(&["true"]), Some(0));
    assert_eq!(code(&["sh", "-c", "exit 37"]), Some(37));
    let file = on.join("file").to_str().unwrap().to_owned();
    process::run(run(&["sh", "-c", &format!("seq 1 100000 > {file}; md5sum < {file}")]), 60).expect_success();
    assert_eq!(
        fs::read_to_string(&file).unwrap().lines().count(),
        100_000,
        "all is in the source afterwards"
    );
    // Killed by a signal: flushed and unmounted all the same.
    let killed = process::run(run(&["sh", "-c", &format!("echo late >> {file}; kill -9 $$")]), 60);
    assert!(!killed.status.success(), "{killed}");
    assert!(fs::read_to_string(&file).unwrap().ends_with("late\n"));
    assert!(leftovers::find(dir.path()).is_empty(), "{:#?}", leftovers::find(dir.path()));
    // Signals reach the program: SIGTERM to terrace ends it with the program's own handling.
    let ready = dir.path().join("ready");
    let script = format!(
        "trap 'echo bye >> {file}; exit 9' TERM; touch {}; while :; do sleep 0.05; done",
        ready.display()
    );
    let mut running = Background::new(&mut run(&["bash", "-c", &script]));
    assert!(holds_within(Duration::from_secs(20), || ready.exists()));
    process::kill(running.id(), libc::SIGTERM);
    let status = running.wait(std::time::Duration::from_secs(20)).expect("it ends");
    assert_eq!(status.code(), Some(9));
    assert!(fs::read_to_string(&file).unwrap().ends_with("bye\n"));
    assert!(leftovers::find(dir.path()).is_empty(), "{:#?}", leftovers::find(dir.path()));
    // `terrace run` itself killed with -9: its command continues, and its end flushes and unmounts.
    let mut running = Background::new(&mut run(&[
        "bash",
        "-c",
        &format!(
            "trap 'echo kept >> {file}; exit' TERM; touch {}2; while :; do sleep 0.05; done",
            ready.display()
        ),
    ]));
    assert!(holds_within(Duration::from_secs(20), || std::path::Path::new(&format!("{}2", ready.display()))
        .exists()));
    process::kill(running.id(), libc::SIGKILL);
    assert!(running.wait(std::time::Duration::from_secs(20)).is_some());
    process::kill(-running.id(), libc::SIGTERM);
    assert!(leftovers::find(dir.path()).is_empty(), "{:#?}", leftovers::find(dir.path()));
    assert!(fs::read_to_string(&file).unwrap().ends_with("kept\n"));
}

/// `terrace run` works without root if the kernel allows it.
#[test]
fn run_without_root() {
    if !is_root() {
        return;
    }
    let dir = TestDir::new("run-user");
    let on = dir.sub("data");
    std::os::unix::fs::chown(&on, Some(65534), Some(65534)).unwrap();
    let device = dir.path().join("fuse");
    if !process::may_unshare("65534", &device) {
        return;
    }
    let script = "cd \"$0\"; seq 1 50000 > file; md5sum < file; sort -rn file | tail -1; id -u";
    let mut command = process::as_user("65534", &device);
    command.env("XDG_RUNTIME_DIR", &on).env("HOME", &on);
    command.arg(product("terrace")).args(["run", "--memory", "16MiB", "--on"]).arg(&on);
    command.args(["--", "sh", "-c", script]).arg(&on);
    let said = process::run(&mut command, 60).expect_success();
    assert!(said.lines().any(|l| l == "1"), "{said}");
    assert_eq!(fs::read_to_string(on.join("file")).unwrap().lines().count(), 50_000);
}

/// The kernel caches listings, and sees changes through the mount and behind it.
#[test]
fn listings_that_the_kernel_keeps_follow_changes() {
    let mount = TestMount::new("listings", Side::Mount, "16MiB");
    let (behind, through) = (mount.src().join("d"), mount.at().join("d"));
    fs::create_dir(&behind).unwrap();
    let mut names: std::collections::BTreeSet<_> = (0..300).map(|i| format!("file-{i}")).collect();
    names.iter().for_each(|name| fs::write(behind.join(name), "x").unwrap());
    let list =
        || fs::read_dir(&through).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    for round in 0..8 {
        // Every other round the times are old enough for the listing to be cached.
        if round % 2 == 0 {
            std::thread::sleep(std::time::Duration::from_millis(3100));
            assert_eq!(names, list());
        }
        assert_eq!(names, list());
        let (new, dir) = (format!("new-{round}"), if round < 4 { &behind } else { &through });
        fs::write(dir.join(&new), "x").unwrap();
        names.insert(new);
        assert_eq!(names, list(), "made, round {round}");
        let old = names.first().unwrap().clone();
        fs::remove_file(dir.join(&old)).unwrap();
        names.remove(&old);
        assert_eq!(names, list(), "removed, round {round}");
    }
    mount.finish();
}

/// The counters move: hits by the expected path.
#[test]
fn stat_tells_what_happened() {
    let mount = TestMount::new("stat", Side::Preload, "32MiB");
    mount.shell("dd if=/dev/urandom of=data bs=1M count=8 status=none", 60);
    // Unstable data cost more than the page examined below.
    mount.terrace("sync", &[]).expect_success();
    let text = |mount: &TestMount| mount.terrace("stat", &[]).expect_success();
    assert!(!text(&mount).is_empty());
    let before = mount.stat();
    let seed = seed("stat");
    let fio = format!(
        "fio --name=r --filename=data --rw=randread --bs=4k --ioengine=psync --size=8m --loops=4 --invalidate=0 --randseed={seed} --minimal > /dev/null"
    );
    mount.shell(&fio, 120);
    let after = mount.stat();
    println!("{after:#?}");
    let (preload, door_before) = (&after.cache.preload, &before.cache.preload);
    let (hits, misses) = (preload.hits - door_before.hits, preload.misses - door_before.misses);
    assert!(hits > 7000, "8192 reads of resident data: {hits} hits and {misses} misses at the preload path");
    let generations = &after.cache.generations;
    let oldest = generations.iter().map(|row| row.age_ms).max();
    assert!(oldest.is_some_and(|ms| ms < 600_000), "no page is older than the mount: {generations:?}");
    assert!(after.cache.memory.metadata_bytes_per_page <= 32.0);
    mount.finish();
}

/// A descriptor open at terraced's death continues to work, and reads of resident pages do not wait for the
/// new terraced.
#[test]
fn open_descriptors_survive_a_restart() {
    for side in [Side::Mount, Side::Preload] {
        let mount = TestMount::new("restart", side, "16MiB");
        let script = r#"
            exec 7<> file
            printf 'one two three' >&7
            kill -9 $TERRACED
            printf ' four' >&7
            mkdir dir; mv file dir/file; ln dir/file dir/hard; rm dir/hard; ln -s file dir/soft
            cat dir/file; echo; cat dir/soft; echo; stat -c '%s %h' dir/file
            exec 8< dir/file; rm dir/file
            until [ -s $PIDFILE ]; do sleep 0.02; done; kill -9 $(cat $PIDFILE)
            cat <&8; echo; ls dir
        "#;
        let pid_file = mount.aside().join("pid");
        let mut command = mount.command("/bin/bash");
        command
            .arg("-euc")
            .arg(script)
            .env("TERRACED", mount.terraced().to_string())
            .env("PIDFILE", &pid_file);
        // The second one to kill is the successor started by the supervisor, found from outside.
        let first = mount.terraced();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                holds_within(Duration::from_secs(20), || mount.terraced() != first);
                fs::write(&pid_file, mount.terraced().to_string()).unwrap();
            });
            command.env("BASH_ENV", "/dev/null");
            let said = process::run(&mut command, 60).expect_success();
            let expected = "one two three four\none two three four\n18 1\none two three four\nsoft\n";
            assert_eq!(said, expected);
        });
        mount.finish();
    }
}

/// The same inode through both paths has one number, and files keep theirs.
#[test]
fn inode_numbers_are_the_sources() {
    let mount = TestMount::new("inodes", Side::Mount, "16MiB");
    fs::create_dir(mount.at().join("dir")).unwrap();
    fs::write(mount.at().join("dir/file"), "text").unwrap();
    fs::hard_link(mount.at().join("dir/file"), mount.at().join("hard")).unwrap();
    let number = |path: &std::path::Path, name: &str| fs::metadata(path.join(name)).unwrap().ino();
    for name in ["dir", "dir/file", "hard"] {
        assert_eq!(number(mount.at(), name), number(mount.src(), name), "{name}");
    }
    let held = fs::File::open(mount.at().join("hard")).unwrap();
    fs::rename(mount.at().join("hard"), mount.at().join("renamed")).unwrap();
    assert_eq!(held.metadata().unwrap().ino(), number(mount.src(), "renamed"));
    drop(held);
    mount.finish();
}

/// A client's descriptor in a program without the library: its mapping is not announced.
#[test]
fn a_mapping_through_an_inherited_descriptor() {
    let mount = TestMount::new("inherited", Side::Preload, "16MiB");
    let program = mount.aside().join("inherited_map");
    compile("inherited_map", &program, &[]);
    fs::write(mount.src().join("db"), [b'A'; 8192]).unwrap();
    let said = process::run(mount.command(&program).arg("db"), 60).expect_success();
    assert_eq!(said, "A B B B\n", "before, during the mapping through both descriptors, after");
    mount.finish();
}
