"""One system of tiny models that tests try candidates on.

Encoder and language model run in separate executors.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.regressions.trial import run_system
from tests.e2e.system import System


@pytest.fixture(scope="package")
def canary_system(tmp_path_factory: pytest.TempPathFactory, vl_checkpoint: Path) -> Iterator[System]:
    with run_system(tmp_path_factory.mktemp("tried"), vl_checkpoint) as system:
        yield system
