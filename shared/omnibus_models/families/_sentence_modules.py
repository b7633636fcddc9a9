"""Files of sentence-transformers: prompts, limits, and the steps from hidden states to the vector of a text.

Source: sentence-transformers 6.2, ``sentence_transformer/modules`` and ``base/modules``.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from omnibus import errors

MODULES = "modules.json"
_PACKAGE = "sentence_transformers."
_LEGACY_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


def _weighted_mean(rows: Tensor, prompt_rows: int) -> Tensor:
    weights = torch.arange(prompt_rows + 1, prompt_rows + 1 + len(rows), device=rows.device, dtype=rows.dtype)[:, None]
    return (rows * weights).sum(0) / weights.sum()


#: From rows [T, H], after ``prompt_rows`` rows of a prompt, to [H].
_POOLINGS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "cls": lambda rows, prompt_rows: rows[0],
    "max": lambda rows, prompt_rows: rows.amax(0),
    "mean": lambda rows, prompt_rows: rows.mean(0),
    "mean_sqrt_len_tokens": lambda rows, prompt_rows: rows.sum(0) / len(rows) ** 0.5,
    "weightedmean": _weighted_mean,
    "lasttoken": lambda rows, prompt_rows: rows[-1],
}


@dataclass(frozen=True)
class SentenceModules:
    """The files of one checkpoint.

    ``transformer`` is the directory of the language model. ``steps`` map the pooled vector to the final one.
    """

    transformer: Path
    modes: tuple[str, ...] = ("mean",)
    include_prompt: bool = True
    steps: nn.Sequential = field(default_factory=lambda: nn.Sequential(Normalize()))
    max_tokens: int | None = None
    lowercase: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None

    def pool(self, rows: Tensor, prompt_tokens: int) -> Tensor:
        """Return the float32 vector of hidden states [T, H], which begin with a prompt."""
        prompt_rows = 0 if self.include_prompt else prompt_tokens
        rows = rows[prompt_rows:].float()
        vector: Tensor = self.steps(torch.cat([_POOLINGS[mode](rows, prompt_rows) for mode in self.modes]))
        return vector


class Normalize(nn.Module):
    """Scales a vector to length 1."""

    def forward(self, vector: Tensor) -> Tensor:
        return nn.functional.normalize(vector, dim=-1)


def read_modules(checkpoint: Path) -> SentenceModules:
    """Read the files of ``checkpoint``. Without a ``modules.json``, a vector is the normalised mean.

    Raises ``Fatal`` for a module, pooling or activation that is not served, and for files that cannot be read.
    """
    entries = _read_json(checkpoint / MODULES, [])
    if not entries:
        return SentenceModules(checkpoint)
    kinds = [_module_kind(entry) for entry in entries]
    if kinds[:2] != ["Transformer", "Pooling"]:
        raise _unknown_module(checkpoint, entries[0 if kinds[0] != "Transformer" else min(1, len(entries) - 1)])
    transformer, pooling = (checkpoint / str(entry["path"]) for entry in entries[:2])
    modes, include_prompt = _read_pooling(pooling)
    text: Any = next((_read_json(path) for path in sorted(transformer.glob("sentence_*_config.json"))), {})
    prompts = _read_json(checkpoint / "config_sentence_transformers.json", {})
    return SentenceModules(
        transformer,
        modes,
        include_prompt,
        nn.Sequential(*_read_steps(checkpoint, entries[2:])),
        text.get("max_seq_length"),
        bool(text.get("do_lower_case")),
        prompts.get("prompts") or {},
        prompts.get("default_prompt_name"),
    )


def _module_kind(entry: Mapping[str, Any]) -> str:
    kind = str(entry.get("type"))
    return kind.rpartition(".")[2] if kind.startswith(_PACKAGE) else kind


def _unknown_module(checkpoint: Path, entry: Mapping[str, Any]) -> errors.Fatal:
    return errors.Fatal(
        f"{checkpoint / MODULES} has the module {entry.get('type')} in a place where it is not served; the modules "
        "must be Transformer, Pooling, and then any of Dense and Normalize"
    )


def _read_steps(checkpoint: Path, entries: list[dict[str, Any]]) -> Iterator[nn.Module]:
    for entry in entries:
        kind, path = _module_kind(entry), checkpoint / str(entry["path"])
        if kind not in ("Dense", "Normalize"):
            raise _unknown_module(checkpoint, entry)
        config = _read_json(path / "config.json", {})
        places = {config.get("module_input_name"), config.get("module_output_name")}
        if config.get("use_residual") or not places <= {None, "sentence_embedding"}:
            raise errors.Fatal(f"{path}: a {kind} must map a sentence_embedding to another, without use_residual")
        if kind == "Normalize":
            yield Normalize()
        else:
            yield from _load_dense(path, config)


def _load_dense(path: Path, config: Mapping[str, Any]) -> Iterator[nn.Module]:
    from safetensors.torch import load_file

    name = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    activation = getattr(nn, name.rpartition(".")[2], None) if name.startswith("torch.nn.") else None
    if not (isinstance(activation, type) and issubclass(activation, nn.Module)):
        raise errors.Fatal(f"{path}: unknown activation_function {name}, use a module of torch.nn")
    linear = nn.Linear(config["in_features"], config["out_features"], bias=config.get("bias", True))
    try:
        weights = load_file(path / "model.safetensors")
        linear.load_state_dict({key.removeprefix("linear."): value.float() for key, value in weights.items()})
    except (OSError, RuntimeError) as error:
        raise errors.Fatal(f"{path / 'model.safetensors'} cannot be loaded: {error}") from error
    yield from (linear, activation())


def _read_pooling(path: Path) -> tuple[tuple[str, ...], bool]:
    config = _read_json(path / "config.json")
    modes = config.get("pooling_mode") or [mode for key, mode in _LEGACY_MODES.items() if config.get(key)] or "mean"
    modes = (modes,) if isinstance(modes, str) else tuple(modes)
    if unknown := [str(mode) for mode in modes if mode not in _POOLINGS]:
        raise errors.Fatal(f"{path}: unknown pooling {', '.join(unknown)}, use {', '.join(_POOLINGS)}")
    return modes, bool(config.get("include_prompt", True))


def _read_json(path: Path, default: Any = None) -> Any:
    if default is not None and not path.exists():
        return default
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise errors.Fatal(f"{path} cannot be read: {error}") from error
