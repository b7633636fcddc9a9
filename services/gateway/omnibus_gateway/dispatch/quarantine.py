"""Quarantine of inputs that kill executors: suspected after one death, refused after two.

An executor that dies holds many invocations, and may have been killed from outside, so one death refuses nothing. Each
unfinished node that it held becomes a suspect, identified by a digest of all its inputs. A node that finishes anywhere
is cleared. Suspects move like other nodes, but avoid executors with more components than the dead one, if possible.

At a further death, the suspects with the most deaths are compared. If they belong to one request, its input is refused.
If they belong to several, these requests run one at a time, so the next death identifies the culprit. An executor
that returns as the same process only lost its connection, which does not count as a death. This module uses no clock
and no I/O; times are seconds of one clock.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from math import ceil

from omnibus.bus.messages import ExecutorStatus
from omnibus.errors import BadInput, StageUnavailable
from omnibus.graph import GraphNode, Invocation
from omnibus_gateway.dispatch.inflight import InflightInvocation
from omnibus_gateway.routing.executors import ExecutorTable
from omnibus_gateway.routing.router import ExecutorRoute

#: Deaths after which an input is refused, if it is the only suspect.
MAX_DEATHS = 2
#: Suspects and refused inputs that are remembered; the oldest are evicted first.
MAX_SUSPECTS = 4096
MAX_REFUSED_INPUTS = 256
#: Dead executors that are remembered, in case they return.
MAX_DEAD_EXECUTORS = 64

#: Digests of nodes that together kill executors.
Culprit = frozenset[str]


def node_keys(nodes: Sequence[GraphNode]) -> list[str]:
    """Return a digest of each node and all its inputs; equal inputs have equal keys for all senders."""
    keys: list[str] = []
    for node in nodes:
        digest = blake2b(node.digest.encode(), digest_size=12)
        for producer, output in node.uses:
            digest.update(f" {keys[producer]}.{output}".encode())
        keys.append(digest.hexdigest())
    return keys


class Quarantine:
    """Inputs that this gateway suspects and refuses for ``seconds``; 0 disables it."""

    def __init__(self, members: ExecutorTable, seconds: float = 0.0) -> None:
        self._members = members
        self._seconds = seconds
        self._suspects: OrderedDict[str, int] = OrderedDict()  # deaths by key
        self._refused: OrderedDict[Culprit, float] = OrderedDict()  # until when
        self._dead: OrderedDict[str, tuple[ExecutorStatus, Culprit]] = OrderedDict()  # last status, and its suspects
        self._single: InflightInvocation | None = None
        self._waiting: deque[tuple[InflightInvocation, int, Callable[[], None]]] = deque()

    # Refusing

    def check_invocation(self, invocation: Invocation, now: float) -> None:
        """Raise ``BadInput`` for a refused input. Replays by an operator are exempt."""
        if not self._refused or invocation.replay_of:
            return
        keys = set(node_keys(invocation.nodes))
        for culprit, until in list(self._refused.items()):
            if until <= now:
                del self._refused[culprit]
            elif culprit <= keys:
                raise _refusal_error(until - now)

    def refuse_inputs(self, culprit: Iterable[str], now: float) -> None:
        """Refuse inputs with all of ``culprit``, for example as another gateway does."""
        refused_keys = frozenset(culprit)
        if refused_keys and self._seconds:
            self._refused[refused_keys] = now + self._seconds
            self._refused.move_to_end(refused_keys)
            while len(self._refused) > MAX_REFUSED_INPUTS:
                self._refused.popitem(last=False)

    # Suspecting

    def record_death(self, executor: str, inflight: Iterable[InflightInvocation], now: float) -> None:
        """Record the suspects of a dead ``executor``; sets the ``culprit`` of refused invocations.

        Each request that a dead executor rejects reports its death again: only the first report counts.
        """
        member = self._members.get(executor)
        if member is None:
            return
        held_keys = {
            running: _unfinished_keys(running, executor)
            for running in inflight
            if running.waits_for(executor) and not running.mirrored
        }
        for running in held_keys:
            running.died_with.append(frozenset(member.status.components))
        if not self._seconds or not held_keys:
            return
        suspects: Culprit = frozenset().union(*held_keys.values())
        self._dead[executor] = member.status, suspects
        while len(self._dead) > MAX_DEAD_EXECUTORS:
            self._dead.popitem(last=False)
        for key in suspects:
            self._suspects[key] = self._suspects.get(key, 0) + 1
            self._suspects.move_to_end(key)
        while len(self._suspects) > MAX_SUSPECTS:
            self._suspects.popitem(last=False)
        self._judge_suspects(held_keys, now)

    def note_status(self, status: ExecutorStatus) -> None:
        """Revoke the death of an executor if the same process reconnected."""
        if not self._dead or status.id not in self._dead:
            return
        last, suspects = self._dead.pop(status.id)
        if status.pid != last.pid or status.reconnects <= last.reconnects:
            return  # another process replaced it
        for key in suspects & self._suspects.keys():
            self._suspects[key] -= 1
            if not self._suspects[key]:
                del self._suspects[key]
        for culprit in [each for each in self._refused if each & suspects]:
            del self._refused[culprit]

    def clear_suspect(self, running: InflightInvocation, node: int) -> None:
        """Clear the input of ``node``, which finished."""
        if not self._suspects and not self._refused:
            return
        key = node_keys(running.invocation.nodes)[node]
        self._suspects.pop(key, None)
        for culprit in [each for each in self._refused if key in each]:
            del self._refused[culprit]

    def _judge_suspects(self, held_keys: Mapping[InflightInvocation, Culprit], now: float) -> None:
        """Refuse the input with the most deaths; if there are several, make each run alone."""
        deaths = max((self._suspects.get(key, 0) for keys in held_keys.values() for key in keys), default=0)
        if deaths < MAX_DEATHS:
            return
        worst = {
            run: frozenset(key for key in keys if self._suspects.get(key) == deaths) for run, keys in held_keys.items()
        }
        culprits = {keys for keys in worst.values() if keys}
        for running, keys in worst.items():
            if keys and len(culprits) == 1:
                running.culprit = keys
                self.refuse_inputs(keys, now)
            elif keys:
                running.single = True

    def refusal_error(self, running: InflightInvocation) -> BadInput | None:
        """Return the error for an input that killed its executors; None for any other."""
        return _refusal_error(self._seconds) if running.culprit else None

    # Moving

    def find_route(self, running: InflightInvocation) -> ExecutorRoute:
        """Return the next route of ``running``, if possible without suspiciously large executors.

        These run more components than an executor that died with it. Raises as ``running.again`` does.
        """
        lost_executors = frozenset(running.lost)
        larger = frozenset[str]().union(*map(self._members.larger_executors, running.died_with))
        if larger:
            try:
                return running.again(lost_executors | larger)
            except StageUnavailable:  # there are no others
                pass
        return running.again(lost_executors)

    def schedule_move(self, running: InflightInvocation, move: Callable[[], None]) -> None:
        """Call ``move`` now; if ``running`` must run alone, after the other ones that must."""
        if running.single and self._single not in (None, running):
            self._waiting.append((running, running.invocation.attempt, move))
            return
        if running.single:
            self._single = running
        move()

    def release_turn(self, running: InflightInvocation) -> None:
        """Start the next move that must run alone, because ``running`` ended."""
        if self._single is not running:
            return
        self._single = None
        while self._waiting and self._single is None:
            following, attempt, move = self._waiting.popleft()
            if not following.over and following.failure is None and following.invocation.attempt == attempt:
                self.schedule_move(following, move)


def _unfinished_keys(running: InflightInvocation, executor: str) -> Culprit:
    """Return the keys of the unfinished nodes of ``executor``."""
    keys, route = node_keys(running.invocation.nodes), running.invocation.route
    return frozenset(keys[node] for node, by in enumerate(route) if by == executor and node not in running.hops)


def _refusal_error(seconds: float) -> BadInput:
    return BadInput(
        f"this input ended {MAX_DEATHS} executors and is refused for {ceil(seconds)} seconds: send another one, or ask "
        "the operator, who finds it among the dead letters"
    )
