"""Chats that an app serves: the request as ``ChatInput`` to its worker, its answer's streams back."""

from omnibus.task import ChatInput, ChatOutput
from services.gateway.apps.calls import Call
from services.gateway.apps.registry import Registry
from services.gateway.chat import Chat
from services.gateway.openai.schema import ChatRequest
from services.gateway.placing import MANY
from services.gateway.run import Run, Runs

#: The OpenAI route that apps may claim, as their records name it.
ROUTE = "chat"


class Chats:
    """Serves what clients ask of apps that are models."""

    def __init__(self, runs: Runs, chat: Chat, registry: Registry) -> None:
        self._runs = runs
        self._chat = chat
        self._registry = registry

    def app(self, model: str) -> str:
        """The app that serves ``model``; empty when none does."""
        return self._registry.serving(ROUTE, model)

    async def start(self, name: str, request: ChatRequest, pinned: str = "") -> tuple[Run, ChatOutput, Call]:
        """Have app ``name`` serve ``request``; returns its run and streams as soon as it says where they come from.

        Raises ``Rejected``, ``StageUnavailable`` without a worker, ``AppFailed``, ``DeadlineExceeded`` and what the
        app itself raises.
        """
        run, call = await self.call(name, request, pinned)
        streams = await call.outputs()
        return run, ChatOutput(text=streams.get("text"), audio=streams.get("audio")), call

    async def call(self, name: str, request: ChatRequest, pinned: str = "") -> tuple[Run, Call]:
        """Hand ``request`` to app ``name``."""
        _, worker = self._registry.worker(name)
        run = self._runs.open(name, seed=request.seed, pinned=pinned)
        try:
            return run, worker.chat(run, await self._input(run, request))
        except BaseException:
            run.end("failed")
            raise

    async def _input(self, run: Run, request: ChatRequest) -> ChatInput:
        asked = await self._chat.understand(request, None)
        return await self._chat.place(asked, run.inputs, run.deadline, MANY) if asked.bulky else asked.input
