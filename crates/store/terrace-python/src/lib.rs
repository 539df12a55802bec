//! The store for Python: the extension module of the package `terrace_cache`.
//!
//! The mapping interface, and the file system for fsspec, are in Python (`python/terrace_cache`). This module
//! is their base: a method makes one or a few calls of the store. It releases the interpreter lock while the
//! store works, and turns errors into exceptions.
//!
//! **Copies.** A get copies once, from the cache into its `bytes` object or the caller's buffer (`readinto`).
//! Rejected: views that map the frames themselves. Frames are scattered pages: a view needs one mapping per
//! frame, which costs more than the copy. Viewed frames could not be evicted.
//!
//! | files | job |
//! |---|---|
//! | `store`, `bucket` | the classes |
//! | `open` | an open store: its users, its end, its state after a fork |
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
