"""The engine of an LLM component: messages and media embeddings in, text out, rows for a talker beside it."""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence as Rows
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from omnibus.errors import BadRequest, ContextTooLong
from omnibus.executor.contract import Item, Job
from omnibus_models.contract import Encoded, Prefill, Prompt, Thinker
from omnibus_models.families import family as find
from services.llm.compute import Compute
from services.llm.engine import Engine, Limits
from services.llm.params import ThinkParams, read, sampling
from services.llm.sampling import Picker
from services.llm.sequence import Sequence
from services.llm.speech import Speech
from services.llm.text import Reply


@dataclass(frozen=True)
class ThinkSettings:
    """Limits of one thinker.

    ``slots``: sequences in one decode step. ``context``: longest sequence in tokens, prompt included;
    0 is the model's own. ``share``: most prompt tokens between two decode steps. ``threads``: of torch
    in the compute thread.
    """

    slots: int = 16
    context: int = 0
    share: int = 512
    threads: int = 1


class Thinking(Sequence):
    """One request of a thinker; ``voice`` is None unless a talker follows."""

    def __init__(self, prefill: Prefill, picker: Picker, ends: frozenset[int], voice: str | None) -> None:
        super().__init__(prefill, picker, picker.settings.max_tokens, ends)
        self.prefill: Prefill | None = prefill
        self.voice = voice
        self.hidden: list[Tensor] = []

    def release(self) -> None:
        super().release()
        self.prefill = None
        self.hidden = []


class ThinkFeed:
    """A thinker eats its own last token; each token's row goes to the talker, if one follows."""

    def __init__(self, thinker: Thinker) -> None:
        self._thinker = thinker

    def ready(self, sequence: Thinking) -> bool:
        return True

    def inputs(self, batch: Rows[Thinking]) -> Tensor:
        return self._thinker.embed(torch.tensor([sequence.token for sequence in batch], device=self._thinker.device))

    def prefilled(self, sequence: Thinking, hidden: Tensor) -> None:
        if sequence.voice is not None:
            sequence.hidden.append(hidden)

    def begun(self, sequence: Thinking) -> np.ndarray | None:
        if sequence.voice is None or sequence.prefill is None:
            return None
        return _numpy(self._thinker.talker_prompt(sequence.prefill, torch.cat(sequence.hidden), sequence.voice))

    def stepped(self, batch: Rows[Thinking], inputs: Tensor, hidden: Tensor) -> list[np.ndarray | None]:
        if all(sequence.voice is None for sequence in batch):
            return [None] * len(batch)
        rows = _numpy(self._thinker.talker_row(inputs, hidden))
        return [None if sequence.voice is None else row for sequence, row in zip(batch, rows, strict=True)]


class ThinkRunner:
    """A ``Runner`` for LLMs.

    Inputs: ``messages`` (JSON list, or an ``Item`` of its UTF-8 bytes), ``items`` (``Item`` list of
    embeddings [n, H] with their meta, in order of appearance), ``params`` (``ThinkParams``), ``voice``.
    Outputs: streamed ``text``; for a talker ``prompt``, ``layout`` and streamed ``rows``.
    """

    def __init__(
        self, component: str, family: str, checkpoint: Path, device: str, dtype: str, settings: ThinkSettings
    ) -> None:
        self._source = (component, checkpoint, device, dtype)
        self._family = family
        self._settings = settings
        self._compute = Compute(component, settings.threads)
        # Tokenising must not wait for a step, and a tokeniser is not made for two threads at once.
        self._words = ThreadPoolExecutor(1, f"{component}-words")
        self._thinker: Thinker
        self._engine: Engine[Thinking]
        self._serving: asyncio.Task[None] | None = None

    async def load(self) -> None:
        self._thinker = await self._compute(self._load)
        self._context = min(self._settings.context or self._thinker.context, self._thinker.context)
        self._engine = Engine(
            self._thinker,
            ThinkFeed(self._thinker),
            self._compute,
            Limits(self._settings.slots, self._context, self._settings.share),
        )
        await self._engine.start()
        self._serving = asyncio.create_task(self._engine.serve(), name="engine")

    async def run(self, job: Job) -> None:
        params = read(job.inputs.get("params"), ThinkParams)
        voice = self._voice(job)
        prompt = await self._prompt(job)
        items = await _items(job)
        prefill, layout = await self._compute(self._assemble, prompt, items)
        limit = self._limit(prefill.inputs.shape[0], params.max_tokens)
        picker = Picker(sampling(params, limit, job.seed), self._thinker.vocabulary, prompt.ids)
        ends = frozenset() if params.ignore_eos else self._thinker.eos
        reply = Reply(self._thinker.text, params.stop)
        speech = None if voice is None else Speech(job, layout, limit - 1)
        with self._engine.admit(Thinking(prefill, picker, ends, voice)) as sequence:
            await _answer(job, sequence, reply, speech)
        job.close("text", {"finish_reason": reply.finish, "usage": _usage(sequence.length, reply.tokens, items)})

    async def close(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)
        await self._compute.close()
        await asyncio.to_thread(self._words.shutdown, cancel_futures=True)

    def stats(self) -> dict[str, Any]:
        engine = self._engine
        return {
            "parameters": self._thinker.parameters,
            "slots": self._settings.slots,
            "used": engine.used,
            "waiting": engine.waiting,
            "tokens": engine.tokens,
            "batches": {str(size): count for size, count in sorted(engine.batches.items())},
        }

    async def _prompt(self, job: Job) -> Prompt:
        messages = _messages(await job.value("messages"))
        return await asyncio.get_running_loop().run_in_executor(self._words, self._thinker.prompt, messages)

    def _load(self) -> Any:
        return find(self._family).load(*self._source)

    def _assemble(self, prompt: Prompt, items: Rows[Item]) -> tuple[Prefill, np.ndarray]:
        media = [Encoded(self._embeds(item), item.data) for item in items]
        prefill = self._thinker.assemble(prompt, media)
        return prefill, prefill.positions.to(torch.int32).cpu().numpy()

    def _embeds(self, item: Item) -> Tensor:
        if item.array is None or item.array.ndim != 2:
            raise BadRequest("a media item has no embedding of shape [tokens, width]", param="items")
        return torch.from_numpy(item.array).to(self._thinker.device, self._thinker.dtype)

    def _limit(self, length: int, wanted: int | None) -> int:
        left = self._context - length
        if left <= 0:
            raise ContextTooLong(
                f"the prompt has {length} tokens and the model's context {self._context}; send a shorter prompt",
                param="messages",
            )
        if wanted is not None and wanted > left:
            raise BadRequest(
                f"max_tokens is {wanted}, but after a prompt of {length} tokens the model's context of "
                f"{self._context} leaves {left}; send max_tokens of at most {left}",
                param="max_tokens",
            )
        return left if wanted is None else wanted

    def _voice(self, job: Job) -> str | None:
        if not job.wants("prompt"):
            return None
        if not self._thinker.speaks:
            raise BadRequest("this model has no voice; ask for text only", param="modalities")
        return str(job.inputs.get("voice") or "")


async def _items(job: Job) -> list[Item]:
    items = await job.value("items") or []
    if not isinstance(items, list) or not all(isinstance(item, Item) for item in items):
        raise BadRequest("items must be a list of embeddings", param="items")
    return items


def _messages(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, Item) and value.array is not None:
        try:
            value = json.loads(value.array.tobytes())
        except ValueError:
            raise BadRequest("messages are not UTF-8 JSON; send a JSON list", param="messages") from None
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise BadRequest("messages must be a list of objects with role and content", param="messages")
    return value


async def _answer(job: Job, sequence: Thinking, reply: Reply, speech: Speech | None) -> None:
    while reply.finish is None:
        for step in await sequence.inbox.take():
            if reply.finish is None:  # after a stop string the engine was one step ahead
                reply.add(step.token, step.finish)
                if speech is not None:
                    speech.add(step.side)
        if speech is not None:
            await speech.send(reply.spoken)
        chunk = reply.chunk()
        if chunk is not None:
            await job.send("text", chunk)
    if speech is not None:
        speech.close(reply.finish)


def _usage(prompt: int, completion: int, items: Rows[Item]) -> dict[str, int]:
    media: Counter[str] = Counter()
    for item in items:
        media[item.data.get("modality", "")] += 0 if item.array is None else item.array.shape[0]
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "image_tokens": media["image"],
        "audio_tokens": media["audio"],
        "video_tokens": media["video"],
    }


def _numpy(tensor: Tensor) -> np.ndarray:
    return tensor.float().cpu().numpy()
