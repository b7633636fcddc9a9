"""One response: a separate task generates it from the items of a conversation.

When it is cancelled, its request ends immediately: one ``end`` stops every stage before its next step. The client gets
the closing events of the output so far.

Items of the conversation become the chat request that a model answers. A gateway that regenerates a response skips the
output that the client already has. The number of tokens per event depends on the load of the executor. Text, calls and
audio are therefore compared by their concatenation.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from omnibus.encoding.audio import StreamingAudioEncoder
from omnibus.errors import BadRequest, CannotContinue, ContextTooLong, OmnibusError, TooLarge
from omnibus.metrics import GATEWAY
from omnibus.structured.calls import CallPart, CallReader
from omnibus_gateway.core import AnswerAccumulator, ClientRequest, TokenIds
from omnibus_gateway.openai import chat_request as chat
from omnibus_gateway.openai.chat_request import ChatRequest, ImageUrl, Message
from omnibus_gateway.openai.chat_response import call_id
from omnibus_gateway.openai.errors import client_error
from omnibus_gateway.openai.options import (
    FunctionCall,
    FunctionDefinition,
    FunctionName,
    FunctionTool,
    NamedToolChoice,
    ToolCall,
    ToolChoice,
    check_tools,
)
from omnibus_gateway.openai.realtime.session import RealtimeTool, SessionConfig
from omnibus_gateway.openai.responses.items import FlatNamedChoice
from omnibus_gateway.realtime.config import encoder_format, to_wav
from omnibus_gateway.realtime.conversation import (
    ConversationItem,
    Event,
    ItemPart,
    ResponseEvents,
    encode_base64,
    incomplete_details,
)
from omnibus_gateway.realtime.event_sender import describe_error
from omnibus_gateway.realtime.restored import RestoredTurn
from omnibus_gateway.tasks.chat import Chat, Chats
from omnibus_gateway.tasks.chat_response import join_samples, open_output_streams


def to_chat(config: SessionConfig, items: Sequence[ConversationItem]) -> ChatRequest:
    """Convert ``items`` to a chat request. Raises ``BadRequest`` for items that a chat cannot contain."""
    messages: list[Message] = [chat.SystemMessage(config.instructions)] if config.instructions else []
    for item in items:
        _append_item(messages, item)
    if not messages:
        raise BadRequest("There is nothing to respond to: add an item, or send instructions.", param="response")
    tools = [_to_tool(each) for each in config.tools] or None
    choice = _to_choice(config) if tools else None
    check_tools(tools, choice)
    speaks = config.modality == "audio"
    return ChatRequest(
        model=config.model,
        messages=messages,
        modalities=["audio"] if speaks else None,
        audio=chat.AudioOutput(config.voice, "pcm16") if speaks else None,
        max_completion_tokens=None if config.max_output_tokens == "inf" else config.max_output_tokens,
        temperature=config.temperature,
        seed=config.seed,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=config.parallel_tool_calls if tools else None,
        reasoning_effort=config.effort,
    )


def drop_oldest(items: Sequence[ConversationItem]) -> list[ConversationItem]:
    """Drop about the oldest quarter of ``items``.

    The first item that remains is a user or system message.
    Empty if nothing can be dropped: the last user message must remain.
    """
    first = max(1, len(items) // 4)
    while first < len(items) and items[first].role not in ("user", "system"):
        first += 1
    return list(items[first:])


def _append_item(messages: list[Message], item: ConversationItem) -> None:
    if item.type == "function_call":
        call = ToolCall(item.call_id, FunctionCall(item.name, item.text))
        last = messages[-1] if messages else None
        if isinstance(last, chat.AssistantMessage):
            messages[-1] = chat.AssistantMessage(last.content, tool_calls=[*(last.tool_calls or ()), call])
        else:
            messages.append(chat.AssistantMessage(tool_calls=[call]))
    elif item.type == "function_call_output":
        messages.append(chat.ToolMessage(item.text, item.call_id))
    elif item.role == "system":
        messages.append(chat.SystemMessage([chat.TextPart(part.text) for part in item.parts]))
    elif item.role == "assistant":
        if text := "".join(part.text for part in item.parts):
            messages.append(chat.AssistantMessage(text))
    else:
        messages.append(chat.UserMessage([_user_part(part) for part in item.parts]))


def _user_part(part: ItemPart) -> chat.UserPart:
    if part.type == "input_image":
        return chat.ImagePart(ImageUrl(part.image_url, part.detail))
    if part.format is not None:
        data = encode_base64(to_wav(part.model_audio, part.format))
        return chat.InputAudioPart(chat.InputAudio(data, "wav"))
    return chat.TextPart(part.text)


def _to_tool(tool: RealtimeTool) -> FunctionTool:
    return FunctionTool(FunctionDefinition(tool.name, tool.description, tool.parameters))


def _to_choice(config: SessionConfig) -> ToolChoice:
    if isinstance(config.tool_choice, FlatNamedChoice):
        return NamedToolChoice(FunctionName(config.tool_choice.name))
    return config.tool_choice


class KnownOutput:
    """Output of ``items`` that the new response has not repeated yet."""

    def __init__(self, items: Iterable[ConversationItem] = ()) -> None:
        self._said: deque[tuple[str, str]] = deque()  # kind, and the rest of its text
        self._audio_bytes = 0
        for item in items:
            if item.type == "function_call":
                self._said += [("call", item.name), ("arguments", item.text)]
            else:
                self._said += [("text", part.text) for part in item.parts]
                self._audio_bytes += sum(len(part.audio) for part in item.parts)

    @classmethod
    def of_text(cls, text: str) -> "KnownOutput":
        """Create known output with ``text`` alone."""
        output = cls()
        output._said.append(("text", text))
        return output

    def skip_text(self, delta: str) -> str:
        """Return the new part of a text delta."""
        return self._skip("text", delta)

    def skip_arguments(self, delta: str) -> str:
        """Return the new part of an arguments delta."""
        return self._skip("arguments", delta)

    def skip_call(self, name: str) -> bool:
        """Return True if the call that begins is known."""
        self._drop_passed()
        if not self._said:
            return False
        if self._said.popleft() != ("call", name):
            raise _diverged_error()
        return True

    def skip_audio(self, data: bytes) -> bytes:
        """Return the new part of an audio delta."""
        known_bytes = min(self._audio_bytes, len(data))
        self._audio_bytes -= known_bytes
        return data[known_bytes:]

    def check_passed(self) -> None:
        """Raise ``CannotContinue`` if the response has ended before all known output."""
        self._drop_passed()
        if self._said or self._audio_bytes:
            raise _diverged_error()

    def _skip(self, kind: str, delta: str) -> str:
        while delta:
            self._drop_passed()
            if not self._said:
                return delta
            known_kind, text = self._said[0]
            length = min(len(text), len(delta))
            if known_kind != kind or text[:length] != delta[:length]:
                raise _diverged_error()
            self._said[0] = known_kind, text[length:]
            delta = delta[length:]
        return ""

    def _drop_passed(self) -> None:
        while self._said and not self._said[0][1] and self._said[0][0] != "call":
            self._said.popleft()


def _diverged_error() -> CannotContinue:
    return CannotContinue("the regenerated response differs from the first one: create another response")


log = logging.getLogger(__name__)

#: Times that a conversation is shortened if it is too long for its model.
MAX_TRUNCATIONS = 12
CLIENT_CANCELLED, TURN_DETECTED = "client_cancelled", "turn_detected"


class TurnSpec(NamedTuple):
    """Inputs of a response.

    ``limit`` counts it against the limits of its client's key. ``restored`` is its output at another gateway.
    ``conversation`` is the id of the conversation that it continues, if any. If ``is_logged``, another gateway may
    have to regenerate it.
    """

    config: SessionConfig
    items: list[ConversationItem]
    limit: Callable[[], AbstractContextManager[None]]
    chat: Chat
    chats: Chats
    restored: RestoredTurn | None = None
    conversation: str = ""
    is_logged: bool = False

    def build_request(self, items: Sequence[ConversationItem]) -> ChatRequest:
        """Build the chat request for ``items``. Raises as ``to_chat``."""
        request = to_chat(self.config, items)
        return msgspec.structs.replace(request, prompt_cache_key=self.conversation or None)


class PostEvents(Protocol):
    """Callback for the events of a response.

    ``tokens`` and ``codes`` are the output in the events, ``invocations`` the id of its request.
    """

    def __call__(
        self,
        events: Sequence[Event],
        *,
        tokens: Mapping[str, Sequence[int]] = ...,
        codes: Mapping[str, Sequence[Any]] = ...,
        invocations: Mapping[str, str] = ...,
    ) -> None: ...


class Turn:
    """Generates one response; ``post`` takes its events, ``wait_room`` waits until the client has room.

    An ``early`` turn starts before the user's turn has ended: its output is not read until it is confirmed.
    """

    def __init__(
        self,
        spec: TurnSpec,
        events: ResponseEvents,
        post: PostEvents,
        wait_room: Callable[[], Any],
        *,
        early: bool = False,
    ) -> None:
        self.id = events.id
        self._spec = spec
        self._events = events
        self._post = post
        self._wait_room = wait_room
        self._begun = False
        self._begin = time.monotonic()
        self._cancelled_for = ""
        self._calls = CallReader()
        self._sound: StreamingAudioEncoder | None = None
        self._task: asyncio.Task[None] | None = None
        self._end: Callable[[Turn, list[Event]], None] | None = None
        self._limits, self._is_counted = ExitStack(), False
        self._confirmed = asyncio.Event()
        if not early:
            self._confirmed.set()
        restored_turn = spec.restored
        self._known = KnownOutput(restored_turn.items if restored_turn is not None else ())
        self._token_ids = TokenIds(restored_turn.token_ids if restored_turn is not None else ())
        self._code_count = len(restored_turn.codes) if restored_turn is not None else 0
        # An invalid request raises here, before the response begins.
        self._request = spec.build_request(spec.items)
        self._run = self._open_run()

    async def wait_over(self) -> None:
        """Wait until the response has ended."""
        if self._task is not None:
            await asyncio.wait({self._task})

    @property
    def seed(self) -> int:
        """Seed that reproduces the answer."""
        return self._run.seed

    @property
    def deadline(self) -> float:
        """Time by which it must end, Unix seconds."""
        return self._run.deadline

    def _open_run(self) -> ClientRequest:
        restored_turn = self._spec.restored
        if restored_turn is None:
            run = self._spec.chats.open_request(self._spec.config.model, self._spec.config.seed)
            run.early = not self._confirmed.is_set()
            return run
        run = self._spec.chats.open_request(self._spec.config.model, restored_turn.begun.seed)
        run.resume_until(restored_turn.begun.deadline)
        if run.model:  # the graphs of an app are its own
            run.known, run.known_codes = tuple(restored_turn.token_ids), tuple(restored_turn.codes)
        return run

    def start(self, end: Callable[["Turn", list[Event]], None] | None = None) -> None:
        """Start the task; it calls ``end`` with the closing events.

        An early turn gets its ``end`` when it is confirmed, and ends silently without confirmation.
        """
        self._end = end
        self._task = asyncio.get_running_loop().create_task(self._make(), name=self.id)

    def confirm(self, end: Callable[["Turn", list[Event]], None]) -> bool:
        """Confirm an early turn; returns True if it is still running."""
        if self._task is None or self._task.done():
            return False
        self._end, self._begin = end, time.monotonic()
        self._run.confirm()
        self._confirmed.set()
        return True

    async def cancel(self, reason: str) -> None:
        """Cancel it for ``reason``, and wait until it has ended."""
        if self._task is not None and not self._task.done():
            self._cancelled_for = self._cancelled_for or reason
            if not self._begun:  # a task that is cancelled before its first step would not call ``end``
                await asyncio.sleep(0)
            self._task.cancel()
            await asyncio.wait({self._task})

    # The work

    async def _make(self) -> None:
        self._begun, code, model = True, "ok", self._spec.config.model
        try:
            with self._limits:
                closing = await self._answer()
        except asyncio.CancelledError:
            code = "cancelled"
            if self._confirmed.is_set():
                GATEWAY.realtime_interruptions.labels(model, self._cancelled_for or CLIENT_CANCELLED).inc()
            closing = self._events.finish("cancelled", {"type": "cancelled", "reason": self._cancelled_for or None})
        except Exception as error:  # noqa: BLE001 the response contains it
            api_error = client_error(error, self.id)
            code = api_error.code
            closing = self._fail(api_error)
        self._run.end("failed")  # if it has not begun; otherwise it has already ended
        if self._end is None:  # started early, and not confirmed
            GATEWAY.realtime_early.labels(model, "dropped" if code == "cancelled" else "refused").inc()
            return
        GATEWAY.request_counter(model, code).inc()
        self._end(self, closing)

    def _fail(self, error: OmnibusError) -> list[Event]:
        return self._events.finish("failed", {"type": "failed", "error": describe_error(error)})

    async def _answer(self) -> list[Event]:
        """Generate the response; returns the closing events. Drops the oldest items if it is too long."""
        items = list(self._spec.items)
        for _ in range(MAX_TRUNCATIONS):
            try:
                return await self._answer_once(self._request)
            except (ContextTooLong, TooLarge):
                items = drop_oldest(items)
                if self._spec.config.truncation == "disabled" or not items or self._events.items:
                    raise
            self._request = self._spec.build_request(items)
            self._run = self._open_run()
        return await self._answer_once(self._request)

    async def _answer_once(self, request: ChatRequest) -> list[Event]:
        run, chat = self._run, self._spec.chat
        if self._confirmed.is_set():
            self._count_request()
        run.open_answer()
        async with run.until_end():
            output = await self._spec.chats.begin_answer(run, await chat.prepare_request(run, request))
            await self._confirmed.wait()
            self._count_request()
            got = run.open_answer()  # ``confirm`` changed ``created``
            self._post([], invocations={self.id: run.id})
            async for batch in run.read_outputs(open_output_streams(output)):
                ids = [id for name, item in batch if name == "text" for id in item.data.get("ids", ())]
                fresh = {self.id: new} if (new := self._token_ids.add(ids)) else {}
                codes = self._take_codes(run)
                events: list[Event] = []
                try:
                    self._read_batch(batch, got, run, events)
                finally:  # if an item found no room, the conversation still has the events before it
                    if events or fresh:
                        self._post(events, tokens=fresh, codes={self.id: codes} if codes else {})
                await self._wait_room()
            rest = self._sound.close() if self._sound is not None else b""
            if rest := self._known.skip_audio(rest):
                self._post(self._events.add_audio(rest))
            self._known.check_passed()
        if got.finish in ("length", "content_filter"):
            return self._events.finish("incomplete", incomplete_details(got.finish), got.usage())
        return self._events.finish("completed", None, got.usage())

    def _take_codes(self, run: ClientRequest) -> list[Any]:
        """Return new talker codes: the log contains them for another gateway."""
        if not self._spec.is_logged or not run.model or len(run.segments) != 1:
            return []
        new = run.segments[0].read_codes(self._code_count)
        self._code_count += len(new)
        return new

    def _count_request(self) -> None:
        """Count it once against the limits of its client's key. Raises ``Overloaded``."""
        if not self._is_counted:
            self._is_counted = True
            self._limits.enter_context(self._spec.limit())

    def _read_batch(
        self, batch: Sequence[tuple[str, Any]], got: AnswerAccumulator, run: ClientRequest, events: list[Event]
    ) -> None:
        """Append the events of ``batch`` to ``events``, up to a failure."""
        for name, item in batch:
            if name == "text":
                if text := self._known.skip_text(item.data.get("text") or ""):
                    events += self._events.add_text(text)
                for part in self._calls.read(item.data["calls"]) if item.data.get("calls") else ():
                    self._read_call(part, run, events)
        samples = [item.array for _, item in batch if item.array is not None]
        data = self._encode_samples(join_samples(samples, got), got.rate) if samples else b""
        if data := self._known.skip_audio(data):
            events += self._events.add_audio(data)

    def _read_call(self, part: CallPart, run: ClientRequest, events: list[Event]) -> None:
        if part.name and not self._known.skip_call(part.name):
            events += self._events.begin_call(part.name, call_id(run.id, part.number))
        if part.arguments and (arguments := self._known.skip_arguments(part.arguments)):
            events += self._events.add_arguments(arguments)

    def _encode_samples(self, samples: np.ndarray, rate: int) -> bytes:
        """Encode ``samples``, float32 [n], in the client's format."""
        if self._sound is None and self._spec.restored is None:
            GATEWAY.realtime_first_audio.labels(self._spec.config.model).observe(time.monotonic() - self._begin)
        if self._sound is None:
            format, speed = encoder_format(self._spec.config.output_format), self._spec.config.speed
            plain = format == "pcm24k" and rate == 24000
            self._sound = StreamingAudioEncoder("pcm16" if plain else format, rate, speed)
        return self._sound.push(samples)
