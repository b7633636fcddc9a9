"""Chats that an app serves: the request as ``ChatInput`` to its worker, its answer's streams back.

An app that takes a ``ChatInput`` may be no model, and answer with whatever it likes: see ``asked`` and ``invoke``.
"""

from typing import Any

from omnibus.app import protocol
from omnibus.app_record import AppRecord
from omnibus.errors import BadRequest
from omnibus.task import ChatInput, ChatOutput
from services.gateway.apps.call import Call
from services.gateway.apps.served_apps import Registry
from services.gateway.openai.chat_request import ChatRequest
from services.gateway.openai.parse import parse_chat
from services.gateway.request.arena_inputs import MAX_READERS
from services.gateway.request.request import ClientRequest, RequestFactory
from services.gateway.tasks.chat import Chat, PreparedChat

#: The OpenAI route that apps may claim, as their records name it.
ROUTE = "chat"


class AppChats:
    """Serves what clients ask of apps that are models."""

    def __init__(self, runs: RequestFactory, chat: Chat, registry: Registry) -> None:
        self._runs = runs
        self._chat = chat
        self._registry = registry

    def app_name(self, model: str) -> str:
        """The app that serves ``model``; empty when none does. Raises ``StageUnavailable`` while nobody can know."""
        app = self._registry.serving_app(ROUTE, model)
        plan = self._runs.router.plan
        if not app and plan is not None and model not in plan.models:
            self._registry.check_read()
        return app

    async def start_chat(
        self, name: str, request: ChatRequest, pinned: str = "", deadline: float = 0.0
    ) -> tuple[ClientRequest, ChatOutput, Call]:
        """Have app ``name`` serve ``request``; returns its run and streams as soon as it says where they come from.

        Raises ``Rejected``, ``StageUnavailable`` without a worker, ``AppFailed``, ``DeadlineExceeded`` and what the
        app itself raises.
        """
        run, call = await self.open_call(name, request, pinned, deadline)
        streams: dict[str, Any] = await call.wait_for_outputs()
        if request.wants_audio and "audio" not in streams:
            call.close()
            run.end("failed")
            raise BadRequest(f"{request.model} has no audio output: leave modalities out", param="modalities")
        sound = streams.get("audio") if request.wants_audio else None  # what nobody asked for is not sent
        return run, ChatOutput(text=streams.get("text"), audio=sound), call

    async def open_call(
        self, name: str, request: ChatRequest, pinned: str = "", deadline: float = 0.0
    ) -> tuple[ClientRequest, Call]:
        """Hand ``request`` to app ``name``."""
        self._registry.worker(name)  # what nobody answers is not fetched
        run = self._runs.open_request(name, seed=request.seed, pinned=pinned)
        if deadline:
            run.resume_until(deadline)
        try:
            return run, await self.send_chat(name, run, request)
        except BaseException:
            run.end("failed")
            raise

    async def send_chat(self, name: str, run: ClientRequest, request: ChatRequest, kind: str = protocol.CHAT) -> Call:
        """Hand ``request`` to app ``name`` as part of ``run``; of kind ``JSON`` it answers with any JSON."""
        wanted = await self._prepare_input(run, request)
        _, worker = self._registry.worker(name)  # it may have been replaced while media were fetched
        return worker.invoke_chat(run, wanted, kind)

    def open_run(self, name: str, seed: int | None = None, pinned: str = "") -> ClientRequest:
        """A new request to app ``name`` that is a chat in the end. Raises ``Overloaded`` and ``StageUnavailable``."""
        self._registry.worker(name)
        return self._runs.open_request(name, seed=seed, pinned=pinned)

    async def start_prepared(self, name: str, run: ClientRequest, asked: PreparedChat) -> tuple[ChatOutput, Call]:
        """Hand what was ``asked`` to app ``name`` as part of ``run``; returns the text of its answer. Raises as
        ``start_chat``, and ``BadRequest`` for an app that writes none."""
        wanted = (
            await self._chat.place_inputs(asked, run.inputs_name, run.deadline, MAX_READERS, run.salt)
            if asked.needs_arena
            else asked.input
        )
        _, worker = self._registry.worker(name)
        call = worker.invoke_chat(run, wanted)
        streams: dict[str, Any] = await call.wait_for_outputs()
        if "text" not in streams:
            call.close()
            raise BadRequest(f"the app {name} writes no text", param="model")
        return ChatOutput(text=streams["text"], audio=None), call

    async def _prepare_input(self, run: ClientRequest, request: ChatRequest) -> ChatInput:
        asked = await self._chat.prepare_chat(request, None)
        return (
            await self._chat.place_inputs(asked, run.inputs_name, run.deadline, MAX_READERS, run.salt)
            if asked.needs_arena
            else asked.input
        )


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
    if request.wants_images:
        raise BadRequest("apps answer with what they make: leave modalities out", param="modalities")
    if request.wants_audio and request.audio is not None and request.audio.format != "wav":
        raise BadRequest("apps give sound as wav files", param="audio.format")
    return request
