//! Directories of tests that every user can reach, a small disk for a test, and the paths of the product's
//! files.

use crate::{leftovers, process, rng};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The top of the source tree.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(3).expect("crates/lab/terrace-tests").to_owned()
}

/// Path of a file of the product; panics with the cure if it is missing.
#[track_caller]
pub fn product(name: &str) -> PathBuf {
    let dir =
        std::env::var_os("TERRACE_BIN_DIR").map_or_else(|| workspace().join("target/release"), PathBuf::from);
    let path = dir.join(name);
    assert!(path.exists(), "{} is missing: run `make build` first, or set TERRACE_BIN_DIR", path.display());
    if is_for_all(&dir) { path } else { copies(&dir).join(name) }
}

/// `terrace ARGS...`
#[track_caller]
pub fn terrace(args: &[&str]) -> Command {
    let mut command = Command::new(product("terrace"));
    command.args(args);
    command
}

/// Copies of the product in a place that every user can execute and LD_PRELOAD can name, made once for each
/// build.
fn copies(from: &Path) -> &'static Path {
    static COPIES: OnceLock<PathBuf> = OnceLock::new();
    COPIES.get_or_init(|| {
        let to = base_dir().join(format!("product-{:x}", rng::hash(from.as_os_str().as_encoded_bytes())));
        std::fs::create_dir_all(&to).expect("a directory for copies of the product");
        for name in ["terrace", "libterrace_preload.so", "terrace-bench", "terrace-sim"] {
            let (source, copy) = (from.join(name), to.join(name));
            let age = |path: &Path| std::fs::metadata(path).and_then(|m| m.modified()).ok();
            if !source.exists() || age(&source) == age(&copy) {
                continue;
            }
            // Another test may be executing the old copy, so it is replaced by a rename.
            let new = to.join(format!("{name}.{}", std::process::id()));
            let copied = std::fs::copy(&source, &new)
                .and_then(|_| std::fs::File::open(&new)?.set_modified(age(&source).expect("it is there")))
                .and_then(|()| std::fs::rename(&new, &copy));
            copied.unwrap_or_else(|why| panic!("{}: {why}", copy.display()));
        }
        to
    })
}

/// Whether a place is reachable by every user and contains no characters special to shells, LD_PRELOAD and
/// /proc/mounts; on a disk, and not where tests mount file systems. A clone may be anywhere: otherwise
/// `/var/tmp` is used.
fn is_for_all(dir: &Path) -> bool {
    let reached =
        |p: &Path| std::fs::metadata(p).is_ok_and(|m| std::os::unix::fs::MetadataExt::mode(&m) & 0o001 != 0);
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"/._+-".contains(b);
    dir.as_os_str().as_encoded_bytes().iter().all(plain)
        && !["/tmp", "/run", "/dev"].iter().any(|covered| dir.starts_with(covered))
        && dir.ancestors().filter(|p| !p.as_os_str().is_empty()).all(reached)
        && !is_memory(dir)
}

/// Whether the directory is on a tmpfs, which cannot bypass the page cache.
fn is_memory(dir: &Path) -> bool {
    let path = std::ffi::CString::new(dir.as_os_str().as_encoded_bytes()).expect("no NUL in a path");
    // SAFETY: statfs is plain data, and all zeros is one; the path is NUL-terminated.
    unsafe {
        let mut told: libc::statfs = std::mem::zeroed();
        libc::statfs(path.as_ptr(), &raw mut told) == 0 && told.f_type == libc::TMPFS_MAGIC
    }
}

/// A fresh directory, removed at the end of a successful test.
#[derive(Debug)]
pub struct TestDir(PathBuf);

impl TestDir {
    /// Makes it; `test` becomes part of its name.
    pub fn new(test: &str) -> TestDir {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        // An absolute name selects the place: some programs accept only short paths.
        // No name is the beginning of another one: leftovers are found by it.
        let path = base_dir().join(format!("{test}-{}-{n:03}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory for the test");
        TestDir(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes a subdirectory.
    pub fn sub(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(&path).expect("a directory for the test");
        path
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        if std::thread::panicking() {
            leftovers::clear(&self.0);
        }
        if std::thread::panicking() || std::env::var_os("TERRACE_KEEP").is_some() {
            eprintln!("kept for inspection: {}", self.0.display());
            return;
        }
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A small ext4 on a loop device, mounted in its own directory: it can be filled without using other space.
#[derive(Debug)]
pub struct SmallDisk {
    at: PathBuf,
    // Last field: removed after the disk is unmounted.
    _dir: TestDir,
}

impl SmallDisk {
    /// Makes one of `mib` MiB. None, with a message, without root or without loop devices.
    #[track_caller]
    pub fn new(test: &str, mib: u64) -> Option<SmallDisk> {
        if !crate::is_root() {
            return None;
        }
        let dir = TestDir::new(&format!("{test}-disk"));
        let (image, at) = (dir.path().join("image"), dir.sub("disk"));
        std::fs::File::create(&image).and_then(|f| f.set_len(mib << 20)).expect("an image");
        process::run(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image), 120).expect_success();
        let mounted = process::run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at), 120);
        if !mounted.status.success() {
            terrace_testkit::skipped!("no loop device here: {}", mounted.stderr.trim());
            return None;
        }
        Some(SmallDisk { at, _dir: dir })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.at
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmount = || Command::new("umount").arg(&self.at).status().is_ok_and(|status| status.success());
        if leftovers::is_mounted(&self.at) && !unmount() {
            leftovers::clear(&self.at);
        }
    }
}

/// Test data are beside the build, if that place is suitable.
fn base_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os("TERRACE_TEST_DIR") {
        return dir.into();
    }
    let near = workspace().join("target/test-data");
    std::fs::create_dir_all(&near).expect("target can be written");
    if is_for_all(&near) {
        return near;
    }
    // SAFETY: no arguments.
    let user = unsafe { libc::geteuid() };
    format!("/var/tmp/terrace-tests-{user}").into()
}
