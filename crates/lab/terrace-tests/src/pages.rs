//! Self-describing pages and the version table of their writes: the basis of every verifying stress test.
//!
//! Each 512-byte sector of a page contains the page's number, its version and a checksum
//! ([`terrace_testkit::pages`]). A page has one writing process at a time. The version table is a file
//! outside the cache, mapped by all processes. It has three numbers a page: the last version with a *started*
//! write, the last one *acknowledged*, and the last one covered by an fsync. A reader that saw `acked`
//! before its read and sees `started` after it must have got a version in between. An older version is a lost
//! or stale write, and any other was never written.

use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use terrace_testkit::pages::Content;
pub use terrace_testkit::pages::{Bad, PAGE, version};

const HEADER: usize = 4096;

/// Writes version `version` of page `page` into `buf`. Three pages of four are compressible.
pub fn stamp(buf: &mut [u8], page: u64, version: u64) {
    let content = if page.is_multiple_of(4) { Content::Noise } else { Content::Repeats };
    terrace_testkit::pages::stamp(buf, page, version, content);
}

/// The shared record of all writes. See the module's description.
#[derive(Debug)]
pub struct VersionTable {
    base: *mut u8,
    len: usize,
    pages: u64,
}

// SAFETY: all access goes through atomics in a mapping that lives as long as the value.
unsafe impl Send for VersionTable {}
// SAFETY: as above.
unsafe impl Sync for VersionTable {}

impl VersionTable {
    /// Makes a version table for `pages` pages, or opens the existing one.
    pub fn open(path: &Path, pages: u64) -> VersionTable {
        let file = std::fs::File::options().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        let len = HEADER + pages as usize * 24;
        file.set_len(len as u64).expect("the version table can be made as long as it must be");
        // SAFETY: a new shared mapping of a file of this length.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED, "the version table can be mapped");
        VersionTable { base: base.cast(), len, pages }
    }

    fn cell(&self, index: usize) -> &AtomicU64 {
        assert!(index * 8 + 8 <= self.len, "within the version table");
        // SAFETY: aligned and within the mapping (asserted); only atomics touch it.
        unsafe { &*self.base.add(index * 8).cast::<AtomicU64>() }
    }

    fn of(&self, page: u64, which: u64) -> &AtomicU64 {
        assert!(page < self.pages, "a page of the version table");
        self.cell(HEADER / 8 + (page * 3 + which) as usize)
    }

    /// Number of pages.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Version of the last started write.
    pub fn started(&self, page: u64) -> &AtomicU64 {
        self.of(page, 0)
    }

    /// Version of the last acknowledged write.
    pub fn acked(&self, page: u64) -> &AtomicU64 {
        self.of(page, 1)
    }

    /// Newest version covered by an fsync.
    pub fn synced(&self, page: u64) -> &AtomicU64 {
        self.of(page, 2)
    }

    /// Stop flag for all processes.
    pub fn stop(&self) -> &AtomicU64 {
        self.cell(0)
    }

    /// Pages written so far, by all processes.
    pub fn writes(&self) -> &AtomicU64 {
        self.cell(1)
    }

    /// Pages read and verified so far, by all processes.
    pub fn reads(&self) -> &AtomicU64 {
        self.cell(2)
    }

    /// Pages that were torn in one read and whole in the next.
    pub fn torn(&self) -> &AtomicU64 {
        self.cell(3)
    }

    /// Fsyncs so far, by all processes.
    pub fn syncs(&self) -> &AtomicU64 {
        self.cell(4)
    }

    /// One line for the test's output.
    pub(crate) fn summary(&self) -> String {
        let n = |cell: &AtomicU64| cell.load(SeqCst);
        format!(
            "{} pages written, {} read, {} fsyncs, {} torn and read again",
            n(self.writes()),
            n(self.reads()),
            n(self.syncs()),
            n(self.torn())
        )
    }
}

impl Drop for VersionTable {
    fn drop(&mut self) {
        // SAFETY: made by mmap with this length; no borrow is left.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}
