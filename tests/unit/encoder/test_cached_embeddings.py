"""Cached embeddings equal those of the file alone, up to rounding."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omnibus.errors import BadMedia
from omnibus.executor.runner import Item
from omnibus_encoder.cache_key import EncoderIdentity
from omnibus_encoder.media_encoder import EncodeRunner, EncodeSettings
from omnibus_models.contract import MediaEncoder
from omnibus_models.families import load_family
from tests.close import assert_close
from tests.nightly import nightly
from tests.unit.jobs import MemoryJob, run
from tests.unit.models import files

File = tuple[bytes, str]  # content and modality
_SECONDS = (0.1, 0.7, 1.3, 1.99, 2.0, 2.5, 5.1, 9.0)  # of audio; the encoder's window is 2 s

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def parts(omni: Path) -> dict[str, MediaEncoder]:
    return {component: load_family("qwen2_5_omni").load(component, omni) for component in ("vision", "audio")}


@pytest.fixture(scope="module")
def files_of() -> dict[str, list[File]]:
    sizes = [(90, 60), (28, 28), (300, 40), (64, 200), (57, 111), (90, 60)]
    pictures = [(files.picture(seed, *size), "image") for seed, size in enumerate(sizes)]
    return {
        "vision": [*pictures, (files.film(1.0, 1), "video"), (files.film(2.0, 2, width=96), "video")],
        "audio": [(files.tone(seconds, seed), "audio") for seed, seconds in enumerate(_SECONDS)],
    }


@asynccontextmanager
async def encoding(checkpoint: Path, component: str, **limits: int) -> AsyncIterator[EncodeRunner]:
    made = EncodeRunner(component, "qwen2_5_omni", checkpoint, "cpu", "float32", EncodeSettings(**limits))
    await made.load()
    try:
        yield made
    finally:
        await made.close()


def job(file: File, salt: str = "") -> MemoryJob:
    content, modality = file
    said = {"modality": modality, "sha256": "0" * 64, **({"salt": salt} if salt else {})}
    return MemoryJob({"media": Item(said, np.frombuffer(content, np.uint8))})


@torch.inference_mode()
def alone(encoder: MediaEncoder, file: File) -> np.ndarray:
    content, modality = file
    [encoded] = encoder.encode([encoder.prepare(memoryview(content), modality)])
    return encoded.embeds.numpy()


@pytest.mark.numeric
@pytest.mark.parametrize("pairs", ["neighbours", *nightly("all")])
@pytest.mark.parametrize("component", ["vision", "audio"])
async def test_a_batch_of_any_sizes_equals_its_items(
    parts: dict[str, MediaEncoder], files_of: dict[str, list[File]], component: str, pairs: str
):
    encoder, given = parts[component], files_of[component]
    prepared = [encoder.prepare(memoryview(content), modality) for content, modality in given]
    expected = [alone(encoder, file) for file in given]
    dice = random.Random(1)
    numbers = range(len(given))
    orders = [[*numbers], [*numbers][::-1]]
    orders += [[*pair] for pair in (combinations(numbers, 2) if pairs == "all" else pairwise(numbers))]
    orders += [dice.choices(numbers, k=dice.randint(3, 8)) for _ in range(20 if pairs == "all" else 6)]

    for order in orders:
        with torch.inference_mode():
            together = encoder.encode([prepared[index] for index in order])

        assert len(together) == len(order)
        for index, encoded in zip(order, together, strict=True):
            assert_close(encoded.embeds.numpy(), expected[index])


@pytest.mark.numeric
async def test_a_hit_equals_the_miss_and_runs_nothing(omni: Path, files_of: dict[str, list[File]]):
    async with encoding(omni, "vision", cache=1 << 20) as runner:
        first, second = [await run(runner, job(files_of["vision"][0])) for _ in range(2)]

        np.testing.assert_array_equal(first.array("embedding"), second.array("embedding"))
        assert first.outputs["embedding"].items[0].data == second.outputs["embedding"].items[0].data
        stats = runner.stats()
        assert (stats["cache"]["hits"], stats["cache"]["misses"], stats["batches"]) == (1, 1, {"1": 1})


async def test_another_salt_or_content_is_a_miss_whatever_hash_the_request_names(
    omni: Path, files_of: dict[str, list[File]]
):
    one, other = files_of["vision"][:2]
    async with encoding(omni, "vision", cache=1 << 20) as runner:
        for each in (job(one), job(one, "tenant"), job(other), job(one, "tenant")):
            await run(runner, each)

        assert runner.stats()["cache"]["misses"] == 3
        assert runner.stats()["cache"]["hits"] == 1


class NamedJob(MemoryJob):
    """A job with literal media, whose description is readable without the bytes."""

    @property
    def inputs(self) -> Mapping[str, Any]:
        return {name: value.data for name, value in self._inputs.items()}


def named(file: File, digest: str, salt: str = "") -> NamedJob:
    content, modality = file
    data = {"modality": modality, "sha256": digest, **({"salt": salt} if salt else {})}
    return NamedJob({"media": Item(data, np.frombuffer(content, np.uint8))})


async def test_media_that_are_known_by_their_digest_are_not_opened(omni: Path, files_of: dict[str, list[File]]):
    file = files_of["vision"][0]
    digest = sha256(file[0]).hexdigest()
    async with encoding(omni, "vision", cache=1 << 20) as runner:
        first, second = await run(runner, named(file, digest)), await run(runner, named(file, digest))
        others = [await run(runner, named(file, digest, "tenant")), await run(runner, named(file, "zz" + digest[2:]))]

    assert (first.asked, second.asked) == (["media"], [])
    assert [each.asked for each in others] == [["media"], ["media"]]  # of another tenant; without a digest
    np.testing.assert_array_equal(first.array("embedding"), second.array("embedding"))


async def test_a_wrong_digest_changes_nothing_that_is_kept(omni: Path, files_of: dict[str, list[File]]):
    one, other = files_of["vision"][:2]
    right, wrong = sha256(one[0]).hexdigest(), sha256(other[0]).hexdigest()
    async with encoding(omni, "vision", cache=1 << 20) as runner:
        expected = (await run(runner, named(one, right))).array("embedding")
        await run(runner, named(other, "0" * 64))  # cached by the digest of its bytes
        lied = await run(runner, named(one, "1" * 64))
        found = await run(runner, named(other, wrong))
        again = await run(runner, named(one, right))

    assert lied.asked == ["media"]
    assert (found.asked, again.asked) == ([], [])
    np.testing.assert_array_equal(again.array("embedding"), expected)
    assert found.array("embedding").shape != expected.shape


@pytest.mark.numeric
async def test_without_a_cache_equal_items_are_computed_each(omni: Path, files_of: dict[str, list[File]]):
    async with encoding(omni, "vision") as runner:
        jobs = [await run(runner, job(files_of["vision"][0])) for _ in range(2)]

        assert not runner.keeps
        assert runner.stats()["batches"] == {"1": 2}
        np.testing.assert_array_equal(jobs[0].array("embedding"), jobs[1].array("embedding"))


async def test_equal_broken_files_all_fail(omni: Path):
    async with encoding(omni, "vision", cache=1 << 20) as runner:
        jobs = [run(runner, job((b"\xff\xd8 no picture", "image"))) for _ in range(3)]

        assert [type(error) for error in await asyncio.gather(*jobs, return_exceptions=True)] == [BadMedia] * 3
        assert runner.stats()["cache"]["items"] == 0


async def test_a_kept_item_does_not_keep_its_batch(omni: Path, files_of: dict[str, list[File]]):
    async with encoding(omni, "vision", cache=1 << 20) as runner:
        jobs = [job(file) for file in files_of["vision"][:4]]
        await asyncio.gather(*(run(runner, each) for each in jobs))

        kept = [result.embeds for result in runner._results._kept.values()]  # type: ignore[union-attr]
        assert len(kept) == 4
        assert [torch.as_tensor(rows.base).untyped_storage().nbytes() for rows in kept] == [
            rows.nbytes for rows in kept
        ]


@pytest.mark.parametrize("seed", [0, 3, 4, *nightly(1, 2, 5)])  # both components, caches of all sizes
async def test_random_requests_never_get_another_files_embedding(
    omni: Path, parts: dict[str, MediaEncoder], files_of: dict[str, list[File]], seed: int
):
    dice = random.Random(seed)
    component = dice.choice(["vision", "audio"])
    given = files_of[component]
    wanted = [alone(parts[component], file) for file in given]
    cache = dice.choice([1, 4, 30, 1000]) * 1024
    requests = [(dice.randrange(len(given)), dice.choice(["", "a", "b"])) for _ in range(80)]
    leavers = set(dice.sample(range(80), 20))
    async with encoding(omni, component, cache=cache, items=dice.randint(1, 6)) as runner:
        jobs = [job(given[number], salt) for number, salt in requests]

        for begin in range(0, 80, 16):
            await _some(runner, jobs[begin : begin + 16], {each - begin for each in leavers}, dice.random)

        for index, ((number, _), each) in enumerate(zip(requests, jobs, strict=True)):
            items = each.outputs["embedding"].items
            assert len(items) == 1 or index in leavers
            for item in items:
                assert_close(item.array, wanted[number])
        stats = runner.stats()["cache"]
        assert stats["bytes"] <= cache
        assert stats["misses"] >= len({(number, salt) for number, salt in requests}) - len(leavers)


async def _some(
    runner: EncodeRunner, jobs: Sequence[MemoryJob], leavers: set[int], random: Callable[[], float]
) -> None:
    """Run all jobs at once; ``leavers`` are cancelled at random points."""
    running = [asyncio.create_task(run(runner, each)) for each in jobs]
    for index in sorted(leavers & set(range(len(jobs)))):
        for _ in range(int(4 * random())):
            await asyncio.sleep(0)
        running[index].cancel()
    found = await asyncio.gather(*running, return_exceptions=True)
    assert all(each is None or isinstance(each, MemoryJob | asyncio.CancelledError) for each in found), found


def test_keys_are_of_full_width_and_tell_apart_all_that_matters(tmp_path: Path):
    one, other = tmp_path / "one", tmp_path / "other"
    for place, config in ((one, "{}"), (other, '{"size": 2}')):
        place.mkdir()
        (place / "preprocessor_config.json").write_text(config)
    whole = ("qwen", "vision", one, "cpu", "float32")

    identities = [EncoderIdentity(*whole), EncoderIdentity("qwen", "vision", other, "cpu", "float32")]
    identities += [EncoderIdentity("qwe", "nvision", one, "cpu", "float32"), EncoderIdentity(*whole[:4], "bfloat16")]
    keys = [
        identity.item_key(content, modality, salt)
        for identity in identities
        for content in (b"", b"x", b"ximage")
        for modality in ("image", "video")
        for salt in ("", "x")
    ]

    assert len(set(keys)) == len(keys)
    assert {len(key) for key in keys} == {32}
    assert EncoderIdentity(*whole).item_key(b"x", "image", "") == keys[4]
