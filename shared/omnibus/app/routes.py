"""Routes of the OpenAI API that the functions of an app serve.

Each function takes the request of a composite task and returns its response, as ``serve`` does in a chat. It may
therefore return the response of such a task as it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from omnibus.app.protocol import CHAT
from omnibus.task import Audio, ChatInput, ChatOutput, TextChunk
from omnibus.task.library import (
    RecordingInput,
    SpeechOutput,
    TextInput,
    TextToSpeechInput,
    Transcript,
    TranscriptChunk,
    Vectors,
)

TRANSCRIPTIONS, SPEECH, EMBEDDINGS = "transcriptions", "speech", "embeddings"


@dataclass(frozen=True)
class AppRoute:
    """A route: the ``function`` of an app's module that serves it, and the types of that function.

    ``parts`` are the types of the parts of each output of the response. ``inputs`` and ``outputs`` are modalities,
    empty where they depend on the app.
    """

    function: str
    request: type
    response: type
    parts: Mapping[str, type]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    @property
    def signature(self) -> str:
        return f"async def {self.function}(request: {self.request.__name__}) -> {self.response.__name__}"


ROUTES: dict[str, AppRoute] = {
    CHAT: AppRoute("serve", ChatInput, ChatOutput, {"text": TextChunk, "audio": Audio}),
    TRANSCRIPTIONS: AppRoute(
        "transcribe", RecordingInput, Transcript, {"text": TranscriptChunk}, ("audio",), ("transcript",)
    ),
    SPEECH: AppRoute("speak", TextToSpeechInput, SpeechOutput, {"audio": Audio}, ("text",), ("audio",)),
    EMBEDDINGS: AppRoute(
        "embed", TextInput, Vectors, {"embedding": np.ndarray, "tokens": int}, ("text",), ("embedding",)
    ),
}


def route_modalities(routes: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the modalities of requests and responses, each empty if a route leaves it open."""
    sides: list[tuple[str, ...]] = []
    for side in ("inputs", "outputs"):
        modalities: list[Any] = [getattr(ROUTES[route], side) for route in routes]
        sides.append(tuple(dict.fromkeys(each for kinds in modalities for each in kinds)) if all(modalities) else ())
    return sides[0], sides[1]
