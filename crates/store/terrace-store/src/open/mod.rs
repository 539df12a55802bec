//! Opens a store.
//!
//! 1. Open and lock the files.
//! 2. Write the tail of the log, which a killed process left in the segment, to the log file.
//! 3. If no process has left a tail there, write the journal's bytes to the heap again.
//! 4. Choose the records to trust.
//! 5. Start the engine, and replay the log into the index.
//! 6. Rebuild the allocator from the extents of all blobs.

mod believe;
mod cut;
mod damage;
mod files;
mod replay;

pub(crate) use files::destroy;

use crate::error::{Error, Result};
use crate::fork::Process;
use crate::heap::Heap;
use crate::index::{Hashes, IndexMemory, Names};
use crate::journal::Journal;
use crate::log::{self, Log};
use crate::options::StoreOptions;
use crate::record::Header;
use crate::segment::Segment;
use crate::space::{Extent, PAGE, Space};
use crate::state::{Counts, StoreState};
use crate::tail::Tail;
use crate::write::write_all;
use cut::ContinuedLog;
use files::Files;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use terrace_engine::{Engine, ObjectRef, SystemClock};
use terrace_io::Io;
use terrace_sync::Wakeup;

/// Opens the store and starts the engine's threads. Also returns whether the log has records that no mark
/// covers.
///
/// # Errors
/// An unusable directory or file; the store is in use; damage; no memory.
pub(crate) fn open(
    dir: &Path,
    options: &StoreOptions,
    segment: &Segment,
    io: Arc<dyn Io>,
) -> Result<(StoreState, bool)> {
    let files = Files::open(dir, &options.name, &*io)?;
    let process = Process::this().map_err(|e| Error::io(dir, "map a page for", e))?;
    let tail = Tail::new(segment);
    let is_trusted = take_tail(&files, &tail, &*io)?;
    let scanned = replay::scan(&files)?;
    let of = (files.header.store, options.memory_bytes);
    let journal = Journal::open(dir, &options.name, of, io.clone())?;
    if !is_trusted {
        journal.redo(&files.heap, scanned.marked)?;
    }
    let believed = replay::believed(&files, &*io, (is_trusted, scanned))?;
    let (engine, object, is_used) = start_engine(options, segment, &files, &tail, io.clone())?;
    let hashes = Hashes::new(files.header.seed);
    let names = Names::new(hashes.clone());
    let (memory, counts) = (IndexMemory::new(engine.clone()), Counts::default());
    engine.count_also(|| crate::tail::RING);
    let upto = (scanned.marked, believed);
    let found = replay::replay(&files, &*io, upto, &names, &hashes, (&memory, &counts))?;
    let index = (names, found.tags);
    let space = rebuild_space(&files, object.size(), found.extents)?;
    let heap = Heap::new(
        engine.clone(),
        object,
        files.heap.clone(),
        files.heap_path.clone(),
        options.capacity_bytes,
        space,
    );
    let wake = Arc::new(Wakeup::default());
    let ContinuedLog { file, end, marked } = found.log;
    let written = log::Written { file: file.unwrap_or(files.names), header: files.header, end };
    let log = Log::new(files.names_path.clone(), written, segment, (io.clone(), journal), wake.clone())?;
    memory.leave_spare();
    let started = engine.serve();
    started.map_err(|source| Error::Io { path: files.heap_path, action: "start threads", source })?;
    let state = StoreState::new(
        (files.dir, files.names_path),
        io,
        heap,
        log,
        index,
        hashes,
        (files.header.store, files.header.seed),
        options,
        wake,
        (memory, counts, process),
    );
    state.durable.upto.store(marked, Ordering::Relaxed);
    if is_used || !options.warm {
        let _ = state.warmed.set(());
    }
    Ok((state, marked + 1 < end.number))
}

/// The allocator of the heap, from the extents of all blobs.
///
/// # Errors
/// Two blobs overlap, or one lies beyond the end.
fn rebuild_space(files: &Files, heap_bytes: u64, extents: Vec<Extent>) -> Result<Space> {
    let mut space = Space::rebuild(heap_bytes / PAGE, extents.into_iter()).map_err(|extent| {
        let what = format!("two blobs overlap at byte {}, or a blob lies beyond the end", extent.offset());
        Error::Damaged { path: files.heap_path.clone(), what }
    })?;
    // Blocks are missing: they were given back to a full disk, or the file system allocates on write.
    if rustix::fs::fstat(&files.heap).is_ok_and(|stat| (stat.st_blocks as u64) * 512 < heap_bytes) {
        space.forget_blocks();
    }
    Ok(space)
}

/// Writes the tail that a killed process left in the segment to the log file. Returns whether the segment
/// holds that process's writes.
fn take_tail(files: &Files, tail: &Tail, io: &dyn Io) -> Result<bool> {
    let Header { store, generation, .. } = files.header;
    let Some(left) = tail.left() else { return Ok(false) };
    if left.store != store || left.generation > generation || left.generation + 1 < generation {
        let what = format!(
            "{}: the memory segment belongs to another store, or this store was opened without it; create a new segment",
            files.names_path.display()
        );
        return Err(Error::Invalid { what });
    }
    // A compacted log that was not yet switched to has all records of the tail.
    if left.generation == generation {
        for (at, bytes) in tail.unflushed(tail.flushed(), tail.committed()) {
            let done = write_all(io, &files.names, at, bytes);
            done.map_err(|e| Error::io(&files.names_path, "write", e))?;
        }
    }
    Ok(true)
}

/// Starts the engine over the segment, and takes over the pages of an earlier engine. Also returns whether
/// there was one. Its threads do not run yet.
fn start_engine(
    options: &StoreOptions,
    segment: &Segment,
    files: &Files,
    tail: &Tail,
    io: Arc<dyn Io>,
) -> Result<(Arc<Engine>, ObjectRef, bool)> {
    let invalid = |e: std::io::Error| Error::Invalid { what: format!("the store's cache cannot start: {e}") };
    let config = options.engine_config();
    let engine = Engine::start(config, segment.0.clone(), Arc::new(SystemClock), io).map_err(invalid)?;
    let stat = rustix::fs::fstat(&*files.heap);
    let stat = stat.map_err(|e| Error::io(&files.heap_path, "stat", e.into()))?;
    let fd: Arc<OwnedFd> = files.heap.clone();
    let is_used = tail.take_use();
    if is_used {
        engine.reattach_object(stat.st_ino, fd.clone());
        engine.recover_pages();
    }
    let object = engine.object(stat.st_ino, fd, stat.st_size as u64).map_err(invalid)?;
    Ok((engine, object, is_used))
}
