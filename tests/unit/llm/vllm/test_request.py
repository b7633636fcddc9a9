"""Preparing a request for vLLM."""

from pathlib import Path

import numpy as np
import pytest
import torch

from omnibus.errors import BadRequest, StageFailed
from omnibus.executor.runner import Item
from omnibus_llm.vllm.protocol import map_memory
from omnibus_llm.vllm.request import PIECE_ROWS, VllmRequest, is_text
from omnibus_models import tiny
from omnibus_models.contract import Encoded, Reader
from omnibus_models.families import load_family
from tests.unit.llm.runners.test_thinker import make_embedding

PARTS = [{"type": "image"}, {"type": "text", "text": "and"}, {"type": "image"}]
PICTURES = [{"role": "user", "content": PARTS}]


@pytest.fixture(scope="module")
def reader(omni: Path) -> Reader:
    return load_family("qwen2_5_omni").reader(omni)


def make_request(reader: Reader, *items: Item, voice: str | None = None) -> VllmRequest:
    return VllmRequest(reader, reader.prompt(PICTURES), items, voice)


def test_embeddings_lie_in_its_parcel_in_the_engines_dtype(omni: Path) -> None:
    reader = load_family("qwen2_5_omni").reader(omni, "bfloat16")
    items = [make_embedding(1), make_embedding(2, 3, 3)]

    request = make_request(reader, *items)

    assert request.parcel is not None
    words = map_memory(request.parcel.place, torch.bfloat16)
    for medium, item in zip(request.media, items, strict=True):
        count = medium.shape[0] * medium.shape[1]
        rows = words[medium.offset // 2 :][:count].view(medium.shape)
        assert torch.equal(rows, torch.tensor(item.array).bfloat16())
        assert medium.offset % 64 == 0
        assert len({request.ids[medium.start + row] for row in range(medium.shape[0])}) == 1
    request.close()


def test_text_alone_has_no_positions_and_nothing_to_copy(reader: Reader) -> None:
    prompt = reader.prompt([{"role": "user", "content": "the quick brown fox"}])

    request = VllmRequest(reader, prompt, [], None)

    assert list(request.ids) == list(reader.layout(prompt, []).ids)
    assert (request.positions, request.parcel, request.voice, request.media) == (None, None, None, [])
    assert is_text(prompt, [], None)
    assert not is_text(prompt, [], "Ethan")
    assert not is_text(reader.prompt(PICTURES), [], None)


def test_keys_are_equal_where_rows_and_meta_data_are(reader: Reader) -> None:
    same = make_request(reader, make_embedding(1, 2, 3), make_embedding(1, 2, 3))
    grid = make_request(reader, make_embedding(1, 2, 3), make_embedding(1, 3, 2))
    rows = make_request(reader, make_embedding(1, 2, 3), make_embedding(2, 2, 3))

    keys = [[medium.key for medium in request.media] for request in (same, grid, rows)]
    assert keys[0][0] == keys[0][1]
    assert keys[1][0] != keys[1][1]
    assert keys[2][0] != keys[2][1]
    assert len({each[0] for each in keys}) == 1


def test_a_video_with_text_between_its_frames_is_as_many_items(tmp_path: Path) -> None:
    reader = load_family("qwen3_vl").reader(tiny.build("qwen3_vl", tmp_path / "deep"))
    one, other = (np.random.default_rng(seed).normal(size=(6, 192)).astype(np.float32) for seed in (1, 2))
    meta = {"modality": "video", "n_tokens": 18, "grid_thw": [3, 4, 6], "seconds": [0.25, 1.25, 2.25]}
    prompt = reader.prompt([{"role": "user", "content": [{"type": "video"}]}])

    request = VllmRequest(reader, prompt, [Item(meta, np.concatenate([one, other, one]))], None)

    assert request.parcel is not None
    words = map_memory(request.parcel.place, torch.float32)
    for medium, rows in zip(request.media, (one, other, one), strict=True):
        assert medium.shape == rows.shape
        assert np.array_equal(words[medium.offset // 4 :][: rows.size].view(rows.shape).numpy(), rows)
    places = [medium.start + row for medium in request.media for row in range(6)]
    [placeholder] = {request.ids[place] for place in places}
    assert places == [place for place, token in enumerate(request.ids) if token == placeholder]
    first, second, third = (medium.key for medium in request.media)
    assert first == third != second
    request.close()


def make_sound(rows: np.ndarray) -> Item:
    return Item({"modality": "audio", "n_tokens": len(rows), "audio_len": 4 * len(rows)}, rows)


def test_a_sound_that_goes_on_begins_with_the_same_pieces(reader: Reader) -> None:
    """So the next prompt begins like the cached previous one."""
    rows = np.random.default_rng(3).normal(size=(3 * PIECE_ROWS, 64)).astype(np.float32)
    prompt = reader.prompt([{"role": "user", "content": [{"type": "audio"}]}])
    lengths = (2 * PIECE_ROWS + 5, 3 * PIECE_ROWS)

    short, whole = (VllmRequest(reader, prompt, [make_sound(rows[:length])], None) for length in lengths)

    for request, length in zip((short, whole), lengths, strict=True):
        assert request.parcel is not None
        words = map_memory(request.parcel.place, torch.float32)
        pieces = [words[each.offset // 4 :][: each.shape[0] * 64].view(each.shape).numpy() for each in request.media]
        assert np.array_equal(np.concatenate(pieces), rows[:length])
        assert [each.start for each in request.media] == [
            request.media[0].start + at for at in range(0, length, PIECE_ROWS)
        ]
    keys = [[each.key for each in vllm_request.media] for vllm_request in (short, whole)]
    assert keys[0][:2] == keys[1][:2]
    assert keys[0][2] != keys[1][2]
    for request in (short, whole):
        request.close()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_numbers_are_refused(reader: Reader, value: float) -> None:
    array = np.ones((6, 64), np.float32)
    array[3, 7] = value

    with pytest.raises(BadRequest, match="not numbers"):
        make_request(reader, make_embedding(1), make_embedding(1)._replace(array=array))


def test_missing_and_superfluous_media_are_refused(reader: Reader) -> None:
    for items in ([], [make_embedding(1)], [make_embedding(1)] * 3):
        with pytest.raises(BadRequest):
            make_request(reader, *items)


def test_an_unknown_voice_is_refused(reader: Reader) -> None:
    with pytest.raises(BadRequest, match="Nobody"):
        make_request(reader, make_embedding(1), make_embedding(2), voice="Nobody")


def test_rows_that_the_engine_has_not_written_are_an_error(reader: Reader) -> None:
    request = make_request(reader, make_embedding(1), make_embedding(2), voice="Ethan")
    assert request.voice is not None
    request.voice.rows.append(np.zeros((len(request.ids), 64), np.float32))

    assert request.voice.next_sides([5])[0].shape == (len(request.ids) + 3, 64)
    with pytest.raises(StageFailed, match="rows"):
        request.voice.next_sides([6])


@pytest.mark.parametrize("cuts", [[1] * 7, [7], [1, 6], [3, 1, 3]])
def test_rows_are_the_same_however_tokens_come(reader: Reader, cuts: list[int]) -> None:
    request = make_request(reader, make_embedding(1), make_embedding(2), voice="Ethan")
    assert request.voice is not None
    length, tokens = len(request.ids), list(range(20, 27))
    hidden = torch.randn(length + 7, 64, generator=torch.Generator().manual_seed(1))
    request.voice.rows.append(hidden.numpy())

    sides, left = [], tokens
    for cut in cuts:
        sides += request.voice.next_sides(left[:cut])
        left = left[cut:]

    prefill = reader.assemble_prefill(reader.prompt(PICTURES), _make_media([make_embedding(1), make_embedding(2)]))
    reference = reader.talker_prompt(prefill, hidden[:length], "Ethan")
    assert np.array_equal(sides[0], reference.numpy())
    rows = reader.talker_row(reader.embed(torch.tensor(tokens[:-1])), hidden[length:-1])
    assert np.array_equal(np.stack(sides[1:]), rows.numpy())


def _make_media(items: list[Item]) -> list[Encoded]:
    return [Encoded(torch.tensor(item.array), item.data) for item in items]
