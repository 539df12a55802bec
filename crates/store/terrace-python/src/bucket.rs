//! The Python class `Bucket`: reads and changes of a bucket's blobs, and scans of its keys.

use crate::convert::{Data, Key, Room, key_to_str};
use crate::error::Failed;
use crate::open::Open;
use crate::store::Store;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use terrace_store::{Expect, Stat};

/// A bucket of an open store.
#[derive(Debug)]
#[pyclass(subclass, frozen, module = "terrace_cache._native", weakref)]
pub(crate) struct Bucket {
    open: Arc<Open>,
    number: u64,
}

/// Size, user's word, version, score.
type StatTuple = (u64, u64, u64, f32);

fn tuple(stat: &Stat) -> StatTuple {
    (stat.size, stat.meta, stat.version.number(), stat.score)
}

impl Bucket {
    /// Calls `f` with the bucket, without the interpreter lock.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&terrace_store::Bucket) -> terrace_store::Result<T> + Send,
    ) -> PyResult<T> {
        Ok(py.detach(|| self.open.with_bucket(self.number, |bucket| f(bucket).map_err(Failed::from)))?)
    }

    /// Reads `size` bytes of a blob from `offset` into a new object. Returns it, the number of bytes, and the
    /// blob's metadata. Fewer bytes: the blob is shorter.
    fn read<'py>(
        &self,
        py: Python<'py>,
        key: &Key,
        offset: u64,
        size: u64,
    ) -> PyResult<Option<(Bound<'py, PyBytes>, usize, Stat)>> {
        let mut got = None;
        let bytes = PyBytes::new_with(py, size as usize, |room| {
            got = self.run(py, |bucket| bucket.get_part(key.bytes(), offset, room))?;
            Ok(())
        })?;
        Ok(got.map(|(n, stat)| (bytes, n, stat)))
    }

    /// Reads a whole blob. Looks up its size first, and repeats the read if the size has changed.
    fn read_whole<'py>(&self, py: Python<'py>, key: &Key) -> PyResult<Option<(Bound<'py, PyBytes>, Stat)>> {
        let Some(stat) = self.run(py, |bucket| Ok(bucket.stat(key.bytes())))? else { return Ok(None) };
        let mut size = stat.size;
        loop {
            let Some((bytes, _, stat)) = self.read(py, key, 0, size)? else { return Ok(None) };
            if stat.size == size {
                return Ok(Some((bytes, stat)));
            }
            size = stat.size;
        }
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        self.open.forget_bucket(self.number);
    }
}

#[pymethods]
impl Bucket {
    /// The bucket of this name. If missing, it is created if `create` is true.
    #[new]
    #[pyo3(signature = (store, name, create))]
    fn open(py: Python<'_>, store: &Store, name: &str, create: bool) -> PyResult<Bucket> {
        let find = |store: &terrace_store::Store| match create {
            true => Ok(Some(store.bucket(name)?)),
            false => Ok(store.find_bucket(name)),
        };
        let number = py.detach(|| store.open().take_bucket(find))?;
        let number = number.ok_or_else(|| PyKeyError::new_err(name.to_owned()))?;
        Ok(Bucket { open: store.open().clone(), number })
    }

    #[getter]
    fn name(&self, py: Python<'_>) -> PyResult<String> {
        self.run(py, |bucket| Ok(bucket.name()))
    }

    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.run(py, |bucket| Ok(bucket.bytes()))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.run(py, |bucket| Ok(bucket.len() as usize))
    }

    fn __contains__(&self, py: Python<'_>, key: Key) -> PyResult<bool> {
        self.run(py, |bucket| Ok(bucket.contains(key.bytes())))
    }

    /// The bytes of a blob. None: it does not exist.
    fn read_bytes<'py>(&self, py: Python<'py>, key: Key) -> PyResult<Option<Bound<'py, PyBytes>>> {
        Ok(self.read_whole(py, &key)?.map(|(bytes, _)| bytes))
    }

    /// At most `size` bytes of a blob from `offset`, of the given version if any. None: the blob does not
    /// exist.
    #[pyo3(signature = (key, offset, size, version=None))]
    fn read_at<'py>(
        &self,
        py: Python<'py>,
        key: Key,
        offset: u64,
        size: u64,
        version: Option<u64>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        // `size` may be far larger than the blob.
        let Some(stat) = self.run(py, |bucket| Ok(bucket.stat(key.bytes())))? else { return Ok(None) };
        let wanted = size.min(stat.size.saturating_sub(offset));
        let Some((bytes, n, stat)) = self.read(py, &key, offset, wanted)? else { return Ok(None) };
        if version.is_some_and(|version| version != stat.version.number()) {
            return Err(Failed::Changed.into());
        }
        match n as u64 == wanted {
            true => Ok(Some(bytes)),
            false => Ok(Some(PyBytes::new(py, &bytes.as_bytes()[..n]))),
        }
    }

    /// Fills a buffer with bytes from `offset`. Returns the number of bytes. None: the blob does not exist.
    fn fill(&self, py: Python<'_>, key: Key, buffer: Room, offset: u64) -> PyResult<Option<usize>> {
        self.run(py, |bucket| {
            // SAFETY: the only result alive, since this call owns `buffer`.
            bucket.get_at(key.bytes(), offset, unsafe { buffer.bytes() })
        })
    }

    /// Puts a blob. Returns false if it exists and `only_new` is true.
    fn write(&self, py: Python<'_>, key: Key, data: Data, meta: u64, only_new: bool) -> PyResult<bool> {
        let expect = if only_new { Expect::Absent } else { Expect::Any };
        self.run(py, |bucket| bucket.put_if(key.bytes(), &[data.bytes()], meta, expect))
    }

    fn put_at(&self, py: Python<'_>, key: Key, offset: u64, data: Data) -> PyResult<u64> {
        self.run(py, |bucket| bucket.put_at(key.bytes(), offset, data.bytes()))
    }

    fn append(&self, py: Python<'_>, key: Key, data: Data) -> PyResult<u64> {
        self.run(py, |bucket| bucket.append(key.bytes(), data.bytes()))
    }

    fn set_size(&self, py: Python<'_>, key: Key, size: u64) -> PyResult<bool> {
        self.run(py, |bucket| bucket.truncate(key.bytes(), size))
    }

    fn stat_tuple(&self, py: Python<'_>, key: Key) -> PyResult<Option<StatTuple>> {
        self.run(py, |bucket| Ok(bucket.stat(key.bytes()).as_ref().map(tuple)))
    }

    fn remove(&self, py: Python<'_>, key: Key) -> PyResult<bool> {
        self.run(py, |bucket| bucket.remove(key.bytes()))
    }

    /// Removes a blob and returns its bytes, in one step.
    fn take<'py>(&self, py: Python<'py>, key: Key) -> PyResult<Option<Bound<'py, PyBytes>>> {
        loop {
            let Some((bytes, stat)) = self.read_whole(py, &key)? else { return Ok(None) };
            if self.run(py, |bucket| bucket.remove_if(key.bytes(), Expect::Version(stat.version)))? {
                return Ok(Some(bytes));
            }
        }
    }

    /// Renames a blob. Returns false if it does not exist, or the new key exists and `only_new` is true.
    fn move_into(&self, py: Python<'_>, old: Key, to: &Bucket, new: Key, only_new: bool) -> PyResult<bool> {
        let target = to.run(py, |bucket| Ok(bucket.clone()))?;
        let expect = if only_new { Expect::Absent } else { Expect::Any };
        self.run(py, |bucket| bucket.rename_if(old.bytes(), &target, new.bytes(), expect))
    }

    fn keys_from<'py>(&self, py: Python<'py>, prefix: Key) -> PyResult<Vec<Bound<'py, PyString>>> {
        let keys = self.run(py, |bucket| Ok(bucket.list(prefix.bytes())))?;
        keys.iter().map(|key| key_to_str(py, key)).collect()
    }

    /// Keys, and the cursor of the next call (0: the end).
    fn scan_from<'py>(
        &self,
        py: Python<'py>,
        cursor: u64,
        count: usize,
    ) -> PyResult<(Vec<Bound<'py, PyString>>, u64)> {
        let (keys, next) = self.run(py, |bucket| Ok(bucket.scan(cursor, count)))?;
        Ok((keys.iter().map(|key| key_to_str(py, key)).collect::<PyResult<_>>()?, next))
    }

    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, |bucket| bucket.clear())
    }

    fn set_meta(&self, py: Python<'_>, key: Key, meta: u64) -> PyResult<bool> {
        self.run(py, |bucket| bucket.set_meta(key.bytes(), meta, Expect::Any))
    }

    fn set_score(&self, py: Python<'_>, key: Key, score: f32) -> PyResult<bool> {
        self.run(py, |bucket| bucket.set_score(key.bytes(), score))
    }

    fn tag(&self, py: Python<'_>, key: Key, tag: &str) -> PyResult<bool> {
        self.run(py, |bucket| bucket.tag(key.bytes(), tag))
    }

    fn untag(&self, py: Python<'_>, key: Key, tag: &str) -> PyResult<bool> {
        self.run(py, |bucket| bucket.untag(key.bytes(), tag))
    }

    fn tags(&self, py: Python<'_>, key: Key) -> PyResult<Vec<String>> {
        self.run(py, |bucket| Ok(bucket.tags(key.bytes())))
    }

    fn make_scratch(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, |bucket| bucket.make_scratch())
    }

    fn persist(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.run(py, |bucket| bucket.persist(path))
    }

    /// The directory of the bucket's files, if it persists.
    #[getter]
    fn persist_path(&self, py: Python<'_>) -> PyResult<Option<PathBuf>> {
        self.run(py, |bucket| Ok(bucket.persist_dir().map(Path::to_owned)))
    }

    #[getter]
    fn is_scratch(&self, py: Python<'_>) -> PyResult<bool> {
        self.run(py, |bucket| Ok(bucket.is_scratch()))
    }
}
