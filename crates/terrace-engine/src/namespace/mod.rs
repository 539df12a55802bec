//! The namespace: what a mount answers to the kernel, apart from FUSE itself.
//!
//! It maps the kernel's node ids to inodes of the source directory, does every operation on names and attributes with
//! the source file system's own system calls, and hands content to the page cache. Everything is relative to one
//! O_PATH descriptor an inode, so that renames from any side cannot lead it astray.
//!
//! Authority: names, owners, modes, links and extended attributes are the source's; content, size and mtime are the page
//! cache's while it holds something newer. The kernel in front may cache attributes and names for long, since all
//! changes pass through it; a source changed behind the mount's back is noticed when a file is opened.
//!
//! | file | what |
//! |---|---|
//! | `inode`, `handle` | tables of what the kernel knows and what is open |
//! | `durable`, `journal` | what a restarted daemon needs |
//! | `lookup`, `attr` | names to inodes, attributes |
//! | `make`, `remove` | operations that change names |
//! | `file`, `dir`, `xattr` | content, listings, extended attributes |
//! | `creds`, `path`, `limits` | acting for the caller, through descriptors |
//! | `paging` | writes that the kernel's own page cache may not show |
//! | `deleted` | files deleted behind the mount that cannot be written |
//! | `shrink` | when descriptors become few |
//! | `direct` | a page cache that caches nothing |

mod attr;
mod change;
mod creds;
mod deleted;
mod dir;
pub mod direct;
mod durable;
mod error;
mod file;
mod handle;
mod inode;
mod journal;
pub mod limits;
mod lookup;
mod make;
mod paging;
mod path;
mod remove;
mod shrink;
#[cfg(test)]
mod tests;
mod xattr;

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::MutexGuard;
use rustix::fs::Stat;

pub use attr::{Attr, Kind, Time};
pub use change::{SetAttr, SetTime};
pub use dir::{Listed, ListedPlus};
pub use durable::{DurableLayout, DurableRegion, descriptors_named};
pub use error::{Error, Result};
pub use file::{Opened, WriteKind, Written};
pub use inode::ROOT;
pub use journal::Op;
pub use lookup::Entry;

use durable::Durable;
use handle::HandleTable;
use inode::{Inode, InodeTable};
use journal::Journal;
use paging::Paging;
use shrink::Pressure;

use crate::source::{DataFd, SourceFile};

/// The page cache as the namespace sees it.
///
/// `Object` is a shared reference to a cached file and `Cursor` one handle's view of its write-back errors.
pub trait PageCache: Send + Sync + 'static {
    /// A cached file.
    type Object: CachedFile;
    /// Which write-back errors a handle has been told.
    type Cursor: Send + Sync + fmt::Debug;

    /// The object `id`, made if need be: regular files only. `path_fd` stays open as long as anybody holds the object.
    fn object(&self, id: u64, path_fd: Arc<OwnedFd>, size: u64) -> io::Result<Self::Object>;
    /// Has the object pages in memory, or shadows of pages that were?
    fn remembers(&self, object: &Self::Object) -> bool;
    /// How many objects there may be at one time; near that, some cannot be made.
    fn objects_max(&self) -> usize;
    /// The object `id` of an earlier daemon, taken over after a restart; `None` if it had none.
    fn reattach(&self, id: u64, path_fd: Arc<OwnedFd>) -> Option<Self::Object>;
    /// Writes the object back, drops its pages and the object itself. `path_fd` may be closed afterwards. After a failure
    /// the object stays, and its descriptor open.
    fn forget_object(&self, id: u64) -> io::Result<()>;
    /// As `forget_object`, for a file without names: nothing is written.
    fn discard_object(&self, id: u64);
    /// Objects whose last writeback failed.
    fn failing_objects(&self) -> Vec<u64>;
    /// What a new handle starts from: of the errors up to now it is told the last, if no handle was told of it yet.
    fn error_cursor(&self, object: &Self::Object) -> Self::Cursor;
    /// Reads at `offset`; short at the end of the file.
    fn read(&self, object: &Self::Object, offset: u64, buf: &mut [u8], door: Door) -> io::Result<usize>;
    /// Writes at `offset`, making the file longer if need be.
    fn write(&self, object: &Self::Object, offset: u64, data: &[u8]) -> io::Result<usize>;
    /// Sets the size, in the cache and in the source.
    fn truncate(&self, object: &Self::Object, size: u64) -> io::Result<()>;
    /// Writes back the dirty pages of `range`.
    fn flush(&self, object: &Self::Object, range: Range<u64>) -> io::Result<()>;
    /// Writes all back and makes it stable; fails once for each cursor after a failed write-back.
    fn fsync(&self, object: &Self::Object, data_only: bool, cursor: &Self::Cursor) -> io::Result<()>;
    /// Runs `act` on the source with `range` written back before, dropped after, and the cache kept out meanwhile; then
    /// takes the size from the source.
    fn with_source<T>(
        &self,
        object: &Self::Object,
        range: Range<u64>,
        act: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T>;
    /// Is the thread one of a registered fast-door client? Its opens bypass the kernel's page cache, so that its data
    /// are cached once.
    fn is_client(&self, tid: u32) -> bool;
    /// Is the thread one of the cache's own, which closes descriptors that programs showed it?
    fn is_own_thread(&self, tid: u32) -> bool;
}

/// A cached file as the namespace sees it.
pub trait CachedFile: Clone + Send + Sync + fmt::Debug + 'static {
    /// The file of the source.
    fn source(&self) -> &SourceFile;
    /// Nobody has the file open for writing any more: gives up its writer, unless something is left to be written. It is closed when the result
    /// is dropped.
    fn close_writer(&self) -> Option<Arc<DataFd>>;
    /// Pages that the source does not have yet.
    fn dirty_pages(&self) -> u64;
    /// Whether something of it may have to be written, or written once more.
    fn is_unsettled(&self) -> bool;
    /// Has somebody else changed the source, which says `stat`, since this cache wrote to it last?
    fn is_changed_behind(&self, stat: &Stat) -> bool;
    /// Puts the cache's size and times over the source's where the cache knows better.
    fn fix_attr(&self, attr: &mut Attr);
    /// Sends the fast door's readers of this file to the main door, or no longer.
    fn set_slow(&self, slow: bool);
    /// Likewise, because somebody may have mapped it through a descriptor that a client of the fast door opened for writing.
    /// Set by the door, when the client announces it, and here; taken back here.
    fn set_mapped(&self, mapped: bool);
    /// The source's ctime is the newest again (chmod, chown, link ...).
    fn metadata_changed(&self);
    /// The program set the mtime, in nanoseconds since 1970; the source has it already.
    fn set_mtime(&self, mtime: Time);
}

/// Which way a read came, for the counters and for admission.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Door {
    /// Through the mount, the kernel keeping the pages as well.
    MainCached,
    /// Through the mount, past the kernel's page cache.
    MainDirect,
}

impl Door {
    fn code(self) -> u32 {
        self as u32
    }

    fn from_code(code: u32) -> Self {
        if code == Self::MainDirect.code() { Self::MainDirect } else { Self::MainCached }
    }
}

/// Who sent a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caller {
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
    /// Thread id.
    pub tid: u32,
    /// The request's number, bit 63 set when it is a resent one.
    pub unique: u64,
}

impl Caller {
    /// Was the request sent to an earlier daemon, which may have done it?
    pub fn is_resent(&self) -> bool {
        self.unique & journal::RESENT != 0
    }
}

/// The kernel's caches, as far as the namespace must speak to them.
pub trait Kernel: Send + Sync + 'static {
    /// The kernel's attributes of `nodeid` are out of date.
    fn invalidate_attributes(&self, nodeid: u64);
    /// Drops the kernel's names of these inodes where nobody uses them; false if this kernel cannot.
    fn prune(&self, nodeids: &[u64]) -> bool;
    /// Drops what is cached of this range of a file's content.
    fn invalidate_content(&self, nodeid: u64, range: Range<u64>);
    /// Drops one name.
    fn invalidate_name(&self, parent: u64, name: &OsStr);
}

/// What can be chosen about a namespace.
#[derive(Clone, Copy, Debug)]
pub struct NamespaceConfig {
    /// Capacities of the durable tables.
    pub layout: DurableLayout,
    /// How long the kernel may keep attributes.
    pub attr_ttl: Duration,
    /// How long the kernel may keep a name.
    pub entry_ttl: Duration,
    /// How long the kernel may remember that a name does not exist. Short: only changes behind the mount's back make
    /// it wrong, and those are most often new files.
    pub negative_ttl: Duration,
    /// Does the last close of a descriptor write the file back, so that programs beside the mount see it?
    pub flush_on_close: bool,
    /// Descriptors below the limit that are not for this daemon.
    pub descriptors_spared: u64,
}

impl Default for NamespaceConfig {
    fn default() -> Self {
        Self {
            layout: DurableLayout::default(),
            attr_ttl: Duration::from_secs(3600),
            entry_ttl: Duration::from_secs(3600),
            negative_ttl: Duration::from_secs(1),
            flush_on_close: true,
            descriptors_spared: 0,
        }
    }
}

/// The namespace of one mount over a source directory.
pub struct Namespace<C: PageCache> {
    cache: Arc<C>,
    config: NamespaceConfig,
    inodes: InodeTable<C::Object>,
    handles: HandleTable<C>,
    journal: Journal,
    durable: Arc<Durable>,
    kernel: OnceLock<Box<dyn Kernel>>,
    pressure: Pressure,
    paging: Paging,
    /// Do the modes of source files hold for this daemon?
    bound_by_modes: bool,
}

impl<C: PageCache> fmt::Debug for Namespace<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Namespace").field("inodes", &self.inodes.len()).finish_non_exhaustive()
    }
}

impl<C: PageCache> Namespace<C> {
    /// A namespace over the directory `root` (an O_PATH descriptor), with a zeroed region for its tables.
    pub fn new(cache: Arc<C>, root: OwnedFd, region: DurableRegion, config: NamespaceConfig) -> Result<Self> {
        let durable = Arc::new(Durable::create(region, config.layout)?);
        let inodes = InodeTable::create(durable.clone(), root)?;
        let handles = HandleTable::new(durable.clone());
        Ok(Self::assemble(cache, config, inodes, handles, durable))
    }

    /// The namespace of an earlier daemon, from its region; its descriptors must still be open. When the cache
    /// has taken its pages over as well, call `finish_recovery`.
    ///
    /// # Errors
    /// The tables are damaged, or the cache has no room. Then all descriptors stay open: the next daemon goes by the same records.
    pub fn recover(cache: Arc<C>, region: DurableRegion, config: NamespaceConfig) -> Result<Self> {
        let durable = Arc::new(Durable::open(region, config.layout)?);
        let inodes = ManuallyDrop::new(InodeTable::recover(durable.clone())?);
        Self::reattach_objects(&inodes, &cache)?;
        let handles = HandleTable::recover(durable.clone(), &inodes, &*cache)?;
        let inodes = ManuallyDrop::into_inner(inodes);
        let namespace = Self::assemble(cache, config, inodes, handles, durable);
        for inode in namespace.inodes.all() {
            let life = inode.life.lock();
            if let Some(object) = &life.object {
                namespace.pressure.object_made();
                object.set_slow(life.unseen_writers > 0);
                if life.writers == 0 {
                    object.set_mapped(false);
                }
            }
        }
        Ok(namespace)
    }

    fn reattach_objects(inodes: &InodeTable<C::Object>, cache: &C) -> Result<()> {
        for inode in inodes.all() {
            if inode.kind == Kind::File && inode.had_object() {
                let object = match cache.reattach(inode.nodeid, inode.shared_fd()) {
                    Some(object) => object,
                    // Killed between the note and the object.
                    None => cache.object(inode.nodeid, inode.shared_fd(), inode.stat()?.st_size as u64)?,
                };
                if inode.noted_writer() >= 0 {
                    // SAFETY: noted after it was opened, and taken out before it is closed; the table owns it no longer.
                    object.source().adopt_writer(unsafe { OwnedFd::from_raw_fd(inode.noted_writer()) });
                }
                inode.life.lock().object = Some(object);
            } else {
                inode.forget_writer();
            }
        }
        Ok(())
    }

    /// Drops the inodes whose last reference went just before the crash, and closes what the last close of a writer would have closed.
    pub fn finish_recovery(&self) {
        for inode in self.inodes.all() {
            // Where modes bind, a request that is sent again may need it: `sweep` closes it later.
            if !self.bound_by_modes {
                inode.close_writer(&inode.life.lock());
            }
            if inode.nlookup() == 0 {
                self.retire_if_unused(&inode);
            }
        }
    }

    fn assemble(
        cache: Arc<C>,
        config: NamespaceConfig,
        inodes: InodeTable<C::Object>,
        handles: HandleTable<C>,
        durable: Arc<Durable>,
    ) -> Self {
        let descriptors_max = limits::descriptors_max().saturating_sub(config.descriptors_spared);
        let pressure = Pressure::new(inodes.max(), cache.objects_max(), descriptors_max);
        Self {
            cache,
            config,
            pressure,
            inodes,
            handles,
            journal: Journal::new(durable.clone()),
            paging: Paging::new(),
            durable,
            bound_by_modes: !rustix::process::geteuid().is_root(),
            kernel: OnceLock::new(),
        }
    }

    /// Says how to reach the kernel's caches.
    pub fn set_kernel(&self, kernel: Box<dyn Kernel>) {
        let _ = self.kernel.set(kernel);
    }

    /// Begins a request that changes names or lookup counts; the result is dropped after the answer.
    pub fn begin(&self, caller: Caller) -> Op<'_> {
        self.journal.begin(caller)
    }

    /// Notes that the kernel was asked to resend what the earlier daemon had not answered.
    pub fn note_resend_asked(&self) {
        self.journal.note_resend_asked();
        self.paging.note_restart();
    }

    /// Notes that the connection to the kernel is about to be initialised.
    pub fn note_initialised(&self) {
        self.durable.header.initialised.store(1, Ordering::Release);
    }

    /// Was the connection initialised, by this daemon or an earlier one?
    pub fn is_initialised(&self) -> bool {
        self.durable.header.initialised.load(Ordering::Acquire) != 0
    }

    /// The configuration.
    pub fn config(&self) -> &NamespaceConfig {
        &self.config
    }

    /// Inodes that the kernel knows.
    pub fn inodes_known(&self) -> usize {
        self.inodes.len()
    }

    /// Memory of the tables, on the heap and in the durable region.
    pub fn bytes(&self) -> u64 {
        (self.inodes.bytes() + self.handles.bytes() + self.durable.bytes()) as u64
    }

    /// Handles that are open.
    pub fn handles_open(&self) -> usize {
        self.handles.len()
    }

    /// Calls `act` with the O_PATH descriptor of the source directory.
    pub fn with_root<T>(&self, act: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>) -> io::Result<T> {
        act(self.inode(ROOT)?.fd())
    }

    fn inode(&self, nodeid: u64) -> Result<Arc<Inode<C::Object>>> {
        self.inodes.get(nodeid)
    }

    /// The object of a regular file, made on first use. The caller holds the inode's `life`, and so does not wait for room here.
    fn object_of(&self, inode: &Inode<C::Object>, life: &mut inode::Life<C::Object>) -> Result<C::Object> {
        if let Some(object) = &life.object {
            return Ok(object.clone());
        }
        if inode.kind != Kind::File {
            return Err(Error::WrongKind);
        }
        if life.retired {
            return Err(Error::UnknownNode(inode.nodeid));
        }
        inode.note_object(true);
        let size = inode.stat()?.st_size as u64;
        let object = self.cache.object(inode.nodeid, inode.shared_fd(), size)?;
        life.object = Some(object.clone());
        self.pressure.object_made();
        Ok(object)
    }

    /// Drops an inode that the kernel has forgotten and nobody has open, unless something of it is cached.
    fn retire_if_unused(&self, inode: &Inode<C::Object>) {
        let life = inode.life.lock();
        if !inode.is_forgotten(&life)
            || (!self.pressure.is_crowded(self.inodes.len()) && self.rest(inode, &life))
        {
            return;
        }
        self.retire(inode, life);
    }

    /// Lets a forgotten inode rest: it keeps its pages and shadows, and the next lookup finds it as if the kernel had never forgotten it. The
    /// next open compares the source with what it is now. False: there is nothing to keep.
    fn rest(&self, inode: &Inode<C::Object>, life: &inode::Life<C::Object>) -> bool {
        let Some(object) = &life.object else { return false };
        if !self.cache.remembers(object) || self.cache.flush(object, 0..u64::MAX).is_err() {
            return false;
        }
        // What was seen before stays: the next open must find out what has changed since.
        let stat = if inode.is_unseen() { inode.look(object).map(|look| look.stat) } else { inode.stat() };
        stat.is_ok_and(|stat| stat.st_nlink > 0)
    }

    /// Drops a forgotten inode with all that is cached of it. False: that could not be written back.
    fn retire(&self, inode: &Inode<C::Object>, mut life: MutexGuard<'_, inode::Life<C::Object>>) -> bool {
        if let Some(object) = &life.object {
            if inode.stat().is_ok_and(|stat| stat.st_nlink == 0) {
                self.cache.discard_object(inode.nodeid);
            } else if self.cache.forget_object(inode.nodeid).is_err() {
                // What could not be written back stays, with the inode, until a later forget or the end.
                inode.note_writer(object.source());
                return false;
            }
            inode.forget_writer();
            life.object = None;
            inode.note_object(false);
            self.pressure.object_gone();
        }
        self.inodes.retire(inode, &mut life);
        true
    }

    fn invalidate_attributes(&self, nodeid: u64) {
        if let Some(kernel) = self.kernel.get() {
            kernel.invalidate_attributes(nodeid);
        }
    }
}
