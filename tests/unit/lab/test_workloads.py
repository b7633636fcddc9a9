"""Requests of the lab: image sizes follow the models' families, and means equal those of the samples."""

from statistics import mean

import pytest

from tests.lab.modserve import INTERNVL_26B, LLAMA, order_remark
from tests.lab.workloads import ImageModel, TrafficMix, azure_like, usual_sizes


def draw_sizes(model: ImageModel) -> list[dict[str, float]]:
    """Return sizes of requests with images."""
    return [dict(each.sizes) for each in azure_like(model, TrafficMix(50.0, image_share=1.0), 60.0)]


@pytest.mark.parametrize(("model", "tile", "most"), [(LLAMA.sizes, 1601, 4), (INTERNVL_26B.sizes, 256, 13)])
def test_an_image_has_as_many_tokens_as_its_tiles(model: ImageModel, tile: int, most: int):
    single = {sizes["image_tokens"] / tile for sizes in draw_sizes(model) if sizes["images"] == 1}

    assert single <= set(map(float, range(1, most + 1)))
    assert min(single) == 1
    assert max(single) == most


@pytest.mark.parametrize("model", [LLAMA.sizes, INTERNVL_26B.sizes])
def test_the_usual_image_is_the_mean_of_those_that_come(model: ImageModel):
    sizes = draw_sizes(model)

    each = sum(one["image_tokens"] for one in sizes) / sum(one["images"] for one in sizes)
    assert usual_sizes(model, 1)["image_tokens"] == pytest.approx(each, rel=0.05)
    text = mean(one["prompt_tokens"] - (one["image_tokens"] if model.reads_images else 0.0) for one in sizes)
    assert usual_sizes(model, 0)["prompt_tokens"] == pytest.approx(text, rel=0.1)


def test_why_a_model_gains_less_is_said_where_it_does():
    assert order_remark(2.0, 3.0) == ()
    assert len(order_remark(3.0, 2.0)) == 1
