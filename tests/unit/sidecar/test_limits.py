"""The sidecar does not promise more memory than its container may use."""

import os
from pathlib import Path

import pytest

from omnibus.errors import ArenaFull, Fatal
from omnibus.process.memory import memory_limit
from omnibus_sidecar import backing as limits


def _make_groups(directory: Path, **limit: str) -> tuple[Path, Path]:
    """Create a process in the group /a/b; ``limit`` by the group's last name, with ``root`` around them."""
    (directory / "cgroup").write_text("3:cpu:/elsewhere\n0::/a/b\n")
    root = directory / "fs"
    places = {"root": root, "a": root / "a", "b": root / "a" / "b"}
    places["b"].mkdir(parents=True)
    for name, text in limit.items():
        (places[name] / "memory.max").write_text(f"{text}\n")
    return directory / "cgroup", root


@pytest.mark.parametrize(
    ("limit", "limit_bytes"),
    [({}, None), ({"a": "max"}, None), ({"root": "7000"}, 7000), ({"root": "max", "a": "5000", "b": "9000"}, 5000)],
)
def test_the_tightest_of_the_groups_around_a_process_is_its_limit(tmp_path, limit, limit_bytes):
    assert memory_limit(*_make_groups(tmp_path, **limit)) == limit_bytes


def test_an_arena_that_its_container_can_never_hold_is_refused_with_the_setting_to_change(tmp_path):
    place = _make_groups(tmp_path, b=str(64 << 20))

    limits.check_arena_size(63 << 20, str(tmp_path), *place)

    with pytest.raises(Fatal, match=r"64 MiB.*64 MiB.*OMNIBUS_SIDECAR_ARENA_MIB"):
        limits.check_arena_size(64 << 20, str(tmp_path), *place)


def test_an_arena_for_which_there_is_no_room_now_is_warned_of(tmp_path, caplog):
    room = os.statvfs(tmp_path)

    limits.check_arena_size(1 << 20, str(tmp_path))
    assert not caplog.text
    limits.check_arena_size((room.f_bavail + 1000) * room.f_frsize, str(tmp_path))

    assert "MiB free now" in caplog.text


@pytest.mark.parametrize(
    ("used_bytes", "cached_bytes", "free"), [(9000, 0, 1000), (9000, 300, 1600), (9900, 5000, 10_100)]
)
def test_memory_that_the_group_has_not_is_refused_and_caches_give_way(tmp_path, used_bytes, cached_bytes, free):
    place = _make_groups(tmp_path, a="10000", b="max")
    group = place[1] / "a"
    (group / "memory.current").write_text(f"{used_bytes}\n")
    (group / "memory.stat").write_text(f"anon 5\ninactive_file {cached_bytes}\nactive_file {cached_bytes}\n")

    limits.require(free, *place)

    with pytest.raises(ArenaFull, match=f"leaves {free} bytes"):
        limits.require(free + 1, *place)


def test_a_machine_without_such_groups_has_no_limit(tmp_path):
    assert memory_limit(tmp_path / "none", tmp_path) is None
