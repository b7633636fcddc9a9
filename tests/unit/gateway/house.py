"""A whole gateway without sockets: HTTP application, in-process bus, real sidecar, toy executors.

The toys are not models, but take the same inputs and give the same outputs. The thinker repeats its text and the sums
of its media. The talker counts the words, and the vocoder hums a ramp for each. The painter's images have one colour,
from the seed, the words of the prompt and the guidance.
"""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path as File
from typing import Any, cast

import httpx
import msgspec
import numpy as np
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from omnibus.bus import subjects
from omnibus.bus.nats import NatsBus
from omnibus.bus.subjects import subject_token, task_name
from omnibus.errors import BadRequest, TooLarge
from omnibus.executor.runner import Item, Job
from omnibus.families import catalog
from omnibus.plan import Plan
from omnibus.recording.records import EndRecord
from omnibus.settings import GatewaySettings, StoreSettings
from omnibus.store import Store
from omnibus_gateway.application import Frontend, RouteTable
from omnibus_gateway.console.routes import Console
from omnibus_gateway.dispatch.dispatcher import Dispatcher
from omnibus_gateway.media.blob_store import MediaStore
from omnibus_gateway.media.client_files import ClientFiles
from omnibus_gateway.media.fetcher import Fetcher, FetchRules
from omnibus_gateway.media.object_storage import open_made_files
from omnibus_gateway.media.spoken_answers import SpokenAnswers
from omnibus_gateway.pricing.meter import UsageMeter
from omnibus_gateway.request.continuing import Continuations
from omnibus_gateway.request.load_report import LoadReporter
from omnibus_gateway.request.record import DeadLetters, Records, parse_record_rules
from omnibus_gateway.request.request import RequestFactory
from omnibus_gateway.rerun.replayer import Replayer
from omnibus_gateway.responses.service import Responses
from omnibus_gateway.routing.executors import ExecutorTable
from omnibus_gateway.routing.router import Router
from omnibus_gateway.tasks.chat import Chat
from omnibus_gateway.tenancy.tenant import KeyView
from omnibus_gateway.videos.service import Videos
from omnibus_planner.declared import declarations_file
from tests.unit.executor.arithmetic import LIMIT, Place, Work, open_place
from tests.unit.gateway.samples import make_sample_picture
from tests.unit.sidecar import node as nodes

VL, OMNI, TEXT, PAINTER, FILMER = "toy-vl", "toy.omni", "toy-text", "toy-painter", "toy-filmer"
SPEAKER = "toy-speaker"
_FAMILIES = {
    SPEAKER: "text_to_speech",
    VL: "qwen2_5_vl",
    OMNI: "qwen2_5_omni",
    TEXT: "qwen2",
    PAINTER: "qwen_image",
    FILMER: "ltx2",
}
_KINDS = {
    **catalog.FAMILIES["qwen2_5_omni"]["tasks"],
    **catalog.FAMILIES["qwen_image"]["tasks"],
    **catalog.EMBED,
    "reranker": "rerank",
    "transcriber": "transcribe",
    "speaker": "speak",
}
RATE = 24000
#: Tones are speech to the toys.
HEARS = {"speech_detector": "energy"}
PNG = make_sample_picture("PNG")
#: True if ``http`` uses a real server, which answers plain chats directly, and not only the application.
SERVED_DIRECTLY = False


# Toys


async def encode_media_rows(job: Job) -> None:
    """Put one row per kilobyte of media, each its bytes' sum."""
    media = await job.value("media")
    rows = np.full((1 + len(media.array) // 1024, 4), media.array.sum() % 1000, np.float32)
    await job.put("embedding", {"tokens": len(rows)}, rows)


async def write_chat_words(job: Job) -> None:
    """Write ``You said <text> [seed]`` and the media's sums, word by word."""
    messages = await job.value("messages")
    if isinstance(messages, Item):
        messages = json.loads(bytes(messages.array))
    items = await job.value("items")
    content = messages[-1]["content"]
    parts = content if isinstance(content, str) else [_toy_text(part) for part in content]
    content_text = content if isinstance(content, str) else " ".join(parts)
    media_sums = [f"saw {int(item.array.sum())}" for item in items]
    params = await job.value("params")
    if isinstance(params, Item):  # long ones travel by handle
        params = json.loads(bytes(params.array))
    if params.get("count_only"):
        job.close(
            "text", {"finish_reason": "stop", "usage": {"prompt_tokens": 5 + len(content_text.split()) + len(items)}}
        )
        return
    seed = job.seed if params.get("seed") is None else params["seed"]
    words = [f"{word} " for word in ["You", "said", *content_text.split(), *media_sums, f"[{seed % 97}]"]]
    words = words[: params["max_tokens"] or len(words)]
    if say := params.get("say"):
        words = [f"{word} " for word in say.split()]
    if job.has_consumer("rows"):
        await job.put("prompt", {}, np.zeros((3, 4), np.float32))
        await job.put("layout", {}, np.zeros((3, 1), np.int64))
        writer = await job.open_rows("rows", len(words), 4, "float32")
        for number, _ in enumerate(words):
            writer.write(np.full((1, 4), number, np.float32))
        job.close("rows")
    for number, word in enumerate(words):
        await job.send("text", {"text": word, "ids": [number]})
    usage = {"prompt_tokens": 5 + len(items), "image_tokens": len(items), "completion_tokens": len(words)}
    job.close("text", {"finish_reason": "stop", "usage": usage})


def _toy_text(part: Any) -> str:
    return str(part.get("text", "") if isinstance(part, dict) else part)


async def send_codes(job: Job) -> None:
    await job.value("prompt")
    await job.value("layout")
    async for item in job.stream("rows"):
        if item.array is not None:
            await job.send("codes", {"codes": [int(value) for value in item.array[:, 0]]})


async def send_samples(job: Job) -> None:
    async for item in job.stream("codes"):
        for code in item.data.get("codes", []):
            await job.send("audio", {"rate": RATE}, np.linspace(0, code / 100, 240, dtype=np.float32))


async def embed_prompt_words(job: Job) -> None:
    """Put a row per word, and a batch row for a negative prompt."""
    words = len(job.inputs["prompt"].split())
    rows = 1 if job.inputs.get("negative_prompt") is None else 2
    await job.put("embeds", {}, np.full((rows, words, 4), 1, np.float32))
    await job.put("mask", {}, np.ones((rows, words), np.bool_))
    if job.has_consumer("tokens"):
        await job.put("tokens", {"value": words})


async def put_latents(job: Job) -> None:
    """Put latents of seed, word count and guidance, and previews of rising brightness."""
    embeds = await job.value("embeds")
    wish = job.inputs
    steps, width, height = wish["steps"], wish["width"], wish["height"]
    if width % 16:
        raise BadRequest("width must be a multiple of 16", param="width")
    if width * height > 1 << 20:
        raise TooLarge("the picture has more than a megapixel", param="width")
    for step in range(1, steps + 1):
        await job.send("progress", {"step": step, "steps": steps})
        if step % wish["every"] == 0 and step < steps and job.has_consumer("preview"):
            shade = np.full((height // 8, width // 8, 3), 10 * step, np.uint8)
            await job.send("preview", {"step": step, "steps": steps}, shade)
    job.close("progress")
    job.close("preview")
    seed = wish["seed"] if wish.get("seed") is not None else job.seed
    values = [seed % 200, embeds.array.shape[1], int(wish.get("guidance") or 0)]
    latents = np.broadcast_to(np.array(values, np.float32)[:, None, None, None], (3, 1, height // 8, width // 8))
    await job.put("latents", {}, latents.copy())


async def paint_latents(job: Job) -> None:
    """Paint each pixel with the latents' values."""
    latents = (await job.value("latents")).array
    picture = latents[:, 0].transpose(1, 2, 0).repeat(8, 0).repeat(8, 1)
    await job.put("image", {}, picture.astype(np.uint8))


async def embed_texts(job: Job) -> None:
    """Put three numbers per text (characters, words, one), scaled to length 1; "last" pooling reverses them."""
    texts = await job.value("text")
    if isinstance(texts, Item):
        texts = json.loads(bytes(texts.array))
    texts = [text if isinstance(text, str) else " ".join(map(str, text)) for text in texts]
    rows = np.array([[len(text), len(text.split()), 1] for text in texts], np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    await job.put("embedding", {}, rows[:, ::-1] if job.inputs.get("pooling") == "last" else rows)
    await job.put("tokens", {"value": sum(len(text.split()) for text in texts)})


async def count_query_words(job: Job) -> None:
    """Score each document by the words that it shares with the query."""
    documents = await job.value("documents")
    if isinstance(documents, Item):
        documents = json.loads(bytes(documents.array))
    query = {*job.inputs["query"].split()}
    await job.put(
        "scores",
        {},
        np.array([len(query & {*text.split()}) / (1 + len(text.split())) for text in documents], np.float32),
    )
    await job.put("tokens", {"value": sum(len(query) + len(text.split()) for text in documents)})


async def transcribe_rows(job: Job) -> None:
    """Write the sum of the audio's rows and the parameters, with a segment for each word if segments are requested."""
    audio, params = await job.value("audio"), job.inputs["params"]
    if params["language"] == "xx":
        raise BadRequest("this model does not know the language 'xx'", param="language")
    if params["words"]:
        raise BadRequest("this model has no times of words; use segment", param="timestamp_granularities")
    words = [f"heard {int(audio.array.sum())}", *(f"{name}={value}" for name, value in params.items() if value)]
    for number, word in enumerate(words):
        await job.send("text", {"text": f"{' ' * bool(number)}{word}"})
        if params["segments"]:
            times = {"start": number * 0.25, "end": number * 0.25 + 0.2, "seek": 0}
            figures = {"avg_logprob": -0.5, "compression_ratio": 1.0, "no_speech_prob": 0.1, "temperature": 0.0}
            await job.send("text", {"segments": [{"text": f" {word}", "tokens": [number], **times, **figures}]})
    usage = {"prompt_tokens": 9, "audio_tokens": 5, "completion_tokens": len(words)}
    job.close("text", {"finish_reason": "stop", "usage": usage, "language": "english", "seconds": 0.5})


async def call_vocoder(job: Job) -> None:
    """Send a ramp for each word, at the speed of a model that sets it."""
    params, voice = job.inputs["params"], job.inputs["voice"]
    if voice not in ("", "anna", "ash"):
        raise BadRequest(f"unknown voice {voice!r}: use one of anna", param="voice")
    if params.get("temperature") is not None:
        raise BadRequest("this model has no temperature: omit it", param="temperature")
    for number, _ in enumerate(job.inputs["text"].split()):
        own_speed = {"speed": params["speed"]} if voice == "anna" else {}
        await job.send("calls", own_speed, np.full(240, number, np.uint8))
    job.close("calls", {"usage": {"prompt_tokens": 9}})


async def play_calls(job: Job) -> None:
    """Send the bytes of the calls as samples; the seed is the first sample."""
    usage: dict[str, int] = {}
    async for item in job.stream("calls"):
        usage = item.data.get("usage", usage)
        if item.array is not None:
            samples = np.concatenate([[job.seed % 100], item.array[1:]]).astype(np.float32) / 200
            await job.send("audio", {"rate": RATE, "speed": item.data.get("speed", 1.0)}, samples)
    job.close("audio", {"usage": usage})


TOYS: dict[str, Work] = {
    "vision": encode_media_rows, "audio": encode_media_rows, "thinker": write_chat_words, "talker": send_codes, "vocoder": send_samples,
    "text_encoder": embed_prompt_words, "vae_encoder": encode_media_rows, "dit": put_latents, "vae": paint_latents, "embedder": embed_texts, "reranker": count_query_words,
    "transcriber": transcribe_rows, "speaker": call_vocoder,
}  # fmt: skip


# The house


class LazyFrontend(Frontend):
    """A frontend that creates its FastAPI application (0.1 s) on demand. Requests to model routes do not need it."""

    def _create_fastapi(self) -> FastAPI:
        create, applications = super()._create_fastapi, list[FastAPI]()

        async def serve_application(scope: Scope, receive: Receive, send: Send) -> None:
            if not applications:
                applications.append(create())
            await applications[0](scope, receive, send)

        return cast(FastAPI, serve_application)


class ToyGateway:
    def __init__(
        self,
        place: Place,
        settings: GatewaySettings,
        store: Store | None = None,
        gateway: str = "gw",
        hold_seconds: float = 0.0,
    ) -> None:
        self.place = place
        self.bus = place.bus
        self.tensors = place.office.tensors
        self.settings = settings
        self.members = ExecutorTable()
        self.router = Router(gateway, self.members)
        self.dispatcher = Dispatcher(gateway, self.bus, self.tensors, self.members, LIMIT, settings.quarantine)
        self.dispatcher.keeps = settings.record == "stages"
        self.dispatcher.retention.policy = settings.retain
        self.keep = MediaStore(settings.media_dir, settings.media_bytes)
        self.dead = DeadLetters(self.bus, settings.deadletters == "full", LIMIT)
        rules = parse_record_rules(settings.record, settings.record_tenants)
        self.records = Records(self.bus, UsageMeter(self.router), rules, self.keep, self.dead, hold_seconds)
        fetcher = Fetcher(FetchRules())
        self.loads = LoadReporter(self.router, self.bus, LIMIT)
        self.runs = RequestFactory(
            settings, self.router, self.dispatcher, self.tensors, self.records, self.keep, self.loads
        )
        self.files = open_made_files(settings)
        spoken_answers = SpokenAnswers(store, self.files, settings.file_seconds) if store is not None else None
        self.continuations = Continuations(settings, store, self.bus) if store is not None else None
        self.chat = Chat(self.runs, fetcher, spoken_answers, self.continuations, ClientFiles(settings, store))
        self.replayer = Replayer(self.router, self.dispatcher, self.tensors, self.records, self.keep)
        nowhere = Store(StoreSettings(url="redis://127.0.0.1:1", timeout=0.2))
        self.videos = Videos(settings, store or nowhere, self.runs)
        self.responses = Responses(settings, store or nowhere, self.bus, self.chat, gateway)
        self.table = RouteTable(self.runs, self.chat, self.files, self.videos, self.responses)
        self.keys = KeyView(False, [], frozenset(), follows_store=True)
        self.console = Console(settings, store or nowhere, self.bus, self.router, lambda: self.keys)
        frontend = LazyFrontend(settings, self.table, console=self.console)
        self.app = frontend.build_application()
        self.direct = frontend.create_direct_route()
        transport = httpx.ASGITransport(app=self.app)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://localhost")

    async def open(self) -> None:
        await self.bus.open_records(60.0, 1 << 20)
        await self.bus.open_records(60.0, 1 << 20, subjects.DEADLETTERS)
        await self.bus.open_records(60.0, 1 << 20, subjects.RESPONSES)
        await self.dispatcher.startup()
        if self.continuations is not None:
            await self.continuations.startup()
            await self.responses.startup()
        await self.bus.add_responder(subjects.REPLAY, self.replayer.respond, queue="gateways")

    def serve(self, *models: str, **more: Any) -> None:
        """Publish a plan of the usual declarations; ``toy.omni`` speaks. ``more`` adds declarations by name."""
        declarations = {name: {**catalog.model_declaration(_FAMILIES[name], ""), **HEARS} for name in models} | more
        plans = declarations_file.build_static_plans(
            msgspec.convert(declarations, dict[str, declarations_file.DeclaredModel])
        )
        epoch = self.router.plan.epoch + 1 if self.router.plan else 1
        self.router.plan = Plan(epoch, 0, 1000.0, plans)

    async def executor(
        self, model: str, option: str, *components: str, id: str = "", credits: int = 64, **works: Work
    ) -> str:
        """Start an executor of toys; ``works`` replaces some of them."""
        kinds = {**_KINDS, **catalog.FAMILIES[_FAMILIES[model]]["tasks"]} if model in _FAMILIES else _KINDS
        new_executor = await self.place.executor(
            id or f"{subject_token(model)}-{option}-0",
            {component: works.get(component) or TOYS[component] for component in components},
            option,
            credits=credits,
            model=model,
            named=lambda component: task_name(kinds[component], model, component),
        )
        await nodes.wait_until(lambda: self.members.get(new_executor.identity.id) is not None)
        return new_executor.identity.id

    async def all_of(self, model: str) -> None:
        """Start every option of ``model`` and publish the plan that names it."""
        self.serve(model)
        assert self.router.plan is not None
        for option, spec in self.router.plan.models[model].options.items():
            await self.executor(model, option, *spec.components)

    async def ask(self, model: str = VL, content: Any = "hello there", path: str = "", **more: Any) -> httpx.Response:
        headers = {"x-omnibus-path": path} if path else {}
        return await self.http.post(
            "/v1/chat/completions", json=build_chat_body(model, content, **more), headers=headers
        )

    async def ended(self, id: str) -> EndRecord:
        """Return the end record of ``id`` once it exists."""
        end_records: list[EndRecord] = []

        async def has_ended() -> bool:
            _, end_record = await self.records.find(id)
            end_records[:] = [end_record] if end_record is not None else []
            return bool(end_records)

        await nodes.wait_until(has_ended)
        return end_records[0]

    async def emptied(self) -> None:
        """Wait until no work is left and the arena is empty."""
        await nodes.wait_until(lambda: self.dispatcher.inflight_count == 0)
        assert {status.id: self.members.get(status.id).outstanding for status in self.members.statuses()} == {  # type: ignore[union-attr]
            status.id: 0 for status in self.members.statuses()
        }
        await self.place.emptied()

    async def close(self) -> None:
        await self.http.aclose()
        await self.console.close()
        await self.videos.shutdown()
        await self.responses.shutdown()
        await self.dispatcher.shutdown()
        self.records.close()
        self.loads.close()
        self.keep.close()
        self.files.close()


@asynccontextmanager
async def start_toy_gateway(
    directory: File,
    store: Store | None = None,
    within: float = nodes.PATIENCE * 2,
    hold_seconds: float = 0.0,
    bus: NatsBus | None = None,
    **changes: Any,
) -> AsyncIterator[ToyGateway]:
    """Yield a house.

    ``hold_seconds`` delays the record of an invocation's beginning; for ``bus`` see ``place``.
    """
    usual = {"media_dir": str(directory / "kept"), "deadline": 30.0}
    async with open_place(directory, within, bus) as place:
        gateway = ToyGateway(place, GatewaySettings(**{**usual, **changes}), store, hold_seconds=hold_seconds)
        await gateway.open()
        try:
            async with _serve_directly(gateway) if SERVED_DIRECTLY else nullcontext():
                yield gateway
        finally:
            await gateway.close()


@asynccontextmanager
async def _serve_directly(home: ToyGateway) -> AsyncIterator[None]:
    from tests.unit.gateway.wires import open_doorway

    async with (
        open_doorway(home) as door,
        httpx.AsyncClient(base_url=f"http://localhost:{door.port}", timeout=30) as client,
    ):
        without, home.http = home.http, client
        yield
    await without.aclose()


def build_chat_body(model: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": content}], **more}


def make_image_part(data: bytes = PNG) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(data).decode()}"}}


def make_text_part(content: str) -> dict[str, str]:
    return {"type": "text", "text": content}


def read_chat_answer(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


def read_error_body(response: httpx.Response) -> dict[str, Any]:
    details = response.json()["error"]
    assert {"message", "type", "param", "code", "request_id", "stage"} <= set(details)
    return dict(details)


def read_sse_events(response: httpx.Response) -> list[Any]:
    """Return the data of each server-sent event; the last one of a complete answer is ``[DONE]``."""
    blocks = [block for block in response.text.split("\n\n") if block]
    assert all(block.startswith("data: ") for block in blocks)
    return [block[6:] if block == "data: [DONE]" else json.loads(block[6:]) for block in blocks]
