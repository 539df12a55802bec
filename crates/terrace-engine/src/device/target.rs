//! The target of a device tier, opened and checked before a mount is made.
//!
//! ```text
//!   path ──► file or block device? ──► outside the source? ──► open O_DIRECT ──► lock ──► superblocks
//!                                                                                             │
//!     ours: used as it is          empty: formatted          anything else: refused, or formatted if that was asked for
//! ```
//! Nothing is written before all checks have passed. A file that was made here and cannot be used is removed again.

mod error;
mod lock;
mod owner;
mod place;
mod source;

use super::format::{DATA_AT, Geometry};
use super::medium::{FileMedium, erase, is_zero};
use super::scan::{Scanned, scan};
use super::superblock::{self, Found, OwedPages, Source, Superblock};
use crate::io::{AlignedBuf, BlockingIo};
use rustix::fs::{FallocateFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::fs::Metadata;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use terrace_shm::{DeviceSlot, PAGE_SIZE};

pub use error::{Fault, TargetError};
pub use place::check_outside;
pub use source::source_of;

/// DRAM that the index takes for each page of a tier, bytes.
pub const INDEX_BYTES_PER_PAGE: u64 = 12;
/// The index of a tier takes this part of the memory at the most.
const INDEX_PART: u64 = 4;
/// An unused target is zero up to where the first region begins, and a block device in as much at its end: there all usual file systems,
/// partition tables, RAIDs and volume managers have their marks.
const MARKS_WITHIN: u64 = DATA_AT;

const TMPFS_MAGIC: i64 = 0x0102_1994;
const RAMFS_MAGIC: i64 = 0x8584_58f6;

/// A request for a target.
#[derive(Debug, Clone)]
pub struct TargetRequest {
    /// A file, or a block device.
    pub path: PathBuf,
    /// Its size, bytes; None: as large as it is.
    pub size: Option<u64>,
    /// The directory whose pages it is to hold, without symbolic links.
    pub source: PathBuf,
    /// The limit on memory, of which the index takes a part, bytes.
    pub memory_bytes: u64,
    /// It may be erased.
    pub format: bool,
    /// Other targets of the instance.
    pub others: Others,
}

/// What other targets of an instance take.
#[derive(Debug, Clone, Copy, Default)]
pub struct Others {
    /// Their pages.
    pub pages: u64,
    /// Their regions.
    pub regions: u32,
}

impl Others {
    /// One more.
    pub fn add(&mut self, geometry: Geometry) {
        self.pages += u64::from(geometry.regions()) * u64::from(geometry.region_pages());
        self.regions += geometry.regions();
    }
}

/// A target that can be used, locked as long as its descriptor, or a duplicate of it, is open.
#[derive(Debug)]
pub struct Target {
    /// Opened for direct I/O.
    pub fd: OwnedFd,
    /// Its content.
    pub superblock: Superblock,
    /// It was formatted just now: there is nothing to scan.
    pub fresh: bool,
}

/// Opens and checks a target, and formats it if it is empty or may be erased.
///
/// # Errors
/// All that is wrong with it; what is on it is then as it was.
pub fn open(request: &TargetRequest) -> Result<Target, TargetError> {
    open_checked(request).map_err(|fault| TargetError::new(&request.path, fault))
}

fn open_checked(request: &TargetRequest) -> Result<Target, Fault> {
    let mut is_new = check_path(request)?;
    if is_new {
        check_index(request.memory_bytes, request.others, planned(request.size.ok_or(Fault::NoSize)?)?)?;
    }
    let file = match File::open(&request.path, is_new) {
        // Somebody else has made it meanwhile.
        Err(Fault::Io(err)) if is_new && err.kind() == io::ErrorKind::AlreadyExists => {
            is_new = false;
            File::open(&request.path, false)?
        }
        done => done?,
    };
    let target = file.prepare(request);
    if target.is_err() && is_new {
        // It was made here, and is still locked.
        let _ = std::fs::remove_file(&request.path);
    }
    target.map(|(superblock, fresh)| Target { fd: file.fd, superblock, fresh })
}

/// Whether the file must be made. A path that exists must be a file or block device outside the source.
fn check_path(request: &TargetRequest) -> Result<bool, Fault> {
    let outside = |path: PathBuf| check_outside(&path, &request.source);
    match std::fs::metadata(&request.path) {
        Ok(meta) => {
            outside(request.path.canonicalize().map_err(Fault::Io)?)?;
            check_kind(&meta).map(|()| false)
        }
        Err(err) if err.kind() == io::ErrorKind::NotFound => {
            let parent = request.path.parent().filter(|parent| !parent.as_os_str().is_empty());
            outside(parent.unwrap_or(Path::new(".")).canonicalize().map_err(Fault::Io)?)?;
            Ok(true)
        }
        Err(err) => Err(Fault::Io(err)),
    }
}

fn check_kind(meta: &Metadata) -> Result<(), Fault> {
    match FileType::from_raw_mode(meta.mode()) {
        FileType::RegularFile | FileType::BlockDevice => Ok(()),
        FileType::Directory => Err(Fault::Directory),
        _ => Err(Fault::Special),
    }
}

/// The division of a target of so many bytes.
fn planned(bytes: u64) -> Result<Geometry, Fault> {
    Geometry::plan(bytes).ok_or_else(|| Fault::TooSmall { bytes, min: size_min() })
}

/// The smallest target, in whole MiB.
fn size_min() -> u64 {
    (1..).map(|mib: u64| mib << 20).find(|bytes| Geometry::plan(*bytes).is_some()).expect("some size works")
}

/// Whether the index of a target of this division fits.
///
/// # Errors
/// It does not.
pub fn check_index(memory: u64, others: Others, geometry: Geometry) -> Result<Geometry, Fault> {
    const MIB: u64 = 1 << 20;
    let mut all = others;
    all.add(geometry);
    if all.regions > DeviceSlot::REGIONS_MAX {
        return Err(Fault::TooMany);
    }
    let index = all.pages * INDEX_BYTES_PER_PAGE;
    if index <= memory / INDEX_PART {
        return Ok(geometry);
    }
    let fits = (memory / INDEX_PART / INDEX_BYTES_PER_PAGE).saturating_sub(others.pages);
    let fits = fits * PAGE_SIZE as u64 / MIB * MIB;
    Err(Fault::IndexTooLarge {
        index,
        others: others.pages * INDEX_BYTES_PER_PAGE,
        memory,
        memory_min: (index * INDEX_PART).next_multiple_of(MIB),
        tier_max: Geometry::plan(fits).map(|_| fits),
    })
}

/// Reads the contents of a file or block device without using it.
#[derive(Debug)]
pub struct Look {
    /// Opened for direct reads, not locked.
    pub fd: OwnedFd,
    /// Its size, bytes.
    pub bytes: u64,
    /// Its superblocks.
    pub found: Found,
    /// Whether an instance uses it; then what is on it changes.
    pub in_use: bool,
    /// That instance's process, if it can be seen.
    pub holder: Option<i32>,
}

/// Looks at a target that others may be using.
///
/// # Errors
/// It does not exist, is neither file nor block device, or cannot be read.
pub fn look(path: &Path) -> Result<Look, TargetError> {
    open_to_look(path).and_then(Look::read).map_err(|fault| TargetError::new(path, fault))
}

/// Looks at a target that nobody uses; waits up to 5 s for a lock whose holder has been killed or is not visible.
///
/// # Errors
/// As [`look`], and [`Fault::InUse`].
pub fn look_unused(path: &Path) -> Result<Look, TargetError> {
    let looked = open_to_look(path).and_then(|fd| {
        lock::wait_until_free(&fd)?;
        let look = Look::read(fd)?;
        if look.in_use { Err(Fault::InUse(look.holder)) } else { Ok(look) }
    });
    looked.map_err(|fault| TargetError::new(path, fault))
}

fn open_to_look(path: &Path) -> Result<OwnedFd, Fault> {
    check_kind(&std::fs::metadata(path).map_err(Fault::Io)?)?;
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|err| match err {
        Errno::INVAL => Fault::NoDirectIo,
        err => io(err),
    })
}

/// The tier of what was found, if it is one.
///
/// # Errors
/// It is none, or one that this program cannot read.
pub fn tier_of(path: &Path, found: Found) -> Result<Superblock, TargetError> {
    let fault = match found {
        Found::Ours(superblock) => return Ok(superblock),
        Found::Layout(version) => Fault::OtherLayout(version),
        Found::Damaged => Fault::Damaged,
        Found::Foreign | Found::Empty => Fault::NoTier,
    };
    Err(TargetError::new(path, fault))
}

impl Look {
    fn read(fd: OwnedFd) -> Result<Look, Fault> {
        let bytes = rustix::fs::seek(&fd, rustix::fs::SeekFrom::End(0)).map_err(io)?;
        let found = find(&fd, bytes).map_err(Fault::Io)?;
        let in_use = lock::is_taken(&fd).map_err(Fault::Io)?;
        let holder = if in_use { lock::holder(&fd) } else { None };
        Ok(Look { fd, bytes, found, in_use, holder })
    }

    /// Counts what is in a tier that nobody uses.
    ///
    /// # Errors
    /// As [`scan`].
    pub fn scan(&self, superblock: &Superblock) -> io::Result<Scanned> {
        scan(&medium(&self.fd, self.bytes), superblock, &mut |_| {})
    }
}

/// Empties a tier that nobody uses: it stays the tier of its source, and keeps its space. Returns what it was.
///
/// # Errors
/// It is no tier, in use, or cannot be written.
pub fn empty(path: &Path) -> Result<Superblock, TargetError> {
    let named = |fault| TargetError::new(path, fault);
    std::fs::metadata(path).map_err(Fault::Io).and_then(|meta| check_kind(&meta)).map_err(named)?;
    let file = File::open(path, false).map_err(named)?;
    let found = find(&file.fd, file.bytes).map_err(|err| named(Fault::Io(err)))?;
    refuse_to_lose(&found).map_err(named)?;
    let was = tier_of(path, found)?;
    let write = || {
        let mut superblock = Superblock::new(was.source.clone(), was.geometry, now())?;
        superblock::format(&medium(&file.fd, file.bytes), &mut superblock)
    };
    write().map_err(|err| named(Fault::Io(err)))?;
    Ok(was)
}

/// What may hold data that is nowhere else is not erased.
fn refuse_to_lose(found: &Found) -> Result<(), Fault> {
    match found {
        Found::Ours(superblock) if superblock.owed == OwedPages::Perhaps => Err(Fault::Owes),
        _ => Ok(()),
    }
}

/// The target that a dead daemon has left open, and locked.
///
/// # Errors
/// It is no tier any more, or cannot be read.
pub fn take_over(fd: OwnedFd, path: &Path) -> Result<Target, TargetError> {
    let bytes = rustix::fs::seek(&fd, rustix::fs::SeekFrom::End(0)).map_err(io);
    let found = bytes.and_then(|bytes| find(&fd, bytes).map_err(Fault::Io));
    let superblock = tier_of(path, found.map_err(|fault| TargetError::new(path, fault))?)?;
    Ok(Target { fd, superblock, fresh: false })
}

/// Gives up what is in a target that is open, and used by nobody any more.
///
/// # Errors
/// It cannot be written.
pub fn give_up(target: &Target) -> io::Result<()> {
    let geometry = target.superblock.geometry;
    let mut superblock = Superblock::new(target.superblock.source.clone(), geometry, now())?;
    superblock::format(&medium(&target.fd, geometry.bytes()), &mut superblock)
}

/// Gives a target that is in use room for so many bytes.
///
/// # Errors
/// There is none.
pub fn extend(fd: BorrowedFd<'_>, bytes: u64) -> Result<(), Fault> {
    let is_device =
        FileType::from_raw_mode(rustix::fs::fstat(fd).map_err(io)?.st_mode) == FileType::BlockDevice;
    let has = rustix::fs::seek(fd, rustix::fs::SeekFrom::End(0)).map_err(io)?;
    if has >= bytes {
        return Ok(());
    }
    if is_device {
        return Err(Fault::DeviceTooSmall { bytes: has, asked: bytes });
    }
    allocate(fd, has, bytes)
}

/// Cuts the file of a target that is in use; a block device stays as large as it is.
///
/// # Errors
/// Of ftruncate(2).
pub fn cut(fd: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    let stat = rustix::fs::fstat(fd)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_size as u64 > bytes {
        rustix::fs::ftruncate(fd, bytes)?;
    }
    Ok(())
}

/// Whether memory and entries have room for the index of a target, beside others.
///
/// # Errors
/// They have not.
pub fn check_memory(
    path: &Path,
    geometry: Geometry,
    memory_bytes: u64,
    others: Others,
) -> Result<(), TargetError> {
    check_index(memory_bytes, others, geometry).map(drop).map_err(|fault| TargetError::new(path, fault))
}

/// An open target.
#[derive(Debug)]
struct File {
    fd: OwnedFd,
    is_device: bool,
    /// Its size when it was opened.
    bytes: u64,
}

impl File {
    /// Opens and locks it.
    fn open(path: &Path, create: bool) -> Result<File, Fault> {
        let is_device = !create && is_device(path)?;
        // A block device is taken exclusively, so that one that is mounted is refused. Two names of one device have two locks.
        let mut flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
        flags.set(OFlags::CREATE, create);
        flags.set(OFlags::EXCL, create || is_device);
        let open = || rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR);
        let opened = match open() {
            Err(Errno::BUSY) if is_device => {
                lock::wait_until_device_is_free(open_to_look(path)?)?;
                open()
            }
            opened => opened,
        };
        let fd = opened.map_err(|err| not_opened(err, path, create))?;
        lock::take_or_wait(&fd)?;
        if !create {
            owner::refuse_other_names(&fd)?;
        }
        let statfs = rustix::fs::fstatfs(&fd).map_err(io)?;
        if !is_device && [TMPFS_MAGIC, RAMFS_MAGIC].contains(&(statfs.f_type as i64)) {
            if create {
                let _ = std::fs::remove_file(path);
            }
            return Err(Fault::Memory);
        }
        let bytes = rustix::fs::seek(&fd, rustix::fs::SeekFrom::End(0)).map_err(io)?;
        Ok(File { fd, is_device, bytes })
    }

    /// Checks what is on it, and formats it where that is needed and allowed. True: it was formatted.
    fn prepare(&self, request: &TargetRequest) -> Result<(Superblock, bool), Fault> {
        let source = source_of(&request.source).map_err(Fault::Io)?;
        match self.content(request, &source) {
            Ok(Some(superblock)) => Ok((superblock, false)),
            Ok(None) => self.format(request, source),
            Err(fault) if request.format && fault.is_cured_by_formatting() => self.format(request, source),
            Err(fault) => Err(fault),
        }
    }

    /// Its superblock, if it is a tier that can be used as it is; none if it is empty.
    fn content(&self, request: &TargetRequest, source: &Source) -> Result<Option<Superblock>, Fault> {
        let superblock = match find(&self.fd, self.bytes).map_err(Fault::Io)? {
            Found::Ours(superblock) => superblock,
            Found::Layout(version) => return Err(Fault::OtherLayout(version)),
            Found::Damaged => return Err(Fault::Damaged),
            Found::Foreign => return Err(Fault::Foreign),
            Found::Empty if self.has_zero_end().map_err(Fault::Io)? => return Ok(None),
            Found::Empty => return Err(Fault::Foreign),
        };
        if superblock.source.hash != source.hash {
            let theirs = superblock.source.path;
            return Err(Fault::OtherSource { theirs, ours: request.source.clone() });
        }
        let tier = superblock.geometry.bytes();
        if self.bytes < tier {
            return Err(Fault::Short { bytes: self.bytes, tier });
        }
        // Or it was resized to that.
        let is_so = |asked| {
            planned(asked).map(|new| {
                new == superblock.geometry || superblock.geometry.resized(asked) == Some(superblock.geometry)
            })
        };
        if let Some(asked) = request.size
            && !is_so(asked)?
        {
            return Err(Fault::OtherSize { bytes: tier, asked });
        }
        check_index(request.memory_bytes, request.others, superblock.geometry)?;
        Ok(Some(superblock))
    }

    /// Whether a block device has nothing where others leave marks at the end. A file has none there.
    fn has_zero_end(&self) -> io::Result<bool> {
        let (from, to) = self.end();
        is_zero(&medium(&self.fd, self.bytes), from, to)
    }

    /// Makes it an empty tier.
    fn format(&self, request: &TargetRequest, source: Source) -> Result<(Superblock, bool), Fault> {
        refuse_to_lose(&find(&self.fd, self.bytes).map_err(Fault::Io)?)?;
        let bytes = request.size.unwrap_or(self.bytes);
        if self.is_device && bytes > self.bytes {
            return Err(Fault::DeviceTooSmall { bytes: self.bytes, asked: bytes });
        }
        let geometry = check_index(request.memory_bytes, request.others, planned(bytes)?)?;
        if !self.is_device {
            allocate(&self.fd, self.bytes, bytes)?;
        }
        let write = || {
            self.erase_marks()?;
            let mut superblock = Superblock::new(source, geometry, now())?;
            superblock::format(&medium(&self.fd, bytes), &mut superblock)?;
            Ok((superblock, true))
        };
        write().map_err(Fault::Io)
    }

    /// Zeros where others leave their marks, so that no other program takes the target for what it was before.
    fn erase_marks(&self) -> io::Result<()> {
        let (from, to) = self.end();
        let medium = medium(&self.fd, self.bytes.max(MARKS_WITHIN));
        erase(&medium, 2 * PAGE_SIZE as u64, MARKS_WITHIN)?;
        erase(&medium, from, to)
    }

    /// From where to where marks may stand at the end, bytes; nothing for a file.
    fn end(&self) -> (u64, u64) {
        let page = PAGE_SIZE as u64;
        let to = self.bytes / page * page;
        (if self.is_device { to.saturating_sub(MARKS_WITHIN) } else { to }, to)
    }
}

/// Gives a file its size, and all of the space; `was`: its size before.
fn allocate(fd: impl AsFd, was: u64, bytes: u64) -> Result<(), Fault> {
    let stat = rustix::fs::fstat(&fd).map_err(io)?;
    let has = (stat.st_blocks as u64 * 512).min(bytes);
    let left = || rustix::fs::fstatvfs(&fd).map(|of| of.f_bavail * of.f_frsize).map_err(io);
    let no_space = |left| Fault::NoSpace { needed: bytes - has, left };
    let before = left()?;
    if before < bytes - has {
        return Err(no_space(before));
    }
    rustix::fs::ftruncate(&fd, bytes).map_err(io)?;
    let allocate = || rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, bytes);
    match rustix::io::retry_on_intr(allocate) {
        // Its file system cannot: a write may find it full later, and turns the tier off then.
        Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
        Err(err) => {
            let _ = rustix::fs::ftruncate(&fd, was);
            Err(if err == Errno::NOSPC || err == Errno::DQUOT { no_space(left()?) } else { io(err) })
        }
    }
}

impl Fault {
    /// Whether a target of which this is wrong can be used once it is formatted.
    pub fn is_cured_by_formatting(&self) -> bool {
        matches!(
            self,
            Fault::OtherSource { .. }
                | Fault::OtherLayout(_)
                | Fault::OtherSize { .. }
                | Fault::Short { .. }
                | Fault::Damaged
                | Fault::Foreign
        )
    }
}

/// Why it cannot be opened.
fn not_opened(err: Errno, path: &Path, create: bool) -> Fault {
    match err {
        Errno::ROFS | Errno::ACCESS | Errno::PERM => Fault::ReadOnly(err.into()),
        Errno::ISDIR => Fault::Directory,
        Errno::BUSY => Fault::Busy,
        Errno::INVAL => {
            // The file is made before the kernel finds that its file system has no direct I/O.
            if create && std::fs::metadata(path).is_ok_and(|meta| meta.len() == 0) {
                let _ = std::fs::remove_file(path);
            }
            Fault::NoDirectIo
        }
        err => io(err),
    }
}

fn io(err: Errno) -> Fault {
    Fault::Io(err.into())
}

fn is_device(path: &Path) -> Result<bool, Fault> {
    let meta = std::fs::metadata(path).map_err(Fault::Io)?;
    Ok(FileType::from_raw_mode(meta.mode()) == FileType::BlockDevice)
}

/// The contents of a target of `bytes` bytes.
fn find(fd: impl AsFd, bytes: u64) -> io::Result<Found> {
    let medium = medium(&fd, bytes);
    if bytes >= 2 * PAGE_SIZE as u64 {
        return superblock::find(&medium);
    }
    // Shorter than its superblocks would be.
    AlignedBuf::default().with(2 * PAGE_SIZE, |buf| {
        let n = rustix::io::retry_on_intr(|| rustix::io::pread(fd.as_fd(), &mut *buf, 0))?;
        Ok(if buf[..n].iter().all(|byte| *byte == 0) { Found::Empty } else { Found::Foreign })
    })
}

/// Valid as long as the descriptor is.
fn medium(fd: impl AsFd, bytes: u64) -> FileMedium {
    FileMedium::new(fd.as_fd().as_raw_fd(), Arc::new(BlockingIo::default()), bytes)
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests;
