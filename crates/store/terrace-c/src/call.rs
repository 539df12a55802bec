//! Common code of the C functions: pointers become references, errors and panics become a negative errno and
//! a line of text.

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
    /// An error of the store.
    Store(Error),
    /// An invalid argument.
    Argument(&'static str),
    /// The object does not exist. Sets no error line, since callers use it as a test.
    Missing,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Store(error)
    }
}

/// Runs the body of a function. Returns its result, or a negative errno.
pub(crate) fn call(body: impl FnOnce() -> Result<i64, Failed>) -> i64 {
    let (errno, line) = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return value,
        Ok(Err(Failed::Missing)) => return -i64::from(libc::ENOENT),
        Ok(Err(Failed::Store(error))) => (error.errno(), error.to_string()),
        Ok(Err(Failed::Argument(what))) => (libc::EINVAL, what.to_owned()),
        Err(_) => (
            libc::EIO,
            "terrace has failed by an internal error; see its message on standard error".to_owned(),
        ),
    };
    LAST.with_borrow_mut(|last| *last = CString::new(line.replace('\0', "?")).unwrap_or_default());
    -i64::from(errno)
}

/// Like [`call`], for functions that return an int.
pub(crate) fn call_int(body: impl FnOnce() -> Result<(), Failed>) -> c_int {
    call(|| body().map(|()| 0)) as c_int
}

/// The error of this thread's last failed call, in one line; empty if none failed. Valid until this thread's
/// next call.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn terrace_error() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}

/// The object behind a handle.
///
/// # Safety
/// `pointer` is null, or a handle from the library that is not closed.
pub(crate) unsafe fn handle<'a, T>(pointer: *const T) -> Result<&'a T, Failed> {
    // SAFETY: the caller guarantees null or an open handle.
    unsafe { pointer.as_ref() }.ok_or(Failed::Argument("a handle is NULL"))
}

/// The caller's bytes.
///
/// # Safety
/// `pointer` has `len` readable bytes, or `len` is 0.
pub(crate) unsafe fn bytes<'a>(pointer: *const c_void, len: usize) -> Result<&'a [u8], Failed> {
    if len == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() || len > isize::MAX as usize {
        return Err(Failed::Argument("the pointer to the bytes is NULL, or their number is too large"));
    }
    // SAFETY: checked for null and size; the caller guarantees `len` readable bytes.
    Ok(unsafe { std::slice::from_raw_parts(pointer.cast(), len) })
}

/// The caller's buffer.
///
/// # Safety
/// `pointer` has `len` writable bytes, or `len` is 0.
pub(crate) unsafe fn room<'a>(pointer: *mut c_void, len: usize) -> Result<&'a mut [u8], Failed> {
    if len == 0 {
        return Ok(&mut []);
    }
    if pointer.is_null() || len > isize::MAX as usize {
        return Err(Failed::Argument("the buffer is NULL, or too large"));
    }
    // SAFETY: checked for null and size; the caller guarantees `len` writable bytes. In C, each byte of a
    // buffer may be read.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer.cast(), len) })
}

/// The caller's string.
///
/// # Safety
/// `pointer` is null, or a string with a terminating 0.
pub(crate) unsafe fn text<'a>(pointer: *const c_char) -> Result<&'a str, Failed> {
    if pointer.is_null() {
        return Err(Failed::Argument("a string is NULL"));
    }
    // SAFETY: not null; the caller guarantees a terminated string.
    unsafe { CStr::from_ptr(pointer) }.to_str().map_err(|_| Failed::Argument("a string is not UTF-8"))
}

/// Like [`give`], for a handle that the caller must close. If `to` is null, the handle is closed at once.
///
/// # Safety
/// As [`give`].
pub(crate) unsafe fn give_handle<T>(to: *mut *mut T, handle: T) -> Result<(), Failed> {
    // SAFETY: the caller guarantees null, which `give` refuses, or room for a handle.
    unsafe {
        give(to, std::ptr::null_mut())?;
        to.write(Box::into_raw(Box::new(handle)));
    }
    Ok(())
}

/// Stores a result where the caller wants it.
///
/// # Safety
/// `to` is null, or has room for `value`.
pub(crate) unsafe fn give<T>(to: *mut T, value: T) -> Result<(), Failed> {
    if to.is_null() {
        return Err(Failed::Argument("the pointer for the result is NULL"));
    }
    // SAFETY: not null; the caller guarantees room for the value.
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
        // SAFETY: null is allowed, and is the case under test.
        assert!(unsafe { give_handle(std::ptr::null_mut(), handle.clone()) }.is_err());
        assert_eq!(Arc::strong_count(&handle), 1);
    }
}
