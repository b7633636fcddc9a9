"""Tiny checkpoints that a test run builds once.

Building one takes up to a second, and a hundred tests need one. Each gets a copy, so it can change the files.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from omnibus_models import tiny

_write = tiny._write_checkpoint


def directory_of_run(factory: pytest.TempPathFactory) -> Path:
    """A directory that all workers of this run have in common."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@contextmanager
def cache_builds(directory: Path) -> Iterator[None]:
    """Cache the results of ``tiny.build`` in ``directory`` until the block ends."""

    def copy_checkpoint(family: str, target: Path, recipe: Mapping[str, Any], marker: dict[str, object]) -> None:
        key = sha256(repr(sorted(marker.items())).encode()).hexdigest()[:16]
        whole = directory / f"{family}-{key}"
        if not tiny._is_complete(whole, marker):
            _write(family, whole, recipe, marker)
        target.parent.mkdir(parents=True, exist_ok=True)
        workshop = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            shutil.copytree(whole, workshop, dirs_exist_ok=True)
            tiny._publish_checkpoint(workshop, target, marker)
        finally:
            shutil.rmtree(workshop, ignore_errors=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny, "_write_checkpoint", copy_checkpoint)
        yield


def build_anew(patch: pytest.MonkeyPatch) -> None:
    """Disable the cache of ``tiny.build`` until ``patch`` is undone."""
    patch.setattr(tiny, "_write_checkpoint", _write)
