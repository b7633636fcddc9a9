"""``POST /v1/embeddings``: vectors of texts and images, by a model with an ``embedder``, or by an app."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from omnibus.app.routes import EMBEDDINGS
from omnibus.errors import AppFailed, BadRequest
from omnibus.settings import GatewaySettings
from omnibus.task import CompositeTask, use
from omnibus.task.library import ImageTextEmbedding, ImageTextInput, ImageTextVectors, TextInput, Vectors
from omnibus.task.result import decode_value
from omnibus.task.runtime import run as run_task
from omnibus.tensors.handle import Item
from omnibus_gateway.core import ClientRequest, RequestFactory
from omnibus_gateway.http.exchange import PostRequest, PostRoute
from omnibus_gateway.http.response import JSON, ResponseWriter
from omnibus_gateway.media.inspect import MediaLimits
from omnibus_gateway.openai import embeddings
from omnibus_gateway.openai.embeddings import EmbeddingRequest
from omnibus_gateway.pricing.meter import refuse_price_options
from omnibus_gateway.tasks.chat import AppRoutes, Chat
from omnibus_gateway.tasks.prepared_chat import TaskCache, await_result, place_media, place_texts
from omnibus_gateway.tasks.resolve import create_embedding_task, rename_params

APP = "embeddings"
#: Estimated tokens of an image, which towers resize to about 224 x 224 pixels.
_IMAGE_TOKENS = 197

#: The names that clients use for the inputs of the task.
_CLIENT_PARAM_NAMES = dict.fromkeys(("text", "messages", "media"), "input")


class _EmbeddedItems(NamedTuple):
    """Vectors [items, width] in request order, and the tokens of all."""

    vectors: NDArray[np.float32]
    tokens: int


class EmbeddingFormat(NamedTuple):
    """Format of requests for vectors and of their responses: OpenAI's, or that of another API."""

    parse: Callable[[bytes], EmbeddingRequest] = embeddings.parse_embedding_request
    encode: Callable[..., bytes] = embeddings.encode_embeddings


OPENAI_FORMAT = EmbeddingFormat()


class EmbeddingRoute(PostRoute):
    """Computes vectors of texts and images."""

    reads_prices = True

    def __init__(
        self,
        settings: GatewaySettings,
        runs: RequestFactory,
        chat: Chat,
        format: EmbeddingFormat = OPENAI_FORMAT,
    ) -> None:
        super().__init__(settings)
        self._format = format
        self._runs = runs
        self._chat = chat
        #: Apps that are models; None without apps.
        self.apps: AppRoutes | None = None
        self._tasks = TaskCache(runs.router, create_embedding_task)
        self._limits = MediaLimits(body_bytes=settings.max_body)

    async def handle_request(self, post: PostRequest, sending: ResponseWriter) -> None:
        embedding_request = self._format.parse(post.body)
        if self.apps is not None and self.apps.is_served_by_app(embedding_request.model, EMBEDDINGS):
            await self._call_app(self.apps, embedding_request, post, sending)
            return
        task = self._tasks.get_task(embedding_request.model)
        sending.model = embedding_request.model
        takes_images = isinstance(task, ImageTextEmbedding)
        (_check_options if takes_images else _check_texts)(embedding_request)
        run = sending.run = self._runs.open_request(APP, embedding_request.model, pinned_path=post.pinned)
        run.price = self._runs.quotes.open_check(post.prices, task)
        with rename_params(_CLIENT_PARAM_NAMES, "input"):
            async with run.until_end():
                embed = self._embed_items if takes_images else self._embed_texts
                embedded_items = await embed(run, task, embedding_request)
                body = await asyncio.to_thread(
                    self._format.encode, embedding_request, *embedded_items, truncates=not takes_images
                )
        await sending.send_body(JSON, body)

    async def _call_app(
        self, apps: AppRoutes, embedding_request: EmbeddingRequest, post: PostRequest, sending: ResponseWriter
    ) -> None:
        refuse_price_options(post.headers)
        _check_texts(embedding_request)
        texts = [text for text in embedding_request.texts if isinstance(text, str)]
        if len(texts) != len(embedding_request.texts):
            raise BadRequest(f"{embedding_request.model} is an app: send texts, not tokens", param="input")
        sending.model = embedding_request.model
        run = sending.run = apps.open_request(embedding_request.model, pinned_path=post.pinned, route=EMBEDDINGS)
        async with run.until_end():
            request = TextInput(
                text=texts,
                pooling=embedding_request.pooling,
                prompt_name=embedding_request.prompt_name,
            )
            items: dict[str, list[Item]] = defaultdict(list)
            async for batch in run.read_outputs(await apps.call_route(run, EMBEDDINGS, request, ())):
                for name, item in batch:
                    items[name].append(item)
            arrays = [item.array for item in items["embedding"] if item.array is not None]
            if sum(map(len, arrays)) != len(texts):
                raise AppFailed(f"`embed` of the app {run.app} must return one row for each text", stage=run.app)
            tokens = decode_value(int, items["tokens"], "tokens")
            body = await asyncio.to_thread(self._format.encode, embedding_request, np.concatenate(arrays), tokens)
        await sending.send_body(JSON, body)

    async def _embed_texts(
        self, run: ClientRequest, task: CompositeTask, embedding_request: EmbeddingRequest
    ) -> _EmbeddedItems:
        text, nbytes = await place_texts(self._runs, run, embedding_request.texts, "input", self._limits.item_bytes)
        request = TextInput(
            text=text,
            pooling=embedding_request.pooling,
            prompt_name=embedding_request.prompt_name,
            work=max(1, nbytes // 4),
        )
        with use(run):
            output: Vectors = await run_task(task.invoke, request)
        return _EmbeddedItems(*await asyncio.gather(await_result(output.embedding), await_result(output.tokens)))

    async def _embed_items(
        self, run: ClientRequest, task: CompositeTask, embedding_request: EmbeddingRequest
    ) -> _EmbeddedItems:
        texts, images = embedding_request.texts, embedding_request.images
        loaded_images = await self._chat.load_media([*images.values()])
        text, nbytes = None, 0
        if texts:
            text, nbytes = await place_texts(self._runs, run, texts, "input", self._limits.item_bytes)
        request = ImageTextInput(
            text=text,
            images=tuple([await place_media(self._runs, run, image) for image in loaded_images]),
            work=max(1, nbytes // 4),
            image_work=(_IMAGE_TOKENS,) * len(loaded_images),
        )
        with use(run):
            output: ImageTextVectors = await run_task(task.invoke, request)
        text_vectors = [] if output.embedding is None else [output.embedding]
        rows = np.concatenate(await asyncio.gather(*map(await_result, (*text_vectors, *output.images))))
        tokens = await asyncio.gather(*map(await_result, output.tokens))
        # The rows of texts precede those of images.
        order = sorted(range(len(rows)), key=lambda place: place in images)
        vectors = np.empty_like(rows)
        vectors[order] = rows
        return _EmbeddedItems(vectors, sum(tokens))


def _check_texts(embedding_request: EmbeddingRequest) -> None:
    """Raise ``BadRequest`` for an image, which the model or app does not take."""
    for image in embedding_request.images.values():
        raise BadRequest(f"{embedding_request.model} embeds texts, not images: send texts", param=image.param)


def _check_options(embedding_request: EmbeddingRequest) -> None:
    """Raise ``BadRequest`` for options of models that embed only texts."""
    for name in ("pooling", "prompt_name"):
        if getattr(embedding_request, name) is not None:
            raise BadRequest(f"{embedding_request.model} does not support the parameter {name!r}: omit it", param=name)
