"""Classes that embed texts and images run as their stored outcomes say."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from omnibus_models import families
from omnibus_models.families import _dual_towers
from tests.auto_families import dual_encoders, trials
from tests.auto_families.trials import REFUSED
from tests.close import assert_close

#: Pooled by the end of the text, and by the last position.
TYPICAL = ("clip", "siglip")
OUTCOMES = trials.read_outcomes(dual_encoders.KIND)
SERVED = [name for name, way in OUTCOMES.items() if way != REFUSED]


def mark_types(names: Iterable[str]) -> list[Any]:
    """Return a parameter for each type; those that are not typical are nightly."""
    return [name if name in TYPICAL else pytest.param(name, marks=pytest.mark.nightly) for name in names]


def test_every_type_has_an_expected_outcome():
    assert OUTCOMES.keys() == {*dual_encoders.list_types()}


@pytest.mark.parametrize("model_type", mark_types(OUTCOMES))
def test_a_type_runs_as_expected(model_type: str):
    trial = trials.try_apart(model_type, dual_encoders.try_type)

    assert trial.way == OUTCOMES[model_type], trial.reason


@pytest.mark.numeric
@pytest.mark.behaviour(
    "transformers 5.19",
    "the text tower of AIMv2 is causal with padding and attends both ways without it, unless attention is eager",
    "runs it with eager attention, so that the vector of a text does not depend on its batch",
    source="Aimv2TextModel.forward calls create_causal_mask, which returns None for a mask without padding",
)
@pytest.mark.parametrize("model_type", mark_types(SERVED))
def test_vectors_are_those_of_the_library_alone_and_together(model_type: str, tmp_path: Path):
    checkpoint = dual_encoders.write_checkpoint(model_type, tmp_path)
    family = families.family_of(checkpoint)
    towers, processor = _dual_towers.load_towers(checkpoint), transformers.AutoProcessor.from_pretrained(checkpoint)
    kernels = {"attn_implementation": towers.text_attention}
    model: Any = transformers.AutoModel.from_pretrained(checkpoint, **kernels).eval()
    length: dict[str, Any] = {"padding": "max_length", "max_length": 64} if towers.reads_padding else {}
    files = dual_encoders.draw_files()

    embedder, vision = (family.load(component, checkpoint) for component in ("embedder", "vision"))
    texts = [embedder.prepare_text(text) for text in dual_encoders.TEXTS]
    images = [vision.prepare(memoryview(file), "image") for file in files]

    assert family.name == "dual_encoder"
    expected = dual_encoders.embed_texts(model, processor, dual_encoders.TEXTS, **length)
    assert_close(torch.stack(embedder.embed(texts)), expected)
    assert_close(torch.stack([embedder.embed([text])[0] for text in texts]), expected)
    expected = dual_encoders.embed_images(model, processor, files)
    assert_close(torch.cat([each.embeds for each in vision.encode(images)]), expected)
    assert_close(torch.cat([vision.encode([image])[0].embeds for image in images]), expected)
    assert min(embedder.parameters, vision.parameters) < model.num_parameters() * 0.8
