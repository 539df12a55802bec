"""Stores and buckets as mappings."""

import atexit
import json
import os
import re
import weakref
from collections.abc import ItemsView, Iterator, Mapping, MutableMapping, ValuesView
from typing import NamedTuple

from . import _native

_UNITS = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_SYNC = {"always": 0.0, "no": None}
_SCAN = 1000

# Open stores. Those still open are closed at exit, so their changes are durable.
_open_stores = weakref.WeakSet()


def _bytes(size, what):
    """A size: bytes, or text as "256MiB"."""
    if isinstance(size, int):
        return size
    match = re.fullmatch(r"\s*(\d+)\s*([KMGT]iB|)\s*", size, re.IGNORECASE)
    if not match:
        raise ValueError(f"{what}={size!r}: a number of bytes, or text as '256MiB'")
    return int(match[1]) * _UNITS[match[2].upper()]


def _seconds(sync):
    """A sync policy: 'always', 'no', seconds, or text as '1s'."""
    if isinstance(sync, (int, float)) and not isinstance(sync, bool) and sync > 0:
        return float(sync)
    if isinstance(sync, str) and sync in _SYNC:
        return _SYNC[sync]
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s)", sync) if isinstance(sync, str) else None
    if not match or not float(match[1]):
        raise ValueError(f"sync={sync!r}: 'always', 'no', seconds, or text as '1s'")
    return float(match[1]) / (1000 if match[2] == "ms" else 1)


class Stat(NamedTuple):
    """Metadata of a blob."""

    size: int
    """Bytes."""
    meta: int
    """The program's own word."""
    version: int
    """Changes with each change of the blob. Valid only until the store is closed."""
    score: float
    """How much it is worth to keep the blob in memory, 0 to 1."""


class Store(_native.Store, Mapping):
    """A store in a directory: a mapping from names to buckets. `bucket` creates new ones. Closed at the end of `with`."""

    def __new__(cls, path, *, name="store", memory="1GiB", capacity=None, sync="1s"):
        path = os.fspath(path)
        most = None if capacity is None else _bytes(capacity, "capacity")
        self = super().__new__(cls, path, name, _bytes(memory, "memory"), most, _seconds(sync))
        self.path = os.path.realpath(path)
        self.name = name
        _open_stores.add(self)
        return self

    def bucket(self, name, *, scratch=False, persist=None):
        """The bucket of this name, which is created if missing.

        scratch  its blobs are gone when the store is opened again
        persist  a directory, initially empty, that has each blob as a file, as of the last sync
        """
        bucket = Bucket(self, name, True)
        if scratch and not bucket.is_scratch:
            bucket.make_scratch()
        if persist is not None:
            bucket.persist(persist)
        return bucket

    def __getitem__(self, name):
        return Bucket(self, name, False)

    def __delitem__(self, name):
        if not self.remove_bucket(name):
            raise KeyError(name)

    def __contains__(self, name):
        return self.has_bucket(name)

    def __iter__(self):
        return iter(self.buckets())

    def __len__(self):
        return len(self.buckets())

    # Stores compare by identity.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def stats(self):
        """The counters and sizes of the cache, as in `terrace stat --json`."""
        return json.loads(self.stats_json())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        # In Python, not in Rust's Drop: `close` releases the interpreter lock while it writes.
        try:
            self.close()
        except OSError as e:
            if not isinstance(e, _forked()):
                raise

    def __repr__(self):
        return f"<terrace_cache.Store {self.path!r} name={self.name!r}{' closed' if self.closed else ''}>"


def _forked():
    from .errors import ForkedError

    return ForkedError


class _Values(ValuesView):
    """Values of a bucket. Blobs removed during the iteration are left out."""

    def __iter__(self):
        return (value for _, value in _items(self._mapping))

    def __contains__(self, value):
        return any(value == other for other in self)


class _Items(ItemsView):
    """Keys and values of a bucket. Blobs removed during the iteration are left out."""

    def __iter__(self):
        return _items(self._mapping)


def _items(bucket):
    for key in bucket:
        value = bucket.read_bytes(key)
        if value is not None:
            yield key, value


class Bucket(_native.Bucket, MutableMapping):
    """A bucket: a mutable mapping from keys (`str`, or `bytes`) to `bytes`.

    Values may be any object with the buffer protocol: bytes, bytearray, memoryview, NumPy arrays. Reads return immutable `bytes`.
    Iteration yields the keys that existed when it began, sorted, as `str`. Bytes that are not UTF-8 become surrogates, as in file names.
    """

    def __new__(cls, store, name, create=True):
        self = super().__new__(cls, store, name, create)
        self.store = store
        return self

    def __getitem__(self, key):
        value = self.read_bytes(key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key, value):
        self.write(key, value, 0, False)

    def __delitem__(self, key):
        if not self.remove(key):
            raise KeyError(key)

    def __iter__(self):
        return iter(self.keys_from(b""))

    # Buckets compare by identity. To compare contents: `dict(a) == dict(b)`.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def values(self):
        return _Values(self)

    def items(self):
        return _Items(self)

    def get(self, key, default=None):
        value = self.read_bytes(key)
        return default if value is None else value

    def put(self, key, value, *, meta=0, only_new=False):
        """Puts a blob with a word of the program's. Returns False if it exists and `only_new` is true."""
        return self.write(key, value, meta, only_new)

    def setdefault(self, key, default=b""):
        while True:
            value = self.read_bytes(key)
            if value is not None:
                return value
            if self.write(key, default, 0, True):
                return bytes(default)

    _NONE = object()

    def pop(self, key, default=_NONE):
        value = self.take(key)
        if value is not None:
            return value
        if default is Bucket._NONE:
            raise KeyError(key)
        return default

    def popitem(self):
        for key in self:
            value = self.take(key)
            if value is not None:
                return key, value
        raise KeyError("the bucket is empty")

    def get_at(self, key, offset, size):
        """At most `size` bytes from `offset`; fewer only at the blob's end."""
        return self._found(key, self.read_at(key, offset, size))

    def readinto(self, key, buffer, offset=0):
        """Fills a writable buffer, such as a NumPy array, from `offset`. Returns the number of bytes, fewer only at the blob's end."""
        return self._found(key, self.fill(key, buffer, offset))

    def truncate(self, key, size):
        """Truncates a blob, or extends it with zeros."""
        if not self.set_size(key, size):
            raise KeyError(key)

    def stat(self, key):
        return Stat(*self._found(key, self.stat_tuple(key)))

    def size(self, key):
        """Size of a blob, bytes."""
        return self.stat(key).size

    def rename(self, old, new, *, bucket=None):
        """Renames a blob, replacing the blob of the new key. Moves it into another bucket, if given."""
        if not self.move_into(old, self if bucket is None else bucket, new, False):
            raise KeyError(old)

    def list(self, prefix=""):
        """Keys that begin with `prefix`, sorted."""
        return self.keys_from(prefix)

    def scan(self) -> Iterator[str]:
        """Keys in table order, without a list of all. A key present during the whole scan comes at least once."""
        cursor = 0
        while True:
            keys, cursor = self.scan_from(cursor, _SCAN)
            yield from keys
            if not cursor:
                return

    def _found(self, key, value):
        if value is None:
            raise KeyError(key)
        return value

    def __repr__(self):
        return f"<terrace_cache.Bucket {self.name!r} of {self.store.path!r}>"


def open(path, *, name="store", memory="1GiB", capacity=None, sync="1s"):
    """Opens the store of this name in a directory. It is created if missing.

    memory    limit of all its memory, bytes or text as "256MiB"
    capacity  maximum size of its file, None: limited by the file system
    sync      when changes become durable: "always" (before a call returns), seconds or text as "1s", "no" (at `sync` and `close`)
    """
    return Store(path, name=name, memory=memory, capacity=capacity, sync=sync)


def destroy(path, *, name="store"):
    """Removes the files of a store that is not in use."""
    _native.destroy(os.fspath(path), name)


def opened(path, name="store"):
    """The store that this process has open in a directory, or None."""
    path = os.path.realpath(path)
    for store in tuple(_open_stores):
        if store.path == path and store.name == name and not store.closed:
            return store
    return None


@atexit.register
def _close_all():
    forked = _forked()
    for store in tuple(_open_stores):
        try:
            store.close()
        except forked:
            pass
