"""``POST /v1/embeddings``: vectors of texts, by a model declared with an ``embedder``, or by an app."""

import asyncio
from collections import defaultdict

import numpy as np

from omnibus.app.routes import EMBEDDINGS
from omnibus.errors import AppFailed, BadRequest
from omnibus.settings import GatewaySettings
from omnibus.task import use
from omnibus.task.item_codec import decode_value
from omnibus.task.library import TextInput, Vectors
from omnibus.task.runtime import run as run_task
from omnibus.tensors.item import Item
from omnibus_gateway.apps.chat import AppChats
from omnibus_gateway.dispatch.streams import merge_streams
from omnibus_gateway.http.exchange import PostRequest, PostRoute
from omnibus_gateway.http.response import JSON, ResponseWriter
from omnibus_gateway.media.inspect import MediaLimits
from omnibus_gateway.openai import embeddings
from omnibus_gateway.openai.embeddings import EmbeddingRequest
from omnibus_gateway.pricing.headers import refuse_price_options
from omnibus_gateway.request.factory import RequestFactory
from omnibus_gateway.request.lifecycle import run_to_end
from omnibus_gateway.request.request import ClientRequest
from omnibus_gateway.tasks.resolve import TaskCache, create_embedding_task, rename_params
from omnibus_gateway.tasks.text_inputs import await_result, place_texts

APP = "embeddings"

#: The names that clients use for the inputs of the task.
_CLIENT_PARAM_NAMES = {"text": "input", "messages": "input"}


class EmbeddingRoute(PostRoute):
    """Computes vectors of texts."""

    reads_prices = True

    def __init__(self, settings: GatewaySettings, runs: RequestFactory) -> None:
        super().__init__(settings)
        self._runs = runs
        #: Apps that are models; None without apps.
        self.chats: AppChats | None = None
        self._tasks = TaskCache(runs.router, create_embedding_task)
        self._limits = MediaLimits(body_bytes=settings.max_body)

    async def handle_request(self, post: PostRequest, sending: ResponseWriter) -> None:
        embedding_request = embeddings.parse_embedding_request(post.body)
        if self.chats is not None and self.chats.is_served_by_app(embedding_request.model, EMBEDDINGS):
            await self._call_app(self.chats, embedding_request, post, sending)
            return
        task = self._tasks.get_task(embedding_request.model)
        sending.model = embedding_request.model
        run = sending.run = self._runs.open_request(APP, embedding_request.model, pinned_path=post.pinned)
        run.price = self._runs.quotes.open_check(post.prices, task)
        with rename_params(_CLIENT_PARAM_NAMES):
            async with run_to_end(run):
                request = await self._build_input(run, embedding_request)
                with use(run):
                    output: Vectors = await run_task(task.invoke, request)
                vectors, tokens = await asyncio.gather(await_result(output.embedding), await_result(output.tokens))
                body = await asyncio.to_thread(embeddings.encode_embeddings, embedding_request, vectors, tokens)
        await sending.send_body(JSON, body)

    async def _call_app(
        self, apps: AppChats, embedding_request: EmbeddingRequest, post: PostRequest, sending: ResponseWriter
    ) -> None:
        refuse_price_options(post.headers)
        texts = [text for text in embedding_request.texts if isinstance(text, str)]
        if len(texts) != len(embedding_request.texts):
            raise BadRequest(f"{embedding_request.model} is an app: send texts, not tokens", param="input")
        sending.model = embedding_request.model
        run = sending.run = apps.open_request(embedding_request.model, pinned_path=post.pinned, route=EMBEDDINGS)
        async with run_to_end(run):
            request = TextInput(
                text=texts,
                pooling=embedding_request.pooling,
                prompt_name=embedding_request.prompt_name,
            )
            items: dict[str, list[Item]] = defaultdict(list)
            async for batch in merge_streams(await apps.call_route(run, EMBEDDINGS, request, ())):
                for name, item in batch:
                    items[name].append(item)
            arrays = [item.array for item in items["embedding"] if item.array is not None]
            if sum(map(len, arrays)) != len(texts):
                raise AppFailed(f"`embed` of the app {run.app} must return one row for each text", stage=run.app)
            tokens = decode_value(int, items["tokens"], "tokens")
            body = await asyncio.to_thread(
                embeddings.encode_embeddings, embedding_request, np.concatenate(arrays), tokens
            )
        await sending.send_body(JSON, body)

    async def _build_input(self, run: ClientRequest, embedding_request: EmbeddingRequest) -> TextInput:
        text, nbytes = await place_texts(self._runs, run, embedding_request.texts, "input", self._limits.item_bytes)
        return TextInput(
            text=text,
            pooling=embedding_request.pooling,
            prompt_name=embedding_request.prompt_name,
            work=max(1, nbytes // 4),
        )
