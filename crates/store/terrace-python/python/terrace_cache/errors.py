"""Exceptions of a store. System errors are Python's own: PermissionError, FileNotFoundError, OSError."""


class TerraceError(OSError):
    """An error of a store, with the closest `errno`."""


class StoreFullError(TerraceError):
    """The disk is full, or the store's own maximum is reached. The earlier blob stays."""


class NoMemoryError(TerraceError, MemoryError):
    """The names of buckets and blobs take all of the memory they may."""


class NotDurableError(TerraceError):
    """The last sync failed. Changes are refused until a sync succeeds."""


class StoreInUseError(TerraceError):
    """The store is open in another program, or a second time in this one."""


class StoreDamagedError(TerraceError):
    """A file is damaged, or not a store's."""


class StoreClosedError(TerraceError, ValueError):
    """The store was closed. Also a ValueError, like an operation on a closed file."""


class BucketExistsError(TerraceError, FileExistsError):
    """A bucket of this name exists."""


class BucketRemovedError(TerraceError):
    """The bucket was removed while a Bucket object still used it."""


class BlobChangedError(TerraceError):
    """The blob was changed or removed after its file was opened. `errno` is ESTALE."""


class ForkedError(TerraceError):
    """The process was forked after the store was opened. Only the process that opened it may use it."""
