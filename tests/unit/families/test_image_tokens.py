"""Estimates of an image's tokens by family."""

import pytest

from omnibus.families.image_tokens import CROSS_ATTENTION, RULES, image_tokens
from omnibus.families.specs import KNOWN


@pytest.mark.parametrize(
    ("family", "expected_tokens"),
    [("mllama", 4 * 1601), ("llava_onevision", 10 * 729), ("internvl", 5 * 256)],  # ModServe's table 1
)
def test_an_image_of_896_x_896_has_the_tokens_of_modserves_table(family: str, expected_tokens: int):
    assert image_tokens(family, 896, 896) == expected_tokens


@pytest.mark.parametrize(
    ("family", "width", "height", "expected_tokens"),
    [
        ("qwen2_vl", 448, 448, 256),
        ("qwen3_vl", 448, 448, 196),
        ("qwen2_5_vl", 1, 1, 4),
        ("llava", 4000, 30, 576),
        ("llava_next", 336, 336, 2 * 576 + 576),  # the smallest canvas has two tiles
        ("llava_next", 672, 672, 5 * 576),
        ("internvl", 448, 448, 256),
        ("internvl", 896, 448, 3 * 256),
        ("mllama", 560, 560, 1601),
        ("mllama", 2000, 500, 4 * 1601),
        ("somebody_elses", 280, 28, 10),
    ],
)
def test_tokens_follow_the_rule_of_the_family(family: str, width: int, height: int, expected_tokens: int):
    assert image_tokens(family, width, height) == expected_tokens


def test_every_family_that_takes_images_has_a_rule():
    # Checkpoints of generic families follow rules of their own; images of dual encoders are not part of a prompt.
    taking = {name for name, each in KNOWN.items() if "image" in each.encoders and not each.modalities_by_checkpoint}
    taking -= {"dual_encoder"}

    assert taking == RULES.keys()
    assert taking >= CROSS_ATTENTION
