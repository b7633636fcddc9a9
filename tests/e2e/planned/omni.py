"""Requests of each type to the example's simulated any-to-any model."""

import base64
from collections.abc import Sequence
from typing import Any

from omnibus.profiling.workload import make_audio, make_image
from tests.unit.planner.simulate.omni import HEARD, SEEN, SPOKEN, TEXT

MODEL = "omni"
#: Tokens of text in a request of each type, in the order of shares.
TEXT_TOKENS = {SEEN: 40, HEARD: 22, TEXT: 68, SPOKEN: 72}
GOLDEN = 0.6180339887498949  # multiples of it fill [0, 1) evenly


def image_part() -> dict[str, Any]:
    data = base64.b64encode(make_image(448, 448, 1)).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def audio_part() -> dict[str, Any]:
    data = base64.b64encode(make_audio(2.0, 1)).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


_MEDIA = {SEEN: [image_part()], HEARD: [audio_part()], TEXT: [], SPOKEN: []}


def kind_of(shares: Sequence[float], number: int) -> str:
    """Type of the ``number``-th request; types occur by their shares."""
    place = number * GOLDEN % 1
    for kind, share in zip(TEXT_TOKENS, shares, strict=True):
        place -= share
        if place < 0:
            return kind
    return TEXT


def chat_body(kind: str, number: int, tokens: int = 0) -> dict[str, Any]:
    """A request of ``kind``; without ``tokens``, the engine draws the answer's length."""
    text = {"type": "text", "text": f"question {number:06d} ".ljust(4 * TEXT_TOKENS[kind], ".")}
    body: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": [*_MEDIA[kind], text]}]}
    if tokens:
        body |= {"max_tokens": tokens, "ignore_eos": True}
    if kind in (HEARD, SPOKEN):
        body |= {"modalities": ["text", "audio"], "audio": {"voice": "Chelsie", "format": "wav"}}
    return body
