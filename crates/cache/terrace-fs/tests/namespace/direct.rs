//! A page cache that caches nothing: each read and write goes to the source at once. With this null twin of
//! the engine, tests show faults of the namespace alone.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::Stat;

use terrace_engine::AccessPath;
use terrace_engine::source::{DataFd, SourceFile};
use terrace_fs::{Attr, CachedFile, PageCache, Time};

/// The cache without pages.
#[derive(Debug, Default)]
pub(crate) struct Direct;

#[derive(Clone, Debug)]
pub(crate) struct DirectFile(Arc<SourceFile>);

impl CachedFile for DirectFile {
    fn source(&self) -> &SourceFile {
        &self.0
    }

    fn close_writer(&self) -> Option<Arc<DataFd>> {
        self.0.close_writer(false)
    }

    fn dirty_pages(&self) -> u64 {
        0
    }

    fn has_unsynced_pages(&self) -> bool {
        false
    }

    fn is_changed_behind(&self, _: &Stat) -> bool {
        false
    }

    fn fix_attr(&self, _: &mut Attr) {}

    fn set_slow(&self, _: bool) {}

    fn set_mapped(&self, _: bool) {}

    fn is_slow(&self) -> bool {
        false
    }

    fn is_mapped(&self) -> bool {
        false
    }

    fn metadata_changed(&self) {}

    fn set_mtime(&self, _: Time) {}
}

impl PageCache for Direct {
    type Object = DirectFile;
    type Cursor = ();

    fn object(&self, _: u64, path_fd: Arc<OwnedFd>, _: u64) -> io::Result<Self::Object> {
        Ok(DirectFile(Arc::new(SourceFile::through_page_cache(path_fd))))
    }

    fn remembers(&self, _: &Self::Object) -> bool {
        false
    }

    fn objects_max(&self) -> usize {
        usize::MAX
    }

    fn reattach(&self, _: u64, _: Arc<OwnedFd>) -> Option<Self::Object> {
        None
    }

    fn forget_object(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn discard_object(&self, _: u64) {}

    fn failing_objects(&self) -> Vec<u64> {
        Vec::new()
    }

    fn error_cursor(&self, _: &Self::Object) {}

    fn read(&self, object: &Self::Object, offset: u64, buf: &mut [u8], _: AccessPath) -> io::Result<usize> {
        let (fd, mut done) = (object.0.reader()?, 0);
        while done < buf.len() {
            match rustix::io::pread(&*fd, &mut buf[done..], offset + done as u64)? {
                0 => break,
                n => done += n,
            }
        }
        Ok(done)
    }

    fn write(&self, object: &Self::Object, offset: u64, data: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::pwrite(&*object.0.writer()?, data, offset)?)
    }

    fn truncate(&self, object: &Self::Object, size: u64) -> io::Result<()> {
        Ok(rustix::fs::ftruncate(&*object.0.writer()?, size)?)
    }

    fn flush(&self, _: &Self::Object, _: Range<u64>) -> io::Result<()> {
        Ok(())
    }

    fn fsync(&self, object: &Self::Object, data_only: bool, (): &()) -> io::Result<()> {
        let fd = object.0.any()?;
        let synced = if data_only { rustix::fs::fdatasync(&*fd) } else { rustix::fs::fsync(&*fd) };
        Ok(synced?)
    }

    fn with_source<T>(
        &self,
        _: &Self::Object,
        _: Range<u64>,
        act: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        act()
    }

    fn stage_down(&self, _: &Self::Object, _: std::ops::Range<u64>, _: u8) -> u64 {
        0
    }
    fn pin(&self, _: &Self::Object, _: std::ops::Range<u64>, _: std::time::Duration) -> u64 {
        0
    }
    fn drop_clean(&self, _: &Self::Object, _: std::ops::Range<u64>) -> u64 {
        0
    }
    fn is_client(&self, _: u32) -> bool {
        false
    }

    fn is_own_thread(&self, _: u32) -> bool {
        false
    }
}
