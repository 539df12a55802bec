//! The store for Python: the extension module of the package `terrace_cache`.
//!
//! What is dict-like, and the file system of fsspec, is Python (`python/terrace_cache`). Here is what it stands on: one method of a class is one call of the
//! store. Each releases the global interpreter lock while the store works, and turns an error of the store into an exception.
//!
//! **How bytes get to Python.** A get fills the memory of the `bytes` object that it returns, or of the caller's buffer (`readinto`): one copy, from the
//! cache to where Python sees it. Rejected: to map the frames themselves into a view. Frames are pages that lie anywhere; a view of many needs a
//! mapping each, which costs more than the copy, and frames that a view holds could not be evicted.
//!
//! | files | job |
//! |---|---|
//! | `store`, `bucket` | the classes |
//! | `open` | an open store: who uses it, how it ends, what a forked process may do |
//! | `convert`, `error` | keys, buffers, exceptions |

mod bucket;
mod convert;
mod error;
mod open;
mod store;

use pyo3::prelude::*;

/// The extension module.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<store::Store>()?;
    module.add_class::<bucket::Bucket>()?;
    module.add_function(wrap_pyfunction!(store::destroy, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
