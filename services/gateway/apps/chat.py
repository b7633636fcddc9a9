"""Chats that an app serves: the request as ``ChatInput`` to its worker, its answer's streams back.

An app that takes a ``ChatInput`` may be no model, and answer with whatever it likes: see ``asked`` and ``invoke``.
"""

from typing import Any

from omnibus.app import protocol
from omnibus.app_record import AppRecord
from omnibus.errors import BadRequest
from omnibus.task import ChatOutput
from services.gateway.apps.call import Call
from services.gateway.apps.served_apps import Registry
from services.gateway.openai.chat_request import ChatRequest
from services.gateway.openai.parse import parse_chat
from services.gateway.request.arena_inputs import MAX_READERS
from services.gateway.request.factory import RequestFactory
from services.gateway.request.request import ClientRequest
from services.gateway.tasks.chat import Chat
from services.gateway.tasks.prepared_chat import PreparedChat

#: The OpenAI route that apps may claim, as their records name it.
ROUTE = "chat"


class AppChats:
    """Serves chats with apps that are models, and with all other models as ``chat`` does."""

    def __init__(self, runs: RequestFactory, chat: Chat, registry: Registry) -> None:
        self._runs = runs
        self._chat = chat
        self._registry = registry

    def open_request(self, model: str, seed: int | None = None, pinned: str = "") -> ClientRequest:
        """A new request to ``model``, or to the app that serves it; ``pinned`` names its path.

        Raises ``NotFound``, ``Overloaded``, and ``StageUnavailable`` without a worker or while nobody can know.
        """
        app = self._find_app(model)
        if not app:
            return self._chat.open_request(model, seed, pinned)
        self._registry.worker(app)  # what nobody answers is not fetched
        run = self._runs.open_request(app, seed=seed, pinned=pinned)
        run.model_name = model  # as its client calls it
        return run

    def is_served_by_app(self, model: str) -> bool:
        """Return whether ``model`` is an app's."""
        return bool(self._registry.serving_app(ROUTE, model))

    def _find_app(self, model: str) -> str:
        """The app that serves ``model``; empty when none does."""
        app = self._registry.serving_app(ROUTE, model)
        plan = self._runs.router.plan
        if not app and plan is not None and self._runs.router.base_model(model) not in plan.models:
            self._registry.check_read()
        return app

    async def begin_answer(self, run: ClientRequest, asked: PreparedChat) -> ChatOutput:
        """Send what was ``asked`` on its way; returns the streams of the answer, as soon as an app says where they
        come from.

        Raises as ``Chat.begin_answer``, ``AppFailed``, ``DeadlineExceeded`` and what the app itself raises.
        """
        if run.model:
            return await self._chat.begin_answer(run, asked)
        call = await self._call_app(run, asked, protocol.CHAT)
        run.call, run.on_end = call.log, call.close
        streams: dict[str, Any] = await call.wait_for_outputs()
        speaks = asked.input.speech is not None
        if speaks and "audio" not in streams:
            raise BadRequest(f"{asked.model} has no audio output: leave modalities out", param="modalities")
        sound = streams.get("audio") if speaks else None  # what nobody asked for is not sent
        return ChatOutput(text=streams.get("text"), audio=sound)

    async def invoke_app(self, run: ClientRequest, request: ChatRequest) -> Call:
        """Hand ``request`` to the run's app, which answers with any JSON."""
        return await self._call_app(run, await self._chat.prepare_chat(request, None), protocol.JSON)

    async def _call_app(self, run: ClientRequest, asked: PreparedChat, kind: str) -> Call:
        wanted = asked.input
        if asked.needs_arena:
            wanted = await self._chat.place_inputs(asked, run, run.inputs_name, MAX_READERS)
        # By now: it may have been replaced while media were fetched.
        _, worker = await self._registry.warm_worker(run.app, run.deadline)
        return worker.invoke_chat(run, wanted, kind)


def parse_app_chat(record: AppRecord, body: bytes) -> ChatRequest:
    """The chat request in ``body``, which was sent to the app itself. Raises ``BadRequest``.

    What the app decides alone is refused: it would silently not be obeyed.
    """
    request = parse_chat(body, app=True)
    if request.model not in ("", record.name, record.model):
        raise BadRequest(f"this is the app {record.name}: leave the model out", param="model")
    if request.stream is not None and request.stream != record.streams:
        how = "part by part" if record.streams else "as a whole"
        raise BadRequest(f"the app {record.name} answers {how}: leave stream out", param="stream")
    if request.choice_count > 1:
        raise BadRequest("an app answers once: leave n out", param="n")
    if request.wants_images:
        raise BadRequest("apps answer with what they make: leave modalities out", param="modalities")
    if request.wants_audio and request.audio is not None and request.audio.format != "wav":
        raise BadRequest("apps give sound as wav files", param="audio.format")
    return request
