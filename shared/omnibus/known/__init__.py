"""What the control plane knows of each built-in model family: one module of plain data for each, no torch.

A family called ``x`` is the modules ``omnibus.known.x``, ``omnibus_models.families.x`` and ``omnibus_models.tiny.x``.
Its name is the ``model_type`` of its checkpoints, or the class of their diffusers pipeline in snake case without
``Pipeline``.
"""

import importlib
import pkgutil

from omnibus.known._shape import Known, edits, films, following, halves, language, pictures, speaking, vision_language

__all__ = [
    "KNOWN",
    "Known",
    "edits",
    "films",
    "following",
    "halves",
    "language",
    "pictures",
    "speaking",
    "vision_language",
]


def _all() -> dict[str, Known]:
    names = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]
    return {name: importlib.import_module(f"{__name__}.{name}").FAMILY for name in names}


#: All families by name.
KNOWN: dict[str, Known] = _all()
