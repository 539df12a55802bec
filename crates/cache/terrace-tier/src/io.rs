//! A target in use: its medium, its slot table, its writer and its flushes.

use crate::config::DeviceConfig;
use crate::format::{Filling, Geometry, TierId};
use crate::medium::Medium;
use crate::superblock::{self, Found, Superblock, UndestagedMark};
use crate::table::TargetTable;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use terrace_io::AlignedBuf;
use terrace_policy::device::cost::ReadCost;
use terrace_shm::{DeviceSlot, DeviceTable, PAGE_SIZE};
use terrace_sync::{Condvar, Mutex, MutexGuard, RwLock, Wakeup};

/// Assumed write rate until the first measurement, bytes per second.
const WRITE_RATE: f64 = 500e6;

/// A target in use.
#[derive(Debug)]
pub struct DeviceIo {
    number: usize,
    name: String,
    medium: Arc<dyn Medium>,
    /// Replaced at each change of the target's size.
    table: RwLock<Arc<TargetTable>>,
    first_region: u32,
    id: TierId,
    writer: Mutex<Writer>,
    write_cost: Mutex<ReadCost>,
    /// Bytes under write.
    queued: AtomicU64,
    /// The target may have pages that the source lacks.
    may_have_undestaged: AtomicBool,
    flushes: Mutex<Flushes>,
    flushed: Condvar,
    wakeup: Wakeup,
    ending: AtomicBool,
    /// Failed reads since the last successful one.
    failures: AtomicU32,
}

/// Numbers of the last flush begun and the last one done.
#[derive(Debug, Default)]
struct Flushes {
    begun: u64,
    ended: u64,
    under_way: bool,
    /// A flush has failed. The kernel reports it once: a later flush may succeed although data are lost.
    failed: bool,
}

/// Position of the log. The state of the engine has the regions.
#[derive(Debug)]
pub struct Writer {
    superblock: Superblock,
    /// False: `superblock` is a placeholder, not read from the target.
    is_known: bool,
    filling: Filling,
    /// Pages of its batches so far (0: none in this run).
    pages: u32,
    buf: AlignedBuf,
    has_ended: bool,
}

impl Writer {
    /// Reads the superblock again, for a target that failed at the start of its use.
    ///
    /// # Errors
    /// As [`DeviceIo::begin`].
    pub fn look_again(&mut self, device: &DeviceIo) -> io::Result<()> {
        if !self.is_known {
            self.superblock = find(&*device.medium, device.id, self.superblock.geometry)?;
            self.is_known = true;
        }
        Ok(())
    }

    /// The superblock, with the division of the target.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }
    /// The superblock, to be changed and written.
    pub fn superblock_mut(&mut self) -> &mut Superblock {
        &mut self.superblock
    }
    /// The region filled last.
    pub fn filling(&self) -> Filling {
        self.filling
    }
    /// Sets the first filling of a run, which the scan found.
    pub fn begin_with(&mut self, filling: Filling) {
        self.filling = filling;
    }
    /// Begins the next region. The first one of a run has the filling of the scan.
    pub fn open_region(&mut self) {
        if self.pages > 0 {
            self.filling = self.filling.next(self.pages);
        }
    }
    /// Notes that the batches of the region fill its first `pages` pages.
    pub fn note_filled(&mut self, pages: u32) {
        self.pages = pages;
    }
    /// Pages of the region's batches so far.
    pub fn pages(&self) -> u32 {
        self.pages
    }
    /// Lends the memory of a batch.
    pub fn take_buf(&mut self) -> AlignedBuf {
        std::mem::take(&mut self.buf)
    }
    /// Takes that memory back.
    pub fn put_buf(&mut self, buf: AlignedBuf) {
        self.buf = buf;
    }
    /// Ends the writes: the target was removed, and its number may be reused.
    pub fn end(&mut self) {
        self.has_ended = true;
    }
    /// Whether the target was removed.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

fn find(medium: &dyn Medium, id: TierId, geometry: Geometry) -> io::Result<Superblock> {
    let Found::Ours(found) = superblock::find(medium)? else {
        return Err(invalid("the tier's superblock is gone"));
    };
    if found.id != id || found.geometry != geometry {
        return Err(invalid("the superblock is another tier's"));
    }
    Ok(found)
}

impl DeviceIo {
    /// Begins to use a target. Only its superblock is read here.
    ///
    /// # Errors
    /// The device's; `InvalidData` if the superblock does not match `config`.
    pub fn begin(
        config: &DeviceConfig,
        medium: Arc<dyn Medium>,
        table: Arc<TargetTable>,
    ) -> io::Result<DeviceIo> {
        let geometry = Geometry::new(config.region_bytes as u32, config.regions);
        let geometry = geometry.ok_or_else(|| invalid("the tier's size does not fit its regions"))?;
        let id = TierId(config.tier_id);
        let superblock = match find(&*medium, id, geometry) {
            // The target's thread tries again.
            Err(_) if medium.trouble().is_some() => None,
            found => Some(found?),
        };
        // A placeholder: the scan finds the first filling.
        let filling = Filling { lap: 1, before: None };
        let is_known = superblock.is_some();
        let superblock = superblock.unwrap_or_else(|| Superblock::unknown(id, geometry));
        let buf = AlignedBuf::default();
        let writer = Writer { superblock, is_known, filling, pages: 0, buf, has_ended: false };
        let may_have_undestaged = !is_known || writer.superblock.undestaged == UndestagedMark::Perhaps;
        let write_cost = config.write_ns.map_or_else(ReadCost::default, ReadCost::measured);
        Ok(DeviceIo {
            number: config.number,
            name: config.name.clone(),
            medium,
            table: RwLock::new(table),
            first_region: config.first_region,
            id,
            writer: Mutex::new(writer),
            write_cost: Mutex::new(write_cost),
            queued: AtomicU64::new(0),
            may_have_undestaged: AtomicBool::new(may_have_undestaged),
            flushes: Mutex::default(),
            flushed: Condvar::new(),
            wakeup: Wakeup::default(),
            ending: AtomicBool::new(false),
            failures: AtomicU32::new(0),
        })
    }

    /// Number of the target, unique among those in use.
    pub fn number(&self) -> usize {
        self.number
    }
    /// Name in statistics and messages.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// The bytes of the target.
    pub fn medium(&self) -> &Arc<dyn Medium> {
        &self.medium
    }
    /// Identity of the tier on the target.
    pub fn id(&self) -> TierId {
        self.id
    }
    /// Locks the writer, for an append or the reclaim of a region. No thread holds the writers of two targets.
    pub fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock()
    }
    /// Wakes the target's thread.
    pub fn wake(&self) {
        self.wakeup.signal();
    }
    /// Waits until [`DeviceIo::wake`], at most for `limit`.
    pub fn wait(&self, limit: Duration) {
        self.wakeup.wait(limit);
    }
    /// Notes a read of the target that succeeded.
    pub fn note_good_read(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }
    /// Notes a failed read. Returns the number of failed reads since the last good one.
    pub fn note_failed_read(&self) -> u32 {
        self.failures.fetch_add(1, Ordering::Relaxed) + 1
    }
    /// The slot table for readers. It covers all slots that entries name at the time of the call.
    pub fn table(&self) -> Arc<DeviceTable> {
        self.table.read().table().clone()
    }
    /// The slot table with its memory files.
    pub fn table_files(&self) -> Arc<TargetTable> {
        self.table.read().clone()
    }
    /// Replaces the table after a resize. Called under the state lock, by the holder of the writer.
    pub fn set_table(&self, table: Arc<TargetTable>) {
        *self.table.write() = table;
    }
    pub(crate) fn has(&self, slot: DeviceSlot) -> bool {
        self.table.read().table().index(slot).is_some()
    }
    /// Converts a slot of this target to its number in index entries.
    pub fn named(&self, slot: DeviceSlot) -> DeviceSlot {
        DeviceSlot::new(self.first_region + slot.region(), slot.page())
    }
    /// Whether the target may have pages that the source lacks.
    pub fn may_have_undestaged(&self) -> bool {
        self.may_have_undestaged.load(Ordering::Acquire)
    }
    /// Notes whether the target may have pages that the source lacks.
    pub fn set_may_have_undestaged(&self, may_have_undestaged: bool) {
        self.may_have_undestaged.store(may_have_undestaged, Ordering::Release);
    }
    /// Makes all earlier writes durable. Concurrent callers share the next flush (group commit).
    ///
    /// # Errors
    /// The medium's.
    pub fn flush(&self) -> io::Result<()> {
        let mut flushes = self.flushes.lock();
        let needed = flushes.begun + 1;
        loop {
            if flushes.failed {
                return Err(io::Error::other("an earlier flush of the tier failed"));
            }
            if flushes.ended >= needed {
                return Ok(());
            }
            if flushes.under_way {
                self.flushed.wait(&mut flushes);
                continue;
            }
            (flushes.under_way, flushes.begun) = (true, flushes.begun + 1);
            let this = flushes.begun;
            drop(flushes);
            let done = self.medium.flush();
            flushes = self.flushes.lock();
            flushes.under_way = false;
            match &done {
                Ok(()) => flushes.ended = this,
                Err(_) => flushes.failed = true,
            }
            self.flushed.notify_all();
            if this >= needed || done.is_err() {
                return done;
            }
        }
    }
    /// Ends the target's thread.
    pub fn end(&self) {
        self.ending.store(true, Ordering::Release);
        self.wake();
    }
    /// Whether the target's thread is to end.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    /// Runs a write and counts its bytes as queued meanwhile.
    pub fn queue<T>(&self, bytes: u64, write: impl FnOnce() -> T) -> T {
        self.queued.fetch_add(bytes, Ordering::Relaxed);
        let done = write();
        self.queued.fetch_sub(bytes, Ordering::Relaxed);
        done
    }
    /// Notes a write of `pages` pages that took `ns` nanoseconds.
    pub fn note_write(&self, pages: u64, ns: u64) {
        self.write_cost.lock().note(pages, ns, true);
    }
    /// Queued bytes, and the write rate in bytes per second.
    pub fn speed(&self) -> (u64, f64) {
        let page_ns = self.write_cost.lock().page_ns();
        let rate = page_ns.map_or(WRITE_RATE, |ns| PAGE_SIZE as f64 * 1e9 / ns.max(1) as f64);
        (self.queued.load(Ordering::Relaxed), rate)
    }
}
