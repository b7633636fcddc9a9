"""LLaVA-1.5's differences from its relatives."""

from pathlib import Path
from typing import Any

import pytest

from omnibus.errors import Fatal
from omnibus_models import families, tiny
from tests.unit.models.plain import copy_checkpoint


@pytest.mark.parametrize("component", ["vision", "thinker"])
def test_a_tower_without_tiles_is_refused(tmp_path: Path, component: str) -> None:
    def use_pixtral(config: dict[str, Any]) -> None:
        config["vision_config"] = {"model_type": "pixtral", "hidden_size": 32, "num_hidden_layers": 2}

    other = copy_checkpoint(tiny.build("llava", tmp_path / "llava"), tmp_path / "other", config=use_pixtral)

    with pytest.raises(Fatal, match="Pixtral"):
        families.family_of(other).load(component, other)
