"""Examples run, and the type stubs match the package."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent.parent
EXAMPLES = HERE / "examples"
SAID = {
    "buckets.py": "blue and green ['earth', 'mars'] [('planets', 'mars')]\n"
    "True [500000.0, 500001.0, 500002.0]\n"
    "the store was closed; open it again\n",
    "tables.py": "True\n3\n99980001\n72.0\n['arrays', 'tables'] ['tables/cities.csv', 'tables/cities.parquet']\n",
}


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.iterdir()))
def test_examples_say_what_they_should(example, tmp_path):
    ran = subprocess.run([sys.executable, EXAMPLES / example, tmp_path], capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0 and ran.stdout == SAID[example], ran.stdout + ran.stderr


def test_stubs_are_those_of_the_package():
    assert importlib.util.find_spec("mypy"), "`make python-test` installs it"
    how = ["--ignore-missing-stub", "--mypy-config-file", HERE / "pyproject.toml", "--allowlist", HERE / "tests/stubtest.txt"]
    checked = subprocess.run([sys.executable, "-m", "mypy.stubtest", "terrace_cache", *how], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
