//! Adapter between `fuser` and the namespace: one method for each FUSE request.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use crate::{Entry, Namespace, Op, PageCache, Result, SetAttr, WriteKind, Written};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use terrace_io::AlignedBuf;

use super::convert::{Answer, caller, errno, file_attr, file_type, no_entry, opened, set_time};
use super::late;
use super::waiting::{Movable, Waiting};
use crate::ops::stage::{self, StageRequest};

/// Largest read or write in one request.
pub(super) const IO_BYTES_MAX: u32 = 1 << 20;

/// Readahead and other background requests under way at one time.
const BACKGROUND_MAX: u16 = 128;

/// The longest extended attribute there is.
const XATTR_BYTES_MAX: u32 = 64 * 1024;

/// A node id is never given to another file while the kernel knows it, so generations are not needed.
const GENERATION: Generation = Generation(0);

/// Features that the daemon requests. Not wanted: the kernel's write-back cache (hides single writes),
/// AUTO_INVAL_DATA (every change goes through the kernel), locks (the kernel's alone). Nor ATOMIC_O_TRUNC: a
/// separate truncate runs under the inode's lock, so its repeat after a restart harms no write.
const WANTED: [InitFlags; 14] = [
    InitFlags::FUSE_ASYNC_READ,
    InitFlags::FUSE_BIG_WRITES,
    InitFlags::FUSE_MAX_PAGES,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_EXPORT_SUPPORT,
    InitFlags::FUSE_CACHE_SYMLINKS,
    // The namespace applies the caller's umask itself, so that default ACLs work as on the source.
    InitFlags::FUSE_DONT_MASK,
    // With this flag the kernel checks permissions itself.
    InitFlags::FUSE_POSIX_ACL,
    // The namespace clears set-id bits itself. Otherwise the kernel would read security.capability before
    // each write.
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_HAS_RESEND,
];

thread_local! {
    /// Buffer of a read before its bytes go to the kernel. Aligned, so that the source can be read into it
    /// directly.
    static BUFFER: RefCell<AlignedBuf> = RefCell::new(AlignedBuf::default());
}

/// Runs `read` on this thread's buffer of `len` bytes.
fn with_buffer<T>(len: usize, read: impl FnOnce(&mut [u8]) -> T) -> T {
    BUFFER.with_borrow_mut(|buffer| buffer.with(len, read))
}

/// The file system that `fuser` calls.
#[derive(Debug)]
pub(super) struct Adapter<C: PageCache> {
    namespace: Arc<Namespace<C>>,
    waiting: Arc<Waiting>,
}

impl<C: PageCache> Adapter<C> {
    pub(super) fn new(namespace: Arc<Namespace<C>>, waiting: Arc<Waiting>) -> Self {
        Self { namespace, waiting }
    }

    /// Runs and answers a request that keeps a descriptor. If descriptors are short before or
    /// during the request, a thread of `Waiting` runs it. A resent request stays on this thread: later
    /// requests would otherwise be answered first, and its outcome would be lost.
    fn admit<R: Send + 'static, T>(
        &self,
        req: &Request,
        reply: R,
        act: impl FnMut(&Namespace<C>, &mut Op<'_>, &mut R) -> Result<T> + Send + 'static,
        answer: impl FnOnce(&Namespace<C>, R, Result<T>) + Send + 'static,
    ) {
        let movable = Movable { caller: caller(req), reply, act, answer };
        let stays = movable.caller.is_resent();
        let left = match self.namespace.is_short() && !stays {
            true => Some(movable),
            false => movable.run(&self.namespace, stays),
        };
        if let Some(movable) = left {
            let namespace = self.namespace.clone();
            self.waiting.push(Box::new(move || drop(movable.run(&namespace, true))));
        }
    }
}

fn answer_open<C: PageCache>(_: &Namespace<C>, reply: ReplyOpen, opened: Result<Answer>) {
    match opened {
        Ok(Answer { fh, flags, backing: 0 }) => reply.opened(fh, flags),
        Ok(Answer { fh, flags, backing }) => {
            // SAFETY: the backing id was registered on this connection. It is closed after the last handle of
            // its inode, which includes this handle. `into_raw` keeps this copy of the id from closing it.
            let id = unsafe { reply.wrap_backing(backing) };
            reply.opened_passthrough(fh, flags, &id);
            id.into_raw();
        }
        Err(error) => reply.error(errno(&error)),
    }
}

fn answer_create<C: PageCache>(_: &Namespace<C>, reply: ReplyCreate, made: Result<(Entry, Answer)>) {
    let (entry, Answer { fh, flags, backing }) = match made {
        Ok(made) => made,
        Err(error) => return reply.error(errno(&error)),
    };
    let attr = file_attr(&entry.attr);
    if backing == 0 {
        return reply.created(&entry.entry_ttl, &attr, GENERATION, fh, flags);
    }
    // SAFETY: as in `answer_open`.
    let id = unsafe { reply.wrap_backing(backing) };
    reply.created_passthrough(&entry.entry_ttl, &attr, GENERATION, fh, flags, &id);
    id.into_raw();
}

fn answer_empty(reply: ReplyEmpty, result: Result<()>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(&error)),
    }
}

fn answer_entry<C: PageCache>(_: &Namespace<C>, reply: ReplyEntry, result: Result<Entry>) {
    match result {
        Ok(entry) => {
            reply.entry_with_ttls(&entry.attr_ttl, &entry.entry_ttl, &file_attr(&entry.attr), GENERATION);
        }
        Err(error) => reply.error(errno(&error)),
    }
}

fn answer_xattr(reply: ReplyXattr, size: u32, value: Result<&[u8]>) {
    match value {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(value),
        Err(error) => reply.error(errno(&error)),
    }
}

impl<C: PageCache> Filesystem for Adapter<C> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let acls = self.namespace.config().acls;
        for flags in WANTED.into_iter().filter(|flags| acls || *flags != InitFlags::FUSE_POSIX_ACL) {
            if let Err(missing) = config.add_capabilities(flags) {
                tracing::debug!("this kernel has no {missing:?}");
            }
        }
        let refused = |nearest| io::Error::other(format!("FUSE limit refused, {nearest} would do"));
        config.set_max_write(IO_BYTES_MAX).map_err(refused)?;
        config.set_max_background(BACKGROUND_MAX).map_err(|nearest| refused(nearest.into()))?;
        if self.namespace.config().passthrough
            && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
            && config.set_max_stack_depth(1).is_ok()
        {
            self.namespace.note_passthrough();
        }
        self.namespace.note_initialised();
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        type Lookup = (ReplyEntry, OsString);
        let look =
            move |ns: &Namespace<C>, op: &mut Op<'_>, (_, name): &mut Lookup| ns.lookup(op, parent.0, name);
        self.admit(req, (reply, name.to_owned()), look, move |namespace, (reply, name), found| match found {
            Err(error) if error.errno() == libc::ENOENT => {
                let ttl = namespace.config().negative_ttl;
                reply.entry(&ttl, &no_entry(), GENERATION);
                namespace.note_negative_lookup(parent.0, &name);
            }
            found => answer_entry(namespace, reply, found),
        });
    }

    fn forget(&self, _: &Request, ino: INodeNo, nlookup: u64) {
        self.namespace.forget(ino.0, nlookup);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.namespace.getattr(ino.0) {
            Ok((attr, ttl)) => reply.attr(&ttl, &file_attr(&attr)),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (atime, mtime) = (atime.map(set_time), mtime.map(set_time));
        let set = SetAttr { mode, uid, gid, size, atime, mtime, by_handle: fh.is_some() };
        match self.namespace.setattr(&caller(req), ino.0, &set) {
            Ok((attr, ttl)) => reply.attr(&ttl, &file_attr(&attr)),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        match self.namespace.readlink(ino.0) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let name = name.to_owned();
        let make = move |ns: &Namespace<C>, op: &mut Op<'_>, _: &mut _| {
            ns.mknod(op, parent.0, &name, mode, umask, rdev)
        };
        self.admit(req, reply, make, answer_entry);
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let name = name.to_owned();
        let make =
            move |ns: &Namespace<C>, op: &mut Op<'_>, _: &mut _| ns.mkdir(op, parent.0, &name, mode, umask);
        self.admit(req, reply, make, answer_entry);
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut op = self.namespace.begin(caller(req));
        answer_empty(reply, self.namespace.unlink(&mut op, parent.0, name));
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut op = self.namespace.begin(caller(req));
        answer_empty(reply, self.namespace.rmdir(&mut op, parent.0, name));
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let (name, target) = (name.to_owned(), target.to_owned());
        let make = move |ns: &Namespace<C>, op: &mut Op<'_>, _: &mut _| {
            ns.symlink(op, parent.0, &name, target.as_os_str())
        };
        self.admit(req, reply, make, answer_entry);
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mut op = self.namespace.begin(caller(req));
        let renamed = self.namespace.rename(&mut op, parent.0, name, newparent.0, newname, flags.bits());
        answer_empty(reply, renamed);
    }

    fn link(&self, req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let name = newname.to_owned();
        let make =
            move |ns: &Namespace<C>, op: &mut Op<'_>, _: &mut _| ns.link(op, ino.0, newparent.0, &name);
        self.admit(req, reply, make, answer_entry);
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let open = move |ns: &Namespace<C>, op: &mut Op<'_>, _: &mut _| {
            Ok(opened(&ns.open(op, ino.0, flags.0 as u32)?))
        };
        self.admit(req, reply, open, answer_open);
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let name = name.to_owned();
        let create = move |ns: &Namespace<C>, op: &mut Op<'_>, _: &mut _| {
            let (entry, file) = ns.create(op, parent.0, &name, mode, umask, flags as u32)?;
            Ok((entry, opened(&file)))
        };
        self.admit(req, reply, create, answer_create);
    }

    fn read(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        // The kernel names a lock owner with every read for a program, and with none that fills its page
        // cache.
        let paged = lock_owner.is_none().then(|| req.unique().0);
        terrace_engine::set_caller(req.pid());
        with_buffer(size as usize, |buf| match self.namespace.read(fh.0, offset, buf, paged) {
            Ok(len) => reply.data(&buf[..len]),
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        terrace_engine::set_caller(req.pid());
        let kind = WriteKind {
            caller: caller(req),
            flags: flags.0 as u32,
            from_cache: write_flags.contains(WriteFlags::FUSE_WRITE_CACHE),
            kill_set_id: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
        };
        match self.namespace.write(ino.0, fh.0, offset, data, kind) {
            Ok(Written { bytes, stale: false }) => reply.written(bytes as u32),
            Ok(Written { bytes, .. }) => {
                late::answer(&self.namespace, ino.0, offset..offset + bytes as u64, reply);
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn flush(&self, req: &Request, _: INodeNo, fh: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        answer_empty(reply, self.namespace.flush(&caller(req), fh.0));
    }

    fn release(
        &self,
        _: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.namespace.release(fh.0);
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        answer_empty(reply, self.namespace.fsync(fh.0, datasync));
    }

    fn opendir(&self, req: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let open = move |ns: &Namespace<C>, op: &mut Op<'_>, _: &mut _| {
            let mut flags = FopenFlags::FOPEN_CACHE_DIR;
            flags.set(FopenFlags::FOPEN_KEEP_CACHE, ns.keeps_listing(&op.caller, ino.0)?);
            Ok(Answer { fh: FileHandle(ns.opendir(op, ino.0)?), flags, backing: 0 })
        };
        self.admit(req, reply, open, answer_open);
    }

    fn readdir(&self, _: &Request, _: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let listed = self.namespace.readdir(fh.0, offset, |entry| {
            reply.add(INodeNo(entry.ino), entry.next, file_type(entry.kind), entry.name)
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readdirplus(&self, req: &Request, _: INodeNo, fh: FileHandle, offset: u64, reply: ReplyDirectoryPlus) {
        let list = move |ns: &Namespace<C>, op: &mut Op<'_>, reply: &mut ReplyDirectoryPlus| {
            ns.readdirplus(op, fh.0, offset, |plus| {
                let (listed, entry) = (&plus.listed, &plus.entry);
                reply.add(
                    INodeNo(listed.ino),
                    listed.next,
                    listed.name,
                    &entry.entry_ttl,
                    &file_attr(&entry.attr),
                    GENERATION,
                )
            })
        };
        self.admit(req, reply, list, |_, reply, listed| match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn releasedir(&self, _: &Request, _: INodeNo, fh: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.namespace.release(fh.0);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        answer_empty(reply, self.namespace.fsyncdir(fh.0, datasync));
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match self.namespace.statfs() {
            Ok(fs) => reply.statfs(
                fs.f_blocks,
                fs.f_bfree,
                fs.f_bavail,
                fs.f_files,
                fs.f_ffree,
                fs.f_bsize as u32,
                fs.f_namelen as u32,
                fs.f_frsize as u32,
            ),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let mut op = self.namespace.begin(caller(req));
        answer_empty(reply, self.namespace.setxattr(&mut op, ino.0, name, value, flags as u32));
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if size == 0 {
            return match self.namespace.getxattr(ino.0, name, &mut []) {
                Ok(len) => reply.size(len as u32),
                Err(error) => reply.error(errno(&error)),
            };
        }
        with_buffer(size.min(XATTR_BYTES_MAX) as usize, |buf| {
            let len = self.namespace.getxattr(ino.0, name, buf);
            answer_xattr(reply, size, len.map(|len| &buf[..len]));
        });
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let list = self.namespace.listxattr(&caller(req), ino.0);
        match list {
            Ok(list) => answer_xattr(reply, size, Ok(&list)),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut op = self.namespace.begin(caller(req));
        answer_empty(reply, self.namespace.removexattr(&mut op, ino.0, name));
    }

    fn fallocate(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        answer_empty(reply, self.namespace.fallocate(&caller(req), fh.0, mode as u32, offset, length));
    }

    fn lseek(&self, _: &Request, _: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        match self.namespace.lseek(fh.0, offset as u64, whence as u32) {
            Ok(offset) => reply.offset(offset as i64),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn copy_file_range(
        &self,
        req: &Request,
        _ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        _ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let (from, to) = ((fh_in.0, offset_in), (fh_out.0, offset_out));
        match self.namespace.copy_file_range(&caller(req), from, to, len) {
            Ok(copied) => reply.written(copied as u32),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn ioctl(
        &self,
        _: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: IoctlFlags,
        cmd: u32,
        argument: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        let done = stage::parse_request(cmd, argument).and_then(|request| match request {
            StageRequest::Stage(offset, len) => {
                with_buffer(len, |buf| self.namespace.stage(fh.0, offset, buf)).map(|bytes| bytes as i32)
            }
            StageRequest::Pin(offset, len, time) => {
                self.namespace.pin(fh.0, offset, len, time).map(|bytes| bytes as i32)
            }
            StageRequest::Down(offset, len, level) => {
                self.namespace.stage_down(fh.0, offset, len, level).map(|bytes| bytes as i32)
            }
            StageRequest::Drop(offset, len) => {
                let dropped = self.namespace.drop_clean(fh.0, offset, len);
                dropped.map(|pages| i32::try_from(pages).unwrap_or(i32::MAX))
            }
        });
        match done {
            Ok(done) => reply.ioctl(done, &[]),
            Err(error) => reply.error(errno(&error)),
        }
    }
}
