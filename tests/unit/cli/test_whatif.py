"""The store and bus that ``omnibus whatif`` uses."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from omnibus.cli.main import _build_parser
from omnibus.cli.whatif import _addresses
from omnibus.errors import BadRequest
from omnibus.up import runs


@pytest.fixture
def two_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two runs of ``omnibus up``, as commands see them."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name in (runs.RUN, "OMNIBUS_STORE_URL", "OMNIBUS_BUS_URL"):
        monkeypatch.delenv(name, raising=False)
    registry = runs.registry_path()
    registry.mkdir(parents=True)
    locks = []
    for name in ("one", "two"):
        directory = tmp_path / name
        directory.mkdir()
        locks.append(runs.take_lock(directory))
        state = runs.RunState(str(directory), os.getpid(), 1.0, f"nats://{name}", f"redis://{name}", name=name)
        (registry / f"{name}.json").write_bytes(msgspec.json.encode(state))
    yield
    for lock in locks:
        assert lock is not None
        os.close(lock)


@pytest.mark.usefixtures("two_runs")
def test_a_question_about_declarations_needs_no_run_and_one_about_a_run_its_name(monkeypatch: pytest.MonkeyPatch):
    parse = _build_parser().parse_args

    assert _addresses(parse(["whatif", "--models", "models.json", "--rate", "2x"])) == {}
    for about in (["--plan", "current"], ["--models", "models.json", "--from", "2h"], []):
        with pytest.raises(BadRequest, match=r"name one of several runs with --run NAME .*: one .*, two"):
            _addresses(parse(["whatif", *about]))
    monkeypatch.setenv(runs.RUN, "two")
    addresses = _addresses(parse(["whatif", "--plan", "current"]))
    assert addresses == {"OMNIBUS_STORE_URL": "redis://two", "OMNIBUS_BUS_URL": "nats://two"}
