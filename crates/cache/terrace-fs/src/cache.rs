//! Adapter: implements the namespace's interface [`PageCache`] with the engine.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::Stat;
use terrace_engine::source::{DataFd, SourceFile};
use terrace_engine::{AccessPath, Engine, ErrorCursor, Object, ObjectRef};

use crate::attr::{Attr, Time};
use crate::page_cache::{CachedFile, PageCache};

const PAGE: u64 = 4096;

/// The first page of a range of bytes, and the number of pages that it touches.
fn pages_of(range: Range<u64>) -> (u64, u64) {
    let first = range.start / PAGE;
    (first, range.end.div_ceil(PAGE) - first)
}

/// Memory of one object: metadata, share of the object table, inode.
const OBJECT_BYTES: usize = 800;

fn time(ns: i64) -> Time {
    Time { sec: ns.div_euclid(1_000_000_000), nsec: ns.rem_euclid(1_000_000_000) as u32 }
}

impl CachedFile for ObjectRef {
    fn source(&self) -> &SourceFile {
        Object::source(self)
    }
    fn close_writer(&self) -> Option<Arc<DataFd>> {
        Object::close_writer(self)
    }
    fn has_unsynced_pages(&self) -> bool {
        Object::has_unsynced_pages(self)
    }
    fn is_changed_behind(&self, stat: &Stat) -> bool {
        Object::is_changed_behind(self, stat)
    }
    fn has_unreported_close(&self) -> bool {
        Object::has_unreported_close(self)
    }
    fn take_close_error(&self) -> io::Result<()> {
        Object::take_close_error(self)
    }
    fn dirty_pages(&self) -> u64 {
        Object::dirty_pages(self)
    }
    fn fix_attr(&self, attr: &mut Attr) {
        attr.size = self.size();
        if let Some((mtime, ctime)) = self.times() {
            attr.mtime = time(mtime);
            attr.ctime = time(ctime);
        }
    }
    fn set_slow(&self, slow: bool) {
        Object::set_slow(self, slow);
    }
    fn set_mapped(&self, mapped: bool) {
        Object::set_mapped(self, mapped);
    }
    fn is_slow(&self) -> bool {
        Object::is_slow(self)
    }
    fn is_mapped(&self) -> bool {
        Object::is_mapped(self)
    }
    fn metadata_changed(&self) {
        self.adopt_ctime();
    }
    fn set_mtime(&self, mtime: Time) {
        self.adopt_mtime(mtime.nanoseconds() as i64);
    }
}

impl PageCache for Engine {
    type Object = ObjectRef;
    type Cursor = ErrorCursor;

    fn object(&self, id: u64, path_fd: Arc<OwnedFd>, size: u64) -> io::Result<ObjectRef> {
        Engine::object(self, id, path_fd, size)
    }
    fn remembers(&self, object: &ObjectRef) -> bool {
        Engine::remembers(self, object)
    }
    fn objects_max(&self) -> usize {
        // The namespace uses at most half of the objects: with their inodes they take at most a quarter of the
        // limit.
        let affordable = self.memory_limit() as usize / 4 / OBJECT_BYTES * 2;
        affordable.min(self.handles().segment.geometry().objects_max as usize)
    }
    fn reattach(&self, id: u64, path_fd: Arc<OwnedFd>) -> Option<ObjectRef> {
        self.reattach_object(id, path_fd)
    }
    fn forget_object(&self, id: u64) -> io::Result<()> {
        Engine::forget_object(self, id).inspect_err(|e| {
            tracing::error!(
                "object {id}: the source refuses written data ({e}); terrace keeps them and tries again"
            );
        })
    }
    fn discard_object(&self, id: u64) {
        Engine::discard_object(self, id);
        let _ = Engine::forget_object(self, id);
    }
    fn failing_objects(&self) -> Vec<u64> {
        Engine::failing_objects(self)
    }
    fn error_cursor(&self, object: &ObjectRef) -> ErrorCursor {
        object.error_cursor()
    }
    fn read(&self, object: &ObjectRef, offset: u64, buf: &mut [u8], access: AccessPath) -> io::Result<usize> {
        Engine::read(self, object, offset, buf, access)
    }
    fn write(&self, object: &ObjectRef, offset: u64, data: &[u8]) -> io::Result<usize> {
        Engine::write(self, object, offset, data)
    }
    fn truncate(&self, object: &ObjectRef, size: u64) -> io::Result<()> {
        Engine::truncate(self, object, size)
    }
    fn flush(&self, object: &ObjectRef, range: Range<u64>) -> io::Result<()> {
        Engine::flush(self, object, range)
    }
    fn note_open(&self, object: &ObjectRef) {
        Engine::note_open(self, object);
    }
    fn change_metadata(&self, object: &ObjectRef) {
        Engine::change_metadata(self, object);
    }
    fn fsync(&self, object: &ObjectRef, data_only: bool, cursor: &ErrorCursor) -> io::Result<()> {
        Engine::fsync(self, object, data_only, cursor)
    }
    fn with_source<T>(
        &self,
        object: &ObjectRef,
        range: Range<u64>,
        act: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        Engine::with_source(self, object, range, |_| act())
    }
    fn pin(&self, object: &ObjectRef, range: Range<u64>, time: Duration) -> u64 {
        let (first, pages) = pages_of(range);
        Engine::pin(self, object, first, pages, time) * PAGE
    }
    fn stage_down(&self, object: &ObjectRef, range: Range<u64>, level: u8) -> u64 {
        let (first, pages) = pages_of(range);
        Engine::stage_down(self, object, first, pages, level) * PAGE
    }
    fn drop_clean(&self, object: &ObjectRef, range: Range<u64>) -> u64 {
        let (first, pages) = pages_of(range);
        self.drop_pages(object, first, pages)
    }
    fn is_client(&self, tid: u32) -> bool {
        Engine::is_client(self, tid)
    }
    fn is_own_thread(&self, tid: u32) -> bool {
        self.is_server_thread(tid)
    }
}
