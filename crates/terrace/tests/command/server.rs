//! A FUSE file system in this process, which tests use as a faulty source: one directory of files in memory.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyWrite, ReplyXattr, Request, Session, SessionACL, TimeOrNow, WriteFlags,
};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use terrace_sync::Mutex;

const NO_TIME: Duration = Duration::ZERO;
const BLOCK: u64 = 512;

/// Faults of the server, switchable at any time.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// A close fails with ENOSPC.
    pub close: AtomicBool,
    /// fsync fails with EIO.
    pub fsync: AtomicBool,
    /// Reads and writes through O_DIRECT descriptors fail with EINVAL.
    pub direct: AtomicBool,
    /// fsync fails with EINVAL, as on a server without fsync.
    pub no_fsync: AtomicBool,
    /// All files have size 0, and are read past the page cache.
    pub no_sizes: AtomicBool,
    /// The server knows none of its files, nor its directory (ESTALE).
    pub stale: AtomicBool,
    /// Calls on extended attributes fail with EIO.
    pub xattr: AtomicBool,
    /// Requests of terraced for the directory are not answered.
    pub hold: AtomicBool,
    /// The blocked thread of terraced.
    pub held: AtomicU32,
    /// Syncs of files so far.
    pub fsyncs: AtomicU32,
}

/// The mounted server; it ends when this is dropped.
pub(crate) struct Server {
    pub faults: Arc<Faults>,
    at: PathBuf,
}

impl Server {
    /// Serves an empty directory at `at`.
    pub(crate) fn new(at: &Path) -> Server {
        let faults = Arc::new(Faults::default());
        let files = Files { faults: faults.clone(), files: Mutex::default() };
        let session = Session::from_fd(files, mounted(at), SessionACL::All, Config::default());
        // The session gets INIT once the kernel has the mount; requests wait for that.
        let session = session.unwrap();
        std::thread::spawn(move || session.run());
        Server { faults, at: at.to_owned() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.at, UnmountFlags::DETACH | UnmountFlags::FORCE);
    }
}

fn mounted(at: &Path) -> OwnedFd {
    let fuse = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other\0", fuse.as_raw_fd());
    let options = std::ffi::CStr::from_bytes_with_nul(options.as_bytes()).unwrap();
    rustix::mount::mount("server", at, "fuse.server", MountFlags::empty(), options).unwrap();
    fuse
}

#[derive(Debug)]
struct File {
    name: Box<OsStr>,
    content: Vec<u8>,
    mode: u16,
    changed: SystemTime,
}

/// The file system. Inode 1 is the directory; a file has its index plus 2.
struct Files {
    faults: Arc<Faults>,
    files: Mutex<BTreeMap<u64, File>>,
}

impl Files {
    fn has(fault: &AtomicBool) -> bool {
        fault.load(Ordering::Relaxed)
    }

    fn attr(&self, ino: u64, file: &File) -> FileAttr {
        let size = if Self::has(&self.faults.no_sizes) { 0 } else { file.content.len() as u64 };
        let attr = attr(ino, FileType::RegularFile, file.mode, file.changed);
        FileAttr { size, blocks: size.div_ceil(BLOCK), ..attr }
    }

    /// Fails in state `stale`.
    fn known(&self) -> Result<(), Errno> {
        if Self::has(&self.faults.stale) { Err(Errno::from_i32(libc::ESTALE)) } else { Ok(()) }
    }

    /// Runs `act` on an existing file.
    fn with<T>(&self, ino: INodeNo, act: impl FnOnce(&mut File) -> T) -> Result<T, Errno> {
        self.known()?;
        self.files.lock().get_mut(&ino.0).map(act).ok_or(Errno::ENOENT)
    }

    /// Should a read or write fail, as on a server that opens its own file with the handle's flags?
    fn refuses(&self, fh: FileHandle) -> bool {
        Self::has(&self.faults.direct) && fh.0 as i32 & libc::O_DIRECT != 0
    }

    /// The error of calls on extended attributes.
    fn no_xattr(&self) -> Errno {
        if Self::has(&self.faults.xattr) { Errno::EIO } else { Errno::ENODATA }
    }

    fn opened(&self) -> FopenFlags {
        match Self::has(&self.faults.no_sizes) {
            true => FopenFlags::FOPEN_DIRECT_IO,
            false => FopenFlags::empty(),
        }
    }
}

fn attr(ino: u64, kind: FileType, perm: u16, changed: SystemTime) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size: 0,
        blocks: 0,
        atime: changed,
        mtime: changed,
        ctime: changed,
        crtime: UNIX_EPOCH,
        kind,
        perm,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

fn permissions(mode: u32) -> u16 {
    mode as u16 & 0o7777
}

fn answer(reply: ReplyEmpty, error: Option<Errno>) {
    match error {
        None => reply.ok(),
        Some(error) => reply.error(error),
    }
}

fn tell(reply: ReplyAttr, attr: Result<FileAttr, Errno>) {
    match attr {
        Ok(attr) => reply.attr(&NO_TIME, &attr),
        Err(error) => reply.error(error),
    }
}

impl Filesystem for Files {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if let Err(error) = self.known() {
            return reply.error(error);
        }
        match self.files.lock().iter().find(|(_, file)| &*file.name == name) {
            Some((ino, file)) => reply.entry(&NO_TIME, &self.attr(*ino, file), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, request: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let is_terraced =
            || std::fs::read(format!("/proc/{}/comm", request.pid())).is_ok_and(|name| name == b"terraced\n");
        if Self::has(&self.faults.hold) && is_terraced() {
            self.faults.held.store(request.pid(), Ordering::Relaxed);
            while Self::has(&self.faults.hold) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        if ino.0 == 1 && self.known().is_ok() {
            return reply.attr(&NO_TIME, &attr(1, FileType::Directory, 0o755, UNIX_EPOCH));
        }
        tell(reply, self.with(ino, |file| self.attr(ino.0, file)));
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changed = self.with(ino, |file| {
            file.mode = mode.map_or(file.mode, permissions);
            if let Some(size) = size {
                file.content.resize(size as usize, 0);
                file.changed = SystemTime::now();
            }
            match mtime {
                Some(TimeOrNow::SpecificTime(time)) => file.changed = time,
                Some(TimeOrNow::Now) => file.changed = SystemTime::now(),
                None => {}
            }
            self.attr(ino.0, file)
        });
        tell(reply, changed);
    }

    fn open(&self, _: &Request, _: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.known() {
            Ok(()) => reply.opened(FileHandle(flags.0 as u64), self.opened()),
            Err(error) => reply.error(error),
        }
    }

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let mut files = self.files.lock();
        let ino = files.len() as u64 + 2;
        let file = File {
            name: name.into(),
            content: Vec::new(),
            mode: permissions(mode),
            changed: SystemTime::now(),
        };
        let attr = self.attr(ino, &file);
        files.insert(ino, file);
        reply.created(&NO_TIME, &attr, Generation(0), FileHandle(flags as u64), self.opened());
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if self.refuses(fh) {
            return reply.error(Errno::EINVAL);
        }
        let part = self.with(ino, |file| {
            let rest = file.content.get(offset as usize..).unwrap_or_default();
            rest[..rest.len().min(size as usize)].to_vec()
        });
        match part {
            Ok(part) => reply.data(&part),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if self.refuses(fh) {
            return reply.error(Errno::EINVAL);
        }
        let (offset, end) = (offset as usize, offset as usize + data.len());
        let written = self.with(ino, |file| {
            if file.content.len() < end {
                file.content.resize(end, 0);
            }
            file.content[offset..end].copy_from_slice(data);
            file.changed = SystemTime::now();
        });
        match written {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        answer(reply, Self::has(&self.faults.close).then_some(Errno::ENOSPC));
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.faults.fsyncs.fetch_add(1, Ordering::Relaxed);
        let lacks = Self::has(&self.faults.no_fsync).then_some(Errno::EINVAL);
        answer(reply, Self::has(&self.faults.fsync).then_some(Errno::EIO).or(lacks));
    }

    fn readdir(&self, _: &Request, _: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let files = self.files.lock();
        for (ino, file) in files.iter().filter(|(ino, _)| **ino > offset) {
            if reply.add(INodeNo(*ino), *ino, FileType::RegularFile, &*file.name) {
                break;
            }
        }
        reply.ok();
    }

    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        reply.error(self.no_xattr());
    }

    fn removexattr(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(self.no_xattr());
    }
}
