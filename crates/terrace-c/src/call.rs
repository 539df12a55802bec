//! The frame of every function: pointers become references, errors become numbers.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use terrace_store::Error;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// The failure of a call.
#[derive(Debug)]
pub(crate) enum Failed {
    /// In the store.
    Store(Error),
    /// An argument that cannot be.
    Argument(&'static str),
    /// There is no such thing. No line is written: programs ask.
    Missing,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Store(error)
    }
}

/// Runs the body of a function; its result, or a negative errno.
pub(crate) fn call(body: impl FnOnce() -> Result<i64, Failed>) -> i64 {
    let (errno, line) = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return value,
        Ok(Err(Failed::Missing)) => return -i64::from(libc::ENOENT),
        Ok(Err(Failed::Store(error))) => (error.errno(), error.to_string()),
        Ok(Err(Failed::Argument(what))) => (libc::EINVAL, what.to_owned()),
        Err(_) => (libc::EIO, "a fault of terrace itself; its message is on standard error".to_owned()),
    };
    LAST.with_borrow_mut(|last| *last = CString::new(line.replace('\0', "?")).unwrap_or_default());
    -i64::from(errno)
}

/// As [`call`], for functions that answer an int.
pub(crate) fn call_int(body: impl FnOnce() -> Result<(), Failed>) -> c_int {
    call(|| body().map(|()| 0)) as c_int
}

/// The error of the last failed call of this thread, in one line; empty if none failed. Valid until the next call of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn terrace_error() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}

/// A handle.
///
/// # Safety
/// Null, or a handle that the library gave and that is not closed.
pub(crate) unsafe fn handle<'a, T>(pointer: *const T) -> Result<&'a T, Failed> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or(Failed::Argument("a handle is NULL"))
}

/// Bytes of the caller's.
///
/// # Safety
/// `len` readable bytes, or `len` 0.
pub(crate) unsafe fn bytes<'a>(pointer: *const c_void, len: usize) -> Result<&'a [u8], Failed> {
    if len == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() || len > isize::MAX as usize {
        return Err(Failed::Argument("bytes are NULL, or too many"));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(pointer.cast(), len) })
}

/// Room of the caller's.
///
/// # Safety
/// `len` writable bytes, or `len` 0.
pub(crate) unsafe fn room<'a>(pointer: *mut c_void, len: usize) -> Result<&'a mut [u8], Failed> {
    if len == 0 {
        return Ok(&mut []);
    }
    if pointer.is_null() || len > isize::MAX as usize {
        return Err(Failed::Argument("room is NULL, or too much"));
    }
    // SAFETY: the caller's promise. C has no bytes that may not be read.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer.cast(), len) })
}

/// A string of the caller's.
///
/// # Safety
/// Null, or a string that ends with 0.
pub(crate) unsafe fn text<'a>(pointer: *const c_char) -> Result<&'a str, Failed> {
    if pointer.is_null() {
        return Err(Failed::Argument("a string is NULL"));
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(pointer) }.to_str().map_err(|_| Failed::Argument("a string is not UTF-8"))
}

/// As [`give`], of a handle that the caller is to close; without room for it, it is closed at once.
///
/// # Safety
/// As [`give`].
pub(crate) unsafe fn give_handle<T>(to: *mut *mut T, handle: T) -> Result<(), Failed> {
    // SAFETY: the caller's promise.
    unsafe {
        give(to, std::ptr::null_mut())?;
        to.write(Box::into_raw(Box::new(handle)));
    }
    Ok(())
}

/// Puts an answer where the caller wants it.
///
/// # Safety
/// Null, or room for one.
pub(crate) unsafe fn give<T>(to: *mut T, value: T) -> Result<(), Failed> {
    if to.is_null() {
        return Err(Failed::Argument("room for the answer is NULL"));
    }
    // SAFETY: the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn handle_without_a_place_is_closed() {
        let handle = Arc::new(());
        // SAFETY: null is what is asked for here.
        assert!(unsafe { give_handle(std::ptr::null_mut(), handle.clone()) }.is_err());
        assert_eq!(Arc::strong_count(&handle), 1);
    }
}
