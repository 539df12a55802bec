//! Compresses pages that leave DRAM, on the reclaim thread, without a lock.

use crate::clock::thread_cpu_ns;
use crate::context::Context;
use crate::path::decompress::{self, CompressedReader};
use crate::state::compressed::CompressCandidate;
use terrace_shm::PAGE_SIZE;
use terrace_shm::codec::Page;
use terrace_shm::compress::Compressor;

/// Compresses pages that leave DRAM, and frees their frames. Returns the frames freed.
pub(crate) fn compress(cx: &Context, leaving: &[CompressCandidate], compressor: &mut Compressor) -> usize {
    if leaving.is_empty() {
        return 0;
    }
    let mut freed = 0;
    let mut page: Page = [0; PAGE_SIZE];
    // Processor time decides whether compression pays: sleeps and waits do not count.
    let mut reader = CompressedReader::new(&cx.handles);
    let began = thread_cpu_ns();
    let mut unpacking = None;
    for l in leaving {
        // SAFETY: in bounds. If a writer changes the page during the copy, its entry changes: `finish_store`
        // refuses the result.
        unsafe {
            let frame = cx.handles.segment.frame(l.frame);
            std::ptr::copy_nonoverlapping(frame, page.as_mut_ptr(), PAGE_SIZE);
        }
        let coded = match l.beyond_lz4 {
            true => compressor.compress_beyond_lz4(&page),
            false => compressor.compress(&page),
        };
        // One page of each batch is decompressed to measure the cost.
        if unpacking.is_none()
            && let Ok(coded) = coded
        {
            let before = thread_cpu_ns();
            let decoded = coded.decode(&mut page, &mut reader);
            unpacking = decoded.then(|| thread_cpu_ns().saturating_sub(before));
        }
        freed += usize::from(cx.state.lock().finish_store(l, coded));
    }
    let spent = thread_cpu_ns().saturating_sub(began);
    if let Some(compressed) = &mut cx.state.lock().compressed {
        compressed.note_work(leaving.len(), spent.saturating_sub(unpacking.unwrap_or(0)), unpacking);
    }
    freed
}

/// Creates the reclaim thread's compressor, if there is a compressed tier.
pub(crate) fn compressor(cx: &Context) -> Option<Compressor> {
    let mode = cx.config.compressed.codec?;
    // Before the first page needs the decoder, and before the cost is measured.
    decompress::prepare_thread();
    let mut state = cx.state.lock();
    let compressed = state.compressed.as_mut()?;
    match Compressor::new(mode, cx.config.compressed.refuse_percent) {
        Ok(compressor) => {
            compressed.compressor_bytes = compressor.bytes();
            Some(compressor)
        }
        Err(e) => {
            tracing::error!("the compressed tier cannot start ({e}); terrace serves without it");
            None
        }
    }
}
