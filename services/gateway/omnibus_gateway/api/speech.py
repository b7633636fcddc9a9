"""``POST /v1/audio/speech``: a text read aloud by a text-to-speech model, an app, or a model that chats and speaks.

The latter speaks only its own answers, so the text becomes its answer. The thinker does not choose tokens. It
receives them one by one (``say`` of ``ThinkInput.params``), and the talker receives its usual input. The messages
around the text are fixed: ``SYSTEM``, followed by the client's ``instructions``, and ``USER``.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, cast

import numpy as np

from omnibus.app.routes import SPEECH
from omnibus.encoding.audio import MIME, to_pcm16
from omnibus.errors import BadRequest
from omnibus.settings import GatewaySettings
from omnibus.task import ChatOutput, CompositeTask
from omnibus.task.library import SpeakingParams, TextToSpeechInput
from omnibus_gateway.core import AnswerAccumulator, ClientRequest
from omnibus_gateway.http.exchange import PostRequest, PostRoute
from omnibus_gateway.http.response import ResponseWriter
from omnibus_gateway.media.spoken_answers import AudioFileStream
from omnibus_gateway.openai import speech
from omnibus_gateway.openai.chat_request import AudioOutput, ChatRequest, UserMessage
from omnibus_gateway.openai.speech import SpeechDelta, SpeechDone, SpeechRequest, SpeechUsage
from omnibus_gateway.tasks.chat import AppRoutes, Chat, Chats
from omnibus_gateway.tasks.chat_response import open_output_streams
from omnibus_gateway.tasks.prepared_chat import PreparedChat as AskedOfModel
from omnibus_gateway.tasks.recognition import Speakers
from omnibus_gateway.tasks.resolve import rename_params

SYSTEM = "You read texts aloud, exactly as they are written."
USER = "Read this text aloud:\n\n{text}"

#: The names that clients use for parameters of a chat.
_CLIENT_PARAM_NAMES = {
    "say": "input",
    "text": "input",
    "messages": "input",
    "audio.voice": "voice",
    "max_codes": "max_tokens",
}


class SpeechAnswer(AnswerAccumulator):
    """Received parts of speech."""

    def add_item(self, name: str, data: dict[str, Any], array: np.ndarray | None) -> None:
        # The usage of a model without text comes with its audio.
        super().add_item("text" if data.get("usage") else name, data, array)


class SpeechRoute(PostRoute):
    """Generates audio from texts, and streams it."""

    reads_prices = True

    def __init__(self, settings: GatewaySettings, chat: Chat, speakers: Speakers) -> None:
        super().__init__(settings)
        self._chat, self._speakers = chat, speakers
        self.chats: Chats = chat
        self.apps: AppRoutes | None = None

    async def handle_request(self, post: PostRequest, sending: ResponseWriter) -> None:
        speech_request = speech.parse_speech_request(post.body)
        with rename_params(_CLIENT_PARAM_NAMES):
            await self._send_speech(speech_request, post, sending)

    async def _send_speech(self, speech_request: SpeechRequest, post: PostRequest, sending: ResponseWriter) -> None:
        sending.model = speech_request.model
        task = self._speakers.find_task(speech_request.model)
        if task is not None:
            run = sending.run = self._speakers.open_request(
                speech_request.model, task, speech_request.seed, post.pinned, post.prices
            )
            output = self._speak(speech_request, task, run)
        elif self.apps is not None and self.apps.is_served_by_app(speech_request.model, SPEECH):
            run = sending.run = self.apps.open_request(
                speech_request.model, speech_request.seed, post.pinned, route=SPEECH
            )
            self._chat.check_price(run, post.prices)
            output = self._call_app(speech_request, self.apps, run)
        else:
            run = sending.run = self.chats.open_request(speech_request.model, speech_request.seed, post.pinned)
            output = self._begin_chat(speech_request, run, post)
        got = run.answer = SpeechAnswer(run.model_name, run.created)
        async with run.until_end():
            files = self._encode_file(speech_request, await output, run, got)
            if speech_request.stream_format == "sse":
                await sending.send_stream(_stream_events(files, got))
            else:
                await sending.send_stream(files, MIME[speech_request.format].encode())

    async def _speak(self, speech_request: SpeechRequest, task: CompositeTask, run: ClientRequest) -> ChatOutput:
        """Return the speech of a text-to-speech model."""
        _refuse_instructions(speech_request)
        params: SpeakingParams = {
            "speed": speech_request.speed or 1.0,
            "temperature": speech_request.temperature,
            "max_tokens": speech_request.max_tokens,
        }
        speech_output = await self._speakers.speak(run, task, speech_request.input, speech_request.voice_name, params)
        return ChatOutput(text=None, audio=speech_output.audio)

    async def _call_app(self, speech_request: SpeechRequest, apps: AppRoutes, run: ClientRequest) -> ChatOutput:
        """Return the speech of an app; its speed is changed afterwards."""
        _refuse_instructions(speech_request)
        optional = {"temperature": speech_request.temperature, "max_tokens": speech_request.max_tokens}
        request = TextToSpeechInput(
            text=speech_request.input,
            voice=apps.resolve_voice(run, speech_request.voice_name),
            params=cast(SpeakingParams, {name: value for name, value in optional.items() if value is not None}),
            work=len(speech_request.input),
        )
        streams: dict[str, Any] = await apps.call_route(run, SPEECH, request, ())
        return ChatOutput(text=None, audio=streams["audio"])

    async def _begin_chat(self, speech_request: SpeechRequest, run: ClientRequest, post: PostRequest) -> ChatOutput:
        """Return the speech of a model that chats."""
        if not run.model:
            raise BadRequest(
                f"{speech_request.model} is an app without a function `speak`: use chat completions", param="model"
            )
        self._chat.check_price(run, post.prices)
        voice = self._chat.resolve_voice(speech_request.voice_name, speech_request.model)
        prepared_chat = AskedOfModel(
            _to_chat(speech_request, voice),
            _fixed_messages(speech_request),
            [],
            voice,
            speech_request.input,
            usual=self._chat.usual_sampling(speech_request.model),
        )
        return await self._chat.begin_answer(run, prepared_chat)

    async def _encode_file(
        self, speech_request: SpeechRequest, output: ChatOutput, run: ClientRequest, got: AnswerAccumulator
    ) -> AsyncIterator[bytes]:
        """Yield the file, in pieces that are not empty."""
        sounding: AudioFileStream | None = None
        async for batch in run.read_outputs(open_output_streams(output)):
            for _, item in batch:
                if item.array is None:
                    continue
                if sounding is None:
                    own_speed = item.data.get("speed", 1.0)  # samples of some models already have it
                    sounding = AudioFileStream(speech_request.format, (speech_request.speed or 1.0) / own_speed)
                got.add_pcm(to_pcm16(item.array))
                if data := await sounding.push(item.array, got.rate):
                    yield data
        if sounding is None:
            sounding = AudioFileStream(speech_request.format)
        if data := await sounding.close(got.rate):
            yield data


def _refuse_instructions(speech_request: SpeechRequest) -> None:
    if speech_request.instructions is not None:
        raise BadRequest(f"{speech_request.model} follows no instructions: omit them", param="instructions")


async def _stream_events(files: AsyncIterator[bytes], got: AnswerAccumulator) -> AsyncIterator[bytes]:
    async with aclosing(files):  # type: ignore[type-var]
        async for data in files:
            yield speech.encode_event(SpeechDelta(data))
    token_usage = got.usage()
    sound = token_usage.completion_tokens_details.audio_tokens
    yield speech.encode_event(
        SpeechDone(SpeechUsage(token_usage.prompt_tokens, sound, token_usage.prompt_tokens + sound))
    )


def _to_chat(speech_request: SpeechRequest, voice: str) -> ChatRequest:
    return ChatRequest(
        model=speech_request.model,
        messages=[UserMessage(content=speech_request.input)],
        modalities=["text", "audio"],
        audio=AudioOutput(voice=voice, format=speech_request.format, max_tokens=speech_request.max_tokens),
        temperature=speech_request.temperature,
    )


def _fixed_messages(speech_request: SpeechRequest) -> list[dict[str, Any]]:
    instructions = speech_request.instructions
    return [
        {"role": "system", "content": f"{SYSTEM} {instructions}" if instructions else SYSTEM},
        {"role": "user", "content": USER.format(text=speech_request.input)},
    ]
