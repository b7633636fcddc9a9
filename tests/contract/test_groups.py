"""Tests that share an expensive system run in one worker.

pytest-xdist must receive the groups of ``tests/conftest.py``.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_tests_of_one_file_run_in_one_worker():
    command = [sys.executable, "-m", "pytest", "-v", "-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider"]

    process = subprocess.run(
        [*command, "tests/unit/tensors/test_protocol.py", "-k", "malformed"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip

    lines = [line for line in process.stdout.splitlines() if "PASSED" in line]
    assert len(lines) > 2, process.stdout
    assert all(line.rstrip().endswith("@unit/tensors/test_protocol.py") for line in lines), process.stdout
