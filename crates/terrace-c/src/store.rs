//! Stores.

use crate::bucket::Bucket;
use crate::call::{Failed, call_int, give, give_handle, handle, text};
use std::ffi::{c_char, c_int};
use std::time::Duration;
use terrace_store::{StoreOptions, SyncPolicy};

/// An open store.
#[derive(Debug)]
pub struct Store(pub(crate) terrace_store::Store);

/// A thread syncs every sync_ms.
pub const TERRACE_SYNC_EVERY: c_int = 0;
/// Each change is durable when its call returns.
pub const TERRACE_SYNC_ALWAYS: c_int = 1;
/// At terrace_store_sync and at the end only.
pub const TERRACE_SYNC_NEVER: c_int = 2;

/// How a store is opened. terrace_options_default sets all fields.
#[repr(C)]
#[derive(Debug)]
pub struct Options {
    /// Name of the store in its directory; NULL: "store".
    pub name: *const c_char,
    /// Limit of all memory, bytes; at least 16 MiB.
    pub memory_bytes: u64,
    /// Maximum of the file of blobs, bytes; 0: what the file system has.
    pub capacity_bytes: u64,
    /// TERRACE_SYNC_EVERY, TERRACE_SYNC_ALWAYS or TERRACE_SYNC_NEVER.
    pub sync: c_int,
    /// Milliseconds between two syncs of TERRACE_SYNC_EVERY.
    pub sync_ms: u64,
}

/// Sets all fields: 1 GiB of memory, a sync every second.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_options_default(options: *mut Options) -> c_int {
    let defaults = StoreOptions::default();
    call_int(|| {
        let sync = TERRACE_SYNC_EVERY;
        let memory_bytes = defaults.memory_bytes;
        let all = Options { name: std::ptr::null(), memory_bytes, capacity_bytes: 0, sync, sync_ms: 1000 };
        // SAFETY: the head of terrace.h.
        unsafe { give(options, all) }
    })
}

/// # Safety
/// Null, or options whose name is null or a string.
unsafe fn options(of: *const Options) -> Result<StoreOptions, Failed> {
    let mut options = StoreOptions::default();
    // SAFETY: the caller's promise.
    let Some(given) = (unsafe { of.as_ref() }) else { return Ok(options) };
    if !given.name.is_null() {
        // SAFETY: the caller's promise.
        options.name = unsafe { text(given.name) }?.to_owned();
    }
    options.memory_bytes = given.memory_bytes;
    options.capacity_bytes = Some(given.capacity_bytes).filter(|bytes| *bytes > 0);
    options.sync = match given.sync {
        TERRACE_SYNC_EVERY if given.sync_ms > 0 => SyncPolicy::Every(Duration::from_millis(given.sync_ms)),
        TERRACE_SYNC_EVERY => return Err(Failed::Argument("sync_ms is 0; use TERRACE_SYNC_ALWAYS")),
        TERRACE_SYNC_ALWAYS => SyncPolicy::Always,
        TERRACE_SYNC_NEVER => SyncPolicy::Never,
        _ => return Err(Failed::Argument("sync is no TERRACE_SYNC_...")),
    };
    Ok(options)
}

/// Opens the store in a directory, which must exist, and makes it if there is none. options NULL: the defaults. -EBUSY: another program uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_store_open(
    dir: *const c_char,
    options: *const Options,
    store: *mut *mut Store,
) -> c_int {
    // SAFETY: the head of terrace.h.
    call_int(|| unsafe {
        let options = self::options(options)?;
        let opened = terrace_store::Store::open(text(dir)?, &options)?;
        give_handle(store, Store(opened))
    })
}

/// Makes everything durable and closes the store; the handle is gone then, in any case. Buckets of it answer -EBADF and are still to be closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_store_close(store: *mut Store) -> c_int {
    call_int(|| {
        if store.is_null() {
            return Err(Failed::Argument("a handle is NULL"));
        }
        // SAFETY: the head of terrace.h: made by `terrace_store_open`, and not closed before.
        let store = unsafe { Box::from_raw(store) };
        Ok(store.0.close()?)
    })
}

/// Makes all changes durable that were done before the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_store_sync(store: *const Store) -> c_int {
    // SAFETY: the head of terrace.h.
    call_int(|| unsafe { Ok(handle(store)?.0.sync()?) })
}

/// Waits until a store whose bytes fit in memory has read them: that begins when it is opened. At once where they do not fit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_store_wait_warm(store: *const Store) -> c_int {
    // SAFETY: the head of terrace.h.
    call_int(|| unsafe {
        handle(store)?.0.wait_warm();
        Ok(())
    })
}

/// Writes the record log anew, without its garbage. Happens by itself when most of it is garbage.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_store_checkpoint(store: *const Store) -> c_int {
    // SAFETY: the head of terrace.h.
    call_int(|| unsafe { Ok(handle(store)?.0.checkpoint()?) })
}

/// Removes the files of a store. -EBUSY: it is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_store_destroy(dir: *const c_char, name: *const c_char) -> c_int {
    // SAFETY: the head of terrace.h.
    call_int(|| unsafe { Ok(terrace_store::Store::destroy(text(dir)?, text(name)?)?) })
}

/// The bucket of this name, made if there is none; to be closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_bucket_open(
    store: *const Store,
    name: *const c_char,
    bucket: *mut *mut Bucket,
) -> c_int {
    // SAFETY: the head of terrace.h.
    call_int(|| unsafe {
        let opened = handle(store)?.0.bucket(text(name)?)?;
        give_handle(bucket, Bucket(opened))
    })
}

/// The bucket of this name, to be closed. -ENOENT: there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_bucket_find(
    store: *const Store,
    name: *const c_char,
    bucket: *mut *mut Bucket,
) -> c_int {
    // SAFETY: the head of terrace.h.
    call_int(|| unsafe {
        let found = handle(store)?.0.find_bucket(text(name)?).ok_or(Failed::Missing)?;
        give_handle(bucket, Bucket(found))
    })
}

/// Renames a bucket. -ENOENT: there is none; -EEXIST: there is one of the new name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_bucket_rename(
    store: *const Store,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    // SAFETY: the head of terrace.h.
    call_int(|| unsafe {
        let renamed = handle(store)?.0.rename_bucket(text(from)?, text(to)?)?;
        renamed.then_some(()).ok_or(Failed::Missing)
    })
}

/// Removes a bucket with its blobs. -ENOENT: there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrace_bucket_remove(store: *const Store, name: *const c_char) -> c_int {
    // SAFETY: the head of terrace.h.
    call_int(|| unsafe {
        let removed = handle(store)?.0.remove_bucket(text(name)?)?;
        removed.then_some(()).ok_or(Failed::Missing)
    })
}
