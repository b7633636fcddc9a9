"""From streams to the HTTP answer: whole as JSON, or piece by piece as server-sent events."""

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np

from omnibus.encoding.audio import SoundFormat, pcm16
from omnibus.errors import OmnibusError
from omnibus.task import ChatOutput
from omnibus.tensors.item import Item
from services.gateway.dispatch.streams import Incoming, merge
from services.gateway.media.audio_encoder import Sounding, render
from services.gateway.media.files import new
from services.gateway.media.spoken_answers import Spoken
from services.gateway.openai import chat_response, vllm_omni
from services.gateway.openai.chat_request import ChatRequest
from services.gateway.openai.chat_stream import DONE, ChatStream
from services.gateway.request.accumulator import Collected
from services.gateway.request.continuing import ResumableStream
from services.gateway.request.event_ids import NumberedStream
from services.gateway.request.request import Run
from services.gateway.tasks.output_streams import arrivals

#: Name of the stream that is none of the answer's.
_ACCEPTED = "accepted"
#: Seconds that an answer's audio id is said to be good for where nothing is kept.
AUDIO_KEPT = 3600.0


async def collect(output: ChatOutput, got: Collected) -> np.ndarray:
    """Read all streams to their end; returns the samples, float32 [n]."""
    sound: list[np.ndarray] = []
    async for batch in merge(arrivals(output)):
        for name, item in batch:
            got.take(name, item.data, item.array)
            if name == "audio" and item.array is not None:
                sound.append(item.array)
    samples = np.concatenate(sound) if sound else np.zeros(0, np.float32)
    if output.audio is not None:
        got.heard(pcm16(samples))
    return samples


async def whole(
    run: Run, request: ChatRequest, output: ChatOutput, got: Collected, keeper: Spoken | None = None
) -> bytes:
    """The body of a ``chat.completion``; with a ``keeper`` its sound may be referred to."""
    samples = await collect(output, got)
    spoken = None
    if request.audio is not None and request.speaks:
        data = await render(samples, got.rate, request.audio.format)
        id = new("audio_")
        expires = await _keep(keeper, id, got.text, data, request.audio.format)
        spoken = chat_response.Audio(id=id, data=data, expires_at=expires, transcript=got.text)
    return vllm_omni.shapes(request).completion(
        id=f"chatcmpl-{run.id}",
        model=run.model,
        created=int(run.created),
        text=got.text if request.writes or spoken is None else None,
        finish_reason=got.finish,
        usage=got.usage(),
        audio=spoken,
        fingerprint=f"epoch-{run.epoch}",
    )


async def events(
    run: Run,
    request: ChatRequest,
    output: ChatOutput,
    got: Collected,
    done: Callable[[str], None],
    keeper: Spoken | None = None,
    continued: ResumableStream | None = None,
) -> AsyncIterator[bytes]:
    """The body of a streamed answer: frames that are ready together leave together.

    The first frames leave once all executors have taken the request, or with the first output if that comes before.
    Raises what fails until then; later failures are a frame. ``done`` is called with the status before the last frame
    leaves; with a ``keeper`` its sound may be referred to. One that is ``continued`` leaves out what its client has.
    """
    record = continued.record if continued is not None else None
    plain = vllm_omni.shapes(request).stream(
        record.id if record is not None else f"chatcmpl-{run.id}",
        run.model,
        record.created if record is not None else int(run.created),
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
        fingerprint=f"epoch-{run.epoch}",
    )
    format: SoundFormat = request.audio.format if request.audio is not None else "pcm16"
    stream: ChatStream | NumberedStream = continued.numbered(plain, format) if continued is not None else plain
    head = [stream.role("" if request.writes else None)]
    sound = _Sound(format, keeper, record.audio_id if record is not None else new("audio_"))
    if output.audio is not None:
        head.append(stream.audio_start(sound.id))
    accepted, parts = _Acceptance(), arrivals(output)
    if run.when_taken(accepted.arrive):
        parts[_ACCEPTED] = accepted
    say = stream.text if request.writes else stream.transcript
    tail: list[bytes] = []
    begun = False
    try:
        async for batch in merge(parts):
            if not begun:
                accepted.end()
                batch = [each for each in batch if each[0] != _ACCEPTED]
            frames = [say(text) for name, item in batch if (text := _text(got, name, item))]
            if continued is not None:
                continued.take([id for name, item in batch if name == "text" for id in item.data.get("ids", ())])
            samples = [item.array for _, item in batch if item.array is not None]
            if samples:
                frames.append(stream.audio(await sound.push(samples, got)))
            yield b"".join(frames if begun else [*head, *frames])
            begun = True
        if output.audio is not None:
            tail = [stream.audio(await sound.close(got)), stream.audio_end(await sound.keep(got.text))]
        stream.complete()
    except OmnibusError as error:
        run.fail(error)
        done("failed")
        if not begun:
            raise
        yield plain.error(error, run.id)
        return
    done("done")
    yield b"".join([*([] if begun else head), *tail, stream.finish(got.finish), stream.usage(got.usage()), DONE])  # type: ignore[arg-type]


class _Acceptance(Incoming):
    """One item as soon as all executors have taken the request, unless it ended before."""

    def arrive(self) -> None:
        if not self.ended:
            self.add(Item({}))
            self.end()


class _Sound:
    """The sound of a streamed answer: its file as it is sent, and all of it where it is kept."""

    def __init__(self, format: SoundFormat, keeper: Spoken | None, id: str) -> None:
        self.id = id
        self._format = format
        self._keeper = keeper
        self._sounding = Sounding(format)
        self._file: list[bytes] = []

    async def push(self, samples: list[np.ndarray], got: Collected) -> bytes:
        """Take samples; returns what of the file is ready."""
        whole = samples[0] if len(samples) == 1 else np.concatenate(samples)
        got.heard(pcm16(whole))
        return self._sent(await self._sounding.push(whole, got.rate))

    async def close(self, got: Collected) -> bytes:
        """The rest of the file."""
        return self._sent(await self._sounding.close(got.rate))

    async def keep(self, transcript: str) -> int:
        """Keep it; returns the Unix seconds at which it is forgotten."""
        return await _keep(self._keeper, self.id, transcript, b"".join(self._file), self._format)

    def _sent(self, data: bytes) -> bytes:
        if self._keeper is not None:
            self._file.append(data)
        return data


async def _keep(keeper: Spoken | None, id: str, transcript: str, file: bytes, format: SoundFormat) -> int:
    if keeper is None:
        return int(time.time() + AUDIO_KEPT)
    await keeper.keep(id, transcript, file, format)
    return int(time.time() + keeper.seconds)


def _text(got: Collected, name: str, item: Any) -> str:
    got.take(name, item.data, item.array)
    return item.data.get("text", "") if name == "text" else ""
