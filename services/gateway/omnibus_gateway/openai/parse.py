"""Parsing of HTTP bodies to a checked ``ChatRequest``.

Error messages name the accepted values of a field, read from its type. JSON with too many values is rejected before
decoding it. The event loop that all tenants share decodes bodies. Long strings, such as media, decode fast, but sixty
megabytes of brackets would block it for many seconds. So the gateway first counts the characters between values:
brackets and commas, which base64 does not contain. Only if there are many does it check which of them are inside
strings.
"""

import asyncio
import re
from collections.abc import AsyncIterable, Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import inspect

from omnibus.errors import BadRequest, TooLarge
from omnibus_gateway.openai.chat_request import (
    AppChatRequest,
    AssistantMessage,
    ChatRequest,
    FunctionMessage,
    Message,
)
from omnibus_gateway.openai.options import GUIDED, check_response_format, check_tools, check_vllm_params
from omnibus_gateway.tenancy import body_budget
from omnibus_gateway.tenancy.body_budget import Upload

_STEP = re.compile(r"\[(?P<item>[^\]]*)\]|\.?(?P<field>[^.\[]+)")
#: Limit of the values that an error lists.
_MAX_LISTED = 40


def accepted_values(body: Any, path: str, sent_body: Any = None) -> tuple[str, ...]:
    """Return the strings that ``path`` (as ``messages[0].role``) accepts in ``body``.

    ``body`` is the type of the request's body. ``sent_body`` is the value from the client, as JSON or decoded. It
    selects
    the struct of a union: a tool message has other parts than a user message. Returns () if the field is not a choice
    among strings.
    """
    types, value = [inspect.type_info(body)], _decode(sent_body)
    for step in _STEP.finditer(path):
        parents = [each for kind in types for each in _matching_types(kind, value)]
        types = [inner for each in parents for inner in _inner_types(each, step["field"])]
        if not types:
            return tuple(dict.fromkeys(_tags(parents, step["field"] or "")))[:_MAX_LISTED]
        value = _step_into(value, step)
    options = (value for each in types for value in _literals(each))
    return tuple(dict.fromkeys(options))[:_MAX_LISTED]


def _decode(sent_body: Any) -> Any:
    if not isinstance(sent_body, bytes | bytearray | memoryview):
        return sent_body
    try:
        return msgspec.json.decode(sent_body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _matching_types(kind: inspect.Type, value: Any) -> Iterator[inspect.Type]:
    """Yield the alternative of ``kind`` with ``value``'s tag, else all of them."""
    kinds = list(_alternatives(kind))
    tagged_types = [
        each
        for each in kinds
        if isinstance(each, inspect.StructType)
        and isinstance(value, dict)
        and each.tag is not None
        and value.get(each.tag_field) == each.tag
    ]
    yield from tagged_types or kinds


def _step_into(value: Any, step: re.Match[str]) -> Any:
    if step["field"] is not None:
        return value.get(step["field"]) if isinstance(value, dict) else None
    item = step["item"]
    is_item = isinstance(value, list) and item.isdigit() and int(item) < len(value)
    return value[int(item)] if is_item else None


def _inner_types(kind: inspect.Type, field: str | None) -> Iterator[inspect.Type]:
    """Yield the types inside ``kind``: its field of that name, or the items of a list if ``field`` is None."""
    for each in _alternatives(kind):
        if field is None and isinstance(each, inspect.ListType):
            yield each.item_type
        elif isinstance(each, inspect.StructType):
            yield from (field_info.type for field_info in each.fields if field_info.encode_name == field)


def _tags(types: list[inspect.Type], field: str) -> Iterator[str]:
    """Yield the values of ``field`` if it is the tag of structs."""
    for kind in types:
        for each in _alternatives(kind):
            if isinstance(each, inspect.StructType) and each.tag_field == field:
                yield str(each.tag)


def _literals(kind: inspect.Type) -> Iterator[str]:
    for each in _alternatives(kind):
        if isinstance(each, inspect.LiteralType):
            yield from (value for value in each.values if isinstance(value, str))


def _alternatives(kind: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from _alternatives(each)
    elif isinstance(kind, inspect.Metadata):
        yield from _alternatives(kind.type)
    else:
        yield kind


#: Limit of the values in the JSON of one request.
MAX_VALUES = 200_000
#: Limit of the bytes outside strings, on average per value.
_VALUE_BYTES = 16
#: Limit of the quotes that the search for strings examines.
_MAX_QUOTES = 50_000
_PIECE_BYTES = 1 << 20
_MARKS = b"[{,"
_BACKSLASH = 0x5C


def check_values(body: bytes | bytearray | memoryview) -> None:
    """Raises ``TooLarge`` for more than ``MAX_VALUES`` values."""
    if len(body) > MAX_VALUES and _has_marks(body) and _has_values(bytes(body)):
        raise TooLarge(f"The request body has more than {MAX_VALUES} values, which is the limit.")


def _has_marks(body: bytes | bytearray | memoryview) -> bool:
    """Return whether there are more marks than allowed values, even inside strings."""
    count, letters = 0, np.frombuffer(body, np.uint8)
    for at in range(0, len(letters), _PIECE_BYTES):
        piece = letters[at : at + _PIECE_BYTES]
        count += sum(int(np.count_nonzero(piece == mark)) for mark in _MARKS)
        if count > MAX_VALUES:
            return True
    return False


def _has_values(body: bytes) -> bool:
    """Return whether there are too many marks outside strings.

    Also True if there are more quotes than the search examines.
    """
    inside, count, outside, at = False, 0, 0, 0
    for _ in range(_MAX_QUOTES):
        quote = body.find(b'"', at)
        end = quote if quote >= 0 else len(body)
        if not inside:
            outside += end - at
            if outside > MAX_VALUES * _VALUE_BYTES:
                return True
            count += sum(body.count(mark, at, end) for mark in _MARKS)
        if count > MAX_VALUES or quote < 0:
            return count > MAX_VALUES
        inside = not inside or _is_escaped(body, at, quote)
        at = quote + 1
    return True


def _is_escaped(body: bytes, start: int, quote: int) -> bool:
    """Return whether the quote is part of the open string. ``start`` follows the previous quote."""
    if quote == start or body[quote - 1] != _BACKSLASH:
        return False
    piece = body[start:quote]
    return (len(piece) - len(piece.rstrip(b"\\"))) % 2 == 1


_DECODER = msgspec.json.Decoder(ChatRequest)
_APP_DECODER: msgspec.json.Decoder[ChatRequest] = msgspec.json.Decoder(AppChatRequest)
_PLACE = re.compile(r"(?P<text>.*?)(?: - at (?:`key` in )?`\$\.?(?P<param>.*)`)?", re.DOTALL)
_INTEGER_IS_FLOAT = re.compile(r"Expected `[^`]*\bint\b[^`]*`, got `float`")
#: The largest integer up to which floats represent all integers.
MAX_EXACT_INTEGER = 2**53
_FIELD = re.compile(r"Object (?P<kind>missing required|contains unknown) field `(?P<name>.*)`", re.DOTALL)
Body = TypeVar("Body")
#: Text fields that an answer with images does not support.
_TEXT_FIELDS = (
    "tools",
    "response_format",
    "logprobs",
    "logit_bias",
    "frequency_penalty",
    "presence_penalty",
    "min_p",
    "structured_outputs",
    *GUIDED,
)
#: Limit of the parts of all messages of a chat.
MAX_PARTS = 4096
#: Beginnings of the decoder's messages about a value that is not accepted.
_WRONG_CHOICE = ("Invalid enum value", "Invalid value")
#: Size from which a piece of a body is stored as received until the body is complete, in bytes.
_OWN_PIECE_BYTES = 4 << 10
_MAX_QUOTED_CHARS = 160  # limit of the client's text that an error may repeat


#: Fields of ``check_vllm_params``, read in one call.
_VLLM_FIELDS = (
    "structured_outputs", *GUIDED, "min_tokens", "truncate_prompt_tokens", "add_generation_prompt",
    "continue_final_message", "echo", "best_of", "prompt_logprobs", "priority", "mm_processor_kwargs",
    "sampling_params_list",
)  # fmt: skip
_read_vllm_fields = attrgetter(*_VLLM_FIELDS)
_NO_VLLM_FIELDS = (None,) * len(_VLLM_FIELDS)


def _one_of(*values: object) -> Callable[[Any], bool]:
    return lambda value: value in values


# Values of each field that do not change the answer. Any other value is rejected with the field's name.
_ACCEPTED_VALUES: dict[str, Callable[[Any], bool]] = {
    "functions": _one_of([]),
    "function_call": _one_of("none", "auto"),
    "verbosity": _one_of("medium"),
    "web_search_options": _one_of(),
    "moderation": _one_of(),
}


async def read_body(chunks: AsyncIterable[bytes], limit: int, declared_size: int | None = None) -> bytes:
    """Collect a request body of at most ``limit`` bytes.

    ``declared_size`` is the Content-Length, if any: a body that is too large is rejected before it is read.
    Raises ``TooLarge``, ``TooSlow``, and ``Overloaded`` if this gateway currently has no room for it.
    """
    upload = body_budget.current_upload()
    _check_body(declared_size or 0, limit)
    upload.check_declared_size(declared_size or 0)
    if upload.whole:
        return await _collect_body(chunks, limit, upload)
    pace = upload.start_clock()
    try:
        async with asyncio.timeout_at(pace.next_deadline) as timer:
            return await _collect_body(chunks, limit, upload, lambda received: pace.check_rate(received, timer))
    except TimeoutError:
        raise pace.too_slow_error() from None
    finally:
        upload.seconds = pace.elapsed_seconds


async def _collect_body(
    chunks: AsyncIterable[bytes], limit: int, upload: Upload, on_more: Callable[[int], None] = lambda _: None
) -> bytes:
    """Join the pieces at the end. Small ones share a buffer: a million single bytes would take 40 times the memory."""
    pieces: list[bytes | bytearray] = []
    received_bytes = 0
    async for chunk in chunks:
        before, received_bytes = received_bytes, received_bytes + len(chunk)
        _check_body(received_bytes, limit)
        upload.count_bytes(before, received_bytes)
        if len(chunk) >= _OWN_PIECE_BYTES or not before:
            pieces.append(chunk)
        elif isinstance(pieces[-1], bytearray):
            pieces[-1] += chunk
        else:
            pieces.append(bytearray(chunk))
        if before:
            on_more(received_bytes)
    await upload.take_turn(received_bytes)
    whole = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    return bytes(whole)


def decode_body(decoder: msgspec.json.Decoder[Body], body: bytes) -> Body:
    """Decode the body of a request. Raises ``BadRequest`` with ``param``, and ``TooLarge``."""
    check_values(body)
    try:
        return decode_json(decoder, body)
    except msgspec.ValidationError as error:
        raise invalid_request(str(error), decoder.type, body) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadRequest("The request body is not valid JSON in UTF-8.") from None


def decode_json(decoder: msgspec.json.Decoder[Body], body: bytes | bytearray | memoryview) -> Body:
    """Decode ``body``. A number such as ``24.0`` is an integer too, as in JSON Schema.

    Raises the errors of ``msgspec``.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        if not _INTEGER_IS_FLOAT.match(str(error)):
            raise
    return decoder.decode(msgspec.json.encode(_INTEGRAL_DECODER.decode(body)))


def convert_json(value: Any, kind: type[Body]) -> Body:
    """Convert decoded JSON to ``kind``, with integers as in ``decode_json``. Raises the errors of ``msgspec``."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        if not _INTEGER_IS_FLOAT.match(str(error)):
            raise
    return msgspec.convert(_INTEGRAL_DECODER.decode(msgspec.json.encode(value)), kind)


def _as_number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() and abs(value) <= MAX_EXACT_INTEGER else value


_INTEGRAL_DECODER = msgspec.json.Decoder(float_hook=_as_number)


def parse_chat(body: bytes | bytearray | memoryview, *, app: bool = False) -> ChatRequest:
    """Decode and check one chat request. For an ``app``, ``model`` is optional.

    Raises ``BadRequest``; ``param`` is the JSON path in OpenAI's style (``messages[0].content``). Raises ``TooLarge``
    for too many values or too many parts of messages.
    """
    check_values(body)
    try:
        request = decode_json(_APP_DECODER if app else _DECODER, body)
    except msgspec.ValidationError as error:
        raise invalid_request(str(error), ChatRequest, body) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise BadRequest("The request body is not valid JSON in UTF-8.") from None
    except RecursionError:
        raise BadRequest("The request body is nested too deeply.") from None
    check_chat(request)
    return request


def check_chat(request: ChatRequest) -> None:
    """Raises ``BadRequest`` with the name of the first unsupported field, and ``TooLarge``."""
    if sum(len(parts) for parts in map(_message_parts, request.messages)) > MAX_PARTS:
        raise TooLarge(f"The messages have more than {MAX_PARTS} parts, which is the limit.", param="messages")
    _check_supported(request)
    _check_audio(request)
    _check_images(request)
    _check_stream(request)
    if _read_vllm_fields(request) != _NO_VLLM_FIELDS:
        check_vllm_params(request)
    if request.n is not None:
        _check_choices(request)
    if request.tools or request.tool_choice or request.response_format or request.top_logprobs or request.wants_images:
        check_tools(request.tools, request.tool_choice)
        check_response_format(request.response_format)
        _check_shapes(request)
    for index, message in enumerate(request.messages):
        _check_message(message, f"messages[{index}]", request.wants_images)


def _message_parts(message: Message) -> Sequence[object]:
    content = None if isinstance(message, FunctionMessage) else message.content
    return content if isinstance(content, list) else ()


def _check_body(nbytes: int, limit: int) -> None:
    if nbytes > limit:
        raise TooLarge(f"The request body has more than {limit} bytes, which is the limit.")


def invalid_request(complaint: str, body: Any = None, sent_body: Any = None) -> BadRequest:
    """Convert the decoder's message to OpenAI's wording and style of paths.

    ``body`` is the type of the value ``sent_body``, which is JSON or decoded. The accepted values are read from both.
    """
    place = _PLACE.fullmatch(complaint)
    text, param = (place["text"], place["param"] or "") if place else (complaint, "")
    field = _FIELD.fullmatch(text)
    if field is None:
        values = accepted_values(body, param, sent_body) if body is not None and text.startswith(_WRONG_CHOICE) else ()
        hint = f": it must be one of {', '.join(values)}" if values else ""
        return BadRequest(f"Invalid request: {text[:_MAX_QUOTED_CHARS]}{hint}.", param=param[:_MAX_QUOTED_CHARS])
    name = field["name"][:_MAX_QUOTED_CHARS]
    full = f"{param}.{name}" if param else name
    if field["kind"] == "contains unknown":
        return BadRequest(f"Unrecognized request argument supplied: {name}", param=full)
    return BadRequest(f"Missing required parameter: '{full}'.", param=full)


def _check_supported(request: ChatRequest) -> None:
    for name, harmless in _ACCEPTED_VALUES.items():
        value = getattr(request, name)
        if value is not None and not harmless(value):
            raise _unsupported_value(name)
    if request.max_tokens == 0:
        raise token_limit_error()
    if request.max_tokens is not None and request.max_completion_tokens is not None:
        raise BadRequest("Set max_completion_tokens or max_tokens, not both.", param="max_tokens")


def token_limit_error() -> BadRequest:
    """Return the error of a limit of 0 tokens."""
    return BadRequest("max_tokens must be at least 1, or -1 for the rest of the context.", param="max_tokens")


def _check_audio(request: ChatRequest) -> None:
    if request.wants_audio and request.audio is None:
        raise BadRequest("Audio output requires audio: {voice, format}.", param="audio")


def _check_images(request: ChatRequest) -> None:
    if request.wants_images and request.wants_audio:
        raise BadRequest("modalities must not have both image and audio: request one of them.", param="modalities")
    if request.image_config is not None and not request.wants_images:
        raise BadRequest("image_config is only allowed when modalities contain image.", param="image_config")


def _check_stream(request: ChatRequest) -> None:
    if request.stream_options is not None and not request.stream:
        raise BadRequest("stream_options is only allowed when stream is true.", param="stream_options")


def _check_choices(request: ChatRequest) -> None:
    if request.choice_count == 1:
        return
    if request.wants_audio:
        raise BadRequest("n must be 1 for audio: omit n, or audio in modalities.", param="n")
    if request.wants_images:
        raise BadRequest("n must be 1 for images: omit it, and set image_config.n to the number of images.", param="n")


def _check_shapes(request: ChatRequest) -> None:
    """Raises ``BadRequest`` for fields that exclude each other."""
    if request.top_logprobs and not request.logprobs:
        raise BadRequest("top_logprobs is only allowed when logprobs is true.", param="top_logprobs")
    if request.ignore_eos and request.is_shaped:
        raise BadRequest("ignore_eos is not supported for structured answers: omit it.", param="ignore_eos")
    if request.wants_images:
        for name in _TEXT_FIELDS:
            if getattr(request, name):
                raise BadRequest(f"'{name}' is not supported for answers with images: omit it.", param=name)


def _check_message(message: Message, param: str, draws: bool) -> None:
    if isinstance(message, FunctionMessage):
        role = message.__struct_config__.tag
        raise BadRequest(
            f"Messages of role {role!r} are not supported: use system, developer, user, assistant or tool.",
            param=f"{param}.role",
        )
    if isinstance(message, AssistantMessage):
        _check_assistant(message, param)
        contents = (message.content, message.refusal, message.audio, message.tool_calls or None)
        if not draws and all(each is None for each in contents):
            raise BadRequest(f"Missing required parameter: '{param}.content'.", param=f"{param}.content")


def _check_assistant(message: AssistantMessage, param: str) -> None:
    if message.function_call is not None:
        raise _unsupported_value(f"{param}.function_call")


def _unsupported_value(param: str) -> BadRequest:
    return BadRequest(f"The value of '{param}' is not supported: omit it.", param=param)
