//! Pages from the source into frames.

use crate::context::Context;
use crate::file::object::Object;
use crate::io::IoVec;
use std::io;
use terrace_shm::PAGE_SIZE;

const PAGE: u64 = PAGE_SIZE as u64;

/// Reads consecutive pages from the source into frames; what lies beyond the end of the file is zero.
pub(crate) fn read_frames(cx: &Context, o: &Object, first: u64, frames: &[u32]) -> io::Result<()> {
    let seg = &cx.handles.segment;
    let mut bufs: Vec<IoVec> = Vec::new();
    for &f in frames {
        let ptr = seg.frame(f);
        match bufs.last_mut() {
            Some(b) if b.ptr.wrapping_add(b.len) == ptr => b.len += PAGE_SIZE,
            _ => bufs.push(IoVec { ptr, len: PAGE_SIZE }),
        }
    }
    let fd = o.source().reader()?;
    // SAFETY: the frames are claimed: nobody else reads or writes them.
    let n = unsafe { cx.io.read(fd.raw(), first * PAGE, &bufs)? };
    for (i, &f) in frames.iter().enumerate() {
        let have = n.saturating_sub(i * PAGE_SIZE).min(PAGE_SIZE);
        // SAFETY: as above; in bounds of the frame.
        unsafe { seg.frame(f).add(have).write_bytes(0, PAGE_SIZE - have) };
    }
    Ok(())
}
