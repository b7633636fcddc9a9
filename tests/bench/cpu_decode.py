"""Tokens per second of the transformers engine on a CPU, against ``generate`` of the library in the same process.

    python -m tests.bench.cpu_decode

    transformers.cpu.c*_over_generate   tokens per second of so many requests at once by those of one ``generate`` alone

Both run SmolLM2-135M-Instruct (``make install-weights``) in float32 on all cores, greedy, with as many tokens for each
answer. Rounds alternate, and the results are medians of the rounds. Answers must be equal to those of the library.
"""

import asyncio
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from omnibus.checkpoints.packaged import find_packaged
from omnibus_llm.engine.model import ThinkerCore, ThinkSettings
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models import gguf_checkpoint, loading
from omnibus_models.families.causal_lm import find_class
from tests.bench.cases import CPU_DECODE
from tests.unit.jobs import MemoryJob, finish_job

_ROUNDS, _TOKENS, _SLOTS, _CONTEXT = 3, 32, 8, 512
_THREADS = os.cpu_count() or 1
_TOPICS = ("rivers", "bread", "the moon", "chess", "bees", "rain", "maps", "trains")


def make_chat(number: int) -> list[dict[str, Any]]:
    """Return a chat about one of eight topics."""
    return [{"role": "user", "content": f"Write a few sentences about {_TOPICS[number % len(_TOPICS)]}."}]


class LibraryModel:
    """The library's own model, with plain weights."""

    def __init__(self, checkpoint: Path) -> None:
        self._model: Any = loading.load_model(find_class(checkpoint), checkpoint)
        self._model.generation_config.eos_token_id = None  # every answer has all of its tokens
        self._tokenizer: Any = gguf_checkpoint.load_tokenizer(checkpoint)

    @torch.inference_mode()
    def answer(self, chat: list[dict[str, Any]]) -> list[int]:
        ids = self._tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        output: Tensor = self._model.generate(**ids, max_new_tokens=_TOKENS, do_sample=False)
        tokens: list[int] = output[0, ids["input_ids"].shape[1] :].tolist()
        return tokens


async def answer_all(runner: ThinkRunner, at_once: int) -> list[list[int]]:
    params = {"max_tokens": _TOKENS, "ignore_eos": True, "temperature": 0}
    jobs = [MemoryJob({"messages": make_chat(number), "params": params}) for number in range(at_once)]
    await asyncio.gather(*(finish_job(runner, job) for job in jobs))
    return [job.ids for job in jobs]


async def measure_ratios(checkpoint: Path) -> dict[str, float]:
    """All values by name."""
    library = LibraryModel(checkpoint)
    settings = ThinkSettings(slots=_SLOTS, context=_CONTEXT, threads=_THREADS)
    runner = ThinkRunner(ThinkerCore("causal_lm", checkpoint, "cpu", "float32", settings))
    await runner.load()
    samples: dict[str, list[float]] = {}
    expected = [library.answer(make_chat(number)) for number in range(_SLOTS)]
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        library.answer(make_chat(0))
        alone = _TOKENS / (time.perf_counter() - begin)
        for at_once, name in CPU_DECODE.items():
            begin = time.perf_counter()
            answers = await answer_all(runner, at_once)
            rate = at_once * _TOKENS / (time.perf_counter() - begin)
            print(at_once, round(rate, 1), round(alone, 1), file=sys.stderr)
            samples.setdefault(name, []).append(rate / alone)
            if answers != expected[:at_once]:
                sys.exit("the answers differ: what was measured is not the same work")
    await runner.close()
    return {name: round(statistics.median(values), 3) for name, values in samples.items()}


if __name__ == "__main__":
    torch.set_num_threads(_THREADS)
    print(json.dumps(asyncio.run(measure_ratios(find_packaged("smollm2")))))
