#!/usr/bin/python3
"""Programs of scientific computing, unmodified, on the plain directory and on one that terrace serves.

    run.py [PROGRAM...]     all of them by default; `run.py --list` names them. With IOR=DIR, a checkout that is built, IOR and mdtest, too

Each program runs on four sides: the plain directory, `terrace mount`, `terrace run`, `terrace run --passthrough off`. What it says and
what it leaves in the directory, read on the plain directory when terrace is gone, must be the same on all sides, byte for byte.
Exit code 1: something differs. Settings: TERRACE (target/release/terrace), MEMORY (64MiB: less than the larger files), DIR (/var/tmp).
"""
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TERRACE = os.environ.get("TERRACE", str(HERE.parent.parent / "target/release/terrace"))
MEMORY = os.environ.get("MEMORY", "64MiB")
# Debian's: its modules are built for Debian's Python.
PYTHON = "/usr/bin/python3"
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", "--mca", "btl", "self,vader", "--mca", "btl_vader_single_copy_mechanism", "none"]
# 108 MiB of outputs.
SIZE, STEPS, PLOTGAP = "96", "32", "4"
SIDES = ["plain", "mount", "run", "run-off"]


def mpi(script, *args, io="ompio"):
    return [*MPIRUN, "--mca", "io", io, PYTHON, str(HERE / script), *args]


PROGRAMS = {
    # h5py's own tests, files in the directory.
    "h5py-tests": [PYTHON, str(HERE / "h5py_tests.py")],
    # HDF5's own benchmark, whose file stays.
    "h5perf": ["bash", str(HERE / "h5perf.sh")],
    "hdf5-mpi": mpi("hdf5_mpi.py"),
    "mpi-io-ompio": mpi("mpi_io.py"),
    "mpi-io-romio": mpi("mpi_io.py", io="romio321"),
    "netcdf": [PYTHON, str(HERE / "netcdf.py")],
    "pnetcdf": ["bash", str(HERE / "pnetcdf.sh")],
    "gray-scott": mpi("gray_scott.py", "out.h5", SIZE, STEPS, PLOTGAP),
}


if "IOR" in os.environ:
    # Of a checkout of github.com/hpc/ior: IOR and mdtest say times, so that only what they leave is compared; both check what they read.
    IOR = Path(os.environ["IOR"]).resolve()
    for name, more in (("shared", []), ("file-a-process", ["-F"]), ("collective", ["-a", "MPIIO", "-c"])):
        options = ["-w", "-r", "-W", "-R", "-C", "-e", "-k", "-t", "256k", "-b", "4m", "-s", "6", "-G", "27", "-o", "ior.data", "-O", "summaryFile=/dev/null"]
        PROGRAMS[f"ior-{name}"] = ["bash", "-c", '"$@" > /dev/null', "ior", *MPIRUN, str(IOR / "src/ior"), *options, *more]
    options = ["-n", "400", "-d", "mdtest", "-w", "3901", "-e", "3901", "-X", "-z", "2", "-b", "3"]
    PROGRAMS["mdtest"] = ["bash", "-c", '"$@" > /dev/null', "mdtest", *MPIRUN, str(IOR / "src/mdtest"), *options]


def served(side, command, work):
    """The command on a side, in its directory."""
    if side == "plain":
        return subprocess.run(command, cwd=work, env=environment(work), capture_output=True, text=True, timeout=900)
    if side == "mount":
        at = work.with_name(work.name + "-mounted")
        at.mkdir()
        subprocess.run([TERRACE, "mount", str(work), str(at), "--memory", MEMORY], check=True)
        try:
            return subprocess.run(command, cwd=at, env=environment(at), capture_output=True, text=True, timeout=900)
        finally:
            subprocess.run([TERRACE, "umount", str(at)], check=True)
            at.rmdir()
    off = ["--passthrough", "off"] if side == "run-off" else []
    run = [TERRACE, "run", "--on", str(work), "--memory", MEMORY, *off, "--", *command]
    return subprocess.run(run, cwd=work, env=environment(work), capture_output=True, text=True, timeout=900)


def environment(work):
    # Files that a program makes for itself are made here, too.
    return {**os.environ, "TMPDIR": str(work), "HDF5_USE_FILE_LOCKING": "TRUE", "OMPI_MCA_orte_tmpdir_base": "/tmp"}


def digest(work):
    """Names, modes, sizes and content of all that is there."""
    all_of_it = hashlib.sha256()
    size = 0
    for path in sorted(work.rglob("*")):
        stat = path.lstat()
        all_of_it.update(f"{path.relative_to(work)} {stat.st_mode:o} ".encode())
        if path.is_file():
            size += stat.st_size
            with open(path, "rb") as file:
                all_of_it.update(hashlib.file_digest(file, "sha256").digest())
    return all_of_it.hexdigest()[:16], size


def main(names):
    unknown = [name for name in names if name not in PROGRAMS]
    if unknown:
        sys.exit(f"{sys.argv[0]}: there is no {unknown[0]}; there are {', '.join(PROGRAMS)}")
    base = Path(tempfile.mkdtemp(prefix="terrace-hpc.", dir=os.environ.get("DIR", "/var/tmp")))
    differing = 0
    print(f"{'program':15} {'side':9} {'seconds':>8} {'MiB left':>9}  result")
    for name in names or PROGRAMS:
        expected = None
        for side in SIDES:
            # The same name on each side, for programs that write it down.
            work = base / "work"
            work.mkdir()
            begun = time.monotonic()
            ended = served(side, PROGRAMS[name], work)
            seconds = time.monotonic() - begun
            left, size = digest(work)
            got = (ended.returncode, ended.stdout.replace(str(work) + "-mounted", str(work)), left)
            if expected is None:
                expected = got
                result = "as it should be" if ended.returncode == 0 else "FAILED"
            else:
                result = "the same" if got == expected else "DIFFERS"
            if result in ("FAILED", "DIFFERS"):
                differing += 1
                parts = [part for part, a, b in zip(("exit code", "output", "files"), got, expected) if a != b]
                result += f": {', '.join(parts)}\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}"
            print(f"{name:15} {side:9} {seconds:8.2f} {size / 2**20:9.1f}  {result}", flush=True)
            shutil.rmtree(work)
    base.rmdir()
    sys.exit(1 if differing else 0)


if sys.argv[1:] == ["--list"]:
    print("\n".join(PROGRAMS))
else:
    main(sys.argv[1:])
