"""Cost of grammar masks: tokens per second with a schema, over those without.

    python -m tests.bench.structured

Both run Qwen3 tiny in this process, on one thread, greedy, 16 at a time and with the same number of tokens. Rounds
alternate, and the result is the median of the rounds' ratios. Seconds are CPU seconds of all threads, because masks are
computed in parallel with the model and other programs must not count. A step of a tiny model takes a few milliseconds,
so the share of a mask is at its largest here.
"""

import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from omnibus_llm.engine.model import ThinkerCore, ThinkSettings
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models import tiny
from tests.bench.cases import MASKED
from tests.unit.jobs import MemoryJob, finish_job

_ROUNDS, _AT_ONCE, _TOKENS = 9, 16, 128
#: Never ends within that many tokens.
_SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "count": {"type": "integer"}, "kind": {"enum": ["a", "b"]}},
        "required": ["name", "count", "kind"],
        "additionalProperties": False,
    },
    "minItems": _TOKENS,
}


async def tokens_per_second(runner: ThinkRunner, **params: Any) -> float:
    """Tokens per CPU second of answers that all start together."""
    chats = [[{"role": "user", "content": " ".join(["bird"] * (4 + number))}] for number in range(_AT_ONCE)]
    jobs = [MemoryJob({"messages": chat, "params": {"max_tokens": _TOKENS, **params}}) for chat in chats]
    began = time.process_time()
    await asyncio.gather(*(finish_job(runner, job, 120) for job in jobs))
    seconds = time.process_time() - began
    assert all(len(job.ids) == _TOKENS for job in jobs)
    return sum(len(job.ids) for job in jobs) / seconds


async def measure_masks(checkpoint: Path) -> float:
    """The median of the rounds' ratios, after one round of each."""
    settings = ThinkSettings(slots=_AT_ONCE, context=512)
    runner = ThinkRunner(ThinkerCore("qwen3", checkpoint, "cpu", "float32", settings))
    await runner.load()
    ratios = []
    for _ in range(_ROUNDS + 1):
        mask_rate = await tokens_per_second(runner, structured_outputs={"json": _SCHEMA})
        ratios.append(mask_rate / await tokens_per_second(runner, ignore_eos=True))
    await runner.close()
    return round(statistics.median(ratios[1:]), 3)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        made = tiny.build("qwen3", Path(directory) / "qwen3")
        print(json.dumps({MASKED: asyncio.run(measure_masks(made))}))
