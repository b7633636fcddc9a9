"""One streamed chat request over HTTP, and the times of its events.

The load generator uses this client because it costs little and records the arrival of each token.
"""

import asyncio
import base64
import struct
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any

import msgspec

from omnibus.errors import Fatal, OmnibusError, ProblemDetails, StageUnavailable, from_problem

#: Seconds that a connection may be idle in the middle of an answer.
IDLE_TIMEOUT_SECONDS = 600.0
_DEFAULT_RATE_HERTZ = 24000
_MAX_EVENT_BYTES = 1 << 22  # bytes of one event at most
_decode = msgspec.json.Decoder().decode


class TimedAnswer(msgspec.Struct):
    """Times of one answer, in seconds.

    They count from the request to the first token, the first audio and the end. A time is 0 if there was no such event.
    ``gaps`` are the seconds between tokens. ``speech`` is the length of the audio in seconds, and ``spoken`` the length
    without its first piece. That part arrived in ``speaking`` seconds. ``usage`` has OpenAI's form.
    """

    done: float = 0.0
    first_token: float = 0.0
    first_audio: float = 0.0
    gaps: list[float] = []
    speech: float = 0.0
    spoken: float = 0.0
    speaking: float = 0.0
    usage: dict[str, Any] = {}

    @property
    def real_time(self) -> float:
        """Seconds needed per second of speech after its first piece; 0 if there was one piece."""
        return self.speaking / self.spoken if self.spoken > 0 else 0.0


class Client:
    """One keep-alive connection to a gateway; one request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None

    async def send_chat(self, body: bytes, path: str = "") -> TimedAnswer:
        """Send a chat request along ``path`` and read its answer.

        Raises the gateway's error, typed, and ``StageUnavailable`` if the gateway does not answer.
        """
        return await self._send_safely(self._send_chat(body, path))

    async def call_app(self, target: str, body: bytes) -> TimedAnswer:
        """Send ``body`` to the URL path ``target`` and read the whole answer. Raises the errors of ``send_chat``."""
        return await self._send_safely(self._call_app(target, body))

    async def _send_safely(self, sending: Coroutine[Any, Any, TimedAnswer]) -> TimedAnswer:
        try:
            async with asyncio.timeout(IDLE_TIMEOUT_SECONDS):
                return await sending
        except (OSError, EOFError, ValueError, LookupError, asyncio.LimitOverrunError) as error:
            self.close()
            raise StageUnavailable(f"the gateway's answer broke off: {error!r}", stage="gateway") from error
        except BaseException:
            self.close()
            raise

    async def _send_chat(self, body: bytes, path: str) -> TimedAnswer:
        began = time.perf_counter()
        pin = b"x-omnibus-path: %b\r\n" % path.encode() if path else b""
        reader, length = await self._post(b"/v1/chat/completions", body, pin)
        events = _EventStreamReader(began)
        if length >= 0:
            events.feed_data(await reader.readexactly(length))
        else:
            await _read_chunks(reader, events.feed_data)
        if not events.ended:
            raise ValueError("it did not end with [DONE]")
        return events.answer

    async def _call_app(self, target: str, body: bytes) -> TimedAnswer:
        began = time.perf_counter()
        reader, length = await self._post(target.encode(), body)
        if length >= 0:
            await reader.readexactly(length)
        else:
            await _read_chunks(reader, lambda data: None)
        return TimedAnswer(done=time.perf_counter() - began)

    async def _post(self, target: bytes, body: bytes, pin: bytes = b"") -> tuple[asyncio.StreamReader, int]:
        """Send ``body`` and read the head of its answer; return the length of the rest, -1 if it is chunked."""
        reader, writer = await self._open_connection()
        writer.write(
            b"POST %b HTTP/1.1\r\nhost: profiler\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n%b\r\n" % (target, len(body), pin)
        )
        writer.write(body)
        await writer.drain()
        status, length = await _read_head(reader)
        if status != 200:
            raise _response_error(status, await reader.readexactly(length) if length else b"")
        return reader, length

    async def _open_connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._reader is None or self._writer is None or self._reader.at_eof():
            self.close()
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=_MAX_EVENT_BYTES)
        return self._reader, self._writer


class _EventStreamReader:
    """Parses server-sent events as they arrive."""

    def __init__(self, began: float) -> None:
        self.answer = TimedAnswer(gaps=[])
        self.ended = False
        self._began = self._latest = began
        self._rest = b""
        self._rate = 0

    def feed_data(self, data: bytes) -> None:
        """Consume received bytes: whole events, and the beginning of the next one."""
        now = time.perf_counter()
        *lines, self._rest = (self._rest + data).split(b"\n\n")
        for line in lines:
            if line == b"data: [DONE]":
                self.ended = True
                self.answer.done = now - self._began
            elif line.startswith(b"data: "):
                self._handle_event(_decode(line[6:]), now)

    def _handle_event(self, event: dict[str, Any], now: float) -> None:
        if event.get("error"):
            raise _typed_error(event["error"])
        self.answer.usage = event.get("usage") or self.answer.usage
        for choice in event.get("choices", ()):
            delta = choice.get("delta", {})
            audio = delta.get("audio") or {}
            if delta.get("content") or audio.get("transcript"):
                self._count_token(now)
            if audio.get("data"):
                self._count_audio(base64.b64decode(audio["data"]), now)

    def _count_token(self, now: float) -> None:
        if self.answer.first_token:
            self.answer.gaps.append(now - self._latest)
        else:
            self.answer.first_token = now - self._began
        self._latest = now

    def _count_audio(self, data: bytes, now: float) -> None:
        answer = self.answer
        if not self._rate:
            self._rate = struct.unpack_from("<I", data, 24)[0] if data[:4] == b"RIFF" else _DEFAULT_RATE_HERTZ
            data = data[44:] if data[:4] == b"RIFF" else data
            answer.first_audio = now - self._began
        else:
            answer.spoken += len(data) / 2 / self._rate
            answer.speaking = now - self._began - answer.first_audio
        answer.speech += len(data) / 2 / self._rate


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, int]:
    """Return the status and the body's length: -1 if it is chunked."""
    lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
    fields = dict(line.split(b": ", 1) for line in lines[1:] if b": " in line)
    length = -1 if b"chunked" in fields.get(b"transfer-encoding", b"") else int(fields.get(b"content-length", 0))
    return int(lines[0].split(b" ")[1]), length


async def _read_chunks(reader: asyncio.StreamReader, feed: Callable[[bytes], None]) -> None:
    while size := int(await reader.readuntil(b"\r\n"), 16):
        feed((await reader.readexactly(size + 2))[:-2])
    await reader.readuntil(b"\r\n")


def _response_error(status: int, body: bytes) -> OmnibusError:
    try:
        return _typed_error(_decode(body)["error"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return Fatal(f"the gateway answered {status}")


def _typed_error(detail: dict[str, Any]) -> OmnibusError:
    return from_problem(ProblemDetails(code=str(detail.get("code")), message=str(detail.get("message"))))
