"""One system of tiny models on which candidates are tried, an encoder and a language model apart."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.regressions.trial import serving
from tests.e2e.system import System


@pytest.fixture(scope="package")
def tried(tmp_path_factory: pytest.TempPathFactory, vl_checkpoint: Path) -> Iterator[System]:
    with serving(tmp_path_factory.mktemp("tried"), vl_checkpoint) as system:
        yield system
