//! Errors of the store as Python exceptions.

use pyo3::PyTypeInfo;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyType;
use terrace_store::Error;

/// The failure of a call.
#[derive(Debug)]
pub(crate) enum Failed {
    /// An error of the store.
    Store(Error),
    /// This process is a fork of the one that opened the store.
    Forked,
    /// The blob no longer has the version to be read.
    Changed,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Store(error)
    }
}

/// A class of `terrace_cache.errors`.
fn class(py: Python<'_>, name: &str) -> PyResult<Py<PyType>> {
    let module = py.import("terrace_cache.errors")?;
    Ok(module.getattr(name)?.cast_into::<PyType>()?.unbind())
}

/// An exception with errno and line. If its class cannot be imported, the import error.
fn raised(name: &str, errno: i32, line: String) -> PyErr {
    Python::attach(|py| match class(py, name) {
        Ok(class) => PyErr::from_type(class.into_bound(py), (errno, line)),
        Err(e) => e,
    })
}

impl From<Failed> for PyErr {
    fn from(failed: Failed) -> PyErr {
        let error = match failed {
            Failed::Store(error) => error,
            Failed::Forked => {
                let line = "the store was opened before this process was forked; open a store in one process only, \
                            or serve it with `terrace serve kv`";
                return raised("ForkedError", libc::EBADF, line.into());
            }
            Failed::Changed => {
                let line = "the blob was changed after its file had been opened; open it again";
                return raised("BlobChangedError", libc::ESTALE, line.into());
            }
        };
        let (errno, line) = (error.errno(), error.to_string());
        let name = match error {
            Error::Full { .. } => "StoreFullError",
            Error::NoMemory { .. } => "NoMemoryError",
            Error::NotDurable { .. } => "NotDurableError",
            Error::InUse { .. } => "StoreInUseError",
            Error::Forked => "ForkedError",
            Error::Exists { .. } => "BucketExistsError",
            Error::NoBucket { .. } => "BucketRemovedError",
            Error::Damaged { .. } => "StoreDamagedError",
            Error::Closed => "StoreClosedError",
            Error::TooLarge { .. } | Error::Invalid { .. } => return PyValueError::new_err(line),
            // Python derives PermissionError and others from the errno.
            Error::Io { .. } => {
                return Python::attach(|py| PyErr::from_type(PyOSError::type_object(py), (errno, line)));
            }
        };
        raised(name, errno, line)
    }
}
