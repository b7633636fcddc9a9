"""Load one component of a checkpoint: prune the skeleton, keep the library's own loader.

``from_pretrained`` builds the skeleton on the meta device, so removed parts cost nothing. Renames of old checkpoint
keys, sharding, dtype and quantisation keep working.
"""

import copy
import threading
from collections.abc import Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.utils import logging

from omnibus import errors
from omnibus.checkpoints.gguf_header import is_gguf
from omnibus_models import gguf_checkpoint
from omnibus_models.attention import share_key_heads
from omnibus_models.late_imports import skeletons_on_cpu

M = TypeVar("M", bound=PreTrainedModel)

_MAX_NAMED = 5
#: Held while loading. The library then replaces functions of its classes (``tie_weights``) for the whole process. Two
#: concurrent loads could make the replacement permanent.
LOAD_LOCK = threading.Lock()


class StandIn(Protocol):
    """Loader that replaces the libraries' loaders, for classes that are already pruned."""

    def load_transformers(self, cls: type[Any], checkpoint: Path, dtype: str, options: dict[str, Any]) -> Any:
        """Load as ``load_model`` does."""

    def load_diffusers(self, cls: Any, checkpoint: Path, part: str, dtype: str) -> Any:
        """Load as ``diffusers_loading.load_model`` does."""


#: Set while a checkpoint is examined and not loaded, see ``omnibus_models.examine``.
stand_in: ContextVar[StandIn | None] = ContextVar("stand_in", default=None)

# Keep the service's log free of progress bars and advice on default configurations.
logging.disable_progress_bar()
logging.set_verbosity_error()

_describe_config = PreTrainedConfig.__repr__


def _describe_shown_config(config: PreTrainedConfig) -> str:
    """Describe a configuration only if the library logs it.

    The library describes each for a line of its log, which takes 0.25 s of an omni model's load.
    """
    if logging.get_verbosity() <= logging.INFO:
        return _describe_config(config)
    return object.__repr__(config)


PreTrainedConfig.__repr__ = _describe_shown_config


def load_model(
    cls: type[M],
    checkpoint: Path,
    *,
    drop: Sequence[str] = (),
    device: str = "cpu",
    dtype: str = "float32",
    **options: Any,
) -> M:
    """Load an instance of ``cls`` without the modules and parameters in ``drop``.

    It is in evaluation mode. ``drop`` has their paths; unknown ones are ignored. ``options`` are passed to
    ``from_pretrained``. Raises ``Fatal`` with the names of missing weights, and if the checkpoint cannot be read. The
    latter includes a missing library for quantised weights. Without layers, no quantised weights are left, and that
    library is not needed.
    """
    other = stand_in.get()
    try:
        if other is not None:
            model: M = other.load_transformers(pruned_class(cls, drop), checkpoint, dtype, options)
            return model
        share_key_heads()
        pruned, from_gguf = pruned_class(cls, drop), is_gguf(checkpoint)
        if from_gguf:
            options = _read_gguf(pruned, checkpoint, torch_dtype(dtype), options)
        elif any(path.endswith("layers") for path in drop):
            options |= _plain_config(cls, checkpoint, options)
        with LOAD_LOCK:
            module, report = pruned.from_pretrained(
                None if from_gguf else checkpoint,
                dtype=torch_dtype(dtype),
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
                **{"attn_implementation": "sdpa", **options},
            )
        if from_gguf:
            module.generation_config.eos_token_id = gguf_checkpoint.stop_ids(checkpoint, module.config)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        raise errors.Fatal(f"{cls.__name__} cannot be loaded from {checkpoint}: {error}") from error
    require_all(module, report["missing_keys"], checkpoint)
    return module.to(device).eval().requires_grad_(False)


def _read_gguf(cls: type[M], checkpoint: Path, dtype: torch.dtype, options: dict[str, Any]) -> dict[str, Any]:
    """Return ``options`` with the configuration and the weights of a GGUF file."""
    config = options.get("config") or gguf_checkpoint.load_config(checkpoint)
    state = gguf_checkpoint.read_weights(cls, config, checkpoint, dtype)
    return {**options, "config": config, "state_dict": state}


def _plain_config(cls: type[M], checkpoint: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Return the option ``config`` without its quantisation, or {} if it has none."""
    kind: Any = cls.config_class
    config = options.get("config") or kind.from_pretrained(checkpoint, local_files_only=True)
    if not hasattr(config, "quantization_config"):
        return {}
    plain = copy.deepcopy(config)
    del plain.quantization_config
    return {"config": plain}


def find_attention(cls: Any, config: Any = None) -> str:
    """Return the attention implementation of the class ``cls`` of transformers: torch's, unless the class lacks it.

    With a ``config``, all parts of the model must have it.
    """
    if not cls._supports_sdpa:
        return "eager"
    try:
        if config is not None:
            with torch.device("meta"):
                cls._from_config(copy.deepcopy(config), attn_implementation="sdpa")
    except ValueError:
        return "eager"
    return "sdpa"


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype ``name``. Raises ``Fatal`` if it is unknown."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise errors.Fatal(f"unknown dtype {name!r}; use float32, bfloat16 or float16")
    return dtype


def pruned_class(cls: type[M], drop: Sequence[str]) -> type[M]:
    """Return a subclass of ``cls`` without the modules in ``drop``."""

    class PrunedModel(cls):  # type: ignore[valid-type,misc]
        # Dropped modules are still in the checkpoint, which is no reason for a warning.
        _keys_to_ignore_on_load_unexpected: ClassVar[list[str]] = [".*"]

        def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(config, *args, **kwargs)
            for path in drop:
                remove_part(self, path)
            _untie_weights(self, drop)

        @classmethod
        def get_init_context(cls, *args: Any, **kwargs: Any) -> list[Any]:
            contexts: list[Any] = super().get_init_context(*args, **kwargs)
            if not skeletons_on_cpu.get():
                return contexts
            # Weights that the checkpoint lacks are initialized after its others are read, as on the meta device.
            return [no_init_weights(), *(each for each in contexts if each != torch.device("meta"))]

    # The loader looks up the renames of a checkpoint's keys by the name of the class.
    PrunedModel.__name__, PrunedModel.__qualname__, PrunedModel.__module__ = (
        cls.__name__,
        cls.__qualname__,
        cls.__module__,
    )
    return PrunedModel


def remove_part(module: nn.Module, path: str) -> None:
    """Remove what ``module`` has at ``path``: a submodule, a parameter, or nothing."""
    parent, _, last = path.rpartition(".")
    try:
        owner = module.get_submodule(parent)
    except AttributeError:
        return
    for parts in (owner._modules, owner._parameters):
        if last in parts:
            parts[last] = None


def _untie_weights(module: PreTrainedModel, drop: Sequence[str]) -> None:
    tied_keys = module._tied_weights_keys or {}
    remaining_keys = {key: source for key, source in tied_keys.items() if not f"{key} {source}".startswith(tuple(drop))}
    remaining_keys = {key: source for key, source in remaining_keys.items() if not source.startswith(tuple(drop))}
    module._tied_weights_keys = remaining_keys
    if not remaining_keys:  # parts that are models may still tie their own
        module.all_tied_weights_keys = {
            key: source
            for key, source in module.all_tied_weights_keys.items()
            if not (key.startswith(tuple(drop)) or source.startswith(tuple(drop)))
        }


def require_all(module: nn.Module, missing: Sequence[str], checkpoint: Path) -> None:
    """Raise ``Fatal`` with the names of weights that ``checkpoint`` lacks."""
    unset = [name for name, parameter in module.named_parameters() if parameter.is_meta]
    names = sorted({*missing, *unset})
    if names:
        name_list = ", ".join(names[:_MAX_NAMED]) + (
            f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
        )
        raise errors.Fatal(f"{checkpoint} lacks weights of {type(module).__name__}: {name_list}")
