//! C functions on a store: options, open, close, sync, log compaction, removal. Also those that open, rename
//! and remove buckets.

use crate::bucket::Bucket;
use crate::call::{Failed, call_int, give, give_handle, handle, text};
use std::ffi::{c_char, c_int};
use std::time::Duration;
use terrace_store::{StoreOptions, SyncPolicy};

/// An open store.
#[derive(Debug)]
pub(crate) struct Store(pub(crate) terrace_store::Store);

/// A thread syncs every sync_ms.
pub const TERRACE_SYNC_EVERY: c_int = 0;
/// Each change is durable when its call returns.
pub const TERRACE_SYNC_ALWAYS: c_int = 1;
/// Changes become durable at terrace_store_sync and at close.
pub const TERRACE_SYNC_NEVER: c_int = 2;

/// Options of a store. terrace_options_default sets all fields.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Options {
    /// Name of the store in its directory. NULL: "store".
    pub name: *const c_char,
    /// Limit of all memory, bytes. At least 16 MiB.
    pub memory_bytes: u64,
    /// Maximum size of the heap file, bytes. 0: limited by the file system.
    pub capacity_bytes: u64,
    /// TERRACE_SYNC_EVERY, TERRACE_SYNC_ALWAYS or TERRACE_SYNC_NEVER.
    pub sync: c_int,
    /// Milliseconds between two syncs of TERRACE_SYNC_EVERY.
    pub sync_ms: u64,
}

/// Sets all fields to the defaults: 1 GiB of memory, a sync every second.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_options_default(options: *mut Options) -> c_int {
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
/// `of` is null, or options; their name is null or a string.
unsafe fn options(of: *const Options) -> Result<StoreOptions, Failed> {
    let mut options = StoreOptions::default();
    // SAFETY: the caller guarantees null or valid options.
    let Some(given) = (unsafe { of.as_ref() }) else { return Ok(options) };
    if !given.name.is_null() {
        // SAFETY: the caller guarantees a terminated string.
        options.name = unsafe { text(given.name) }?.to_owned();
    }
    options.memory_bytes = given.memory_bytes;
    options.capacity_bytes = Some(given.capacity_bytes).filter(|bytes| *bytes > 0);
    options.sync = match given.sync {
        TERRACE_SYNC_EVERY if given.sync_ms > 0 => SyncPolicy::Every(Duration::from_millis(given.sync_ms)),
        TERRACE_SYNC_EVERY => {
            return Err(Failed::Argument("sync_ms is 0; give milliseconds, or use TERRACE_SYNC_ALWAYS"));
        }
        TERRACE_SYNC_ALWAYS => SyncPolicy::Always,
        TERRACE_SYNC_NEVER => SyncPolicy::Never,
        _ => return Err(Failed::Argument("sync must be a TERRACE_SYNC_ value")),
    };
    Ok(options)
}

/// Opens the store in an existing directory. The store is created if missing. options NULL: the defaults.
/// -EBUSY: another program uses it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_store_open(
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

/// Makes everything durable and closes the store. The handle is invalid afterwards, even after an error.
/// Calls on its buckets return -EBADF; their handles must still be closed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_store_close(store: *mut Store) -> c_int {
    call_int(|| {
        if store.is_null() {
            return Err(Failed::Argument("a handle is NULL"));
        }
        // SAFETY: the head of terrace.h: created by `terrace_store_open`, and not closed before.
        let store = unsafe { Box::from_raw(store) };
        Ok(store.0.close()?)
    })
}

/// Makes all changes before the call durable.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_store_sync(store: *const Store) -> c_int {
    // SAFETY: the head of terrace.h.
    call_int(|| unsafe { Ok(handle(store)?.0.sync()?) })
}

/// Waits until the read-ahead is complete that an open starts for a store that fits in memory. Returns at
/// once if it does not fit.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_store_wait_warm(store: *const Store) -> c_int {
    // SAFETY: the head of terrace.h.
    call_int(|| unsafe {
        handle(store)?.0.wait_warm();
        Ok(())
    })
}

/// Compacts the record log. The store does so by itself when most of the log is garbage.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_store_checkpoint(store: *const Store) -> c_int {
    // SAFETY: the head of terrace.h.
    call_int(|| unsafe { Ok(handle(store)?.0.checkpoint()?) })
}

/// Removes the files of a store. -EBUSY: the store is open.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_store_destroy(dir: *const c_char, name: *const c_char) -> c_int {
    // SAFETY: the head of terrace.h.
    call_int(|| unsafe { Ok(terrace_store::Store::destroy(text(dir)?, text(name)?)?) })
}

/// Returns the bucket of this name, which is created if missing. To be closed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_bucket_open(
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

/// Returns the bucket of this name. To be closed. -ENOENT: it does not exist.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_bucket_find(
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

/// Renames a bucket. -ENOENT: it does not exist; -EEXIST: a bucket of the new name exists.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_bucket_rename(
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

/// Removes a bucket with its blobs. -ENOENT: it does not exist.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn terrace_bucket_remove(store: *const Store, name: *const c_char) -> c_int {
    // SAFETY: the head of terrace.h.
    call_int(|| unsafe {
        let removed = handle(store)?.0.remove_bucket(text(name)?)?;
        removed.then_some(()).ok_or(Failed::Missing)
    })
}
