//! The regions of a target in a store, as objects. The open region, and regions being uploaded, are in memory
//! and read from there.

use crate::lease::{Lease, Timing};
use crate::shared::Request;
use crate::shared::{Content, Found, Health, Place, SUPERBLOCKS, Shared, WAITING_MAX};
use crate::store::{Failed, SOON, Store};
use crate::uploader;
use bytes::Bytes;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use terrace_io::IoVec;
use terrace_sync::{Condvar, Mutex, RwLock};
use terrace_tier::superblock::COPIES_AT;
use terrace_tier::{Geometry, Medium, ReadPiece};

const PAGE: u64 = 4096;
/// Longest wait of a flush for the store.
const FLUSH_WITHIN: Duration = Duration::from_secs(20);

/// Maximum number of regions in memory: the open one, a copy of it being flushed, and waiting ones.
pub(crate) const IN_MEMORY_MAX: u64 = WAITING_MAX as u64 + 2;

/// A target in a store, as the engine's medium.
#[derive(Debug)]
pub struct RemoteMedium(Arc<Shared>);

impl RemoteMedium {
    /// Creates the medium of a target that this instance holds. Sends no request yet.
    ///
    /// # Errors
    /// No more threads.
    pub(crate) fn new(
        store: Store,
        name: String,
        geometry: Geometry,
        (lease, timing): (Lease, Timing),
    ) -> io::Result<RemoteMedium> {
        let shared = Arc::new(Shared {
            store,
            name,
            geometry,
            lease,
            timing,
            places: RwLock::default(),
            attaching: Mutex::default(),
            queue: Mutex::default(),
            changed: Condvar::new(),
            health: Health::default(),
            waiting: AtomicUsize::new(0),
        });
        let its = shared.clone();
        std::thread::Builder::new().name("remote".to_owned()).spawn(move || uploader::run(&its))?;
        Ok(RemoteMedium(shared))
    }

    /// Ends the uploader after its current request. Returns whether it has ended.
    fn end(&self) -> bool {
        let mut queue = self.0.queue.lock();
        queue.is_ending = true;
        self.0.changed.notify_all();
        let until = Instant::now() + SOON;
        while !queue.has_ended && !self.0.changed.wait_until(&mut queue, until).timed_out() {}
        queue.has_ended
    }
}

impl Drop for RemoteMedium {
    fn drop(&mut self) {
        self.0.queue.lock().is_ending = true;
        self.0.changed.notify_all();
    }
}

/// Copies `from` into the buffers, and fills the rest with zeros.
///
/// # Safety
/// Each of `bufs` must be valid for writes.
pub(crate) unsafe fn scatter(from: &[u8], bufs: &[IoVec]) {
    let mut rest = from;
    for buf in bufs {
        let (part, behind) = rest.split_at(buf.len.min(rest.len()));
        // SAFETY: the caller guarantees valid buffers. A part is no longer than its buffer, and the source is
        // none of them.
        unsafe {
            buf.ptr.copy_from_nonoverlapping(part.as_ptr(), part.len());
            buf.ptr.add(part.len()).write_bytes(0, buf.len - part.len());
        }
        rest = behind;
    }
}

/// Reads from the area of the superblocks. The rest of the area reads as zeros.
pub(crate) fn read_superblocks(store: &Store, at: u64, len: u64) -> Result<Vec<u8>, Failed> {
    let mut bytes = vec![0; len as usize];
    for (name, copy) in SUPERBLOCKS.iter().zip(COPIES_AT).filter(|(_, copy)| (at..at + len).contains(copy)) {
        let content = store.get(name)?.unwrap_or_default();
        let n = content.len().min(PAGE as usize);
        bytes[(copy - at) as usize..][..n].copy_from_slice(&content[..n]);
    }
    Ok(bytes)
}

/// Writes a copy of the superblock.
pub(crate) fn write_superblock(store: &Store, at: u64, page: &[u8]) -> io::Result<()> {
    let copy = COPIES_AT.iter().position(|copy| *copy == at).filter(|_| page.len() as u64 == PAGE);
    let copy = copy.ok_or(io::ErrorKind::InvalidInput)?;
    Ok(store.put(SUPERBLOCKS[copy], Bytes::copy_from_slice(page), SOON)?)
}

impl Medium for RemoteMedium {
    unsafe fn read_vectored(&self, at: u64, bufs: &[IoVec]) -> io::Result<()> {
        let mut piece = [ReadPiece::new(at, bufs.to_vec())];
        // SAFETY: the caller guarantees valid buffers.
        unsafe { self.read_batch(&mut piece) };
        let [piece] = piece;
        piece.result
    }

    unsafe fn read_batch(&self, pieces: &mut [ReadPiece]) {
        let (mut parts, mut of) = (Vec::new(), Vec::new());
        for (n, piece) in pieces.iter_mut().enumerate() {
            let len = piece.bufs.iter().map(|buf| buf.len as u64).sum();
            let here = match self.0.find(piece.at, len) {
                Ok(Some(Found::There(part))) => {
                    parts.push(part);
                    of.push(n);
                    continue;
                }
                Ok(Some(Found::Here(content))) => Ok(content),
                Ok(None) if self.0.health.reads_fail.load(Ordering::Acquire) => Err(self.0.health.error()),
                Ok(None) => {
                    read_superblocks(&self.0.store, piece.at, len).map_err(|failed| self.0.note_read(failed))
                }
                Err(err) => Err(err),
            };
            // SAFETY: the caller guarantees valid buffers.
            piece.result = here.map(|content| unsafe { scatter(&content, &piece.bufs) });
        }
        if parts.is_empty() {
            return;
        }
        for (n, answer) in of.into_iter().zip(self.0.store.read(parts, SOON)) {
            let piece = &mut pieces[n];
            piece.result = match answer {
                Ok(content) => {
                    // SAFETY: the caller guarantees valid buffers.
                    unsafe { scatter(&content.to_bytes(), &piece.bufs) };
                    Ok(())
                }
                Err(failed) => Err(self.0.note_read(failed)),
            };
        }
    }

    fn write(&self, at: u64, buf: &[u8]) -> io::Result<()> {
        if self.0.health.is_lost() {
            return Err(self.0.health.error());
        }
        let Some((region, offset)) = self.0.region_of(at) else {
            return write_superblock(&self.0.store, at, buf);
        };
        let mut places = self.0.places.write();
        let place = places.as_mut().and_then(|places| places.of.get_mut(&region));
        match place.map(|place| &mut place.content) {
            Some(Some(Content::Open(content))) if content.len() as u64 == offset => {
                content.extend_from_slice(buf);
                Ok(())
            }
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn open_region(&self, at: u64, _page: &mut [u8]) -> io::Result<()> {
        if self.0.health.is_lost() {
            return Err(self.0.health.error());
        }
        let (region, _) = self.0.region_of(at).ok_or(io::ErrorKind::InvalidInput)?;
        let mut places = self.0.places.write();
        let places = places.as_mut().ok_or(io::ErrorKind::InvalidInput)?;
        let full = self.0.close_open(places);
        places.fillings += 1;
        let content = Some(Content::Open(Vec::with_capacity(self.0.geometry.region_bytes() as usize)));
        let new = Place { filling: places.fillings, object: None, content };
        let old = places.of.insert(region, new).and_then(|old| old.object);
        places.open = Some(region);
        self.0.push(full.into_iter().chain(old.map(|(name, _)| Request::Delete(name))));
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.0.push(self.0.copy_open());
        let until = Instant::now() + FLUSH_WITHIN;
        let mut queue = self.0.queue.lock();
        while !queue.requests.is_empty() {
            if self.0.health.is_failing() {
                return Err(self.0.health.error());
            }
            if self.0.changed.wait_until(&mut queue, until).timed_out() {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the store did not take all data in time",
                ));
            }
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.0.geometry.bytes()
    }

    fn is_ready(&self) -> bool {
        !self.0.health.is_failing() && self.0.waiting.load(Ordering::Acquire) < WAITING_MAX
    }

    fn wait_ready(&self, until: Instant) {
        let mut queue = self.0.queue.lock();
        // Does not wait for a failing store: that may take long.
        let waits = || !self.is_ready() && !self.0.health.is_failing();
        while waits() && !self.0.changed.wait_until(&mut queue, until).timed_out() {}
    }

    fn trouble(&self) -> Option<String> {
        self.0.health.why()
    }

    fn memory_bytes(&self) -> u64 {
        IN_MEMORY_MAX * u64::from(self.0.geometry.region_bytes())
    }

    fn close(&self) {
        if self.end()
            && !self.0.health.is_lost()
            && let Err(failed) = self.0.lease.give_back(&self.0.store)
        {
            tracing::warn!(
                "tier {}: its lock in the store cannot be released ({}); the lock expires within a minute",
                self.0.name,
                failed.why
            );
        }
    }
}
