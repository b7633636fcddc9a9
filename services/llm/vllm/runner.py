"""The ``Runner`` of a thinker whose layers run in vLLM, in a process of its own."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from dataclasses import replace
from typing import Any

from omnibus.errors import BadRequest
from omnibus.executor.contract import Job
from omnibus_models.contract import Prompt, Reader
from omnibus_models.families import family as find
from services.compute import Compute
from services.llm.asking import counts, read_items, read_messages
from services.llm.params import ThinkParams, read, room, sampling
from services.llm.runner import Take, answer
from services.llm.sequence import Step
from services.llm.speech import Speech
from services.llm.text import Reply
from services.llm.vllm.keeper import Keeper
from services.llm.vllm.order import Order, Voice
from services.llm.vllm.port import Engine, Generation, Launch, Tokens


class VllmRunner:
    """A ``Runner`` for LLMs with the inputs and outputs of ``services.llm.runner.ThinkRunner``.

    This process reads requests and writes answers; it loads token embeddings and no layers. ``make``
    builds the engine of ``launch``; ``launch.context`` 0 is the model's own.
    """

    def __init__(self, family: str, launch: Launch, make: Callable[[Launch], Engine]) -> None:
        self._family = family
        self._launch = launch
        self._make = make
        self._keeper = Keeper(launch.component, self._engine)
        self._hands = Compute(launch.component, max(1, launch.threads))
        # Tokenising must not wait for embeddings, and a tokeniser is not made for two threads at once.
        self._words = ThreadPoolExecutor(1, f"{launch.component}-words")
        self._reader: Reader
        self._asked = 0
        self._inside = 0
        self._since = 0.0
        self._busy = 0.0

    @property
    def serving(self) -> bool:
        """Whether there is an engine. One that died is started again; until then there is no work to be taken."""
        return self._keeper.serving

    @property
    def busy(self) -> float:
        """Seconds in which the engine had at least one request."""
        return self._busy + (time.monotonic() - self._since if self._inside else 0.0)

    async def load(self) -> None:
        launch = self._launch
        self._reader = await self._hands(find(self._family).reader, launch.checkpoint, launch.dtype)
        context = min(launch.context or self._reader.context, self._reader.context)
        self._launch = replace(launch, context=context, rows=self._reader.speaks)
        await self._keeper.start()

    async def run(self, job: Job) -> None:
        engine = self._keeper.engine
        params = read(job.inputs.get("params"), ThinkParams)
        voice = self._voice(job)
        prompt = await self._prompt(job)
        items = await read_items(job)
        with closing(await self._hands(Order, self._reader, prompt, items, voice)) as order:
            limit = room(self._launch.context, len(order.ids), params.max_tokens)
            reply = Reply(self._reader.text, params.stop)
            speech = None if order.voice is None else Speech(job, limit - 1, order.voice.layout)
            async with aclosing(engine.generate(self._generation(order, params, limit, job.seed))) as tokens:
                self._enter()
                try:
                    await answer(job, self._take(tokens, order.voice), reply, speech)
                finally:
                    self._leave()
        usage = counts(len(order.ids), items) | {"completion_tokens": reply.tokens}
        job.close("text", {"finish_reason": reply.finish, "usage": usage})

    async def close(self) -> None:
        await self._keeper.close()
        await self._hands.close()
        await asyncio.to_thread(self._words.shutdown, cancel_futures=True)

    def stats(self) -> dict[str, Any]:
        state = {"serving": self.serving, "restarts": self._keeper.restarts, "slots": self._launch.slots}
        return {**state, **self._keeper.engine.stats()} if self.serving else state

    def _engine(self) -> Engine:
        return self._make(self._launch)

    async def _prompt(self, job: Job) -> Prompt:
        messages = await read_messages(job)
        return await asyncio.get_running_loop().run_in_executor(self._words, self._reader.prompt, messages)

    def _voice(self, job: Job) -> str | None:
        if not job.wants("prompt"):
            return None
        if not self._reader.speaks:
            raise BadRequest("this model has no voice; ask for text only", param="modalities")
        return str(job.inputs.get("voice") or "")

    def _generation(self, order: Order, params: ThinkParams, limit: int, seed: int) -> Generation:
        self._asked += 1
        return Generation(
            id=str(self._asked),
            ids=order.ids,
            media=order.media,
            positions=order.positions,
            parcel=None if order.parcel is None else order.parcel.place,
            rows=None if order.voice is None else order.voice.rows.place,
            sampling=replace(sampling(params, limit, seed), ignore_eos=params.ignore_eos),
            ends=frozenset() if params.ignore_eos else self._reader.eos,
        )

    def _take(self, stream: Any, voice: Voice | None) -> Take:
        async def take() -> Sequence[Step]:
            tokens: Tokens = await anext(stream)
            sides = [None] * len(tokens.ids) if voice is None else await self._hands(voice.sides, tokens.ids)
            steps = [Step(token, None, side) for token, side in zip(tokens.ids, sides, strict=True)]
            return [*steps[:-1], steps[-1]._replace(finish=tokens.finish)]

        return take

    def _enter(self) -> None:
        if not self._inside:
            self._since = time.monotonic()
        self._inside += 1

    def _leave(self) -> None:
        self._inside -= 1
        if not self._inside:
            self._busy += time.monotonic() - self._since
