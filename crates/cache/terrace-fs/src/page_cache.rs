//! The page cache as the namespace sees it. The engine implements it (`cache`); tests have one that caches
//! nothing.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::Stat;
use terrace_engine::AccessPath;
use terrace_engine::source::{DataFd, SourceFile};

use crate::attr::{Attr, Time};

/// The page cache as the namespace sees it.
///
/// `Object` is a shared reference to a cached file. `Cursor` is one handle's view of its writeback errors.
pub trait PageCache: Send + Sync + 'static {
    /// A cached file.
    type Object: CachedFile;
    /// The writeback errors that a handle has reported.
    type Cursor: Send + Sync + fmt::Debug;

    /// The object `id`, made if necessary: regular files only. `path_fd` stays open as long as a reference to
    /// the object exists.
    fn object(&self, id: u64, path_fd: Arc<OwnedFd>, size: u64) -> io::Result<Self::Object>;
    /// Whether the object has pages in memory, or shadows of evicted pages.
    fn remembers(&self, object: &Self::Object) -> bool;
    /// Highest number of objects at one time. Near it, some cannot be made.
    fn objects_max(&self) -> usize;
    /// The object `id` of an earlier daemon, recovered after a restart. `None` if it had none.
    fn reattach(&self, id: u64, path_fd: Arc<OwnedFd>) -> Option<Self::Object>;
    /// Writes the object back, then drops its pages and itself. `path_fd` may be closed afterwards. After a
    /// failure the object stays, and its descriptor open.
    fn forget_object(&self, id: u64) -> io::Result<()>;
    /// As `forget_object`, for a file without names: nothing is written.
    fn discard_object(&self, id: u64);
    /// Objects after a failed writeback.
    fn failing_objects(&self) -> Vec<u64>;
    /// The cursor of a new handle: it reports the last earlier error, if no handle has reported that one.
    fn error_cursor(&self, object: &Self::Object) -> Self::Cursor;
    /// Reads at `offset`; short at the end of the file.
    fn read(
        &self,
        object: &Self::Object,
        offset: u64,
        buf: &mut [u8],
        access: AccessPath,
    ) -> io::Result<usize>;
    /// Writes at `offset`, extending the file if necessary.
    fn write(&self, object: &Self::Object, offset: u64, data: &[u8]) -> io::Result<usize>;
    /// Sets the size, in the cache and in the source.
    fn truncate(&self, object: &Self::Object, size: u64) -> io::Result<()>;
    /// Writes back the dirty pages of `range`.
    fn flush(&self, object: &Self::Object, range: Range<u64>) -> io::Result<()>;
    /// Writes all back and makes it stable. Fails once for each cursor after a failed writeback.
    fn fsync(&self, object: &Self::Object, data_only: bool, cursor: &Self::Cursor) -> io::Result<()>;
    /// Runs `act` on the source. `range` is written back before and dropped after; the cache does not use the
    /// source meanwhile. Then the size is read from the source.
    fn with_source<T>(
        &self,
        object: &Self::Object,
        range: Range<u64>,
        act: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T>;
    /// A program opens the file. The namespace has compared it with the source.
    fn note_open(&self, _object: &Self::Object) {}
    /// Metadata of the source's file are about to change: mode, owner, times, names.
    fn change_metadata(&self, _object: &Self::Object) {}
    /// Keeps pages of a range that are in memory there for `time`, as far as there is room. Returns the
    /// bytes.
    fn pin(&self, object: &Self::Object, range: Range<u64>, time: Duration) -> u64;
    /// Moves clean, unused pages of a range from memory to the device tier of this level (0: fastest).
    /// Returns the bytes of the range that device tiers then have.
    fn stage_down(&self, object: &Self::Object, range: Range<u64>, level: u8) -> u64;
    /// Drops the clean pages of a range. Returns their number.
    fn drop_clean(&self, object: &Self::Object, range: Range<u64>) -> u64;
    /// Whether the thread belongs to a registered preload client. Its opens bypass the kernel's page cache:
    /// their data are cached once.
    fn is_client(&self, tid: u32) -> bool;
    /// Whether the thread is one of the cache's own, which closes descriptors received from programs.
    fn is_own_thread(&self, tid: u32) -> bool;
}

/// A cached file as the namespace sees it.
pub trait CachedFile: Clone + Send + Sync + fmt::Debug + 'static {
    /// The file of the source.
    fn source(&self) -> &SourceFile;
    /// Releases the writer after the last close for writing, unless dirty pages are left. The writer is
    /// closed when the result is dropped.
    fn close_writer(&self) -> Option<Arc<DataFd>>;
    /// Whether a close of written data at the source, or the report of its error, is still due.
    fn has_unreported_close(&self) -> bool {
        false
    }
    /// Closes at the source. The program, sync or unmount that calls this reports the error.
    fn take_close_error(&self) -> io::Result<()> {
        Ok(())
    }
    /// Pages that the source does not have yet.
    fn dirty_pages(&self) -> u64;
    /// Whether pages may have to be written, or written again.
    fn has_unsynced_pages(&self) -> bool;
    /// Whether others changed the source (with its status `stat`) since the last write of this cache.
    fn is_changed_behind(&self, stat: &Stat) -> bool;
    /// Replaces the source's size and times by the cache's where those are newer.
    fn fix_attr(&self, attr: &mut Attr);
    /// Sends readers of the preload path to the mount path for this file, or ends that.
    fn set_slow(&self, slow: bool);
    /// Likewise, because a descriptor that a client opened for writing may be mapped. Set by the preload
    /// server when a client announces a mapping, and by the namespace; reset by the namespace.
    fn set_mapped(&self, mapped: bool);
    /// Whether readers of the preload path must use the mount path, for any reason.
    fn is_slow(&self) -> bool;
    /// Whether they must because of a mapping.
    fn is_mapped(&self) -> bool;
    /// The source's ctime is the newest again (chmod, chown, link ...).
    fn metadata_changed(&self);
    /// A program set the mtime, ns since 1970. The source has it already.
    fn set_mtime(&self, mtime: Time);
}
