//! A target in a store: it is opened and checked before its use.
//!
//! ```text
//!   path ──► location ──► outside the source? ──► lock ──► superblocks ──► ours: used; empty: formatted;
//!                                                                      else: refused, or formatted on demand
//! ```
//! The process that opens a target may hand its lock on to the target's user ([`Target::handed_on`]).

use crate::lease::{self, Holder, Lease, NotTaken, Timing};
use crate::location::Location;
use crate::medium::{IN_MEMORY_MAX, RemoteMedium, read_superblocks, scatter, write_superblock};
use crate::shared::{REGIONS, SUPERBLOCKS};
use crate::store::{Failed, Kind, SOON, Store, UNFINISHED};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use terrace_io::IoVec;
use terrace_tier::superblock;
use terrace_tier::target::{
    self, Fault, TargetError, TargetRequest, check_index, check_outside, now, source_of, tier_of,
};
use terrace_tier::{DATA_AT, Found, Geometry, Medium, Scanned, Source, Superblock, scan};

const PAGE_SIZE: usize = 4096;
/// Size of a region, bytes. A request costs the same for a large region, but several regions are in memory.
const REGION_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=16 << 20;
/// Usual number of regions of a target.
const REGIONS_USUAL: u64 = 256;
/// Regions in memory take at most one part in this many of it.
const MEMORY_PART: u64 = 8;
/// Prefix of the names of locks.
const LOCKS: &str = "lock/";

/// A checked target, locked by this instance.
#[derive(Debug, Clone)]
pub struct Target {
    /// The superblock, found or new.
    pub superblock: Superblock,
    /// The target was empty.
    pub fresh: bool,
    /// Duration of a small read.
    pub read: Duration,
    path: PathBuf,
    location: Location,
    lease: Lease,
    timing: Timing,
}

/// State of a target that may be in use.
#[derive(Debug)]
pub struct Inspection {
    /// Its superblocks.
    pub found: Found,
    /// The process that uses the target.
    pub holder: Option<Holder>,
}

/// Opens and checks a target. Formats it if it is empty or may be erased. It stays in use as long as the
/// process `holder` of this machine lives, or until it is given back.
///
/// # Errors
/// Everything that makes the target unusable.
pub fn open(request: &TargetRequest, holder: i32) -> Result<Target, TargetError> {
    open_by(request, holder).map_err(|fault| TargetError::new(&request.path, fault))
}

fn open_by(request: &TargetRequest, holder: i32) -> Result<Target, Fault> {
    let (location, timing) = (place(&request.path)?, Timing::default());
    if let Location::Fs(dir) = &location {
        let there = dir.ancestors().find_map(|dir| dir.canonicalize().ok()).unwrap_or_default();
        check_outside(&there, &request.source)?;
    }
    let store = Store::new(&location).map_err(fault)?;
    let lease = Lease::take(&store, timing, holder).map_err(not_taken)?;
    if let Location::Fs(dir) = &location {
        remove_unfinished(dir);
    }
    let opened = prepare(&store, request);
    match opened {
        Ok((superblock, fresh)) => {
            let began = Instant::now();
            store.get(SUPERBLOCKS[0]).map_err(fault)?;
            let (read, path) = (began.elapsed(), request.path.clone());
            Ok(Target { superblock, fresh, read, path, location, lease, timing })
        }
        Err(fault) => {
            // If this fails, the lock expires by itself.
            let _ = lease.give_back(&store);
            Err(fault)
        }
    }
}

/// Removes unfinished files of a crash. Under the lock no other instance writes them.
fn remove_unfinished(dir: &Path) {
    let left = std::fs::read_dir(dir.join(UNFINISHED)).into_iter().flatten().flatten();
    left.for_each(|file| drop(std::fs::remove_file(file.path())));
}

/// Inspects a target without using it.
///
/// # Errors
/// The target cannot be read.
pub fn look(path: &Path) -> Result<Inspection, TargetError> {
    let look = || {
        let Some(store) = Store::look(&place(path)?).map_err(fault)? else {
            return Ok(Inspection { found: Found::Empty, holder: None });
        };
        let found = superblock::find(&Superblocks(&store)).map_err(Fault::Io)?;
        let holder = lease::holder(&store, Timing::default()).map_err(fault)?.map(|(holder, _)| holder);
        Ok(Inspection { found, holder })
    };
    look().map_err(|fault| TargetError::new(path, fault))
}

/// Counts the content of an unused target, and locks it meanwhile.
///
/// # Errors
/// As [`open`], without checks of source and size.
pub fn count(path: &Path) -> Result<Scanned, TargetError> {
    let count = || {
        let target = take(path)?;
        let medium = target.medium().map_err(Fault::Io)?;
        let scanned = scan(&*medium, &target.superblock, &mut |_| {});
        medium.close();
        scanned.map_err(Fault::Io)
    };
    count().map_err(|fault| TargetError::new(path, fault))
}

/// Empties an unused target, which stays the target of its source. Returns its old superblock.
///
/// # Errors
/// Not a target; in use; a failed write.
pub fn empty(path: &Path) -> Result<Superblock, TargetError> {
    let empty = || {
        let Target { superblock: was, location, lease, .. } = take(path)?;
        let store = Store::new(&location).map_err(fault)?;
        let done = format(&store, was.source.clone(), was.geometry);
        lease.give_back(&store).map_err(fault)?;
        done.map(|_| was)
    };
    empty().map_err(|fault| TargetError::new(path, fault))
}

fn take(path: &Path) -> Result<Target, Fault> {
    let (location, timing) = (place(path)?, Timing::default());
    if matches!(&location, Location::Fs(dir) if !dir.exists()) {
        return Err(Fault::NoTier);
    }
    let store = Store::new(&location).map_err(fault)?;
    let lease = Lease::take(&store, timing, std::process::id() as i32).map_err(not_taken)?;
    let found = superblock::find(&Superblocks(&store)).map_err(Fault::Io);
    match found.and_then(|found| tier_of(path, found).map_err(|err| err.fault)) {
        Ok(superblock) => {
            let read = Duration::ZERO;
            Ok(Target { superblock, fresh: false, read, path: path.to_owned(), location, lease, timing })
        }
        Err(fault) => {
            let _ = lease.give_back(&store);
            Err(fault)
        }
    }
}

/// Number of lines of a description behind its superblocks: path, number of the lock, duration of a read in
/// ns. The rest is the lock's content.
const DESCRIPTION_LINES: usize = 3;

impl Target {
    /// The medium for the engine of the process that holds the target. Sends no request yet.
    ///
    /// # Errors
    /// No more threads; the credentials cannot be read any more.
    pub fn medium(&self) -> io::Result<Arc<dyn Medium>> {
        let store = Store::new(&self.location)?;
        let held = (self.lease.clone(), self.timing);
        let name = self.path.display().to_string();
        Ok(Arc::new(RemoteMedium::new(store, name, self.superblock.geometry, held)?))
    }

    /// Releases a target that was never used.
    pub fn give_back(&self) {
        if let Ok(store) = Store::new(&self.location) {
            let _ = self.lease.give_back(&store);
        }
    }

    /// Erases the target and releases it.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn give_up(&self) -> io::Result<()> {
        let store = Store::new(&self.location)?;
        self.lease.give_back(&store)?;
        match empty(&self.path) {
            // Another instance took the target after its medium had released it.
            Ok(_) | Err(TargetError { fault: Fault::InUse(_), .. }) => Ok(()),
            Err(err) => Err(io::Error::other(err.to_string())),
        }
    }

    /// Describes the target in a descriptor (memfd), which can be inherited like a target file's.
    ///
    /// # Errors
    /// Out of memory or descriptors.
    pub fn handed_on(self) -> io::Result<target::Target> {
        let fd = memfd_create("terrace-remote", MemfdFlags::CLOEXEC)?;
        let (number, content) = self.lease.parts();
        let head = format!("{}\n{number}\n{}\n", self.path.display(), self.read.as_nanos());
        let mut file = File::from(fd);
        // In the layout of a target file: a reader of the descriptor finds the superblock.
        (0..2).try_for_each(|_| file.write_all(&self.superblock.encode()))?;
        file.write_all(head.as_bytes())?;
        file.write_all(content)?;
        Ok(target::Target { fd: file.into(), superblock: self.superblock, fresh: self.fresh })
    }

    /// The target that a descriptor describes.
    ///
    /// # Errors
    /// `InvalidData`: not a description.
    pub fn taken_over(fd: BorrowedFd<'_>) -> io::Result<Target> {
        let mut content = Vec::new();
        let file = File::from(fd.try_clone_to_owned()?);
        content.resize(file.metadata()?.len() as usize, 0);
        file.read_exact_at(&mut content, 0)?;
        let parse = || {
            let (page, rest) = content.split_at_checked(2 * PAGE_SIZE)?;
            let Found::Ours(superblock) = Superblock::decode(&page[..PAGE_SIZE]) else { return None };
            let mut lines = rest.splitn(DESCRIPTION_LINES + 1, |byte| *byte == b'\n');
            let mut line = || str::from_utf8(lines.next()?).ok();
            let (path, number, read) = (PathBuf::from(line()?), line()?.parse().ok()?, line()?.parse().ok()?);
            let (location, lease) = (Location::parse(&path).ok()?, Lease::of_parts(number, line()?));
            let (read, timing) = (Duration::from_nanos(read), Timing::default());
            Some(Target { superblock, fresh: false, read, path, location, lease, timing })
        };
        parse().ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

fn place(path: &Path) -> Result<Location, Fault> {
    Location::parse(path).map_err(|invalid| Fault::Other(invalid.to_string()))
}

/// A failed request, with what helps.
fn fault(failed: Failed) -> Fault {
    let cure = match failed.kind {
        Kind::Refused if failed.why.contains("refuses") => {
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or credentials=FILE, to a key that may read and write there"
        }
        Kind::Refused if failed.why.contains("others") => {
            "remove those rights (chmod go=), or use another directory"
        }
        Kind::Refused => "check the store's address and credentials",
        Kind::Unreachable | Kind::Absent => "check the store's address, or start its server",
    };
    Fault::Other(format!("{}; {cure}", failed.why))
}

fn not_taken(why: NotTaken) -> Fault {
    match why {
        NotTaken::Held(holder, None) if holder.is_here() => Fault::InUse(Some(holder.pid)),
        NotTaken::Held(holder, left) => {
            let left = left.map_or(String::new(), |left| {
                format!(", or, if it has ended, try again in {} seconds", left.as_secs() + 1)
            });
            Fault::Other(format!(
                "the tier is in use by {holder}; each instance needs a prefix of its own: name another{left}"
            ))
        }
        NotTaken::NoConditions => Fault::Other(
            "the store ignores If-None-Match, so two instances could use the same tier; use another store"
                .to_owned(),
        ),
        NotTaken::Failed(failed) => fault(failed),
    }
}

/// The existing superblock, if usable, or a new one. True: the target was empty.
fn prepare(store: &Store, request: &TargetRequest) -> Result<(Superblock, bool), Fault> {
    let source = source_of(&request.source).map_err(Fault::Io)?;
    match content(store, request, &source) {
        Ok(Some(superblock)) => Ok((superblock, false)),
        Ok(None) => format(store, source, planned(request)?),
        Err(fault) if request.format && fault.is_cured_by_formatting() => {
            format(store, source, planned(request)?)
        }
        Err(fault) => Err(fault),
    }
}

fn content(store: &Store, request: &TargetRequest, source: &Source) -> Result<Option<Superblock>, Fault> {
    let found = match superblock::find(&Superblocks(store)).map_err(Fault::Io)? {
        Found::Ours(superblock) => superblock,
        Found::Layout(version) => return Err(Fault::OtherLayout(version)),
        Found::Damaged => return Err(Fault::Damaged),
        Found::Foreign => return Err(Fault::Foreign),
        Found::Empty if is_empty(store).map_err(fault)? => return Ok(None),
        Found::Empty => return Err(Fault::Foreign),
    };
    if found.source.hash != source.hash {
        return Err(Fault::OtherSource { theirs: found.source.path, ours: request.source.clone() });
    }
    let region = u64::from(found.geometry.region_bytes());
    if let Some(requested) = request.size
        && divide(requested, region) != Some(found.geometry)
    {
        return Err(Fault::OtherSize { bytes: region * u64::from(found.geometry.regions()), requested });
    }
    if IN_MEMORY_MAX * region > request.memory_bytes / MEMORY_PART && region > *REGION_BYTES.start() {
        let most = (IN_MEMORY_MAX * region) >> 20;
        return Err(Fault::Other(format!(
            "the tier's regions take up to {most}MiB of memory; give --memory at least {}MiB, or begin anew with --format-tier",
            most * MEMORY_PART
        )));
    }
    check_index(request.memory_bytes, request.others, found.geometry).map(Some)?;
    Ok(Some(found))
}

/// Whether the store has nothing but locks.
fn is_empty(store: &Store) -> Result<bool, Failed> {
    let mut is_empty = true;
    store.each("", SOON, |object| {
        is_empty = object.name.starts_with(LOCKS);
        is_empty
    })?;
    Ok(is_empty)
}

/// Divides `bytes` into regions of this size. None: there are too few.
fn divide(bytes: u64, region: u64) -> Option<Geometry> {
    Geometry::new(region as u32, u32::try_from(bytes / region).ok()?)
}

/// Region size for a tier of `bytes` and this memory.
fn region_bytes(bytes: u64, memory: u64) -> u64 {
    let most = (memory / MEMORY_PART / IN_MEMORY_MAX).min(bytes / REGIONS_USUAL);
    1 << most.clamp(*REGION_BYTES.start(), *REGION_BYTES.end()).ilog2()
}

/// Geometry of a new tier.
fn planned(request: &TargetRequest) -> Result<Geometry, Fault> {
    let bytes = request.size.ok_or(Fault::Other(
        "the tier does not exist, and its size is not given; give a size, as in --tier s3://BUCKET/PREFIX:64GiB"
            .to_owned(),
    ))?;
    let min = (1..).map(|n| n << 20).find(|bytes| divide(*bytes, *REGION_BYTES.start()).is_some());
    let geometry = divide(bytes, region_bytes(bytes, request.memory_bytes));
    check_index(
        request.memory_bytes,
        request.others,
        geometry.ok_or(Fault::TooSmall { bytes, min: min.unwrap_or_default() })?,
    )
}

fn format(store: &Store, source: Source, geometry: Geometry) -> Result<(Superblock, bool), Fault> {
    let mut superblock = Superblock::new(source, geometry, now()).map_err(Fault::Io)?;
    superblock::format(&Superblocks(store), &mut superblock).map_err(Fault::Io)?;
    for old in store.list(REGIONS, SOON).map_err(fault)? {
        store.delete(&old.name).map_err(fault)?;
    }
    Ok((superblock, true))
}

/// A medium of the superblocks only.
#[derive(Debug)]
struct Superblocks<'a>(&'a Store);

impl Medium for Superblocks<'_> {
    unsafe fn read_vectored(&self, at: u64, bufs: &[IoVec]) -> io::Result<()> {
        let len: usize = bufs.iter().map(|buf| buf.len).sum();
        let content = read_superblocks(self.0, at, len as u64)?;
        // SAFETY: the caller guarantees valid buffers.
        unsafe { scatter(&content, bufs) };
        Ok(())
    }
    fn write(&self, at: u64, buf: &[u8]) -> io::Result<()> {
        write_superblock(self.0, at, buf)
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
    fn bytes(&self) -> u64 {
        // Larger than any target. Only superblocks are written.
        u64::MAX / 2 + DATA_AT
    }
}
