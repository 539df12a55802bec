//! Names that other programs change in the source beside the mount.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::mount::UnmountFlags;
use terrace_testkit::wait::holds_within;

use super::mount::{Mount, open, source};
use super::{each, errno};

/// Upper bound for a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// Replaces a file by another one of the same name.
fn replace(path: &Path, content: &str) {
    let new = path.with_extension("new");
    fs::write(&new, content).unwrap();
    fs::rename(new, path).unwrap();
}

type Writes = [(&'static str, fn(&Path)); 4];

/// Operations of a program on a file's name.
const WRITES: Writes = [
    ("append", |path| {
        let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
        file.write_all(b" and more").unwrap();
        file.sync_all().unwrap();
    }),
    ("rewrite", |path| fs::write(path, b"rewritten").unwrap()),
    ("truncate", |path| match rustix::fs::open(path, OFlags::WRONLY, 0.into()) {
        Ok(file) => rustix::fs::ftruncate(file, 1).unwrap(),
        Err(errno) => assert_eq!(errno, rustix::io::Errno::NOENT),
    }),
    ("truncate by name", |path| {
        let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: a string that ends with NUL, and a number.
        let done = unsafe { libc::truncate(path.as_ptr(), 1) };
        assert!(done == 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOENT));
    }),
];

#[test]
fn writes_reach_the_file_that_has_the_name() {
    each(|mount| {
        fs::create_dir(mount.src.join("d")).unwrap();
        for round in 0..40 {
            for (what, write) in WRITES {
                let name = format!("d/f{}", round % 3);
                let (path, beside) = (mount.path(&name), mount.src.join(&name));
                fs::write(&beside, b"old").unwrap();
                // The kernel may still have a negative dentry for a moment.
                assert!(holds_within(SOON, || OpenOptions::new().append(true).open(&path).is_ok()));
                let rotated = mount.src.join("rotated");
                match round % 4 {
                    0 => fs::rename(&beside, &rotated).unwrap(),
                    1 => fs::remove_file(&beside).unwrap(),
                    2 => {
                        fs::hard_link(&beside, mount.src.join("kept")).unwrap();
                        replace(&beside, "new");
                    }
                    _ => {
                        fs::rename(mount.src.join("d"), mount.src.join("moved")).unwrap();
                        fs::create_dir(mount.src.join("d")).unwrap();
                        fs::write(&beside, b"new").unwrap();
                    }
                }
                write(&path);
                let expected = match (round % 4, what) {
                    (_, "rewrite") => Some("rewritten"),
                    (0 | 1, "append") => Some(" and more"),
                    (_, "append") => Some("new and more"),
                    (0 | 1, _) => None,
                    _ => Some("n"),
                };
                let found = fs::read_to_string(&beside).ok();
                assert_eq!(found.as_deref(), expected, "round {round}: {what}");
                for old in [rotated, mount.src.join("kept"), mount.src.join("moved").join(&name[2..])] {
                    if let Ok(content) = fs::read(&old) {
                        assert_eq!(content, b"old", "round {round}: {what} went to {}", old.display());
                        fs::remove_file(&old).unwrap();
                    }
                }
                let _ = fs::remove_dir_all(mount.src.join("moved"));
            }
        }
    });
}

#[test]
fn changes_of_names_reach_the_directory_that_has_the_path() {
    each(|mount| {
        for round in 0..20 {
            let (dir, beside) = (mount.path("d"), mount.src.join("d"));
            fs::create_dir(&beside).unwrap();
            fs::write(beside.join("a"), b"old").unwrap();
            fs::write(beside.join("b"), b"old").unwrap();
            let is_seen = |name: &str| fs::read(dir.join(name)).is_ok_and(|content| content == b"old");
            assert!(holds_within(SOON, || is_seen("a") && is_seen("b")));
            fs::rename(&beside, mount.src.join("moved")).unwrap();
            fs::create_dir(&beside).unwrap();
            fs::write(beside.join("a"), b"new").unwrap();
            match round % 3 {
                0 => fs::remove_file(dir.join("a")).unwrap(),
                1 => fs::rename(dir.join("a"), dir.join("c")).unwrap(),
                _ => fs::write(dir.join("c"), b"new").unwrap(),
            }
            assert_eq!(errno(fs::remove_file(dir.join("b"))), libc::ENOENT);
            assert_eq!(fs::read_dir(mount.src.join("moved")).unwrap().count(), 2, "round {round}");
            let left: Vec<_> = fs::read_dir(&beside).unwrap().map(|e| e.unwrap().file_name()).collect();
            assert_eq!(left.len(), [0, 1, 2][round % 3], "round {round}: {left:?}");
            fs::remove_dir_all(&beside).unwrap();
            fs::remove_dir_all(mount.src.join("moved")).unwrap();
        }
    });
}

#[test]
fn open_files_outlive_their_names() {
    each(|mount| {
        fs::write(mount.path("f"), b"content").unwrap();
        let file = OpenOptions::new().read(true).write(true).open(mount.path("f")).unwrap();
        fs::rename(mount.src.join("f"), mount.src.join("g")).unwrap();
        replace(&mount.src.join("f"), "another");
        for round in 0..50 {
            file.set_len(round).unwrap();
            file.set_permissions(fs::Permissions::from_mode(0o640 + round as u32 % 2)).unwrap();
            let again = OpenOptions::new().write(true).open(format!("/proc/self/fd/{}", file.as_raw_fd()));
            again.unwrap().write_all_at(b"again", 0).unwrap();
            assert_eq!(file.metadata().unwrap().len(), round.max(5));
        }
        file.sync_all().unwrap();
        assert_eq!(source(mount, "f"), b"another");
        assert_eq!(&source(mount, "g")[..5], b"again");
        // The same for a directory that is reached by a descriptor.
        fs::create_dir(mount.path("d")).unwrap();
        let dir = open(&mount.path("d"), OFlags::PATH).unwrap();
        fs::rename(mount.src.join("d"), mount.src.join("e")).unwrap();
        for round in 0..5 {
            let name = format!("/proc/self/fd/{}/{round}", dir.as_raw_fd());
            fs::write(&name, b"x").unwrap();
            fs::rename(&name, format!("{name}.moved")).unwrap();
        }
        assert_eq!(fs::read_dir(mount.src.join("e")).unwrap().count(), 5);
    });
}

#[test]
fn names_and_modes_changed_beside_are_seen_at_once() {
    each(|mount| {
        let names = ["removed", "renamed", "replaced", "p/x"];
        fs::create_dir(mount.src.join("p")).unwrap();
        names.iter().for_each(|name| fs::write(mount.src.join(name), b"old").unwrap());
        names.iter().for_each(|name| assert_eq!(fs::read(mount.path(name)).unwrap(), b"old"));
        fs::remove_file(mount.src.join("removed")).unwrap();
        fs::rename(mount.src.join("renamed"), mount.src.join("away")).unwrap();
        replace(&mount.src.join("replaced"), "new");
        fs::set_permissions(mount.src.join("p"), fs::Permissions::from_mode(0o700)).unwrap();
        let gone = |name: &str| {
            fs::metadata(mount.path(name)).is_err_and(|err| err.raw_os_error() == Some(libc::ENOENT))
        };
        assert!(holds_within(SOON, || gone("removed") && gone("renamed")));
        assert!(holds_within(SOON, || fs::read(mount.path("replaced")).unwrap() == b"new"));
        assert!(holds_within(SOON, || fs::metadata(mount.path("p")).unwrap().mode() & 0o777 == 0o700));
        assert_eq!(fs::read(mount.path("away")).unwrap(), b"old");
    });
}

#[test]
fn a_file_that_was_replaced_is_read_no_more() {
    each(|mount| {
        for round in 0..40 {
            // This change through the mount is not followed by a look at the source.
            fs::write(mount.path("f"), format!("old {round}")).unwrap();
            let content = format!("new {round}");
            replace(&mount.src.join("f"), &content);
            assert_eq!(fs::read_to_string(mount.path("f")).unwrap(), content);
        }
    });
}

#[test]
fn times_of_directories_and_modes_by_other_names_are_seen_soon() {
    each(|mount| {
        for dir in ["d", "e"] {
            fs::create_dir(mount.src.join(dir)).unwrap();
        }
        fs::write(mount.src.join("d/a"), b"").unwrap();
        fs::hard_link(mount.src.join("d/a"), mount.src.join("e/b")).unwrap();
        let changed = |dir: &Path| fs::metadata(dir).unwrap().modified().unwrap();
        let mode = |name: &str| fs::metadata(mount.path(name)).unwrap().mode() & 0o777;
        assert_eq!((mode("d/a"), changed(&mount.path("d"))), (0o644, changed(&mount.src.join("d"))));
        fs::write(mount.src.join("d/new"), b"").unwrap();
        assert!(holds_within(SOON, || changed(&mount.path("d")) == changed(&mount.src.join("d"))));
        fs::set_permissions(mount.src.join("e/b"), fs::Permissions::from_mode(0o640)).unwrap();
        assert!(holds_within(SOON, || mode("d/a") == 0o640));
    });
}

#[test]
fn what_is_mounted_on_a_name_stays_when_its_directory_changes() {
    each(|mount| {
        fs::create_dir(mount.src.join("d")).unwrap();
        rustix::mount::mount("none", mount.path("d"), "tmpfs", rustix::mount::MountFlags::empty(), None)
            .unwrap();
        fs::write(mount.path("d/inside"), b"").unwrap();
        for mode in [0o700, 0o755, 0o711] {
            // The daemon gets events only of other processes' changes.
            let mode = format!("{mode:o}");
            let done = Command::new("chmod").arg(mode).arg(mount.src.join("d")).status().unwrap();
            assert!(done.success());
            fs::write(mount.src.join("other"), b"").unwrap();
            assert!(holds_within(SOON, || fs::metadata(mount.path("other")).is_ok()));
            assert!(fs::metadata(mount.path("d/inside")).is_ok(), "nothing was unmounted");
            fs::remove_file(mount.src.join("other")).unwrap();
        }
        rustix::mount::unmount(mount.path("d"), UnmountFlags::DETACH).unwrap();
    });
}

#[test]
fn names_changed_while_the_daemon_was_dead_are_seen_by_writers() {
    each(|mount: &mut Mount| {
        for name in ["rotated", "removed", "same", "d/f"] {
            let _ = fs::create_dir(mount.src.join("d"));
            fs::write(mount.src.join(name), b"old").unwrap();
            assert_eq!(fs::read(mount.path(name)).unwrap(), b"old");
        }
        fs::rename(mount.src.join("rotated"), mount.src.join("rotated.1")).unwrap();
        fs::remove_file(mount.src.join("removed")).unwrap();
        fs::rename(mount.src.join("d"), mount.src.join("e")).unwrap();
        fs::create_dir(mount.src.join("d")).unwrap();
        mount.kill_daemon();
        for name in ["rotated", "removed", "same", "d/f"] {
            let mut file = OpenOptions::new().append(true).create(true).open(mount.path(name)).unwrap();
            file.write_all(b"added").unwrap();
            file.sync_all().unwrap();
        }
        assert_eq!((source(mount, "rotated"), source(mount, "rotated.1")), (b"added".into(), b"old".into()));
        assert_eq!((source(mount, "removed"), source(mount, "same")), (b"added".into(), b"oldadded".into()));
        assert_eq!((source(mount, "d/f"), source(mount, "e/f")), (b"added".into(), b"old".into()));
    });
}

#[test]
fn second_names_are_taken_like_first_ones() {
    each(|mount| {
        fs::write(mount.path("a"), b"content").unwrap();
        for round in 0..20 {
            fs::hard_link(mount.path("a"), mount.path("b")).unwrap();
            let first = if round % 2 == 0 { "a" } else { "b" };
            fs::remove_file(mount.path(first)).unwrap();
            if first == "a" {
                fs::rename(mount.path("b"), mount.path("a")).unwrap();
            }
            let mut file = File::options().append(true).open(mount.path("a")).unwrap();
            file.write_all(b".").unwrap();
        }
        assert_eq!(source(mount, "a").len(), 7 + 20);
        assert!(!mount.src.join("b").exists());
    });
}
