"""Replaces the libraries' loaders: models on torch's meta device, which has shapes and no memory.

The libraries' own rules convert the names of a checkpoint's tensors to those of the model. Weights that are missing
here are therefore missing in a real load.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from omnibus.checkpoints import safetensors
from omnibus.checkpoints.gguf_header import is_gguf, read_gguf_header
from omnibus.errors import BadRequest
from omnibus_models import gguf_checkpoint, loading

_META = torch.device("meta")
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class BuiltModel(NamedTuple):
    """A built model, and the names of missing and misshapen weights."""

    module: nn.Module
    missing: list[str]
    odd: list[str]


class WeightFiles(NamedTuple):
    """Contents of one model's directory, see ``omnibus.checkpoints.report.Report``."""

    tensors: dict[str, safetensors.TensorHeader]
    files: int
    lost: list[str]
    broken: list[str]


class DryLoader:
    """See ``loading.StandIn``. ``looks`` are the models built since it was emptied."""

    def __init__(self) -> None:
        self.looks: list[BuiltModel] = []
        self.directories: dict[Path, WeightFiles] = {}

    @contextmanager
    def replace_loaders(self) -> Iterator[None]:
        """Replace the loaders inside the context: nothing is loaded."""
        token = loading.stand_in.set(self)
        try:
            yield
        finally:
            loading.stand_in.reset(token)

    def load_transformers(self, cls: type[Any], checkpoint: Path, dtype: str, options: dict[str, Any]) -> Any:
        """Build a model of transformers."""
        config = options.pop("config", None)
        if config is None and is_gguf(checkpoint):
            config = gguf_checkpoint.load_config(checkpoint)
        config = config or cls.config_class.from_pretrained(checkpoint, local_files_only=True)
        tensors = self.describe_tensors(checkpoint)
        if is_gguf(checkpoint):
            tensors = gguf_checkpoint.describe_weights(cls, config, checkpoint)
        module, report = _unloaded_class(cls).from_pretrained(
            None,
            config=config,
            state_dict=tensors,
            dtype=loading.torch_dtype(dtype),
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **{"attn_implementation": "sdpa", **options},
        )
        odd = {name for name, *_ in report["mismatched_keys"]}
        self.looks.append(BuiltModel(module, sorted({*report["missing_keys"]} - odd), sorted(odd)))
        return module.eval()

    def load_diffusers(self, cls: Any, checkpoint: Path, part: str, dtype: str) -> Any:
        """Build a model of diffusers."""
        config = cls.load_config(checkpoint, subfolder=part, local_files_only=True)
        with _META:
            module = cls.from_config(config).to(loading.torch_dtype(dtype))
        tensors, module_state = self.describe_tensors(checkpoint / part), module.state_dict()
        module._fix_state_dict_keys_on_load(tensors)
        odd = [name for name, tensor in module_state.items() if name in tensors and tensors[name].shape != tensor.shape]
        self.looks.append(BuiltModel(module, sorted(module_state.keys() - tensors.keys()), odd))
        return module.eval()

    def describe_tensors(self, directory: Path) -> dict[str, torch.Tensor]:
        """Return the tensors of a directory or a GGUF file.

        They are on the meta device. Their headers are recorded in ``directories``.
        """
        if directory not in self.directories:
            self.directories[directory] = _read_weight_files(directory)
        return {
            name: torch.empty(header.shape, dtype=_DTYPES.get(header.dtype, torch.float32), device=_META)
            for name, header in self.directories[directory].tensors.items()
        }


def _read_weight_files(directory: Path) -> WeightFiles:
    if is_gguf(directory):
        return WeightFiles(read_gguf_header(directory).tensors, 1, [], [])
    there, missing_files = safetensors.find_weight_files(directory)
    tensors: dict[str, safetensors.TensorHeader] = {}
    faults = []
    for path in there:
        try:
            tensors |= safetensors.read_header(path)
        except BadRequest as error:
            faults.append(error.message)
    if not there and not missing_files:
        faults += [
            f"{path.name} is a pickle, which is never read: convert it" for path in sorted(directory.glob("*.bin"))
        ]
    return WeightFiles(tensors, len(there), missing_files, faults)


def _unloaded_class(cls: Any) -> Any:
    """Return a subclass whose weights stay on the meta device; the library would use the CPU."""

    class Unloaded(cls):
        @staticmethod
        def _load_pretrained_model(
            model: Any, state_dict: Any, checkpoint_files: Any, load_config: Any, expected_keys: Any = None
        ) -> Any:
            where = dataclasses.replace(load_config, device_map={"": _META})
            return cls._load_pretrained_model(model, state_dict, checkpoint_files, where, expected_keys)

        @staticmethod
        def _finalize_model_loading(model: Any, load_config: Any, loading_info: Any) -> Any:
            # As in the library, except that missing weights are not initialised.
            model.mark_tied_weights_as_initialized(loading_info)
            model.tie_weights(missing_keys=loading_info.missing_keys, recompute_mapping=False)
            model._adjust_missing_and_unexpected_keys(loading_info)
            return loading_info

    # The library looks up the renames of a checkpoint's keys by the name of the class.
    Unloaded.__name__, Unloaded.__qualname__, Unloaded.__module__ = cls.__name__, cls.__qualname__, cls.__module__
    return Unloaded
