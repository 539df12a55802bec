//! Helpers of the store's tests: options, directories, and content of blobs.

use std::path::Path;
use terrace_store::{Bucket, Segment, Store, StoreOptions, SyncPolicy};

/// Options of a small store that syncs only on request.
pub(crate) fn small() -> StoreOptions {
    let mut options = StoreOptions {
        memory_bytes: 16 << 20,
        sync: SyncPolicy::Never,
        warm: false,
        ..StoreOptions::default()
    };
    options.engine.memory_max_bytes = Some(64 << 20);
    options.engine.huge_pages = false;
    options
}

/// A new directory below the build's directory for tests.
pub(crate) fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

pub(crate) fn open(dir: &Path) -> Store {
    Store::open(dir, &small()).unwrap()
}

pub(crate) fn open_over(dir: &Path, segment: &Segment) -> Store {
    Store::open_over(dir, &small(), segment).unwrap()
}

/// Content of a blob, if it exists.
pub(crate) fn get(bucket: &Bucket, key: &str) -> Option<Vec<u8>> {
    bucket.get(key.as_bytes()).unwrap()
}

/// Bytes that depend on the seed.
pub(crate) fn content(seed: u64, len: usize) -> Vec<u8> {
    terrace_testkit::rng::Rng::new(seed).bytes(len)
}

pub(crate) fn is_one_line(error: &terrace_store::Error) -> bool {
    let text = error.to_string();
    !text.is_empty() && !text.contains('\n')
}
