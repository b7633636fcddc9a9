"""InternVL3 reads a video as frames, with words between them."""

from typing import Any

import pytest
import torch

from omnibus.errors import BadRequest
from omnibus_models.contract import Encoded
from tests.unit.models import files
from tests.unit.models.control_tokens import is_text
from tests.unit.models.plain import IMAGE, VIDEO, Model, built, text, user

FILM = [user(text("look: "), VIDEO, text("what is this?"))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return built("internvl", tmp_path_factory.mktemp("internvl"))


def video(model: Model, **changes: Any) -> Encoded:
    [item] = model.items(FILM, {"video": [files.film(2)]})
    return Encoded(item.embeds, {**item.meta, **changes})


@pytest.mark.numeric
def test_each_frame_has_its_number_and_its_rows(model: Model) -> None:
    thinker, item = model.thinker, video(model)
    prompt = thinker.prompt(FILM)

    layout, prefill = thinker.layout(prompt, [item]), thinker.assemble_prefill(prompt, [item])

    said = thinker._tokenizer.decode(layout.ids)
    row = "<IMG_CONTEXT>" * (len(item.embeds) // 4)
    assert item.meta["frames"] == 4
    assert "look: " + "\n".join(f"Frame{number}: <img>{row}</img>" for number in (1, 2, 3, 4)) + "\nwhat" in said
    assert layout.starts == [layout.media.nonzero()[0, 0]]
    assert torch.equal(prefill.inputs[prefill.media], item.embeds)
    assert torch.equal(prefill.media, layout.media)


@pytest.mark.numeric
def test_rows_of_items_beside_a_video_are_not_mixed_with_its_own(model: Model) -> None:
    thinker, film = model.thinker, video(model)
    messages = [user(IMAGE, VIDEO, IMAGE, text("?"))]
    first, second = model.items([user(IMAGE, IMAGE)], {"image": [files.picture(1), files.picture(2, 200, 60)]})

    prefill = thinker.assemble_prefill(thinker.prompt(messages), [first, film, second])

    assert torch.equal(prefill.inputs[prefill.media], torch.cat([each.embeds for each in (first, film, second)]))


@pytest.mark.parametrize("frames", [None, 0, -4, 3, 2.0, "4", 10**9])
def test_frames_that_cannot_be_are_refused(model: Model, frames: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        model.thinker.layout(model.thinker.prompt(FILM), [video(model, frames=frames)])

    assert caught.value.param == "items"


@pytest.mark.numeric
def test_a_picture_has_no_frames_whatever_it_says(model: Model) -> None:
    [item] = model.items([user(IMAGE)], {"image": [files.picture(1)]})
    prompt = model.thinker.prompt([user(IMAGE)])

    said = model.thinker.layout(prompt, [Encoded(item.embeds, {**item.meta, "frames": 0})])

    assert said.ids == model.thinker.layout(prompt, [item]).ids


@pytest.mark.parametrize("token", ["<img>", "</img>", "<IMG_CONTEXT>", "<video>"])
def test_its_marks_in_text_are_text(model: Model, token: str) -> None:
    assert is_text(model.thinker, token)
