//! Conversion of keys and bytes from and to Python.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyString};

/// Error handler for keys that are not UTF-8: they survive a round trip through `str`, like file names in
/// Python.
const ERRORS: &str = "surrogateescape";

/// A key: `bytes`, or `str` in UTF-8.
#[derive(Debug)]
pub(crate) struct Key(PyBackedBytes);

impl Key {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl<'py> FromPyObject<'_, 'py> for Key {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Key> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Key(bytes.to_owned().into()));
        }
        if let Ok(text) = object.cast::<PyString>() {
            let bytes = match text.encode_utf8() {
                Ok(bytes) => bytes,
                Err(_) => text.call_method1("encode", ("utf-8", ERRORS))?.cast_into::<PyBytes>()?,
            };
            return Ok(Key(bytes.into()));
        }
        Err(PyTypeError::new_err(format!("a key is str or bytes, not {}", object.get_type().name()?)))
    }
}

/// A key as `str`.
pub(crate) fn key_to_str<'py>(py: Python<'py>, key: &[u8]) -> PyResult<Bound<'py, PyString>> {
    match std::str::from_utf8(key) {
        Ok(text) => Ok(PyString::new(py, text)),
        Err(_) => {
            let decoded = PyBytes::new(py, key).call_method1("decode", ("utf-8", ERRORS))?;
            Ok(decoded.cast_into::<PyString>()?)
        }
    }
}

/// Bytes from Python: shared if the object is immutable, otherwise a copy.
#[derive(Debug)]
pub(crate) enum Data {
    Bytes(PyBackedBytes),
    Copy(Vec<u8>),
}

impl Data {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Data::Bytes(bytes) => bytes,
            Data::Copy(bytes) => bytes,
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for Data {
    type Error = PyErr;

    /// Only `bytes` are shared. Other objects are copied, even read-only buffers. Another thread may change
    /// their base during the call, and the store's checksum would not match.
    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Data> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Data::Bytes(bytes.to_owned().into()));
        }
        let buffer = PyUntypedBuffer::get(&object)?;
        if buffer.is_c_contiguous() && buffer.len_bytes() > 0 {
            // SAFETY: the exporter neither frees nor moves the bytes while the buffer is held, and they are
            // contiguous. The interpreter lock is held until the copy is done. Threads that change the bytes
            // without the lock cause a mix, as with a write to a file.
            let bytes =
                unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), buffer.len_bytes()) };
            return Ok(Data::Copy(bytes.to_vec()));
        }
        let view = object.py().import("builtins")?.getattr("memoryview")?.call1((object,))?;
        Ok(Data::Bytes(view.call_method0("tobytes")?.cast_into::<PyBytes>()?.into()))
    }
}

/// The caller's buffer to fill.
#[derive(Debug)]
pub(crate) struct Room(PyUntypedBuffer);

impl Room {
    /// The buffer's bytes.
    ///
    /// # Safety
    /// No other result of this function is alive.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn bytes(&self) -> &mut [u8] {
        if self.0.len_bytes() == 0 {
            return &mut [];
        }
        // SAFETY: the bytes are contiguous and writable (see `extract`). The exporter neither frees nor moves
        // them while the buffer is held. Concurrent readers see a mix of old and new, as with `readinto` of a
        // file.
        unsafe { std::slice::from_raw_parts_mut(self.0.buf_ptr().cast(), self.0.len_bytes()) }
    }
}

impl<'py> FromPyObject<'_, 'py> for Room {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Room> {
        let buffer = PyUntypedBuffer::get(&object)?;
        if buffer.readonly() || !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the buffer to fill must be writable and contiguous"));
        }
        Ok(Room(buffer))
    }
}
