"""A control group with a limit of memory, of either version of the interface."""

import itertools
import os
import time
from pathlib import Path

_numbers = itertools.count()


class Group:
    """A group for one command, until the end of `with`; none, if there is no limit."""

    def __init__(self, limit_mib):
        self.limit_mib = limit_mib
        self.dir = None

    def __enter__(self):
        return self.make()

    def __exit__(self, *_):
        self.remove()

    def make(self):
        if self.limit_mib is None:
            return self
        unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
        base = Path("/sys/fs/cgroup" if unified else "/sys/fs/cgroup/memory")
        if unified:
            (base / "cgroup.subtree_control").write_text("+memory")
        self.dir = base / f"terrace-ycsb-{os.getpid()}-{next(_numbers)}"
        self.dir.mkdir()
        (self.dir / ("memory.max" if unified else "memory.limit_in_bytes")).write_text(str(self.limit_mib << 20))
        return self

    def join(self):
        """Called in the new process."""
        if self.dir is not None:
            (self.dir / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self):
        """Its processes have ended, or end at this moment."""
        for _ in range(100 if self.dir else 0):
            try:
                self.dir.rmdir()
                break
            except OSError:
                time.sleep(0.05)
        self.dir = None
