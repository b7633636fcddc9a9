"""Memory that new processes may use."""

from pathlib import Path

import pytest

from omnibus.process.memory import available_bytes


@pytest.mark.parametrize(
    ("meminfo", "limit", "available"),
    [
        ("MemTotal: 900 kB\nMemAvailable: 700 kB\n", "max", 700 << 10),
        ("MemAvailable: 700 kB\n", str(600 << 10), 500 << 10),
        ("", str(600 << 10), 500 << 10),
        ("", "max", None),
    ],
)
def test_memory_is_what_the_machine_and_the_control_group_leave(
    tmp_path: Path, meminfo: str, limit: str, available: int | None
):
    (tmp_path / "meminfo").write_text(meminfo)
    (tmp_path / "cgroup").write_text("0::/\n")
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{100 << 10}\n")

    assert available_bytes(tmp_path / "meminfo", tmp_path / "cgroup", tmp_path) == available
