//! Compressed pages come back to DRAM.

use crate::context::Context;
use crate::file::object::Object;
use crate::path::decompress::CompressedReader;
use std::sync::atomic::Ordering;

/// Promotes pages, each under a lock of its own: a decompression each.
pub(crate) fn promote_pages<'a>(cx: &Context, pages: impl IntoIterator<Item = (&'a Object, u64)>) {
    for (o, page) in pages {
        cx.state.lock().promote_page(o, page);
    }
}

/// After a read: counts what came from compressed pages, and promotes what has been read there often enough.
pub(crate) fn finish_read(cx: &Context, o: &Object, reader: CompressedReader) {
    if reader.served == 0 {
        return;
    }
    cx.counters.compressed_hits.fetch_add(reader.served, Ordering::Relaxed);
    promote_pages(cx, reader.worthy.iter().map(|&page| (o, page)));
}
