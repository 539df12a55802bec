"""What a store raises. Errors of the system itself are Python's own: PermissionError, FileNotFoundError, OSError."""


class TerraceError(OSError):
    """An error of a store; `errno` is the one that comes closest."""


class StoreFullError(TerraceError):
    """The disk, or the store's own maximum, is full. The blob before stands."""


class NoMemoryError(TerraceError, MemoryError):
    """The names of buckets and blobs take all of the memory that they may."""


class NotDurableError(TerraceError):
    """The last sync has failed; no change is taken until a sync succeeds."""


class StoreInUseError(TerraceError):
    """Another program, or another opening in this one, uses the store."""


class StoreDamagedError(TerraceError):
    """A file is not what a store wrote."""


class StoreClosedError(TerraceError, ValueError):
    """The store was closed, as an operation on a closed file."""


class BucketExistsError(TerraceError, FileExistsError):
    """There is a bucket of this name."""


class BucketRemovedError(TerraceError):
    """The bucket was removed while an object of it was in use."""


class BlobChangedError(TerraceError):
    """The blob was changed or removed after its file had been opened; `errno` is ESTALE."""


class ForkedError(TerraceError):
    """The process was forked after the store had been opened; the store is that of the process before."""
