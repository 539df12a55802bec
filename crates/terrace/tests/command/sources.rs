//! Sources that other programs serve by FUSE: their inode numbers are not stable, and path descriptors do not
//! keep files alive.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::test_mount::{TestMount, terrace, told};

/// A source below the directory of a test mount, and all its mounts.
struct Served {
    test: TestMount,
    below: PathBuf,
    mounted: Vec<PathBuf>,
}

impl Served {
    /// Serves by `program`; `None`: not installed on this machine.
    fn by(
        program: &str,
        args: impl Fn(&Path, &Path) -> Vec<String>,
        begin: impl Fn(&Path) -> Vec<PathBuf>,
    ) -> Option<Self> {
        let test = TestMount::new()?;
        let below = test.file("below");
        fs::create_dir(&below).unwrap();
        let mut served = Self { mounted: begin(&below), below, test };
        match Command::new(program).args(args(&served.below, &served.test.src)).output() {
            Err(err) => {
                assert!(std::env::var_os("TERRACE_REQUIRE_ROOT").is_none(), "{program}: {err}");
                terrace_testkit::skipped!("no {program}");
                return None;
            }
            Ok(done) => assert!(done.status.success(), "{program}: {done:?}"),
        }
        served.mounted.push(served.test.src.clone());
        Some(served)
    }

    fn by_bindfs(begin: impl Fn(&Path) -> Vec<PathBuf>) -> Option<Self> {
        let served = Self::by(
            "bindfs",
            |below, src| [below, src].map(|path| path.display().to_string()).into(),
            begin,
        )?;
        served.test.mount(&[]).fine();
        Some(served)
    }

    fn end(mut self) {
        self.test.ask("umount", &[]).fine();
        self.mounted.drain(..).rev().for_each(|path| unmount(&path, UnmountFlags::empty()).unwrap());
        self.test.nothing_is_left();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = unmount(&self.test.mnt, UnmountFlags::DETACH);
        for path in self.mounted.iter().rev() {
            let _ = unmount(path, UnmountFlags::DETACH);
        }
    }
}

#[test]
fn files_with_one_number_are_two_files() {
    let disks = |below: &Path| {
        ["a", "b"]
            .map(|disk| {
                let path = below.join(disk);
                fs::create_dir(&path).unwrap();
                mount("none", &path, "tmpfs", MountFlags::empty(), None).unwrap();
                fs::write(path.join("file"), disk.repeat(20_000)).unwrap();
                fs::write(path.join(format!("only_{disk}")), b"").unwrap();
                path
            })
            .into()
    };
    let Some(served) = Served::by_bindfs(disks) else { return };
    let (mnt, below) = (&served.test.mnt, &served.below);
    for disk in ["a", "b"] {
        assert_eq!(fs::read(mnt.join(disk).join("file")).unwrap(), disk.repeat(20_000).as_bytes());
        let names: Vec<_> = fs::read_dir(mnt.join(disk)).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(names.contains(&format!("only_{disk}").into()) && names.len() == 2, "{names:?}");
    }
    fs::write(mnt.join("b/file"), b"NEW").unwrap();
    fs::File::open(mnt.join("b/file")).unwrap().sync_all().unwrap();
    assert_eq!(fs::read(below.join("b/file")).unwrap(), b"NEW");
    assert_eq!(fs::read(below.join("a/file")).unwrap(), "a".repeat(20_000).as_bytes());
    served.end();
}

#[test]
fn numbers_that_come_again_are_other_files() {
    let Some(served) = Served::by_bindfs(|_| Vec::new()) else { return };
    let mnt = &served.test.mnt;
    for i in 0..20 {
        let [old, dir, new] = ["old", "dir", "new"].map(|name| mnt.join(format!("{name}{i}")));
        fs::write(&old, b"old").unwrap();
        assert_eq!(fs::read(&old).unwrap(), b"old");
        fs::remove_file(&old).unwrap();
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("x"), b"").unwrap();
        fs::write(&new, format!("new {i}")).unwrap();
        assert_eq!(fs::read_to_string(&new).unwrap(), format!("new {i}"));
    }
    fs::write(mnt.join("one"), b"content").unwrap();
    fs::hard_link(mnt.join("one"), mnt.join("two")).unwrap();
    fs::remove_file(mnt.join("one")).unwrap();
    assert_eq!(fs::read(mnt.join("two")).unwrap(), b"content");
    assert_eq!(fs::read_to_string(served.below.join("new7")).unwrap(), "new 7");
    served.end();
}

#[test]
fn deleted_files_of_a_fuse_source_live_and_go() {
    let Some(served) = Served::by_bindfs(|_| Vec::new()) else { return };
    let mnt = &served.test.mnt;
    for i in 0..300 {
        fs::write(mnt.join("short"), [i as u8; 4096]).unwrap();
        fs::remove_file(mnt.join("short")).unwrap();
    }
    fs::write(served.below.join("read"), b"content").unwrap();
    let read = fs::File::open(mnt.join("read")).unwrap();
    let written =
        fs::File::options().read(true).write(true).create_new(true).open(mnt.join("written")).unwrap();
    fs::remove_file(mnt.join("read")).unwrap();
    fs::remove_file(mnt.join("written")).unwrap();
    let mut content = [0; 7];
    read.read_exact_at(&mut content, 0).unwrap();
    assert_eq!((&content, read.metadata().unwrap().len()), (b"content", 7));
    written.write_all_at(b"more", 3).unwrap();
    written.sync_all().unwrap();
    written.set_len(5).unwrap();
    assert_eq!(written.metadata().unwrap().len(), 5);
    written.read_exact_at(&mut content[..5], 0).unwrap();
    assert_eq!(&content[..5], b"\0\0\0mo");
    drop((read, written));
    served.test.ask("sync", &[]).fine();
    served.end();
}

#[test]
fn file_that_is_copied_up_is_read_by_its_copy() {
    let begin = |below: &Path| {
        ["lower", "upper", "work"].iter().for_each(|dir| fs::create_dir(below.join(dir)).unwrap());
        fs::write(below.join("lower/file"), "a".repeat(400_000)).unwrap();
        Vec::new()
    };
    let args = |below: &Path, src: &Path| {
        let below = below.display();
        let dirs = format!("lowerdir={below}/lower,upperdir={below}/upper,workdir={below}/work");
        vec!["-o".into(), dirs, src.display().to_string()]
    };
    let Some(served) = Served::by("fuse-overlayfs", args, begin) else { return };
    served.test.mount(&[]).fine();
    let path = served.test.mnt.join("file");
    let (reader, mut found) = (fs::File::open(&path).unwrap(), [0; 100]);
    reader.read_exact_at(&mut found, 0).unwrap();
    let writer = fs::File::options().read(true).write(true).open(&path).unwrap();
    for (byte, at) in [(b'B', 5000), (b'C', 6000)] {
        writer.write_all_at(&[byte; 100], at).unwrap();
        writer.sync_all().unwrap();
        told(terrace(["drop-caches".as_ref(), served.test.mnt.as_os_str()])).fine();
        for file in [&reader, &writer] {
            file.read_exact_at(&mut found, at).unwrap();
            assert_eq!(found, [byte; 100]);
        }
    }
    let copy = fs::read(served.test.src.join("file")).unwrap();
    assert_eq!((&copy[5000..5100], &copy[6000..6100]), (&[b'B'; 100][..], &[b'C'; 100][..]));
    drop((reader, writer));
    served.end();
}
