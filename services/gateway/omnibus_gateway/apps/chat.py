"""Requests to apps that are models.

In a chat, the worker gets the request as ``ChatInput`` and returns the streams of the answer. The functions of other
routes (``omnibus.app.routes``) get theirs. An app with a ``ChatInput`` need not be a model, and can return any JSON:
see ``parse_app_chat`` and ``invoke_app``. They get OpenAI chat requests, with images and audio.

``POST /v1/apps/{name}/invoke`` is plain ASGI: JSON in, JSON or server-sent events out. The first part of a stream
decides its status: if an app fails before it, the client gets a plain error response. If it fails later, the stream
ends with an error frame instead of ``[DONE]``.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from omnibus.app import protocol
from omnibus.app.protocol import CHAT
from omnibus.app.routes import ROUTES
from omnibus.app_record import AppRecord
from omnibus.errors import AppFailed, BadRequest
from omnibus.metrics import GATEWAY
from omnibus.settings import GatewaySettings
from omnibus.task import ChatOutput
from omnibus_gateway.apps.call import Call
from omnibus_gateway.apps.served_apps import Registry
from omnibus_gateway.core import ClientRequest, ItemStream, RequestFactory
from omnibus_gateway.http.exchange import ConnectedClient, PostRequest, RequestOutcome, read_request
from omnibus_gateway.http.response import JSON, ResponseWriter, as_events
from omnibus_gateway.openai.chat_request import ChatRequest
from omnibus_gateway.openai.parse import check_values, parse_chat
from omnibus_gateway.pricing.meter import refuse_price_options
from omnibus_gateway.tasks.chat import Chat, choose_voice
from omnibus_gateway.tasks.prepared_chat import PreparedChat


class AppChats:
    """Serves chats and other routes with apps that are models; ``chat`` serves the chats of all other models."""

    def __init__(self, runs: RequestFactory, chat: Chat, registry: Registry) -> None:
        self._runs = runs
        self._chat = chat
        self._registry = registry

    def open_request(
        self, model: str, seed: int | None = None, pinned_path: str = "", route: str = CHAT
    ) -> ClientRequest:
        """Open a request to ``model``, or to the app that serves it on ``route``; ``pinned_path`` names its path.

        Raises ``NotFound``, ``Overloaded``, and ``StageUnavailable`` without a worker or before the store was read.
        """
        app = self._find_app(route, model)
        if not app and (routes := [route for route, served_model in self._registry.routes if served_model == model]):
            raise BadRequest(f"{model} is an app that serves {', '.join(routes)}, not {route}", param="model")
        if not app:
            return self._chat.open_request(model, seed, pinned_path)
        self._registry.worker(app)  # raises before media are fetched
        run = self._runs.open_request(app, seed=seed, pinned_path=pinned_path)
        run.model_name = model  # the name that the client uses
        return run

    def is_served_by_app(self, model: str, route: str = CHAT) -> bool:
        """Return True if an app serves ``model`` on ``route``."""
        return (route, model) in self._registry.routes

    def resolve_voice(self, run: ClientRequest, name: str) -> str:
        """Return the voice of the run's app for ``name``. Raises ``BadRequest`` for an unknown voice."""
        return choose_voice(name, self._registry.worker(run.app)[0].about.voices)

    def _check_modalities(self, run: ClientRequest, modalities: Sequence[str]) -> None:
        """Raise ``BadRequest`` for a modality that the run's app does not declare."""
        accepted_modalities = self._registry.worker(run.app)[0].about.input_modalities
        refused = [each for each in modalities if accepted_modalities and each not in accepted_modalities]
        if refused:
            text = f"takes no {refused[0]} input (it takes: {', '.join(accepted_modalities)})"
            raise BadRequest(f"{run.model_name} {text}", param="messages")

    async def call_route(
        self, run: ClientRequest, route: str, request: BaseModel, placed: Any
    ) -> dict[str, ItemStream]:
        """Send ``request`` to the function of ``route`` in the run's app; return the streams of its outputs.

        ``placed`` has the literals of media and texts in it. Raises ``AppFailed``, also for an output that the app left
        out, ``DeadlineExceeded`` and the errors of the app.
        """
        _, worker = await self._registry.warm_worker(run.app, run.deadline)
        call = worker.invoke_route(run, request, route, placed)
        run.call, run.on_end = call.log, call.close
        streams = await call.wait_for_outputs()
        for name in ROUTES[route].parts.keys() - streams.keys():
            raise AppFailed(f"`{ROUTES[route].function}` of the app {run.app} returned no {name}", stage=run.app)
        return streams

    def _find_app(self, route: str, model: str) -> str:
        """Return the app that serves ``model``; empty if none does."""
        app = self._registry.routes.get((route, model), "")
        plan = self._runs.router.plan
        if not app and plan is not None and self._runs.router.base_model(model) not in plan.models:
            self._registry.check_read()
        return app

    async def begin_answer(self, run: ClientRequest, prepared_chat: PreparedChat) -> ChatOutput:
        """Start the prepared chat ``prepared_chat``; return the streams of the answer once they are known.

        Raises as ``Chat.begin_answer``, and ``AppFailed``, ``DeadlineExceeded`` and the errors of the app.
        """
        if run.model:
            return await self._chat.begin_answer(run, prepared_chat)
        self._check_modalities(run, prepared_chat.input.modalities)
        if prepared_chat.input.speech is not None:
            voice = self.resolve_voice(run, prepared_chat.input.voice)
            prepared_chat.input = prepared_chat.input.model_copy(update={"voice": voice})
        call = await self._call_app(run, prepared_chat, protocol.CHAT)
        run.call, run.on_end = call.log, call.close
        streams: dict[str, Any] = await call.wait_for_outputs()
        speaks = prepared_chat.input.speech is not None
        if speaks and "audio" not in streams:
            raise BadRequest(f"{prepared_chat.model} has no audio output: omit modalities", param="modalities")
        sound = streams.get("audio") if speaks else None  # only if the client requested it
        return ChatOutput(text=streams.get("text"), audio=sound)

    async def invoke_app(self, run: ClientRequest, request: ChatRequest) -> Call:
        """Send ``request`` to the run's app, which returns any JSON."""
        return await self._call_app(run, await self._chat.prepare_chat(request, None), protocol.JSON)

    async def _call_app(self, run: ClientRequest, prepared_chat: PreparedChat, kind: str) -> Call:
        chat_input = prepared_chat.input
        if prepared_chat.needs_arena:
            chat_input = await self._chat.place_inputs(prepared_chat, run)
        # Look it up now: it may have been replaced while media were fetched.
        _, worker = await self._registry.warm_worker(run.app, run.deadline)
        return worker.invoke_chat(run, chat_input, kind)


def parse_app_chat(record: AppRecord, body: bytes) -> ChatRequest:
    """Parse the chat request in ``body``, sent to the app itself. Raises ``BadRequest``.

    Rejects options that the app alone decides, because it would ignore them silently.
    """
    request = parse_chat(body, app=True)
    if request.model not in ("", record.name, record.model):
        raise BadRequest(f"this is the app {record.name}: omit model", param="model")
    if request.stream is not None and request.stream != record.streams:
        how = "part by part" if record.streams else "as a whole"
        raise BadRequest(f"the app {record.name} answers {how}: omit stream", param="stream")
    if request.choice_count > 1:
        raise BadRequest("an app answers once: omit n", param="n")
    if request.wants_images:
        raise BadRequest("an app chooses its own output: omit modalities", param="modalities")
    if request.wants_audio and request.audio is not None and request.audio.format != "wav":
        raise BadRequest("apps return audio as wav only: set audio.format to wav", param="audio.format")
    return request


_BEFORE, _AFTER = "/v1/apps/", "/invoke"
_DONE = b"data: [DONE]\n\n"


def called_app(scope: Scope) -> str:
    """Return the app that a request invokes; empty for any other request."""
    path: str = scope["path"]
    if scope["method"] != "POST" or not path.startswith(_BEFORE) or not path.endswith(_AFTER):
        return ""
    name = path[len(_BEFORE) : -len(_AFTER)]
    return "" if "/" in name else name


class InvokeRoute:
    """Invokes apps for clients."""

    def __init__(self, settings: GatewaySettings, runs: RequestFactory, registry: Registry, chats: AppChats) -> None:
        self._settings = settings
        self._runs = runs
        self._registry = registry
        self._chats = chats

    async def __call__(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request to app ``name``. When the client disconnects, its work is cancelled."""
        sending = ResponseWriter(send)
        async with RequestOutcome(sending) as outcome:
            self._registry.worker(name)  # an unknown app is rejected before the body is read
            post = await read_request(scope, receive, self._settings.max_body)
            refuse_price_options(post.headers)
            check_values(post.body)
            async with ConnectedClient(scope, receive):
                await self._send_answer(name, post, sending)
        # An app that is now gone counts under the empty name: clients can send any name.
        GATEWAY.app_counter(name if self._registry.worker_view(name) is not None else "", outcome.code).inc()

    async def _send_answer(self, name: str, post: PostRequest, sending: ResponseWriter) -> None:
        record, _ = self._registry.worker(name)
        if not record.invocable:
            raise BadRequest(f"the app {name} has no `serve`: call its model {record.model}", param="name")
        chat = parse_app_chat(record, post.body) if record.chat else None
        run = self._runs.open_request(name, seed=chat.seed if chat is not None else None, pinned_path=post.pinned)
        sending.run = run
        async with run.until_end():
            if chat is None:
                record, worker = await self._registry.warm_worker(name, run.deadline)
                call = worker.invoke(run, post.body)
            else:
                call = await self._chats.invoke_app(run, chat)
            run.call = call.log
            if record.streams:
                await sending.send_stream(as_events(call.read_parts()), last=_DONE)
                return
            answer = await call.read_answer()
        await sending.send_body(JSON, answer)
