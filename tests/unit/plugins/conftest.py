"""An installer for the tests of this directory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.plugins.dists import Install, open_installer


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    with open_installer(tmp_path, monkeypatch) as install:
        yield install
