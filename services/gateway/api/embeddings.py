"""``POST /v1/embeddings``: texts to vectors, by a model that is declared with an ``embedder``."""

import asyncio
from hashlib import sha256
from typing import Any

import msgspec

from omnibus.errors import OmnibusError, Rejected, TooLarge
from omnibus.settings import GatewaySettings
from omnibus.task import use
from omnibus.task.library import TextInput, Vectors
from omnibus.task.runtime import run as run_task
from services.gateway.http.exchange import JSON, about
from services.gateway.http.response import Sending
from services.gateway.http.route import Asked, Route, conduct
from services.gateway.media.inspect import Limits
from services.gateway.openai import embeddings
from services.gateway.openai.embeddings import EmbeddingRequest
from services.gateway.request.arena_inputs import MANY, place
from services.gateway.request.request import Run, Runs
from services.gateway.tasks.chat import INLINE
from services.gateway.tasks.resolve import Known, embedder

APP = "embeddings"

#: What clients call the inputs of the task.
_CALLED = {"text": "input", "messages": "input"}
_encode = msgspec.json.Encoder().encode


class Embeddings(Route):
    """Texts to vectors."""

    def __init__(self, settings: GatewaySettings, runs: Runs) -> None:
        super().__init__(settings)
        self._runs = runs
        self._tasks = Known(runs.router, embedder)
        self._limits = Limits(body_bytes=settings.max_body)

    async def answer(self, asked: Asked, sending: Sending) -> None:
        wanted = embeddings.parse(asked.body)
        task = self._tasks.task(wanted.model)
        sending.model = wanted.model
        run = self._runs.open(APP, wanted.model, pinned=asked.pinned)
        try:
            async with conduct(run, sending):
                request = await self._request(run, wanted)
                with use(run):
                    made: Vectors = await run_task(task.invoke, request)
                vectors, tokens = await asyncio.gather(_read(made.embedding), _read(made.tokens))
                body = await asyncio.to_thread(embeddings.answer, wanted, vectors, tokens)
        except OmnibusError as error:
            if isinstance(error, Rejected):
                error.param = _CALLED.get(error.param, error.param)
            raise
        await sending.whole(200, JSON, body, about(run))

    async def _request(self, run: Run, wanted: EmbeddingRequest) -> TextInput:
        body = _encode(wanted.texts)
        text: Any = msgspec.Raw(body)
        if len(body) > self._limits.item_bytes:
            raise TooLarge(f"the texts have {len(body)} bytes, {self._limits.item_bytes} are allowed", param="input")
        if len(body) > INLINE:
            runs, found = self._runs, ("text", "application/json", sha256(body).hexdigest())
            text = await place(runs.tensors, runs.kept, body, found, run.inputs, run.deadline, MANY, run.salt)
        return TextInput(text=text, pooling=wanted.pooling or "mean", work=max(1, len(body) // 4))


async def _read(result: Any) -> Any:
    return await result
