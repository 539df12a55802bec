//! A mount from its start to its orderly end, for each way in which it can end.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Child, Command, Stdio};

use crate::test_mount::{
    Outcome, TERRACE, TestMount, alive, apart, kill, sleeps, terrace, text, told, told_apart, wait_until,
    write_apart,
};

#[test]
fn all_commands_on_one_mount() {
    let Some(test) = TestMount::new() else { return };
    fs::write(test.src.join("old"), "old").unwrap();
    // `output()` returns when the pipes are closed: the supervisor must not hold them.
    test.mount(&["--policy", "lru"]).fine();
    assert_eq!(fs::read(test.mnt.join("old")).unwrap(), b"old");
    fs::write(test.mnt.join("new"), "new").unwrap();
    test.ask("sync", &[]).fine();
    assert_eq!(fs::read(test.src.join("new")).unwrap(), b"new");

    let stat = test.stat();
    assert_eq!(stat.cache.policy, "lru");
    assert_eq!(stat.instance.src, test.src);
    assert_eq!(stat.cache.memory.limit_bytes, 32 << 20);
    let page = test.ask("stat", &[]).fine().out;
    assert!(page.contains("preload path") && page.contains("writeback"), "{page}");
    assert!(told(terrace(["stat"])).out.contains(text(&test.mnt)));

    assert!(test.ask("drop-caches", &[]).fine().out.contains("clean pages dropped"));
    assert!(test.ask("check", &[]).fine().out.contains("agree"));
    test.ask("resize", &["64MiB"]).fine();
    assert_eq!(test.stat().cache.memory.limit_bytes, 64 << 20);
    test.ask("umount", &[]).fine();
    assert!(!test.is_mounted() && test.instances().is_empty(), "umount waits for the end");
    test.mount(&[]).fine();
    test.ask("umount", &[]).fine();
}

#[test]
fn a_busy_mount_stays_and_its_holder_is_named() {
    let Some(test) = TestMount::mounted() else { return };
    let mut holder = Command::new("sleep").arg("60").current_dir(&test.mnt).spawn().unwrap();
    test.ask("umount", &[]).refused(&["in use by sleep", &format!("pid {}", holder.id()), "cwd", "repeat"]);
    assert!(test.is_mounted());
    fs::write(test.mnt.join("still"), "served").unwrap();
    holder.kill().unwrap();
    holder.wait().unwrap();
    let file = fs::File::create(test.mnt.join("open")).unwrap();
    test.ask("umount", &[]).refused(&[&format!("pid {}", std::process::id()), "open file"]);
    drop(file);
    test.finish();
}

#[test]
fn sigterm_to_supervisor_or_terraced_stops_in_order() {
    let Some(test) = TestMount::new() else { return };
    for to_supervisor in [true, false] {
        test.mount(&[]).fine();
        let (supervisor, terraced) = test.processes();
        fs::write(test.mnt.join("last"), "words").unwrap();
        kill(supervisor, libc::SIGINT);
        kill(if to_supervisor { supervisor } else { terraced }, libc::SIGTERM);
        test.nothing_is_left();
        wait_until("both end", || !alive(supervisor) && !alive(terraced));
        assert_eq!(fs::read(test.src.join("last")).unwrap(), b"words");
    }
}

#[test]
fn sigterm_with_open_files_serves_them_to_their_end() {
    let Some(test) = TestMount::mounted() else { return };
    let (supervisor, _) = test.processes();
    let mut file = fs::File::create(test.mnt.join("long")).unwrap();
    kill(supervisor, libc::SIGTERM);
    wait_until("unmounted", || !test.is_mounted());
    file.write_all(b"written after the end").unwrap();
    assert!(alive(supervisor));
    drop(file);
    test.nothing_is_left();
    assert_eq!(fs::read(test.src.join("long")).unwrap(), b"written after the end");
}

#[test]
fn umount_of_the_system_ends_it_too() {
    let Some(test) = TestMount::mounted() else { return };
    assert!(write_apart(&test.mnt.join("a"), b"b"));
    told(Command::new("umount").arg(&test.mnt)).fine();
    test.nothing_is_left();
    assert_eq!(fs::read(test.src.join("a")).unwrap(), b"b");
}

/// Unmounted with umount(8) while the source refuses the last writes: the next mount reports the loss.
#[test]
fn next_mount_reports_writes_refused_after_the_unmount() {
    let Some(test) = TestMount::with_small_source() else { return };
    test.mount(&[]).fine();
    let (supervisor, terraced) = test.processes();
    fs::write(test.src.join("full"), vec![0; 900_000]).unwrap();
    assert!(!write_apart(&test.mnt.join("f"), &[7; 3_000_000]), "the close fails");
    told(Command::new("umount").arg(&test.mnt)).fine();
    wait_until("both end", || !alive(supervisor) && !alive(terraced));
    let [dir] = &test.instances()[..] else { panic!("its directory stays, to tell") };
    let log = fs::read_to_string(dir.join("terraced.log")).unwrap();
    assert!(log.contains("No space left") && log.contains("unwritten in f: lost"), "{log}");
    fs::remove_file(test.src.join("full")).unwrap();
    let again = test.mount(&[]);
    assert_eq!(again.code, Some(0), "{}", again.err);
    for part in ["the previous instance", "unwritten in f: lost", "No space left"] {
        assert!(again.err.contains(part), "`{part}` is not in: {}", again.err);
    }
    test.finish();
}

#[test]
fn a_source_that_has_room_again_gets_the_last_writes() {
    let Some(test) = TestMount::with_small_source() else { return };
    test.mount(&[]).fine();
    fs::write(test.src.join("full"), vec![0; 900_000]).unwrap();
    assert!(!write_apart(&test.mnt.join("f"), &[7; 600_000]), "the close fails");
    told(Command::new("umount").arg(&test.mnt)).fine();
    let log = || test.instances().first().and_then(|dir| fs::read_to_string(dir.join("terraced.log")).ok());
    wait_until("it was refused once", || log().is_some_and(|log| log.contains("does not take all data")));
    fs::remove_file(test.src.join("full")).unwrap();
    test.nothing_is_left();
    assert!(fs::read(test.src.join("f")).unwrap() == vec![7; 600_000]);
}

/// A `umount` waiting for the end of an instance, which is unmounted already and has this new file, `f`,
/// still open.
fn umount_that_waits(test: &TestMount, supervisor: i32) -> (fs::File, Child) {
    let file = fs::File::create(test.mnt.join("f")).unwrap();
    kill(supervisor, libc::SIGTERM);
    wait_until("unmounted", || !test.is_mounted());
    let umount = terrace(["umount"]).arg(&test.mnt).stderr(Stdio::piped()).spawn().unwrap();
    // After the answer, `umount` sleeps only between checks whether the instance has ended.
    wait_until("it waits for the end", || sleeps(umount.id()));
    (file, umount)
}

/// Writes during the wait of `umount` may fail for lack of space.
#[test]
fn umount_fails_when_the_last_writes_are_refused() {
    let Some(test) = TestMount::with_small_source() else { return };
    test.mount(&[]).fine();
    let (supervisor, _) = test.processes();
    let (mut file, umount) = umount_that_waits(&test, supervisor);
    file.write_all(&vec![7; 3_000_000]).unwrap();
    drop(file);
    let told = Outcome::from(umount.wait_with_output().unwrap());
    told.refused(&["unmounted, but", "unwritten in f", "No space left"]);
    wait_until("the supervisor ends", || !alive(supervisor));
    assert!(test.mount(&[]).err.contains("unwritten in f: lost"));
    test.finish();
}

/// Fails whether the record contains the last write or not.
#[test]
fn umount_fails_when_the_instance_dies_over_it() {
    let Some(test) = TestMount::mounted() else { return };
    let (supervisor, terraced) = test.processes();
    let (mut file, umount) = umount_that_waits(&test, supervisor);
    file.write_all(b"unwritten").unwrap();
    kill(supervisor, libc::SIGKILL);
    kill(terraced, libc::SIGKILL);
    let told = Outcome::from(umount.wait_with_output().unwrap());
    told.refused(&["unmounted, but"]);
    drop(file);
    test.mount(&[]);
    test.finish();
}

#[test]
fn only_its_own_mount_is_taken_away() {
    let Some(test) = TestMount::mounted() else { return };
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", &test.mnt, "tmpfs", flags, c"").unwrap();
    test.ask("umount", &[]).refused(&["tmpfs is mounted over it", "nothing was unmounted"]);
    let (supervisor, _) = test.processes();
    kill(supervisor, libc::SIGTERM);
    let log = || fs::read_to_string(test.instances()[0].join("terraced.log")).unwrap();
    wait_until("the signal is refused too", || log().contains("tmpfs is mounted over it"));
    assert!(write_apart(&test.mnt.join("a"), b"b"));
    assert!(!test.src.join("a").exists(), "the tmpfs is still there");
    rustix::mount::unmount(&test.mnt, rustix::mount::UnmountFlags::empty()).unwrap();
    test.finish();
}

#[test]
fn a_mount_in_its_old_place_is_left_alone() {
    let Some(test) = TestMount::mounted() else { return };
    let (first, _) = test.processes();
    fs::write(test.src.join("held"), "").unwrap();
    let held = fs::File::open(test.mnt.join("held")).unwrap();
    rustix::mount::unmount(&test.mnt, rustix::mount::UnmountFlags::DETACH).unwrap();
    test.mount(&[]).fine();
    kill(first, libc::SIGTERM);
    drop(held);
    wait_until("the first ends", || !alive(first));
    fs::write(test.mnt.join("a"), "b").unwrap();
    assert_eq!(fs::read(test.mnt.join("a")).unwrap(), b"b");
    assert!(test.is_mounted());
    test.finish();
}

#[test]
fn the_foreground_ends_with_a_signal_of_the_terminal() {
    let Some(test) = TestMount::new() else { return };
    let mut foreground = test.mount_command(&["--foreground"]).spawn().unwrap();
    wait_until("served", || !test.instances().is_empty());
    fs::write(test.mnt.join("a"), "b").unwrap();
    kill(foreground.id() as i32, libc::SIGINT);
    assert!(foreground.wait().unwrap().success());
    test.nothing_is_left();
    assert_eq!(fs::read(test.src.join("a")).unwrap(), b"b");
}

#[test]
fn as_mount_calls_it() {
    let Some(test) = TestMount::new() else { return };
    let helper = test.file("mount.fuse.terrace");
    symlink(TERRACE, &helper).unwrap();
    let mount = |options: &str| {
        let mut command = Command::new(&helper);
        command.args([&test.src, &test.mnt]).args(["-n", "-o", options]);
        told(command.env("XDG_CONFIG_HOME", "/nonexistent"))
    };
    mount("memory=1K").refused_with(32, &["below the minimum"]);
    mount("memory=32MiB,fast").refused_with(32, &["no mount option `fast`"]);
    mount("ro,noatime,memory=48MiB,policy=clock,x-systemd.automount,nofail").fine();
    let cache = test.stat().cache;
    assert_eq!((cache.policy.as_str(), cache.memory.limit_bytes), ("clock", 48 << 20));
    let refused = fs::write(test.mnt.join("a"), "b").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    mount("remount,rw").fine();
    fs::write(test.mnt.join("a"), "b").unwrap();
    test.finish();
}

/// mount(8) and umount(8) themselves: fstab, remounts, device and mount point. Their helpers are in /sbin; a
/// mount namespace covers it with these links.
#[test]
fn fstab_lines_mount_remount_and_unmount() {
    let Some(test) = TestMount::new() else { return };
    let (links, fstab) = (test.file("links"), test.file("fstab"));
    fs::create_dir(&links).unwrap();
    for name in ["mount.fuse.terrace", "umount.fuse.terrace"] {
        symlink(TERRACE, links.join(name)).unwrap();
    }
    let (src, mnt) = (text(&test.src), text(&test.mnt));
    fs::write(&fstab, format!("{src} {mnt} fuse.terrace memory=32MiB,nosuid,noexec,x-a=b 0 0\n")).unwrap();
    fs::write(test.src.join("old"), "old").unwrap();
    let script = format!(
        "set -e; sbin=$(readlink -f /sbin)
         mount -t overlay overlay -o lowerdir={}:$sbin $sbin || {{ echo no overlay; exit 0; }}
         mount --fstab {fstab} -a; mount --fstab {fstab} -a; grep ' {mnt} ' /proc/self/mountinfo
         cat {mnt}/old; mount -o remount,ro,nodev {mnt}; grep ' {mnt} ' /proc/self/mountinfo; ! touch {mnt}/new 2>/dev/null
         mount -o remount,rw,memory=48MiB {mnt}; printf late >{mnt}/new; '{terrace}' stat {mnt} --json
         umount {mnt}; cat {src}/new
         mount -t fuse.terrace -o ro,memory=32MiB {src} {mnt}; exec 7<{mnt}/old; umount {mnt} 2>/dev/null && exit 9
         umount -l {mnt}; ! grep ' {mnt} ' /proc/self/mountinfo; exec 7<&-
         mount -f -t fuse.terrace -o memory=32MiB {src} {mnt}; ! grep ' {mnt} ' /proc/self/mountinfo",
        text(&links),
        fstab = text(&fstab),
        terrace = TERRACE,
    );
    let told = told_apart(&script);
    if told.out.starts_with("no overlay") {
        terrace_testkit::skipped!("no overlay file system to put the helpers over /sbin: {}", told.err);
        return;
    }
    assert_eq!(told.code, Some(0), "{} {}", told.out, told.err);
    let mounts: Vec<&str> = told.out.lines().filter(|line| line.contains("fuse.terrace")).collect();
    assert_eq!(mounts.len(), 2, "one mount, before and after the remount: {}", told.out);
    assert!(mounts[0].contains("rw,nosuid,noexec"), "{}", mounts[0]);
    assert!(mounts[1].contains("ro,nosuid,nodev,noexec"), "{}", mounts[1]);
    assert!(told.out.contains("\"limit_bytes\":50331648"), "{}", told.out);
    assert!(told.out.contains("late"), "umount returns when all is written: {}", told.out);
    test.nothing_is_left();
}

/// A user's mount, made by fusermount3: with the requested flags, or not at all.
#[test]
fn options_of_an_ordinary_user() {
    let Some((test, begin)) = TestMount::for_user() else { return };
    let script = format!(
        "{begin} mounted() {{ user XDG_RUNTIME_DIR=$runtime $program mount --memory 32MiB -o $1 {src} {mnt}; }}
         mounted lazytime; echo $?
         mounted noexec,noatime,relatime && grep {mnt} /proc/self/mountinfo && user XDG_RUNTIME_DIR=$runtime $program umount {mnt}",
        src = text(&test.src),
        mnt = text(&test.mnt),
    );
    let told = told_apart(&script);
    assert_eq!(told.code, Some(0), "{} {}", told.out, told.err);
    assert!(told.out.starts_with("2\n"), "{}", told.out);
    assert!(told.err.lines().count() == 1 && told.err.contains("lazytime"), "{}", told.err);
    assert!(told.out.contains("noexec") && told.out.contains("noatime"), "{}", told.out);
    test.nothing_is_left();
}

/// A mount namespace copied from one with the mount keeps the mount, and its daemon, until it ends.
#[test]
fn umount_tells_who_else_sees_the_mount() {
    let Some(test) = TestMount::mounted() else { return };
    // Without the mounts of parallel tests; with a time limit, in case this test fails.
    let script = "grep ' fuse.terrace ' /proc/self/mountinfo | cut -d ' ' -f 5 | grep -vxF \"$0\" | xargs -r umount -l; \
                  echo there; exec sleep 20";
    let mut other = apart(&["sh", "-c", script, text(&test.mnt)]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(other.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "there\n");
    fs::write(test.mnt.join("a"), "b").unwrap();
    let umount = terrace(["umount", text(&test.mnt)]).output().unwrap();
    let told = String::from_utf8_lossy(&umount.stderr);
    let pid = format!("(pid {}, own mount namespace {})", other.id(), test.mnt.display());
    assert!(umount.status.success() && told.contains("unmounted here") && told.contains(&pid), "{told}");
    assert!(!test.is_mounted() && test.instances().len() == 1, "its daemon serves on");
    assert_eq!(fs::read(test.src.join("a")).unwrap(), b"b");
    test.mount(&[]).refused(&["not mounted here", &pid]);
    other.kill().unwrap();
    other.wait().unwrap();
    test.nothing_is_left();
}

#[test]
fn names_of_all_kinds() {
    let Some(test) = TestMount::new() else { return };
    let (src, mnt) = (test.file("with space, comma\\and ü"), test.file("also\twith\ttabs"));
    fs::create_dir(&src).unwrap();
    fs::create_dir(&mnt).unwrap();
    told(terrace(["mount", "--memory", "32MiB"]).args([&src, &mnt])).fine();
    fs::write(mnt.join("a"), "b").unwrap();
    let ask = |verb: &str| told(terrace([verb]).arg(&mnt));
    ask("check").fine();
    ask("umount").fine();
    assert_eq!(fs::read(src.join("a")).unwrap(), b"b");
}

#[test]
fn help_man_page_and_completions() {
    for args in [
        &["--help"][..],
        &["run", "--help"],
        &["--version"],
        &["generate", "man"],
        &["generate", "complete-zsh"],
    ] {
        assert!(told(terrace(args)).fine().out.contains("terrace"), "{args:?}");
    }
}

#[test]
fn a_miss_costs_what_was_measured_of_the_device() {
    let Some(test) = TestMount::new() else { return };
    let (config, probe) = (test.file("terrace.toml"), test.file("probe.toml"));
    // A relative path is relative to the configuration file.
    fs::write(&config, "[tier]\nprobe = \"probe.toml\"\n[tier.compressed]\ncodec = \"lz4\"\n").unwrap();
    let mount = || test.mount(&["--config", text(&config)]);
    let miss_ns = || test.stat().cache.compressed.unwrap().miss_ns;
    mount().refused(&["probe.toml", "No such file", "docs/operation.md"]);

    let measured_at = |directory: &str, get_latency_us: f64| {
        let text = format!("[device.\"{directory}\"]\nget_latency_us = {get_latency_us}\nput_mib_s = 1.0\n");
        fs::write(&probe, text).unwrap();
    };
    measured_at(text(&test.src), 123.5);
    mount().fine();
    assert_eq!(miss_ns(), 123_500);
    test.ask("umount", &[]).fine();

    measured_at("/proc", 123.5);
    let told = mount();
    assert_eq!(told.code, Some(0));
    assert!(
        told.err.contains("has no entry for its device") && told.err.lines().count() == 1,
        "{}",
        told.err
    );
    assert_eq!(miss_ns(), 60_000);
    test.ask("umount", &[]).fine();

    measured_at(text(&test.src), 0.0);
    mount().refused(&["probe.toml line 2", "get_latency_us = 0 is out of bounds"]);
}

/// A file cannot be written for lack of space, and is then deleted beside the mount: its data can be dropped.
#[test]
fn file_deleted_beside_a_full_source_gives_room_and_mount_back() {
    for at_once in [false, true] {
        let Some(test) = TestMount::with_small_source() else { return };
        test.mount(&[]).fine();
        fs::write(test.src.join("full"), vec![0; 700_000]).unwrap();
        assert!(!write_apart(&test.mnt.join("f"), &[7; 3_000_000]), "the close fails");
        test.ask("umount", &[]).refused(&["No space left"]);
        fs::remove_file(test.src.join("f")).unwrap();
        if !at_once {
            // The kernel was asked to forget the file, which frees all its pages.
            wait_until("nothing is dirty", || test.stat().cache.writeback.dirty == 0);
            wait_until("there is room", || fs::write(test.src.join("more"), vec![0; 200_000]).is_ok());
        }
        test.finish();
    }
}

/// A file deleted beside the mount, but open through it, still exists.
#[test]
fn open_file_deleted_beside_a_full_source_lives() {
    let Some(test) = TestMount::with_small_source() else { return };
    test.mount(&[]).fine();
    fs::write(test.src.join("full"), vec![0; 900_000]).unwrap();
    let mut open = fs::File::options();
    let mut file = open.create(true).read(true).write(true).truncate(false).open(test.mnt.join("f")).unwrap();
    file.write_all(&vec![7; 600_000]).unwrap();
    // O_PATH: terrace has no handle for it, but the file can be opened again through it.
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
    let path = rustix::fs::open(test.mnt.join("f"), flags, rustix::fs::Mode::empty()).unwrap();
    let again = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&path));
    test.ask("sync", &[]).refused(&["No space left"]);
    fs::remove_file(test.src.join("f")).unwrap();
    // The thread that looks for deleted files runs each second.
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(fs::read(&again).unwrap() == vec![7; 600_000]);
    drop(file);
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(fs::read(&again).unwrap() == vec![7; 600_000], "somebody has it, if not open");
    drop(path);
    wait_until("nothing is dirty", || test.stat().cache.writeback.dirty == 0);
    test.finish();
}

#[test]
fn files_of_an_instance_are_closed_to_others() {
    let Some(test) = TestMount::mounted() else { return };
    wait_until("recorded", || test.instances()[0].join("dirty.json").exists());
    for entry in fs::read_dir(&test.instances()[0]).unwrap().flatten() {
        // The record is replaced all the time.
        let Ok(meta) = entry.metadata() else { continue };
        assert_eq!(meta.permissions().mode() & 0o777, 0o600, "{}", entry.path().display());
    }
    test.ask("umount", &[]).fine();
}

#[test]
fn mount_of_another_user_is_refused_in_one_line() {
    let Some(mut test) = TestMount::new() else { return };
    // A directory that other users can reach.
    let open = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::set_permissions(open.path(), fs::Permissions::from_mode(0o755)).unwrap();
    test.mnt = open.path().join("mnt");
    fs::create_dir(&test.mnt).unwrap();
    let program = open.path().join("terrace");
    fs::copy(TERRACE, &program).unwrap();
    test.mount(&[]).fine();
    let mut umount = Command::new("setpriv");
    umount.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(&program).arg("umount");
    umount.arg(&test.mnt).env("XDG_CONFIG_HOME", "/nonexistent").env_remove("XDG_RUNTIME_DIR");
    told(umount).refused(&[
        "it was mounted by another user (uid 0)",
        "as that user or as root",
        "nothing was unmounted",
    ]);
    assert!(test.is_mounted());
    test.finish();
}
