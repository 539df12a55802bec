//! An unmount that takes time or is refused, and the next mount.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::Duration;

use terrace_tests::product;

use crate::test_mount::{TERRACE, TestMount, apart, kill, terrace, text, told, told_apart, wait_until};

/// generic/604 of xfstests: a mount waits for the end of an unmount that still writes.
#[test]
fn mount_waits_for_an_unmount_under_way() {
    let Some(test) = TestMount::mounted() else { return };
    fs::write(test.mnt.join("a"), "b").unwrap();
    fs::write(test.instances()[0].join("stopping"), "").unwrap();
    std::thread::scope(|scope| {
        let next = scope.spawn(|| test.mount(&[]));
        std::thread::sleep(Duration::from_millis(300));
        assert!(!next.is_finished(), "it does not wait");
        test.ask("umount", &[]).fine();
        next.join().unwrap().fine();
    });
    assert!(!test.instances()[0].join("stopping").exists(), "the next one starts anew");
    assert_eq!(fs::read(test.mnt.join("a")).unwrap(), b"b");
    test.finish();
}

/// A failed stop leaves no mark: the mount stays, and another mount is refused at once.
#[test]
fn a_refused_unmount_keeps_others_out() {
    let Some(test) = TestMount::mounted() else { return };
    let open = fs::File::create(test.mnt.join("a")).unwrap();
    test.ask("umount", &[]).refused(&["in use"]);
    test.mount(&[]).refused(&["already serves"]);
    drop(open);
    test.finish();
}

/// The kernel aborts the connection of a mount before it finds the mount in use.
#[test]
fn a_forced_unmount_of_a_busy_mount_ends_the_connection() {
    let Some(test) = TestMount::mounted() else { return };
    fs::write(test.mnt.join("a"), "b").unwrap();
    let mut open = fs::File::open(test.mnt.join("a")).unwrap();
    let (supervisor, _) = test.processes();
    // It would detach the mount.
    kill(supervisor, libc::SIGSTOP);
    let forced = test.ask("umount", &["-f"]);
    assert!(!forced.err.contains("nothing was unmounted"), "{}", forced.err);
    forced.refused(&["the connection to the daemon has ended", "in use by", "open file", "umount -l"]);
    assert!(open.metadata().is_err() || open.read(&mut [0]).is_err(), "requests fail");
    kill(supervisor, libc::SIGCONT);
    wait_until("the supervisor detaches it", || !test.is_mounted());
    assert_eq!(fs::read(test.src.join("a")).unwrap(), b"b");
    drop(open);
    test.nothing_is_left();
}

/// A lazily detached mount lives on for its open files. The next mount does not wait for its readers, and is
/// refused while there are writers.
#[test]
fn a_mount_after_a_lazy_unmount_comes_beside_readers_alone() {
    let Some(test) = TestMount::new() else { return };
    fs::write(test.src.join("a"), "a").unwrap();
    test.mount(&[]).fine();
    let writer = fs::File::options().append(true).open(test.mnt.join("a")).unwrap();
    kill(test.processes().0, libc::SIGTERM);
    wait_until("the mount is gone", || !test.is_mounted());
    test.mount(&[]).refused(&["files open for writing"]);
    drop(writer);
    let next = test.mount(&[]);
    assert_eq!(next.code, Some(0), "{}", next.err);
    let reader = fs::File::open(test.mnt.join("a")).unwrap();
    kill(test.processes().0, libc::SIGTERM);
    wait_until("the mount is gone", || !test.is_mounted());
    let next = test.mount(&[]);
    assert_eq!(next.code, Some(0), "{}", next.err);
    assert!(test.is_mounted());
    drop(reader);
    test.finish();
}

/// A program with its working directory in a detached mount can still read, but cannot change files that the
/// next mount serves.
#[test]
fn changes_through_a_mount_that_is_gone_are_refused() {
    let Some(test) = TestMount::new() else { return };
    fs::write(test.src.join("a"), "a").unwrap();
    test.mount(&[]).fine();
    let script = "import os, sys\n\
         def told(name, change):\n \
          try: change(); print(name, 'done')\n \
          except OSError as err: print(name, os.strerror(err.errno))\n\
         changes = dict(append=lambda: open('a', 'a'), create=lambda: open('b', 'w'), mkdir=lambda: os.mkdir('d'),\n \
          link=lambda: os.link('a', 'c'), symlink=lambda: os.symlink('a', 'l'), mode=lambda: os.chmod('a', 0o600),\n \
          size=lambda: os.truncate('a', 0), rename=lambda: os.rename('a', 'e'), remove=lambda: os.remove('a'))\n\
         print('begun', flush=True); sys.stdin.readline()\n\
         for name in changes: told(name, changes[name])\n\
         print(open('a').read())\n";
    let mut inside = Command::new("python3");
    inside.args(["-c", script]).current_dir(&test.mnt).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut inside = inside.spawn().unwrap();
    let mut said = BufReader::new(inside.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "begun\n");
    kill(test.processes().0, libc::SIGTERM);
    wait_until("the mount is gone", || !test.is_mounted());
    let next = test.mount(&[]);
    assert_eq!(next.code, Some(0), "{}", next.err);
    drop(inside.stdin.take());
    let lines: Vec<String> = said.lines().map(Result::unwrap).collect();
    let names = ["append", "create", "mkdir", "link", "symlink", "mode", "size", "rename", "remove"];
    let refused = names.map(|name| format!("{name} Read-only file system"));
    assert_eq!(lines, [&refused[..], &["a".to_owned()]].concat());
    inside.wait().unwrap();
    test.finish();
}

/// The claim on directories above the source does not keep mounts of these directories busy.
#[test]
fn mounts_of_directories_above_a_source_can_be_unmounted() {
    let Some(test) = TestMount::new() else { return };
    let [disk, bound, other] = ["disk", "bound", "other"].map(|name| test.file(name));
    [&disk, &bound, &other].into_iter().for_each(|dir| fs::create_dir(dir).unwrap());
    let script = format!(
        "t() {{ XDG_CONFIG_HOME=/nonexistent {terrace} \"$@\"; }}
         mount -t tmpfs none {disk} && mkdir -p {disk}/a/b && mount --bind {disk}/a/b {bound} || exit 9
         t mount --memory 32MiB {bound} {mnt} || exit 8
         umount {disk}; echo $?
         mount --bind {bound} {src}; t mount --memory 32MiB {src} {other} 2>/dev/null; echo $?
         t umount {mnt}; echo $?
         umount {src} {bound}; echo $?
         mount -t tmpfs none {disk} && mkdir -p {disk}/a/b && mount --bind {disk}/a/b {bound} || exit 7
         t mount --memory 32MiB {bound} {mnt} || exit 6
         t mount --memory 32MiB {disk}/a {other} 2>/dev/null; echo $?; t umount {mnt}; echo $?",
        terrace = TERRACE,
        disk = text(&disk),
        bound = text(&bound),
        other = text(&other),
        src = text(&test.src),
        mnt = text(&test.mnt),
    );
    let told = told_apart(&script);
    assert_eq!(told.out, "0\n2\n0\n0\n2\n0\n", "{}", told.whole_err);
    test.nothing_is_left();
}

/// Each path of the tree is claimed: the directory itself, those below and above, a bind mount, another mount
/// namespace.
#[test]
fn a_tree_has_one_mount_or_several_runs() {
    let Some(test) = TestMount::new() else { return };
    let (inner, bound, other) = (test.src.join("inner"), test.file("bound"), test.file("other"));
    [&inner, &bound, &other].into_iter().for_each(|dir| fs::create_dir(dir).unwrap());
    let mount = |src: &std::path::Path| told(terrace(["mount", "--memory", "32MiB"]).args([src, &other]));
    test.mount(&[]).fine();
    let by = format!("at {}", text(&test.mnt));
    let by = ["terrace serves", &by, "terrace umount"];
    mount(&test.src).refused(&by);
    mount(&inner).refused(&by);
    told(test.run("true")).refused(&by);
    for dir in [&test.src, &inner] {
        assert!(told(terrace(["doctor", text(dir)])).out.contains("a mount of terrace serves it"));
    }
    let script = format!(
        "mount --bind {0} {1}; umount -l {2}; exec {3} mount --memory 32MiB {1} {4}",
        text(&inner),
        text(&bound),
        text(&test.mnt),
        TERRACE,
        text(&other)
    );
    let told_there = told_apart(&script);
    assert!(told_there.code == Some(2) && told_there.err.contains("serves"), "{}", told_there.err);
    test.ask("umount", &[]).fine();

    let by_leases = |dir: &std::path::Path| {
        let mut run = terrace(["run", "--memory", "32MiB", "--on", text(dir), "--"]);
        run.env("TERRACE_PRELOAD", product("libterrace_preload.so"));
        run
    };
    let mut run = by_leases(&test.src);
    let ready = test.file("ready");
    let mut run = run.args(["sh", "-c", &format!("touch {}; exec sleep 60", text(&ready))]).spawn().unwrap();
    wait_until("the command runs", || ready.exists());
    mount(&inner).refused(&["`terrace run`", "serves"]);
    if test.info().device.is_none() {
        assert!(
            by_leases(&inner).arg("true").status().unwrap().success(),
            "runs by leases beside each other"
        );
    }
    kill(run.id() as i32, libc::SIGTERM);
    run.wait().unwrap();
    test.nothing_is_left();
    mount(&inner).fine();
    told(terrace(["umount", text(&other)]));
}

/// umount(8) itself finds the helper only through libmount's table. It returns when all is written, or fails.
#[test]
fn umount_of_the_system_waits_for_the_last_page() {
    let Some(test) = TestMount::with_small_source() else { return };
    let (links, run) = (test.file("links"), test.file("run"));
    [&links, &run].into_iter().for_each(|dir| fs::create_dir(dir).unwrap());
    for name in ["mount.fuse.terrace", "umount.fuse.terrace"] {
        std::os::unix::fs::symlink(TERRACE, links.join(name)).unwrap();
    }
    let script = format!(
        "sbin=$(readlink -f /sbin); src={src} mnt={mnt} t={terrace}; mkdir -p /run/mount
         mount -t overlay overlay -o lowerdir={links}:$sbin $sbin || {{ echo no overlay; exit 0; }}
         mount --bind {run} /run/mount
         noted() {{ grep -c \"TARGET=$mnt \" /run/mount/utab; }}
         unmounted() {{ echo \"$1: $? $(noted)\"; }}
         \"$t\" mount $src $mnt --memory 32MiB; noted
         dd if=/dev/zero of=$mnt/big bs=64K count=48 2>/dev/null; umount $mnt 2>/dev/null; unmounted full
         mount -o remount,size=20m {disk}; umount $mnt; unmounted plain; stat -c %s $src/big
         mount -t fuse.terrace -o memory=32MiB,x-a=b $src $mnt; umount $mnt; unmounted options
         \"$t\" mount $src $mnt --memory 32MiB; umount -a -t fuse.terrace -O uhelper=fuse.terrace; unmounted all
         \"$t\" mount $src $mnt --memory 32MiB; exec 7<$mnt/big; umount $mnt 2>/dev/null; unmounted busy
         umount -l $mnt; unmounted lazy; exec 7<&-
         \"$t\" mount $src $mnt --memory 32MiB; \"$t\" umount $mnt; unmounted own",
        src = text(&test.src),
        mnt = text(&test.mnt),
        terrace = TERRACE,
        links = text(&links),
        run = text(&run),
        disk = text(test.src.parent().unwrap()),
    );
    let told = told_apart(&script);
    if told.out.starts_with("no overlay") {
        terrace_testkit::skipped!("no overlay file system to put the helpers over /sbin: {}", told.err);
        return;
    }
    let lines: Vec<&str> = told.out.lines().collect();
    let expected = [
        "1",
        "full: 32 1",
        "plain: 0 0",
        "3145728",
        "options: 0 0",
        "all: 0 0",
        "busy: 32 1",
        "lazy: 0 0",
        "own: 0 0",
    ];
    assert_eq!(lines, expected, "{}", told.whole_err);
    test.nothing_is_left();
}

/// Without its record, nothing shows that an instance has written all. Sockets reveal another
/// XDG_RUNTIME_DIR, but not a deleted record.
#[test]
fn umount_without_a_record_is_refused() {
    let Some(test) = TestMount::mounted() else { return };
    let dir = test.instances()[0].clone();
    let hidden = test.file("hidden");
    fs::rename(dir.join("info.json"), &hidden).unwrap();
    test.ask("umount", &[]).refused(&["the record of its instance is missing", "terrace umount -l"]);
    assert!(test.is_mounted());
    fs::rename(&hidden, dir.join("info.json")).unwrap();
    test.finish();
}

/// By a user with another XDG_RUNTIME_DIR than at the mount, and by root.
#[test]
fn umount_finds_the_instance_in_other_runtime_directories() {
    let Some((test, begin)) = TestMount::for_user() else { return };
    let script = format!(
        "{begin} for by in user root; do
           user XDG_RUNTIME_DIR=$runtime $program mount --memory 32MiB {src} {mnt} || exit 8
           user sh -c 'exec 3>{src}/lock; echo $$ >{mnt}/'$by
           case $by in user) user $program umount {mnt};; *) $program umount {mnt};; esac
           echo $by $? $(grep -c ' {mnt} ' /proc/self/mountinfo) $(ls $runtime/terrace | wc -l) $(wc -l <{src}/$by)
         done",
        src = text(&test.src),
        mnt = text(&test.mnt),
    );
    let told = told_apart(&script);
    assert_eq!(told.out, "user 0 0 0 1\nroot 0 0 0 1\n", "{}", told.whole_err);
    test.nothing_is_left();
}

/// The instance of the mount at the path, not the one with the highest process id.
#[test]
fn the_mount_at_a_path_has_its_own_instance() {
    let Some(test) = TestMount::new() else { return };
    let first = TestMount::dirs();
    fs::write(first.src.join("a"), "a").unwrap();
    told(terrace(["mount", "--memory", "48MiB"]).args([&first.src, &test.mnt])).fine();
    let held = fs::File::open(test.mnt.join("a")).unwrap();
    told(terrace(["umount", "-l", text(&test.mnt)])).fine();
    test.mount(&[]).fine();
    // After a wrap-around of process ids, the older instance has the higher one.
    let [dir] = &first.instances()[..] else { panic!("it lives for its open file") };
    let record = fs::read_to_string(dir.join("info.json")).unwrap();
    let pid = format!("\"pid\":{},", first.info().pid);
    fs::write(dir.join("info.json"), record.replace(&pid, &format!("\"pid\":{},", i32::MAX))).unwrap();
    assert_eq!(test.stat().cache.memory.limit_bytes, 32 << 20);
    test.ask("umount", &[]).fine();
    assert!(!test.is_mounted());
    drop(held);
    first.nothing_is_left();
    test.nothing_is_left();
}

/// Mounts inside their own sources, made before or after, alone and in pairs: every walk ends.
#[test]
fn circles_are_refused_or_not_entered() {
    let Some(test) = TestMount::new() else { return };
    let other = TestMount::dirs();
    let (inner, crossing) = (test.src.join("m"), other.src.join("m"));
    [&inner, &crossing].into_iter().for_each(|dir| fs::create_dir(dir).unwrap());
    let script = format!(
        "t='{terrace}'; \"$t\" mount --memory 32MiB {src} {mnt} || exit 9
         mount --bind {mnt} {inner}; sleep 0.3
         timeout -s KILL 60 find {mnt} >/dev/null 2>{said}; echo find $?; grep -c 'levels of symbolic links' {said}
         timeout -s KILL 60 ls {mnt} | wc -l; timeout -s KILL 60 \"$t\" mount --memory 32MiB {other} {crossing} 2>/dev/null; echo mount $?
         umount {inner}; timeout -s KILL 60 ls {mnt}/m; echo ls $?
         \"$t\" umount {mnt} && \"$t\" mount --memory 32MiB {src} {crossing} || exit 8
         \"$t\" mount --memory 32MiB {other} {inner}; echo pair $?; \"$t\" umount {crossing}",
        terrace = TERRACE,
        src = text(&test.src),
        mnt = text(&test.mnt),
        inner = text(&inner),
        said = text(&test.file("said")),
        other = text(&other.src),
        crossing = text(&crossing),
    );
    let told = told_apart(&script);
    let expected = "find 1\n1\n1\nmount 2\nls 0\npair 2\n";
    assert_eq!(told.out, expected, "{}", told.whole_err);
    assert!(told.err.contains("terrace is mounted inside the source"), "{}", told.err);
    test.nothing_is_left();
    other.nothing_is_left();
}

/// As for x-systemd.automount: an autofs is at the mount point, and the mount covers it without triggering
/// it.
#[test]
fn a_mount_comes_over_an_autofs() {
    let Some(test) = TestMount::new() else { return };
    fs::write(test.src.join("a"), "content").unwrap();
    // The pipe gets no answer: a process that triggers the automount hangs, unless it is in this process
    // group.
    let script = format!(
        "import ctypes, os, subprocess, sys\n\
         libc = ctypes.CDLL(None, use_errno=True); reader, writer = os.pipe()\n\
         options = f'fd={{writer}},pgrp={{os.getpgrp()}},minproto=5,maxproto=5,direct'.encode()\n\
         if libc.mount(b'systemd-1', {mnt:?}.encode(), b'autofs', 0, options): print('no autofs'); sys.exit()\n\
         mounted = subprocess.run([{terrace:?}, 'mount', '--memory', '32MiB', {src:?}, {mnt:?}], timeout=60, start_new_session=True)\n\
         print(mounted.returncode, open({mnt:?} + '/a').read())\n\
         print(subprocess.run([{terrace:?}, 'umount', {mnt:?}], timeout=100).returncode)\n",
        terrace = TERRACE,
        src = text(&test.src),
        mnt = text(&test.mnt),
    );
    let told = told(apart(&["python3", "-c", &script]));
    if told.out == "no autofs\n" {
        terrace_testkit::skipped!("this kernel has no autofs");
        return;
    }
    assert_eq!(told.out, "0 content\n0\n", "{}", told.whole_err);
    test.nothing_is_left();
}
