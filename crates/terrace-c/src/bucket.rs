//! Buckets.

use crate::call::{Failed, bytes, call, call_int, give, handle, text};
use std::ffi::{c_char, c_int, c_void};

/// A bucket of an open store.
#[derive(Debug)]
pub struct Bucket(pub(crate) terrace_store::Bucket);

/// Is given a key, which is valid during the call only. Anything but 0 ends the walk.
pub type KeyFn = Option<unsafe extern "C" fn(key: *const c_void, key_len: usize, user: *mut c_void) -> c_int>;

/// Closes the handle; the bucket stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_bucket_close(bucket: *mut Bucket) {
    if !bucket.is_null() {
        // SAFETY: the head of terrace.h: made by the library, and not closed before.
        let _ = call_int(|| unsafe {
            drop(Box::from_raw(bucket));
            Ok(())
        });
    }
}

/// Blobs of the bucket.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_bucket_len(bucket: *const Bucket) -> i64 {
    // SAFETY: the head of terrace.h.
    call(|| unsafe { Ok(handle(bucket)?.0.len() as i64) })
}

/// Bytes of its blobs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_bucket_bytes(bucket: *const Bucket) -> i64 {
    // SAFETY: the head of terrace.h.
    call(|| unsafe { Ok(handle(bucket)?.0.bytes() as i64) })
}

/// Removes all its blobs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_bucket_clear(bucket: *const Bucket) -> c_int {
    // SAFETY: the head of terrace.h.
    call_int(|| unsafe { Ok(handle(bucket)?.0.clear()?) })
}

/// Makes an empty bucket scratch: its blobs are gone when the store is opened again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_bucket_make_scratch(bucket: *const Bucket) -> c_int {
    // SAFETY: the head of terrace.h.
    call_int(|| unsafe { Ok(handle(bucket)?.0.make_scratch()?) })
}

/// Has each blob written to a file of the directory `dir`, too: it holds the blobs as they were at the last sync, and is the bucket's alone. It is made if there
/// is none, and must be empty.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_bucket_persist(bucket: *const Bucket, dir: *const c_char) -> c_int {
    // SAFETY: the head of terrace.h.
    call_int(|| unsafe { Ok(handle(bucket)?.0.persist(text(dir)?)?) })
}

/// Calls `each` with the keys that begin with `prefix`, sorted; how many there were.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_list(
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

/// Calls `each` with about `count` keys from `*cursor` on (0: the start) in an order that stays, and sets `*cursor` to where the next call goes
/// on (0: the end). A key that is there all the while comes at least once. How many there were.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_scan(
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
/// `each` may be called with `user`.
unsafe fn tell(keys: &[Box<[u8]>], each: KeyFn, user: *mut c_void) -> Result<i64, Failed> {
    let Some(each) = each else { return Err(Failed::Argument("the function for keys is NULL")) };
    for (i, key) in keys.iter().enumerate() {
        // SAFETY: the caller's promise.
        if unsafe { each(key.as_ptr().cast(), key.len(), user) } != 0 {
            return Ok(i as i64 + 1);
        }
    }
    Ok(keys.len() as i64)
}
