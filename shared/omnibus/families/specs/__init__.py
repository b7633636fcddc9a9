"""Built-in model families as the control plane knows them: one module of plain data for each, no torch.

A family called ``x`` is the modules ``omnibus.families.specs.x``, ``omnibus_models.families.x`` and
``omnibus_models.tiny.x``. Its name is the ``model_type`` of its checkpoints, or the class of their diffusers
pipeline in snake case without ``Pipeline``.
"""

import importlib
import pkgutil
import re

from omnibus.families.specs._absent import ABSENT
from omnibus.families.specs._templates import (
    FamilyDeclaration,
    image_editing,
    image_generation,
    image_generation_with_prior,
    language_model,
    omni_model,
    prefill_decode_options,
    video_generation,
    vision_language,
)

__all__ = [
    "ABSENT",
    "KNOWN",
    "TITLES",
    "FamilyDeclaration",
    "image_editing",
    "image_generation",
    "image_generation_with_prior",
    "language_model",
    "omni_model",
    "prefill_decode_options",
    "video_generation",
    "vision_language",
]


_MODULES = {
    module.name: importlib.import_module(f"{__name__}.{module.name}")
    for module in pkgutil.iter_modules(__path__)
    if not module.name.startswith("_")
}

#: All families by name.
KNOWN: dict[str, FamilyDeclaration] = {name: module.FAMILY for name, module in _MODULES.items()}

#: What people call them: how their modules' docstrings begin.
TITLES: dict[str, str] = {
    name: re.split(r"[.,:](?:\s|$)", module.__doc__ or name, maxsplit=1)[0] for name, module in _MODULES.items()
}
