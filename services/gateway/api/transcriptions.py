"""``POST /v1/audio/transcriptions``: what is said in a sound, written by a model that chats and hears.

It is a chat with a fixed instruction, greedy unless the client wants a temperature: ``SYSTEM``, then ``USER`` with what
the client says of language and subject behind it, then the sound. The answer is the text. An app that is a model is
asked for the same.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from omnibus.errors import OmnibusError, Rejected
from omnibus.settings import GatewaySettings
from omnibus.task import ChatOutput
from services.gateway.apps.chat import AppChats
from services.gateway.dispatch.streams import merge_streams
from services.gateway.http.exchange import EVENTS, JSON, response_headers
from services.gateway.http.response import ResponseWriter
from services.gateway.http.route import PostRequest, PostRoute, run_to_end, send_stream
from services.gateway.media.inspect import InspectedMedia, MediaLimits, inspect_files
from services.gateway.openai import multipart, transcriptions
from services.gateway.openai.chat_request import ChatRequest, UserMessage
from services.gateway.openai.transcriptions import TranscriptionForm
from services.gateway.request.accumulator import AnswerAccumulator
from services.gateway.request.request import ClientRequest
from services.gateway.tasks.chat import Chat
from services.gateway.tasks.chat import PreparedChat as AskedOfModel
from services.gateway.tasks.output_streams import open_output_streams

SYSTEM = "You are a speech recognition model."
USER = "Transcribe the audio into text. Write what is said, and nothing else."
LANGUAGE = " Its language is {language}."
PROMPT = " It continues, or is about: {prompt}"

TEXT = b"text/plain; charset=utf-8"


class TranscriptionRoute(PostRoute):
    """Sound to text."""

    def __init__(self, settings: GatewaySettings, chat: Chat) -> None:
        super().__init__(settings)
        self._chat = chat
        #: Apps that are models.
        self.apps: AppChats | None = None

    async def handle_request(self, asked: PostRequest, sending: ResponseWriter) -> None:
        form = multipart.parse_form(asked.body, asked.content_type)
        form.check_file_names("file")
        wanted = transcriptions.parse_transcription_form(form.fields(*transcriptions.LISTS))
        app = self.apps.app_name(wanted.model) if self.apps is not None else ""
        run = self._open_request(app, wanted, asked.pinned)
        sending.model = wanted.model
        part = form.file("file")
        limits = MediaLimits(body_bytes=self._settings.max_body)
        [item] = await inspect_files([(part.data, part.mime)], "audio", limits, "file")
        try:
            await self._send_transcription(wanted, item, run, app, sending)
        except OmnibusError as error:
            if isinstance(error, Rejected):
                error.param = "file" if error.param in ("", "media", "messages", "items") else error.param
            raise

    def _open_request(self, app: str, wanted: TranscriptionForm, pinned: str) -> ClientRequest:
        if self.apps is not None and app:
            return self.apps.open_run(app, wanted.seed, pinned)
        run = self._chat.open_request(wanted.model, wanted.seed, pinned)
        self._chat.require_encoder(wanted.model, "audio")
        return run

    @asynccontextmanager
    async def _begin_answer(self, app: str, run: ClientRequest, asked: AskedOfModel) -> AsyncIterator[ChatOutput]:
        """The streams of the answer."""
        if self.apps is None or not app:
            yield await self._chat.begin_answer(run, asked)
            return
        output, call = await self.apps.start_prepared(app, run, asked)
        try:
            yield output
        finally:
            call.close()

    async def _send_transcription(
        self, wanted: TranscriptionForm, item: InspectedMedia, run: ClientRequest, app: str, sending: ResponseWriter
    ) -> None:
        got = AnswerAccumulator(wanted.model, run.created)
        asked = _prepare_chat(wanted, item)
        async with run_to_end(run, sending, got), self._begin_answer(app, run, asked) as output:
            if wanted.stream:
                await send_stream(sending, run, _stream_events(output, got), EVENTS, got)
                return
            async for _ in _text_chunks(output, got):
                pass
        kind, body = _render_body(wanted, got, item)
        await sending.send_body(200, kind, body, response_headers(run))


async def _text_chunks(output: ChatOutput, got: AnswerAccumulator) -> AsyncIterator[str]:
    async for batch in merge_streams(open_output_streams(output)):
        for name, item in batch:
            got.add_item(name, item.data, item.array)
            if text := item.data.get("text"):
                yield text


async def _stream_events(output: ChatOutput, got: AnswerAccumulator) -> AsyncIterator[bytes]:
    async with aclosing(_text_chunks(output, got)) as pieces:  # type: ignore[type-var]
        async for text in pieces:
            yield transcriptions.encode_delta(text)
    yield transcriptions.encode_done(got.text, got.usage())


def _render_body(wanted: TranscriptionForm, got: AnswerAccumulator, item: InspectedMedia) -> tuple[bytes, bytes]:
    """Content type and body."""
    if wanted.response_format == "text":
        return TEXT, got.text.encode()
    if wanted.response_format == "verbose_json":
        return JSON, transcriptions.encode_verbose(got.text, wanted.language, item.info.seconds)
    return JSON, transcriptions.encode_transcription(got.text, got.usage())


def _prepare_chat(wanted: TranscriptionForm, item: InspectedMedia) -> AskedOfModel:
    said = USER
    if wanted.language:
        said += LANGUAGE.format(language=wanted.language)
    if wanted.prompt:
        said += PROMPT.format(prompt=wanted.prompt)
    request = ChatRequest(
        model=wanted.model,
        messages=[UserMessage(content=said)],
        temperature=wanted.temperature or 0.0,
        max_completion_tokens=wanted.max_tokens,
    )
    heard: list[dict[str, Any]] = [{"type": "text", "text": said}, {"type": "audio"}]
    return AskedOfModel(request, [{"role": "system", "content": SYSTEM}, {"role": "user", "content": heard}], [item])
