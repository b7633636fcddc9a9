"""A NATS server with a full disk recovers once there is room."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from omnibus.process.spec import PACKAGE_PATH
from omnibus.up.disk import Storage
from tests.mounts import find_unshare

ROOT = Path(__file__).parents[3]

WITHIN = 120  # seconds


@pytest.mark.parametrize("story", ["stays_up", "restarted_meanwhile"])
def test_records_go_on_once_a_full_disk_has_room_again(tmp_path: Path, story: str):
    process = subprocess.run(
        [*find_unshare(), sys.executable, "-m", "tests.unit.up.full_disk", str(tmp_path), story],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{PACKAGE_PATH}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=WITHIN,
    )

    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout) == {"before": True, "full": False, "after": True}


@pytest.mark.parametrize(("free", "fits"), [(0, False), (39, False), (41, True)])
def test_there_is_room_when_a_new_server_would_allow_what_is_reserved(free: int, fits: bool):
    mib = 1 << 20

    assert Storage(storage=10 * mib, reserved_storage=40 * mib).fits_in(free * mib) is fits
