//! C functions on an open bucket: its counts, its traits `scratch` and `persist`, and lists and scans of its
//! keys. `store.rs` has the functions that open and remove buckets.

use crate::call::{Failed, bytes, call, call_int, give, handle, text};
use std::ffi::{c_char, c_int, c_void};

/// A bucket of an open store.
#[derive(Debug)]
pub(crate) struct Bucket(pub(crate) terrace_store::Bucket);

/// Called with a key, which is valid only during the call. A result other than 0 ends the iteration.
pub(crate) type KeyFn =
    Option<unsafe extern "C" fn(key: *const c_void, key_len: usize, user: *mut c_void) -> c_int>;

/// Closes the handle; the bucket stays.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_bucket_close(bucket: *mut Bucket) {
    if !bucket.is_null() {
        // SAFETY: the head of terrace.h: created by the library, and not closed before.
        let _ = call_int(|| unsafe {
            drop(Box::from_raw(bucket));
            Ok(())
        });
    }
}

/// Number of blobs of a bucket.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_bucket_len(bucket: *const Bucket) -> i64 {
    // SAFETY: the head of terrace.h.
    call(|| unsafe { Ok(handle(bucket)?.0.len() as i64) })
}

/// Bytes of the blobs of a bucket.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_bucket_bytes(bucket: *const Bucket) -> i64 {
    // SAFETY: the head of terrace.h.
    call(|| unsafe { Ok(handle(bucket)?.0.bytes() as i64) })
}

/// Removes all blobs of a bucket.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_bucket_clear(bucket: *const Bucket) -> c_int {
    // SAFETY: the head of terrace.h.
    call_int(|| unsafe { Ok(handle(bucket)?.0.clear()?) })
}

/// Makes an empty bucket scratch: its blobs are gone when the store is opened again.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_bucket_make_scratch(bucket: *const Bucket) -> c_int {
    // SAFETY: the head of terrace.h.
    call_int(|| unsafe { Ok(handle(bucket)?.0.make_scratch()?) })
}

/// From now on writes each blob also to its own file in `dir`, as of the last sync. The directory is created
/// if missing, must be empty, and belongs to the bucket.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_bucket_persist(bucket: *const Bucket, dir: *const c_char) -> c_int {
    // SAFETY: the head of terrace.h.
    call_int(|| unsafe { Ok(handle(bucket)?.0.persist(text(dir)?)?) })
}

/// Calls `each` with the keys that begin with `prefix`, sorted. Returns the number of keys.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_list(
    bucket: *const Bucket,
    prefix: *const c_void,
    prefix_len: usize,
    each: KeyFn,
    user: *mut c_void,
) -> i64 {
    // SAFETY: the head of terrace.h.
    call(|| unsafe {
        let keys = handle(bucket)?.0.list(bytes(prefix, prefix_len)?);
        tell(&keys, each, user)
    })
}

/// Calls `each` with about `count` keys from `*cursor` (0: the start) in a fixed order, and sets `*cursor`
/// for the next call (0: the end). A key present during the whole scan comes at least once. Returns the
/// number of keys.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_scan(
    bucket: *const Bucket,
    cursor: *mut u64,
    count: usize,
    each: KeyFn,
    user: *mut c_void,
) -> i64 {
    // SAFETY: the head of terrace.h.
    call(|| unsafe {
        let from = *handle(cursor)?;
        let (keys, next) = handle(bucket)?.0.scan(from, count);
        give(cursor, next)?;
        tell(&keys, each, user)
    })
}

/// # Safety
/// The caller guarantees that `each` may be called with `user`.
unsafe fn tell(keys: &[Box<[u8]>], each: KeyFn, user: *mut c_void) -> Result<i64, Failed> {
    let Some(each) = each else { return Err(Failed::Argument("the function for keys is NULL")) };
    for (i, key) in keys.iter().enumerate() {
        // SAFETY: the caller guarantees that `each` may be called with `user`.
        if unsafe { each(key.as_ptr().cast(), key.len(), user) } != 0 {
            return Ok(i as i64 + 1);
        }
    }
    Ok(keys.len() as i64)
}
