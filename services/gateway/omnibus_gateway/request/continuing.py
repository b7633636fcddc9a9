"""Streamed chats that any other gateway can continue without gaps or repeats.

- promise: the request, its seed and its deadline are stored before the first event is sent. The id of each event
  contains the position in the answer.
- tokens: every tenth of a second a gateway writes the token ids of all its answers together.
- continue: any gateway generates the answer again from the same seed, skips the part that the client received, and
  continues. A language model that can resume begins after the known tokens.
- claim: if several gateways send one answer, the last one wins. It notifies the former one on the bus, which stops.

Tokens are stored for speed, not for correctness: without them the same answer is generated from its beginning.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

import msgspec

from omnibus.bus import Bus, Delivery, subjects
from omnibus.errors import (
    BadRequest,
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
from omnibus_gateway.openai.chat_stream import ChatStream
from omnibus_gateway.openai.vllm_omni import OmniRequest
from omnibus_gateway.request.event_ids import NumberedStream, Position, parse_event_id
from omnibus_gateway.request.request import ClientRequest
from omnibus_gateway.request.token_ids import TokenIds
from omnibus_gateway.tenancy import tenant as tenants
from omnibus_gateway.tenancy.shares import tenant_account

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
        self, chat: ChatRequest, headers: Mapping[bytes, bytes], request: OriginalRequest
    ) -> ResumableStream | None:
        """Promise the answer to ``chat``; None if not requested or not possible."""
        mode = self._settings.continue_streams
        is_requested = mode == "always" or (mode == "requested" and headers.get(HEADER, b"").strip().lower() == b"true")
        fits = len(request.body) <= self._settings.continue_bytes
        if (
            not (is_requested and chat.stream and fits)
            or isinstance(chat, OmniRequest)
            or chat.logprobs
            or chat.choice_count > 1
        ):
            return None
        resumable_stream = self._open_stream(secrets.token_urlsafe(18))
        resumable_stream.request = request
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
