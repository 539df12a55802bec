//! Set-id bits and changes of content or owner: the mount clears them as a plain directory does.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::{Mount, each};

const USER: u32 = 4242;
const SECOND_GROUP: u32 = 4243;

/// Modes with and without group execution. Owners and groups: root's, the user's, and a supplementary group
/// of the user.
const MODES: [u32; 7] = [0o6777, 0o6767, 0o2777, 0o2767, 0o4777, 0o6666, 0o0777];
const OWNERS: [(u32, u32); 5] = [(0, 0), (USER, USER), (USER, SECOND_GROUP), (0, SECOND_GROUP), (USER, 0)];

/// The process that changes the file.
#[derive(Clone, Copy, Debug)]
enum Actor {
    Root,
    RootWithoutFsetid,
    User,
}

impl Actor {
    /// Makes the calling thread alone act as this process.
    fn enter(self) {
        match self {
            Self::Root => {}
            Self::RootWithoutFsetid => {
                let mut sets = capabilities(None).unwrap();
                sets.effective.remove(CapabilitySet::FSETID);
                sets.permitted.remove(CapabilitySet::FSETID);
                set_capabilities(None, sets).unwrap();
            }
            Self::User => {
                // SAFETY: raw system calls, without libc's wrappers, change the credentials of this thread
                // alone.
                unsafe {
                    let group = SECOND_GROUP;
                    assert_eq!(libc::syscall(libc::SYS_setgroups, 1, &raw const group), 0);
                    assert_eq!(libc::syscall(libc::SYS_setresgid, USER, USER, USER), 0);
                    assert_eq!(libc::syscall(libc::SYS_setresuid, USER, USER, USER), 0);
                }
            }
        }
    }
}

/// Changes a file in a directory that has another file, `other`.
type Change = fn(dir: &OwnedFd) -> rustix::io::Result<()>;

const CHANGES: [(&str, Change); 12] = [
    ("read", |dir| rustix::io::read(open(dir, OFlags::RDONLY)?, &mut [0; 16]).map(drop)),
    ("write", |dir| rustix::io::pwrite(open(dir, OFlags::RDWR)?, b"new", 5).map(drop)),
    ("write past the page cache", |dir| write_direct(dir)),
    ("shorten", |dir| rustix::fs::ftruncate(open(dir, OFlags::RDWR)?, 100)),
    ("lengthen", |dir| rustix::fs::ftruncate(open(dir, OFlags::RDWR)?, 100_000)),
    ("open with O_TRUNC", |dir| open(dir, OFlags::RDWR | OFlags::TRUNC).map(drop)),
    ("allocate", |dir| allocate(dir, FallocateFlags::empty())),
    ("allocate, size kept", |dir| allocate(dir, FallocateFlags::KEEP_SIZE)),
    ("punch", |dir| allocate(dir, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE)),
    ("zero", |dir| allocate(dir, FallocateFlags::ZERO_RANGE)),
    ("copy into", |dir| copy_into(dir)),
    ("change the group", |dir| {
        let group = rustix::fs::Gid::from_raw(SECOND_GROUP);
        rustix::fs::fchown(open(dir, OFlags::RDONLY)?, None, Some(group))
    }),
];

fn open(dir: &OwnedFd, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(dir, "file", flags | OFlags::CLOEXEC, Mode::empty())
}

fn write_direct(dir: &OwnedFd) -> rustix::io::Result<()> {
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    rustix::io::pwrite(open(dir, OFlags::RDWR | OFlags::DIRECT)?, &Page([7; 4096]).0, 0).map(drop)
}

fn allocate(dir: &OwnedFd, mode: FallocateFlags) -> rustix::io::Result<()> {
    rustix::fs::fallocate(open(dir, OFlags::RDWR)?, mode, 4096, 8192)
}

fn copy_into(dir: &OwnedFd) -> rustix::io::Result<()> {
    let from = rustix::fs::openat(dir, "other", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::fs::copy_file_range(from, None, open(dir, OFlags::RDWR)?, None, 1000).map(drop)
}

/// The result of every change by `actor` in `dir`: its error, and the mode after it.
fn outcomes(dir: &Path, actor: Actor) -> Vec<(Option<Errno>, u32)> {
    let file = dir.join("file");
    fs::write(dir.join("other"), [9; 5000]).unwrap();
    fs::set_permissions(dir.join("other"), fs::Permissions::from_mode(0o644)).unwrap();
    let held: OwnedFd = File::open(dir).unwrap().into();
    let act = |change: Change| {
        std::thread::scope(|scope| {
            let acting = scope.spawn(|| {
                actor.enter();
                change(&held).err()
            });
            acting.join().unwrap()
        })
    };
    cases()
        .map(|(_, change, mode, (uid, gid))| {
            fs::write(&file, [1; 20_000]).unwrap();
            chown(&file, Some(uid), Some(gid)).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            let outcome = (act(change), fs::metadata(&file).unwrap().mode() & 0o7777);
            fs::remove_file(&file).unwrap();
            outcome
        })
        .collect()
}

fn cases() -> impl Iterator<Item = (&'static str, Change, u32, (u32, u32))> {
    let all = |(name, change): (&'static str, Change)| {
        MODES
            .into_iter()
            .flat_map(move |mode| OWNERS.into_iter().map(move |owner| (name, change, mode, owner)))
    };
    CHANGES.into_iter().flat_map(all)
}

/// Since Linux 6.2 local file systems clear set-group-id without group execution for callers outside the
/// group.
fn kernel_is_strict() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(2))
}

#[test]
fn set_id_bits_go_as_on_a_plain_directory() {
    each(|mount| {
        let plain = mount.src.with_file_name("plain");
        fs::create_dir(&plain).unwrap();
        fs::set_permissions(&plain, fs::Permissions::from_mode(0o777)).unwrap();
        for actor in [Actor::Root, Actor::RootWithoutFsetid, Actor::User] {
            let (theirs, ours) = (outcomes(&plain, actor), outcomes(&mount.mnt, actor));
            for ((name, _, mode, owner), (theirs, ours)) in cases().zip(theirs.into_iter().zip(ours)) {
                let same = theirs == ours || !kernel_is_strict() && theirs.1 & ours.1 == ours.1;
                assert!(
                    same,
                    "{actor:?}: {name}, mode {mode:o} of {owner:?}: {:o} ({:?}) in the mount, {:o} ({:?}) beside it",
                    ours.1, ours.0, theirs.1, theirs.0
                );
            }
        }
    });
}

/// Changes a file of root's with set-id bits and mode 0777, as root of a new user namespace. Returns the mode
/// after it.
fn changed_from_a_user_namespace(mount: &Mount, change: &[&str]) -> Option<u32> {
    let path = mount.path("file");
    fs::write(&path, [1; 20_000]).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user"]).args(change).arg("/proc/self/fd/0");
    command.stdin(Stdio::from(file.as_fd().try_clone_to_owned().unwrap())).stderr(Stdio::null());
    command.uid(USER).gid(USER);
    let done = command.status().is_ok_and(|status| status.success());
    done.then(|| fs::metadata(&path).unwrap().mode() & 0o7777)
}

#[test]
fn a_user_namespace_keeps_no_set_id_bits() {
    each(|mount| {
        for change in [
            &["fallocate", "--length", "64KiB"][..],
            &["fallocate", "--punch-hole", "--length", "4KiB"],
            &["truncate", "--size", "100"],
        ] {
            match changed_from_a_user_namespace(mount, change) {
                Some(mode) => assert_eq!(mode, 0o777, "{change:?}"),
                None => terrace_testkit::skipped!("{change:?} in a user namespace of an ordinary user"),
            }
        }
    });
}
