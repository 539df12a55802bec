"""Buckets of blobs in a directory, cached in memory.

>>> import terrace_cache
>>> with terrace_cache.open("data", memory="256MiB") as store:
...     images = store.bucket("images")
...     images["earth"] = b"blue"
...     images["earth"]
b'blue'

One process has a store open at a time; its threads share it. With the package fsspec there is a file system `terrace://BUCKET/KEY`.
"""

from . import errors
from ._native import __version__
from ._store import Bucket, Stat, Store, destroy, open, opened
from .errors import TerraceError

__all__ = ["Bucket", "Stat", "Store", "TerraceError", "__version__", "destroy", "errors", "open", "opened"]
