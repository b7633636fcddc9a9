"""The family's video positions equal vLLM's own, which they replace."""

from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import pytest
import torch

from omnibus_models import families, tiny
from omnibus_models.contract import Encoded, PromptLayout
from tests.unit.models import files
from tests.unit.models.split import encode_files
from tests.unit.models.test_qwen2_5_vl import IMAGE, VIDEO, make_text, make_user_message

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize(("name", "class_name"), [("qwen2_vl", "Qwen2VL"), ("qwen2_5_vl", "Qwen2_5_VL")])
def test_positions_of_a_long_video_are_vllms_own(tmp_path: Path, name: str, class_name: str) -> None:
    checkpoint = tiny.build(name, tmp_path / name)
    family = families.family_of(checkpoint)
    thinker = family.load("thinker", checkpoint)
    media = {"video": [files.make_film(30), files.make_film(8, 1, fps=1)], "image": [files.make_picture(1)]}
    prompt = thinker.prompt(
        [make_user_message(make_text("see"), VIDEO, IMAGE, make_text("and"), VIDEO, make_text("what happens?"))]
    )
    items = encode_files([family.load("vision", checkpoint)], prompt.modalities, media)

    layout = thinker.layout(prompt, items)

    positions, delta = count_in_vllm(f"{class_name}ForConditionalGeneration", thinker.module.config, layout, items)
    assert torch.equal(layout.positions, positions)
    assert layout.delta == delta


def count_in_vllm(class_name: str, config: Any, layout: PromptLayout, items: list[Encoded]) -> tuple[torch.Tensor, int]:
    """Positions by vLLM's model, without its weights."""
    from vllm.model_executor.models import qwen2_5_vl, qwen2_vl
    from vllm.multimodal.inputs import (
        MultiModalBatchedField,
        MultiModalFeatureSpec,
        MultiModalFieldElem,
        MultiModalKwargsItem,
        PlaceholderRange,
    )

    model: Any = getattr(qwen2_5_vl, class_name, None) or getattr(qwen2_vl, class_name)
    field = MultiModalBatchedField(keep_on_cpu=True)
    features = []
    for item, start in zip(items, layout.starts, strict=True):
        modality = item.meta["modality"]
        fields = {f"{modality}_grid_thw": torch.tensor(item.meta["grid_thw"])}
        if modality == "video" and hasattr(
            config.vision_config, "tokens_per_second"
        ):  # Qwen2-VL's processor names none
            fields["second_per_grid_ts"] = torch.tensor(item.meta["second_per_grid"])
        data = MultiModalKwargsItem({key: MultiModalFieldElem(value, field) for key, value in fields.items()})
        place = PlaceholderRange(offset=start, length=item.embeds.shape[0])
        features.append(MultiModalFeatureSpec(data, modality, str(start), place))
    counter = SimpleNamespace(config=config)
    counter.iter_mm_grid_thw = MethodType(model.iter_mm_grid_thw, counter)
    positions: tuple[torch.Tensor, int] = model.get_mrope_input_positions(counter, list(layout.ids), features)
    return positions
