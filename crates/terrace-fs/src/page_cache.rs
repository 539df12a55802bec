//! The page cache as the namespace sees it: the engine is one (`cache`), and tests have one that caches nothing.

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
    /// The start of a new handle: it reports the last earlier error, if no handle has reported that one.
    fn error_cursor(&self, object: &Self::Object) -> Self::Cursor;
    /// Reads at `offset`; short at the end of the file.
    fn read(
        &self,
        object: &Self::Object,
        offset: u64,
        buf: &mut [u8],
        access: AccessPath,
    ) -> io::Result<usize>;
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
    /// A program opens the file, which the namespace has looked at.
    fn note_open(&self, _object: &Self::Object) {}
    /// The metadata of the source's file are about to be changed: its mode, owner, times, names.
    fn change_metadata(&self, _object: &Self::Object) {}
    /// Keeps the pages of a range that are in memory there for so long, as far as there is room for that; bytes.
    fn pin(&self, object: &Self::Object, range: Range<u64>, time: Duration) -> u64;
    /// Moves the clean pages of a range that no program used again from memory to the tier on devices of this level, 0 the fastest; bytes
    /// of the range that tiers on devices have then.
    fn stage_down(&self, object: &Self::Object, range: Range<u64>, level: u8) -> u64;
    /// Drops the clean pages of a range; how many.
    fn drop_clean(&self, object: &Self::Object, range: Range<u64>) -> u64;
    /// Is the thread one of a registered preload client? Its opens bypass the kernel's page cache, so that its data
    /// are cached once.
    fn is_client(&self, tid: u32) -> bool;
    /// Is the thread one of the cache's own, which closes descriptors that programs showed it?
    fn is_own_thread(&self, tid: u32) -> bool;
}

/// A cached file as the namespace sees it.
pub trait CachedFile: Clone + Send + Sync + fmt::Debug + 'static {
    /// The file of the source.
    fn source(&self) -> &SourceFile;
    /// Gives up the writer after the last close for writing, unless data are left to be written. The writer is closed when the result
    /// is dropped.
    fn close_writer(&self) -> Option<Arc<DataFd>>;
    /// Has the source still to answer a close of what was written?
    fn is_unheard(&self) -> bool {
        false
    }
    /// That answer, for the program, the sync or the unmount that reports it.
    fn hear_close(&self) -> io::Result<()> {
        Ok(())
    }
    /// Pages that the source does not have yet.
    fn dirty_pages(&self) -> u64;
    /// Whether something of it may have to be written, or written once more.
    fn is_unsettled(&self) -> bool;
    /// Has somebody else changed the source, which says `stat`, since this cache wrote to it last?
    fn is_changed_behind(&self, stat: &Stat) -> bool;
    /// Puts the cache's size and times over the source's where the cache knows better.
    fn fix_attr(&self, attr: &mut Attr);
    /// Sends the preload path's readers of this file to the mount path, or no longer.
    fn set_slow(&self, slow: bool);
    /// Likewise, because somebody may have mapped it through a descriptor that a client of the preload path opened for writing.
    /// Set by the preload path, when the client announces it, and here; taken back here.
    fn set_mapped(&self, mapped: bool);
    /// Are the preload path's readers sent to the mount path, for whichever reason?
    fn is_slow(&self) -> bool;
    /// Are they because of a mapping?
    fn is_mapped(&self) -> bool;
    /// The source's ctime is the newest again (chmod, chown, link ...).
    fn metadata_changed(&self);
    /// The program set the mtime, in nanoseconds since 1970; the source has it already.
    fn set_mtime(&self, mtime: Time);
}
