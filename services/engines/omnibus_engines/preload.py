"""Loads small models once, in the fork server, for all executors.

A small model costs an executor far less memory than the objects of Python that its load touches. Forked after the load,
executors share both until they write to them, and start without a load.
"""

import importlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from omnibus.errors import OmnibusError
from omnibus.executor.settings import ExecutorSettings, float_dtype
from omnibus.settings import read_settings
from omnibus_engines.component import PRELOADED, ComponentSource, file_stamps
from omnibus_models import families, late_imports
from omnibus_models.attention import avoid_planned_kernels

#: Most bytes of weights of a model that the fork server loads. Larger ones are loaded side by side by their executors.
MAX_BYTES = 64 << 20
#: Setting of the library tokenizers, which it reads in each call.
_PARALLELISM = "TOKENIZERS_PARALLELISM"
_HALVES = ("prefill", "decode")
_PARTS = ("av", "jinja2.sandbox", "omnibus_models._video", "omnibus_models.tool_calls.hermes")


def prepare_models(declarations: str) -> None:
    """Import what executors need, and load the small models.

    ``declarations`` is the file of the declared models. If it has others or none, everything that any family needs is
    imported. This uses one thread and no GPU. A model that cannot be loaded is left to its executors, which report the
    error.
    """
    models, settings = _read_models(Path(declarations)), read_settings(ExecutorSettings)
    small = {name: model for name, model in models.items() if settings.device == "cpu" and _is_small(model)}
    if small.keys() != models.keys() or not models:
        importlib.import_module("omnibus_models.preimport")
    with late_imports.import_late(), _one_thread():
        for name in _PARTS:
            with suppress(ModuleNotFoundError):
                importlib.import_module(name)
        for model in small.values():
            _load_components(model, float_dtype(settings.dtype))


def _load_components(model: Mapping[str, Any], dtype: str) -> None:
    checkpoint = Path(model["checkpoint"])
    stamps = file_stamps(checkpoint)
    # Prefill and decode are halves of a thinker, which has the weights of both.
    for component in dict.fromkeys("thinker" if part in _HALVES else part for part in model["components"]):
        source = ComponentSource(component, model["family"], checkpoint, "cpu", dtype)
        if source in PRELOADED:
            continue
        try:
            avoid_planned_kernels(source.device)
            model_component = families.load_family(source.family).load(component, checkpoint, source.device, dtype)
        except (OmnibusError, ImportError, OSError, RuntimeError, ValueError, LookupError) as error:
            sys.stderr.write(f"{component} of {checkpoint} is left to its executors: {error}\n")
        else:
            PRELOADED[source] = stamps, model_component


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute without threads, which would not survive a fork: neither torch nor tokenizers start any."""
    count, parallelism = torch.get_num_threads(), os.environ.get(_PARALLELISM)
    torch.set_num_threads(1)
    os.environ[_PARALLELISM] = "false"
    try:
        with torch.inference_mode():
            yield
    finally:
        torch.set_num_threads(count)
        os.environ.pop(_PARALLELISM)
        os.environ.update({} if parallelism is None else {_PARALLELISM: parallelism})


def _read_models(declarations: Path) -> Mapping[str, Any]:
    try:
        models = json.loads(declarations.read_text())["models"]
    except (OSError, ValueError, LookupError):  # declared later, or invalid, which the planner reports
        return {}
    return models if isinstance(models, dict) else {}


def _is_small(model: Any) -> bool:
    """Return whether the fork server loads the model.

    It is of a known family, and has at most ``MAX_BYTES`` of weights in a directory of this machine.
    """
    if not isinstance(model, dict) or not isinstance(model.get("components"), list):  # the planner reports it
        return False
    checkpoint, family = Path(str(model.get("checkpoint", ""))), model.get("family")
    if family not in families.NAMES or not checkpoint.is_absolute():
        return False
    weights = [file.stat().st_size for file in checkpoint.rglob("*.safetensors") if file.is_file()]
    return 0 < sum(weights) <= MAX_BYTES
