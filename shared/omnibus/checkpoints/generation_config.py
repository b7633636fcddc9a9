"""Sampling that a checkpoint's authors recommend: its ``generation_config.json``, or fields of GGUF. No torch.

The rules are those of vLLM's ``--generation-config auto`` (``ModelConfig.get_diff_sampling_param``): a value of the
file applies to requests without one. Unlike in vLLM, ``"do_sample": false`` is greedy, as in transformers. Defaults of
transformers that the file does not contain (``top_k`` 50, ``max_length`` 20) are not used.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omnibus.checkpoints.gguf_header import is_gguf, read_gguf_header
from omnibus.checkpoints.hub import find_checkpoint
from omnibus.errors import BadRequest, OmnibusError

FILE = "generation_config.json"
#: Prefixes of the settings of a model's parts.
THINKER, TALKER = "thinker_", "talker_"
#: Bounds of the supported values, which a request may have as well. Others in a file are not used.
BOUNDS: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "top_p": (1e-9, 1.0),
    "top_k": (-1, 2**31 - 1),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 10.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "max_new_tokens": (1, 2**31 - 1),
}
#: Names in requests of values of the file, if they differ.
_CALLED = {"max_new_tokens": "max_tokens"}
#: Prefix of the fields of GGUF files, and names there if they differ.
_GGUF_PREFIX, _GGUF_NAMES = "general.sampling.", {"temperature": "temp", "repetition_penalty": "penalty_repeat"}
#: Values of ``BOUNDS`` that are whole numbers, by their names in requests.
_WHOLE = ("top_k", "max_tokens")
#: Values that talkers support.
_OF_TALKERS = ("temperature", "top_p", "top_k", "repetition_penalty")


def read_checkpoint_sampling(checkpoint: str) -> dict[str, float]:
    """Return the sampling of ``checkpoint`` as ``read_sampling``, empty without a file. ``checkpoint`` is a directory,
    a GGUF file or an id of the hub."""
    try:
        return read_sampling(find_checkpoint(checkpoint))
    except OmnibusError:
        return {}


def read_sampling(directory: Path) -> dict[str, float]:
    """Return the sampling of the checkpoint in ``directory``, or of a GGUF file. Names are those in requests.

    Names of the talker's values begin with ``talker_``. A file that cannot be read has no values.
    """
    if is_gguf(directory):
        return dict(_read_part(_read_gguf_sampling(directory), ""))
    try:
        config = json.loads((directory / FILE).read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(config, dict):
        return {}
    talker = dict(_read_part(config, TALKER))
    return {
        **dict(_read_part(config, "")),
        **dict(_read_part(config, THINKER)),
        **{f"{TALKER}{name}": talker[name] for name in _OF_TALKERS if name in talker},
    }


def _read_gguf_sampling(path: Path) -> dict[str, Any]:
    try:
        metadata = read_gguf_header(path).metadata
    except BadRequest:
        return {}
    return {name: metadata.get(f"{_GGUF_PREFIX}{_GGUF_NAMES.get(name, name)}") for name in BOUNDS}


def _read_part(config: Mapping[str, Any], part: str) -> Iterator[tuple[str, float]]:
    """Yield the values of ``part``, whose settings begin with its name."""
    for name, (least, most) in BOUNDS.items():
        value, parameter = config.get(f"{part}{name}"), _CALLED.get(name, name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
            continue
        yield parameter, max(0, int(value)) if parameter in _WHOLE else float(value)
    if config.get(f"{part}do_sample") is False:
        yield "temperature", 0.0
