"""Qwen3-VL in components answers like the whole model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from omnibus.errors import BadRequest, Fatal
from omnibus_models import families, media, tiny
from omnibus_models.contract import Encoded, Thinker
from tests.close import assert_close
from tests.oracles import qwen3_vl as oracle
from tests.unit.models import files
from tests.unit.models.split import encode_files, think_greedily
from tests.unit.models.test_loading import copy_without, count_parameters
from tests.unit.models.test_qwen2_5_vl import CASES, IMAGE, TOKENS, VIDEO, make_text, make_user_message

VIDEO_CASES = {
    "a video of one frame": ([make_user_message(VIDEO, make_text("describe"))], {"video": [files.make_film(0.25)]}),
    "a video of an odd number of frames": (
        [make_user_message(make_text("see("), VIDEO)],
        {"video": [files.make_film(2.5, 2)]},
    ),
    "two videos": (
        [make_user_message(VIDEO, VIDEO, make_text("describe"))],
        {"video": [files.make_film(2, 3), files.make_film(3, 4, width=96)]},
    ),
}
ALL = {**CASES, **VIDEO_CASES}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen3_vl", tmp_path_factory.mktemp("models") / "vl")


@pytest.fixture(scope="module")
def parts(checkpoint: Path) -> dict[str, Any]:
    family = families.family_of(checkpoint)
    return {name: family.load(name, checkpoint) for name in family.components}


@pytest.mark.numeric
@pytest.mark.parametrize("case", ALL)
def test_split_components_answer_like_the_whole_model(checkpoint: Path, parts: dict[str, Any], case: str) -> None:
    messages, media_files = ALL[case]

    thought = think_greedily(parts["thinker"], [parts["vision"]], messages, media_files, TOKENS)

    ids, words = oracle.generate_answer(checkpoint, messages, media_files, TOKENS)
    assert thought.ids == ids
    assert parts["thinker"].decode_ids(thought.ids) == words


@pytest.mark.numeric
@pytest.mark.parametrize("case", ALL)
def test_prompts_are_those_of_the_joint_processor(checkpoint: Path, parts: dict[str, Any], case: str) -> None:
    messages, media_files = ALL[case]
    thinker = parts["thinker"]
    prompt = thinker.prompt(messages)
    items = encode_files([parts["vision"]], prompt.modalities, media_files)

    layout, prefill = thinker.layout(prompt, items), thinker.assemble_prefill(prompt, items)

    reference_ids = oracle.make_inputs(checkpoint, messages, media_files)["input_ids"][0]
    places = [run.start + row for run in layout.media_runs(items) for row in range(run.rows.stop - run.rows.start)]
    assert layout.ids == reference_ids.tolist()
    assert prefill.media.nonzero().flatten().tolist() == places
    rows = [item.embeds for item in items]
    torch.testing.assert_close(prefill.inputs[places], torch.cat(rows) if rows else prefill.inputs[:0], rtol=0, atol=0)
    words = prefill.inputs[~prefill.media]
    torch.testing.assert_close(words[:, : thinker.width], thinker.embed(reference_ids[~prefill.media]), rtol=0, atol=0)
    assert not words[:, thinker.width :].any()


@pytest.mark.numeric
def test_another_image_changes_the_answer(parts: dict[str, Any]) -> None:
    messages = [make_user_message(IMAGE, make_text("describe the image"))]

    answers = [
        tuple(
            think_greedily(
                parts["thinker"], [parts["vision"]], messages, {"image": [files.make_picture(seed)]}, TOKENS
            ).ids
        )
        for seed in range(5)
    ]

    assert len(set(answers)) == 5


def test_each_level_of_an_image_counts(parts: dict[str, Any]) -> None:
    thinker = parts["thinker"]
    prompt = thinker.prompt([make_user_message(IMAGE, make_text("describe"))])
    [item] = encode_files([parts["vision"]], ["image"], {"image": [files.make_picture(1)]})
    assert item.embeds.shape == (item.meta["n_tokens"], 3 * thinker.width)

    ends = [compute_last(thinker, prompt, Encoded(rows, item.meta)) for rows in (item.embeds, *dim_parts(item.embeds))]

    for end in ends[1:]:
        assert float((end - ends[0]).abs().max()) > 0.1


def dim_parts(embeds: torch.Tensor) -> list[torch.Tensor]:
    """Return the rows without each of their parts in turn."""
    copies = []
    for part in range(3):
        copies.append(embeds.clone())
        copies[-1].chunk(3, dim=-1)[part].zero_()
    return copies


@torch.no_grad()
def compute_last(thinker: Thinker, prompt: Any, item: Encoded) -> torch.Tensor:
    prefill = thinker.assemble_prefill(prompt, [item])
    hidden = thinker.forward(prefill.inputs[None], prefill.positions[:, None], DynamicCache(), None)
    return thinker.logits(hidden[:, -1])


@pytest.mark.numeric
def test_a_prompt_in_shares_gives_the_same_keys_and_values(parts: dict[str, Any]) -> None:
    thinker = parts["thinker"]
    messages, media_files = CASES["video between images"]
    prompt = thinker.prompt(messages)
    prefill = thinker.assemble_prefill(prompt, encode_files([parts["vision"]], prompt.modalities, media_files))
    whole, split_cache = DynamicCache(), DynamicCache()

    thinker.forward(prefill.inputs[None], prefill.positions[:, None], whole, None)
    for start in range(0, len(prefill.inputs), 5):
        share = slice(start, start + 5)
        thinker.forward(prefill.inputs[None, share], prefill.positions[:, None, share], split_cache, None)

    for one, other in zip(whole.layers, split_cache.layers, strict=True):
        torch.testing.assert_close(other.keys, one.keys, rtol=0, atol=1e-4)
        torch.testing.assert_close(other.values, one.values, rtol=0, atol=1e-4)


@pytest.mark.numeric
def test_a_decode_step_with_a_mask_equals_one_without(parts: dict[str, Any]) -> None:
    thinker = parts["thinker"]
    prompt = thinker.prompt([make_user_message(IMAGE, make_text("hello world"))])
    prefill = thinker.assemble_prefill(
        prompt, encode_files([parts["vision"]], ["image"], {"image": [files.make_picture(1)]})
    )
    size = prefill.inputs.shape[0]

    causal = torch.ones(size, size, dtype=torch.bool).tril()[None, None]
    masked_rows = thinker.forward(prefill.inputs[None], prefill.positions[:, None], DynamicCache(), causal)

    plain = thinker.forward(prefill.inputs[None], prefill.positions[:, None], DynamicCache(), None)
    assert_close(masked_rows, plain)


@pytest.mark.numeric
def test_a_batch_of_images_and_videos_equals_its_items_alone(parts: dict[str, Any]) -> None:
    vision = parts["vision"]
    sizes = [(64, 64), (60, 100), (140, 60), (112, 112), (200, 120)]
    batch = [vision.prepare(memoryview(files.make_picture(n, *size)), "image") for n, size in enumerate(sizes)]
    batch.insert(2, vision.prepare(memoryview(files.make_film(2)), "video"))

    together = vision.encode(batch)

    for one, item in zip(together, batch, strict=True):
        [alone] = vision.encode([item])
        assert one.meta == alone.meta == item.meta
        assert one.embeds.shape[0] == item.meta["n_tokens"]
        assert_close(one.embeds, alone.embeds)


def test_a_video_that_was_thinned_out_keeps_its_seconds(checkpoint: Path, parts: dict[str, Any]) -> None:
    film = memoryview(files.make_film(10))
    thin = families.family_of(checkpoint).load("vision", checkpoint, limits=media.MediaDecodeLimits(sampled=8))

    whole, few = parts["vision"].prepare(film, "video"), thin.prepare(film, "video")

    # Frames from the first to the last are not quite half a second apart: ``np.linspace(0, 39, 20).round()`` of 4 per s.
    assert (whole.meta["grid_thw"][0], whole.meta["seconds"]) == (
        10,
        [0.25, 1.25, 2.25, 3.25, 4.25, 5.5, 6.5, 7.5, 8.5, 9.5],
    )
    assert (few.meta["grid_thw"][0], few.meta["seconds"]) == (4, [0.75, 3.5, 6.25, 9.0])


def test_the_library_takes_no_video_of_one_frame(parts: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="temporal_factor"):  # once it does, it need not be given that frame twice
        parts["vision"].videos(videos=[np.zeros((1, 64, 64, 3), np.uint8)], do_sample_frames=False)


@pytest.mark.numeric
def test_requests_that_alternate_do_not_disturb_each_other(parts: dict[str, Any]) -> None:
    thinker = parts["thinker"]
    first = thinker.prompt([make_user_message(VIDEO, make_text("a"))])
    items = encode_files([parts["vision"]], ["video"], {"video": [files.make_film(3)]})
    alone = thinker.assemble_prefill(first, items)

    thinker.assemble_prefill(thinker.prompt([make_user_message(make_text("hello"))]), [])
    again = thinker.assemble_prefill(first, items)

    assert again.delta == alone.delta != 0
    assert torch.equal(again.positions, alone.positions)


def make_film_item(rows: int = 12, width: int = 192, **changes: Any) -> Encoded:
    meta = {"modality": "video", "n_tokens": 12, "grid_thw": [2, 4, 6], "seconds": [0.25, 1.25], **changes}
    return Encoded(torch.randn(rows, width, generator=torch.Generator().manual_seed(1)), meta)


@pytest.mark.parametrize(
    "wrong",
    [
        make_film_item(rows=6),
        make_film_item(width=64),
        make_film_item(grid_thw=[12, 2, 2]),
        make_film_item(grid_thw=[1, 2, 2]),
        make_film_item(rows=0, grid_thw=[2, 1, 1]),
        make_film_item(grid_thw=None),
        make_film_item(seconds=None),
        make_film_item(seconds=[0.25]),
        make_film_item(seconds=[0.25, -1]),
        make_film_item(seconds=[0.25, float("nan")]),
        make_film_item(seconds=[0.25, float("inf")]),
        make_film_item(seconds=[0.25, 10**400]),
        make_film_item(seconds=[0.25, "later"]),
        make_film_item(seconds=2),
    ],
    ids=lambda wrong: f"{tuple(wrong.embeds.shape)} {wrong.meta['grid_thw']} {str(wrong.meta['seconds'])[:20]}",
)
def test_a_video_that_is_not_what_its_meta_data_says_is_refused(parts: dict[str, Any], wrong: Encoded) -> None:
    thinker = parts["thinker"]
    prompt = thinker.prompt([make_user_message(VIDEO)])
    assert thinker.layout(prompt, [make_film_item()]).ids

    with pytest.raises(BadRequest) as caught:
        thinker.layout(prompt, [wrong])

    assert caught.value.param == "items"


@pytest.mark.numeric
def test_a_reader_reads_as_the_thinker_does(checkpoint: Path, parts: dict[str, Any]) -> None:
    reader, thinker = families.family_of(checkpoint).reader(checkpoint), parts["thinker"]
    messages, media_files = CASES["video between images"]
    prompt = reader.prompt(messages)
    items = encode_files([parts["vision"]], prompt.modalities, media_files)

    reader_prefill, whole = reader.assemble_prefill(prompt, items), thinker.assemble_prefill(prompt, items)

    assert reader.parameters == reader.vocabulary * reader.width + reader.width
    assert prompt == thinker.prompt(messages)
    assert torch.equal(reader_prefill.inputs, whole.inputs)
    assert torch.equal(reader_prefill.positions, whole.positions)
    assert (reader.eos, reader.context, reader.vocabulary) == (thinker.eos, thinker.context, thinker.vocabulary)


def test_the_components_share_nothing_and_leave_nothing_out(checkpoint: Path, parts: dict[str, Any]) -> None:
    from transformers import Qwen3VLForConditionalGeneration

    whole = Qwen3VLForConditionalGeneration.from_pretrained(checkpoint)

    assert parts["vision"].parameters == count_parameters(whole.model.visual)
    assert parts["thinker"].parameters == count_parameters(whole.model.language_model) + count_parameters(whole.lm_head)
    assert sum(part.parameters for part in parts.values()) == count_parameters(whole)


@pytest.mark.parametrize(
    ("component", "weight_name"), [("vision", "visual.deepstack_merger_list.1"), ("thinker", "layers.1.mlp.up_proj")]
)
def test_missing_weights_are_fatal(checkpoint: Path, tmp_path: Path, component: str, weight_name: str) -> None:
    broken_checkpoint = copy_without(checkpoint, tmp_path / "broken", weight_name)

    with pytest.raises(Fatal, match=weight_name.removeprefix("visual.")):
        families.family_of(broken_checkpoint).load(component, broken_checkpoint)


def test_a_tiny_checkpoint_is_small(checkpoint: Path) -> None:
    assert sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file()) < 3 << 20
