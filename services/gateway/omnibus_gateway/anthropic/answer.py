"""Answers of chats as messages: a complete message, or the events of a stream.

Events of a stream: ``message_start``, the blocks of the content one after another, ``message_delta``, ``message_stop``.
The prompt's tokens are only known at the end, so ``message_delta`` has the usage.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from omnibus.structured.calls import CallPart
from omnibus_gateway.anthropic.wire import (
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    InputJsonDelta,
    Message,
    MessageDelta,
    MessageEvent,
    MessageStart,
    MessageStop,
    MessageTokensDetails,
    MessageUsage,
    OutputBlock,
    SignatureDelta,
    StopDelta,
    StopReason,
    TextContent,
    TextDelta,
    ThinkingContent,
    ThinkingDelta,
    ToolUseContent,
)
from omnibus_gateway.openai.chat_response import (
    NO_PARTS,
    ChatCompletionAudio,
    ChatStream,
    FinishReason,
    StructuredParts,
    Usage,
    call_id,
)
from omnibus_gateway.openai.responses.items import encode_reasoning

_encode = msgspec.json.Encoder().encode
_STOP_REASONS: dict[str, StopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}


def message_id(completion: str) -> str:
    """Return the id of the message with the answer ``completion``."""
    return f"msg_{completion.removeprefix('chatcmpl-')}"


def tool_use_id(answer: str, index: int) -> str:
    """Return the id of call number ``index`` of ``answer``."""
    return f"toolu_{call_id(answer, index).removeprefix('call_')}"


def cut_stop_sequence(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """Return ``text`` without the one of ``stops`` that ends it, and that one."""
    stop = max(filter(text.endswith, stops), key=len, default=None)
    return (text, None) if stop is None else (text.removesuffix(stop), stop)


def stop_delta(reason: FinishReason, stop: str | None, calls: bool) -> StopDelta:
    """Return why the message ended. Calls take precedence over a normal end."""
    if reason == "stop" and stop is not None:
        return StopDelta("stop_sequence", stop)
    return StopDelta("tool_use" if calls and reason == "stop" else _STOP_REASONS[reason], None)


def message_usage(usage: Usage) -> MessageUsage:
    """Convert token counts. Cached tokens are not among the ``input_tokens``."""
    cached = usage.prompt_tokens_details.cached_tokens
    reasoning = usage.completion_tokens_details.reasoning_tokens
    return MessageUsage(
        input_tokens=usage.prompt_tokens - cached,
        output_tokens=usage.completion_tokens,
        cache_read_input_tokens=cached,
        output_tokens_details=MessageTokensDetails(reasoning) if reasoning else msgspec.UNSET,
        omnibus=usage.omnibus,
    )


def thinking_content(reasoning: str, hidden: bool) -> ThinkingContent:
    """Return a block of ``reasoning``. If it is ``hidden``, the signature contains it for later requests."""
    return ThinkingContent("" if hidden else reasoning, encode_reasoning(reasoning if hidden else ""))


def encode_message(  # noqa: PLR0913 - named one by one, and never passed by place
    *,
    id: str,
    model: str,
    created: int,
    text: str | None,
    finish_reason: FinishReason,
    usage: Usage,
    audio: ChatCompletionAudio | None = None,
    fingerprint: str = "",
    parts: StructuredParts = NO_PARTS,
    stops: Sequence[str] = (),
    hides_reasoning: bool = False,
) -> bytes:
    """Encode a complete response, with the arguments of ``chat_response.encode_completion``.

    ``stops`` are its stop sequences. With ``hides_reasoning``, the texts of its reasoning are empty.
    """
    answer_text, stop = cut_stop_sequence(text or "", stops if finish_reason == "stop" else ())
    content: list[OutputBlock] = []
    if parts.reasoning:
        content.append(thinking_content(parts.reasoning, hides_reasoning))
    if answer_text:
        content.append(TextContent(answer_text))
    content += [
        ToolUseContent(tool_use_id(id, index), name, _read_input(arguments))
        for index, (name, arguments) in enumerate(parts.calls)
    ]
    end = stop_delta(finish_reason, stop, bool(parts.calls))
    return _encode(Message(message_id(id), model, content, message_usage(usage), end.stop_reason, end.stop_sequence))


def _read_input(arguments: str) -> dict[str, Any]:
    """Return the arguments of a call; {} if ``max_tokens`` has cut them."""
    try:
        return msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}


class MessageStream(ChatStream):
    """Builder of the events of one streamed message."""

    def __init__(
        self,
        id: str,
        model: str,
        created_at: int,
        *,
        include_usage: bool = False,
        fingerprint: str = "",
        place: int = 0,
        stops: Sequence[str] = (),
        hides_reasoning: bool = False,
    ) -> None:
        super().__init__(id, model, created_at, include_usage=include_usage, fingerprint=fingerprint, place=place)
        self._message = Message(message_id(id), model, [], MessageUsage(0, 0))
        self._stops = stops
        self._hides_reasoning = hides_reasoning
        self._index = -1
        self._block = ""  # type of the open block
        self._unsent = ""  # end of the text, which may begin a stop sequence
        self._hidden: list[str] = []
        self._end = StopDelta("end_turn", None)

    def role(self, content: str | None = "") -> bytes:
        return _frames(MessageStart(self._message))

    def text(self, *deltas: str) -> bytes:
        return b"".join(map(self._add_text, deltas))

    def reasoning(self, delta: str) -> bytes:
        start = self._begin_block("thinking", ThinkingContent("", ""))
        if self._hides_reasoning:
            self._hidden.append(delta)
            return start
        return start + _frames(ContentBlockDelta(self._index, ThinkingDelta(delta)))

    def calls(self, text: str) -> bytes:
        return b"".join(map(self._call_frames, self._calls.read(text)))

    def logprobs(self, tokens: Any) -> bytes:
        return b""

    def finish(self, reason: FinishReason) -> bytes:
        stop = None
        if reason == "stop":
            self._unsent, stop = cut_stop_sequence(self._unsent, self._stops)
        self._end = stop_delta(reason, stop, bool(self._calls.count))
        return self._end_block()

    def usage(self, usage: Usage) -> bytes:
        return _frames(MessageDelta(self._end, message_usage(usage)), MessageStop())

    def _add_text(self, delta: str) -> bytes:
        """Add ``delta`` to the text; send the part that cannot belong to a stop sequence."""
        text = self._unsent + delta
        end = len(text) - max((_overlap(text, stop) for stop in self._stops), default=0)
        self._unsent = "" if end else text
        if not end:
            return b""
        start = self._begin_block("text", TextContent(""))
        self._unsent = text[end:]
        return start + self._text_delta(text[:end])

    def _call_frames(self, part: CallPart) -> bytes:
        start = b""
        if part.name:
            block = ToolUseContent(tool_use_id(self._answer, part.number), part.name, {})
            start = self._begin_block("tool_use", block, is_new=True)
        if not part.arguments:
            return start
        return start + _frames(ContentBlockDelta(self._index, InputJsonDelta(part.arguments)))

    def _text_delta(self, text: str) -> bytes:
        return _frames(ContentBlockDelta(self._index, TextDelta(text)))

    def _begin_block(self, kind: str, block: OutputBlock, *, is_new: bool = False) -> bytes:
        """Begin a block of type ``kind``, unless one is open. ``is_new`` begins another one in any case."""
        if self._block == kind and not is_new:
            return b""
        end = self._end_block()
        self._index, self._block = self._index + 1, kind
        return end + _frames(ContentBlockStart(self._index, block))

    def _end_block(self) -> bytes:
        """Send what is left of the open block, and end it."""
        rest, self._unsent = self._unsent, ""
        start = self._begin_block("text", TextContent("")) if rest else b""
        frames = [start, self._text_delta(rest)] if rest else []
        if self._block == "thinking":
            signature = encode_reasoning("".join(self._hidden))
            frames.append(_frames(ContentBlockDelta(self._index, SignatureDelta(signature))))
            self._hidden.clear()
        if self._block:
            frames.append(_frames(ContentBlockStop(self._index)))
        self._block = ""
        return b"".join(frames)


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest beginning of ``stop`` that ends ``text``."""
    lengths = range(min(len(text), len(stop)), 0, -1)
    return next((length for length in lengths if text.endswith(stop[:length])), 0)


def _frames(*events: MessageEvent) -> bytes:
    return b"".join([b"event: %b\ndata: %b\n\n" % (_tag(event), _encode(event)) for event in events])


def _tag(event: MessageEvent) -> bytes:
    return str(event.__struct_config__.tag).encode()
