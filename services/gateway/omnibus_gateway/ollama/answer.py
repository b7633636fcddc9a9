"""Answers of chats in Ollama's format: a JSON object, or the lines of a stream, each a JSON object."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from omnibus.structured.calls import CallPart
from omnibus_gateway.ollama.wire import AnswerTurn, OllamaAnswer, OllamaCall, OllamaFunction
from omnibus_gateway.openai.chat_response import (
    NO_PARTS,
    ChatCompletionAudio,
    ChatStream,
    FinishReason,
    StructuredParts,
    TokenLogprob,
    Usage,
    call_id,
)

_encode = msgspec.json.Encoder().encode
_DONE_REASONS = {"tool_calls": "stop", "content_filter": "stop"}


class AnswerShape(msgspec.Struct, frozen=True):
    """Form of an answer: as a chat's message or not, with its reasoning or not, and when it was requested."""

    chats: bool
    thinks: bool
    began: int  # nanoseconds of ``time.perf_counter_ns``

    def build(self, model: str, turn: AnswerTurn, **more: Any) -> OllamaAnswer:
        """Return ``turn`` as an answer, or a part of one."""
        if not self.thinks:
            turn = msgspec.structs.replace(turn, thinking="")
        if self.chats:
            return OllamaAnswer(model=model, created_at=_now(), message=turn, **more)
        return OllamaAnswer(model=model, created_at=_now(), response=turn.content, thinking=turn.thinking, **more)

    def last_fields(self, reason: FinishReason, usage: Usage, first_output: int = 0) -> dict[str, Any]:
        """Return the fields at the end of an answer.

        ``first_output`` is its time, in the nanoseconds of ``began``, or 0 if it is not known.
        """
        now = time.perf_counter_ns()
        prompt = first_output - self.began if first_output else 0
        return {
            "done": True,
            "done_reason": _DONE_REASONS.get(reason, reason),
            "total_duration": now - self.began,
            "load_duration": 0,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": prompt,
            "eval_count": usage.completion_tokens,
            "eval_duration": now - self.began - prompt,
        }


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def encode_loaded(shape: AnswerShape, model: str) -> bytes:
    """Encode the answer to a request without a prompt."""
    return _encode(shape.build(model, AnswerTurn("assistant", ""), done=True, done_reason="load")) + b"\n"


def encode_answer(  # noqa: PLR0913 - named one by one, and never passed by place
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
    shape: AnswerShape,
) -> bytes:
    """Encode a complete answer, with the arguments of ``chat_response.encode_completion``."""
    calls = [_build_call(id, number, *call) for number, call in enumerate(parts.calls)]
    turn = AnswerTurn("assistant", text or "", parts.reasoning, calls)
    last = shape.last_fields(finish_reason, usage)
    return _encode(shape.build(model, turn, logprobs=parts.logprobs or [], **last))


def _build_call(answer: str, number: int, name: str, arguments: str) -> OllamaCall:
    """Return a call. Its arguments are {} if the limit of tokens has cut them."""
    try:
        values = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        values = {}
    return OllamaCall(OllamaFunction(name, values, number), call_id(answer, number))


class AnswerLines(ChatStream):
    """Builder of the lines of one streamed answer. A call is one line, once it is complete."""

    def __init__(
        self,
        id: str,
        model: str,
        created_at: int,
        *,
        include_usage: bool = False,
        fingerprint: str = "",
        place: int = 0,
        shape: AnswerShape,
    ) -> None:
        super().__init__(id, model, created_at, include_usage=include_usage, fingerprint=fingerprint, place=place)
        self._model, self._shape = model, shape
        self._first_output = 0
        self._open_call: tuple[int, str, list[str]] | None = None
        self._reason: FinishReason = "stop"

    def role(self, content: str | None = "") -> bytes:
        return b""

    def text(self, *deltas: str) -> bytes:
        return b"".join(self._line(AnswerTurn("assistant", delta)) for delta in deltas if delta)

    def reasoning(self, delta: str) -> bytes:
        return self._line(AnswerTurn("assistant", "", delta)) if self._shape.thinks else b""

    def calls(self, text: str) -> bytes:
        return b"".join(map(self._add_call, self._calls.read(text)))

    def logprobs(self, tokens: list[TokenLogprob]) -> bytes:
        return self._line(AnswerTurn("assistant", ""), tokens)

    def finish(self, reason: FinishReason) -> bytes:
        self._reason = reason
        return self._end_call()

    def usage(self, usage: Usage) -> bytes:
        last = self._shape.last_fields(self._reason, usage, self._first_output)
        return _encode(self._shape.build(self._model, AnswerTurn("assistant", ""), **last)) + b"\n"

    def _line(self, turn: AnswerTurn, logprobs: Sequence[TokenLogprob] = ()) -> bytes:
        self._first_output = self._first_output or time.perf_counter_ns()
        return _encode(self._shape.build(self._model, turn, done=False, logprobs=list(logprobs))) + b"\n"

    def _add_call(self, part: CallPart) -> bytes:
        line = b""
        if part.name:
            line = self._end_call()
            self._open_call = part.number, part.name, []
        assert self._open_call is not None  # noqa: S101 - the first part of a call has its name
        self._open_call[2].append(part.arguments)
        return line

    def _end_call(self) -> bytes:
        if self._open_call is None:
            return b""
        (number, name, pieces), self._open_call = self._open_call, None
        call = _build_call(self._answer, number, name, "".join(pieces))
        return self._line(AnswerTurn("assistant", "", "", [call]))
