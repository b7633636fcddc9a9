"""Loading of one component of a diffusers checkpoint, from its directory.

It prunes the skeleton and keeps the library's loader.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from diffusers.utils import logging
from torch import nn

from omnibus import errors
from omnibus_models import loading

# Keep the service's log free of progress bars and advice on optional packages.
logging.disable_progress_bar()
logging.set_verbosity_error()


def load_model(
    cls: Any, checkpoint: Path, part: str, *, drop: Sequence[str] = (), device: str = "cpu", dtype: str = "float32"
) -> Any:
    """Load the model ``cls`` from the directory ``part``, without children in ``drop``.

    It is in evaluation mode. Raises ``Fatal`` with the names of missing weights, and if the checkpoint cannot be read.
    """
    other = loading.stand_in.get()
    exact = cls._keep_in_fp32_modules or []
    torch_dtype = loading.torch_dtype(dtype)
    try:
        if other is not None:
            look = other.load_diffusers(pruned_class(cls, drop), checkpoint, part, "float32" if exact else dtype)
            return _cast_weights(look, torch_dtype, exact)
        with loading.LOAD_LOCK:
            module, report = pruned_class(cls, drop).from_pretrained(
                checkpoint,
                subfolder=part,
                torch_dtype=torch.float32 if exact else torch_dtype,
                low_cpu_mem_usage=False,  # True needs another package; neither initialises weights first
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
            )
    except (OSError, RuntimeError, ValueError) as error:
        raise errors.Fatal(f"{cls.__name__} cannot be loaded from {checkpoint}/{part}: {error}") from error
    loading.require_all(module, report["missing_keys"], checkpoint)
    return _cast_weights(module, torch_dtype, exact).to(device).eval().requires_grad_(False)


def _cast_weights(module: Any, dtype: torch.dtype, exact: Sequence[str]) -> Any:
    """Cast the weights of ``module`` except those in modules with a name in ``exact``; none if that is empty."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()) if exact else ():
        if tensor.is_floating_point() and not any(each in name.split(".") for each in exact):
            tensor.data = tensor.to(dtype)
    return module


def pruned_class(cls: Any, drop: Sequence[str]) -> Any:
    """Return a subclass of ``cls`` without the children in ``drop``."""

    class PrunedDiffusionModel(cls):
        _keys_to_ignore_on_load_unexpected: ClassVar[list[str]] = [".*"]
        _keep_in_fp32_modules = None  # the library loads such modules only with another package, see ``load_model``

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            for name in drop:
                setattr(self, name, nn.Identity())

    functools.update_wrapper(
        PrunedDiffusionModel.__init__, cls.__init__
    )  # a configuration is read by the names of its arguments
    PrunedDiffusionModel.__name__, PrunedDiffusionModel.__qualname__, PrunedDiffusionModel.__module__ = (
        cls.__name__,
        cls.__qualname__,
        cls.__module__,
    )
    return PrunedDiffusionModel
