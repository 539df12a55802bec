//! Opens and checks the target of a device tier, before its use.
//!
//! ```text
//!   path ──► file or block device? ──► outside the source? ──► open O_DIRECT ──► lock ──► superblocks
//!                                                                                             │
//!     ours: used as it is          empty: formatted          anything else: refused, or formatted on request
//! ```
//! Writes begin after all checks. A file created here is removed if it cannot be used.

mod error;
mod lock;
mod owner;
mod place;
mod source;

use super::format::{DATA_AT, Geometry};
use super::medium::{FileMedium, erase, is_zero};
use super::scan::{Scanned, scan};
use super::superblock::{self, Found, Source, Superblock, UndestagedMark};
use rustix::fs::{FallocateFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::fs::Metadata;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use terrace_io::{AlignedBuf, BlockingIo};
use terrace_shm::{DeviceSlot, PAGE_SIZE};

pub use error::{Fault, TargetError};
pub use place::check_outside;
pub use source::source_of;

/// Index memory for each page of a tier, bytes.
pub(crate) const INDEX_BYTES_PER_PAGE: u64 = 12;
/// Largest share of memory for the index of all tiers: a quarter.
const INDEX_PART: u64 = 4;
/// Bytes before the first region, and at the end of a block device, that are zero on an unused target. All
/// usual file systems, partition tables, RAIDs and volume managers have their marks there.
const MARKS_WITHIN: u64 = DATA_AT;

const TMPFS_MAGIC: i64 = 0x0102_1994;
const RAMFS_MAGIC: i64 = 0x8584_58f6;

/// A request for a target.
#[derive(Debug, Clone)]
pub struct TargetRequest {
    /// A file, or a block device.
    pub path: PathBuf,
    /// Size, bytes; None: the size that the target has.
    pub size: Option<u64>,
    /// The source directory, without symbolic links.
    pub source: PathBuf,
    /// The limit on memory, of which the index takes a part, bytes.
    pub memory_bytes: u64,
    /// The target may be erased.
    pub format: bool,
    /// Other targets of the instance.
    pub others: Others,
}

/// Resources used by the other targets of an instance.
#[derive(Debug, Clone, Copy, Default)]
pub struct Others {
    pub(crate) pages: u64,
    pub(crate) regions: u32,
}

impl Others {
    /// Adds a target.
    pub fn add(&mut self, geometry: Geometry) {
        self.pages += u64::from(geometry.regions()) * u64::from(geometry.region_pages());
        self.regions += geometry.regions();
    }
}

/// An opened target, locked as long as a duplicate of its descriptor is open.
#[derive(Debug)]
pub struct Target {
    /// Opened for direct I/O.
    pub fd: OwnedFd,
    /// Its content.
    pub superblock: Superblock,
    /// Formatted by this call: no scan is needed.
    pub fresh: bool,
}

/// Opens and checks a target. Formats it if it is empty or may be erased.
///
/// # Errors
/// Any fault of the target; its content is unchanged then.
pub fn open(request: &TargetRequest) -> Result<Target, TargetError> {
    open_checked(request).map_err(|fault| TargetError::new(&request.path, fault))
}

fn open_checked(request: &TargetRequest) -> Result<Target, Fault> {
    let mut is_new = check_path(request)?;
    if is_new {
        check_index(request.memory_bytes, request.others, planned(request.size.ok_or(Fault::NoSize)?)?)?;
    }
    let file = match File::open(&request.path, is_new) {
        // Another process has created it meanwhile.
        Err(Fault::Io(err)) if is_new && err.kind() == io::ErrorKind::AlreadyExists => {
            is_new = false;
            File::open(&request.path, false)?
        }
        done => done?,
    };
    let target = file.prepare(request);
    if target.is_err() && is_new {
        // It was created above, and its lock is still held.
        let _ = std::fs::remove_file(&request.path);
    }
    target.map(|(superblock, fresh)| Target { fd: file.fd, superblock, fresh })
}

/// Whether to create the file. An existing path must be a file or block device outside the source.
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

fn planned(bytes: u64) -> Result<Geometry, Fault> {
    Geometry::plan(bytes).ok_or_else(|| Fault::TooSmall { bytes, min: size_min() })
}

/// The smallest target, in whole MiB.
fn size_min() -> u64 {
    (1..).map(|mib: u64| mib << 20).find(|bytes| Geometry::plan(*bytes).is_some()).expect("some size works")
}

/// Checks that the index of a target of this division fits.
///
/// # Errors
/// It does not fit.
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

/// Content of a file or block device, read without use as a tier.
#[derive(Debug)]
pub struct Inspection {
    /// Opened for direct reads, not locked.
    pub(crate) fd: OwnedFd,
    /// Size, bytes.
    pub bytes: u64,
    /// Its superblocks.
    pub found: Found,
    /// Whether an instance uses the target; its content changes then.
    pub in_use: bool,
    /// Process of that instance, if visible.
    pub holder: Option<i32>,
}

/// Reads the content of a target that may be in use.
///
/// # Errors
/// It does not exist, is neither file nor block device, or cannot be read.
pub fn look(path: &Path) -> Result<Inspection, TargetError> {
    open_to_look(path).and_then(Inspection::read).map_err(|fault| TargetError::new(path, fault))
}

/// Reads the content of an unused target. Waits up to 5 s for the lock of a process that was killed or is not
/// visible.
///
/// # Errors
/// As [`look`], and [`Fault::InUse`].
pub fn look_unused(path: &Path) -> Result<Inspection, TargetError> {
    let looked = open_to_look(path).and_then(|fd| {
        lock::wait_until_free(&fd)?;
        let look = Inspection::read(fd)?;
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

/// The superblock of a tier.
///
/// # Errors
/// There is no tier, or its layout is not supported.
pub fn tier_of(path: &Path, found: Found) -> Result<Superblock, TargetError> {
    let fault = match found {
        Found::Ours(superblock) => return Ok(superblock),
        Found::Layout(version) => Fault::OtherLayout(version),
        Found::Damaged => Fault::Damaged,
        Found::Foreign | Found::Empty => Fault::NoTier,
    };
    Err(TargetError::new(path, fault))
}

impl Inspection {
    fn read(fd: OwnedFd) -> Result<Inspection, Fault> {
        let bytes = rustix::fs::seek(&fd, rustix::fs::SeekFrom::End(0)).map_err(io)?;
        let found = find(&fd, bytes).map_err(Fault::Io)?;
        let in_use = lock::is_taken(&fd).map_err(Fault::Io)?;
        let holder = if in_use { lock::holder(&fd) } else { None };
        Ok(Inspection { fd, bytes, found, in_use, holder })
    }

    /// Scans an unused tier.
    ///
    /// # Errors
    /// As [`scan`].
    pub fn scan(&self, superblock: &Superblock) -> io::Result<Scanned> {
        scan(&medium(&self.fd, self.bytes), superblock, &mut |_| {})
    }
}

/// Empties an unused tier. It keeps its source and its space. Returns the old superblock.
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

/// Refuses to erase a target that may hold undestaged pages.
fn refuse_to_lose(found: &Found) -> Result<(), Fault> {
    match found {
        Found::Ours(superblock) if superblock.undestaged == UndestagedMark::Perhaps => {
            Err(Fault::HasUndestaged)
        }
        _ => Ok(()),
    }
}

/// Takes over an open and locked target from a dead daemon.
///
/// # Errors
/// It is no tier any more, or cannot be read.
pub fn take_over(fd: OwnedFd, path: &Path) -> Result<Target, TargetError> {
    let bytes = rustix::fs::seek(&fd, rustix::fs::SeekFrom::End(0)).map_err(io);
    let found = bytes.and_then(|bytes| find(&fd, bytes).map_err(Fault::Io));
    let superblock = tier_of(path, found.map_err(|fault| TargetError::new(path, fault))?)?;
    Ok(Target { fd, superblock, fresh: false })
}

/// Gives up the content of an open target that is no longer in use.
///
/// # Errors
/// It cannot be written.
pub fn give_up(target: &Target) -> io::Result<()> {
    let geometry = target.superblock.geometry;
    let mut superblock = Superblock::new(target.superblock.source.clone(), geometry, now())?;
    superblock::format(&medium(&target.fd, geometry.bytes()), &mut superblock)
}

/// Extends a target in use to `bytes` bytes.
///
/// # Errors
/// The device is too small, or the file system has no space.
pub fn extend(fd: BorrowedFd<'_>, bytes: u64) -> Result<(), Fault> {
    let is_device =
        FileType::from_raw_mode(rustix::fs::fstat(fd).map_err(io)?.st_mode) == FileType::BlockDevice;
    let has = rustix::fs::seek(fd, rustix::fs::SeekFrom::End(0)).map_err(io)?;
    if has >= bytes {
        return Ok(());
    }
    if is_device {
        return Err(Fault::DeviceTooSmall { bytes: has, requested: bytes });
    }
    allocate(fd, has, bytes)
}

/// Truncates the file of a target in use; a block device keeps its size.
///
/// # Errors
/// As ftruncate(2).
pub fn cut(fd: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    let stat = rustix::fs::fstat(fd)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_size as u64 > bytes {
        rustix::fs::ftruncate(fd, bytes)?;
    }
    Ok(())
}

/// Checks that memory and index entries suffice for a target beside others.
///
/// # Errors
/// They do not.
pub fn check_memory(
    path: &Path,
    geometry: Geometry,
    memory_bytes: u64,
    others: Others,
) -> Result<(), TargetError> {
    check_index(memory_bytes, others, geometry).map(drop).map_err(|fault| TargetError::new(path, fault))
}

#[derive(Debug)]
struct File {
    fd: OwnedFd,
    is_device: bool,
    bytes: u64,
}

impl File {
    fn open(path: &Path, create: bool) -> Result<File, Fault> {
        let is_device = !create && is_device(path)?;
        // O_EXCL claims a block device, and refuses a mounted one. Two device nodes of one device have two
        // locks.
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

    /// Checks the content, and formats the target if needed and allowed. True: it was formatted.
    fn prepare(&self, request: &TargetRequest) -> Result<(Superblock, bool), Fault> {
        let source = source_of(&request.source).map_err(Fault::Io)?;
        match self.content(request, &source) {
            Ok(Some(superblock)) => Ok((superblock, false)),
            Ok(None) => self.format(request, source),
            Err(fault) if request.format && fault.is_cured_by_formatting() => self.format(request, source),
            Err(fault) => Err(fault),
        }
    }

    /// The superblock of a usable tier; None: the target is empty.
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
        // The division may come from a resize.
        let is_so = |requested| {
            planned(requested).map(|new| {
                new == superblock.geometry
                    || superblock.geometry.resized(requested) == Some(superblock.geometry)
            })
        };
        if let Some(requested) = request.size
            && !is_so(requested)?
        {
            return Err(Fault::OtherSize { bytes: tier, requested });
        }
        check_index(request.memory_bytes, request.others, superblock.geometry)?;
        Ok(Some(superblock))
    }

    /// Whether the end of a block device has no marks of other formats. Files have none there.
    fn has_zero_end(&self) -> io::Result<bool> {
        let (from, to) = self.end();
        is_zero(&medium(&self.fd, self.bytes), from, to)
    }

    fn format(&self, request: &TargetRequest, source: Source) -> Result<(Superblock, bool), Fault> {
        refuse_to_lose(&find(&self.fd, self.bytes).map_err(Fault::Io)?)?;
        let bytes = request.size.unwrap_or(self.bytes);
        if self.is_device && bytes > self.bytes {
            return Err(Fault::DeviceTooSmall { bytes: self.bytes, requested: bytes });
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

    /// Zeroes the marks of other formats, so that no program takes the target for its old content.
    fn erase_marks(&self) -> io::Result<()> {
        let (from, to) = self.end();
        let medium = medium(&self.fd, self.bytes.max(MARKS_WITHIN));
        erase(&medium, 2 * PAGE_SIZE as u64, MARKS_WITHIN)?;
        erase(&medium, from, to)
    }

    /// Byte range at the end of a block device that may hold marks; empty for a file.
    fn end(&self) -> (u64, u64) {
        let page = PAGE_SIZE as u64;
        let to = self.bytes / page * page;
        (if self.is_device { to.saturating_sub(MARKS_WITHIN) } else { to }, to)
    }
}

/// Sets the size of a file and allocates its space. `was`: the old size.
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
        // Without fallocate, a later write may find the file system full, which turns the tier off.
        Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
        Err(err) => {
            let _ = rustix::fs::ftruncate(&fd, was);
            Err(if err == Errno::NOSPC || err == Errno::DQUOT { no_space(left()?) } else { io(err) })
        }
    }
}

impl Fault {
    /// Whether a format removes this fault.
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

fn not_opened(err: Errno, path: &Path, create: bool) -> Fault {
    match err {
        Errno::ROFS | Errno::ACCESS | Errno::PERM => Fault::ReadOnly(err.into()),
        Errno::ISDIR => Fault::Directory,
        Errno::BUSY => Fault::Busy,
        Errno::INVAL => {
            // The kernel creates the file before it finds that the file system has no direct I/O.
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

fn find(fd: impl AsFd, bytes: u64) -> io::Result<Found> {
    let medium = medium(&fd, bytes);
    if bytes >= 2 * PAGE_SIZE as u64 {
        return superblock::find(&medium);
    }
    // Too short for superblocks.
    AlignedBuf::default().with(2 * PAGE_SIZE, |buf| {
        let n = rustix::io::retry_on_intr(|| rustix::io::pread(fd.as_fd(), &mut *buf, 0))?;
        Ok(if buf[..n].iter().all(|byte| *byte == 0) { Found::Empty } else { Found::Foreign })
    })
}

/// A medium, valid as long as the descriptor is open.
fn medium(fd: impl AsFd, bytes: u64) -> FileMedium {
    FileMedium::new(fd.as_fd().as_raw_fd(), Arc::new(BlockingIo::default()), bytes)
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests;
