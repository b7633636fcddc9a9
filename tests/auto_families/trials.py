"""Trials of all language models that the installed transformers knows, each in a process of its own."""

import json
import os
import re
import resource
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from packaging.version import Version

from omnibus_llm.engine import admission
from omnibus_models import torchvision_cpu
from omnibus_models.miniature import shrink_config

torchvision_cpu.install_operators()

from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES  # noqa: E402

KIND = ""  # of outcomes, those of language models
SECONDS, MEMORY_BYTES = 300, 8 << 30  # of one trial
WAYS = {
    (True, True): "batched",
    (True, False): "batched, prompts whole",
    (False, True): "one at a time",
    (False, False): "one at a time, prompts whole",
}
REFUSED, UNTRIED = "refused", "no copy runs"

_MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [22, 22, 20]}
#: What checkpoints say, and the library's own default configurations do not.
FIELDS: Mapping[str, Mapping[str, Any]] = {
    "cohere_compass_text": {"rope_parameters": dict.fromkeys(("full_attention", "sliding_attention"), _MROPE)},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    "ministral": {"head_dim": 128},
    "nemotron": {"head_dim": 64, "num_key_value_heads": 8},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 256,
        "indexer_budget": 64,
        "indexer_compress_ratio": 4,
    },
    "reformer": {"is_decoder": True},
    "xmod": {"default_language": "en_XX"},
}


class Trial(NamedTuple):
    """The outcome for one ``model_type``: a way of ``WAYS``, ``REFUSED`` or ``UNTRIED``, and why not a better one."""

    model_type: str
    cls: str
    way: str
    reason: str


def list_types() -> list[str]:
    """Return the types of all language models that transformers knows."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def default_config(model_type: str) -> tuple[Any, Any]:
    """Return the class of a language model and a configuration of it."""
    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]
    cls = getattr(transformers, name if isinstance(name, str) else name[0])
    config = CONFIG_MAPPING[model_type]()
    if not isinstance(config, cls.config_class):
        config = config.get_text_config(decoder=True)
    for field, value in FIELDS.get(model_type, {}).items():
        setattr(config, field, value)
    return cls, config


def try_type(model_type: str) -> Trial:
    """Try ``model_type`` in this process."""
    try:
        cls, config = default_config(model_type)
        with torch.inference_mode():
            verdict = admission.try_class(cls, shrink_config(config))
    except Exception as error:  # noqa: BLE001 whatever a library raises
        return Trial(model_type, "", UNTRIED, f"{type(error).__name__}: {error}")
    way = REFUSED if verdict.mode is None else WAYS[verdict.mode[:2]]
    way = UNTRIED if "copy" in verdict.reasons else way
    reasons = list(verdict.reasons.values())
    return Trial(model_type, cls.__name__, way, reasons[-1] if reasons else "")


def try_apart(model_type: str, attempt: Callable[[str], Trial] = try_type) -> Trial:
    """Try ``model_type`` with ``attempt``, in a process with limits on time and memory."""
    answer = run_limited(lambda: attempt(model_type))
    return Trial(*answer) if answer else Trial(model_type, "", UNTRIED, "the trial took too long")


def run_limited(function: Callable[[], Any]) -> Any:
    """Call ``function`` in a process with limits on time and memory. Returns its result, or None beyond them."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        signal.alarm(SECONDS)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        torch.set_num_threads(1)
        os.write(writing, json.dumps(function()).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        answer = file.read()
    os.waitpid(child, 0)
    return json.loads(answer) if answer else None


def outcomes_path(kind: str = KIND) -> Path:
    """Return the file with the outcomes for the installed version of transformers."""
    return _directory(kind) / f"transformers-{transformers.__version__}.json"


def read_outcomes(kind: str = KIND) -> dict[str, str]:
    """Return the expected way of each type: for the installed version, or the newest older one with a file.

    So a new version fails the tests of types whose outcome it changes.
    """
    stored = {Version(path.stem.removeprefix("transformers-")): path for path in _directory(kind).glob("*.json")}
    newest = max(version for version in stored if version <= Version(transformers.__version__))
    ways: dict[str, str] = json.loads(stored[newest].read_text())
    return ways


def compare_outcomes(ways: Mapping[str, str], kind: str = KIND) -> list[str]:
    """Return a line for each of ``ways`` that is not the expected one."""
    expected = read_outcomes(kind)
    return [
        f"{model_type}: {expected.get(model_type, 'unknown')} before, {way} now"
        for model_type, way in sorted(ways.items())
        if expected.get(model_type) != way
    ]


def write_outcomes(ways: Mapping[str, str], kind: str = KIND) -> None:
    """Store ``ways`` as the outcomes for the installed version, beside those of other types."""
    path = outcomes_path(kind)
    known = {**(json.loads(path.read_text()) if path.exists() else {}), **ways}
    path.write_text(f"{json.dumps(known, indent=1, sort_keys=True)}\n")


def sweep_types(types: Iterable[str], try_type: Callable[[str], Trial], kind: str) -> None:
    """Print the outcome of each of ``types``; with ``--write``, store them."""
    ways: dict[str, str] = {}
    for model_type in types:
        trial = try_apart(model_type, try_type)
        ways[model_type] = trial.way
        print(f"{model_type:36} {trial.cls:36} {trial.way:28} {trial.reason[:100]!r}", flush=True)
    if "--write" in sys.argv:
        write_outcomes(ways, kind)


def skip_missing_library(trial: Trial) -> None:
    """Skip a test whose ``trial`` lacks a library that Omnibus does not install."""
    missing = re.search(r"requires the (\S+) library", trial.reason)
    if trial.way == UNTRIED and missing:
        pytest.skip(f"{trial.model_type} requires {missing[1]}")


def _directory(kind: str) -> Path:
    return Path(__file__).parent / "outcomes" / kind
