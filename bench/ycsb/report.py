"""The page: terrace beside each other system, with the interval of the ratio; cells that terrace loses are marked."""

import csv
import json
import subprocess
import tempfile

TITLES = {
    ("server", "fits"): "Servers whose records are hashes, all in memory",
    ("server", "4x"): "Servers whose records are hashes, four times the memory",
    ("values", "fits"): "Servers whose records are values, all in memory",
    ("values", "4x"): "Servers whose records are values, four times the memory",
    ("ceiling", "fits"): "Loads of values, where one server stores nothing",
    ("embedded", "fits"): "Stores in the program, all records in memory",
    ("embedded", "4x"): "Stores in the program, four times the memory",
}
CELL = ("workload", "distribution", "threads")


def write_report(figures, terrace_bench, page, about):
    with figures.open(newline="") as file:
        rows = list(csv.DictReader(file))
    parts = [f"# YCSB\n\n{about}\n"]
    for (name, size), title in TITLES.items():
        chosen = [row for row in rows if (row["class"], row["size"]) == (name, size)]
        for rival in sorted({row["system"] for row in chosen} - {"terrace"}):
            parts.append(section(f"{title}: terrace beside {rival}", [row for row in chosen if row["system"] in ("terrace", rival)], rival, terrace_bench))
    parts.append(failures(rows))
    page.write_text("\n".join(parts))


def section(title, rows, rival, terrace_bench):
    good = [row for row in rows if row["failed"] == "0"]
    lines = [f"## {title}\n", "| workload | requests | threads | n | terrace, ops/s | " + rival + " | per cent [95 %] | p99, us | per cent [95 %] | |", "|" + "---|" * 10]
    rates = compare(good, "ops_per_second", rival, terrace_bench)
    p99s = compare(good, "latency_us_p99", rival, terrace_bench)
    lost = won = 0
    for cell, rate in rates.items():
        p99 = p99s[cell]
        verdict = {"lower": "**loses**", "higher": "wins"}.get(word(rate), "")
        lost, won = lost + (verdict == "**loses**"), won + (verdict == "wins")
        figures = f"{mean(rate, 'candidate')} | {mean(rate, 'baseline')} | {percent(rate)}"
        lines.append(f"| {' | '.join(cell)} | {rate['candidate']['runs']} | {figures} | {mean(p99, 'candidate')} / {mean(p99, 'baseline')} | {percent(p99)} | {verdict} |")
    if not rates:
        lines = lines[:1] + ["No cell has the two rounds that an interval needs."]
    lines.append(f"\nOf {len(rates)} cells terrace wins {won} and loses {lost} with 95 % confidence each.\n")
    return "\n".join(lines)


def compare(rows, metric, rival, terrace_bench):
    """The cells that both systems have, by workload, requests and threads."""
    columns = ("system", *CELL, "round", metric)
    with tempfile.NamedTemporaryFile("w", suffix=".csv", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(row | {"distribution": row["distribution"] or "-"} for row in rows)
        file.flush()
        command = [terrace_bench, "compare", file.name, "--metric", metric, "--factor", "system", "--baseline", rival, "--by", ",".join(CELL)]
        done = subprocess.run([*command, "--pair", "round", "--format", "json"], capture_output=True, text=True, check=False)
    if done.returncode:
        return {}
    return {tuple(one["cell"][name] for name in CELL): one for one in json.loads(done.stdout)["cells"] if one["outcome"]}


def word(cell):
    low, high = interval(cell)
    return "" if low is None or low <= 0 <= high else "higher" if low > 0 else "lower"


def interval(cell):
    part = cell["outcome"].get("percent") or {}
    return part.get("low"), part.get("high")


def mean(cell, side):
    return f"{cell[side]['mean']:,.0f}"


def percent(cell):
    part = cell["outcome"].get("percent")
    return f"{part['mean']:+.0f} [{part['low']:.0f}, {part['high']:.0f}]" if part else "one round"


def failures(rows):
    """Measurements in which operations failed; they are in no table, and what follows them was not measured."""
    lines = ["## Not done\n"]
    seen = sorted({(row["class"], row["size"], row["system"], row["workload"], row["threads"]) for row in rows if row["failed"] != "0"})
    for name, size, system, workload, threads in seen:
        some = [row for row in rows if (row["class"], row["size"], row["system"], row["workload"], row["threads"]) == (name, size, system, workload, threads)]
        failed = " ".join(row["failed"] for row in some)
        lines.append(f"- {name}, {size}: {system}, workload {workload}, {threads} threads: operations that failed or were not come to, by round: {failed}")
    lines.append("- Records that are values have no order of keys: no workload e for memcached and terrace's store, nor for what is beside them.")
    return "\n".join(lines) + "\n"
