//! Reads pages from the source and from targets into frames.

use crate::context::Context;
use crate::file::object::Object;
use crate::file::source::DataFd;
use crate::tier::trouble;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use terrace_io::{IoVec, ReadOp};
use terrace_shm::device_table::check_of_page;
use terrace_shm::protocol::writes::source_read;
use terrace_shm::{DeviceSlot, DeviceTable, PAGE_SIZE};
use terrace_tier::DeviceIo;
use terrace_tier::ReadPiece;

const PAGE: u64 = PAGE_SIZE as u64;

/// Consecutive pages of a file, with claimed frames.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub(crate) object: &'a Object,
    pub first: u64,
    pub(crate) frames: &'a [u32],
}

/// Reads consecutive pages from the source into frames; bytes beyond the end of the file are zero.
pub(crate) fn read_frames(cx: &Context, o: &Object, first: u64, frames: &[u32]) -> io::Result<()> {
    let fd = o.source().reader()?;
    // SAFETY: the frames are claimed: no other thread reads or writes them.
    let n = unsafe { cx.io.read(fd.raw(), first * PAGE, &vectors(cx, frames))? };
    zero_beyond(cx, frames, n);
    Ok(())
}

/// [`read_frames`] from the kernel's page cache alone, without I/O, by the object's own descriptor. False: the page
/// cache lacks a page, the file ends before, or the descriptor is an O_PATH one, as with a mount.
pub(crate) fn read_cached(cx: &Context, o: &Object, first: u64, frames: &[u32]) -> bool {
    // SAFETY: no other thread writes the frames, and readers of an old entry discard their copies.
    let is_read =
        unsafe { terrace_io::read_cached(o.source().as_path(), first * PAGE, &vectors(cx, frames)) };
    source_read();
    is_read
}

/// [`read_frames`] of several pieces at once, with a result for each.
pub(crate) fn read_pieces(cx: &Context, pieces: &[Piece<'_>]) -> Vec<io::Result<()>> {
    if let [one] = pieces {
        return vec![read_frames(cx, one.object, one.first, one.frames)];
    }
    let readers: Vec<_> = pieces.iter().map(|piece| piece.object.source().reader()).collect();
    let op = |(piece, fd): (&Piece<'_>, &io::Result<Arc<DataFd>>)| {
        let fd = fd.as_ref().ok()?;
        let bufs = vectors(cx, piece.frames);
        Some(ReadOp { fd: fd.raw(), offset: piece.first * PAGE, bufs, result: Ok(0) })
    };
    let mut ops: Vec<ReadOp> = pieces.iter().zip(&readers).filter_map(op).collect();
    // SAFETY: as in `read_frames`; the descriptors stay open until the end.
    unsafe { cx.io.read_batch(&mut ops) };
    let mut ops = ops.into_iter();
    let end = |(piece, reader): (&Piece<'_>, io::Result<_>)| {
        reader?;
        let n = ops.next().expect("each reader has its operation").result?;
        zero_beyond(cx, piece.frames, n);
        Ok(())
    };
    pieces.iter().zip(readers).map(end).collect()
}

#[derive(Debug, Default)]
pub(crate) struct OfSlots {
    /// Whether each page matches its checksum.
    pub(crate) arrived: Vec<bool>,
    /// Target, number of pages, and time in ns.
    pub(crate) costs: Vec<(usize, u64, u64)>,
}

/// Reads pages from their slots into frames, from all targets at once.
pub(crate) fn read_slots(cx: &Context, pages: &[(DeviceSlot, u32)]) -> OfSlots {
    let mut done = OfSlots { arrived: vec![false; pages.len()], costs: Vec::new() };
    let its = |device: Arc<DeviceIo>| {
        let table = device.table();
        let is_its = |(_, (slot, _)): &(usize, &(DeviceSlot, u32))| table.index(*slot).is_some();
        let its: Vec<usize> = pages.iter().enumerate().filter(is_its).map(|(i, _)| i).collect();
        (!its.is_empty()).then(|| OfTarget::new(cx, device, table, pages, its))
    };
    let mut parts: Vec<OfTarget> = cx.devices.all().into_iter().filter_map(its).collect();
    let began = cx.clock.now_ns();
    // SAFETY: the frames are claimed: no other thread reads or writes them.
    unsafe { read_parts(cx, &mut parts) };
    let took = cx.clock.now_ns().saturating_sub(began);
    for part in &parts {
        trouble::note_reads(cx, &part.device, &part.reads);
        for (run, read) in part.runs.iter().zip(&part.reads) {
            for i in run.iter().filter(|_| read.result.is_ok()) {
                let (slot, frame) = pages[*i];
                done.arrived[*i] = is_intact(cx, &part.table, slot, frame);
            }
        }
        done.costs.push((part.device.number(), part.runs.iter().map(Vec::len).sum::<usize>() as u64, took));
    }
    done
}

/// Pages of a read that lie on one target.
struct OfTarget {
    device: Arc<DeviceIo>,
    table: Arc<DeviceTable>,
    /// Indexes of pages in adjacent slots.
    runs: Vec<Vec<usize>>,
    reads: Vec<ReadPiece>,
}

impl OfTarget {
    fn new(
        cx: &Context,
        device: Arc<DeviceIo>,
        table: Arc<DeviceTable>,
        pages: &[(DeviceSlot, u32)],
        its: Vec<usize>,
    ) -> OfTarget {
        let follows = |a: &usize, b: &usize| {
            let (a, b) = (pages[*a].0, pages[*b].0);
            a.region() == b.region() && a.page() + 1 == b.page()
        };
        let runs: Vec<Vec<usize>> = its.chunk_by(follows).map(<[usize]>::to_vec).collect();
        let read = |run: &Vec<usize>| {
            let frames: Vec<u32> = run.iter().map(|i| pages[*i].1).collect();
            ReadPiece::new(table.offset(pages[run[0]].0).unwrap_or(u64::MAX), vectors(cx, &frames))
        };
        let reads = runs.iter().map(read).collect();
        OfTarget { device, table, runs, reads }
    }
}

/// Does the reads of all targets. Those of files and block devices are in flight together.
///
/// # Safety
/// As [`Medium::read_vectored`](terrace_tier::Medium::read_vectored), for each piece.
unsafe fn read_parts(cx: &Context, parts: &mut [OfTarget]) {
    if let [part] = parts {
        // SAFETY: the caller's promise.
        return unsafe { part.device.medium().read_batch(&mut part.reads) };
    }
    let (mut files, others): (Vec<&mut OfTarget>, Vec<&mut OfTarget>) =
        parts.iter_mut().partition(|part| part.device.medium().file().is_some());
    let (mut ops, media): (Vec<ReadOp>, Vec<_>) =
        (Vec::new(), files.iter().map(|part| part.device.medium().clone()).collect());
    let mut limits = Vec::new();
    for (part, medium) in files.iter_mut().zip(&media) {
        let Some((fd, limit)) = medium.file() else { continue };
        limits.extend(part.reads.iter().map(|_| limit));
        let op = |read: &mut ReadPiece| ReadOp {
            fd,
            offset: read.at,
            bufs: std::mem::take(&mut read.bufs),
            result: Err(io::ErrorKind::WouldBlock.into()),
        };
        ops.extend(part.reads.iter_mut().map(op));
    }
    if !ops.is_empty() {
        // SAFETY: the caller's promise.
        unsafe { cx.io.read_batch_within(&mut ops, &limits) };
    }
    let reads = files.into_iter().flat_map(|part| &mut part.reads);
    for (read, op) in reads.zip(ops) {
        let want: usize = op.bufs.iter().map(|buf| buf.len).sum();
        read.result = op.result.and_then(|n| match n == want {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        });
    }
    for part in others {
        // SAFETY: the caller's promise.
        unsafe { part.device.medium().read_batch(&mut part.reads) };
    }
}

/// Whether a claimed frame holds the content recorded for the slot.
fn is_intact(cx: &Context, table: &DeviceTable, slot: DeviceSlot, frame: u32) -> bool {
    // SAFETY: the frame is claimed by this thread; in bounds of the frame.
    let content = unsafe { std::slice::from_raw_parts(cx.handles.segment.frame(frame), PAGE_SIZE) };
    let check = check_of_page(content);
    table.check(slot).is_some_and(|known| known.load(Ordering::Relaxed) == check)
}

/// The memory of frames; adjacent frames form one piece.
fn vectors(cx: &Context, frames: &[u32]) -> Vec<IoVec> {
    let mut bufs: Vec<IoVec> = Vec::new();
    for &f in frames {
        let ptr = cx.handles.segment.frame(f);
        match bufs.last_mut() {
            Some(b) if b.ptr.wrapping_add(b.len) == ptr => b.len += PAGE_SIZE,
            _ => bufs.push(IoVec { ptr, len: PAGE_SIZE }),
        }
    }
    bufs
}

/// Zeroes claimed frames beyond their first `n` bytes.
fn zero_beyond(cx: &Context, frames: &[u32], n: usize) {
    for (i, &f) in frames.iter().enumerate() {
        let have = n.saturating_sub(i * PAGE_SIZE).min(PAGE_SIZE);
        // SAFETY: the frames are claimed: no other thread reads or writes them; in bounds of the frame.
        unsafe { cx.handles.segment.frame(f).add(have).write_bytes(0, PAGE_SIZE - have) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Engine, EngineConfig, SegmentHandles, SystemClock};
    use std::os::fd::AsRawFd;
    use terrace_io::testing::{Call, HookIo, NullIo};
    use terrace_sync::Mutex;

    #[test]
    fn write_reads_both_its_ends_at_once() {
        let config = EngineConfig { memory_bytes: 16 << 20, ..EngineConfig::default() };
        let handles = Arc::new(SegmentHandles::create(&config).unwrap());
        // Number of reads in each batch.
        let reads = Arc::new(Mutex::new(Vec::new()));
        let noted = reads.clone();
        let device = HookIo::new(NullIo, move |call| {
            if let Call::Read(at_once) = call {
                noted.lock().push(at_once);
            }
            Ok(())
        });
        let engine = Engine::start(config, handles, Arc::new(SystemClock), Arc::new(device)).unwrap();
        let file = tempfile::tempfile().unwrap();
        let o = engine.object(7, file.as_raw_fd(), 16 * PAGE).unwrap();
        engine.write(&o, 100, &[1; 5 * PAGE_SIZE]).unwrap();
        engine.write(&o, 8 * PAGE, &[1; PAGE_SIZE + 1]).unwrap();
        assert_eq!(*reads.lock(), [2, 1], "first and last page; then a last page alone");
        assert_eq!(engine.check(), Vec::<String>::new());
    }
}
