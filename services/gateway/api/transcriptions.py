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
from services.gateway.apps.chat import Chats
from services.gateway.dispatch.streams import merge
from services.gateway.http.exchange import EVENTS, JSON, about
from services.gateway.http.response import Sending
from services.gateway.http.route import Asked, Route, conduct, stream
from services.gateway.media.inspect import Limits, Media, received
from services.gateway.openai import multipart, transcriptions
from services.gateway.openai.chat_request import ChatRequest, UserMessage
from services.gateway.openai.transcriptions import TranscriptionForm
from services.gateway.request.accumulator import Collected
from services.gateway.request.request import Run
from services.gateway.tasks.chat import Asked as AskedOfModel
from services.gateway.tasks.chat import Chat
from services.gateway.tasks.output_streams import arrivals

SYSTEM = "You are a speech recognition model."
USER = "Transcribe the audio into text. Write what is said, and nothing else."
LANGUAGE = " Its language is {language}."
PROMPT = " It continues, or is about: {prompt}"

TEXT = b"text/plain; charset=utf-8"


class Transcriptions(Route):
    """Sound to text."""

    def __init__(self, settings: GatewaySettings, chat: Chat) -> None:
        super().__init__(settings)
        self._chat = chat
        #: Apps that are models.
        self.apps: Chats | None = None

    async def answer(self, asked: Asked, sending: Sending) -> None:
        form = multipart.parse(asked.body, asked.kind)
        form.only("file")
        wanted = transcriptions.parse(form.fields(*transcriptions.LISTS))
        app = self.apps.app(wanted.model) if self.apps is not None else ""
        run = self._opened(app, wanted, asked.pinned)
        sending.model = wanted.model
        part = form.file("file")
        limits = Limits(body_bytes=self._settings.max_body)
        [item] = await received([(part.data, part.mime)], "audio", limits, "file")
        try:
            await self._write(wanted, item, run, app, sending)
        except OmnibusError as error:
            if isinstance(error, Rejected):
                error.param = "file" if error.param in ("", "media", "messages", "items") else error.param
            raise

    def _opened(self, app: str, wanted: TranscriptionForm, pinned: str) -> Run:
        if self.apps is not None and app:
            return self.apps.open(app, wanted.seed, pinned)
        run = self._chat.open(wanted.model, wanted.seed, pinned)
        self._chat.require(wanted.model, "audio")
        return run

    @asynccontextmanager
    async def _begun(self, app: str, run: Run, asked: AskedOfModel) -> AsyncIterator[ChatOutput]:
        """The streams of the answer."""
        if self.apps is None or not app:
            yield await self._chat.begin(run, asked)
            return
        output, call = await self.apps.begin(app, run, asked)
        try:
            yield output
        finally:
            call.close()

    async def _write(self, wanted: TranscriptionForm, item: Media, run: Run, app: str, sending: Sending) -> None:
        got = Collected(wanted.model, run.created)
        asked = _asked(wanted, item)
        async with conduct(run, sending, got), self._begun(app, run, asked) as output:
            if wanted.stream:
                await stream(sending, run, _events(output, got), EVENTS, got)
                return
            async for _ in _pieces(output, got):
                pass
        kind, body = _whole(wanted, got, item)
        await sending.whole(200, kind, body, about(run))


async def _pieces(output: ChatOutput, got: Collected) -> AsyncIterator[str]:
    async for batch in merge(arrivals(output)):
        for name, item in batch:
            got.take(name, item.data, item.array)
            if text := item.data.get("text"):
                yield text


async def _events(output: ChatOutput, got: Collected) -> AsyncIterator[bytes]:
    async with aclosing(_pieces(output, got)) as pieces:  # type: ignore[type-var]
        async for text in pieces:
            yield transcriptions.delta(text)
    yield transcriptions.done(got.text, got.usage())


def _whole(wanted: TranscriptionForm, got: Collected, item: Media) -> tuple[bytes, bytes]:
    """Content type and body."""
    if wanted.response_format == "text":
        return TEXT, got.text.encode()
    if wanted.response_format == "verbose_json":
        return JSON, transcriptions.verbose(got.text, wanted.language, item.info.seconds)
    return JSON, transcriptions.transcription(got.text, got.usage())


def _asked(wanted: TranscriptionForm, item: Media) -> AskedOfModel:
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
