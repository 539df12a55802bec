//! Buckets.

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

/// Size, word of the user's, version, score.
type StatTuple = (u64, u64, u64, f32);

fn tuple(stat: &Stat) -> StatTuple {
    (stat.size, stat.meta, stat.version.number(), stat.score)
}

impl Bucket {
    /// Calls `f` with the bucket, the interpreter being free for other threads.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&terrace_store::Bucket) -> terrace_store::Result<T> + Send,
    ) -> PyResult<T> {
        Ok(py.detach(|| self.open.with_bucket(self.number, |bucket| f(bucket).map_err(Failed::from)))?)
    }

    /// `size` bytes of a blob from `offset` on in a new object, and its metadata then. Fewer: the blob is shorter.
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

    /// A whole blob. Its size is asked for first; if it has another by the time it is read, again.
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
    /// The bucket of this name, made if there is none and `create`.
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

    /// The bytes of a blob; None: there is none.
    fn read_bytes<'py>(&self, py: Python<'py>, key: Key) -> PyResult<Option<Bound<'py, PyBytes>>> {
        Ok(self.read_whole(py, &key)?.map(|(bytes, _)| bytes))
    }

    /// At most `size` bytes of a blob from `offset` on, of this version of it if one is given; None: there is no blob.
    #[pyo3(signature = (key, offset, size, version=None))]
    fn read_at<'py>(
        &self,
        py: Python<'py>,
        key: Key,
        offset: u64,
        size: u64,
        version: Option<u64>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        // What is asked for may be far more than there is.
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

    /// Fills a buffer from `offset` on; how many bytes, None: there is no blob.
    fn fill(&self, py: Python<'_>, key: Key, buffer: Room, offset: u64) -> PyResult<Option<usize>> {
        self.run(py, |bucket| {
            // SAFETY: the only one; `buffer` is this call's.
            bucket.get_at(key.bytes(), offset, unsafe { buffer.bytes() })
        })
    }

    /// False: there is one, and `only_new`.
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

    /// Removes a blob and returns its bytes, no change in between.
    fn take<'py>(&self, py: Python<'py>, key: Key) -> PyResult<Option<Bound<'py, PyBytes>>> {
        loop {
            let Some((bytes, stat)) = self.read_whole(py, &key)? else { return Ok(None) };
            if self.run(py, |bucket| bucket.remove_if(key.bytes(), Expect::Version(stat.version)))? {
                return Ok(Some(bytes));
            }
        }
    }

    /// False: there is no such blob, or one of the new key and `only_new`.
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

    /// The directory of its files, if it persists.
    #[getter]
    fn persist_path(&self, py: Python<'_>) -> PyResult<Option<PathBuf>> {
        self.run(py, |bucket| Ok(bucket.persist_dir().map(Path::to_owned)))
    }

    #[getter]
    fn is_scratch(&self, py: Python<'_>) -> PyResult<bool> {
        self.run(py, |bucket| Ok(bucket.is_scratch()))
    }
}
