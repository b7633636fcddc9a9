"""The chat app: converts an OpenAI chat request to a composite task, and its results to an answer.

parse:  parses the body as ``ChatRequest``, fetches and checks media, and puts them into the arena once.
record: runs the composite task with placeholders, once per kind of request, to get the graph.
send:   sends the graph to the executors of its route, see ``run``.
replay: runs the composite task again with streams as results, once per kind and then occasionally, to verify it.
answer: sends JSON or server-sent events, then one ``end``.
"""

import inspect
from collections.abc import Awaitable, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple, Protocol

import msgspec
from pydantic import BaseModel

from omnibus.app.protocol import CHAT
from omnibus.encoding.audio import OPENAI_VOICES
from omnibus.errors import BadRequest, TooLarge
from omnibus.plan import ModelPlan
from omnibus.task import MLLM, ChatInput, ChatOutput, CompositeTask, record, replay, use
from omnibus.task.library.chat import ChatChoices, ChatFanOut
from omnibus.task.runtime import run as run_task
from omnibus_gateway.dispatch.dispatcher import MAX_ATTEMPTS
from omnibus_gateway.dispatch.streams import Fingerprint, ItemStream
from omnibus_gateway.http.response import ResponseWriter
from omnibus_gateway.media import inspect as openai_media
from omnibus_gateway.media.client_files import ClientFiles, resolve_files
from omnibus_gateway.media.fetcher import Fetcher
from omnibus_gateway.media.inspect import InspectedMedia, MediaLimits
from omnibus_gateway.media.spoken_answers import SpokenAnswers
from omnibus_gateway.openai.chat_request import ChatRequest
from omnibus_gateway.openai.messages import MediaRef, answer_references, convert_messages, unknown_audio_error
from omnibus_gateway.pricing.meter import PriceOptions
from omnibus_gateway.pricing.quotes import ExpectedSizes, Quote
from omnibus_gateway.request.continuing import Continuations
from omnibus_gateway.request.inputs import MAX_READERS, place_input, salt_params
from omnibus_gateway.request.request import ClientRequest, RequestFactory
from omnibus_gateway.routing.assignment import ModelSampling
from omnibus_gateway.tasks.prepared_chat import (
    MAX_INLINE_BYTES,
    ChatKind,
    ChatKinds,
    PreparedChat,
    RequestGraph,
    TaskCache,
)
from omnibus_gateway.tasks.resolve import create_chat_task
from omnibus_gateway.tasks.schema_check import SchemaCheck

APP = "chat"


class Chats(Protocol):
    """Chats of models of the plan, or of those and of apps."""

    def open_request(self, model: str, seed: int | None = None, pinned_path: str = "") -> ClientRequest:
        """Open a chat request to ``model``."""

    def is_served_by_app(self, model: str, route: str = CHAT) -> bool:
        """Return True if an app serves ``model`` on ``route``."""

    async def begin_answer(self, run: ClientRequest, prepared_chat: PreparedChat) -> ChatOutput:
        """Start the prepared chat ``prepared_chat``; return the streams of the answer."""


class ChatAnswerer(Protocol):
    """Answers a chat of any dialect, as the route of chats does."""

    def __call__(
        self,
        chat_request: ChatRequest,
        pinned_path: str,
        sending: ResponseWriter,
        resumable_stream: None,
        prices: PriceOptions,
    ) -> Awaitable[None]: ...


class AppRoutes(Chats, Protocol):
    """Apps that serve chats and other routes."""

    def open_request(
        self, model: str, seed: int | None = None, pinned_path: str = "", route: str = CHAT
    ) -> ClientRequest:
        """Open a request to ``model``, or to the app that serves it on ``route``."""

    def resolve_voice(self, run: ClientRequest, name: str) -> str:
        """Return the voice of the run's app for ``name``. Raises ``BadRequest`` for an unknown voice."""

    async def call_route(
        self, run: ClientRequest, route: str, request: BaseModel, placed: Any
    ) -> dict[str, ItemStream]:
        """Send ``request`` to the function of ``route`` in the run's app; return the streams of its outputs."""


class PlainChat(NamedTuple):
    """Chat that needs no waiting: text alone, of a known kind."""

    request: ChatRequest
    task: CompositeTask
    asked: PreparedChat
    kind: ChatKind


class Chat:
    """Serves chat requests for every model of the plan."""

    def __init__(
        self,
        runs: RequestFactory,
        fetcher: Fetcher,
        spoken_answers: SpokenAnswers | None = None,
        continuations: Continuations | None = None,
        files: ClientFiles | None = None,
    ) -> None:
        self._runs = runs
        self.meter = runs.records.meter
        self.files = files if files is not None else ClientFiles(runs.settings)
        self.spoken = spoken_answers
        self.schemas = SchemaCheck()
        self.continuations = continuations
        self._router = runs.router
        self._fetcher = fetcher
        self._limits = MediaLimits(body_bytes=runs.settings.max_body)
        self._tasks = TaskCache(runs.router, create_chat_task)
        self._kinds = ChatKinds(runs, runs.settings.verify_every)

    @property
    def runs(self) -> RequestFactory:
        """Factory of requests, with their shared state."""
        return self._runs

    def usual_sampling(self, name: str) -> ModelSampling:
        """Return the default sampling of a model, or of an adapter's base."""
        return self._router.sampling.of_model(self._router.base_model(name))

    def get_task(self, name: str) -> CompositeTask:
        """Return the composite task of a model, or of an adapter's base. Cached per plan epoch."""
        return self._tasks.get_task(self._router.base_model(name))

    def find_model(self, name: str) -> ModelPlan:
        """Return the plan of a model, or of an adapter's base.

        Raises ``NotFound``, and ``BadRequest`` for a model without chat.
        """
        self.get_task(name)
        return self._get_model(name)

    def has_model(self, name: str) -> bool:
        """Return True if the plan has a model, or an adapter's base."""
        plan = self._router.plan
        return plan is not None and self._router.base_model(name) in plan.models

    def is_served_by_app(self, model: str, route: str = CHAT) -> bool:
        """Return False: the plan has no models of apps."""
        return False

    def _get_model(self, name: str) -> ModelPlan:
        return self._router.get_model(self._router.base_model(name))

    def open_request(self, model: str, seed: int | None = None, pinned_path: str = "") -> ClientRequest:
        """Open a chat request to a model or an adapter; ``pinned_path`` names its path.

        Raises ``NotFound``, and ``Overloaded`` at the limit.
        """
        base = self._router.adapter_bases.get(model, model)
        self._router.get_model(base)
        run = self._runs.open_request(APP, base, seed=seed, pinned_path=pinned_path)
        run.model_name = model
        return run

    async def begin_answer(self, run: ClientRequest, prepared_chat: PreparedChat) -> ChatOutput:
        """Send the prepared chat ``prepared_chat`` to the run's model; return the streams of the answer.

        Raises ``Rejected`` for an invalid request, ``Overloaded``, and ``StageUnavailable`` without executors.
        """
        run.estimates, run.cache_key = prepared_chat.estimates, prepared_chat.cache_key
        self._choose_adapter(run, prepared_chat)
        task = self._tasks.get_task(run.model)
        if not inspect.iscoroutinefunction(task.invoke):
            return await self._submit_static(run, task, prepared_chat)
        run.known = ()  # an answer of several segments cannot continue after known tokens
        chat_input = await self.place_inputs(prepared_chat, run)
        with use(run):
            return await run_task(task.invoke, chat_input)

    async def begin_choices(self, run: ClientRequest, prepared_chat: PreparedChat) -> list[ChatOutput]:
        """Send ``prepared_chat``, a chat with several answers; return the streams of each answer.

        Raises as ``begin_answer``, and ``BadRequest`` for a model whose graph depends on results.
        """
        run.estimates, run.cache_key = prepared_chat.estimates, prepared_chat.cache_key
        self._choose_adapter(run, prepared_chat)
        task = self._tasks.get_task(run.model)
        if inspect.iscoroutinefunction(task.invoke):
            raise BadRequest(f"{run.model} returns one answer per request: omit n", param="n")
        chat_choices: ChatChoices = await self._submit_static(run, ChatFanOut(chat=task), prepared_chat)
        return [ChatOutput(text=text) for text in chat_choices.texts]

    def _choose_adapter(self, run: ClientRequest, prepared_chat: PreparedChat) -> None:
        """Select the adapter that the client named, if any."""
        if run.model_name != run.model:
            prepared_chat.use_adapter(run.model_name, self._router.loaded_adapters.get(run.model_name))

    def check_price(self, run: ClientRequest, prices: PriceOptions) -> None:
        """Attach the check of ``prices`` to ``run``, for its submission. Raises as ``Quotes.open_check``."""
        if prices.before:
            task = self._tasks.get_task(run.model) if run.model else None
            run.price = self._runs.quotes.open_check(prices, task)

    async def choose_path(
        self, run: ClientRequest, request: ChatRequest, prices: PriceOptions, image: Quote | None = None
    ) -> str:
        """Return the path for ``request`` under its ``prices``; ``run`` itself is sent later.

        ``image`` is the price of an image that the answer may request. Raises as ``prepare_request``,
        ``Quotes.open_check`` and ``PriceCheck.choose_path``.
        """
        self.check_price(run, prices)
        if run.price is None:
            return run.pinned
        prepared_chat, task = await self.prepare_request(run, request), self._tasks.get_task(run.model)
        run.price.expected, run.price.image = _expected_sizes(prepared_chat), image
        return await run.price.choose_path(
            run.model, record(task.invoke, prepared_chat.input, run.choice_point), run.pinned
        )

    async def prepare_request(self, run: ClientRequest, request: ChatRequest) -> PreparedChat:
        """Validate ``request`` for ``run``, and fetch its media."""
        if not run.model:  # an app's
            return await self.prepare_chat(request, None)
        return await self.prepare_chat(request, self._router.get_model(run.model), self._tasks.get_task(run.model))

    async def prepare_chat(
        self, request: ChatRequest, model: ModelPlan | None, task: CompositeTask | None = None
    ) -> PreparedChat:
        """Validate ``request``, and fetch its media. ``model`` and ``task`` are None for an app."""
        request, voice = self._without_unknown(request), _requested_voice(request, model)
        if request.response_format is not None or request.tool_choice is not None or request.has_vllm_shape:
            await self.schemas.check_request(request)
        messages, refs = convert_messages(await self._resolve_spoken(request))
        if refs:
            refs = await self.resolve_files(messages, refs)
        if isinstance(task, MLLM):
            for ref in refs:
                task.encoder_for(ref.modality)  # raises before media without an encoder are fetched
        family = model.family if model is not None else ""
        usual = self._router.sampling.unknown if model is None else self.usual_sampling(request.model)
        return PreparedChat(request, messages, await self.load_media(refs), voice, family=family, usual=usual)

    def prepare_plain(self, request: ChatRequest) -> PlainChat | None:
        """Prepare ``request`` if it needs no waiting; else return None.

        A request with media or references must wait. Raises as ``prepare_chat``.
        """
        model = self._router.adapter_bases.get(request.model, request.model)
        task = self._tasks.get_task(model)
        voice = _requested_voice(request, self._router.get_model(model))
        messages, refs = convert_messages(request)
        prepared_chat = PreparedChat(
            self._without_unknown(request), messages, [], voice, usual=self._router.sampling.of_model(model)
        )
        if refs or prepared_chat.needs_arena:
            return None
        kind = self._kinds.find_kind(model, task, prepared_chat.input)
        if kind is None or (self._router.growing and self._must_wait(kind)):
            return None
        return PlainChat(request, task, prepared_chat, kind)

    def _without_unknown(self, request: ChatRequest) -> ChatRequest:
        """Remove fields that executors of an earlier build would reject."""
        if request.prompt_cache_key is None or self._router.members.all_take("cache_key"):
            return request
        return msgspec.structs.replace(request, prompt_cache_key=None)

    def _must_wait(self, kind: ChatKind) -> bool:
        """Return True if a chat of ``kind`` would wait for room."""
        assignment = self._kinds.known_assignment(kind)
        room = self._runs.room
        return assignment is not None and room.growth(assignment) is not None and not room.has_room(assignment)

    def begin_plain(self, run: ClientRequest, chat: PlainChat) -> ChatOutput:
        """Send ``chat`` without waiting for admission; return the streams of the answer."""
        run.estimates, run.cache_key = chat.asked.estimates, chat.asked.cache_key
        self._choose_adapter(run, chat.asked)
        ticket = run.take_ticket(chat.kind.segment, self._kinds.known_assignment(chat.kind))
        graph = self._kinds.build_graph(chat.kind, run, chat.task, chat.asked.input)
        running = run.send_segment(graph.segment, ticket=ticket, assignment=graph.assignment)
        return graph.bind(running.streams)

    async def _resolve_spoken(self, request: ChatRequest) -> ChatRequest:
        """Replace ids of earlier spoken answers by the answers."""
        index = next((index for index, _ in answer_references(request)), None)
        if index is None:
            return request
        if self.spoken is None:
            raise unknown_audio_error(index)
        return await self.spoken.resolve_references(request)

    def resolve_voice(self, name: str, model: str) -> str:
        """Return the voice of ``model`` for ``name``. Raises ``BadRequest`` for an unknown voice."""
        return _select_voice(name, self._get_model(model), model)

    async def resolve_files(self, messages: list[dict[str, Any]], refs: list[MediaRef]) -> list[MediaRef]:
        """Resolve media with a file id, and set their modality."""
        if any(ref.file_id for ref in refs):
            return await resolve_files(messages, refs, self.files)
        return refs

    async def _read_file(self, id: str) -> bytes:
        return (await self.files.read(id)).data

    async def load_media(self, refs: Sequence[MediaRef]) -> list[InspectedMedia]:
        """Fetch and inspect the media items of a request."""
        return await openai_media.load_media(refs, self._fetcher, self._limits, self._read_file) if refs else []

    def require_encoder(self, model: str, modality: str) -> None:
        """Raise ``BadRequest`` for a model without an encoder of ``modality``."""
        takes = self._get_model(model).encoders
        if modality not in takes:
            accepted_modalities = ", ".join(sorted(takes)) or "text only"
            raise BadRequest(f"{model} takes no {modality} input (it takes: {accepted_modalities})", param="model")

    async def _submit_static(self, run: ClientRequest, task: CompositeTask, prepared_chat: PreparedChat) -> Any:
        """Submit a graph that depends on the request alone: one segment."""
        kinds = self._kinds
        kind = None if prepared_chat.choices else kinds.find_kind(run.model, task, prepared_chat.input)
        segment = kind.segment if kind is not None else record(task.invoke, prepared_chat.input, run.choice_point)
        if run.price is not None:
            run.price.expected = _expected_sizes(prepared_chat)
        await run.wait_admission(segment)
        try:
            ticket = run.take_ticket(segment, kinds.known_assignment(kind))
            if prepared_chat.needs_arena:
                graph = await self._place_graph(run, task, prepared_chat, kind)
            elif kind is not None:
                graph = kinds.build_graph(kind, run, task, prepared_chat.input)
            else:
                graph = RequestGraph(segment, None, partial(replay, task.invoke, prepared_chat.input, segment))
            running = run.send_segment(graph.segment, ticket=ticket, assignment=graph.assignment)
        except BaseException:
            run.release_admission()
            raise
        if prepared_chat.choices:
            for stream in running.streams.values():
                stream.fingerprint = Fingerprint()
        return graph.bind(running.streams)

    async def _place_graph(
        self, run: ClientRequest, task: CompositeTask, prepared_chat: PreparedChat, kind: ChatKind | None
    ) -> RequestGraph:
        """Put the inputs into the arena for all attempts; return the graph."""
        try:
            readers = (MAX_ATTEMPTS + 1) * max(1, len(prepared_chat.choices))
            chat_input = await self.place_inputs(prepared_chat, run, run.id, readers)
            return self._kinds.build_graph(kind, run, task, chat_input)
        except BaseException:
            self._runs.tensors.end_invocation(run.id)
            raise

    async def place_inputs(
        self, prepared_chat: PreparedChat, run: ClientRequest, holder: str = "", readers: int = MAX_READERS
    ) -> ChatInput:
        """Put media and long messages into the arena once, for ``holder``, by default for all segments of ``run``."""
        holder = holder or run.inputs_name
        place = partial(place_input, self._runs.tensors, run.kept)
        media = [
            await place(
                item.data,
                (item.info.modality, item.info.mime, item.info.sha256),
                holder,
                run.deadline,
                readers,
                run.salt,
            )
            for item in prepared_chat.items
        ]
        update: dict[str, Any] = {"media": tuple(media)}
        for name, body in (("messages", prepared_chat.body), ("params", prepared_chat.params)):
            if len(body) > MAX_INLINE_BYTES:
                if len(body) > self._limits.item_bytes:
                    raise TooLarge(
                        f"{name} have {len(body)} bytes, at most {self._limits.item_bytes} are allowed", param=name
                    )
                # Both halves of a language model read parameters.
                reads = readers if name == "messages" else MAX_READERS
                salted_body = body if name == "messages" else salt_params(body, run.prompt_salt)
                update[name] = await place(salted_body, _about_json(salted_body), holder, run.deadline, reads, run.salt)
        if any(len(body) > MAX_INLINE_BYTES for body in prepared_chat.choices):
            choices = [salt_params(body, run.prompt_salt) for body in prepared_chat.choices]
            update["choices"] = tuple(
                [await place(body, _about_json(body), holder, run.deadline, readers, run.salt) for body in choices]
            )
        return prepared_chat.input.model_copy(update=update)


def _expected_sizes(prepared_chat: PreparedChat) -> ExpectedSizes:
    return ExpectedSizes(
        prepared_chat.estimates,
        prepared_chat.input.answer,
        max(1, len(prepared_chat.choices)),
        prepared_chat.answers_whole,
    )


def _requested_voice(request: ChatRequest, model: ModelPlan | None) -> str:
    if not request.wants_audio or request.audio is None:
        return ""
    voice = request.audio.voice
    name = voice if isinstance(voice, str) else voice.id
    if model is None:
        return name
    if not model.has_talker:
        raise BadRequest(f"{request.model} has no audio output: omit modalities", param="modalities")
    return _select_voice(name, model, request.model)


def _select_voice(name: str, model: ModelPlan, model_name: str) -> str:
    if not model.has_talker:
        raise BadRequest(f"{model_name} has no audio output", param="model")
    return choose_voice(name, model.voices)


def choose_voice(name: str, voices: Sequence[str]) -> str:
    """Return the one of ``voices`` for ``name``, which may be a voice of OpenAI. Raises ``BadRequest``.

    Without any voices, all names are accepted.
    """
    if name in voices or not voices:
        return name
    if name in OPENAI_VOICES:
        return voices[OPENAI_VOICES.index(name) % len(voices)]
    raise BadRequest(f"unknown voice {name[:64]!r}: use one of {', '.join(voices)}", param="audio.voice")


def _about_json(body: bytes) -> tuple[str, str, str]:
    return "text", "application/json", sha256(body).hexdigest()
