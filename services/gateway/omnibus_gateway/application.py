"""HTTP application, which connects all surfaces: plain ASGI for the model routes, FastAPI for the others.

It also serves ``/v1/models``, which lists the models of the plan and those of apps.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from omnibus import __version__
from omnibus.app_record import AppRecord
from omnibus.checkpoints import is_id
from omnibus.errors import NotFound, OmnibusError, Rejected
from omnibus.metrics import render_exposition
from omnibus.plan import Plan
from omnibus.settings import GatewaySettings
from omnibus_gateway.adapters.control import AdapterControl, AdapterRoutes
from omnibus_gateway.anthropic.errors import MessagesDialect
from omnibus_gateway.anthropic.openapi import message_components, message_paths
from omnibus_gateway.anthropic.routes import CountTokensRoute, MessageRoute
from omnibus_gateway.anthropic.wire import COUNT_TOKENS, MESSAGES
from omnibus_gateway.api.chat_completions import ChatRoute, DialectTranslator, ImageChatRoute, ResumeRoute
from omnibus_gateway.api.completions import CompletionRoute
from omnibus_gateway.api.direct_chat import DirectChatRoute
from omnibus_gateway.api.embeddings import EmbeddingFormat, EmbeddingRoute
from omnibus_gateway.api.images import ImageEditRoute, ImageGenerationRoute, ImageVariationRoute
from omnibus_gateway.api.rerank import RerankRoute
from omnibus_gateway.api.speech import SpeechRoute
from omnibus_gateway.api.tokens import DetokenizeRoute, TokenizeRoute
from omnibus_gateway.api.transcriptions import TranscriptionRoute, TranslationRoute
from omnibus_gateway.apps import openapi_document
from omnibus_gateway.apps.chat import called_app
from omnibus_gateway.apps.routes import INVOKE, Routes
from omnibus_gateway.apps.served_apps import Registry
from omnibus_gateway.apps.service import AppService
from omnibus_gateway.auth.access_rules import SameOriginMiddleware, allow_origins
from omnibus_gateway.batches.routes import BatchRoutes
from omnibus_gateway.batches.service import Batches
from omnibus_gateway.console.routes import Console
from omnibus_gateway.files.routes import FileRoutes, UploadRoutes
from omnibus_gateway.http.connection import BODY_COMPLETE
from omnibus_gateway.http.exchange import DialectEdge, Handler, PostRoute, add_routes, json_response
from omnibus_gateway.http.response import LIVENESS, DirectRoute, OpenRequests, new_request_id, send_error
from omnibus_gateway.media.files import MadeFiles
from omnibus_gateway.ollama import vectors, wire
from omnibus_gateway.ollama.errors import OllamaDialect
from omnibus_gateway.ollama.openapi import ollama_components, ollama_paths
from omnibus_gateway.ollama.routes import AnswerRoute, OllamaModels
from omnibus_gateway.openai import completions, embeddings, images, openapi, rerank, speech, tokens, transcriptions
from omnibus_gateway.openai.errors import error_body, error_headers
from omnibus_gateway.openai.models import PATH, ModelList, ModelObject
from omnibus_gateway.openai.realtime.session import CLIENT_SECRETS
from omnibus_gateway.openai.responses import request as response_requests
from omnibus_gateway.openai.responses.context import COMPACT, INPUT_TOKENS
from omnibus_gateway.realtime.config import ClientSecrets
from omnibus_gateway.realtime.service import ClientSecretRoute, Realtime, RealtimeRoute
from omnibus_gateway.replay.history import History
from omnibus_gateway.replay.routes import InvocationRoutes
from omnibus_gateway.request.request import RequestFactory
from omnibus_gateway.rerun.contents import EdgeContents
from omnibus_gateway.responses.context import ResponseContext
from omnibus_gateway.responses.drawing import ImageDrawers
from omnibus_gateway.responses.routes import (
    CompactRoute,
    ConversationRoutes,
    InputTokensRoute,
    ResponseRoute,
    ResponseRoutes,
    ResponseSocketRoute,
)
from omnibus_gateway.responses.service import Responses
from omnibus_gateway.responses.sockets import ResponseSockets
from omnibus_gateway.routing.router import Router
from omnibus_gateway.tasks.chat import AppRoutes, Chat
from omnibus_gateway.tasks.images import ImageTasks
from omnibus_gateway.tasks.recognition import RecordingReader, Speakers
from omnibus_gateway.tasks.resolve import describe_model
from omnibus_gateway.tenancy import body_budget
from omnibus_gateway.tenancy.tenant import DeferredWork
from omnibus_gateway.videos.routes import VideoRoutes
from omnibus_gateway.videos.service import Videos


class RouteTable:
    """Routes by path. ``posts`` answer POST requests; the others are plain handlers."""

    def __init__(
        self,
        runs: RequestFactory,
        chat: Chat,
        files: MadeFiles,
        videos: Videos,
        responses: Responses,
        deferred_work: DeferredWork | None = None,
    ) -> None:
        self.runs, self.chat = runs, chat
        settings, painters = runs.settings, ImageTasks(runs)
        image_chat_route = ImageChatRoute(settings, chat, painters, files)
        translate = DialectTranslator(runs.router, chat, painters)
        chat_route = ChatRoute(settings, chat, image_chat_route, translate)
        self._recordings = recordings = RecordingReader(runs)
        speech_route, transcription_route = (
            SpeechRoute(settings, chat, Speakers(runs)),
            TranscriptionRoute(settings, chat, recordings),
        )
        translation_route = TranslationRoute(settings, chat, recordings)
        context = ResponseContext(videos.store, chat)
        embedding_route = EmbeddingRoute(settings, runs, chat)
        self._with_apps = chat_route, speech_route, transcription_route, translation_route
        self._app_routes = speech_route, embedding_route
        self.sessions = Realtime(
            settings, chat, recordings, runs.records.bus, deferred_work.events if deferred_work is not None else None
        )
        secrets = ClientSecrets(settings, videos.store)
        #: Answers WebSockets, except those of ``response_sockets``.
        self.realtime = RealtimeRoute(self.sessions, secrets)
        self.response_sockets = ResponseSockets(settings, responses)
        self._response_socket = ResponseSocketRoute(self.response_sockets)
        self.posts: dict[str, PostRoute] = {
            openapi.PATH: chat_route,
            MESSAGES: MessageRoute(settings, chat_route.answer_chat),
            COUNT_TOKENS: CountTokensRoute(settings, chat),
            **self._ollama_routes(chat_route),
            response_requests.PATH: ResponseRoute(settings, responses),
            INPUT_TOKENS: InputTokensRoute(settings, context),
            COMPACT: CompactRoute(settings, context),
            completions.PATH: CompletionRoute(settings, chat),
            images.PATH: ImageGenerationRoute(settings, painters, files),
            images.EDITS: ImageEditRoute(settings, painters, files, chat),
            images.VARIATIONS: ImageVariationRoute(settings),
            embeddings.PATH: embedding_route,
            rerank.PATH: RerankRoute(settings, runs),
            tokens.TOKENIZE: TokenizeRoute(settings, chat),
            tokens.DETOKENIZE: DetokenizeRoute(settings, chat),
            speech.PATH: speech_route,
            transcriptions.PATH: transcription_route,
            transcriptions.TRANSLATIONS: translation_route,
            CLIENT_SECRETS: ClientSecretRoute(settings, self.sessions, secrets),
        }
        #: Continues streamed chats.
        self.resume = ResumeRoute(settings, chat, chat_route)
        self.files = FileRoutes(settings, files, chat.files)
        self.uploads = UploadRoutes(settings, chat.files)
        self.videos = VideoRoutes(settings, videos, chat)
        self._made = responses
        responses.specs.drawers = ImageDrawers(runs.router, chat, painters)
        self.responses = ResponseRoutes(responses)
        self.conversations = ConversationRoutes(settings, responses.conversations)
        self.batches = Batches(settings, videos.store, chat.files, self._batch_routes(), deferred_work)
        self.batch_routes = BatchRoutes(settings, self.batches)
        self.invocations = InvocationRoutes(
            settings, History(runs.records.bus), EdgeContents(runs.records, runs.records.media)
        )

    def open_socket(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer a WebSocket."""
        route = self._response_socket if scope["path"] == response_requests.PATH else self.realtime
        return route(scope, receive, send)

    def _ollama_routes(self, chat_route: ChatRoute) -> dict[str, PostRoute]:
        """Return the routes in Ollama's format, which use those of chats and of vectors."""
        settings, runs, chat, answer = self.runs.settings, self.runs, self.chat, chat_route.answer_chat
        embed = EmbeddingFormat(vectors.parse_embed, vectors.encode_embed)
        embedding = EmbeddingFormat(vectors.parse_embedding, vectors.encode_embedding)
        return {
            wire.CHAT: AnswerRoute(settings, chat, answer),
            wire.GENERATE: AnswerRoute(settings, chat, answer, chats=False),
            wire.EMBED: EmbeddingRoute(settings, runs, chat, embed),
            wire.EMBEDDINGS: EmbeddingRoute(settings, runs, chat, embedding),
        }

    def _batch_routes(self) -> dict[str, PostRoute]:
        """Return the routes that batches may name: JSON bodies and answers in OpenAI's format only."""
        forms = (images.EDITS, images.VARIATIONS, transcriptions.PATH, transcriptions.TRANSLATIONS)
        others = (*forms, speech.PATH, CLIENT_SECRETS, MESSAGES, COUNT_TOKENS, tokens.TOKENIZE, tokens.DETOKENIZE)
        return {
            path: route for path, route in self.posts.items() if path not in others and not path.startswith(wire.PREFIX)
        }

    def add_apps(self, apps: AppRoutes) -> None:
        """Serve the models of ``apps`` as well."""
        self._made.specs.chats = self.sessions.chats = self._recordings.apps = apps
        for route in self._with_apps:
            route.chats = apps
        for app_route in self._app_routes:
            app_route.apps = apps


_OWNED_BY = "omnibus"


class ModelRoutes:
    """Adds the routes for models of ``router`` and ``registry``."""

    def __init__(self, router: Router, registry: Registry | None) -> None:
        self._router = router
        self._registry = registry
        self._described: tuple[Plan | None, dict[str, ModelObject]] = (None, {})

    def add_routes(self, app: FastAPI) -> None:
        # Names of models may contain slashes, and clients may send them unescaped.
        routes: dict[str, dict[str, Handler]] = {
            PATH: {"GET": self._list_models},
            f"{PATH}/{{model:path}}": {"GET": self._get_model},
        }
        add_routes(app, routes)
        OllamaModels(self._read_models).add_routes(app)

    async def _read_models(self) -> dict[str, ModelObject]:
        self._check_read()
        return await self._available_models()

    async def _list_models(self, _: Request) -> Response:
        return json_response(ModelList(data=list((await self._read_models()).values())))

    async def _get_model(self, request: Request) -> Response:
        name = request.path_params["model"]
        model = (await self._available_models()).get(name)
        if model is None:
            self._check_read()
            raise NotFound(
                f"The model '{name[:256]}' does not exist here: /v1/models lists those that do.", param="model"
            )
        return json_response(model)

    def _check_read(self) -> None:
        """Raise ``StageUnavailable`` until this gateway has read the apps."""
        if self._registry is not None:
            self._registry.check_read()

    async def _available_models(self) -> dict[str, ModelObject]:
        model_objects = dict(await self._planned_models())
        for name, adapter in self._router.loaded_adapters.items():
            root = Path(adapter.path).name or name
            more = {"id": name, "root": root, "parent": adapter.model, "created": int(adapter.created)}
            if (base := model_objects.get(adapter.model)) is not None:
                model_objects[name] = msgspec.structs.replace(base, **more)
        for app in self._registry.model_records() if self._registry is not None else ():
            app_model = _describe_app(app)
            model_objects.setdefault(app.model, app_model)
        return model_objects

    async def _planned_models(self) -> dict[str, ModelObject]:
        """Return the operator's models, described once per plan."""
        plan = self._router.plan
        if plan is not self._described[0]:
            self._described = plan, await asyncio.to_thread(_describe_models, plan) if plan is not None else {}
        return self._described[1]


def _describe_models(plan: Plan) -> dict[str, ModelObject]:
    model_objects = {}
    for name, model in plan.models.items():
        if model.apps:
            continue
        model_objects[name] = base = _describe_model(name, plan)
        for adapter, checkpoint in model.adapters.items():
            root = checkpoint if is_id(checkpoint) else Path(checkpoint).name  # do not expose paths of machines
            model_objects[adapter] = msgspec.structs.replace(base, id=adapter, root=root, parent=name)
    return model_objects


def _describe_app(app: AppRecord) -> ModelObject:
    about = app.about
    return ModelObject(
        id=app.model,
        created=int(app.created),
        owned_by=app.name,
        input_modalities=about.input_modalities or None,
        output_modalities=about.output_modalities or None,
        voices=about.voices or None,
        context_length=about.context_length or None,
        max_model_len=about.context_length or None,
    )


def _describe_model(name: str, plan: Plan) -> ModelObject:
    facts = describe_model(name, plan)
    return ModelObject(
        id=name,
        created=int(plan.created),
        owned_by=_OWNED_BY,
        input_modalities=facts.inputs,
        output_modalities=facts.outputs,
        voices=facts.voices,
        context_length=facts.context,
        max_model_len=facts.context,
    )


log = logging.getLogger(__name__)

#: Characters of a client's path that an error repeats.
_MAX_QUOTED_CHARS = 160
#: Reasons why routes of OpenAI are not served, by their beginning.
_UNSUPPORTED = {
    "/v1/moderations": " No model family classifies content: put a filter in front of the gateway.",
    "/v1/chat/completions": " Chats are not stored, even with store: use /v1/responses for answers to retrieve.",
    "/v1/assistants": " OpenAI replaced it: use /v1/responses and /v1/conversations.",
    "/v1/threads": " OpenAI replaced it: use /v1/responses and /v1/conversations.",
    "/v1/fine_tuning": " The gateway does not train: load adapters by /v1/load_lora_adapter.",
    "/v1/vector_stores": " The gateway stores no vectors: compute them by /v1/embeddings.",
}
_NOT_READY_RESPONSES: dict[int | str, dict[str, Any]] = {503: {"description": "Some cannot: `missing` names them."}}


class Frontend:
    """HTTP routes of ``table``, and with ``apps`` also those of apps."""

    def __init__(
        self,
        settings: GatewaySettings,
        table: RouteTable,
        apps: AppService | None = None,
        adapters: AdapterControl | None = None,
        guard: Callable[[ASGIApp], ASGIApp] | None = None,
        console: Console | None = None,
    ) -> None:
        self._settings = settings
        self._router = table.runs.router
        self._table = table
        self._apps = apps
        self._adapters = adapters
        self._guard = guard
        if apps is not None:
            table.add_apps(apps.chats)
        self._console = console
        self._guarded: ASGIApp | None = None
        #: Requests that are being answered.
        self.requests = OpenRequests(console.failures if console is not None else None)

    def build_application(self) -> ASGIApp:
        """Build the ASGI application of this gateway."""
        rest = self._create_fastapi()
        posts = self._table.posts

        def dispatch_request(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
            route = posts.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
            if route is not None:
                return route(scope, receive, send)
            if scope["type"] == "websocket":
                return self._table.open_socket(scope, receive, send)
            if scope["type"] == "http" and not scope["path"].isprintable():
                # A route's pattern would match before a line's end, so the path names something else.
                return send_error(send, NotFound("there is nothing at this path"))
            if self._apps is not None and scope["type"] == "http" and (name := called_app(scope)):
                return self._apps.invoke(name, scope, receive, send)
            return rest(scope, receive, send)

        budgeted_app = self._with_body_budget(dispatch_request)
        guarded_app = self._guard(budgeted_app) if self._guard is not None else budgeted_app
        self._guarded = guarded_app
        tracked_app = self.requests.track_requests(guarded_app)
        return allow_origins(DialectEdge(tracked_app, MessagesDialect(), OllamaDialect()), self._settings)

    def create_direct_route(self) -> DirectRoute | None:
        """Return the route of plain chats past the application; None if keys are required."""
        allows = self._guarded.allows if isinstance(self._guarded, SameOriginMiddleware) else None
        if self._guard is not None and allows is None:
            return None
        chats = self._apps.chats if self._apps is not None else None
        return DirectChatRoute(self._table.runs, self._table.chat, self.requests, allows, chats)

    def _with_body_budget(self, application: ASGIApp) -> ASGIApp:
        """Return ``application`` with request bodies counted until they are answered."""
        budget = body_budget.BodyBudget(self._settings)

        async def count_body(scope: Scope, receive: Receive, send: Send) -> None:
            upload = body_budget.begin_upload(budget, BODY_COMPLETE in scope)
            try:
                await application(scope, receive, send)
            finally:
                upload.release()

        return count_body

    def _create_fastapi(self) -> FastAPI:
        app = FastAPI(title="Omnibus", version=__version__, docs_url=None, redoc_url=None)
        app.add_api_route(LIVENESS[0], self.health, methods=["GET"], summary="The process lives")
        for path in LIVENESS[1:]:
            app.add_api_route(path, self.health, methods=["GET"], include_in_schema=False)
        app.add_api_route(
            "/readyz",
            self.readyz,
            methods=["GET"],
            summary="Every stage can make progress",
            responses=_NOT_READY_RESPONSES,
        )
        app.add_api_route("/version", self.version, methods=["GET"], summary="Version and plan epoch")
        app.add_route("/metrics", self.metrics, methods=["GET"], include_in_schema=False)
        for path in self._table.posts:
            app.add_route(path, _refuse_non_post, methods=["GET", "PUT", "PATCH", "DELETE"], include_in_schema=False)
        ModelRoutes(self._router, self._apps.registry if self._apps is not None else None).add_routes(app)
        self._table.files.add_routes(app)
        self._table.uploads.add_routes(app)
        self._table.videos.add_routes(app)
        self._table.responses.add_routes(app)
        self._table.realtime.add_routes(app)
        self._table.conversations.add_routes(app)
        self._table.batch_routes.add_routes(app)
        if self._console is not None:
            self._console.add_routes(app)
        self._table.invocations.add_routes(app)
        app.add_route(openapi.EVENTS, self._table.resume, methods=["GET"], include_in_schema=False)  # type: ignore[arg-type]
        app.add_exception_handler(HTTPException, _http_error)  # type: ignore[arg-type]
        if self._apps is not None:
            Routes(self._settings, self._apps.control).add(app)
            app.add_route(INVOKE, _refuse_non_post, methods=["GET", "PUT", "PATCH", "DELETE"], include_in_schema=False)
        if self._adapters is not None:
            AdapterRoutes(self._settings, self._adapters).add_routes(app)
        build_document = app.openapi
        app.openapi = lambda: self._add_app_paths(_add_model_paths(build_document()))  # type: ignore[method-assign]
        return app

    def _add_app_paths(self, whole: dict[str, Any]) -> dict[str, Any]:
        if self._apps is None:
            return whole
        return openapi_document.add_app_routes(whole, self._apps.registry.records.values())

    # Routes

    async def health(self) -> dict[str, str]:
        return {"status": "ok"}

    async def version(self) -> dict[str, Any]:
        return {"version": __version__, "epoch": self._router.plan.epoch if self._router.plan else 0}

    async def readyz(self) -> JSONResponse:
        """Report whether every stage of every model can make progress: 200, or 503 with those that cannot."""
        plan = self._router.plan
        missing: dict[str, dict[str, str]] = {}
        for name, model in plan.models.items() if plan is not None else ():
            if model.apps:  # one app's model must not make the gateway unready
                continue
            stages = self._router.stage_states(name)
            bad = {part: stages.get(part, "no executor") for part in model.components if stages.get(part) != "ok"}
            if bad:
                missing[name] = bad
        bus = self._table.runs.dispatcher.is_connected
        starting = self._apps.registry.starting_apps if self._apps is not None else []
        stopping = self.requests.stopping
        ready = plan is not None and not missing and bus and not starting and not stopping
        body = {"ready": ready, "epoch": plan.epoch if plan else 0, "bus": bus, "missing": missing}
        if starting:
            body["apps"] = starting
        if stopping:
            body["stopping"] = True
        return JSONResponse(body, 200 if ready else 503)

    async def metrics(self, _: Request) -> Response:
        return Response(render_exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _refuse_non_post(_: Request) -> Response:
    raise HTTPException(405, "send a POST", headers={"Allow": "POST"})


async def _http_error(request: Request, error: HTTPException) -> Response:
    kind: type[OmnibusError] = NotFound if error.status_code == 404 else Rejected
    path = request.scope["path"]
    api_error = kind(_unknown_route_message(path) if error.status_code == 404 else str(error.detail))
    id = new_request_id()
    headers = {"x-request-id": id, **error_headers(api_error), **(error.headers or {})}
    return Response(error_body(api_error, id), error.status_code, media_type="application/json", headers=headers)


def _unknown_route_message(path: str) -> str:
    paths = openapi.openapi_paths() | message_paths() | ollama_paths()
    if f"/v1{path}" in paths:
        return f"{path} is not served here, /v1{path} is: clients' base URL ends in /v1."
    prefix = wire.PREFIX if path.startswith(wire.PREFIX) else "/v1/"
    served_paths = sorted(each.removeprefix(prefix) for each in paths if each.startswith(prefix) and "{" not in each)
    reason = next((each for start, each in _UNSUPPORTED.items() if f"{path}/".startswith(f"{start}/")), "")
    return (
        f"{path[:_MAX_QUOTED_CHARS]} is not served here.{reason} Below {prefix} there are: {', '.join(served_paths)}."
    )


def _add_model_paths(document: dict[str, Any]) -> dict[str, Any]:
    document.setdefault("paths", {}).update(openapi.openapi_paths() | message_paths() | ollama_paths())
    schemas = openapi.openapi_components() | message_components() | ollama_components()
    document.setdefault("components", {}).setdefault("schemas", {}).update(schemas)
    return document
