"""Answer of ``serve`` in the format of the gateway: JSON, or the streams of a chat."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from omnibus.encoding import audio as encoding_audio
from omnibus.errors import AppFailed, BadRequest
from omnibus.task import Audio, ChatOutput, Result, Source, TextChunk
from omnibus.tensors.item import Item

#: Types of the parts of a chat's outputs, by the names of ``ChatOutput``'s fields.
CHAT_PARTS: dict[str, Any] = {"text": TextChunk, "audio": Audio}
#: Most samples of one item.
_MAX_CHUNK_SAMPLES = 1 << 20


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
        _collect_items("text", output.text), _collect_items("audio", output.audio)
    )
    text = None if output.text is None else "".join(item.data.get("text", "") for item in text_items)
    return ChatAnswer(text=text, audio=None if output.audio is None else _encode_wav(audio_items))


async def _collect_items(name: str, value: Any) -> list[Item]:
    return [] if value is None else [item async for item in iterate_items(name, value)]


def _encode_wav(items: list[Item]) -> EncodedAudio:
    """Return a mono WAV file of 16-bit samples."""
    arrays = [item.array for item in items if item.array is not None]
    samples = np.concatenate(arrays) if arrays else np.zeros(0, np.float32)
    rate = items[0].data["rate"] if items else Audio().rate
    return EncodedAudio(data=base64.b64encode(encoding_audio.encode_audio(samples, rate, "wav")).decode())


def chat_outputs(output: Any) -> dict[str, Any]:
    """Return the present outputs of a chat, by name. Raises ``AppFailed`` for anything but a ``ChatOutput``."""
    if not isinstance(output, ChatOutput):
        raise AppFailed(f"`serve` of a chat app must return a `ChatOutput`, not {_describe_value(output)}")
    outputs = {name: value for name in CHAT_PARTS if (value := getattr(output, name)) is not None}
    if not outputs:
        raise AppFailed("`serve` returned a `ChatOutput` without text and audio: set at least one")
    return outputs


def direct_source(name: str, value: Any) -> Source | None:
    """Return the source of ``value`` if the gateway can read it. This must be the unchanged output of a node."""
    raw = type(value) is Result and not value.is_transformed and value.element is CHAT_PARTS[name]
    return value.source if raw else None


async def iterate_items(name: str, value: Any) -> AsyncIterator[Item]:
    """Yield items of a chat's output that the app computes."""
    make_items = _MAKERS[name]
    if type(value) is Result and value.kind != "stream":
        value = await value
    if hasattr(value, "__aiter__"):
        async for part in value:
            for item in make_items(part):
                yield item
    else:
        for item in make_items(value):
            yield item


def _text_items(part: Any) -> Iterator[Item]:
    if isinstance(part, str):
        yield Item({"text": part})
    elif isinstance(part, TextChunk):
        yield Item(part.model_dump(exclude_defaults=True))
    else:
        raise AppFailed(f"the answer's text contains {_describe_value(part)}: it must be text or `TextChunk`s")


def _audio_items(part: Any) -> Iterator[Item]:
    rate, array = (part.rate, part.array) if isinstance(part, Audio) else (Audio().rate, part)
    if not isinstance(array, np.ndarray) or array.ndim != 1 or not np.issubdtype(array.dtype, np.floating):
        raise AppFailed(
            f"the answer's audio contains {_describe_value(part)}: it must be float samples of one dimension, or "
            "`Audio`"
        )
    for start in range(0, len(array), _MAX_CHUNK_SAMPLES):
        yield Item({"rate": rate}, array[start : start + _MAX_CHUNK_SAMPLES].astype(np.float32, copy=False))


_MAKERS: dict[str, Callable[[Any], Iterator[Item]]] = {"text": _text_items, "audio": _audio_items}


def _describe_value(value: Any) -> str:
    return f"{value!r}" if isinstance(value, Result) else f"a value of type {type(value).__name__}"
