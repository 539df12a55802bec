//! Sources that behave unlike a local file system: their errors reach the program, and a missing feature
//! breaks nothing else.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::Ordering;

use rustix::mount::{MountFlags, UnmountFlags};

use crate::server::Server;
use crate::test_mount::{TERRACE, TestMount, alive, apart, terrace, text, told, wait_until};

const BYTES: usize = 300_001;

/// A mount over a faulty server's directory.
fn served() -> Option<(TestMount, Server)> {
    let test = TestMount::new()?;
    let server = Server::new(&test.src);
    Some((test, server))
}

fn end(test: &TestMount, server: Server) {
    test.ask("umount", &[]).fine();
    drop(server);
    test.nothing_is_left();
}

fn content(seed: u8) -> Vec<u8> {
    (0..BYTES).map(|at| (at / 7) as u8 ^ seed).collect()
}

/// close(2), with its result.
fn close(file: File) -> std::io::Result<()> {
    // SAFETY: this function owns the descriptor.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|err| err.raw_os_error())
}

#[test]
fn refusal_at_the_close_is_heard() {
    let Some((test, server)) = served() else { return };
    test.mount(&[]).fine();
    let mut file = File::create(test.mnt.join("a")).unwrap();
    // Before the write, which may reach the server long before the close.
    server.faults.close.store(true, Ordering::Relaxed);
    file.write_all(&content(1)).unwrap();
    assert_eq!(errno(close(file)), Some(libc::ENOSPC));
    // A file written back before its close fails at the close, too.
    let mut file = File::create(test.mnt.join("b")).unwrap();
    file.write_all(&content(2)).unwrap();
    file.sync_all().unwrap();
    // Closing a copy, as the start of a child does, does not consume the error of the last close.
    let copy = file.try_clone().unwrap();
    assert_eq!([close(copy), close(file)].map(errno), [Some(libc::ENOSPC); 2]);
    server.faults.close.store(false, Ordering::Relaxed);
    let mut file = File::create(test.mnt.join("c")).unwrap();
    file.write_all(&content(3)).unwrap();
    assert_eq!(errno(close(file)), None);
    test.ask("sync", &[]).fine();
    end(&test, server);
}

#[test]
fn sync_and_unmount_sync_the_files_of_a_server() {
    let Some((test, server)) = served() else { return };
    test.mount(&[]).fine();
    let syncs = || server.faults.fsyncs.load(Ordering::Relaxed);
    let write = |name: &str| fs::write(test.mnt.join(name), content(4)).unwrap();
    ["a", "b"].iter().for_each(|name| write(name));
    test.ask("sync", &[]).fine();
    assert!(syncs() >= 2, "{}", syncs());
    server.faults.fsync.store(true, Ordering::Relaxed);
    write("c");
    test.ask("sync", &[]).refused(&["Input/output error"]);
    test.ask("umount", &[]).refused(&["Input/output error", "nothing was unmounted"]);
    server.faults.fsync.store(false, Ordering::Relaxed);
    server.faults.no_fsync.store(true, Ordering::Relaxed);
    let before = syncs();
    write("d");
    test.ask("umount", &[]).fine();
    assert!(syncs() > before);
    assert!(fs::read(test.src.join("d")).unwrap() == content(4));
    drop(server);
    test.nothing_is_left();
}

#[test]
fn direct_calls_that_the_source_refuses_go_another_way() {
    let Some((test, server)) = served() else { return };
    fs::write(test.src.join("old"), content(5)).unwrap();
    server.faults.direct.store(true, Ordering::Relaxed);
    let found = told(terrace(["doctor"]).arg(&test.src)).out;
    assert!(found.lines().any(|line| line.starts_with("limited  direct reads")), "{found}");
    test.mount(&[]).fine();
    assert!(fs::read(test.mnt.join("old")).unwrap() == content(5));
    let mut file = File::options();
    file.read(true).write(true).create(true).truncate(false);
    let new = file.open(test.mnt.join("new")).unwrap();
    new.write_all_at(&content(6), 0).unwrap();
    new.sync_all().unwrap();
    assert!(fs::read(test.src.join("new")).unwrap() == content(6));
    let old = file.open(test.mnt.join("old")).unwrap();
    old.write_all_at(&[9; 8192], 4096).unwrap();
    old.sync_all().unwrap();
    let wanted = [&content(5)[..4096], &[9; 8192], &content(5)[12288..]].concat();
    assert!(fs::read(test.src.join("old")).unwrap() == wanted);
    drop((old, new));
    end(&test, server);
}

#[test]
fn files_without_a_size_are_read_to_their_end() {
    let Some((test, server)) = served() else { return };
    fs::write(test.src.join("a"), content(7)).unwrap();
    fs::write(test.src.join("empty"), b"").unwrap();
    server.faults.no_sizes.store(true, Ordering::Relaxed);
    test.mount(&[]).fine();
    for _ in 0..2 {
        assert!(fs::read(test.mnt.join("a")).unwrap() == content(7));
        assert_eq!(fs::read(test.mnt.join("empty")).unwrap(), b"");
    }
    let file = File::open(test.mnt.join("a")).unwrap();
    let mut part = [0; 100];
    file.read_exact_at(&mut part, 200_000).unwrap();
    assert_eq!(part, content(7)[200_000..200_100]);
    drop(file);
    end(&test, server);
}

#[test]
fn file_that_is_empty_at_the_open_is_read_as_it_grows() {
    let Some((test, server)) = served() else { return };
    test.mount(&[]).fine();
    fs::write(test.mnt.join("log"), b"").unwrap();
    let mut reader = File::open(test.mnt.join("log")).unwrap();
    let writer = File::options().append(true).open(test.mnt.join("log")).unwrap();
    let mut seen = Vec::new();
    for line in 0..50 {
        (&writer).write_all(format!("line {line}\n").as_bytes()).unwrap();
        reader.read_to_end(&mut seen).unwrap();
        let wanted: String = (0..=line).map(|line| format!("line {line}\n")).collect();
        assert_eq!(String::from_utf8_lossy(&seen), wanted);
    }
    drop((reader, writer));
    end(&test, server);
}

#[test]
fn errors_of_extended_attributes_do_not_stop_writes() {
    let Some((test, server)) = served() else { return };
    server.faults.xattr.store(true, Ordering::Relaxed);
    test.mount(&[]).fine();
    let path = test.mnt.join("a");
    fs::write(&path, content(8)).unwrap();
    File::options().append(true).open(&path).unwrap().write_all(b"more").unwrap();
    assert!(fs::read(&path).unwrap() == [&content(8)[..], b"more"].concat());
    // An open by another user makes the kernel read the ACLs.
    let mut reader = Command::new("head");
    reader.args(["-c", "1"]).arg(&path).uid(65534).gid(65534);
    assert!(reader.output().unwrap().status.success());
    end(&test, server);
}

#[test]
fn source_without_acls_is_open_to_others() {
    let Some(test) = TestMount::new() else { return };
    rustix::mount::mount("none", &test.src, "ramfs", MountFlags::empty(), c"mode=755").unwrap();
    fs::write(test.src.join("a"), b"x").unwrap();
    test.mount(&[]).fine();
    let mut reader = Command::new("cat");
    reader.arg(test.mnt.join("a")).uid(65534).gid(65534);
    assert_eq!(reader.output().unwrap().stdout, b"x");
    test.ask("umount", &[]).fine();
    // Without direct I/O, the error names O_DIRECT, as on the source itself.
    let script = format!("dd if={}/a of=/dev/null bs=4096 iflag=direct", text(&test.src));
    let ended = told(test.run_with(&["--mount", "--no-preload", "--passthrough", "auto"], &script));
    assert!(!ended.err.contains("Input/output error"), "{}", ended.err);
    rustix::mount::unmount(&test.src, UnmountFlags::DETACH).unwrap();
    test.nothing_is_left();
}

#[test]
fn mount_forbids_what_its_source_forbids() {
    let Some(test) = TestMount::new() else { return };
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("none", &test.src, "tmpfs", flags, c"").unwrap();
    let of_mount = || rustix::fs::statvfs(&test.mnt).unwrap().f_flag;
    use rustix::fs::StatVfsMountFlags as Has;
    let all = Has::NOSUID | Has::NODEV | Has::NOEXEC;
    test.mount(&[]).fine();
    assert!(of_mount().contains(all), "{:?}", of_mount());
    test.ask("umount", &[]).fine();
    test.mount(&["-o", "suid,exec"]).fine();
    assert_eq!(of_mount() & all, Has::NODEV);
    test.ask("umount", &[]).fine();
    rustix::mount::unmount(&test.src, UnmountFlags::DETACH).unwrap();
    test.nothing_is_left();
}

/// Like sshfs for its user: the owners are those of the other machine, and its server checks permissions.
#[test]
fn server_decides_over_access_to_the_mount_of_its_user() {
    let helper = Command::new("fusermount3").arg("-V").output().is_ok();
    let Some((test, server)) = served().filter(|_| helper) else { return };
    fs::set_permissions(test.file("."), fs::Permissions::from_mode(0o755)).unwrap();
    let runtime = test.file("runtime");
    fs::create_dir(&runtime).unwrap();
    for dir in [&test.mnt, &runtime] {
        std::os::unix::fs::chown(dir, Some(65534), Some(65534)).unwrap();
    }
    fs::write(test.src.join("a"), b"of another machine's root").unwrap();
    fs::set_permissions(test.src.join("a"), fs::Permissions::from_mode(0o600)).unwrap();
    let program = test.file("terrace");
    fs::copy(TERRACE, &program).unwrap();
    let (program, src, mnt) = (text(&program), text(&test.src), text(&test.mnt));
    let script = format!(
        "mknod -m 666 {0} c 10 229 && mount --bind {0} /dev/fuse && cd / && \
         exec setpriv --reuid 65534 --regid 65534 --clear-groups env XDG_RUNTIME_DIR={1} sh -c '\
         {program} mount --memory 32MiB {src} {mnt} && cat {mnt}/a && echo new >{mnt}/b && cat {mnt}/b && {program} umount {mnt}'",
        text(&test.file("fuse")),
        text(&runtime),
    );
    let ended = told(apart(&["sh", "-c", &script]));
    assert_eq!(
        (ended.code, ended.out.as_str()),
        (Some(0), "of another machine's rootnew\n"),
        "{}",
        ended.err
    );
    assert_eq!(fs::read(test.src.join("b")).unwrap(), b"new\n");
    drop(server);
    test.nothing_is_left();
}

/// Like an NFS server that exports nothing for a while: files do not count as deleted, and their unwritten
/// data are kept.
#[test]
fn server_that_knows_no_file_for_a_while_loses_no_data() {
    let Some((test, server)) = served() else { return };
    test.mount(&[]).fine();
    let mut file = File::create(test.mnt.join("a")).unwrap();
    // So few bytes stay unwritten until the close.
    file.write_all(&content(8)[..5000]).unwrap();
    server.faults.stale.store(true, Ordering::Relaxed);
    assert_eq!(errno(close(file)), Some(libc::ESTALE));
    // The thread that looks for deleted files runs each second.
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(test.stat().cache.writeback.dirty > 0);
    server.faults.stale.store(false, Ordering::Relaxed);
    test.ask("sync", &[]).fine();
    assert!(fs::read(test.src.join("a")).unwrap() == content(8)[..5000]);
    end(&test, server);
}

#[test]
fn forced_unmount_gives_up_on_a_server_that_has_died() {
    let Some((test, server)) = served() else { return };
    test.mount(&[]).fine();
    let (supervisor, terraced) = test.processes();
    let mut file = File::create(test.mnt.join("a")).unwrap();
    file.write_all(&content(7)).unwrap();
    drop(server);
    assert_eq!(errno(file.sync_all()), Some(libc::ENOTCONN));
    drop(file);
    test.ask("umount", &[]).refused(&["not connected", "nothing was unmounted", "umount -f"]);
    test.ask("umount", &["-f"]).fine();
    wait_until("both end", || !alive(supervisor) && !alive(terraced));
    // The next mount reports the loss.
    let server = Server::new(&test.src);
    let again = test.mount(&[]);
    assert!(again.code == Some(0) && again.err.contains("unwritten in a"), "{}", again.err);
    end(&test, server);
}
