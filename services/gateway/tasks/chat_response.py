"""From streams to the HTTP answer: whole as JSON, or piece by piece as server-sent events."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from omnibus.encoding.audio import SoundFormat, to_pcm16
from omnibus.store import StreamRecord
from omnibus.task import ChatOutput
from omnibus.tensors.item import Item, JoinedText
from services.gateway.dispatch.streams import ItemStream, merge_streams
from services.gateway.media.audio_encoder import AudioFileStream, encode_audio_file
from services.gateway.media.files import new_secret_id
from services.gateway.media.spoken_answers import SpokenAnswers
from services.gateway.openai import chat_response, vllm_omni
from services.gateway.openai.chat_request import ChatRequest
from services.gateway.openai.chat_stream import DONE, ChatStream
from services.gateway.pricing.meter import UsageMeter
from services.gateway.request.accumulator import AnswerAccumulator
from services.gateway.request.continuing import ResumableStream
from services.gateway.request.event_ids import NumberedStream
from services.gateway.request.request import ClientRequest
from services.gateway.tasks.output_streams import open_output_streams

#: Name of the stream that is none of the answer's.
ACCEPTED_STREAM = "accepted"
#: Seconds that an answer's audio id is said to be good for where nothing is kept.
AUDIO_TTL_SECONDS = 3600.0


async def collect_samples(output: ChatOutput, got: AnswerAccumulator) -> np.ndarray:
    """Read all streams to their end; returns the samples, float32 [n]."""
    sound: list[np.ndarray] = []
    async for batch in merge_streams(open_output_streams(output)):
        for name, item in batch:
            got.add_item(name, item.data, item.array)
            if name == "audio" and item.array is not None:
                sound.append(item.array)
    return join_samples(sound, got)


def join_samples(sound: Sequence[np.ndarray], got: AnswerAccumulator) -> np.ndarray:
    """The pieces of ``sound``, float32 [n], as one; ``got`` has them, too."""
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
    """The body of a ``chat.completion``; with a ``keeper`` its sound may be referred to, a ``meter`` adds its price."""
    spoken = await store_speech(request, await collect_samples(output, got), got, keeper)
    if meter is not None:
        got.price = await meter.measure_request(run.segments)
    return encode_answer(run, request, got, spoken)


async def store_speech(
    request: ChatRequest, samples: np.ndarray, got: AnswerAccumulator, keeper: SpokenAnswers | None
) -> chat_response.ChatCompletionAudio | None:
    """The spoken part of an answer, kept under an id of its own if there is a ``keeper``; None if none is wanted."""
    if request.audio is None or not request.wants_audio:
        return None
    data = await encode_audio_file(samples, got.rate, request.audio.format)
    id = new_secret_id("audio_")
    expires = await _store_answer(keeper, id, got.text, data, request.audio.format)
    return chat_response.ChatCompletionAudio(id=id, data=data, expires_at=expires, transcript=got.text)


def encode_answer(
    run: ClientRequest, request: ChatRequest, got: AnswerAccumulator, spoken: chat_response.ChatCompletionAudio | None
) -> bytes:
    """The body of a ``chat.completion`` whose results have all come."""
    return vllm_omni.answer_encoders(request).completion(
        id=f"chatcmpl-{run.id}",
        model=run.model_name,
        created=int(run.created),
        text=got.text if request.wants_text or spoken is None else None,
        finish_reason=got.finish,
        usage=got.usage(),
        audio=spoken,
        fingerprint=f"epoch-{run.epoch}",
        parts=got.structured_parts(logprobs=bool(request.logprobs)),
    )


async def stream_events(
    run: ClientRequest,
    request: ChatRequest,
    output: ChatOutput,
    got: AnswerAccumulator,
    keeper: SpokenAnswers | None = None,
    continued: ResumableStream | None = None,
    meter: UsageMeter | None = None,
) -> AsyncIterator[bytes]:
    """The body of a streamed answer: frames that are ready together leave together.

    The first frames leave once all executors have taken the request, or with the first output if that comes before.
    ``run`` ends before the last frame leaves; with a ``keeper`` its sound may be referred to. One that is ``continued``
    leaves out what its client has. With a ``meter`` its usage is sent, and says its price. Raises whatever fails.
    """
    record = continued.record if continued is not None else None
    plain = open_event_stream(run, request, record, priced=meter is not None)
    format: SoundFormat = request.audio.format if request.audio is not None else "pcm16"
    stream: ChatStream | NumberedStream = continued.number_events(plain, format) if continued is not None else plain
    head = [stream.role("" if request.wants_text else None)]
    sound = AudioOutputFile(format, keeper, record.audio_id if record is not None else new_secret_id("audio_"))
    if output.audio is not None:
        head.append(stream.audio_start(sound.id))
    accepted, parts = AcceptanceStream(), open_output_streams(output)
    if run.notify_when_accepted(accepted.mark_accepted):
        parts[ACCEPTED_STREAM] = accepted
    say = choose_text_event(stream, request, output.audio is not None)
    tail: list[bytes] = []
    begun, logged = False, 0
    async for batch in merge_streams(parts):
        if not begun:
            accepted.end()
            batch = [each for each in batch if each[0] != ACCEPTED_STREAM]
        frames = encode_text_events(stream, say, got, batch)
        if request.logprobs and (fresh := got.logprobs[logged:]):
            logged += len(fresh)
            frames.append(stream.logprobs(fresh))
        if continued is not None:
            continued.add_token_ids([id for name, item in batch if name == "text" for id in item.data.get("ids", ())])
        samples = [item.array for _, item in batch if item.array is not None]
        if samples:
            frames.append(stream.audio(await sound.push_samples(samples, got)))
        yield b"".join(frames if begun else [*head, *frames])
        begun = True
    if output.audio is not None:
        tail = [stream.audio(await sound.close(got)), stream.audio_end(await sound.store_answer(got.text))]
    if meter is not None:
        got.price = await meter.measure_request(run.segments)
    stream.complete()
    run.end("done")
    yield b"".join([*([] if begun else head), *tail, stream.finish(got.finish), stream.usage(got.usage()), DONE])  # type: ignore[arg-type]


def encode_text_events(
    stream: ChatStream | NumberedStream,
    say: Callable[..., bytes],
    got: AnswerAccumulator,
    batch: Sequence[tuple[str, Item]],
) -> list[bytes]:
    """Events of what came of the text, which is added to what was ``got``; of other streams there are none."""
    frames = [say(*pieces) for name, item in batch if (pieces := _accumulate_text(got, name, item))]
    if got.structured:
        frames = [encode_chunk(stream, say, item.data) for name, item in batch if name == "text"]
    return frames


def encode_chunk(stream: ChatStream | NumberedStream, say: Callable[..., bytes], data: dict[str, Any]) -> bytes:
    """Events of a chunk of text that may hold more than text."""
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
    """The maker of events of answer number ``place``, streamed; of one with a ``record`` as they were promised.

    One that is ``priced`` says its usage, whether or not its body asks for that.
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
    """The maker of events of pieces of text: these are shown, spoken, or both."""
    if not request.wants_text:
        return stream.transcript
    return stream.spoken_text if speaks else stream.text


class AcceptanceStream(ItemStream):
    """One item as soon as all executors have taken the request, unless it ended before."""

    def mark_accepted(self) -> None:
        if not self.ended:
            self.add_item(Item({}))
            self.end()


class AudioOutputFile:
    """The sound of a streamed answer: its file as it is sent, and all of it where it is kept."""

    def __init__(self, format: SoundFormat, keeper: SpokenAnswers | None, id: str) -> None:
        self.id = id
        self._format = format
        self._keeper = keeper
        self._sounding = AudioFileStream(format)
        self._file: list[bytes] = []

    async def push_samples(self, samples: list[np.ndarray], got: AnswerAccumulator) -> bytes:
        """Take samples; returns what of the file is ready."""
        return self._buffer_sent(await self._sounding.push(join_samples(samples, got), got.rate))

    def push_now(self, samples: list[np.ndarray], got: AnswerAccumulator) -> bytes:
        """The same without waiting, for uncompressed formats."""
        return self._buffer_sent(self._sounding.push_now(join_samples(samples, got), got.rate))

    async def close(self, got: AnswerAccumulator) -> bytes:
        """The rest of the file."""
        return self._buffer_sent(await self._sounding.close(got.rate))

    def close_now(self, got: AnswerAccumulator) -> bytes:
        """The rest of the file without waiting, for uncompressed formats."""
        return self._buffer_sent(self._sounding.close_now(got.rate))

    def keep_answer(self, transcript: str, then: Callable[[], None]) -> None:
        """Keep it, and call ``then``."""
        keep_answer(self._keeper, self.id, transcript, b"".join(self._file), self._format, then)

    async def store_answer(self, transcript: str) -> int:
        """Keep it; returns the Unix seconds at which it is forgotten."""
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
    """The Unix seconds at which an answer that is kept now is forgotten."""
    return int(time.time() + (AUDIO_TTL_SECONDS if keeper is None else keeper.seconds))


def keep_answer(
    keeper: SpokenAnswers | None, id: str, transcript: str, file: bytes, format: SoundFormat, then: Callable[[], None]
) -> None:
    """Keep an answer if there is a ``keeper``; ``then`` is called once it is kept, or cannot be in time."""
    if keeper is None:
        then()
    else:
        keeper.keep_answer(id, transcript, file, format, then)


def _accumulate_text(got: AnswerAccumulator, name: str, item: Item) -> Sequence[str]:
    """Add ``item`` to what was ``got``; returns its pieces of text, which may be none."""
    got.add_item(name, item.data, item.array)
    text = item.data.get("text", "") if name == "text" else ""
    if type(item) is not JoinedText:
        return (text,) if text else ()
    ends = accumulate(item.cuts)
    return [piece for end, size in zip(ends, item.cuts, strict=True) if (piece := text[end - size : end])]
