//! The Python class `Store`: open, close and sync of a store, and its buckets.

use crate::convert::key_to_str;
use crate::error::Failed;
use crate::open::Open;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use terrace_store::{StoreOptions, SyncPolicy};

/// A store in a directory.
#[derive(Debug)]
#[pyclass(subclass, frozen, module = "terrace_cache._native", weakref)]
pub(crate) struct Store(Arc<Open>);

/// Seconds between two syncs. 0: each change before its call returns. None: at `sync` and at close.
fn policy(sync_seconds: Option<f64>) -> PyResult<SyncPolicy> {
    match sync_seconds {
        None => Ok(SyncPolicy::Never),
        Some(0.0) => Ok(SyncPolicy::Always),
        Some(seconds) => {
            let every = Duration::try_from_secs_f64(seconds);
            every
                .map(SyncPolicy::Every)
                .map_err(|e| PyValueError::new_err(format!("sync_seconds: {e}; give seconds, 0 or None")))
        }
    }
}

#[pymethods]
impl Store {
    #[new]
    #[pyo3(signature = (path, name, memory, capacity, sync_seconds))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        name: String,
        memory: u64,
        capacity: Option<u64>,
        sync_seconds: Option<f64>,
    ) -> PyResult<Store> {
        let mut options =
            StoreOptions { name, memory_bytes: memory, capacity_bytes: capacity, ..StoreOptions::default() };
        options.sync = policy(sync_seconds)?;
        let opened = py.detach(|| terrace_store::Store::open(path, &options));
        Ok(Store(Arc::new(Open::new(opened.map_err(Failed::from)?))))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.0.close())?)
    }

    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        !py.detach(|| self.0.is_open())
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.0.with(|store| Ok(store.sync()?)))?)
    }

    fn wait_warm(&self, py: Python<'_>) -> PyResult<()> {
        // A concurrent close ends the wait.
        Ok(py.detach(|| self.0.with(|store| Ok(store.clone())).map(|store| store.wait_warm()))?)
    }

    fn checkpoint(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.0.with(|store| Ok(store.checkpoint()?)))?)
    }

    fn buckets(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(py.detach(|| self.0.with(|store| Ok(store.buckets())))?)
    }

    fn has_bucket(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        Ok(py.detach(|| self.0.with(|store| Ok(store.find_bucket(name).is_some())))?)
    }

    fn rename_bucket(&self, py: Python<'_>, old: &str, new: &str) -> PyResult<bool> {
        Ok(py.detach(|| self.0.with(|store| Ok(store.rename_bucket(old, new)?)))?)
    }

    fn remove_bucket(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        Ok(py.detach(|| self.0.with(|store| Ok(store.remove_bucket(name)?)))?)
    }

    fn tagged<'py>(
        &self,
        py: Python<'py>,
        tag: &str,
    ) -> PyResult<Vec<(String, Option<Bound<'py, PyString>>)>> {
        let holders = py.detach(|| self.0.with(|store| Ok(store.tagged(tag))))?;
        let holder = |(bucket, key): (String, Option<Box<[u8]>>)| {
            Ok((bucket, key.map(|key| key_to_str(py, &key)).transpose()?))
        };
        holders.into_iter().map(holder).collect()
    }

    fn usage<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let usage = py.detach(|| self.0.with(|store| Ok(store.usage())))?;
        let dict = PyDict::new(py);
        dict.set_item("buckets", usage.buckets)?;
        dict.set_item("blobs", usage.blobs)?;
        dict.set_item("blob_bytes", usage.blob_bytes)?;
        dict.set_item("heap_bytes", usage.heap_bytes)?;
        dict.set_item("heap_free_bytes", usage.heap_free_bytes)?;
        dict.set_item("heap_retired_bytes", usage.heap_retired_bytes)?;
        dict.set_item("log_bytes", usage.log_bytes)?;
        dict.set_item("index_bytes", usage.index_bytes)?;
        dict.set_item("syncs", usage.syncs)?;
        Ok(dict)
    }

    /// The engine's counters, as JSON.
    fn stats_json(&self, py: Python<'_>) -> PyResult<String> {
        let stats = py.detach(|| self.0.with(|store| Ok(store.stats())))?;
        serde_json::to_string(&stats).map_err(|e| PyValueError::new_err(e.to_string()))
    }
}

impl Store {
    /// The state shared with its Python objects.
    pub(crate) fn open(&self) -> &Arc<Open> {
        &self.0
    }
}

/// Removes the files of a store that is not in use.
#[pyfunction]
pub(crate) fn destroy(py: Python<'_>, path: PathBuf, name: &str) -> PyResult<()> {
    Ok(py.detach(|| terrace_store::Store::destroy(path, name)).map_err(Failed::from)?)
}
