"""Speedup of the transformers engine's step loop: 16 concurrent answers over sequential ones.

Both run Qwen2.5-VL tiny in this process, on one thread, greedy, with the same number of tokens. One is ``generate`` of
the whole model prompt by prompt, the other a thinker that gets all prompts at the same time. Rounds alternate, and the
result is the median of the rounds' ratios. The answers must be equal.
"""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from omnibus_llm.engine.model import ThinkerCore, ThinkSettings
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models import tiny
from tests.bench.cases import SPEEDUP
from tests.unit.jobs import MemoryJob, finish_job

_ROUNDS, _AT_ONCE, _TOKENS = 3, 16, 64

Ids = list[list[int]]


def make_chats() -> list[list[dict[str, Any]]]:
    """Chats of 16 lengths."""
    return [[{"role": "user", "content": " ".join(["bird"] * (4 + 3 * n))}] for n in range(_AT_ONCE)]


class WholeModel:
    """The library's own model, one prompt after the other."""

    def __init__(self, checkpoint: Path) -> None:
        from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration

        self._model: Any = Qwen2_5_VLForConditionalGeneration.from_pretrained(checkpoint).eval()
        self._model.generation_config.eos_token_id = None  # every answer has all of its tokens
        self._words: Any = AutoTokenizer.from_pretrained(checkpoint)

    def answer_all(self) -> Ids:
        return [self._answer_one(chat) for chat in make_chats()]

    def _answer_one(self, chat: list[dict[str, Any]]) -> list[int]:
        ids = self._words.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        out = self._model.generate(**ids, max_new_tokens=_TOKENS, do_sample=False)
        tokens: list[int] = out[0, ids["input_ids"].shape[1] :].tolist()
        return tokens


async def at_once(runner: ThinkRunner) -> Ids:
    params = {"max_tokens": _TOKENS, "ignore_eos": True}
    jobs = [MemoryJob({"messages": chat, "params": params}) for chat in make_chats()]
    await asyncio.gather(*(finish_job(runner, job) for job in jobs))
    return [job.ids for job in jobs]


async def measure_scheduler(checkpoint: Path) -> float:
    whole = WholeModel(checkpoint)
    runner = ThinkRunner(ThinkerCore("qwen2_5_vl", checkpoint, "cpu", "float32", ThinkSettings(slots=_AT_ONCE)))
    await runner.load()
    ratios = []
    for _ in range(1 + _ROUNDS):  # the first is for warming up
        begin = time.perf_counter()
        reference = whole.answer_all()
        middle = time.perf_counter()
        answers = await at_once(runner)
        ratios.append((middle - begin) / (time.perf_counter() - middle))
        if answers != reference:
            sys.exit("the answers differ: what was measured is not the same work")
    await runner.close()
    return statistics.median(ratios[1:])


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        made = tiny.build("qwen2_5_vl", Path(directory) / "vl")
        print(json.dumps({SPEEDUP: asyncio.run(measure_scheduler(made))}))
