"""Writes dead letters; see ``omnibus.recording.dead_letters``."""

import time
from collections import Counter

import msgspec

from omnibus.bus import Bus, subjects
from omnibus.graph import WIRE_VERSION, Invocation
from omnibus.recording import dead_letters
from omnibus.recording.dead_letters import EXECUTOR_LOSS_REASONS, DeadLetter
from omnibus_gateway.dispatch.inflight import InflightInvocation

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
