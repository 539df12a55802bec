#!/usr/bin/env python3
"""Buckets and blobs by Python: terrace_cache and CTE (iowarp-core 2.3.2, the successor of Hermes) in turn; see bench/README.md, Names.

    pip install iowarp-core==2.3.2 target/wheels/*.whl        (make python)
    python bench/cte.py OUT.csv [COUNT [ROUNDS]]

Each measurement is a process of its own with a store of its own in memory, CTE with its runtime in the process. A bucket is a tag there, and cannot be
removed. Blobs have 64 bytes; the store is asked for them afterwards.
"""

import csv
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

VALUE = bytes(range(64))
CONFIG = """
runtime: {num_threads: 2}
compose:
  - {mod_name: clio_bdev, pool_name: "ram::chi_default_bdev", pool_query: local, pool_id: "301.0", bdev_type: ram, capacity: 512m}
  - mod_name: clio_cte_core
    pool_name: cte_main
    pool_query: local
    pool_id: "512.0"
    storage: [{path: "ram::cte_ram_tier1", bdev_type: ram, capacity_limit: 512m, score: 1.0}]
"""


class Terrace:
    def __init__(self, work):
        import terrace_cache

        self.bucket = self.find = terrace_cache.open(work, memory="512MiB").bucket
        self.blobs = self.bucket("blobs")
        self.put, self.remove = self.blobs.__setitem__, self.blobs.__delitem__

    def names(self):
        return list(self.blobs)


class Cte:
    def __init__(self, work):
        config = Path(work, "clio.yaml")
        config.write_text(CONFIG)
        os.environ |= {"CLIO_SERVER_CONF": str(config), "CLIO_STORAGE_ROOT": work, "HOME": work, "CTP_LOG_LEVEL": "error"}
        import iowarp_core  # noqa: F401, makes the next one loadable
        import iowarp_core.ext.clio_cte_core_ext as cte

        if not (cte.clio_init(cte.RuntimeMode.kClient, True) and cte.initialize_cte("", cte.PoolQuery.Dynamic())):
            sys.exit("CTE does not start")
        self.bucket = self.find = cte.Tag
        self.blobs = cte.Tag("blobs")
        self.put, client, tag = self.blobs.PutBlob, cte.get_cte_client(), self.blobs.GetTagId()
        self.remove = lambda key: client.DelBlob(tag, key)

    def names(self):
        return self.blobs.GetContainedBlobs()


def measure(system, work, count):
    """Prints the rate of each kind of operation."""
    store = {"terrace": Terrace, "cte": Cte}[system](work)
    keys = [f"name-{i:08}" for i in range(count)]
    steps = {"create bucket": store.bucket, "get bucket": store.find, "create blob": lambda key: store.put(key, VALUE), "destroy blob": store.remove}
    for step, do in steps.items():
        began = time.perf_counter()
        for key in keys:
            do(key)
        print(f"{step},{count / (time.perf_counter() - began):.0f}", flush=True)
        if step.endswith("blob"):
            assert sorted(store.names()) == (keys if step == "create blob" else []), step
    # CTE's runtime does not end by itself.
    os._exit(0)


def main(out, count=20000, rounds=6):
    with open(out, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("system", "round", "step", "ops_per_second"))
        for number in range(int(rounds)):
            for system in ("terrace", "cte") if number % 2 else ("cte", "terrace"):
                with tempfile.TemporaryDirectory(prefix="terrace-bench-cte.", dir="/var/tmp") as work:
                    command = [sys.executable, __file__, "measure", system, work, str(count)]
                    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
                rows.writerows((system, number + 1, *line.split(",")) for line in done.stdout.splitlines() if line.count(",") == 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        measure(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    elif len(sys.argv) > 1:
        main(*sys.argv[1:])
    else:
        sys.exit(__doc__)
