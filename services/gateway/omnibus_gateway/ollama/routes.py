"""Routes of Ollama's API: answers under ``/api/chat`` and ``/api/generate``, and the models."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from omnibus import __version__
from omnibus.errors import NotFound
from omnibus.settings import GatewaySettings
from omnibus_gateway.http.exchange import PostRequest, PostRoute, add_routes, json_response, read_request
from omnibus_gateway.http.response import JSON, ResponseWriter
from omnibus_gateway.ollama import wire
from omnibus_gateway.ollama.answer import encode_loaded
from omnibus_gateway.ollama.translate import answer_shape, base_name, parse_chat, parse_generate, rename_params, to_chat
from omnibus_gateway.openai.models import ModelObject
from omnibus_gateway.openai.parse import decode_body
from omnibus_gateway.tasks.chat import Chat, ChatAnswerer

_CAPABILITIES = {"image": "vision", "audio": "audio", "video": "video"}
_MAX_QUESTION_BYTES = 1 << 16
_show_decoder = msgspec.json.Decoder(wire.ShowRequest)


class AnswerRoute(PostRoute):
    """Answers conversations, or with ``chats`` False single prompts."""

    reads_prices = True

    def __init__(self, settings: GatewaySettings, chat: Chat, answer_chat: ChatAnswerer, *, chats: bool = True) -> None:
        super().__init__(settings)
        self._chat = chat
        self._answer_chat = answer_chat
        self._chats = chats

    async def handle_request(self, post: PostRequest, sending: ResponseWriter) -> None:
        request = parse_chat(post.body) if self._chats else parse_generate(post.body)
        translated = to_chat(request)
        sending.model = base_name(request.model)
        with rename_params(self._chats):
            if translated is None:
                self._chat.find_model(sending.model)
                await sending.send_body(JSON, encode_loaded(answer_shape(request), request.model))
                return
            await self._answer_chat(translated, post.pinned, sending, None, post.prices)


class OllamaModels:
    """Routes of the models that ``list_models`` returns by name."""

    def __init__(self, list_models: Callable[[], Awaitable[Mapping[str, ModelObject]]]) -> None:
        self._list_models = list_models

    def add_routes(self, app: FastAPI) -> None:
        """Add the routes to ``app``."""
        add_routes(
            app,
            {
                wire.TAGS: {"GET": self._list_tags},
                wire.RUNNING: {"GET": self._list_tags},
                wire.SHOW: {"POST": self._show_model},
                wire.VERSION: {"GET": self._show_version},
            },
        )

    async def _list_tags(self, _: Request) -> Response:
        models = await self._list_models()
        tags = [wire.Tag(name, name, _format_time(model), _details(model)) for name, model in models.items()]
        return json_response(wire.Tags(tags))

    async def _show_model(self, request: Request) -> Response:
        post = await read_request(request.scope, request.receive, _MAX_QUESTION_BYTES)
        shown = decode_body(_show_decoder, post.body)
        name = base_name(shown.model or shown.name)
        model = (await self._list_models()).get(name)
        if model is None:
            raise NotFound(
                f"The model {name[:256]!r} does not exist here: {wire.TAGS} lists those that do.", param="model"
            )
        context = {} if model.context_length is None else {"omnibus.context_length": model.context_length}
        info = {"general.architecture": "omnibus", **context}
        return json_response(wire.ShowResponse(_details(model), info, _capabilities(model), _format_time(model)))

    async def _show_version(self, _: Request) -> Response:
        return json_response({"version": __version__})


def _format_time(model: ModelObject) -> str:
    return datetime.fromtimestamp(model.created, UTC).isoformat().replace("+00:00", "Z")


def _details(model: ModelObject) -> wire.ModelDetails:
    return wire.ModelDetails(model.owned_by, families=[model.owned_by])


def _capabilities(model: ModelObject) -> list[str]:
    outputs = model.output_modalities or ()
    if "embedding" in outputs:
        return ["embedding"]
    if "text" not in outputs:
        return ["image"] if "image" in outputs else []
    inputs = model.input_modalities or ()
    return ["completion", "tools", *(word for kind, word in _CAPABILITIES.items() if kind in inputs)]
