"""Record stream: every invocation as sent, and its end with times and the answer's digest.

Rules decide by tenant whether a record has the content of requests, or only sizes and digests. Failed requests become
dead letters (``omnibus.recording.dead_letters``). Calls of apps are recorded with the digest of their answer, so that
another version of the app can be compared.
"""

import asyncio
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from omnibus import api_key, graph
from omnibus.bus import Bus, messages, subjects
from omnibus.errors import BadRequest, OmnibusError
from omnibus.graph import DIGEST, HANDLE, WIRE_VERSION, Invocation
from omnibus.metrics import TENANTS
from omnibus.pricing import RequestUsage
from omnibus.recording import dead_letters, records
from omnibus.recording.dead_letters import EXECUTOR_LOSS_REASONS, DeadLetter
from omnibus.recording.records import (
    WHOLE_RECORD_SECONDS,
    AppCall,
    EndRecord,
    KeptOutput,
    Record,
    RecordedAnswer,
    RequestLinks,
)
from omnibus_gateway.dispatch.inflight import InflightInvocation
from omnibus_gateway.media.blob_store import MediaStore
from omnibus_gateway.pricing.meter import UsageMeter
from omnibus_gateway.request.accumulator import AnswerAccumulator
from omnibus_gateway.tenancy.tenant import LogBudget

#: Values of ``OMNIBUS_GATEWAY_RECORD``; see ``GatewaySettings.record``.
MODES = ("full", "stages", "digest")
#: Values for one tenant; outputs between stages are recorded for all tenants or none.
TENANT_MODES = ("full", "digest")
_VARIABLE = "OMNIBUS_GATEWAY_RECORD_TENANTS"


class RecordRules:
    """Decides whose content is recorded: everyone's if ``full``, with exceptions for ``tenants``."""

    def __init__(self, full: bool, tenants: Mapping[str, bool] = MappingProxyType({})) -> None:
        self.full = full
        self._tenants = dict(tenants)

    @property
    def any_full(self) -> bool:
        """True if any request's content is recorded."""
        return self.full or any(self._tenants.values())

    def keeps_content(self, tenant: str) -> bool:
        """Return True if content of ``tenant`` is recorded; it is empty for requests without a key."""
        return self._tenants.get(tenant, self.full)

    def may_keep_letter(self, tenant: str) -> bool:
        """Return True if dead letters of ``tenant`` may include its inputs.

        That also requires the setting for dead letters.
        """
        return self._tenants.get(tenant, True)


def parse_record_rules(mode: str, tenants: str) -> RecordRules:
    """Parse the settings ``record`` and ``record_tenants``. Raises ``BadRequest`` with the variable."""
    if mode not in MODES:
        raise BadRequest(f"OMNIBUS_GATEWAY_RECORD={mode!r} must be one of {', '.join(MODES)}")
    return RecordRules(mode != "digest", dict(_parse_rule(each.strip()) for each in tenants.split(",") if each.strip()))


def _parse_rule(text: str) -> tuple[str, bool]:
    tenant, _, mode = text.partition("=")
    if not api_key.TENANT.fullmatch(tenant) or mode not in TENANT_MODES:
        expected_text = " or ".join(f"TENANT={each}" for each in TENANT_MODES)
        raise BadRequest(f"{_VARIABLE}: {text[:80]!r} must be {expected_text}, with commas between several")
    return tenant, mode == "full"


#: Models and reasons whose dead letters are counted separately.
MAX_LABEL_PAIRS = 512


class DeadLetters:
    """Publishes to the stream without waiting. ``full`` includes inputs; ``limit`` is the bus's, in bytes."""

    def __init__(self, bus: Bus, full: bool, limit: int) -> None:
        self._bus = bus
        self._limit = limit
        self.full = full
        self.counts: Counter[tuple[str, str]] = Counter()  # by model and reason

    @property
    def records_lost(self) -> int:
        """Records and dead letters that the bus dropped."""
        return self._bus.records_lost

    def write(self, running: InflightInvocation, digested_invocation: Invocation, may_keep: bool = True) -> None:
        """Write a dead letter of ``running`` if its failure requires one.

        ``digested_invocation`` is its invocation without users' content; the letter has only that unless
        ``may_keep``.
        """
        invocation, failure = running.invocation, running.failure
        why = dead_letters.dead_letter_reason(failure, running.failed, running.moves, invocation.attempt)
        if not why or failure is None:
            return
        lost_executors = tuple(
            move.executor for move in running.moves if move.reason in EXECUTOR_LOSS_REASONS and move.executor
        )
        node = (
            running.failed
            if running.failed >= 0
            else _first_node(invocation, lost_executors[-1] if lost_executors else failure.executor)
        )
        letter = DeadLetter(
            v=WIRE_VERSION,
            inv=invocation.id,
            reason=why,
            at=time.time(),
            created=invocation.created,
            app=invocation.app,
            model=invocation.model,
            type=invocation.type,
            path=invocation.path,
            problem=failure.to_problem(),
            attempts=invocation.attempt + 1,
            node=node,
            component=invocation.nodes[node].component if node >= 0 else failure.stage,
            lost=lost_executors,
            moves=tuple(running.moves),
            replay_of=invocation.replay_of,
            invocation=invocation if self.full and may_keep else digested_invocation,
            refused=tuple(sorted(running.culprit)),
        )
        small = msgspec.structs.replace(letter, invocation=digested_invocation)
        self._count_letter(invocation.nodes[node].model or invocation.model if node >= 0 else invocation.model, why)
        body = dead_letters.encode_dead_letter(letter, small, limit=self._limit)
        self._bus.publish_record(
            subjects.dead_letter_subject(invocation.app, invocation.id), body, f"{invocation.id}.dead"
        )

    def _count_letter(self, model: str, why: str) -> None:
        # An operator who replays by hand may write a record with any model.
        is_known = (model, why) in self.counts or len(self.counts) < MAX_LABEL_PAIRS
        self.counts[model if is_known else "other", why] += 1


def _first_node(invocation: Invocation, executor: str) -> int:
    """Return the first node on the route of ``executor``; -1 without any."""
    return invocation.route.index(executor) if executor in invocation.route else -1


#: Bytes of a request that its record repeats; a longer one is stored in the media store.
MAX_BODY_BYTES = 16 << 10


class AnswerDigest:
    """Digest of an answer, independent of the cuts between its parts."""

    def __init__(self) -> None:
        self._hash = sha256()
        self._in_text = False

    def add_part(self, body: bytes) -> None:
        """Add the next part, or a whole answer, as JSON."""
        if body.startswith(b'"'):
            text: str = msgspec.json.decode(body)
            self._hash.update((b"" if self._in_text else b"\0") + text.encode("utf-8", "surrogatepass"))
            self._in_text = True
        else:
            self._hash.update(b"\1" + body)
            self._in_text = False

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


class AppCallLog:
    """One call while it runs. If ``placed``, ``body`` names media that the gateway placed."""

    def __init__(self, kind: str, number: int, body: bytes, *, placed: bool) -> None:
        self._kind = kind
        self._number = number
        self._body = body
        self._placed = placed
        self.answer = AnswerDigest()

    def to_record(self, first: Invocation, media: MediaStore) -> AppCall:
        """Return the record of this call, whose ``first`` segment ended; ``media`` stores a long body."""
        body, digest = self._body.decode(), ""
        if len(self._body) > MAX_BODY_BYTES:
            body, digest = "", sha256(self._body).hexdigest()
            media.put_nowait(digest, self._body)
        return AppCall(
            first.app, self._kind, self._number, first.seed, body, digest, self._placed, self.answer.hexdigest()
        )


log = logging.getLogger(__name__)

_NO_LINKS = RequestLinks()
#: Characters of an answer's text that its end record repeats; the digest covers all of it.
MAX_RECORDED_CHARS = 16_000
#: Seconds that the beginning of an invocation is held back: if it ends by then, both are one message. Longer ones are
#: recorded even if their gateway dies.
HOLD_SECONDS = 0.1
#: Seconds in which such messages are collected, to be published together, and how many of them at most. A gateway that
#: is killed loses those of answers that it has just sent.
COLLECT_SECONDS = WHOLE_RECORD_SECONDS
MAX_COLLECTED = 64
#: Bytes of both records up to which they are one message.
MAX_WHOLE_BYTES = 64 << 10


class _HeldBegin(NamedTuple):
    """The unpublished beginning of an invocation; ``until`` is the event loop's time."""

    invocation: Invocation
    body: bytes
    id: str
    until: float


class Records:
    """Writes to the stream without waiting; reads it for replay.

    ``rules`` decide whose inputs it stores, or only digests, as of a tenant that has used its ``budget``. The beginning
    of an invocation is held back for ``hold_seconds``. ``meter`` measures usage.
    """

    def __init__(
        self,
        bus: Bus,
        meter: UsageMeter,
        rules: RecordRules,
        keep: MediaStore,
        dead: DeadLetters | None = None,
        hold_seconds: float = 0.0,
        budget: LogBudget | None = None,
    ) -> None:
        self.bus = bus
        self.meter = meter
        self._dead = dead
        self.media = keep
        self.rules = rules
        self.budget = budget or LogBudget()
        self._hold_seconds = hold_seconds
        self._held: dict[str, _HeldBegin] = {}  # by invocation, oldest first
        self._timer: asyncio.TimerHandle | None = None
        self._collected: list[tuple[Invocation, bytes, str]] = []  # whole records, with their ids
        self._collecting: asyncio.TimerHandle | None = None
        #: Called with each invocation that ends, and its status; None without observers.
        self.on_end: Callable[[InflightInvocation, str], None] | None = None

    def write_begin(self, running: InflightInvocation, tenant: str = "") -> None:
        """Record an invocation for ``tenant``: at once, or held back for a moment."""
        invocation = running.invocation
        whole = (
            graph.encode_invocation(invocation) if running.tapes else running.body
        )  # captured outputs were requested in addition
        body = whole if self.keeps_content(tenant) else graph.encode_invocation(_digest_inputs(invocation))
        self.budget.count(tenant, len(body))
        id = f"{invocation.id}.{invocation.attempt}"
        if not self._hold_seconds:
            self._publish_record(invocation, body, id)
            return
        loop = asyncio.get_running_loop()
        self._held[invocation.id] = _HeldBegin(invocation, body, id, loop.time() + self._hold_seconds)
        if self._timer is None:
            self._timer = loop.call_later(self._hold_seconds, self._publish_due)

    def keeps_content(self, tenant: str) -> bool:
        """Return True if content of the next record of ``tenant`` is stored."""
        return self.rules.keeps_content(tenant) and not self.budget.wait_seconds(tenant)

    def _publish_due(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        now = loop.time()
        for name, held_record in list(self._held.items()):
            if held_record.until > now:
                self._timer = loop.call_at(held_record.until, self._publish_due)
                return
            self.publish_begin(name)

    def publish_begin(self, name: str) -> None:
        """Publish the beginning of invocation ``name``, if held back."""
        held_record = self._held.pop(name, None)
        if held_record is not None:
            self._publish_record(held_record.invocation, held_record.body, held_record.id)

    def close(self) -> None:
        """Publish all records that are held back."""
        self.publish_collected()
        for name in list(self._held):
            self.publish_begin(name)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def write_end(
        self,
        running: InflightInvocation,
        status: str,
        got: AnswerAccumulator | None = None,
        links: RequestLinks = _NO_LINKS,
        tenant: str = "",
        *,
        billed: bool = True,
        call: AppCallLog | None = None,
    ) -> RequestUsage:
        """Write the end of one invocation of ``tenant``; returns its usage.

        ``got`` is the answer that a chat's client received. Unless ``billed``, the usage has GPU-seconds but no price.
        ``call`` is the call of its app."""
        usage = self.meter.measure(running)
        if not billed:
            usage = msgspec.structs.replace(usage, money=UNSET)
        if tenant and usage.money is not UNSET:
            TENANTS.cost_counter(tenant, str(usage.currency)).inc(usage.money)
        invocation, answer = running.invocation, got.to_answer() if got is not None else RecordedAnswer()
        full = self.keeps_content(tenant)
        if got is not None and full and answer.audio_sha256:
            self.media.put_nowait(answer.audio_sha256, got.pcm)
        if not full or answer.characters > MAX_RECORDED_CHARS or answer.calls or answer.reasoning:
            answer = cut_answer(answer, MAX_RECORDED_CHARS if full else 0)
        is_recorded = full and status == "done"
        end_record = EndRecord(
            inv=invocation.id,
            status=status,
            created=invocation.created,
            finished=time.time(),
            first=got.first if got is not None else 0.0,
            attempts=invocation.attempt + 1,
            path=invocation.path,
            route=invocation.route,
            hops=tuple(running.hops[node] for node in sorted(running.hops)),
            answer=answer,
            problem=running.failure.to_problem() if running.failure is not None else None,
            outputs=output_digests(running),
            segments=links.segments,
            options=invocation.options,
            moves=tuple(running.moves),
            node=running.failed,
            kept=tuple(self._store_captures(running)) if full else (),
            pulls=running.pull_log.costs() if running.pull_log is not None else (),
            usage=usage,
            tenant=tenant,
            call=call.to_record(invocation, self.media) if call is not None and is_recorded else UNSET,
            called=links.called or UNSET,
            caller=links.caller or UNSET,
        )
        body = messages.encode(end_record)
        self.budget.count(tenant, len(body))
        self._publish_end(invocation, body)
        if status == "failed" and self._dead is not None:
            self._write_dead_letter(self._dead, running, tenant)
        if self.on_end is not None:
            self.on_end(running, status)
        return usage

    def _publish_end(self, invocation: Invocation, body: bytes) -> None:
        """Publish an end, together with a held beginning if both fit."""
        held_record = self._held.get(invocation.id)
        if held_record is not None and len(held_record.body) + len(body) <= MAX_WHOLE_BYTES:
            del self._held[invocation.id]
            self._collect_whole(invocation, records.join_records(held_record.body, body))
            return
        self.publish_begin(invocation.id)
        self._publish_record(invocation, body, f"{invocation.id}.end")

    def _collect_whole(self, invocation: Invocation, body: bytes) -> None:
        """Collect whole records: the stream wakes once for several of them."""
        self._collected.append((invocation, body, f"{invocation.id}.end"))
        if len(self._collected) >= MAX_COLLECTED:
            self.publish_collected()
        elif self._collecting is None:
            self._collecting = asyncio.get_running_loop().call_later(COLLECT_SECONDS, self.publish_collected)

    def publish_collected(self) -> None:
        """Publish the collected whole records."""
        if self._collecting is not None:
            self._collecting.cancel()
            self._collecting = None
        whole_records, self._collected = self._collected, []
        for invocation, body, id in whole_records:
            self._publish_record(invocation, body, id)

    def _store_captures(self, running: InflightInvocation) -> Iterator[KeptOutput]:
        for tape in running.tapes.values():
            record = tape.to_record()
            if record is not None:
                about, body = record
                self.media.put_nowait(about.sha256, body)
                yield about

    def _write_dead_letter(self, dead: DeadLetters, running: InflightInvocation, tenant: str) -> None:
        try:
            dead.write(running, _digest_inputs(running.invocation), self.rules.may_keep_letter(tenant))
        except OmnibusError as error:
            log.warning("cannot write the dead letter of %s: %s", running.id, error)

    def _publish_record(self, invocation: Invocation, body: bytes, id: str) -> None:
        try:
            self.bus.publish_record(subjects.record_subject(invocation.app, invocation.id), body, id)
        except OmnibusError as error:  # serving continues without its record
            log.warning("cannot record %s: %s", id, error)

    async def find(self, id: str) -> Record:
        """Return a recorded invocation and its end. Raises ``NotFound``."""
        self.publish_collected()
        return await records.find_record(self.bus, id)


def cut_answer(answer: RecordedAnswer, chars: int) -> RecordedAnswer:
    """Return ``answer`` with each text cut to ``chars`` characters; digests cover all of it."""
    return msgspec.structs.replace(
        answer, text=answer.text[:chars], calls=answer.calls[:chars], reasoning=answer.reasoning[:chars]
    )


def output_digests(running: InflightInvocation) -> dict[str, str]:
    """Return digests of the complete outputs with a fingerprint, by ``<node>.<output>``."""
    return {
        f"{node}.{output}": stream.fingerprint.hexdigest()
        for (node, output), stream in running.streams.items()
        if stream.fingerprint is not None and stream.is_whole
    }


def _digest_inputs(invocation: Invocation) -> Invocation:
    """Return ``invocation`` without users' content: each literal input as its size and digest."""
    nodes = tuple(
        graph.with_inputs(node, {name: _digest_value(value) for name, value in node.inputs.items()})
        for node in invocation.nodes
    )
    return msgspec.structs.replace(invocation, nodes=nodes)


def _digest_value(value: Any) -> Any:
    if isinstance(value, msgspec.Raw):
        value = msgspec.json.decode(value)
    if any(graph.find_refs(value)) or not isinstance(value, str | list | dict) or not value:
        return value
    if isinstance(value, dict) and HANDLE in value:
        return {DIGEST: value.get("sha256", ""), **{key: entry for key, entry in value.items() if key != HANDLE}}
    body = msgspec.json.encode(value)
    return {DIGEST: hashlib.sha256(body).hexdigest(), "nbytes": len(body)}
