"""LoRA adapters in vLLM: each answers as the model that it was merged into, in steps that all of them share."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from omnibus.checkpoints.adapters import describe_adapter
from omnibus.errors import BadRequest, Fatal, NotFound
from omnibus_llm.vllm.runner import VllmRunner
from tests.lora import merge_adapter, widen_adapter, write_adapter
from tests.oracles import language as oracle
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.llm.runners.test_thinker import make_chat_job, make_text_chat
from tests.vllm.conftest import IN_PROCESS, start_vllm
from tests.vllm.halves import Three, start_three

pytestmark = [*IN_PROCESS, pytest.mark.asyncio(loop_scope="module")]

TOKENS = 16
#: Ranks of the adapters; "" is the base.
RANKS = {"pirate": 4, "poet": 8}
NAMES = ("", *RANKS)


@pytest.fixture(scope="module")
def base(build: Callable[[str], Path]) -> Path:
    return build("qwen2")


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("adapters")
    return {
        name: write_adapter(base, directory / name, seed, rank=rank)
        for seed, (name, rank) in enumerate(RANKS.items(), 1)
    }


@pytest.fixture(scope="module")
def merged_paths(base: Path, adapters: dict[str, Path]) -> dict[str, Path]:
    paths = {name: merge_adapter(base, path, path.with_name(f"merged-{name}")) for name, path in adapters.items()}
    return {"": base, **paths}


def make_setting(adapters: dict[str, Path]) -> str:
    return msgspec.json.encode({name: str(path) for name, path in adapters.items()}).decode()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runner(base: Path, adapters: dict[str, Path]) -> AsyncIterator[VllmRunner]:
    async with start_vllm("qwen2", base, batch=8, adapters=make_setting(adapters)) as new_runner:
        yield new_runner


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines(base: Path, adapters: dict[str, Path]) -> AsyncIterator[Three]:
    async with start_three("qwen2", base, adapters=make_setting(adapters)) as new_engines:
        yield new_engines


def make_reference(merged_paths: dict[str, Path], name: str, number: int) -> list[int]:
    return oracle.generate_answer(merged_paths[name], make_text_chat(number), TOKENS)[0]


async def test_requests_of_all_adapters_answer_as_the_merged_models(
    runner: VllmRunner, merged_paths: dict[str, Path]
) -> None:
    requests = [(name, number, make_chat_job(make_text_chat(number), max_tokens=TOKENS, ignore_eos=False, adapter=name))
             for number in (3, 8) for name in NAMES]  # fmt: skip

    await asyncio.gather(*(finish_job(runner, one) for _, _, one in requests))

    assert [one.ids for _, _, one in requests] == [
        make_reference(merged_paths, name, number) for name, number, _ in requests
    ]
    assert len({tuple(one.ids) for _, _, one in requests[:3]}) == len(NAMES)


async def test_one_adapter_reads_nothing_that_another_left_in_the_prefix_cache(
    runner: VllmRunner, merged_paths: dict[str, Path]
) -> None:
    prompt = [{"role": "user", "content": "the small cat sleeps on a warm red mat " * 8}]
    hits = []
    for name in (*NAMES, "poet"):
        before = runner.stats()["prefix_hits"]
        one = make_chat_job(prompt, max_tokens=TOKENS, ignore_eos=False, adapter=name)
        await finish_job(runner, one)
        assert one.ids == oracle.generate_answer(merged_paths[name], prompt, TOKENS)[0]
        hits.append(runner.stats()["prefix_hits"] - before)

    assert hits[:3] == [0, 0, 0]
    assert hits[3] > 0


@pytest.mark.parametrize("near", [False, True])
async def test_both_halves_have_the_adapter(engines: Three, merged_paths: dict[str, Path], near: bool) -> None:
    halves = engines.halves(near)
    jobs = [make_chat_job(make_text_chat(5), max_tokens=TOKENS, ignore_eos=False, adapter=name) for name in NAMES]

    answers = await asyncio.gather(*(halves.answer(one) for one in jobs))

    assert [one.ids for one in answers] == [make_reference(merged_paths, name, 5) for name in NAMES]
    await engines.until_idle()


async def test_an_unknown_adapter_is_not_found(runner: VllmRunner) -> None:
    with pytest.raises(NotFound, match="no adapter 'captain'"):
        await finish_job(runner, make_chat_job(make_text_chat(1), adapter="captain"))


async def test_an_adapter_of_another_model_keeps_the_engine_from_starting(
    base: Path, adapters: dict[str, Path], tmp_path: Path
) -> None:
    other = widen_adapter(adapters["poet"], tmp_path / "other")

    with pytest.raises(Fatal, match="adapter other cannot be loaded"):
        async with start_vllm("qwen2", base, adapters=make_setting({"other": other})):
            pass


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def loading_runner(base: Path, adapters: dict[str, Path]) -> AsyncIterator[VllmRunner]:
    """Load adapters with requests, one at a time."""
    root = str(adapters["poet"].parent)
    async with start_vllm("qwen2", base, batch=8, adapters_dir=root, adapter_slots=1, adapter_rank=8) as new_runner:
        yield new_runner


def make_adapter_job(adapters: dict[str, Path], name: str, number: int = 3) -> MemoryJob:
    """A request with the adapter that it brings."""
    root = adapters["poet"].parent
    description, _ = describe_adapter(name, str(root), "")
    source = {"path": description.path, "sha256": description.sha256}
    return make_chat_job(
        make_text_chat(number), max_tokens=TOKENS, ignore_eos=False, adapter=name, adapter_source=source
    )


async def test_adapters_that_come_with_requests_take_the_place_of_one_another(
    loading_runner: VllmRunner, adapters: dict[str, Path], merged_paths: dict[str, Path]
) -> None:
    for name in ("pirate", "poet", "pirate"):
        one, plain = (
            make_adapter_job(adapters, name),
            make_chat_job(make_text_chat(3), max_tokens=TOKENS, ignore_eos=False),
        )
        await asyncio.gather(finish_job(loading_runner, one), finish_job(loading_runner, plain))

        assert one.ids == make_reference(merged_paths, name, 3)
        assert plain.ids == make_reference(merged_paths, "", 3)
        assert loading_runner.stats()["loaded_adapters"] == 1

    together = [make_adapter_job(adapters, name, number) for number in (5, 8) for name in RANKS]
    await asyncio.gather(*(finish_job(loading_runner, one) for one in together))
    names = [one.inputs["params"]["adapter"] for one in together]
    assert [one.ids for one in together] == [
        make_reference(merged_paths, name, number) for name, number in zip(names, (5, 5, 8, 8), strict=True)
    ]


async def test_an_adapter_that_does_not_fit_is_refused_and_the_engine_lives(
    loading_runner: VllmRunner, adapters: dict[str, Path], merged_paths: dict[str, Path]
) -> None:
    if not (wide := adapters["poet"].with_name("wide")).exists():
        widen_adapter(adapters["poet"], wide)
    with pytest.raises(BadRequest, match="'wide'.* does not fit this model"):
        await finish_job(loading_runner, make_adapter_job(adapters, "wide"))

    one = make_adapter_job(adapters, "poet")
    await finish_job(loading_runner, one)
    assert one.ids == make_reference(merged_paths, "poet", 3)
    assert loading_runner.stats()["restarts"] == 0


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen2_5_omni"])
async def test_a_model_that_sees_has_adapters_of_its_language_model(
    build: Callable[[str], Path], tmp_path: Path, family: str
) -> None:
    checkpoint = build(family)
    adapter = write_adapter(checkpoint, tmp_path / "pirate", 1, rank=4)
    merged_path = merge_adapter(checkpoint, adapter, tmp_path / "merged")

    async def answer_all(path: Path, *names: str, **more: str) -> list[list[int]]:
        async with start_vllm(family, path, batch=4, **more) as runner:
            jobs = [
                make_chat_job(make_text_chat(5), max_tokens=TOKENS, ignore_eos=False, adapter=name) for name in names
            ]
            for one in jobs:
                await finish_job(runner, one)
        return [one.ids for one in jobs]

    results = await answer_all(checkpoint, "pirate", "", adapters=make_setting({"pirate": adapter}))

    assert results == [*await answer_all(merged_path, ""), *await answer_all(checkpoint, "")]
    assert results[0] != results[1]
