"""Tokens per second of the transformers engine on a CPU, against ``generate`` of the library in the same process.

    python -m tests.bench.cpu_decode

    transformers.cpu.c*_over_generate     tokens per second of so many requests at once by those of one ``generate``
    transformers.cpu.c*_int8_over_float   those of an engine with integer weights by those of one in float32

All run SmolLM2-135M-Instruct (``make install-weights``) on all cores, greedy, with as many tokens for each answer.
Rounds alternate, and the results are medians of the rounds. Answers in float32 must be equal to those of the library.
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
from omnibus_engines.component import end_helpers
from omnibus_llm.engine.model import ThinkerCore, ThinkSettings
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models import gguf_checkpoint, loading
from omnibus_models.families.causal_lm import find_class
from tests.bench.cases import CPU_DECODE, CPU_INT8
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
        end_helpers()  # or every other thread is slower
        tokens: list[int] = output[0, ids["input_ids"].shape[1] :].tolist()
        return tokens


async def measure_engine(checkpoint: Path, *, int8: bool) -> dict[int, tuple[float, list[list[int]]]]:
    """Return tokens per second and answers by the number of requests at once.

    No other engine is loaded meanwhile: each has threads of its own, which take the cores from one another.
    """
    settings = ThinkSettings(slots=_SLOTS, context=_CONTEXT, threads=_THREADS, int8=int8)
    runner = ThinkRunner(ThinkerCore("causal_lm", checkpoint, "cpu", "float32", settings))
    await runner.load()
    await answer_all(runner, 1)  # torch prepares its threads
    results = {}
    for at_once in CPU_DECODE:
        begin = time.perf_counter()
        answers = await answer_all(runner, at_once)
        results[at_once] = at_once * _TOKENS / (time.perf_counter() - begin), answers
    await runner.close()
    return results


async def answer_all(runner: ThinkRunner, at_once: int) -> list[list[int]]:
    params = {"max_tokens": _TOKENS, "ignore_eos": True, "temperature": 0}
    jobs = [MemoryJob({"messages": make_chat(number), "params": params}) for number in range(at_once)]
    await asyncio.gather(*(finish_job(runner, job) for job in jobs))
    return [job.ids for job in jobs]


async def measure_ratios(checkpoint: Path) -> dict[str, float]:
    """All values by name."""
    library = LibraryModel(checkpoint)
    samples: dict[str, list[float]] = {}
    expected = [library.answer(make_chat(number)) for number in range(_SLOTS)]
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        library.answer(make_chat(0))
        alone = _TOKENS / (time.perf_counter() - begin)
        plain, integers = [await measure_engine(checkpoint, int8=int8) for int8 in (False, True)]
        for at_once, (rate, answers) in plain.items():
            with_integers, _ = integers[at_once]
            print(at_once, *(round(value, 1) for value in (alone, rate, with_integers)), file=sys.stderr)
            samples.setdefault(CPU_DECODE[at_once], []).append(rate / alone)
            samples.setdefault(CPU_INT8[at_once], []).append(with_integers / rate)
            if answers != expected[:at_once]:
                sys.exit("the answers differ: what was measured is not the same work")
    return {name: round(statistics.median(values), 3) for name, values in samples.items()}


if __name__ == "__main__":
    torch.set_num_threads(_THREADS)
    print(json.dumps(asyncio.run(measure_ratios(find_packaged("smollm2")))))
