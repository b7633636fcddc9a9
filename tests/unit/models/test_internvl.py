"""InternVL3 reads a video as frames, with words between them."""

from typing import Any

import pytest
import torch

from omnibus.errors import BadRequest, ContextTooLong, Rejected
from omnibus_models.contract import Encoded
from tests.unit.models import files
from tests.unit.models.control_tokens import is_text
from tests.unit.models.plain import IMAGE, VIDEO, VisionTextModel, build_model, make_text_part, make_user_message

FILM = [make_user_message(make_text_part("look: "), VIDEO, make_text_part("what is this?"))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> VisionTextModel:
    return build_model("internvl", tmp_path_factory.mktemp("internvl"))


def encode_video(model: VisionTextModel, **changes: Any) -> Encoded:
    [item] = model.items(FILM, {"video": [files.make_film(2)]})
    return Encoded(item.embeds, {**item.meta, **changes})


@pytest.mark.numeric
def test_each_frame_has_its_number_and_its_rows(model: VisionTextModel) -> None:
    thinker, item = model.thinker, encode_video(model)
    prompt = thinker.prompt(FILM)

    layout, prefill = thinker.layout(prompt, [item]), thinker.assemble_prefill(prompt, [item])

    prompt_text = thinker._tokenizer.decode(layout.ids)
    row = "<IMG_CONTEXT>" * (len(item.embeds) // 4)
    assert "look: " + "\n".join(f"Frame{number}: <img>{row}</img>" for number in (1, 2, 3, 4)) + "\nwhat" in prompt_text
    assert thinker._tokenizer.decode(layout.ids[layout.starts[0] :]).startswith("Frame1: <img><IMG_CONTEXT>")
    assert torch.equal(prefill.inputs[prefill.media], item.embeds)
    assert torch.equal(prefill.media, layout.media)


@pytest.mark.numeric
def test_rows_of_items_beside_a_video_are_not_mixed_with_its_own(model: VisionTextModel) -> None:
    thinker, film = model.thinker, encode_video(model)
    messages = [make_user_message(IMAGE, VIDEO, IMAGE, make_text_part("?"))]
    first, second = model.items(
        [make_user_message(IMAGE, IMAGE)], {"image": [files.make_picture(1), files.make_picture(2, 200, 60)]}
    )

    prefill = thinker.assemble_prefill(thinker.prompt(messages), [first, film, second])

    assert torch.equal(prefill.inputs[prefill.media], torch.cat([each.embeds for each in (first, film, second)]))


@pytest.mark.parametrize(
    ("count", "error"), [*((count, BadRequest) for count in (None, 0, -4, 3, 2.0, "4")), (10**9, ContextTooLong)]
)
def test_rows_that_cannot_be_are_refused(model: VisionTextModel, count: Any, error: type[Rejected]) -> None:
    item = encode_video(model)
    runs = [[token, count if repeats == 4 else repeats] for token, repeats in item.meta["expansion"]["input_ids"]]
    changed = Encoded(item.embeds, {**item.meta, "expansion": {**item.meta["expansion"], "input_ids": runs}})

    assert runs != item.meta["expansion"]["input_ids"]
    with pytest.raises(error) as caught:
        model.thinker.layout(model.thinker.prompt(FILM), [changed])

    assert caught.value.param == ("items" if error is BadRequest else "")


@pytest.mark.parametrize("token", ["<img>", "</img>", "<IMG_CONTEXT>", "<video>"])
def test_its_marks_in_text_are_text(model: VisionTextModel, token: str) -> None:
    assert is_text(model.thinker, token)
