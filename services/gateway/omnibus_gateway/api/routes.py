"""Table of the OpenAI routes, by path."""

from collections.abc import Awaitable

from starlette.types import Receive, Scope, Send

from omnibus_gateway.anthropic.routes import CountTokensRoute, MessageRoute
from omnibus_gateway.anthropic.wire import COUNT_TOKENS, MESSAGES
from omnibus_gateway.api.batches import BatchRoutes
from omnibus_gateway.api.chat_completions import ChatRoute, DialectTranslator, ImageChatRoute, ResumeRoute
from omnibus_gateway.api.completions import CompletionRoute
from omnibus_gateway.api.embeddings import EmbeddingFormat, EmbeddingRoute
from omnibus_gateway.api.files import FileRoutes, UploadRoutes
from omnibus_gateway.api.images import ImageEditRoute, ImageGenerationRoute, ImageVariationRoute
from omnibus_gateway.api.invocations import InvocationRoutes
from omnibus_gateway.api.realtime import ClientSecretRoute, RealtimeRoute
from omnibus_gateway.api.rerank import RerankRoute
from omnibus_gateway.api.responses import (
    CompactRoute,
    ConversationRoutes,
    InputTokensRoute,
    ResponseRoute,
    ResponseRoutes,
    ResponseSocketRoute,
)
from omnibus_gateway.api.speech import SpeechRoute
from omnibus_gateway.api.transcriptions import TranscriptionRoute, TranslationRoute
from omnibus_gateway.api.videos import VideoRoutes
from omnibus_gateway.apps.chat import AppChats
from omnibus_gateway.batches.service import Batches
from omnibus_gateway.http.exchange import PostRoute
from omnibus_gateway.media.files import MadeFiles
from omnibus_gateway.ollama import vectors, wire
from omnibus_gateway.ollama.routes import AnswerRoute
from omnibus_gateway.openai import completions, embeddings, openapi, rerank, speech, transcriptions
from omnibus_gateway.openai import images as pictures
from omnibus_gateway.openai.realtime.session import CLIENT_SECRETS
from omnibus_gateway.openai.responses import request as response_requests
from omnibus_gateway.openai.responses.context import COMPACT, INPUT_TOKENS
from omnibus_gateway.realtime.service import Realtime
from omnibus_gateway.realtime.tokens import ClientSecrets
from omnibus_gateway.replay.contents import EdgeContents
from omnibus_gateway.replay.history import History
from omnibus_gateway.request.request import RequestFactory
from omnibus_gateway.responses.context import ResponseContext
from omnibus_gateway.responses.drawing import ImageDrawers
from omnibus_gateway.responses.service import Responses
from omnibus_gateway.responses.sockets import ResponseSockets
from omnibus_gateway.tasks.chat import Chat
from omnibus_gateway.tasks.images import ImageTasks
from omnibus_gateway.tasks.recognition import RecordingReader, Speakers
from omnibus_gateway.tenancy.deferred import DeferredWork
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
        self._with_apps = chat_route, speech_route, transcription_route, translation_route, embedding_route
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
            pictures.PATH: ImageGenerationRoute(settings, painters, files),
            pictures.EDITS: ImageEditRoute(settings, painters, files, chat),
            pictures.VARIATIONS: ImageVariationRoute(settings),
            embeddings.PATH: embedding_route,
            rerank.PATH: RerankRoute(settings, runs),
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
        forms = (pictures.EDITS, pictures.VARIATIONS, transcriptions.PATH, transcriptions.TRANSLATIONS)
        others = (*forms, speech.PATH, CLIENT_SECRETS, MESSAGES, COUNT_TOKENS)
        return {
            path: route for path, route in self.posts.items() if path not in others and not path.startswith(wire.PREFIX)
        }

    def add_apps(self, apps: AppChats) -> None:
        """Serve the models of ``apps`` as well."""
        self._made.specs.chats = self.sessions.chats = self._recordings.apps = apps
        for route in self._with_apps:
            route.chats = apps
