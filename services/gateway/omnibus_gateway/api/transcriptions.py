"""``POST /v1/audio/transcriptions`` and ``/v1/audio/translations``: the speech of an audio file as text.

A recognizer takes the file, and so does an app with a function ``transcribe``: see ``RecordingReader``. A model that
chats and hears takes a chat with a fixed instruction. It is greedy unless the client sends a temperature. The chat
consists of ``SYSTEM``, the instruction, the client's language and prompt, and the audio. The answer is the text. Any
other app that is a model receives the same chat.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET

from omnibus.errors import BadRequest
from omnibus.settings import GatewaySettings
from omnibus.task import ChatOutput
from omnibus.task.library import (
    TranscribeParams,
    TranscriptChunk,
    TranscriptSegment,
    TranscriptWord,
)
from omnibus_gateway.core import AnswerAccumulator, ClientRequest
from omnibus_gateway.http.exchange import PostRequest, PostRoute
from omnibus_gateway.http.response import JSON, ResponseWriter
from omnibus_gateway.media.inspect import InspectedMedia, MediaLimits, inspect_files
from omnibus_gateway.openai import multipart, transcriptions
from omnibus_gateway.openai.chat_request import ChatRequest, UserMessage
from omnibus_gateway.openai.multipart import Form
from omnibus_gateway.openai.transcriptions import SYSTEM, TranscriptionForm, VerboseWord, instruct_transcription
from omnibus_gateway.tasks.chat import Chat, Chats
from omnibus_gateway.tasks.chat_response import open_output_streams
from omnibus_gateway.tasks.prepared_chat import PreparedChat as AskedOfModel
from omnibus_gateway.tasks.recognition import RecordingReader
from omnibus_gateway.tasks.resolve import rename_params

TEXT = b"text/plain; charset=utf-8"
#: Formats of responses with times.
_TIMED = ("verbose_json", "srt", "vtt")

#: The one file of a client, which a chat has in several places.
_CLIENT_PARAM_NAMES = dict.fromkeys(("", "media", "audio", "messages", "items"), "file")


class TranscriptAnswer(AnswerAccumulator):
    """Received parts of a transcript. Only a recognizer sets more than those of a chat."""

    def __init__(self, model: str, created_at: float) -> None:
        super().__init__(model, created_at)
        self.language: str | None = None
        self.seconds: float | None = None
        self.segments: list[TranscriptSegment] | None = None
        self.words: list[TranscriptWord] = []


class TranscriptionRoute(PostRoute):
    """Transcribes audio to text."""

    reads_prices = True
    #: Whether the text is English for audio in any language.
    translates: ClassVar[bool] = False

    def __init__(self, settings: GatewaySettings, chat: Chat, recordings: RecordingReader) -> None:
        super().__init__(settings)
        self._chat = chat
        self._recordings = recordings
        self.chats: Chats = chat

    async def handle_request(self, post: PostRequest, sending: ResponseWriter) -> None:
        form = multipart.parse_form(post.body, post.content_type)
        form.check_file_names("file")
        transcription_form = self._parse_fields(form)
        reads = self._recordings.reads(transcription_form.model)
        run = sending.run = self._open_request(transcription_form, post)
        sending.model = transcription_form.model
        part = form.file("file")
        limits = MediaLimits(body_bytes=self._settings.max_body)
        [item] = await inspect_files([(part.data, part.mime)], "audio", limits, "file")
        got = run.answer = TranscriptAnswer(transcription_form.model, run.created)
        with rename_params(_CLIENT_PARAM_NAMES):
            async with run.until_end():
                if reads:
                    params = _recognition_params(transcription_form, self.translates)
                    chunks = _read_transcript(self._recordings.read(run, transcription_form.model, item, params), got)
                else:
                    chunks = await self._begin_chat(transcription_form, item, run)
                if transcription_form.stream:
                    await sending.send_stream(_stream_events(chunks, got))
                    return
                async for _ in chunks:
                    pass
            await sending.send_body(*self._render_body(transcription_form, got, item))

    def _parse_fields(self, form: Form) -> TranscriptionForm:
        return transcriptions.parse_transcription_form(form.fields(*transcriptions.LISTS))

    def _open_request(self, form: TranscriptionForm, post: PostRequest) -> ClientRequest:
        if self._recordings.reads(form.model):
            transcriptions.require_recognizer_values(form)
            return self._recordings.open_request(form.model, form.seed, post.pinned, post.prices)
        transcriptions.require_chat_values(form)
        run = self.chats.open_request(form.model, form.seed, post.pinned)
        if run.model:
            self._chat.require_encoder(run.model_name, "audio")
        self._chat.check_price(run, post.prices)
        return run

    async def _begin_chat(
        self, form: TranscriptionForm, item: InspectedMedia, run: ClientRequest
    ) -> AsyncIterator[str]:
        """Return the text of a model that chats. Raises ``BadRequest`` for an app without text."""
        output = await self.chats.begin_answer(run, _prepare_chat(form, item, translates=self.translates))
        if output.text is None:
            raise BadRequest(f"the app {run.app} writes no text: choose another model", param="model")
        return _text_chunks(output, run)

    def _render_body(self, form: TranscriptionForm, got: TranscriptAnswer, item: InspectedMedia) -> tuple[bytes, bytes]:
        """Return the content type and the body."""
        segments = UNSET if got.segments is None else transcriptions.number_segments(got.segments)
        if form.response_format == "text":
            return TEXT, got.text.encode()
        if form.response_format in ("srt", "vtt"):
            render = transcriptions.format_srt if form.response_format == "srt" else transcriptions.format_vtt
            return TEXT, render(segments or []).encode()
        seconds = item.info.seconds if got.seconds is None else got.seconds
        if form.response_format == "verbose_json":
            return JSON, self._encode_verbose(form, got, seconds, segments)
        return JSON, self._encode_plain(got)

    def _encode_plain(self, got: TranscriptAnswer) -> bytes:
        return transcriptions.encode_transcription(got.text, got.usage())

    def _encode_verbose(
        self, form: TranscriptionForm, got: TranscriptAnswer, seconds: float | None, segments: Any
    ) -> bytes:
        granularities = form.timestamp_granularities or ["segment"]
        words = msgspec.convert(got.words, list[VerboseWord]) if "word" in granularities else UNSET
        shown_segments = segments if "segment" in granularities else UNSET
        return transcriptions.encode_verbose(got.text, got.language or form.language, seconds, shown_segments, words)


class TranslationRoute(TranscriptionRoute):
    """Translates speech to English text."""

    translates = True

    def _parse_fields(self, form: Form) -> TranscriptionForm:
        return transcriptions.parse_translation_form(form.fields())

    def _encode_plain(self, got: TranscriptAnswer) -> bytes:
        return transcriptions.encode_translation(got.text)

    def _encode_verbose(
        self, form: TranscriptionForm, got: TranscriptAnswer, seconds: float | None, segments: Any
    ) -> bytes:
        return transcriptions.encode_verbose_translation(got.text, seconds, segments)


async def _text_chunks(output: ChatOutput, run: ClientRequest) -> AsyncIterator[str]:
    async for batch in run.read_outputs(open_output_streams(output)):
        for _, item in batch:
            if text := item.data.get("text"):
                yield text


async def _read_transcript(transcript: AsyncIterator[TranscriptChunk], got: TranscriptAnswer) -> AsyncIterator[str]:
    got.segments = []
    async for chunk in transcript:
        got.add_transcript(chunk)
        got.segments += chunk.segments
        got.words += chunk.words
        got.language, got.seconds = chunk.language or got.language, chunk.seconds or got.seconds
        if chunk.text:
            yield chunk.text


async def _stream_events(chunks: AsyncIterator[str], got: AnswerAccumulator) -> AsyncIterator[bytes]:
    async with aclosing(chunks) as pieces:  # type: ignore[type-var]
        async for text in pieces:
            yield transcriptions.encode_delta(text)
    yield transcriptions.encode_done(got.text, got.usage())


def _recognition_params(form: TranscriptionForm, translates: bool) -> TranscribeParams:
    """Return the ``TranscribeParams`` of a form."""
    return {
        "language": form.language,
        "translate": translates,
        "prompt": form.prompt or "",
        "segments": form.response_format in _TIMED,
        "words": "word" in (form.timestamp_granularities or ()),
        "temperature": form.temperature or 0.0,
        "max_tokens": form.max_tokens,
        "seed": form.seed,
    }


def _prepare_chat(form: TranscriptionForm, item: InspectedMedia, *, translates: bool) -> AskedOfModel:
    instructions = instruct_transcription(form.language, form.prompt, translates=translates)
    request = ChatRequest(
        model=form.model,
        messages=[UserMessage(content=instructions)],
        temperature=form.temperature or 0.0,
        max_completion_tokens=form.max_tokens,
    )
    content_parts: list[dict[str, Any]] = [{"type": "text", "text": instructions}, {"type": "audio"}]
    return AskedOfModel(
        request, [{"role": "system", "content": SYSTEM}, {"role": "user", "content": content_parts}], [item]
    )
