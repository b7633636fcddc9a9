"""A thinker without its layers reads requests like the whole one."""

from pathlib import Path
from typing import Any

import pytest
import torch

from omnibus.errors import BadRequest
from omnibus_models import families
from omnibus_models.contract import Encoded, Reader, Thinker

PICTURE = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "describe"}]}]


def make_image(rows: int = 6, width: int = 64, **changes: Any) -> Encoded:
    meta = {"modality": "image", "n_tokens": 6, "grid_thw": [1, 4, 6], **changes}
    return Encoded(torch.randn(rows, width, generator=torch.Generator().manual_seed(1)), meta)


@pytest.fixture(scope="module")
def reader(omni: Path) -> Reader:
    return families.load_family("qwen2_5_omni").reader(omni)


@pytest.fixture(scope="module")
def thinker(omni: Path) -> Thinker:
    return families.load_family("qwen2_5_omni").load("thinker", omni)


def test_it_holds_embeddings_and_a_norm_alone(reader: Reader) -> None:
    assert reader.parameters == reader.vocabulary * reader.width + reader.width


def test_it_reads_as_the_thinker_does(reader: Reader, thinker: Thinker) -> None:
    prompt = reader.prompt(PICTURE)

    assert prompt == thinker.prompt(PICTURE)
    reader_prefill, whole = (
        reader.assemble_prefill(prompt, [make_image()]),
        thinker.assemble_prefill(prompt, [make_image()]),
    )
    assert torch.equal(reader_prefill.inputs, whole.inputs)
    assert torch.equal(reader_prefill.positions, whole.positions)
    layout = reader.layout(prompt, [make_image()])
    assert torch.equal(layout.positions, whole.positions)
    assert (len(layout.ids), layout.delta) == (len(whole.inputs), whole.delta)
    hidden = torch.randn(len(reader_prefill.inputs), reader.width)
    rows = reader.talker_prompt(reader_prefill, hidden, "Ethan")
    assert torch.equal(rows, thinker.talker_prompt(whole, hidden, "Ethan"))
    assert (reader.eos, reader.context, reader.vocabulary) == (thinker.eos, thinker.context, thinker.vocabulary)


@pytest.mark.parametrize(
    "wrong",
    [
        make_image(rows=5),
        make_image(width=63),
        make_image(grid_thw=[1, 4]),
        make_image(grid_thw=[1, 0, 6]),
        make_image(grid_thw=[2, 4, 3]),
        make_image(grid_thw=None),
        make_image(grid_thw=[1, 4.0, 6]),
        make_image(grid_thw="146"),
        Encoded(torch.zeros(6), make_image().meta),
    ],
    ids=lambda wrong: f"{tuple(wrong.embeds.shape)} {wrong.meta['grid_thw']}",
)
def test_an_item_that_is_not_what_its_meta_data_says_is_refused(reader: Reader, wrong: Encoded) -> None:
    with pytest.raises(BadRequest) as caught:
        reader.layout(reader.prompt(PICTURE), [wrong])

    assert caught.value.param == "items"


def test_items_begin_where_those_before_them_end(reader: Reader) -> None:
    parts = [{"type": "image"}, {"type": "text", "text": "and"}, {"type": "image"}]
    prompt = reader.prompt([{"role": "user", "content": parts}])
    media = [make_image(), make_image(rows=4, grid_thw=[1, 4, 4])]

    layout = reader.layout(prompt, media)

    places = [start + row for start, rows in zip(layout.starts, (6, 4), strict=True) for row in range(rows)]
    [placeholder] = {layout.ids[place] for place in places}
    assert places == [place for place, token in enumerate(layout.ids) if token == placeholder]
    inputs = reader.assemble_prefill(prompt, media).inputs
    assert torch.equal(inputs[places], torch.cat([item.embeds for item in media]))
    assert len(layout.ids) == len(prompt.ids) + 8


@pytest.mark.parametrize("seconds", [None, 0, -1, float("inf"), float("nan"), "fast"])
def test_a_video_without_a_time_is_refused(reader: Reader, seconds: Any) -> None:
    prompt = reader.prompt([{"role": "user", "content": [{"type": "video"}]}])

    with pytest.raises(BadRequest):
        reader.layout(prompt, [make_image(modality="video", second_per_grid=seconds)])


@pytest.mark.parametrize("frames", [150, 155, None, -3])
def test_a_sound_of_another_length_is_refused(reader: Reader, frames: Any) -> None:
    prompt = reader.prompt([{"role": "user", "content": [{"type": "audio"}]}])
    sound = Encoded(torch.zeros(38, 64), {"modality": "audio", "audio_len": 152})

    assert len(reader.layout(prompt, [sound]).ids) == len(prompt.ids) + 37
    with pytest.raises(BadRequest):
        reader.layout(prompt, [Encoded(sound.embeds, {**sound.meta, "audio_len": frames})])
