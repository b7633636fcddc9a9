"""LoRA adapters in GGUF files: llama.cpp answers like the merged models."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from omnibus.cli.format.models import shortest_declaration
from omnibus.errors import BadRequest, NotFound
from omnibus.executor.settings import ExecutorSettings
from omnibus.up import preflight
from omnibus_engines import llama_cpp
from omnibus_llm.engine.llama_cpp_core import LlamaCppCore
from omnibus_llm.engine.model import ThinkSettings
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models import tiny
from omnibus_models.examine.report import examine_checkpoint
from omnibus_models.families import load_family
from omnibus_models.llama_cpp_thinker import LlamaCppThinker
from tests.gguf_files import write_gguf, write_gguf_adapter
from tests.lora import merge_adapter, widen_adapter, write_adapter
from tests.oracles import language as oracle
from tests.unit.jobs import finish_job
from tests.unit.llm.engine.test_adapters import ADAPTERS, NAMES
from tests.unit.llm.engine.test_llama_cpp import LOGIT_BOUND
from tests.unit.llm.runners.test_thinker import WORDS, make_chat_job, make_text_chat

pytestmark = pytest.mark.llama_cpp

IDS = [5, 9, 3, 17, 2, 8]


class NativeModels(SimpleNamespace):
    """A checkpoint with adapters, in both formats; "" is the base."""

    checkpoint: Path
    file: Path
    directories: dict[str, Path]
    adapters: dict[str, Path]
    merged: dict[str, Path]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> NativeModels:
    directory = tmp_path_factory.mktemp("adapters")
    checkpoint = tiny.build("qwen3", directory / "base")
    directories = {name: write_adapter(checkpoint, directory / name, **how) for name, how in ADAPTERS.items()}
    merged = {name: merge_adapter(checkpoint, path, directory / f"merged-{name}") for name, path in directories.items()}
    return NativeModels(
        checkpoint=checkpoint,
        file=write_gguf(checkpoint, directory / "base.gguf"),
        directories=directories,
        adapters={
            name: write_gguf_adapter(checkpoint, path, directory / f"{name}.gguf") for name, path in directories.items()
        },
        merged={"": checkpoint, **merged},
    )


@pytest.fixture
async def runner(models: NativeModels) -> AsyncIterator[ThinkRunner]:
    settings = ThinkSettings(slots=4, context=1024, share=64, kept_bytes=1 << 20, adapters=models.adapters)
    think_runner = ThinkRunner(LlamaCppCore(models.file, "cpu", settings, 0))
    await think_runner.load()
    yield think_runner
    await think_runner.close()


def compute_logits(thinker: Any) -> torch.Tensor:
    positions = torch.arange(len(IDS))[None, None]
    hidden = thinker.forward(thinker.embed(torch.tensor([IDS])), positions, thinker.new_cache(), None)
    logits: torch.Tensor = thinker.logits(hidden[:, -1])
    return logits


@pytest.mark.numeric
def test_logits_are_those_of_the_merged_models_and_of_the_base_without_one(models: NativeModels) -> None:
    thinker: Any = LlamaCppThinker(models.file, models.adapters)
    thinker.reserve_memory(1, 512, 1)
    merged = {name: compute_logits(load_family("qwen3").load("thinker", path)) for name, path in models.merged.items()}
    plain: Any = LlamaCppThinker(models.file)
    plain.reserve_memory(1, 512, 1)

    for name in ("", "pirate", "poet", "", "poet"):
        with thinker.adapters.chosen([thinker.adapters.numbers.get(name)]):
            logits = compute_logits(thinker)

        assert (logits - merged[name]).abs().max() < LOGIT_BOUND
        assert name == "" or (logits - merged[""]).abs().max() > 100 * LOGIT_BOUND
        assert name != "" or torch.equal(logits, compute_logits(plain))


@pytest.mark.numeric
async def test_requests_of_all_adapters_share_steps_and_answer_as_the_merged_models(
    runner: ThinkRunner, models: NativeModels
) -> None:
    chats = [(name, make_text_chat(number)) for number in range(5) for name in NAMES]
    jobs = [make_chat_job(chat, max_tokens=6, ignore_eos=False, adapter=name) for name, chat in chats]

    await asyncio.gather(*(finish_job(runner, job) for job in jobs))

    sure = [oracle.answer_margin(models.merged[name], chat, 6) > 2 * LOGIT_BOUND for name, chat in chats]
    assert sum(sure) >= 8
    for (name, chat), job, is_sure in zip(chats, jobs, sure, strict=True):
        assert not is_sure or job.ids == oracle.generate_answer(models.merged[name], chat, 6)[0]
    assert max(map(int, runner.stats()["batches"])) == 4


async def test_a_failed_adapter_of_a_step_fails_its_own_rows_only(
    runner: ThinkRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat, names = make_text_chat(2), ("", "pirate", "")
    alone = await finish_job(runner, make_chat_job(chat, max_tokens=6))
    decode = LlamaCppThinker.decode_rows

    def decode_base(self: LlamaCppThinker, tokens: Any, positions: Any, numbers: Any, adapter: Any = None) -> Any:
        if adapter is not None:
            raise ArithmeticError
        return decode(self, tokens, positions, numbers)

    monkeypatch.setattr(LlamaCppThinker, "decode_rows", decode_base)
    jobs = [make_chat_job(chat, max_tokens=6, adapter=name) for name in names]
    results = await asyncio.gather(*(finish_job(runner, job) for job in jobs), return_exceptions=True)

    assert isinstance(results[1], Exception)
    assert jobs[0].ids == jobs[2].ids == alone.ids


@pytest.mark.numeric
async def test_prompts_are_reused_by_requests_with_the_same_adapter_only(
    runner: ThinkRunner, models: NativeModels
) -> None:
    chat = make_text_chat(16)
    jobs = [make_chat_job(chat, cache_key="talk", adapter=name) for name in ("pirate", "poet", "", "pirate")]
    for job in jobs:
        await finish_job(runner, job)

    cached = [job.end("text")["usage"].get("cached_tokens", 0) for job in jobs]
    assert cached[:3] == [0, 0, 0]
    assert cached[3] >= len(WORDS)
    assert jobs[0].ids == jobs[3].ids
    assert len({tuple(job.ids) for job in jobs}) == len(NAMES)


async def test_an_unknown_adapter_is_not_found(runner: ThinkRunner) -> None:
    with pytest.raises(NotFound, match="no adapter 'captain'"):
        await finish_job(runner, make_chat_job(make_text_chat(1), adapter="captain"))


def write_poet(models: NativeModels, file: Path, **metadata: Any) -> Path:
    return write_gguf_adapter(models.checkpoint, models.directories["poet"], file, **metadata)


def change_poet(models: NativeModels, file: Path, old: bytes, new: bytes) -> Path:
    file.write_bytes(models.adapters["poet"].read_bytes().replace(old, new))
    return file


def write_embedding_adapter(models: NativeModels, file: Path) -> Path:
    directory = shutil.copytree(models.directories["poet"], file.with_suffix(""))
    matrices = {f"base_model.model.model.embed_tokens.lora_{kind}.weight": torch.ones(4, 4) for kind in "AB"}
    save_file(matrices, directory / "adapter_model.safetensors")
    return write_gguf_adapter(models.checkpoint, directory, file)


def cut_poet(models: NativeModels, file: Path) -> Path:
    file.write_bytes(models.adapters["poet"].read_bytes()[:-50])
    return file


#: Files that are no adapters of the model, and the reason.
UNFIT: dict[str, tuple[Callable[[NativeModels, Path], Path], str]] = {
    "PEFT": (lambda models, _: models.directories["poet"], "is not a GGUF file, the only format of adapters"),
    "model": (lambda models, _: models.file, "of the type 'model', not an adapter"),
    "architecture": (
        lambda models, file: write_poet(models, file, general__architecture="llama"),
        "for the architecture 'llama', and base.gguf is 'qwen3'",
    ),
    "control vector": (lambda models, file: write_poet(models, file, adapter__type="cvec"), "type 'cvec'; only LoRA"),
    "shape": (
        lambda models, file: write_gguf_adapter(
            models.checkpoint, widen_adapter(models.directories["poet"], file.with_suffix("")), file
        ),
        "it was trained on another model",
    ),
    "tensor": (lambda models, file: change_poet(models, file, b"blk.1.attn_k", b"blk.9.attn_k"), "base.gguf lacks"),
    "one matrix": (
        lambda models, file: change_poet(models, file, b"blk.1.attn_k.weight.lora_a", b"blk.1.attn_v.weight.lora_a"),
        "only one of the two matrices of blk.1.attn_k.weight",
    ),
    "embeddings": (write_embedding_adapter, "it adapts embeddings"),
    "cut": (cut_poet, "truncated"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_an_adapter_that_does_not_fit_is_refused_before_it_is_loaded(
    models: NativeModels, tmp_path: Path, name: str
) -> None:
    make, message = UNFIT[name]
    adapter = make(models, tmp_path / "it.gguf")
    settings = ExecutorSettings(checkpoint=str(models.file), adapters=json.dumps({"poet": str(adapter)}))

    with pytest.raises(BadRequest, match=message):
        llama_cpp("thinker", settings)


def test_a_missing_file_and_adapters_at_run_time_are_refused(models: NativeModels, tmp_path: Path) -> None:
    missing = json.dumps({"poet": str(tmp_path / "none.gguf")})

    with pytest.raises(NotFound, match=r"none.gguf is not a directory of a checkpoint, nor a GGUF file"):
        llama_cpp("thinker", ExecutorSettings(checkpoint=str(models.file), adapters=missing))
    with pytest.raises(BadRequest, match="loads no adapters while it serves: declare them"):
        llama_cpp("thinker", ExecutorSettings(checkpoint=str(models.file), adapters_dir=str(tmp_path)))


async def test_a_check_and_a_start_read_the_adapters(models: NativeModels, tmp_path: Path) -> None:
    poet, pirate = models.adapters["poet"], models.directories["pirate"]
    report = examine_checkpoint(models.file, adapters=[str(poet), str(models.file)])
    declaration = shortest_declaration(report, str(models.file), [str(poet)])
    path = tmp_path / "models.json"

    assert report.adapters[str(poet)] == ""
    assert "not an adapter" in report.adapters[str(models.file)]
    assert declaration["models"]["base"]["options"]["L"]["engine"] == "omnibus_engines:llama_cpp"
    path.write_text(json.dumps(declaration))
    await preflight.check_start(path, 1, {})
    declaration["models"]["base"]["adapters"] = {"pirate": str(pirate)}
    path.write_text(json.dumps(declaration))
    with pytest.raises(BadRequest, match="model base, adapter pirate: adapter .*pirate is not a GGUF file"):
        await preflight.check_start(path, 1, {})
    declaration["models"]["base"] |= {"adapters": {"poet": str(poet)}, "options": None, "paths": None}
    path.write_text(json.dumps(declaration))
    with pytest.raises(BadRequest, match="only omnibus_engines:llama_cpp applies"):
        await preflight.check_start(path, 1, {})
