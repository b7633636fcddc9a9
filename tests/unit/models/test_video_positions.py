"""Positions of the Qwen families follow their papers: time in a video, and the start of later text."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from omnibus.errors import BadRequest
from omnibus_models import families, tiny
from omnibus_models.contract import Encoded
from tests.oracles import mrope
from tests.unit.models import files
from tests.unit.models.odd_videos import uneven_video
from tests.unit.models.split import encode_files
from tests.unit.models.test_qwen2_5_vl import IMAGE, VIDEO, make_text, make_user_message

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni", "qwen3_omni_moe")
#: Seconds of frames of a screen recording: nothing moves for long.
GAP = (0, Fraction(1, 2), 1, 8)
PROMPTS: dict[str, tuple[list[dict[str, str]], dict[str, list[bytes]]]] = {
    "a video": ([VIDEO, make_text("what happens?")], {"video": [files.make_film(10)]}),
    "a slow video": ([VIDEO, make_text("what happens?")], {"video": [files.make_film(12, fps=1)]}),
    "an image between videos": (
        [make_text("see"), VIDEO, IMAGE, make_text("and"), VIDEO],
        {"video": [files.make_film(4, 1), files.make_film(2, 2)], "image": [files.make_picture(1)]},
    ),
}


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any, Any]:
    """A family's name, its vision encoder and its language model."""
    checkpoint: Path = tiny.build(request.param, tmp_path_factory.mktemp("models") / request.param)
    family = families.family_of(checkpoint)
    return request.param, family.load("vision", checkpoint), family.load("thinker", checkpoint)


def find_pace(name: str, thinker: Any) -> float | None:
    """Return positions per second, by the checkpoint's configuration."""
    config = thinker.module.config
    if "omni" in name:
        return float(config.position_id_per_seconds)
    return getattr(config.vision_config, "tokens_per_second", None)


def expected_positions(ids: list[int], items: list[Encoded], thinker: Any, per_second: float | None) -> Any:
    """Return the oracle's positions, [3, T]."""
    merge = thinker.module.config.vision_config.spatial_merge_size
    grids = [(t, h // merge, w // merge) for t, h, w in (item.meta["grid_thw"] for item in items)]
    paces = [item.meta.get("second_per_grid", 0) * per_second if per_second else 1.0 for item in items]
    kinds = [int(token in thinker._placeholders) for token in ids]
    return torch.tensor(mrope.compute_positions(kinds, grids, paces)).T


@pytest.mark.behaviour(
    "transformers 5.16 to 5.24",
    "get_rope_index of Qwen2-VL and Qwen2.5-VL lets text begin inside the positions of a long video",
    "begins text at the largest position of the video plus one, as transformers 4.57 and vLLM 0.32 do",
    source="Qwen2-VL, arXiv:2409.12191, section 2.1",
)
@pytest.mark.parametrize("case", PROMPTS)
def test_positions_are_those_of_the_papers(model: tuple[str, Any, Any], case: str) -> None:
    name, vision, thinker = model
    parts, media_files = PROMPTS[case]
    prompt = thinker.prompt([make_user_message(*parts)])
    items = encode_files([vision], prompt.modalities, media_files)

    layout = thinker.layout(prompt, items)

    assert torch.equal(layout.positions, expected_positions(list(layout.ids), items, thinker, find_pace(name, thinker)))
    assert layout.delta == int(layout.positions.max()) + 1 - len(layout.ids)


def test_text_after_a_video_begins_at_the_largest_position_plus_one(model: tuple[str, Any, Any]) -> None:
    name, vision, thinker = model
    prompt = thinker.prompt([make_user_message(VIDEO, make_text("what happens?"))])
    seconds = 10 if "omni" in name else 30  # contexts of these checkpoints are short

    layout = thinker.layout(prompt, encode_files([vision], ["video"], {"video": [files.make_film(seconds)]}))

    last = int(layout.media.nonzero()[-1])
    largest = int(layout.positions[:, layout.media].max())
    assert layout.positions[:, last + 1].tolist() == [largest + 1] * 3


def test_frames_after_a_gap_are_at_their_own_time(model: tuple[str, Any, Any]) -> None:
    name, vision, thinker = model
    prompt = thinker.prompt([make_user_message(VIDEO, make_text("what happens?"))])
    [item] = encode_files([vision], ["video"], {"video": [uneven_video("a gap", "mp4", (GAP, 9)).data]})

    layout = thinker.layout(prompt, [item])

    rows = layout.positions[0, layout.media].unique()
    per_second = find_pace(name, thinker)
    times = [0, 1] if per_second is None else [0, int(item.meta["seconds"][1] * per_second)]
    assert (rows - rows[0]).tolist() == times
    assert item.meta["seconds"] == [0.0, 1.0]
    assert item.meta["second_per_grid"] == pytest.approx(2 * 9 / 4)


@pytest.mark.parametrize(("rate", "seconds"), [("1", 2.0), ("1/5", 10.0), ("3/2", 4 / 3), ("4", 1.0)])
def test_the_pace_of_a_slow_video_is_its_own(model: tuple[str, Any, Any], rate: str, seconds: float) -> None:
    _, vision, _ = model

    item = vision.prepare(memoryview(files.make_film(12 / Fraction(rate), fps=Fraction(rate))), "video")

    assert item.meta["second_per_grid"] == pytest.approx(seconds)
    assert item.meta["grid_thw"][0] == (3 if rate == "4" else 6)


@pytest.mark.parametrize("seconds", [[], [0.0], [0.0, -1.0], [0.0, float("nan")], [0.0, None], None])
def test_times_that_cannot_be_are_rejected(model: tuple[str, Any, Any], seconds: Any) -> None:
    _, vision, thinker = model
    prompt = thinker.prompt([make_user_message(VIDEO)])
    [item] = encode_files([vision], ["video"], {"video": [files.make_film(2)]})

    with pytest.raises(BadRequest):
        thinker.layout(prompt, [Encoded(item.embeds, {**item.meta, "seconds": seconds})])
