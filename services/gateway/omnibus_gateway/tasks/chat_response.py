"""Conversion of output streams to the HTTP response: JSON as a whole, or server-sent events."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from omnibus.encoding.audio import SoundFormat, to_pcm16
from omnibus.store import StreamRecord
from omnibus.task import ChatOutput
from omnibus.tensors.item import Item, JoinedText
from omnibus_gateway.dispatch.streams import ItemStream, merge_streams
from omnibus_gateway.media.audio_encoder import AudioFileStream, encode_audio_file
from omnibus_gateway.media.files import new_secret_id
from omnibus_gateway.media.spoken_answers import SpokenAnswers
from omnibus_gateway.openai import chat_response, vllm_omni
from omnibus_gateway.openai.chat_request import ChatRequest
from omnibus_gateway.openai.chat_stream import DONE, ChatStream
from omnibus_gateway.pricing.meter import UsageMeter
from omnibus_gateway.request.accumulator import AnswerAccumulator
from omnibus_gateway.request.continuing import ResumableStream
from omnibus_gateway.request.event_ids import NumberedStream
from omnibus_gateway.request.request import ClientRequest
from omnibus_gateway.tasks.output_streams import open_output_streams

#: Name of a stream without output of the answer.
ACCEPTED_STREAM = "accepted"
#: Seconds until the audio id of an answer expires, if answers are not stored.
AUDIO_TTL_SECONDS = 3600.0


async def collect_samples(output: ChatOutput, got: AnswerAccumulator) -> np.ndarray:
    """Read all streams to their end; return the samples, float32 [n]."""
    sound: list[np.ndarray] = []
    async for batch in merge_streams(open_output_streams(output)):
        for name, item in batch:
            got.add_item(name, item.data, item.array)
            if name == "audio" and item.array is not None:
                sound.append(item.array)
    return join_samples(sound, got)


def join_samples(sound: Sequence[np.ndarray], got: AnswerAccumulator) -> np.ndarray:
    """Join the arrays of ``sound``, float32 [n], and add them to ``got``."""
    if not sound:
        return np.zeros(0, np.float32)
    samples = np.concatenate(sound) if len(sound) > 1 else sound[0]
    got.add_pcm(to_pcm16(samples))
    return samples


async def render_completion(
    run: ClientRequest,
    request: ChatRequest,
    output: ChatOutput,
    got: AnswerAccumulator,
    keeper: SpokenAnswers | None = None,
    meter: UsageMeter | None = None,
) -> bytes:
    """Build the body of a ``chat.completion``.

    A ``keeper`` stores the audio for later references, a ``meter`` adds the price.
    """
    speech_audio = await store_speech(request, await collect_samples(output, got), got, keeper)
    if meter is not None:
        got.price = await meter.measure_request(run.segments)
    return encode_answer(run, request, got, speech_audio)


async def store_speech(
    request: ChatRequest, samples: np.ndarray, got: AnswerAccumulator, keeper: SpokenAnswers | None
) -> chat_response.ChatCompletionAudio | None:
    """Encode the audio of an answer; a ``keeper`` stores it. None without audio output."""
    if request.audio is None or not request.wants_audio:
        return None
    data = await encode_audio_file(samples, got.rate, request.audio.format)
    id = new_secret_id("audio_")
    expires = await _store_answer(keeper, id, got.text, data, request.audio.format)
    return chat_response.ChatCompletionAudio(id=id, data=data, expires_at=expires, transcript=got.text)


def encode_answer(
    run: ClientRequest,
    request: ChatRequest,
    got: AnswerAccumulator,
    speech_audio: chat_response.ChatCompletionAudio | None,
) -> bytes:
    """Build the body of a ``chat.completion`` from a complete answer."""
    return vllm_omni.answer_encoders(request).completion(
        id=f"chatcmpl-{run.id}",
        model=run.model_name,
        created=int(run.created),
        text=got.text if request.wants_text or speech_audio is None else None,
        finish_reason=got.finish,
        usage=got.usage(),
        audio=speech_audio,
        fingerprint=f"epoch-{run.epoch}",
        parts=got.structured_parts(logprobs=bool(request.logprobs)),
    )


async def stream_events(
    run: ClientRequest,
    request: ChatRequest,
    output: ChatOutput,
    got: AnswerAccumulator,
    keeper: SpokenAnswers | None = None,
    resumable_stream: ResumableStream | None = None,
    meter: UsageMeter | None = None,
) -> AsyncIterator[bytes]:
    """Yield the body of a streamed answer: frames that are ready together are sent together.

    The first frames are sent when all executors have accepted the request, or with earlier output. ``run`` ends before
    the last frame. A ``keeper`` stores the audio for later references. A ``resumable_stream`` stream skips the output
    that its client has. With a ``meter``, the stream contains the usage and its price. Raises any error of the answer.
    """
    record = resumable_stream.record if resumable_stream is not None else None
    plain = open_event_stream(run, request, record, priced=meter is not None)
    format: SoundFormat = request.audio.format if request.audio is not None else "pcm16"
    stream: ChatStream | NumberedStream = (
        resumable_stream.number_events(plain, format) if resumable_stream is not None else plain
    )
    head = [stream.role("" if request.wants_text else None)]
    sound = AudioOutputFile(format, keeper, record.audio_id if record is not None else new_secret_id("audio_"))
    if output.audio is not None:
        head.append(stream.audio_start(sound.id))
    acceptance, parts = AcceptanceStream(), open_output_streams(output)
    if run.notify_when_accepted(acceptance.mark_accepted):
        parts[ACCEPTED_STREAM] = acceptance
    say = choose_text_event(stream, request, output.audio is not None)
    tail: list[bytes] = []
    has_begun, logprob_count = False, 0
    async for batch in merge_streams(parts):
        if not has_begun:
            acceptance.end()
            batch = [each for each in batch if each[0] != ACCEPTED_STREAM]
        frames = encode_text_events(stream, say, got, batch)
        if request.logprobs and (fresh := got.logprobs[logprob_count:]):
            logprob_count += len(fresh)
            frames.append(stream.logprobs(fresh))
        if resumable_stream is not None:
            resumable_stream.add_token_ids(
                [id for name, item in batch if name == "text" for id in item.data.get("ids", ())]
            )
        samples = [item.array for _, item in batch if item.array is not None]
        if samples:
            frames.append(stream.audio(await sound.push_samples(samples, got)))
        yield b"".join(frames if has_begun else [*head, *frames])
        has_begun = True
    if output.audio is not None:
        tail = [stream.audio(await sound.close(got)), stream.audio_end(await sound.store_answer(got.text))]
    if meter is not None:
        got.price = await meter.measure_request(run.segments)
    stream.complete()
    run.end("done")
    yield b"".join([*([] if has_begun else head), *tail, stream.finish(got.finish), stream.usage(got.usage()), DONE])  # type: ignore[arg-type]


def encode_text_events(
    stream: ChatStream | NumberedStream,
    say: Callable[..., bytes],
    got: AnswerAccumulator,
    batch: Sequence[tuple[str, Item]],
) -> list[bytes]:
    """Encode the text of ``batch`` as events, and add it to ``got``; other streams have no events."""
    frames = [say(*pieces) for name, item in batch if (pieces := _accumulate_text(got, name, item))]
    if got.structured:
        frames = [encode_chunk(stream, say, item.data) for name, item in batch if name == "text"]
    return frames


def encode_chunk(stream: ChatStream | NumberedStream, say: Callable[..., bytes], data: dict[str, Any]) -> bytes:
    """Encode a chunk of text that may also contain reasoning or calls."""
    reasoning, text, calls = data.get("reasoning"), data.get("text"), data.get("calls")
    return b"".join(
        [
            stream.reasoning(reasoning) if reasoning else b"",
            say(text) if text else b"",
            stream.calls(calls) if calls else b"",
        ]
    )


def open_event_stream(
    run: ClientRequest,
    request: ChatRequest,
    record: StreamRecord | None = None,
    *,
    priced: bool = False,
    place: int = 0,
) -> ChatStream:
    """Create the event encoder of answer number ``place``.

    It uses the ids of ``record`` if given. If ``priced``, the stream contains the usage even without a request for it.
    """
    wants_usage = bool(request.stream_options and request.stream_options.include_usage)
    return vllm_omni.answer_encoders(request).stream(
        record.id if record is not None else f"chatcmpl-{run.id}",
        run.model_name,
        record.created if record is not None else int(run.created),
        include_usage=wants_usage or priced,
        fingerprint=f"epoch-{run.epoch}",
        place=place,
    )


def choose_text_event(stream: ChatStream | NumberedStream, request: ChatRequest, speaks: bool) -> Callable[..., bytes]:
    """Return the encoder of text events: written text, a transcript, or both."""
    if not request.wants_text:
        return stream.transcript
    return stream.spoken_text if speaks else stream.text


class AcceptanceStream(ItemStream):
    """Stream whose one item arrives when all executors have accepted the request."""

    def mark_accepted(self) -> None:
        if not self.ended:
            self.add_item(Item({}))
            self.end()


class AudioOutputFile:
    """Audio of a streamed answer: the file as it is sent, buffered if it is stored."""

    def __init__(self, format: SoundFormat, keeper: SpokenAnswers | None, id: str) -> None:
        self.id = id
        self._format = format
        self._keeper = keeper
        self._sounding = AudioFileStream(format)
        self._file: list[bytes] = []

    async def push_samples(self, samples: list[np.ndarray], got: AnswerAccumulator) -> bytes:
        """Add samples; return the bytes of the file that are ready."""
        return self._buffer_sent(await self._sounding.push(join_samples(samples, got), got.rate))

    def push_now(self, samples: list[np.ndarray], got: AnswerAccumulator) -> bytes:
        """Like ``push_samples`` without waiting, for uncompressed formats."""
        return self._buffer_sent(self._sounding.push_now(join_samples(samples, got), got.rate))

    async def close(self, got: AnswerAccumulator) -> bytes:
        """Return the rest of the file."""
        return self._buffer_sent(await self._sounding.close(got.rate))

    def close_now(self, got: AnswerAccumulator) -> bytes:
        """Return the rest of the file without waiting, for uncompressed formats."""
        return self._buffer_sent(self._sounding.close_now(got.rate))

    def keep_answer(self, transcript: str, then: Callable[[], None]) -> None:
        """Store the answer in the background, and call ``then``."""
        keep_answer(self._keeper, self.id, transcript, b"".join(self._file), self._format, then)

    async def store_answer(self, transcript: str) -> int:
        """Store the answer; return its expiry in Unix seconds."""
        return await _store_answer(self._keeper, self.id, transcript, b"".join(self._file), self._format)

    def _buffer_sent(self, data: bytes) -> bytes:
        if self._keeper is not None:
            self._file.append(data)
        return data


async def _store_answer(
    keeper: SpokenAnswers | None, id: str, transcript: str, file: bytes, format: SoundFormat
) -> int:
    if keeper is not None:
        await keeper.store_answer(id, transcript, file, format)
    return answer_expiry(keeper)


def answer_expiry(keeper: SpokenAnswers | None) -> int:
    """Return the expiry, in Unix seconds, of an answer stored now."""
    return int(time.time() + (AUDIO_TTL_SECONDS if keeper is None else keeper.seconds))


def keep_answer(
    keeper: SpokenAnswers | None, id: str, transcript: str, file: bytes, format: SoundFormat, then: Callable[[], None]
) -> None:
    """Store an answer if there is a ``keeper``; call ``then`` when it is stored or has timed out."""
    if keeper is None:
        then()
    else:
        keeper.keep_answer(id, transcript, file, format, then)


def _accumulate_text(got: AnswerAccumulator, name: str, item: Item) -> Sequence[str]:
    """Add ``item`` to ``got``; return its pieces of text, possibly none."""
    got.add_item(name, item.data, item.array)
    text = item.data.get("text", "") if name == "text" else ""
    if type(item) is not JoinedText:
        return (text,) if text else ()
    ends = accumulate(item.cuts)
    return [piece for end, size in zip(ends, item.cuts, strict=True) if (piece := text[end - size : end])]
