//! Baseline for cold reads: a FUSE file system without a cache of its own. Each read is one `pread` on the
//! source. It serves one flat directory, read-only, behind the kernel's page cache (FOPEN_KEEP_CACHE), as
//! terrace does.
//!
//! With [`Slow`] it simulates a remote source, for machines without delayed block devices in the kernel.

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
use std::time::{Duration, Instant, SystemTime};

const TTL: Duration = Duration::from_secs(60);

/// Slowdown of the mount.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Slow {
    /// Delay of each read, microseconds. Reads wait in parallel, as many as there are threads.
    #[arg(long, default_value_t = 0)]
    pub(crate) delay_us: u64,
    /// Bandwidth of all reads together, MiB a second; 0: no limit.
    #[arg(long, default_value_t = 0)]
    pub(crate) bandwidth: u64,
}

/// A shared line of limited bandwidth: the time when it is free again.
#[derive(Debug, Default)]
struct Line(Mutex<Option<Instant>>);

impl Line {
    /// Reserves the line for `bytes`; returns the end of the transfer.
    fn end_of(&self, bytes: usize, mib_s: u64, now: Instant) -> Instant {
        let mut free = self.0.lock().unwrap();
        let took = Duration::from_nanos((bytes as u64 * 1_000_000_000).checked_div(mib_s << 20).unwrap_or(0));
        let end = free.unwrap_or(now).max(now) + took;
        *free = Some(end);
        end
    }
}

#[derive(Debug, Default)]
struct PassThrough {
    root: PathBuf,
    slow: Slow,
    line: Line,
    names: Mutex<HashMap<u64, OsString>>,
    open: RwLock<HashMap<u64, Arc<File>>>,
    handles: AtomicU64,
}

/// Mounts `src` on `mnt` and serves until SIGTERM or unmount.
pub fn serve(src: &Path, mnt: &Path, threads: usize, clone_fd: bool, slow: Slow) -> io::Result<()> {
    let fs = PassThrough { root: src.canonicalize()?, slow, ..PassThrough::default() };
    let mut config = Config::default();
    config.mount_options = vec![MountOption::RO, MountOption::FSName("pass-through".into())];
    config.n_threads = Some(threads);
    config.clone_fd = clone_fd;
    let session = Session::new(fs, mnt, &config)?.spawn()?;
    while !terrace_output::signals::interrupted() && !session.guard.is_finished() {
        std::thread::sleep(Duration::from_millis(50));
    }
    session.umount_and_join()
}

impl PassThrough {
    /// The time to answer a read of `bytes` that arrives now.
    fn due(&self, bytes: usize) -> Instant {
        let at_hand = Instant::now() + Duration::from_micros(self.slow.delay_us);
        if self.slow.bandwidth == 0 { at_hand } else { self.line.end_of(bytes, self.slow.bandwidth, at_hand) }
    }

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
        let due = self.due(buf.len());
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_of_a_slow_line_follow_each_other() {
        let (line, now) = (Line::default(), Instant::now());
        let ends: Vec<_> = (0..3).map(|_| line.end_of(1 << 20, 100, now) - now).collect();
        assert_eq!(ends, [10, 20, 30].map(Duration::from_millis));
        let later = now + Duration::from_secs(1);
        assert_eq!(line.end_of(2 << 20, 100, later) - later, Duration::from_millis(20), "it was free");
    }

    #[test]
    fn delays_do_not_add_up() {
        let slow = Slow { delay_us: 50_000, bandwidth: 0 };
        let fs = PassThrough { slow, ..PassThrough::default() };
        let began = Instant::now();
        assert!(fs.due(1 << 20) >= began + Duration::from_millis(50));
        assert_eq!(*fs.line.0.lock().unwrap(), None, "the next need not wait for it");
    }
}
