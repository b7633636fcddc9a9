"""Stored results of trials of classes, which language models and pipelines have in common."""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from omnibus.checkpoints.report import TrialComparison
from omnibus.checkpoints.safetensors import cache_directory

T = TypeVar("T")

_log = logging.getLogger(__name__)


#: Comparisons of the trials that are repeated.
_comparisons: ContextVar[list[TrialComparison] | None] = ContextVar("comparisons", default=None)


@contextmanager
def repeat_trials() -> Iterator[list[TrialComparison]]:
    """Repeat trials inside the context, whatever is stored, and collect their comparisons."""
    comparisons: list[TrialComparison] = []
    token = _comparisons.set(comparisons)
    try:
        yield comparisons
    finally:
        _comparisons.reset(token)


def record_comparison(comparison: TrialComparison) -> str:
    """Record a ``comparison`` if its trial is repeated. Returns its fault."""
    comparisons = _comparisons.get()
    if comparisons is not None:
        comparisons.append(comparison)
    return comparison.fault


def verdict_path(key: Sequence[Any], prefix: str = "") -> Path:
    """Return the file of the verdict that depends on ``key``, which JSON or ``str`` can write."""
    text = json.dumps(key, sort_keys=True, default=str)
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return cache_directory() / "admission" / f"{prefix}{digest}.json"


def find_stored(path: Path, kind: type[T], trial: Callable[[], T]) -> T:
    """Return the verdict in ``path``, or that of ``trial``, which is stored if the directory can be written.

    In ``repeat_trials``, the trial is always made.
    """
    try:
        if _comparisons.get() is None:
            return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        pass
    verdict = trial()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(msgspec.json.encode(verdict))
        temporary.replace(path)
    except OSError as error:
        _log.warning("the result of a trial is not stored: %s", error)
    return verdict
