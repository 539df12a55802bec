//! Child processes without exec: they make system calls alone, and share one page with the test.

use std::ffi::CString;
use std::fs::File;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use terrace_opens::guard::{Listener, Unavailable};

/// OVERLAYFS_SUPER_MAGIC of linux/magic.h.
const OVERLAYFS: rustix::fs::FsWord = 0x794c_7630;

/// Whether the kernel reports opens and holders to this process. Otherwise the test is skipped with a message.
#[track_caller]
pub(crate) fn is_possible() -> bool {
    if !terrace_testkit::is_root() {
        return false;
    }
    match Listener::new() {
        Err(why @ (Unavailable::NeedsAdmin | Unavailable::NoKernelSupport(_))) => {
            terrace_testkit::skipped!("{why}");
            return false;
        }
        listener => drop(listener.unwrap()),
    }
    let is_overlay = rustix::fs::statfs(env!("CARGO_TARGET_TMPDIR")).unwrap().f_type == OVERLAYFS;
    if is_overlay {
        terrace_testkit::skipped!("the target directory is on overlayfs, which hides the holders of a file");
    }
    !is_overlay
}

/// A word in memory that the test shares with its children, 0 at first.
pub(crate) fn shared_word() -> &'static AtomicU32 {
    let flags = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping of a page, zeroed, never unmapped.
    unsafe { &*mmap_anonymous(ptr::null_mut(), 4096, flags, MapFlags::SHARED).unwrap().cast::<AtomicU32>() }
}

/// Waits in a child, which must not allocate.
pub(crate) fn spin_until(word: &AtomicU32, value: u32) {
    while word.load(Ordering::SeqCst) != value {
        // SAFETY: a pause of a thread.
        unsafe { libc::usleep(200) };
    }
}

/// A child process, killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Child(i32);

impl Child {
    /// Runs `body` in a child that has no descriptors of the test.
    pub(crate) fn fork(body: impl FnOnce() -> i32) -> Child {
        // SAFETY: the child makes system calls and ends.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: no owner of these descriptors runs in the child.
            unsafe {
                libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0);
                libc::_exit(body());
            }
        }
        assert!(pid > 0, "{}", std::io::Error::last_os_error());
        Child(pid)
    }

    /// Runs `body` in a child that shares the test's table of descriptors.
    pub(crate) fn sharing_descriptors(body: impl FnOnce()) -> Child {
        // SAFETY: as fork; the child makes system calls and waits for its end.
        let pid = unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_FILES | libc::SIGCHLD, 0, 0, 0, 0) };
        if pid == 0 {
            body();
            // SAFETY: ends here.
            unsafe { libc::_exit(1) };
        }
        assert!(pid > 0, "{}", std::io::Error::last_os_error());
        Child(i32::try_from(pid).unwrap())
    }

    pub(crate) fn pid(&self) -> i32 {
        self.0
    }

    /// Exit status of the child.
    pub(crate) fn wait(mut self) -> i32 {
        let mut status = 0;
        // SAFETY: our child, and a number that the call writes.
        assert_eq!(unsafe { libc::waitpid(self.0, &raw mut status, 0) }, self.0);
        self.0 = 0;
        if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.0 > 0 {
            // SAFETY: our child, not waited for.
            unsafe {
                libc::kill(self.0, libc::SIGKILL);
                libc::waitpid(self.0, ptr::null_mut(), 0);
            }
        }
    }
}

/// Opens a path in a child. The descriptor, or minus the error.
pub(crate) fn open(path: &CString, flags: i32) -> i32 {
    // SAFETY: a path that ends with 0.
    let fd = unsafe { libc::open(path.as_ptr(), flags) };
    if fd >= 0 { fd } else { -std::io::Error::last_os_error().raw_os_error().unwrap_or(1) }
}

pub(crate) fn close(fd: i32) {
    // SAFETY: a descriptor of the child, without an owner.
    unsafe { libc::close(fd) };
}

/// A file on the file system of the workspace.
pub(crate) struct TestFile {
    pub(crate) path: PathBuf,
    pub(crate) name: CString,
    /// Open for reading, without a close during the test.
    pub(crate) file: File,
}

impl TestFile {
    fn create(path: PathBuf) -> TestFile {
        std::fs::write(&path, vec![7; 8192]).unwrap();
        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
        let file = File::open(&path).unwrap();
        TestFile { path, name, file }
    }

    /// A second file beside it.
    pub(crate) fn another(&self) -> TestFile {
        TestFile::create(self.path.with_extension("other"))
    }
}

/// The file of a test, in a directory of its own.
pub(crate) struct Fixture {
    file: TestFile,
    _dir: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl Deref for Fixture {
    type Target = TestFile;
    fn deref(&self) -> &TestFile {
        &self.file
    }
}

/// One test at a time: a child has the descriptors of all tests at first, which delays their closes.
pub(crate) fn fixture() -> Fixture {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = TestFile::create(std::fs::canonicalize(dir.path()).unwrap().join("file"));
    Fixture { file, _dir: dir, _alone: alone }
}
