"""A file system of blobs for fsspec: `terrace://BUCKET/KEY`.

A bucket is a directory of the root. As in object stores, `/` in keys makes directories, which exist as long as they have keys. So a
directory and a blob may have the same name: both are listed, and `info` describes the blob. A written file
becomes a blob at its close, in one step: readers see the old blob or the new. A file open for reading is the blob as of
its open. After a change of the blob, reads of parts not read before fail with ESTALE.
"""

import datetime
import errno
import os
import uuid
import weakref
from io import UnsupportedOperation

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from . import _store
from .errors import BlobChangedError

# Buckets for files being written, to kept and to scratch buckets: a blob cannot move between the two kinds. Remains of a killed
# process are removed by the next.
_UPLOADS = ".uploads"
_SCRATCH_UPLOADS = ".uploads.scratch"
_HIDDEN = (_UPLOADS, _SCRATCH_UPLOADS)
_CHUNK = 4 << 20

# Stores whose remains of earlier processes have been removed.
_swept: weakref.WeakSet[_store.Store] = weakref.WeakSet()


def _split(path):
    """Bucket and key of a path without protocol; either may be empty."""
    bucket, _, key = path.partition("/")
    return bucket, key


class TerraceFileSystem(AbstractFileSystem):
    """Blobs of a store as files.

    store    an open terrace_cache.Store, or its directory: then the store that this process has open there, or else one opened with the options
             `name`, `memory`, `capacity`, `sync`, which stays open until `close` or the end of the process. Default: $TERRACE_STORE.
    """

    protocol = "terrace"
    root_marker = ""

    def __init__(
        self,
        store: "_store.Store | str | os.PathLike[str] | None" = None,
        *,
        name: str = "store",
        memory: int | str = "1GiB",
        capacity: int | str | None = None,
        sync: str | float = "1s",
        **kwargs,
    ) -> None:
        super().__init__(**kwargs)
        store = os.environ.get("TERRACE_STORE") if store is None else store
        if store is None:
            raise ValueError("terrace://: which store? storage_options={'store': DIR}, or TERRACE_STORE=DIR")
        if not isinstance(store, _store.Store):
            opened = _store.opened(store, name)
            store = opened or _store.open(store, name=name, memory=memory, capacity=capacity, sync=sync)
        self.store = store
        if store not in _swept:
            _swept.add(store)
            for name in _HIDDEN:
                store.remove_bucket(name)

    # Not picklable: only one process can have the store open, so the receiver could not open it. A reader of a multiprocessing queue would wait forever.
    def __reduce__(self):
        raise TypeError(
            f"terrace://: the store in {self.store.path} is open in this process only; the other process must open its own store, "
            "or serve this one with `terrace serve kv`"
        )

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path).lstrip("/")

    def close(self):
        """Makes everything durable and closes the store."""
        self.store.close()
        self.clear_instance_cache()

    def _bucket(self, path):
        """Bucket and key of a blob's path."""
        bucket, key = _split(self._strip_protocol(path))
        if not key:
            raise FileNotFoundError(path)
        try:
            return self.store[bucket], key
        except KeyError:
            raise FileNotFoundError(path) from None

    def _entry(self, bucket, key, stat):
        return {"name": f"{bucket}/{key}", "type": "file", "size": stat.size, "score": stat.score, "version": stat.version}

    def _names(self):
        return [name for name in self.store.buckets() if name not in _HIDDEN]

    def ls(self, path, detail=True, **kwargs):
        path = self._strip_protocol(path).rstrip("/")
        if not path:
            found = [{"name": name, "type": "directory", "size": 0} for name in self._names()]
        else:
            found = self._ls_bucket(path)
        return found if detail else [entry["name"] for entry in found]

    def _ls_bucket(self, path):
        name, key = _split(path)
        bucket = self.store[name] if name in self._names() else None
        if bucket is None:
            raise FileNotFoundError(path)
        prefix = f"{key}/" if key else ""
        found = {}
        for other in bucket.list(prefix):
            head, is_below, _ = other[len(prefix):].partition("/")
            entry = f"{name}/{prefix}{head}"
            # No directories with an empty name: a key with `//` is listed whole.
            if is_below and head:
                found.setdefault((entry, True), {"name": entry, "type": "directory", "size": 0})
            elif (stat := bucket.stat_tuple(other)) is not None:
                found[other, False] = self._entry(name, other, _store.Stat(*stat))
        stat = bucket.stat_tuple(key) if key and not found else None
        if stat is not None:
            return [self._entry(name, key, _store.Stat(*stat))]
        if key and not found:
            raise FileNotFoundError(path)
        return list(found.values())

    def find(self, path, maxdepth=None, withdirs=False, detail=False, **kwargs):
        """All blobs below a path, by key, so that no blob hides another. The path itself, if it is a blob without blobs below."""
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        path = self._strip_protocol(path).rstrip("/")
        name, key = _split(path)
        found, directories = {}, {path} if path and withdirs and self.isdir(path) else set()
        for name in [name] if name else self._names():
            if name not in self._names():
                continue
            bucket, outside = self.store[name], len(path) + 1 if path else 0
            if not path:
                directories.add(name)
            for other in bucket.list(f"{key}/" if key else ""):
                blob = f"{name}/{other}"
                ends = [end for end, letter in enumerate(blob) if letter == "/" and end > outside]
                directories.update(blob[:end] for end in ends[:maxdepth] if blob[end - 1] != "/")
                stat = bucket.stat_tuple(other) if maxdepth is None or len(ends) < maxdepth else None
                if stat is not None:
                    found[blob] = self._entry(name, other, _store.Stat(*stat))
        if withdirs:
            found.update((one, {"name": one, "type": "directory", "size": 0}) for one in directories - found.keys())
        if not found and self.isfile(path):
            found[path] = self.info(path)
        return dict(sorted(found.items())) if detail else sorted(found)

    def info(self, path, **kwargs):
        path = self._strip_protocol(path).rstrip("/")
        name, key = _split(path)
        directory = {"name": path, "type": "directory", "size": 0}
        if not name:
            return directory
        if name not in self._names():
            raise FileNotFoundError(path)
        if not key:
            return directory
        bucket = self.store[name]
        stat = bucket.stat_tuple(key)
        if stat is not None:
            return self._entry(name, key, _store.Stat(*stat))
        if bucket.list(f"{key}/"):
            return directory
        raise FileNotFoundError(path)

    def ukey(self, path):
        """Changes when the blob changes."""
        return f"{path}-{self._version(path)}"

    def mkdir(self, path, create_parents=True, **kwargs):
        name, key = _split(self._strip_protocol(path).rstrip("/"))
        if not name:
            raise FileExistsError(path)
        if not key and name in self.store:
            raise FileExistsError(path)
        if key and not create_parents and name not in self.store:
            raise FileNotFoundError(path)
        self.store.bucket(name)

    def makedirs(self, path, exist_ok=False):
        try:
            self.mkdir(path)
        except FileExistsError:
            if not exist_ok:
                raise

    def rmdir(self, path):
        name, key = _split(self._strip_protocol(path).rstrip("/"))
        if key:
            if self.isdir(path):
                raise OSError(f"{path}: a directory within a bucket goes with its last blob")
            raise FileNotFoundError(path)
        bucket = self.store[name] if name in self.store else None
        if bucket is None:
            raise FileNotFoundError(path)
        if len(bucket):
            raise OSError(f"{path}: the bucket has blobs")
        self.store.remove_bucket(name)

    def _rm(self, path):
        if "/" not in self._strip_protocol(path).rstrip("/"):
            return self.rmdir(path)
        bucket, key = self._bucket(path)
        if not bucket.remove(key):
            raise FileNotFoundError(path)

    def rm_file(self, path):
        self._rm(path)

    def rm(self, path, recursive=False, maxdepth=None):
        paths = self.expand_path(path, recursive=recursive, maxdepth=maxdepth)
        for one in paths if not recursive else ():
            if "/" in one and not self.isfile(one):
                raise (IsADirectoryError if self.isdir(one) else FileNotFoundError)(one)
        for one in reversed(paths):
            # A directory within a bucket is gone with its last blob.
            if "/" not in one or self.isfile(one):
                self._rm(one)

    def cp_file(self, path1, path2, **kwargs):
        if self.isdir(path1):
            return self.makedirs(path2, exist_ok=True)
        with self._open(path1, cache_type="none") as source, self._open(path2, "wb") as target:
            while chunk := source.read(_CHUNK):
                target.write(chunk)

    def mv(self, path1, path2, recursive=False, maxdepth=None, **kwargs):
        """Renames a blob in one step, a directory blob by blob."""
        into = path2.endswith("/")
        path1, path2 = self._strip_protocol(path1).rstrip("/"), self._strip_protocol(path2).rstrip("/")
        if into or self.isdir(path2):
            path2 = f"{path2}/{path1.rpartition('/')[2]}".lstrip("/")
        if path1 == path2:
            return
        is_blob = self.isfile(path1)
        if not is_blob or recursive:
            below = [one for one in self.find(path1) if one != path1]
            if not is_blob and not below and not self.isdir(path1):
                raise FileNotFoundError(path1)
            for one in below:
                self._rename(one, path2 + one[len(path1):])
        if is_blob:
            self._rename(path1, path2)

    def _rename(self, path1, path2):
        (source, old), (target, new) = self._bucket(path1), self._target(path2)
        try:
            source.rename(old, new, bucket=target)
        except KeyError:
            raise FileNotFoundError(path1) from None

    mv_file = mv

    def _target(self, path):
        """Bucket and key of a blob to write."""
        name, key = _split(self._strip_protocol(path))
        if not key or not name or name in _HIDDEN:
            raise IsADirectoryError(path)
        return self.store.bucket(name), key

    def modified(self, path):
        """A pseudo time that differs after each change of the blob, since blobs have no times. DuckDB, for instance, compares it."""
        seconds = self._version(path) % (1 << 37)
        return datetime.datetime.fromtimestamp(seconds, tz=datetime.timezone.utc)

    def _version(self, path):
        info = self.info(path)
        if info["type"] == "directory":
            raise IsADirectoryError(path)
        return info["version"]

    def cat_file(self, path, start=None, end=None, **kwargs):
        bucket, key = self._bucket(path)
        if start is None and end is None:
            data = bucket.read_bytes(key)
        else:
            stat = bucket.stat_tuple(key)
            size = stat[0] if stat else 0
            first, last, _ = slice(start, end).indices(size)
            data = bucket.read_at(key, first, max(0, last - first))
        if data is None:
            raise FileNotFoundError(path)
        return data

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        bucket, key = self._target(path)
        if not bucket.put(key, value, only_new=mode == "create"):
            raise FileExistsError(path)

    def _open(self, path, mode="rb", block_size=None, autocommit=True, cache_options=None, **kwargs):
        if mode not in ("rb", "wb", "ab", "xb"):
            raise UnsupportedOperation(f"mode {mode!r}: 'rb', 'wb', 'ab' or 'xb'")
        kwargs.setdefault("cache_type", "readahead")
        size = block_size or _CHUNK
        return TerraceFile(self, path, mode, size, autocommit, cache_options=cache_options, **kwargs)


class TerraceFile(AbstractBufferedFile):
    """A blob open for reading or writing. Written parts are in a temporary blob until the file is closed."""

    def __init__(self, fs, path, mode, block_size, autocommit, **kwargs):
        self.bucket, self.key = fs._bucket(path) if mode == "rb" else fs._target(path)
        self.part = None
        super().__init__(fs, path, mode, block_size, autocommit, **kwargs)
        if mode == "rb" and self.details["type"] == "directory":
            raise IsADirectoryError(path)
        if mode == "ab":
            stat = self.bucket.stat_tuple(self.key)
            self.loc = stat[0] if stat else 0

    def _fetch_range(self, start, end):
        # Size and version are from the same moment. Blocks already read stay those of this version.
        data = self.bucket.read_at(self.key, start, end - start, self.details["version"])
        if data is None:
            raise BlobChangedError(errno.ESTALE, f"{self.path}: the blob was removed after its file had been opened")
        return data

    def _initiate_upload(self):
        self.part = None

    def _upload_chunk(self, final=False):
        chunk = self.buffer.getvalue()
        if self.mode == "ab" and self.autocommit:
            self.bucket.append(self.key, chunk)
            return True
        if final and self.part is None and self.autocommit:
            self._put(chunk)
            return True
        if self.part is None:
            self.part = uuid.uuid4().hex
        self._uploads().append(self.part, chunk)
        if final and self.autocommit:
            self.commit()
        return True

    def _uploads(self):
        if self.bucket.is_scratch:
            return self.fs.store.bucket(_SCRATCH_UPLOADS, scratch=True)
        return self.fs.store.bucket(_UPLOADS)

    def _put(self, chunk):
        if not self.bucket.put(self.key, chunk, only_new=self.mode == "xb"):
            raise FileExistsError(self.path)

    def commit(self):
        """Renames the temporary blob to its final name."""
        if self.part is None:
            return
        uploads = self._uploads()
        if self.mode == "ab":
            self.bucket.append(self.key, uploads.read_bytes(self.part))
            return self.discard()
        if not uploads.move_into(self.part, self.bucket, self.key, self.mode == "xb"):
            error = FileExistsError if self.part in uploads else FileNotFoundError
            self.discard()
            raise error(self.path)
        self.part = None

    def discard(self):
        """Removes the temporary blob."""
        if self.part is not None:
            self._uploads().remove(self.part)
            self.part = None
