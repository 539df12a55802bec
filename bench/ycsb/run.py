#!/usr/bin/env python3
"""YCSB (core 0.17.0) against terrace and others in turn; see bench/README.md, YCSB. `make bench-ycsb` builds what it needs.

Each round measures each cell with each system, in one order and in the next round in the reverse one; rounds are added to those that are there. Settings are
variables of the environment, with these defaults:

ROUNDS=3  CLASSES="server values embedded" (and ceiling: loads beside a server that stores nothing)  SIZES=fits  WORKLOADS="a b c d e f"  DISTRIBUTIONS=zipfian  THREADS="1 4 16"
RECORDS=20000      of 1 KB, that fit into memory
OPERATIONS=20000   of a measurement; of workload e, each of whose scans reads 50 records, a fiftieth
MEMORY_MIB=1024    of each system, where the records fit
GROUP_MIB=128      of the control group (as root) for four times the memory, SIZES="fits 4x": so many MiB times four records of 1 KB
OUT=DIR            figures (ycsb.csv) and page (report.md); default target/ycsb/report
DATA_DIR=/var/tmp  where the systems keep their data: a real disk, not tmpfs
TERRACE_BIN=DIR    default target/release
VERIFY=1           values that are read are compared with those that were written (YCSB's dataintegrity); figures are not those of a run without

All of it in the usual size, a day or more:
SIZES="fits 4x" DISTRIBUTIONS="zipfian uniform" RECORDS=1000000 OPERATIONS=1000000 MEMORY_MIB=4096 GROUP_MIB=512
"""

import csv
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from group import Group
from report import write_report
from systems import CLASSES, Failed

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "target/ycsb"
# Processor time is that of an operation: the server's, and that of Java with all that it does, its start too.
COLUMNS = (
    "class", "size", "system", "workload", "distribution", "threads", "round", "ops_per_second", "latency_us_p99", "failed", "server_cpu_us", "client_cpu_us",
)
# Parts of the operations: as in the files of these names that come with YCSB.
MIXES = {
    "load": {},
    "load-index": {},
    "a": {"read": 0.5, "update": 0.5},
    "b": {"read": 0.95, "update": 0.05},
    "c": {"read": 1},
    "d": {"read": 0.95, "insert": 0.05},
    "e": {"scan": 0.95, "insert": 0.05},
    "f": {"read": 0.5, "readmodifywrite": 0.5},
}
# A program with a store in it gets so much more memory than a server, for Java: 60 MiB of its own and 20 of text. What is more would be page cache for RocksDB.
JAVA_MIB = 96


def setting(name, default):
    value = os.environ.get(name) or default
    return int(value) if isinstance(default, int) else value


class Bench:
    def __init__(self, work):
        self.work = work
        self.rounds = setting("ROUNDS", 3)
        self.classes = setting("CLASSES", "server values embedded").split()
        self.sizes = setting("SIZES", "fits").split()
        self.workloads = setting("WORKLOADS", "a b c d e f").split()
        self.distributions = setting("DISTRIBUTIONS", "zipfian").split()
        self.threads = [int(n) for n in setting("THREADS", "1 4 16").split()]
        self.records = setting("RECORDS", 20_000)
        self.operations = setting("OPERATIONS", 20_000)
        self.memory_mib = setting("MEMORY_MIB", 1024)
        self.group_mib = setting("GROUP_MIB", 128)
        self.out = Path(setting("OUT", str(BUILT / "report")))
        self.bin = Path(setting("TERRACE_BIN", str(ROOT / "target/release")))
        self.library = BUILT / "libterrace_ycsb.so"
        self.classpath = f"{BUILT}/classes:{(BUILT / 'classpath').read_text().strip()}"
        unknown = [name for name in self.workloads if name not in MIXES]
        if unknown or not {"fits", "4x"}.issuperset(self.sizes) or not set(CLASSES).issuperset(self.classes):
            sys.exit(f"bench-ycsb: WORKLOADS of a b c d e f, SIZES of fits 4x, CLASSES of {' '.join(CLASSES)}: {unknown}")

    def csv(self):
        return self.out / "ycsb.csv"

    def add(self, row):
        with self.csv().open("a", newline="") as file:
            csv.DictWriter(file, COLUMNS).writerow(row)

    def first_round(self):
        """The number of the first new round; a page begins where there are none."""
        self.out.mkdir(parents=True, exist_ok=True)
        if not self.csv().exists():
            self.csv().write_text(",".join(COLUMNS) + "\n")
            return 1
        with self.csv().open(newline="") as file:
            return 1 + max((int(row["round"]) for row in csv.DictReader(file)), default=0)

    def run(self):
        first = self.first_round()
        for number in range(first, first + self.rounds):
            for size in self.sizes:
                for threads in self.threads:
                    for name in self.classes:
                        self.measure_class(name, size, threads, number)
            print(f"round {number} of {first + self.rounds - 1}", file=sys.stderr, flush=True)
        write_report(self.csv(), self.bin / "terrace-bench", self.out / "report.md", self.about())
        print(f"{self.out / 'report.md'}", file=sys.stderr)

    def about(self):
        """What the last rounds were measured with."""
        fits = f"{self.records:,} records in {self.memory_mib} MiB" if "fits" in self.sizes else ""
        four = f"{4 * 1024 * self.group_mib:,} in a group of {self.group_mib} MiB" if "4x" in self.sizes else ""
        sizes = "; ".join(size for size in (fits, four) if size)
        return f"{sizes}; {self.operations:,} operations a measurement; Linux {platform.release()}, {os.cpu_count()} processors."

    def measure_class(self, name, size, threads, number):
        """Two turns on empty systems: workloads without scans, then the one with them, for which servers keep an index of their keys."""
        turns = [("load", [one for one in self.workloads if one != "e"]), ("load-index", [one for one in self.workloads if one == "e"])]
        for load, workloads in turns:
            kinds = [kind for kind in CLASSES[name] if load == "load" or kind.scans]
            if not workloads or len(kinds) < 2:
                continue
            if not all(kind.keeps for kind in kinds):
                workloads = []
            limit = self.group_mib if size == "4x" else None
            systems = [kind(self, self.work / f"{name}-{kind.name}", limit) for kind in kinds]
            try:
                self.measure_turn(name, size, threads, number, systems if number % 2 else systems[::-1], load, workloads)
            finally:
                for system in systems:
                    system.stop()

    def measure_turn(self, name, size, threads, number, systems, load, workloads):
        cells = [(load, "")] + [(workload, distribution) for workload in workloads for distribution in self.distributions]
        for system in systems:
            system.start()
        # What has failed once is left out until the next turn: it has not all the records.
        broken = set()
        for workload, distribution in cells:
            for system in systems:
                if system in broken:
                    continue
                row = {"class": name, "size": size, "system": system.name, "workload": workload, "distribution": distribution}
                figures = self.measure(system, size, workload, distribution, threads)
                self.add(row | {"threads": threads, "round": number} | figures)
                if figures["failed"]:
                    broken.add(system)

    def measure(self, system, size, workload, distribution, threads):
        records = self.records if size == "fits" else 4 * 1024 * self.group_mib
        asked = "latest" if (workload, distribution) == ("d", "zipfian") else distribution or "uniform"
        operations = self.operations // 50 if workload == "e" else self.operations
        settings = {
            "workload": "site.ycsb.workloads.CoreWorkload",
            "recordcount": records,
            "operationcount": operations,
            "requestdistribution": asked,
            "index": str(workload in ("e", "load-index")).lower(),
        }
        if os.environ.get("VERIFY"):
            settings["dataintegrity"] = "true"
        for part in ("read", "update", "insert", "scan", "readmodifywrite"):
            settings[f"{part}proportion"] = MIXES[workload].get(part, 0)
        command = ["java", "-Xmx192m", "-XX:+UseSerialGC", "-cp", self.classpath, "site.ycsb.Client", "-load" if "load" in workload else "-t"]
        command += ["-db", f"terrace.ycsb.{system.binding}", "-threads", str(threads)]
        for key, value in (settings | system.settings()).items():
            command += ["-p", f"{key}={value}"]
        limit_mib = system.client_limit_mib(JAVA_MIB)
        if limit_mib is not None:
            drop_page_cache()
        before = (system.cpu_s(), client_cpu_s())
        with Group(limit_mib) as group:
            done = subprocess.run(command, capture_output=True, text=True, preexec_fn=group.join, check=False)
        wanted = records if "load" in workload else operations
        cpu = [f"{(now - then) * 1e6 / wanted:.2f}" for now, then in zip((system.cpu_s(), client_cpu_s()), before)]
        return self.figures(done, wanted) | dict(zip(COLUMNS[-2:], cpu))

    def figures(self, done, wanted):
        """What YCSB has printed. Operations that it did not come to have failed, too."""
        rate, p99, good, bad = "", 0.0, 0, 0
        for line in done.stdout.splitlines():
            what, _, rest = line.partition(", ")
            label, _, value = rest.partition(", ")
            if what == "[OVERALL]" and label.startswith("Throughput"):
                rate = f"{float(value):.1f}"
            elif label.startswith("99thPercentile") and what not in ("[CLEANUP]", "[READ-MODIFY-WRITE]"):
                p99 = max(p99, float(value))
            elif label == "Return=OK" and what != "[VERIFY]":
                good += int(value)
            elif label.startswith("Return=") and label != "Return=OK":
                bad += int(value)
        if done.returncode or not rate:
            print(done.stderr[-2000:], file=sys.stderr)
        return {"ops_per_second": rate, "latency_us_p99": p99, "failed": bad + max(0, wanted - good - bad)}


def drop_page_cache():
    """Pages of files that an ended group has read stay in memory, and a program in a new group reads them without being charged for them."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("1")


def client_cpu_s():
    """Of all programs that have ended; servers are ended between measurements only."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main():
    # Servers and groups end with the run.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for program in ("java", "redis-server", "memcached"):
        if not shutil.which(program):
            sys.exit(f"bench-ycsb: no {program}: run `make bench-ycsb`, which installs it")
    with tempfile.TemporaryDirectory(prefix="terrace-bench-ycsb.", dir=setting("DATA_DIR", "/var/tmp")) as work:
        began = time.monotonic()
        try:
            Bench(Path(work)).run()
        except Failed as e:
            sys.exit(f"bench-ycsb: {e}")
        print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
