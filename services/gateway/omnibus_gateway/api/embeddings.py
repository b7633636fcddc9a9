"""``POST /v1/embeddings``: vectors of texts, by a model declared with an ``embedder``."""

import asyncio
from hashlib import sha256
from typing import Any

import msgspec

from omnibus.errors import TooLarge
from omnibus.settings import GatewaySettings
from omnibus.task import use
from omnibus.task.library import TextInput, Vectors
from omnibus.task.runtime import run as run_task
from omnibus_gateway.http.exchange import PostRequest, PostRoute
from omnibus_gateway.http.response import JSON, ResponseWriter
from omnibus_gateway.media.inspect import MediaLimits
from omnibus_gateway.openai import embeddings
from omnibus_gateway.openai.embeddings import EmbeddingRequest
from omnibus_gateway.request.arena_inputs import MAX_READERS, place_input
from omnibus_gateway.request.factory import RequestFactory
from omnibus_gateway.request.lifecycle import run_to_end
from omnibus_gateway.request.request import ClientRequest
from omnibus_gateway.tasks.prepared_chat import MAX_INLINE_BYTES
from omnibus_gateway.tasks.resolve import TaskCache, create_embedding_task, rename_params

APP = "embeddings"

#: The names that clients use for the inputs of the task.
_CLIENT_PARAM_NAMES = {"text": "input", "messages": "input"}
_encode = msgspec.json.Encoder().encode


class EmbeddingRoute(PostRoute):
    """Computes vectors of texts."""

    reads_prices = True

    def __init__(self, settings: GatewaySettings, runs: RequestFactory) -> None:
        super().__init__(settings)
        self._runs = runs
        self._tasks = TaskCache(runs.router, create_embedding_task)
        self._limits = MediaLimits(body_bytes=settings.max_body)

    async def handle_request(self, post: PostRequest, sending: ResponseWriter) -> None:
        embedding_request = embeddings.parse_embedding_request(post.body)
        task = self._tasks.get_task(embedding_request.model)
        sending.model = embedding_request.model
        run = sending.run = self._runs.open_request(APP, embedding_request.model, pinned_path=post.pinned)
        run.price = self._runs.quotes.open_check(post.prices, task)
        with rename_params(_CLIENT_PARAM_NAMES):
            async with run_to_end(run):
                request = await self._build_input(run, embedding_request)
                with use(run):
                    output: Vectors = await run_task(task.invoke, request)
                vectors, tokens = await asyncio.gather(_await_result(output.embedding), _await_result(output.tokens))
                body = await asyncio.to_thread(embeddings.encode_embeddings, embedding_request, vectors, tokens)
        await sending.send_body(JSON, body)

    async def _build_input(self, run: ClientRequest, embedding_request: EmbeddingRequest) -> TextInput:
        body = _encode(embedding_request.texts)
        text: Any = msgspec.Raw(body)
        if len(body) > self._limits.item_bytes:
            raise TooLarge(f"the texts have {len(body)} bytes, the limit is {self._limits.item_bytes}", param="input")
        if len(body) > MAX_INLINE_BYTES:
            runs, content_info = self._runs, ("text", "application/json", sha256(body).hexdigest())
            text = await place_input(
                runs.tensors, run.kept, body, content_info, run.inputs_name, run.deadline, MAX_READERS, run.salt
            )
        return TextInput(text=text, pooling=embedding_request.pooling or "mean", work=max(1, len(body) // 4))


async def _await_result(result: Any) -> Any:
    return await result
