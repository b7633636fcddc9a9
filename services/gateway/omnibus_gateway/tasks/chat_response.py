"""Conversion of output streams to the HTTP response: JSON as a whole, or server-sent events.

Results of executors are streams already; a task reads all other values. The events of several answers are interleaved.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from omnibus.encoding.audio import SoundFormat, to_pcm16
from omnibus.errors import Fatal, OmnibusError
from omnibus.store import StreamRecord
from omnibus.task import Audio, ChatOutput, Result, TextChunk
from omnibus.task.result import STREAM, encode_item
from omnibus.tensors.handle import Item, JoinedText
from omnibus_gateway.dispatch.streams import ItemStream, merge_streams
from omnibus_gateway.media.files import new_secret_id
from omnibus_gateway.media.spoken_answers import AudioFileStream, SpokenAnswers, encode_audio_file
from omnibus_gateway.openai import chat_response
from omnibus_gateway.openai.chat_request import ChatRequest
from omnibus_gateway.openai.chat_response import DONE, ChatStream
from omnibus_gateway.pricing.meter import UsageMeter
from omnibus_gateway.request.accumulator import AnswerAccumulator, ChoicesAccumulator
from omnibus_gateway.request.continuing import NumberedStream, ResumableStream
from omnibus_gateway.request.request import ClientRequest
from omnibus_gateway.tasks.chat import Chat

_EXPECTED_PARTS = {"text": "text or `TextChunk`s", "audio": "float samples or `Audio`"}
#: Types of the parts of an answer's streams.
PARTS: dict[str, Any] = {"text": TextChunk, "audio": Audio}


def open_output_streams(output: ChatOutput) -> dict[str, ItemStream]:
    """Return the answer's streams by name, for ``merge_streams``."""
    outputs = {"text": output.text, "audio": output.audio}
    return {name: as_item_stream(name, value) for name, value in outputs.items() if value is not None}


def as_item_stream(name: str, value: Any) -> ItemStream:
    """Return ``value`` as a stream: a result, a stream of parts (text or samples), or one part.

    Raises ``StreamConsumed`` for a result that its task has already read.
    """
    if isinstance(value, ItemStream):
        return value
    if type(value) is Result and not value.is_transformed and value.element is PARTS[name]:
        source = value.claim_source()
        if isinstance(source, ItemStream):
            return source
    return IteratorStream(name, value)


class IteratorStream(ItemStream):
    """Stream of parts that a task reads from a value until ``stop``."""

    def __init__(self, name: str, value: Any) -> None:
        super().__init__()
        self._task = asyncio.get_running_loop().create_task(self._read_value(name, value))

    def stop(self) -> None:
        self._task.cancel()

    async def _read_value(self, name: str, value: Any) -> None:
        try:
            async for part in _iterate_parts(value):
                self.add_item(_to_item(name, part))
                self.wake_reader()
            self.end()
        except OmnibusError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001 a model's own code: its failure fails the answer
            self.fail(Fatal(f"the answer's {name} failed ({type(error).__name__}) while it was generated"))


async def _iterate_parts(value: Any) -> AsyncIterator[Any]:
    if type(value) is Result and value.kind != STREAM:
        value = await value
    if hasattr(value, "__aiter__"):
        async for part in value:
            yield part
    else:
        yield value


def _to_item(name: str, part: Any) -> Item:
    """Encode a part: str or ``TextChunk``, samples or ``Audio``."""
    if name == "text" and isinstance(part, str):
        return Item({"text": part})
    if name == "audio" and isinstance(part, np.ndarray):
        return Item({"rate": Audio().rate}, np.asarray(part, np.float32))
    if isinstance(part, Item):
        return part
    if not isinstance(part, PARTS[name]):
        raise Fatal(f"the answer's {name} holds a {type(part).__name__}: it must be {_EXPECTED_PARTS[name]}")
    return encode_item(part)


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


async def collect_answer(
    chat: Chat, run: ClientRequest, request: ChatRequest, *, count_only: bool = False
) -> AnswerAccumulator:
    """Return the answer of ``run`` to ``request``; with ``count_only`` only its usage. Raises the errors of a chat."""
    got = run.open_answer()
    async with run.until_end():
        prepared_chat = await chat.prepare_request(run, request)
        if count_only:
            prepared_chat.count_only()
        await collect_samples(await chat.begin_answer(run, prepared_chat), got)
    return got


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
    return request.encoders.completion(
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
    tail += [stream.finish(got.finish), stream.usage(got.usage()), request.encoders.last]  # type: ignore[arg-type]
    yield b"".join([*([] if has_begun else head), *tail])


def encode_text_events(
    stream: ChatStream | NumberedStream,
    say: Callable[..., bytes],
    got: AnswerAccumulator,
    batch: Sequence[tuple[str, Item]],
) -> list[bytes]:
    """Encode the text of ``batch`` as events, and add it to ``got``; other streams have no events."""
    texts = [pieces for name, item in batch if (pieces := _accumulate_text(got, name, item))]
    if got.structured:
        return [encode_chunk(stream, say, item.data) for name, item in batch if name == "text"]
    return [say(*pieces) for pieces in texts]


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
    return request.encoders.stream(
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


async def render_choices(
    run: ClientRequest,
    request: ChatRequest,
    outputs: Sequence[ChatOutput],
    got: ChoicesAccumulator,
    meter: UsageMeter | None = None,
) -> bytes:
    """Build the body of a ``chat.completion`` with several answers; a ``meter`` adds their total price."""
    async for batch in merge_streams(_open_streams(outputs)):
        for name, item in batch:
            got.add_text(int(name), item.data)
    if meter is not None:
        got.price = await meter.measure_request(run.segments)
    id = f"chatcmpl-{run.id}"
    choices = [
        chat_response.build_choice(
            id,
            each.text,
            None,
            each.finish,  # type: ignore[arg-type]
            each.structured_parts(logprobs=bool(request.logprobs)),
            place,
        )
        for place, each in enumerate(got.choices)
    ]
    return chat_response.encode_choices(
        id=id,
        model=run.model_name,
        created=int(run.created),
        choices=choices,
        usage=got.usage(),
        fingerprint=f"epoch-{run.epoch}",
    )


async def stream_choices(
    run: ClientRequest,
    request: ChatRequest,
    outputs: Sequence[ChatOutput],
    got: ChoicesAccumulator,
    meter: UsageMeter | None = None,
) -> AsyncIterator[bytes]:
    """Yield the body of a streamed completion with several answers; ``index`` is the answer of an event.

    The first events are sent when all executors have accepted the request, or with earlier output. ``run`` ends before
    the last event. With a ``meter``, the stream contains the usage and its price. Raises any error of the answers.
    """
    streams = [open_event_stream(run, request, priced=meter is not None, place=place) for place in range(len(outputs))]
    writers = [_ChoiceWriter(request, stream, place, got) for place, stream in enumerate(streams)]
    head = [writer.stream.role() for writer in writers]
    acceptance, parts = AcceptanceStream(), _open_streams(outputs)
    if run.notify_when_accepted(acceptance.mark_accepted):
        parts[ACCEPTED_STREAM] = acceptance
    async for batch in merge_streams(parts):
        frames, head = head, []
        acceptance.end()
        for name, item in batch:
            if name != ACCEPTED_STREAM:
                frames += writers[int(name)].write(item.data)
        yield b"".join(frames)
    if meter is not None:
        got.price = await meter.measure_request(run.segments)
    run.end("done")
    ends = [writer.close() for writer in writers]
    yield b"".join([*head, *ends, writers[0].stream.usage(got.usage()), DONE])


class _ChoiceWriter:
    """Event writer of one of several answers."""

    def __init__(self, request: ChatRequest, stream: ChatStream, place: int, got: ChoicesAccumulator) -> None:
        self.stream = stream
        self._place = place
        self._got = got
        self._logprobs = bool(request.logprobs)
        self._logged = 0  # tokens whose probabilities were sent
        self._ended = False

    def write(self, data: dict[str, Any]) -> list[bytes]:
        """Encode the next chunk of its text as events."""
        self._got.add_text(self._place, data)
        got = self._got.choices[self._place]
        frames = [encode_chunk(self.stream, self.stream.text, data)]
        if self._logprobs and (fresh := got.logprobs[self._logged :]):
            self._logged += len(fresh)
            frames.append(self.stream.logprobs(fresh))
        return [*frames, self.close()] if "usage" in data else frames

    def close(self) -> bytes:
        """Return the last event of the answer; b"" if it was sent."""
        self._ended, was_ended = True, self._ended
        return b"" if was_ended else self.stream.finish(self._got.choices[self._place].finish)  # type: ignore[arg-type]


def _open_streams(outputs: Sequence[ChatOutput]) -> dict[str, ItemStream]:
    return {str(place): as_item_stream("text", output.text) for place, output in enumerate(outputs)}
