"""From streams to the HTTP answer: whole as JSON, or piece by piece as server-sent events."""

import time
from collections.abc import AsyncIterator, Callable
from secrets import token_hex
from typing import Any

import numpy as np

from omnibus.encoding.sound import pcm16
from omnibus.errors import OmnibusError
from omnibus.task import ChatOutput
from services.gateway.arrivals import arrivals
from services.gateway.collected import Collected
from services.gateway.openai import answers
from services.gateway.openai.schema import ChatRequest
from services.gateway.openai.stream import DONE, ChatStream
from services.gateway.run import Run
from services.gateway.sounding import Sounding, render
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
        got.heard(pcm16(samples))
    return samples


async def whole(run: Run, request: ChatRequest, output: ChatOutput, got: Collected) -> bytes:
    """The body of a ``chat.completion``."""
    samples = await collect(output, got)
    spoken = None
    if request.audio is not None and request.speaks:
        spoken = answers.Audio(
            id=f"audio_{token_hex(16)}",
            data=await render(samples, got.rate, request.audio.format),
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
    stream = ChatStream(
        f"chatcmpl-{run.id}",
        run.model,
        int(run.created),
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
        fingerprint=f"epoch-{run.epoch}",
    )
    head = [stream.role("" if request.writes else None)]
    if output.audio is not None:
        head.append(stream.audio_start(f"audio_{token_hex(16)}"))
    yield b"".join(head)
    say = stream.text if request.writes else stream.transcript
    sounding = Sounding(request.audio.format if request.audio is not None else "pcm16")
    try:
        async for batch in merge(arrivals(output)):
            frames = [say(text) for name, item in batch if (text := _text(got, name, item))]
            samples = [item.array for _, item in batch if item.array is not None]
            if samples:
                frames.append(stream.audio(await _sound(sounding, samples, got)))
            yield b"".join(frames)
        tail = [] if output.audio is None else [stream.audio(await sounding.close(got.rate))]
    except OmnibusError as error:
        done("failed")
        yield stream.error(error, run.id)
        return
    done("done")
    tail += [] if output.audio is None else [stream.audio_end(int(time.time()) + AUDIO_KEPT)]
    yield b"".join([*tail, stream.finish(got.finish), stream.usage(got.usage()), DONE])  # type: ignore[arg-type]


def _text(got: Collected, name: str, item: Any) -> str:
    got.take(name, item.data, item.array)
    return item.data.get("text", "") if name == "text" else ""


async def _sound(sounding: Sounding, samples: list[np.ndarray], got: Collected) -> bytes:
    whole = samples[0] if len(samples) == 1 else np.concatenate(samples)
    got.heard(pcm16(whole))
    return await sounding.push(whole, got.rate)
