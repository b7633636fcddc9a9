"""LLaVA-OneVision uses more tiles for an image that is alone."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageTextToText

from tests.close import assert_close
from tests.oracles import plain as oracle
from tests.unit.models import files
from tests.unit.models.plain import CASES, VisionTextModel, build_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> VisionTextModel:
    return build_model("llava_onevision", tmp_path_factory.mktemp("onevision"))


@pytest.mark.numeric
@pytest.mark.parametrize("case", [case for case in CASES if "image" in case])
def test_rows_are_those_of_the_whole_model_for_all_of_a_request(model: VisionTextModel, case: str) -> None:
    messages, media_files = CASES[case]
    whole = AutoModelForImageTextToText.from_pretrained(model.checkpoint)
    inputs = oracle.make_inputs(model.checkpoint, messages, media_files)
    names = ("pixel_values", "image_sizes", "batch_num_images")
    with torch.no_grad():
        features = whole.model.get_image_features(**{name: inputs[name] for name in names}, return_dict=True)

    rows = [item.embeds for item in model.items(messages, media_files) if item.meta["modality"] == "image"]

    assert len(rows) == len(features.pooler_output) == len(media_files["image"])
    for row, reference in zip(rows, features.pooler_output, strict=True):
        assert_close(row, reference)


def test_a_picture_with_others_is_one_tile_and_one_alone_more(model: VisionTextModel) -> None:
    picture = memoryview(files.make_picture(1, 200, 120))

    alone, beside = (model.vision.prepare(picture, "image", each) for each in (True, False))

    assert model.vision.closer == {"image"}
    assert (beside.features["pixel_values"].shape[:2], beside.meta["n_tokens"]) == ((1, 1), 17)
    assert alone.features["pixel_values"].shape[1] > 2
    assert alone.meta["n_tokens"] > 50


def test_no_other_family_looks_closer(tmp_path: Path) -> None:
    for family in ("llava", "llava_next", "internvl"):
        assert build_model(family, tmp_path).vision.closer == frozenset()
