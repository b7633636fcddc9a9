"""Load one component of a checkpoint: prune the skeleton, keep the library's own loader.

Inside ``from_pretrained`` the skeleton is built on the meta device, so the parts that are removed
cost nothing, and renames of old checkpoint keys, sharding, dtype and quantisation keep working.
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
from transformers.utils import logging

from omnibus import errors
from omnibus_models.attention_kernels import share_key_heads

M = TypeVar("M", bound=PreTrainedModel)

_MAX_NAMED = 5
#: Who loads. While it does the library replaces functions of its classes (``tie_weights``), for the whole process: two
#: loads in threads at once could leave the replacement there for good.
LOAD_LOCK = threading.Lock()


class StandIn(Protocol):
    """Loader that replaces the libraries, for classes that are pruned already."""

    def load_transformers(self, cls: type[Any], checkpoint: Path, dtype: str, options: dict[str, Any]) -> Any:
        """Load as ``load_model`` does."""

    def load_diffusers(self, cls: Any, checkpoint: Path, part: str, dtype: str) -> Any:
        """Load as ``diffusion.load`` does."""


#: Set while a checkpoint is looked at and not loaded, see ``omnibus_models.examine``.
stand_in: ContextVar[StandIn | None] = ContextVar("stand_in", default=None)

# A service's log is no place for progress bars and for advice on default configurations.
logging.disable_progress_bar()
logging.set_verbosity_error()

_describe_config = PreTrainedConfig.__repr__


def _describe_shown_config(config: PreTrainedConfig) -> str:
    """The library describes each configuration that it reads for a line of its log, 0.25 s of an omni model's load."""
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
    """An instance of ``cls`` in evaluation mode without the modules whose paths are in ``drop``.

    Paths that the class does not have are passed over. ``options`` go to ``from_pretrained``. Raises
    ``Fatal`` with their names when weights are missing, and when the checkpoint cannot be read, also for want of the
    library of its quantised weights. Without layers nothing is left that is quantised, and no such library is needed.
    """
    other = stand_in.get()
    try:
        if other is not None:
            looked: M = other.load_transformers(pruned_class(cls, drop), checkpoint, dtype, options)
            return looked
        share_key_heads()
        if any(path.endswith("layers") for path in drop):
            options |= _plain_config(cls, checkpoint, options)
        with LOAD_LOCK:
            module, report = pruned_class(cls, drop).from_pretrained(
                checkpoint,
                dtype=torch_dtype(dtype),
                attn_implementation="sdpa",
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
                **options,
            )
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        raise errors.Fatal(f"{cls.__name__} cannot be loaded from {checkpoint}: {error}") from error
    require_all(module, report["missing_keys"], checkpoint)
    return module.to(device).eval().requires_grad_(False)


def _plain_config(cls: type[M], checkpoint: Path, options: dict[str, Any]) -> dict[str, Any]:
    """The option ``config`` without what it says of quantised weights; empty where it says nothing."""
    kind: Any = cls.config_class
    config = options.get("config") or kind.from_pretrained(checkpoint, local_files_only=True)
    if not hasattr(config, "quantization_config"):
        return {}
    plain = copy.deepcopy(config)
    del plain.quantization_config
    return {"config": plain}


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype called ``name``; ``Fatal`` when there is none."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise errors.Fatal(f"unknown dtype {name!r}; use float32, bfloat16 or float16")
    return dtype


def pruned_class(cls: type[M], drop: Sequence[str]) -> type[M]:
    """A subclass of ``cls`` that is built without the modules in ``drop``."""

    class PrunedModel(cls):  # type: ignore[valid-type,misc]
        # What was dropped is still in the checkpoint: no reason for a warning.
        _keys_to_ignore_on_load_unexpected: ClassVar[list[str]] = [".*"]

        def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(config, *args, **kwargs)
            for path in drop:
                _remove_module(self, path)
            _untie_weights(self, drop)

    # The loader finds the renames of a checkpoint's keys by the name of the class.
    PrunedModel.__name__, PrunedModel.__qualname__, PrunedModel.__module__ = (
        cls.__name__,
        cls.__qualname__,
        cls.__module__,
    )
    return PrunedModel


def _remove_module(module: nn.Module, path: str) -> None:
    parent, _, last = path.rpartition(".")
    try:
        owner = module.get_submodule(parent)
    except AttributeError:
        return
    if last in owner._modules:
        owner._modules[last] = None


def _untie_weights(module: PreTrainedModel, drop: Sequence[str]) -> None:
    tied = module._tied_weights_keys or {}
    kept = {key: source for key, source in tied.items() if not f"{key} {source}".startswith(tuple(drop))}
    kept = {key: source for key, source in kept.items() if not source.startswith(tuple(drop))}
    module._tied_weights_keys = kept
    if not kept:
        module.all_tied_weights_keys = {}


def require_all(module: nn.Module, missing: Sequence[str], checkpoint: Path) -> None:
    """Raise ``Fatal`` that names weights which ``checkpoint`` did not have."""
    unset = [name for name, parameter in module.named_parameters() if parameter.is_meta]
    names = sorted({*missing, *unset})
    if names:
        listed = ", ".join(names[:_MAX_NAMED]) + (
            f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
        )
        raise errors.Fatal(f"{checkpoint} lacks weights of {type(module).__name__}: {listed}")
