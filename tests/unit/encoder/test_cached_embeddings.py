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
from omnibus_encoder.embedding_cache import EncoderIdentity
from omnibus_encoder.media_encoder import EncodeRunner, EncodeSettings
from omnibus_models.contract import MediaEncoder
from omnibus_models.families import load_family
from tests.close import assert_close
from tests.nightly import mark_nightly
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.models import files

File = tuple[bytes, str]  # content and modality
_SECONDS = (0.1, 0.7, 1.3, 1.99, 2.0, 2.5, 5.1, 9.0)  # of audio; the encoder's window is 2 s

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def media_encoders(omni: Path) -> dict[str, MediaEncoder]:
    return {component: load_family("qwen2_5_omni").load(component, omni) for component in ("vision", "audio")}


@pytest.fixture(scope="module")
def files_of() -> dict[str, list[File]]:
    sizes = [(90, 60), (28, 28), (300, 40), (64, 200), (57, 111), (90, 60)]
    pictures = [(files.make_picture(seed, *size), "image") for seed, size in enumerate(sizes)]
    return {
        "vision": [*pictures, (files.make_film(1.0, 1), "video"), (files.make_film(2.0, 2, width=96), "video")],
        "audio": [(files.make_tone(seconds, seed), "audio") for seed, seconds in enumerate(_SECONDS)],
    }


@asynccontextmanager
async def open_runner(checkpoint: Path, component: str, **limits: int) -> AsyncIterator[EncodeRunner]:
    encode_runner = EncodeRunner(component, "qwen2_5_omni", checkpoint, "cpu", "float32", EncodeSettings(**limits))
    await encode_runner.load()
    try:
        yield encode_runner
    finally:
        await encode_runner.close()


def make_job(file: File, salt: str = "") -> MemoryJob:
    content, modality = file
    data = {"modality": modality, "sha256": "0" * 64, **({"salt": salt} if salt else {})}
    return MemoryJob({"media": Item(data, np.frombuffer(content, np.uint8))})


@torch.inference_mode()
def encode_alone(encoder: MediaEncoder, file: File) -> np.ndarray:
    content, modality = file
    [output] = encoder.encode([encoder.prepare(memoryview(content), modality)])
    return output.embeds.numpy()


@pytest.mark.numeric
@pytest.mark.parametrize("pairs", ["neighbours", *mark_nightly("all")])
@pytest.mark.parametrize("component", ["vision", "audio"])
async def test_a_batch_of_any_sizes_equals_its_items(
    media_encoders: dict[str, MediaEncoder], files_of: dict[str, list[File]], component: str, pairs: str
):
    encoder, inputs = media_encoders[component], files_of[component]
    items = [encoder.prepare(memoryview(content), modality) for content, modality in inputs]
    references = [encode_alone(encoder, file) for file in inputs]
    dice = random.Random(1)
    numbers = range(len(inputs))
    orders = [[*numbers], [*numbers][::-1]]
    orders += [[*pair] for pair in (combinations(numbers, 2) if pairs == "all" else pairwise(numbers))]
    orders += [dice.choices(numbers, k=dice.randint(3, 8)) for _ in range(20 if pairs == "all" else 6)]

    for order in orders:
        with torch.inference_mode():
            together = encoder.encode([items[index] for index in order])

        assert len(together) == len(order)
        for index, output in zip(order, together, strict=True):
            assert_close(output.embeds.numpy(), references[index])


@pytest.mark.numeric
async def test_a_hit_equals_the_miss_and_runs_nothing(omni: Path, files_of: dict[str, list[File]]):
    async with open_runner(omni, "vision", cache=1 << 20) as runner:
        first, second = [await finish_job(runner, make_job(files_of["vision"][0])) for _ in range(2)]

        np.testing.assert_array_equal(first.array("embedding"), second.array("embedding"))
        assert first.outputs["embedding"].items[0].data == second.outputs["embedding"].items[0].data
        stats = runner.stats()
        assert (stats["cache"]["hits"], stats["cache"]["misses"], stats["batches"]) == (1, 1, {"1": 1})


async def test_another_salt_or_content_is_a_miss_whatever_hash_the_request_names(
    omni: Path, files_of: dict[str, list[File]]
):
    one, other = files_of["vision"][:2]
    async with open_runner(omni, "vision", cache=1 << 20) as runner:
        for each in (make_job(one), make_job(one, "tenant"), make_job(other), make_job(one, "tenant")):
            await finish_job(runner, each)

        assert runner.stats()["cache"]["misses"] == 3
        assert runner.stats()["cache"]["hits"] == 1


class NamedJob(MemoryJob):
    """A job with literal media, whose description is readable without the bytes."""

    @property
    def inputs(self) -> Mapping[str, Any]:
        return {name: value.data for name, value in self._inputs.items()}


def make_named_job(file: File, digest: str, salt: str = "") -> NamedJob:
    content, modality = file
    data = {"modality": modality, "sha256": digest, **({"salt": salt} if salt else {})}
    return NamedJob({"media": Item(data, np.frombuffer(content, np.uint8))})


async def test_media_that_are_known_by_their_digest_are_not_opened(omni: Path, files_of: dict[str, list[File]]):
    file = files_of["vision"][0]
    digest = sha256(file[0]).hexdigest()
    async with open_runner(omni, "vision", cache=1 << 20) as runner:
        first, second = (
            await finish_job(runner, make_named_job(file, digest)),
            await finish_job(runner, make_named_job(file, digest)),
        )
        other_jobs = [
            await finish_job(runner, make_named_job(file, digest, "tenant")),
            await finish_job(runner, make_named_job(file, "zz" + digest[2:])),
        ]

    assert (first.asked, second.asked) == (["media"], [])
    assert [each.asked for each in other_jobs] == [["media"], ["media"]]  # of another tenant; without a digest
    np.testing.assert_array_equal(first.array("embedding"), second.array("embedding"))


async def test_a_wrong_digest_changes_nothing_that_is_kept(omni: Path, files_of: dict[str, list[File]]):
    one, other = files_of["vision"][:2]
    right, wrong = sha256(one[0]).hexdigest(), sha256(other[0]).hexdigest()
    async with open_runner(omni, "vision", cache=1 << 20) as runner:
        reference = (await finish_job(runner, make_named_job(one, right))).array("embedding")
        await finish_job(runner, make_named_job(other, "0" * 64))  # cached by the digest of its bytes
        false_job = await finish_job(runner, make_named_job(one, "1" * 64))
        cached_job = await finish_job(runner, make_named_job(other, wrong))
        again = await finish_job(runner, make_named_job(one, right))

    assert false_job.asked == ["media"]
    assert (cached_job.asked, again.asked) == ([], [])
    np.testing.assert_array_equal(again.array("embedding"), reference)
    assert cached_job.array("embedding").shape != reference.shape


@pytest.mark.numeric
async def test_without_a_cache_equal_items_are_computed_each(omni: Path, files_of: dict[str, list[File]]):
    async with open_runner(omni, "vision") as runner:
        jobs = [await finish_job(runner, make_job(files_of["vision"][0])) for _ in range(2)]

        assert not runner.keeps
        assert runner.stats()["batches"] == {"1": 2}
        np.testing.assert_array_equal(jobs[0].array("embedding"), jobs[1].array("embedding"))


async def test_equal_broken_files_all_fail(omni: Path):
    async with open_runner(omni, "vision", cache=1 << 20) as runner:
        jobs = [finish_job(runner, make_job((b"\xff\xd8 no picture", "image"))) for _ in range(3)]

        assert [type(error) for error in await asyncio.gather(*jobs, return_exceptions=True)] == [BadMedia] * 3
        assert runner.stats()["cache"]["items"] == 0


async def test_a_kept_item_does_not_keep_its_batch(omni: Path, files_of: dict[str, list[File]]):
    async with open_runner(omni, "vision", cache=1 << 20) as runner:
        jobs = [make_job(file) for file in files_of["vision"][:4]]
        await asyncio.gather(*(finish_job(runner, each) for each in jobs))

        cached_rows = [result.embeds for result in runner._results._kept.values()]  # type: ignore[union-attr]
        assert len(cached_rows) == 4
        assert [torch.as_tensor(rows.base).untyped_storage().nbytes() for rows in cached_rows] == [
            rows.nbytes for rows in cached_rows
        ]


@pytest.mark.parametrize("seed", [0, 3, 4, *mark_nightly(1, 2, 5)])  # both components, caches of all sizes
async def test_random_requests_never_get_another_files_embedding(
    omni: Path, media_encoders: dict[str, MediaEncoder], files_of: dict[str, list[File]], seed: int
):
    dice = random.Random(seed)
    component = dice.choice(["vision", "audio"])
    inputs = files_of[component]
    references = [encode_alone(media_encoders[component], file) for file in inputs]
    cache = dice.choice([1, 4, 30, 1000]) * 1024
    requests = [(dice.randrange(len(inputs)), dice.choice(["", "a", "b"])) for _ in range(80)]
    leavers = set(dice.sample(range(80), 20))
    async with open_runner(omni, component, cache=cache, items=dice.randint(1, 6)) as runner:
        jobs = [make_job(inputs[number], salt) for number, salt in requests]

        for begin in range(0, 80, 16):
            await _run_some(runner, jobs[begin : begin + 16], {each - begin for each in leavers}, dice.random)

        for index, ((number, _), each) in enumerate(zip(requests, jobs, strict=True)):
            items = each.outputs["embedding"].items
            assert len(items) == 1 or index in leavers
            for item in items:
                assert_close(item.array, references[number])
        stats = runner.stats()["cache"]
        assert stats["bytes"] <= cache
        assert stats["misses"] >= len({(number, salt) for number, salt in requests}) - len(leavers)


async def _run_some(
    runner: EncodeRunner, jobs: Sequence[MemoryJob], leavers: set[int], random: Callable[[], float]
) -> None:
    """Run all jobs at once; ``leavers`` are cancelled at random points."""
    running = [asyncio.create_task(finish_job(runner, each)) for each in jobs]
    for index in sorted(leavers & set(range(len(jobs)))):
        for _ in range(int(4 * random())):
            await asyncio.sleep(0)
        running[index].cancel()
    results = await asyncio.gather(*running, return_exceptions=True)
    assert all(each is None or isinstance(each, MemoryJob | asyncio.CancelledError) for each in results), results


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
