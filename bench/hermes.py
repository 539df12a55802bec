#!/usr/bin/env python3
"""The page of `make bench-hermes`: each part of the study that Hermes' authors published, with the figure that they give, CTE's (iowarp-core 2.3.2) and ours.

    hermes.py DIR [YCSB.csv...]      DIR/hermes.md, from the raw files in DIR and from YCSB's

The only figures that stand here are published ones, and bars. What no raw file has is told to be missing.
"""

import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BENCH = Path(os.environ.get("TERRACE_BIN", ROOT / "target/release")) / "terrace-bench"
WIKI = "Hermes' wiki (github.com/HDFGroup/hermes/wiki), "


@dataclass
class Pair:
    """A system beside another one in the cells of a file whose rows are `where`."""

    file: str
    metric: str
    system: str
    beside: str
    by: str = "cell"
    cells: tuple = ()  # all of them
    bar: float = 0.0  # none
    where: dict = field(default_factory=dict)
    kind: str = "ours"

    def rows(self, directory):
        path = directory / self.file
        if not path.exists():
            return [missing(f"{cell}: {self.system} / {self.beside}", f"no {self.file}") for cell in self.cells or ("all",)]
        with path.open(newline="") as file:
            table = [row for row in csv.DictReader(file) if self.wanted(row)]
        tested = compare(table, self)
        name = lambda cell: " ".join(cell.values())  # noqa: E731
        lines = [self.line(name(one["cell"]), one) for one in tested]
        done = {name(one["cell"]) for one in tested}
        lines += [missing(f"{cell}: {self.system} / {self.beside}", "fewer than two rounds of both") for cell in self.cells if cell not in done]
        return lines or [missing(f"{self.system} / {self.beside}", "fewer than two rounds of both")]

    def wanted(self, row):
        ours = row["system"] in (self.system, self.beside) and all(row.get(key) == value for key, value in self.where.items())
        return ours and (not self.cells or " ".join(row[column] for column in self.by.split(",")) in self.cells)

    def line(self, cell, one):
        part = one["outcome"]["percent"]
        ratio, low, high = (1 + part[key] / 100 for key in ("mean", "low", "high"))
        means = f"{number(one['candidate']['mean'])}, {number(one['baseline']['mean'])}"
        if one["better"] == "lower":
            worse, better = low > 1, high < 1
        else:
            worse, better = high < 1, low > 1
        if self.bar:
            verdict = "met" if ratio >= self.bar else "**missed**"
        elif self.kind != "ours":
            verdict = ""
        else:
            verdict = "**loses**" if worse else "wins" if better else "-"
        return f"| {cell}: {self.system} / {self.beside} | {one['candidate']['runs']} | {means} | {ratio:.2f} ({low:.2f} - {high:.2f}) | {self.bar or '-'} | {verdict} |"


def compare(table, pair):
    """What `terrace-bench compare` says of the rounds."""
    if not table:
        return []
    with tempfile.NamedTemporaryFile("w", suffix=".csv", newline="") as file:
        writer = csv.DictWriter(file, table[0].keys())
        writer.writeheader()
        # A column without a value is no column to compare by.
        writer.writerows({key: value or "-" for key, value in row.items()} for row in table)
        file.flush()
        command = [BENCH, "compare", file.name, "--metric", pair.metric, "--factor", "system", "--baseline", pair.beside, "--by", pair.by]
        done = subprocess.run([*command, "--pair", "round", "--format", "json"], capture_output=True, text=True, check=False)
    if done.returncode:
        return []
    return [one for one in json.loads(done.stdout)["cells"] if (one["outcome"] or {}).get("percent")]


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def missing(what, why):
    return f"| {what} | 0 | not measured: {why} | | | |"


@dataclass
class Part:
    section: str
    title: str
    published: str
    pairs: list
    measured: str = ""
    not_measured: tuple = ()

    def text(self, directory):
        lines = [f"## {self.title}\n", f"Published ({WIKI}{self.section}): {self.published}\n", f"{self.measured}\n"]
        rows = [row for pair in self.pairs for row in pair.rows(directory)]
        if rows:
            lines += ["| cell | n | means of both | ratio (95 %) | bar | |", "|---|---|---|---|---|---|", *rows, ""]
        lines += [f"Not measured: {what}" for what in self.not_measured]
        return lines, rows


def processes(what):
    return Pair("hierarchy.csv", "mib_s", "terrace", "bare", cells=tuple(f"{what}-{n}" for n in (1, 2, 4, 8)), bar=0.95)


def step(system, beside, bar=0.0, kind="ours"):
    return Pair("hierarchy.csv", "mib_s", system, beside, cells=("tiers",), bar=bar, kind=kind)


def engines(beside, bar):
    sizes = tuple(f"size-{n}" for n in ("0.5", "1", "2"))
    return [
        Pair("placement.csv", "mib_s", "min-io-time", beside, cells=("unlike",), bar=bar),
        Pair("placement.csv", "mib_s", "min-io-time", beside, cells=sizes, bar=0.97),
    ]


PARTS = [
    Part("2.02", "Multi-core: 1 MiB by 1 to 8 processes", "put and get of 1 MB by 1 to 48 processes are as fast as the bare device.", [processes("read"), processes("write")],
         "MiB/s of fio on the NVMe device (`bench/hierarchy.sh`, read and write), verified.", ("CTE with a runtime of its own for several processes (clio_run): not tried.",)),
    Part("2.04", "Tiers", "put of 1 MB, 10 GB a node: NVMe added to SSD gives 2.5 times, RAM added to that 2.5 times again.",
         [step("nvme", "ssd", 2.5), step("ram", "nvme", 2.5), step("ram", "ssd"), step("ram", "plain"), step("nvme", "nvme-alone"), step("ssd", "cte-ssd"), step("nvme", "cte-nvme"), step("ram", "cte-ram"),
          step("cte-nvme", "cte-ssd", kind="cte"), step("cte-ram", "cte-nvme", kind="cte")],
         "MiB/s of a new file that is written in pieces of 1 MiB, until it is where the tier keeps it (`bench/hierarchy.sh`, tiers), verified; `plain` is the kernel's page cache, `nvme-alone` the tier without the SSD's share."),
    Part("2.05", "Placement", "MinimizeIoTime is 40 % ahead of round-robin and 34 % of random, over RAM, NVMe and SATA SSD.",
         [*engines("round-robin", 1.40), *engines("random", 1.34), Pair("placement.csv", "mib_s", "targets-2", "targets-1", cells=("equal",), bar=1.8),
          Pair("placement.csv", "mib_s", "cte-max_bw", "cte-round_robin", cells=("cte",), kind="cte"), Pair("placement.csv", "mib_s", "cte-max_bw", "cte-random", cells=("cte",), kind="cte")],
         "MiB/s that both targets are written (`bench/placement.sh`): with room for all; with data of 0.5, 1 and 2 times what memory and the faster target hold; two equal targets. CTE's engines on the same devices."),
    Part("2.06", "Staging", "about 4 times on the reads, with 25 % in RAM and 75 % on NVMe.",
         [Pair("staging.csv", "per_s", "staged", "none", cells=("reads",), bar=4), Pair("staging.csv", "per_s", "staged", "none", cells=("staging",), bar=0.9),
          Pair("staging.csv", "per_s", "staged", "none", cells=("passes",), bar=1)],
         "`bench/staging.sh`: reads after staging; the staging beside as many plain readers; two passes, with the time of the staging.", ("CTE's assimilation engine (CAE): not tried.",)),
    Part("2.07", "Prefetching", "no figure (\"TODO\").",
         [*(Pair("prefetch.csv", "reads_per_s", "ahead", "none", "order", (order,), bar)
            for order, bar in (("sequential", 5), ("streams:4", 5), ("stride:16", 3), ("recorded", 2), ("random", 0.97), ("zipf:0.8", 0.97), ("wrong", 0.97))),
          Pair("cold-sequential.csv", "mib_s", "mount", "plain", "order", ("sequential",), 0.95), Pair("cold-sequential.csv", "mib_s", "mount", "plain", "order", ("streams:4",), 0.9)],
         "Reads of 4 KiB a second of a far source (`bench/prefetch.sh`), and MiB/s of a cold file (`bench/cold-sequential.sh`).", ("CTE: its organizer moves blobs by score; not tried.",)),
    Part("2.08", "Gray-Scott", "L 128, 200,000 steps, an output each 16; no result is given.",
         [Pair("gray-scott.csv", "output_s", "terrace", "plain", cells=(cell,)) for cell in ("written", "durable")] + [Pair("gray-scott.csv", "output_s", "burst", "plain", cells=("durable",))],
         "Seconds of the outputs, fewer are better, in groups of equal memory (`bench/gray-scott.sh`); all outputs are read again and compared.", ("CTE by its mount (clio_cte_fuse): not tried.",)),
]


def devices(directory):
    """Part 2.1: what the devices do, by `devices.py`."""
    lines = ["## Devices\n", f"Published ({WIKI}2.00 and 2.1), put: RAM 6 GB/s, NVMe 0.39 GB/s, SSD 0.51 GB/s; RAM by processes \"TODO\".\n",
             "1 MiB, MiB/s (`bench/devices.py` in `bench/hierarchy.sh`); nvme and ssd are held back. CTE: it measures its devices at each start, and does not tell.\n"]
    path = directory / "hierarchy.json"
    if not path.exists():
        return [*lines, "Not measured: no hierarchy.json.\n"]
    found = json.loads(path.read_text())["device"]
    cells = {(name, one["op"], one["processes"]): one["mib_s"] for name, device in found.items() for one in device["cells"]}
    counts = sorted({key[2] for key in cells})
    lines += ["| device | | " + " | ".join(f"by {n}" for n in counts) + " |", "|---" * (2 + len(counts)) + "|"]
    for name, op in sorted({key[:2] for key in cells}):
        lines.append(f"| {name} | {op} | " + " | ".join(number(cells[name, op, n]) for n in counts) + " |")
    return [*lines, ""]


def ycsb(files):
    lines = ["## YCSB\n", f"Published ({WIKI}2.03): load 33 % ahead of all others; RocksDB 15 % ahead at A; B to D as RocksDB; far ahead of memcached.\n"]
    rows, seen = [], set()
    # The newest first: what it has is not taken from older ones.
    for path in sorted(files, key=lambda path: (path.parent.name, path.name), reverse=True):
        with path.open(newline="") as file:
            table = list(csv.DictReader(file))
        groups = sorted({(row["class"], row["size"], row["system"]) for row in table if row["system"] != "terrace"})
        for name, size, rival in groups:
            where = {"class": name, "size": size, "failed": "0"} | ({"build": "after"} if "build" in table[0] else {})
            for row in Pair(path.name, "ops_per_second", "terrace", rival, "workload,threads", where=where).rows(path.parent):
                cell = (name, size, row.split("|")[1])
                if cell not in seen:
                    rows.append(f"| {name}, {size}, {row[2:]}")
                seen.add(cell)
    told = ", ".join(str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path) for path in files) or "no file: not measured"
    lines.append(f"Operations a second, cells are workload and threads, from {told}. CTE: no interface for Java.\n")
    if rows:
        lines += ["| cell | n | means of both | ratio (95 %) | bar | |", "|---|---|---|---|---|---|", *rows, ""]
    return lines, rows


def metadata(directory):
    """The five tables; Hermes' own figures were measured by this project, in its release 1.0.5 on two cores."""
    older = {"create_bucket": "241", "get_bucket": "817", "destroy_bucket": "-", "create_blob": "170 - 215", "destroy_blob": "708"}
    lines = ["## Metadata\n", f"Published ({WIKI}2.10): five tables, all \"TODO\". Hermes 1.0.5, by this project on two cores: in the table.\n"]
    path = directory / "metadata.json"
    if path.exists():
        cells = json.loads(path.read_text())["cells"]
        shapes = sorted({(one["count"], one["threads"]) for one in cells})
        lines += ["Thousand operations a second, medians, in the program (`terrace-bench metadata`).\n",
                  "| | Hermes 1.0.5 | " + " | ".join(f"{count // 1000} k, {threads}" for count, threads in shapes) + " |", "|---" * (2 + len(shapes)) + "|"]
        rates = {(one["table"], one["count"], one["threads"]): statistics.median(one["ops_per_second"]) for one in cells}
        for table, figure in older.items():
            lines.append(f"| {table.replace('_', ' ')} | {figure} | " + " | ".join(number(rates[table, *shape] / 1000) for shape in shapes) + " |")
    else:
        lines.append("Ours: not measured: no metadata.json.")
    rows = Pair("cte.csv", "ops_per_second", "terrace", "cte", "step", ("create bucket", "get bucket", "create blob", "destroy blob")).rows(directory)
    lines += ["\nBy Python, one thread (`bench/cte.py`), beside CTE, operations a second:\n", "| cell | n | means of both | ratio (95 %) | bar | |", "|---|---|---|---|---|---|", *rows, ""]
    return lines, rows


def main(directory, *files):
    directory = Path(directory).resolve()
    body, lost, gaps = devices(directory), [], []
    told = [(part.title, *part.text(directory)) for part in PARTS]
    told += [("YCSB", *ycsb([Path(file).resolve() for file in files])), ("Metadata", *metadata(directory))]
    for title, lines, rows in told:
        body += lines + [""]
        lost += [f"- {title}: {row.strip('| ')}" for row in rows if "**" in row]
        gaps += [f"- {title}: {row.split('|')[1].strip()}" for row in rows if "not measured" in row]
    about = directory / "about.txt"
    head = ["# Hermes' study, measured here\n", about.read_text() if about.exists() else "", "Means and ratios are of rounds in turn; a bar is met by the mean. Method: bench/README.md, The hierarchy.\n",
            "## Lost\n", *(lost or ["Nothing that was measured."]), "", "## Not measured\n", *(gaps or ["Nothing of what the raw files should have."]), ""]
    page = directory / "hermes.md"
    page.write_text("\n".join(head + body) + "\n")
    print(page)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
