"""``POST /v1/audio/transcriptions``: the speech of an audio file as text, by a model that chats and hears.

It is a chat with a fixed instruction, greedy unless the client sends a temperature. The chat consists of ``SYSTEM``,
the instruction, the client's language and prompt, and the audio. The answer is the text. An app that is a model
receives the same chat.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from omnibus.errors import BadRequest
from omnibus.settings import GatewaySettings
from omnibus.task import ChatOutput
from omnibus_gateway.apps.chat import AppChats
from omnibus_gateway.dispatch.streams import merge_streams
from omnibus_gateway.http.exchange import PostRequest, PostRoute
from omnibus_gateway.http.response import JSON, ResponseWriter
from omnibus_gateway.media.inspect import InspectedMedia, MediaLimits, inspect_files
from omnibus_gateway.openai import multipart, transcriptions
from omnibus_gateway.openai.chat_request import ChatRequest, UserMessage
from omnibus_gateway.openai.transcriptions import SYSTEM, TranscriptionForm, instruct_transcription
from omnibus_gateway.request.accumulator import AnswerAccumulator
from omnibus_gateway.request.lifecycle import run_to_end
from omnibus_gateway.request.request import ClientRequest
from omnibus_gateway.tasks.chat import Chat
from omnibus_gateway.tasks.output_streams import open_output_streams
from omnibus_gateway.tasks.prepared_chat import PreparedChat as AskedOfModel
from omnibus_gateway.tasks.resolve import rename_params

TEXT = b"text/plain; charset=utf-8"

#: The one file of a client, which a chat has in several places.
_CLIENT_PARAM_NAMES = dict.fromkeys(("", "media", "messages", "items"), "file")


class TranscriptionRoute(PostRoute):
    """Transcribes audio to text."""

    reads_prices = True

    def __init__(self, settings: GatewaySettings, chat: Chat) -> None:
        super().__init__(settings)
        self._chat = chat
        self.chats: Chat | AppChats = chat

    async def handle_request(self, post: PostRequest, sending: ResponseWriter) -> None:
        form = multipart.parse_form(post.body, post.content_type)
        form.check_file_names("file")
        transcription_form = transcriptions.parse_transcription_form(form.fields(*transcriptions.LISTS))
        run = sending.run = self.chats.open_request(transcription_form.model, transcription_form.seed, post.pinned)
        if run.model:
            self._chat.require_encoder(run.model_name, "audio")
        self._chat.check_price(run, post.prices)
        sending.model = transcription_form.model
        part = form.file("file")
        limits = MediaLimits(body_bytes=self._settings.max_body)
        [item] = await inspect_files([(part.data, part.mime)], "audio", limits, "file")
        with rename_params(_CLIENT_PARAM_NAMES):
            await self._send_transcription(transcription_form, item, run, sending)

    async def _send_transcription(
        self, transcription_form: TranscriptionForm, item: InspectedMedia, run: ClientRequest, sending: ResponseWriter
    ) -> None:
        got = run.answer = AnswerAccumulator(transcription_form.model, run.created)
        async with run_to_end(run):
            output = await self.chats.begin_answer(run, _prepare_chat(transcription_form, item))
            if output.text is None:
                raise BadRequest(f"the app {run.app} writes no text: choose another model", param="model")
            if transcription_form.stream:
                await sending.send_stream(_stream_events(output, got))
                return
            async for _ in _text_chunks(output, got):
                pass
        await sending.send_body(*_render_body(transcription_form, got, item))


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


def _render_body(
    transcription_form: TranscriptionForm, got: AnswerAccumulator, item: InspectedMedia
) -> tuple[bytes, bytes]:
    """Return the content type and the body."""
    if transcription_form.response_format == "text":
        return TEXT, got.text.encode()
    if transcription_form.response_format == "verbose_json":
        return JSON, transcriptions.encode_verbose(got.text, transcription_form.language, item.info.seconds)
    return JSON, transcriptions.encode_transcription(got.text, got.usage())


def _prepare_chat(transcription_form: TranscriptionForm, item: InspectedMedia) -> AskedOfModel:
    instructions = instruct_transcription(transcription_form.language, transcription_form.prompt)
    request = ChatRequest(
        model=transcription_form.model,
        messages=[UserMessage(content=instructions)],
        temperature=transcription_form.temperature or 0.0,
        max_completion_tokens=transcription_form.max_tokens,
    )
    content_parts: list[dict[str, Any]] = [{"type": "text", "text": instructions}, {"type": "audio"}]
    return AskedOfModel(
        request, [{"role": "system", "content": SYSTEM}, {"role": "user", "content": content_parts}], [item]
    )
