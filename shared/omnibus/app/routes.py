"""Routes of the OpenAI API that the functions of an app serve.

Each function takes the request of a composite task and returns its response, as ``serve`` does in a chat. It may
therefore return the response of such a task as it is.

Answer of ``serve`` in the format of the gateway: JSON, or the streams of a chat.
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from omnibus.app.protocol import CHAT
from omnibus.encoding import audio as encoding_audio
from omnibus.errors import AppFailed, BadRequest
from omnibus.task import Audio, ChatInput, ChatOutput, Result, Source, TextChunk
from omnibus.task.library import (
    RecordingInput,
    SpeechOutput,
    TextInput,
    TextToSpeechInput,
    Transcript,
    TranscriptChunk,
    Vectors,
)
from omnibus.task.result import KEY
from omnibus.tensors.handle import Item

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


_MATRIX_DIMENSIONS = 2
#: Most samples of one item, or numbers of an array.
_MAX_CHUNK_VALUES = 1 << 20


def parse_request(adapter: TypeAdapter[Any], body: bytes) -> Any:
    """Parse a request's body as the argument of ``serve``. Raises ``BadRequest`` with the location of the error."""
    try:
        return adapter.validate_json(body)
    except ValidationError as error:
        param, message = _first_error(error)
        raise BadRequest(f"{param or 'the request'}: {message}", param=param) from None


async def encode_answer(adapter: TypeAdapter[Any] | None, value: Any) -> bytes:
    """Encode an answer, or a part of one, as JSON. Results in it are read first.

    Raises ``AppFailed`` if the value cannot be JSON or does not match the annotation of ``serve``.
    """
    value = await (_chat_answer(value) if isinstance(value, ChatOutput) else read_results(value))
    try:
        if adapter is None:
            return to_json(value, inf_nan_mode="null", fallback=_numpy_to_builtins)
        return adapter.dump_json(adapter.validate_python(value))
    except ValidationError as error:
        param, message = _first_error(error)
        raise AppFailed(
            f"`serve` returned a value that does not match its annotation: {param + ': ' if param else ''}{message}"
        ) from error
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise AppFailed(f"`serve` must return JSON: {str(error).splitlines()[0][:200]}") from error


async def read_results(value: Any) -> Any:
    """Return ``value`` with every result in it read."""
    if type(value) is Result:
        return await value
    if not _holds_result(value):
        return value
    if isinstance(value, BaseModel):
        value = dict(value.__dict__)
    if isinstance(value, dict):
        return {key: await read_results(element) for key, element in value.items()}
    return [await read_results(element) for element in value]


def _holds_result(value: Any) -> bool:
    if isinstance(value, BaseModel):
        value = value.__dict__
    if type(value) is dict:
        return any(map(_holds_result, value.values()))
    if type(value) in (list, tuple):
        return any(map(_holds_result, value))
    return type(value) is Result


def _numpy_to_builtins(value: Any) -> Any:
    """Convert arrays and numbers of numpy to JSON types."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")


def _first_error(error: ValidationError) -> tuple[str, str]:
    """Return the location and the message of the first error. A location is such as ``messages[0].content``."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"]).removeprefix(".")
    return where, first["msg"]


# Chats


class EncodedAudio(BaseModel):
    """Audio as base64: a file of ``format``."""

    format: str = "wav"
    data: str


class ChatAnswer(BaseModel):
    """A ``ChatOutput`` as JSON."""

    text: str | None = None
    audio: EncodedAudio | None = None


async def _chat_answer(output: ChatOutput) -> ChatAnswer:
    text_items, audio_items = await asyncio.gather(
        _collect_items(TextChunk, "text", output.text), _collect_items(Audio, "audio", output.audio)
    )
    text = None if output.text is None else "".join(item.data.get("text", "") for item in text_items)
    return ChatAnswer(text=text, audio=None if output.audio is None else _encode_wav(audio_items))


async def _collect_items(part_type: type, name: str, value: Any) -> list[Item]:
    return [] if value is None else [item async for item in iterate_items(part_type, name, value)]


def _encode_wav(items: list[Item]) -> EncodedAudio:
    """Return a mono WAV file of 16-bit samples."""
    arrays = [item.array for item in items if item.array is not None]
    samples = np.concatenate(arrays) if arrays else np.zeros(0, np.float32)
    rate = items[0].data["rate"] if items else Audio().rate
    return EncodedAudio(data=base64.b64encode(encoding_audio.encode_audio(samples, rate, "wav")).decode())


def route_outputs(route: AppRoute, output: Any) -> dict[str, Any]:
    """Return the present outputs of a response, by name. Raises ``AppFailed`` for anything but ``route.response``."""
    kind = route.response.__name__
    if not isinstance(output, route.response):
        raise AppFailed(f"`{route.function}` must return a `{kind}`, not {_describe_value(output)}")
    outputs = {name: value for name in route.parts if (value := getattr(output, name)) is not None}
    if not outputs:
        raise AppFailed(f"`{route.function}` returned a `{kind}` without {' and '.join(route.parts)}: set at least one")
    return outputs


def direct_source(route: AppRoute, name: str, value: Any) -> Source | None:
    """Return the source of ``value`` if the gateway can read it. This must be the unchanged output of a node."""
    raw = type(value) is Result and not value.is_transformed and value.element is route.parts[name]
    return value.source if raw else None


async def iterate_items(part_type: type, name: str, value: Any) -> AsyncIterator[Item]:
    """Yield items of an output that the app computes, whose parts have ``part_type``."""
    make_items = partial(_MAKERS[part_type], name)
    if type(value) is Result and value.kind != "stream":
        value = await value
    if hasattr(value, "__aiter__"):
        async for part in value:
            for item in make_items(part):
                yield item
    else:
        for item in make_items(value):
            yield item


def _text_items(name: str, part: Any, kind: type[TextChunk] | type[TranscriptChunk]) -> Iterator[Item]:
    if isinstance(part, str):
        yield Item({"text": part})
    elif isinstance(part, kind):
        yield Item(part.model_dump(exclude_defaults=True))
    else:
        raise AppFailed(f"the answer's {name} contains {_describe_value(part)}: it must be text or `{kind.__name__}`s")


def _audio_items(name: str, part: Any) -> Iterator[Item]:
    rate, array = (part.rate, part.array) if isinstance(part, Audio) else (Audio().rate, part)
    if not isinstance(array, np.ndarray) or array.ndim != 1 or not np.issubdtype(array.dtype, np.floating):
        raise AppFailed(
            f"the answer's {name} contains {_describe_value(part)}: it must be float samples of one dimension, or "
            "`Audio`"
        )
    for start in range(0, len(array), _MAX_CHUNK_VALUES):
        yield Item({"rate": rate}, array[start : start + _MAX_CHUNK_VALUES].astype(np.float32, copy=False))


def _array_items(name: str, part: Any) -> Iterator[Item]:
    array = np.asarray(part, np.float32) if not isinstance(part, str | bytes) else np.zeros(0)
    if array.ndim != _MATRIX_DIMENSIONS:
        raise AppFailed(f"the answer's {name} must be an array [texts, width], not {_describe_value(part)}")
    rows = max(1, _MAX_CHUNK_VALUES // max(1, array.shape[1]))
    for start in range(0, len(array), rows):
        yield Item({}, array[start : start + rows])


def _number_items(name: str, part: Any) -> Iterator[Item]:
    if isinstance(part, bool) or not isinstance(part, int | np.integer) or part < 0:
        raise AppFailed(f"the answer's {name} must be a whole number, not {_describe_value(part)}")
    yield Item({KEY: int(part)})


_MAKERS: dict[type, Callable[[str, Any], Iterator[Item]]] = {
    TextChunk: partial(_text_items, kind=TextChunk),
    TranscriptChunk: partial(_text_items, kind=TranscriptChunk),
    Audio: _audio_items,
    np.ndarray: _array_items,
    int: _number_items,
}


def _describe_value(value: Any) -> str:
    return f"{value!r}" if isinstance(value, Result) else f"a value of type {type(value).__name__}"
