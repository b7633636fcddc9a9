"""A voice assistant with trained models, against its engines alone.

    python -m tests.bench.real

    real.voice.first_audio_over_engines   seconds from the end of a spoken question to the first audio of the answer at
                                          the client, over those that the engines need for it: the question recognized,
                                          the first sentence written, and that sentence spoken

One system runs the models and apps of ``omnibus up --real``. Engines are measured in the same rounds, each by a separate
request, as its executor counts its seconds. The result is the median of the rounds.
"""

import asyncio
import base64
import contextlib
import io
import json
import re
import statistics
import sys
import time
from typing import Any, NamedTuple

import uvloop

from omnibus.bus import Bus
from omnibus.cli.demo_real import QUESTION, DemoClient, real_stack
from omnibus.recording.records import find_record
from tests.bench.cases import REAL_FIRST_AUDIO

_ROUNDS, _TOKENS = 7, 45
_END_SECONDS = 5.0


class SpokenAnswer(NamedTuple):
    """Seconds until the first audio, the first sentence, and its tokens."""

    first_audio: float
    sentence: str
    tokens: int


def ask_by_voice(client: DemoClient, question: bytes) -> SpokenAnswer:
    """Ask with a recording, and read the answer to its end."""
    audio = {"data": base64.b64encode(question).decode(), "format": "wav"}
    began = time.perf_counter()
    stream = client.stream_chat([{"type": "input_audio", "input_audio": audio}])
    first_audio, text, tokens = 0.0, "", 0
    for chunk in stream:
        delta: Any = chunk.choices[0].delta if chunk.choices else None
        if (part := getattr(delta, "audio", None)) and part.data:
            first_audio = first_audio or time.perf_counter() - began
        if delta is not None and delta.content and not re.search(r"[.!?]\s", text):
            text, tokens = text + delta.content, tokens + 1
    [sentence] = re.findall(r"^.*?[.!?](?=\s)", text)
    return SpokenAnswer(first_audio, sentence, tokens)


async def engine_seconds(bus: Bus, response: Any) -> float:
    """Return the seconds of engines for an answered request, from its record."""
    id = response.headers["x-request-id"]
    async with asyncio.timeout(_END_SECONDS):
        while True:
            _, end = await find_record(bus, id)
            if end is not None:
                return sum(hop.computed for hop in end.hops)
            await asyncio.sleep(0.05)


async def measure_engines(bus: Bus, client: DemoClient, question: bytes, answer: SpokenAnswer) -> float:
    """Return the seconds of the engines alone, for one sentence."""
    openai = client.openai
    transcript = await asyncio.to_thread(
        openai.audio.transcriptions.with_raw_response.create, model="assistant", file=("speech.wav", question)
    )
    messages: Any = [{"role": "user", "content": transcript.parse().text}]
    chat = await asyncio.to_thread(
        openai.chat.completions.with_raw_response.create,
        model="assistant", messages=messages, temperature=0, max_tokens=answer.tokens,
    )  # fmt: skip
    speech = await asyncio.to_thread(
        openai.audio.speech.with_raw_response.create,
        model="assistant", voice="joe", input=answer.sentence, response_format="wav",
    )  # fmt: skip
    assert answer.sentence in (chat.parse().choices[0].message.content or "")
    return sum([await engine_seconds(bus, each) for each in (transcript, chat, speech)])


async def measure_ratios() -> dict[str, float]:
    """The value by its name."""
    log, ratios = io.StringIO(), []
    with contextlib.redirect_stdout(sys.stderr):
        async with real_stack(log) as stack:
            client = DemoClient(stack)
            question = await asyncio.to_thread(client.generate_speech, QUESTION)
            for number in range(_ROUNDS + 1):
                answer = await asyncio.to_thread(ask_by_voice, client, question)
                engines = await measure_engines(stack.bus, client, question, answer)
                print(f"{answer.first_audio:.3f} s, engines {engines:.3f} s", answer, file=sys.stderr)
                if number:  # the first round warms up
                    ratios.append(answer.first_audio / engines)
    return {REAL_FIRST_AUDIO: round(statistics.median(ratios), 4)}


if __name__ == "__main__":
    print(json.dumps(uvloop.run(measure_ratios())))
