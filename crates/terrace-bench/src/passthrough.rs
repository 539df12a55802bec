//! The plain rival for cold reads: a FUSE file system that answers each read with one `pread` on the source and does nothing else. One flat
//! directory, read-only; the kernel's page cache in front (FOPEN_KEEP_CACHE) as terrace has it.

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, KernelConfig,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, Request, Session,
};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, SystemTime};

const TTL: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
struct PassThrough {
    root: PathBuf,
    names: Mutex<HashMap<u64, OsString>>,
    open: RwLock<HashMap<u64, Arc<File>>>,
    handles: AtomicU64,
}

/// Mounts `src` on `mnt` and serves until SIGTERM or unmount.
pub fn serve(src: &Path, mnt: &Path, threads: usize, clone_fd: bool) -> io::Result<()> {
    let fs = PassThrough { root: src.canonicalize()?, ..PassThrough::default() };
    let mut config = Config::default();
    config.mount_options = vec![MountOption::RO, MountOption::FSName("pass-through".into())];
    config.n_threads = Some(threads);
    config.clone_fd = clone_fd;
    let session = Session::new(fs, mnt, &config)?.spawn()?;
    while !crate::signals::interrupted() && !session.guard.is_finished() {
        std::thread::sleep(Duration::from_millis(50));
    }
    session.umount_and_join()
}

impl PassThrough {
    fn metadata(&self, ino: INodeNo) -> Result<Metadata, Errno> {
        if ino == INodeNo::ROOT {
            return fs::metadata(&self.root).map_err(Errno::from);
        }
        let name = self.names.lock().unwrap().get(&ino.0).cloned().ok_or(Errno::ENOENT)?;
        fs::metadata(self.root.join(name)).map_err(Errno::from)
    }
}

fn attr(m: &Metadata, ino: u64) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size: m.len(),
        blocks: m.blocks(),
        atime: m.accessed().unwrap_or(SystemTime::UNIX_EPOCH),
        mtime: m.modified().unwrap_or(SystemTime::UNIX_EPOCH),
        ctime: SystemTime::UNIX_EPOCH,
        crtime: SystemTime::UNIX_EPOCH,
        kind: FileType::from_std(m.file_type()).unwrap_or(FileType::RegularFile),
        perm: (m.mode() & 0o7777) as u16,
        nlink: m.nlink() as u32,
        uid: m.uid(),
        gid: m.gid(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for PassThrough {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // The default of 16 would be the bottleneck at depth 32.
        let _ = config.set_max_background(64);
        let _ = config.set_congestion_threshold(64);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent != INodeNo::ROOT {
            return reply.error(Errno::ENOENT);
        }
        match fs::metadata(self.root.join(name)) {
            Ok(m) => {
                self.names.lock().unwrap().insert(m.ino(), name.to_os_string());
                reply.entry(&TTL, &attr(&m, m.ino()), Generation(0));
            }
            Err(e) => reply.error(e.into()),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.metadata(ino) {
            Ok(m) => reply.attr(&TTL, &attr(&m, ino.0)),
            Err(e) => reply.error(e),
        }
    }

    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let Some(name) = self.names.lock().unwrap().get(&ino.0).cloned() else {
            return reply.error(Errno::ENOENT);
        };
        match File::open(self.root.join(name)) {
            Ok(file) => {
                let handle = self.handles.fetch_add(1, Ordering::Relaxed);
                self.open.write().unwrap().insert(handle, Arc::new(file));
                reply.opened(FileHandle(handle), FopenFlags::FOPEN_KEEP_CACHE);
            }
            Err(e) => reply.error(e.into()),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(file) = self.open.read().unwrap().get(&fh.0).cloned() else {
            return reply.error(Errno::EBADF);
        };
        let mut buf = vec![0u8; size as usize];
        match file.read_at(&mut buf, offset) {
            Ok(n) => reply.data(&buf[..n]),
            Err(e) => reply.error(e.into()),
        }
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.open.write().unwrap().remove(&fh.0);
        reply.ok();
    }

    fn readdir(&self, _: &Request, _: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let entries = match fs::read_dir(&self.root) {
            Ok(entries) => entries.flatten(),
            Err(e) => return reply.error(e.into()),
        };
        for (n, entry) in entries.enumerate().skip(offset as usize) {
            let ino = entry.metadata().map_or(0, |m| m.ino());
            let kind = entry.file_type().ok().and_then(FileType::from_std).unwrap_or(FileType::RegularFile);
            if reply.add(INodeNo(ino), n as u64 + 1, kind, entry.file_name()) {
                break;
            }
        }
        reply.ok();
    }
}
