"""Vision towers that attend to a whole batch at once."""

import pytest
import torch

from omnibus_models import tiny
from omnibus_models.contract import Prepared
from omnibus_models.families import load_family
from tests.unit.models.files import make_picture

_FAMILIES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]


def _list_implementations(vision) -> set[str]:
    return {part.config._attn_implementation for part in vision.module.modules() if hasattr(part, "qkv")}


def _prepare_images(vision) -> list[Prepared]:
    sizes = ((112, 84), (56, 140), (28, 28))
    return [vision.prepare(memoryview(make_picture(n, *size)), "image") for n, size in enumerate(sizes)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_tower_on_a_cpu_remains_as_it_is(vl, dtype):
    vision = load_family("qwen2_5_vl").load("vision", vl, "cpu", dtype)

    assert _list_implementations(vision) == {"sdpa"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("family", _FAMILIES)
def test_on_a_gpu_all_at_once_is_what_one_after_another_is(tmp_path, family):
    vision = load_family(family).load("vision", tiny.build(family, tmp_path / "model"), "cuda", "bfloat16")
    assert _list_implementations(vision) == {"packed_flash"}
    actual = [one.embeds.float() for one in vision.encode(_prepare_images(vision))]

    for part in vision.module.modules():
        if hasattr(part, "qkv"):
            part.config._attn_implementation = "sdpa"
    for one, other in zip(actual, vision.encode(_prepare_images(vision)), strict=True):
        reference = other.embeds.float()
        assert (one - reference).abs().max() <= 0.03 * reference.abs().max()  # 8 bits of a bfloat16, over two layers
