"""Small random checkpoints with the real architecture classes, 1 to 2 MiB.

They are built offline in seconds. Their answers are nonsense, but they contain every part of the real path: processors,
chat template, tokenizer, every component, voices. Weights are spread so that another image changes the answer.
"""

import importlib
import json
import os
import pkgutil
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omnibus import errors

# Raise when a recipe changes, so that checkpoints of an older recipe do not count as current.
RECIPE = 4
MARKER = "tiny.json"
FAMILIES = tuple(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
_WIDE = ("qwen2", "qwen3", "qwen2_vl", "qwen2_5_vl", "qwen2_5_omni", "qwen3_vl", "llava", "gemma3")


def build(
    family_name: str, directory: str | Path, seed: int = 0, llm_seed: int | None = None, *, wide: bool = False
) -> Path:
    """Write the tiny checkpoint of a family to ``directory`` and return it; skip a complete one.

    With an ``llm_seed``, the LLM (the thinker) gets other weights, and the rest those of ``seed``. Such a model can
    share its encoders with the one built without it. ``wide`` selects an LLM with heads of 32, because vLLM's kernels
    for CPUs support no smaller ones. For Gemma 3, it selects another size with the same encoder.

    The write is atomic: the checkpoint is written next to its place and renamed. It replaces the same checkpoint of an
    older recipe. Raises ``NotFound`` for an unknown family and ``Fatal`` if the directory contains something else.
    """
    if family_name not in FAMILIES:
        raise errors.NotFound(f"no tiny checkpoint for {family_name!r}; known: {', '.join(FAMILIES)}")
    if wide and family_name not in _WIDE:
        raise errors.NotFound(f"{family_name} has no wide form; there is one of {', '.join(_WIDE)}")
    target = Path(directory).absolute()
    marker: dict[str, object] = {"family": family_name, "seed": seed, "recipe": RECIPE}
    if llm_seed is not None:
        marker["llm_seed"] = llm_seed
    recipe: dict[str, Any] = {"seed": seed, "llm_seed": llm_seed}
    if wide:
        recipe["wide"] = marker["wide"] = True
    if not _is_complete(target, marker):
        _write_checkpoint(family_name, target, recipe, marker)
    return target


def _is_complete(target: Path, marker: dict[str, object]) -> bool:
    if not target.exists() or not any(target.iterdir()):
        return False
    file = target / MARKER
    content = json.loads(file.read_text()) if file.exists() else {}
    if content == marker:
        return True
    if {**content, "recipe": RECIPE} == marker:
        return False
    raise errors.Fatal(f"{target} contains another checkpoint; remove it or choose another directory")


def _write_checkpoint(family_name: str, target: Path, recipe: Mapping[str, Any], marker: dict[str, object]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    workshop = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        importlib.import_module(f"{__name__}.{family_name}").write(workshop, **recipe)
        (workshop / MARKER).write_text(json.dumps(marker))
        _make_readable(workshop)
        _publish_checkpoint(workshop, target, marker)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def _make_readable(workshop: Path) -> None:
    # Private modes of temporary directories and weight files would lock out a service under another user.
    workshop.chmod(0o755)
    for path in workshop.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _publish_checkpoint(workshop: Path, target: Path, marker: dict[str, object]) -> None:
    old = workshop.with_name(f"{workshop.name}-old")
    try:
        if target.exists() and not _is_complete(target, marker):
            os.rename(target, old)
        os.rename(workshop, target)
    except OSError:
        # Another process finished first; both built the same bytes, so its result serves as well.
        if not _is_complete(target, marker):
            raise
    finally:
        shutil.rmtree(old, ignore_errors=True)
