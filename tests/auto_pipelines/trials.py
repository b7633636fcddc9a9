"""Trials of all pipelines that the installed diffusers has in blocks, each in a process of its own."""

import json
from pathlib import Path
from typing import Any

import diffusers
import msgspec

from omnibus_models.modular import trial
from omnibus_models.modular.blocks import MODULAR_PIPELINE_MAPPING
from tests.auto_families.trials import run_limited

#: Outcomes of a pipeline whose components give the bits of the whole, by what from; other outcomes are reasons.
EQUAL = {
    (True, False, False): "from text",
    (True, True, False): "from text, or with an image",
    (True, True, True): "from text, or with an image and a mask",
    (False, True, False): "from an image",
}


def list_names() -> list[str]:
    """Return the names of all pipelines that diffusers has in blocks."""
    return sorted(MODULAR_PIPELINE_MAPPING)


def find_class(name: str) -> Any:
    """Return the class of the pipeline ``name``."""
    return getattr(diffusers, MODULAR_PIPELINE_MAPPING[name]())


def try_apart(name: str) -> str:
    """Try the pipeline ``name`` in a process with limits on time and memory. Returns its outcome."""
    faults = run_limited(lambda: msgspec.structs.astuple(trial.try_class(find_class(name))))
    if faults is None:
        return "the trial took too long"
    text, image, mask = (not fault for fault in faults)
    return EQUAL.get((text, image, mask), str(faults[0]))


def outcomes_path() -> Path:
    """Return the file with the expected outcomes for the installed version of diffusers."""
    return Path(__file__).parent / "outcomes" / f"diffusers-{diffusers.__version__}.json"


def read_outcomes() -> dict[str, str]:
    """Return the expected outcome of each pipeline for the installed version."""
    outcomes: dict[str, str] = json.loads(outcomes_path().read_text())
    return outcomes
