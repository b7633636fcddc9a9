"""The chat app: an OpenAI chat request to a composite task, and its results to an answer.

parse      body to ``ChatRequest``, media fetched, checked and put into the arena once
record     the composite task runs with placeholders; out comes the graph
route      request type, path by the planned rates, executors by least outstanding work
dispatch   the invocation to every executor at once, and to the record stream
replay     the composite task runs again, verified, with streams as results
answer     JSON or server-sent events; then one ``end``
"""

import time
from hashlib import sha256
from typing import Any

import msgspec
import numpy as np

from omnibus.errors import BadRequest, Overloaded, TooLarge
from omnibus.graph import HANDLE, WIRE_VERSION, Invocation
from omnibus.metrics import GATEWAY
from omnibus.plan import ModelPlan, request_type
from omnibus.settings import GatewaySettings
from omnibus.task import MLLM, ChatInput, ChatOutput, Encode, Omni, Recording, Talk, Think, Vocode, record, replay
from omnibus.tensors.client import TensorClient
from services.gateway.dispatch import ATTEMPTS, Dispatcher
from services.gateway.fetch import Fetcher
from services.gateway.keep import MediaKeep
from services.gateway.openai import media as openai_media
from services.gateway.openai.conversation import conversation
from services.gateway.openai.media import Limits, Media
from services.gateway.openai.schema import ChatRequest
from services.gateway.records import Records
from services.gateway.route import Router
from services.gateway.running import Running

APP = "chat"
#: Bytes of messages above which they travel by handle.
INLINE = 16 * 1024
#: Seconds that inputs outlive the deadline.
GRACE = 10.0
#: Tokens that a request counts for when it does not say how long its answer may be.
USUAL_ANSWER = 256
#: Codec codes of an answer unless the request says otherwise: about 20 s at 50 codes per second.
SPEECH_CODES = 1024
#: How a talker samples unless the request is greedy (Qwen2.5-Omni's own defaults).
SPEECH = {"temperature": 0.9, "top_k": 40, "top_p": 0.8, "repetition_penalty": 1.05}
GREEDY_SPEECH = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}

#: In one order, so that a call has the same digest before and after it was a document.
_encode = msgspec.json.Encoder(order="sorted").encode


class Chat:
    """Serves chat requests for every model of the plan."""

    def __init__(
        self,
        settings: GatewaySettings,
        router: Router,
        dispatcher: Dispatcher,
        tensors: TensorClient,
        records: Records,
        keep: MediaKeep,
        fetcher: Fetcher,
    ) -> None:
        self._settings = settings
        self._router = router
        self._dispatcher = dispatcher
        self._tensors = tensors
        self._records = records
        self._keep = keep
        self._fetcher = fetcher
        self._limits = Limits(body_bytes=settings.max_body)
        self._tasks: dict[tuple[int, str], MLLM] = {}

    def task(self, name: str, model: ModelPlan) -> MLLM:
        """The composite task of ``model``, made once per plan epoch."""
        key = (self._router.plan.epoch if self._router.plan else 0, name)
        if key not in self._tasks:
            self._tasks = {known: task for known, task in self._tasks.items() if known[0] == key[0]}
            self._tasks[key] = composite(name, model)
        return self._tasks[key]

    async def start(self, request: ChatRequest, pinned: str = "") -> tuple[Running, ChatOutput]:
        """Send ``request`` on its way; returns what runs and its streams. ``pinned`` names its path.

        Raises ``Rejected`` for a request that cannot be served, ``Overloaded`` at the limit and
        ``StageUnavailable`` without executors.
        """
        model = self._router.model(request.model)  # first: from here on its name is one of ours, not the client's
        if self._dispatcher.inflight >= self._settings.max_inflight:
            raise Overloaded(f"{self._dispatcher.inflight} requests are in flight here: try again later")
        voice = self._voice(request, model)
        messages, refs = conversation(request)
        items = await openai_media.load(refs, self._fetcher, self._limits) if refs else []
        task = self.task(request.model, model)
        ticketless = ChatInput(
            messages=messages,
            media=tuple({"modality": item.info.modality, "sha256": item.info.sha256} for item in items),
            modalities=tuple(item.info.modality for item in items),
            params=_json(_params(request)),
            voice=voice,
            speech=_json(speech) if (speech := _speech(request)) is not None else None,
        )
        kind = _kind(model, ticketless)
        ticket = self._router.ticket(request.model, kind)
        deadline = time.time() + self._settings.deadline
        try:
            wanted = await self._place(ticketless, items, ticket.id, deadline)
            recording = record(task.invoke, wanted)
            components = [node.component for node in recording.nodes]
            route = self._router.route(request.model, ticket, components, pinned=pinned)
        except BaseException:
            self._tensors.end(ticket.id)
            raise
        invocation = Invocation(
            v=WIRE_VERSION,
            id=ticket.id,
            app=APP,
            model=request.model,
            type=kind,
            path=route.path,
            epoch=self._router.plan.epoch if self._router.plan else 0,
            seed=_seed(request, ticket.id),
            created=time.time(),
            deadline=deadline,
            reply=self._dispatcher.reply,
            nodes=recording.nodes,
            outputs=recording.outputs,
            options=route.options,
            route=route.executors,
        )
        running = self._dispatcher.submit(invocation, ticket, _work(recording, items, request))
        self._records.begin(running)
        GATEWAY.path(request.model, kind, route.path).inc()
        return running, replay(task.invoke, wanted, recording.nodes, running.streams)

    async def _place(self, wanted: ChatInput, items: list[Media], id: str, deadline: float) -> ChatInput:
        """Put media, and messages that are too long for the bus, into the arena once."""
        media = [
            await self._put(item.data, item.info.modality, item.info.mime, item.info.sha256, id, deadline)
            for item in items
        ]
        body = _encode(wanted.messages)
        messages: Any = msgspec.Raw(body)
        if len(body) > INLINE:
            if len(body) > self._limits.item_bytes:
                raise TooLarge(
                    f"the messages have {len(body)} bytes, {self._limits.item_bytes} are allowed", param="messages"
                )
            messages = await self._put(body, "text", "application/json", sha256(body).hexdigest(), id, deadline)
        return ChatInput(messages, tuple(media), wanted.modalities, wanted.params, wanted.voice, wanted.speech)

    async def _put(
        self, data: bytes, modality: str, mime: str, digest: str, id: str, deadline: float
    ) -> dict[str, Any]:
        return await place(
            self._tensors, self._keep if self._records.full else None, data, modality, mime, digest, id, deadline
        )

    def _voice(self, request: ChatRequest, model: ModelPlan) -> str:
        if not request.speaks or request.audio is None:
            return ""
        if not model.speaks:
            raise BadRequest(f"{request.model} has no audio output: leave modalities out", param="modalities")
        voice = request.audio.voice
        name = voice if isinstance(voice, str) else voice.id
        if name in model.voices or not model.voices:
            return name
        if name in OPENAI_VOICES:
            return model.voices[OPENAI_VOICES.index(name) % len(model.voices)]
        raise BadRequest(f"unknown voice {name[:64]!r}; there are {', '.join(model.voices)}", param="audio.voice")


#: Clients name these by habit; each is served by one of the model's own voices.
OPENAI_VOICES = (
    "alloy",
    "ash",
    "ballad",
    "coral",
    "echo",
    "fable",
    "nova",
    "onyx",
    "sage",
    "shimmer",
    "verse",
    "marin",
    "cedar",
)


async def place(
    tensors: TensorClient,
    keep: MediaKeep | None,
    data: bytes,
    modality: str,
    mime: str,
    digest: str,
    invocation: str,
    deadline: float,
) -> dict[str, Any]:
    """Put one input into the arena for every attempt of ``invocation``; returns its literal."""
    handle = await tensors.put(
        np.frombuffer(data, np.uint8), invocation=invocation, deadline=deadline + GRACE, readers=ATTEMPTS + 1
    )
    if keep is not None:
        keep.put(digest, data)
    literal = {"modality": modality, "mime": mime, "sha256": digest, "nbytes": len(data)}
    return {HANDLE: msgspec.to_builtins(handle), **literal}


def composite(name: str, model: ModelPlan) -> MLLM:
    """The library task that fits ``model``'s components."""
    encoders = {modality: Encode(model=name, component=component) for modality, component in model.encoders.items()}
    thinker = Think(model=name, component="thinker")
    if not model.speaks:
        return MLLM(encoders=encoders, thinker=thinker)
    return Omni(
        encoders=encoders,
        thinker=thinker,
        talker=Talk(model=name, component="talker"),
        vocoder=Vocode(model=name, component="vocoder"),
    )


def _kind(model: ModelPlan, wanted: ChatInput) -> str:
    """Request type: the components that the request uses."""
    missing = [modality for modality in wanted.modalities if modality not in model.encoders]
    if missing:
        taken = ", ".join(sorted(model.encoders)) or "text only"
        raise BadRequest(f"this model takes no {missing[0]} input (it takes: {taken})", param="messages")
    used = {model.encoders[modality] for modality in wanted.modalities} | {"thinker"}
    if wanted.speech is not None:
        used |= {"talker", "vocoder"}
    return request_type(model.components, frozenset(used))


def _json(value: Any) -> msgspec.Raw:
    """``value`` encoded once: recording, dispatch and the record all reuse the bytes."""
    return msgspec.Raw(_encode(value))


def _params(request: ChatRequest) -> dict[str, Any]:
    top_k = request.top_k if request.top_k is not None and request.top_k > 0 else 0
    return {
        "max_tokens": request.limit,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "top_k": top_k,
        "repetition_penalty": request.repetition_penalty or 1.0,
        "stop": list(request.stops),
        "ignore_eos": bool(request.ignore_eos),
    }


def _speech(request: ChatRequest) -> dict[str, Any] | None:
    if not request.speaks or request.audio is None:
        return None
    how = GREEDY_SPEECH if request.temperature == 0 else SPEECH
    return {**how, "max_codes": request.audio.max_tokens or SPEECH_CODES}


def _seed(request: ChatRequest, id: str) -> int:
    """The client's seed, or one that follows from the invocation's id."""
    if request.seed is not None:
        return request.seed & (2**63 - 1)
    return int.from_bytes(sha256(id.encode()).digest()[:7], "big")


def _work(recording: Recording, items: list[Media], request: ChatRequest) -> list[int]:
    """Expected tokens per node: what least outstanding work counts."""
    tokens = [openai_media.estimate_tokens(item.info) for item in items]
    answer = request.limit or USUAL_ANSWER
    per_node = []
    for node, recorded in enumerate(recording.nodes):
        if node < len(tokens):
            per_node.append(tokens[node])
        elif recorded.component == "thinker":
            per_node.append(sum(tokens) + 32 + answer)
        else:
            per_node.append(SPEECH_CODES)
    return per_node


def arrivals(output: ChatOutput) -> dict[str, Any]:
    """The answer's streams by name, for ``merge``."""
    named = {"text": output.text, "audio": output.audio}
    return {name: stream for name, stream in named.items() if stream is not None}
