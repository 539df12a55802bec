"""The systems that are measured: servers, and stores inside the program."""

import getpass
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from group import Group

# Of a control group this part is the cache that a system is told to have; the rest is for what it needs besides.
CACHE_PART = 7 / 8


class Failed(Exception):
    """A system does not do what it must for a measurement."""


def tree_cpu_s(pid):
    """Processor time of a process and of those that it has started, with those that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    except OSError:
        return 0.0
    own = sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    return own + sum(tree_cpu_s(child) for child in children.split())


class System:
    """One system without data. `bench`: settings of the run; `limit_mib`: of its control group, None where the data fit."""

    scans = True
    # Of one that keeps nothing only loads can be measured.
    keeps = True

    def __init__(self, bench, directory, limit_mib):
        self.bench, self.dir, self.limit_mib = bench, directory, limit_mib
        self.mib = bench.memory_mib if limit_mib is None else int(limit_mib * CACHE_PART)

    def start(self):
        self.dir.mkdir()

    def cpu_s(self):
        """Processor time that its own processes have had."""
        return 0.0

    def stop(self):
        shutil.rmtree(self.dir, ignore_errors=True)


class Server(System):
    """A process that listens on a port of this machine."""

    process = None

    def client_limit_mib(self, _java_mib):
        return None

    def settings(self):
        return {"port": self.port}

    def cpu_s(self):
        return tree_cpu_s(self.process.pid)

    def start(self):
        super().start()
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]
        self.group = Group(self.limit_mib).make()
        log = (self.dir.parent / f"{self.name}.log").open("w")
        self.process = subprocess.Popen(self.command(), stdout=log, stderr=log, preexec_fn=self.group.join)
        for _ in range(400):
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.05)
        raise Failed(f"{self.name} does not answer: {(self.dir.parent / f'{self.name}.log').read_text()[-500:]}")

    def end(self):
        self.process.terminate()

    def stop(self):
        if self.process is not None:
            self.end()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.group.remove()
        super().stop()


class TerraceServer(Server):
    name, binding = "terrace", "RespDb"
    door = "--port"

    def command(self):
        doors = ["--unix", self.dir / "socket", self.door, str(self.port)]
        return [self.bench.bin / "terrace", "serve", "kv", "--dir", self.dir, "--memory", f"{self.mib}MiB", *doors, "--sync", "1s"]

    def end(self):
        subprocess.run([self.bench.bin / "terrace", "umount", self.dir], capture_output=True, check=False)


class TerraceValues(TerraceServer):
    """Records are values, by memcached's protocol: the client is the same for both."""

    binding, scans = "MemcachedDb", False
    door = "--memcached"


class Redis(Server):
    """With as much durability as terrace has by default."""

    name, binding = "redis", "RespDb"

    def command(self):
        durable = ["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]
        return ["redis-server", "--port", str(self.port), "--dir", self.dir, "--maxmemory", f"{self.mib}mb", *durable]


class Memcached(Server):
    """Not durable at all. With more data than memory, its store on the disk takes what is older than nothing: by default it drops most of a load instead."""

    name, binding, scans = "memcached", "MemcachedDb", False

    def command(self):
        mib, disk = self.mib, []
        if self.limit_mib is not None:
            # The rest of the group is for its buffers and for cached pages of the file.
            mib = self.limit_mib * 3 // 4
            disk = ["-o", f"ext_path={self.dir}/ext:{32 * self.limit_mib}M,ext_item_age=0,ext_threads=2,ext_wbuf_size=8"]
        return ["memcached", "-u", getpass.getuser(), "-l", "127.0.0.1", "-p", str(self.port), "-m", str(mib), *disk]


class Nothing(Server):
    """Answers, and stores nothing: what a client and two system calls a request take."""

    name, binding, scans, keeps = "nothing", "MemcachedDb", False, False

    def command(self):
        return [self.bench.bin / "terrace-bench", "nothing", "--port", str(self.port)]


class Embedded(System):
    """A store in the program of YCSB; that opens it anew for each measurement, before its clock starts."""

    def client_limit_mib(self, java_mib):
        return None if self.limit_mib is None else self.limit_mib + java_mib

    def settings(self):
        return {"dir": self.dir, "memory": self.mib << 20, "library": self.bench.library}


class TerraceStore(Embedded):
    name, binding, scans = "terrace", "StoreDb", False


class RocksDb(Embedded):
    name, binding = "rocksdb", "RocksDb"


# The first of each class is compared with the others.
CLASSES = {
    "server": (TerraceServer, Redis),
    "values": (TerraceValues, Memcached),
    "embedded": (TerraceStore, RocksDb),
    "ceiling": (TerraceValues, Memcached, Nothing),
}
