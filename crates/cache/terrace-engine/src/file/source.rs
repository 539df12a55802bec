//! A file of the source, reached through an O_PATH descriptor of the engine's user.
//!
//! Data descriptors open with a program's open, or at the first need. They close with the file's last close,
//! or earlier while descriptors are short. An open descriptor serves for all that it allows, because a change
//! of mode may forbid the next open.

use rustix::fs::{Access, AtFlags, Mode, OFlags, StatxFlags, fcntl_getfl, fcntl_setfl, open, statx};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use terrace_shm::PAGE_SIZE;
use terrace_sync::Mutex;

/// fcntl's command for the signal of a lease (Linux: include/uapi/asm-generic/fcntl.h).
const F_SETSIG: libc::c_int = 10;

/// The magic number of FUSE (Linux: include/uapi/linux/magic.h).
const FUSE_MAGIC: i64 = 0x6573_5546;

/// The O_PATH descriptor of a source file.
#[derive(Debug, Clone)]
pub enum PathFd {
    /// Owned in common: the descriptor's number cannot become another file's.
    Shared(Arc<OwnedFd>),
    /// Borrowed from the creator of this value, which keeps the descriptor open.
    Borrowed(RawFd),
}

impl From<Arc<OwnedFd>> for PathFd {
    fn from(fd: Arc<OwnedFd>) -> PathFd {
        PathFd::Shared(fd)
    }
}

impl From<RawFd> for PathFd {
    fn from(fd: RawFd) -> PathFd {
        PathFd::Borrowed(fd)
    }
}

/// A descriptor, and whether direct I/O may be used. It is small, because each file has one.
#[derive(Debug)]
enum Named {
    Shared(Arc<OwnedFd>, bool),
    Borrowed(RawFd, bool),
}

/// A source file.
#[derive(Debug)]
pub struct SourceFile {
    named: Named,
    read: Slot,
    write: Slot,
    tail: Slot,
    cached: Slot,
}

type Slot = Mutex<Option<Arc<DataFd>>>;

/// A data descriptor. It stays open while a reference to it exists.
#[derive(Debug)]
pub struct DataFd(OwnedFd);

impl AsFd for DataFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl DataFd {
    /// The raw descriptor, open as long as this value lives.
    pub fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Whether it uses direct I/O. The source may refuse that at a later call (`io::page_cache`).
    pub fn direct(&self) -> bool {
        fcntl_getfl(&self.0).is_ok_and(|flags| flags.contains(OFlags::DIRECT))
    }

    fn make_buffered(&self) -> io::Result<()> {
        Ok(fcntl_setfl(&self.0, fcntl_getfl(&self.0)? - OFlags::DIRECT)?)
    }
}

impl SourceFile {
    pub(crate) fn new(path_fd: impl Into<PathFd>) -> SourceFile {
        SourceFile::named(path_fd.into(), true)
    }
    /// As `new`, read and written through the kernel's page cache.
    pub fn through_page_cache(path_fd: impl Into<PathFd>) -> SourceFile {
        SourceFile::named(path_fd.into(), false)
    }
    fn named(path_fd: PathFd, bypass: bool) -> SourceFile {
        let named = match path_fd {
            PathFd::Shared(fd) => Named::Shared(fd, bypass),
            PathFd::Borrowed(fd) => Named::Borrowed(fd, bypass),
        };
        SourceFile {
            named,
            read: Slot::default(),
            write: Slot::default(),
            tail: Slot::default(),
            cached: Slot::default(),
        }
    }
    /// Whether direct I/O may be used.
    fn bypass(&self) -> bool {
        match self.named {
            Named::Shared(_, bypass) | Named::Borrowed(_, bypass) => bypass,
        }
    }
    fn borrowed(&self) -> BorrowedFd<'_> {
        match &self.named {
            Named::Shared(fd, _) => fd.as_fd(),
            // SAFETY: open as long as this is (see `PathFd::Borrowed`).
            Named::Borrowed(fd, _) => unsafe { BorrowedFd::borrow_raw(*fd) },
        }
    }
    pub(crate) fn as_path(&self) -> BorrowedFd<'_> {
        self.borrowed()
    }
    /// Status of the file. On a server's file system a data descriptor keeps a file without names alive; an
    /// O_PATH descriptor does not.
    pub fn stat(&self) -> io::Result<rustix::fs::Stat> {
        match rustix::fs::fstat(self.borrowed()) {
            Err(Errno::NOENT | Errno::STALE) => {}
            stat => return Ok(stat?),
        }
        let open = self.any_open().ok_or(Errno::STALE)?;
        Ok(rustix::fs::fstat(&*open)?)
    }
    /// Number of names, by the server's present answer.
    ///
    /// # Errors
    /// The server does not know the file, or does not answer.
    pub(crate) fn links(&self) -> io::Result<u32> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        Ok(statx(self.borrowed(), "", flags, StatxFlags::NLINK)?.stx_nlink)
    }
    /// Any open data descriptor, the writer first.
    fn any_open(&self) -> Option<Arc<DataFd>> {
        [&self.write, &self.tail, &self.read, &self.cached].into_iter().find_map(|slot| slot.lock().clone())
    }
    pub(crate) fn path_fd(&self) -> RawFd {
        self.borrowed().as_raw_fd()
    }
    /// A path that opens this very file, also after it was renamed or unlinked.
    pub fn proc_path(&self) -> String {
        format!("/proc/self/fd/{}", self.path_fd())
    }
    /// mtime and ctime, ns since 1970.
    pub fn times(&self) -> Option<(i64, i64)> {
        Some(times_of(&self.stat().ok()?))
    }
    /// For reading, with direct I/O where the source allows it.
    pub fn reader(&self) -> io::Result<Arc<DataFd>> {
        let opened = get_or_open(&self.read, || self.open_direct(OFlags::RDONLY));
        // The mode may forbid reading: the writer is open for both.
        opened.or_else(|err| self.open_writer().ok_or(err))
    }
    /// For reading through the kernel's page cache.
    pub fn cached_reader(&self) -> io::Result<Arc<DataFd>> {
        get_or_open(&self.cached, || Ok(DataFd(self.open_read_only()?)))
    }
    /// Whether the file is open for writing or mapped writable anywhere: the kernel then refuses a read lease
    /// (fcntl(2), "Leases"). The caller has closed the writer.
    ///
    /// # Errors
    /// The file system has no leases, or the file cannot be opened.
    pub fn has_writers(&self) -> io::Result<bool> {
        let fd = self.open_read_only()?;
        // SAFETY: plain numbers. A program that opens the file while the lease is held makes the kernel send
        // the signal, and SIGURG does nothing.
        let leased = unsafe {
            libc::fcntl(fd.as_raw_fd(), F_SETSIG, libc::SIGURG);
            libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK)
        };
        match (leased, io::Error::last_os_error()) {
            (0, _) => Ok(false), // The lease ends with the descriptor.
            (_, err) if err.kind() == io::ErrorKind::WouldBlock => Ok(true),
            (_, err) => Err(err),
        }
    }
    fn open_read_only(&self) -> io::Result<OwnedFd> {
        Ok(open(self.proc_path(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    }
    /// For writing (and other changes of the file), with direct I/O where the source allows it.
    pub fn writer(&self) -> io::Result<Arc<DataFd>> {
        let mut opened = false;
        let writer = get_or_open(&self.write, || {
            opened = true;
            self.open_direct(OFlags::RDWR)
        })?;
        if opened {
            self.open_readers_again();
        }
        Ok(writer)
    }
    /// Reopens the readers after the first open for writing. Union file systems then copy the file to their
    /// upper layer, and older descriptors read the lower one.
    fn open_readers_again(&self) {
        if self.data_descriptors_open() == 1 || !self.may_copy_up() {
            return;
        }
        let again = |slot: &Slot, open: &dyn Fn() -> io::Result<DataFd>| {
            let mut slot = slot.lock();
            // The mode may forbid the open by now: the old reader stays.
            if slot.is_some()
                && let Ok(fd) = open()
            {
                *slot = Some(Arc::new(fd));
            }
        };
        again(&self.read, &|| self.open_direct(OFlags::RDONLY));
        again(&self.cached, &|| Ok(DataFd(self.open_read_only()?)));
    }
    /// Whether an open for writing may change a file's content for other descriptors: on FUSE. The kernel's
    /// own union file system redirects all descriptors.
    fn may_copy_up(&self) -> bool {
        rustix::fs::fstatfs(self.borrowed()).is_ok_and(|fs| fs.f_type == FUSE_MAGIC)
    }
    /// Any descriptor, for fsync.
    pub fn any(&self) -> io::Result<Arc<DataFd>> {
        self.open_writer().map_or_else(|| self.reader(), Ok)
    }
    /// The descriptor for syncs of data written through the page cache: the same one while it is open. The
    /// kernel reports to a descriptor the failures since its open, to a new one only unreported failures.
    pub(crate) fn syncer(&self) -> io::Result<Arc<DataFd>> {
        if let Some(open) = self.tail.lock().clone() {
            return Ok(open);
        }
        let fresh = self.open_direct(OFlags::RDONLY).map(Arc::new);
        fresh.or_else(|err| self.any_open().ok_or(err))
    }
    /// For writing through the page cache: a partial last page.
    pub fn buffered(&self) -> io::Result<Arc<DataFd>> {
        let opened = get_or_open(&self.tail, || {
            let fd = open(self.proc_path(), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
            Ok(DataFd(fd))
        });
        opened.or_else(|err| {
            // The open is forbidden, or descriptors are short: the writer now uses the page cache.
            let writer = self.open_writer().ok_or(err)?;
            writer.make_buffered()?;
            Ok(writer)
        })
    }
    /// The writer, if it is open.
    pub fn open_writer(&self) -> Option<Arc<DataFd>> {
        self.write.lock().clone()
    }
    /// Takes over a descriptor, open for reading and writing, of the file's creator or an old daemon.
    pub fn adopt_writer(&self, fd: OwnedFd) {
        let mut writer = self.write.lock();
        if writer.is_some() {
            return; // Another thread has opened it meanwhile, and may be using it.
        }
        if self.bypass() && takes_pages(self.borrowed()) {
            // Where the source has no direct I/O, the descriptor stays as it is.
            let _ = fcntl_getfl(&fd).and_then(|flags| fcntl_setfl(&fd, flags | OFlags::DIRECT));
        }
        *writer = Some(Arc::new(DataFd(fd)));
    }
    /// A new read-only direct descriptor for a client.
    ///
    /// # Errors
    /// The descriptor would read the content before a copy-up: the client has to use the mount.
    pub(crate) fn reader_for_client(&self) -> io::Result<(OwnedFd, bool)> {
        if self.may_copy_up() {
            return Err(Errno::OPNOTSUPP.into());
        }
        let opened = self.open_direct(OFlags::RDONLY)?;
        let direct = opened.direct();
        Ok((opened.0, direct))
    }
    /// Number of open data descriptors.
    pub fn data_descriptors_open(&self) -> usize {
        [&self.read, &self.write, &self.tail, &self.cached]
            .into_iter()
            .filter(|slot| slot.lock().is_some())
            .count()
    }
    /// Closes the readers. Calls under way keep theirs open.
    pub fn close_reader(&self) {
        drop(self.read.lock().take());
        drop(self.cached.lock().take());
    }
    /// Closes the descriptors for writing; the writer itself with its last reference. It stays open if no
    /// other descriptor can sync the file, or write it again while it is `unstable`.
    pub fn close_writer(&self, unstable: bool) -> Option<Arc<DataFd>> {
        if self.write.lock().is_none() && self.tail.lock().is_none() {
            return None;
        }
        let needed = if unstable { Access::READ_OK | Access::WRITE_OK } else { Access::READ_OK };
        let reopens = || rustix::fs::access(self.proc_path(), needed).is_ok();
        if !rustix::process::geteuid().is_root() && !reopens() {
            return None;
        }
        drop(self.tail.lock().take());
        self.write.lock().take()
    }

    /// The source's answer to a close; the descriptors for writing stay open. File systems of networks and
    /// servers report failed writes only at a close (close(2)). Others do nothing.
    pub(crate) fn answer_to_close(&self) -> io::Result<()> {
        let open = [&self.write, &self.tail].map(|slot| slot.lock().clone());
        open.iter().flatten().try_for_each(|fd| {
            let copy = rustix::io::fcntl_dupfd_cloexec(fd, 0)?;
            // SAFETY: the copy is this function's alone.
            match unsafe { libc::close(copy.into_raw_fd()) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        })
    }

    fn open_direct(&self, access: OFlags) -> io::Result<DataFd> {
        let path = self.proc_path();
        let open = |more: OFlags| {
            match open(&path, access | OFlags::CLOEXEC | OFlags::NOATIME | more, Mode::empty()) {
                // NOATIME needs ownership.
                Err(Errno::PERM) => open(&path, access | OFlags::CLOEXEC | more, Mode::empty()),
                opened => opened,
            }
        };
        if self.bypass() && takes_pages(self.borrowed()) {
            match open(OFlags::DIRECT) {
                Err(Errno::INVAL | Errno::OPNOTSUPP) => {} // The source has no direct I/O.
                opened => return Ok(DataFd(opened?)),
            }
        }
        Ok(DataFd(open(OFlags::empty())?))
    }
}

/// Whether the file system takes direct I/O of single pages, as far as it reports so (statx(2),
/// STATX_DIOALIGN).
fn takes_pages(file: BorrowedFd<'_>) -> bool {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let Ok(stat) = statx(file, c"", flags, StatxFlags::DIOALIGN) else { return true };
    let has_alignment = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::DIOALIGN);
    let fits = |bytes: u32| (1..=PAGE_SIZE as u32).contains(&bytes);
    !has_alignment || fits(stat.stx_dio_offset_align) && fits(stat.stx_dio_mem_align)
}

/// Age of a change after which the next change gets another ctime on any file system.
const CTIME_DIFFERS_AFTER_S: i64 = 2;

/// Whether every change from now on moves the ctime.
pub fn differs_from_now_on(stat: &rustix::fs::Stat) -> bool {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    stat.st_ctime + CTIME_DIFFERS_AFTER_S < now.tv_sec
}

/// mtime and ctime, ns since 1970.
pub fn times_of(stat: &rustix::fs::Stat) -> (i64, i64) {
    let ns = |s: i64, n: i64| s.saturating_mul(1_000_000_000).saturating_add(n);
    (ns(stat.st_mtime, stat.st_mtime_nsec as i64), ns(stat.st_ctime, stat.st_ctime_nsec as i64))
}

fn get_or_open(slot: &Slot, open: impl FnOnce() -> io::Result<DataFd>) -> io::Result<Arc<DataFd>> {
    let mut slot = slot.lock();
    if let Some(fd) = &*slot {
        return Ok(fd.clone());
    }
    let fd = Arc::new(open()?);
    *slot = Some(fd.clone());
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn file_with_unstable_pages_keeps_its_writer() {
        let file = tempfile::tempfile().unwrap();
        let (writer, again) = (file.try_clone().unwrap(), file.try_clone().unwrap());
        std::os::unix::fs::fchown(&file, Some(65534), Some(65534)).unwrap_or_default();
        let keeps = move || {
            if rustix::process::geteuid().is_root() {
                // SAFETY: plain numbers. The call itself, unlike libc's function, binds this thread alone.
                assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) }, 0);
            }
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            let path = open(path, OFlags::PATH, Mode::empty()).unwrap();
            let source = SourceFile::new(path.as_raw_fd());
            file.set_permissions(std::fs::Permissions::from_mode(0o444)).unwrap();
            source.adopt_writer(writer.into());
            assert!(source.close_writer(true).is_none() && source.open_writer().is_some());
            assert!(
                source.close_writer(false).is_some() && source.open_writer().is_none(),
                "a reader can sync it"
            );
            source.adopt_writer(again.into());
            file.set_permissions(std::fs::Permissions::from_mode(0o600)).unwrap();
            assert!(source.close_writer(true).is_some(), "another writer could be had");
        };
        std::thread::spawn(keeps).join().unwrap();
    }
}
