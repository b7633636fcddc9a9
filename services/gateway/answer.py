"""From streams to the HTTP answer: whole as JSON, or piece by piece as server-sent events."""

import time
from collections.abc import AsyncIterator, Callable
from secrets import token_hex
from typing import Any

import numpy as np

from omnibus.errors import OmnibusError
from omnibus.task import ChatOutput
from services.gateway.arrivals import arrivals
from services.gateway.collected import Collected
from services.gateway.openai import answers, audio
from services.gateway.openai.schema import ChatRequest
from services.gateway.openai.stream import DONE, ChatStream
from services.gateway.run import Run
from services.gateway.streams import merge

#: Seconds that an answer's audio id may be referred to.
AUDIO_KEPT = 3600


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
        got.heard(audio.pcm16(samples))
    return samples


async def whole(run: Run, request: ChatRequest, output: ChatOutput, got: Collected) -> bytes:
    """The body of a ``chat.completion``."""
    samples = await collect(output, got)
    spoken = None
    if request.audio is not None and request.speaks:
        spoken = answers.Audio(
            id=f"audio_{token_hex(16)}",
            data=await audio.render(samples, got.rate, request.audio.format),
            expires_at=int(time.time()) + AUDIO_KEPT,
            transcript=got.text,
        )
    return answers.completion(
        id=f"chatcmpl-{run.id}",
        model=run.model,
        created=int(run.created),
        text=got.text if request.writes or spoken is None else None,
        finish_reason=got.finish,  # type: ignore[arg-type]
        usage=got.usage(),
        audio=spoken,
        fingerprint=f"epoch-{run.epoch}",
    )


async def events(
    run: Run, request: ChatRequest, output: ChatOutput, got: Collected, done: Callable[[str], None]
) -> AsyncIterator[bytes]:
    """The body of a streamed answer: frames that are ready together leave together.

    ``done`` is called with the status before the last frame leaves.
    """
    wav = request.audio is not None and request.speaks and request.audio.format == "wav"
    stream = ChatStream(
        f"chatcmpl-{run.id}",
        run.model,
        int(run.created),
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
        wav=got.rate if wav else None,
        fingerprint=f"epoch-{run.epoch}",
    )
    head = [stream.role("" if request.writes else None)]
    if output.audio is not None:
        head.append(stream.audio_start(f"audio_{token_hex(16)}"))
    yield b"".join(head)
    say = stream.text if request.writes else stream.transcript
    try:
        async for batch in merge(arrivals(output)):
            yield b"".join([frame for name, item in batch if (frame := _frame(stream, say, got, name, item))])
    except OmnibusError as error:
        done("failed")
        yield stream.error(error, run.id)
        return
    done("done")
    tail = [stream.audio_end(int(time.time()) + AUDIO_KEPT)] if output.audio is not None else []
    yield b"".join([*tail, stream.finish(got.finish), stream.usage(got.usage()), DONE])  # type: ignore[arg-type]


def _frame(stream: ChatStream, say: Callable[[str], bytes], got: Collected, name: str, item: Any) -> bytes:
    got.take(name, item.data, item.array)
    if name == "text":
        return say(text) if (text := item.data.get("text")) else b""
    if item.array is None:
        return b""
    pcm = audio.pcm16(item.array)
    got.heard(pcm)
    return stream.audio(pcm)
