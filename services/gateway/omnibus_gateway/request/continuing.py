"""Streamed chats that any other gateway can continue without gaps or repeats.

The request, its seed and its deadline are stored before the first event is sent. Any gateway can then generate the
answer again from the same seed, skip the part that the client received, and continue. If several gateways send one
answer, the last one wins. It notifies the former one on the bus, which stops.

Every tenth of a second, a gateway writes the token ids of all its answers together. A language model that can resume
begins after the known tokens. Without them the same answer is generated from its beginning.

The number of tokens per event depends on the executor's load, so events are not counted. Instead an event's id contains
the amount of the answer that was sent with it: ``<token>.<characters>.<digest>.<bytes of sound>.<digest>.<closing
events>``. If there are any, ``.<characters of reasoning>.<digest>.<characters of calls>.<digest>`` follow. The gateway
that continues generates the answer again, skips that amount and checks the digests: a wrong continuation fails.
"""

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from omnibus.bus import Bus, Delivery, subjects
from omnibus.errors import (
    BadRequest,
    CannotContinue,
    Conflict,
    DeadlineExceeded,
    LimitReached,
    NotFound,
    OmnibusError,
    StoreUnavailable,
)
from omnibus.settings import GatewaySettings
from omnibus.store import OVERHEAD_BYTES, Store, StreamRecord
from omnibus_gateway.media.files import new_secret_id
from omnibus_gateway.openai.chat_request import ChatRequest
from omnibus_gateway.openai.chat_response import ChatStream, FinishReason, TokenLogprob, Usage
from omnibus_gateway.openai.vllm_omni import OmniRequest
from omnibus_gateway.request.accumulator import TokenIds
from omnibus_gateway.request.request import ClientRequest
from omnibus_gateway.tenancy import tenant as tenants
from omnibus_gateway.tenancy.tenant import tenant_account

#: Bytes of a digest: enough to distinguish answers to one request. A client gains nothing by forging its own position.
_DIGEST_BYTES = 4
#: Formats whose bytes follow from the samples one by one. A sample that differs by a step moves nothing after it, so
#: they are only counted. A codec's output for such samples differs in length, so its bytes are compared.
_COUNTED = ("pcm16", "wav")
#: Numbers as ids contain them, without leading zeros: each position has one id.
_NUMBER = r"(0|[1-9]\d{0,14})"
_PART = rf"\.{_NUMBER}\.([0-9a-f]{{8}})"
_ID = re.compile(rf"([A-Za-z0-9_-]{{1,64}}){_PART}{_PART}\.(0|[1-9]\d{{0,2}})(?:{_PART}{_PART})?", re.ASCII)


class Position(NamedTuple):
    """Amount of an answer that was sent.

    It counts characters of text, bytes of its audio file and closing events, and characters of reasoning and of tool
    calls."""

    text: int
    text_digest: str
    sound: int
    sound_digest: str
    closing: int
    reasoning: int = 0
    reasoning_digest: str = ""
    calls: int = 0
    calls_digest: str = ""


def parse_event_id(text: str) -> tuple[str, Position]:
    """Return the token and the position in an event's id. Raises ``BadRequest``."""
    match = _ID.fullmatch(text)
    if match is None:
        raise BadRequest("the event id must be one of a streamed answer", param="Last-Event-ID")
    token, characters, text_digest, sound, sound_digest, closing, *more = match.groups()
    reasoning, reasoning_digest, calls, calls_digest = more if more[0] is not None else ("0", "", "0", "")
    return token, Position(
        int(characters), text_digest, int(sound), sound_digest, int(closing),
        int(reasoning), reasoning_digest, int(calls), calls_digest,
    )  # fmt: skip


class _SentCounter:
    """Counter of one part of the answer: the amount sent, and the amount to skip."""

    def __init__(self, skip: int, digest: str, exact: bool) -> None:
        self.sent = 0
        self.skip = skip
        self._expected = digest
        self._exact = exact
        self._hash = blake2b(digest_size=_DIGEST_BYTES)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def count_sent(self, length: int, data: bytes) -> None:
        """Add ``length`` to the amount sent."""
        self.sent += length
        if self._exact:
            self._hash.update(data)

    def skip_sent(self, length: int, data: bytes) -> None:
        """Skip ``length`` that the client has. Raises ``CannotContinue`` at the end if it differs."""
        self.count_sent(length, data)
        self.skip -= length
        if not self.skip and self.digest != self._expected:
            raise CannotContinue(_DIVERGED_MESSAGE)

    def skip_text(self, delta: str) -> str:
        """Count ``delta``; returns the part that the client does not have."""
        known_chars = min(self.skip, len(delta))
        if known_chars:
            self.skip_sent(known_chars, delta[:known_chars].encode())
            delta = delta[known_chars:]
        self.count_sent(len(delta), delta.encode())
        return delta


_DIVERGED_MESSAGE = "the answer came out differently this time, so it cannot be continued: send the request again"


class NumberedStream:
    """A ``ChatStream`` whose events have ids; it skips events up to the position ``after``."""

    def __init__(self, stream: ChatStream, token: str, format: str, after: Position | None) -> None:
        self._stream = stream
        self._token = token.encode()
        self._resumed = after is not None
        self._text = _SentCounter(after.text if after else 0, after.text_digest if after else "", True)
        self._sound = _SentCounter(
            after.sound if after else 0, after.sound_digest if after else "", format not in _COUNTED
        )
        self._reasoning = _SentCounter(after.reasoning if after else 0, after.reasoning_digest if after else "", True)
        self._calls = _SentCounter(after.calls if after else 0, after.calls_digest if after else "", True)
        self._unsent = b""  # audio that the stream holds back
        self._closing = 0
        self._skip_closing = after.closing if after else 0

    # Events, as those of ``ChatStream``

    def role(self, content: str | None = "") -> bytes:
        return b"" if self._resumed else self._stream.role(content)

    def audio_start(self, audio_id: str) -> bytes:
        return b"" if self._resumed else self._stream.audio_start(audio_id)

    def text(self, *deltas: str) -> bytes:
        return self._add_text_events(self._stream.text, deltas)

    def _add_text_events(self, encode: Callable[[str], bytes], deltas: Iterable[str]) -> bytes:
        """Return an event with an id for each of the new ``deltas``."""
        fresh = map(self._text.skip_text, deltas)
        return b"".join([self._add_event_id(encode(each)) for each in fresh if each])

    def reasoning(self, delta: str) -> bytes:
        fresh = self._reasoning.skip_text(delta)
        return self._add_event_id(self._stream.reasoning(fresh)) if fresh else b""

    def calls(self, text: str) -> bytes:
        fresh = self._calls.skip_text(text)
        frames = self._stream.call_frames(fresh, text.removesuffix(fresh))
        return b"".join([*frames[:-1], self._add_event_id(frames[-1])]) if frames else b""

    def logprobs(self, tokens: list[TokenLogprob]) -> bytes:
        raise CannotContinue("an answer with logprobs cannot be continued: send the request again")

    def transcript(self, *deltas: str) -> bytes:
        return self._add_text_events(self._stream.transcript, deltas)

    def spoken_text(self, *deltas: str) -> bytes:
        return self._add_text_events(self._stream.spoken_text, deltas)

    def audio(self, data: bytes) -> bytes:
        known_bytes = min(self._sound.skip, len(data))
        if known_bytes:
            self._sound.skip_sent(known_bytes, data[:known_bytes])
        self._unsent += data[known_bytes:]
        frame = self._stream.audio(data[known_bytes:])
        self._count_audio(len(self._unsent) - self._stream.held_bytes)
        return self._add_event_id(frame) if frame else b""

    def audio_end(self, expires_at: int) -> bytes:
        frames = self._stream.audio_end(expires_at)
        if not self._unsent:
            return self._close_event(frames)
        rest, _, end = frames.partition(b"\n\n")
        self._count_audio(len(self._unsent))
        return self._add_event_id(rest + b"\n\n") + self._close_event(end)

    def complete(self) -> None:
        """Finish the answer. Raises ``CannotContinue`` if the client has more of it."""
        if any(part.skip for part in (self._text, self._sound, self._reasoning, self._calls)):
            raise CannotContinue(_DIVERGED_MESSAGE)

    def finish(self, reason: FinishReason) -> bytes:
        return self._close_event(self._stream.finish(reason))

    def usage(self, usage: Usage) -> bytes:
        frame = self._stream.usage(usage)
        return self._close_event(frame) if frame else b""

    # Ids

    def _count_audio(self, length: int) -> None:
        self._sound.count_sent(length, self._unsent[:length])
        self._unsent = self._unsent[length:]

    def _close_event(self, frame: bytes) -> bytes:
        self._closing += 1
        return b"" if self._closing <= self._skip_closing else self._add_event_id(frame)

    def _add_event_id(self, frame: bytes) -> bytes:
        text, sound = self._text, self._sound
        place = f".{text.sent}.{text.digest}.{sound.sent}.{sound.digest}.{self._closing}"
        reasoning, calls = self._reasoning, self._calls
        if reasoning.sent or calls.sent:
            place += f".{reasoning.sent}.{reasoning.digest}.{calls.sent}.{calls.digest}"
        return b"".join((b"id: ", self._token, place.encode(), b"\n", frame))


log = logging.getLogger(__name__)

#: Values of ``OMNIBUS_GATEWAY_CONTINUE_STREAMS``.
MODES = ("off", "requested", "always")
#: Requests a stream that can be continued; in the response, the name of the stream.
HEADER = b"x-omnibus-continue"
#: Seconds that the first event waits for the store before the stream proceeds without a promise.
STORE_WAIT_SECONDS = 2.0
#: Seconds between two writes of the tokens of all answers; later tokens are generated again.
TOKEN_WRITE_INTERVAL_SECONDS = 0.1
#: Seconds that a record outlives its deadline, so that late clients get the reason.
DEADLINE_GRACE_SECONDS = 60.0
#: Seconds that it outlives its answer, for a client that missed the end of it.
FINISHED_TTL_SECONDS = 15.0


class Claim(msgspec.Struct, frozen=True):
    """Message on the bus: ``owner`` must stop sending its answer."""

    owner: str


class OriginalRequest(msgspec.Struct, frozen=True):
    """A chat request as received: its body, and the path that it is pinned to."""

    body: bytes
    path: str


class ResumableStream:
    """A streamed answer that is sent here and can be continued elsewhere."""

    def __init__(
        self,
        store: Store,
        token: str,
        forget: "Callable[[ResumableStream, bool], None]",
        on_growth: "Callable[[ResumableStream], None]",
        reserve: Callable[[str, StreamRecord, float], Awaitable[None]],
    ) -> None:
        self._reserve = reserve
        self.token = token
        self.owner = secrets.token_hex(8)  # names this sender
        self.record: StreamRecord | None = None  # None: not promised
        self.after: Position | None = None  # the client's position
        self.request: OriginalRequest | None = None  # not saved yet
        self.known: tuple[int, ...] = ()  # tokens after which a language model can begin
        self.ids: list[int] = []  # of the tokens that were generated here
        self._made_ids = TokenIds()
        self._store = store
        self._forget = forget
        self._grown = on_growth
        self._claimed = False
        self._run: ClientRequest | None = None

    async def save_record(self, run: ClientRequest) -> list[tuple[bytes, bytes]]:
        """Store the record that another gateway needs; returns the headers that announce it.

        While the store is unavailable the stream cannot be continued."""
        request, self.request = self.request, None
        if request is not None:
            await self._put_record(run, request)
        return [(HEADER, self.token.encode())] if self.record is not None else []

    async def _put_record(self, run: ClientRequest, request: OriginalRequest) -> None:
        record = StreamRecord(
            id=f"chatcmpl-{run.id}",
            audio_id=new_secret_id("audio_"),
            created=int(run.created),
            deadline=run.deadline,
            seed=run.seed,
            body=request.body,
            path=request.path,
            tenant=tenants.current_tenant().name,
        )
        seconds = run.seconds_left + DEADLINE_GRACE_SECONDS
        try:
            async with asyncio.timeout(STORE_WAIT_SECONDS):
                await self._reserve(self.token, record, seconds)
                await self._store.put_stream(self.token, record, self.owner, seconds)
        except (LimitReached, StoreUnavailable, TimeoutError) as error:
            log.warning("%s cannot be continued elsewhere: %s", run.id, error or "the store is silent")
            return
        self.record = record

    @property
    def deadline(self) -> float:
        """Deadline of the answer's first request, Unix seconds; 0 without a record."""
        return self.record.deadline if self.record is not None else 0.0

    def number_events(self, stream: ChatStream, format: str) -> ChatStream | NumberedStream:
        """Return ``stream`` with ids, without the part that the client received."""
        return NumberedStream(stream, self.token, format, self.after) if self.record is not None else stream

    def add_token_ids(self, ids: Sequence[int]) -> None:
        """Store the ids of new tokens; an answer without ids restarts from its beginning elsewhere."""
        if self.record is not None and not self._claimed and (fresh := self._made_ids.add(ids)):
            self.ids.extend(fresh)
            self._grown(self)

    def attach_request(self, run: ClientRequest) -> None:
        """Generate the answer with ``run``, after the known tokens and in time."""
        self._run = run
        if self.record is not None:
            run.resume_until(self.deadline)
        if run.model:  # an app's graphs are its own
            run.known = self.known
        if self._claimed:
            self.mark_claimed()

    def mark_claimed(self) -> None:
        """Stop sending: another gateway took over the answer, and the client waits there."""
        self._claimed = True
        if self._run is not None:
            self._run.fail(Conflict("the answer is continued on another connection"))
            self._run.end("cancelled")

    def close(self) -> None:
        """Stop sending the stream here."""
        whole = self._run is not None and self._run.status == "done"
        self._forget(self, whole and not self._claimed)


class Continuations:
    """Promises that streams can be continued, and continues those of other gateways."""

    def __init__(self, settings: GatewaySettings, store: Store, bus: Bus) -> None:
        if settings.continue_streams not in MODES:
            modes = ", ".join(MODES)
            raise BadRequest(f"OMNIBUS_GATEWAY_CONTINUE_STREAMS={settings.continue_streams!r} must be one of {modes}")
        self._settings = settings
        self._store = store
        self._bus = bus
        self._sent: dict[str, ResumableStream] = {}  # here, by owner
        self._tasks: set[asyncio.Task[None]] = set()
        self._unsaved: set[ResumableStream] = set()
        self._saving = False

    async def startup(self) -> None:
        """Subscribe to the claims of other gateways."""
        await self._bus.subscribe(subjects.event_subject(subjects.CLAIM), self._on_claim)

    def begin_stream(
        self, chat: ChatRequest, headers: Mapping[bytes, bytes], body: bytes, path: str
    ) -> ResumableStream | None:
        """Promise the answer to ``chat``, which is pinned to ``path``; None if not requested or not possible."""
        mode = self._settings.continue_streams
        is_requested = mode == "always" or (mode == "requested" and headers.get(HEADER, b"").strip().lower() == b"true")
        fits = len(body) <= self._settings.continue_bytes
        if (
            not (is_requested and chat.stream and fits)
            or isinstance(chat, OmniRequest)
            or chat.logprobs
            or chat.choice_count > 1
        ):
            return None
        resumable_stream = self._open_stream(secrets.token_urlsafe(18))
        resumable_stream.request = OriginalRequest(body, path)
        return resumable_stream

    async def adopt_stream(self, token: str, last_event_id: str) -> tuple[ResumableStream, StreamRecord]:
        """Take over the answer ``token``; returns it and its original request.

        Raises ``NotFound``, also for another tenant's, ``DeadlineExceeded``, ``BadRequest`` and ``StoreUnavailable``.
        """
        after = None
        if last_event_id:
            event_token, after = parse_event_id(last_event_id)
            if event_token != token:
                raise BadRequest("the event id is from another answer", param="Last-Event-ID")
        record, known_tokens = await asyncio.gather(self._store.stream(token), self._store.stream_tokens(token))
        if record is None or not tenants.current_tenant().owns(record.tenant):
            raise NotFound("unknown or expired stream: send the request again")
        left = record.deadline - time.time()
        if left <= 0:
            raise DeadlineExceeded("the request took longer than its deadline")
        resumable_stream = self._open_stream(token)
        resumable_stream.after, resumable_stream.record, resumable_stream.known = after, record, known_tokens
        try:
            before = await self._store.claim_stream(token, resumable_stream.owner, left + DEADLINE_GRACE_SECONDS)
        except BaseException:
            resumable_stream.close()
            raise
        self._stop_former_sender(before)
        return resumable_stream, record

    def _open_stream(self, token: str) -> ResumableStream:
        resumable_stream = ResumableStream(
            self._store, token, self._close_stream, self._on_tokens_added, self._reserve_bytes
        )
        self._sent[resumable_stream.owner] = resumable_stream
        return resumable_stream

    def _close_stream(self, resumable_stream: ResumableStream, whole: bool) -> None:
        self._sent.pop(resumable_stream.owner, None)
        self._unsaved.discard(resumable_stream)
        if whole and resumable_stream.record is not None:
            self._start_task(self._forget_record(resumable_stream.token, resumable_stream.record))

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _on_tokens_added(self, resumable_stream: ResumableStream) -> None:
        self._unsaved.add(resumable_stream)
        if not self._saving:
            self._saving = True
            self._start_task(self._save_tokens())

    async def _save_tokens(self) -> None:
        """Write the tokens of all answers that grow, while there are any."""
        try:
            await asyncio.sleep(TOKEN_WRITE_INTERVAL_SECONDS)
            while self._unsaved:
                now, grown_streams = time.time(), self._unsaved
                self._unsaved = set()
                tokens = {each.token: (each.ids, each.deadline - now) for each in grown_streams}
                try:
                    await self._store.put_stream_tokens(tokens)
                except StoreUnavailable as error:  # then the answers restart from their beginning
                    log.warning("cannot write the tokens of %d answers: %s", len(tokens), error)
                await asyncio.sleep(TOKEN_WRITE_INTERVAL_SECONDS)
        finally:
            self._saving = False

    async def _reserve_bytes(self, token: str, record: StreamRecord, seconds: float) -> None:
        """Count a record for its tenant for ``seconds``. Raises ``LimitReached`` and ``StoreUnavailable``."""
        if record.tenant:
            account = tenant_account(self._settings, record.tenant)
            await self._store.reserve(account, f"stream:{token}", len(record.body) + OVERHEAD_BYTES, seconds)

    async def _forget_record(self, token: str, record: StreamRecord) -> None:
        try:
            await self._store.forget_stream(token, FINISHED_TTL_SECONDS)
            await self._reserve_bytes(token, record, FINISHED_TTL_SECONDS)
        except StoreUnavailable as error:  # it expires later
            log.warning("cannot delete a finished stream, which expires at its deadline: %s", error)

    def _stop_former_sender(self, owner: str) -> None:
        """Stop the former sender of an answer."""
        if owner in self._sent:
            self._sent[owner].mark_claimed()
        elif owner:
            try:
                self._bus.publish(subjects.event_subject(subjects.CLAIM), msgspec.json.encode(Claim(owner)))
            except OmnibusError as error:  # it stops when it notices the disconnect, or at the deadline
                log.warning("cannot notify the former gateway of a stream: %s", error)

    def _on_claim(self, delivery: Delivery) -> None:
        try:
            owner = msgspec.json.decode(delivery.data, type=Claim).owner
        except msgspec.MsgspecError as error:
            log.warning("cannot decode a claim: %s", error)
            return
        if owner in self._sent:
            self._sent[owner].mark_claimed()
