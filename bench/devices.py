#!/usr/bin/env python3
"""Device measurements by fio, as the file that `[tier] probe` in terrace.toml names: devices.py [--json] [--mib 1024] [--seconds 2] [--processes 1,2,4] DIRECTORY... > FILE.toml

Reads of 4 KiB at random by one process (`get_latency_us`); reads and writes of 1 MiB at random by each number of processes, of which the best writes are `put_mib_s`.
--json: all of them. Writes end with fsync, inside of their time. The page cache is bypassed where the file system allows it. The file has no name, so nothing is left behind.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile


def fio(path, direct, *options):
    command = ["fio", "--name=device", f"--filename={path}", "--ioengine=psync", f"--direct={direct:d}", "--group_reporting=1", "--output-format=json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"devices.py: fio: {(done.stderr or done.stdout).strip()}")
    # fio may print notes in front.
    return json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0]


def bypasses_cache(path):
    try:
        os.close(os.open(path, os.O_RDWR | os.O_DIRECT))
        return True
    except OSError:
        return False


def measure(directory, options):
    """Latency in microseconds, and MiB a second by operation and number of processes."""
    room = shutil.disk_usage(directory).free >> 20
    if room < 2 * options.mib:
        sys.exit(f"devices.py: {directory}: {room} MiB are free; make room, or give a smaller --mib")
    with tempfile.TemporaryFile(dir=directory) as file:
        path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        direct, size, time = bypasses_cache(path), f"--size={options.mib}m", ("--time_based=1", f"--runtime={options.seconds}", "--norandommap=1")
        file.truncate(options.mib << 20)
        fio(path, direct, "--rw=write", "--bs=1m", "--end_fsync=1", size)
        latency = fio(path, direct, "--rw=randread", "--bs=4k", size, *time)["read"]["clat_ns"]["mean"] / 1000
        rates = {}
        for processes in options.processes:
            for name, kind in (("get", "read"), ("put", "write")):
                job = fio(path, direct, f"--rw=rand{kind}", "--bs=1m", f"--end_fsync={int(kind == 'write')}", f"--numjobs={processes}", size, *time)
                rates[name, processes] = job[kind]["bw_bytes"] / 2**20
    return latency, rates


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--processes", type=lambda text: [int(word) for word in text.split(",")], default=[1, 2, 4])
    parser.add_argument("directories", nargs="+", metavar="DIRECTORY")
    options = parser.parse_args()
    devices = {}
    for directory in map(os.path.realpath, options.directories):
        latency, rates = measure(directory, options)
        cells = [{"op": op, "processes": processes, "mib_s": round(rate, 1)} for (op, processes), rate in rates.items()]
        best = max(rate for (op, _), rate in rates.items() if op == "put")
        devices[directory] = {"get_latency_us": round(latency, 1), "put_mib_s": round(best, 1), "cells": cells}
    if options.json:
        print(json.dumps({"device": devices}))
        return
    for directory, device in devices.items():
        print(f"[device.{json.dumps(directory, ensure_ascii=False)}]\nget_latency_us = {device['get_latency_us']}\nput_mib_s = {device['put_mib_s']}\n")


if __name__ == "__main__":
    main()
