"""The architectures that can be taken apart, found by name or by a checkpoint's configuration."""

import importlib
import json
from pathlib import Path

from omnibus import errors
from omnibus_models import torchvision_cpu
from omnibus_models.contract import Family

# The library imports torchvision along with its models as soon as it sees it installed.
torchvision_cpu.install()

_MODULES = {
    "qwen2_5_vl": "omnibus_models.families.qwen2_5_vl",
    "qwen2_5_omni": "omnibus_models.families.qwen2_5_omni",
}
NAMES = tuple(_MODULES)


def family(name: str) -> Family:
    """The family called ``name``, e.g. ``qwen2_5_vl``. Raises ``NotFound``."""
    if name not in _MODULES:
        raise errors.NotFound(f"unknown model family {name!r}; known: {', '.join(NAMES)}")
    found: Family = importlib.import_module(_MODULES[name]).FAMILY
    return found


def family_of(checkpoint: Path) -> Family:
    """The family of a checkpoint directory, by ``model_type`` in its config.json.

    Raises ``NotFound`` when there is no readable config.json or its architecture is not known.
    """
    path = Path(checkpoint) / "config.json"
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError):
        raise errors.NotFound(f"{path} cannot be read; give the directory of a Hugging Face checkpoint") from None
    return family(str(config.get("model_type", "")))
