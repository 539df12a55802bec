//! C functions on the blobs of a bucket: put, get, partial changes, removal, renaming, metadata, score,
//! tags.

use crate::bucket::Bucket;
use crate::call::{Failed, bytes, call, call_int, give, handle, room, text};
use std::ffi::{c_char, c_int, c_void};
use terrace_store::Expect;

/// The metadata of a blob.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Stat {
    /// Bytes.
    pub size: u64,
    /// The program's own word, set by terrace_put_meta.
    pub meta: u64,
    /// How much it is worth to keep the blob in memory, 0 to 1.
    pub score: f32,
}

/// Puts a blob and replaces an earlier one. -ENOSPC: the store is full; -ENOMEM: no memory for a new name.
/// The earlier blob then stays.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_put(
    bucket: *const Bucket,
    key: *const c_void,
    key_len: usize,
    data: *const c_void,
    len: usize,
) -> c_int {
    // SAFETY: the head of terrace.h.
    call_int(|| unsafe { Ok(handle(bucket)?.0.put(bytes(key, key_len)?, bytes(data, len)?)?) })
}

/// Like terrace_put, with a word of the program's. With `only_new`, -EEXIST if the blob exists.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_put_meta(
    bucket: *const Bucket,
    key: *const c_void,
    key_len: usize,
    data: *const c_void,
    len: usize,
    meta: u64,
    only_new: bool,
) -> c_int {
    let put = || {
        let expect = if only_new { Expect::Absent } else { Expect::Any };
        // SAFETY: the head of terrace.h.
        unsafe { Ok(handle(bucket)?.0.put_if(bytes(key, key_len)?, &[bytes(data, len)?], meta, expect)?) }
    };
    match call(|| put().map(i64::from)) {
        0 => -libc::EEXIST,
        1 => 0,
        errno => errno as c_int,
    }
}

/// Writes into a blob at `offset`. The blob is created if missing, and a gap reads as zeros. Returns the new
/// size.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_put_at(
    bucket: *const Bucket,
    key: *const c_void,
    key_len: usize,
    offset: u64,
    data: *const c_void,
    len: usize,
) -> i64 {
    // SAFETY: the head of terrace.h.
    call(|| unsafe { Ok(handle(bucket)?.0.put_at(bytes(key, key_len)?, offset, bytes(data, len)?)? as i64) })
}

/// Appends to a blob, which is created if missing. Returns the new size.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_append(
    bucket: *const Bucket,
    key: *const c_void,
    key_len: usize,
    data: *const c_void,
    len: usize,
) -> i64 {
    // SAFETY: the head of terrace.h.
    call(|| unsafe { Ok(handle(bucket)?.0.append(bytes(key, key_len)?, bytes(data, len)?)? as i64) })
}

/// Truncates a blob, or extends it with zeros. -ENOENT: it does not exist.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_truncate(
    bucket: *const Bucket,
    key: *const c_void,
    key_len: usize,
    size: u64,
) -> c_int {
    // SAFETY: the head of terrace.h.
    call_int(|| unsafe { found(handle(bucket)?.0.truncate(bytes(key, key_len)?, size)?) })
}

/// Copies the first `room_len` bytes of a blob into `to`. Returns the size of the blob. If that exceeds
/// `room_len`, repeat the call with more room. -ENOENT: it does not exist.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_get(
    bucket: *const Bucket,
    key: *const c_void,
    key_len: usize,
    to: *mut c_void,
    room_len: usize,
) -> i64 {
    // SAFETY: the head of terrace.h.
    call(|| unsafe {
        let got = handle(bucket)?.0.get_part(bytes(key, key_len)?, 0, room(to, room_len)?)?;
        got.map(|(_, stat)| stat.size as i64).ok_or(Failed::Missing)
    })
}

/// Copies bytes of a blob from `offset` into `to`. Returns the number of bytes, less than `room_len` only at
/// the blob's end. -ENOENT: it does not exist.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_get_at(
    bucket: *const Bucket,
    key: *const c_void,
    key_len: usize,
    offset: u64,
    to: *mut c_void,
    room_len: usize,
) -> i64 {
    // SAFETY: the head of terrace.h.
    call(|| unsafe {
        let got = handle(bucket)?.0.get_at(bytes(key, key_len)?, offset, room(to, room_len)?)?;
        got.map(|n| n as i64).ok_or(Failed::Missing)
    })
}

/// Gets the metadata of a blob. -ENOENT: it does not exist.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_blob_stat(
    bucket: *const Bucket,
    key: *const c_void,
    key_len: usize,
    stat: *mut Stat,
) -> c_int {
    // SAFETY: the head of terrace.h.
    call_int(|| unsafe {
        let found = handle(bucket)?.0.stat(bytes(key, key_len)?).ok_or(Failed::Missing)?;
        give(stat, Stat { size: found.size, meta: found.meta, score: found.score })
    })
}

/// Whether the blob exists: 1 or 0.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_contains(
    bucket: *const Bucket,
    key: *const c_void,
    key_len: usize,
) -> c_int {
    // SAFETY: the head of terrace.h.
    call(|| unsafe { Ok(i64::from(handle(bucket)?.0.contains(bytes(key, key_len)?))) }) as c_int
}

/// Removes a blob. -ENOENT: it does not exist.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_remove(
    bucket: *const Bucket,
    key: *const c_void,
    key_len: usize,
) -> c_int {
    // SAFETY: the head of terrace.h.
    call_int(|| unsafe { found(handle(bucket)?.0.remove(bytes(key, key_len)?)?) })
}

/// Renames a blob, replacing the blob of the new key. -ENOENT: it does not exist.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_rename(
    bucket: *const Bucket,
    from: *const c_void,
    from_len: usize,
    to: *const c_void,
    to_len: usize,
) -> c_int {
    // SAFETY: the head of terrace.h.
    call_int(|| unsafe { found(handle(bucket)?.0.rename(bytes(from, from_len)?, bytes(to, to_len)?)?) })
}

/// Sets how much it is worth to keep the blob in memory, 0 to 1. -ENOENT: it does not exist.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_set_score(
    bucket: *const Bucket,
    key: *const c_void,
    key_len: usize,
    score: f32,
) -> c_int {
    // SAFETY: the head of terrace.h.
    call_int(|| unsafe { found(handle(bucket)?.0.set_score(bytes(key, key_len)?, score)?) })
}

/// Adds a tag to a blob, or removes it (`on` false). 1: changed; 0: unchanged, or the blob does not exist.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_tag(
    bucket: *const Bucket,
    key: *const c_void,
    key_len: usize,
    tag: *const c_char,
    on: bool,
) -> c_int {
    // SAFETY: the head of terrace.h.
    call(|| unsafe {
        let (bucket, key, tag) = (&handle(bucket)?.0, bytes(key, key_len)?, text(tag)?);
        Ok(i64::from(if on { bucket.tag(key, tag)? } else { bucket.untag(key, tag)? }))
    }) as c_int
}

fn found(found: bool) -> Result<(), Failed> {
    found.then_some(()).ok_or(Failed::Missing)
}
