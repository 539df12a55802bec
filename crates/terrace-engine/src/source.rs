//! A file of the source, reached through the O_PATH descriptor that the namespace holds.

use rustix::fs::{Mode, OFlags, open};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::OnceLock;

/// A source file. Data descriptors are opened when first needed and live as long as the object.
#[derive(Debug)]
pub struct SourceFile {
    path_fd: RawFd,
    read: OnceLock<DataFd>,
    write: OnceLock<DataFd>,
    tail: OnceLock<OwnedFd>,
}

/// A data descriptor and whether it bypasses the kernel's page cache.
#[derive(Debug)]
pub struct DataFd {
    fd: OwnedFd,
    /// Opened with O_DIRECT.
    pub direct: bool,
}

impl DataFd {
    /// The descriptor.
    pub fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl SourceFile {
    /// A file named by an O_PATH descriptor, which stays the caller's and must outlive this.
    pub fn new(path_fd: RawFd) -> SourceFile {
        SourceFile { path_fd, read: OnceLock::new(), write: OnceLock::new(), tail: OnceLock::new() }
    }
    fn borrowed(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as this is (see `new`).
        unsafe { BorrowedFd::borrow_raw(self.path_fd()) }
    }
    /// Status of the file.
    pub fn stat(&self) -> io::Result<rustix::fs::Stat> {
        Ok(rustix::fs::fstat(self.borrowed())?)
    }
    /// The O_PATH descriptor.
    pub fn path_fd(&self) -> RawFd {
        self.path_fd
    }
    /// A path that opens this very file, also after it was renamed or unlinked.
    pub fn proc_path(&self) -> String {
        format!("/proc/self/fd/{}", self.path_fd())
    }
    /// mtime and ctime, ns since 1970.
    pub fn times(&self) -> Option<(i64, i64)> {
        let st = self.stat().ok()?;
        let ns = |s: i64, n: i64| s.saturating_mul(1_000_000_000).saturating_add(n);
        Some((ns(st.st_mtime, st.st_mtime_nsec as i64), ns(st.st_ctime, st.st_ctime_nsec as i64)))
    }
    /// For reading, past the page cache where the source allows it.
    pub fn reader(&self) -> io::Result<&DataFd> {
        get_or_open(&self.read, || self.open_direct(OFlags::RDONLY))
    }
    /// For writing (and for changing the file otherwise), past the page cache where the source allows it.
    pub fn writer(&self) -> io::Result<&DataFd> {
        get_or_open(&self.write, || self.open_direct(OFlags::RDWR))
    }
    /// For writing through the page cache: the last page of a file whose size is no multiple of the page size.
    pub fn buffered(&self) -> io::Result<RawFd> {
        let fd = get_or_open(&self.tail, || {
            Ok(open(self.proc_path(), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
        })?;
        Ok(fd.as_raw_fd())
    }
    /// A fresh read-only direct descriptor to hand to a client.
    pub fn reader_for_client(&self) -> io::Result<(OwnedFd, bool)> {
        let d = self.open_direct(OFlags::RDONLY)?;
        Ok((d.fd, d.direct))
    }
    /// All descriptors that are open now.
    pub fn open_fds(&self) -> Vec<RawFd> {
        let data = [&self.read, &self.write].into_iter().filter_map(|c| c.get()).map(DataFd::raw);
        data.chain(self.tail.get().map(|f| f.as_raw_fd())).collect()
    }

    fn open_direct(&self, access: OFlags) -> io::Result<DataFd> {
        let path = self.proc_path();
        let flags = access | OFlags::CLOEXEC | OFlags::NOATIME;
        for (extra, direct) in [(OFlags::DIRECT, true), (OFlags::empty(), false)] {
            match open(&path, flags | extra, Mode::empty()) {
                Ok(fd) => return Ok(DataFd { fd, direct }),
                // NOATIME needs ownership.
                Err(rustix::io::Errno::PERM) => {
                    if let Ok(fd) = open(&path, access | OFlags::CLOEXEC | extra, Mode::empty()) {
                        return Ok(DataFd { fd, direct });
                    }
                }
                Err(rustix::io::Errno::INVAL) if direct => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(rustix::io::Errno::INVAL.into())
    }
}

fn get_or_open<T>(cell: &OnceLock<T>, f: impl FnOnce() -> io::Result<T>) -> io::Result<&T> {
    if let Some(v) = cell.get() {
        return Ok(v);
    }
    let v = f()?;
    Ok(cell.get_or_init(|| v))
}
