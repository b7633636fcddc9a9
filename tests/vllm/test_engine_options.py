"""Options of the engine that a declaration names: guessed tokens, and weights that are quantised."""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from omnibus.errors import BadRequest
from tests.oracles import language as oracle
from tests.unit.jobs import run
from tests.unit.llm.runners.test_thinker import job, text
from tests.vllm.conftest import IN_PROCESS, vllm

pytestmark = IN_PROCESS

TOKENS = 48
SAID = [{"role": "user", "content": "the small cat sleeps on a warm red mat " * 6}]


#: Tokens of an answer that the rounding of activations to 8 bits leaves as they are.
SAME_TOKENS = 6
INT8 = {"num_bits": 8, "type": "int", "symmetric": True}


def quantise(base: Path, directory: Path) -> Path:
    """``base`` with the layers' weights in 8 bits, a scale for each row, as `compressed-tensors` writes them."""
    shutil.copytree(base, directory)
    made: dict[str, torch.Tensor] = {}
    for name, weight in load_file(base / "model.safetensors").items():
        made[name] = weight
        if ".layers." in name and name.endswith("proj.weight"):
            scale = weight.abs().amax(1, keepdim=True) / 127
            made |= {name: (weight / scale).round().to(torch.int8), f"{name}_scale": scale}
    save_file(made, directory / "model.safetensors", metadata={"format": "pt"})
    group = {
        "targets": ["Linear"],
        "weights": {**INT8, "strategy": "channel", "dynamic": False},
        "input_activations": {**INT8, "strategy": "token", "dynamic": True},
    }
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory


async def test_a_checkpoint_in_8_bits_is_served_as_it_is(build: Callable[[str], Path], tmp_path: Path) -> None:
    base = build("qwen2")

    async with vllm("qwen2", quantise(base, tmp_path / "int8"), batch=4, dtype="bfloat16") as runner:
        asked = [(text(number), job(text(number), max_tokens=SAME_TOKENS)) for number in (3, 5, 8)]
        for _, one in asked:
            await run(runner, one)

    assert [one.ids for _, one in asked] == [oracle.answer(base, said, SAME_TOKENS)[0] for said, _ in asked]


async def test_the_engine_is_told_how_to_quantise(
    build: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNIBUS_VLLM_QUANTIZATION", "nothing-like-it")

    with pytest.raises(ValueError, match="nothing-like-it"):
        async with vllm("qwen2", build("qwen2")):
            pass


async def test_guessed_tokens_change_no_greedy_answer_and_save_steps(
    build: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = build("qwen2")
    monkeypatch.setenv("OMNIBUS_VLLM_SPECULATIVE_TOKENS", "4")

    async with vllm("qwen2", base, batch=4) as runner:
        asked = [(each, job(each, max_tokens=TOKENS, ignore_eos=False)) for each in (SAID, text(5))]
        await asyncio.gather(*(run(runner, one) for _, one in asked))
        stats = runner.stats()

    for messages, one in asked:
        assert one.ids == oracle.answer(base, messages, TOKENS)[0]
    assert stats["guessed_tokens"] >= stats["accepted_tokens"] > 0
    assert stats["tokens"] == sum(len(one.ids) for _, one in asked)


async def test_a_model_that_speaks_and_halves_guess_nothing(omni: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIBUS_VLLM_SPECULATIVE_TOKENS", "4")

    with pytest.raises(BadRequest, match="SPECULATIVE_TOKENS=0"):
        async with vllm("qwen2_5_omni", omni):
            pass
