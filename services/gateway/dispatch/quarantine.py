"""Inputs that end executors: suspected after one death, refused for a while after two.

An executor that dies holds many invocations, and may have been killed from outside, so one death refuses nothing. Each
unfinished node that it held is a suspect, known by a digest of all that it is computed from. A node that finishes
anywhere is none any more. Suspects move like anything else, but, where there is a choice, not to an executor that runs
more components than the one that died. At a further death the suspects with most deaths are compared: are they of one
request, that input is refused; are they of several, these go on one at a time, so that the next death tells. An
executor that comes back as the same process has only lost its connection: that was no death. No clock and no I/O here;
times are seconds of one clock.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from math import ceil

from omnibus.bus.messages import ExecutorStatus
from omnibus.errors import BadInput, StageUnavailable
from omnibus.graph import GraphNode, Invocation
from services.gateway.dispatch.inflight import InflightInvocation
from services.gateway.routing.executors import ExecutorTable
from services.gateway.routing.router import ExecutorRoute

#: Deaths after which an input is refused, if there is one alone to suspect.
MAX_DEATHS = 2
#: Suspects, and refused inputs, that are remembered; those of longest ago are forgotten first.
MAX_SUSPECTS = 4096
MAX_REFUSED_INPUTS = 256
#: Dead executors that are remembered, in case that they come back.
MAX_DEAD_EXECUTORS = 64

#: Digests of nodes that together end executors.
Culprit = frozenset[str]


def node_keys(nodes: Sequence[GraphNode]) -> list[str]:
    """A digest of each node and all that it is computed from. Equal inputs have equal keys, whoever sends them."""
    keys: list[str] = []
    for node in nodes:
        digest = blake2b(node.digest.encode(), digest_size=12)
        for producer, output in node.uses:
            digest.update(f" {keys[producer]}.{output}".encode())
        keys.append(digest.hexdigest())
    return keys


class Quarantine:
    """Inputs that this gateway suspects and refuses. ``seconds`` 0: none."""

    def __init__(self, members: ExecutorTable, seconds: float = 0.0) -> None:
        self._members = members
        self._seconds = seconds
        self._suspects: OrderedDict[str, int] = OrderedDict()  # deaths by key
        self._refused: OrderedDict[Culprit, float] = OrderedDict()  # until when
        self._dead: OrderedDict[str, tuple[ExecutorStatus, Culprit]] = OrderedDict()  # last status, and what it held
        self._single: InflightInvocation | None = None
        self._waiting: deque[tuple[InflightInvocation, int, Callable[[], None]]] = deque()

    # Refusing

    def check_invocation(self, invocation: Invocation, now: float) -> None:
        """Raise ``BadInput`` for an input that is refused. What an operator runs again is not."""
        if not self._refused or invocation.replay_of:
            return
        keys = set(node_keys(invocation.nodes))
        for culprit, until in list(self._refused.items()):
            if until <= now:
                del self._refused[culprit]
            elif culprit <= keys:
                raise _refusal_error(until - now)

    def refuse_inputs(self, culprit: Iterable[str], now: float) -> None:
        """Refuse inputs with all of ``culprit`` from now on, for example because another gateway does."""
        refused = frozenset(culprit)
        if refused and self._seconds:
            self._refused[refused] = now + self._seconds
            while len(self._refused) > MAX_REFUSED_INPUTS:
                self._refused.popitem(last=False)

    # Suspecting

    def record_death(self, executor: str, inflight: Iterable[InflightInvocation], now: float) -> None:
        """Note what ``executor`` held when it died; ``running.culprit`` is what of it is refused from now on.

        The word of a death comes several times, of each request that it refuses: the first one is counted.
        """
        member = self._members.get(executor)
        if member is None:
            return
        held = {
            running: _unfinished_keys(running, executor)
            for running in inflight
            if running.waits_for(executor) and not running.mirrored
        }
        for running in held:
            running.died_with.append(frozenset(member.status.components))
        if not self._seconds or not held:
            return
        suspects: Culprit = frozenset().union(*held.values())
        self._dead[executor] = member.status, suspects
        while len(self._dead) > MAX_DEAD_EXECUTORS:
            self._dead.popitem(last=False)
        for key in suspects:
            self._suspects[key] = self._suspects.get(key, 0) + 1
            self._suspects.move_to_end(key)
        while len(self._suspects) > MAX_SUSPECTS:
            self._suspects.popitem(last=False)
        self._judge_suspects(held, now)

    def note_status(self, status: ExecutorStatus) -> None:
        """Take back the death of an executor that goes on: the same process, whose connection came back."""
        if not self._dead or status.id not in self._dead:
            return
        last, suspects = self._dead.pop(status.id)
        if status.pid != last.pid or status.reconnects <= last.reconnects:
            return  # another one in its place
        for key in suspects & self._suspects.keys():
            self._suspects[key] -= 1
            if not self._suspects[key]:
                del self._suspects[key]
        for culprit in [each for each in self._refused if each & suspects]:
            del self._refused[culprit]

    def clear_suspect(self, running: InflightInvocation, node: int) -> None:
        """``node`` is done: its input is no suspect."""
        if not self._suspects and not self._refused:
            return
        key = node_keys(running.invocation.nodes)[node]
        self._suspects.pop(key, None)
        for culprit in [each for each in self._refused if key in each]:
            del self._refused[culprit]

    def _judge_suspects(self, held: Mapping[InflightInvocation, Culprit], now: float) -> None:
        """Refuse the input that has most deaths, if it is one; of several each is to go on by itself."""
        deaths = max((self._suspects.get(key, 0) for keys in held.values() for key in keys), default=0)
        if deaths < MAX_DEATHS:
            return
        worst = {run: frozenset(key for key in keys if self._suspects.get(key) == deaths) for run, keys in held.items()}
        culprits = {keys for keys in worst.values() if keys}
        for running, keys in worst.items():
            if keys and len(culprits) == 1:
                running.culprit = keys
                self.refuse_inputs(keys, now)
            elif keys:
                running.single = True

    def refusal_error(self, running: InflightInvocation) -> BadInput | None:
        """The error for an input that ended its executors; None for any other."""
        return _refusal_error(self._seconds) if running.culprit else None

    # Moving

    def find_route(self, running: InflightInvocation) -> ExecutorRoute:
        """The next route of ``running``, if possible past executors of more components than one that died with it.

        Raises as ``running.again`` does.
        """
        lost = frozenset(running.lost)
        larger = frozenset[str]().union(*map(self._members.larger_executors, running.died_with))
        if larger:
            try:
                return running.again(lost | larger)
            except StageUnavailable:  # there is no other
                pass
        return running.again(lost)

    def schedule_move(self, running: InflightInvocation, move: Callable[[], None]) -> None:
        """Call ``move`` now, or, if ``running`` has to go on by itself, when no other one does."""
        if running.single and self._single not in (None, running):
            self._waiting.append((running, running.invocation.attempt, move))
            return
        if running.single:
            self._single = running
        move()

    def release_turn(self, running: InflightInvocation) -> None:
        """``running`` is over: the next one goes on."""
        if self._single is not running:
            return
        self._single = None
        while self._waiting and self._single is None:
            following, attempt, move = self._waiting.popleft()
            if not following.over and following.failure is None and following.invocation.attempt == attempt:
                self.schedule_move(following, move)


def _unfinished_keys(running: InflightInvocation, executor: str) -> Culprit:
    """Keys of the nodes that ``executor`` has not finished."""
    keys, route = node_keys(running.invocation.nodes), running.invocation.route
    return frozenset(keys[node] for node, by in enumerate(route) if by == executor and node not in running.hops)


def _refusal_error(seconds: float) -> BadInput:
    return BadInput(
        f"this input ended {MAX_DEATHS} executors and is refused for {ceil(seconds)} seconds; send another one, or ask "
        "the operator, who has it among the dead letters"
    )
