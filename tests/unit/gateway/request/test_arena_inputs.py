"""Inputs in the arena: placed once, kept by content, and restored for a replay."""

from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnibus.bus.messages import to_handle
from omnibus.errors import NotFound, ProtocolError, StaleHandle
from omnibus.graph import HANDLE, call_digest
from omnibus.tensors.client import TensorClient
from omnibus.tensors.handle import Item
from omnibus_gateway.dispatch.dispatcher import MAX_ATTEMPTS
from omnibus_gateway.media.blob_store import MediaStore
from omnibus_gateway.openai.realtime.session import PcmFormat
from omnibus_gateway.realtime.config import to_wav
from omnibus_gateway.request.inputs import TensorPlacer, place_input, restore_input
from omnibus_sidecar.server import Sidecar
from tests.unit.sidecar import node as nodes


class There:
    """A node with one client and a media store."""

    def __init__(self, sidecar: Sidecar, client: TensorClient, keep: MediaStore) -> None:
        self.sidecar = sidecar
        self.client = client
        self.keep = keep

    def tensors(self, invocation: str = "i") -> TensorPlacer:
        return TensorPlacer(self.client, self.keep, invocation, nodes.make_deadline())

    def read_literal(self, literal: dict[str, Any]) -> np.ndarray:
        handle = to_handle(literal[HANDLE])
        array = self.client.view(handle).copy()
        self.client.release(handle)
        return array

    async def count_blocks(self) -> int:
        await self.client.stats()
        return int(self.sidecar.snapshot()["blocks"])


@pytest.fixture
async def arena(tmp_path: Path) -> AsyncIterator[There]:
    keep = MediaStore(str(tmp_path / "kept"), 1 << 20)
    async with nodes.run_sidecar(tmp_path) as sidecar:
        client = await nodes.connect_client(tmp_path)
        yield There(sidecar, client, keep)
        await client.close()
    keep.close()


PICTURE = b"a picture"
HASH = sha256(PICTURE).hexdigest()


async def test_sounds_that_begin_alike_say_so(arena: There):
    """The header of a WAV file contains the length, which varies."""
    dice = np.random.default_rng(0)
    samples = dice.integers(-9000, 9000, 60_000).astype("<i2")
    other = np.concatenate([samples[1:], samples[:1]])
    sounds = [to_wav(each.tobytes(), PcmFormat()) for each in (samples[:40_000], samples, other, samples[:24_000])]

    literals = [
        await place_input(arena.client, None, each, ("audio", "audio/wav", HASH), "i", nodes.make_deadline())
        for each in sounds
    ]

    shorter, longer, differs, short = [each.get("beginning") for each in literals]
    assert shorter == longer != differs
    assert (bool(shorter), short) == (True, None)  # audio of 1 s gets no "beginning"


async def test_an_input_is_placed_with_what_is_known_of_it(arena: There):
    literal = await place_input(
        arena.client, arena.keep, PICTURE, ("image", "image/png", HASH), "i", nodes.make_deadline()
    )

    assert arena.read_literal(literal).tobytes() == PICTURE
    assert {key: literal[key] for key in literal if key != HANDLE} == {
        "modality": "image", "mime": "image/png", "sha256": HASH, "nbytes": len(PICTURE),
    }  # fmt: skip


async def test_a_salt_is_named_where_there_is_one_and_comes_back(arena: There):
    about = ("image", "image/png", HASH)
    plain = await place_input(arena.client, arena.keep, PICTURE, about, "i", nodes.make_deadline())
    salted_literal = await place_input(
        arena.client, arena.keep, PICTURE, about, "i", nodes.make_deadline(), salt="tenant"
    )

    again = await restore_input(arena.client, arena.keep, salted_literal, "j", nodes.make_deadline())

    assert "salt" not in plain
    assert (salted_literal["salt"], again["salt"]) == ("tenant", "tenant")
    assert call_digest("encode", {"media": plain}) != call_digest("encode", {"media": salted_literal})


async def test_an_input_lives_until_all_attempts_have_read_it_or_the_end(arena: There):
    literal = await place_input(arena.client, None, PICTURE, ("image", "image/png", HASH), "i", nodes.make_deadline())

    for _ in range(MAX_ATTEMPTS):
        arena.read_literal(literal)
    assert await arena.count_blocks() == 1
    arena.client.end_invocation("i")

    assert await arena.count_blocks() == 0


async def test_what_was_placed_is_brought_back_by_its_content(arena: There):
    literal = await place_input(
        arena.client, arena.keep, PICTURE, ("image", "image/png", HASH), "i", nodes.make_deadline()
    )
    arena.client.end_invocation("i")

    again = await restore_input(arena.client, arena.keep, literal, "j", nodes.make_deadline())

    assert arena.read_literal(again).tobytes() == PICTURE
    assert again[HANDLE] != literal[HANDLE]
    with pytest.raises(StaleHandle):
        arena.read_literal(literal)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.int64).reshape(2, 3),
        np.ones((0, 4), np.float32),
        np.arange(8, dtype=np.float16)[::2],
        np.array([True, False]),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
    ],
    ids=["rows", "empty", "strided", "bool", "columns first"],
)
async def test_a_tensor_is_placed_and_brought_back_as_it_was(arena: There, array: np.ndarray):
    literal = await arena.tensors().put(Item({"rate": 8}, array), 1)
    again = await restore_input(arena.client, arena.keep, literal, "j", nodes.make_deadline())

    for each in (literal, again):
        read = arena.read_literal(each)
        assert (read.dtype, read.shape) == (array.dtype, array.shape)
        assert np.array_equal(read, array)
    assert literal["rate"] == 8


async def test_equal_tensors_have_equal_literals_but_for_their_handles(arena: There):
    first, second = [await arena.tensors(name).put(Item({}, np.ones(3)), 1) for name in ("i", "j")]

    assert {**first, HANDLE: 0} == {**second, HANDLE: 0}
    assert first[HANDLE] != second[HANDLE]


async def test_a_tensor_lives_until_all_its_readers_have_read_it_in_all_attempts(arena: There):
    literal = await arena.tensors().put(Item({}, np.ones(3)), 2)

    for _ in range(2 * (MAX_ATTEMPTS + 1)):
        assert await arena.count_blocks() == 1
        arena.read_literal(literal)

    assert await arena.count_blocks() == 0


async def test_what_was_not_kept_is_not_found(arena: There):
    with pytest.raises(NotFound, match="is not kept here: record in `full` mode"):
        await restore_input(arena.client, arena.keep, {"sha256": "0" * 64}, "j", nodes.make_deadline())


@pytest.mark.parametrize(
    "wrong",
    [{"dtype": "object"}, {"dtype": "no such type"}, {"shape": [7]}, {"shape": "all"}, {"dtype": "float64", "shape": [3]}],
)  # fmt: skip
async def test_a_record_that_lies_about_a_tensor_is_refused(arena: There, wrong: dict[str, Any]):
    literal = await arena.tensors().put(Item({}, np.ones(3, np.float32)), 1)

    with pytest.raises(ProtocolError, match="a recorded tensor cannot be"):
        await restore_input(arena.client, arena.keep, {**literal, **wrong}, "j", nodes.make_deadline())


async def test_a_record_without_a_shape_is_refused(arena: There):
    literal = await arena.tensors().put(Item({}, np.ones(3, np.float32)), 1)
    del literal["shape"]

    with pytest.raises(ProtocolError, match="a recorded tensor cannot be float32 None"):
        await restore_input(arena.client, arena.keep, literal, "j", nodes.make_deadline())
